"""All choices of a scenario together: candidates, and the problem that each of them is."""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AstraError, ScenarioError, UsageError
from astrasim_py.core.strict_model import mistakes
from astrasim_py.engine.simulation import plan_for
from astrasim_py.optimizer.calls import AlgorithmChoice, algorithm_choices, write_cases
from astrasim_py.optimizer.choices import KINDS, Choice, KeyChoice
from astrasim_py.optimizer.keys import in_our_names, is_training, key_choices
from astrasim_py.optimizer.order import Facts, TraceChoice, facts_of, order_choices
from astrasim_py.optimizer.placed import PlacementChoice, placement_choice
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.runs.unused import Use, unused
from astrasim_py.scenario.expand import Point
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem

#: A value for each choice, in the order of `Space.choices`.
Candidate = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The choices of one point.

    Attributes
    ----------
    point : Point
        The scenario as it is.
    choices : tuple of Choice
    known_facts : dict
        Facts of workloads, by job and values of keys, once they are known.
    made : dict
        Algorithms that were synthesized, by name of their file.
    warnings : tuple of str
        About the files of the scenario as it is.
    """

    point: Point
    choices: tuple[Choice, ...]
    known_facts: dict[tuple, Facts] = field(default_factory=dict, repr=False)
    made: dict[str, Algorithm] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def baseline(self) -> Candidate:
        """The scenario as it is."""
        return tuple(choice.values[0] for choice in self.choices)

    @property
    def count(self) -> int | None:
        """Number of candidates; None where they are not all listed."""
        return math.prod(len(c.values) for c in self.choices) if all(c.whole for c in self.choices) else None

    @property
    def job_names(self) -> list[str]:
        """Names of the jobs, as `Choice.job` says."""
        return list(self.point.config.get("jobs") or [""])

    def changes(self, candidate: Candidate) -> list[int]:
        """Numbers of the choices in which a candidate differs from the baseline."""
        return [k for k, (value, first) in enumerate(zip(candidate, self.baseline, strict=True)) if value != first]

    def with_value(self, candidate: Candidate, number: int, value: Any) -> Candidate:
        """The candidate with another value of one choice."""
        return (*candidate[:number], value, *candidate[number + 1 :])

    def config(self, candidate: Candidate) -> dict[str, Any]:
        """The configuration of a point with a candidate's values, its orders left out."""
        config = deepcopy(dict(self.point.config))
        changed = [(self.choices[number], candidate[number]) for number in self.changes(candidate)]
        for choice, value in changed:
            choice.apply(config, value)
        if config.get("jobs") and any(isinstance(choice, PlacementChoice) for choice, _ in changed):
            # A job that lists its NPUs leaves others to the rest, so all of them must.
            for choice, value in zip(self.choices, candidate, strict=True):
                if isinstance(choice, PlacementChoice):
                    choice.apply(config, value)
        write_cases(config, [(choice, value) for choice, value in changed if isinstance(choice, AlgorithmChoice)])
        return config

    def problem(self, candidate: Candidate, limits: Limits | None = None) -> Problem:
        """The problem of a candidate. Raises AstraError: there is none with these values together."""
        try:
            base = prepare(replace(self.point, config=self.config(candidate)), limits=limits, given=self.made).problem
        except ValidationError as error:
            wrong = next(mistakes(error))
            raise ScenarioError(wrong.path(""), wrong.problem, wrong.remedy) from None
        return self._ordered(base, candidate)

    def _ordered(self, problem: Problem, candidate: Candidate) -> Problem:
        """The problem with the orders of a candidate."""
        changed = [(self.choices[number], candidate[number]) for number in self.changes(candidate)]
        orders = [(choice, value) for choice, value in changed if isinstance(choice, TraceChoice)]
        jobs = list(problem.jobs)
        for number, job in enumerate(problem.jobs if orders else ()):
            facts = self._facts(problem, number, candidate)
            for choice, value in orders:
                if choice.job in ("", job.name):
                    jobs[number] = replace(jobs[number], workload=choice.reorder(jobs[number].workload, value, facts))
        return replace(problem, jobs=tuple(jobs))

    def _facts(self, problem: Problem, job: int, candidate: Candidate) -> Facts:
        pairs = zip(self.choices, candidate, strict=True)
        key = job, *(value for choice, value in pairs if isinstance(choice, KeyChoice))
        if key not in self.known_facts:
            self.known_facts[key] = facts_of(plan_for(problem), job)
        return self.known_facts[key]

    def reordered(self, candidate: Candidate) -> bool:
        """Whether a candidate changes traces themselves."""
        return any(isinstance(self.choices[number], TraceChoice) for number in self.changes(candidate))

    def wider(self, number: int, value: Any, algorithms: Mapping[str, Algorithm]) -> "Space":
        """The space with one more value of a choice, which names files of `algorithms`."""
        choice = self.choices[number]
        more = replace(choice, values=tuple(dict.fromkeys((*choice.values, value))))
        self.made.update(algorithms)
        return replace(self, choices=(*self.choices[:number], more, *self.choices[number + 1 :]))

    def listed(self) -> Iterator[Candidate]:
        """All candidates that are listed, the baseline first."""
        return product(*(choice.values for choice in self.choices))


