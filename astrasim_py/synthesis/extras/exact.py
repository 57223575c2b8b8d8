"""Exact schedules of small groups: proven fastest by CP-SAT of OR-Tools.

The time proven is the least of all schedules that move whole chunks over these arcs. An all_reduce is bounded by its
halves; its schedules sum every chunk at its home before they copy it.

In the model a rank gets a chunk over one arc, at one time, and nobody else then holds the links of that arc. Some
fastest schedule begins every transfer as early as the order on its links allows: all times are then sums of few
numbers, and the domain of every variable is a short list. A sum is a copy backwards in time, so reductions and the
copies after them fit in one model.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_to
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Columns, Schedule, Transfers, as_schedule, chained, copied, mirrored
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.synthesis.search.symmetric import SymmetricNetwork, symmetric_network
from astrasim_py.topology.symmetry import Rotations

#: The solver stops after this part of the remaining time.
_PUNCTUAL = 0.9
#: Searches of different kinds that the solver runs by turns.
_SUBSOLVERS = 8
#: Most times at which a transfer can begin, where they are listed.
_MAX_TIMES = 3000


@dataclass(frozen=True, slots=True)
class SolverResult:
    """The answer of the solver to one model."""

    columns: Transfers | None  # a schedule faster than the one that was given; None if there is none, or none was found
    bound: int  # ps that no solution of the model can beat
    cut: bool  # whether the wall-clock limit ended it


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactProblem:
    """Chunks to be moved over arcs that hold resources."""

    timing: Timing
    origin: np.ndarray  # int[C]
    size_class: np.ndarray  # int[C]
    receivers: np.ndarray | None = None  # int[C]: the only rank that needs a chunk; None: all do
    busy: Sequence[tuple[int, int, int]] = ()  # (resource, start, end) ps: taken by others
    group: Rotations | None = None  # rotations of ranks that map the problem to itself
    sums: bool = False  # chunks are summed at their origin before they are copied

    @classmethod
    def of(cls, network: Network, demand: Demand, *, sums: bool = False) -> ExactProblem:
        resource = np.repeat(np.arange(len(network.links)), np.diff(network.occupied_ptr))
        busy = zip(resource.tolist(), network.occupied_start.tolist(), network.occupied_end.tolist(), strict=True)
        symmetric = symmetric_network(network, demand) if len(demand.sizes) == 1 else None
        return cls(
            timing=network.timing(demand.sizes), origin=demand.origin, size_class=demand.size_class,
            receivers=demand.receivers, busy=tuple(busy), sums=sums, group=symmetric.group if symmetric else None,
        )  # fmt: skip

    @classmethod
    def up_to(cls, each: SymmetricNetwork) -> ExactProblem:
        """The problem of the chunks of one rank; the others are rotated."""
        return cls(timing=each.timing, origin=each.origin, size_class=np.zeros(len(each.origin), dtype=np.int64))

    @cached_property
    def unit(self) -> int:
        """Greatest common divisor of all times, ps."""
        times = [*self.timing[-3:], np.array([b[1:] for b in self.busy], dtype=np.int64)]
        return gcd(*(int(np.gcd.reduce(t, axis=None)) for t in times if t.size)) or 1

    @cached_property
    def distance(self) -> np.ndarray:
        """int64[classes, ranks, ranks]: ps of the fastest way from rank to rank."""
        return np.stack([distances_to(self.timing, delay).T for delay in self.timing.delay])

    def times(self, horizon: int) -> list[int] | None:
        """Units at which a transfer of a schedule without needless waiting can begin; None if they are too many."""
        unit, timing = self.unit, self.timing
        steps = set((timing.delay // unit).flat)
        at: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for hop, resource in enumerate(timing.hop.tolist()):
            at[resource] |= set(zip(timing.offset[:, hop] // unit, timing.hold[:, hop] // unit, strict=True))
        steps |= {o + h - later for uses in set(map(frozenset, at.values())) for o, h in uses for later, _ in uses}
        firsts = {0} | {end // unit - o for r, _, end in self.busy for o, _ in at[r]}
        if len(steps) > 64:
            return None
        reached = {t for t in firsts if 0 <= t <= horizon}
        fresh = list(reached)
        while fresh:
            later = {t + step for t in fresh for step in steps if 0 <= t + step <= horizon}
            fresh = list(later - reached)
            reached |= later
            if len(reached) > _MAX_TIMES:
                return None
        return sorted(reached)


def solver():
    """The module of the solver. Raises AlgorithmError: it is not installed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        problem = "needs OR-Tools, which is not installed"
        raise AlgorithmError("exact", problem, "pip install 'astrasim-py[exact]'") from error
    return cp_model


