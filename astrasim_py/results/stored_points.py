"""Points read back from the result store, and the tables over all of them.

Only folders of regular files count whose manifest is there and true (see `astrasim_py.results.store`).
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import OutputError
from astrasim_py.core.exact_json import parse_json
from astrasim_py.core.files import open_regular, read_regular, remove_files, write_file
from astrasim_py.core.records import Table
from astrasim_py.core.units import number_of
from astrasim_py.core.value_order import value_order
from astrasim_py.results.collectives import collective_table
from astrasim_py.results.csv_io import csv_chunks, csv_rows, read_csv
from astrasim_py.results.model import (
    COLLECTIVE_KEYS,
    FORMAT,
    JOB_KEYS,
    Manifest,
    Row,
    RunCost,
    Summary,
    is_sealed,
    with_swept_columns,
)
from astrasim_py.results.repeats import REPEAT_KEYS, SEED, medians

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
VOLATILE = "run.json"
#: Folder of the points in the folder of a scenario's results.
POINTS = "points"
_SMALL = (SUMMARY, "collective.csv")
_WHAT = "a file of results"
#: What is said of a point, or of a file, that is not as it was written.
DAMAGED, REMEDY = "is damaged: it is not what its manifest says", "run with --fresh"
#: Largest JSON that is read, bytes.
_MOST = 2**27


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of ours; empty where it is not there or damaged."""
    try:
        value = _parsed(_content(path))
    except (OutputError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _content(path: Path) -> bytes:
    return read_regular(path, _MOST, OutputError, what=_WHAT, remedy=REMEDY)


def _parsed(content: bytes) -> object:
    text = content.decode()
    value = parse_json(text)
    if "\\ud" in text.lower():  # half a character, which no file can hold?
        json.dumps(value, ensure_ascii=False, default=str).encode()
    return value


def read_manifest(folder: Path, *, contents: bool = False) -> Manifest | None:
    """The manifest of a point's folder, or None if the folder is not a whole point. `contents`: compare the SHA-256 of
    every file. Otherwise only those of the small files that tables over all points are made of, and the length of the
    others.
    """
    try:
        content = _content(folder / MANIFEST)
        manifest = Manifest.read(_parsed(content))
        if manifest.format != FORMAT or not is_sealed(content):
            return None
        for name in (VOLATILE, *manifest.files):
            if os.path.lexists(folder / name) and not os.path.isfile(folder / name):
                return None
        for name, entry in manifest.files.items():
            if name != os.path.basename(name) or os.path.getsize(folder / name) != entry.bytes:
                return None
            if (contents or name in _SMALL) and _sha256(folder / name) != entry.sha256:
                return None
        return manifest if SUMMARY in manifest.files else None
    except (OSError, OutputError, ValueError, RecursionError):
        return None


def _sha256(path: Path) -> str:
    with open_regular(path, OutputError, what=_WHAT) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoint:
    """A point of the store."""

    folder: Path
    manifest: Manifest
    summary: Summary
    cost: RunCost

    @property
    def row(self) -> Row:
        """The row of the point, with the CPU time of the run that made it."""
        return replace(self.summary.row, cpu_s=self.cost.cpu_s)

    def table(self, name: str) -> Table:
        """A table of records (collective, link, node, message, hop, rank, vertex). Raises OutputError: it was not
        recorded, or is damaged.
        """
        file = f"{name}.csv"
        if file not in self.manifest.files:
            raise OutputError(str(self.folder / file), "is not in the manifest", REMEDY)
        try:
            with open_regular(self.folder / file, OutputError, what=_WHAT) as stream:
                data = stream.read()
        except OSError as error:
            raise OutputError(str(self.folder / file), f"cannot be read: {error.strerror}", REMEDY) from None
        if hashlib.sha256(data).hexdigest() != self.manifest.files[file].sha256:
            raise OutputError(str(self.folder / file), DAMAGED, REMEDY)
        return read_csv(data)

    def tables(self, *names: str) -> dict[str, Table]:
        """Several tables; without collectives where these are not kept. Raises as `table`."""
        lacking = () if self.manifest.collectives else ("collective",)
        return {name: self.table(name) for name in names if name not in lacking}


def is_of_another_version(folder: Path) -> bool:
    """Whether a point was stored in another format than ours."""
    return read_object(folder / MANIFEST).get("format", FORMAT) != FORMAT


def why_no_point(folder: Path) -> tuple[str, str]:
    """Why the folder of a point cannot be read, and the remedy."""
    if is_of_another_version(folder):
        return "is of another version of astrasim_py", "run the scenario again"
    return DAMAGED, REMEDY


def read_point(folder: Path, *, contents: bool = False) -> StoredPoint | None:
    """A stored point, or None if the folder is not a whole point."""
    manifest = read_manifest(folder, contents=contents)
    if manifest is None:
        return None
    try:
        summary = Summary.read(_parsed(_content(folder / SUMMARY)))
    except (OutputError, ValueError, RecursionError):
        return None
    try:
        cost = RunCost.read(read_object(folder / VOLATILE))
    except ValueError:  # no manifest vouches for it
        cost = RunCost()
    return StoredPoint(folder=folder, manifest=manifest, summary=summary, cost=cost)


def read_points(folder: Path, cache: Mapping[Path, StoredPoint] | None = None) -> tuple[StoredPoint, ...]:
    """Every whole point of a scenario's folder, in the order of its swept values; the rest is ignored. `cache`: points
    by folder, which are not read again while their manifest is there. Raises OutputError: the folder cannot be read.
    """
    cache = cache or {}
    places = [folder / POINTS / name for name in point_names(folder)]
    points = [cache[place] if place in cache and _is_there(cache[place]) else read_point(place) for place in places]
    return tuple(sorted((point for point in points if point is not None), key=_order))


def _is_there(point: StoredPoint) -> bool:
    try:
        return _content(point.folder / MANIFEST) == point.manifest.sealed()
    except OutputError:
        return False


def point_names(folder: Path) -> list[str]:
    """Names of the folders of a scenario's points, sorted. Raises OutputError: the folder cannot be read."""
    return _with_manifest(folder / POINTS)


def names_in(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing where it is none. Raises OutputError: it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(str(folder), f"cannot be read: {reason}", "name a folder of results") from None


def _with_manifest(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if name[:1] != "." and os.path.exists(folder / name / MANIFEST)]


def by_digest(points: Iterable[StoredPoint]) -> dict[str, StoredPoint]:
    """The points by their identity; the first where two runs have stored the same."""
    first: dict[str, StoredPoint] = {}
    for point in points:
        first.setdefault(point.manifest.digest, point)
    return first


def earlier_layout(folder: Path) -> str:
    """What to say of points that are stored as earlier versions of this package did; empty where there are none."""
    if folder.name == POINTS:  # of a scenario's folder
        return ""
    try:
        # What `explore` leaves has a manifest, too, and a table.
        folders = [name for name in _with_manifest(folder) if not os.path.exists(folder / name / "table.json")]
    except OutputError:
        return ""
    if not folders:
        return ""
    return f"{number_of(len(folders), 'point')} in the layout of an earlier version, such as {folders[0]}"


def newest(points: Sequence[StoredPoint]) -> tuple[StoredPoint, ...]:
    """The point computed last of each name; a changed scenario leaves several."""
    best = {point.manifest.point: point for point in sorted(points, key=finished)}
    return tuple(point for point in points if best[point.manifest.point] is point)


def finished(point: StoredPoint) -> tuple[Decimal, str]:
    """When a point was computed, in seconds since 1970, and its folder, for an order of all."""
    return point.cost.finished, point.folder.name


def _order(point: StoredPoint) -> tuple[object, ...]:
    return (
        tuple((key, value_order(value)) for key, value in point.summary.row.sweep.items()),
        point.manifest.point,
        point.manifest.digest,
    )


def write_tables(folder: Path, points: Sequence[StoredPoint] | None = None) -> tuple[Path, ...]:
    """Make ``summary.csv``, ``collectives.csv`` and, of several jobs, ``jobs.csv`` again from the point folders. Of
    points that are repeated with other seeds these have the medians, and ``seeds.csv`` and ``jobs_by_seed.csv`` all
    runs. There is no index that two runs could spoil for each other: the files follow from the folders alone.
    `points`: by default the newest of each name. Raises OutputError.
    """
    points = newest(read_points(folder)) if points is None else points
    rows = [replace(point.row, stored_in=_relative(point)) for point in points]
    jobs = [row.of_job(job) for row, point in zip(rows, points, strict=True) for job in point.summary.jobs]
    header, lines_of_points = with_swept_columns(rows)
    files = {"summary.csv": (header, lines_of_points), "jobs.csv": (list(JOB_KEYS), list(map(_of_job, jobs)))}
    if any(row.seeds for row in rows):
        files |= {"seeds.csv": files["summary.csv"], "jobs_by_seed.csv": files["jobs.csv"]}
        files["summary.csv"] = _with_repeats(header), with_swept_columns(medians(rows))[1]
        files["jobs.csv"] = _with_repeats(JOB_KEYS), list(map(_of_job, medians(jobs)))
    for name in ("jobs.csv", "seeds.csv", "jobs_by_seed.csv"):
        if not files.get(name, ((), ()))[1]:
            remove_files(folder, name)
    return (
        *(
            write_file(folder / name, csv_rows([*keys, "folder"], lines), make_folder=True)
            for name, (keys, lines) in files.items()
            if lines or name == "summary.csv"
        ),
        write_file(folder / "collectives.csv", _collectives(points), make_folder=True),
    )


def _with_repeats(keys: Sequence[str]) -> list[str]:
    place = keys.index("time_ns") + 1
    return [*keys[:place], *REPEAT_KEYS, *([] if SEED in keys else [SEED]), *keys[place:]]


def _of_job(row: Row) -> dict[str, Any]:
    """A row of ``jobs.csv``."""
    repeats = {key: getattr(row, key) for key in (*REPEAT_KEYS, SEED, "point")}
    return {**(row.job or {}), **repeats, "folder": row.stored_in}


def _relative(point: StoredPoint) -> str:
    """The folder of a point, as it is found from the tables."""
    return f"{POINTS}/{point.folder.name}"


def _collectives(points: Sequence[StoredPoint]) -> Iterator[bytes]:
    """The collectives of all points as CSV, a block of rows at a time."""
    yield csv_rows([*COLLECTIVE_KEYS, "folder"], ())
    for point in points:
        if "collective.csv" in point.manifest.files:
            calls = point.table("collective")
            table = collective_table(point.manifest.point, _relative(point), calls, point.summary.factors)
            yield from itertools.islice(csv_chunks(table), 1, None)
