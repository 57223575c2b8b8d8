"""The judge: the makespan of a candidate by simulation, each simulated once; and the budget."""

import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AstraError, InternalError, SimulationError
from astrasim_py.core.units import format_time
from astrasim_py.engine.simulation import engine_for, plan_for, simulate
from astrasim_py.optimizer.calls import AlgorithmChoice
from astrasim_py.optimizer.choices import KeyChoice
from astrasim_py.optimizer.placed import PlacementChoice
from astrasim_py.optimizer.space import Candidate, Space
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction
from astrasim_py.system.bound import proven_bound
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

#: Multiples of the makespan and of the messages of the baseline beyond which a candidate is given up; `_FEW` messages,
#: which take about a second, are always simulated.
_TOO_LONG, _TOO_MANY, _FEW = 8, 32, 2**22
#: Runs for which it pays to load the compiled engine.
_RUNS = 1000
#: Makespan that stands for a candidate that cannot run, or takes too long.
NEVER = 2**63 - 1


class Stop(Exception):
    """The budget is used up."""


@dataclass(frozen=True)
class Bound:
    """A lower bound, ps, for all algorithms of a workload on a placement, and what it is of; None: none applies."""

    ps: int | None
    of: str

    def gap(self, makespan: int) -> float | None:
        """By which part a makespan is above it."""
        return makespan / self.ps - 1 if self.ps else None


