"""Statistics of traces, and traces as readable text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import graph
from astrasim_py.chakra.groups import named
from astrasim_py.chakra.messages import attributes
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import kind_of
from astrasim_py.core.errors import TraceError


@dataclass(frozen=True, slots=True)
class Volume:
    """A number of things and their bytes."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """Figures of one trace, or of several together.

    `by_collective`: collective calls and the sum of their `comm_size`, as stated by each rank. `by_group`: the same by
    communicator group; ``""`` is the group of all ranks. `sent`, `received`: messages by peer. Bytes count where
    `comm_size` states them. `compute_micros`, `comm_micros`: sums of recorded durations.
    """

    traces: int
    nodes: int
    data_edges: int
    ctrl_edges: int
    by_type: Mapping[str, int] = field(default_factory=dict)  # nodes by type, in Chakra's order
    by_collective: Mapping[str, Volume] = field(default_factory=dict)
    by_group: Mapping[str, Volume] = field(default_factory=dict)
    sent: Mapping[int, Volume] = field(default_factory=dict)
    received: Mapping[int, Volume] = field(default_factory=dict)
    flops: int = 0  # sum of `num_ops`
    memory_bytes: int = 0  # sum of `tensor_size` over memory nodes
    compute_micros: int = 0
    comm_micros: int = 0
    depth: int = 0  # nodes on the longest path; -1 where dependencies are cyclic or dangling
    critical_micros: int = 0  # largest sum of recorded durations along a path; -1 likewise
    width: int = 0  # most nodes at one depth; -1 likewise
    problem: str = ""  # why depth, critical path and width are not known


def _sum(values: np.ndarray) -> int:
    """Exact sum of a column without absent values, which may leave 64 bits."""
    return sum(values.tolist() if values.dtype == np.uint64 else values[values != MISSING].tolist())


def _volumes(keys: Sequence, sizes: np.ndarray) -> dict:
    nbytes: Counter = Counter()
    for key, size in zip(keys, sizes.tolist(), strict=True):
        nbytes[key] += size
    return {key: Volume(count, nbytes[key]) for key, count in sorted(Counter(keys).items())}


def trace_stats(trace: ExecutionTrace, kind: str = "data") -> TraceStats:
    """Figures of one trace.

    `kind`: dependencies that make paths: ``"data"`` or ``"data+ctrl"``. A cyclic or dangling graph raises nothing: it
    is described in `problem`.
    """
    size = np.maximum(trace.column("comm_size"), 0)
    coll = trace.type == NodeType.COMM_COLL
    codes, names = trace.group_of()
    labels = ["" if name == "0" else name for name in (*names, "")]  # the last one for code -1
    groups = [labels[code] for code in codes[coll].tolist()]
    kinds = [COLLECTIVE_OF_CODE.get(code, "unknown") for code in trace.column("comm_type")[coll].tolist()]
    ends = {}
    for node_type, peer in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        rows = (trace.type == node_type) & (trace.column(peer) != MISSING)
        ends[node_type] = _volumes(trace.column(peer)[rows].tolist(), size[rows])
    counts = np.bincount(trace.type, minlength=8).tolist()
    compute = trace.type == NodeType.COMP
    memory = (trace.type == NodeType.MEM_LOAD) | (trace.type == NodeType.MEM_STORE)
    comm = trace.type >= NodeType.COMM_SEND
    depth = critical = width = -1
    problem = ""
    try:
        ptr, rows = trace.parents(kind)
        order = trace.order(kind)
        levels = graph.longest_path(ptr, rows, order, np.ones(len(trace), dtype=np.int64))
        depth = int(levels.max(initial=0))
        width = int(np.bincount(levels).max(initial=0)) if len(levels) else 0
        # Keeps the length of any path within 64 bits.
        limit = np.uint64(2**63 // (len(trace) + 1))
        duration = np.minimum(trace.duration_micros, limit).astype(np.int64)
        critical = int(graph.longest_path(ptr, rows, order, duration).max(initial=0))
    except TraceError as error:
        problem = error.problem
    return TraceStats(
        traces=1,
        nodes=len(trace),
        data_edges=len(trace.data_deps.ids),
        ctrl_edges=len(trace.ctrl_deps.ids),
        by_type={NodeType(code).name: count for code, count in enumerate(counts) if count},
        by_collective=_volumes(kinds, size[coll]),
        by_group=_volumes(groups, size[coll]),
        sent=ends[NodeType.COMM_SEND],
        received=ends[NodeType.COMM_RECV],
        flops=_sum(trace.column("num_ops")),
        memory_bytes=_sum(trace.column("tensor_size")[memory]),
        compute_micros=_sum(trace.duration_micros[compute]),
        comm_micros=_sum(trace.duration_micros[comm]),
        depth=depth,
        critical_micros=critical,
        width=width,
        problem=problem,
    )


def _merge(mappings: Iterable[Mapping]) -> dict:
    out: dict = {}
    for mapping in mappings:
        for key, value in mapping.items():
            out[key] = out[key] + value if key in out else value
    return dict(sorted(out.items()))


def _named(trace: ExecutionTrace) -> ExecutionTrace:
    """The trace with the names that producers give groups by ``comm_group``."""
    try:
        return named(trace, {})
    except TraceError:
        return trace


def workload_stats(traces: Sequence[ExecutionTrace], kind: str | None = None) -> TraceStats:
    """Figures of all ranks together: sums, and the largest depth, critical path and width.

    `kind`: as of `trace_stats`; by default the dependencies that order the set.
    """
    kind = kind or kind_of(traces)
    once = {trace: trace_stats(_named(trace), kind) for trace in dict.fromkeys(traces)}
    parts = [once[trace] for trace in traces]
    problem = next((part.problem for part in parts if part.problem), "")
    values: dict[str, Any] = {"problem": problem}
    for name in (column.name for column in fields(TraceStats) if column.name != "problem"):
        part_values = [getattr(part, name) for part in parts]
        if name in ("depth", "critical_micros", "width"):
            values[name] = -1 if problem else max(part_values, default=0)
        elif name.startswith("by_") or name in ("sent", "received"):
            values[name] = _merge(part_values)
        else:
            values[name] = sum(part_values)
    by_type = values["by_type"]
    values["by_type"] = {kind.name: by_type[kind.name] for kind in NodeType if kind.name in by_type}
    return TraceStats(**values)


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        shown = ", ".join(_value_text(item) for item in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}]"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def node_lines(node: pb.Node) -> Iterator[str]:
    kind = NodeType(node.type).name if 0 <= node.type <= 7 else str(node.type)
    yield f"node {node.id} {kind}{f' {node.name}' if node.name else ''}"
    for name in ("data_deps", "ctrl_deps", "start_time_micros", "duration_micros"):
        if getattr(node, name):
            value = getattr(node, name)
            yield f"  {name} {_value_text(tuple(value) if name.endswith('deps') else value)}"
    for name in ("inputs", "outputs"):
        for part, text in getattr(node, name).ListFields():
            yield f"  {name}.{part.name} {_value_text(text)}"
    for attribute in attributes(node.attr):
        value = "" if attribute.value is None else f" = {_value_text(attribute.value)}"
        yield f"  {attribute.name}{f' ({attribute.kind})' if attribute.kind else ''}{value}"


def show(trace: ExecutionTrace, nodes: Iterable[int] | None = None) -> Iterator[str]:
    """A trace, or some of its nodes, as lines of text.

    `nodes`: ids of the nodes wanted, in that order; all nodes, after the metadata, by default. Raises TraceError: no
    node of that id; a node of a damaged file that the columns did not need.
    """
    if nodes is None:
        yield f"{trace.place or 'trace'}: {len(trace)} nodes" + (f", version {trace.version}" if trace.version else "")
        for attribute in trace.metadata:
            yield f"  {attribute.name} ({attribute.kind}) = {_value_text(attribute.value)}"
        rows: Iterable[int] = range(len(trace))
    else:
        rows = []
        for node in nodes:
            row = trace.row(node) if 0 <= node < 2**64 else -1
            if row < 0:
                raise TraceError(trace.place, f"there is no node {node}", "name an id of the trace")
            rows.append(row)
    for row in rows:
        yield from node_lines(trace.node(row))
