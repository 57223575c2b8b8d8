"""The operations of an algorithm, in an order in which they may be executed, with everything that each must wait for.

First half of lowering: steps of traces become sends, receives, receives that reduce, and local work; all of it between
cells of memory, in ranges that one step of MSCCL-IR can move. What they wait for is what the traces say, and what
their cells demand (read after write, write after read, write after write).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.buffers import Layout
from astrasim_py.program.protocols import MAX_CHUNKS_PER_MESSAGE as MAX_COUNT
from astrasim_py.program.steps import Steps

SEND, RECEIVE, RECEIVE_REDUCE, REDUCE, COPY, JOIN = range(6)

#: Absent payload, partner, operation.
NONE = -1


@dataclass(slots=True)
class Operations:
    """Operations of all ranks; every list has one entry per operation, parents before children.

    `source`, `target`: cells that are read and written, as (`Buffer`, offset, number over all ranks and buffers).
    `origin`: its number in the graph; of a receive that reduces, that of the reduction.
    """

    kind: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    source: list[tuple[int, int, int] | None] = field(default_factory=list)
    target: list[tuple[int, int, int] | None] = field(default_factory=list)
    payload: list[int] = field(default_factory=list)  # operation whose data is taken in place of cells, or added
    partner: list[int] = field(default_factory=list)  # the other end of a message
    channel: list[int] = field(default_factory=list)  # channel that the algorithm wants a message to be sent on
    parents: list[list[int]] = field(default_factory=list)
    step: list[int] = field(default_factory=list)  # the step of the algorithm that it comes from
    origin: list[int] = field(default_factory=list)
    feeder: list[int] = field(default_factory=list)  # operation that wrote what this one reads, the last of several
    readers: list[list[int]] = field(default_factory=list)  # operations that read the cells which this one wrote
    overwritten: list[bool] = field(default_factory=list)  # whether all the cells that this one wrote are written again

    def __len__(self) -> int:
        return len(self.kind)

    def add(self, kind: int, rank: int, count: int, step: int, source=None, target=None, payload: int = NONE) -> int:
        """Append an operation; returns its number."""
        self.kind.append(kind)
        self.rank.append(rank)
        self.count.append(count)
        self.source.append(source)
        self.target.append(target)
        self.payload.append(payload)
        self.partner.append(NONE)
        self.channel.append(NONE)
        self.parents.append([])
        self.step.append(step)
        return len(self.kind) - 1


def children_of(parents: list[list[int]]) -> list[list[int]]:
    """The operations that wait for each."""
    out: list[list[int]] = [[] for _ in parents]
    for op, before in enumerate(parents):
        for parent in before:
            out[parent].append(op)
    return out


def overlap(a: tuple[int, int, int], b: tuple[int, int, int], count: int) -> bool:
    """True if two ranges share a cell but are not equal."""
    return a[2] != b[2] and abs(a[2] - b[2]) < count


class OperationGraph:
    """Operations as the steps have them: in no order, each receive and its reduction apart.

    `place`: for messages. Raises Unusable: cells beyond a buffer.
    """

    def __init__(self, steps: Steps, place: str) -> None:
        self.steps, self.place, self.ops = steps, place, Operations()
        #: Reductions that must not be one with the receive before.
        self.apart: set[int] = set()
        where = Layout(steps)
        #: First cell beyond all buffers.
        self.cells = where.stride * steps.ranks
        reads = where.reads
        writes = where.writes
        #: First operation of each step, and number of operations of each part of its range.
        self.base: list[int] = []
        self.width: list[int] = []
        for g in range(len(steps)):
            self._step(g, reads[g], writes[g])
        self._link()

    def _step(self, g: int, read: int, write: int) -> None:
        """The operations of a step: of each part of its range a receive, work on it, a send, as far as there are."""
        steps, ops = self.steps, self.ops
        rank, count = steps.rank[g], steps.count[g]
        receives, sends, reduces = steps.takes[g] >= 0, steps.gives[g] >= 0, steps.reduces[g]
        works = reduces or (not receives and not sends and write >= 0)
        self.base.append(len(ops))
        self.width.append(receives + works + sends)
        if count <= 0 or not (receives or sends or works):
            self.width[g] = 0
            ops.add(JOIN, rank, 0, g)
            return
        for at in range(0, count, MAX_COUNT):
            size = min(MAX_COUNT, count - at)
            source = (steps.read_buf[g], steps.read_off[g] + at, read + at) if read >= 0 else None
            target = (steps.write_buf[g], steps.write_off[g] + at, write + at) if write >= 0 else None
            before = NONE
            if receives:
                before = ops.add(RECEIVE, rank, size, g, target=None if reduces else target)
            if works:
                op = ops.add(REDUCE if reduces else COPY, rank, size, g, source, target, before)
                if before >= 0:
                    ops.parents[op].append(before)
                before = op
            if sends:
                op = ops.add(SEND, rank, size, g, source if before < 0 else None, payload=before)
                if before >= 0:
                    ops.parents[op].append(before)

    def _parts(self, g: int) -> range:
        """The first operation of every part of a step."""
        count, width = self.steps.count[g], self.width[g]
        if count <= MAX_COUNT or not width:
            return range(self.base[g], self.base[g] + 1)
        return range(self.base[g], self.base[g] - (-count // MAX_COUNT) * width, width)

    def _link(self) -> None:
        """Dependencies, payloads and messages between steps."""
        steps, ops, width = self.steps, self.ops, self.width
        ends = [base + max(each - 1, 0) for base, each in zip(self.base, width, strict=True)]
        for g, count in enumerate(steps.count):
            if count > MAX_COUNT and width[g]:
                ends[g] = ops.add(JOIN, steps.rank[g], 0, g)
                ops.parents[ends[g]] = [first + width[g] - 1 for first in self._parts(g)]
        for g, parents in enumerate(steps.parents):
            if parents:
                waits = [ends[p] for p in parents]
                for op in self._parts(g):
                    ops.parents[op] += waits
            giver = steps.payload[g]
            if giver >= 0 and steps.takes[g] < 0 and width[giver]:
                holds = width[giver] - 1 - (steps.gives[giver] >= 0)
                for op, given in zip(self._parts(g), self._parts(giver), strict=True):
                    ops.payload[op] = given + holds
                    if ops.kind[op] != REDUCE:
                        ops.source[op] = None
        for connection in steps.connections:
            for s, r in zip(connection.sends, connection.receives, strict=True):
                if not width[s]:
                    continue
                for first, receive in zip(self._parts(s), self._parts(r), strict=True):
                    send = first + width[s] - 1
                    ops.partner[send], ops.partner[receive] = receive, send
                    ops.channel[send] = connection.channel

    def operations(self) -> Operations:
        """Operations in an order in which they may be executed.

        Raises AlgorithmError: ranks wait for each other.
        """
        while True:
            ops = _ordered(self)
            lost = _hazards(ops)
            if not lost:
                return ops
            # Data that is overwritten before it is taken needs a place of its own.
            self._keep([ops.origin[op] for op in sorted(lost)])

    def receive_aside(self, ops: Operations, receives: Sequence[int]) -> None:
        """Let receives put their data in scratch at once, and use it later.

        `ops`: what `operations` returned last. `receives`: in `ops`.
        """
        self.apart.update([ops.origin[op] for op in receives if ops.kind[op] == RECEIVE_REDUCE])
        self._keep([ops.origin[op] for op in receives if ops.kind[op] == RECEIVE and ops.target[op] is not None])

    def _keep(self, kept: Sequence[int]) -> None:
        """Let operations write to places of their own, and copy from there to where they wrote."""
        ops = self.ops
        copies: dict[int, int] = {}
        for op in kept:
            rank, count, step, target = ops.rank[op], ops.count[op], ops.step[op], ops.target[op]
            if ops.kind[op] == REDUCE and ops.payload[op] < 0:
                # The other operand goes there, too.
                before = ops.add(COPY, rank, count, step, source=target)
                ops.parents[before] = list(ops.parents[op])
                ops.parents[op].append(before)
                ops.payload[op] = before
            copies[op] = ops.add(COPY, rank, count, step, target=target, payload=op)
            ops.target[op] = None
        for parents in ops.parents:
            parents += [copies[parent] for parent in parents if parent in copies]
        for op, copy in copies.items():
            ops.parents[copy] = [op]


def _merged(ops: Operations, apart: set[int]) -> list[int]:
    """For each operation the one that it is part of: a reduction is part of the receive whose data only it takes."""
    takers = [0] * len(ops)
    for giver in ops.payload:
        if giver >= 0:
            takers[giver] += 1
    unit = list(range(len(ops)))
    for op, (kind, giver) in enumerate(zip(ops.kind, ops.payload, strict=True)):
        if kind != REDUCE or giver < 0 or op in apart or ops.kind[giver] != RECEIVE or takers[giver] > 1:
            continue
        source, target = ops.source[op], ops.target[op]
        if ops.target[giver] is None and not (target and overlap(source, target, ops.count[op])):
            unit[op] = giver
    return unit


def _ordered(graph: OperationGraph) -> Operations:
    """The operations in an order in which they may be executed, receives and their reductions in one."""
    ops, apart = graph.ops, graph.apart
    while True:
        unit = _merged(ops, apart)
        waiting = [int(kind == RECEIVE) for kind in ops.kind]
        children: list[list[int]] = [[] for _ in unit]
        for op, parents in enumerate(ops.parents):
            mine = unit[op]
            for parent in parents:
                other = unit[parent]
                if other != mine:
                    waiting[mine] += 1
                    children[other].append(mine)
        sequence = [op for op, count in enumerate(waiting) if not count and unit[op] == op]
        # The list grows while it is walked: first come, first served.
        for op in sequence:
            if ops.kind[op] == SEND:
                got = ops.partner[op]
                waiting[got] -= 1
                if not waiting[got]:
                    sequence.append(got)
            for child in children[op]:
                waiting[child] -= 1
                if not waiting[child]:
                    sequence.append(child)
        units = sum(unit[op] == op for op in range(len(unit)))
        if len(sequence) == units:
            return _renumbered(ops, unit, sequence)
        stuck = {op for op in range(len(unit)) if unit[op] != op and waiting[unit[op]] > 0}
        if not stuck:
            blocked = next(op for op in range(len(unit)) if unit[op] == op and waiting[op] > 0)
            raise AlgorithmError(
                graph.place,
                f"ranks wait for each other, for example {graph.steps.place(ops.step[blocked])}",
                "look at what verify says of it",
            )
        apart |= stuck


def _renumbered(ops: Operations, unit: list[int], sequence: list[int]) -> Operations:
    number = [NONE] * len(unit)
    for at, op in enumerate(sequence):
        number[op] = at
    work = list(sequence)  # the part that works on the data: of a receive that reduces, the reduction
    kinds = [ops.kind[op] for op in sequence]
    parents: list[list[int]] = [[] for _ in sequence]
    for op, first in enumerate(unit):
        at = number[op] = number[first]
        if op != first:
            work[at], kinds[at] = op, RECEIVE_REDUCE
    for op, before in enumerate(ops.parents):
        if before:
            at = number[op]
            parents[at] += [number[p] for p in before if number[p] != at]
    return Operations(
        kind=kinds,
        rank=[ops.rank[op] for op in sequence],
        count=[ops.count[op] for op in sequence],
        source=[ops.source[op] for op in work],
        target=[ops.target[op] for op in work],
        payload=[
            number[ops.payload[op]] if ops.payload[op] >= 0 and kind != RECEIVE_REDUCE else NONE
            for op, kind in zip(work, kinds, strict=True)
        ],
        partner=[number[ops.partner[op]] if ops.partner[op] >= 0 else NONE for op in sequence],
        channel=[ops.channel[op] for op in sequence],
        parents=parents,
        step=[ops.step[op] for op in sequence],
        origin=work,
    )


def _hazards(ops: Operations) -> set[int]:
    """Add what cells demand to the parents; return operations whose data others overwrite before it is taken."""
    size = len(ops)
    writer: dict[int, int] = {}
    reading: dict[int, list[int]] = {}
    lost: set[int] = set()
    left = [0] * size  # cells that still hold the result of each operation
    ops.feeder, ops.readers = [NONE] * size, [[] for _ in range(size)]
    for op in range(size):
        count, parents = ops.count[op], ops.parents[op]
        reads = [ops.source[op]] if ops.source[op] else []
        giver = ops.payload[op]
        if giver >= 0:
            ops.feeder[op] = giver
            ops.readers[giver].append(op)
            parents.append(giver)
            held = ops.target[giver]
            if held:
                if any(writer[cell] != giver for cell in range(held[2], held[2] + count)):
                    lost.add(giver)
                reads.append(held)
        elif ops.kind[op] == REDUCE:
            reads.append(ops.target[op])
        for _, _, begin in reads:
            for cell in range(begin, begin + count):
                by = writer.get(cell, NONE)
                if by >= 0:
                    parents.append(by)
                    if giver < 0 and by > ops.feeder[op]:
                        ops.feeder[op] = by
                    if not ops.readers[by] or ops.readers[by][-1] != op:
                        ops.readers[by].append(op)
                reading.setdefault(cell, []).append(op)
        if ops.target[op] and ops.kind[op] != SEND:
            begin = ops.target[op][2]
            for cell in range(begin, begin + count):
                by = writer.get(cell, NONE)
                if by >= 0:
                    parents.append(by)
                    left[by] -= 1
                parents += reading.pop(cell, ())
                writer[cell] = op
            left[op] = count
    if lost:
        return lost
    ops.overwritten = [ops.target[op] is not None and not left[op] for op in range(size)]
    for op, parents in enumerate(ops.parents):
        if len(parents) > 1:
            ops.parents[op] = sorted(set(parents) - {op})
        elif parents and parents[0] == op:
            ops.parents[op] = []
    return set()


def scratch_ends(steps: Steps) -> list[int]:
    """Chunks of scratch that each rank uses."""
    ends = [0] * steps.ranks
    for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
        for rank, buffer, offset, count in zip(steps.rank, buffers, offsets, steps.count, strict=True):
            if buffer == Buffer.SCRATCH:
                ends[rank] = max(ends[rank], offset + count)
    return ends
