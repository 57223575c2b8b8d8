"""The result store: a folder per point that appears whole or not at all.

Layout of ``results/<scenario>/``::

    summary.csv  collectives.csv  figures/   made again from the points
    study.json                               what the scenario is, and which points are of it as it ran last
    points/<number>-<label>/                 manifest.json  summary.json  rank.csv  link.csv  …  run.json

The identity of a point is the digest in its manifest, not the name of its folder: a point keeps the folder in which it
was stored first, also where an edited scenario has it at another place. One that other sources of this package have
computed is computed again, and replaced.

A folder is written under another name (``.tmp-<pid>-<random>``, on the same file system), every file flushed and
synced, ``manifest.json`` last with the SHA-256 of each file; then it is renamed. Whatever happens in between
leaves either the whole folder or none. Readers take only folders whose manifest is there and true.
"""

import contextlib
import dataclasses
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from astrasim_py.core.choices import AUTO, BOTH, FOLDED, LEVELS
from astrasim_py.core.digest import digest
from astrasim_py.core.edition import edition
from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.files import (
    abandoned,
    make_folders,
    named,
    output_error,
    sync_folder,
    temporary_name,
    write_new,
)  # fmt: skip
from astrasim_py.results import stored_points
from astrasim_py.results.model import FORMAT, File, Manifest, RunCost
from astrasim_py.results.stored_points import MANIFEST, VOLATILE, read_manifest, read_object
from astrasim_py.system.machine_models import Limits

#: Parts of the package that decide what a point's folder holds: all that computing a point imports, and data.
DECIDING = (
    *("astra_sim", "builders", "chakra", "collectives", "core", "data/hardware", "data/training", "dialects", "engine"),
    *("msccl", "mscclpp", "preparation", "program", "pytorch", "results", "runs", "scenario", "sharing/skeleton.py"),
    *("cuts", "synthesis", "system", "topology", "training", "verification", "workload"),
    *("measured/benchmark.py", "measured/nccl_files.py", "measured/nccl_tests.py", "measured/node_test.py"),
    *("measured/rows.py", "report/busiest_links.py", "report/intervals.py", "report/timeline.py"),
)
#: The digits of an identity that do not depend on the edition.
_PROBLEM = 48

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_READABLE = 72
#: Most characters of a point's label, and of one value in it.
_LABEL, _WORD = 48, 24
_HASH = 12
_TRIES = 8
#: Remedy for results that cannot be written.
_PLACE = "name a folder that you may write with --out"


def result_edition() -> str:
    """The edition of the sources that decide a point's result."""
    return edition(*DECIDING)


def point_digest(resolved: Mapping, inputs: Mapping[str, str]) -> str:
    """The identity of a point: whatever can change its records changes this. Which engine runs it cannot. `resolved`:
    the resolved scenario of this point, seeds included; plain values. `inputs`: file → SHA-256 of its content. Its last
    16 digits are `result_edition`.
    """
    return digest({"resolved": resolved, "inputs": dict(inputs)})[:_PROBLEM] + result_edition()


def folder_name(point: str, identity: str) -> str:
    """``<readable name>-<hash>``, for what points share; only letters, digits, ``. _ - = ,`` remain of the name.

    >>> folder_name("size=64 KiB,topology=ring", "0123456789abcdef")
    'size=64_KiB,topology=ring-0123456789ab'
    """
    readable = re.sub(r"[^A-Za-z0-9._=,-]", "_", point)[:_READABLE].lstrip(".") or "point"
    return f"{readable}-{identity[:_HASH]}"


def point_label(values: Mapping[str, str], name: str) -> str:
    """The swept values as part of a file name, or `name` where nothing is swept; numbers follow their key.

    >>> point_label({"topology": "torus", "size": "1 MiB", "training.tp": "4"}, "")
    'torus-1MiB-tp4'
    """
    words = [_word(text, _plain(key.rpartition(".")[2])) for key, text in values.items()]
    words = words or [_word(part, "") for part in name.split(",")]
    return "-".join(filter(None, words))[:_LABEL].rstrip("._-") or "point"


def _word(text: str, key: str) -> str:
    word = _plain(text)[:_WORD].strip("._-")
    return f"{key}{word}" if re.fullmatch(r"[0-9.]*", word) else f"{key}_{word}" if word in ("true", "false") else word


