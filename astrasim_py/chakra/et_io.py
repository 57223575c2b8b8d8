"""Reading and writing `.et` files, gzip'd or not, one per rank."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from astrasim_py.chakra import encode
from astrasim_py.chakra.decode import decode, decode_text
from astrasim_py.chakra.framing import frame
from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.storage import Csr, FileColumns, check_unique, frozen
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload, groups_from_json, groups_from_metadata
from astrasim_py.core.errors import OutputError, TraceError
from astrasim_py.core.files import open_regular, write_file, write_files

#: Largest file that is read, bytes.
MAX_FILE = 2 * 2**30
#: Largest content of a gzip'd file, bytes.
MAX_GUNZIP = 2**30
#: How much larger content of more than `_AMPLE` bytes may be than its gzip stream; traces stay well below.
MAX_RATIO = 500
_AMPLE = 2**26
#: Most gzip streams in one file.
MAX_MEMBERS = 2**16
#: Bytes that are unzipped at a time.
_FEED = 2**16
#: Of a file beyond so many bytes the beginning is looked at before the rest is read; also what is unzipped at a time.
_PART = 2**20
#: Bytes of that beginning.
_HEAD = 2**14
_GZIP = b"\x1f\x8b"


def read_bytes(path: str | os.PathLike, *, head: bool = True) -> bytes:
    """Content of a regular file of bounded size, unzipped if it begins with gzip's magic number.

    Parameters
    ----------
    path : path
    head : bool
        Check that a large file begins as a Chakra ET does before reading on.

    Raises
    ------
    TraceError
        Not a regular file, not readable, too large, or a damaged gzip stream.
    """
    place = os.fspath(path)
    with open_regular(place, TraceError, what="a file", most=MAX_FILE, remedy="split the trace") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(_HEAD)
        zipped = data[:2] == _GZIP
        if head and not zipped and size > _PART:
            frame(data, place, whole=False)
        if len(data) == _HEAD:
            file.seek(0)
            data = file.read(size or MAX_FILE)
    return gunzip(data, place, head=head) if zipped else data


def gunzip(data: bytes, place: str = "", *, head: bool = False) -> bytes:
    """Content of a gzip stream, of at most `MAX_GUNZIP` bytes and not absurdly larger than the stream.

    Raises
    ------
    TraceError
        A damaged or cut stream, or one that unzips to more.
    """
    parts: list[bytes] = []
    held = position = members = 0
    content = memoryview(data)
    remedy = "copy the file again"
    while position < len(data):
        if data[position] == 0:
            # Zeros may fill the last block of a tape or a disk.
            if data[position:].strip(b"\0"):
                raise TraceError(place, "holds something behind its gzip stream", remedy)
            break
        members += 1
        if members > MAX_MEMBERS:
            raise TraceError(place, f"is made of more than {MAX_MEMBERS} gzip streams", "compress it in one")
        stream = zlib.decompressobj(wbits=31)
        try:
            while not stream.eof:
                feed = stream.unconsumed_tail
                if not feed:
                    feed = content[position : position + _FEED]
                    position += len(feed)
                part = stream.decompress(feed, _PART)
                if not len(feed) and not part and not stream.eof:
                    raise TraceError(place, "its gzip stream is cut short", remedy)
                held += len(part)
                if held > MAX_GUNZIP:
                    raise TraceError(place, f"unzips to more than {MAX_GUNZIP} bytes", "split the trace")
                if held > _AMPLE and held > MAX_RATIO * len(data):
                    problem = f"unzips to more than {MAX_RATIO} times its size"
                    raise TraceError(place, problem, "if it is no zip bomb, unzip it yourself")
                if head and part and not parts:
                    frame(part, place, whole=False)
                if part:
                    parts.append(part)
        except zlib.error as error:
            raise TraceError(place, f"its gzip stream is damaged: {error}", remedy) from None
        position -= len(stream.unused_data)
    return b"".join(parts)


def _trace(columns: FileColumns, place: str, rank: int | None, keep_raw: bool) -> ExecutionTrace:
    check_unique(columns.node_id, place, columns.raw.start)
    trace = ExecutionTrace(
        node_id=frozen(columns.node_id),
        type=frozen(columns.type),
        duration_micros=frozen(columns.duration_micros),
        start_time_micros=frozen(columns.start_time_micros),
        data_deps=Csr(*map(frozen, columns.data_deps)),
        ctrl_deps=Csr(*map(frozen, columns.ctrl_deps)),
        names=columns.names,
        version=columns.version,
        place=place,
        rank=rank,
        raw=columns.raw,
        _columns=columns.ints,
        _groups=(frozen(columns.group[0]), columns.group[1]),
    )
    return trace if keep_raw else trace.without_raw()


def parse_trace(data: bytes, place: str = "", rank: int | None = None) -> ExecutionTrace:
    """A trace from the (unzipped) bytes of a file; raises as `read_trace` does."""
    return _trace(decode([(data, place)])[0], place, rank, True)


def read_trace(path: str | os.PathLike, rank: int | None = None, *, keep_raw: bool = True) -> ExecutionTrace:
    """Read one rank's trace.

    Parameters
    ----------
    path : path
        A `.et` file; gzip is recognised by its first two bytes.
    rank : int, optional
        Rank it is for, for messages.
    keep_raw : bool
        Keep the file's bytes, which the writer, `node` and foreign attributes need.

    Returns
    -------
    ExecutionTrace

    Raises
    ------
    TraceError
        A file that cannot be read, is damaged, or breaks the rules of the format.
    """
    return read_traces([path], None if rank is None else [rank], keep_raw=keep_raw)[0]


def read_traces(
    paths: Iterable[str | os.PathLike], ranks: Sequence[int] | None = None, *, keep_raw: bool = True
) -> tuple[ExecutionTrace, ...]:
    """Read several traces at once; files of equal content are parsed once and share one trace.

    Raises
    ------
    TraceError
        As `read_trace`, for the first file that is wrong.
    """
    index: dict[bytes, int] = {}
    files: list[tuple[bytes, str]] = []
    first: list[int | None] = []
    which = []
    for position, path in enumerate(paths):
        data = read_bytes(path)
        number = index.setdefault(data, len(files))
        if number == len(files):
            files.append((data, os.fspath(path)))
            first.append(position if ranks is None else ranks[position])
        which.append(number)
    if ranks is None:
        first = [None] * len(files)
    traces = [
        _trace(columns, place, rank, keep_raw)
        for columns, (_, place), rank in zip(decode(files), files, first, strict=True)
    ]
    return tuple(traces[number] for number in which)


def find_prefix(prefix: str | os.PathLike, ranks: int | None = None) -> list[Path]:
    """Files of a set `PREFIX.<rank>.et` (or `.et.gz`), by rank.

    Parameters
    ----------
    prefix : path
        Path and name up to the rank.
    ranks : int, optional
        Number of ranks there must be; by default as many as there are.

    Raises
    ------
    TraceError
        No file, a rank missing, there twice, or too many: all of them are listed.
    """
    place = os.fspath(prefix)
    folder, base = os.path.split(place)
    pattern = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,9})\.et(\.gz)?")
    found: dict[int, list[str]] = {}
    try:
        names = sorted(os.listdir(folder or "."))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TraceError(place, f"cannot list {folder or '.'}: {reason}", "name PREFIX of PREFIX.0.et") from None
    for name in names:
        match = pattern.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), []).append(name)
    if not found:
        hint = f"did you mean {place[: -len('.0.et')]}?" if place.endswith(".0.et") else "check the path"
        raise TraceError(place, f"there is no {base}.0.et", f"name the part before .<rank>.et; {hint}")
    twice = [" and ".join(names) for _, names in sorted(found.items()) if len(names) > 1]
    if twice:
        raise TraceError(place, f"ranks are there twice: {_list(twice)}", "keep one file of each rank")
    count = max(found) + 1 if ranks is None else ranks
    missing = _first(rank for rank in range(count) if rank not in found)
    extra = _first(rank for rank in sorted(found) if rank >= count)
    if missing or extra:
        problem = []
        if missing:
            problem.append(f"missing {_list([f'{base}.{rank}.et' for rank in missing])}")
        if extra:
            problem.append(f"beyond the last rank {_list([found[rank][0] for rank in extra])}")
        raise TraceError(
            place,
            f"ranks 0..{count - 1} are needed: {'; '.join(problem)}",
            "provide one file for every rank" if missing else "remove them or simulate more ranks",
        )
    return [Path(folder) / found[rank][0] for rank in range(count)]


def _first(ranks: Iterable[int]) -> list[int]:
    out = []
    for rank in ranks:
        out.append(rank)
        if len(out) > 8:
            break
    return out


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def read_prefix(
    prefix: str | os.PathLike, ranks: int | None = None, *, keep_raw: bool = True
) -> tuple[ExecutionTrace, ...]:
    """Read a set `PREFIX.<rank>.et` (or `.et.gz`) of ranks 0..N-1.

    Raises
    ------
    TraceError
        Files missing or too many (all are listed), or as `read_trace`.
    """
    paths = find_prefix(prefix, ranks)
    return read_traces(paths, range(len(paths)), keep_raw=keep_raw)


def scale_sizes(trace: ExecutionTrace, dtype_bytes: int) -> ExecutionTrace:
    """Turn element counts into bytes: `comm_size` and `tensor_size` times `dtype_bytes`.

    Raises
    ------
    TraceError
        A size beyond 2^63 - 1 bytes.
    """
    columns = {}
    for name in ("comm_size", "tensor_size"):
        if trace.has_column(name):
            columns[name] = _times(trace, name, dtype_bytes, np.ones(len(trace), dtype=bool))
    return trace.replace(**columns) if columns else trace


def double_macs(trace: ExecutionTrace) -> ExecutionTrace:
    """Turn multiply-accumulates into operations: `num_ops` of matrix products times 2.

    Where nodes carry an `op_type` those of type ``M`` are the matrix products; without any, all nodes are.

    Raises
    ------
    TraceError
        More than 2^63 - 1 operations.
    """
    if not trace.has_column("num_ops"):
        return trace
    chosen = np.ones(len(trace), dtype=bool)
    if trace.raw is not None:
        codes, names = decode_text(trace.raw, "op_type", trace.place)
        if names:
            chosen = codes == names.index("M") if "M" in names else ~chosen
    return trace.replace(num_ops=_times(trace, "num_ops", 2, chosen))


def _times(trace: ExecutionTrace, name: str, factor: int, chosen: np.ndarray) -> np.ndarray:
    values = trace.column(name)
    chosen = chosen & (values != MISSING)
    over = np.flatnonzero(chosen & (values > (2**63 - 1) // factor))
    if len(over):
        row = int(over[0])
        raise TraceError(
            trace.place,
            f"node {int(trace.node_id[row])}: {name} {int(values[row])} times {factor} is beyond 2^63 - 1",
            "check the unit of sizes",
        )
    return np.where(chosen, values * factor, values)


def read_workload(
    prefix: str | os.PathLike,
    *,
    groups: str | os.PathLike | Mapping[str, Sequence[int]] | None = None,
    size_unit: str = "bytes",
    dtype_bytes: int | None = None,
    macs: bool = False,
    ranks: int | None = None,
    name: str = "",
    keep_raw: bool = True,
) -> Workload:
    """Read the traces of all ranks and their communicator groups.

    Parameters
    ----------
    prefix : path
        Of files `PREFIX.<rank>.et`.
    groups : path or mapping, optional
        JSON file of group id to ranks, or the same as a mapping. By default the process groups that METADATA
        nodes declare, if any.
    size_unit : str
        ``"bytes"``, or ``"elements"`` for producers that write element counts (symbolic tensor graph); these
        are multiplied by `dtype_bytes`.
    dtype_bytes : int, optional
        Bytes per element.
    macs : bool
        The producer counts a multiply-accumulate as one operation: see `double_macs`.
    ranks : int, optional
        Number of ranks there must be.
    name : str
    keep_raw : bool
        Keep the bytes of the files.

    Returns
    -------
    Workload

    Raises
    ------
    TraceError
        As `read_prefix`; a bad group file; sizes beyond 2^63 - 1.
    """
    place = os.fspath(prefix)
    if size_unit not in ("bytes", "elements"):
        raise TraceError(place, f'size unit "{size_unit}" is unknown', 'write "bytes" or "elements"')
    if (size_unit == "elements") != (dtype_bytes is not None):
        problem = "elements need dtype_bytes" if dtype_bytes is None else "dtype_bytes is for elements only"
        raise TraceError(place, problem, 'write size_unit "elements" and dtype_bytes 2, or neither')
    if dtype_bytes is not None and not 1 <= dtype_bytes <= 2**16:
        raise TraceError(place, f"dtype_bytes is {dtype_bytes}", "write the bytes per element, e.g. 2")
    traces = read_prefix(prefix, ranks)
    if groups is None:
        declared: dict[str, tuple[int, ...]] = {}
        for trace in _distinct(traces):
            declared.update(groups_from_metadata(trace))
        groups = declared
    elif not isinstance(groups, Mapping):
        groups = groups_from_json(groups)
    changed = {}
    for trace in _distinct(traces):
        new = scale_sizes(trace, dtype_bytes) if dtype_bytes not in (None, 1) else trace
        new = double_macs(new) if macs else new
        changed[id(trace)] = new if keep_raw else new.without_raw()
    return Workload(
        tuple(changed[id(trace)] for trace in traces),
        {key: tuple(members) for key, members in groups.items()},
        name or os.path.basename(place),
    )


def _distinct(traces: Sequence[ExecutionTrace]) -> list[ExecutionTrace]:
    return list({id(trace): trace for trace in traces}.values())


def encode_trace(trace: ExecutionTrace, *, dialect: str | None = None) -> bytes:
    """Bytes of a trace as a file.

    A trace that was read and not changed gives the very bytes of its file; changed nodes are encoded anew,
    the others stay as they were.

    Parameters
    ----------
    trace : ExecutionTrace
    dialect : str, optional
        ``"symbolic"`` (chunk counts) or ``"absolute"`` (`comm_size`), both from the columns alone.

    Raises
    ------
    TraceError
        A send or receive without what the dialect needs.
    """
    if dialect is not None or trace.raw is None:
        return encode.encode_columns(trace, dialect)
    return trace.raw.data if trace.changed is None else encode.encode_changed(trace)


def gzip_bytes(data: bytes) -> bytes:
    """gzip with nothing in it but the content: no time, no name, no system."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = stream.compress(data) + stream.flush()
    tail = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + body + tail


