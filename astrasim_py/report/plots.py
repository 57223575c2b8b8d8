"""Figures: curves of time, bandwidth and slowdown, bars of the time breakdown, and those of the records of points.

matplotlib is imported when one is drawn, not before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import format_size, format_time
from astrasim_py.report import figure_style as style
from astrasim_py.report.record_plots import Panel, draw_gantt, draw_links
from astrasim_py.report.repeats import HIGH, LOW, medians, nearest_rank
from astrasim_py.report.tables import SIZES, TEXTS, ps_of, value_order

_MAX_FACETS = 16


def select(rows: Sequence[Mapping], where: Mapping) -> list[Mapping]:
    return [row for row in rows if all(text_of(row, key) == str(value) for key, value in where.items())]


def text_of(row: Mapping, key: str) -> str | None:
    if key in row["sweep"]:
        return str(row["sweep"][key])
    if key == "size":
        return None if row.get("size_bytes") is None else format_size(row["size_bytes"])
    value = row.get({"model": "network_model", "network.model": "network_model"}.get(key, key))
    return None if value is None or isinstance(value, Mapping) else str(value)


class Axis:
    """Positions and labels of the values of x: a logarithmic or linear scale for quantities, else categories."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        kinds, values, _ = zip(*map(value_order, self.texts), strict=True) if self.texts else ((), (), ())
        alike = len(set(kinds)) == 1 and len(set(values)) == len(values)
        self.kind = kinds[0] if alike else TEXTS
        values = range(len(self.texts)) if self.kind == TEXTS else values
        self.value = dict(zip(self.texts, map(float, values), strict=True))
        if self.kind != TEXTS:
            self.texts.sort(key=lambda text: self.value[text])
        low, high = min(self.value.values(), default=0), max(self.value.values(), default=0)
        self.log = self.kind != TEXTS and low > 0 and high >= 8 * low

    def label(self, text: str) -> str:
        return format_size(int(self.value[text])) if self.kind == SIZES else style.clean(text)

    def apply(self, axes) -> None:
        from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

        if self.log:
            axes.set_xscale("log", base=2)
        shown = self.texts[:: max(1, math.ceil(len(self.texts) / 12))]
        labels = [self.label(text) for text in shown]
        axes.xaxis.set_major_locator(FixedLocator([self.value[text] for text in shown]))
        axes.xaxis.set_major_formatter(FixedFormatter(labels))
        axes.xaxis.set_minor_locator(NullLocator())
        if sum(map(len, labels)) > 34:
            axes.tick_params(axis="x", rotation=40)
            for tick in axes.get_xticklabels():
                tick.set_horizontalalignment("right")
                tick.set_rotation_mode("anchor")
        if self.kind == TEXTS and len(self.texts) > 1:
            axes.set_xlim(-0.4, len(self.texts) - 0.6)


class Grid:
    """Rows arranged as facet → series → x."""

    def __init__(self, spec: Mapping, rows: Sequence[Mapping], place: str, on=None) -> None:
        self.spec, self.place, self.on = spec, place, on
        swept = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
        where = spec.get("where") or {}
        varying = [key for key in swept if key not in where and len({text_of(row, key) for row in rows}) > 1]
        self.x = spec.get("x") or next((key for key in ("size", *varying, *swept) if key in swept), None)
        self.series_key, self.facet_key = spec.get("series"), spec.get("facet")
        for name, key in (("x", self.x), ("series", self.series_key), ("facet", self.facet_key)):
            if key and rows and all(text_of(row, key) is None for row in rows):
                keys = ", ".join(swept) or "none"
                raise ScenarioError(f"{place}.{name}", f'"{key}" is not swept', f"write one of the swept keys: {keys}")
        # Other varying keys go to the series' names where several points would coincide otherwise.
        rest: list[str] = []
        for key in varying:
            shown = [one for one in (self.x, self.series_key, self.facet_key, *rest) if one]
            if _places(rows, [*shown, key]) > _places(rows, shown):
                rest.append(key)
        self.points: dict[tuple[str, tuple[str, ...], str], Mapping] = {}
        for row in rows:
            x = text_of(row, self.x) if self.x else style.clean(row["point"])
            if x is not None:
                facet = str(text_of(row, self.facet_key)) if self.facet_key else ""
                series = tuple(str(text_of(row, key)) for key in (self.series_key, *rest) if key)
                self.points[facet, series, x] = row
        self.facets = list(dict.fromkeys(facet for facet, _, _ in self.points))[:_MAX_FACETS]
        self.series = list(dict.fromkeys(series for _, series, _ in self.points))
        self.axis = Axis([x for _, _, x in self.points])

    def name(self, series: tuple[str, ...]) -> str:
        return style.clean(", ".join(series))

    def values(
        self, facet: str, series: tuple[str, ...], value: Callable[[Mapping], float | None]
    ) -> dict[str, list[float]]:
        """x → values of all runs of a point, ascending, for rows that have one."""
        rows = {x: self.points[facet, series, x] for x in self.axis.texts if (facet, series, x) in self.points}
        found = {x: [value(run) for run in row.get("runs", (row,))] for x, row in rows.items()}
        return {x: sorted(known) for x, every in found.items() if (known := [y for y in every if y is not None])}

    def curve(self, facet: str, series: tuple[str, ...], value: Callable[[Mapping], float | None]) -> dict[str, float]:
        """x → value, of several runs the median."""
        return {x: nearest_rank(every, 50) for x, every in self.values(facet, series, value).items()}

    def band(self, facet: str, series: tuple[str, ...], value: Callable[[Mapping], float | None]) -> list[tuple]:
        """Of each point with several runs its position, and the ends of the interval of their values."""
        every = self.values(facet, series, value).items()
        return [(self.axis.value[x], nearest_rank(v, LOW), nearest_rank(v, HIGH)) for x, v in every if len(v) > 1]


