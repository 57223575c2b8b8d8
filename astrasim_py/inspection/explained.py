"""Explain stored points: where the time of one went, and where those of two differ."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.inspection.advice import advice
from astrasim_py.inspection.point_choice import one_of, parse_words, points_named, several, worst_of
from astrasim_py.inspection.stored_results import at_level, point_of, records_of
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.difference import Difference
from astrasim_py.report.explain import Explanation, explain
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs import astra_sim_point
from astrasim_py.runs.figures import parts_of
from astrasim_py.runs.task import make_task
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.problem import Problem


class Explained(NamedTuple):
    """A stored point and why it took so long."""

    point: StoredPoint
    explanation: Explanation
    notes: tuple[str, ...]


def explain_folder(path: str | os.PathLike, point: str | Mapping[str, str] = "") -> Explained:
    """Explain the one point that a name and swept values (or the name of a point) mean; see `explain_point`. Raises
    UsageError: there is no such point, or more than one.
    """
    points = points_named(path, {})
    matches = tuple(stored for stored in points if stored.manifest.point == point)
    if point and not matches:
        words = re.split(r",(?=[^,=]+=)", point) if isinstance(point, str) else [f"{k}={v}" for k, v in point.items()]
        matches = points_named(path, parse_words(words))
    return explain_point(one_of(matches or points, str(path)))


def explain_chosen(
    names: Sequence[str], selection: Mapping[str, Sequence[str]], out: str, *, worst: bool = False
) -> list[Explained]:
    """Explain the one point, or the two, that are meant. `names`: one, or one for each point. `selection`: key → values
    of which a point has one. `worst`: of those that are meant the one farthest from its bound. Raises UsageError:
    there is no such point, or more than two.
    """
    if not names:
        raise UsageError("explain", "which results?", "name a folder of results, or a scenario that was run")
    points = [point for name in names for point in points_named(name, selection, out)]
    if worst:
        points = [worst_of(points)]
    if len(points) > 2:
        raise several(points, " ".join(names))
    return [explain_point(point, advise=len(points) == 1) for point in points]


def difference_of(first: Explained, second: Explained) -> Difference:
    """Where the times of two points differ."""
    names = first.point.manifest.point, second.point.manifest.point
    if names[0] == names[1]:
        names = str(first.point.folder), str(second.point.folder)
    return Difference(names, (first.explanation, second.explanation))


def explain_point(stored: StoredPoint, *, advise: bool = True) -> Explained:
    """Explain a point; one recorded below level ``messages`` is run again. The notes say so, and what was
    warned of. `advise`: with a sentence on what would make it faster.
    """
    notes = [f"warning: {text}" for text in stored.summary.warnings]
    point = at_level(stored, LEVELS[-1], notes)
    longer = point.summary.hop_latency_ps
    switches = point.summary.switches, point.summary.switch_latency_ps
    qps = point.summary.qps
    changes = [event.at_ps for event in point.summary.link_events]
    records = records_of(point)
    explanation = explain(records, point.table("edge"), longer, parts_of(point), *switches, qps, changes)
    if point.manifest.status != "done":
        notes.append(f"this point is {point.manifest.status}: {point.summary.cause}")
    elif advise:
        with suppress(AstraError):  # it cannot be made again: a file has gone
            problem = _problem_of(point)
            if problem is not None:
                text = advice(problem, explanation, records.message_hops + records.node.height)
                explanation = replace(explanation, advice=text)
    return Explained(point=point, explanation=explanation, notes=tuple(dict.fromkeys(notes)))


def _problem_of(stored: StoredPoint) -> Problem | None:
    """The problem of a stored point; None where what it was computed from has changed since."""
    if astra_sim_point.is_ours(stored.manifest):
        return None
    point, limits = point_of(stored), Limits.model_validate(stored.manifest.limits)
    task = make_task(point, stored.folder, RunOptions(limits=limits))
    if task.identity != stored.manifest.digest:
        return None
    return prepare(point, limits=limits, kept=task.kept).problem