def write_trace(
    path: str | os.PathLike, trace: ExecutionTrace, *, gzip: bool = False, dialect: str | None = None
) -> None:
    """Write one rank's trace; see `encode_trace`.

    Raises
    ------
    OutputError
        It cannot be written.
    TraceError
        As `encode_trace`.
    """
    data = encode_trace(trace, dialect=dialect)
    write_file(path, gzip_bytes(data) if gzip else data)


def write_prefix(
    prefix: str | os.PathLike,
    traces: Sequence[ExecutionTrace],
    *,
    gzip: bool = False,
    dialect: str | None = None,
) -> list[Path]:
    """Write a set `PREFIX.<rank>.et` (or `.et.gz`), all of it or nothing; returns the paths.

    Raises
    ------
    OutputError
        A file cannot be written, or files of an earlier set would be read together with this one.
    TraceError
        As `encode_trace`.
    """
    place = os.fspath(prefix)
    suffix = ".et.gz" if gzip else ".et"
    paths = [Path(f"{place}.{rank}{suffix}") for rank in range(len(traces))]
    folder, base = os.path.split(place)
    pattern = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,9})\.et(\.gz)?")
    ours = {path.name for path in paths}
    try:
        present = sorted(os.listdir(folder or "."))
    except OSError as error:
        raise OutputError(place, f"cannot list {folder or '.'}: {error.strerror}", "make the folder") from None
    stale = [name for name in present if pattern.fullmatch(name) and name not in ours]
    if stale:
        raise OutputError(
            place, f"files of another set are in the way: {_list(stale)}", "remove them or choose another name"
        )

    def content() -> Iterator[tuple[Path, bytes]]:
        before, data = None, b""
        for path, trace in zip(paths, traces, strict=True):
            if trace is not before:
                before, data = trace, encode_trace(trace, dialect=dialect)
                data = gzip_bytes(data) if gzip else data
            yield path, data

    write_files(content())
    return paths