def _plain(text: str) -> str:
    """Only letters, digits and ``. _ -``; without spaces."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text.replace(" ", "")).strip("._-")


class PointFolders:
    """The folders of a scenario's points. A stored point has its own; a new one gets ``<number>-<label>``, with a part
    of its digest where another point has that folder. `points`: how many the scenario has.
    """

    def __init__(self, folder: Path, points: int = 0) -> None:
        self.digits = max(3, len(str(points)))
        self.folder = folder / stored_points.POINTS
        names = stored_points.point_names(folder) if os.access(self.folder, os.R_OK | os.X_OK) else ()
        self.digests = {name: read_object(self.folder / name / MANIFEST).get("digest") for name in names}
        pairs = [(name, digest) for name, digest in self.digests.items() if isinstance(digest, str)]
        self.names = {digest[:_PROBLEM]: name for name, digest in reversed(pairs)}

    def of(self, number: int, label: str, identity: str) -> Path:
        """The folder of a point. `number`: of the point in its scenario, from 1."""
        if identity[:_PROBLEM] in self.names:
            return self.folder / self.names[identity[:_PROBLEM]]
        home = self.folder / f"{number:0{self.digits}d}-{label}"
        return _apart(home, identity) if home.name in self.digests else home


def _apart(folder: Path, identity: str) -> Path:
    return folder.with_name(f"{folder.name}-{identity[:_HASH]}")


def scenario_folder(out: str | os.PathLike, scenario: str) -> Path:
    """The folder of a scenario's results. Raises UsageError: a name that could leave that folder or hide in it.
    Raises OutputError: `out` is no name of a folder.
    """
    if not _NAME.fullmatch(scenario):
        remedy = "write at most 64 of A-Z a-z 0-9 . _ -, not beginning with a point"
        raise UsageError(f"name {scenario!r}"[:80], "is not a name for a folder of results", remedy)
    return named(out, OutputError) / scenario


def _remove(path: Path) -> None:
    """Delete a leftover. One that stays is harmless, and the next run tries again."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            _remove(path / name)
        os.rmdir(path)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path | None]:
    """A folder of this process's own beside the points, for as long as it is used; None where there can be none."""
    path = folder / temporary_name("tmp")
    try:
        make_folders(folder)
        os.mkdir(path, 0o700)
    except OSError:
        yield None  # who writes results says why
        return
    try:
        yield path
    finally:
        _remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. None of them changes a result: they set its detail, its limits and its speed."""

    level: str = "links"  # record level; ``messages`` where a timeline is asked for
    timeline: bool | tuple[int, ...] = False  # of all ranks, if it is not too large, or of some
    limits: Limits = field(default_factory=Limits)
    engine: str = AUTO
    fold: bool = False  # simulate one rank for all where all do the same
    in_full: bool = False  # with `fold`: simulate in full what cannot be folded
    collectives: bool = True  # keep the table of collectives, which has millions of rows for a large training

    def __post_init__(self) -> None:
        if self.timeline:
            object.__setattr__(self, "level", "messages")

    def check_ranks(self, ranks: int) -> None:
        """Raises UsageError: the timeline is of a rank that is not there. `ranks`: how many are."""
        last = -1 if isinstance(self.timeline, bool) else max(self.timeline)
        if last >= ranks:
            raise UsageError("--ranks", f"{last} is not of {ranks} ranks", f"write 0-{ranks - 1}")

    def met_by(self, manifest: Manifest) -> bool:
        """True if a stored point satisfies these options. A point that ended by a limit is of use only under the very
        same limits. A full run is as good as a folded one, unless it reached a limit or both engines are to be
        compared; a folded one never serves for a full one.
        """
        if LEVELS.index(manifest.level) < LEVELS.index(self.level):
            return False
        if self.timeline and manifest.timeline != self.timeline:
            return False
        if self.collectives and not manifest.collectives:
            return False
        folded = manifest.engine.endswith(FOLDED)
        if folded != self.fold and (folded or self.engine == BOTH or manifest.status == "limit"):
            return False
        if self.engine not in (AUTO, manifest.engine.removesuffix(FOLDED)) and (not self.fold or self.engine == BOTH):
            return False
        return manifest.status != "limit" or manifest.limits == dict(self.limits)


def write_point(
    folder: Path,
    files: Mapping[str, bytes | Iterable[bytes]],
    manifest: Manifest,
    cost: RunCost,
    *,
    options: RunOptions,
    replace: bool = False,
) -> tuple[Path, Manifest]:
    """Store a point: the whole folder appears, or nothing does. `files`: name → content. `manifest`: gets SHA-256 and
    length of each file. `cost`: outside every digest. A point that meets `options`, stored by another process
    meanwhile, stays unless `replace` or computed by other sources; beside another point of that name it gets a name of
    its own. Returns the folder and the manifest. Raises OutputError: disk full, read-only, path too long …; everything
    else is untouched.
    """
    with _temporary(folder) as temporary:
        manifest = dataclasses.replace(manifest, files=_write_files(temporary, files))
        write_new(temporary / VOLATILE, (json_bytes(cost),))
        write_new(temporary / MANIFEST, (manifest.sealed(),))
        folder = _move_in(temporary, folder, manifest.digest, options, replace)
    return folder, manifest


def replace_folder(folder: Path, files: Mapping[str, bytes], about: Mapping[str, object]) -> None:
    """Write a folder that holds no point as a whole, and replace the one that is there. `about`: what its
    ``manifest.json`` says beside its files. Raises OutputError as `write_point`.
    """
    with _temporary(folder) as temporary:
        listed = {name: dataclasses.asdict(file) for name, file in _write_files(temporary, files).items()}
        write_new(temporary / MANIFEST, (json_bytes({"format": FORMAT, **about, "files": listed}),))
        _move_in(temporary, folder, "", RunOptions(), replace=True)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A new folder beside the one that is to be written, which goes unless it was moved there."""
    parent = folder.parent
    temporary = parent / temporary_name("tmp")
    try:
        make_folders(parent)
        os.mkdir(temporary)
        yield temporary
        sync_folder(parent)
    except OSError as error:
        raise output_error(folder, error, _PLACE) from error
    finally:
        if os.path.lexists(temporary):
            _remove(temporary)


