"""Figures: which function draws each kind, and the files of one.

matplotlib, and what draws a kind, is imported when one is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from astrasim_py.core.by_need import load
from astrasim_py.core.choices import NO_TITLE
from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.records import Table
from astrasim_py.report import figure_style as style
from astrasim_py.report.arranged_rows import FigureRow, Grid
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.record_plots import Panel
from astrasim_py.results.csv_io import csv_chunks, csv_rows
from astrasim_py.results.repeats import medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Kinds for which every point is one, wherever it is in the sweep.
_BY_POINT = ("pareto", "cdf")
#: Figures of rows: what draws them, ``(sheet, grid) -> Drawn``, as ``module:name``.
_OF_ROWS: dict[str, str] = {
    "slowdown": "astrasim_py.report.curves:draw_slowdown",
    "time": "astrasim_py.report.curves:draw_time",
    "busbw": "astrasim_py.report.curves:draw_busbw",
    "efficiency": "astrasim_py.report.curves:draw_efficiency",
    "speedup": "astrasim_py.report.curves:draw_speedup",
    "breakdown": "astrasim_py.report.breakdown_plot:draw_breakdown",
    "stacked": "astrasim_py.report.stacked_plot:draw_stacked",
    "heatmap": "astrasim_py.report.heatmap_plot:draw_heatmap",
    "pareto": "astrasim_py.report.pareto_plot:draw_pareto",
    "cdf": "astrasim_py.report.cdf_plot:draw_cdf",
}
#: Figures of the records of some points: ``(sheet, spec, panels) -> Drawn``.
_OF_RECORDS: dict[str, str] = {
    "links": "astrasim_py.report.links_plot:draw_links",
    "gantt": "astrasim_py.report.gantt_plot:draw_gantt",
    "utilisation": "astrasim_py.report.utilisation_plot:draw_utilisation",
}
KINDS = (*_OF_ROWS, *_OF_RECORDS)


class Files(NamedTuple):
    """The files of a figure, by their endings, and what is missing in it."""

    data: Mapping[str, Iterable[bytes]]
    notes: Sequence[str]


def draw(
    spec: Mapping, rows: Sequence[FigureRow], panels: Sequence[Panel] = (), *, title: str = "", place: str = "plots"
) -> Files:
    """One figure in the forms it asks for, and the data it shows as CSV. `spec`: an entry of a scenario's ``plots``.
    `rows`: rows of points in the order of the sweep; unfinished points are left out. `panels`: for figures of records.
    The metadata of pictures name the engine. Raises ScenarioError: a key that no row has, or a baseline that is not a
    value of the series.
    """
    with style.our_style():
        drawing = figure_of(spec, rows, panels=panels, title=title, place=place)
        ran = sorted({row.engine for row in _finished(spec, rows) if row.engine})
        data, figure = {}, drawing.axes[0].figure
        for form in spec.get("format") or style.FORMATS:
            about = {"Subject" if form == "pdf" else "Description": f"engine: {', '.join(ran)}"} if ran else {}
            data[form] = (style.render(figure, form, about),)
        return Files({**data, "csv": csv_of(drawing.table)}, drawing.notes)


def csv_of(table: Sequence[Mapping[str, object]] | Mapping) -> Iterable[bytes]:
    """The data of a figure as CSV; rows may have different keys."""
    if isinstance(table, Table):
        return csv_chunks(table)
    return (csv_rows(list(dict.fromkeys(key for row in table for key in row)), table),)


def _finished(spec: Mapping, rows: Sequence[FigureRow]) -> list[FigureRow]:
    return [row for row in rows if row.status == "done" and row.meets(spec.get("where") or {})]


def figure_of(
    spec: Mapping, rows: Sequence[FigureRow], *, panels: Sequence[Panel] = (), title: str = "", place: str, on=None
) -> Drawn:
    """One figure of rows or panels; `on`: see `figure_style.Sheet`."""
    kind = spec["kind"]
    if kind not in KINDS:
        raise ScenarioError(f"{place}.kind", f'"{kind}" is unknown', f"write one of {', '.join(KINDS)}")
    heading = title if spec.get("title") is None else spec["title"]
    bare = heading.lower() in NO_TITLE
    sheet = Sheet(heading="" if bare else heading, width=spec.get("width"), legend=spec.get("legend"), on=on)
    if kind in _OF_RECORDS:
        if bare and len(panels) == 1:
            panels = [replace(panels[0], title="")]
        drawing = load(_OF_RECORDS[kind])(sheet, spec, panels)
    else:
        grid = Grid(spec, medians(_finished(spec, rows)), place, by_point=kind in _BY_POINT)
        drawing = load(_OF_ROWS[kind])(sheet, grid)
    wording = spec.get("xlabel"), spec.get("ylabel")
    for axes in drawing.axes if any(wording) else ():
        labels = axes.get_xlabel(), axes.get_ylabel()
        x, y = (label if label and text else text for label, text in zip(wording, labels, strict=True))
        style.label(axes, x, y, sheet.legend_height(axes.figure))
    return drawing


def axes_of(
    spec: Mapping, rows: Sequence[FigureRow] = (), panels: Sequence[Panel] = (), ax: Axes | None = None
) -> Axes | np.ndarray:
    """One figure with pyplot, or in `ax`; returns its Axes, or an array of them where it has several panels."""
    from matplotlib import pyplot, rc_context
    from matplotlib.axes import Axes

    if ax is not None and not isinstance(ax, Axes):
        raise UsageError("ax", f"{type(ax).__name__} is not matplotlib Axes", "write e.g. ax=plt.subplots()[1]")
    with rc_context({"text.parse_math": False}) if ax is not None else style.our_style():
        drawing = figure_of(spec, rows, panels=panels, place="plot", on=ax or pyplot.figure)
        if ax is None:
            drawing.axes[0].figure.draw_without_rendering()  # ticks are made in this style
    return drawing.axes[0] if len(drawing.axes) == 1 else np.array(drawing.axes)
