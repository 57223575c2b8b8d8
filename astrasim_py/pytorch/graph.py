"""`Graph`: nodes of a recorded step of one rank, and their dependencies."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import graph as csr
from astrasim_py.pytorch.edge_kinds import EdgeKind
from astrasim_py.pytorch.edges import DeviceEdges, Pair
from astrasim_py.pytorch.pieces import BLOCKED_NS, Pieces, blocking_copies, cut_threads, device_work, launch_ends
from astrasim_py.pytorch.recording import Recording

#: Gaps longer than this count as unexplained, ns.
UNEXPLAINED_NS = 20_000
_LARGEST = 5


class NodeKind(IntEnum):
    """Kind of a node of a graph."""

    PIECE = 0  # work of a CPU thread between two cuts
    DEVICE = 1  # a kernel, copy or fill
    CALL = 2  # communication
    BACKLOG = 3  # work of a stream that was launched before the step


@dataclass(frozen=True)
class Gap:
    """A long gap: its node (an operation of the device), length and start, and the work of other streams meanwhile.

    `meanwhile` has (device, stream, busy ns) of each other stream that ran anything.
    """

    node: int
    start: int
    duration: int
    meanwhile: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges of one step of one rank, without gap nodes: `gap` has the time before each node.

    A node starts `gap` after the end of what it needs, or after the begin of the step if it needs nothing. Edges are a
    CSR by target: those of node i are ``pointers[i]:pointers[i + 1]``.
    """

    recording: Recording
    kind: np.ndarray  # a `NodeKind` of each node
    row: np.ndarray  # of its event in the recording: of a piece that of the call it ends with; -1 without one
    start: np.ndarray  # ns, as the next two
    duration: np.ndarray
    gap: np.ndarray
    lane: np.ndarray  # of a piece its thread; of other nodes an index into `lanes`
    issue: np.ndarray  # when it was issued, ns: an operation when its launch returned, a piece at its start
    pointers: np.ndarray
    source: np.ndarray
    edge_kind: np.ndarray
    binding: np.ndarray  # edge of each node whose source ends last; -1 without any
    lanes: tuple[tuple[int, int], ...]  # device and stream
    dropped: dict[str, int]  # edges that the times contradict, by kind; ``"cycle"``: that would close a circle
    order: np.ndarray  # topological, by time where there is a choice

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def target(self) -> np.ndarray:
        """Target of each edge."""
        return csr.owners(self.pointers)

    @property
    def makespan(self) -> int:
        """End of the last node, ns."""
        return int((self.start + self.duration).max(initial=0))

    @property
    def unexplained(self) -> float:
        """Share of the span in gaps of more than 20 us."""
        return int(self.gap[self.gap > UNEXPLAINED_NS].sum()) / max(self.makespan, 1)

    def largest_gaps(self) -> tuple[Gap, ...]:
        """The five longest gaps of more than 20 us, longest first."""
        lane, end = np.where(self.kind == NodeKind.PIECE, -1, self.lane), self.start + self.duration
        order = np.argsort(-self.gap, kind="stable")[:_LARGEST]
        gaps = []
        for node in order[self.gap[order] > UNEXPLAINED_NS].tolist():
            length, until = int(self.gap[node]), int(self.start[node])
            inside = np.minimum(end, until) - np.maximum(self.start, until - length)
            other = (inside > 0) & (lane >= 0) & (lane != lane[node])
            busy = np.zeros(len(self.lanes), dtype=np.int64)
            np.add.at(busy, lane[other], inside[other])
            meanwhile = tuple((*self.lanes[i], int(busy[i])) for i in np.flatnonzero(busy).tolist())
            gaps.append(Gap(node, until - length, length, meanwhile))
        return tuple(gaps)

    def edges_by_kind(self) -> dict[str, int]:
        """Number of edges of each kind."""
        counts = np.bincount(self.edge_kind, minlength=len(EdgeKind)).tolist()
        return {kind.name.lower(): counts[kind] for kind in EdgeKind if counts[kind]}