def _write_files(folder: Path, files: Mapping[str, bytes | Iterable[bytes]]) -> dict[str, File]:
    entries = {}
    for name, content in files.items():
        sha256, length = write_new(folder / name, (content,) if isinstance(content, bytes) else content)
        entries[name] = File(sha256=sha256, bytes=length)
    return entries


def _move_in(temporary: Path, folder: Path, identity: str, options: RunOptions, replace: bool) -> Path:
    """Rename to the final name; the rename of a folder onto a folder that is not empty fails, and is the lock."""
    sync_folder(temporary)
    for _ in range(_TRIES):
        if _renamed(temporary, folder):
            return folder
        manifest = read_manifest(folder, contents=not replace)
        if manifest is not None and manifest.digest[:_PROBLEM] != identity[:_PROBLEM]:
            folder = _apart(folder, identity)
            continue
        if manifest is not None and not replace and manifest.digest == identity and options.met_by(manifest):
            return folder
        aside = folder.parent / temporary_name("old")
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            continue  # somebody else has just moved it
        try:
            moved = _renamed(temporary, folder)
        except BaseException:
            if os.path.lexists(temporary):
                _put_back(aside, folder)
            raise
        _remove(aside)
        if moved:
            return folder
    raise OSError(errno.EBUSY, "other runs keep replacing this point")


def _renamed(path: Path, target: Path) -> bool:
    """Rename a folder; False where something else is there."""
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _put_back(aside: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):  # it remains aside, and clean() of the next run puts it back
        os.rename(aside, folder)


def clean(folder: Path) -> int:
    """Remove what dead processes left in a scenario's folder, and put back what they had moved aside. Returns leftovers
    removed.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise output_error(folder, error, _PLACE) from error
    removed = 0
    for name in names:
        path, kind = folder / name, abandoned(folder / name)
        if kind is None:
            continue
        if kind == "old" and (manifest := read_manifest(path)) is not None:
            home = folder / manifest.folder
            if home.parent == folder and not os.path.lexists(home):
                _put_back(path, home)
                continue
        _remove(path)
        removed += 1
    return removed
