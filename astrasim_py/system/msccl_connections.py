"""The link model of MSCCL-style runtimes: FIFO slots, bandwidth and latency of connections. Optional.

A *connection* is (source, destination, channel); where an algorithm states no channel, each tag is a connection of
its own, as for verification (`astrasim_py.program.steps`). Its messages are numbered in the order of the
thread blocks, the k-th sent being the k-th received. It has S slots: message k + S may be sent only once the slot of
message k is free. A slot is taken when the send is accepted, and freed when the receiver has used the data: when a
receive completes, when the reduction of a fused step completes, and in a fused step that sends on, when that
outgoing send is accepted.

Slots hold messages, not steps: a step of more chunks than fit in a slot is several messages, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import chunk_bytes
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.machine_models import MscclModel
from astrasim_py.system.plan import MscclConnections, RankProgram, Structure

#: Most nodes of one rank, once its steps are cut into messages.
MAX_PIECES = 2**22


def messages_of(algorithm: Algorithm, size: int, model: MscclModel) -> int:
    """Messages of one call of an algorithm on a full buffer of `size` bytes."""
    most = model.max_count_for(algorithm, size)

    def sent(trace: ExecutionTrace) -> int:
        return int(parts_of(trace, most)[trace.type == NodeType.COMM_SEND].sum())

    if algorithm.rotation is not None:
        return algorithm.ranks * sent(algorithm.traces[0])
    counts = {trace: sent(trace) for trace in dict.fromkeys(algorithm.traces)}
    return sum(counts[trace] for trace in algorithm.traces)


# -- steps of several messages ----------------------------------------------------------------------------------


def step_of(trace: ExecutionTrace) -> np.ndarray:
    """int64[n]: row of the first node of each node's fused step; its own where it is in none."""
    own = np.arange(len(trace), dtype=np.int64)
    if not trace.has_column("fused"):
        return own
    fused = trace.column("fused")
    found = trace.rows_of(np.where(fused < 0, 0, fused).astype(np.uint64))
    return np.where((fused < 0) | (found < 0), own, found)


