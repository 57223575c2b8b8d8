"""Sequences of a plan with few distinct values: programs of ranks, instances and calls of collectives."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from astrasim_py.core.rows import joined, pointers, ranges
from astrasim_py.system.plan import Instance
from astrasim_py.system.programs import COLLECTIVE, PlainPrograms, RankProgram, Structure


class Repeated(Sequence):
    """Few `values`; `which` (int64[n]) of them is in each place."""

    def __init__(self, values: Sequence, which: np.ndarray) -> None:
        self.values, self.which = values, which

    @classmethod
    def of(cls, every: Sequence[Hashable]) -> "Repeated":
        """The sequence of equal values."""
        number = {value: i for i, value in enumerate(dict.fromkeys(every))}
        return cls(list(number), np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=len(every)))

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, place):
        places = range(len(self))[place]
        return self.at(places) if isinstance(places, int) else tuple(map(self.at, places))

    def at(self, place: int) -> Any:
        """The value in a place."""
        return self.values[self.which[place]]

    def column(self, of: Callable[[Any], Any], dtype: type = np.int64) -> np.ndarray:
        """A property of each value, in all places."""
        return np.array([of(value) for value in self.values], dtype=dtype)[self.which]


class Instances(Repeated):
    """Instances of a plan; instances that differ only in `index` and `first` repeat."""

    @cached_property
    def call_counts(self) -> np.ndarray:
        """int64[n]: calls of each."""
        return self.column(lambda value: sum(len(phase.calls) for phase in value.phases))

    @cached_property
    def first(self) -> np.ndarray:
        """int64[n]: the first call of each."""
        return np.cumsum(self.call_counts) - self.call_counts

    def at(self, place: int) -> Instance:
        return replace(super().at(place), index=place, first=int(self.first[place]))


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """A shared program on a rank: `shift` is added to its peers; `instances`: int32, by collective call."""

    program: RankProgram
    shift: int
    instances: np.ndarray

    @cached_property
    def own(self) -> RankProgram:
        """The rank's own program."""
        peer, calls = self.program.peer, self.program.structure.kind == COLLECTIVE
        own = {"peer": np.where(peer >= 0, peer + self.shift, -1).astype(np.int32)} if self.shift else {}
        if len(self.instances):
            own["instance"] = np.where(calls, self.instances[self.program.instance], -1).astype(np.int32)
        return replace(self.program, **own) if own else self.program


class WorkloadPrograms(Repeated):
    """Programs of ranks. Ranks that share a trace share one program; its collective nodes hold the rank's number of
    the call in place of the instance. `values` are `BoundProgram`. A rank's own program is made on demand.
    """

    @cached_property
    def shared(self) -> list[RankProgram]:
        """By rank, the program that it shares."""
        return [self.values[number].program for number in self.which.tolist()]

    @cached_property
    def shifts(self) -> np.ndarray:
        """int64[ranks]: what is added to the peers of the shared program."""
        return self.column(lambda value: value.shift)

    def at(self, place: int) -> RankProgram:
        return super().at(place).own


class SharedPrograms:
    """The distinct programs among some, one after the other.

    `programs`: k of them. `bounds`: int64[k + 1], where the nodes of each begin; `structures`: of each. `positions`:
    int64[n], by program; `which`: int64[n], the program there; `shifts`: int64[n], what is added to its peers there.
    """

    def __init__(self, programs: Sequence[RankProgram]) -> None:
        self.programs, which, shifts = programs, np.arange(len(programs)), np.zeros(len(programs), dtype=np.int64)
        if isinstance(programs, WorkloadPrograms):
            distinct, shifts = Repeated.of([value.program for value in programs.values]), programs.shifts
            self.programs, which = distinct.values, distinct.which[programs.which]
        self.positions = np.argsort(which, kind="stable")
        self.which, self.shifts = which[self.positions], shifts[self.positions]
        if isinstance(programs, PlainPrograms):
            self.bounds, self.structures = programs.bounds, programs.structures
        else:
            self.bounds = pointers([len(program) for program in self.programs])
            self.structures = Repeated.of([program.structure for program in self.programs])
        self.kind = self.of_structures(lambda structure: structure.kind)

    def column(self, name: str) -> np.ndarray:
        """A column of all nodes."""
        if isinstance(self.programs, PlainPrograms):
            return getattr(self.programs.columns, name)
        return joined([getattr(program, name) for program in self.programs], np.int64)

    def of_structures(self, of: Callable[[Structure], np.ndarray]) -> np.ndarray:
        """A property of the nodes of structures, for all nodes."""
        values = [of(structure) for structure in self.structures.values]
        first = pointers([len(value) for value in values])
        owner, within = ranges(np.diff(self.bounds))
        return joined(values, np.int8)[first[self.structures.which][owner] + within]

    def everywhere(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows, ascending, in all positions: int64[m] indices into `positions` and into `rows`."""
        first = np.searchsorted(rows, self.bounds)
        owner, within = ranges(np.diff(first)[self.which])
        return owner, first[self.which][owner] + within
