"""Large sets of files into columns, by compiled code: its arguments, and columns from its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.chakra.decode_kernel import (
    COUNT,
    CTRL,
    FILL,
    METADATA_END,
    METADATA_START,
    MIX,
    NAME_CELLS,
    NODES,
    RECORDS,
    TEXT_CELLS,
    TEXTS,
    read,
)
from astrasim_py.chakra.framing import MAX_NODES, MAX_RECORD, check_metadata
from astrasim_py.chakra.schema import COUNTS, MISSING
from astrasim_py.chakra.storage import MISSING32, Csr, RawFile
from astrasim_py.chakra.wire import ATTRIBUTE

#: Zero bytes behind the files, so that eight bytes can be loaded anywhere.
_PAD = 32


class Bytes(NamedTuple):
    """Files one behind the other, then some zeros; and the 64-bit word at each byte."""

    data: np.ndarray
    words: np.ndarray
    base: np.ndarray


class Wanted(NamedTuple):
    """Names of the integer columns and, as the last, of the text column."""

    data: np.ndarray
    words: np.ndarray
    start: np.ndarray
    length: np.ndarray
    cells: np.ndarray  # int64[NAME_CELLS]: indices of names by hash
    counts: np.ndarray  # bool[k]: columns that must not be negative
    member_wire: np.ndarray


class Tally(NamedTuple):
    """Counts and ranges of each of f files."""

    good: np.ndarray  # bool[f]: read by the kernel
    found: np.ndarray  # int64[f, 6]
    first: np.ndarray  # int64[f + 1, 4]: where its nodes, dependencies and texts begin in the arrays
    held: np.ndarray  # int64[f, k, 3]: nodes with an integer column, the least and the greatest number
    width: np.ndarray  # int64[f, k]: bits in which it is stored, 0 where it needs no array
    column: np.ndarray  # int64[f, k]: where it begins
    start: np.ndarray
    stop: np.ndarray


class Out(NamedTuple):
    """Columns of all files, one file behind the other."""

    node_id: np.ndarray
    type: np.ndarray
    begun: np.ndarray
    lasts: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    codes: np.ndarray
    ctrl_ptr: np.ndarray
    ctrl_deps: np.ndarray
    data_ptr: np.ndarray
    data_deps: np.ndarray
    text_start: np.ndarray
    text_length: np.ndarray
    ints32: np.ndarray
    ints64: np.ndarray


class Scratch(NamedTuple):
    """Working memory of one call of `read`, all zeros before."""

    seen: np.ndarray  # int64[k + 1]
    heads: np.ndarray  # uint64[k + 9, 6]: next attribute after each column, and first one of each type
    usual: np.ndarray  # int64[k + 9, 3]
    text_cells: np.ndarray
    text_codes: np.ndarray


def _scratch(names: int) -> Scratch:
    return Scratch(
        seen=np.zeros(names, dtype=np.int64),
        heads=np.zeros((names + 8, 6), dtype=np.uint64),
        usual=np.zeros((names + 8, 3), dtype=np.int64),
        text_cells=np.zeros(2 * TEXT_CELLS, dtype=np.int64),
        text_codes=np.zeros(TEXT_CELLS, dtype=np.int64),
    )


def decode(files: Sequence[tuple[bytes, str]], ints: Sequence[str], text: str) -> Iterator[dict[str, Any] | None]:
    """Columns of files, in order; None for a file that is left to protobuf.

    `files`: content and name of each. `ints`: names of the integer attributes wanted, fewer than `NAME_CELLS`. `text`:
    name of the text attribute wanted. Raises TraceError: metadata of a file are wrong: when its turn comes.
    """
    columns, count = len(ints), len(files)
    source = _joined([data for data, _ in files])
    wanted = _wanted(ints, text)
    none = np.empty(0, dtype=np.int64)
    tally = Tally(
        good=np.ones(count, dtype=bool),
        found=np.zeros((count, METADATA_END + 1), dtype=np.int64),
        first=np.zeros((count + 1, TEXTS + 1), dtype=np.int64),
        held=np.zeros((count, columns, 3), dtype=np.int64),
        width=np.zeros((count, columns), dtype=np.int64),
        column=np.zeros((count, columns), dtype=np.int64),
        start=none,
        stop=none,
    )
    tally.held[:, :, 1], tally.held[:, :, 2] = 2**63 - 1, MISSING
    nothing = _out((0,) * (TEXTS + 1), 0, 0, 0)
    read(RECORDS, MAX_NODES, MAX_RECORD, source, wanted, tally, nothing, _scratch(len(wanted.start)))
    tally.found[~tally.good] = 0
    np.cumsum(tally.found[:, NODES], out=tally.first[1:, NODES])
    nodes = int(tally.first[-1, NODES])
    tally = tally._replace(start=np.empty(nodes, dtype=np.int64), stop=np.empty(nodes, dtype=np.int64))
    read(COUNT, MAX_NODES, MAX_RECORD, source, wanted, tally, nothing, _scratch(len(wanted.start)))
    # Nodes of a file that turned out to be unusual keep their place.
    tally.found[~tally.good, CTRL:] = 0
    np.cumsum(tally.found[:, CTRL : TEXTS + 1], axis=0, out=tally.first[1:, CTRL:])
    size = tally.found[:, NODES, None]
    have, least, most = np.moveaxis(tally.held, 2, 0)
    used = (have > 0) & tally.good[:, None]
    several = used & ((have < size) | (least < most))
    narrow = several & (least > MISSING32) & (most < 2**31)
    pools = []
    for width, chosen in ((32, narrow), (64, several & ~narrow)):
        length = np.where(chosen, size, 0)
        tally.column[chosen] = (np.cumsum(length).reshape(length.shape) - length)[chosen]
        tally.width[chosen] = width
        pools.append(int(length.sum()))
    out = _out(tally.first[-1].tolist(), count, *pools)
    read(FILL, MAX_NODES, MAX_RECORD, source, wanted, tally, out, _scratch(len(wanted.start)))
    for array in (*out, tally.start, tally.stop):
        array.setflags(write=False)
    versions: dict[bytes, str] = {}
    for f, (data, place) in enumerate(files):
        if not tally.good[f]:
            yield None
            continue
        begin, end = tally.found[f, METADATA_START : METADATA_END + 1].tolist()
        metadata = data[begin:end]
        if metadata not in versions:
            versions[metadata] = check_metadata(data, begin, end, place)
        yield _columns(f, data, (begin, end), versions[metadata], ints, source, tally, out)


def _joined(parts: Sequence[bytes]) -> Bytes:
    sizes = [len(part) for part in parts]
    data = np.frombuffer(b"".join([*parts, bytes(_PAD)]), dtype=np.uint8)
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    return Bytes(data, words, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))


def _wanted(ints: Sequence[str], text: str) -> Wanted:
    names = [name.encode() for name in (*ints, text)]
    known = _joined(names)
    length = np.array([len(name) for name in names], dtype=np.int64)
    cells = np.full(NAME_CELLS, -1, dtype=np.int64)
    one, two, three = (int(factor) for factor in MIX)
    for index, name in enumerate(names):
        first = int.from_bytes(name[:8], "little")
        last = int.from_bytes(name[-8:], "little") if len(name) >= 8 else 0
        key = ((first ^ last * one ^ len(name) * two) * three) % 2**64
        cell = (key >> 32) % NAME_CELLS
        while cells[cell] >= 0:
            cell = (cell + 1) % NAME_CELLS
        cells[cell] = index
    return Wanted(
        data=known.data,
        words=known.words,
        start=known.base[:-1],
        length=length,
        cells=cells,
        counts=np.array([name in COUNTS for name in ints], dtype=bool),
        member_wire=np.array([ATTRIBUTE.get(number, ("", 255))[1] for number in range(33)], dtype=np.uint8),
    )


def _out(totals: Sequence[int], files: int, ints32: int, ints64: int) -> Out:
    nodes, ctrl, data, texts = totals
    wide, number = np.int64, np.uint64
    return Out(
        node_id=np.empty(nodes, number),
        type=np.empty(nodes, np.int8),
        begun=np.empty(nodes, number),
        lasts=np.empty(nodes, number),
        name_start=np.empty(nodes, wide),
        name_length=np.empty(nodes, wide),
        codes=np.empty(nodes, np.int32),
        ctrl_ptr=np.empty(nodes + files, wide),
        ctrl_deps=np.empty(ctrl, number),
        data_ptr=np.empty(nodes + files, wide),
        data_deps=np.empty(data, number),
        text_start=np.empty(texts, wide),
        text_length=np.empty(texts, wide),
        ints32=np.full(ints32, MISSING32, np.int32),
        ints64=np.full(ints64, MISSING, wide),
    )


def _columns(
    f: int,
    data: bytes,
    metadata: tuple[int, int],
    version: str,
    ints: Sequence[str],
    source: Bytes,
    tally: Tally,
    out: Out,
) -> dict[str, Any]:
    (low, ctrl, deps, label), (high, ctrl_end, deps_end, label_end) = tally.first[f : f + 2].tolist()
    columns: dict[str, int | np.ndarray] = {}
    for index in np.flatnonzero(tally.held[f, :, 0]).tolist():
        begin, width = int(tally.column[f, index]), int(tally.width[f, index])
        pool = out.ints32 if width == 32 else out.ints64
        columns[ints[index]] = pool[begin : begin + high - low] if width else int(tally.held[f, index, 1])
    spans = zip(out.text_start[label:label_end].tolist(), out.text_length[label:label_end].tolist(), strict=True)
    labels = tuple(source.data[at : at + length].tobytes().decode() for at, length in spans)
    return {
        "raw": RawFile(data, metadata, tally.start[low:high], tally.stop[low:high]),
        "version": version,
        "node_id": out.node_id[low:high],
        "type": out.type[low:high],
        "start_time_micros": out.begun[low:high],
        "duration_micros": out.lasts[low:high],
        "names": _names(data, out.name_start[low:high], out.name_length[low:high]),
        "ctrl_deps": Csr(out.ctrl_ptr[low + f : high + f + 1], out.ctrl_deps[ctrl:ctrl_end]),
        "data_deps": Csr(out.data_ptr[low + f : high + f + 1], out.data_deps[deps:deps_end]),
        "_columns": columns,
        "_groups": (out.codes[low:high], labels),
    }


def _names(data: bytes, start: np.ndarray, length: np.ndarray) -> tuple[str, ...]:
    if not length.any():
        return ("",) * len(start)
    return tuple([data[at : at + size].decode() for at, size in zip(start.tolist(), length.tolist(), strict=True)])
