"""Figure of two quantities of points, and of those that no other beats in both."""

from collections.abc import Mapping
from typing import Any

from astrasim_py.report import figure_style as style
from astrasim_py.report import ticks
from astrasim_py.report.arranged_rows import Grid, XAxis, name_of
from astrasim_py.report.figure_style import GREY, SMALL, Drawn, Sheet
from astrasim_py.report.quantities import Quantity, Scale, quantity_of, scale_of
from astrasim_py.scenario.plot_spec import COLUMNS

#: Most points of a front with their names.
_NAMED = 8
_FRONT: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "marker": "o", "markersize": 8.5, "markerfacecolor": "none"}


def draw_pareto(sheet: Sheet, grid: Grid) -> Drawn:
    """`grid`: its x is the point itself; the spec's ``x`` is a column of numbers, or a swept key."""
    from matplotlib.lines import Line2D

    across, axis = _across(grid)
    up = quantity_of(grid.spec.get("y") or "time_ns")
    pairs = {key: (across.value(row), up.value(row)) for key, row in grid.points.items()}
    lacking = next((q for i, q in enumerate((across, up)) if all(pair[i] is None for pair in pairs.values())), up)
    points = {key: (x, y) for key, (x, y) in pairs.items() if x is not None and y is not None}
    figure, panels = sheet.panels(len(grid.facets), height=2.4, sharex=True, sharey=True)
    if not points:
        return style.nothing(panels, grid, lacking.empty)
    columns = list(zip(*points.values(), strict=True))
    right = scale_of(across, columns[0], "linear" if axis else None, grid.place, 8.0)
    above = scale_of(up, columns[1], grid.spec.get("scale"), grid.place, 8.0)
    handles: dict[tuple[str, ...], Line2D] = {}
    rows, extra, crowded = [], 0.0, len(grid.series) > style.MOST_ENTRIES
    for facet, axes in zip(grid.facets, panels, strict=False):
        panel_points = {key: (a / right.factor, b / above.factor) for key, (a, b) in points.items() if key[0] == facet}
        best = _front(panel_points, across.gain, up.gain)
        for number, series in enumerate(grid.series):
            places = [place for key, place in panel_points.items() if key[1] == series]
            if places:
                look = {"color": GREY, "marker": "."} if crowded else style.pen(number, 1)
                line = axes.plot(*zip(*places, strict=True), **{**look, "linestyle": "", "markersize": 4.0})[0]
                handles.setdefault(series, line)
        if best:
            axes.plot(*zip(*(panel_points[key] for key in best), strict=True), zorder=2.5, **_FRONT)
        for key in panel_points:
            cells = {across.column: across.cell(points[key][0]), up.column: up.cell(points[key][1])}
            rows.append({**grid.cells(*key), **cells, "front": key in best})
        if axis is not None:
            extra = max(extra, axis.apply(axes))
        else:
            _apply(axes, "x", right)
        _apply(axes, "y", above)
        axes.margins(0.12)
        grid.title(axes, facet)
        style.label(axes, right.label, above.label)
        hidden = {grid.spec.get("x"), grid.facet_key, *(() if crowded else grid.series_keys), *_alike(grid)}
        for key in best if len(best) <= _NAMED else ():
            _name(axes, grid.points[key].sweep, hidden, panel_points[key])
    figure.set_figheight(figure.get_figheight() + extra)
    entries = [(handle, grid.name(series)) for series, handle in handles.items() if series and not crowded]
    entries.append((Line2D([], [], **_FRONT), "none is better in both"))
    sheet.explain(panels, entries, grid.legend_title())
    return Drawn(panels, rows, grid.notes)


def _across(grid: Grid) -> tuple[Quantity, XAxis | None]:
    """What the axis of x shows, and its ticks if it is a swept key."""
    key = grid.spec.get("x") or "npus"
    if key in COLUMNS and not any(key in row.sweep for row in grid.points.values()):
        return quantity_of(key), None
    axis = XAxis([text for row in grid.points.values() if (text := row.text_of(key)) is not None])
    empty = f"no {key}: these points have none"
    value = lambda row: axis.value.get(row.text_of(key) or "")  # noqa: E731
    return Quantity(column=key, label=name_of(key), value=value, empty=empty), axis


def _apply(axes, name: str, scale: Scale) -> None:
    getattr(axes, f"set_{name}scale")("log" if scale.log else "linear")
    ticks.number_axis(getattr(axes, f"{name}axis"), scale.log)


def _front(places: Mapping, gain_x: bool, gain_y: bool) -> list:
    """Keys of the places that no other beats in one number without losing in the other, by x."""
    signs = -1 if gain_x else 1, -1 if gain_y else 1
    cost = {key: (signs[0] * x, signs[1] * y) for key, (x, y) in places.items()}
    front: list[Any] = []
    least = float("inf")
    for key in sorted(cost, key=lambda key: cost[key]):
        if cost[key][1] < least or (front and cost[key] == cost[front[-1]]):
            front.append(key)
            least = cost[key][1]
    return front


def _alike(grid: Grid) -> list[str]:
    """Swept keys of which the points have one value."""
    sweeps = [row.sweep for row in grid.points.values()]
    return [key for key in sweeps[0] if len({sweep.get(key) for sweep in sweeps}) == 1]


def _name(axes, sweep: Mapping[str, object], hidden: set, place: tuple[float, float]) -> None:
    """Write beside a point of the front the swept values that are shown nowhere else."""
    text = style.clean(", ".join(str(value) for key, value in sweep.items() if key not in hidden), 28)
    axes.annotate(text, place, (5, 4), textcoords="offset points", fontsize=SMALL - 1, color=GREY)
