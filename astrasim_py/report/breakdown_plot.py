"""Figure of the parts of the time: a bar for each point."""

from astrasim_py.core.units import format_time
from astrasim_py.report import figure_style as style
from astrasim_py.report.arranged_rows import Grid
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.tables import ps_of

_MAX_BARS = 60
#: Parts of the time: column, name, colour, hatch.
PARTS = (
    ("compute_ns", "compute", "#0072B2", ""),
    ("exposed_comm_ns", "exposed communication", "#E69F00", "////"),
    ("other_ns", "other waiting", "#d9d9d9", "...."),
)


def draw_breakdown(sheet: Sheet, grid: Grid) -> Drawn:
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    bars = [(x, series) for x in grid.axis.texts for series in grid.series][:_MAX_BARS]
    bars = [b for b in bars if any((f, b[1], b[0]) in grid.points for f in grid.facets)]
    height = max(1.6, 0.19 * len(bars) + 0.8)
    _, panels = sheet.panels(len(grid.facets), height=height, wide=True, sharex=True, sharey=True)
    if not bars:
        style.say(panels[0], "no finished points", empty=True)
        return Drawn(panels, [], ["no finished points"])
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
            for key, label, colour, hatch in PARTS:
                part = ps_of(row.get(key)) or 0
                wide = part / total if relative else float(part)
                if part:
                    shown.add(label)
                    axes.barh(y, wide, left=left, height=0.78, color=colour, hatch=hatch, edgecolor="white", lw=0.5)
                left += wide
            look = {"va": "center", "fontsize": style.SMALL, "color": "#333333"}
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
            style.label(axes, "share of the time", "")
        else:
            style.time_ticks(axes.xaxis, 5)
            style.label(axes, "time", "")
        grid.title(axes, facet)
    panels[0].set_ylim(place[-1] + 0.8, -0.8)
    patches = [
        (Patch(facecolor=colour, hatch=hatch, edgecolor="white"), label)
        for _, label, colour, hatch in PARTS
        if label in shown
    ]
    sheet.explain(panels, patches)
    table = [
        {**grid.cells(*place), **{key: row.get(key) for key in ("time_ns", *(part[0] for part in PARTS))}}
        for place, row in grid.points.items()
    ]
    return Drawn(panels, table, grid.notes)
