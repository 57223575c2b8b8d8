"""Figures of rows and records; matplotlib is imported when one is drawn, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astrasim_py.core.errors import ScenarioError
from astrasim_py.report.curve_plots import OF_ROWS
from astrasim_py.report.figure_style import FORMATS, clean, our_style, render
from astrasim_py.report.plot_grid import Grid, select
from astrasim_py.report.record_plots import Panel, draw_gantt, draw_links

KINDS = ("slowdown", "time", "busbw", "breakdown", "links", "gantt")
#: Record level that a figure needs beyond the rows.
NEEDS = {"links": "links", "gantt": "nodes"}


def draw(
    spec: Mapping, rows: Sequence[Mapping], *, panels: Sequence[Panel] = (), title: str = "", place: str = "plots"
) -> dict[str, bytes]:
    """One figure, as SVG and PNG.

    `spec`: an entry of a scenario's ``plots``. `rows`: rows of points in the order of the sweep; unfinished points are
    left out. `panels`: for ``links`` and ``gantt``. Returns ``svg`` and ``png``; their metadata name the engine. Raises
    ScenarioError: a key that no row has, or a baseline that is not a value of the series.
    """
    kind = spec["kind"]
    if kind not in KINDS:
        raise ScenarioError(f"{place}.kind", f'"{kind}" is unknown', f"write one of {', '.join(KINDS)}")
    rows = [row for row in select(rows, spec.get("where") or {}) if row["status"] == "done"]
    heading = clean(spec.get("title") or title)
    with our_style():
        if kind in NEEDS:
            figure = {"links": draw_links, "gantt": draw_gantt}[kind](panels, heading)
        else:
            figure = OF_ROWS[kind](Grid(spec, rows, place), heading)
        ran = sorted({str(row["engine"]) for row in rows if row.get("engine")})
        about = {"Description": f"engine: {', '.join(ran)}"} if ran else {}
        return {form: render(figure, form, about) for form in FORMATS}
