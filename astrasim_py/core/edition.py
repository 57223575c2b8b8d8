"""Editions: whatever is stored goes stale when the sources that decided it change."""

import hashlib
import os
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def edition(*parts: str) -> str:
    """A digest, 16 hexadecimal digits, of the sources and data of parts of this package.

    `parts`: folders and files by their names in the package: ``engine``, ``report/tables.py``.
    """
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        path = os.path.join(_PACKAGE, part)
        for file in [path] if part.endswith(".py") else _files(path):
            with open(file, "rb") as stream:
                content = stream.read()
            state.update(f"{os.path.relpath(file, _PACKAGE)}\n{len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


def _files(folder: str) -> list[str]:
    """Files below a folder, without what Python and kernels leave there."""
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths += [os.path.join(place, name) for name in names if name.endswith((".py", ".json", ".csv"))]
    return sorted(paths)
