"""Figures of measured costs, from CSV: what a benchmark wrote on some machine. docs/figures/ has two of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astrasim_py.report import figure_style as style
from astrasim_py.report.ticks import number_axis

#: Name of a figure → its heading; its panels: column, title, and label of the axis of y; the axis of x.
FIGURES: dict[str, tuple[str, tuple[tuple[str, str, str], ...], str]] = {
    "cost": (
        "Cost of simulating an all-reduce",
        (("cpu_s", "engine", "CPU seconds"), ("peak_MB", "process", "largest resident set (MB)")),
        "NPUs",
    ),
    "synthesis_cost": (
        "Cost of synthesizing an all-gather",
        (("cpu_s", "one core", "CPU seconds"),),
        "NPUs of a square mesh",
    ),
}


def exponent(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Slope of the least-squares line through the logarithms: y grows as x to that power."""
    if len({x for x, _ in pairs}) < 2:
        return None
    xs, ys = [math.log(x) for x, _ in pairs], [math.log(y) for _, y in pairs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / over


def write(points: Sequence[Mapping[str, object]], path: Path) -> Path:
    """The points of a figure as CSV: ``series``, ``exponent`` of its cost, ``npus``, and the columns of its panels."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(points[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
    return path


def figures_of(points: Sequence[Mapping[str, object]], path: Path) -> list[Path]:
    """Write points as CSV, and their figure as SVG and PNG beside it; the pictures."""
    if not points:
        return []
    write(points, path)
    paths = [path.with_suffix(f".{form}") for form in style.FORMATS]
    for picture in paths:
        picture.write_bytes(drawn(path, picture.suffix[1:]))
    return paths


def drawn(path: Path, form: str = "svg") -> bytes:
    """The figure of a CSV, whose name says which."""
    heading, panels, label_x = FIGURES[path.stem]
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with style.our_style():
        sheet = style.Sheet(heading=heading, width="text" if len(panels) > 1 else "column")
        figure, axes = sheet.panels(len(panels), height=2.4)
        handles: dict[str, Any] = {}
        series = list(dict.fromkeys(row["series"] for row in rows))
        for panel, (column, title, label_y) in zip(axes, panels, strict=True):
            for number, name in enumerate(series):
                members = [row for row in rows if row["series"] == name]
                npus, values = ([float(row[key]) for row in members] for key in ("npus", column))
                (line,) = panel.plot(npus, values, **style.pen(number, len(series)))
                power = members[0]["exponent"]
                handles.setdefault(f"{name} (exponent {power})" if power else name, line)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            number_axis(panel.yaxis, log=True)
            ticks = sorted({4 ** round(math.log(int(row["npus"]), 4)) for row in rows})
            panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            panel.set_xlim(min(ticks) / 1.4, max(ticks) * 1.4)
            panel.minorticks_off()
            style.set_title(panel, title)
            style.label(panel, label_x, label_y)
        sheet.explain(axes, [(handle, name) for name, handle in handles.items()])
        return style.render(figure, form, {})
