"""The result of a synthesis: the transfers, their time, and a lower bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from astrasim_py.synthesis.model.arrays import rows_of
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.timing import Timing


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the time, and its kind."""

    time: int  # ps
    kind: str  # ``ingress``, ``egress``, ``path``, …


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a schedule was found; `cut`: a limit of wall-clock time ended the search."""

    seed: int  # of the whole search
    policy: str  # of the run that found it
    rounds: int  # runs made
    cut: bool = False
    seconds: float = 0.0  # wall-clock time, compilation excluded

    def after(self, other: Search) -> Search:
        """This one, with what another search before it took."""
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
        """The schedule of columns (arc, chunk, start, reduces)."""
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
        """Bound per time, in 0..1."""
        return self.bound / self.time if self.time else 1.0

    @property
    def recorded(self) -> bool:
        """Whether the transfers are there and not only counted."""
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
        from astrasim_py.synthesis.model.queueing import Queues

        return Queues(network, self.demand).course(self.arc, self.chunk, self.reduces, self.start)

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
