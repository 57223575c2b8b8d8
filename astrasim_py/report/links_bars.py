"""The use of the links of a large network as bars, by what the links join."""

import re

import numpy as np

from astrasim_py.report import figure_style as style
from astrasim_py.report.record_plots import Panel, percent, texts

#: Most kinds of links that have a group of bars each.
_MOST_GROUPS = 8


def draw_bars(axes, panel: Panel, use: np.ndarray, scale) -> None:
    """Links of each kind from the busiest to the least, as bars without gaps."""
    from matplotlib import colormaps
    from matplotlib.ticker import FuncFormatter

    shares = np.maximum(use, 0.0)
    kind, names = _kinds(panel)
    count = np.bincount(kind, minlength=len(names))
    gap = 0.02 * len(use) if len(names) > 1 else 0.0
    first, middle = 0.0, []
    for number in range(len(names)):
        part = np.sort(shares[kind == number])[::-1]
        # So many bars as can be told apart: each stands for some links and is as high as the busiest of them.
        step = -(-len(part) // 64)
        low = np.arange(0, len(part), step)
        wide = np.minimum(low + step, len(part)) - low
        axes.bar(
            first + low,
            part[low],
            width=wide,
            align="edge",
            color=colormaps["cividis_r"](scale(part[low])),
            linewidth=0,
        )
        axes.plot([first, first + len(part)], [part.mean()] * 2, color=style.GREY, linewidth=0.7, linestyle=(0, (3, 2)))
        middle.append(first + len(part) / 2)
        first += len(part) + gap
    axes.set_xlim(0, first - gap)
    axes.set_ylim(0, 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(percent))
    turned = len(names) > 3
    labels = [f"{name}{' ' if turned else chr(10)}({n:,})" for name, n in zip(names, count.tolist(), strict=True)]
    look = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    axes.set_xticks(middle, labels, **look)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")
    axes.set_xlabel("links, the busiest first (dashed: mean)")
    axes.set_ylabel("time busy")


def _kinds(panel: Panel) -> tuple[np.ndarray, list[str]]:
    """The kind of each link, by what it joins, and the names of the kinds."""
    vertex, edge = panel.tables["vertex"], panel.tables["edge"]
    names = texts(vertex["name"])
    switch = (vertex["kind"] == "switch").tolist()
    block = [re.sub(r"\d+$", "", name) if is_switch else "NPU" for name, is_switch in zip(names, switch, strict=True)]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(block))}
    of = np.array([number_of[name] for name in block])
    pair, kind = np.unique(of[edge["src"]] * len(number_of) + of[edge["dst"]], return_inverse=True)
    called = list(number_of)
    labels = [f"{called[p // len(number_of)]} → {called[p % len(number_of)]}" for p in pair.tolist()]
    if len(labels) > _MOST_GROUPS:
        return np.zeros(edge.height, dtype=np.int64), ["all links"]
    return kind.reshape(-1), labels
