"""Figure of cumulative distributions: the share of points, ranks, messages … that take at most a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from astrasim_py.report import figure_style as style
from astrasim_py.report import ticks
from astrasim_py.report.arranged_rows import FigureRow, Grid, runs_of
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.quantities import Quantity, quantity_of, scale_of

#: Most steps of a curve; of more values evenly chosen ones are drawn.
_STEPS = 2000
_LABELS = {
    "jobs": "time of a job",
    "ranks": "time until a rank is done",
    "collectives": "time of a collective",
    "messages": "time of a message",
}
#: Tables of records that times are taken from.
TABLE_OF = {"ranks": "rank", "collectives": "collective", "messages": "message"}


def samples(of: str, table: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64[n], ps: times of what is done. Messages: from being posted to delivered. Collectives: from the first start
    to the last end. `table`: the records named in `TABLE_OF`.
    """
    if of == "ranks":
        return table["finish"]
    start, end = (table["posted"], table["delivered"]) if of == "messages" else (table["start"], table["end"])
    return (end - start)[(start >= 0) & (end >= start)]


def draw_cdf(sheet: Sheet, grid: Grid) -> Drawn:
    """`grid`: its x is the point itself; rows have the times of what is asked for in `samples`."""
    of = grid.spec.get("of") or "points"
    quantity = quantity_of(grid.spec.get("y") or "time_ns")
    if of != "points":
        quantity = Quantity(column="time_ns", label=_LABELS[of], value=lambda _: None, time=True, empty=f"no {of}")
    curves: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}
    for facet in grid.facets:
        for series in grid.series:
            rows = [row for (f, s, _), row in grid.points.items() if (f, s) == (facet, series)]
            pooled = np.concatenate([_of_row(row, of, quantity) for row in rows] or [np.empty(0)])
            if len(pooled):
                values, counts = np.unique(pooled, return_counts=True)
                curves[facet, series] = values, 100 * np.cumsum(counts) / len(pooled)
    _, panels = sheet.panels(len(grid.facets), sharex=True, sharey=True)
    if not curves:
        return style.nothing(panels, grid, quantity.empty)
    ends = [float(end) for values, _ in curves.values() for end in (values[0], values[-1])]
    scale = scale_of(quantity, ends, grid.spec.get("scale"), grid.place, 30.0)
    handles: dict[tuple[str, ...], Any] = {}
    table = []
    for (facet, series), (values, share) in curves.items():
        axes, number = panels[grid.facets.index(facet)], grid.series.index(series)
        chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _STEPS)).round().astype(int))
        values, share = values[chosen], share[chosen]
        x, y = np.append(values[0], values) / scale.factor, np.append(0, share)
        look = {**style.pen(number, len(grid.series)), "marker": "o" if len(values) == 1 else "", "markevery": [-1]}
        (line,) = axes.step(x, y, where="post", **look)
        handles.setdefault(series, line)
        cells = {key: cell for key, cell in grid.cells(facet, series, "").items() if key != "point"}
        table += [
            {**cells, quantity.column: quantity.cell(float(value)), "share_percent": float(part)}
            for value, part in zip(values, share, strict=True)
        ]
    for facet, axes in zip(grid.facets, panels, strict=False):
        axes.set_xscale("log" if scale.log else "linear")
        ticks.number_axis(axes.xaxis, scale.log)
        axes.set_yticks([0, 25, 50, 75, 100])
        grid.title(axes, facet)
        style.label(axes, scale.label, f"share of {of} (%)")
    panels[0].set_ylim(0, 101)
    sheet.explain(panels, [(h, grid.name(s)) for s, h in handles.items() if s], grid.legend_title())
    return Drawn(panels, table, grid.notes)


def _of_row(row: FigureRow, of: str, quantity: Quantity) -> np.ndarray:
    """The values of a point, of all its runs with other seeds."""
    runs = runs_of(row)
    if of == "points":
        return np.array([value for run in runs if (value := quantity.value(run)) is not None], dtype=float)
    return np.concatenate([np.asarray(run.samples, dtype=float) for run in runs])
