"""The figure: CPU seconds and memory against NPUs, with the exponent of cost over message-hops."""

from __future__ import annotations

from pathlib import Path

from cases import CASES
from cost_plots import exponent, figures_of

#: Series: label → (engine, path, which cases).
SERIES = {
    "ring, SimPy": ("simpy", "builder", "ring_"),
    "ring, compiled": ("compiled", "builder", "ring_"),
    "3-D torus, hierarchical, SimPy": ("simpy", "builder", "torus_"),
    "3-D torus, hierarchical, compiled": ("compiled", "builder", "torus_"),
    "3-D torus, by dimension, compiled": ("compiled", "dims", "torus_"),
    "3-D torus, folded": ("simpy", "fold", "torus_"),
}


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
    """Draw the series there are, as SVG and PNG, beside their points as CSV; the files. Exponents are printed, too."""
    points = []
    for label, chosen in series(rows).items():
        power = exponent([(row["hops"], row["kernel"]) for row in chosen])
        if power is not None:
            print(f"exponent of kernel seconds over message-hops, {label}: {power:.3f}")
        shown = "" if power is None or "folded" in label else f"{power:.2f}"
        points += [
            {
                "series": label,
                "exponent": shown,
                "npus": row["npus"],
                "cpu_s": f"{row['kernel']:.3g}",
                "peak_MB": f"{row['peak_mb']:.0f}",
            }
            for row in chosen
        ]
    return figures_of(points, out / "cost.csv")