def parts_of(trace: ExecutionTrace, most: int) -> np.ndarray:
    """int64[n]: messages in which the step of each node is carried out, of at most `most` chunks each."""
    count = trace.column("msg_chunk_cnt")
    in_chunks = (trace.column("msg_chunk_idx") >= 0) & (trace.column("total_chunk_cnt") > 0)
    message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    several = np.flatnonzero(message & in_chunks & (count > most))
    parts = np.ones(len(trace), dtype=np.int64)
    if len(several):
        step = step_of(trace)
        np.maximum.at(parts, step[several], -(-count[several] // most))
        parts = parts[step]
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The nodes of a program cut into messages: node by node, the pieces of each one after the other.

    Attributes
    ----------
    origin : numpy.ndarray
        int64[p]: node that each piece is of.
    child, parent : numpy.ndarray
        int64[e]: edges between pieces, ascending by child.
    """

    origin: np.ndarray
    child: np.ndarray
    parent: np.ndarray


def cut(structure: Structure, step: np.ndarray, parts: np.ndarray) -> Pieces:
    """Cut the nodes of a graph into pieces.

    The first piece of a step takes its dependencies, the last one releases what depends on it; between them the
    pieces of a step follow each other, so that a fused step receives and sends on message by message.

    Parameters
    ----------
    structure : Structure
    step, parts : numpy.ndarray
        int64[n], by node: the first node of its step, and its number of pieces (equal within a step).
    """
    n = len(parts)
    first = np.cumsum(parts) - parts
    parent = np.repeat(np.arange(n), np.diff(structure.succ_ptr))
    child = structure.succ.astype(np.int64)
    inner = step[parent] == step[child]
    children, parents = [first[child[~inner]]], [(first + parts - 1)[parent[~inner]]]
    inside_parent, inside_child = parent[inner], child[inner]
    copies = parts[inside_parent]
    number = np.arange(int(copies.sum())) - np.repeat(np.cumsum(copies) - copies, copies)
    parents.append(np.repeat(first[inside_parent], copies) + number)
    children.append(np.repeat(first[inside_child], copies) + number)
    begins, ends = np.ones(n, dtype=bool), np.ones(n, dtype=bool)
    begins[inside_child], ends[inside_parent] = False, False
    several = parts > 1
    heads, tails = np.flatnonzero(several & begins), np.flatnonzero(several & ends)
    heads, tails = heads[np.argsort(step[heads], kind="stable")], tails[np.argsort(step[tails], kind="stable")]
    low, high = np.searchsorted(step[tails], step[heads], "left"), np.searchsorted(step[tails], step[heads], "right")
    for head, a, b in zip(heads.tolist(), low.tolist(), high.tolist(), strict=True):
        for tail in tails[a:b].tolist():
            later = np.arange(1, parts[head])
            children.append(first[head] + later)
            parents.append(first[tail] + later - 1)
    child, parent = np.concatenate(children), np.concatenate(parents)
    order = np.lexsort((parent, child))
    return Pieces(origin=np.repeat(np.arange(n), parts), child=child[order], parent=parent[order])


def piece_bytes(trace: ExecutionTrace, rows: np.ndarray, nbytes: np.ndarray, size: int, most: int) -> np.ndarray:
    """Bytes of the pieces of nodes.

    Parameters
    ----------
    trace : ExecutionTrace
    rows : numpy.ndarray
        int64[p]: row of the trace that each piece is of; pieces of a row are neighbours.
    nbytes : numpy.ndarray
        int64[p]: bytes of that whole row.
    size : int
        Full buffer.
    most : int
        Chunks in one piece.

    Returns
    -------
    numpy.ndarray
        int64[p]; those of one row sum to its bytes.
    """
    index, count, total = (trace.column(c)[rows] for c in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    number, parts = numbers(rows)
    whole, rest = nbytes // parts, nbytes % parts
    out = whole + (rest * (number + 1) // parts - rest * number // parts)
    sized = (parts > 1) & (index >= 0) & (count > 0) & (total > 0)
    for each in np.unique(total[sized]).tolist():
        at = np.flatnonzero(sized & (total == each))
        begin, end = (np.minimum(count[at], (number[at] + k) * most) for k in (0, 1))
        out[at] = chunk_bytes(index[at], end, size, each) - chunk_bytes(index[at], begin, size, each)
    return out


def piece_duration(rows: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Durations of pieces: the time of the whole node in equal parts, to the picosecond."""
    number, parts = numbers(rows)
    out = duration.copy()
    for i in np.flatnonzero((parts > 1) & (duration > 0)).tolist():
        whole, k, m = int(duration[i]), int(number[i]), int(parts[i])
        out[i] = whole * (k + 1) // m - whole * k // m
    return out


def numbers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each piece its number among those of its row, and how many these are."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    counts = np.diff(np.append(begins, len(rows)))
    return np.arange(len(rows)) - np.repeat(begins, counts), np.repeat(counts, counts)


# -- slots ------------------------------------------------------------------------------------------------------


def connections_of(algorithm: Algorithm, programs: Sequence[RankProgram], model: MscclModel) -> MscclConnections:
    """Number the messages of an algorithm, and say which node takes and which frees each slot.

    Raises
    ------
    AlgorithmError
        A message is sent on one channel and received on another, or a fused step has several receives or sends.
    """
    place = algorithm.source or algorithm.name
    sends, receives = _Side(programs, NodeType.COMM_SEND), _Side(programs, NodeType.COMM_RECV)
    if sends.keys.shape != receives.keys.shape or not np.array_equal(sends.keys, receives.keys):
        raise AlgorithmError(place, *_mismatch(programs, sends, receives))
    messages = len(sends.node)
    slots = model.slots_for(algorithm.protocol)
    opens = np.ones(messages, dtype=bool)
    opens[1:] = (sends.keys[1:, :4] != sends.keys[:-1, :4]).any(axis=1)
    connection = np.cumsum(opens) - 1
    base = np.flatnonzero(opens)[connection]
    token = np.arange(messages)
    needs, frees, of_send = (tuple(np.full(len(p), -1, dtype=np.int64) for p in programs) for _ in range(3))
    releasing = [_releasing(program, place) for program in programs]
    end = np.append(base[1:][opens[1:]], messages)[connection] if messages else token
    for member in range(len(programs)):
        at = np.flatnonzero(sends.member == member)
        of_send[member][sends.node[at]] = connection[at]
        needs[member][sends.node[at]] = np.where(token[at] - base[at] >= slots, token[at] - slots, -1)
        at = np.flatnonzero((receives.member == member) & (token + slots < end))
        frees[member][releasing[member][receives.node[at]]] = at
    return MscclConnections(
        protocol=model.protocol_for(algorithm.protocol),
        slots=slots,
        latency_ps=model.latency_for(algorithm.protocol),
        bandwidth=model.channel_bandwidth,
        messages=messages,
        needs=needs,
        frees=frees,
        connection=of_send,
    )


class _Side:
    """All sends, or all receives, of the members of an algorithm, in the order of their connections.

    `keys` is int64[m, 5] of source, destination, whether the tag is the connection, channel or tag, tag.
    """

    def __init__(self, programs: Sequence[RankProgram], kind: NodeType) -> None:
        member, node, place, keys = [], [], [], []
        places: dict[ExecutionTrace, np.ndarray] = {}
        for position, program in enumerate(programs):
            trace = program.trace
            if trace not in places:
                order = np.empty(len(trace), dtype=np.int64)
                order[trace.order("data+ctrl")] = np.arange(len(trace))
                places[trace] = order
            at = np.flatnonzero(trace.type[program.rows] == kind)
            rows = program.rows[at]
            tag, channel = program.tag[at], trace.column("channel")[rows]
            own = channel == MISSING
            me, peer = np.full(len(at), position, dtype=np.int64), program.peer[at].astype(np.int64)
            pair = (me, peer) if kind == NodeType.COMM_SEND else (peer, me)
            keys.append(np.stack([*pair, own.astype(np.int64), np.where(own, tag, channel), tag], axis=1))
            member.append(me)
            node.append(at)
            place.append(places[trace][rows])
        self.member, self.node = np.concatenate(member), np.concatenate(node)
        table = np.concatenate(keys)
        order = np.lexsort((self.node, np.concatenate(place), *table.T[::-1]))
        self.member, self.node, self.keys = self.member[order], self.node[order], table[order]


def _releasing(program: RankProgram, place: str) -> np.ndarray:
    """int64[n]: the node that frees the slot of what a node has received: the step's send, else its last node."""
    trace, rows = program.trace, program.rows
    own = np.arange(len(program), dtype=np.int64)
    if not trace.has_column("fused"):
        return own
    step = step_of(trace)
    last = np.full(len(trace), -1, dtype=np.int64)
    order = trace.order("data+ctrl")
    last[step[order]] = order
    for kind, word in ((NodeType.COMM_RECV, "receives"), (NodeType.COMM_SEND, "sends")):
        found = np.flatnonzero(trace.type == kind)
        several = np.flatnonzero(np.bincount(step[found], minlength=len(trace)) > 1)
        if len(several):
            node = int(trace.node_id[several[0]])
            problem = f"node {node} begins a fused step of several {word}"
            raise AlgorithmError(trace.place or place, problem, "fuse one receive with one send at most")
        if kind == NodeType.COMM_SEND:
            last[step[found]] = found
    number, _ = numbers(rows)
    first = np.empty(len(trace), dtype=np.int64)
    first[rows[number == 0]] = own[number == 0]
    return first[last[step[rows]]] + number


def _mismatch(programs: Sequence[RankProgram], sends: _Side, receives: _Side) -> tuple[str, str]:
    """What differs between the two sides, for an error."""
    shorter = min(len(sends.keys), len(receives.keys))
    differ = np.flatnonzero((sends.keys[:shorter] != receives.keys[:shorter]).any(axis=1))
    at = int(differ[0]) if len(differ) else shorter
    side, verb = (sends, "sends") if len(sends.keys) > at else (receives, "receives")
    source, target, own, queue, tag = (int(v) for v in side.keys[at])
    member = int(side.member[at])
    node = int(programs[member].node_id[int(side.node[at])])
    peer = target if verb == "sends" else source
    where = f"tag {tag}" if own else f"channel {queue}, tag {tag}"
    other = f"rank {peer} does not {'receive' if verb == 'sends' else 'send'} it so"
    return f"node {node} of rank {member} {verb} on {where}, and {other}", "give both sides the same channel and tag"
