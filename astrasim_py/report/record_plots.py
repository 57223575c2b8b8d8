"""Figures of the records of single points: use of links, and Gantt charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astrasim_py.core.records import Table, empty_table
from astrasim_py.report.explain import called_instances
from astrasim_py.report.figure_style import (
    PALETTE,
    canvas,
    clean,
    legend_below,
    say_nothing_finished,
    set_title,
    time_ticks,
)

#: Maximum points in a figure of links or a Gantt chart.
PANELS = 9
_MAX_LANES = 64
#: Entries of jobs in a legend.
_MOST_JOBS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The input of a figure of records (links, gantt) for one point. `tables`: ``link`` and ``vertex``, ``edge``
    (links), ``node`` (gantt). `jobs`: NPU → its job, of several jobs. `switches`: so many of the last ranks are these.
    """

    title: str
    makespan: int  # ps
    tables: Mapping[str, Table] = field(default_factory=dict)
    jobs: Mapping[int, str] = field(default_factory=dict)
    switches: int = 0


def draw_links(panels: Sequence[Panel], heading: str):
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import Normalize, to_rgba
    from matplotlib.patches import Patch

    panels = list(panels)[:PANELS]
    figure, every = canvas(len(panels), heading, width=4.4, height=4.3, columns=3)
    if not panels:
        say_nothing_finished(every[0])
        return figure
    most = max((max(p.tables["link"]["busy"].tolist(), default=0) / max(p.makespan, 1) for p in panels), default=0)
    colours = Normalize(0.0, min(max(math.ceil(10 * most) / 10, 0.1), 1.0))
    # Without black: numbers are written on NPUs.
    jobs = list(dict.fromkeys(name for panel in panels for name in panel.jobs.values()))
    of_job = {name: to_rgba(PALETTE[1 + i % (len(PALETTE) - 1)], 0.55) for i, name in enumerate(jobs)}
    for panel, axes in zip(panels, every, strict=True):
        set_title(axes, panel.title)
        axes.set_aspect("equal")
        axes.axis("off")
        x, y, switch = places(panel.tables["vertex"], panel.tables["edge"])
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
        npus = [of_job.get(panel.jobs.get(v), "white") for v in np.flatnonzero(~switch).tolist()]
        axes.scatter(x[~switch], y[~switch], s=size, c="white", linewidths=0, zorder=4)
        axes.scatter(x[~switch], y[~switch], s=size, c=npus, edgecolors="#333333", linewidths=0.8, zorder=4)
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
    patches = [(Patch(facecolor=of_job[name], edgecolor="#333333"), f"job {clean(name)}") for name in jobs]
    if len(patches) > _MOST_JOBS:
        patches[_MOST_JOBS - 1 :] = [(Patch(alpha=0), f"and {len(patches) - _MOST_JOBS + 1} more jobs")]
    if patches:
        legend_below(figure, patches)
    return figure


def places(vertex: Table, edge: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of vertices; an irregular topology in tiers by distance from the NPUs."""
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


def draw_gantt(panels: Sequence[Panel], heading: str):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    panels = list(panels)[:PANELS]
    lanes = max((min(_ranks(p), _MAX_LANES) for p in panels), default=1)
    height = min(max(2.4, 0.22 * lanes + 1.2), 12.0)
    figure, every = canvas(len(panels), heading, width=7.0, height=height, columns=1 if len(panels) < 4 else 2)
    if not panels:
        say_nothing_finished(every[0])
        return figure
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
    legend_below(figure, [(patch, label) for label, patch in legend.items()])
    return figure


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