class Nodes(NamedTuple):
    """Nodes before the edges place them in time: columns as in `Graph`, and when each ended in the recording, ns."""

    kind: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    issue: np.ndarray


class Edges(NamedTuple):
    """Edges of one kind: nodes, and when the source must have ended by, ns."""

    kind: EdgeKind
    source: np.ndarray
    target: np.ndarray
    limit: np.ndarray


def build_graph(
    recording: Recording, host: str = "segments", without: Collection[str] = (), communicating: Collection[int] = ()
) -> Graph:
    """Make the graph of a recorded step: CPU pieces, operations of the device, and their dependencies.

    `host`: ``"segments"``, or ``"none"``: operations of the device only. `without`: kinds of edges to leave out, such
    as ``"sync"``: the time that they explain goes to pieces and gaps. `communicating`: rows of kernels that do.
    """
    events, work = recording.events, device_work(recording)
    finder = DeviceEdges(recording, work, communicating)
    streams, copies = _pairs(finder.streams()), blocking_copies(recording, work)
    begun = np.where(copies, events.start[work.call], -1)
    launched = launch_ends(recording, work)
    needs = np.full(len(work.row), -1)
    np.maximum.at(needs, streams[:, 1], work.end[streams[:, 0]])
    waits = _pairs(finder.waits(np.maximum(needs, np.where(copies, begun, launched))))
    np.maximum.at(needs, waits[:, 1], work.end[waits[:, 0]])
    # The call of a copy that blocks launches it at once, and then waits for what the copy waits for.
    launched = np.where(copies & (needs > begun + BLOCKED_NS), begun, launched)
    returns = finder.synchronisations() + [(op, int(work.call[op])) for op in np.flatnonzero(copies).tolist()]
    waiting = np.unique([call for _, call in returns]).astype(np.int64)
    del finder  # it is large
    pieces = cut_threads(recording, work, launched, waiting, "handover" not in without)
    if host == "none":
        pieces = Pieces(np.empty(0, np.int64), np.empty(0, np.int64), {}, [])
    of_call, first = pieces.of_call, len(pieces.end)
    launch = np.array([of_call.get(call, -1) for call in work.call.tolist()], dtype=np.int64)
    syncs = _pairs([(op, call) for op, call in returns if call in of_call and pieces.after(of_call[call]) >= 0])
    after = np.array([pieces.after(of_call[call]) for call in syncs[:, 1].tolist()], dtype=np.int64)
    chained = np.flatnonzero(pieces.thread[1:] == pieces.thread[:-1])
    handed = _pairs(pieces.handed)
    issued = np.flatnonzero(launch >= 0)
    edges = (
        Edges(EdgeKind.CPU, chained, chained + 1, pieces.end[chained + 1]),
        Edges(EdgeKind.LAUNCH, launch[issued], first + issued, work.start[issued]),
        Edges(EdgeKind.STREAM, first + streams[:, 0], first + streams[:, 1], work.start[streams[:, 1]]),
        Edges(EdgeKind.WAIT, first + waits[:, 0], first + waits[:, 1], work.start[waits[:, 1]]),
        Edges(EdgeKind.SYNC, first + syncs[:, 0], after, events.end[syncs[:, 1]]),
        Edges(EdgeKind.HANDOVER, handed[:, 0], handed[:, 1], pieces.end[handed[:, 1]]),
    )
    before = np.where(np.append(-1, pieces.thread[:-1]) == pieces.thread, np.append(0, pieces.end[:-1]), 0)
    called = np.full(first, -1, dtype=np.int64)
    called[list(of_call.values())] = list(of_call)
    nodes = Nodes(
        kind=np.concatenate(
            [np.full(first, NodeKind.PIECE), np.where(work.backlog, NodeKind.BACKLOG, NodeKind.DEVICE)]
        ),
        row=np.concatenate([called, work.row]),
        start=np.concatenate([before, work.start]),
        end=np.concatenate([pieces.end, work.end]),
        lane=np.concatenate([pieces.thread, work.lane]),
        issue=np.concatenate([before, np.where(work.call >= 0, events.start[work.call], work.start)]),
    )
    kept = [edge for edge in edges if edge.kind.name.lower() not in without]
    return assemble(recording, nodes, kept, work.lanes)


