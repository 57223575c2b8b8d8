"""Runs of the greedy core on a network and a demand: its arguments, made once for many runs."""

from __future__ import annotations

import numpy as np

from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.network import Network

#: Most levels of speed among which slow arcs are told apart.
MAX_LEVELS = 6
#: Ranks × chunks beyond which no run overtakes, for it keeps the time of every arrival.
MAX_OVERTAKING = 2**24
_NEVER = 2**62


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
            from astrasim_py.synthesis.greedy import components

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

    def run(self, policy, seed: int, limit: int = _NEVER, *, record: bool = True):
        """One run.

        Returns
        -------
        (time, transfers, status, columns)
            Columns are (arc, chunk, start), each without the transfers that came to nothing; None unless it was
            done and recorded.
        """
        from astrasim_py.synthesis.greedy import DONE, FULL, OPTIONS, greedy

        demand = self.demand
        room = (self.network.ranks * demand.count) if record else 0
        arc, chunk = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        start = np.empty(room, dtype=np.int64)
        options = np.zeros(OPTIONS, dtype=np.int64)
        overtake = policy.overtake and self.network.ranks * demand.count <= MAX_OVERTAKING
        options[:] = policy.samples, policy.hierarchy and len(self.part) > 0, policy.guard, overtake
        while True:
            time, transfers, rows, status = greedy(
                demand.count, demand.origin, demand.size_class, *self._arcs, self.level, self.part, self.parts,
                options, seed, limit, self._room, arc, chunk, start,
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
