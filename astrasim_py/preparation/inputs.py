"""A point on its way to a Problem: its files, confined and read once, and what a person should know.

The worker processes of a run share large traces by memory-mapped files: the first that needs one reads it and writes
its columns into a folder that only this run uses; the others wait, and map them: one copy in memory for all workers.
"""

import mmap
import os
import pickle
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from astrasim_py.chakra.set_files import find_prefix
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.by_need import load
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest, file_digest, file_stamp
from astrasim_py.core.errors import AstraError, ScenarioError, TraceError
from astrasim_py.core.fields import CodeText, FileText, named_files
from astrasim_py.core.files import RANK
from astrasim_py.core.notes import Notes
from astrasim_py.core.registry import own_code
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.check import confined, split_code
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.workload_models import AstraSimWorkload
from astrasim_py.system.machine_models import NetworkModel

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # it is not on every system, and asked for before it is used

T = TypeVar("T")

#: Files of fewer bytes are read by each process itself.
WORTH = 2**20
#: Workloads that were read, with what their readers told.
WORKLOADS: Memo[tuple[Workload, Notes]] = Memo(4)
_ALIGNED = 64


def map_shared(folder: Path | None, key: str, make: Callable[[], T]) -> T:
    """The value of `make`, made by the first process that asks for it. `folder`: of this run, which nobody else can
    write; None: every process makes its own. So it is where files cannot be locked or written, too. `key`: what tells
    it apart; a name of a file. `make`: gives a value that does not change and can be pickled. Its errors are its
    caller's.
    """
    if folder is None or fcntl is None:
        return make()
    path = folder / key
    try:
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                _write(path, make())
            value: T = _read(path)
            return value
    except OSError:
        return make()


def _write(path: Path, value: object) -> None:
    """Write the large buffers of a value into a file to be mapped, and the rest, with their places, beside it."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    places = []
    with open(path.with_suffix(".data"), "wb") as file:
        file.write(b"\0")  # an empty file cannot be mapped
        for buffer in buffers:
            start = file.seek(-(-file.tell() // _ALIGNED) * _ALIGNED)
            places.append(slice(start, start + file.write(buffer.raw())))
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps((body, places)))
    os.replace(unfinished, path)


def _read(path: Path) -> Any:
    body, places = pickle.loads(path.read_bytes())
    with open(path.with_suffix(".data"), "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(body, buffers=[data[place] for place in places])


def recorded_files(name: str) -> list[Path]:
    """Files that a pattern with ``{rank}``, or the name of a file or an archive, stands for; raises as `rank_files`."""
    from astrasim_py.pytorch.rank_files import rank_files

    documents = rank_files([name], "workload.pytorch").values()
    return sorted(
        {Path(document if os.path.exists(document) else document.rpartition("!")[0]) for document in documents}
    )


_OF_A_PREFIX = re.compile(r"\.\d+\.et(\.gz)?")


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A point that is being prepared; see `astrasim_py.preparation.prepare.prepare` for its fields."""

    point: Point
    kept: Path | None = None
    beside: Path | None = None
    given: Mapping[str, Algorithm] = field(default_factory=dict)
    network: NetworkModel = NetworkModel()
    notes: Notes = field(default_factory=Notes)

    @property
    def spec(self) -> SimpleNamespace:
        """The typed keys of the point."""
        return self.point.spec

    def at(self, *path: str) -> str:
        return self.point.place(".".join(part for part in path if part))

    def path(self, name: FileText, place: str) -> Path:
        return confined(name, Path(self.point.folder), place, self.point.allow_outside)

    def code(self, text: CodeText, place: str) -> Callable:
        """A function or class of the user's own."""
        if not self.point.allow_code:
            raise ScenarioError(place, f'"{text}" is Python code', "run with --allow-code if you trust it")
        _, name = split_code(text, place)
        return own_code(self.path(text, place), name, place)

    def trace_files(self, prefix: Path, ranks: int | None, place: str) -> list[Path]:
        """Files of a prefix, none of which may link out of the scenario's folder."""
        return self.inside(find_prefix(prefix, ranks), place)

    def inside(self, files: list[Path], place: str) -> list[Path]:
        """The same files; raises ScenarioError if one links out of the scenario's folder."""
        for file in files if not self.point.allow_outside else ():
            if os.path.islink(file):  # their folder is checked already
                name = os.path.relpath(file, self.point.folder)
                confined(FileText(name), Path(self.point.folder), place, False)
        return files

    def read_once(self, memo: Memo[T], files: Sequence[Path], options: tuple, read: Callable[[], T]) -> T:
        """Contents of files: read once per process, or once per run if they are large."""
        stamps = tuple(file_stamp(file) for file in files)
        key = (stamps, options)
        beside = self.beside if sum(stamp.bytes for stamp in stamps) >= WORTH else None
        return memo.get(key, lambda: map_shared(beside, digest(key), read))


def input_digests(
    point: Point, cache: MutableMapping[tuple[str, str], Mapping[str, str]] | None = None
) -> dict[str, str]:
    """SHA-256 of every file that a point reads, by its path relative to the scenario. A name may be a prefix:
    ``traces/gpt3`` of ``traces/gpt3.0.et``, ``traces/gpt3.1.et.gz`` … Files that are missing or cannot be read are left
    out; preparing the point says what is wrong with them. `cache`: shared by the points of one run, so that each name
    is looked up once.
    """
    cache = {} if cache is None else cache
    digests: dict[str, str] = {}
    names = [name.file for _, name in named_files(list(vars(point.spec).values()))]
    if isinstance(point.spec.workload, AstraSimWorkload):
        names += load("astrasim_py.preparation.workloads.from_astra_sim:injected_files")(point)
    for name in names:
        key = (point.folder, name)
        digests |= cache[key] if key in cache else cache.setdefault(key, _digests(*key))
    return dict(sorted(digests.items()))


def _digests(folder: str, name: str) -> dict[str, str]:
    digests = {}
    for file in files_of(folder, name):
        with suppress(TraceError):
            digests[Path(os.path.relpath(file, folder)).as_posix()] = file_digest(file)
    return digests


def files_of(folder: str, name: str) -> list[Path]:
    """Files that a name stands for: itself, a prefix of ``.et`` files, or a pattern; empty where nothing is there."""
    path = Path(folder, name)
    with suppress(AstraError):
        if any(mark in name for mark in (RANK, "!", "*")):
            return recorded_files(str(path))
    with suppress(OSError, ValueError):
        beside = {file: file.name.removeprefix(path.name) for file in sorted(path.parent.iterdir())}
        return [
            file
            for file, suffix in beside.items()
            if file.name == path.name or (suffix != file.name and _OF_A_PREFIX.fullmatch(suffix))
        ]
    return []