def _pairs(pairs: list[Pair]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def assemble(recording: Recording, nodes: Nodes, edges: Sequence[Edges], lanes: tuple[tuple[int, int], ...]) -> Graph:
    """Join nodes and edges, drop edges that the times contradict, and place the nodes in time.

    Of edges between the same nodes the first kind counts. An edge is admissible if its source ends by its limit, but
    for the resolution of the clock. If edges form a cycle, those of the cycle that go back in time are dropped.
    """
    size = len(nodes.kind)
    kind = np.concatenate([np.full(len(edge.source), edge.kind) for edge in edges])
    source, target, limit = (np.concatenate([edge[i] for edge in edges]) for i in (1, 2, 3))
    admissible = (nodes.end[source] <= limit + recording.resolution_ns) & (source != target)
    dropped = {EdgeKind(k).name.lower(): int(n) for k, n in enumerate(np.bincount(kind[~admissible])) if n}
    _, chosen = np.unique(np.where(admissible, target * size + source, -1), return_index=True)
    chosen = chosen[admissible[chosen]]
    rank = np.empty(size, dtype=np.int64)
    rank[np.lexsort((np.arange(size), nodes.end, nodes.start))] = np.arange(size)
    pointers = csr.pointers(target[chosen], size)
    order = csr.topological_order(pointers, source[chosen], rank)
    if len(order) < size:
        stuck = np.ones(size, dtype=bool)
        stuck[order] = False
        back = stuck[source[chosen]] & stuck[target[chosen]] & (rank[source[chosen]] > rank[target[chosen]])
        dropped["cycle"], chosen = int(back.sum()), chosen[~back]
        pointers = csr.pointers(target[chosen], size)
        order = csr.topological_order(pointers, source[chosen], rank)
    is_piece = nodes.kind == NodeKind.PIECE
    timed = _placed_in_time(order, pointers, source[chosen], nodes.start, nodes.end, is_piece)
    issue = np.where(is_piece, timed["start"], nodes.issue)
    return Graph(
        recording=recording,
        kind=nodes.kind.astype(np.int8),
        row=nodes.row,
        lane=nodes.lane,
        issue=issue,
        pointers=pointers,
        source=source[chosen],
        edge_kind=kind[chosen].astype(np.int8),
        lanes=lanes,
        dropped=dropped,
        order=order,
        **timed,
    )


def _placed_in_time(
    order: np.ndarray, pointers: np.ndarray, sources: np.ndarray, start: np.ndarray, end: np.ndarray, piece: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns of a graph: start, duration and gap of its nodes, and what binds them.

    A piece of a thread starts when what it needs has ended and lasts to its recorded end; an operation of the device
    keeps its duration and its recorded start, unless what it needs ends later by the resolution of the clock. Gaps are
    measured from the times that result, so that rounded times do not add up.

    `order`: topological. `pointers`, `sources`: CSR of the dependencies of each node. `start`, `end`: recorded, ns.
    `piece`:
    bool.
    """
    begins, sources_, time, until = map(csr.plain_array, (pointers, sources, start, end))
    is_piece, zeros = piece.tolist(), np.zeros_like(start)
    ends, gap, binding = csr.plain_array(zeros), csr.plain_array(zeros), csr.plain_array(zeros - 1)
    for node in order.data:
        need = 0
        for edge in range(begins[node], begins[node + 1]):
            if ends[sources_[edge]] > need or binding[node] < 0:
                need, binding[node] = max(need, ends[sources_[edge]]), edge
        if is_piece[node]:
            time[node] = need
            ends[node] = max(until[node], need)
        else:
            gap[node] = max(0, time[node] - need)
            length = until[node] - time[node]
            time[node] = need + gap[node]
            ends[node] = time[node] + length
    begin, stop, gaps, edges = (np.array(column, np.int64) for column in (time, ends, gap, binding))
    return {"start": begin, "duration": stop - begin, "gap": gaps, "binding": edges}
