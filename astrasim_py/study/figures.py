"""Figures of a scenario's folder, drawn from its stored points alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from astrasim_py.core.choices import LEVELS
from astrasim_py.core.files import write_file
from astrasim_py.report import plots
from astrasim_py.report.plot_grid import select
from astrasim_py.report.record_plots import PANELS, Panel
from astrasim_py.report.tables import json_bytes
from astrasim_py.study.stored_points import StoredPoint

STUDY = "study.json"
FIGURES = "figures"


def write_study(
    folder: Path, scenario: str, title: str, specs: Sequence[Mapping], points: Sequence[str | None]
) -> Path:
    """Note beside the points what the scenario draws of them, and in which order."""
    study = {"scenario": scenario, "title": title, "plots": list(specs), "points": list(points)}
    return write_file(folder / STUDY, json_bytes(study), make_folder=True)


def panel_points(spec: Mapping, points: Sequence[StoredPoint]) -> list[StoredPoint]:
    """The points that a figure of links or a Gantt chart shows."""
    where = spec.get("where") or {}
    shown = [p for p in points if p.manifest["status"] == "done" and select([p.row], where)]
    return shown[:PANELS]


def panel(point: StoredPoint, kind: str) -> Panel:
    """The input of a figure of links or a Gantt chart for one point."""
    names = ("link", "vertex", "edge") if kind == "links" else ("node", "collective")
    sweep = point.row["sweep"]
    title = ", ".join(map(str, sweep.values())) or point.manifest["point"]
    return Panel(
        title=title, makespan=int(point.summary["makespan_ps"]), tables={name: point.table(name) for name in names}
    )


def draw_figures(folder: Path, title: str, specs: Sequence[Mapping], points: Sequence[StoredPoint]) -> list[Path]:
    """Draw every figure of a scenario as SVG and PNG.

    `folder`: of the scenario; figures go to ``figures/`` in it. `title`: for figures without one. `specs`: as in the
    scenario's ``plots``. `points`: in the order of the sweep. Raises OutputError: a figure cannot be written. Raises
    ScenarioError: a figure asks for something that the points do not have.
    """
    rows = []
    for point in points:
        parts = point.summary.get("breakdown") or {}
        rows.append({**point.row, "compute_ns": parts.get("compute_ns"), "other_ns": parts.get("other_ns")})
    written: list[Path] = []
    taken: dict[str, int] = {}
    for number, spec in enumerate(specs):
        place = f"plots[{number}]"
        panels = []
        if spec["kind"] in plots.NEEDS:
            need = LEVELS.index(plots.NEEDS[spec["kind"]])
            shown = [p for p in panel_points(spec, points) if LEVELS.index(p.manifest["level"]) >= need]
            panels = [panel(point, spec["kind"]) for point in shown]
        name = str(spec.get("name") or spec["kind"])
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}-{taken[name]}"
        images = plots.draw(spec, rows, panels=panels, title=title, place=place)
        for form, data in images.items():
            written.append(write_file(folder / FIGURES / f"{name}.{form}", data, make_folder=True))
    return written
