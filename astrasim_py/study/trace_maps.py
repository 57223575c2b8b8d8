"""Share read traces between the worker processes of a run by memory-mapped files.

The first worker that needs it reads it and writes its columns into a folder that only this run uses and that goes with
it; the others wait, and map them: one copy in memory, however many workers.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None

T = TypeVar("T")

#: Bytes of files from which on it pays.
WORTH = 2**20
_ALIGNED = 64


def map_shared(folder: Path | None, key: str, make: Callable[[], T]) -> T:
    """The value of `make`, made by the first process that asks for it.

    `folder`: of this run, which nobody else can write; None: every process makes its own. So it is where files cannot
    be locked or written, too. `key`: what tells it apart; a name of a file. `make`: gives a value that does not change
    and can be pickled. Its errors are its caller's.
    """
    if folder is None or fcntl is None:
        return make()
    path = folder / key
    try:
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write(path, make())
            return _read(path)
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


def _read(path: Path) -> object:
    body, places = pickle.loads(path.read_bytes())
    with open(path.with_suffix(".data"), "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(body, buffers=[data[place] for place in places])
