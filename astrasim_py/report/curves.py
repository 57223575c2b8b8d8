"""Figures of a quantity over x: a line for each series, dots or bars where x has names; a panel for each facet."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astrasim_py.core.errors import ScenarioError
from astrasim_py.report import figure_style as style
from astrasim_py.report.arranged_rows import FigureRow, Grid, Value, name_of, numbers_of
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.quantities import Quantity, quantity_of, scale_of
from astrasim_py.report.ticks import number_axis, width_of

Ratio = Callable[[int, int], float]
_DASHED = (0, (4, 2.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How a quantity is drawn. `bound`: drawn dashed, under the name `bound_name`. `line`: a value with a line across.
    `below`: what values below that line are called. `ideal`: x → value of another dashed line, per panel and series.
    """

    bound: Quantity | None = None
    bound_name: str = "lower bound"
    line: float | None = None
    below: str = ""
    ideal: Mapping[str, float] | None = None
    bars: bool = True


def draw_time(sheet: Sheet, grid: Grid) -> Drawn:
    quantity = quantity_of(grid.spec.get("y") or "time_ns")
    of_time = quantity.column == "time_ns"
    if grid.spec.get("bound") and not of_time:
        raise ScenarioError(f"{grid.place}.bound", f"{quantity.column} has no bound", "drop bound, or drop y")
    return _draw(sheet, grid, quantity, _Look(bound=quantity_of("bound_ns") if of_time else None))


def draw_busbw(sheet: Sheet, grid: Grid) -> Drawn:
    quantity = quantity_of("busbw_GBps")

    def bound(row: FigureRow) -> float | None:
        rate, time, least = row.busbw_GBps, row.time_ns, row.bound_ns
        return float(rate * time / least) if rate and time and least else None

    bound_quantity = replace(quantity, column="busbw_bound_GBps", value=bound)
    return _draw(sheet, grid, quantity, _Look(bound=bound_quantity, bound_name="upper bound"))


def draw_efficiency(sheet: Sheet, grid: Grid) -> Drawn:
    return _draw(sheet, grid, quantity_of("efficiency"), _Look(line=1.0, bars=False))


def draw_slowdown(sheet: Sheet, grid: Grid) -> Drawn:
    baseline = grid.spec.get("baseline")
    if baseline is None and any(_slowdown(row) for row in grid.points.values()):
        label = "slowdown against the job alone"
        quantity = Quantity(column="slowdown", label=label, value=_slowdown, empty="no job has run alone")
        return _draw(sheet, grid, quantity, _Look(line=1.0, below="faster", bars=False))
    baseline = _baseline(grid, baseline)
    quantity = _ratio(grid, "slowdown", f"slowdown against {style.clean(baseline)}", lambda time, base: time / base)
    return _draw(sheet, grid, *_with_bound(grid, quantity, "lower bound", "faster", lambda ps, base: ps / base))


def _slowdown(row: FigureRow) -> float | None:
    slowdown = row.value("slowdown")
    return None if slowdown is None else float(slowdown)


def draw_speedup(sheet: Sheet, grid: Grid) -> Drawn:
    baseline, ideal = grid.spec.get("baseline"), None
    if grid.series_key and baseline is not None:
        against = _baseline(grid, baseline)
    else:
        first = _first_x(grid, baseline)
        against = f"{name_of(grid.x)} = {grid.axis.label(first)}" if grid.x else ""
        values = numbers_of(grid.axis.texts)
        if values and grid.axis.kind == 0 and values[first]:
            ideal = {x: value / values[first] for x, value in values.items()}
    label = f"speed-up over {style.clean(against)}" if against else "speed-up"
    quantity = _ratio(grid, "speedup", label, lambda time, base: base / time)
    speedup, look = _with_bound(grid, quantity, "upper bound", "slower", lambda ps, base: base / ps)
    return _draw(sheet, grid, speedup, replace(look, ideal=ideal))


