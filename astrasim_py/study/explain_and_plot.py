"""Look at stored results again: find points, draw figures. A point recorded too coarsely is run again."""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from astrasim_py.core.choices import AUTO, FOLDED, LEVELS
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.files import remove_files, write_file
from astrasim_py.core.records import Outcome, Records
from astrasim_py.report.arranged_rows import name_of, select
from astrasim_py.report.jobs import JOB_KEYS
from astrasim_py.report.record_plots import PANELS, Panel
from astrasim_py.report.repeats import first_seed
from astrasim_py.report.tables import json_bytes, json_text, ps_of
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.load import read_plain
from astrasim_py.scenario.plot_spec import level_of, of_records
from astrasim_py.study import stored_points
from astrasim_py.study.store import RunOptions
from astrasim_py.study.stored_points import StoredPoint
from astrasim_py.study.summary import FIRST_LEVEL
from astrasim_py.study.task import identity_of, make_task, run_task
from astrasim_py.system.machine_models import Limits

if TYPE_CHECKING:
    from astrasim_py.report.neighbours import Part

STUDY = "study.json"
FIGURES = "figures"


def write_study(
    folder: Path, scenario: str, title: str, specs: Sequence[Mapping], points: Sequence[str | None]
) -> Path:
    """Note beside the points what the scenario draws of them, and their digests in its order; figures of other points
    go.
    """
    study = {"scenario": scenario, "title": title, "plots": list(specs), "points": list(points)}
    before = stored_points.read_object(folder / STUDY)
    if before and before != json.loads(json_text(study)):
        for name in figure_names(_specs_in(before)):
            remove_files(folder / FIGURES, f"{glob.escape(name)}.*")
    return write_file(folder / STUDY, json_bytes(study), make_folder=True)


def _specs_in(study: Mapping) -> list[dict]:
    """What a study draws; nothing where that is damaged."""
    try:
        return [spec.model_dump(exclude_none=True) for spec in read_plain("plots", study.get("plots") or ())]
    except (ValidationError, AstraError):
        return []


def figure_names(specs: Iterable[Mapping]) -> list[str]:
    """Names of figures, without endings: each its own, or its kind with a number from the second on."""
    names, taken = [], Counter()
    for spec in specs:
        name = str(spec.get("name") or spec["kind"])
        taken[name] += 1
        names.append(f"{name}-{taken[name]}" if taken[name] > 1 else name)
    return names


def _recorded(spec: Mapping, points: Sequence[StoredPoint]) -> list[StoredPoint]:
    """The points whose records a figure shows."""
    if level_of(spec) == "summary":
        return []
    chosen = recorded(spec, [point.row if point.manifest["status"] == "done" else None for point in points])
    return [points[number] for number in chosen]


def recorded(spec: Mapping, rows: Sequence[Mapping | None]) -> list[int]:
    """Numbers of the points whose records a figure shows: a panel each, of the first ones; or of all in one figure."""
    shown = _meant(spec, rows)
    return shown[:PANELS] if of_records(spec) else shown


def _meant(spec: Mapping, rows: Sequence[Mapping | None]) -> list[int]:
    """Numbers of the points that a figure is of, whether there is room for all of them or not."""
    found = [number for number, row in enumerate(rows) if row and select([row], spec.get("where") or {})]
    return [number for number in found if first_seed(rows[number])] if of_records(spec) else found


#: Tables that a figure of records shows.
_TABLES = {
    "links": ("link", "vertex", "edge"),
    "gantt": ("node", "collective"),
    "utilisation": ("hop", "message", "edge"),
}


def panel(point: StoredPoint, kind: str, keys: Collection[str] | None = None) -> Panel:
    """What a figure shows of a point. `keys`: swept keys in its title, all by default."""
    sweep = {key: value for key, value in point.row["sweep"].items() if keys is None or key in keys}
    title = ", ".join(f"{name_of(key)} = {value}" for key, value in sweep.items()) or point.manifest["point"]
    parts = parts_of(point)
    return Panel(
        title=title,
        makespan=int(point.summary["makespan_ps"]),
        tables=point.tables(*_TABLES[kind]),
        npu_of=point.summary.get("npu_of", ()),
        switches=point.summary.get("switches", ()),
        failed=sorted({link for event in point.summary.get("link_events", ()) for link in event["failed"]}),
        jobs={rank: part.job for part in parts for rank in part.ranks} if len(parts) > 1 else {},
        shares=point.row["network_model"] == "fluid",
    )


