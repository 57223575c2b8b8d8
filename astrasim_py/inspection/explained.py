"""Explain stored points: where the time of one went, and where those of two differ."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import AstraError
from astrasim_py.core.point_names import PointName, parse_values
from astrasim_py.inspection.advice import advice
from astrasim_py.inspection.bound_proof import bound_proof
from astrasim_py.inspection.point_choice import point_name, point_named, points_named, worst_of
from astrasim_py.inspection.stored_results import at_level, point_of, records_of
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.chosen_rows import ambiguous
from astrasim_py.report.difference import Difference
from astrasim_py.report.explain import Explanation, explain
from astrasim_py.report.flows import FLOWS
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
    bound_by: str  # what proves the bound of the point


def explain_folder(path: str | os.PathLike, point: str | Mapping[str, str] = "") -> Explained:
    """Explain the one point that a name and swept values (or the name of a point) mean; see `explain_point`. Raises
    UsageError: there is no such point, or more than one.
    """
    name = point_name(path)
    if point:
        matches = [stored for stored in points_named(name) if stored.manifest.point == point]
        if len(matches) == 1:
            return explain_point(matches[0])
    return explain_point(point_named(with_values(name, point)))


def with_values(name: PointName, point: str | Mapping[str, str]) -> PointName:
    """A name with the swept values of a point besides its own."""
    values = parse_values(point) if isinstance(point, str) else {key: (str(text),) for key, text in point.items()}
    return PointName(name.name, {**name.values, **values})


def explain_chosen(names: Sequence[PointName], out: str | os.PathLike, *, worst: bool = False) -> list[Explained]:
    """Explain the one point, or the two, that are meant. `names`: one, or one for each point. `worst`: of those that
    are meant the one farthest from its bound. Raises UsageError: there is no such point, or more than two.
    """
    groups = [points_named(name, out) for name in names]
    points = [point for group in groups for point in group]
    if worst:
        points = [worst_of(points)]
    if len(points) > 2:
        name, group = next((name, group) for name, group in zip(names, groups, strict=True) if len(group) > 1)
        raise ambiguous([point.row for point in group], name, "one point, or two")
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
    bound_by = stored.row.bound_by or ""
    if point.manifest.status != "done":
        notes.append(f"this point is {point.manifest.status}: {point.summary.cause}")
    elif advise and not os.path.exists(point.folder / FLOWS):
        # Senders of open-loop traffic wait as long as they are told, so that no advice applies to them.
        with suppress(AstraError):  # it cannot be made again: a file has gone
            problem = _problem_of(point)
            if problem is not None:
                text = advice(problem, explanation, records.message_hops + records.node.height)
                explanation = replace(explanation, advice=text)
                bound_by = bound_proof(stored.summary, problem)
    return Explained(point=point, explanation=explanation, notes=tuple(dict.fromkeys(notes)), bound_by=bound_by)


def _problem_of(stored: StoredPoint) -> Problem | None:
    """The problem of a stored point; None where what it was computed from has changed since."""
    if astra_sim_point.is_ours(stored.manifest):
        return None
    point, limits = point_of(stored), Limits.model_validate(stored.manifest.limits)
    task = make_task(point, stored.folder, RunOptions(limits=limits))
    if task.identity != stored.manifest.digest:
        return None
    return prepare(point, limits=limits, kept=task.kept).problem