def _baseline(grid: Grid, baseline: str | None) -> str:
    """Add the time of the baseline, at the same x, to every point as `base_ps`. Raises ScenarioError."""
    names = list(dict.fromkeys(series[0] for series in grid.series if series))
    baseline = names[0] if baseline is None and names else baseline
    if grid.points and (not grid.series_key or str(baseline) not in names):
        problem = f'"{baseline}" is not a value of {grid.series_key}' if grid.series_key else "there is no series"
        remedy = f"write one of {', '.join(names)}" if grid.series_key else "write e.g. series: topology"
        raise ScenarioError(f"{grid.place}.baseline", problem, remedy)
    _compare(grid, lambda facet, series, x: (facet, (str(baseline), *series[1:]), x))
    return str(baseline)


def _first_x(grid: Grid, baseline: str | None) -> str:
    """The same with the time at the smallest x, or at the one named."""
    texts = grid.axis.texts
    if baseline is not None and texts and baseline not in texts:
        problem = f'"{baseline}" is not a value of {grid.x}'
        raise ScenarioError(f"{grid.place}.baseline", problem, f"write one of {', '.join(texts)}")
    first = baseline or (texts[0] if texts else "")
    _compare(grid, lambda facet, series, x: (facet, series, first))
    return first


def _compare(grid: Grid, base_of) -> None:
    bases = {key: grid.points.get(base_of(*key)) for key in grid.points}
    for key, row in list(grid.points.items()):
        base = bases[key]
        base_ps = base.time_ps if base else None
        runs = tuple(replace(run, base_ps=base_ps) for run in row.runs)
        grid.points[key] = replace(row, base_ps=base_ps, runs=runs)
    missing = sum(base is None for base in bases.values())
    if missing:
        grid.notes.append(f"{missing} points have no point of the baseline to be compared with, and are not drawn")


def _ratio(grid: Grid, column: str, label: str, ratio: Ratio, *, bound: bool = False) -> Quantity:
    def value(row: FigureRow) -> float | None:
        base, time = row.base_ps, row.bound_ps if bound else row.time_ps
        return float(ratio(time, base)) if base and time else None

    return Quantity(column=column, label=label, value=value, empty="no point has a time to compare with")


def _with_bound(grid: Grid, quantity: Quantity, name: str, below: str, ratio: Ratio) -> tuple[Quantity, _Look]:
    bound = _ratio(grid, f"{quantity.column}_bound", "", ratio, bound=True) if grid.spec.get("bound") else None
    return quantity, _Look(bound=bound, bound_name=name, line=1.0, below=below, bars=False)


