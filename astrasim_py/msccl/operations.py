"""The operations of an algorithm, in an order in which they may be executed, with everything that each must wait for.

First half of lowering: steps of traces become sends, receives, receives that reduce, and local work; all of it between
cells of memory, in ranges that one step of MSCCL-IR can move. They wait for what the traces name, and for what their
cells require (read after write, write after read, write after write).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from astrasim_py.collectives.chunks import MAX_CHUNKS_PER_MESSAGE as MAX_COUNT
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.steps import Layout, Steps

SEND, RECEIVE, RECEIVE_REDUCE, REDUCE, COPY, JOIN = range(6)
#: Kinds that receive.
RECEIVES = (RECEIVE, RECEIVE_REDUCE)

#: First of some cells, as `Buffer`, offset, and number over all ranks and buffers.
Cells = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Operation:
    """What one rank does with some cells, parents before it."""

    kind: int
    rank: int
    count: int
    step: int  # the step of the algorithm that it comes from
    number: int
    source: Cells | None = None
    target: Cells | None = None
    payload: Operation | None = None  # whose data is taken in place of cells, or added
    partner: Operation | None = None  # the other end of a message
    channel: int = -1  # that the algorithm wants a message to be sent on
    parents: list[Operation] = field(default_factory=list)
    origin: Operation | None = None  # in the graph; of a receive that reduces, the reduction
    feeder: Operation | None = None  # that wrote what this one reads, the last of several
    readers: list[Operation] = field(default_factory=list)  # that read the cells which this one wrote
    overwritten: bool = False  # whether all the cells that this one wrote are written again
    #: When it is executed: its round, its place in the whole execution, the channel of its message.
    round: int = 0
    place: int = 0
    carrier: int = -1

    @property
    def peer(self) -> Operation:
        """The other end of a message."""
        assert self.partner is not None
        return self.partner

    @property
    def original(self) -> Operation:
        """What this one is in the graph."""
        assert self.origin is not None
        return self.origin

    @property
    def reads(self) -> Cells:
        """The source of what has one."""
        assert self.source is not None
        return self.source

    @property
    def writes(self) -> Cells:
        """The target of what has one."""
        assert self.target is not None
        return self.target


def children_of(ops: list[Operation]) -> list[list[Operation]]:
    """The operations that wait for each."""
    out: list[list[Operation]] = [[] for _ in ops]
    for op in ops:
        for parent in op.parents:
            out[parent.number].append(op)
    return out


def overlap(a: Cells, b: Cells, count: int) -> bool:
    """True if two ranges share a cell but are not equal."""
    return a[2] != b[2] and abs(a[2] - b[2]) < count


class OperationGraph:
    """Operations as the steps, none of which is fused, have them: in no order, each receive and its reduction apart.

    `place`: for messages. Raises Unusable: cells beyond a buffer.
    """

    def __init__(self, steps: Steps, place: str) -> None:
        self.steps, self.place = steps, place
        self.ops: list[Operation] = []
        #: Numbers of reductions that must not be merged with their receive.
        self.apart: set[int] = set()
        where = Layout(steps)
        #: First cell beyond all buffers.
        self.cells = where.stride * steps.ranks
        parts = [
            self._parts(g, read, write) for g, (read, write) in enumerate(zip(where.reads, where.writes, strict=True))
        ]
        self._link(parts)

    def _add(self, kind: int, rank: int, count: int, step: int, **others) -> Operation:
        self.ops.append(Operation(kind, rank, count, step, len(self.ops), **others))
        return self.ops[-1]

    def _parts(self, g: int, read: int, write: int) -> list[Operation]:
        steps = self.steps
        rank, count = steps.rank[g], steps.count[g]
        if steps.takes[g] >= 0:
            kind = RECEIVE
        elif steps.gives[g] >= 0:
            kind = SEND
        elif steps.reduces[g]:
            kind = REDUCE
        else:
            kind = COPY if write >= 0 else JOIN
        if count <= 0 or kind == JOIN:
            return [self._add(JOIN, rank, 0, g)]
        parts = []
        for begin in range(0, count, MAX_COUNT):
            source = (steps.read_buf[g], steps.read_off[g] + begin, read + begin) if read >= 0 else None
            target = (steps.write_buf[g], steps.write_off[g] + begin, write + begin) if write >= 0 else None
            parts.append(self._add(kind, rank, min(MAX_COUNT, count - begin), g, source=source, target=target))
        return parts

    def _link(self, parts: list[list[Operation]]) -> None:
        steps = self.steps
        ends = [ops[-1] for ops in parts]
        for g, ops in enumerate(parts):
            if len(ops) > 1:
                ends[g] = self._add(JOIN, steps.rank[g], 0, g, parents=list(ops))
        for ops, parents, giver in zip(parts, steps.parents, steps.payload, strict=True):
            for op in ops:
                op.parents += [ends[p] for p in parents]
            if giver >= 0 and ops[0].kind != RECEIVE and parts[giver][0].kind != JOIN:
                for op, payload in zip(ops, parts[giver], strict=True):
                    op.payload = payload
                    if op.kind != REDUCE:
                        op.source = None
        for connection in steps.connections:
            for s, r in zip(connection.sends, connection.receives, strict=True):
                for send, receive in zip(parts[s], parts[r], strict=True):
                    if send.kind == SEND:
                        send.partner, receive.partner, send.channel = receive, send, connection.channel

    def operations(self) -> list[Operation]:
        """Operations in an order in which they may be executed.

        Raises AlgorithmError: ranks wait for each other.
        """
        while True:
            ops = _ordered(self)
            lost = _hazards(ops)
            if not lost:
                return ops
            # Data that is overwritten before it is taken needs a place of its own.
            self._keep(lost)

    def receive_aside(self, receives: Iterable[Operation]) -> None:
        """Let receives of the last result of `operations` put their data in scratch at once, and use it later."""
        receives = list(receives)
        self.apart.update(op.original.number for op in receives if op.kind == RECEIVE_REDUCE)
        self._keep(op for op in receives if op.kind == RECEIVE and op.target is not None)

    def _keep(self, operations: Iterable[Operation]) -> None:
        """Let operations write to places of their own, and copy from there to where they wrote."""
        copies: dict[int, Operation] = {}
        for op in [operation.original for operation in operations]:
            if op.kind == REDUCE and op.payload is None:
                # The other operand goes there, too.
                before = self._add(COPY, op.rank, op.count, op.step, source=op.target, parents=list(op.parents))
                op.parents.append(before)
                op.payload = before
            copies[op.number] = self._add(COPY, op.rank, op.count, op.step, target=op.target, payload=op)
            op.target = None
        for op in self.ops:
            op.parents += [copies[parent.number] for parent in op.parents if parent.number in copies]
        for number, copy in copies.items():
            copy.parents = [self.ops[number]]


def _merged(ops: list[Operation], apart: set[int]) -> list[int]:
    """For each operation the one that it is part of: a reduction is part of a receive if only it takes the received
    data.
    """
    takers = Counter(op.payload.number for op in ops if op.payload)
    unit = list(range(len(ops)))
    for op in ops:
        giver = op.payload
        if op.kind != REDUCE or giver is None or giver.kind != RECEIVE or giver.target is not None:
            continue
        alone = takers[giver.number] == 1 and op.number not in apart
        if alone and not (op.target and overlap(op.reads, op.target, op.count)):
            unit[op.number] = giver.number
    return unit


def _ordered(graph: OperationGraph) -> list[Operation]:
    """The operations in an order in which they may be executed, receives and their reductions in one."""
    ops, apart = graph.ops, graph.apart
    while True:
        unit = _merged(ops, apart)
        waiting = [int(op.kind == RECEIVE) for op in ops]
        children: list[list[int]] = [[] for _ in ops]
        for op, home in zip(ops, unit, strict=True):
            for parent in op.parents:
                other = unit[parent.number]
                if other != home:
                    waiting[home] += 1
                    children[other].append(home)
        sequence = [u for u, count in enumerate(waiting) if not count and unit[u] == u]
        # The list grows while it is walked: first come, first served.
        for u in sequence:
            freed = [ops[u].peer.number] if ops[u].kind == SEND else []
            for child in (*freed, *children[u]):
                waiting[child] -= 1
                if not waiting[child]:
                    sequence.append(child)
        if len(sequence) == len(set(unit)):
            return _renumbered(ops, unit, sequence)
        stuck = {u for u, first in enumerate(unit) if u != first and waiting[first] > 0}
        if not stuck:
            held_back = next(op for op in ops if unit[op.number] == op.number and waiting[op.number] > 0)
            problem = f"ranks wait for each other, for example {graph.steps.place(held_back.step)}"
            raise AlgorithmError(graph.place, problem, "run verify on it")
        apart |= stuck


def _renumbered(ops: list[Operation], unit: list[int], sequence: list[int]) -> list[Operation]:
    """Copies of the operations in the order of a sequence, those of one unit as one."""
    work = {first: op for op, first in zip(ops, unit, strict=True) if op.number != first}
    copies: dict[int, Operation] = {}
    for number, index in enumerate(sequence):
        first, last = ops[index], work.get(index, ops[index])
        copies[index] = copies[last.number] = replace(
            first,
            kind=first.kind if last is first else RECEIVE_REDUCE,
            number=number,
            source=last.source,
            target=last.target,
            payload=last.payload if last is first else None,
            parents=[],
            origin=last,
            readers=[],
        )
    for op in ops:
        copy = copies[op.number]
        copy.parents += [copies[parent.number] for parent in op.parents if copies[parent.number] is not copy]
    out = [copies[index] for index in sequence]
    for op in out:
        op.partner = op.partner and copies[op.partner.number]
        op.payload = op.payload and copies[op.payload.number]
    return out


def _hazards(ops: list[Operation]) -> list[Operation]:
    """Add what cells demand to the parents; return operations whose data others overwrite before it is taken."""
    writer: dict[int, Operation] = {}
    reading: dict[int, list[Operation]] = {}
    lost: dict[int, Operation] = {}
    left = [0] * len(ops)  # cells that still hold the result of each operation
    for op in ops:
        count, parents, giver = op.count, op.parents, op.payload
        reads = [op.source] if op.source else []
        if giver is not None:
            op.feeder = giver
            giver.readers.append(op)
            parents.append(giver)
            if giver.target:
                begin = giver.target[2]
                if any(writer[cell] is not giver for cell in range(begin, begin + count)):
                    lost[giver.number] = giver
                reads.append(giver.target)
        elif op.kind == REDUCE:
            reads.append(op.writes)
        for _, _, begin in reads:
            for cell in range(begin, begin + count):
                by = writer.get(cell)
                if by is not None:
                    parents.append(by)
                    if giver is None and (op.feeder is None or by.number > op.feeder.number):
                        op.feeder = by
                    if not by.readers or by.readers[-1] is not op:
                        by.readers.append(op)
                reading.setdefault(cell, []).append(op)
        if op.target and op.kind != SEND:
            for cell in range(op.target[2], op.target[2] + count):
                by = writer.get(cell)
                if by is not None:
                    parents.append(by)
                    left[by.number] -= 1
                parents += reading.pop(cell, ())
                writer[cell] = op
            left[op.number] = count
    for op in ops:
        op.overwritten = op.target is not None and not left[op.number]
        others = {parent.number: parent for parent in op.parents if parent is not op}
        op.parents = [others[number] for number in sorted(others)]
    return [lost[number] for number in sorted(lost)]


def scratch_ends(steps: Steps) -> list[int]:
    """Chunks of scratch that each rank uses."""
    ends = [0] * steps.ranks
    for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
        for rank, buffer, offset, count in zip(steps.rank, buffers, offsets, steps.count, strict=True):
            if buffer == Buffer.SCRATCH:
                ends[rank] = max(ends[rank], offset + count)
    return ends
