"""The trace of one rank from its graph: nodes of Chakra, and the kind of each dependency."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import graph as csr
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.pytorch.edge_kinds import EdgeKind
from astrasim_py.pytorch.graph import Graph, NodeKind
from astrasim_py.pytorch.join import enclosing

#: Attribute with the kinds of a node's dependencies, in their order.
DEPENDENCY_KINDS = "dep_kinds"
#: When a node is issued that comes behind all others.
_LAST = 2**62


@dataclass(frozen=True)
class Communication:
    """A node of communication, as a trace has it.

    `columns`: such as ``comm_type`` and ``comm_size``. `group`: name of its group; empty for all ranks and messages.
    """

    type: NodeType
    columns: Mapping[str, int]
    group: str = ""


class _NodeTable:
    """Columns of nodes, and dependencies as places in them, while a trace is made; at first those of the graph."""

    def __init__(self, graph: Graph):
        recording = graph.recording
        names = (recording.names[code] for code in recording.events.name[graph.row].tolist())
        label = {NodeKind.PIECE: "cpu", NodeKind.BACKLOG: "backlog"}
        self.graph = graph
        self.name = [label.get(kind, name) for kind, name in zip(graph.kind.tolist(), names, strict=True)]
        self.type = [int(NodeType.COMP)] * len(graph)
        self.duration, self.start, self.issue = map(csr.plain_array, (graph.duration, graph.start, graph.issue))  # ns
        self.like = csr.plain_array(np.arange(len(graph)))  # node of the graph that it stems from; -1 for none
        self.source, self.target, self.why = map(csr.plain_array, (graph.source, graph.target, graph.edge_kind))

    def add(self, name: str, duration: int, start: int, like: int) -> int:
        """Add a node of computation, issued with the node that it stems from; returns its place."""
        values = (name, int(NodeType.COMP), duration, start, self.issue[like] if like >= 0 else start, like)
        columns = (self.name, self.type, self.duration, self.start, self.issue, self.like)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        return len(self.name) - 1

    def depend(self, target: int, source: int, why: int) -> int:
        """Add a dependency; returns its place."""
        for column, value in zip((self.target, self.source, self.why), (target, source, int(why)), strict=True):
            column.append(value)
        return len(self.why) - 1

    def add_gaps(self) -> dict[int, int]:
        """A node for each gap, on the binding edge; the new edges by node."""
        edge_of = {}
        for node in np.flatnonzero(self.graph.gap > 0).tolist():
            length, binding = int(self.graph.gap[node]), int(self.graph.binding[node])
            gap = self.add("gap", length, self.start[node] - length, node)
            if binding >= 0:
                self.target[binding] = gap
            edge_of[node] = self.depend(node, gap, EdgeKind.GAP)
        return edge_of

    def add_calls(
        self, calls: Mapping[int, Sequence[Communication]], moving: Mapping[int, int], gap_edges: Mapping[int, int]
    ) -> tuple[dict[str, dict[int, int]], dict[int, str | None]]:
        """Turn operations into communication; its columns by name, and its groups, by place."""
        columns: dict[str, dict[int, int]] = {}
        groups: dict[int, str | None] = {}
        instead: dict[int, int] = {}  # the node that others wait for
        graph, edges = self.graph, len(self.graph.source)
        for node in np.flatnonzero(graph.kind != NodeKind.PIECE).tolist():
            row = int(graph.row[node])
            if row not in calls:
                continue
            messages, places = calls[row], [node]
            self.duration[node] = 0
            if len(messages) > 1:
                inputs = [*range(graph.pointers[node], graph.pointers[node + 1]), gap_edges.get(node, 0)]
                inputs = [edge for edge in dict.fromkeys(inputs) if self.target[edge] == node]
                places = [self.add(self.name[node], 0, self.start[node], node) for _ in messages]
                for number, place in enumerate(places):
                    for edge in inputs:
                        if number:
                            self.depend(place, self.source[edge], self.why[edge])
                        else:
                            self.target[edge] = place
                    self.depend(node, place, EdgeKind.CALL)
                self.name[node] = "join"
            for place, message in zip(places, messages, strict=False):
                self.type[place] = int(message.type)
                groups[place] = message.group or None
                for name, value in message.columns.items():
                    columns.setdefault(name, {})[place] = value
            if moving.get(row):
                instead[node] = self.add("moving", moving[row], self.start[node], node)
                self.depend(instead[node], node, EdgeKind.CALL)
        for edge in range(edges):
            self.source[edge] = instead.get(self.source[edge], self.source[edge])
        return columns, groups

    def add_skew(self, skew_ns: int) -> None:
        """Let everything begin later."""
        waiting = set(self.target)
        roots = [node for node in range(len(self.name)) if node not in waiting]
        first = self.add("skew", skew_ns, -skew_ns, -1)
        for root in roots:
            self.depend(root, first, EdgeKind.CPU)


def rank_trace(
    graph: Graph,
    calls: Mapping[int, Sequence[Communication]] | None = None,
    *,
    gaps: str = "nodes",
    moving: Mapping[int, int] | None = None,
    skew_ns: int = 0,
    rank: int | None = None,
    metadata: Mapping[str, object] | None = None,
    declared: Mapping[str, Sequence[int]] | None = None,
) -> ExecutionTrace:
    """Make the trace of one rank.

    Ids are dense in order of (issue, start). Nodes of computation hold no slot (``slot_kind`` 0), so that dependencies
    alone order them. Beside its columns a node has the attributes ``tid`` or ``stream``, ``op`` (the operator around
    it) and ``dep_kinds``: the kind of each dependency, in order, separated by spaces.

    `calls`: by row in the recording what an operation becomes: one node; messages that together are one call (what
    follows waits for all of them); or nothing but an instant, if the sequence is empty. Other operations are
    computation. `gaps`: ``"nodes"``, or ``"drop"``. `moving`: by row, ns that a call takes by itself: a node of
    computation behind it. `skew_ns`: how much later than the first rank this one begins. `declared`: communicator
    groups, which a METADATA node behind the others lists; nothing stands for all ranks.
    """
    table = _NodeTable(graph)
    columns, groups = table.add_calls(calls or {}, moving or {}, table.add_gaps() if gaps == "nodes" else {})
    if skew_ns:
        table.add_skew(skew_ns)
    if declared is not None:
        table.add("process_groups", 0, -skew_ns, -1)
        table.type[-1], table.issue[-1] = int(NodeType.METADATA), _LAST
    order = np.lexsort((table.start, table.issue))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    source, target = place[table.source], place[table.target]
    by_target = np.lexsort((source, target))
    pointers = csr.pointers(target, len(order))
    types, like, duration, start = (
        np.array(column, dtype=np.int64)[order] for column in (table.type, table.like, table.duration, table.start)
    )
    names: dict[str, int] = {}
    codes = {node: names.setdefault(group, len(names)) for node, group in groups.items() if group}
    comp = types == NodeType.COMP
    cpu = comp & np.append(graph.kind == NodeKind.PIECE, False)[like]
    why = np.array(table.why, dtype=np.uint8)[by_target].tobytes()
    rest, fields = _rest(graph, like, pointers, why)
    if declared is not None:
        group_json = json.dumps([{"pg_name": key, "ranks": list(ranks)} for key, ranks in declared.items()])
        rest[-1] = len(fields)
        fields.append(pb.Node(inputs=pb.IOInfo(values=group_json)).SerializeToString())
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(order), dtype=np.uint64),
        type=types,
        names=tuple(map(table.name.__getitem__, order.data)),
        duration_ps=np.where(comp, 1000 * duration, MISSING),
        duration_micros=np.where(comp, (duration + 500) // 1000, 0),
        start_time_micros=(start + skew_ns) // 1000,
        is_cpu_op=np.where(types == NodeType.METADATA, MISSING, cpu),
        slot_kind=np.where(comp, 0, MISSING),
        data_deps=(pointers, source[by_target].astype(np.uint64)),
        pg_name=(_spread(place, codes, -1).astype(np.int32), tuple(names)),
        rank=rank,
        metadata=metadata or {},
        rest=(rest, tuple(fields)),
        **{name: _spread(place, values, MISSING) for name, values in columns.items()},
    )


def _spread(place: np.ndarray, values: Mapping[int, int], absent: int) -> np.ndarray:
    """A column of all nodes, by their place, from the values that some of them have."""
    column = np.full(len(place), absent, dtype=np.int64)
    column[place[list(values)]] = list(values.values())
    return column


def _rest(graph: Graph, like: np.ndarray, pointers: np.ndarray, why: bytes) -> tuple[np.ndarray, list[bytes]]:
    """Thread or stream, operator and kinds of the dependencies of each node, as extra attributes of an
    `ExecutionTrace`.

    `like`: the node of the graph that each stems from. `why`: the kind of each dependency, one byte each.
    """
    recording, events, piece = graph.recording, graph.recording.events, graph.kind == NodeKind.PIECE
    call = np.where(events.on_device, events.launch, np.arange(len(events)))
    around = np.append(np.append(enclosing(recording), -1)[call], -1)[graph.row]
    operators, threads = [*recording.names, ""], len(recording.threads)
    operator = np.append(np.append(events.name, -1)[around], -1)[like] % len(operators)
    lane = np.append(np.where(piece, graph.lane, threads + graph.lane), threads + len(graph.lanes))[like]
    known: dict[bytes, int] = {}
    kinds = np.array(
        [known.setdefault(why[low:high], len(known)) for low, high in pairwise(pointers.data)], dtype=np.int64
    )
    shape = (threads + len(graph.lanes) + 1, len(operators), max(len(known), 1))
    distinct, codes = np.unique(np.ravel_multi_index((lane, operator, kinds), shape), return_inverse=True)
    texts, fields = [" ".join(EdgeKind(kind).name.lower() for kind in of) for of in known], []
    for lane, operator, kind in zip(*(part.tolist() for part in np.unravel_index(distinct, shape)), strict=True):
        node = pb.Node()
        if lane < threads and isinstance(recording.threads[lane][1], int):
            node.attr.add(name="tid", int64_val=recording.threads[lane][1])
        elif threads <= lane < threads + len(graph.lanes):
            node.attr.add(name="stream", int64_val=graph.lanes[lane - threads][1])
        for name, text in (("op", operators[operator]), (DEPENDENCY_KINDS, texts[kind])):
            if text:
                node.attr.add(name=name, string_val=text)
        fields.append(node.SerializeToString())
    return codes.astype(np.int32), fields
