"""Figures of an exploration: where the time and the memory of the best go, and how configurations compare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from astrasim_py.report.figure_style import (
    BLACK,
    BLUE,
    COLOURS,
    COMMUNICATION_COLOURS,
    FILLS,
    FORMATS,
    GREEN,
    GREY,
    MARKERS,
    PHASE_COLOURS,
    SKY,
    SMALL,
    VERMILION,
    WAITING_COLOUR,
    Sheet,
    clean,
    label,
    our_style,
    render,
)
from astrasim_py.report.ticks import number_axis
from astrasim_py.report.training import PARTS

#: Points of a scatter at most.
_POINTS = 20_000
_HATCHES = ("", "//")
#: Parts of a step in the order of the bars, computation first, and their colours.
_STEP = {
    **PHASE_COLOURS,
    "host": "#999999",
    **dict(zip(("tp", "cp", "ep", "pp", "dp", "reduction"), COMMUNICATION_COLOURS, strict=False)),
    "bubble": WAITING_COLOUR,
    "memory": BLACK,
}


def files(name: str, draw: Callable[[], Any]) -> dict[str, bytes]:
    """The figure that `draw` makes, in all formats."""
    with our_style():
        figure = draw()
        return {f"{name}.{form}": render(figure, form, {"Title": name}) for form in FORMATS}


def _canvas(heading: str, height: float, width: float | str = "text"):
    """A figure of one panel. `height`: inches. `width`: cm, or in words."""
    figure, (axes,) = Sheet(heading=heading, width=width).panels(1, height=height)
    return figure, axes


def _explain(axes) -> None:
    """A legend of all that has a label."""
    Sheet().explain([axes], list(zip(*axes.get_legend_handles_labels(), strict=True)))


def time_bars(rows: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any]):
    """Stacked parts of steps, in steps of the baseline, which is the last bar."""
    shown = [*rows, baseline]
    figure, axes = _canvas("Step time by part", 0.19 * len(shown) + 0.8)
    present = [part for part in _STEP if any(row["parts_s"][part] > 0 for row in shown)]
    values = [[row["parts_s"][part] / baseline["step_s"] for row in shown] for part in present]
    _stack(axes, values, [PARTS[part] for part in present], [_STEP[part] for part in present], shown)
    axes.axvline(1.0, color=GREY, linewidth=1.2, linestyle=(0, (5, 2)))
    label(axes, f"step / step of {clean(baseline['configuration'])} ({baseline['step_s']:.4g} s)", "")
    return figure


def memory_bars(rows: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any]):
    """Stacked kinds of memory at the peak, and what counts as a fit."""
    shown = [*rows, baseline]
    figure, axes = _canvas("Memory at the peak by kind", 0.19 * len(shown) + 0.8)
    present = [kind for kind in baseline["memory_bytes"] if any(row["memory_bytes"][kind] for row in shown)]
    values = [[row["memory_bytes"][kind] / 1e9 for row in shown] for kind in present]
    _stack(axes, values, present, [FILLS[number % len(FILLS)] for number in range(len(present))], shown)
    fits = (baseline["capacity_bytes"] - baseline["reserve_bytes"]) / 1e9
    axes.axvline(fits, color=VERMILION, linewidth=1.6, linestyle=(0, (5, 2)))
    axes.set_xlim(0, 1.12 * max(fits, *(row["memory_total_bytes"] / 1e9 for row in shown)))
    axes.set_xlabel(f"GB (dashed: {fits:.4g} GB count as a fit)")
    return figure


def _stack(axes, values: Sequence, labels: Sequence[str], colours: Sequence[str], rows: Sequence[Mapping]) -> None:
    places, offset = np.arange(len(rows)), np.zeros(len(rows))
    for widths, name, colour in zip(values, labels, colours, strict=True):
        hatch = _HATCHES[colours.index(colour) != labels.index(name)]
        axes.barh(places, widths, left=offset, label=name, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6)
        offset += widths
    names = [clean(row["configuration"]) for row in rows]
    axes.set_yticks(places, [*names[:-1], f"baseline: {names[-1]}"])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _explain(axes)


def pareto(seconds: np.ndarray, memory: np.ndarray, fits: int):
    """Step time and memory of all possible configurations, and those that none beats in both.

    `fits`: bytes that count as a fit.
    """
    figure, axes = _canvas("Step time against memory", 2.8, 12.0)
    stride = -(-len(seconds) // _POINTS)
    possible = "possible" if stride == 1 else f"possible (every {stride}th)"
    axes.plot(memory[::stride] / 1e9, seconds[::stride], ".", color="#b5b5b5", markersize=4, label=possible)
    order = np.lexsort((seconds, memory))
    front = order[seconds[order] < np.append(np.inf, np.minimum.accumulate(seconds[order])[:-1])]
    axes.step(memory[front] / 1e9, seconds[front], where="post", color=BLUE, linewidth=1.6)
    axes.plot(memory[front] / 1e9, seconds[front], "o", color=BLUE, markersize=5, label="none is better in both")
    axes.axvline(fits / 1e9, color=VERMILION, linestyle=(0, (5, 2)), label="counts as a fit")
    axes.set_yscale("log")
    number_axis(axes.yaxis, log=True)
    axes.set_xlabel("memory at the peak (GB)")
    axes.set_ylabel("step (s)")
    _explain(axes)
    return figure


def heat_map(tp: Sequence[int], pp: Sequence[int], speedup: np.ndarray, baseline: str):
    """Speed-up of the best configuration of each tp and pp over the baseline; a line around those that are faster.

    `speedup`: float64[pp, tp], NaN where none is possible.
    """
    figure, axes = _canvas("Best of each tp and pp", 0.26 * len(pp) + 1.0, max(1.2 * len(tp) + 2.0, 8.5))
    numbers = speedup[~np.isnan(speedup)]
    limits = {"vmin": 0.0, "vmax": max(float(numbers.max(initial=1.0)), 1.0)}
    axes.imshow(speedup, cmap="cividis", aspect="auto", origin="lower", **limits)
    for (row, column), value in np.ndenumerate(speedup):
        dark = not np.isnan(value) and value < 0.55 * limits["vmax"]
        text = "–" if np.isnan(value) else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
    faster = np.pad(np.nan_to_num(speedup) >= 1.0, 1)
    for row, column in np.argwhere(faster).tolist():
        x, y = column - 1.5, row - 1.5
        for beside, line in (
            (faster[row, column - 1], ((x, x), (y, y + 1))),
            (faster[row, column + 1], ((x + 1, x + 1), (y, y + 1))),
            (faster[row - 1, column], ((x, x + 1), (y, y))),
            (faster[row + 1, column], ((x, x + 1), (y + 1, y + 1))),
        ):
            if not beside:
                axes.plot(*line, color=VERMILION, linewidth=2.2, clip_on=False)
    axes.set_xticks(range(len(tp)), tp)
    axes.set_yticks(range(len(pp)), pp)
    axes.grid(visible=False)
    note = f"speed-up over {clean(baseline)}; red line: 1 and more; below 1: slower; –: none possible"
    label(axes, f"tp ({note})", "pp")
    return figure


def tornado(changes: Sequence[Mapping[str, Any]]):
    """Speed-up of each change of the machine: with the same configuration, and with the best one for it."""
    before, rows = changes[0]["step_s"], sorted(changes[1:], key=lambda row: -row["speedup"])
    figure, axes = _canvas("What if", 0.28 * len(rows) + 0.8, 14.0)
    places = np.arange(len(rows))
    unchanged = [100 * (before / row["same_step_s"] - 1) for row in rows]
    best = [100 * (row["speedup"] - 1) for row in rows]
    axes.barh(places - 0.2, best, height=0.38, color=BLUE, label="best configuration for it")
    axes.barh(places + 0.2, unchanged, height=0.38, color=SKY, label="same configuration")
    axes.axvline(0, color="black", linewidth=1)
    for place, value in zip(places.tolist(), best, strict=True):
        axes.text(max(value, 0), place - 0.2, f" {value:+.1f} %", va="center", fontsize=SMALL)
    axes.set_xlim(min(0, *unchanged, *best) * 1.15, max(1.0, *unchanged, *best) * 1.15)
    axes.set_yticks(places, [row["change"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("faster by (%)" + ("; below 0: slower" if min(*unchanged, *best) < 0 else ""))
    _explain(axes)
    return figure


def roofline(points: Sequence[tuple[str, float, float]], peak: float, bandwidth: float):
    """Operations of a layer under the roof of an NPU: name, FLOP per byte, and FLOP/s by their price."""
    figure, axes = _canvas("Operations of a layer, forward pass", 2.8)
    low, high = min(1.0, *(x for _, x, _ in points)) / 2, max(peak / bandwidth, *(x for _, x, _ in points)) * 4
    roof = np.geomspace(low, high, 200)
    axes.plot(roof, np.minimum(roof * bandwidth, peak) / 1e12, color="black", linewidth=1.6, label="peak")
    for number, (name, intensity, rate) in enumerate(points):
        mark = "osD^vPX"[number % 7]
        color = FILLS[number % len(FILLS)]
        axes.plot(intensity, rate / 1e12, mark, color=color, markersize=8, markeredgecolor="black", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    number_axis(axes.yaxis, log=True)
    number_axis(axes.xaxis, log=True)
    axes.set_xlabel("FLOP / byte")
    axes.set_ylabel("TFLOP/s")
    _explain(axes)
    return figure


def scaling_curve(points: Sequence[Mapping[str, Any]], measured: Mapping[str, Sequence[tuple[int, float]]]):
    """Throughput of the best configuration by the size of the cluster, and the line without losses.

    `measured`: name → GPUs and tokens/s that were published.
    """
    figure, axes = _canvas("The same global batch on other clusters", 2.8, 12.0)
    ranks = [point["ranks"] for point in points]
    rates = [point["tokens_per_s_per_gpu"] * point["ranks"] for point in points]
    ideal = [points[0]["tokens_per_s_per_gpu"] * count for count in ranks]
    axes.plot(ranks, ideal, color=GREY, linestyle=(0, (5, 2)), label="no losses")
    axes.plot(ranks, rates, "o-", color=BLUE, linewidth=1.8, label="best configuration")
    for count, rate, ideal_rate in zip(ranks, rates, ideal, strict=True):
        axes.annotate(
            f"{100 * rate / ideal_rate:.0f} %", (count, rate), (6, -12), textcoords="offset points", fontsize=SMALL
        )
    for number, (name, pairs) in enumerate(measured.items(), 1):
        colour = COLOURS[number % len(COLOURS)]
        look = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "linestyle": ""}
        axes.plot(*zip(*pairs, strict=True), **look, markersize=6, label=f"published: {clean(name)}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ranks = sorted({*ranks, *(count for pairs in measured.values() for count, _ in pairs)})
    axes.set_xticks(ranks, [str(count) for count in ranks])
    number_axis(axes.yaxis, log=True)
    axes.margins(y=0.12)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("tokens/s")
    _explain(axes)
    return figure


def waterfall(first: Mapping[str, Any], second: Mapping[str, Any], changes: Sequence[tuple[str, float]]):
    """From the step of one configuration to that of another, part by part."""
    figure, axes = _canvas("From one step to the other", 0.2 * len(changes) + 1.0, 14.0)
    level, names, levels = first["step_s"], [clean(first["configuration"])], [first["step_s"]]
    axes.barh(0, level, color=GREY)
    for place, (name, seconds) in enumerate(changes, 1):
        axes.barh(place, seconds, left=level, color=VERMILION if seconds > 0 else GREEN)
        edge = max(level, level + seconds)
        axes.text(edge, place, f" {seconds:+.4g} s", va="center", fontsize=SMALL)
        level += seconds
        levels.append(level)
        names.append(PARTS.get(name, name))
    axes.barh(len(names), second["step_s"], color=GREY)
    axes.set_yticks(range(len(names) + 1), [*names, clean(second["configuration"])])
    room = max(max(levels) - min(levels), 0.02 * max(levels))
    low = max(min(levels) - room, 0.0)
    axes.set_xlim(low, max(levels) + 0.3 * room)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("step (s)" + (" (the axis does not begin at 0)" if low else ""))
    return figure
