"""Packed trees against greedy schedules: all_reduce without a barrier, and whatever the greedy core is weak at.

The barrier construction of an all_reduce reduces everything and then copies everything. On networks whose ranks differ
in ports each half waits for the ports of the poorest ranks, the reducing one for those that lead out of them and the
copying one for those that lead in, while the others idle; joint trees use both at once, and any rank may be the root of
any chunk. Where every rank has the same ports both halves are busy anyway, and the barrier construction often meets the
bound.

The greedy core keeps every link busy. Where links lead through ports that many arcs share, a rank that sends a chunk
twice keeps others from sending another one at all: there trees that avoid what is loaded do better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import NEVER
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.transfers import Transfers, as_schedule, mirrored
from astrasim_py.synthesis.search.multi_start import Outcome, Progress, compete
from astrasim_py.synthesis.search.tree_packing_runs import Load, Rows, packed

#: Chunks × arcs of one run beyond which none is made.
LARGEST = 2**25
#: Chunks × arcs × runs of a search at most (about ten seconds of one core).
WORK = 2**22
#: Most bits of a delay in ps for which prices of links are sums of 63 bits.
_PRICED_BITS = 40
#: Repairs of the best run, which do as much work as all runs that begin anew, and how many of them begin at once.
_REPAIRS, _GENERATION = 12, 4


@dataclass(frozen=True, slots=True)
class TreePolicy:
    """What a run prefers.

    Attributes
    ----------
    roots : int
        Random roots of a sum among which the one whose last copy arrives first is taken; 0: the rank that owns it.
    weight : int
        How much the load of a link counts among arcs that are as early, against chance.
    priced : bool
        Whether arcs of loaded links are avoided even if they are early.
    """

    roots: int = 0
    weight: int = 0
    priced: bool = False

    def __str__(self) -> str:
        parts = [f"best of {self.roots} roots"] * bool(self.roots) + [f"load {self.weight}"]
        return ", ".join(parts + ["loaded links avoided"] * self.priced)


#: Of an all_reduce.
JOINT = tuple(
    TreePolicy(*each)
    for each in ((1, 1), (8, 0), (0, 1), (2, 1), (8, 1), (1, 64), (0, 64), (24, 0), (1, 1, True), (8, 64, True))
)
#: Of what only spreads.
SPREAD = tuple(TreePolicy(0, *each) for each in ((64, True), (1, False), (0, True), (64, False)))


class Packing:
    """Runs that pack trees: everybody needs every chunk, or contributes to it, or both.

    Parameters
    ----------
    network : Network
        Of a demand that reduces it may be the one turned round: then trees that copy are packed, and mirrored.
    demand : Demand
    """

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.timing = network.timing(demand.sizes.tolist())
        reduces = demand.reduces and network.base is None
        self.load = Load(
            origin=demand.origin,
            goal=np.full(demand.count, -1, dtype=np.int32),
            size_class=demand.size_class,
            ahead=np.zeros((1, network.ranks), dtype=np.int64),
            sums=reduces or demand.collective == "all_reduce",
            spreads=not reduces,
        )
        self._room = 64
        self._mean = 0
        if int(self.timing.delay.max(initial=0)).bit_length() <= _PRICED_BITS:
            least = float(self.timing.hold.min(axis=1, initial=NEVER)[demand.size_class].sum())
            self._mean = max(int(least * (network.ranks - 1)) // max(len(network.links), 1), 1)

    def run(self, seed: int, policy: TreePolicy, **options) -> tuple[int, Rows] | None:
        """One run.

        Parameters
        ----------
        seed : int
        policy : TreePolicy
        **options
            Of `packed`.

        Returns
        -------
        (time, rows) or None
            None if it was given up.
        """
        found = packed(
            self.network, self.timing, self.load, room=self._room, seed=seed, roots=policy.roots, weight=policy.weight,
            mean=self._mean * policy.priced, **options,
        )  # fmt: skip
        if found is None:
            return None
        took, rows, _, room = found
        self._room = max(self._room, room)
        return took, rows

    def transfers(self, rows: Rows) -> Transfers:
        """What a run packed, by time."""
        arc, start, _ = rows
        first = (self.network.ranks - 1) * self.load.sums
        # Sums were found from the root outwards: what comes first in time stands last.
        order = np.concatenate([np.arange(first)[::-1], np.arange(first, arc.shape[1])])
        reduces = np.tile(np.arange(arc.shape[1]) < first, len(arc))
        chunk = np.repeat(np.arange(len(arc), dtype=np.int32), arc.shape[1])
        arc, start = arc[:, order].reshape(-1), start[:, order].reshape(-1)
        order = np.argsort(start, kind="stable")
        columns = arc[order], chunk[order], start[order]
        base = self.network.base
        return (*columns, reduces[order]) if base is None else mirrored(base, self.demand, columns)


def pack_trees(
    packing: Packing,
    bound: int,
    *,
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome | None:
    """The fastest packing found of a demand in which everyone needs every chunk.

    As much work goes into repairing the best runs as into those that begin anew.

    Parameters
    ----------
    packing : Packing
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

    Returns
    -------
    Outcome or None
        Its result is that of `packing`; None where the problem is too large, or time too short.
    """
    network, demand = packing.network, packing.demand
    each = demand.count * network.arcs
    if each > LARGEST or network.ranks < 2:
        return None
    runs = max(1, min(rounds, WORK // each))
    starts = max(1, runs // 2)
    # A step of a repair puts five of the chunks in anew, a run all of them.
    steps = (runs - starts) * demand.count // (5 * _REPAIRS) + 1
    policies = JOINT if demand.collective == "all_reduce" else SPREAD
    offered = [policies[i % len(policies)] for i in range(starts)]

    def run(policy: TreePolicy, number: int, limit: int, stop: np.ndarray, start: Outcome | None):
        if start is not None:
            return packing.run(number, policy, rows=start.result, improve=steps, bound=bound, stop=stop)
        return packing.run(number, policy, limit=limit, stop=stop)

    return compete(
        offered, run, bound=bound, seed=seed, rounds=starts + _REPAIRS * (runs > starts), generation=_GENERATION,
        budget=budget, jobs=jobs, progress=progress, tried=starts,
    )  # fmt: skip


def improved(schedule: Schedule, enough: int, *, seed: int = 1, **options) -> Schedule:
    """The better of a greedy schedule (of an all_reduce: with a barrier) and the best packing of trees found.

    Parameters
    ----------
    schedule : Schedule
        Of a demand in which everyone needs every chunk.
    enough : int
        ps; where it meets this, no other one is sought.
    seed, rounds, budget, jobs, progress
        Of `pack_trees`.

    Returns
    -------
    Schedule
        Its policy begins with ``trees`` (of an all_reduce: ``joint``) or is that of `schedule`; its rounds and seconds
        are those of both searches.
    """
    network, demand = schedule.network, schedule.demand
    if schedule.time <= enough:
        return schedule
    # Time reversed, nobody knows when others hold links.
    turned = demand.reduces and not len(network.occupied_start)
    packing = Packing(network.turned() if turned else network, demand)
    found = pack_trees(packing, enough, seed=seed, **options)
    if found is None:
        return schedule
    first = schedule.search
    how = replace(
        first,
        rounds=first.rounds + found.rounds,
        cut=first.cut or found.cut,
        seconds=first.seconds + found.seconds,
    )
    label = ("joint: " if demand.collective == "all_reduce" else "trees: ") + str(found.policy)
    other = as_schedule(network, demand, packing.transfers(found.result), replace(how, policy=label))
    if other.time < schedule.time:
        return replace(other, bound=schedule.bound, bound_kind=schedule.bound_kind)
    return replace(schedule, search=how)
