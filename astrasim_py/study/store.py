"""The result store: a folder per point that appears whole or not at all.

Layout of ``results/<scenario>/``::

    <readable point name>-<hash>/   manifest.json  summary.json  rank.csv  collective.csv  link.csv  …  run.json
    summary.csv  collectives.csv    made again from the point folders
    figures/

A folder is written under another name (``.tmp-<pid>-<random>``, on the same file system), every file flushed and
synced, ``manifest.json`` last with the SHA-256 of each file; then it is renamed. Whatever happens in between
leaves either the whole folder or none. Readers take only folders whose manifest is there and true.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from astrasim_py.core.choices import AUTO, BOTH, FOLDED
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import InternalError, OutputError, UnitError, UsageError
from astrasim_py.core.files import host_mark, output_error, sync_folder, temporary_name, write_file, write_new
from astrasim_py.core.records import LEVELS, RECORD_SCHEMA, Table
from astrasim_py.core.units import parse_bandwidth, parse_size, parse_time
from astrasim_py.report.csv_io import read_csv
from astrasim_py.report.tables import (
    COLLECTIVE_KEYS,
    ROW_KEYS,
    collective_rows,
    csv_rows,
    json_text,
    parse_json,
)

#: Version of the folder's layout.
FORMAT = 1
#: Raised whenever an engine gives other numbers for the same problem; part of every point's hash.
ENGINE_SEMANTICS = 1

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
VOLATILE = "run.json"
_SMALL = (SUMMARY, "collective.csv")

#: What readers ask of every manifest.
REQUIRED = ("scenario", "point", "folder", "digest", "status", "level", "timeline", "limits", "exit_code")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_TEMPORARY = re.compile(r"\.(tmp|old)-(\d+)-([0-9a-f]{8})[0-9a-f]{8}")
#: Leftovers whose process cannot be looked up (another machine) are removed once they are this old.
_STALE_SECONDS = 24 * 3600
_READABLE = 72
_HASH = 12
_TRIES = 8
#: What to do where results cannot be written.
_PLACE = "name a folder that you may write with --out"


# -- names ------------------------------------------------------------------------------------------------------


def point_digest(resolved: Mapping, inputs: Mapping[str, str], *, version: str) -> str:
    """The identity of a point: whatever can change its records changes this. Which engine runs it cannot.

    Parameters
    ----------
    resolved : mapping
        The resolved scenario of this point, seeds included; plain values.
    inputs : mapping of str to str
        File → SHA-256 of its content.
    version : str
        Of this package.
    """
    return digest(
        {
            "resolved": resolved,
            "inputs": dict(inputs),
            "version": version,
            "records": RECORD_SCHEMA,
            "semantics": ENGINE_SEMANTICS,
            "format": FORMAT,
        }
    )


def folder_name(point: str, identity: str) -> str:
    """``<readable point name>-<hash>``; only letters, digits, ``. _ - = ,`` remain of the name.

    Examples
    --------
    >>> folder_name("size=64 KiB,topology=ring", "0123456789abcdef")
    'size=64_KiB,topology=ring-0123456789ab'
    """
    readable = re.sub(r"[^A-Za-z0-9._=,-]", "_", point)[:_READABLE].lstrip(".") or "point"
    return f"{readable}-{identity[:_HASH]}"


def scenario_folder(out: str | os.PathLike, scenario: str) -> Path:
    """The folder of a scenario's results.

    Raises
    ------
    UsageError
        A name that could leave the results folder or hide in it.
    """
    if not _NAME.fullmatch(scenario):
        raise UsageError(
            f"name {scenario!r}"[:80],
            "is not a name for a folder of results",
            "write at most 64 of A-Z a-z 0-9 . _ -, not beginning with a point",
        )
    return Path(out) / scenario


# -- writing ----------------------------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    """Delete a leftover (our folders hold files only). One that stays is harmless, and the next run tries again."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            os.unlink(path / name)
        os.rmdir(path)


