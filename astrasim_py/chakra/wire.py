"""Chakra files into columns: small sets in numpy, large ones by the kernel, with equal results.

Files are framed (`framing`), and their nodes read in numpy (`columns`), by numba (`bulk`, `kernel`), or, where they
hold anything unusual, one by one (`plain`), which is also where all messages on damaged nodes come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.chakra.columns import BATCH_BYTES, FileColumns, decode_batch
from astrasim_py.chakra.framing import frame
from astrasim_py.chakra.schema import COLUMN_KINDS, MISSING
from astrasim_py.chakra.storage import RawFile, expand
from astrasim_py.core.errors import TraceError

#: Sets of at least so many bytes are worth the kernel, which must be loaded and, once, compiled.
KERNEL_BYTES = 8 * 2**20
#: Bytes of files that the kernel reads together.
GROUP_BYTES = 4 * 2**20


def decode(
    files: Sequence[tuple[bytes, str]],
    ints: Sequence[str] = tuple(COLUMN_KINDS),
    texts: Sequence[str] = ("pg_name",),
    *,
    kernel: bool | None = None,
) -> list[FileColumns]:
    """Decode files into columns, many nodes at a time.

    Parameters
    ----------
    files : sequence of (bytes, str)
        Content (unzipped) and name of each.
    ints, texts : sequence of str
        Names of the integer and text attributes wanted.
    kernel : bool, optional
        Read with the compiled kernel, for which there must be one text attribute; by default where the files are
        large. The result is the same.

    Returns
    -------
    list of FileColumns
        In the order given.

    Raises
    ------
    TraceError
        Anything wrong with any file: the first in the order of files and nodes.
    """
    if kernel is None:
        kernel = len(texts) == 1 and sum(len(data) for data, _ in files) >= KERNEL_BYTES
    return (_by_kernel if kernel else _in_numpy)(files, ints, texts)


def _by_kernel(files: Sequence[tuple[bytes, str]], ints: Sequence[str], texts: Sequence[str]) -> list[FileColumns]:
    out: list[FileColumns] = []
    position = 0
    while position < len(files):
        group, held = [], 0
        while position < len(files) and (not group or held + len(files[position][0]) <= GROUP_BYTES):
            group.append(files[position])
            held += len(files[position][0])
            position += 1
        if held > GROUP_BYTES:
            # One large file. Much memory goes into reading it, so it is refused before that where that is easily seen.
            frame(*group[0])
        from astrasim_py.chakra import bulk

        for file, columns in zip(group, bulk.decode(group, ints, texts[0]), strict=True):
            out.append(columns if columns is not None else _in_numpy([file], ints, texts)[0])
    return out


def _in_numpy(files: Sequence[tuple[bytes, str]], ints: Sequence[str], texts: Sequence[str]) -> list[FileColumns]:
    out: list[FileColumns] = []
    batch: list[tuple[RawFile, str, str]] = []
    held = 0
    for data, place in files:
        try:
            raw, version = frame(data, place)
        except TraceError:
            # An error in an earlier file comes first.
            decode_batch(batch, ints, texts)
            raise
        if batch and held + len(data) > BATCH_BYTES:
            out.extend(decode_batch(batch, ints, texts))
            batch, held = [], 0
        batch.append((raw, version, place))
        held += len(data)
    out.extend(decode_batch(batch, ints, texts))
    return out


def decode_attribute(raw: RawFile, name: str, place: str) -> np.ndarray:
    """An integer attribute of any name: int64[n], `MISSING` where a node has none.

    Raises
    ------
    TraceError
        A node has the attribute, but not as a whole number.
    """
    (columns,) = decode_batch([(raw, "", place)], (name,), ())
    return expand(columns.ints.get(name, MISSING), len(raw.start))


def decode_text(raw: RawFile, name: str, place: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A text attribute of any name: int32[n] codes (-1 where a node has none) and the texts they stand for."""
    (columns,) = decode_batch([(raw, "", place)], (), (name,))
    return columns.texts[name]