def _draw(sheet: Sheet, grid: Grid, quantity: Quantity, look: _Look) -> Drawn:
    from matplotlib.lines import Line2D

    direct = sheet.legend == "direct" or (sheet.legend is None and len(grid.series) > style.MOST_ENTRIES)
    # A bound for each of many curves hides them.
    bound = look.bound if grid.spec.get("bound", not direct) else None
    places = [(facet, series) for facet in grid.facets for series in grid.series]
    curves = {place: curve for place in places if (curve := grid.values(*place, quantity.value))}
    bounds = {place: curve for place in curves if bound and (curve := grid.values(*place, bound.value))}
    names, columns, height, beside = _names(grid, curves, direct), None, 2.1, 0.0
    if direct:
        columns, height = sheet.columns(len(grid.facets), 3.4), max(2.1, 0.13 * len(grid.series) + 0.7)
        beside = min(max(style.text_width(name) for name in names.values()), 170.0) + 16 if names else 0.0
    figure, panels = sheet.panels(
        len(grid.facets), height=height, columns=columns, wide=direct, sharex=True, sharey=True
    )
    if not curves:
        return style.nothing(panels, grid, quantity.empty)
    numbers = [n for curve in curves.values() for value in curve.values() for n in value if n is not None]
    scale = scale_of(quantity, numbers, grid.spec.get("scale"), grid.place)
    log = scale.log
    edge = look.line if look.below and look.line is not None and min(numbers) < 0.999 * look.line else None
    pens = {series: style.pen(index, len(grid.series)) for index, series in enumerate(grid.series)}
    room = width_of(panels[0]) / max(len(grid.axis.texts), 1)
    shapes = _Shapes(grid, log, look.bars, scale.factor, room)
    handles: dict[tuple[str, ...], Any] = {}
    dashed: dict[str, Line2D] = {}
    extra = 0.0
    for facet, axes in zip(grid.facets, panels, strict=False):
        extra = max(extra, grid.axis.apply(axes, beside))
        if log:
            axes.set_yscale("log")
        for series in grid.series:
            if (facet, series) in curves:
                handles.setdefault(series, shapes.draw(axes, series, curves[facet, series], pens[series]))
        for series, curve in _distinct(bounds, facet, grid.series).items():
            colour = style.GREY if series is None else pens[series]["color"]
            shapes.dash(axes, series, curve, colour)
            dashed[look.bound_name] = Line2D([], [], color=style.GREY, linewidth=0.9, linestyle=_DASHED)
        if look.ideal and not grid.axis.categories:
            ideal = {x: Value(y) for x, y in look.ideal.items()}
            dashed.setdefault("ideal", shapes.dash(axes, None, ideal, "#000000", (0, (1, 2))))
        if look.line is not None:
            axes.axhline(look.line, color=style.GREY, linewidth=0.6, zorder=1.5)
        if not any(key[0] == facet for key in curves):
            style.say(axes, quantity.empty)
        grid.title(axes, facet)
        style.label(axes, name_of(grid.x) if grid.x else "", scale.label)
    _finish_y(panels, log, shapes.bars or look.line is None or quantity.gain, look.line)
    if edge is not None:
        for axes in panels:
            _name_below(axes, edge, look.below)
    figure.set_figheight(figure.get_figheight() + extra)
    entries = [(handle, names[series]) for series, handle in handles.items() if names[series]]
    if direct:
        for facet, axes in zip(grid.facets, panels, strict=False):
            ends = [
                (shapes.end(series, curves[facet, series]), names[series], pens[series]["color"])
                for series in grid.series
                if (facet, series) in curves
            ]
            style.name_directly(axes, ends, log, height)
        entries = []
    entries += [(handle, name) for name, handle in dashed.items()]
    if len(entries) > 1 or dashed:
        sheet.explain(panels, entries, grid.legend_title() if not direct else "")
    return Drawn(panels, _table(grid, quantity, curves, bound, bounds, look.ideal), grid.notes)


def _finish_y(panels: Sequence, log: bool, zero: bool, line: float | None) -> None:
    """Limits and ticks of the axis that the panels share."""
    axes = panels[0]
    low, high = axes.get_ylim()
    if log and high < 4 * low:
        axes.set_ylim(low / math.sqrt(4 * low / high), high * math.sqrt(4 * low / high))
    elif not log and zero:
        axes.set_ylim(bottom=0)
    elif not log and line is not None:
        axes.set_ylim(min(low, 0.9 * line), max(high, 1.1 * line))
    for panel in panels:
        number_axis(panel.yaxis, log)


def _name_below(axes, line: float, name: str) -> None:
    """Shade what is below a line, and say right of it what it means."""
    low, high = axes.get_ylim()
    axes.axhspan(low, line, color=style.GREY, alpha=0.1, linewidth=0, zorder=0.5)
    axes.set_ylim(low, high)
    middle = (low * line) ** 0.5 if axes.get_yscale() == "log" else (low + line) / 2
    axes.annotate(
        name, (1, middle), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points", ha="left",
        va="center", rotation=-90, fontsize=style.SMALL, color=style.GREY, annotation_clip=False,
    )  # fmt: skip


