"""Folders that hold one compiled function each: whether one can be loaded, and who may write it."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from astrasim_py.core.apart import pause
from astrasim_py.core.errors import OutputError
from astrasim_py.core.files import write_file

#: Seconds to wait for another process that compiles before saying so: it may be of this run, and have said it itself.
_PATIENCE_S = 1.0
_SEAL = "digests.json"


def _digests(folder: Path) -> dict[str, str]:
    """Digests of the compiled files in a folder, each over the folder's name too, so that files cannot be exchanged."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".nbi", ".nbc", ".o"))
    name = folder.name.encode()
    return {path.name: hashlib.blake2b(name + path.read_bytes(), digest_size=16).hexdigest() for path in files}


def seal(folder: Path) -> None:
    """Write the digests of a folder's files, last, so that a damaged or unfinished folder is never loaded.

    A folder that cannot be written stays without them.
    """
    with contextlib.suppress(OSError, OutputError):
        for path in folder.iterdir():
            path.chmod(0o644)
        write_file(folder / _SEAL, json.dumps(_digests(folder)).encode(), sync=False).chmod(0o644)


def is_sound(folder: Path) -> bool:
    """Whether a folder is complete and undamaged, and only the user or the administrator can have written it.

    Numba unpickles the files that it loads, so they must be trusted.
    """
    try:
        return (
            _is_trusted(folder)
            and all(map(_is_trusted, folder.iterdir()))
            and json.loads((folder / _SEAL).read_bytes()) == _digests(folder) != {}
        )
    except (OSError, ValueError):
        return False


def _is_trusted(path: Path) -> bool:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_empty(folder: Path) -> bool:
    """Empty or make a folder; returns whether it is writable."""
    try:
        folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o755)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@contextlib.contextmanager
def new_folder(folders: list[Path]) -> Iterator[Path | None]:
    """The first of some folders that can be made empty, else a temporary one; None: no folder can be written."""
    folder = next(filter(make_empty, folders), None)
    with contextlib.ExitStack() as stack:
        if folder is None:
            with contextlib.suppress(OSError):
                place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                folder = Path(stack.enter_context(place), "kernels", "function")
                make_empty(folder)
        yield folder


@contextlib.contextmanager
def lock(folders: list[Path], what: str, announce: Callable[[str], None] | None) -> Iterator[None]:
    """Lock a function's folder across processes, where the file system has locks; `announce` what is waited for."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError, IndexError):
            import fcntl

            folders[0].parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folders[0].with_suffix(".lock"), "w"))
            until = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pause(0.05)
                if announce is not None and time.monotonic() >= until:
                    announce(f"another process compiles {what}; waiting for it")
                    announce = None
        yield
