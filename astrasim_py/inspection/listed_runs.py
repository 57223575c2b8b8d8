"""Stored points in a list: also those of older versions of a scenario."""

import os
from collections.abc import Sequence
from pathlib import Path

from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.inspection.point_choice import folder_of
from astrasim_py.inspection.stored_results import find, stored_runs
from astrasim_py.report.chosen_rows import chosen_places
from astrasim_py.results import stored_points
from astrasim_py.results.model import RunRow


def runs_named(names: Sequence[PointName], out: str | os.PathLike, notes: list[str]) -> list[RunRow]:
    """Every stored point that names mean; of a folder of several results those of all. `notes`: gets what a person
    should know. Raises UsageError: one has no finished point, or none with such a value.
    """
    rows: list[RunRow] = []
    for name in names:
        top = Path(out) if name.name == os.fspath(out) else folder_of(name.name, out)
        is_point = os.path.isfile(top / stored_points.MANIFEST)
        stored = _of_point(top) if is_point else _in_folder(top, name.name, notes)
        rows += [stored[place] for place in chosen_places(stored, name.values, name.name)]
    return rows


def _of_point(folder: Path) -> list[RunRow]:
    """The row of the point in a folder. Raises UsageError: it is damaged."""
    scenario_folder, _ = find(folder)
    return [row for row in stored_runs(scenario_folder) if Path(row.folder).name == folder.resolve().name]


def _in_folder(top: Path, name: str, notes: list[str]) -> list[RunRow]:
    """The rows of a scenario's folder, or of all that are in a folder. Raises UsageError: there is none."""
    folders = [top, *(top / inner for inner in stored_points.names_in(top) if os.path.isdir(top / inner))]
    for folder in folders:
        if earlier := stored_points.earlier_layout(folder):
            notes.append(f"{folder} holds {earlier}; run the scenario again")
    rows = [row for folder in folders for row in stored_runs(folder)]
    if not rows:
        for folder in folders:
            for place in (folder / stored_points.POINTS / point for point in stored_points.point_names(folder)):
                raise UsageError(str(place), *stored_points.why_no_point(place))
        raise UsageError(name, "holds no finished point", "name a folder of results, e.g. results/ring_vs_torus")
    return rows
