"""Traces to bytes: field by field, or, where nodes of a file were changed, node by node.

Protobuf serializes every distinct value of a field once. A node is the fields one after the other, as protobuf writes
them: in ascending order, zero scalars left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import messages
from astrasim_py.chakra.schema import MISSING, WRITE_ORDER, NodeType, kind_for
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.core.errors import TraceError

_CHUNKS = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
#: Columns that the absolute dialect lacks: chunk counts, and cells measured in chunks.
_NOT_ABSOLUTE = (*_CHUNKS, "src_buf", "src_off", "dst_buf", "dst_off", "payload")

DIALECTS = ("symbolic", "absolute")


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
    columns = _in_dialect(trace, dialect)
    header = messages.metadata_message(trace.version, trace.metadata).SerializeToString(deterministic=True)
    fields = {
        "id": trace.node_id.tolist(),
        "name": list(trace.names) if trace.has_names else (),
        "type": trace.type.tolist(),
        "ctrl_deps": trace.ctrl_deps.lists(),
        "data_deps": trace.data_deps.lists(),
        "start_time_micros": trace.start_time_micros.tolist(),
        "duration_micros": trace.duration_micros.tolist(),
    }
    parts = [_each(values, partial(_field, name)) for name, values in fields.items() if any(values)]
    for name, values in columns.items():
        parts.append(_each(values.tolist(), partial(_attribute, name, kind_for(name, values))))
    codes, names = trace.group_of()
    if (codes >= 0).any():
        labels = (*names, MISSING)
        parts.append(_each([labels[code] for code in codes.tolist()], partial(_attribute, "pg_name", "string_val")))
    records = [varint(len(header)), header]
    for body in map(b"".join, zip(*parts, strict=True)) if parts else [b""] * len(trace):
        records += varint(len(body)), body
    return b"".join(records)


def _each(values: list, serialized: Callable[[Any], bytes]) -> list[bytes]:
    known = {value: serialized(value) for value in dict.fromkeys(values)}
    return [known[value] for value in values]


@lru_cache(maxsize=2**16)  # the traces of a set have many values in common
def _field(name: str, value: object) -> bytes:
    return pb.Node(**{name: value}).SerializeToString()


@lru_cache(maxsize=2**16)
def _attribute(name: str, kind: str, value: int | str) -> bytes:
    if value == MISSING:
        return b""
    return pb.Node(attr=[pb.AttributeProto(name=name, **{kind: value})]).SerializeToString()


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
