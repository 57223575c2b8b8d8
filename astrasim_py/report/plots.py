"""Figures of rows and records: matplotlib's object API, the same bytes on every run.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers; markers and dashes differ as well,
and series that coincide are drawn inside each other, so that each is seen. Text of the user's is never taken for
mathematics. matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import numpy as np

from astrasim_py.core.errors import ScenarioError, UnitError
from astrasim_py.core.records import Table
from astrasim_py.core.units import format_size, format_time, parse_bandwidth, parse_size, parse_time
from astrasim_py.report.tables import ps_of

KINDS = ("slowdown", "time", "busbw", "breakdown", "links", "gantt")
#: Record level that a figure needs beyond the rows.
NEEDS = {"links": "links", "gantt": "nodes"}
FORMATS = ("svg", "png")

#: Okabe & Ito, "Color Universal Design" (2008); yellow last, for it is faint on white.
PALETTE = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ((0, ()), (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 3)))
GREY = "#666666"

_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 160.0,
    "svg.hashsalt": "astrasim_py",
    "svg.fonttype": "path",
    "text.parse_math": False,
}
_METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}

_MAX_FACETS = 16
_MAX_BARS = 60
#: Most points that a figure of links or a Gantt chart shows.
PANELS = 9
_MAX_LANES = 64
_MAX_TEXT = 60


@contextmanager
def _style():
    """Our style whatever the user's matplotlibrc says; only keys that differ are touched."""
    import matplotlib

    defaults = matplotlib.rcParamsDefault
    foreign = {
        key: defaults[key]
        for key in defaults
        if not key.startswith(("backend", "webagg", "tk.", "toolbar", "interactive", "keymap", "date", "docstring"))
        and matplotlib.rcParams[key] != defaults[key]
    }
    with matplotlib.rc_context({**foreign, **_STYLE}):
        yield


def clean(text: object) -> str:
    """Text of the user's for a figure: one line, printable, not too long."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What the record figures (links, gantt) need of one point.

    Attributes
    ----------
    title : str
    makespan : int
        ps.
    tables : mapping of str to Table
        ``link`` and ``vertex``, ``edge`` (links), ``node`` (gantt).
    """

    title: str
    makespan: int
    tables: Mapping[str, Table] = field(default_factory=dict)


def draw(
    spec: Mapping, rows: Sequence[Mapping], *, panels: Sequence[Panel] = (), title: str = "", place: str = "plots"
) -> dict[str, bytes]:
    """One figure, as SVG and PNG.

    Parameters
    ----------
    spec : mapping
        ``kind`` and, as far as they apply, ``x``, ``series``, ``facet``, ``baseline``, ``where``, ``title``.
    rows : sequence of mapping
        Rows of the points, in the order of the sweep; those that are not done are left out.
    panels : sequence of Panel
        For ``links`` and ``gantt``.
    title : str
        Where the spec has none.
    place : str
        For error messages.

    Returns
    -------
    dict of str to bytes
        By format: ``svg`` and ``png``; their metadata (``Description``) say which engine ran.

    Raises
    ------
    ScenarioError
        A key that no row has, or a baseline that is not a value of the series.
    """
    kind = spec["kind"]
    if kind not in KINDS:
        raise ScenarioError(f"{place}.kind", f'"{kind}" is unknown', f"write one of {', '.join(KINDS)}")
    rows = [row for row in select(rows, spec.get("where") or {}) if row["status"] == "done"]
    heading = clean(spec.get("title") or title)
    with _style():
        if kind == "links":
            figure = _links(panels, heading)
        elif kind == "gantt":
            figure = _gantt(panels, heading)
        elif kind == "breakdown":
            figure = _breakdown(_Grid(spec, rows, place), heading)
        else:
            figure = _LINES[kind](_Grid(spec, rows, place), heading)
        ran = sorted({str(row["engine"]) for row in rows if row.get("engine")})
        about = {"Description": f"engine: {', '.join(ran)}"} if ran else {}
        return {form: _render(figure, form, about) for form in FORMATS}


