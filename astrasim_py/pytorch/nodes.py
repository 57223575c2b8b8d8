"""The trace of one rank from its graph: nodes of Chakra, and for each dependency why it is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from astrasim_py.chakra import graph as csr
from astrasim_py.chakra.et_io import encode_columns, parse_trace
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.pytorch.edges import EdgeKind
from astrasim_py.pytorch.graph import Graph, NodeKind
from astrasim_py.pytorch.join import enclosing

#: Attribute with the kinds of a node's dependencies, in their order.
DEPENDENCY_KINDS = "dep_kinds"


@dataclass(frozen=True)
class Communication:
    """A node of communication, as a trace has it.

    `columns`: such as ``comm_type`` and ``comm_size``. `group`: name of its group; empty for all ranks and messages.
    """

    type: NodeType
    columns: Mapping[str, int]
    group: str = ""


class _Table:
    """Columns of nodes, and dependencies as places in them, while a trace is made; at first those of the graph."""

    def __init__(self, graph: Graph):
        recording = graph.recording
        names = [recording.names[code] for code in recording.events.name[graph.row].tolist()]
        given = {NodeKind.PIECE: "cpu", NodeKind.BACKLOG: "backlog"}
        self.graph = graph
        self.name = [given.get(kind, name) for kind, name in zip(graph.kind.tolist(), names, strict=True)]
        self.type = [int(NodeType.COMP)] * len(graph)
        self.duration = graph.duration.tolist()  # ns
        self.start, self.issue = graph.start.tolist(), graph.issue.tolist()
        self.like = list(range(len(graph)))  # node of the graph that it stems from; -1 for none
        self.source, self.target, self.why = graph.source.tolist(), graph.target.tolist(), graph.edge_kind.tolist()

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
        found = {}
        for node in np.flatnonzero(self.graph.gap > 0).tolist():
            length, binding = int(self.graph.gap[node]), int(self.graph.binding[node])
            gap = self.add("gap", length, self.start[node] - length, node)
            if binding >= 0:
                self.target[binding] = gap
            found[node] = self.depend(node, gap, EdgeKind.GAP)
        return found

    def add_calls(
        self, calls: Mapping[int, Sequence[Communication]], moving: Mapping[int, int], gap_edges: Mapping[int, int]
    ) -> tuple[dict[str, dict[int, int]], dict[int, str]]:
        """Turn operations into communication; its columns by name, and its groups, by place."""
        columns: dict[str, dict[int, int]] = {}
        groups, instead = {}, {}  # the node that others wait for
        graph, edges = self.graph, len(self.graph.source)
        for node in np.flatnonzero(graph.kind != NodeKind.PIECE).tolist():
            row = int(graph.row[node])
            if row not in calls:
                continue
            messages, places = calls[row], [node]
            self.duration[node] = 0
            if len(messages) > 1:
                own = [*range(graph.pointers[node], graph.pointers[node + 1]), gap_edges.get(node, 0)]
                own = [edge for edge in dict.fromkeys(own) if self.target[edge] == node]
                places = [self.add(self.name[node], 0, self.start[node], node) for _ in messages]
                for number, place in enumerate(places):
                    for edge in own:
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
) -> ExecutionTrace:
    """Make the trace of one rank.

    Ids are dense in order of (issue, start). Nodes of computation hold no slot (``slot_kind`` 0), so that dependencies
    alone order them. Beside its columns a node has the attributes ``tid`` or ``stream``, ``op`` (the operator around
    it) and ``dep_kinds``: the kind of each dependency, in order, separated by spaces.

    Parameters
    ----------
    graph : Graph
    calls : mapping of int to sequence of Communication
        By row in the recording what an operation becomes: one node; messages that together are one call (what follows
        waits for all of them); or nothing but an instant, if the sequence is empty. Other operations are computation.
    gaps : str
        ``"nodes"``, or ``"drop"``.
    moving : mapping of int to int, optional
        By row, ns that a call takes by itself: a node of computation behind it.
    skew_ns : int
        How much later than the first rank this one begins.
    rank, metadata
        As of `ExecutionTrace`.
    """
    table = _Table(graph)
    gap_edges = table.add_gaps() if gaps == "nodes" else {}
    columns, groups = table.add_calls(calls or {}, moving or {}, gap_edges)
    if skew_ns:
        table.add_skew(skew_ns)
    order = np.lexsort((table.start, table.issue))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    source, target = place[table.source], place[table.target]
    by_target = np.lexsort((source, target))
    pointers = csr.pointers(target, len(order))
    types, like, duration, start = (
        np.array(column, dtype=np.int64)[order] for column in (table.type, table.like, table.duration, table.start)
    )
    comp = types == NodeType.COMP
    cpu = comp & np.append(graph.kind == NodeKind.PIECE, False)[like]
    trace = ExecutionTrace.from_columns(
        node_id=np.arange(len(order), dtype=np.uint64),
        type=types,
        names=[table.name[i] for i in order.tolist()],
        duration_ps=np.where(comp, 1000 * duration, MISSING),
        duration_micros=np.where(comp, (duration + 500) // 1000, 0),
        start_time_micros=(start + skew_ns) // 1000,
        is_cpu_op=cpu.astype(np.int64),
        slot_kind=np.where(comp, 0, MISSING),
        data_deps=(pointers, source[by_target].astype(np.uint64)),
        pg_name=[groups.get(i) for i in order.tolist()] if groups else None,
        rank=rank,
        metadata=metadata or {},
        **{name: np.array([given.get(i, MISSING) for i in order.tolist()]) for name, given in columns.items()},
    )
    kinds = [EdgeKind(why).name.lower() for why in np.array(table.why, dtype=np.int64)[by_target].tolist()]
    attributes = _attributes(graph, like) | {
        DEPENDENCY_KINDS: [" ".join(kinds[low:high]) or MISSING for low, high in pairwise(pointers.tolist())]
    }
    return parse_trace(encode_columns(trace, attributes=attributes), rank=rank)


def _attributes(graph: Graph, like: np.ndarray) -> dict[str, list]:
    """Thread, stream and operator of each node, given the node of the graph that it stems from."""
    recording, piece = graph.recording, graph.kind == NodeKind.PIECE
    events = recording.events
    call = np.where(events.on_device, events.launch, np.arange(len(events)))
    around = np.append(np.append(enclosing(recording), -1)[call], -1)[graph.row]
    names = [*recording.names, MISSING]
    operators = [names[code] for code in np.append(events.name, -1)[around].tolist()]
    threads = [thread if isinstance(thread, int) else MISSING for _, thread in recording.threads]
    lanes = graph.lane.tolist()
    tid = [threads[lane] if cpu else MISSING for lane, cpu in zip(lanes, piece.tolist(), strict=True)]
    stream = [MISSING if cpu else graph.lanes[lane][1] for lane, cpu in zip(lanes, piece.tolist(), strict=True)]
    found = {"tid": [*tid, MISSING], "stream": [*stream, MISSING], "op": [*operators, MISSING]}
    return {name: [values[node] for node in like.tolist()] for name, values in found.items()}