class Model:
    """Variables and constraints of an `ExactProblem` whose time lies in ``floor .. most`` ps."""

    def __init__(self, problem: ExactProblem, floor: int, most: int) -> None:
        self.cp = solver()
        self.problem = problem
        unit = problem.unit
        self.horizon = most // unit
        self.model = self.cp.CpModel()
        times = problem.times(self.horizon)
        self.starts = None if times is None else np.array(times)
        self.floor = floor
        self.end = self._variable(-(-floor // unit), set((problem.timing.delay // unit).flat))
        self.holds: dict[int, list] = defaultdict(list)
        #: (arc, chunk, whether it is a part of a sum) → literal, first unit.
        self.used: dict[tuple[int, int, bool], tuple] = {}
        ranks = range(len(problem.timing.in_ptr) - 1)
        self.into = [np.flatnonzero(problem.timing.dst == v).tolist() for v in ranks]
        self.outof = [np.flatnonzero(problem.timing.src == v).tolist() for v in ranks]
        #: Variables, or numbers where there is no choice.
        self.arrival: dict[tuple[int, int], Any] = {}
        self.whole: dict[int, Any] = {}
        for chunk in range(len(problem.origin)):
            if problem.sums:
                self._sum(chunk)
            self._copy(chunk)
        for resource, start, end in problem.busy:
            if start // unit <= self.horizon:
                taken = self.model.new_fixed_size_interval_var(start // unit, (end - start) // unit, "")
                self.holds[resource].append(taken)
        for each in self.holds.values():
            self.model.add_no_overlap(each)
        self._break_symmetry()
        self.model.minimize(self.end)

    def _variable(self, low: int, after: set[int], high: int | None = None):
        """A time that is a possible start plus one of `after`."""
        high = self.horizon if high is None else high
        values, starts = np.empty(0, dtype=np.int64), self.starts
        if low <= high and starts is None:
            return self.model.new_int_var(low, high, "")
        if low <= high and starts is not None and after:
            values = np.unique(np.concatenate([starts + d for d in sorted(after)]))
            values = values[(values >= low) & (values <= high)]
        if not len(values):
            self.model.add_bool_or([])
            return low
        return self.model.new_int_var_from_domain(self.cp.Domain.from_values(values.tolist()), "")

    def _use(self, arc: int, chunk: int, reduces: bool, start, first, then):
        """A literal: the arc carries the chunk from `start` on, and `first` is not later than `then`."""
        problem, z = self.problem, self.problem.size_class[chunk]
        literal = self.model.new_bool_var("")
        self.model.add(then >= first).only_enforce_if(literal)
        for hop in range(int(problem.timing.hop_ptr[arc]), int(problem.timing.hop_ptr[arc + 1])):
            size = int(problem.timing.hold[z, hop]) // problem.unit
            if size:
                begin = start + int(problem.timing.offset[z, hop]) // problem.unit
                held = self.model.new_optional_fixed_size_interval_var(begin, size, literal, "")
                self.holds[int(problem.timing.hop[hop])].append(held)
        self.used[arc, chunk, reduces] = literal, start
        return literal

    def _copy(self, chunk: int) -> None:
        """The chunk goes from its origin to every rank that needs it, to each over one arc."""
        problem, model, unit = self.problem, self.model, self.problem.unit
        origin, z = int(problem.origin[chunk]), int(problem.size_class[chunk])
        only = None if problem.receivers is None else int(problem.receivers[chunk])
        if only == origin:
            return
        delay = problem.timing.delay[z] // unit
        far = problem.distance[z, origin] // unit
        first = self.whole.get(chunk, 0)
        early = int(problem.distance[z, :, origin].max()) // unit if problem.sums else 0
        for v in range(len(self.into)):
            if v == origin:
                continue
            last = self.horizon
            if only is not None:
                last -= int(problem.distance[z, v, only]) // unit
            if early + int(far[v]) > last and only not in (None, v):
                continue
            after = {int(delay[a]) for a in self.into[v]}
            self.arrival[v, chunk] = self._variable(early + int(far[v]), after, last)
        passed = {}
        for v in range(len(self.into)):
            if (v, chunk) not in self.arrival:
                continue
            arrival, incoming = self.arrival[v, chunk], []
            for arc in self.into[v]:
                u = int(problem.timing.src[arc])
                if (u != origin and (u, chunk) not in self.arrival) or u == only:
                    continue
                start = arrival - int(delay[arc])
                there = first if u == origin else self.arrival[u, chunk]
                incoming.append(self._use(arc, chunk, False, start, there, start))
            if only is None or v == only:
                model.add_exactly_one(incoming)
                model.add(self.end >= arrival)
            else:
                model.add_at_most_one(incoming)
            passed[v] = incoming
        if only is None:
            return
        # A rank passes a chunk on exactly if it got it.
        for v, incoming in passed.items():
            onward = [self.used[a, chunk, False][0] for a in self.outof[v] if (a, chunk, False) in self.used]
            if v != only:
                model.add(sum(onward) == sum(incoming))

    def _sum(self, chunk: int) -> None:
        """Every rank but its home sends its part of the chunk once, after all parts that are added to it."""
        problem, model, unit = self.problem, self.model, self.problem.unit
        home, z = int(problem.origin[chunk]), int(problem.size_class[chunk])
        delay = problem.timing.delay[z] // unit
        far = problem.distance[z, :, home] // unit
        onward = int(problem.distance[z, home].max()) // unit
        start = {
            v: self._variable(0, {0}, self.horizon - onward - int(far[v])) for v in range(len(self.into)) if v != home
        }
        self.whole[chunk] = whole = self._variable(int(far.max()), set(delay.tolist()), self.horizon - onward)
        for v, begin in start.items():
            outgoing = []
            for arc in self.outof[v]:
                to = int(problem.timing.dst[arc])
                needed = whole if to == home else start[to]
                outgoing.append(self._use(arc, chunk, True, begin, begin + int(delay[arc]), needed))
            model.add_exactly_one(outgoing)

    def _break_symmetry(self) -> None:
        """Order chunks that differ in their numbers only, and take one of all rotations of a schedule.

        The first of such chunks arrives first at the farthest rank; the first rank of a class gets the last chunk.
        """
        problem = self.problem
        alike: dict[tuple, list[int]] = defaultdict(list)
        for chunk, origin in enumerate(problem.origin.tolist()):
            to = None if problem.receivers is None else int(problem.receivers[chunk])
            if origin != to:
                alike[origin, int(problem.size_class[chunk]), to].append(chunk)
        for (origin, z, to), chunks in alike.items():
            v = int(np.argmax(problem.distance[z, origin])) if to is None else to
            for a, b in itertools.pairwise(chunks):
                self.model.add(self.arrival[v, a] <= self.arrival[v, b])
        if problem.group is not None and problem.receivers is None:
            heads = problem.group.rank_at[:, 0].tolist()
            self.model.add_max_equality(self.end, [a for (v, _), a in self.arrival.items() if v in heads])

    def solve(self, seed: int, seconds: float, work: float | None = None) -> SolverResult:
        """Search; see `SolverResult`."""
        cp, problem = self.cp, self.problem
        engine = cp.CpSolver()
        parameters = engine.parameters
        parameters.random_seed = seed % 2**31
        # Subsolvers take turns in a fixed order: the result does not depend on the number of cores.
        parameters.num_workers = _SUBSOLVERS
        parameters.interleave_search = True
        # The solver looks at the clock between pieces of work.
        seconds = max(_PUNCTUAL * seconds, 0.01)
        parameters.max_time_in_seconds = seconds
        if work is not None:
            parameters.max_deterministic_time = work
        # Propagating lists of times through each other takes the solver longer than all the rest.
        parameters.cp_model_presolve = self.starts is None
        begin = time.monotonic()
        status = engine.solve(self.model)
        cut = status not in (cp.OPTIMAL, cp.INFEASIBLE) and time.monotonic() - begin >= seconds
        if status == cp.MODEL_INVALID:
            raise InternalError(f"the exact model is invalid: {self.model.validate()}")
        if status == cp.INFEASIBLE:
            return SolverResult(None, (self.horizon + 1) * problem.unit, cut)
        bound = int(np.ceil(max(engine.best_objective_bound, 0) - 1e-6)) * problem.unit
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return SolverResult(None, max(bound, self.floor), cut)
        rows = [
            (*key[:2], engine.value(start), key[2]) for key, (used, start) in self.used.items() if engine.value(used)
        ]
        rows.sort(key=lambda row: (row[2], not row[3]))
        arc, chunk, start, reduces = (np.array(column) for column in zip(*rows, strict=True))
        return SolverResult((arc, chunk, start * problem.unit, reduces.astype(bool)), bound, cut)


#: Most ranks of a group for which a fastest schedule is searched.
MAX_RANKS = 16
#: Most pairs of an arc and a chunk in one model.
MAX_PAIRS = 50_000
#: Wall-clock seconds by default.
LIMIT = 60.0
#: Work (deterministic seconds of the solver) that is spent on schedules as symmetric as the network.
_SYMMETRIC_WORK = 8.0


def admit(ranks: int, limit: float = LIMIT) -> None:
    """Refuse a problem that `prove` cannot solve, before anything is searched."""
    if ranks > MAX_RANKS:
        problem = f"{ranks} ranks are more than the {MAX_RANKS} for which the fastest schedule is searched"
        raise AlgorithmError("exact", problem, "leave the exact mode out, or choose a smaller group")
    if not np.isfinite(limit) or limit <= 0:
        raise AlgorithmError("exact", f"a limit of {limit} s is not above 0", "write e.g. 60")
    solver()


def prove(schedule: Schedule, *, seed: int = 1, limit: float = LIMIT) -> Schedule:
    """The fastest schedule of a demand, or the best one found and a bound on the fastest.

    Begins at a recorded schedule and searches for `limit` wall-clock seconds; ``search.cut``: they ended the search.
    The model cannot express an all_reduce that sums chunks elsewhere than at their homes; such a schedule is returned
    unchanged.
    Raises AlgorithmError: too many ranks, a model that is too large, transfers that take no time, or no solver.
    """
    network, demand = schedule.network, schedule.demand
    admit(network.ranks, limit)
    if not schedule.recorded:
        raise AlgorithmError("exact", "transfers were counted only", "let them be recorded")
    # The model knows no transfer that waits in a switch: its proofs do not hold for those.
    queues = not network.direct and not len(network.occupied_start)
    waitless = schedule.start + schedule.timing.delay[demand.size_class[schedule.chunk], schedule.arc]
    if queues and (schedule.arrival != waitless).any():
        return schedule
    away = schedule.reduces & (schedule.src == demand.origin[schedule.chunk])
    if schedule.optimal or away.any():
        return schedule
    if network.arcs * demand.count > MAX_PAIRS:
        problem = f"{network.arcs} arcs and {demand.count} chunks are more than {MAX_PAIRS} pairs of them"
        raise AlgorithmError("exact", problem, "use fewer chunks")
    if int(schedule.timing.delay.min(initial=1)) == 0:
        raise AlgorithmError("exact", "there are transfers that take no time", "give links a latency")
    begin = time.monotonic()
    best, bound, cut = schedule, schedule.bound, False

    def left(share: float = 1.0) -> float:
        return share * limit - (time.monotonic() - begin)

    def consider(transfers: Transfers) -> None:
        nonlocal best
        found = as_schedule(network, demand, transfers, schedule.search)
        problems = check(found)
        if problems:
            raise InternalError(f"a schedule of the exact mode is wrong: {problems[0]}")
        best = min(best, found, key=lambda s: s.time)

    def fastest(reduces: bool, floor: int, most: int, seconds: float) -> Transfers | None:
        nonlocal bound, cut
        columns, least, stopped = _fastest(network.reversed if reduces else network, demand, floor, most, seed, seconds)
        bound, cut = max(bound, least), cut or stopped
        if columns is None:
            return None
        return mirrored(network, demand, columns) if reduces else copied(columns)

    if demand.collective == "all_reduce":
        parts = []
        for share, reduces in ((1 / 3, True), (2 / 3, False)):
            arc, chunk, start, kinds = (
                column[schedule.reduces == reduces]
                for column in (schedule.arc, schedule.chunk, schedule.start, schedule.reduces)
            )
            known = arc, chunk, start - start.min(), kinds
            parts.append(fastest(reduces, 0, _last(network, demand, known), left(share)) or known)
        sums, copies = parts
        consider(chained(sums, copies, _last(network, demand, sums)))
        if best.time > bound and left() > 0:
            outcome = Model(ExactProblem.of(network, demand, sums=True), bound, best.time - 1).solve(seed, left())
            cut = cut or outcome.cut
            if outcome.columns is not None:
                consider(outcome.columns)
    else:
        found = fastest(demand.reduces, bound, schedule.time, left())
        if found is not None:
            consider(found)
    if queues:
        bound = schedule.bound
    if bound > best.time:
        raise InternalError(f"the exact mode proves {bound} ps of what takes {best.time} ps")
    how = schedule.search
    how = replace(
        how, policy=how.policy + "; then exact" * (best is not schedule), cut=how.cut or (cut and best.time > bound),
        seconds=how.seconds + time.monotonic() - begin,
    )  # fmt: skip
    kind = "exact" if bound > schedule.bound else schedule.bound_kind
    return replace(best, bound=bound, bound_kind=kind, search=how)


def _last(network: Network, demand: Demand, transfers: tuple) -> int:
    """When the last of these transfers arrives, ps."""
    arc, chunk, start = transfers[:3]
    delay = network.timing(demand.sizes).delay
    return int((start + delay[demand.size_class[chunk], arc]).max(initial=0))


def _fastest(
    network: Network, demand: Demand, floor: int, most: int, seed: int, seconds: float
) -> tuple[Columns | None, int, bool]:
    """(columns or None, bound, cut) of the fastest schedule that copies: first one as symmetric as the network."""
    begin = time.monotonic()
    best: Columns | None = None
    cut = False
    symmetric = symmetric_network(network, demand) if len(demand.sizes) == 1 else None
    if symmetric is not None and most > floor:
        outcome = Model(ExactProblem.up_to(symmetric), floor, most - 1).solve(seed, seconds / 2, _SYMMETRIC_WORK)
        cut = outcome.cut
        if outcome.columns is not None:
            rotated = symmetric.rotated(outcome.columns[:3])
            order = np.argsort(rotated[2], kind="stable")
            best = rotated[0][order], rotated[1][order], rotated[2][order]
            most = _last(network, demand, best)
    if most <= floor:
        return best, floor, False
    outcome = Model(ExactProblem.of(network, demand), floor, most - 1).solve(seed, seconds - (time.monotonic() - begin))
    if outcome.columns is not None:
        best = outcome.columns[:3]
    return best, max(floor, outcome.bound), cut or outcome.cut
