"""Figure of the parts of the time as stacked bars, one for each value of x."""

from typing import Any

from astrasim_py.core.units import parse_time
from astrasim_py.report import figure_style as style
from astrasim_py.report import ticks
from astrasim_py.report.arranged_rows import Grid, name_of
from astrasim_py.report.breakdown_plot import PARTS
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.quantities import quantity_of

#: Times that differ by more are drawn as shares.
_WIDE = 12
_MARK: dict[str, Any] = {"color": "black", "marker": "D", "markersize": 3.5, "linestyle": "none"}
_DASH: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": (0, (2, 1))}


def draw_stacked(sheet: Sheet, grid: Grid) -> Drawn:
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    measured = _measured(grid)
    places, notes = _places(grid), list(grid.notes)
    figure, panels = sheet.panels(len(grid.facets), wide=len(places) > 12, sharex=True, sharey=True)
    # No bar is thinner than its name.
    room = 0.8 * (ticks.width_of(panels[0]) - 20) / style.SMALL
    if left_out := [key for key, place in places.items() if place + 1.2 > room]:
        notes.append(f"{len(left_out)} of {len(places)} bars left out of the figure; choose with where")
        places = {key: place for key, place in places.items() if key not in left_out}
    labels = {place: " · ".join(filter(None, (grid.axis.label(x), grid.name(s)))) for (s, x), place in places.items()}
    total, bound, parts = quantity_of("time_ns"), quantity_of("bound_ns"), [quantity_of(part[0]) for part in PARTS]
    times = [value for row in grid.points.values() if (value := total.value(row))]
    if not times:
        return style.nothing(panels, grid, total.empty)
    scale_asked = grid.spec.get("scale")
    share = scale_asked == "share" or (scale_asked is None and max(times) > _WIDE * min(times))
    unit, factor = ticks.time_unit(max(times))
    rows, shown, extra, highest = [], set(), 0.0, 0.0
    for facet, axes in zip(grid.facets, panels, strict=False):
        for (series, x), place in places.items():
            row = grid.points.get((facet, series, x))
            time = total.value(row) if row else None
            if row is None or not time:
                continue
            scale, bottom = time if share else factor, 0.0
            cells = {**grid.cells(facet, series, x), "time_ns": total.cell(time)}
            for part, (_, label, colour, hatch) in zip(parts, PARTS, strict=True):
                value = part.value(row)
                cells[part.column] = part.cell(value)
                if value:
                    shown.add(label)
                    look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4, "zorder": 2}
                    axes.bar(place, value / scale, 0.8, bottom, **look)
                    bottom += value / scale
            if grid.spec.get("bound"):
                cells["bound_ns"] = bound.cell(least := bound.value(row))
                if least:
                    shown.add("lower bound")
                    axes.hlines(least / scale, place - 0.45, place + 0.45, zorder=3, **_DASH)
            if (time_measured := measured.get((facet, series, x))) is not None:
                shown.add("measured")
                cells["measured_ns"] = total.cell(time_measured)
                highest = max(highest, time_measured / scale)
                axes.plot(place, time_measured / scale, zorder=4, **_MARK)
            rows.append(cells)
        extra = max(extra, ticks.label_values(axes, labels, categories=True))
        grid.title(axes, facet)
        name = " · ".join(name_of(key) for key in (grid.x, *grid.series_keys) if key)
        style.label(axes, name, "share of the time" if share else f"time ({unit})")
        ticks.number_axis(axes.yaxis, log=False)
        if share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylim(0, max(1.0, 1.05 * highest) if share else None)
    panels[0].set_xlim(-0.6, max(places.values()) + 0.6)
    figure.set_figheight(figure.get_figheight() + extra)
    entries: list[tuple[Artist, str]]
    entries = [(Patch(facecolor=c, hatch=hatch, edgecolor="white"), label) for _, label, c, hatch in PARTS]
    entries = [*entries, (Line2D([], [], **_DASH), "lower bound"), (Line2D([], [], **_MARK), "measured")]
    sheet.explain(panels, [entry for entry in entries if entry[1] in shown])
    missing = [] if shown - {"lower bound", "measured"} else ["the parts of the time are not known of these points"]
    for axes in panels if missing else ():
        style.say(axes, missing[0])
    return Drawn(panels, rows, [*notes, *missing])


def _measured(grid: Grid) -> dict[tuple[str, tuple[str, ...], str], float]:
    """Facet, series and x of points → their measured time, ps; notes the times of points that are not there."""
    times: dict[tuple[str, tuple[str, ...], str], float] = {}
    elsewhere = 0
    for entry in grid.spec.get("measured") or ():
        values = {key: text for key, text in entry.items() if key != "time"}
        places = [place for place, row in grid.points.items() if row.meets(values)]
        times |= dict.fromkeys(places, float(parse_time(entry["time"])))
        elsewhere += not places
    if elsewhere:
        grid.notes.append(f"{elsewhere} measured times are of points that are not shown")
    return times


def _places(grid: Grid) -> dict[tuple[tuple[str, ...], str], float]:
    """Series and x → place of their bar; bars of one x stand together."""
    places, place = {}, 0.0
    for x in grid.axis.texts:
        for series in grid.series:
            if any((facet, series, x) in grid.points for facet in grid.facets):
                places[series, x] = place
                place += 1
        place += 0.5 if len(grid.series) > 1 else 0.0
    return places
