"""What there is of compiled functions, known without importing numba: notes beside the folders that hold them."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from astrasim_py.core.cache import cache_folder
from astrasim_py.core.errors import OutputError
from astrasim_py.core.files import write_file

#: What there is of a compiled function: in memory, on disk, nowhere.
LOADED, KEPT, ABSENT = "loaded", "kept", "absent"
#: Functions in memory: name, and whether with optional parts.
_loaded: set[tuple[str, bool]] = set()


def state_of(name: str, *, whole: bool = False) -> str:
    """`LOADED`, `KEPT` or `ABSENT`: what there is of a kernel.

    `name`: module and function. `whole`: with its optional parts. `KEPT` is a guess: where the processor or settings of
    numba have changed, the kernel is compiled all the same.
    """
    if (name, whole) in _loaded:
        return LOADED
    path = _path(name, whole)
    try:
        noted = {} if path is None else json.loads(path.read_bytes())
        unchanged = os.path.isdir(noted["folder"]) and noted["files"] == {file: _stamp(file) for file in noted["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return ABSENT
    return KEPT if unchanged else ABSENT


def note(name: str, whole: bool, folder: Path | None, files: Iterable[str]) -> None:
    """Note that a kernel is in memory, and kept in `folder` (None: in none). `files`: sources that it was made from."""
    _loaded.add((name, whole))
    path = _path(name, whole)
    if path is None or folder is None:
        return
    specs = map(find_spec, ("llvmlite", "numba", "numpy"))
    packages = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    text = json.dumps({"folder": str(folder), "files": {file: _stamp(file) for file in (*files, *packages)}}).encode()
    with contextlib.suppress(OSError, OutputError):
        if not os.path.exists(path) or path.read_bytes() != text:
            write_file(path, text, make_folder=True, sync=False)


def _path(name: str, whole: bool) -> Path | None:
    base = cache_folder()
    key = hashlib.blake2b(repr((name, whole, sys.version, __file__)).encode(), digest_size=8).hexdigest()
    return None if base is None else base / "kernels" / f"{name.rpartition('.')[2]}-{key}.json"


def _stamp(file: str) -> list[int]:
    status = os.stat(file)
    return [status.st_mtime_ns, status.st_size]
