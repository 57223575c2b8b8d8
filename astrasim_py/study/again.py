"""Look at stored results again: explain a point, draw figures. A point recorded too coarsely is run again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from astrasim_py.core.errors import UsageError
from astrasim_py.core.records import LEVELS
from astrasim_py.report import plots
from astrasim_py.report.explain import Explanation, explain
from astrasim_py.study import store
from astrasim_py.study.figures import STUDY, draw_figures, panel_points, read_study
from astrasim_py.study.point import Notes, at_level, records_of
from astrasim_py.study.store import StoredPoint

#: What is drawn of a single point.
_OF_A_POINT = ({"kind": "links"}, {"kind": "gantt"}, {"kind": "breakdown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A stored point and why it took so long."""

    point: StoredPoint
    explanation: Explanation
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Figures that were written."""

    figures: tuple[Path, ...]
    notes: tuple[str, ...]


def find(path: str | os.PathLike) -> tuple[Path, tuple[StoredPoint, ...]]:
    """The scenario's folder and the points that a path names: one for a point's folder, else all of a scenario's.

    Raises
    ------
    UsageError
        No whole point is there.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(str(path), "is not a folder", "name a folder of results, e.g. results/ring_vs_torus")
    one = store.read_point(folder, contents=True)
    if one is not None:
        return folder.parent, (one,)
    if (folder / store.MANIFEST).exists():
        raise UsageError(str(path), "is damaged: its files are not what its manifest says", "run with --fresh")
    points = store.newest(store.read_points(folder))
    if not points:
        inside = [name for name in sorted(os.listdir(folder)) if (folder / name / STUDY).is_file()]
        hint = f"name one of {', '.join(inside[:5])} in it" if inside else "run a scenario first"
        raise UsageError(str(path), "holds no finished point", hint)
    order = {name: i for i, name in enumerate(read_study(folder).get("points") or [])}
    if any(point.folder.name in order for point in points):
        points = tuple(point for point in points if point.folder.name in order)
    return folder, tuple(sorted(points, key=lambda p: order.get(p.folder.name, 0)))


def explain_folder(path: str | os.PathLike) -> Explained:
    """Explain the point in a folder; one recorded below level ``messages`` is run again, and the notes say so.

    Raises
    ------
    UsageError
        There is no point, or more than one.
    """
    _, points = find(path)
    if len(points) > 1:
        names = ", ".join(point.folder.name for point in points[:3])
        raise UsageError(str(path), f"holds {len(points)} points", f"name one of its folders: {names} …")
    notes = Notes()
    point = at_level(points[0], "messages", notes)
    longer = {int(i): int(ps) for i, ps in (point.summary.get("hop_latency_ps") or {}).items()}
    explanation = explain(records_of(point), point.table("edge"), longer)
    if point.manifest["status"] != "done":
        notes.add(f"this point is {point.manifest['status']}: {point.summary.get('cause', '')}")
    return Explained(point=point, explanation=explanation, notes=tuple(notes.lines))


def plot_folder(path: str | os.PathLike) -> Drawn:
    """Draw the figures of a scenario's folder again, or those of one point.

    Of a scenario: what its file asked for when it was last run. Of a point: its links, a Gantt chart, and the
    parts of its time, into ``figures/<name of the point>-…``.

    Raises
    ------
    UsageError
        There is no point, or nothing to draw.
    """
    folder, points = find(path)
    study, notes = read_study(folder), Notes()
    title = str(study.get("title") or study.get("scenario") or folder.name)
    if points[0].folder == Path(path):
        title = f"{title}: {points[0].manifest['point']}"
        specs = [{**spec, "name": f"{points[0].folder.name}-{spec['kind']}"} for spec in _OF_A_POINT]
    else:
        specs = [spec for spec in study.get("plots") or [] if isinstance(spec, dict)]
        if not specs:
            raise UsageError(str(path), "its scenario asks for no figures", "add plots: to it, or name one point")
    levels = {point.folder.name: "summary" for point in points}
    for spec in specs:
        for point in panel_points(spec, points) if spec.get("kind") in plots.NEEDS else ():
            known = levels[point.folder.name]
            levels[point.folder.name] = max(known, plots.NEEDS[spec["kind"]], key=LEVELS.index)
    ready = [at_level(point, levels[point.folder.name], notes) for point in points]
    return Drawn(figures=tuple(draw_figures(folder, title, specs, ready)), notes=tuple(notes.lines))
