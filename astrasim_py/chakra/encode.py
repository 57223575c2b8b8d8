"""Traces to bytes: whole columns at a time, or, where a file's nodes were changed, node by node.

A built trace becomes one matrix of bytes per group of fields, from which a mask picks what is written; names
and dependencies, whose length varies, are laid between. The layout is the one that protobuf writes: fields in
ascending order, zero scalars left out.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.chakra import messages
from astrasim_py.chakra.schema import MISSING, WRITE_ORDER, NodeType, kind_for
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.core.errors import TraceError

_TAGS = {"bool_val": 27, "int32_val": 7, "int64_val": 9, "uint32_val": 11, "uint64_val": 13}
_CHUNKS = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
#: Columns that the absolute dialect lacks: chunk counts, and cells measured in chunks.
_NOT_ABSOLUTE = (*_CHUNKS, "src_buf", "src_off", "dst_buf", "dst_off", "payload")

DIALECTS = ("symbolic", "absolute")


def _varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8[n, w] and the mask of the bytes that are written."""
    values = values.astype(np.uint64)
    top = int(values.max()) if len(values) else 0
    width = max(1, (top.bit_length() + 6) // 7)
    if width == 1:
        return values.astype(np.uint8)[:, None], np.ones((len(values), 1), dtype=bool)
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    rest = values[:, None] >> shifts
    used = rest > 0
    used[:, 0] = True
    cells = (rest & np.uint64(127)).astype(np.uint8)
    cells[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    return cells, used


def _lengths(used: np.ndarray) -> np.ndarray:
    out = np.zeros(len(used), dtype=np.int64)
    for column in used.T:  # a sum over so short an axis is slow
        out += column
    return out


class _Block:
    """Fields of bounded size of all nodes, side by side."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.all = np.ones(size, dtype=bool)
        self.cells: list[np.ndarray] = []
        self.used: list[np.ndarray] = []
        self.length = np.zeros(size, dtype=np.int64)

    def constant(self, text: bytes, present: np.ndarray) -> None:
        cells = np.frombuffer(text, dtype=np.uint8)
        self.cells.append(np.broadcast_to(cells, (self.size, len(text))))
        self.used.append(np.broadcast_to(present[:, None], (self.size, len(text))))
        self.length += present * len(text)

    def _varint(self, cells: np.ndarray, used: np.ndarray, length: np.ndarray) -> None:
        self.cells.append(cells)
        self.used.append(used)
        self.length += length

    def number(self, values: np.ndarray, present: np.ndarray) -> None:
        cells, used = _varints(np.where(present, values, 0))
        used &= present[:, None]
        self._varint(cells, used, _lengths(used))

    def scalar(self, field: int, values: np.ndarray) -> None:
        present = values != 0
        if present.any():
            self.constant(bytes([field << 3]), present)
            self.number(values, present)

    def attribute(self, name: str, kind: str, values: np.ndarray) -> None:
        label = name.encode()
        head = b"\x0a" + varint(len(label)) + label + varint(_TAGS[kind] << 3)
        if values.strides == (0,):
            text = head + varint(int(values[0]))
            self.constant(b"\x52" + varint(len(text)) + text, self.all)
            return
        present = values != MISSING
        cells, used = _varints(np.where(present, values, 0).view(np.uint64))
        used &= present[:, None]
        length = _lengths(used)
        self.constant(b"\x52", present)
        self.number(length + len(head), present)
        self.constant(head, present)
        self._varint(cells, used, length)

    def ragged(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes one node after the other, and how many each has."""
        if not self.cells:
            return np.empty(0, dtype=np.uint8), self.length
        used = np.concatenate(self.used, axis=1)
        return np.concatenate(self.cells, axis=1)[used], self.length


def _texts(parts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(parts), dtype=np.uint8), np.array([len(p) for p in parts], dtype=np.int64)


def _names(trace: ExecutionTrace) -> tuple[np.ndarray, np.ndarray]:
    parts = []
    for name in trace.names:
        text = name.encode()
        parts.append(b"\x12" + varint(len(text)) + text if text else b"")
    return _texts(parts)


def _dependencies(field: int, ptr: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed lists of ids; absent where a node has none."""
    cells, used = _varints(ids)
    widths = np.concatenate(([0], np.cumsum(_lengths(used))))
    body = widths[ptr[1:]] - widths[ptr[:-1]]
    head = _Block(len(ptr) - 1)
    head.constant(bytes([field << 3 | 2]), body > 0)
    head.number(body, body > 0)
    return _lay([head.ragged(), (cells[used], body)])


def _groups(trace: ExecutionTrace) -> tuple[np.ndarray, np.ndarray]:
    codes, names = trace.group_of()
    table = []
    for name in names:
        text = name.encode()
        body = b"\x0a\x07pg_name" + varint(29 << 3 | 2) + varint(len(text)) + text
        table.append(b"\x52" + varint(len(body)) + body)
    table.append(b"")  # code -1
    return _texts([table[code] for code in codes.tolist()])


def _lay(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Interleave ragged parts: for each node, its piece of every part in turn."""
    if len(parts) == 1:
        return parts[0]
    total = np.sum([length for _, length in parts], axis=0)
    out = np.empty(int(total.sum()), dtype=np.uint8)
    at = np.cumsum(total) - total
    for cells, length in parts:
        if len(cells):
            before = np.cumsum(length) - length
            out[np.repeat(at - before, length) + np.arange(len(cells), dtype=np.int64)] = cells
        at = at + length
    return out, total


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


def encode_columns(trace: ExecutionTrace, dialect: str | None = None) -> bytes:
    """Bytes of a trace from its columns alone.

    `dialect`: ``"symbolic"`` leaves `comm_size` out where chunk counts give the size; ``"absolute"`` writes `comm_size`
    and no chunk counts. Default: all columns as they are. Returns the whole file. Raises TraceError: a send or receive
    without what the dialect needs.
    """
    size = len(trace)
    columns = _in_dialect(trace, dialect)
    header = messages.metadata_message(trace.version, trace.metadata).SerializeToString(deterministic=True)
    out = varint(len(header)) + header
    if not size:
        return out
    block = _Block(size)
    ragged: list[tuple[np.ndarray, np.ndarray]] = []

    def lay_here(part: tuple[np.ndarray, np.ndarray]) -> None:
        nonlocal block
        ragged.extend((block.ragged(), part))
        block = _Block(size)

    block.scalar(1, trace.node_id)
    if trace.has_names:
        lay_here(_names(trace))
    block.scalar(3, trace.type.astype(np.uint64))
    for field, deps in ((4, trace.ctrl_deps), (5, trace.data_deps)):
        if len(deps.ids):
            lay_here(_dependencies(field, *deps))
    block.scalar(6, trace.start_time_micros)
    block.scalar(7, trace.duration_micros)
    for name, values in columns.items():
        block.attribute(name, kind_for(name, values), values)
    for name in trace.extra_columns:
        block.attribute(name, "int64_val", trace.column(name))
    if (trace.group_of()[0] >= 0).any():
        lay_here(_groups(trace))
    ragged.append(block.ragged())
    prefix = _Block(size)
    prefix.number(sum(length for _, length in ragged), prefix.all)
    return out + _lay([prefix.ragged(), *ragged])[0].tobytes()


def encode_changed(trace: ExecutionTrace) -> bytes:
    """Bytes of a trace read from a file and then changed: untouched nodes verbatim, the others patched."""
    raw, touched = trace.raw, trace.changed
    parts = []
    done = 0
    for row in np.flatnonzero(touched).tolist():
        before = int(raw.end[row - 1]) if row else raw.metadata[1]
        parts.append(raw.data[done:before])
        body = trace.message(row).SerializeToString(deterministic=True)
        parts += [varint(len(body)), body]
        done = int(raw.end[row])
    parts.append(raw.data[done:])
    return b"".join(parts)
