"""`Traces`: the traces of all ranks of an algorithm, a view of what the algorithm holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.program.rotation import Rotated, rotated_of
from astrasim_py.program.table import Program

#: Most nodes, all ranks together, of traces of a rotation that are kept.
_KEPT_NODES = 2**17


class Traces(Sequence[ExecutionTrace]):
    """One trace per rank and actor.

    They are `given`, which may have names, metadata and files; or follow from rank 0's (`rotated`); or are made of the
    program that a builder drafts. `searched`: whether a rotation is searched for among given ones, as in files.
    """

    def __init__(
        self,
        count: int,
        *,
        given: tuple[ExecutionTrace, ...] = (),
        rotated: Rotated | None = None,
        draft: Callable[[], Program] | None = None,
        searched: bool = False,
    ) -> None:
        self.size, self.given, self.rotated, self.searched = count, given, rotated, searched
        self._draft = draft

    @classmethod
    def of(cls, traces: Iterable[ExecutionTrace], *, searched: bool = False) -> Traces:
        """Given traces."""
        if isinstance(traces, Traces):
            return traces
        tuple_of = tuple(traces)
        return cls(len(tuple_of), given=tuple_of, searched=searched)

    @classmethod
    def of_rotation(cls, rotated: Rotated) -> Traces:
        """Traces that follow from rank 0's."""
        return cls(rotated.rotation.ranks, rotated=rotated)

    @cached_property
    def drafted(self) -> Program | None:
        """The program of all ranks that a builder drafts, made when it is asked for first; None of other traces."""
        program, self._draft = self._draft and self._draft(), None
        return program

    def __getstate__(self) -> dict[str, object]:
        return {"drafted": self.drafted} | {key: value for key, value in vars(self).items() if key != "_all"}

    @cached_property
    def recognised(self) -> Traces | None:
        """Given traces of files with the rotation among them; None where there is none."""
        rotated = rotated_of(self.given) if self.searched else None
        return None if rotated is None else Traces(self.size, given=self.given, rotated=rotated)

    @property
    def first(self) -> Program:
        """The table of rank 0."""
        return self.program_of([0]) if self.rotated is None else Program.of_traces([self.rotated.base])

    def program_of(self, ranks: Sequence[int] | np.ndarray) -> Program:
        """The table of some ranks or actors, which become its ranks 0, 1, …"""
        if self.drafted is not None:
            return self.drafted.some(ranks)
        if self.rotated is None or self.given:
            return Program.of_traces([self.given[rank] for rank in ranks])
        self.rotated.check_size(len(ranks))
        shared = self.first.some(np.zeros(len(ranks), dtype=np.int64))
        return shared.with_columns({name: column.ravel() for name, column in self.rotated.columns(ranks).items()})

    @cached_property
    def tables(self) -> Mapping[ExecutionTrace | Program, int]:
        """Tables that together have all nodes, and how often."""
        if self.drafted is not None:
            return {self.drafted: 1}
        return Counter(self.given) if self.rotated is None else {self.rotated.base: self.size}

    @property
    def _large(self) -> Rotated | None:
        """The rotation whose traces are too many to be kept."""
        return self.rotated if self.rotated and not self.given and self.rotated.nodes > _KEPT_NODES else None

    @cached_property
    def _all(self) -> tuple[ExecutionTrace, ...]:
        if self.drafted is not None:
            return self.drafted.traces()
        return self.given if self.rotated is None or self.given else tuple(self.rotated.in_blocks(range(self.size)))

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> ExecutionTrace: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ExecutionTrace, ...]: ...
    def __getitem__(self, index: int | slice) -> ExecutionTrace | tuple[ExecutionTrace, ...]:
        if index == 0 and self.rotated:
            return self.rotated.base
        if self._large is None:
            return self._all[index]
        ranks = range(self.size)[index]
        return tuple(self._large.in_blocks(ranks)) if isinstance(ranks, range) else self._large.traces([ranks])[0]

    def __iter__(self) -> Iterator[ExecutionTrace]:
        return iter(self._all) if self._large is None else self._large.in_blocks(range(self.size))
