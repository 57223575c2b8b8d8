"""Opening of recordings: files, gzip'd or not, and members of tar archives."""

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from astrasim_py.chakra.et_io import MAX_RATIO
from astrasim_py.core.errors import TraceError
from astrasim_py.core.files import open_regular

#: Bytes that are unzipped at a time.
CHUNK = 2**20
#: Bytes of content that any gzip stream may have; a longer one at most `MAX_RATIO` times its size.
_AMPLE = 2**26
#: Most members of an archive that are looked at.
MAX_MEMBERS = 10_000
Opened = tuple[IO[bytes], Callable[[], float]]
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)


class _Bounded(io.RawIOBase):
    """A gzip stream whose content may only be a limited number of times as long as its file."""

    def __init__(self, file: IO[bytes], place: str) -> None:
        self.place, self.gzip = place, gzip.GzipFile(fileobj=file)
        self.most = max(_AMPLE, MAX_RATIO * file.seek(0, io.SEEK_END))
        file.seek(0)

    def readinto(self, buffer) -> int:
        count = self.gzip.readinto(buffer)
        if self.gzip.tell() > self.most:
            remedy = "if it is no zip bomb, unzip it yourself"
            raise TraceError(self.place, f"unzips to more than {MAX_RATIO} times its size", remedy)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.gzip.seek(offset, whence)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Short(io.RawIOBase):
    """A file that reads little at a time: an archive may state headers of any length."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, size: int = CHUNK) -> bytes:
        return self.file.read(min(size, CHUNK))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.file.seek(offset, whence)

    def seekable(self) -> bool:
        return True


def _unzipped(file: IO[bytes], place: str) -> IO[bytes]:
    magic = file.read(2)
    file.seek(0)
    return io.BufferedReader(_Bounded(file, place), CHUNK) if magic == b"\x1f\x8b" else file


def _archive(file: IO[bytes]) -> tarfile.TarFile | None:
    """The archive that a file is, or None."""
    head = file.read(512)
    file.seek(0)
    return tarfile.open(fileobj=_Short(file), mode="r:") if head[257:262] == b"ustar" else None


def _members(archive: tarfile.TarFile, place: str) -> list[tarfile.TarInfo]:
    members = []
    for count, info in enumerate(archive):
        if count == MAX_MEMBERS:
            raise TraceError(place, f"has more than {MAX_MEMBERS} members", "unpack it and name the files")
        if info.isreg() and not Path(info.name).name.startswith("."):
            members.append(info)
    return members


@contextmanager
def _opened(path: str, place: str) -> Iterator[Opened]:
    with open_regular(path, TraceError, what="a JSON file") as file:
        length = max(file.seek(0, io.SEEK_END), 1)
        file.seek(0)
        try:
            yield _unzipped(file, place), lambda: file.tell() / length
        except EOFError:
            raise TraceError(place, "its gzip stream is cut short", "copy the file again") from None
        except _DAMAGED as error:
            raise TraceError(place, f"is damaged: {error}", "copy the file again") from None


def sources(path: str) -> list[str]:
    """The documents in a file: ``path`` itself, or ``path!member`` for each member of a tar archive.

    Raises TraceError: not readable, damaged.
    """
    with _opened(path, path) as (file, _):
        archive = _archive(file)
        return [path] if archive is None else [f"{path}!{info.name}" for info in _members(archive, path)]


@contextmanager
def open_source(source: str) -> Iterator[Opened]:
    """The bytes of a document, ``path`` or ``path!member``, unzipped; and the share of its file that has been read.

    Raises TraceError: not readable, damaged, no such member, or several members and none named.
    """
    path, _, member = (source, "", "") if os.path.exists(source) else source.rpartition("!")
    with _opened(path or source, source) as (file, share):
        archive = _archive(file)
        if archive is not None:
            members = [info for info in _members(archive, path) if member in ("", info.name)]
            if len(members) != 1:
                problem = f"has {len(members)} members" if not member else f"has {len(members)} members of this name"
                raise TraceError(source, problem, f"name one, as in {path}!folder/file.json")
            if (inner := archive.extractfile(members[0])) is not None:  # all of them are regular files
                file = _unzipped(inner, source)
        yield file, share
