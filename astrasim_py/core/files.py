"""Reading a file that somebody else names: a regular one, of bounded size, without waiting."""

from __future__ import annotations

import os
import stat

from astrasim_py.core.errors import AstraError


def read_regular(path: str | os.PathLike, most: int, error: type[AstraError], *, what: str, remedy: str) -> bytes:
    """Content of a regular file of at most `most` bytes.

    Parameters
    ----------
    path : path
    most : int
        Bytes.
    error : type of AstraError
        Family of what is raised.
    what : str
        What it should be, as in ``a topology file``.
    remedy : str
        What to do with a file that is too large.

    Raises
    ------
    AstraError
        Of the given family: no such file, not readable, a folder, device or FIFO, too large.
    """
    place = os.fspath(path)
    try:
        # A FIFO must not block the open; that it is no regular file is seen afterwards.
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise error(place, "is not a regular file", f"name {what}")
            data = stream.read(most + 1) if status.st_size <= most else b""
    except OSError as failure:
        raise error(place, f"cannot be read: {failure.strerror}", "check the name") from None
    except ValueError:
        raise error(repr(place), "is not a file name", "check the name") from None
    if status.st_size > most or len(data) > most:
        raise error(place, f"more than {most} bytes, the cap for such a file", remedy)
    return data
