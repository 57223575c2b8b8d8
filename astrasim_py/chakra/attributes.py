"""Attributes of nodes that have no column: what they are called, and their values."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from astrasim_py.chakra import messages
from astrasim_py.chakra.schema import COLUMN_KINDS, NodeType
from astrasim_py.chakra.storage import RawFile
from astrasim_py.chakra.trace import ExecutionTrace

#: Attributes that are read although they have no column.
_READ = frozenset(("pg_name", "involved_dim", "op_type", "collective", "algorithm", "chunks", "in_place", "root"))
#: Attributes of known producers that change no simulation: names of operators and tensors, threads, streams, and what
#: the size, the type or the duration of a node was made of.
HARMLESS = frozenset(
    (
        *("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "op", "op_type", "dep_kinds"),
        *("stream", "kernel_backend", "kernel_file", "external_id", "correlation", "cat", "ph", "ts", "dur", "pid"),
        *("inputs", "outputs", "input_shapes", "output_shapes", "input_types", "output_types", "tensor_name"),
        *("pg_desc", "pg_size", "group_size", "group_ranks", "collective_name", "dtype", "data_type", "rank"),
        *("in_msg_nelems", "out_msg_nelems", "in_split_size", "out_split_size", "global_rank_start"),
        *("global_rank_stride", "process_group_ranks", "is_async", "async_op", "seq", "version", "source", "comment"),
        *("runtime", "description", "name", "module", "shape"),
    )
)
#: Nodes of a set whose attributes are counted.
_MOST_NODES = 10_000
_ANY = (NodeType.INVALID, NodeType.METADATA)


def _names(raw: RawFile, rows: Iterable[int]) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """By row: name and bytes of each attribute."""
    parse, attribute = (messages.lenient(name).FromString for name in ("Node", "AttributeProto"))
    for row in rows:
        bodies = parse(raw.node(row)).attr
        # Nearly all begin with a short name.
        yield (
            row,
            [
                (
                    (body[2 : 2 + body[1]] if body[:1] == b"\n" and body[1] < 128 else attribute(body).name).decode(
                        errors="replace"
                    ),
                    body,
                )
                for body in bodies
            ],
        )


def values_of(
    raw: RawFile, rows: Iterable[int], wanted: Sequence[str]
) -> Iterator[tuple[int, list[tuple[str, object]]]]:
    """Rows with any of the attributes wanted, and their names and values."""
    for row, attributes in _names(raw, map(int, rows)):
        values = [
            (name, messages.attributes([messages.parse("AttributeProto", body, "")])[0].value)
            for name, body in attributes
            if name in wanted
        ]
        if values:
            yield row, values


def leaves_out_dims(trace: ExecutionTrace) -> Iterator[int]:
    """Rows of collectives that leave out dimensions (``involved_dim``), which only the bytes of a file say."""
    if trace.raw is None or b"involved_dim" not in trace.raw.data:
        return
    for row, values in values_of(trace.raw, np.flatnonzero(trace.type == NodeType.COMM_COLL), ("involved_dim",)):
        involved = values[-1][1]  # the last of several counts
        if isinstance(involved, tuple) and not all(involved):
            yield row


def unknown(ranks_of: Mapping[ExecutionTrace, int], known: Sequence[str] = ()) -> dict[str, int]:
    """Attributes that nobody reads and that are not known to be harmless: nodes that have each.

    `ranks_of`: traces, and how many ranks have each. `known`: names that are told otherwise. Of large sets the first
    nodes are looked at.
    """
    counts: Counter[str] = Counter()
    left = _MOST_NODES
    for trace, ranks in ranks_of.items():
        if trace.raw is None or left <= 0:
            continue
        rows = [row for row, kind in enumerate(trace.type[:left].tolist()) if kind not in _ANY]
        left -= len(rows)
        for _, attributes in _names(trace.raw, rows):
            for name, _ in attributes:
                counts[name] += ranks
    expected = COLUMN_KINDS.keys() | _READ | HARMLESS | set(known)
    return {name: counts[name] for name in sorted(counts) if name not in expected}
