"""`Repeated`: a sequence of many places and few values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import numpy as np

Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


class Repeated(Sequence[Value], Generic[Value]):
    """Few `values`; `which` (int64[n]) of them is in each place."""

    def __init__(self, values: Sequence[Value], which: np.ndarray) -> None:
        self.values, self.which = values, which

    @classmethod
    def of(cls, every: Sequence[Key]) -> Repeated[Key]:
        """The sequence of equal values."""
        number = {value: i for i, value in enumerate(dict.fromkeys(every))}
        return Repeated(list(number), np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=len(every)))

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, place: int | np.integer) -> Value: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Value, ...]: ...
    def __getitem__(self, place: int | np.integer | slice) -> Value | tuple[Value, ...]:
        if isinstance(place, slice):
            return tuple(map(self.values.__getitem__, self.which[place].tolist()))
        return self.values[int(self.which[place])]

    def __iter__(self) -> Iterator[Value]:
        return map(self.values.__getitem__, self.which.tolist())

    def column(self, of: Callable[[Value], object], dtype: type = np.int64) -> np.ndarray:
        """A property of each value, in all places."""
        return np.array([of(value) for value in self.values], dtype=dtype)[self.which]