def draw_figures(
    folder: Path, title: str, specs: Sequence[Mapping], points: Sequence[StoredPoint], notes: list[str]
) -> list[Path]:
    """Draw every figure of a scenario in the forms it asks for, and write the data of each beside it as CSV; returns
    the pictures. `folder`: of the scenario; figures go to ``figures/`` in it. `title`: for figures without one.
    `specs`: as in the scenario's ``plots``. `points`: in the order of the sweep. `notes`: gets what is missing in a
    figure.
    Raises OutputError: a figure cannot be written. Raises ScenarioError: a figure asks for something that the points do
    not have.
    """
    written: list[Path] = []
    if specs:
        from astrasim_py.report import plots
    for number, (name, spec) in enumerate(zip(figure_names(specs), specs, strict=True)):
        files = plots.draw(spec, *_drawn_of(spec, points), title=title, place=f"plots[{number}]")
        notes += [f"figure {name}: {note}" for note in (*_without_panel(spec, points), *files.notes)]
        for form, data in files.data.items():
            path = write_file(folder / FIGURES / f"{name}.{form}", data, make_folder=True)
            written += [path] if form != "csv" else []
    return written


def _without_panel(spec: Mapping, points: Sequence[StoredPoint]) -> list[str]:
    """What to say where a figure has more points than panels."""
    if not of_records(spec):
        return []
    count = len(_meant(spec, [point.row if point.manifest["status"] == "done" else None for point in points]))
    return [f"the first {PANELS} of {count} points have a panel; choose with where:"] if count > PANELS else []


def _drawn_of(spec: Mapping, points: Sequence[StoredPoint]) -> tuple[list[Mapping], list[Panel]]:
    """The rows and panels that a figure shows."""
    rows, panels, of = [], [], spec.get("of")
    if of:
        from astrasim_py.report.cdf_plot import TABLE_OF, samples
    for point in points:
        parts = point.summary.get("breakdown") or {}
        rows.append({**point.row, "compute_ns": parts.get("compute_ns"), "other_ns": parts.get("other_ns")})
        if of and f"{TABLE_OF.get(of)}.csv" in point.manifest["files"]:
            rows[-1]["samples"] = samples(of, point.table(TABLE_OF[of]))
        elif of == "jobs":
            rows[-1]["samples"] = [ps_of(job["time_ns"]) for job in point.summary.get("jobs", ())]
    if of_records(spec):
        need = LEVELS.index(level_of(spec))
        shown = [p for p in _recorded(spec, points) if LEVELS.index(p.manifest["level"]) >= need]
        swept = {key for point in shown for key in point.row["sweep"]}
        differ = {key for key in swept if len({str(point.row["sweep"].get(key)) for point in shown}) > 1}
        panels = [panel(point, spec["kind"], differ if len(shown) > 1 else None) for point in shown]
    return _rows_by_job(spec, rows, points), panels


def plot_axes(path: str | os.PathLike, spec: Mapping, ax=None):
    """Draw a figure of stored points with matplotlib and return its Axes; see `plots.axes_of`."""
    from astrasim_py.report import plots

    _, points = find(path)
    shown = {point.folder: at_level(point, level_of(spec), []) for point in _recorded(spec, points)}
    points = tuple(shown.get(point.folder, point) for point in points)
    return plots.axes_of(spec, *_drawn_of(spec, points), ax)


