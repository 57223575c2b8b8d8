"""Runs of the greedy searches on a network and a demand: their arguments, made once for many runs."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import components
from astrasim_py.synthesis.model.insertion import GO, calendars
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import generator
from astrasim_py.synthesis.model.transfers import Columns
from astrasim_py.synthesis.search import symmetric_greedy
from astrasim_py.synthesis.search.greedy import DONE, FULL, Options, Policy, Record, greedy
from astrasim_py.synthesis.search.greedy_state import STATE, Problem, agenda, holdings
from astrasim_py.synthesis.search.polish import ORIGIN, polish
from astrasim_py.synthesis.search.symmetric_network import symmetric_network

#: Most levels of speed of slow arcs.
MAX_LEVELS = 6
#: Ranks × chunks beyond which no run overtakes, for it keeps the time of every arrival.
MAX_OVERTAKING = 2**24
#: Ranks × chunks, and words of calendars, beyond which no schedule is polished.
MAX_POLISHED, MAX_CALENDARS = 2**15, 2**22
#: Moves × ranks of one polishing, and most moves.
POLISHING, MAX_MOVES = 2**17, 4096
_NEVER = 2**62

#: (time in ps, transfers, columns): the time is None where a run was given up, the columns where nothing is recorded.
Made = tuple[int | None, int, Columns | None]


class GreedyRuns:
    """Greedy runs of a problem in which every rank needs every chunk."""

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.timing = timing = network.timing(demand.sizes)
        self._room = 2 * (network.arcs + network.ranks) + 64
        level, part, self.parts = self._levels()
        simple = len(network.hop) == network.arcs and not len(network.occupied_start)
        alone = simple and len(timing.delay) == 1 and not timing.offset.any() and (timing.hold == timing.delay).all()
        self._problem = Problem(
            timing, np.lexsort((timing.delay[0], network.dst)).astype(np.int32), demand.origin, demand.size_class,
            level, part, network.occupied_ptr, network.occupied_start, network.occupied_end, simple, bool(alone),
            len(network.hop) > network.arcs,
        )  # fmt: skip
        #: The network up to rotations; None where the problem is not symmetric.
        self.symmetric = symmetric_network(network, demand)

    @cached_property
    def _slow(self) -> bool:
        """Whether every transfer takes time: what takes none cannot be put before others afterwards."""
        return bool(self.timing.delay.min(initial=1) > 0)

    @property
    def uneven(self) -> bool:
        """Whether arcs differ in speed where it can matter."""
        delay = self.timing.delay[0]
        return bool(len(delay)) and bool((delay != delay[0]).any())

    def _levels(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(int32[arcs] level of slow arcs, int32[levels, n] parts joined by faster arcs, number of parts)."""
        network, delay = self.network, self.timing.delay[0]
        level = np.full(network.arcs, -1, dtype=np.int32)
        rows: list[np.ndarray] = []
        parts = 0
        slow = np.unique(delay)[1:]
        if len(slow) > MAX_LEVELS:
            slow = slow[np.linspace(0, len(slow) - 1, MAX_LEVELS).astype(int)]
        for least in slow.tolist():
            label, found = components(network, delay < least)
            if found < network.ranks:
                level[delay >= least] = len(rows)
                rows.append(label + np.int32(parts))
                parts += found
        return level, np.array(rows, dtype=np.int32).reshape(-1, network.ranks), parts

    def run(
        self, policy: Policy, seed: int, limit: int = _NEVER, *, stop: np.ndarray | None = None, record: bool = True
    ) -> Made:
        """One run; given up when it cannot be done before `limit` ps, or when ``stop[0]`` is not 0.

        The columns of a symmetric run are made whole by `SymmetricNetwork.rotated`.
        """
        chunks = len(self.symmetric.origin) if policy.symmetric else self.demand.count
        # Symmetric runs try many pairs of a chunk and an arc.
        cells = (self.network.arcs if policy.symmetric else self.network.ranks) * chunks
        overtake = policy.overtake and self._slow and cells <= MAX_OVERTAKING
        hierarchy = policy.hierarchy and len(self._problem.part) > 0
        options = Options(policy.samples, hierarchy, overtake, limit)
        stop = GO if stop is None else stop
        if policy.symmetric:
            time, status, kept, rows = symmetric_greedy.run(
                self.symmetric, options, self._problem.level, self._problem.part, policy.lazy, generator(seed), stop
            )
            transfers = int((kept.arc[:rows] >= 0).sum()) * self.symmetric.group.order
        else:
            time, status, kept, rows, transfers = self._run(options, policy.lazy, seed, stop, cells if record else 0)
        if status != DONE or not record:
            return time if status == DONE else None, transfers, None
        taken = np.flatnonzero(kept.arc[:rows] >= 0)
        return time, transfers, (kept.arc[taken], kept.chunk[taken], kept.start[taken])

    def _run(self, options: Options, lazy: int, seed: int, stop: np.ndarray, room: int) -> tuple:
        """One run that is not symmetric: (time, status, record, its rows, transfers)."""
        cells = self.network.ranks * self.demand.count
        while True:
            state = np.zeros(1, dtype=STATE)
            state["lazy"] = lazy
            kept = Record(
                *np.empty((2, room), np.int32), np.empty(room, np.int64),
                np.empty(cells if options.overtake else 0, np.int64),
            )  # fmt: skip
            held = holdings(self._problem, self.parts if options.hierarchy else 0, options.overtake)
            time, status = greedy(
                self._problem, options, held, agenda(self._problem, self._room), kept, state, generator(seed), stop
            )
            if status != FULL:
                return int(time), status, kept, int(state["rows"][0]), int(state["transfers"][0])
            self._room *= 2

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
    ) -> tuple[int, Columns | None]:
        """(time, columns) of a schedule made faster by `moves` at most; no columns: there is no room."""
        network, demand, timing = self.network, self.demand, self.timing
        arc, chunk, start = columns
        came = np.full((demand.count, network.ranks), ORIGIN, dtype=np.int64)
        arrival = np.zeros_like(came)
        came[chunk, network.dst[arc]] = arc
        arrival[chunk, network.dst[arc]] = start + timing.delay[demand.size_class[chunk], arc]
        time, best, arrives = polish(
            timing, calendars(network, self._calendar), demand.origin, demand.size_class, came, arrival,
            min(moves, POLISHING // network.ranks), seed, bound, GO if stop is None else stop,
        )  # fmt: skip
        if time < 0:
            return time, None
        chunk, rank = np.nonzero(best != ORIGIN)
        arc = best[chunk, rank]
        start = arrives[chunk, rank] - timing.delay[demand.size_class[chunk], arc]
        order = np.argsort(start, kind="stable")
        return time, (arc[order].astype(np.int32), chunk[order].astype(np.int32), start[order])