@dataclass(kw_only=True)
class Judge:
    """Gives the makespans of candidates.

    `plan`: of the baseline, which is judged first. `known`: makespans by key of a candidate, and times and messages of
    calls alone, also of earlier runs, which are not simulated again but count as evaluations; -T for one that takes
    more than T ps. `evaluations`: most of this run; `seconds`: of it. `tell`: gets a line of progress.
    """

    space: Space
    plan: Plan
    engine: str
    known: MutableMapping[str, int]
    evaluations: int | None
    seconds: float | None
    tell: Callable[[str], None]
    save: Callable[[], None]
    best: Candidate = ()  # before the baseline is judged
    makespan: int = NEVER
    bound: Bound | None = None
    counted: int = 0
    simulated: int = 0
    began: float = field(default_factory=time.monotonic)
    free: bool = False  # from now on nothing is limited or counted, and the best stays as it is
    _seen: set[str] = field(default_factory=set)
    _bounds: dict[str, Bound] = field(default_factory=dict)
    _shown: float = 0.0
    longest: int = NEVER  # most that a candidate may take, ps

    def __call__(self, candidate: Candidate, most: int = NEVER) -> int:
        """The makespan, ps; `NEVER` where it cannot run, or takes more than `most` ps. Raises Stop.

        What was simulated before, up to another time, does not change the answer.
        """
        key = digest(candidate)[:24]
        if key not in self._seen:
            self.spend(known=key in self.known)
            self._seen.add(key)
            self.counted += not self.free
        most = max(min(most, self.longest), 1)
        if key not in self.known or -most < self.known[key] < 0:
            self.known[key] = self._simulate(candidate, most)
            self.simulated += 1
        makespan = self.known[key] if 0 <= self.known[key] <= most else NEVER
        if self.longest == NEVER:
            self.longest = min(_TOO_LONG * makespan, self.space.point.spec.limits.max_sim_time_ps or NEVER)
        if makespan < self.makespan and not self.free:
            self.best, self.makespan = candidate, makespan
            self.bound = self.bound_of(candidate)
        self._show()
        return makespan

    def spend(self, known: bool = False) -> None:
        """Raise Stop where nothing more may be judged, or can be better. `known`: it is known, and takes no time."""
        if self.free:
            return
        if self.evaluations is not None and self.counted >= self.evaluations:
            raise Stop
        if self.at_bound and not any(isinstance(choice, KeyChoice | PlacementChoice) for choice in self.space.choices):
            raise Stop
        if self.seconds is not None and not known and self._seen and time.monotonic() - self.began >= self.seconds:
            raise Stop

    @property
    def at_bound(self) -> bool:
        """Whether the best is at its bound."""
        return self.bound is not None and self.bound.ps == self.makespan

    @property
    def rate(self) -> float:
        """Simulations a second."""
        return self.simulated / max(time.monotonic() - self.began, 1e-9)

    def _limits(self, most: int) -> Limits:
        return self.space.point.spec.limits.model_copy(update={"max_sim_time_ps": most})

    def _simulate(self, candidate: Candidate, most: int) -> int:
        if candidate == self.space.baseline:
            records = simulate(self.plan, engine=engine_for(self.plan, self.engine, _RUNS), level="summary")
            if records.outcome.status != "done":
                problem = f"does not end: {records.outcome.status}"
                raise SimulationError(self.space.point.scenario, problem, "see what run says")
            return records.makespan
        try:
            plan = plan_for(self.space.problem(candidate, self._limits(most)), bounds=False)
            if plan.messages > max(_TOO_MANY * self.plan.messages, _FEW):
                return NEVER
            records = simulate(plan, engine=engine_for(plan, self.engine, _RUNS), level="summary")
        except AstraError:
            return NEVER
        return {"done": records.makespan, "limit": -most}.get(records.outcome.status, NEVER)

    def bound_of(self, candidate: Candidate) -> Bound:
        """The bound of a candidate's workload on its placement."""
        pairs = zip(self.space.choices, candidate, strict=True)
        key = digest([value for choice, value in pairs if isinstance(choice, KeyChoice | PlacementChoice)])
        if key not in self._bounds:
            self._bounds[key] = Bound(*proven_bound(plan_for(self.space.problem(candidate))))
        return self._bounds[key]

    def alone(self, choice: AlgorithmChoice, number: int, value: object, most: int) -> tuple[int, int]:
        """Time of the largest call of a class alone on its NPUs, by the algorithm of a value, ps, and its messages;
        `NEVER` where it cannot run, or takes more than `most` ps."""
        most = min(most, self.longest)
        key = digest(["alone", number, value])[:24]
        self.spend(known=key in self.known)
        if key not in self.known or -most < self.known[key] < 0:
            self.known[key], self.known[f"{key} messages"] = self._simulate_alone(choice, number, value, most)
        makespan = self.known[key]
        return makespan if 0 <= makespan <= most else NEVER, self.known[f"{key} messages"]

    def _simulate_alone(self, choice: AlgorithmChoice, number: int, value: object, most: int) -> tuple[int, int]:
        calls = choice.calls
        jobs = [job.name for job in self.plan.problem.jobs] if calls.job else [""]
        try:
            base = self.space.problem(self.space.with_value(self.space.baseline, number, value))
            table = base.jobs[jobs.index(calls.job)].algorithms
            algorithm = table.select(
                calls.collective, calls.size, calls.ranks, calls.group, root=calls.root, npus=calls.npus
            )
            call = Collective(type=calls.collective, size=calls.size, root=calls.root)
            table = AlgorithmTable({calls.collective: [Case(source=FromFunction(lambda *_: algorithm))]})
            job = Job(workload=generate([call], calls.ranks), placement=calls.npus, algorithms=table)
            limits = self._limits(most)
            alone = Problem(
                jobs=(job,), topology=base.topology, network=base.network, semantics=base.semantics, limits=limits
            )
            plan = plan_for(alone, bounds=False)
            records = simulate(plan, level="summary")
        except AstraError:
            return NEVER, 0
        return {"done": records.makespan, "limit": -most}.get(records.outcome.status, NEVER), plan.messages

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < 0.2 or not self.best:
            return
        self._shown = now
        self.save()
        self.tell(f"best {status(self.makespan, self.bound)}; {self.counted:,} evaluations, {self.rate:.1f} a second")


def status(makespan: int, bound: Bound | None) -> str:
    """A makespan beside its bound, in words."""
    if bound is None or bound.ps is None:
        return f"{format_time(makespan)}, no bound applies"
    if makespan < bound.ps:
        raise InternalError(f"a makespan of {makespan} ps is below its bound of {bound.ps} ps")
    part = bound.gap(makespan)
    gap = "above" if part is None else f"{100 * part:.1f} % above" if part else "at"
    return f"{format_time(makespan)}, {gap} the bound of {format_time(bound.ps)}"
