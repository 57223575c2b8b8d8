"""Reading and writing `.et` files, gzip'd or not, one per rank.

Protobuf serializes every distinct value of a field once. A node is the fields one after the other, as protobuf writes
them: in ascending order, zero scalars left out.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import messages
from astrasim_py.chakra.decode import decode
from astrasim_py.chakra.schema import MISSING, WRITE_ORDER, NodeType, kind_for
from astrasim_py.chakra.set_files import find_prefix, listed, set_files
from astrasim_py.chakra.storage import Csr, check_unique, frozen
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import frame, varint
from astrasim_py.core.errors import OutputError, TraceError
from astrasim_py.core.files import named, open_regular, write_file, write_files

_CHUNKS = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
#: Columns that the absolute dialect lacks: chunk counts, and cells measured in chunks.
_NOT_ABSOLUTE = (*_CHUNKS, "src_buf", "src_off", "dst_buf", "dst_off", "payload")

DIALECTS = ("symbolic", "absolute")
#: Nodes that are encoded at a time.
_ROWS = 2**14


def _in_dialect(trace: ExecutionTrace, dialect: str | None) -> dict[str, np.ndarray]:
    columns = {name: trace.column(name) for name in WRITE_ORDER if trace.has_column(name)}
    if dialect is None:
        return columns
    if dialect not in DIALECTS:
        raise ValueError(f"dialect is one of {', '.join(DIALECTS)}, not {dialect!r}")
    messages_ = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    for name in _CHUNKS if dialect == "symbolic" else ("comm_size",):
        lacking = np.flatnonzero(messages_ & (trace.column(name) == MISSING))
        if len(lacking):
            other = "absolute" if dialect == "symbolic" else "symbolic"
            raise TraceError(
                trace.place,
                f"node {int(trace.node_id[lacking[0]])} has no {name}, so it cannot be written in the "
                f"{dialect} dialect",
                f"write the {other} dialect, or give the size it is for",
            )
    if dialect == "absolute":
        return {name: column for name, column in columns.items() if name not in _NOT_ABSOLUTE}
    if "comm_size" in columns:
        size = np.where(trace.column("total_chunk_cnt") == MISSING, columns["comm_size"], MISSING)
        if (size != MISSING).any():
            columns["comm_size"] = size
        else:
            del columns["comm_size"]
    return columns


def encode_columns(trace: ExecutionTrace, dialect: str | None = None) -> Iterator[bytes]:
    """Bytes of a trace from its columns alone, part by part.

    `dialect`: ``"symbolic"`` leaves `comm_size` out where chunk counts give the size; ``"absolute"`` writes `comm_size`
    and no chunk counts. Default: all columns as they are. Raises TraceError: a send or receive without what the dialect
    needs.
    """
    columns = {name: (kind_for(name, values), values) for name, values in _in_dialect(trace, dialect).items()}
    header = messages.metadata_message(trace.version, trace.metadata).SerializeToString(deterministic=True)
    yield varint(len(header)) + header
    for begin in range(0, len(trace), _ROWS):
        yield _encoded(trace, columns, slice(begin, min(begin + _ROWS, len(trace))))


def _encoded(trace: ExecutionTrace, columns: Mapping[str, tuple[str, np.ndarray]], rows: slice) -> bytes:
    """The records of some nodes."""
    fields = {
        "id": trace.node_id[rows].tolist(),
        "name": list(trace.names[rows]),
        "type": trace.type[rows].tolist(),
        "ctrl_deps": trace.ctrl_deps.lists(rows),
        "data_deps": trace.data_deps.lists(rows),
        "start_time_micros": trace.start_time_micros[rows].tolist(),
        "duration_micros": trace.duration_micros[rows].tolist(),
    }
    parts = [_each(values, partial(_field, name)) for name, values in fields.items() if any(values)]
    for name, (kind, values) in columns.items():
        parts.append(_each(values[rows].tolist(), partial(_attribute, name, kind)))
    codes, names = trace.group_of()
    if names:
        labels = (*names, MISSING)
        parts.append(
            _each([labels[code] for code in codes[rows].tolist()], partial(_attribute, "pg_name", "string_val"))
        )
    if trace.rest is not None:
        rest = (*trace.rest[1], b"")
        parts.append([rest[code] for code in trace.rest[0][rows].tolist()])
    records: list[bytes] = []
    for body in map(b"".join, zip(*parts, strict=True)) if parts else [b""] * (rows.stop - rows.start):
        records += varint(len(body)), body
    return b"".join(records)


def _each(values: list, serialized: Callable[[Any], bytes]) -> list[bytes]:
    text_of = {value: serialized(value) for value in dict.fromkeys(values)}
    return [text_of[value] for value in values]


@lru_cache(maxsize=2**16)  # the traces of a set have many values in common
def _field(name: str, value: Any) -> bytes:
    return pb.Node(**{name: value}).SerializeToString()


@lru_cache(maxsize=2**16)
def _attribute(name: str, kind: str, value: int | str) -> bytes:
    if value == MISSING:
        return b""
    attribute = pb.AttributeProto(name=name)
    setattr(attribute, kind, value)
    return pb.Node(attr=[attribute]).SerializeToString()


def encode_changed(trace: ExecutionTrace) -> bytes:
    """Bytes of a trace read from a file and then changed: untouched nodes verbatim, the others patched."""
    raw, touched = trace.raw, trace.changed
    assert raw is not None and touched is not None
    parts: list[bytes] = []
    done = 0
    for row in np.flatnonzero(touched).tolist():
        before = int(raw.end[row - 1]) if row else raw.metadata[1]
        parts.append(raw.data[done:before])
        body = trace.node(row).SerializeToString(deterministic=True)
        parts += [varint(len(body)), body]
        done = int(raw.end[row])
    parts.append(raw.data[done:])
    return b"".join(parts)


#: Largest file that is read, bytes.
MAX_FILE = 2 * 2**30
#: Largest content of a gzip'd file, bytes.
MAX_GUNZIP = 2**30
#: Largest ratio of content to gzip stream, for content of more than `_AMPLE` bytes; traces stay well below.
MAX_RATIO = 500
_AMPLE = 2**26
#: Most gzip streams in one file.
MAX_MEMBERS = 2**16
#: Bytes that are unzipped at a time.
_FEED = 2**16
#: Files beyond this size are checked at their beginning first; also the bytes to unzip at a time.
_PART = 2**20
#: Bytes of the beginning.
_HEAD = 2**14
_GZIP = b"\x1f\x8b"


def read_bytes(path: str | os.PathLike, *, head: bool = True) -> bytes:
    """Content of a regular file of bounded size, unzipped if it begins with gzip's magic number.

    `head`: check that a large file begins as a Chakra ET does before reading on. Raises TraceError: not a regular file,
    not readable, too large, or a damaged gzip stream.
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

    Raises TraceError: a damaged or cut stream, or one that unzips to more.
    """
    parts: list[bytes] = []
    held = position = members = 0
    content = memoryview(data)
    remedy = "copy the file again"
    while position < len(data):
        if data[position] == 0:
            # Zeros may fill the last block of a tape or a disk.
            if data[position:].strip(b"\0"):
                raise TraceError(place, "has data after its gzip stream", remedy)
            break
        members += 1
        if members > MAX_MEMBERS:
            raise TraceError(place, f"is made of more than {MAX_MEMBERS} gzip streams", "compress it in one")
        stream = zlib.decompressobj(wbits=31)
        try:
            while not stream.eof:
                feed: bytes | memoryview = stream.unconsumed_tail
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
                    raise TraceError(place, problem, "unzip it yourself if you trust it")
                if head and part and not parts:
                    frame(part, place, whole=False)
                if part:
                    parts.append(part)
        except zlib.error as error:
            raise TraceError(place, f"its gzip stream is damaged: {error}", remedy) from None
        position -= len(stream.unused_data)
    return b"".join(parts)


def _trace(fields: dict[str, Any], place: str, rank: int | None) -> ExecutionTrace:
    check_unique(fields["node_id"], place, fields["raw"].start)
    for name in ("node_id", "type", "duration_micros", "start_time_micros"):
        fields[name] = frozen(fields[name])
    for name in ("data_deps", "ctrl_deps"):
        fields[name] = Csr(*map(frozen, fields[name]))
    codes, names = fields["_groups"]
    return ExecutionTrace(**fields | {"_groups": (frozen(codes), names)}, place=place, rank=rank)


def parse_trace(data: bytes, place: str = "", rank: int | None = None) -> ExecutionTrace:
    """A trace from the (unzipped) bytes of a file; raises as `read_trace` does."""
    return _trace(decode([(data, place)])[0], place, rank)


def read_trace(path: str | os.PathLike, rank: int | None = None) -> ExecutionTrace:
    """Read one rank's trace from a `.et` file; gzip is recognised by its first two bytes.

    `rank`: rank it is for, for messages. Raises TraceError: a file that cannot be read, is damaged, or breaks the rules
    of the format.
    """
    return read_traces([path], [rank])[0]


def read_traces(
    paths: Iterable[str | os.PathLike[str]], ranks: Sequence[int | None] | None = None
) -> tuple[ExecutionTrace, ...]:
    """Read several traces at once; files of equal content are parsed once and share one trace.

    Raises TraceError: as `read_trace`, for the first file that is wrong.
    """
    names = [os.fspath(path) for path in paths]
    index: dict[bytes, int] = {}
    numbers = [index.setdefault(read_bytes(name), number) for number, name in enumerate(names)]
    columns = decode([(data, names[number]) for data, number in index.items()])
    traces = {
        number: _trace(fields, names[number], ranks[number] if ranks else None)
        for number, fields in zip(index.values(), columns, strict=True)
    }
    return tuple(traces[number] for number in numbers)


def read_prefix(prefix: str | os.PathLike, ranks: int | None = None) -> tuple[ExecutionTrace, ...]:
    """Read a set `PREFIX.<rank>.et` (or `.et.gz`) of ranks 0..N-1.

    Raises TraceError: files missing or too many (all are listed), or as `read_trace`.
    """
    paths = find_prefix(prefix, ranks)
    return read_traces(paths, range(len(paths)))


def encode_trace(trace: ExecutionTrace, *, dialect: str | None = None) -> bytes:
    """Bytes of a trace as a file.

    Unchanged nodes keep the bytes of the file that they were read from; changed nodes are encoded again.

    `dialect`: ``"symbolic"`` (chunk counts) or ``"absolute"`` (`comm_size`), both from the columns alone. Raises
    TraceError: a send or receive without what the dialect needs.
    """
    return b"".join(_parts(trace, dialect))


def _parts(trace: ExecutionTrace, dialect: str | None) -> Iterable[bytes]:
    if dialect is not None or trace.raw is None:
        return encode_columns(trace, dialect)
    return [trace.raw.data if trace.changed is None else encode_changed(trace)]


def gzip_bytes(data: bytes) -> bytes:
    """gzip with nothing in it but the content: no time, no name, no system."""
    zipped = zlib.compress(data, 9, wbits=31)
    return zipped[:9] + b"\xff" + zipped[10:]


def write_trace(
    path: str | os.PathLike, trace: ExecutionTrace, *, gzip: bool = False, dialect: str | None = None
) -> None:
    """Write one rank's trace; see `encode_trace`.

    Raises OutputError: it cannot be written. Raises TraceError: as `encode_trace`.
    """
    data = encode_trace(trace, dialect=dialect)
    write_file(path, gzip_bytes(data) if gzip else data)


def write_prefix(
    prefix: str | os.PathLike,
    traces: Iterable[ExecutionTrace],
    *,
    ranks: int | None = None,
    gzip: bool = False,
    dialect: str | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> list[Path]:
    """Write a set `PREFIX.<rank>.et` (or `.et.gz`), all of it or nothing; returns the paths.

    `ranks`: how many traces there are, where they are made one by one. `beside`: content of further files, by what
    follows the prefix. Raises OutputError: a file cannot be written, or files of an earlier set would be read together
    with this one.
    Raises TraceError: as `encode_trace`.
    """
    place = os.fspath(prefix)
    suffix = ".et.gz" if gzip else ".et"
    if ranks is None:
        traces = held = tuple(traces)
        ranks = len(held)
    paths = [Path(f"{place}.{rank}{suffix}") for rank in range(ranks)]
    ours = {path.name for path in paths}
    named(place, OutputError)
    try:
        present = sorted(name for names in set_files(place).values() for name in names)
    except OSError as error:
        folder = os.path.dirname(place) or "."
        raise OutputError(place, f"cannot list {folder}: {error.strerror}", "make the folder") from None
    stale = [name for name in present if name not in ours]
    if stale:
        problem = f"files of another set are in the way: {listed(stale)}"
        raise OutputError(place, problem, "remove them or choose another name")

    def files() -> Iterator[tuple[Path, bytes | Iterable[bytes]]]:
        before: ExecutionTrace | None = None
        data: Iterable[bytes] = ()
        for path, (trace, after) in zip(paths, pairwise(chain(traces, [None])), strict=True):
            assert trace is not None  # None stands behind the last
            if trace is not before:
                data = _parts(trace, dialect)
                if gzip:
                    data = [gzip_bytes(b"".join(data))]
                elif trace is after:  # a set may share traces, which are encoded once
                    data = list(data)
            before = trace
            yield path, data
        for end, content in (beside or {}).items():
            yield Path(f"{place}{end}"), content

    write_files(files())
    return paths
