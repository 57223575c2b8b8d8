"""All_reduce without a barrier between its halves: multi-start over the core of `pack`.

The barrier construction reduces everything and then copies everything. On networks whose ranks differ in ports each
half waits for the ports of the poorest ranks, the reducing one for those that lead out of them and the copying one for
those that lead in, while the others idle; joint trees use both at once, and any rank may be the root of any chunk.
Where every rank has the same ports both halves are busy anyway, and the barrier construction often meets the bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.synthesis.compose import Transfers, as_schedule
from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.network import Network
from astrasim_py.synthesis.schedule import Schedule
from astrasim_py.synthesis.search import Progress

#: Chunks × arcs of one run beyond which none is made.
LARGEST = 2**25
#: Chunks × arcs × runs of a search at most (about ten seconds of one core).
WORK = 2**22


@dataclass(frozen=True, slots=True)
class JointPolicy:
    """What a run prefers.

    Attributes
    ----------
    roots : int
        Random roots among which the one whose last copy arrives first is taken; 0: the rank that owns the chunk.
    weight : int
        How much the load of an arc counts among arcs that are as early, against chance.
    """

    roots: int
    weight: int

    def __str__(self) -> str:
        return f"joint: best of {self.roots} roots, load {self.weight}" if self.roots else f"joint: load {self.weight}"


POLICIES = tuple(JointPolicy(*each) for each in ((1, 1), (8, 0), (0, 1), (2, 1), (8, 1), (1, 64), (0, 64), (24, 0)))


@dataclass(frozen=True, slots=True)
class Joint:
    """The best joint schedule found.

    Attributes
    ----------
    time : int
        ps.
    transfers : Transfers
    policy : str
    rounds : int
        Runs made; improving one counts as one.
    cut : bool
        Whether the limit of wall-clock time ended the search.
    seconds : float
        Wall-clock time, compilation excluded.
    """

    time: int
    transfers: Transfers
    policy: str
    rounds: int
    cut: bool
    seconds: float


class Packing:
    """Runs of the core on one problem.

    Parameters
    ----------
    network : Network
    demand : Demand
        An all_reduce.
    """

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.timing = timing = network.timing(demand.sizes.tolist())
        self._arcs = (
            network.src, network.dst, network.in_ptr, *network.out, network.hop_ptr, network.hop,
            timing.offset, timing.hold, timing.delay,
            network.occupied_ptr, network.occupied_start, network.occupied_end,
        )  # fmt: skip
        self._room = 64

    def run(
        self, policy: JointPolicy, seed: int, improve: int = 0, bound: int = 0, stop: np.ndarray | None = None
    ) -> tuple[int, Transfers] | None:
        """(time, transfers) of one run with so many improving steps; None if it was stopped."""
        from astrasim_py.synthesis.pack import DONE, FULL, pack

        n, chunks, resources = self.network.ranks, self.demand.count, len(self.network.links)
        stop = np.zeros(1, dtype=np.int64) if stop is None else stop
        arc = np.empty((chunks, 2 * (n - 1)), dtype=np.int32)
        start = np.empty(arc.shape, dtype=np.int64)
        root, moment, finish = (np.empty(chunks, dtype=np.int64) for _ in range(3))
        while True:
            # What is held lies in a few intervals per link, and nobody knows in how many.
            room = self._room
            busy, until = np.empty((resources, room), dtype=np.int64), np.empty((resources, room), dtype=np.int64)
            took, status = pack(
                n, self.demand.origin, self.demand.size_class, *self._arcs, policy.roots, policy.weight, improve, seed,
                bound, stop, busy, until, arc, start, root, moment, finish,
            )  # fmt: skip
            if status != FULL:
                break
            self._room = max(self._room, 2 * room)
        if status != DONE:
            return None
        # The sums were found from the root outwards: what comes first in time stands last.
        order = np.concatenate([np.arange(n - 1)[::-1], np.arange(n - 1, 2 * n - 2)])
        arc, start = arc[:, order].reshape(-1), start[:, order].reshape(-1)
        chunk = np.repeat(np.arange(chunks, dtype=np.int32), 2 * (n - 1))
        reduces = np.tile(np.arange(2 * (n - 1)) < n - 1, chunks)
        by_time = np.argsort(start, kind="stable")
        return int(took), (arc[by_time], chunk[by_time], start[by_time], reduces[by_time])


def pack_jointly(
    network: Network,
    demand: Demand,
    bound: int,
    *,
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Joint | None:
    """The fastest joint schedule found of an all_reduce; None where the problem is too large, or time too short.

    Half of the runs start anew, over policies and seeds; as much work goes into improving the best two of them.

    Parameters
    ----------
    network, demand
    bound : int
        ps that cannot be beaten: a run that meets it ends the search.
    seed : int
        Another one makes other runs.
    rounds : int
        Runs at most; fewer on large problems.
    budget : float, optional
        Wall-clock seconds.
    jobs : int, optional
        Threads; as many as the machine has cores by default. They do not change the result.
    progress : callable, optional
        Told after every run.
    """
    each = demand.count * network.arcs
    if each > LARGEST or network.ranks < 2:
        return None
    packing, stop = Packing(network, demand), np.zeros(1, dtype=np.int64)
    runs = max(1, min(rounds, WORK // each))
    starts = max(1, runs // 2)
    # An improving step puts five of the chunks in anew, a run all of them.
    improve = (runs - starts) * demand.count // 10
    plan = [(POLICIES[i % len(POLICIES)], (seed * 1_000_003 + i) % 2**31) for i in range(starts)]
    # Compiled before the clock begins: it is told to stop at once.
    packing.run(POLICIES[0], 0, stop=np.ones(1, dtype=np.int64))
    begin = time.monotonic()
    best: tuple[int, int, JointPolicy] | None = None
    kept: Transfers | None = None
    scores: list[tuple[int, int]] = []
    made, cut = 0, False
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        for steps in (0, improve):
            met = best is not None and best[0] <= bound
            chosen = range(starts) if steps == 0 else [i for _, i in sorted(scores)[:2]]
            if cut or met or (steps == 0 and made):
                break
            waiting = [pool.submit(packing.run, *plan[i], steps, bound, stop) for i in chosen]
            for i, future in zip(chosen, waiting, strict=True):
                if budget is not None and not cut:
                    wait([future], max(0.0, budget - (time.monotonic() - begin)))
                    if not future.done():
                        cut = True
                        stop[0] = 1
                result = future.result()
                if result is None:
                    continue
                made += 1
                scores.append((result[0], i))
                if best is None or result[0] < best[0]:
                    best, kept = (result[0], i, plan[i][0]), result[1]
                if progress is not None:
                    progress(Progress(best[0], bound, made, starts + 2 * (improve > 0)))
    if best is None or kept is None:
        return None
    return Joint(best[0], kept, str(best[2]), made, cut, time.monotonic() - begin)


def without_barrier(schedule: Schedule, enough: int, *, seed: int = 1, **options) -> Schedule:
    """The better of an all_reduce with a barrier and the best one found without.

    Parameters
    ----------
    schedule : Schedule
        With the barrier.
    enough : int
        ps; where it meets this, no other one is sought.
    seed, rounds, budget, jobs, progress
        Of `pack_jointly`.

    Returns
    -------
    Schedule
        Its policy begins with ``joint`` or is that of `schedule`; its rounds and seconds are those of both searches.
    """
    if schedule.time <= enough:
        return schedule
    found = pack_jointly(schedule.network, schedule.demand, enough, seed=seed, **options)
    if found is None:
        return schedule
    first = schedule.search
    how = replace(
        first,
        rounds=first.rounds + found.rounds,
        cut=first.cut or found.cut,
        seconds=first.seconds + found.seconds,
    )
    joint = as_schedule(schedule.network, schedule.demand, found.transfers, replace(how, policy=found.policy))
    if joint.time < schedule.time:
        return replace(joint, bound=schedule.bound, bound_kind=schedule.bound_kind)
    return replace(schedule, search=how)