def _places(rows: Sequence[Mapping], keys: Sequence[str]) -> int:
    """How many different values the rows have in some keys."""
    return len({tuple(text_of(row, key) for key in keys) for row in rows})


_MAX_BARS = 60


def _curves(grid: Grid, heading: str, value, ylabel: str, *, bound=None, bound_name: str = "lower bound", ticks=None):
    """A line per series in a panel per facet; `bound`, if given, dashed."""
    figure, panels = style.canvas(len(grid.facets), heading, on=grid.on, sharey=True)
    if not grid.points:
        style.say_nothing_finished(panels[0])
        return figure
    curves = {(f, s): grid.curve(f, s, value) for f in grid.facets for s in grid.series}
    named = _coinciding(grid, curves)
    handles, bounds = {}, {}
    every = [y for curve in curves.values() for y in curve.values()]
    log = every and min(every) > 0 and max(every) >= 4 * min(every)
    for facet, axes in zip(grid.facets, panels, strict=False):
        grid.axis.apply(axes)
        if log:
            axes.set_yscale("log")
        for index, series in enumerate(grid.series):
            curve = curves[facet, series]
            if not curve:
                continue
            look = style.pen(index, len(grid.series))
            (line,) = axes.plot([grid.axis.value[x] for x in curve], list(curve.values()), **look)
            handles.setdefault(series, line)
            _draw_band(axes, grid.band(facet, series, value), line.get_color(), grid.axis.kind == TEXTS)
        if bound is not None:
            for label, curve in _bounds(grid, facet, bound).items():
                colour = style.GREY if label is None else style.PALETTE[grid.series.index(label) % len(style.PALETTE)]
                look = {"color": colour, "linewidth": 1.1, "linestyle": (0, (4, 2.5)), "zorder": 2.5}
                (line,) = axes.plot([grid.axis.value[x] for x in curve], list(curve.values()), **look)
                bounds.setdefault("bound", line)
        if grid.facet_key:
            style.set_title(axes, facet)
        if grid.x:
            name = {"network.model": "network model", "npus": "NPUs"}.get(grid.x, grid.x)
            axes.set_xlabel(style.clean(name.replace("_", " ")))
    if ticks:  # once every panel has its curves: they share the axis
        ticks(panels, log)
    for axes in panels:
        if len(panels) == 1 or axes.get_subplotspec().is_first_col():
            axes.set_ylabel(ylabel)
    entries = [(line, named[series]) for series, line in handles.items() if named[series]]
    if bounds:
        entries.append((bounds["bound"], bound_name))
    if len(entries) > 1 or bounds:
        style.legend_below(figure, entries, grid.on)
    return figure


def _draw_band(axes, band: Sequence[tuple], colour: str, single: bool) -> None:
    """The intervals of points with several runs: as bars if asked or if there is only one, else as a band."""
    if not band:
        return
    x, low, high = zip(*band, strict=True)
    if single or len(band) == 1:
        axes.vlines(x, low, high, color=colour, linewidth=1.4, zorder=2.2)
        axes.plot(x * 2, low + high, linestyle="", marker="_", color=colour, zorder=2.2)
    else:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.8)


def _coinciding(grid: Grid, curves: Mapping) -> dict:
    """Labels of the series; one that equals an earlier one everywhere says so."""
    labels, known = {}, {}
    for series in grid.series:
        shape = tuple(tuple(curves[facet, series].items()) for facet in grid.facets)
        labels[series] = label = grid.name(series)
        if any(shape) and shape in known and label:
            labels[series] = f"{label} (= {known[shape]})"
        else:
            known[shape] = label
    return labels