def _rows_by_job(spec: Mapping, rows: Sequence[Mapping], points: Sequence[StoredPoint]) -> list[Mapping]:
    """The rows for a figure: of each job, where it is one by job."""
    swept = any("job" in row["sweep"] for row in rows)
    if swept or "job" not in (spec.get("x"), spec.get("series"), spec.get("facet"), *(spec.get("where") or ())):
        return list(rows)
    keys = ("job", "time_ns", "slowdown", *(key for key in JOB_KEYS if key.startswith("iteration_")))
    return [
        {**row, "bound_ns": None, **{key: job[key] for key in keys}}
        for row, point in zip(rows, points, strict=True)
        for job in point.summary.get("jobs", ())
    ]


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
    one = stored_points.read_point(folder, contents=True)
    if one is not None:
        return Path(os.path.normpath(folder / ".." / "..")), (one,)
    if folder.name == stored_points.POINTS and os.path.isfile(folder.parent / STUDY):
        folder = folder.parent
    if os.path.exists(folder / stored_points.MANIFEST):
        if stored_points.read_object(folder / stored_points.MANIFEST).get("format") != stored_points.FORMAT:
            raise UsageError(str(path), "is of another version of astrasim_py", "run the scenario again")
        raise UsageError(str(path), "is damaged: its files are not what its manifest says", "run with --fresh")
    every = stored_points.read_points(folder)
    if not every:
        if earlier := stored_points.earlier_layout(folder):
            raise UsageError(str(path), f"holds {earlier}", "run the scenario again")
        inside = [name for name in stored_points.names_in(folder) if os.path.isfile(folder / name / STUDY)]
        hint = f"name one of {', '.join(inside[:5])} in it" if inside else "run a scenario first"
        raise UsageError(str(path), "holds no finished point", hint)
    return folder, _current(folder, every)


def _current(folder: Path, points: Sequence[StoredPoint]) -> tuple[StoredPoint, ...]:
    """Points of a scenario as it ran last, in its order; where that is unknown, the newest of each name."""
    known = stored_points.by_digest(points)
    said = stored_points.read_object(folder / STUDY).get("points")
    digests = said if isinstance(said, list) else ()
    ours = [known[digest] for digest in digests if isinstance(digest, str) and digest in known]
    return tuple(ours or stored_points.newest(points))


def stored_runs(folder: Path) -> list[dict]:
    """Every point in the folder of a scenario, the one computed last at the end. ``current``: it is one of the scenario
    as it ran last.
    """
    points = sorted(stored_points.read_points(folder), key=stored_points.finished)
    current = {point.folder.name for point in _current(folder, points)}
    return [
        {
            **point.row,
            "level": point.manifest["level"],
            "finished": stored_points.finished(point)[0],
            "current": point.folder.name in current,
            "folder": str(point.folder),
        }
        for point in points
    ]


def parts_of(point: StoredPoint) -> list[Part]:
    """The jobs of a point."""
    rows = point.summary.get("jobs", ())
    if not rows:
        return []
    from astrasim_py.report.neighbours import Part

    parts, first = [], 0
    for row in rows:
        parts.append(Part(row["job"], range(first, first := first + row["ranks"]), ps_of(row["arrival_ns"])))
    return parts


def plot_folder(path: str | os.PathLike) -> Drawn:
    """Draw the figures of a scenario's folder again; of one point its links, a Gantt chart and the parts of its time.
    Raises UsageError: there is no point, or nothing to draw.
    """
    folder, points = find(path)
    study = stored_points.read_object(folder / STUDY)
    notes: list[str] = []
    title = str(study.get("title") or study.get("scenario") or folder.name)
    if os.path.exists(Path(path) / stored_points.MANIFEST):
        title = f"{title}: {points[0].manifest['point']}"
        kinds = [*_OF_A_POINT, *(["utilisation"] if points[0].manifest["level"] == "messages" else [])]
        specs = [{"kind": kind, "name": f"{points[0].folder.name}-{kind}"} for kind in kinds]
    else:
        specs = _specs_in(study)
        if not specs:
            raise UsageError(str(path), "its scenario asks for no figures", "add plots: to it, or name one point")
    levels = {point.folder.name: "summary" for point in points}
    for spec in specs:
        for point in _recorded(spec, points):
            known = levels[point.folder.name]
            levels[point.folder.name] = max(known, level_of(spec), key=LEVELS.index)
    ready = [at_level(point, levels[point.folder.name], notes) for point in points]
    figures = draw_figures(folder, title, specs, ready, notes)
    return Drawn(figures=tuple(figures), notes=tuple(dict.fromkeys(notes)))


