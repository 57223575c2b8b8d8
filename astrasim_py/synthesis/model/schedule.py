"""Schedules: their transfers and times, a lower bound, and schedules composed of others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from astrasim_py.core.errors import InternalError
from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.model.cells import cells_of
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import by_time, rows_of
from astrasim_py.synthesis.model.insertion import calendars, ordered
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.timing import Timing


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the time, and its kind."""

    time: int  # ps
    kind: str  # ``ingress``, ``egress``, ``path``, …


def share_of_bound(bound: int, time: int) -> Fraction:
    """A bound per time, in 0..1. Raises InternalError: the bound lies above the time, so it is wrong."""
    if bound > time:
        raise InternalError(f"a schedule of {time} ps is below its bound of {bound} ps")
    return Fraction(bound, time) if time else Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a schedule was found; `cut`: a limit of wall-clock time ended the search."""

    seed: int  # of the whole search
    policy: str  # of the run that found it
    rounds: int  # runs made
    cut: bool = False
    seconds: float = 0.0  # wall-clock time, compilation excluded

    def after(self, other: Search) -> Search:
        """This search, with the effort of an earlier one added."""
        return replace(
            self, rounds=self.rounds + other.rounds, cut=self.cut or other.cut, seconds=self.seconds + other.seconds
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule:
    """Transfers of chunks over arcs, sorted by start; `reduces`: a transfer carries a partial sum, not a copy."""

    network: Network
    demand: Demand
    arc: np.ndarray = field(repr=False)
    chunk: np.ndarray = field(repr=False)
    start: np.ndarray = field(repr=False)  # int64[transfers], ps
    reduces: np.ndarray = field(repr=False)
    time: int  # ps from the first start to the last arrival, counted from 0
    transfers: int  # number of transfers; the columns are empty where they were counted only
    bound: int = 0  # ps that no schedule of this demand on this network can beat; 0 while not computed
    bound_kind: str = ""  # which bound that is: ``ingress``, ``egress``, ``path``, ``cut``, ``work``, ``exact``
    search: Search

    @classmethod
    def of(
        cls, network: Network, demand: Demand, columns: tuple, time: int, search: Search, bound: Bound | None = None
    ) -> Schedule:
        arc, chunk, start, reduces = columns
        bound = bound or Bound(0, "")
        arc, chunk = np.ascontiguousarray(arc, dtype=np.int32), np.ascontiguousarray(chunk, dtype=np.int32)
        return cls(
            network=network, demand=demand, arc=arc, chunk=chunk, start=start, reduces=reduces, time=time,
            transfers=len(arc), bound=bound.time, bound_kind=bound.kind, search=search,
        )  # fmt: skip

    @property
    def optimal(self) -> bool:
        """Whether it meets the bound, which proves that none is faster."""
        return not self.time or 0 < self.time <= self.bound

    @property
    def efficiency(self) -> float:
        """Bound per time; see `share_of_bound`."""
        return float(share_of_bound(self.bound, self.time))

    @property
    def recorded(self) -> bool:
        return len(self.arc) == self.transfers

    @property
    def timing(self) -> Timing:
        """Times by class of size."""
        return self.network.timing(self.demand.sizes)

    @cached_property
    def src(self) -> np.ndarray:
        """int32[transfers], ranks."""
        return self.network.src[self.arc]

    @cached_property
    def dst(self) -> np.ndarray:
        """int32[transfers], ranks."""
        return self.network.dst[self.arc]

    @cached_property
    def _course(self):
        """The course of transfers that may wait in switches; None where none waits."""
        network = self.network
        if network.direct or len(network.occupied_start):
            return None
        return Queues(network, self.demand).course_until(self.arc, self.chunk, self.reduces, self.start)

    @cached_property
    def arrival(self) -> np.ndarray:
        """int64[transfers], ps."""
        if self._course is not None:
            return self._course.arrival
        return self.start + self.timing.delay[self.demand.size_class[self.chunk], self.arc]

    def holds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Every hold of a link: (transfer int64, resource int32, start ps int64, end ps int64)."""
        network = self.network
        ptr, hops = rows_of(network.hop_ptr, self.arc)
        transfer = np.repeat(np.arange(len(self.arc)), np.diff(ptr))
        if self._course is not None:
            return transfer, network.hop[hops], self._course.begin, self._course.end
        kind = self.demand.size_class[self.chunk][transfer]
        start = self.start[transfer] + self.timing.offset[kind, hops]
        return transfer, network.hop[hops], start, start + self.timing.hold[kind, hops]

    def occupied(self) -> Occupied:
        """The holds of this schedule, for another tenant's synthesis on the same topology."""
        _, resource, start, end = self.holds()
        return Occupied(self.network.links[resource], start, end)


