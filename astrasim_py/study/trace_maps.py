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

import numpy as np

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
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115
    except OSError:
        return make()
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return make()
        value = None
        if not path.exists():
            value = make()
            try:
                _write(path, value)
            except OSError:
                return value
        try:
            return _read(path)
        except OSError:
            return make() if value is None else value


def _write(path: Path, value: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    lengths = np.array([part.nbytes for part in parts], dtype=np.int64)
    *starts, end = _starts(lengths)
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb") as file:
        file.write(np.concatenate([[len(parts)], lengths]).astype(np.int64).tobytes())
        for start, part in zip(starts, parts, strict=True):
            file.seek(start)
            file.write(part)
        file.truncate(end)
    os.replace(unfinished, path)


def _starts(lengths: np.ndarray) -> list[int]:
    """Where each part begins, and the end of the file: a table of lengths stands before the parts, all aligned."""
    room = np.concatenate([[8 * (1 + len(lengths))], lengths])
    return np.cumsum(-(-room // _ALIGNED) * _ALIGNED).tolist()


def _read(path: Path) -> object:
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    count = int(np.frombuffer(data, dtype=np.int64, count=1)[0])
    lengths = np.frombuffer(data, dtype=np.int64, count=count, offset=8)
    parts = [data[start : start + length] for start, length in zip(_starts(lengths), lengths.tolist(), strict=False)]
    return pickle.loads(parts[0], buffers=parts[1:])
