"""The figure: CPU seconds and memory against NPUs, with the exponent of cost over message-hops."""

from __future__ import annotations

import math
from pathlib import Path

from cases import CASES

#: Series: label → (engine, path, which cases).
SERIES = {
    "ring, SimPy": ("simpy", "builder", "ring_"),
    "ring, compiled": ("compiled", "builder", "ring_"),
    "3-D torus, hierarchical, SimPy": ("simpy", "builder", "torus_"),
    "3-D torus, hierarchical, compiled": ("compiled", "builder", "torus_"),
    "3-D torus, by dimension, compiled": ("compiled", "dims", "torus_"),
    "3-D torus, folded": ("simpy", "fold", "torus_"),
}
COLOURS = ("#999999", "#0072b2", "#cc79a7", "#d55e00", "#e69f00", "#009e73")


def exponent(pairs: list[tuple[float, float]]) -> float | None:
    """Slope of the least-squares line through the logarithms: y grows as x to that power."""
    if len({x for x, _ in pairs}) < 2:
        return None
    xs, ys = [math.log(x) for x, _ in pairs], [math.log(y) for _, y in pairs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / over


def series(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows of each series, by NPUs."""
    found = {}
    for label, (engine, path, start) in SERIES.items():
        chosen = [
            row
            for row in rows
            if row["engine_name"] == engine
            and row["path"] == path
            and row["case"].startswith(start)
            and row["level"] == "summary"
            and "shape" not in (CASES[row["case"]].problem if start == "ring_" else {})
            and row.get("kernel")
        ]
        if chosen:
            found[label] = sorted(chosen, key=lambda row: row["npus"])
    return found


def draw(rows: list[dict], out: Path) -> list[Path]:
    """Draw the series there are, as SVG and PNG; the files. Exponents are printed, too."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = series(rows)
    if not found:
        return []
    matplotlib.rcParams["svg.hashsalt"] = "astrasim_py"
    figure, (cost, memory) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for (label, chosen), colour in zip(found.items(), COLOURS, strict=False):
        power = exponent([(row["hops"], row["kernel"]) for row in chosen])
        if power is not None and "folded" not in label:
            label += f" (hops$^{{{power:.2f}}}$)"
            print(f"exponent of kernel seconds over message-hops, {label.split(' (')[0]}: {power:.3f}")
        npus = [row["npus"] for row in chosen]
        cost.plot(npus, [row["kernel"] for row in chosen], "o-", color=colour, label=label)
        memory.plot(npus, [row["peak_mb"] for row in chosen], "o-", color=colour)
    for axes, title, unit in ((cost, "Cost of the engine", "CPU seconds"), (memory, "Largest resident set", "MB")):
        axes.set(xscale="log", yscale="log", xlabel="NPUs", ylabel=unit, title=title)
        axes.set_xscale("log", base=2)
        axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    cost.legend(fontsize=8, frameon=False)
    paths = [out / "cost.svg", out / "cost.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=150)
    pyplot.close(figure)
    return paths
