"""Figure of the parts of the time: a bar for each point."""

from astrasim_py.core.units import format_time
from astrasim_py.report import figure_style as style
from astrasim_py.report.arranged_rows import Grid, name_of
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.ticks import time_axis
from astrasim_py.results.values import ps_of

_MAX_BARS = 60
#: Parts of the time: column, name, colour, hatch.
PARTS = (
    ("compute_ns", "compute", style.COMPUTE_COLOURS[0], ""),
    ("exposed_comm_ns", "exposed communication", style.COMMUNICATION_COLOURS[0], "////"),
    ("other_ns", "other waiting", style.WAITING_COLOUR, "\\\\\\\\"),
)


def draw_breakdown(sheet: Sheet, grid: Grid) -> Drawn:
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    pairs = [(x, series) for x in grid.axis.texts for series in grid.series]
    pairs = [b for b in pairs if any((f, b[1], b[0]) in grid.points for f in grid.facets)]
    bars, notes = pairs[:_MAX_BARS], list(grid.notes)
    if len(pairs) > _MAX_BARS:
        notes.append(f"{len(pairs) - _MAX_BARS} of {len(pairs)} bars left out of the breakdown; choose with where")
    room_of_names = 0.5 * 72 * sheet.inches(len(grid.facets), True) / sheet.columns(len(grid.facets))
    times = [row.time_ps or 0 for (_, series, x), row in grid.points.items() if (x, series) in bars]
    relative = bool(times) and max(times) > 12 * max(min(times), 1)
    place: list[float] = []
    gap, last = 0.0, None
    for x, _ in bars:
        gap += 0.6 if last not in (None, x) and len(grid.series) > 1 else 0.0
        place.append(len(place) + gap)
        last = x
    if not bars:
        return style.nothing(sheet.panels(1)[1])
    # Bars are thicker than their names, however many stand apart.
    height = max(1.6, 0.19 * (place[-1] + 1.6) + 0.6)
    _, panels = sheet.panels(len(grid.facets), height=height, wide=True, sharex=True, sharey=True)
    shown = set()
    for facet, axes in zip(grid.facets, panels, strict=False):
        for y, (x, series) in zip(place, bars, strict=True):
            row = grid.points.get((facet, series, x))
            total = row.time_ps if row else None
            if row is None or not total:
                continue
            offset = 0.0
            for key, label, colour, hatch in PARTS:
                part = ps_of(row.value(key)) or 0
                wide = part / total if relative else float(part)
                if part:
                    shown.add(label)
                    axes.barh(y, wide, left=offset, height=0.78, color=colour, hatch=hatch, edgecolor="white", lw=0.5)
                offset += wide
            look = {"va": "center", "fontsize": 6.5, "color": "#333333", "annotation_clip": False}
            time_text = format_time(total)
            axes.annotate(time_text, (offset, y), xytext=(3, 0), textcoords="offset points", **look)
        names = [" · ".join(filter(None, (grid.axis.label(x), grid.name(series)))) for x, series in bars]
        axes.set_yticks(place, [style.narrowed(name, room_of_names) for name in names])
        axes.grid(False, axis="y")
        # The time of the longest bar stands beside the panel: the layout leaves room for it.
        axes.set_xlim(0, 1.03 * (1.0 if relative else max(times)))
        keys = " · ".join(name_of(key) for key in (grid.x, *grid.series_keys) if key)
        if relative:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
            style.label(axes, "share of the time", keys)
        else:
            style.label(axes, f"time ({time_axis(axes.xaxis, max(times))})", keys)
        grid.title(axes, facet)
    panels[0].set_ylim(place[-1] + 0.8, -0.8)
    patches = [
        (Patch(facecolor=colour, hatch=hatch, edgecolor="white"), label)
        for _, label, colour, hatch in PARTS
        if label in shown
    ]
    sheet.explain(panels, patches)
    table = [
        {**grid.cells(*place), **{key: row.value(key) for key in ("time_ns", *(part[0] for part in PARTS))}}
        for place, row in grid.points.items()
    ]
    return Drawn(panels, table, notes)
