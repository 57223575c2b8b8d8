"""Multi-start: many runs of the greedy cores over policies and seeds, on all cores, until the bound is met.

Run i is one policy with one seed, whatever the machine; the result is the fastest run, of equals the first. Runs go
in generations: in the first every policy is tried, later ones favour policies that did well, and some of their runs
polish the best schedule of the generations before (see `polish`). A run that a limit of wall-clock time leaves out is
the only thing that can make two machines differ, and the schedule says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.search.greedy_runs import Columns, Runs
from astrasim_py.synthesis.search.multi_start import Progress, Watch
from astrasim_py.synthesis.search.polish import Polish

#: Transfers of one run beyond which runs are made one at a time, each on what the last one taught.
LARGE = 2**22
_GENERATION = 32
#: Of so many runs of a generation one polishes, where that is done at all: this one.
_CYCLE, _POLISHES = 16, 7


@dataclass(frozen=True, slots=True)
class Found:
    """The best run of a search.

    Attributes
    ----------
    time : int
        ps.
    columns : (arc, chunk, start) or None
        None where transfers were only counted.
    transfers : int
    policy : str
    seed : int
        Of that run.
    rounds : int
    cut : bool
        Whether the wall-clock limit ended the search.
    seconds : float
        Wall-clock time, compilation excluded.
    """

    time: int
    columns: Columns | None
    transfers: int
    policy: str
    seed: int
    rounds: int
    cut: bool
    seconds: float


def policies(runs: Runs) -> list:
    """What is tried, the most promising first."""
    from astrasim_py.synthesis.search.greedy import Policy
    from astrasim_py.synthesis.search.symmetric_greedy import OrbitPolicy

    uneven = runs.uneven
    found: list = []
    groups = len(runs.quotients)
    if groups:
        found.append(OrbitPolicy(hierarchy=uneven, guard=4 * uneven))
        for group in range(groups):
            if not uneven:
                found += [OrbitPolicy(spread=1, group=group), OrbitPolicy(scarce=1, group=group)]
                found += [OrbitPolicy(samples=1, group=group)]
                continue
            for guard in (0, 2, 4):
                found += [
                    OrbitPolicy(hierarchy=True, guard=guard, group=group),
                    OrbitPolicy(hierarchy=True, guard=guard, overtake=True, group=group),
                    OrbitPolicy(hierarchy=True, guard=guard, overtake=True, spread=1, group=group),
                ]
            found += [OrbitPolicy(overtake=True, group=group), OrbitPolicy(samples=1, overtake=True, group=group)]
            found += [OrbitPolicy(spread=2, scarce=1, overtake=True, group=group)]
            for lazy in (8, 32):
                found += [OrbitPolicy(hierarchy=True, guard=guard, lazy=lazy, group=group) for guard in (0, 4)]
    if not uneven:
        return [*found, Policy(), Policy(samples=1), Policy(samples=32)]
    found.append(Policy(hierarchy=True, guard=4))
    for guard in (0, 2, 4, 8):
        found += [Policy(hierarchy=True, guard=guard, overtake=True), Policy(hierarchy=True, guard=guard)]
    found += [Policy(overtake=True), Policy(samples=1, overtake=True), Policy(), Policy(samples=2, overtake=True)]
    for lazy in (8, 32):
        found += [Policy(hierarchy=True, guard=guard, lazy=lazy) for guard in (0, 4)]
        found.append(Policy(samples=1, overtake=True, lazy=lazy))
    return list(dict.fromkeys(found))


def search(
    network: Network,
    demand: Demand,
    bound: int,
    *,
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    record: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Found:
    """The fastest schedule found for a demand in which every rank needs every chunk.

    Parameters
    ----------
    network, demand
    bound : int
        ps that cannot be beaten: a run that meets it ends the search.
    seed : int
        Another one makes other runs.
    rounds : int
        Runs at most.
    budget : float, optional
        Wall-clock seconds; at least one run is finished, which is the fastest way to a schedule that there is.
    jobs : int, optional
        Threads; as many as the machine has cores by default.
    record : bool
        False: only count the transfers.
    progress : callable, optional
        Told after every run, and of large ones while they last.
    """
    runs = Runs(network, demand)
    offered = policies(runs)
    # Whether to stop; and, of a run of the greedy core, up to when all is decided and by how many transfers. Nothing
    # stops a run before there is a schedule.
    stop, go = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    if not record:
        offered = [p for p in offered if not hasattr(p, "group")] if network.ranks > 2**16 else offered
    jobs = jobs or os.cpu_count() or 1
    large = (network.ranks - 1) * demand.count > LARGE
    if large:
        jobs = 1
    best: tuple[int, int] | None = None
    kept: tuple[Columns | None, int] = (None, 0)
    winner = offered[0]
    score = dict.fromkeys(offered, 2**62)
    made, cut = 0, False

    polishable = not large and runs.polishable
    counted, record = not record, record or polishable
    base: Columns | None = None

    def whole(policy, columns: Columns | None) -> Columns | None:
        if columns is None or not hasattr(policy, "group"):
            return columns
        return runs.spread(runs.quotients[policy.group], columns)

    def one(index: int, policy, limit: int):
        signal = go if best is None else stop
        if isinstance(policy, Polish):
            return index, policy, runs.polish(base, _seed(seed, index), bound, stop=signal)
        if hasattr(policy, "group"):
            return index, policy, runs.run_symmetric(policy, _seed(seed, index), limit, stop=signal)
        return index, policy, runs.run(policy, _seed(seed, index), limit, stop=signal, record=record)

    def tell() -> None:
        part = int((go if best is None else stop)[2]) / ((network.ranks - 1) * demand.count)
        progress(Progress(best[0] if best else 0, bound, made, rounds, part))

    pool = ThreadPoolExecutor(jobs) if jobs > 1 else None
    watch = Watch(stop, budget, tell if large and progress is not None else None)
    try:
        while made < rounds and not cut and not (best and best[0] <= bound):
            # What a generation does is settled before it begins: the number of threads decides nothing.
            size = min(rounds - made, 1 if large or made == 0 else _GENERATION)
            lineup = _lineup(offered, score, made, size)
            if polishable and made > 1 and best is not None:
                base = whole(winner, kept[0])
                turns = range(_POLISHES, size, _CYCLE)
                lineup[_POLISHES::_CYCLE] = [Polish(str(winner))] * len(turns)
            limit = best[0] + 1 if best else 2**62
            entries = enumerate(lineup, start=made)
            if pool is None or made == 0:
                results = (one(index, policy, limit) for index, policy in entries)
            else:
                results = _in_order(pool, one, entries, limit, jobs)
            for index, policy, (took, transfers, status, columns) in results:
                made = index + 1
                if status == 0:
                    if policy in score:
                        score[policy] = min(score[policy], took)
                    if best is None or (took, index) < best:
                        best, kept = (took, index), (columns, transfers)
                        winner = policy
                if progress is not None:
                    progress(Progress(best[0] if best else 0, bound, made, rounds))
                if best and best[0] <= bound:
                    break
                if best and watch.over:
                    cut = made < rounds
                    break
    finally:
        stop[0] = go[0] = 1
        watch.end()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
    if best is None:
        # Symmetric runs may all get stuck, where what is alike is in each other's way; the others never do.
        from astrasim_py.synthesis.search.greedy import Policy

        winner = Policy()
        took, transfers, _, columns = runs.run(winner, _seed(seed, made), record=record)
        best, kept, made = (took, made), (columns, transfers), made + 1
    columns, transfers = None if counted else whole(winner, kept[0]), kept[1]
    return Found(best[0], columns, transfers, str(winner), _seed(seed, best[1]), made, cut, watch.seconds)


def _seed(seed: int, index: int) -> int:
    return (seed * 1_000_003 + index) % 2**31


def _lineup(offered: Sequence, score: dict, made: int, size: int) -> list:
    """The policies of the next runs: all in turn at first; then half in turn, half the best ones so far."""
    if made < 2 * len(offered):
        return [offered[(made + i) % len(offered)] for i in range(size)]
    ranked = sorted(offered, key=lambda p: (score[p], offered.index(p)))
    good = ranked[: max(2, len(ranked) // 4)]
    return [
        offered[(made + i) % len(offered)] if i % 2 else good[(made // 2 + i // 2) % len(good)] for i in range(size)
    ]


def _in_order(pool: ThreadPoolExecutor, one, entries, limit: int, jobs: int):
    """Results in the order of their runs, a few runs ahead."""
    waiting = []
    for index, policy in entries:
        waiting.append(pool.submit(one, index, policy, limit))
        if len(waiting) > 2 * jobs:
            yield waiting.pop(0).result()
    for each in waiting:
        yield each.result()