def select(rows: Sequence[Mapping], where: Mapping) -> list[Mapping]:
    """Rows whose swept values (or columns) are those of `where`."""
    return [row for row in rows if all(text_of(row, key) == str(value) for key, value in where.items())]


def _render(figure, form: str, about: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=form, metadata={**_METADATA[form], **about})
    return stream.getvalue()


# -- rows → axes ------------------------------------------------------------------------------------------------


def text_of(row: Mapping, key: str) -> str | None:
    """The value of a swept key, or of a column, as text."""
    if key in row["sweep"]:
        return str(row["sweep"][key])
    if key == "size":
        return None if row.get("size_bytes") is None else format_size(row["size_bytes"])
    value = row.get({"model": "network_model", "network.model": "network_model"}.get(key, key))
    return None if value is None or isinstance(value, Mapping) else str(value)


class _Axis:
    """Positions and labels of the values of x: a logarithmic or linear scale for quantities, else categories."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.kind, values = "category", [Fraction(i) for i in range(len(self.texts))]
        for kind, parse in (("number", Fraction), ("size", parse_size), ("time", parse_time), ("bw", parse_bandwidth)):
            try:
                parsed = [Fraction(parse(text)) for text in self.texts]
            except (UnitError, ValueError, ZeroDivisionError):
                continue
            if len(set(parsed)) == len(parsed):
                self.kind, values = kind, parsed
                break
        self.value = dict(zip(self.texts, map(float, values), strict=True))
        if self.kind != "category":
            self.texts.sort(key=lambda text: self.value[text])
        low, high = min(self.value.values(), default=0), max(self.value.values(), default=0)
        self.log = self.kind != "category" and low > 0 and high >= 8 * low

    def label(self, text: str) -> str:
        """The tick label of a value."""
        return format_size(int(self.value[text])) if self.kind == "size" else clean(text)

    def apply(self, axes) -> None:
        """Scale and ticks."""
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
        if self.kind == "category" and len(self.texts) > 1:
            axes.set_xlim(-0.4, len(self.texts) - 0.6)


class _Grid:
    """Rows arranged as facet → series → x."""

    def __init__(self, spec: Mapping, rows: Sequence[Mapping], place: str) -> None:
        self.spec, self.place = spec, place
        swept = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
        where = spec.get("where") or {}
        varying = [key for key in swept if key not in where and len({text_of(row, key) for row in rows}) > 1]
        self.x = spec.get("x") or self._default_x(swept, varying)
        self.series_key, self.facet_key = spec.get("series"), spec.get("facet")
        for name, key in (("x", self.x), ("series", self.series_key), ("facet", self.facet_key)):
            if key and rows and all(text_of(row, key) is None for row in rows):
                keys = ", ".join(swept) or "none"
                raise ScenarioError(f"{place}.{name}", f'"{key}" is not swept', f"write one of the swept keys: {keys}")
        # What varies and is not named would put several points on one place: it goes to the series' names.
        self.rest = [key for key in varying if key not in (self.x, self.series_key, self.facet_key)]
        self.points: dict[tuple[str, tuple[str, ...], str], Mapping] = {}
        for row in rows:
            x = text_of(row, self.x) if self.x else clean(row["point"])
            if x is not None:
                self.points[self._facet(row), self._series(row), x] = row
        self.facets = list(dict.fromkeys(facet for facet, _, _ in self.points))[:_MAX_FACETS]
        self.series = list(dict.fromkeys(series for _, series, _ in self.points))
        self.axis = _Axis([x for _, _, x in self.points])

    @staticmethod
    def _default_x(swept: Sequence[str], varying: Sequence[str]) -> str | None:
        for key in ("size", *varying, *swept):
            if key in swept:
                return key
        return None

    def _facet(self, row: Mapping) -> str:
        return "" if not self.facet_key else str(text_of(row, self.facet_key))

    def _series(self, row: Mapping) -> tuple[str, ...]:
        keys = ([self.series_key] if self.series_key else []) + self.rest
        return tuple(str(text_of(row, key)) for key in keys)

    def name(self, series: tuple[str, ...]) -> str:
        """The label of a series."""
        return clean(", ".join(series))

    def curve(self, facet: str, series: tuple[str, ...], value: Callable[[Mapping], float | None]) -> dict[str, float]:
        """x → value, where there is one."""
        found = {}
        for x in self.axis.texts:
            row = self.points.get((facet, series, x))
            y = None if row is None else value(row)
            if y is not None:
                found[x] = y
        return found


# -- curves -----------------------------------------------------------------------------------------------------


def _canvas(panels: int, heading: str, *, width: float = 3.9, height: float = 3.8, columns: int = 4, **share):
    from matplotlib.figure import Figure

    columns = min(columns, max(panels, 1))
    lines = math.ceil(max(panels, 1) / columns)
    figure = Figure(figsize=(width * columns + (1.6 if columns == 1 else 0.6), height * lines), layout="constrained")
    if heading:
        figure.suptitle(heading, fontsize=12)
    axes = figure.subplots(lines, columns, squeeze=False, **share).ravel().tolist()
    for unused in axes[max(panels, 1) :]:
        unused.set_visible(False)
    return figure, axes[: max(panels, 1)]


def _nothing(axes) -> None:
    axes.text(0.5, 0.5, "no finished points", ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


def _pen(index: int, count: int) -> dict:
    """How a series is drawn: later ones are thinner and lie inside earlier ones, so that equals stay visible."""
    share = index / max(count - 1, 1)
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 10.0 - 5.5 * share if count > 1 else 6.0,
        "markerfacecolor": "white" if index % 2 == 0 else PALETTE[index % len(PALETTE)],
        "markeredgewidth": 1.3,
        "linewidth": 3.2 - 1.8 * share if count > 1 else 1.8,
        "linestyle": DASHES[0] if index == 0 else DASHES[(index - 1) % (len(DASHES) - 1) + 1],
        "zorder": 3 + share,
    }


def _curves(grid: _Grid, heading: str, value, ylabel: str, *, bound=None, bound_name: str = "lower bound", ticks=None):
    """A line per series in a panel per facet; `bound`, if given, dashed."""
    figure, panels = _canvas(len(grid.facets), heading, sharey=True)
    if not grid.points:
        _nothing(panels[0])
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
            pen = _pen(index, len(grid.series))
            (line,) = axes.plot([grid.axis.value[x] for x in curve], list(curve.values()), **pen)
            handles.setdefault(series, line)
        if bound is not None:
            for label, curve in _bounds(grid, facet, bound).items():
                colour = GREY if label is None else PALETTE[grid.series.index(label) % len(PALETTE)]
                (line,) = axes.plot(
                    [grid.axis.value[x] for x in curve],
                    list(curve.values()),
                    color=colour,
                    linewidth=1.1,
                    linestyle=(0, (4, 2.5)),
                    zorder=2.5,
                )
                bounds.setdefault("bound", line)
        if grid.facet_key:
            axes.set_title(clean(facet))
        if grid.x:
            axes.set_xlabel(_axis_name(grid.x))
    if ticks:  # once every panel has its curves: they share the axis
        ticks(panels, log)
    panels[0].set_ylabel(ylabel)
    for axes in panels[1:]:
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(ylabel)
    entries = [(line, named[series]) for series, line in handles.items() if named[series]]
    if bounds:
        entries.append((bounds["bound"], bound_name))
    if len(entries) > 1 or bounds:
        _legend(figure, entries)
    return figure


def _legend(figure, entries) -> None:
    longest = max(len(label) for _, label in entries)
    columns = max(1, min(len(entries), int(figure.get_figwidth() * 11 / (longest + 6))))
    figure.legend(
        [line for line, _ in entries],
        [label for _, label in entries],
        loc="outside lower center",
        ncols=columns,
        handlelength=3.2,
        title=None,
    )


def _coinciding(grid: _Grid, curves: Mapping) -> dict:
    """Labels of the series; one that equals an earlier one everywhere says so."""
    labels, known = {}, {}
    for series in grid.series:
        shape = tuple(tuple(curves[facet, series].items()) for facet in grid.facets)
        label = grid.name(series)
        if any(shape) and shape in known and label:
            labels[series] = f"{label} (= {known[shape]})"
        else:
            labels[series] = label
            known[shape] = label
    return labels


def _bounds(grid: _Grid, facet: str, bound) -> dict:
    """One grey curve where all series share their bound, else one in the colour of each series."""
    curves = {series: grid.curve(facet, series, bound) for series in grid.series}
    curves = {series: curve for series, curve in curves.items() if curve}
    distinct = {tuple((x, f"{y:.6g}") for x, y in curve.items()) for curve in curves.values()}
    if len(distinct) == 1:
        return {None: next(iter(curves.values()))}
    return curves


def _axis_name(key: str) -> str:
    return clean({"size": "size", "network.model": "network model", "npus": "NPUs"}.get(key, key).replace("_", " "))


def _time_ticks(panels, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes = panels[0]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ps, _: format_time(int(ps)) if ps >= 1 else "0"))
    if log:
        axes.yaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_ylim(bottom=0)


def _number_ticks(panels, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes = panels[0]
    if log:
        low, high = axes.get_ylim()
        wide = high > 50 * low
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1,) if wide else (1, 2, 5), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.6g}"))


def _ps(key: str) -> Callable[[Mapping], float | None]:
    def value(row: Mapping) -> float | None:
        ps = ps_of(row.get(key))
        return float(ps) if ps else None

    return value


def _draw_time(grid: _Grid, heading: str):
    return _curves(grid, heading, _ps("time_ns"), "time", bound=_ps("bound_ns"), ticks=_time_ticks)


def _draw_busbw(grid: _Grid, heading: str):
    def value(row: Mapping) -> float | None:
        return None if row.get("busbw_GBps") is None else float(row["busbw_GBps"])

    def bound(row: Mapping) -> float | None:
        rate, time, least = row.get("busbw_GBps"), row.get("time_ns"), row.get("bound_ns")
        return None if not rate or not least else float(Decimal(rate) * Decimal(time) / Decimal(least))

    label = "bus bandwidth (GB/s)"
    return _curves(grid, heading, value, label, bound=bound, bound_name="upper bound", ticks=_number_ticks)


def _draw_slowdown(grid: _Grid, heading: str):
    baseline = grid.spec.get("baseline")
    names = list(dict.fromkeys(series[0] for series in grid.series if series))
    if baseline is None and names:
        baseline = names[0]
    if grid.points and (not grid.series_key or str(baseline) not in names):
        what = f'"{baseline}" is not a value of {grid.series_key}' if grid.series_key else "there is no series"
        remedy = f"write one of {', '.join(names)}" if grid.series_key else "write e.g. series: topology"
        raise ScenarioError(f"{grid.place}.baseline", what, remedy)
    for (facet, series, x), row in list(grid.points.items()):
        base = grid.points.get((facet, (str(baseline), *series[1:]), x))
        grid.points[facet, series, x] = {**row, "base_ns": base["time_ns"] if base else None}

    def value(row: Mapping) -> float | None:
        base, time = row["base_ns"], row["time_ns"]
        return float(Fraction(time) / Fraction(base)) if base and time is not None else None

    def ticks(panels, log: bool) -> None:
        _number_ticks(panels, log)
        if not log:
            low, high = panels[0].get_ylim()
            panels[0].set_ylim(min(low, 0.9), max(high, 1.1))
        for axes in panels:
            axes.axhline(1.0, color=GREY, linewidth=0.8, zorder=1.5)

    label = f"slowdown against {clean(baseline)}" if baseline is not None else "slowdown"
    return _curves(grid, heading, value, label, ticks=ticks)


_LINES = {"time": _draw_time, "busbw": _draw_busbw, "slowdown": _draw_slowdown}


# -- stacked bars -----------------------------------------------------------------------------------------------

_PARTS = (
    ("compute_ns", "compute", "#0072B2", ""),
    ("exposed_comm_ns", "exposed communication", "#E69F00", "////"),
    ("other_ns", "other waiting", "#d9d9d9", "...."),
)


def _breakdown(grid: _Grid, heading: str):
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    bars = [(x, series) for x in grid.axis.texts for series in grid.series][:_MAX_BARS]
    bars = [b for b in bars if any((f, b[1], b[0]) in grid.points for f in grid.facets)]
    height = max(2.6, 0.27 * len(bars) + 1.5)
    figure, panels = _canvas(len(grid.facets), heading, width=4.6, height=height, columns=3, sharey=True)
    if not bars:
        _nothing(panels[0])
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
            axes.annotate(
                format_time(total),
                (left, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color="#333333",
            )
        axes.set_yticks(place, [_bar_name(grid, x, series) for x, series in bars])
        axes.grid(False, axis="y")
        axes.margins(x=0.17)
        axes.set_xlim(left=0)
        if relative:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.set_xlim(0, 1.28)
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
            axes.set_xlabel("share of the time")
        else:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda ps, _: format_time(int(ps)) if ps >= 1 else "0"))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.set_xlabel("time")
        if grid.facet_key:
            axes.set_title(clean(facet))
    panels[0].set_ylim(place[-1] + 0.8, -0.8)
    patches = [
        (Patch(facecolor=colour, hatch=hatch, edgecolor="white"), label)
        for _, label, colour, hatch in _PARTS
        if label in shown
    ]
    if patches:
        _legend(figure, patches)
    return figure


def _bar_name(grid: _Grid, x: str, series: tuple[str, ...]) -> str:
    name = grid.name(series)
    return f"{grid.axis.label(x)} · {name}" if name else grid.axis.label(x)


# -- links ------------------------------------------------------------------------------------------------------


def _links(panels: Sequence[Panel], heading: str):
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import Normalize

    panels = list(panels)[:PANELS]
    figure, every = _canvas(len(panels), heading, width=4.4, height=4.3, columns=3)
    if not panels:
        _nothing(every[0])
        return figure
    most = max((max(p.tables["link"]["busy"].tolist(), default=0) / max(p.makespan, 1) for p in panels), default=0)
    colours = Normalize(0.0, min(max(math.ceil(10 * most) / 10, 0.1), 1.0))
    for panel, axes in zip(panels, every, strict=True):
        axes.set_title(clean(panel.title))
        axes.set_aspect("equal")
        axes.axis("off")
        x, y, switch = _places(panel.tables["vertex"], panel.tables["edge"])
        edge, link = panel.tables["edge"], panel.tables["link"]
        use = np.full(edge.height, -1.0)
        where = {number: row for row, number in enumerate(edge["link"].tolist())}
        for number, busy in zip(link["link"].tolist(), link["busy"].tolist(), strict=True):
            if number in where and panel.makespan:
                use[where[number]] = busy / panel.makespan
        paths = _paths(x, y, edge["src"], edge["dst"])
        span = max(np.ptp(x), np.ptp(y), 1.0)
        thick = float(np.clip(60.0 / math.sqrt(max(edge.height, 1)), 0.7, 2.6))
        idle = use < 0
        axes.add_collection(LineCollection(paths[idle], colors="#e0e0e0", linewidths=0.6, zorder=1))
        order = np.flatnonzero(~idle)[np.argsort(use[~idle], kind="stable")]
        lines = LineCollection(
            paths[order], cmap="cividis_r", norm=colours, linewidths=thick * (0.5 + 0.8 * use[order]), zorder=2
        )
        lines.set_array(use[order])
        axes.add_collection(lines)
        if len(order) <= 800:
            heads = PolyCollection(_heads(paths[order], span), cmap="cividis_r", norm=colours, linewidths=0, zorder=3)
            heads.set_array(use[order])
            axes.add_collection(heads)
        size = float(np.clip(4600 / max(len(x), 1), 6, 190))
        axes.scatter(x[~switch], y[~switch], s=size, c="white", edgecolors="#333333", linewidths=0.8, zorder=4)
        axes.scatter(x[switch], y[switch], s=size, c="#dddddd", marker="s", edgecolors="#333333", lw=0.8, zorder=4)
        if len(x) <= 72:
            names = panel.tables["vertex"]["name"].tolist()
            for name, a, b, is_switch in zip(names, x.tolist(), y.tolist(), switch.tolist(), strict=True):
                if not is_switch:
                    font = 7.5 if len(x) <= 36 else 5.5
                    axes.text(a, b, clean(name), ha="center", va="center", fontsize=font, zorder=5)
        margin = 0.07 * span + 0.25
        axes.set_xlim(paths[..., 0].min() - margin, paths[..., 0].max() + margin)
        axes.set_ylim(paths[..., 1].min() - margin, paths[..., 1].max() + margin)
    figure.colorbar(
        ScalarMappable(norm=colours, cmap="cividis_r"),
        ax=every,
        shrink=0.75,
        pad=0.02,
        label="share of the time that the link was busy",
        format=lambda v, _: f"{100 * v:.0f} %",
    )
    return figure


def _places(vertex: Table, edge: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where vertices are drawn; an irregular topology by its distance from the NPUs, tier over tier."""
    switch = vertex["kind"] == "switch"
    x, y = (np.asarray(vertex[name], dtype=float).copy() for name in ("x", "y"))
    if not np.isnan(x).any():
        return x, y, switch
    tier = np.where(switch, -1, 0)
    for level in range(1, len(tier)):
        below = tier == level - 1
        reached = np.unique(edge["dst"][below[edge["src"]]])
        reached = reached[tier[reached] < 0]
        if not len(reached):
            break
        tier[reached] = level
    tier[tier < 0] = tier.max() + 1
    widest = int(np.bincount(tier).max())
    if tier.max() == 0:  # NPUs only: a circle
        angle = np.pi / 2 - 2 * np.pi * np.arange(len(tier)) / len(tier)
        return np.cos(angle) * len(tier) / 6, np.sin(angle) * len(tier) / 6, switch
    for level in np.unique(tier):
        mine = np.flatnonzero(tier == level)
        x[mine] = (np.arange(len(mine)) + 0.5) * widest / len(mine)
        y[mine] = level * max(widest / 3, 1.0)
    return x, y, switch


