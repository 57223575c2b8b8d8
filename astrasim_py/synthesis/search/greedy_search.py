"""Multi-start of the greedy searches over policies and seeds, until the bound is met.

The first generation tries every policy. Later ones favour policies that did well, and some of their runs polish the
best schedule so far (see `polish`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from astrasim_py.core.errors import InternalError
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import components
from astrasim_py.synthesis.model.insertion import GO, calendars
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import generator
from astrasim_py.synthesis.model.schedule import Columns, SearchResult
from astrasim_py.synthesis.search import symmetric
from astrasim_py.synthesis.search.greedy import DONE, FULL, Options, Policy, Record, greedy
from astrasim_py.synthesis.search.greedy_state import STATE, Problem, agenda, holdings
from astrasim_py.synthesis.search.multi_start import BestRun, Effort, compete, search_of, seed_of
from astrasim_py.synthesis.search.polish import polish
from astrasim_py.synthesis.search.symmetric import symmetric_network

#: Most levels of speed of slow arcs.
MAX_LEVELS = 6
#: Ranks × chunks beyond which no run overtakes, because overtaking stores the time of every arrival.
MAX_OVERTAKING = 2**24
#: Ranks × chunks up to which the first run overtakes; beyond, that takes half as long again.
OVERTAKING_FIRST = 2**18
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
        """Whether every transfer takes time: one that takes none cannot be put before others afterwards."""
        return bool(self.timing.delay.min(initial=1) > 0)

    @property
    def uneven(self) -> bool:
        """Whether arcs differ in speed where it can matter."""
        return bool((self.timing.delay[0] != self.timing.delay[0].max(initial=0)).any())

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
            label, found = components(self.timing, delay < least)
            if found < network.ranks:
                level[delay >= least] = len(rows)
                rows.append(label + np.int32(parts))
                parts += found
        return level, np.array(rows, dtype=np.int32).reshape(-1, network.ranks), parts

    def run(
        self, policy: Policy, seed: int, limit: int = _NEVER, *, stop: np.ndarray | None = None, record: bool = True
    ) -> Made:
        """One run, given up when it cannot be done before `limit` ps; see `SymmetricNetwork.rotated`."""
        rotated = self.symmetric if policy.symmetric else None
        # Symmetric runs try many pairs of a chunk and an arc.
        few = self.network.ranks * self.demand.count
        cells = few if rotated is None else self.network.arcs * len(rotated.origin)
        overtake = policy.overtake and self._slow and cells <= MAX_OVERTAKING
        hierarchy = policy.hierarchy and len(self._problem.part) > 0
        options = Options(policy.samples, hierarchy, overtake, policy.spread, limit)
        stop = GO if stop is None else stop
        if rotated is not None:
            time, status, kept, rows = symmetric.run(
                rotated, options, self._problem.level, self._problem.part, policy.lazy, generator(seed), stop
            )
            transfers = int((kept.arc[:rows] >= 0).sum()) * rotated.group.order
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
            arc, chunk, start = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int64)
            kept = Record(arc, chunk, start, np.empty(cells if options.overtake else 0, np.int64))
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
        return polish(
            self.timing, calendars(self.network, self._calendar), self.demand, columns,
            min(moves, POLISHING // self.network.ranks), seed, bound, GO if stop is None else stop,
        )  # fmt: skip


#: Transfers of one run beyond which runs are made one at a time, each using the result of the last.
LARGE = 2**22
#: Runs of a generation; of all but the first two one polishes, where that is possible.
_GENERATION = 16
#: Seeds that one symmetric run tries, because each attempt is short.
_ATTEMPTS = 4


def policies(runs: GreedyRuns) -> list[Policy]:
    """Policies to try, the most promising first."""
    if runs.uneven:
        few = [Policy(hierarchy=True, overtake=True), Policy(hierarchy=True), Policy(samples=32, overtake=True)]
        few += [Policy(samples=32, overtake=True, lazy=8), Policy(samples=32, hierarchy=True, overtake=True, lazy=8)]
        few += [Policy(samples=1, overtake=True), Policy(overtake=True, lazy=32)]
        small = runs.network.ranks * runs.demand.count <= OVERTAKING_FIRST
        found = [Policy(hierarchy=True, overtake=first) for first in (small, not small)] + [Policy(overtake=True)]
        found += [Policy(samples=1, overtake=True), Policy(), Policy(samples=2, overtake=True)]
        for lazy in (8, 32):
            found += [Policy(hierarchy=True, lazy=lazy), Policy(samples=1, overtake=True, lazy=lazy)]
    else:
        found = [Policy(), Policy(samples=1), Policy(samples=32)]
        few = [Policy(), Policy(spread=1), *found[1:]]
    return [*(replace(policy, symmetric=True) for policy in few if runs.symmetric), *found]


def search(network: Network, demand: Demand, bound: int, effort: Effort, *, record: bool = True) -> SearchResult:
    """The fastest schedule found where every rank needs every chunk; a run that meets `bound` ends the search."""
    runs = GreedyRuns(network, demand)
    offered = policies(runs)
    total = (network.ranks - 1) * demand.count
    large = total > LARGE
    polishable = not large and runs.polishable
    # Nothing stops a run before there is a schedule. A run reports the time up to which all is decided, and its number
    # of transfers.
    first, later = (effort.halt.signal(np.zeros(3, dtype=np.int64)) for _ in range(2))

    def run(policy, seed: int, limit: int, stop: np.ndarray, start: BestRun | None):
        signal = first if limit == 2**62 else stop
        if start is not None:
            whole = _whole(runs, start)
            end, columns = (limit, None) if whole is None else runs.polish(whole, seed, bound, stop=signal)
            return (end, (columns, total)) if columns is not None and end < limit else None
        best = None
        for attempt in range(_ATTEMPTS if policy.symmetric and not large else 1):
            took, transfers, columns = runs.run(
                policy, seed + (attempt << 40), limit + (best is None), stop=signal, record=record or polishable
            )
            if took is not None and (best is None or took < limit):
                best, limit = (took, (columns, transfers)), took
            if took == bound or (best is not None and stop[0]):
                break
        return best

    found = compete(
        _lineup(offered, polishable), run, bound, replace(effort, jobs=1) if large else effort,
        generation=1 if large else _GENERATION, part=(lambda: max(first[2], later[2]) / total) if large else None,
        stop=later if large else None,
    )  # fmt: skip
    if found is None and effort.halt.on:
        raise KeyboardInterrupt
    if found is None:
        # All symmetric runs may get stuck, where rotated transfers block each other; other runs never do.
        took, transfers, columns = runs.run(Policy(), seed_of(effort.seed, effort.rounds), record=record)
        if took is None:
            raise InternalError("a greedy run got stuck")
        found = BestRun(took, Policy(), (columns, transfers), rounds=effort.rounds + 1)
    how = search_of(found, effort, str(found.policy))
    return SearchResult(found.time, _whole(runs, found) if record else None, found.result[1], how)


def _whole(runs: GreedyRuns, found: BestRun) -> Columns | None:
    """All transfers of a run; those of a symmetric run are rotated."""
    columns = found.result[0]
    rotated = runs.symmetric if isinstance(found.policy, Policy) and found.policy.symmetric else None
    return columns if columns is None or rotated is None else rotated.rotated(columns)


def _lineup(offered: Sequence, polishable: bool) -> Callable:
    """All policies in turn at first; then half in turn, half the best ones so far; the first run polishes."""

    def lineup(made: int, size: int, best: BestRun | None, scores: dict, dry: int) -> list:
        if made < 2 * len(offered):
            chosen = [offered[(made + i) % len(offered)] for i in range(size)]
        else:
            ranked = sorted(offered, key=lambda policy: (scores.get(policy, 2**62), offered.index(policy)))
            good = ranked[: max(2, len(ranked) // 4)]
            chosen = [
                offered[(made + i) % len(offered)] if i % 2 else good[(made // 2 + i // 2) % len(good)]
                for i in range(size)
            ]
        entries: list = [(policy, None) for policy in chosen]
        if polishable and made > 1 and best is not None:
            entries[0] = f"{str(best.policy).removesuffix(', polished')}, polished", best
        return entries

    return lineup