def space_of(point: Point, kinds: tuple[str, ...]) -> tuple[Space, Plan]:
    """The choices of some kinds that a point has, and its plan as it is.

    Raises UsageError: it has no collective, or nothing of these kinds can be chosen. Raises AstraError: it cannot run.
    """
    config = deepcopy(dict(point.config))
    in_our_names(config)
    point = replace(point, config=config)
    prepared = prepare(point)
    problem = prepared.problem
    plan = plan_for(problem)
    warnings = prepared.notes_with(plan).warnings
    if not point.values:  # Other points of a sweep may use it. Algorithms, and so switches, are to be chosen.
        warnings += unused(point, replace(Use.of(plan), cases={}, switches=True))
    if not len(plan.instances):
        remedy = "add e.g. - all_reduce: {size: 64 MiB}, or name a scenario that has one"
        raise UsageError(point.scenario, "calls no collective, so there is nothing to optimize", remedy)
    names = list(config.get("jobs") or [""])
    choices: list[Choice] = []
    if not {"algorithms", "chunks"}.isdisjoint(kinds):
        choices += algorithm_choices(plan, names, config, kinds)
    choices += _effective(point, problem, list(key_choices(config, kinds)))
    for number, name in enumerate(names):
        if "placement" in kinds and (choice := placement_choice(problem, number, name)):
            choices.append(choice)
        choices += order_choices(plan, number, name, kinds, exchanges=not is_training(config, name))
    unsearched = [name for name in names if is_training(config, name)] if "order" in kinds and kinds != KINDS else []
    if not choices:
        reason = f"has nothing to choose under {', '.join(kinds)}"
        remedy = "write --over priority, as trainings have no order" if unsearched else "name more kinds with --over"
        raise UsageError(point.scenario, reason, f"{remedy}, or drop it")
    if unsearched:
        warnings.append(
            f"{point.scenario}: trainings have no choice of order, which brought nothing; priority orders them"
        )
    return Space(point=point, choices=tuple(choices), warnings=tuple(warnings)), plan


def _effective(point: Point, problem: Problem, choices: list[KeyChoice]) -> list[KeyChoice]:
    """Choices of keys, without values that are refused alone or make the same workload as one before."""
    effective = []
    for choice in choices:
        alone = Space(point=point, choices=(choice,))
        by_digest: dict[str, Any] = {_made(problem): choice.values[0]}
        for value in choice.values[1:]:
            try:
                by_digest.setdefault(_made(alone.problem((value,))), value)
            except AstraError:
                continue
        if len(by_digest) > 1:
            effective.append(replace(choice, values=tuple(by_digest.values())))
    return effective


def _made(problem: Problem) -> str:
    """What a key can change of a problem."""
    planned = [getattr(getattr(job.planner, "default", None), "how", None) for job in problem.jobs]
    return digest([[job.workload.digest() for job in problem.jobs], planned])
