"""Figures of the use of links: the network with links in colours; `links_bars` for networks of many vertices."""

from collections.abc import Mapping, Sequence

import numpy as np

from astrasim_py.core.records import Categorical
from astrasim_py.report import figure_style as style
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.record_plots import PANELS, Panel, joined, percent, places, texts
from astrasim_py.topology.drawing import COMPUTING, CROSS, FAILED, draw_network

#: Networks of more vertices are shown as bars.
MOST_VERTICES = 128
#: Most entries of jobs in a legend.
_MOST_JOBS = 6
_LABEL = "time busy"


def draw_links(sheet: Sheet, spec: Mapping, panels: Sequence[Panel]) -> Drawn:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgba

    panels = panels[:PANELS]
    figure, plots = sheet.panels(len(panels), height=_height(sheet, panels), columns=_columns(sheet, panels))
    if not panels:
        return style.nothing(plots)
    scale = Normalize(0.0, 1.0)
    jobs = list(dict.fromkeys(name for panel in panels for name in panel.jobs.values()))
    of_job = {name: to_rgba(style.FILLS[i % len(style.FILLS)], 0.55) for i, name in enumerate(jobs)}
    tables, notes, shown = [], [], []
    for panel, axes in zip(panels, plots, strict=True):
        if panel.title:
            # The scale takes a part of the width.
            style.set_title(axes, panel.title, 60 / _columns(sheet, panels) * _drawable(panel))
        use = _use(panel)
        tables.append(_table(panel, use))
        vertex, edge = panel.tables["vertex"], panel.tables["edge"]
        if not _drawable(panel):
            from astrasim_py.report.links_bars import draw_bars

            draw_bars(axes, panel, use, scale)
            continue
        shown.append(panel)
        x, y, switch = places(vertex, edge)
        npus = {panel.npu_of[rank] if len(panel.npu_of) else rank: of_job[job] for rank, job in panel.jobs.items()}
        names = [style.clean(name, 24) for name in texts(vertex["name"])]
        lost = np.isin(edge["link"], panel.failed)
        ends = edge["src"], edge["dst"]
        draw_network(axes, x, y, switch, names, *ends, use, scale, npus, lost, set(panel.switches), panel.cut)
    if not all(panel.tables["link"]["busy"].any() for panel in panels):
        notes.append("links: under this network model, or below level links, no link is ever busy")
    if shown:
        figure.colorbar(
            ScalarMappable(norm=scale, cmap="cividis_r"), ax=plots, label=_LABEL, format=percent, shrink=0.9, pad=0.02,
            aspect=30, ticks=[0, 0.25, 0.5, 0.75, 1],
        )  # fmt: skip
    sheet.explain(plots, _legend(shown, of_job))
    return Drawn(plots, joined(tables), notes)


def _drawable(panel: Panel) -> bool:
    return panel.tables["vertex"].height <= MOST_VERTICES


def _columns(sheet: Sheet, panels: Sequence[Panel]) -> int:
    return (
        min(
            len(panels),
            sheet.columns(len(panels)),
            3 if len(panels) not in (2, 4) and any(map(_drawable, panels)) else 2,
        )
        or 1
    )


def _height(sheet: Sheet, panels: Sequence[Panel]) -> float:
    """Height of a panel, inches: so high that the drawings fill it."""
    heights = [1.0]
    wide = 0.85 * sheet.inches(len(panels)) / _columns(sheet, panels)
    for panel in panels:
        if _drawable(panel):
            x, y, _ = places(panel.tables["vertex"], panel.tables["edge"])
            heights.append(min((np.ptp(y) + 1) / (np.ptp(x) + 1), 1.1) * wide + 0.25)
        else:
            heights.append(2.0)
    return max(heights) + 0.14 + sheet.title_height([panel.title for panel in panels], _columns(sheet, panels))


def _use(panel: Panel) -> np.ndarray:
    """The share of the time that each link of the table of links was busy; -1 where it carried nothing."""
    edge, link = panel.tables["edge"], panel.tables["link"]
    use = np.full(edge.height, -1.0)
    order = np.argsort(edge["link"], kind="stable")
    place = np.searchsorted(edge["link"][order], link["link"])
    rows = np.flatnonzero(place < edge.height)
    rows = rows[edge["link"][order[place[rows]]] == link["link"][rows]]
    if panel.makespan:
        share = np.maximum(link["busy"][rows], 0) / panel.makespan
        use[order[place[rows]]] = np.where(link["bytes"][rows] > 0, share, -1.0)
    return use


def _legend(panels: Sequence[Panel], of_job: Mapping[str, tuple]) -> list:
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[tuple[Artist, str]]
    entries = [(Patch(facecolor=of_job[job], edgecolor="#333333"), f"job = {style.clean(job, 24)}") for job in of_job]
    if len(entries) > _MOST_JOBS:
        entries[_MOST_JOBS - 1 :] = [(Patch(alpha=0), f"and {len(entries) - _MOST_JOBS + 1} more jobs")]
    if any(panel.switches for panel in panels):
        entries.append((Patch(**COMPUTING), "switch that computes"))
    if any(panel.cut for panel in panels):
        entries.append((Line2D([], [], **{**FAILED, **CROSS, "linestyle": FAILED["linestyle"]}), "link that is down"))
    if any(len(panel.failed) for panel in panels):
        entries.append((Line2D([], [], **FAILED), "link that failed at some time"))
    return entries


def _table(panel: Panel, use: np.ndarray) -> dict:
    edge, link = panel.tables["edge"], panel.tables["link"]
    carried = dict(zip(link["link"].tolist(), link["bytes"].tolist(), strict=True))
    return {
        "panel": Categorical(np.zeros(edge.height, dtype=np.int32), [panel.title]),
        "link": Categorical.of(texts(edge["name"])),
        "bytes": np.array([carried.get(number, 0) for number in edge["link"].tolist()], dtype=np.int64),
        "busy_share": np.round(np.maximum(use, 0.0), 9),
    }
