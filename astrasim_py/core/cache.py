"""Caches: files by key in the user's cache folder, and values by key in memory."""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AstraError, InternalError
from astrasim_py.core.files import read_regular, write_file

T = TypeVar("T")


def cache_folder() -> Path | None:
    """``ASTRASIM_CACHE``, else the user's cache folder; None where there is none.

    ``ASTRASIM_CACHE=`` (empty) turns the cache off.
    """
    folder = os.environ.get("ASTRASIM_CACHE")
    if folder is not None:
        return Path(folder) if folder else None
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "astrasim_py"
    try:
        return Path.home() / ".cache" / "astrasim_py"
    except RuntimeError:
        return None


def cache_file(kind: str, key: object, suffix: str) -> Path | None:
    """The cache file of a key (see `astrasim_py.core.digest.digest`) and a kind; None if the cache is off."""
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{digest(key)}{suffix}"


def cached(
    path: Path | None,
    make: Callable[[], T],
    *,
    load: Callable[[bytes], T | None],
    dump: Callable[[T], bytes | None],
    most: int = 2**30,
    fresh: bool = False,
) -> T:
    """The value cached in a file; if there is none, or it cannot be read, make and cache it.

    `path`: None: do not cache. `load`: bytes → value; it returns None, or raises AstraError or an error of malformed
    data, if the bytes hold no value. `dump`: value → bytes; None: do not cache this value. `most`: largest file to
    read, bytes. `fresh`: make the value in any case.
    """
    if path is not None and not fresh:
        try:
            value = load(read_regular(path, most, AstraError, what="a file of the cache", remedy="delete it"))
            if value is not None:
                return value
        except (AstraError, InternalError, OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
    value = make()
    if path is not None:
        try:
            data = dump(value)
            if data is not None:
                write_file(path, data, make_folder=True, sync=False)
        except (AstraError, OSError):
            pass
    return value


class Memo(Generic[T]):
    """The most recently used values by key, up to a capacity."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T], *, fits: Callable[[T], bool] = lambda value: True) -> T:
        """The value of a key, made if it is not cached; one that does not fit is not cached."""
        if key not in self._values:
            value = make()
            if not fits(value):
                return value
            self._values[key] = value
            if len(self._values) > self.most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()
