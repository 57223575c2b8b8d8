"""Optimize the step of a scenario: search, then find out what each change brings."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.optimizer.choices import KINDS
from astrasim_py.optimizer.judge import NEVER, Bound, Judge
from astrasim_py.optimizer.point import point_of
from astrasim_py.optimizer.search import SearchNotes, search
from astrasim_py.optimizer.space import Candidate, Space, space_of
from astrasim_py.optimizer.state import asked_of, load_state, save_state
from astrasim_py.scenario.load import LoadedScenario

#: Most seconds from one save of the state to the next.
_SAVED = 5.0


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """The result of a search.

    Attributes
    ----------
    space : Space
    best : Candidate
        The best one known, without changes that bring nothing.
    baseline_ps, makespan_ps : int
        Makespans of the scenario as it is, and of the best candidate.
    baseline_bound, bound : Bound
        Lower bounds of the two: of the workload on the placement that each has, for all algorithms and orders.
    found : Found
        What else the search found.
    brings : tuple of (int, int or None)
        Number of each choice that is changed, and by how many ps the makespan is longer without that change; None where
        it cannot run without.
    evaluations, simulated : int
        Candidates that were judged, and those of them that this run simulated.
    seconds : float
        Of the search.
    """

    space: Space
    best: Candidate
    baseline_ps: int
    makespan_ps: int
    baseline_bound: Bound
    bound: Bound
    found: SearchNotes
    brings: tuple[tuple[int, int | None], ...]
    evaluations: int
    simulated: int
    seconds: float

    @property
    def rate(self) -> float:
        """Simulations a second."""
        return self.simulated / max(self.seconds, 1e-9)


def kinds_of(text: str | None) -> tuple[str, ...]:
    """The kinds of choices that ``--over`` names; all by default. Raises UsageError."""
    if text is None:
        return KINDS
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in KINDS:
            raise UsageError("--over", f'"{name}" cannot be chosen', did_you_mean(name, KINDS))
    return tuple(kind for kind in KINDS if kind in names)


def optimize(
    scenario: LoadedScenario,
    out: str | os.PathLike,
    *,
    wanted: Mapping[str, Sequence[str]] | None = None,
    over: str | None = None,
    seconds: float | None = 60.0,
    evaluations: int | None = None,
    seed: int = 1,
    engine: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Optimized:
    """Search for choices that make the makespan of a scenario short.

    The search is the same for equal arguments: with `evaluations` alone the result is, too; with `seconds` it is cut
    where these are over. What was simulated is kept in `out`, from which a call with equal arguments goes on.

    Parameters
    ----------
    scenario : LoadedScenario
        Of one point, or several of which `wanted` chooses one.
    out : path
        A folder that is new or empty, or holds the state of this search.
    wanted : mapping of str to sequence of str, optional
        Values of swept keys of which the point has one each.
    over : str, optional
        Kinds of choices, ``"algorithms,placement"``; all by default.
    seconds, evaluations : optional
        When the search ends; None: without this limit.
    seed : int
    engine : str, optional
        Instead of the scenario's.
    tell : function
        Gets lines of progress.

    Raises
    ------
    UsageError
        Several points, nothing to choose, or a folder with other content.
    AstraError
        The scenario cannot run.
    """
    kinds, folder = kinds_of(over), Path(out)
    point = point_of(scenario, wanted or {})
    engine = engine or scenario.engine
    arguments = asked_of(point, kinds, seed, engine)
    makespans = load_state(folder, arguments)
    space, plan = space_of(point, kinds)
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        if time.monotonic() - saved > _SAVED:
            save_state(folder, arguments, makespans)
            saved = time.monotonic()

    judge = Judge(
        space=space,
        plan=plan,
        engine=engine,
        known=makespans,
        evaluations=evaluations,
        seconds=seconds,
        tell=tell,
        save=save,
    )
    notes = search(judge, seed)
    space = judge.space
    took, simulated = time.monotonic() - judge.began, judge.simulated
    judge.free = True
    best, makespan = judge.best, judge.makespan
    brings: tuple = ()
    if not notes.interrupted:
        best, makespan, brings = _needed(space, judge, best, makespan)
    save_state(folder, arguments, makespans)
    return Optimized(
        space=space,
        best=best,
        baseline_ps=judge(space.baseline),
        makespan_ps=makespan,
        baseline_bound=judge.bound_of(space.baseline),
        bound=judge.bound_of(best),
        found=notes,
        brings=brings,
        evaluations=judge.counted,
        simulated=simulated,
        seconds=took,
    )


def _needed(space: Space, judge: Judge, best: Candidate, makespan: int) -> tuple[Candidate, int, tuple]:
    """The candidate without changes that bring nothing, its makespan, and what each of the others brings: each undone
    alone.
    """
    for number in space.changes(best):
        without = space.with_value(best, number, space.baseline[number])
        if (changed := judge(without)) <= makespan:
            best, makespan = without, changed
    brings = []
    for number in space.changes(best):
        changed = judge(space.with_value(best, number, space.baseline[number]))
        brings.append((number, None if changed == NEVER else changed - makespan))
    return best, makespan, tuple(brings)
