"""Figures of measured times: points over simulated curves, as bus bandwidth against size."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from astrasim_py.core.units import format_size
from astrasim_py.report.figure_style import COLOURS, MARKERS, Sheet, set_title
from astrasim_py.report.ticks import number_axis

#: Half the width of the band around a curve, as a share.
BAND = 0.1


class Curve(NamedTuple):
    """Bus bandwidths of one group size, GB/s: simulated by size, ascending; measured ones with sizes of their own.
    `slow`: of sizes that are too slow, how many times.
    """

    ranks: int
    sizes: Sequence[int]
    simulated: Sequence[float]
    measured_sizes: Sequence[int]
    measured: Sequence[float]
    slow: Mapping[int, float]


def bus_bandwidths(heading: str, panels: Mapping[str, Sequence[Curve]]):
    """A panel per collective, a colour per group size. The band is ±10 % around the simulated curve."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter

    sheet = Sheet(heading=heading, width="text")
    figure, grid = sheet.panels(len(panels), columns=2)
    entries: dict[str, Line2D] = {}
    for axes, (name, curves) in zip(grid, panels.items(), strict=True):
        set_title(axes, name)
        for number, curve in enumerate(curves):
            colour, simulated = COLOURS[number % len(COLOURS)], np.array(curve.simulated)
            axes.fill_between(
                curve.sizes, (1 - BAND) * simulated, (1 + BAND) * simulated, color=colour, alpha=0.25, lw=0
            )
            (line,) = axes.plot(curve.sizes, simulated, color=colour, linewidth=1.6)
            axes.plot(
                curve.measured_sizes,
                curve.measured,
                MARKERS[number % len(MARKERS)],
                color=colour,
                markersize=4,
                markerfacecolor="white",
            )
            entries.setdefault(f"{curve.ranks} ranks", line)
            for size, value in zip(curve.measured_sizes, curve.measured, strict=True):
                if size in curve.slow:
                    (point,) = axes.plot(size, value, MARKERS[number % len(MARKERS)], color=colour, markersize=6)
                    text, below = f"{curve.slow[size]:.2g}×", {"xytext": (0, -7), "textcoords": "offset points"}
                    axes.annotate(text, (size, value), ha="center", va="top", **below)
                    entries.setdefault("too slow, how many times", point)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sorted({size for curve in curves for size in curve.sizes})
        axes.xaxis.set_major_locator(FixedLocator(sizes[:: -(-len(sizes) // 6)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(int(size))))
        number_axis(axes.yaxis, log=True)
        axes.set_xlabel("full buffer")
        axes.set_ylabel("bus bandwidth (GB/s)")
    sheet.explain(grid, [(line, label) for label, line in entries.items()])
    return figure