@contextlib.contextmanager
def marker(folder: Path) -> Iterator[Path]:
    """An empty file in a folder, for as long as other processes may look for it.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    path = folder / temporary_name("tmp")
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise output_error(path, error, _PLACE) from error
    try:
        yield path
    finally:
        _remove(path)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path | None]:
    """A folder of this process's own beside the points, for as long as it is used; None where there can be none."""
    path = folder / temporary_name("tmp")
    try:
        os.makedirs(folder, exist_ok=True)
        os.mkdir(path, 0o700)
    except OSError:
        yield None  # who writes results says why
        return
    try:
        yield path
    finally:
        _remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a stored point must have been recorded with to be used again.

    Attributes
    ----------
    level : str
        At least this record level.
    timeline : bool
        A timeline file is asked for.
    limits : mapping
        Limits of this run. A point that ended by a limit is of use only under the very same limits.
    engine : str
        Engine that must have run it; ``auto``: any. Of a folded run only ``both`` makes a difference.
    fold : bool
        Whether it is to be folded: a full run is as good, unless it reached a limit. Without, no folded run will do.
    """

    level: str = "links"
    timeline: bool = False
    limits: Mapping[str, int | None] | None = None
    engine: str = AUTO
    fold: bool = False

    def met_by(self, manifest: Mapping) -> bool:
        if LEVELS.index(manifest["level"]) < LEVELS.index(self.level):
            return False
        if self.timeline and not manifest["timeline"]:
            return False
        ran = manifest.get("engine") or ""
        folded = ran.endswith(FOLDED)
        if folded != self.fold and (folded or self.engine == BOTH or manifest["status"] == "limit"):
            return False
        if self.engine not in (AUTO, ran.removesuffix(FOLDED)) and (not self.fold or self.engine == BOTH):
            return False
        return manifest["status"] != "limit" or manifest["limits"] == dict(self.limits or {})


def write_point(
    folder: Path,
    files: Mapping[str, bytes | Iterable[bytes]],
    manifest: Mapping,
    volatile: Mapping,
    *,
    wanted: Wanted,
    replace: bool = False,
) -> Path:
    """Store a point: the whole folder appears, or nothing does.

    Parameters
    ----------
    folder : Path
        Where it shall be: a sub-folder of the scenario's folder.
    files : mapping of str to bytes or iterable of bytes
        Name → content. ``manifest.json`` and ``run.json`` are added.
    manifest : mapping
        Plain values; ``files`` (SHA-256 and length of each) is added.
    volatile : mapping
        Host, versions, times: outside every digest.
    wanted : Wanted
        If another process stored the same point meanwhile and it meets this, that one stays.
    replace : bool
        Replace even a stored point that meets `wanted`.

    Returns
    -------
    Path
        `folder`.

    Raises
    ------
    OutputError
        Disk full, read-only, path too long …; nothing of this point is left, everything else is untouched.
    """
    missing = [key for key in REQUIRED if key not in manifest]
    if missing or SUMMARY not in files or manifest["folder"] != folder.name:
        raise InternalError(f"a point without {missing or SUMMARY}, or of another name than its folder")
    manifest = {"format": FORMAT, **manifest}
    parent = folder.parent
    temporary = parent / temporary_name("tmp")
    try:
        os.makedirs(parent, exist_ok=True)
        os.mkdir(temporary)
        entries = {}
        for name, content in files.items():
            chunks = (content,) if isinstance(content, bytes) else content
            sha256, length = write_new(temporary / name, chunks)
            entries[name] = {"sha256": sha256, "bytes": length}
        write_new(temporary / VOLATILE, (_json_bytes(volatile),))
        write_new(temporary / MANIFEST, (_json_bytes({**manifest, "files": entries}),))
        sync_folder(temporary)
        _move_in(temporary, folder, wanted, replace)
        sync_folder(parent)
    except OSError as error:
        raise output_error(folder, error, _PLACE) from error
    finally:
        if os.path.lexists(temporary):
            _remove(temporary)
    return folder


def _json_bytes(value: Mapping) -> bytes:
    return (json_text(value) + "\n").encode()


def _move_in(temporary: Path, folder: Path, wanted: Wanted, replace: bool) -> None:
    """Rename to the final name; the rename of a folder onto a folder that is not empty fails, and is the lock."""
    for _ in range(_TRIES):
        try:
            os.rename(temporary, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not replace:
            there = read_manifest(folder, contents=True)
            if there is not None and wanted.met_by(there):
                return
        aside = folder.parent / temporary_name("old")
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            continue  # somebody else has just moved it
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else was quicker
                _remove(aside)
                continue
            _put_back(aside, folder)
            raise
        except BaseException:
            if os.path.lexists(temporary):
                _put_back(aside, folder)
            raise
        _remove(aside)
        return
    raise OSError(errno.EBUSY, "other runs keep replacing this point")


def _put_back(aside: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):  # it remains aside, and clean() of the next run puts it back
        os.rename(aside, folder)


def clean(folder: Path) -> int:
    """Remove what dead processes left in a scenario's folder, and put back what they had moved aside.

    Returns
    -------
    int
        Leftovers removed.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise output_error(folder, error, _PLACE) from error
    removed = 0
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        path = folder / name
        if match is None or _in_use(path, int(match[2]), match[3]):
            continue
        if match[1] == "old" and (there := read_manifest(path)) is not None:
            home = folder / str(there["folder"])
            if home.parent == folder and not os.path.lexists(home):
                _put_back(path, home)
                continue
        _remove(path)
        removed += 1
    return removed


