"""Draw the figures that a scenario asks for from its stored points."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from astrasim_py.core.choices import FLUID, LEVELS
from astrasim_py.core.errors import AstraError
from astrasim_py.core.exact_json import json_bytes, json_text
from astrasim_py.core.files import remove_files, write_file
from astrasim_py.results import stored_points
from astrasim_py.results.model import Row
from astrasim_py.results.repeats import first_seed
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.results.values import ps_of
from astrasim_py.scenario.load import read_plain
from astrasim_py.scenario.plot_spec import level_of, of_records

if TYPE_CHECKING:
    import numpy as np

    from astrasim_py.report.arranged_rows import FigureRow
    from astrasim_py.report.neighbours import Part
    from astrasim_py.report.record_plots import Panel

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
        for name in figure_names(specs_in(before)):
            remove_files(folder / FIGURES, f"{glob.escape(name)}.*")
    return write_file(folder / STUDY, json_bytes(study), make_folder=True)


def specs_in(study: Mapping) -> list[dict]:
    """What a study draws; nothing where that is damaged."""
    try:
        return [spec.model_dump(exclude_none=True) for spec in read_plain("plots", study.get("plots") or ())]
    except (ValidationError, AstraError):
        return []


def figure_names(specs: Iterable[Mapping]) -> list[str]:
    """Names of figures, without endings: each its own, or its kind with a number from the second on."""
    names: list[str] = []
    counts: Counter[str] = Counter()
    for spec in specs:
        name = str(spec.get("name") or spec["kind"])
        counts[name] += 1
        names.append(f"{name}-{counts[name]}" if counts[name] > 1 else name)
    return names


def recorded_points(spec: Mapping, points: Sequence[StoredPoint]) -> list[StoredPoint]:
    """The points whose records a figure shows."""
    if level_of(spec) == "summary":
        return []
    chosen = recorded(spec, [point.row if point.manifest.status == "done" else None for point in points])
    return [points[number] for number in chosen]


def recorded(spec: Mapping, rows: Sequence[Row | None]) -> list[int]:
    """Numbers of the points whose records a figure shows: a panel each, of the first ones; or of all in one figure."""
    from astrasim_py.report.record_plots import PANELS

    shown = _meant(spec, rows)
    return shown[:PANELS] if of_records(spec) else shown


def _meant(spec: Mapping, rows: Sequence[Row | None]) -> list[int]:
    """Numbers of the points that a figure is of, whether there is room for all of them or not. Records of repeated
    points are those of the first seed, where it is among them.
    """
    chosen = [(number, row) for number, row in enumerate(rows) if row and row.meets(spec.get("where") or {})]
    first = [number for number, row in chosen if first_seed(row)]
    return first if first and of_records(spec) else [number for number, _ in chosen]


#: Tables that a figure of records shows.
_TABLES = {
    "links": ("link", "vertex", "edge"),
    "gantt": ("node", "collective"),
    "utilisation": ("hop", "message", "edge"),
}


def panel(point: StoredPoint, kind: str, keys: Collection[str] | None = None) -> Panel:
    """What a figure shows of a point. `keys`: swept keys in its title, all by default."""
    sweep = {key: value for key, value in point.row.sweep.items() if keys is None or key in keys}
    from astrasim_py.report.arranged_rows import name_of
    from astrasim_py.report.record_plots import Panel

    # A point without swept values is all of its scenario, whose title the figure has.
    title = ", ".join(f"{name_of(key)} = {value}" for key, value in sweep.items())
    if not title and point.row.sweep:
        title = point.manifest.point
    parts = parts_of(point)
    return Panel(
        title=title,
        makespan=point.summary.makespan_ps,
        tables=point.tables(*_TABLES[kind]),
        npu_of=point.summary.npu_of,
        switches=point.summary.switches,
        cut=point.summary.cut_links,
        failed=sorted({link for event in point.summary.link_events for link in event.failed}),
        jobs={rank: part.job for part in parts for rank in part.ranks} if len(parts) > 1 else {},
        shares=point.row.network_model == FLUID,
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
    paths: list[Path] = []
    if specs:
        from astrasim_py.report import plots
    for number, (name, spec) in enumerate(zip(figure_names(specs), specs, strict=True)):
        files = plots.draw(spec, *drawn_of(spec, points), title=title, place=f"plots[{number}]")
        notes += [f"figure {name}: {note}" for note in (*_without_panel(spec, points), *files.notes)]
        for form, data in files.data.items():
            path = write_file(folder / FIGURES / f"{name}.{form}", data, make_folder=True)
            paths += [path] if form != "csv" else []
    return paths


def _without_panel(spec: Mapping, points: Sequence[StoredPoint]) -> list[str]:
    """What to say where a figure has more points than panels."""
    if not of_records(spec):
        return []
    from astrasim_py.report.record_plots import PANELS

    count = len(_meant(spec, [point.row if point.manifest.status == "done" else None for point in points]))
    return [f"the first {PANELS} of {count} points have a panel; choose with where:"] if count > PANELS else []


def drawn_of(spec: Mapping[str, Any], points: Sequence[StoredPoint]) -> tuple[list[FigureRow], list[Panel]]:
    """The rows and panels that a figure shows."""
    from astrasim_py.report.arranged_rows import FigureRow

    rows, panels, of = [], [], spec.get("of")
    if of:
        from astrasim_py.report.cdf_plot import TABLE_OF, samples
    for point in points:
        times: Sequence[int] | np.ndarray = ()
        if of and f"{TABLE_OF.get(of)}.csv" in point.manifest.files:
            times = samples(of, point.table(TABLE_OF[of]))
        elif of == "jobs":
            times = [ps_of(job.time_ns) for job in point.summary.jobs if job.time_ns is not None]
        rows.append(FigureRow(**vars(point.row), breakdown=point.summary.breakdown, samples=times))
    if of_records(spec):
        need = LEVELS.index(level_of(spec))
        shown = [p for p in recorded_points(spec, points) if LEVELS.index(p.manifest.level) >= need]
        swept = {key for point in shown for key in point.row.sweep}
        differ = {key for key in swept if len({point.row.sweep.get(key) for point in shown}) > 1}
        panels = [panel(point, spec["kind"], differ if len(shown) > 1 else None) for point in shown]
    return _rows_by_job(spec, rows, points), panels


def _rows_by_job(spec: Mapping, rows: list[FigureRow], points: Sequence[StoredPoint]) -> list[FigureRow]:
    """The rows for a figure: of each job, where it is one by job."""
    swept = any("job" in row.sweep for row in rows)
    if swept or "job" not in (spec.get("x"), spec.get("series"), spec.get("facet"), *(spec.get("where") or ())):
        return rows
    return [row.of_job(job) for row, point in zip(rows, points, strict=True) for job in point.summary.jobs]


def parts_of(point: StoredPoint) -> list[Part]:
    """The jobs of a point."""
    if not point.summary.jobs:
        return []
    from astrasim_py.report.neighbours import Part

    parts, first = [], 0
    for job in point.summary.jobs:
        parts.append(Part(job.job, range(first, first := first + job.ranks), ps_of(job.arrival_ns)))
    return parts
