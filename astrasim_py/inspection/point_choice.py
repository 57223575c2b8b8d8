"""Which stored points a person means: a scenario or a folder, and words such as ``size=1 MiB``."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.units import format_time
from astrasim_py.inspection.stored_results import find
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.report.row_selection import Selection
from astrasim_py.results.stored_points import StoredPoint, names_in
from astrasim_py.results.values import TEXTS, ps_of, value_order
from astrasim_py.runs.figures import STUDY
from astrasim_py.runs.task import identity_of
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

#: Points that are listed where a choice is not clear.
_LISTED = 10
#: Columns by which points are chosen although they are not swept.
_COLUMNS = ("topology", "size", "algorithm", "npus", "network_model")


class Unclear(UsageError):
    """A choice of points that holds for too many. `points`: these."""

    def __init__(self, place: str, problem: str, remedy: str, points: Sequence[StoredPoint]) -> None:
        super().__init__(place, problem, remedy)
        self.points = points

    def lines(self) -> list[str]:
        """The error, and a line for each candidate."""
        others = [f"… and {len(self.points) - _LISTED} more"] if len(self.points) > _LISTED else []
        return [*super().lines(), *(f"  {line_of(point)}" for point in self.points[:_LISTED]), *others]


def line_of(point: StoredPoint) -> str:
    """A point and its time."""
    ns = point.row.time_ns
    return f"{point.manifest.point}  {point.manifest.status if ns is None else format_time(ps_of(ns))}"


def folder_of(name: str | os.PathLike, out: str | os.PathLike = "results") -> Path:
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
            raise UsageError(str(name), f"has no results in {out}", f"run it first: astrasim-py {name}")
    if os.path.isdir(result_folder):
        return result_folder
    inside = names_in(Path(out))
    remedy = did_you_mean(str(name), inside) if inside else "run a scenario first"
    raise UsageError(str(name), f"is no folder of results, no scenario file, and not in {out}", remedy)


def points_named(
    name: str | os.PathLike, selection: Mapping[str, Sequence[str]], out: str | os.PathLike = "results"
) -> tuple[StoredPoint, ...]:
    """The points that a name and swept values mean; of a scenario's file those of the file as it is now. `selection`:
    key → values of which a point has one. Raises UsageError: there is no such folder, key or value, or the file has
    changed. Raises AstraError: the file, or one that it names, cannot be read.
    """
    folder = folder_of(name, out)
    _, points = find(folder)
    if os.path.isfile(name):
        points = _as_in_file(name, points, folder)
    for key, values in selection.items():
        points = _having(points, key, values, str(name))
    return points


def _as_in_file(name: str | os.PathLike, points: Sequence[StoredPoint], folder: Path) -> tuple[StoredPoint, ...]:
    """Of some points those of a scenario's file."""
    cache: dict = {}
    expanded = expand(load_scenario(Path(name), allow_outside=True))
    digests = {identity_of(point, input_digests(point, cache)) for point in expanded}
    matches = tuple(point for point in points if point.manifest.digest in digests)
    if not matches:
        problem = "is not as it was run: it has changed, or it was run with --set or by another version"
        raise UsageError(str(name), problem, f"run it again, or name the folder {folder}")
    return matches


def parse_words(words: Sequence[str]) -> dict[str, list[str]]:
    """``key=value`` words as key → values.

    >>> parse_words(["size=1 MiB", "topology=ring", "topology=torus"])
    {'size': ['1 MiB'], 'topology': ['ring', 'torus']}
    """
    selection: dict[str, list[str]] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key.strip():
            raise UsageError(word, "is no choice of points", 'write KEY=VALUE, e.g. size="1 MiB"')
        selection.setdefault(key.strip(), []).append(value.strip())
    return selection


def one_of(points: Sequence[StoredPoint], name: str) -> StoredPoint:
    """The only one of some points. Raises Unclear: there are several."""
    if len(points) > 1:
        raise several(points, name)
    return points[0]


def several(points: Sequence[StoredPoint], name: str) -> Unclear:
    """The error where one point, or two, were to be named."""
    sweeps = [point.row.sweep for point in points]
    differ = [key for key in sweeps[0] if len({str(sweep.get(key)) for sweep in sweeps}) > 1]
    remedy = f"add {' and '.join(f'{key}=…' for key in differ)}" if differ else "name the folder of one"
    return Unclear(name, f"holds {len(points)} points to choose from", remedy, points)


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


def _having(points: Sequence[StoredPoint], key: str, values: Sequence[str], name: str) -> tuple[StoredPoint, ...]:
    rows = [point.row for point in points]
    swept = list(dict.fromkeys(key for row in rows for key in row.sweep))
    full = [axis for axis in swept if axis == key] or [axis for axis in swept if axis.rpartition(".")[2] == key]
    if len(full) != 1 and key not in _COLUMNS:
        problem = f"is swept more than once: {', '.join(full)}" if full else "is not swept"
        raise UsageError(f"{name}: {key}", problem, "write it out" if full else did_you_mean(key, swept))
    key = full[0] if len(full) == 1 else key
    chosen = []
    for value in values:
        selection = Selection(where=((key, "=", value),))
        matches = [point for point, row in zip(points, rows, strict=True) if selection.of([row])]
        if not matches:
            texts = sorted({text for row in rows if (text := row.text_of(key)) is not None}, key=value_order)
            all_texts = all(value_order(text)[0] == TEXTS for text in texts)
            remedy = did_you_mean(value, texts) if all_texts else f"write one of {', '.join(texts[:_LISTED])}"
            raise UsageError(f"{name}: {key}", f'no point has "{value}"', remedy)
        chosen += matches
    return tuple(point for point in points if point in chosen)