class _Shapes:
    """Draws the values of a series: a line over quantities; over names bars, or dots on axes without zero."""

    def __init__(self, grid: Grid, log: bool, bars: bool, factor: float, room: float) -> None:
        """`room`: width of a name's place on the axis of x, points. Bars thinner than text would be dots."""
        self.axis, self.series, self.factor = grid.axis, grid.series, factor
        self.wide = 0.8 / max(len(grid.series), 1)
        thick = 0.92 * self.wide * room >= style.SMALL
        self.bars = self.axis.categories and bars and not log and thick and len(grid.series) <= style.MOST_ENTRIES

    def place(self, series: tuple[str, ...] | None, x: str) -> float:
        if not self.axis.categories or series is None:
            return self.axis.value[x]
        return self.axis.value[x] + (self.series.index(series) - (len(self.series) - 1) / 2) * self.wide

    def end(self, series: tuple[str, ...], curve: Mapping[str, Value]) -> tuple[float, float]:
        x = list(curve)[-1]
        return self.place(series, x), curve[x].middle / self.factor

    def draw(self, axes, series: tuple[str, ...], curve: Mapping[str, Value], look: dict):
        places = [self.place(series, x) for x in curve]
        values = [value.middle / self.factor for value in curve.values()]
        ends = [
            (place, value.low / self.factor, value.high / self.factor)
            for place, value in zip(places, curve.values(), strict=True)
            if value.low is not None and value.high is not None
        ]
        if self.bars:
            handle = axes.bar(places, values, width=0.92 * self.wide, color=look["color"], zorder=2)
        else:
            line = "" if self.axis.categories else look["linestyle"]
            marker = look["marker"] if len(places) <= 40 else ""
            (handle,) = axes.plot(places, values, **{**look, "linestyle": line, "marker": marker})
        self._interval(axes, ends, "#333333" if self.bars else look["color"])
        return handle

    def _interval(self, axes, ends: Sequence[tuple[float, float, float]], colour: str) -> None:
        """Intervals of points with several runs: a band along a line, else whiskers."""
        if not ends:
            return
        x, low, high = zip(*ends, strict=True)
        if self.axis.categories or len(ends) == 1:
            axes.vlines(x, low, high, color=colour, linewidth=1.0, zorder=2.2)
            axes.plot(x * 2, low + high, linestyle="", marker="_", color=colour, zorder=2.2)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.8)

    def dash(self, axes, series, curve: Mapping[str, Value], colour: str, dashes=_DASHED):
        """A dashed line, or a dash at each name: a bound, or the ideal."""
        look = {"color": colour, "linewidth": 0.9, "linestyle": dashes, "zorder": 2.5}
        places = [self.place(series, x) for x in curve]
        values = [value.middle / self.factor for value in curve.values()]
        if not self.axis.categories:
            return axes.plot(places, values, **look)[0]
        half = 0.46 * (self.wide if series is not None else 0.8)
        ends = [place - half for place in places], [place + half for place in places]
        look |= {"color": "#000000", "linestyle": (0, (2, 1))} if self.bars else {}
        return axes.hlines(values, *ends, **look)


def _names(grid: Grid, curves: Mapping, direct: bool) -> dict:
    """Labels of the series; in a legend one that equals an earlier one everywhere says so."""
    labels: dict[tuple[str, ...], str] = {}
    label_of: dict[tuple[object, ...], str] = {}
    for series in grid.series:
        shape = tuple(tuple(curves.get((facet, series), {}).items()) for facet in grid.facets)
        labels[series] = label = grid.name(series)
        if any(shape) and shape in label_of and label and not direct:
            labels[series] = f"{label} (= {label_of[shape]})"
        else:
            label_of[shape] = label
    return labels


def _distinct(bounds: Mapping, facet: str, series: Sequence) -> dict:
    """One curve under None where all series of a panel share their bound, else one for each."""
    curves = {name: bounds[facet, name] for name in series if (facet, name) in bounds}
    distinct = {tuple((x, f"{y.middle:.6g}") for x, y in curve.items()) for curve in curves.values()}
    return {None: next(iter(curves.values()))} if len(distinct) == 1 else curves


def _table(grid: Grid, quantity: Quantity, curves, bound: Quantity | None, bounds, ideal) -> list[dict]:
    """What a figure shows, a row for each value."""
    rows = []
    several = any(value.low is not None for curve in curves.values() for value in curve.values())
    for (facet, series), curve in curves.items():
        for x, value in curve.items():
            row = {**grid.cells(facet, series, x), quantity.column: quantity.cell(value.middle)}
            if several:
                row |= {f"p{q}": quantity.cell(end) for q, end in ((10, value.low), (90, value.high))}
            if bound and bounds:
                limit = bounds.get((facet, series), {}).get(x)
                row[bound.column] = bound.cell(limit.middle if limit else None)
            if ideal:
                row["ideal"] = ideal.get(x)
            rows.append(row)
    return rows
