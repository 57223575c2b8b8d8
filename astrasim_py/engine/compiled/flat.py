"""Flat arrays that grow, and tables of records: what the kernel's input is made of."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

#: A number of the input, and fields of a record by name.
Number: TypeAlias = int | np.integer[Any]
Fields: TypeAlias = dict[str, Number]


class Numbers:
    """A growing flat array."""

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.parts: list[np.ndarray] = []
        self.size = 0
        self.known: dict[Hashable, int] = {}

    def add(self, values: ArrayLike) -> int:
        """Append values; returns the index of the first."""
        part: np.ndarray = np.asarray(values, dtype=self.dtype).ravel()
        begin = self.size
        self.parts.append(part)
        self.size += len(part)
        return begin

    def once(self, key: Hashable, make: Callable[[], ArrayLike]) -> int:
        """Append the values of a key, unless they have been; returns the index of the first."""
        if key not in self.known:
            self.known[key] = self.add(make())
        return self.known[key]

    def array(self) -> np.ndarray:
        """All values and a final 0: never empty."""
        made = np.concatenate([*self.parts, np.zeros(1, dtype=self.dtype)])
        # The parts are not kept twice.
        self.parts = [made[:-1]]
        return made


def table_of(rows: Sequence[Fields], dtype: np.dtype) -> np.ndarray:
    """Records with 0 in fields that a row does not have; at least one."""
    made = np.zeros(max(len(rows), 1), dtype=dtype)
    for name in {name for row in rows for name in row}:
        made[name][: len(rows)] = [row.get(name, 0) for row in rows]
    return made


def repeated(rows: Sequence[Fields], which: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Records with few distinct values; at least one."""
    return table_of(rows, dtype)[which if len(which) else [0]]
