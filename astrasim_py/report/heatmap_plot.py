"""Figure of a quantity as colour over two swept keys."""

import numpy as np

from astrasim_py.report import figure_style as style
from astrasim_py.report import ticks
from astrasim_py.report.arranged_rows import Grid, XAxis, name_of
from astrasim_py.report.figure_style import SMALL, Drawn, Sheet
from astrasim_py.report.quantities import quantity_of, scale_of

#: From this factor on colours are logarithmic.
_LOG = 30


def draw_heatmap(sheet: Sheet, grid: Grid) -> Drawn:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    quantity = quantity_of(grid.spec.get("y") or "time_ns")
    series_of = {grid.name(series): series for series in grid.series}
    down, across = XAxis(list(series_of)), grid.axis
    height = min(max(0.24 * len(down.texts) + 0.75, 1.5), 8.0)
    names = list(map(down.label, down.texts))
    wide = len(across.texts) > 12 or max(map(style.text_width, names), default=0.0) > 90
    names = [style.narrowed(name, 0.3 * 72 * sheet.inches(len(grid.facets), wide)) for name in names]
    beside = max(map(style.text_width, names), default=0.0)
    figure, panels = sheet.panels(len(grid.facets), height=height, wide=wide, sharex=True, sharey=True)
    beside = (beside + 20) / sheet.columns(len(grid.facets))
    values, rows = np.full((len(grid.facets), len(down.texts), len(across.texts)), np.nan), []
    for panel, facet in enumerate(grid.facets):
        for line, name in enumerate(down.texts):
            for x, value in grid.values(facet, series_of[name], quantity.value).items():
                values[panel, line, across.texts.index(x)] = value.middle
                rows.append({**grid.cells(facet, series_of[name], x), quantity.column: quantity.cell(value.middle)})
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return style.nothing(panels, grid, quantity.empty)
    scale = scale_of(quantity, numbers.tolist(), grid.spec.get("scale"), grid.place, _LOG)
    low, high = float(numbers.min()) / scale.factor, float(numbers.max()) / scale.factor
    if low == high:
        low, high = (low / 2, 2 * high) if scale.log else (min(0.0, 2 * low), max(2 * high, 0.0) or 1.0)
    norm = (LogNorm if scale.log else Normalize)(low, high)
    room, extra = 72 * (height - 0.75) / len(down.texts), 0.0
    for axes, facet, shown in zip(panels, grid.facets, values / scale.factor, strict=False):
        axes.imshow(shown, cmap="cividis", norm=norm, aspect="auto", origin="lower")
        _write_numbers(axes, shown, norm, room, beside)
        labels = {float(place): across.label(text) for place, text in enumerate(across.texts)}
        extra = max(extra, ticks.label_values(axes, labels, categories=True, beside=beside))
        axes.set_xlim(-0.5, len(across.texts) - 0.5)
        lines = ticks.fitting([room * line for line in range(len(down.texts))], [1.3 * SMALL] * len(down.texts))
        axes.set_yticks(lines, [names[line] for line in lines])
        axes.grid(False)
        axes.tick_params(length=0)
        grid.title(axes, facet)
        style.label(axes, name_of(grid.x) if grid.x else "", grid.legend_title())
    figure.set_figheight(figure.get_figheight() + extra)
    bar = figure.colorbar(ScalarMappable(norm, "cividis"), ax=panels, label=scale.label, aspect=25, pad=0.02)
    ticks.number_axis(bar.ax.yaxis, scale.log)
    return Drawn(panels, rows, grid.notes)


def _write_numbers(axes, values: np.ndarray, norm, room: float, beside: float) -> None:
    """Write the values into their cells, `room` points high, if all fit; a dash where there is none."""
    texts = {place: _short(value) for place, value in np.ndenumerate(values)}
    widest = max(style.text_width(text, SMALL - 1) for text in texts.values())
    fits = widest + 2 <= (ticks.width_of(axes) - beside) / values.shape[1] and room >= SMALL
    for (row, column), text in texts.items():
        if fits or text == "–":
            light = text == "–" or norm(values[row, column]) > 0.55
            axes.text(column, row, text, ha="center", va="center", fontsize=SMALL - 1, color="k" if light else "w")


def _short(value: float) -> str:
    """A number in at most five characters where that is possible, a dash for none."""
    if np.isnan(value):
        return "–"
    factor, letter = next(((f, s) for f, s in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= f), (1.0, ""))
    return f"{value / factor:.3g}{letter}"