def records_of(stored: StoredPoint) -> Records:
    """The records of a stored point; tables above its level are empty, and its outcome has only status and cause."""
    level = LEVELS.index(stored.manifest["level"])
    finer = [name for name, first in FIRST_LEVEL.items() if LEVELS.index(first) <= level]
    names = ("collective", "link", *finer)
    tables = stored.tables("rank", *names)
    return Records(
        level=stored.manifest["level"],
        makespan=int(stored.summary["makespan_ps"]),
        **{name: tables["rank"][name] for name in ("finish", "compute", "exposed_comm")},
        messages=stored.row["messages"],
        message_hops=stored.row["message_hops"],
        events=int(stored.summary["events"]),
        outcome=Outcome(status=stored.manifest["status"], cause=stored.summary.get("cause", "")),
        engine=stored.manifest.get("engine", ""),
        cpu_s=float(stored.volatile.get("cpu_s") or 0),
        **{name: tables[name] for name in names if name in tables},
    )


def at_level(stored: StoredPoint, level: str, notes: list[str]) -> StoredPoint:
    """The point with records of at least `level`: as it is, or run again (and the notes say so). Raises UsageError:
    what it was computed from has changed since. Raises AstraError: it cannot be run any more.
    """
    manifest = stored.manifest
    if LEVELS.index(manifest["level"]) >= LEVELS.index(level):
        return stored
    from astrasim_py.study import astra_sim_point

    name, ran = manifest["point"], manifest.get("engine") or AUTO
    options = RunOptions(
        level=level,
        # A folded run is of single ranks no more, and all of them may be too many for the engine that ran one.
        engine=AUTO if ran.endswith(FOLDED) else ran,
        limits=Limits(**manifest["limits"]),
    )
    again = astra_sim_point.run_again if astra_sim_point.is_ours(manifest) else _run_again
    found = again(stored, options)
    if found is None:
        verb = "run astra-sim again" if astra_sim_point.is_ours(manifest) else "run the scenario again"
        raise UsageError(
            str(stored.folder),
            f'holds records of level "{manifest["level"]}", level "{level}" is needed, and what it was computed from '
            "has changed since",
            f"{verb} with --record {level}",
        )
    whole = ", all NPUs of it" if ran.endswith(FOLDED) else ""
    notes.append(f"{name}: ran it again{whole} to record {level}")
    return found


def point_of(stored: StoredPoint) -> Point:
    """The point of a scenario that was stored. Raises UsageError: by another version, or edited since."""
    manifest = stored.manifest
    point = Point(
        scenario=manifest["scenario"],
        index=0,
        name=manifest["point"],
        values=dict(manifest["sweep"]),
        config=json.loads(json_text(manifest["resolved"])),
        folder=str(stored.volatile.get("source", "")),
        allow_outside=bool(stored.volatile.get("allow_outside")),
        allow_code=bool(stored.volatile.get("allow_code")),
        repeat=int(manifest.get("repeat", 1)),
    )
    if identity_of(point, manifest["inputs"]) != manifest["digest"]:
        raise UsageError(
            str(stored.folder), "is of another version of astrasim_py, or was edited", "run the scenario again"
        )
    return point


def _run_again(stored: StoredPoint, options: RunOptions) -> StoredPoint | None:
    """Run a point of a scenario again; None where what it was computed from has changed since."""
    point = point_of(stored)
    task = make_task(point, stored.folder, options)
    if task.identity != stored.manifest["digest"]:
        return None
    result = run_task(task)
    again = stored_points.read_point(task.folder)
    if again is None or (not result.stored and result.lines):
        raise AstraError(str(stored.folder), "; ".join(result.lines) or "cannot be run again")
    return again
