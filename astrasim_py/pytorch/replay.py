"""Replays that test a recorded graph: with three constants for all gaps, and with another step's durations."""

from collections.abc import Mapping

import numpy as np

from astrasim_py.pytorch.edge_kinds import EdgeKind
from astrasim_py.pytorch.graph import Graph, NodeKind, build_graph

#: Kinds of edges whose gaps a constant replaces.
_MODELLED = (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.WAIT)


def constants(graph: Graph) -> dict[EdgeKind, int]:
    """Median gap, ns, of the operations that start after a launch, after their stream, and after an event."""
    bound = np.where(graph.binding >= 0, np.append(graph.edge_kind, -1)[graph.binding], -1)
    bound[graph.kind == NodeKind.PIECE] = -1
    return {kind: int(np.median(graph.gap[bound == kind])) for kind in _MODELLED if (bound == kind).any()}


def latencies(graph: Graph, gaps: Mapping[EdgeKind, int] | None = None) -> np.ndarray:
    """ns that each edge takes: the recorded gap of its target if it binds it, or what its kind takes by `gaps`."""
    if gaps is not None:
        return (
            np.array([gaps.get(kind, 0) for kind in EdgeKind])[graph.edge_kind]
            * (graph.kind != NodeKind.PIECE)[graph.target]
        )
    ns, bound = np.zeros(len(graph.source), dtype=np.int64), graph.binding >= 0
    ns[graph.binding[bound]] = graph.gap[bound]
    return ns


def replay(
    graph: Graph,
    gaps: Mapping[EdgeKind, int] | None = None,
    *,
    duration: np.ndarray | None = None,
) -> int:
    """End of the last node, ns, when every node starts as soon as it may.

    `gaps`: what an edge of each kind that leads to an operation takes, ns; by default the recorded gap of each node,
    after the edge that it was measured from. `duration`: another one for each node, ns.
    """
    length = graph.duration if duration is None else duration
    start = np.where(graph.binding < 0, graph.gap, 0)
    return max(node_ends(graph.order, graph.pointers, graph.source, latencies(graph, gaps), start, length), default=0)


def node_ends(
    order: np.ndarray,
    pointers: np.ndarray,
    source: np.ndarray,
    latency: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
) -> list[int]:
    """End of each node, ns: it starts once all that it needs ended and each edge took its time, but not before `start`.

    `order`: topological. `pointers`, `source`, `latency`: CSR of edges by target.
    """
    begins, sources, times, lengths = (column.tolist() for column in (pointers, source, latency, length))
    end = start.tolist()
    for node in order.tolist():
        edges = range(begins[node], begins[node + 1])
        end[node] = max([end[node], *(end[sources[edge]] + times[edge] for edge in edges)]) + lengths[node]
    return end


def constants_error(graph: Graph) -> float:
    """Relative error of a replay with three constants in place of all gaps."""
    return (replay(graph, constants(graph)) - graph.makespan) / max(graph.makespan, 1)


def next_step_error(first: Graph, second: Graph) -> float | None:
    """Relative error of the first step's graph and constants with the durations of the second step.

    Where hand-overs of the steps differ, both are compared without hand-overs. None where the steps do
    not do the same: equally many pieces and operations of the same names on the same threads and streams.
    """
    order, sequence = _sequence(first)
    other, expected = _sequence(second)
    if sequence != expected:
        if "handover" not in first.edges_by_kind() | second.edges_by_kind():
            return None
        return next_step_error(*(build_graph(graph.recording, without=("handover",)) for graph in (first, second)))
    duration = np.empty(len(first), dtype=np.int64)
    duration[order] = second.duration[other]
    return (replay(first, constants(first), duration=duration) - second.makespan) / max(second.makespan, 1)


def _sequence(graph: Graph) -> tuple[np.ndarray, list[tuple]]:
    """Nodes by thread and stream in order of time, and what each one is."""
    recording, piece = graph.recording, graph.kind == NodeKind.PIECE
    names = [*(recording.names[code] for code in recording.events.name.tolist()), ""]
    places = [
        str((recording.threads if of_cpu else graph.lanes)[lane])
        for of_cpu, lane in zip(piece.tolist(), graph.lane.tolist(), strict=True)
    ]
    order = np.lexsort((np.arange(len(graph)), np.unique(places, return_inverse=True)[1], ~piece))
    kinds, rows = graph.kind.tolist(), graph.row.tolist()
    backlog = NodeKind.BACKLOG
    return order, [(places[i], kinds[i], "" if kinds[i] == backlog else names[rows[i]]) for i in order.tolist()]
