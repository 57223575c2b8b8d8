"""Reading of files that the user names, and atomic writing."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

from astrasim_py.core.errors import AstraError, OutputError

#: Stands for the number of a rank in the name of a file.
RANK = "{rank}"

_REMEDIES = {
    errno.ENOSPC: "free some space, or {}",
    errno.EDQUOT: "free some of your quota, or {}",
    errno.ENAMETOOLONG: "use a shorter path, or {}",
}


def named(path: str | os.PathLike, error: type[AstraError]) -> Path:
    """The path that a user or a file names; raises `error`: nothing can have this name.

    Most functions raise ValueError of such a name. Whether something is there, ask ``os.path``: of a name that is too
    long `pathlib` raises OSError in some versions of Python.
    """
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path)
    except UnicodeEncodeError:  # half a character
        pass
    raise error(ascii(os.fspath(path))[:80], "is not a file name", "check the name")


# -- reading ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_regular(
    path: str | os.PathLike, error: type[AstraError], *, what: str, most: int | None = None, remedy: str = ""
) -> Iterator[BufferedReader]:
    """A regular file, open for reading; a FIFO or device is refused without waiting for it.

    `error`: class of the error. `what`: expected file, as in ``a topology file``. `most`: largest size, bytes.
    `remedy`: what to do with a file that is too large. Raises `error`: no such file, not readable (here or in the
    block), not a regular file, too large.
    """
    place = os.fspath(path)
    try:
        descriptor = os.open(
            named(path, error), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except OSError as failure:
        raise error(place, f"cannot be read: {failure.strerror}", "check the name") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise error(place, "is not a regular file", f"name {what}")
        with open(descriptor, "rb") as stream:
            if most is not None and status.st_size > most:
                raise error(place, f"more than {most} bytes, the cap for such a file", remedy)
            yield stream
    except OSError as failure:
        raise error(place, f"cannot be read: {failure.strerror}", "check the name") from None


def read_regular(path: str | os.PathLike, most: int, error: type[AstraError], *, what: str, remedy: str) -> bytes:
    """Content of a regular file of at most `most` bytes; parameters and errors as `open_regular`."""
    with open_regular(path, error, what=what, most=most, remedy=remedy) as stream:
        data = stream.read(most + 1)
    if len(data) > most:  # files of /proc have no size
        raise error(os.fspath(path), f"more than {most} bytes, the cap for such a file", remedy)
    return data


# -- writing ----------------------------------------------------------------------------------------------------


def host_mark() -> str:
    """Eight hexadecimal digits that identify this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def temporary_name(kind: str = "tmp") -> str:
    """``.<kind>-<process>-<machine><random>``: a name that no other process takes."""
    return f".{kind}-{os.getpid()}-{host_mark()}{secrets.token_hex(4)}"


#: Files and folders that are being written, and those that they replace.
_TEMPORARY = re.compile(r"\.(tmp|old)-(\d+)-([0-9a-f]{8})[0-9a-f]{8}")
#: Those whose process cannot be looked up (another machine) are abandoned once they are this old.
_STALE_SECONDS = 24 * 3600


def abandoned(path: Path) -> str | None:
    """The kind of a temporary file or folder whose process was killed, else None."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return None
    try:
        old = time.time() - os.lstat(path).st_mtime > _STALE_SECONDS
        if not old:
            if match[3] != host_mark():
                return None
            os.kill(int(match[2]), 0)
    except OverflowError:
        return match[1]
    except OSError as error:  # gone meanwhile, or not ours to judge
        return match[1] if isinstance(error, ProcessLookupError) else None
    return match[1] if old else None


def _remove_abandoned(folder: Path) -> None:
    """Remove files that killed processes left half written."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = folder / name
            if name.startswith(".tmp-") and abandoned(path) and stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)


def output_error(path: os.PathLike | str, error: OSError, place: str = "choose a writable place") -> OutputError:
    """The error for a file that cannot be written; `place` names another place to choose."""
    remedy = _REMEDIES.get(error.errno or 0, "{}").format(place)
    return OutputError(os.fspath(path), f"cannot be written: {error.strerror or error}", remedy)


def write_new(path: Path, chunks: Iterable[bytes], *, sync: bool = True) -> tuple[str, int]:
    """Write a file that must not exist yet, to the disk where `sync`; returns its SHA-256 and length.

    Raises OSError.
    """
    state, length = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            state.update(view)
            length += len(view)
            while view:
                view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # the error of the write itself is on its way up
            os.close(descriptor)
        raise
    os.close(descriptor)  # the last place where a full disk may show
    return state.hexdigest(), length


def make_folders(path: Path) -> None:
    """Make a folder and those above it where they are not there. Raises OSError."""
    try:
        os.makedirs(path, exist_ok=True)
    except RecursionError:  # one level of calls for each folder
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)) from None


def sync_folder(path: Path) -> None:
    """Bring renames within a folder to the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def remove_files(folder: Path, pattern: str) -> None:
    """Remove files of a folder by pattern. Raises OutputError."""
    try:
        for path in sorted(folder.glob(pattern)):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(folder, error, "name a folder that you may write") from error


def write_file(
    path: str | os.PathLike, data: bytes | Iterable[bytes], *, make_folder: bool = False, sync: bool = True
) -> Path:
    """Write or replace one file atomically: readers see the old bytes or the new ones.

    `make_folder`: make the folder if it is not there. `sync`: wait until all is on the disk. Raises OutputError: disk
    full, read-only, no such folder ….
    """
    write_files([(path, data)], make_folder=make_folder, sync=sync)
    return Path(path)


def write_files(
    files: Iterable[tuple[str | os.PathLike, bytes | Iterable[bytes]]], *, make_folder: bool = False, sync: bool = False
) -> None:
    """Write several files as `write_file` does, and replace none before all of them are written."""
    moves: list[tuple[Path, Path]] = []
    folders: set[Path] = set()
    target = Path()
    try:
        for path, data in files:
            target = named(path, OutputError)
            if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
                # To replace a device would harm the machine.
                raise OutputError(os.fspath(path), "is no regular file", "choose another name")
            if make_folder:
                make_folders(target.parent)
            if target.parent not in folders:
                folders.add(target.parent)
                _remove_abandoned(target.parent)
            moves.append((target.parent / temporary_name(), target))
            write_new(moves[-1][0], (data,) if isinstance(data, bytes) else data, sync=sync)
        for temporary, target in moves:
            os.replace(temporary, target)
        for folder in dict.fromkeys(target.parent for _, target in moves) if sync else ():
            sync_folder(folder)
    except OSError as error:
        raise output_error(target, error) from error
    finally:
        for temporary, _ in moves:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
