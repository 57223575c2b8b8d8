"""The one digest function: a stable hash of plain values, arrays and bytes."""

import dataclasses
import hashlib
import os
import stat
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel

from astrasim_py.core.errors import TraceError
from astrasim_py.core.files import named, open_regular


def digest(value: object) -> str:
    """SHA-256 (64 hexadecimal digits) of a value of plain types, arrays, dataclasses and models.

    Keys of mappings may come in any order, and a tuple is a list. Every part is preceded by its type and length, so
    that values of different type or structure do not collide. Raises TypeError: a value of another type.
    """
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()


def _put(state, tag: str, body: bytes) -> None:
    state.update(f"{tag}{len(body)}:".encode())
    state.update(body)


def _feed(state, value: object) -> None:
    if value is None:
        _put(state, "n", b"")
    elif isinstance(value, bool | np.bool_):
        _put(state, "t", b"1" if value else b"0")
    elif isinstance(value, int | np.integer):
        _put(state, "i", str(int(value)).encode())
    elif isinstance(value, float | np.floating):
        _put(state, "f", float(value).hex().encode())
    elif isinstance(value, str):
        _put(state, "s", value.encode())
    elif isinstance(value, bytes | bytearray | memoryview):
        _put(state, "b", bytes(value))
    elif isinstance(value, Fraction):
        _put(state, "q", str(value).encode())
    elif isinstance(value, PurePath):
        _put(state, "s", value.as_posix().encode())
    elif isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        _put(state, "a", f"{array.dtype.str}{array.shape}".encode())
        _put(state, "b", array.tobytes())
    elif isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        if isinstance(value, BaseModel):
            fields = list(value)
        else:
            fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        _put(state, "d", type(value).__name__.encode())
        for name, item in fields:
            _feed(state, name)
            _feed(state, item)
    elif isinstance(value, Mapping):
        _put(state, "m", str(len(value)).encode())
        for key in sorted(value, key=str):
            _feed(state, str(key))
            _feed(state, value[key])
    elif isinstance(value, list | tuple):
        _put(state, "l", str(len(value)).encode())
        for item in value:
            _feed(state, item)
    else:
        raise TypeError(f"cannot digest a {type(value).__name__}")


class FileStamp(NamedTuple):
    """The state of a file; any later write gives another stamp."""

    path: str
    modified_ns: int
    bytes: int
    inode: int


def file_stamp(path: Path | str) -> FileStamp:
    """The state of a file, without reading it.

    Raises TraceError: it is not a regular file, or is not there.
    """
    place = os.fspath(path)
    try:
        status = os.stat(named(place, TraceError))
    except OSError as error:
        raise TraceError(place, f"cannot be read: {error.strerror}", "check the name") from None
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(place, "is not a regular file", "name a file")
    return FileStamp(place, status.st_mtime_ns, status.st_size, status.st_ino)


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's bytes.

    Raises TraceError: it is not a regular file, or cannot be read.
    """
    return _file_digest(file_stamp(path))


@lru_cache(maxsize=2**16)
def _file_digest(stamp: FileStamp) -> str:
    with open_regular(stamp.path, TraceError, what="a file") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
