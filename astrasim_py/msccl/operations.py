"""The operations of an algorithm, in an order in which they may be executed, with everything that each must wait for.

First half of lowering: steps of traces become sends, receives, receives that reduce, and local work; all of it between
cells of memory, in ranges that one step of MSCCL-IR can move. What they wait for is what the traces say, and what
their cells demand (read after write, write after read, write after write).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from astrasim_py.collectives.algorithm import Buffer
from astrasim_py.collectives.cells import cells, layout
from astrasim_py.collectives.steps import Steps
from astrasim_py.core.errors import AlgorithmError

#: Chunks that one step moves at most.
MAX_COUNT = 71

SEND, RECEIVE, RECEIVE_REDUCE, REDUCE, COPY, JOIN = range(6)

#: Absent payload, partner, operation.
NONE = -1


@dataclass(slots=True)
class Operations:
    """Operations of all ranks; every list has one entry per operation, parents before children.

    Attributes
    ----------
    kind : list of int
    rank, count : list of int
    source, target : list of (tuple or None)
        Cells that are read and written, as (`Buffer`, offset, number over all ranks and buffers).
    payload : list of int
        Operation whose data is taken in place of cells, or added.
    partner : list of int
        The other end of a message.
    parents : list of list of int
    feeder : list of int
        Operation that wrote what this one reads, the last of several.
    readers : list of list of int
        Operations that read the cells which this one wrote.
    overwritten : list of bool
        Whether all the cells that this one wrote are written again.
    step : list of int
        The step of the algorithm that it comes from.
    origin : list of int
        Its number in the draft; of a receive that reduces, that of the reduction.
    """

    kind: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    source: list[tuple[int, int, int] | None] = field(default_factory=list)
    target: list[tuple[int, int, int] | None] = field(default_factory=list)
    payload: list[int] = field(default_factory=list)
    partner: list[int] = field(default_factory=list)
    parents: list[list[int]] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    feeder: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    overwritten: list[bool] = field(default_factory=list)

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
        self.parents.append([])
        self.step.append(step)
        return len(self.kind) - 1


def overlap(a: tuple[int, int, int], b: tuple[int, int, int], count: int) -> bool:
    """Whether two ranges share a cell without being the same."""
    return a[2] != b[2] and abs(a[2] - b[2]) < count


class Draft:
    """Operations as the steps have them: in no order, each receive and its reduction apart.

    Parameters
    ----------
    steps : Steps
    place : str
        For messages.

    Raises
    ------
    Unusable
        Cells beyond a buffer.
    """

    def __init__(self, steps: Steps, place: str) -> None:
        self.steps, self.place, self.ops = steps, place, Operations()
        #: Reductions that must not be one with the receive before.
        self.apart: set[int] = set()
        where = layout(steps)
        #: First cell that is nobody's.
        self.cells = where.stride * steps.ranks
        reads = cells(steps, where, steps.read_buf, steps.read_off)
        writes = cells(steps, where, steps.write_buf, steps.write_off)
        size = len(steps)
        #: By step and part: its first operation, its last one, the one that holds its data, those of its message.
        self.first: list[list[int]] = [[]] * size
        self.last: list[list[int]] = [[]] * size
        self.holds: list[list[int]] = [[]] * size
        self.sends: list[list[int]] = [[]] * size
        self.receives: list[list[int]] = [[]] * size
        for g in range(size):
            self._step(g, reads[g], writes[g])
        self._link()

    def _step(self, g: int, read: int, write: int) -> None:
        steps, ops = self.steps, self.ops
        rank, count = steps.rank[g], steps.count[g]
        receives, sends, reduces = steps.takes[g] >= 0, steps.gives[g] >= 0, steps.reduces[g]
        works = reduces or (not receives and not sends and write >= 0)
        if count <= 0 or not (receives or sends or works):
            self.first[g] = self.last[g] = [ops.add(JOIN, rank, 0, g)]
            return
        rows: tuple[list[int], ...] = ([], [], [], [], [])
        first, last, holds, sending, receiving = rows
        for at in range(0, count, MAX_COUNT):
            size = min(MAX_COUNT, count - at)
            source = (steps.read_buf[g], steps.read_off[g] + at, read + at) if read >= 0 else None
            target = (steps.write_buf[g], steps.write_off[g] + at, write + at) if write >= 0 else None
            chain = []
            if receives:
                chain.append(ops.add(RECEIVE, rank, size, g, target=None if reduces else target))
                receiving.append(chain[-1])
            if works:
                before = chain[-1] if chain else NONE
                chain.append(ops.add(REDUCE if reduces else COPY, rank, size, g, source, target, before))
            holds.append(chain[-1] if chain else NONE)
            if sends:
                before = chain[-1] if chain else NONE
                chain.append(ops.add(SEND, rank, size, g, None if chain else source, payload=before))
                sending.append(chain[-1])
            for one, other in pairwise(chain):
                ops.parents[other].append(one)
            first.append(chain[0])
            last.append(chain[-1])
        self.first[g], self.last[g], self.holds[g], self.sends[g], self.receives[g] = rows

    def _link(self) -> None:
        """Dependencies, payloads and messages between steps."""
        steps, ops = self.steps, self.ops
        ends = [last[0] for last in self.last]
        for g, last in enumerate(self.last):
            if len(last) > 1:
                ends[g] = ops.add(JOIN, steps.rank[g], 0, g)
                ops.parents[ends[g]] = list(last)
        for g, parents in enumerate(steps.parents):
            if parents:
                waits = [ends[p] for p in parents]
                for op in self.first[g]:
                    ops.parents[op] += waits
            giver = steps.payload[g]
            if giver >= 0 and steps.takes[g] < 0 and self.holds[giver]:
                for op, given in zip(self.first[g], self.holds[giver], strict=True):
                    ops.payload[op] = given
                    if ops.kind[op] != REDUCE:
                        ops.source[op] = None
        for connection in steps.connections:
            for s, r in zip(connection.sends, connection.receives, strict=True):
                for one, other in zip(self.sends[s], self.receives[r], strict=True):
                    ops.partner[one], ops.partner[other] = other, one

    def operations(self) -> Operations:
        """Operations in an order in which they may be executed.

        Raises
        ------
        AlgorithmError
            Ranks wait for each other.
        """
        while True:
            ops = _ordered(self)
            lost = _hazards(ops)
            if not lost:
                return ops
            # What was overwritten in memory before somebody takes it needs a place of its own.
            for op in sorted(lost):
                self._keep(ops.origin[op])

    def receive_aside(self, ops: Operations, receives: Sequence[int]) -> None:
        """Let receives put their data in scratch at once, and what they did with it be done later.

        Parameters
        ----------
        ops : Operations
            What `operations` returned last.
        receives : sequence of int
            In `ops`.
        """
        for op in receives:
            if ops.kind[op] == RECEIVE_REDUCE:
                self.apart.add(ops.origin[op])
            else:
                self._keep(ops.origin[op])

    def _keep(self, op: int) -> None:
        """Let an operation write to a place of its own, and copy from there to where it wrote."""
        ops = self.ops
        copy = ops.add(COPY, ops.rank[op], ops.count[op], ops.step[op], target=ops.target[op], payload=op)
        ops.target[op] = None
        for parents in ops.parents:
            if op in parents:
                parents.append(copy)
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


def _ordered(draft: Draft) -> Operations:
    """The operations in an order in which they may be executed, receives and their reductions in one."""
    ops, apart = draft.ops, draft.apart
    while True:
        unit = _merged(ops, apart)
        parents: list[set[int]] = [set() for _ in unit]
        for op, before in enumerate(ops.parents):
            parents[unit[op]].update([unit[p] for p in before])
        sequence: list[int] = []
        waiting = [0] * len(unit)
        children: list[list[int]] = [[] for _ in unit]
        for op, mine in enumerate(parents):
            mine.discard(op)
            if unit[op] != op:
                continue
            waiting[op] = len(mine)
            for p in mine:
                children[p].append(op)
            if ops.kind[op] == RECEIVE:
                waiting[op] += 1
        sequence = [op for op, count in enumerate(waiting) if not count and unit[op] == op]
        # The list grows while it is walked: first come, first served.
        for op in sequence:
            after = children[op]
            if ops.kind[op] == SEND:
                after = [ops.partner[op], *after]
            for child in after:
                waiting[child] -= 1
                if not waiting[child]:
                    sequence.append(child)
        units = sum(unit[op] == op for op in range(len(unit)))
        if len(sequence) == units:
            return _renumbered(ops, unit, parents, sequence)
        stuck = {op for op in range(len(unit)) if unit[op] != op and waiting[unit[op]] > 0}
        if not stuck:
            blocked = next(op for op in range(len(unit)) if unit[op] == op and waiting[op] > 0)
            raise AlgorithmError(
                draft.place,
                f"ranks wait for each other, for example {draft.steps.place(ops.step[blocked])}",
                "look at what verify says of it",
            )
        apart |= stuck


def _renumbered(ops: Operations, unit: list[int], parents: list[set[int]], sequence: list[int]) -> Operations:
    number = [NONE] * len(unit)
    for at, op in enumerate(sequence):
        number[op] = at
    reduction = {unit[op]: op for op in range(len(unit)) if unit[op] != op}
    for op in reduction.values():
        number[op] = number[unit[op]]
    out = Operations()
    for op in sequence:
        work = reduction.get(op, op)
        kind = RECEIVE_REDUCE if work != op else ops.kind[op]
        payload = ops.payload[work] if work == op else NONE
        out.add(
            kind, ops.rank[op], ops.count[op], ops.step[op], ops.source[work], ops.target[work],
            number[payload] if payload >= 0 else NONE,
        )  # fmt: skip
    out.partner = [number[ops.partner[op]] if ops.partner[op] >= 0 else NONE for op in sequence]
    out.parents = [sorted([number[p] for p in parents[op]]) for op in sequence]
    out.origin = [reduction.get(op, op) for op in sequence]
    return out


def _hazards(ops: Operations) -> set[int]:
    """Add what cells demand to the parents; note who feeds whom.

    Returns
    -------
    set of int
        Operations whose data is taken after their cells were written by others; nothing was added then.
    """
    size = len(ops)
    writer: dict[int, int] = {}
    reading: dict[int, list[int]] = {}
    lost: set[int] = set()
    left = [0] * size  # cells that an operation wrote and nobody wrote since
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
    sides: Sequence[tuple[list[int], list[int]]] = (
        (steps.read_buf, steps.read_off),
        (steps.write_buf, steps.write_off),
    )
    for buffers, offsets in sides:
        for rank, buffer, offset, count in zip(steps.rank, buffers, offsets, steps.count, strict=True):
            if buffer == Buffer.SCRATCH:
                ends[rank] = max(ends[rank], offset + count)
    return ends