def _in_use(path: Path, pid: int, host: str) -> bool:
    try:
        if time.time() - os.lstat(path).st_mtime > _STALE_SECONDS:
            return False
    except OSError:
        return True  # gone meanwhile, or not ours to judge
    if host != host_mark():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


# -- reading ----------------------------------------------------------------------------------------------------


def read_manifest(folder: Path, *, contents: bool = False) -> dict | None:
    """The manifest of a point's folder, or None if the folder is not a whole point.

    Parameters
    ----------
    folder : Path
    contents : bool
        Compare the SHA-256 of every file. Otherwise only those of the small files that tables over all points
        are made of, and the length of the others.
    """
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest["format"] != FORMAT:
            return None
        for name, entry in manifest["files"].items():
            if name != os.path.basename(name) or os.path.getsize(folder / name) != entry["bytes"]:
                return None
            if (contents or name in _SMALL) and _sha256(folder / name) != entry["sha256"]:
                return None
        known = all(isinstance(manifest[key], str) for key in REQUIRED[:5]) and manifest["level"] in LEVELS
        return manifest if known and SUMMARY in manifest["files"] and manifest.keys() >= set(REQUIRED) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoint:
    """A point read back from its folder."""

    folder: Path
    manifest: dict
    summary: dict
    volatile: dict

    @property
    def row(self) -> dict:
        """The row of the point, with the CPU time of the run that made it."""
        row = {key: self.summary["row"].get(key) for key in ROW_KEYS}
        row["cpu_s"] = self.volatile.get("cpu_s")
        return row

    @property
    def exit_code(self) -> int:
        return int(self.manifest["exit_code"])

    def table(self, name: str) -> Table:
        """A table of records (collective, link, node, message, hop, rank, vertex).

        Raises
        ------
        KeyError
            It was not recorded.
        OutputError
            The file cannot be read any more.
        """
        file = f"{name}.csv"
        if file not in self.manifest["files"]:
            raise KeyError(name)
        try:
            data = (self.folder / file).read_bytes()
            if hashlib.sha256(data).hexdigest() != self.manifest["files"][file]["sha256"]:
                raise ValueError("its content is not what the manifest says")
            return read_csv(data)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(str(self.folder / file), f"cannot be read: {reason}", "run with --fresh") from None


