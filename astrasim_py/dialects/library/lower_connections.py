"""The connections of MSCCL-style runtimes (docs/dialects.md): slots, bandwidth and latency. Optional.

Messages of a connection are numbered in the order of the thread blocks, the k-th sent being the k-th received. Slots
hold messages: a step of more chunks than fit in a slot is several messages, one after the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import chunk_bytes, share
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import Program, Unusable, file_of
from astrasim_py.system.compatible import COUNTERS, MSCCL, refuse
from astrasim_py.system.machine_models import MscclModel
from astrasim_py.system.programs import RECV, SEND, Connections, Programs, ProgramTable, RankProgram, Structure

#: Maximum nodes of one rank after its steps are cut into messages.
MAX_PIECES = 2**22


def messages_of_steps(table: Program, most: int) -> np.ndarray:
    """int64[rows]: number of messages of each node's step, with at most `most` chunks per message."""
    count = table.column("msg_chunk_cnt")
    in_chunks = (table.column("msg_chunk_idx") >= 0) & (table.column("total_chunk_cnt") > 0)
    message = (table.type == NodeType.COMM_SEND) | (table.type == NodeType.COMM_RECV)
    several = np.flatnonzero(message & in_chunks & (count > most))
    parts = np.ones(len(table), dtype=np.int64)
    np.maximum.at(parts, table.step[several], -(-count[several] // most))
    return parts[table.step]


def cut_steps(
    programs: ProgramTable, table: Program, size: int, most: int, name: str,
    structure: Callable[..., Structure],
) -> Iterable[RankProgram]:  # fmt: skip
    """The programs of the ranks of a table with every step cut into messages of at most `most` chunks.

    `size`: full buffer, bytes. `structure`: ``structure(kind, need, child, parent)`` makes the structure of the pieces
    (`RankPrograms.structure`). Raises Unusable: a step of a node that is not there.
    """
    parts = messages_of_steps(table, most)
    if int(parts.max(initial=1)) == 1:
        return programs
    place_of = np.empty(len(table), dtype=np.int64)
    cut_programs = []
    for rank, (program, low) in enumerate(zip(programs, table.bounds.tolist(), strict=False)):
        rows = program.rows + low
        counts, place = parts[rows], file_of(table, low) or f"{name} rank {rank}"
        if int(counts.max(initial=1)) == 1:
            cut_programs.append(program)
            continue
        if program.counters is not None:
            refuse(MSCCL, {COUNTERS: True}, error=AlgorithmError, place=place)
        if int(counts.sum()) > MAX_PIECES:
            raise AlgorithmError(
                place,
                f"makes {int(counts.sum()):,} messages and operations of one rank, more than {MAX_PIECES:,}",
                "use a smaller size or fewer chunks per step",
            )
        place_of[rows] = np.arange(len(rows))
        child, parent = _edges_of_pieces(program.structure, place_of[table.step[rows]], counts)
        origin = np.repeat(np.arange(len(counts)), counts)
        pieces = {
            name: getattr(program, name)[origin] for name in ("rows", "node_id", "peer", "tag", "slot", "instance")
        }
        number, of = _numbers(pieces["rows"])
        needs = np.bincount(child, minlength=len(origin))
        cut_programs.append(
            replace(
                program,
                structure=structure(program.structure.kind[origin], needs, child, parent),
                nbytes=_bytes_of_pieces(table, rows[origin], program.nbytes[origin], size, most),
                duration=share(program.duration[origin], number, of),
                **pieces,
            )
        )
    return tuple(cut_programs)


def _edges_of_pieces(structure: Structure, step: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges (child, parent) between pieces, ascending by child; the pieces of a node follow each other.

    The first piece of a step takes its dependencies, the last one releases its dependents. The pieces of a step follow
    each other, so that a fused step receives and forwards message by message. `step`: first node of each node's step.
    `parts`: its number of pieces (equal within a step).
    """
    first = np.cumsum(parts) - parts
    parent = np.repeat(np.arange(len(parts)), np.diff(structure.succ_ptr))
    child = structure.succ.astype(np.int64)
    inner = step[parent] == step[child]
    children, parents = [first[child[~inner]]], [(first + parts - 1)[parent[~inner]]]
    parent, child = parent[inner], child[inner]
    copies = parts[parent]
    number = np.arange(int(copies.sum())) - np.repeat(np.cumsum(copies) - copies, copies)
    parents.append(np.repeat(first[parent], copies) + number)
    children.append(np.repeat(first[child], copies) + number)
    begins, ends = (np.bincount(nodes, minlength=len(parts)) == 0 for nodes in (child, parent))
    heads, tails = (np.flatnonzero((parts > 1) & mask) for mask in (begins, ends))
    tails_of: dict[int, list[int]] = {}
    for tail in tails.tolist():
        tails_of.setdefault(int(step[tail]), []).append(tail)
    for head in heads.tolist():
        later = np.arange(1, parts[head])
        for tail in tails_of.get(int(step[head]), ()):
            children.append(first[head] + later)
            parents.append(first[tail] + later - 1)
    child, parent = np.concatenate(children), np.concatenate(parents)
    order = np.lexsort((parent, child))
    return child[order], parent[order]


def _bytes_of_pieces(table: Program, rows: np.ndarray, nbytes: np.ndarray, size: int, most: int) -> np.ndarray:
    """int64[p]: bytes of the pieces of rows of `nbytes`; the pieces of a row sum to its bytes."""
    index, count, total = (table.column(c)[rows] for c in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    number, parts = _numbers(rows)
    out = share(nbytes, number, parts)
    sized = (parts > 1) & (index >= 0) & (count > 0) & (total > 0)
    for full in np.unique(total[sized]).tolist():
        at = np.flatnonzero(sized & (total == full))
        begin, end = (np.minimum(count[at], (number[at] + k) * most) for k in (0, 1))
        out[at] = chunk_bytes(index[at], end, size, full) - chunk_bytes(index[at], begin, size, full)
    return out


def _numbers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[p]: index of each piece within its row, and the row's number of pieces; pieces of a row are adjacent."""
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(np.append(begins, len(rows)))
    return np.arange(len(rows)) - np.repeat(begins, counts), np.repeat(counts, counts)


def connections_of(algorithm: Algorithm, programs: Programs, model: MscclModel) -> Connections:
    """Number the messages of an algorithm, and find the nodes that take and free each slot.

    Raises AlgorithmError: a message is sent on one channel and received on another, or a fused step has several
    receives or sends.
    """
    try:
        table = algorithm.program
    except Unusable as error:
        raise AlgorithmError(algorithm.source or algorithm.name, error.problem) from None
    starts = table.bounds[:-1].tolist()
    columns = [(p.rows + low, p.structure.kind, p.peer, p.tag) for p, low in zip(programs, starts, strict=True)]
    nodes = MessageNodes(algorithm, table, *map(np.concatenate, zip(*columns, strict=True)))
    sends, receives, connection, begin, end = nodes.messages()
    slots, messages = model.slots_for(algorithm.protocol), len(sends)
    number = np.arange(messages)
    needs, frees, of_send = (np.full(len(nodes.row), -1, dtype=np.int64) for _ in range(3))
    of_send[sends] = connection
    needs[sends] = np.where(number - begin >= slots, number - slots, -1)
    freed = np.flatnonzero(number + slots < end)
    frees[nodes.releasing(receives[freed])] = freed
    by_member = np.cumsum([len(program) for program in programs])[:-1]
    return Connections(
        protocol=model.protocol_for(algorithm.protocol),
        slots=slots,
        latency_ps=model.latency_for(algorithm.protocol),
        pace=model.channel_bandwidth,
        messages=messages,
        needs=tuple(np.split(needs, by_member)),
        frees=tuple(np.split(frees, by_member)),
        connection=tuple(np.split(of_send, by_member)),
    )


class MessageNodes:
    """The nodes of all members in one list: their rows in the algorithm's table, kinds, peers and tags."""

    def __init__(
        self, algorithm: Algorithm, table: Program, row: np.ndarray, kind: np.ndarray, peer: np.ndarray, tag: np.ndarray
    ) -> None:
        self.algorithm, self.table, self.row, self.kind = algorithm, table, row, kind
        me, peer, channel = table.rank[row], peer.astype(np.int64), table.column("channel")[row]
        received, by_tag = kind == RECV, channel == MISSING
        pair = np.where(received, peer, me), np.where(received, me, peer)
        #: int64[nodes, 5]: source, destination, whether the tag is the connection, channel or tag, tag.
        self.connection = np.stack([*pair, by_tag, np.where(by_tag, tag, channel), tag], axis=1)

    def messages(self) -> tuple[np.ndarray, ...]:
        """Of every message, connection after connection: send, receive, connection, its first message and its end.

        Raises AlgorithmError: a message without a send or without a receive.
        """
        sends, receives = self.in_order(SEND), self.in_order(RECV)
        if not np.array_equal(self.connection[sends], self.connection[receives]):
            raise self.mismatch(sends, receives)
        new = np.diff(self.connection[sends, :4], axis=0, prepend=-1).any(axis=1)
        begins = np.flatnonzero(new)
        connection = np.cumsum(new) - 1
        return sends, receives, connection, begins[connection], np.append(begins[1:], len(sends))[connection]

    def in_order(self, kind: int) -> np.ndarray:
        """Sends or receives in the order of their connections."""
        nodes = np.flatnonzero(self.kind == kind)
        return nodes[np.lexsort((nodes, self.table.place[self.row[nodes]], *self.connection[nodes].T[::-1]))]

    def releasing(self, receives: np.ndarray) -> np.ndarray:
        """Nodes that free the slots of the messages of `receives`: the send of the step, else its last node."""
        last = self.last_of_steps()
        number, _ = _numbers(self.row)
        first = np.empty(len(self.table), dtype=np.int64)
        first[self.row[number == 0]] = np.flatnonzero(number == 0)
        return first[last[self.table.step[self.row[receives]]]] + number[receives]

    def last_of_steps(self) -> np.ndarray:
        """int64[rows]: by the first row of a step its send, else its last row; -1 at rows that begin none.

        Raises AlgorithmError: a step of several receives or sends.
        """
        table = self.table
        step = table.step
        order = np.lexsort((table.place, table.rank))
        last = np.full(len(table), -1, dtype=np.int64)
        last[step[order]] = order
        for kind, word in ((NodeType.COMM_RECV, "receives"), (NodeType.COMM_SEND, "sends")):
            rows = np.flatnonzero(table.type == kind)
            several = np.flatnonzero(np.bincount(step[rows], minlength=len(table)) > 1)
            if len(several):
                row = int(several[0])
                place = self.algorithm.traces[int(table.rank[row])].place or self.algorithm.source
                problem = f"node {int(table.node_id[row])} begins a fused step of several {word}"
                raise AlgorithmError(place or self.algorithm.name, problem, "fuse one receive with one send at most")
            if kind == NodeType.COMM_SEND:
                last[step[rows]] = rows
        return last

    def mismatch(self, sends: np.ndarray, receives: np.ndarray) -> AlgorithmError:
        """The error for a message without a send or without a receive."""
        shorter = min(len(sends), len(receives))
        differ = np.flatnonzero((self.connection[sends[:shorter]] != self.connection[receives[:shorter]]).any(axis=1))
        index = int(differ[0]) if len(differ) else shorter
        side, verb = (sends, "sends") if len(sends) > index else (receives, "receives")
        source, target, by_tag, queue, tag = self.connection[side[index]].tolist()
        member, peer = (source, target) if verb == "sends" else (target, source)
        node = int(self.table.node_id[self.row[side[index]]])
        where = f"tag {tag}" if by_tag else f"channel {queue}, tag {tag}"
        other = f"rank {peer} does not {'receive' if verb == 'sends' else 'send'} it so"
        return AlgorithmError(
            self.algorithm.source or self.algorithm.name,
            f"node {node} of rank {member} {verb} on {where}, and {other}",
            "give both sides the same channel and tag",
        )
