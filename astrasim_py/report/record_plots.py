"""Figures of the records of single points: use of links, and Gantt charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astrasim_py.core.records import Table, empty_table
from astrasim_py.report.explain import called_instances
from astrasim_py.report.figure_style import PALETTE, Drawn, Sheet, clean, say, set_title, time_ticks
from astrasim_py.topology.drawing import FAILED, draw_network
from astrasim_py.topology.layout import spread

#: Maximum points in a figure of links or a Gantt chart.
PANELS = 9
_MAX_LANES = 64
#: Entries of jobs in a legend.
_MOST_JOBS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The input of a figure of records (links, gantt) for one point. `tables`: ``link`` and ``vertex``, ``edge``
    (links), ``node`` (gantt). `jobs`: NPU → its job, of several jobs. `switches`: so many of the last ranks are these.
    `failed`: links that failed at some time.
    """

    title: str
    makespan: int  # ps
    tables: Mapping[str, Table] = field(default_factory=dict)
    jobs: Mapping[int, str] = field(default_factory=dict)
    switches: int = 0
    failed: Sequence[int] = ()


def draw_links(sheet: Sheet, spec: Mapping, panels: Sequence[Panel]) -> Drawn:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    panels = list(panels)[:PANELS]
    figure, every = sheet.panels(len(panels), height=3.0)
    if not panels:
        say(every[0], "no finished points", empty=True)
        return Drawn(every, [], ["no finished points"])
    most = max((max(p.tables["link"]["busy"].tolist(), default=0) / max(p.makespan, 1) for p in panels), default=0)
    colours = Normalize(0.0, min(max(math.ceil(10 * most) / 10, 0.1), 1.0))
    # Without black: numbers are written on NPUs.
    jobs = list(dict.fromkeys(name for panel in panels for name in panel.jobs.values()))
    of_job = {name: to_rgba(PALETTE[1 + i % (len(PALETTE) - 1)], 0.55) for i, name in enumerate(jobs)}
    for panel, axes in zip(panels, every, strict=True):
        set_title(axes, panel.title)
        x, y, switch = places(panel.tables["vertex"], panel.tables["edge"])
        edge, link = panel.tables["edge"], panel.tables["link"]
        use = np.full(edge.height, -1.0)
        where = {number: row for row, number in enumerate(edge["link"].tolist())}
        for number, busy in zip(link["link"].tolist(), link["busy"].tolist(), strict=True):
            if number in where and panel.makespan:
                use[where[number]] = busy / panel.makespan
        npus = {npu: of_job[job] for npu, job in panel.jobs.items()}
        names = panel.tables["vertex"]["name"].tolist()
        names, lost = [clean(name) for name in names], np.isin(edge["link"], panel.failed)
        draw_network(axes, x, y, switch, names, edge["src"], edge["dst"], use, colours, npus, lost)
    figure.colorbar(
        ScalarMappable(norm=colours, cmap="cividis_r"),
        ax=every,
        shrink=0.75,
        pad=0.02,
        label="share of the time that the link was busy",
        format=lambda v, _: f"{100 * v:.0f} %",
    )
    patches = [(Patch(facecolor=of_job[name], edgecolor="#333333"), f"job {clean(name)}") for name in jobs]
    if len(patches) > _MOST_JOBS:
        patches[_MOST_JOBS - 1 :] = [(Patch(alpha=0), f"and {len(patches) - _MOST_JOBS + 1} more jobs")]
    if any(panel.failed for panel in panels):
        patches.append((Line2D([], [], **FAILED), "links that failed at some time"))
    sheet.explain(every, patches)
    return Drawn(every, [])


def places(vertex: Table, edge: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of vertices; an irregular topology in tiers by distance from the NPUs."""
    switch = vertex["kind"] == "switch"
    x, y = (np.asarray(vertex[name], dtype=float).copy() for name in ("x", "y"))
    return *spread(x, y, switch, edge["src"], edge["dst"]), switch


def draw_gantt(sheet: Sheet, spec: Mapping, panels: Sequence[Panel]) -> Drawn:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    panels = list(panels)[:PANELS]
    lanes = max((min(_ranks(p), _MAX_LANES) for p in panels), default=1)
    height = min(max(2.4, 0.22 * lanes + 1.2), 12.0)
    _, every = sheet.panels(len(panels), height=height, columns=1 if len(panels) < 4 else 2, wide=True)
    if not panels:
        say(every[0], "no finished points", empty=True)
        return Drawn(every, [], ["no finished points"])
    legend: dict[str, object] = {}
    for panel, axes in zip(panels, every, strict=True):
        node = panel.tables["node"]
        count = _ranks(panel)
        shown = min(count, _MAX_LANES)
        done = (node["start"] >= 0) & (node["end"] > node["start"]) & (node["rank"] < shown)
        rank, start, end = (node[name][done] for name in ("rank", "start", "end"))
        kind, instance = node["kind"][done], node["instance"][done]
        first_of = called_instances(node)[done]
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
        axes.set_ylim(shown - 0.45, -0.55)
        axes.set_xlim(0, max(panel.makespan, 1))
        time_ticks(axes.xaxis, 7)
        axes.yaxis.set_major_locator(MaxNLocator(min(shown, 16), integer=True))
        axes.grid(False, axis="y")
        axes.set_ylabel("rank")
        more = f" (first {shown} of {count} ranks)" if count > shown else ""
        set_title(axes, panel.title + more)
    every[-1].set_xlabel("time")
    sheet.explain(every, [(patch, label) for label, patch in legend.items()])
    return Drawn(every, [])


def _ranks(panel: Panel) -> int:
    """Ranks, without those of switches, which wait for their calls from the start."""
    node = panel.tables["node"]
    return int(node["rank"].max()) + 1 - panel.switches if node.height else 1


_COLLECTIVE_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#F0E442")


def _bars(kind: np.ndarray, instance: np.ndarray, called: np.ndarray, panel: Panel):
    """(label, rows, distance above the lane's middle, height, colour, hatch) of each kind of bar."""
    workload = instance < 0
    yield "compute", workload & (kind == "compute"), 0.42, 0.42, "#0072B2", ""
    yield "remote memory", workload & (kind == "memory"), 0.42, 0.42, "#7f7f7f", "xxx"
    table = panel.tables.get("collective", empty_table(("instance", "type")))
    types = dict(zip(table["instance"].tolist(), table["type"].tolist(), strict=True))
    for number, name in enumerate(dict.fromkeys(types.values())):
        mine = np.array([types.get(i) == name for i in called.tolist()], dtype=bool)
        colour = _COLLECTIVE_COLOURS[number % len(_COLLECTIVE_COLOURS)]
        yield name.replace("_", "-"), workload & (kind == "collective") & mine, 0.0, 0.34, colour, ""
    yield "send", workload & (kind == "send"), 0.0, 0.18, "#D55E00", "///"
    yield "receive (waiting)", workload & (kind == "recv"), -0.18, 0.18, "#bbbbbb", "..."
    yield "compute of an algorithm", ~workload & (kind == "compute"), 0.42, 0.2, "#000000", ""
