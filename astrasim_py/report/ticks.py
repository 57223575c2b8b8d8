"""Ticks and labels of axes: logarithmic ones have at least three, times are in one unit."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from astrasim_py.core.units import format_size, format_time
from astrasim_py.core.value_order import SIZES
from astrasim_py.report import figure_style as style

#: Fewest labels of a logarithmic axis, and most of any.
LEAST, MOST = 3, 7
#: Most characters of a turned label.
_TURNED = 28
_UNITS = (("s", 1e12), ("ms", 1e9), ("µs", 1e6), ("ns", 1e3), ("ps", 1.0))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def time_unit(ps: float) -> tuple[str, float]:
    """The unit that a time is written in, and its picoseconds."""
    return next((unit for unit in _UNITS if ps >= unit[1]), _UNITS[-1])


def number_text(value: float) -> str:
    """A number as the label of a tick: with commas, or as a power of ten where it has many digits.

    >>> [number_text(value) for value in (0.25, 20_000.0, 1e9, 2e-7)]
    ['0.25', '20,000', '10⁹', '2·10⁻⁷']
    """
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.6g}"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    factor, power = f"{value / 10**exponent:.6g}", "10" + str(exponent).translate(_SUPERSCRIPTS)
    return power if factor == "1" else f"{factor}·{power}"


def log_ticks(low: float, high: float, width: float = math.inf) -> list[float]:
    """Round numbers from `low` to `high` for a logarithmic axis, so many as can be written in its `width`, points; no
    fewer than `LEAST` if that is possible.
    """
    from matplotlib.ticker import MaxNLocator

    if not 0 < low < high:
        return [low] if low > 0 else []
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    inside = (1 - 1e-9) * low, (1 + 1e-9) * high
    for factors in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        ticks = [f * 10.0**e for e in range(first, last + 1) for f in factors if inside[0] <= f * 10.0**e <= inside[1]]
        if len(ticks) >= LEAST:
            return _thinned(ticks, width) if factors == (1,) else ticks
    return [t for t in MaxNLocator(5, min_n_ticks=LEAST).tick_values(low, high) if inside[0] <= t <= inside[1]]


def _thinned(ticks: list[float], width: float) -> list[float]:
    """Every second tick, or third …, so that labels do not touch."""
    widest = 1.3 * max(style.text_width(number_text(tick)) for tick in ticks)
    limit = max(int(min(MOST, width / widest)), LEAST)
    return ticks[:: max(min(math.ceil(len(ticks) / limit), (len(ticks) - 1) // (LEAST - 1)), 1)]


@cache
def _log_locator() -> type:
    from matplotlib.axis import XAxis
    from matplotlib.ticker import Locator

    class LogLocator(Locator):
        """Places of `log_ticks` on an axis, whatever part of it is shown."""

        def __call__(self):
            return self.tick_values(*self.axis.get_view_interval()) if self.axis is not None else []

        def tick_values(self, vmin, vmax):
            low, high = sorted((vmin, vmax))
            return log_ticks(low, high, width_of(self.axis.axes) if isinstance(self.axis, XAxis) else math.inf)

    return LogLocator


def number_axis(axis, log: bool) -> None:
    """Label an axis of numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    limit = 6 if axis.axis_name == "y" else min(max(int(width_of(axis.axes) / 36), LEAST), 6)
    axis.set_major_locator(_log_locator()() if log else MaxNLocator(limit, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def time_axis(axis, most_ps: float) -> str:
    """Label an axis of picoseconds in the unit that fits `most_ps`; returns the unit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit, factor = time_unit(most_ps)
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda ps, _: number_text(ps / factor)))
    return unit


def label_between(low: float, high: float, kind: int) -> dict[float, str]:
    """A third label for a logarithmic axis of two values. `kind`: of the values, as in `tables.value_order`."""
    if kind == SIZES:
        power = round((math.log2(low) + math.log2(high)) / 2)
        return {float(2**power): format_size(2**power)}
    inside = [tick for tick in log_ticks(low, high) if 1.2 * low < tick < high / 1.2] or [math.sqrt(low * high)]
    tick = inside[len(inside) // 2]
    text_of: dict[int, Callable[[float], str]] = {
        0: number_text,
        2: lambda ps: format_time(int(ps)),
        3: lambda rate: f"{rate / 1e9:g} GB/s",
    }
    return {tick: text_of[kind](tick)}


def label_values(
    axes, labels: Mapping[float, str], *, log: bool = False, categories: bool = False, beside: float = 0.0
) -> float:
    """Label the axis of x at some values, ascending: those whose labels fit, turned if few do. `beside`: points of the
    panel's width that stay free. Returns the height that turned labels take in addition, inches.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    values = list(labels)
    if categories:
        axes.set_xlim(min(values, default=0) - 0.6, max(values, default=0) + 0.6)
        axes.grid(False, axis="x")
    else:
        axes.set_xlim(*_widened(min(values, default=1), max(values, default=1), log))
    low, high = axes.get_xlim()
    scaled = math.log if log else float
    room = max(width_of(axes) - beside, 40) / (scaled(high) - scaled(low))
    places = [(scaled(value) - scaled(low)) * room for value in values]
    size = FontProperties(size=rcParams["xtick.labelsize"]).get_size_in_points()
    widths = [style.text_width(text, size) + 5 for text in labels.values()]
    shown, extra = fitting(places, widths), 0.0
    if len(shown) < (len(values) if categories else min(len(values), LEAST)):
        shown = fitting(places, [1.7 * size] * len(values))
        axes.tick_params(axis="x", rotation=40)
        limit = max(min(_TURNED, int(width_of(axes) / 5)), 12)
        labels = {value: style.shortened(text, limit) for value, text in labels.items()}
        widths = [style.text_width(text, size) for text in labels.values()]
        extra = max((widths[i] for i in shown), default=0) * math.sin(math.radians(40)) / 72
    axes.xaxis.set_major_locator(FixedLocator([values[i] for i in shown]))
    axes.xaxis.set_major_formatter(FixedFormatter([labels[values[i]] for i in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    if extra:
        for tick in axes.get_xticklabels():
            tick.set(horizontalalignment="right", rotation_mode="anchor")
    return extra


def _widened(low: float, high: float, log: bool) -> tuple[float, float]:
    """Limits of an axis with some room at both ends."""
    if log:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * (high - low) or max(abs(low), 1.0) / 2
    return low - room, high + room


def width_of(axes) -> float:
    """About the width of a panel before the figure is laid out, points."""
    from matplotlib import rcParams

    place = axes.get_subplotspec()
    if place is None or axes.figure.get_layout_engine() is None:
        return axes.bbox.width * 72 / axes.figure.dpi
    columns, size = place.get_gridspec().ncols, rcParams["font.size"]
    return max((72 * axes.figure.get_figwidth() - 5.5 * size) / columns - (12 if size < 10 else 5 * size), 40)


def fitting(places: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Which labels can be written without touching: the first, the last, and as many between as fit."""
    chosen: list[int] = []
    for number in range(len(places)):
        if not chosen or _apart(chosen[-1], number, places, widths):
            chosen.append(number)
    if chosen and chosen[-1] != len(places) - 1:
        chosen[-1 if len(chosen) > 1 else 1 :] = [len(places) - 1]
        while len(chosen) > 1 and not _apart(chosen[-2], chosen[-1], places, widths):
            del chosen[-2 if len(chosen) > 2 else -1]
    return chosen


def _apart(a: int, b: int, places: Sequence[float], widths: Sequence[float]) -> bool:
    return abs(places[b] - places[a]) >= (widths[a] + widths[b]) / 2