def _bounds(grid: Grid, facet: str, bound) -> dict:
    """One grey curve where all series share their bound, else one in the colour of each series."""
    curves = {series: grid.curve(facet, series, bound) for series in grid.series}
    curves = {series: curve for series, curve in curves.items() if curve}
    distinct = {tuple((x, f"{y:.6g}") for x, y in curve.items()) for curve in curves.values()}
    if len(distinct) == 1:
        return {None: next(iter(curves.values()))}
    return curves


def _time_ticks(panels, log: bool) -> None:
    axes = panels[0]
    style.time_ticks(axes.yaxis, None if log else 6)
    if log:
        _log_ticks(axes)
    else:
        axes.set_ylim(bottom=0)


def _log_ticks(axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1,) if high > 300 * low else (1, 2, 5), numticks=12))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _number_ticks(panels, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = panels[0]
    if log:
        _log_ticks(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.6g}"))


def _ps_in(key: str) -> Callable[[Mapping], float | None]:
    """The times of a column of the rows; none where they are absent or 0."""
    return lambda row: float(ps_of(row.get(key)) or 0) or None


def _draw_time(grid: Grid, heading: str):
    y = grid.spec.get("y", "completion")
    if y == "completion":
        return _curves(grid, heading, _ps_in("time_ns"), "time", bound=_ps_in("bound_ns"), ticks=_time_ticks)
    label = {"mean": "mean time", "p50": "median time", "p99": "99th percentile"}[y.removeprefix("iteration_")]
    return _curves(grid, heading, _ps_in(f"{y}_ns"), f"{label} of iterations", ticks=_time_ticks)


def _draw_busbw(grid: Grid, heading: str):
    def value(row: Mapping) -> float | None:
        return None if row.get("busbw_GBps") is None else float(row["busbw_GBps"])

    def bound(row: Mapping) -> float | None:
        rate, time, least = row.get("busbw_GBps"), row.get("time_ns"), row.get("bound_ns")
        return None if not rate or not least else float(Decimal(rate) * Decimal(time) / Decimal(least))

    label = "bus bandwidth (GB/s)"
    return _curves(grid, heading, value, label, bound=bound, bound_name="upper bound", ticks=_number_ticks)


def _draw_slowdown(grid: Grid, heading: str):
    baseline = grid.spec.get("baseline")
    if baseline is None and any(row.get("slowdown") for row in grid.points.values()):
        label = "slowdown against the job alone"
        return _curves(grid, heading, lambda row: row["slowdown"] and float(row["slowdown"]), label, ticks=_near_one)
    names = list(dict.fromkeys(series[0] for series in grid.series if series))
    baseline = names[0] if baseline is None and names else baseline
    if grid.points and (not grid.series_key or str(baseline) not in names):
        what = f'"{baseline}" is not a value of {grid.series_key}' if grid.series_key else "there is no series"
        remedy = f"write one of {', '.join(names)}" if grid.series_key else "write e.g. series: topology"
        raise ScenarioError(f"{grid.place}.baseline", what, remedy)
    for (facet, series, x), row in list(grid.points.items()):
        base = grid.points.get((facet, (str(baseline), *series[1:]), x))
        own = {"base_ns": base["time_ns"] if base else None}
        runs = {"runs": [{**run, **own} for run in row["runs"]]} if "runs" in row else {}
        grid.points[facet, series, x] = {**row, **own, **runs}

    def value(row: Mapping) -> float | None:
        base, time = row["base_ns"], row["time_ns"]
        return float(Fraction(time) / Fraction(base)) if base and time is not None else None

    label = f"slowdown against {style.clean(baseline)}" if baseline is not None else "slowdown"
    return _curves(grid, heading, value, label, ticks=_near_one)


def _near_one(panels, log: bool) -> None:
    """Ticks of slowdowns, and a line at 1."""
    _number_ticks(panels, log)
    if not log:
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(min(low, 0.9), max(high, 1.1))
    for axes in panels:
        axes.axhline(1.0, color=style.GREY, linewidth=0.8, zorder=1.5)


_PARTS = (
    ("compute_ns", "compute", "#0072B2", ""),
    ("exposed_comm_ns", "exposed communication", "#E69F00", "////"),
    ("other_ns", "other waiting", "#d9d9d9", "...."),
)


def _draw_breakdown(grid: Grid, heading: str):
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    bars = [(x, series) for x in grid.axis.texts for series in grid.series][:_MAX_BARS]
    bars = [b for b in bars if any((f, b[1], b[0]) in grid.points for f in grid.facets)]
    height = max(2.6, 0.27 * len(bars) + 1.5)
    figure, panels = style.canvas(
        len(grid.facets), heading, width=4.6, height=height, columns=3, on=grid.on, sharey=True
    )
    if not bars:
        style.say_nothing_finished(panels[0])
        return figure
    times = [ps_of(row["time_ns"]) for row in grid.points.values()]
    relative = max(times) > 12 * max(min(times), 1)
    place, gap, last = [], 0.0, None
    for x, _ in bars:
        gap += 0.6 if last not in (None, x) and len(grid.series) > 1 else 0.0
        place.append(len(place) + gap)
        last = x
    shown = set()
    for facet, axes in zip(grid.facets, panels, strict=False):
        for y, (x, series) in zip(place, bars, strict=True):
            row = grid.points.get((facet, series, x))
            if row is None or not row["time_ns"]:
                continue
            total = ps_of(row["time_ns"])
            left = 0.0
            for key, label, colour, hatch in _PARTS:
                part = ps_of(row.get(key)) or 0
                wide = part / total if relative else float(part)
                if part:
                    shown.add(label)
                    axes.barh(y, wide, left=left, height=0.78, color=colour, hatch=hatch, edgecolor="white", lw=0.5)
                left += wide
            look = {"va": "center", "fontsize": 8, "color": "#333333"}
            axes.annotate(format_time(total), (left, y), xytext=(4, 0), textcoords="offset points", **look)
        names = [" · ".join(filter(None, (grid.axis.label(x), grid.name(series)))) for x, series in bars]
        axes.set_yticks(place, names)
        axes.grid(False, axis="y")
        axes.margins(x=0.17)
        axes.set_xlim(left=0)
        if relative:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.set_xlim(0, 1.28)
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
            axes.set_xlabel("share of the time")
        else:
            style.time_ticks(axes.xaxis, 5)
            axes.set_xlabel("time")
        if grid.facet_key:
            style.set_title(axes, facet)
    panels[0].set_ylim(place[-1] + 0.8, -0.8)
    patches = [
        (Patch(facecolor=colour, hatch=hatch, edgecolor="white"), label)
        for _, label, colour, hatch in _PARTS
        if label in shown
    ]
    if patches:
        style.legend_below(figure, patches, grid.on)
    return figure


#: Figures of rows, and of the records of single points, by kind.
_OF_ROWS = {"slowdown": _draw_slowdown, "time": _draw_time, "busbw": _draw_busbw, "breakdown": _draw_breakdown}
_OF_RECORDS = {"links": draw_links, "gantt": draw_gantt}
KINDS = (*_OF_ROWS, *_OF_RECORDS)
#: Record level that a figure needs beyond the rows.
NEEDS = {"links": "links", "gantt": "nodes"}


def draw(
    spec: Mapping, rows: Sequence[Mapping], *, panels: Sequence[Panel] = (), title: str = "", place: str = "plots"
) -> dict[str, bytes]:
    """One figure, as SVG and PNG. `spec`: an entry of a scenario's ``plots``. `rows`: rows of points in the order of
    the sweep; unfinished points are left out. `panels`: for ``links`` and ``gantt``. Returns ``svg`` and ``png``; their
    metadata name the engine. Raises ScenarioError: a key that no row has, or a baseline that is not a value of the
    series.
    """
    rows = _finished(spec, rows)
    with style.our_style():
        figure = figure_of(spec, rows, panels=panels, title=title, place=place)
        ran = sorted({str(row["engine"]) for row in rows if row.get("engine")})
        about = {"Description": f"engine: {', '.join(ran)}"} if ran else {}
        return {form: style.render(figure, form, about) for form in style.FORMATS}


def _finished(spec: Mapping, rows: Sequence[Mapping]) -> list[Mapping]:
    return [row for row in select(rows, spec.get("where") or {}) if row["status"] == "done"]


def figure_of(
    spec: Mapping, rows: Sequence[Mapping], *, panels: Sequence[Panel] = (), title: str = "", place: str, on=None
):
    """One figure of finished rows, as `draw` makes it; `on`: see `figure_style.canvas`."""
    kind = spec["kind"]
    if kind not in KINDS:
        raise ScenarioError(f"{place}.kind", f'"{kind}" is unknown', f"write one of {', '.join(KINDS)}")
    heading = spec.get("title") or title
    if kind in _OF_RECORDS:
        return _OF_RECORDS[kind](panels, heading, on)
    return _OF_ROWS[kind](Grid(spec, medians(rows), place, on), heading)


def axes_of(spec: Mapping, rows: Sequence[Mapping] = (), panels: Sequence[Panel] = (), ax=None):
    """One figure with pyplot, or in `ax`; returns its Axes, or an array of them where it has several panels."""
    from matplotlib import pyplot, rc_context

    with rc_context({"text.parse_math": False}) if ax is not None else style.our_style():
        figure = figure_of(spec, _finished(spec, rows), panels=panels, place="plot", on=ax or pyplot.figure)
        if ax is not None:
            return ax
        figure.draw_without_rendering()  # ticks are made in this style
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    return shown[0] if len(shown) == 1 else np.array(shown)
