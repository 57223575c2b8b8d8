"""Runs of the greedy cores on a network and a demand: their arguments, made once for many runs."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.search.symmetric_network import Quotient, find, quotient, signatures

#: Most levels of speed among which slow arcs are told apart.
MAX_LEVELS = 6
#: Ranks × chunks beyond which no run overtakes, for it keeps the time of every arrival.
MAX_OVERTAKING = 2**24
#: Ranks × chunks, and words of calendars, beyond which no schedule is polished.
MAX_POLISHED, MAX_CALENDARS = 2**15, 2**22
#: Moves × ranks of one polishing, and most moves.
POLISHING, MAX_MOVES = 2**17, 4096
#: Chunks to decide for × arcs beyond which a symmetric run is not made.
MAX_CANDIDATES = 2**26
_NEVER = 2**62
_GO = np.zeros(1, dtype=np.int64)

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


class Runs:
    """Greedy runs of one problem.

    Parameters
    ----------
    network : Network
    demand : Demand
        Every rank needs every chunk.
    """

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        timing = network.timing(demand.sizes.tolist())
        self.timing = timing
        order = np.lexsort((timing.delay[0], network.dst)).astype(np.int32)
        out_ptr, out_arc = network.out
        self._arcs = (
            network.in_ptr, order, network.src, network.dst, out_ptr, out_arc, network.hop_ptr, network.hop,
            timing.offset, timing.hold, timing.delay,
            network.occupied_ptr, network.occupied_start, network.occupied_end,
        )  # fmt: skip
        self._room = 2 * (network.arcs + network.ranks) + 64
        self.level, self.part, self.parts = self._levels(out_ptr, out_arc)

    @cached_property
    def _slow(self) -> bool:
        """Whether every transfer takes time: what takes none cannot be put before others afterwards."""
        return bool(self.timing.delay.min(initial=1) > 0)

    @property
    def uneven(self) -> bool:
        """Whether arcs differ in speed where it can matter."""
        delay = self.timing.delay[0]
        return bool(len(delay)) and bool((delay != delay[0]).any())

    def _levels(self, out_ptr: np.ndarray, out_arc: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """(int32[arcs] level of slow arcs, int32[levels, n] parts joined by faster arcs, number of parts)."""
        network, n = self.network, self.network.ranks
        delay = self.timing.delay[0]
        level = np.full(network.arcs, -1, dtype=np.int32)
        rows: list[np.ndarray] = []
        parts = 0
        if self.uneven:
            from astrasim_py.synthesis.model.graphs import components

            slow = np.unique(delay)[1:]
            if len(slow) > MAX_LEVELS:
                slow = slow[np.linspace(0, len(slow) - 1, MAX_LEVELS).astype(int)]
            for least in slow.tolist():
                label, found = components(n, out_ptr, out_arc, network.dst, delay < least)
                if found == n:
                    continue
                level[delay >= least] = len(rows)
                rows.append(label + np.int32(parts))
                parts += found
        part = np.array(rows, dtype=np.int32) if rows else np.empty((0, n), dtype=np.int32)
        return level, part, parts

    def run(
        self, policy, seed: int, limit: int = _NEVER, *, stop: np.ndarray | None = None, record: bool = True
    ) -> tuple[int, int, int, Columns | None]:
        """One run.

        Returns
        -------
        (time, transfers, status, columns)
            Columns are (arc, chunk, start), each without the transfers that came to nothing; None unless it was
            done and recorded.
        """
        from astrasim_py.synthesis.search.greedy import DONE, FULL, OPTIONS, greedy

        demand, stop = self.demand, _GO if stop is None else stop
        room = (self.network.ranks * demand.count) if record else 0
        arc, chunk = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        start = np.empty(room, dtype=np.int64)
        options = np.zeros(OPTIONS, dtype=np.int64)
        overtake = policy.overtake and self._slow and self.network.ranks * demand.count <= MAX_OVERTAKING
        options[:] = policy.samples, policy.hierarchy and len(self.part) > 0, policy.guard, overtake, policy.lazy
        while True:
            time, transfers, rows, status = greedy(
                demand.count, demand.origin, demand.size_class, *self._arcs, self.level, self.part, self.parts,
                options, seed, limit, stop, self._room, arc, chunk, start,
            )  # fmt: skip
            if status != FULL:
                break
            self._room *= 2
        if status != DONE or not record:
            return time, transfers, status, None
        arc, chunk, start = arc[:rows], chunk[:rows], start[:rows]
        kept = arc >= 0
        if not kept.all():
            arc, chunk, start = arc[kept], chunk[kept], start[kept]
        return time, transfers, status, (arc, chunk, start)

    @cached_property
    def _calendar(self) -> int:
        """Most moments in the calendar of a link."""
        arcs = np.bincount(self.network.hop, minlength=1)
        most = min(int(arcs.max()), self.network.ranks) * self.demand.count
        return 2 * (most + int(np.diff(self.network.occupied_ptr).max(initial=0)) + 1)

    @property
    def polishable(self) -> bool:
        """Whether schedules of this problem can be polished."""
        small = self.network.ranks * self.demand.count <= MAX_POLISHED
        return small and self._slow and len(self.network.links) * self._calendar <= MAX_CALENDARS

    def polish(
        self, columns: Columns, seed: int, bound: int, moves: int = MAX_MOVES, *, stop: np.ndarray | None = None
    ) -> tuple[int, int, int, Columns | None]:
        """A schedule made faster, if that succeeds; returns as `run`.

        Parameters
        ----------
        columns : (arc, chunk, start)
            Every rank gets every chunk once.
        bound : int
            ps: done when it is met.
        moves : int
            At most; fewer for many ranks.
        """
        from astrasim_py.synthesis.search.greedy import DONE, FULL
        from astrasim_py.synthesis.search.polish import ORIGIN, polish

        network, demand, timing = self.network, self.demand, self.timing
        arc, chunk, start = columns
        came = np.full((demand.count, network.ranks), ORIGIN, dtype=np.int64)
        arrival = np.zeros_like(came)
        came[chunk, network.dst[arc]] = arc
        arrival[chunk, network.dst[arc]] = start + timing.delay[demand.size_class[chunk], arc]
        best, arrives = np.empty_like(came), np.empty_like(arrival)
        time = polish(
            demand.size_class, demand.origin, network.src, network.dst, network.in_ptr, *network.out,
            network.hop_ptr, network.hop, timing.offset, timing.hold, timing.delay, network.occupied_ptr,
            network.occupied_start, network.occupied_end, min(moves, POLISHING // network.ranks), seed, bound,
            _GO if stop is None else stop, np.empty((len(network.links), self._calendar), dtype=np.int64),
            came, arrival, best, arrives,
        )  # fmt: skip
        if time < 0:
            return time, 0, FULL, None
        chunk, rank = np.nonzero(best != ORIGIN)
        arc = best[chunk, rank]
        start = arrives[chunk, rank] - timing.delay[demand.size_class[chunk], arc]
        order = np.argsort(start, kind="stable")
        return time, len(arc), DONE, (arc[order].astype(np.int32), chunk[order].astype(np.int32), start[order])

    @cached_property
    def quotients(self) -> list[Quotient]:
        """The network up to its translations, for a demand that is as symmetric; the largest group first."""
        network, demand = self.network, self.demand
        if demand.root is not None or len(network.occupied_start) or network.ranks < 3:
            return []
        found = []
        for group in find(network, signatures(network, self.timing)):
            each = quotient(network, self.timing, group)
            if each is not None and demand.count // group.order * network.arcs <= MAX_CANDIDATES:
                found.append(each)
        return found

    def run_symmetric(
        self, policy, seed: int, limit: int = _NEVER, *, stop: np.ndarray | None = None
    ) -> tuple[int, int, int, Columns | None]:
        """One run up to translations; as `run`, and `policy` is an `OrbitPolicy`.

        The columns are those of the chunks decided for; `spread` makes the whole schedule of them.
        """
        from astrasim_py.synthesis.search.greedy import DONE
        from astrasim_py.synthesis.search.symmetric_greedy import OPTIONS, orbit_greedy

        network, each = self.network, self.quotients[policy.group]
        per_rank = self.demand.count // network.ranks
        origin = np.repeat(each.group.rank_at[:, 0], per_rank)
        # Transfers that were overtaken take room until they would have arrived.
        room = network.ranks * len(origin) * (4 if policy.overtake else 1) + 1
        arc, chunk = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        start = np.empty(room, dtype=np.int64)
        options = np.zeros(OPTIONS, dtype=np.int64)
        overtake = policy.overtake and self._slow and len(origin) * network.arcs <= MAX_OVERTAKING
        hierarchy = policy.hierarchy and len(self.part) > 0
        options[:] = policy.samples, hierarchy, policy.guard, overtake, policy.lazy, policy.scarce, policy.spread
        out_ptr, out_arc = network.out
        time, rows, status = orbit_greedy(
            origin, network.ranks, network.in_ptr, network.src, network.dst, out_ptr, out_arc, each.orbit_of,
            np.argsort(each.delay, kind="stable"), each.resource_ptr, each.resource, each.offset, each.hold,
            each.delay, int(each.resource.max()) + 1, self.level[each.arc_at[:, 0]], self.part, self.parts, options,
            seed, limit, _GO if stop is None else stop, arc, chunk, start,
        )  # fmt: skip
        if status != DONE:
            return time, 0, status, None
        kept = np.flatnonzero(arc[:rows] >= 0)
        return time, len(kept) * each.group.order, status, (arc[kept], chunk[kept], start[kept])

    def spread(self, each: Quotient, columns: Columns) -> Columns:
        """All translates of the transfers that a symmetric run decided."""
        network, group = self.network, each.group
        arc, chunk, start = columns
        per_rank = self.demand.count // network.ranks
        shifts = np.arange(group.order)
        total = group.add(shifts[:, None], shifts[None, :]).astype(np.int32)
        sources = group.element[network.src[arc]]
        arcs = each.arc_at[each.orbit_of[arc][:, None], total[sources]]
        owners = group.rank_at[chunk // per_rank]
        chunks = owners * per_rank + (chunk % per_rank)[:, None]
        return arcs.reshape(-1), chunks.astype(np.int32).reshape(-1), np.repeat(start, group.order)