def _paths(x: np.ndarray, y: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Curves float[links, 25, 2]: bent to the right, more so where they would run over other vertices."""
    ax, ay, bx, by = x[src], y[src], x[dst], y[dst]
    dx, dy = bx - ax, by - ay
    length = np.hypot(dx, dy)
    near = np.partition(length[length > 0], 0)[0] if (length > 0).any() else 1.0
    # Wraparound links of a grid span many vertices: a wider arc keeps them off the row that they cross.
    bend = np.where(length > 1.6 * near, 0.16 * length + 0.12 * near, 0.11 * length)
    scale = np.divide(bend, length, out=np.zeros_like(length), where=length > 0)
    cx, cy = (ax + bx) / 2 + dy * scale, (ay + by) / 2 - dx * scale
    t = np.linspace(0.0, 1.0, 25)[None, :]
    curve = [
        (1 - t) ** 2 * p[:, None] + 2 * t * (1 - t) * q[:, None] + t**2 * r[:, None]
        for p, q, r in ((ax, cx, bx), (ay, cy, by))
    ]
    return np.stack(curve, axis=-1)


def _heads(paths: np.ndarray, span: float) -> np.ndarray:
    """Arrow heads a little past the middle of each curve."""
    tip, back = paths[:, 15], paths[:, 14]
    direction = tip - back
    norm = np.maximum(np.hypot(direction[:, 0], direction[:, 1]), 1e-12)[:, None]
    direction = direction / norm
    side = np.stack([-direction[:, 1], direction[:, 0]], axis=-1)
    reach = np.hypot(*(paths[:, -1] - paths[:, 0]).T)[:, None]
    size = np.minimum(0.022 * span + 0.03, 0.28 * reach)
    return np.stack([tip + direction * size, tip - side * size * 0.55, tip + side * size * 0.55], axis=1)


# -- Gantt ------------------------------------------------------------------------------------------------------


def _gantt(panels: Sequence[Panel], heading: str):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panels = list(panels)[:PANELS]
    lanes = max((min(_ranks(p.tables["node"]), _MAX_LANES) for p in panels), default=1)
    height = min(max(2.4, 0.22 * lanes + 1.2), 12.0)
    figure, every = _canvas(len(panels), heading, width=7.0, height=height, columns=1 if len(panels) < 4 else 2)
    if not panels:
        _nothing(every[0])
        return figure
    legend: dict[str, object] = {}
    for panel, axes in zip(panels, every, strict=True):
        node = panel.tables["node"]
        done = (node["start"] >= 0) & (node["end"] > node["start"]) & (node["rank"] < _MAX_LANES)
        rank, start, end = (node[name][done] for name in ("rank", "start", "end"))
        kind, instance = node["kind"][done], node["instance"][done]
        first_of = _called(node)[done]
        for label, chosen, low, tall, colour, hatch in _bars(kind, instance, first_of, panel):
            if not chosen.any():
                continue
            boxes = np.empty((int(chosen.sum()), 4, 2))
            boxes[:, (0, 3), 0] = start[chosen][:, None]
            boxes[:, (1, 2), 0] = end[chosen][:, None]
            boxes[:, (0, 1), 1] = (rank[chosen] - low)[:, None]
            boxes[:, (2, 3), 1] = (rank[chosen] - low + tall)[:, None]
            thin = 0.25 if len(boxes) < 4000 else 0.0
            axes.add_collection(
                PolyCollection(boxes, facecolors=colour, edgecolors="white", linewidths=thin, hatch=hatch)
            )
            legend.setdefault(label, Patch(facecolor=colour, hatch=hatch, edgecolor="white"))
        count = _ranks(node)
        shown = min(count, _MAX_LANES)
        axes.set_ylim(shown - 0.45, -0.55)
        axes.set_xlim(0, max(panel.makespan, 1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ps, _: format_time(int(ps)) if ps >= 1 else "0"))
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.yaxis.set_major_locator(MaxNLocator(min(shown, 16), integer=True))
        axes.grid(False, axis="y")
        axes.set_ylabel("rank")
        more = f" (first {shown} of {count} ranks)" if count > shown else ""
        axes.set_title(clean(panel.title + more))
    every[-1].set_xlabel("time")
    _legend(figure, [(patch, label) for label, patch in legend.items()])
    return figure


def _ranks(node: Table) -> int:
    return int(node["rank"].max()) + 1 if node.height else 1


def _called(node: Table) -> np.ndarray:
    """Of a collective's node its instance, found through the first nodes of its algorithm; else -1."""
    called = np.full(node.height, -1, dtype=np.int64)
    instance, released = node["instance"], node["released_by"]
    inner = np.flatnonzero((instance >= 0) & (released >= 0))
    inner = inner[instance[released[inner]] < 0]
    called[released[inner]] = instance[inner]
    return called


_COLLECTIVE_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#F0E442")


def _bars(kind: np.ndarray, instance: np.ndarray, called: np.ndarray, panel: Panel):
    """(label, rows, distance above the lane's middle, height, colour, hatch) of each kind of bar."""
    workload = instance < 0
    yield "compute", workload & (kind == "compute"), 0.42, 0.42, "#0072B2", ""
    yield "remote memory", workload & (kind == "memory"), 0.42, 0.42, "#7f7f7f", "xxx"
    types: dict[int, str] = {}
    if "collective" in panel.tables:
        table = panel.tables["collective"]
        types = dict(zip(table["instance"].tolist(), table["type"].tolist(), strict=True))
    names = list(dict.fromkeys(types.values()))
    for number, name in enumerate(names):
        mine = np.array([types.get(i) == name for i in called.tolist()], dtype=bool)
        colour = _COLLECTIVE_COLOURS[number % len(_COLLECTIVE_COLOURS)]
        yield name.replace("_", "-"), workload & (kind == "collective") & mine, 0.0, 0.34, colour, ""
    yield "send", workload & (kind == "send"), 0.0, 0.18, "#D55E00", "///"
    yield "receive (waiting)", workload & (kind == "recv"), -0.18, 0.18, "#bbbbbb", "..."
    yield "compute of an algorithm", ~workload & (kind == "compute"), 0.42, 0.2, "#000000", ""
