"""From a topology and a collective to a checked schedule and its distance from the bound.

Which searches are tried on a problem, in which order, and which share of the time each gets.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.memory import bytes_of, refuse
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import NEVER
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import (
    NOTHING,
    Bound,
    Schedule,
    Search,
    SearchResult,
    as_schedule,
    chained,
    copied,
    mirrored,
)
from astrasim_py.synthesis.search.forests import forests, grown, may_pack
from astrasim_py.synthesis.search.greedy_search import LARGE, search
from astrasim_py.synthesis.search.multi_start import Effort, Progress, Watch
from astrasim_py.synthesis.search.patterns import Patterns, applies, best_pattern, in_queues
from astrasim_py.synthesis.search.rotations import best_rotation, near, rotates
from astrasim_py.synthesis.search.routed import route
from astrasim_py.synthesis.search.tree_packing_search import improved

#: On full meshes above this many pairs of chunk and arc, schedules that need no search are tried first.
MANY = 2**23
#: Pairs of chunk and arc that all greedy runs look at there, and that one run looks at per second (estimate).
EFFORT, SPEED = 2**26, 2**21
#: The first two for few chunks from one rank behind switches, where every run looks at all arcs several times.
FEW_MANY, FEW_EFFORT = 2**17, 2**20


def find_schedule(network: Network, demand: Demand, effort: Effort, *, record: bool = True) -> Schedule:
    """The best schedule found, checked; without `record` its transfers are only counted.

    The budget is for bounds, searches and the check; a schedule is finished in any case. Raises TopologyError,
    AlgorithmError.
    """
    watch = Watch(np.zeros(1, dtype=np.int64), effort.budget, halt=effort.halt)
    try:
        schedule = searched(network, demand, effort, watch, record=record)
        checked(schedule, effort)
    finally:
        watch.end()
    cut = schedule.search.cut or (effort.halt.on and not schedule.optimal)
    return replace(schedule, search=replace(schedule.search, seconds=watch.seconds, cut=cut))


def searched(network: Network, demand: Demand, effort: Effort, watch: Watch, *, record: bool) -> Schedule:
    """The best schedule found in the time of a watch, not checked yet."""
    schedule = _Portfolio(network, demand, effort, watch, record).schedule()
    end = int(network.occupied_end.max(initial=0))
    if (
        end
        and record
        and not watch.halt.on
        and schedule.time > end + lower_bounds(network.alone, demand, cuts=False)[0].time
    ):
        # Waiting for the end of the other tenants may be faster than sharing links with them.
        alone = _Portfolio(network.alone, demand, effort, watch, record).schedule()
        late = replace(alone.search, policy=f"put off: {alone.search.policy}").after(schedule.search)
        columns = alone.arc, alone.chunk, alone.start, alone.reduces
        other = as_schedule(network, demand, columns, late, Bound(schedule.bound, schedule.bound_kind))
        better = other.time < schedule.time
        schedule = other if better else replace(schedule, search=schedule.search.after(alone.search))
    return schedule


def checked(schedule: Schedule, effort: Effort) -> None:
    """Raises InternalError: the checker refuses a recorded schedule."""
    if schedule.recorded:
        tell(effort, "check", schedule)
        problems = check(schedule)
        if problems:
            raise InternalError(f"a synthesized schedule is wrong: {problems[0]}")


def tell(effort: Effort, stage: str, schedule: Schedule | None = None) -> None:
    """Report what is done now, and the best schedule so far."""
    if effort.progress is not None:
        best, bound, made = (schedule.time, schedule.bound, schedule.search.rounds) if schedule else (0, 0, 0)
        effort.progress(Progress(best, bound, made, made, stage=stage))


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bounds of a problem."""

    bound: Bound
    enough: int  # ps that searches can reach at best: they treat chunks as equal that may differ by a byte
    halves: list[int]  # the same of the halves of an all_reduce: with sums, with copies
    short: bool = False  # whether time cut the bounds


#: Share above the bound from which large problems are not searched any more.
NEAR = 0.02


