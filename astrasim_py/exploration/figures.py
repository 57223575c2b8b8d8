"""What the figures of an exploration show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.core.files import write_files
from astrasim_py.exploration.search import Priced, baseline_of
from astrasim_py.exploration.what_if import scaling
from astrasim_py.report import explore_plots as plots
from astrasim_py.report.explore import difference
from astrasim_py.results.store import scenario_folder
from astrasim_py.training.layers import Op, forward
from astrasim_py.training.models import model, published

#: Bars beside the baseline.
_BARS = 8


def figures(
    priced: Priced, rows: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> dict[str, bytes]:
    """File name → content. The baseline is the one of the exploration, or the possible one with the lowest tp and pp.

    Raises UsageError: the baseline is not possible.
    """
    best, baseline = rows[:_BARS], _baseline(priced)
    possible = priced.possible
    tp, pp, speedup = _speedups(priced, possible, baseline["step_s"])
    fits = rows[0]["capacity_bytes"] - rows[0]["reserve_bytes"]
    drawings = plots.files("time", lambda: plots.time_bars(best, baseline))
    drawings |= plots.files("memory", lambda: plots.memory_bars(best, baseline))
    seconds, memory = priced.seconds[possible], priced.memory[possible]
    drawings |= plots.files("pareto", lambda: plots.pareto(seconds, memory, fits))
    drawings |= plots.files("tp_pp", lambda: plots.heat_map(tp, pp, speedup, baseline["configuration"]))
    drawings |= plots.files("roofline", lambda: plots.roofline(*_operations(priced, int(possible[0]))))
    sizes = scaling(priced)
    measured = measured_points(priced)
    drawings |= plots.files("scaling", lambda: plots.scaling_curve(sizes, measured))
    return drawings | (plots.files("what_if", lambda: plots.tornado(changes)) if changes else {})


def write_waterfall(out: str, name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Path:
    """Draw the difference of two configurations into the folder of results. Raises OutputError."""
    changes = difference(first, second)
    drawings = plots.files("diff", lambda: plots.waterfall(first, second, changes))
    folder = scenario_folder(out, f"{name[:55]}-diff")
    write_files([(folder / file, data) for file, data in drawings.items()], make_folder=True)
    return folder / "diff.svg"


def _baseline(priced: Priced) -> dict[str, Any]:
    if priced.exploration.keys.baseline:
        return baseline_of(priced)
    order = priced.possible
    places = priced.grid.places(order)
    tp, pp = (np.array(priced.grid.axes[key])[places[key]] for key in ("tp", "pp"))
    return priced.rows(order[[int(np.argmin(tp * pp))]])[0]


def measured_points(priced: Priced) -> dict[str, list[tuple[int, float]]]:
    """Source and length of sequences → GPUs and tokens/s, as published for the same model, GPU and number format."""
    exploration = priced.exploration
    machine, half = exploration.point.spec.compute.preset, ("bf16", "fp16")
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in published():
        alike = row["dtype"] == exploration.keys.dtype or {row["dtype"], exploration.keys.dtype} <= {*half}
        if row["machine"] == machine and alike and model(row["model"]) == exploration.keys.model:
            point = int(row["gpus"]), float(row["tokens_s_gpu"]) * int(row["gpus"])
            curves.setdefault(f"{row['source']}, seq {row['seq']}", []).append(point)
    return {name: sorted(points) for name, points in sorted(curves.items())}


def _speedups(priced: Priced, possible: np.ndarray, step: float) -> tuple[Sequence[int], Sequence[int], np.ndarray]:
    """Values of tp and of pp, and the speed-up of the best of each pair over a step."""
    places = priced.grid.places(possible)
    tp, pp = priced.grid.axes["tp"], priced.grid.axes["pp"]
    fastest = np.full((len(pp), len(tp)), np.inf)
    np.minimum.at(fastest, (places["pp"], places["tp"]), priced.seconds[possible])
    return tp, pp, np.where(np.isfinite(fastest), step / fastest, np.nan)


def _operations(priced: Priced, number: int) -> tuple[list[tuple[str, float, float]], float, float]:
    """Operations of a layer with arithmetic: name, FLOP per byte, FLOP/s; peak and memory bandwidth of the NPU."""
    ((_, layouts),) = priced.grid.layouts(np.array([number]))
    layout, prices = layouts.at(0), priced.prices
    kind = "moe" if layout.model.experts else "dense"
    ops = [item for item in forward(layout, kind) if isinstance(item, Op) and item.flops]
    points = [(op.name, float(op.flops / op.nbytes), float(op.flops / prices.op_seconds(op))) for op in ops]
    return points, float(prices.system.peak(layout.dtype)), float(prices.system.compute.memory_bandwidth)