#: (arc, chunk, start) of transfers.
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
#: (arc, chunk, start, reduces) of transfers.
Transfers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search."""

    time: int  # ps
    columns: tuple | None  # none where transfers were only counted
    transfers: int
    search: Search

    @property
    def recorded(self) -> tuple:
        """`columns`, where transfers were not only counted."""
        if self.columns is None:
            raise InternalError("transfers were counted only")
        return self.columns


def mirrored(network: Network, demand: Demand, columns: Columns) -> Transfers:
    """A copying schedule on the reversed network as a reducing one on `network`: the last becomes the first."""
    back = network.reversed
    if back.reverse_of is None:
        raise InternalError("a reversed network is mirrored once more")
    arc, chunk, start = columns
    arrival = start + back.timing(demand.sizes).delay[demand.size_class[chunk], arc]
    end = int(arrival.max(initial=0))
    # The last transfer is the first cause now.
    return back.reverse_of[1][arc][::-1], chunk[::-1], (end - arrival)[::-1], np.ones(len(arc), dtype=bool)


def copied(columns: Columns) -> Transfers:
    """Transfers that copy."""
    return *columns, np.zeros(len(columns[0]), dtype=bool)


def chained(first: Transfers, second: Transfers, barrier: int) -> Transfers:
    """One after the other: the second begins at `barrier` ps."""
    later = second[0], second[1], second[2] + barrier, second[3]
    arc, chunk, start, reduces = (np.concatenate(pair) for pair in zip(first, later, strict=True))
    return arc, chunk, start, reduces


#: No transfers at all.
NOTHING = copied((np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)))


@kernel("the synthesizer", threads=True, lean=True)
def _simulate(net, calendar, arc, chunk, cells, order, size_class, free, known, start):
    """Fill `start` with the earliest times, the transfers being taken in `order`; returns the last arrival."""
    last = np.int64(0)
    for i in range(len(order)):
        row = order[i]
        a, z = np.int64(arc[row]), np.int64(size_class[chunk[row]])
        t = ordered(net, calendar, a, z, known[cells.source[row]], free)
        start[row] = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            free[net.hop[h]] = t + net.offset[z, h] + net.hold[z, h]
        arrives = t + net.delay[z, a]
        # A copy replaces nothing: its target waited for it alone. A part of a sum is one of several.
        known[cells.target[row]] = max(known[cells.target[row]], arrives)
        last = max(last, arrives)
    return last


def as_schedule(
    network: Network, demand: Demand, transfers: Transfers, search: Search, bound: Bound | None = None
) -> Schedule:
    """A `Schedule` of transfers, each as early as their order on every link lets it."""
    arc, chunk, start, reduces = transfers
    arc, chunk = np.ascontiguousarray(arc, dtype=np.int32), np.ascontiguousarray(chunk, dtype=np.int32)
    time = 0
    if len(arc):
        # Transfers that begin at once stay in the order in which they were decided: causes first.
        order = by_time(start)
        cells = cells_of(network, arc, chunk, demand.count)
        start = np.empty(len(arc), dtype=np.int64)
        time = _simulate(
            network.timing(demand.sizes), calendars(network), arc, chunk, cells, order, demand.size_class,
            np.zeros(len(network.links), np.int64), np.zeros(cells.total, np.int64), start,
        )  # fmt: skip
        # Sort by the new times; transfers that begin at once keep their order, for one may take no time.
        order = order[by_time(start[order])]
        if (order[1:] < order[:-1]).any():
            arc, chunk, start, reduces = arc[order], chunk[order], start[order], reduces[order]
    return Schedule.of(network, demand, (arc, chunk, start, reduces), int(time), search, bound)