class _Portfolio:
    """The searches of one problem, made in the order of `STRATEGIES`. Each returns whether no other can do better.

    `known`: the best schedule that needed no search. `searched`: that of the search, which later strategies improve.
    """

    def __init__(self, network: Network, demand: Demand, effort: Effort, watch: Watch, record: bool) -> None:
        self.network, self.demand, self.watch = network, demand, watch
        self.effort, self.both = effort, demand.collective == "all_reduce"
        #: Whether transfers are recorded; by those of its halves an all_reduce is put together.
        self.record = record or self.both
        self.queued = Queues(network, demand) if record and applies(network, demand) else None
        self.candidates = network.arcs * demand.count
        full = network.arcs == network.ranks * (network.ranks - 1)
        #: Whether schedules that need no search come first.
        self.quick = full and self.candidates > MANY and record and demand.receivers is None
        self.limits = _Limits(Bound(0, ""), 0, [])
        self.known: Schedule | None = None
        self.first: SearchResult | None = None
        self.searched: Schedule | None = None

    def schedule(self) -> Schedule:
        """A schedule, not checked yet; its seconds are only those of the searches."""
        network, demand = self.network, self.demand
        if network.ranks < 2:
            return as_schedule(network, demand, NOTHING, Search(seed=self.effort.seed, policy="", rounds=0))
        if demand.receivers is not None and not self.record:
            raise AlgorithmError(demand.collective, "is not counted without its transfers", "let them be recorded")
        for fits, strategy in STRATEGIES:
            if self._halted:
                break
            try:
                if fits(self) and self._in_memory(strategy.__name__) and strategy(self):
                    break
            except KeyboardInterrupt:
                if not self._halted:
                    raise
        known, searched = self.known, self.searched
        if searched is None:
            if known is None:
                if self.watch.halt.on:
                    raise KeyboardInterrupt
                if self.effort.memory is not None:
                    raise refuse(network, demand)
                raise InternalError("no search was made")
            return known
        if known is None:
            return searched
        seconds = searched.search.seconds + known.search.seconds
        best = known if known.time <= searched.time else searched
        return replace(best, search=replace(searched.search, seconds=seconds, policy=best.search.policy))

    @property
    def _halted(self) -> bool:
        """Whether an interrupt ends the search, which has found a schedule."""
        return self.watch.halt.on and (self.known is not None or self.searched is not None)

    def _in_memory(self, stage: str) -> bool:
        memory = self.effort.memory if self.record else None
        return memory is None or stage == "bounds" or bytes_of(self.network, self.demand, stage) <= memory

    def _left(self, share: float = 1.0) -> Effort:
        return replace(self.effort, budget=self.watch.left(share))

    # -- strategies ------------------------------------------------------------------------------------------------

    def straight(self) -> bool:
        """Every chunk straight from its origin to each receiver, by turns."""
        network, demand = self.network, self.demand
        how = Search(seed=self.effort.seed, policy="direct, by turns", rounds=1)
        found = self._composed(lambda net, half: _direct(net, demand, how))
        bound = lower_bounds(network, demand, cuts=False)[0]
        self.known = known = as_schedule(network, demand, found.recorded, how, bound)
        if self.effort.progress is not None and not known.optimal:
            self.effort.progress(Progress(known.time, known.bound, 1, self.effort.rounds))
        return known.optimal

    @property
    def alike(self) -> bool:
        """Whether one run may meet the bounds that need no flows, which take longer than a run."""
        network, demand = self.network, self.demand
        alike = (
            demand.receivers is None and bool(demand.sizes[0] == demand.sizes[-1]) and not len(network.occupied_start)
        )
        return not (self.quick or self.both) and alike and (network.ranks - 1) * demand.count <= LARGE

    def first_run(self) -> bool:
        """One run, with only the bounds that need no flows."""
        network, demand = self.network, self.demand
        bound = lower_bounds(network, demand, cuts=False)[0]
        effort = replace(self.effort, rounds=1, budget=None, progress=None)
        found = self._composed(lambda net, half: search(net, demand, bound.time, effort, record=self.record))
        if found.time > bound.time:
            self.first = found
            return False
        self.limits = _Limits(bound, bound.time, [])
        self.searched = self._schedule_of(found)
        return True

    def bounds(self) -> bool:
        """All bounds; their cost is taken from the search. Where it leaves no time, the first run counts."""
        network, demand = self.network, self.demand
        tell(self.effort, "bound")
        stop = np.zeros(1, dtype=np.int64)
        watch, known = Watch(stop, self.watch.left(0.25), halt=self.watch.halt), dict[tuple, Bound]()
        bound = lower_bounds(network, demand, stop=stop, known=known)[0]
        freely = network.alone if demand.reduces else network
        enough = lower_bounds(freely, demand, largest=True, stop=stop, known=known)[0].time
        halves = [
            lower_bounds(network.alone, demand, halves=half, largest=True, stop=stop, known=known)[0].time
            for half in (True, False) * self.both
        ]
        watch.end()
        self.limits = _Limits(bound, enough, halves, bool(stop[0]))
        if self.known is not None:
            self.known = replace(self.known, bound=bound.time, bound_kind=bound.kind)
        if self.first is not None and self.watch.over:
            self.searched = self._schedule_of(replace(self.first, search=replace(self.first.search, cut=True)))
        return False

    def pattern(self) -> bool:
        """The best pattern behind switches."""
        if self.queued is None:
            return False
        effort = self._left(0.25).told_as("known ones")
        found = best_pattern(Patterns(self.queued), self.limits.bound, self.limits.enough, effort)
        if found is None:
            return False
        met = found.time <= self.limits.enough
        if met or self.known is None or found.time <= self.known.time:
            self.known = found
        return met

    def forest(self) -> bool:
        """Trees that use all the bandwidth there is, with chunks that follow one another."""
        network, demand, limits = self.network, self.demand, self.limits
        per_shard = demand.count if demand.root is not None else demand.count // network.ranks
        # Roots of sums are chosen where a reduce_scatter and an all_gather take longer than an all_reduce might.
        joint = self.both and sum(limits.halves) > 1.02 * limits.bound.time
        stop = self.watch.stop
        tell(self.effort, "forest", self.known)
        packed = forests(network, demand.collective, demand.root, joint=joint, most=per_shard, stop=stop)
        if packed is None:
            return False
        least = self.known.time if self.known else NEVER
        found = grown(
            packed, self.queued or Queues(network, demand), limits.bound, limits.enough, least, self.effort.seed, stop
        )
        self.known = found or self.known
        return self.known is not None and self.known.time <= limits.enough

    def rotation(self) -> bool:
        """The best rotation of messages, as near to the bound as none needs to be nearer."""
        queued = self.queued or Queues(self.network, self.demand)
        effort = self._left(0.5).told_as("rotations")
        self.known = best_rotation(queued, self.limits.bound, self.limits.enough, effort)
        return self.known is not None and self.known.time <= near(self.demand, self.limits.enough)

    def searches(self) -> bool:
        """The greedy searches, or the search of routes."""
        demand, limits, rounds = self.demand, self.limits, self.effort.rounds
        many = self.candidates > FEW_EFFORT and self.record and demand.receivers is None
        if many and self.known is not None and self.known.time <= limits.enough * (1 + NEAR):
            return True
        if self.quick and self.known is not None:
            # Behind switches this is hard to beat. Where all links are direct, one greedy run is made, however long it
            # takes.
            rounds = min(rounds, max(EFFORT // self.candidates, int(self.queued is None)))
            left, met = self.watch.left(), self.known.time <= limits.enough
            late = left is not None and self.candidates > SPEED * left
            if late or not rounds or met:
                self.known = replace(self.known, search=replace(self.known.search, cut=late and not met))
                return True
        elif self.queued is not None and demand.root is not None and self.candidates > FEW_MANY:
            rounds = min(rounds, max(FEW_EFFORT // self.candidates, 1))
        self.effort = replace(self.effort, rounds=rounds)
        if demand.receivers is not None:
            effort = self._left().told_as("routes", self.known.time if self.known else 0)
            routed = route(self.network, demand, limits.enough, effort, needed=self.known is None)
            if routed is None:
                if self.known is not None:
                    self.known = replace(
                        self.known,
                        search=replace(self.known.search, cut=self.watch.over or self.effort.budget is not None),
                    )
                return True
            found = routed
        else:
            found = self._composed(self._greedy)
        found = replace(found, search=replace(found.search, cut=found.search.cut or limits.short))
        self.searched = self._schedule_of(found)
        return not self.record or self.searched.time <= limits.enough

    def trees(self) -> bool:
        """Trees packed in place of the schedule of the search."""
        beside = self.demand.reduces and len(self.network.occupied_start)
        # Tree packing takes longest where known patterns are as good.
        if self.searched is not None and (self.both or beside) and not (self.quick and self.queued is not None):
            least = min(self.searched.time, self.known.time) if self.known else self.searched.time
            self.searched = improved(self.searched, self.limits.enough, self._left().told_as("trees", least))
        return self.searched is not None and self.searched.time <= self.limits.enough

    def queues(self) -> bool:
        """The schedule of the search in the order of queues."""
        if self.searched is not None and self.queued is not None:
            self.searched = in_queues(self.queued, self.searched, self.limits.enough, self.watch.stop)
        return True

    # -- their parts -----------------------------------------------------------------------------------------------

    def _greedy(self, network: Network, half: int) -> SearchResult:
        if not self.both:
            return search(network, self.demand, self.limits.enough, self._left(), record=self.record)
        # Half of the time is for the schedule without a barrier, which starts from the transfers of the one with a
        # barrier.
        share, name = ((0.25, "reduce_scatter half"), (1 / 3, "all_gather half"))[half]
        return search(network, self.demand, self.limits.halves[half], self._left(share).told_as(name))

    def _composed(self, find: Callable[[Network, int], SearchResult]) -> SearchResult:
        """A schedule of what ``find(network, half)`` copies, reversed in time (half 0: sums) or forwards (half 1)."""
        network, demand = self.network, self.demand
        if self.both:
            # Neither half knows the absolute times at which others hold links.
            sums, copies = find(network.reversed, 0), find(network.alone, 1)
            columns = chained(mirrored(network, demand, sums.recorded), copied(copies.recorded), sums.time)
            how = replace(
                copies.search.after(sums.search), policy=f"barrier: {sums.search.policy}; then {copies.search.policy}"
            )
            return SearchResult(sums.time + copies.time, columns, len(columns[0]), how)
        found = find(network.reversed, 0) if demand.reduces else find(network, 1)
        if found.columns is None:
            return found
        columns = mirrored(network, demand, found.columns) if demand.reduces else copied(found.columns)
        return replace(found, columns=columns)

    def _schedule_of(self, found: SearchResult) -> Schedule:
        if found.columns is not None:
            return as_schedule(self.network, self.demand, found.columns, found.search, self.limits.bound)
        counted = as_schedule(self.network, self.demand, NOTHING, found.search, self.limits.bound)
        return replace(counted, time=found.time, transfers=found.transfers)


#: The searches in their order: when each is made, and what it does.
STRATEGIES: tuple[tuple[Callable[[_Portfolio], bool], Callable[[_Portfolio], bool]], ...] = (
    (lambda problem: problem.quick, _Portfolio.straight),
    (lambda problem: problem.alike, _Portfolio.first_run),
    (lambda problem: True, _Portfolio.bounds),
    (lambda problem: problem.record and rotates(problem.network, problem.demand), _Portfolio.rotation),
    (lambda problem: problem.searched is None and problem.demand.receivers is None, _Portfolio.pattern),
    (lambda problem: problem.record and may_pack(problem.network, problem.demand), _Portfolio.forest),
    (lambda problem: problem.searched is None, _Portfolio.searches),
    (lambda problem: problem.record, _Portfolio.trees),
    (lambda problem: True, _Portfolio.queues),
)


def _direct(network: Network, demand: Demand, how: Search) -> SearchResult:
    """Every chunk straight from its origin, each rank sending to its successor first; needs arcs between all ranks."""
    n = network.ranks
    shift, chunk = np.divmod(np.arange((n - 1) * demand.count), demand.count)
    source = demand.origin[chunk].astype(np.int64)
    target = (source + shift + 1) % n
    # Arcs are sorted by their ends, and there is none from a rank to itself.
    arc = target * (n - 1) + source - (source > target)
    delay = network.timing(demand.sizes).delay[demand.size_class[chunk], arc]
    start = shift * int(delay.max())
    return SearchResult(
        int((start + delay).max()), (arc.astype(np.int32), chunk.astype(np.int32), start), len(arc), how
    )