def read_point(folder: Path, *, contents: bool = False) -> StoredPoint | None:
    """A stored point, or None if the folder is not a whole point."""
    manifest = read_manifest(folder, contents=contents)
    if manifest is None:
        return None
    try:
        summary = parse_json((folder / SUMMARY).read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or not isinstance(summary.get("row"), dict):
            return None
    except (OSError, ValueError):
        return None
    try:
        volatile = parse_json((folder / VOLATILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        volatile = {}
    return StoredPoint(
        folder=folder,
        manifest=manifest,
        summary=summary,
        volatile=volatile if isinstance(volatile, dict) else {},
    )


def read_points(folder: Path) -> tuple[StoredPoint, ...]:
    """Every whole point of a scenario's folder, in the order of its swept values; the rest is ignored.

    Raises
    ------
    OutputError
        The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise OutputError(str(folder), f"cannot be read: {error.strerror}", "name a folder of results") from None
    found = [read_point(folder / name) for name in names if not name.startswith(".")]
    return tuple(sorted((p for p in found if p is not None), key=_order))


def point_names(folder: Path) -> frozenset[str]:
    """Names of the folders that hold a manifest."""
    return frozenset(name for name in os.listdir(folder) if name[:1] != "." and (folder / name / MANIFEST).exists())


def newest(points: Sequence[StoredPoint]) -> tuple[StoredPoint, ...]:
    """Of points with the same name (the scenario was changed in between) only the one computed last."""
    best: dict[str, StoredPoint] = {}
    for point in points:
        name = point.manifest["point"]
        if name not in best or _finished(point) > _finished(best[name]):
            best[name] = point
    return tuple(best.values())


def _finished(point: StoredPoint) -> tuple[Decimal, str]:
    when = point.volatile.get("finished")
    return (Decimal(when) if isinstance(when, int | Decimal) else Decimal(0), point.folder.name)


def value_order(text: str) -> tuple[int, Fraction, str]:
    """Sort key of a swept value: numbers and quantities by what they are worth, before plain text.

    Examples
    --------
    >>> sorted(["1 MiB", "ring", "64 KiB"], key=value_order)
    ['64 KiB', '1 MiB', 'ring']
    """
    try:
        return (0, Fraction(text), text)
    except (ValueError, ZeroDivisionError):
        pass
    for kind, parse in enumerate((parse_size, parse_time, parse_bandwidth), start=1):
        try:
            return (kind, Fraction(parse(text)), text)
        except UnitError:
            continue
    return (9, Fraction(0), text)


def _order(point: StoredPoint) -> tuple:
    sweep = point.summary["row"].get("sweep") or {}
    return (
        tuple((key, value_order(str(value))) for key, value in sweep.items()),
        point.manifest["point"],
        point.manifest["digest"],
    )


# -- tables over all points -------------------------------------------------------------------------------------


def write_tables(folder: Path, points: Sequence[StoredPoint] | None = None) -> tuple[Path, Path]:
    """Make ``summary.csv`` and ``collectives.csv`` again from the point folders.

    There is no index that two runs could spoil for each other: both files follow from the folders alone.
    ``superseded`` says yes for a point of whose name a newer one exists (the scenario was changed meanwhile).

    Raises
    ------
    OutputError
    """
    points = read_points(folder) if points is None else points
    current = {point.folder.name for point in newest(points)}
    swept = list(dict.fromkeys(key for point in points for key in point.row["sweep"]))
    keys = [key for key in ROW_KEYS if key not in ("sweep", "cpu_s")]
    place = keys.index("point") + 1
    names = {key: key if key not in keys else f"sweep.{key}" for key in swept}
    header = [*keys[:place], *names.values(), *keys[place:], "superseded", "folder"]
    rows = []
    for point in points:
        row = point.row
        row |= {names[key]: value for key, value in row["sweep"].items()}
        row["superseded"] = "no" if point.folder.name in current else "yes"
        row["folder"] = point.folder.name
        rows.append(row)
    collectives = []
    for point in points:
        factors = {(kind, int(n)): Fraction(f) for kind, n, f in point.summary.get("busbw_factors", ())}
        table = point.table("collective")
        for row in collective_rows(point.manifest["point"], table, factors):
            row["folder"] = point.folder.name
            collectives.append(row)
    return (
        write_file(folder / "summary.csv", csv_rows(header, rows), make_folder=True),
        write_file(folder / "collectives.csv", csv_rows([*COLLECTIVE_KEYS, "folder"], collectives), make_folder=True),
    )
