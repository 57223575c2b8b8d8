"""Find stored points again and draw their figures. A point recorded too coarsely is run again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from astrasim_py.core.choices import AUTO, FOLDED, LEVELS, NO_TITLE
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.exact_json import json_text
from astrasim_py.core.records import (
    COLLECTIVE_COLUMNS,
    HOP_COLUMNS,
    MESSAGE_COLUMNS,
    NODE_COLUMNS,
    Outcome,
    Records,
    empty_table,
)
from astrasim_py.results import stored_points
from astrasim_py.results.model import RunRow
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs.figures import STUDY, draw_figures, drawn_of, recorded_points, specs_in
from astrasim_py.runs.summary import FIRST_LEVEL
from astrasim_py.runs.task import identity_of, make_task, run_task
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.plot_spec import level_of, of_records
from astrasim_py.system.machine_models import Limits

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes


def plot_axes(points: Sequence[StoredPoint], spec: Mapping, ax: Axes | None = None) -> Axes | np.ndarray:
    """Draw a figure of stored points with matplotlib and return its Axes; see `plots.axes_of`."""
    from astrasim_py.report import plots

    shown = {point.folder: at_level(point, level_of(spec), []) for point in recorded_points(spec, points)}
    points = tuple(shown.get(point.folder, point) for point in points)
    return plots.axes_of(spec, *drawn_of(spec, points), ax)


#: Figures of a single point.
_OF_A_POINT = ("links", "gantt", "breakdown")


class Drawn(NamedTuple):
    """Figures that were written."""

    figures: tuple[Path, ...]
    notes: tuple[str, ...]


def find(path: str | os.PathLike) -> tuple[Path, tuple[StoredPoint, ...]]:
    """The scenario's folder and the points that a path names: one for a point's folder, else all of a scenario's.
    Raises UsageError: no whole point is there.
    """
    folder = Path(path)
    if not os.path.isdir(folder):
        raise UsageError(str(path), "is not a folder", "name a folder of results, e.g. results/ring_vs_torus")
    point = stored_points.read_point(folder, contents=True)
    if point is not None:
        return Path(os.path.normpath(folder / ".." / "..")), (point,)
    if folder.name == stored_points.POINTS and os.path.isfile(folder.parent / STUDY):
        folder = folder.parent
    if os.path.exists(folder / stored_points.MANIFEST):
        raise UsageError(str(path), *stored_points.why_no_point(folder))
    points = stored_points.read_points(folder)
    if not points:
        if earlier := stored_points.earlier_layout(folder):
            raise UsageError(str(path), f"holds {earlier}", "run the scenario again")
        for name in stored_points.point_names(folder):
            raise UsageError(
                str(folder / stored_points.POINTS / name),
                *stored_points.why_no_point(folder / stored_points.POINTS / name),
            )
        inside = [name for name in stored_points.names_in(folder) if os.path.isfile(folder / name / STUDY)]
        hint = f"name one of {', '.join(inside[:5])} in it" if inside else "run a scenario first"
        raise UsageError(str(path), "holds no finished point", hint)
    return folder, _current(folder, points)


def _current(folder: Path, points: Sequence[StoredPoint]) -> tuple[StoredPoint, ...]:
    """Points of a scenario as it ran last, in its order; where that is unknown, the newest of each name."""
    by_digest = stored_points.by_digest(points)
    listed = stored_points.read_object(folder / STUDY).get("points")
    digests = listed if isinstance(listed, list) else ()
    ours = [by_digest[digest] for digest in digests if isinstance(digest, str) and digest in by_digest]
    return tuple(ours or stored_points.newest(points))


def stored_runs(folder: Path) -> list[RunRow]:
    """Every point in the folder of a scenario, the one computed last at the end."""
    points = sorted(stored_points.read_points(folder), key=stored_points.finished)
    current = {point.folder.name for point in _current(folder, points)}
    return [
        RunRow(
            **vars(point.row),
            level=point.manifest.level,
            finished=point.cost.finished,
            current=point.folder.name in current,
            folder=str(point.folder),
        )
        for point in points
    ]


def plot_folder(path: str | os.PathLike) -> Drawn:
    """Draw the figures of a scenario's folder again; of one point its links, a Gantt chart and the parts of its time.
    Raises UsageError: there is no point, or nothing to draw.
    """
    folder, points = find(path)
    study = stored_points.read_object(folder / STUDY)
    notes: list[str] = []
    title = str(study.get("title") or study.get("scenario") or folder.name)
    if os.path.exists(Path(path) / stored_points.MANIFEST):
        kinds = [*_OF_A_POINT, *(["utilisation"] if points[0].manifest.level == "messages" else [])]
        specs = [{"kind": kind, "name": f"{points[0].folder.name}-{kind}"} for kind in kinds]
        if points[0].row.sweep and title.lower() not in NO_TITLE:
            # Panels of records say of which point they are.
            whole = {"title": f"{title}: {points[0].manifest.point}"}
            specs = [spec if of_records(spec) else spec | whole for spec in specs]
    else:
        specs = specs_in(study)
        if not specs:
            raise UsageError(str(path), "its scenario asks for no figures", "add plots: to it, or name one point")
    levels = {point.folder.name: "summary" for point in points}
    for spec in specs:
        for point in recorded_points(spec, points):
            level = levels[point.folder.name]
            levels[point.folder.name] = max(level, level_of(spec), key=LEVELS.index)
    ready = [at_level(point, levels[point.folder.name], notes) for point in points]
    figures = draw_figures(folder, title, specs, ready, notes)
    return Drawn(figures=tuple(figures), notes=tuple(dict.fromkeys(notes)))


def records_of(stored: StoredPoint) -> Records:
    """The records of a stored point; tables above its level are empty, and its outcome has only status and cause."""
    level = LEVELS.index(stored.manifest.level)
    finer = [name for name, first in FIRST_LEVEL.items() if LEVELS.index(first) <= level]
    tables = stored.tables("rank", "collective", "link", *finer)
    rank = tables.pop("rank")
    return Records(
        level=stored.manifest.level,
        makespan=stored.summary.makespan_ps,
        finish=rank["finish"],
        compute=rank["compute"],
        exposed_comm=rank["exposed_comm"],
        messages=stored.summary.row.messages or 0,
        message_hops=stored.summary.row.message_hops or 0,
        events=stored.summary.events,
        outcome=Outcome(status=stored.manifest.status, cause=stored.summary.cause),
        engine=stored.manifest.engine,
        network_model=stored.summary.row.network_model or "",
        cpu_s=float(stored.cost.cpu_s or 0),
        collective=tables.get("collective", empty_table(COLLECTIVE_COLUMNS)),
        link=tables["link"],
        node=tables.get("node", empty_table(NODE_COLUMNS)),
        message=tables.get("message", empty_table(MESSAGE_COLUMNS)),
        hop=tables.get("hop", empty_table(HOP_COLUMNS)),
    )


def at_level(stored: StoredPoint, level: str, notes: list[str]) -> StoredPoint:
    """The point with records of at least `level`: as it is, or run again (and the notes say so). Raises UsageError:
    what it was computed from has changed since. Raises AstraError: it cannot be run any more.
    """
    manifest = stored.manifest
    if LEVELS.index(manifest.level) >= LEVELS.index(level):
        return stored
    from astrasim_py.runs import astra_sim_point

    name, ran = manifest.point, manifest.engine or AUTO
    options = RunOptions(
        level=level,
        # A folded run is of single ranks no more, and all of them may be too many for the engine that ran one.
        engine=AUTO if ran.endswith(FOLDED) else ran,
        limits=Limits.model_validate(manifest.limits),
    )
    again = astra_sim_point.run_again if astra_sim_point.is_ours(manifest) else _run_again
    finer = again(stored, options)
    if finer is None:
        verb = "run astra-sim again" if astra_sim_point.is_ours(manifest) else "run the scenario again"
        raise UsageError(
            str(stored.folder),
            f'holds records of level "{manifest.level}", level "{level}" is needed, and what it was computed from '
            "has changed since",
            f"{verb} with --record {level}",
        )
    npus_note = ", all NPUs of it" if ran.endswith(FOLDED) else ""
    notes.append(f"{name}: ran it again{npus_note} to record {level}")
    return finer


def point_of(stored: StoredPoint) -> Point:
    """The point of a scenario that was stored. Raises UsageError: by another version, or edited since."""
    manifest = stored.manifest
    point = Point(
        scenario=manifest.scenario,
        index=0,
        name=manifest.point,
        values=dict(manifest.sweep),
        config=json.loads(json_text(manifest.resolved)),
        folder=stored.cost.source,
        allow_outside=stored.cost.allow_outside,
        allow_code=stored.cost.allow_code,
        repeat=manifest.repeat,
    )
    if identity_of(point, manifest.inputs) != manifest.digest:
        raise UsageError(str(stored.folder), "is of another version of astrasim_py", "run the scenario again")
    return point


def _run_again(stored: StoredPoint, options: RunOptions) -> StoredPoint | None:
    """Run a point of a scenario again; None where what it was computed from has changed since."""
    point = point_of(stored)
    task = make_task(point, stored.folder, options)
    if task.identity != stored.manifest.digest:
        return None
    result = run_task(task)
    again = stored_points.read_point(task.folder)
    if again is None or (not result.stored and result.lines):
        raise AstraError(str(stored.folder), "; ".join(result.lines) or "cannot be run again")
    return again
