"""Which stored points a person means by ``NAME[@key=value,…]``."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.point_names import SIGN, PointName, parse_point_name, parse_point_names
from astrasim_py.inspection.stored_results import find
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.report.chosen_rows import ambiguous, chosen_places
from astrasim_py.results.stored_points import MANIFEST, StoredPoint, names_in, read_object
from astrasim_py.runs.figures import STUDY
from astrasim_py.runs.plan import OWNER
from astrasim_py.runs.task import identity_of
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

#: A name, parsed or not.
Name = str | os.PathLike[str] | PointName


def point_name(name: Name, out: str | os.PathLike = "results") -> PointName:
    """What a person wrote; of a folder or file that is there with an ``@`` in its name the whole. Raises UsageError."""
    if isinstance(name, PointName):
        return name
    text = os.fspath(name)
    is_there = os.path.exists(text) or os.path.exists(Path(out) / text)
    return PointName(text) if is_there else parse_point_name(text)


def point_names(words: Sequence[str], out: str | os.PathLike = "results") -> list[PointName]:
    """What a person wrote, several; ``@key=value`` is of the name before it. Raises UsageError."""
    return parse_point_names(words, lambda word: point_name(word, out))


def folder_of(name: str, out: str | os.PathLike = "results") -> Path:
    """The folder of results that a person names: itself, a scenario's name, or the scenario's file. Raises UsageError:
    there is none. Raises ScenarioError: the file is no scenario.
    """
    path = Path(name)
    if os.path.isdir(path) and (os.path.isfile(path / STUDY) or not os.path.isdir(Path(out) / path)):
        return path
    result_folder = Path(out) / path
    if os.path.isfile(path):
        result_folder = Path(out) / load_scenario(path, allow_outside=True).name
        if not os.path.isdir(result_folder):
            raise UsageError(name, f"has no results in {out}", f"run it first: astrasim-py {name}")
    if os.path.isdir(result_folder):
        return result_folder
    raise UsageError(name, f"is no folder of results, no scenario file, and not in {out}", _guess(name, Path(out)))


def _inside(out: str | os.PathLike) -> list[str]:
    """Names of the results in a folder."""
    return [name for name in names_in(Path(out)) if os.path.isdir(Path(out) / name)]


def _values_hint(name: str, out: str | os.PathLike) -> str:
    """What to write where values may be meant that are not written as such; else nothing."""
    inside = _inside(out)
    for sign in re.finditer(SIGN, name):
        if name[: sign.start()] in inside or os.path.exists(name[: sign.start()]):
            behind = name[sign.end() :]
            return f"quote a value that holds {SIGN} or =" if "=" in behind else f"write key=value behind {SIGN}"
    return f"write the name before it: NAME{SIGN}{name}" if "=" in name and SIGN not in name else ""


def _guess(name: str, out: Path) -> str:
    """What may be meant by a name that there is not."""
    if hint := _values_hint(name, out):
        return hint
    if inside := _inside(out):
        return did_you_mean(name, inside)
    return "run a scenario first, or say with --out where results are"


def scenario_file(name: PointName, out: str | os.PathLike = "results") -> PointName:
    """The scenario file of a name, and the swept values: of a folder of results, or of a point in it, the file that it
    was made from. Raises UsageError: there is no such name, or the file is not there any more.
    """
    if os.path.exists(name.name) and not os.path.isdir(name.name):
        return name
    if not os.path.exists(name.name) and not os.path.isdir(Path(out) / name.name):
        files = [str(path) for path in Path(os.path.dirname(name.name)).glob("*.y*ml")]
        near = did_you_mean(name.name, [*sorted(files), *_inside(out)])
        begin = near if near.startswith("did") else "check the name, or begin with a lesson: astrasim-py new"
        remedy = _values_hint(name.name, out) or begin
        raise UsageError(name.name, f"is no scenario file, and no name in {out}", remedy)
    folder, values = folder_of(name.name, out), dict(name.values)
    if os.path.isfile(folder / MANIFEST):
        folder, (point,) = find(folder)
        values = {key: (value,) for key, value in point.row.sweep.items()} | values
    file = read_object(folder / OWNER).get("file")
    path = Path(os.path.relpath(folder / file)) if isinstance(file, str) else None
    if path is None or not os.path.isfile(path):
        problem = f"was made from {path}, which is not there" if path else "is a folder that no scenario has filled"
        raise UsageError(name.name, problem, "name the scenario's file")
    return PointName(str(path), values)


def by_file(names: Iterable[PointName]) -> dict[str, list[PointName]]:
    """The names of each scenario file; none where one means all points."""
    files: dict[str, list[PointName]] = {}
    for name in names:
        files.setdefault(name.name, []).append(name)
    return {file: several if all(name.values for name in several) else [] for file, several in files.items()}


def points_named(name: Name, out: str | os.PathLike = "results") -> tuple[StoredPoint, ...]:
    """The points that a name and swept values mean; of a scenario's file those of the file as it is now. Raises
    UsageError: there is no such folder, key or value, or the file has changed. Raises AstraError: the file, or one that
    it names, cannot be read.
    """
    name = point_name(name, out)
    folder = folder_of(name.name, out)
    _, points = find(folder)
    if os.path.isfile(name.name):
        points = _as_in_file(name.name, points, folder)
    rows = [point.row for point in points]
    return tuple(points[place] for place in chosen_places(rows, name.values, name.name))


def point_named(name: Name, out: str | os.PathLike = "results") -> StoredPoint:
    """The only point that a name means. Raises UsageError: there are several, or none."""
    points = points_named(name, out)
    if len(points) > 1:
        raise ambiguous([point.row for point in points], point_name(name, out))
    return points[0]


def folders_named(name: Name, out: str | os.PathLike = "results") -> list[Path]:
    """The folder of a scenario's results, or with swept values that of each point that these mean. Raises as
    `points_named`.
    """
    name = point_name(name, out)
    return [point.folder for point in points_named(name, out)] if name.values else [folder_of(name.name, out)]


def _as_in_file(name: str, points: Sequence[StoredPoint], folder: Path) -> tuple[StoredPoint, ...]:
    """Of some points those of a scenario's file."""
    cache: dict = {}
    expanded = expand(load_scenario(Path(name), allow_outside=True))
    digests = {identity_of(point, input_digests(point, cache)) for point in expanded}
    matches = tuple(point for point in points if point.manifest.digest in digests)
    if not matches:
        problem = "is not as it was run: it has changed, or it was run with --set or by another version"
        raise UsageError(name, problem, f"run it again, or name the folder {folder}")
    return matches


def worst_of(points: Sequence[StoredPoint]) -> StoredPoint:
    """The point farthest from its bound, by bound over time; where none has a bound, the slowest; where none is done,
    the first.
    """
    finished = [(point.summary.makespan_ps, point) for point in points if point.manifest.status == "done"]
    if not finished:
        return points[0]
    bounded = [(share, -ps, point) for ps, point in finished if (share := point.summary.row.efficiency) is not None]
    if bounded:
        return min(bounded, key=lambda triple: triple[:2])[2]
    return max(finished, key=lambda pair: pair[0])[1]
