"""Cells of a plan's buffers, and what an operation does to them.

A chunk is cut into so many equal parts that every share of a group of thread blocks, and every iteration of a pipeline,
covers whole parts; a part of a chunk on a rank is a cell. In place, input and output share cells. Scratch has cells
twice: a packet is data and a flag, which plain operations do not see.
"""

from collections.abc import Iterator
from itertools import chain
from math import lcm
from typing import NamedTuple

from astrasim_py.mscclpp.ir import (
    INPUT,
    OUTPUT,
    PORT,
    SCRATCH,
    Gpu,
    Grouped,
    Local,
    Operation,
    Plan,
    Reference,
    ThreadBlock,
    group_of,
    reached,
    walk,
)
from astrasim_py.mscclpp.operations import KINDS

#: Cells of a plan, and cells that all its operations touch, at most.
MAX_CELLS, MAX_ACCESSES = 2**22, 2**25


class Range(NamedTuple):
    """Cells of a rank that one operand of an operation covers, in the order of its elements."""

    rank: int
    buffer: str
    cells: range
    packets: bool


class Work(NamedTuple):
    """Part of an operation: each target becomes the sum of the sources. `channel`: position of the port channel."""

    sources: tuple[Range, ...]
    targets: tuple[Range, ...]
    channel: int = 0


class Place(NamedTuple):
    """A cell in words: part `part` of a chunk; `packet`: of the packets of scratch."""

    rank: int
    buffer: str
    chunk: int
    part: int
    packet: bool


def parts_of(plan: Plan, iterations: int = 1) -> int:
    """Parts of a chunk, where the longest pipeline has so many iterations."""
    return lcm(*(operation.share[1] for *_, operation in walk(plan))) * iterations


class Cells:
    """The numbers of all cells of a plan. `iterations`: of its longest pipeline; so many as `wrap` have scratch of
    their own, and the next ones use it again. Raises ValueError: too many cells."""

    def __init__(self, plan: Plan, iterations: int = 1, wrap: int | None = None) -> None:
        self.plan, self.iterations, self.wrap = plan, iterations, wrap or iterations
        self.parts = parts_of(plan, iterations)
        self._layouts: list[tuple[int, int, int, int]] = []  # input, output, scratch, packets of each rank
        self._ends: list[int] = []
        first = 0
        for rank, gpu in enumerate(plan.gpus):
            given, needed = (offset * self.parts for offset in shared_offsets(plan, rank))
            held = shared_chunks(plan, rank) * self.parts
            scratch = gpu.chunks[SCRATCH] * self.parts
            self._layouts.append((first + given, first + needed, first + held, first + held + scratch))
            first += held + 2 * scratch
            self._ends.append(first)
        self.number = first
        if first > MAX_CELLS:
            raise ValueError(f"{first:,} parts of chunks are more than {MAX_CELLS:,}")
        touched = sum(
            reference.size * self.parts // operation.share[1]
            for *_, operation in walk(plan)
            for reference in (*operation.sources, *operation.targets)
        )
        if touched > MAX_ACCESSES:
            raise ValueError(f"operations touch {touched:,} parts of chunks, more than {MAX_ACCESSES:,}")

    def operand(self, rank: int, buffer: str, begin: int, end: int, *, packets: bool = False) -> Range:
        """The cells [begin, end) of a buffer, counted in parts of chunks."""
        first = self._layouts[rank][3 if packets else (INPUT, OUTPUT, SCRATCH).index(buffer)]
        return Range(rank, buffer, range(first + begin, first + end), packets)

    def offset(self, operand: Range) -> tuple[str, int]:
        """The buffer of an operand and where it begins in it, in parts; packets lie behind plain scratch."""
        layout = self._layouts[operand.rank]
        name = operand.buffer
        first = layout[(INPUT, OUTPUT, SCRATCH).index(name)]
        return name, operand.cells.start - first

    def whole(self, rank: int, buffer: str) -> range:
        return self.operand(rank, buffer, 0, self.plan.gpus[rank].chunks[buffer] * self.parts).cells

    def place(self, cell: int) -> Place:
        """Where a cell is; a cell of input and output is one of the output where the plan gathers."""
        rank = next(rank for rank, end in enumerate(self._ends) if cell < end)
        given, needed, scratch, packets = self._layouts[rank]
        if cell >= scratch:
            first, buffer = (packets if cell >= packets else scratch), SCRATCH
        else:
            first, buffer = (given, INPUT)
            if not (first <= cell < first + self.plan.gpus[rank].chunks[INPUT] * self.parts) or (
                self.plan.in_place and needed < given
            ):
                first, buffer = needed, OUTPUT
        return Place(rank, buffer, *divmod(cell - first, self.parts), cell >= packets)

    def works(self, rank: int, block: ThreadBlock, operation: Operation, iteration: int = -1) -> tuple[Work, ...]:
        """What an operation does. `iteration`: of the pipeline that it is in, -1 outside of one."""
        return tuple(self._works(rank, self.plan.gpus[rank], block, operation, iteration))

    def _works(self, rank: int, gpu: Gpu, block: ThreadBlock, operation: Operation, iteration: int) -> Iterator[Work]:
        kind = KINDS[operation.name]

        def covered(reference: Reference, packets: bool) -> list[Range]:
            if isinstance(reference, Grouped):
                buffer, _ = group = group_of(gpu, block, reference)
                owners = [(other, buffer) for other in group.ranks]
            elif isinstance(reference, Local):
                owners = [(rank, reference.buffer)]
            else:
                owners = [reached(gpu, block, operation.channel_type, reference)]
            start, out = reference.first * self.parts, []
            for owner, buffer in owners:
                scratch = buffer == SCRATCH
                turn = iteration % self.wrap if scratch and iteration >= 0 else iteration
                begin, end = self._share(operation, reference.size, turn)
                out.append(self.operand(owner, buffer, start + begin, start + end, packets=packets and scratch))
            return out

        def packets(rule: str, index: int) -> bool:
            return rule == "all" or (rule == "rest" and index > 0)

        port = operation.channel_type == PORT
        sources = [
            covered(reference, packets(kind.reads_packets, k) or (port and operation.name == "ppkt"))
            for k, reference in enumerate(operation.sources)
        ]
        targets = [covered(reference, packets(kind.writes_packets, k)) for k, reference in enumerate(operation.targets)]
        if kind.pairs:
            for channel, (source, target) in enumerate(zip(sources, targets, strict=False)):
                yield Work(tuple(source), tuple(target), channel)
        elif sources or targets:
            yield Work(tuple(chain.from_iterable(sources)), tuple(chain.from_iterable(targets)))

    def _share(self, operation: Operation, size: int, iteration: int) -> tuple[int, int]:
        """The parts, from the begin of its range, that a thread block handles of so many chunks: of its share of them
        the slice of an iteration."""
        number, group = operation.share
        begin, end = size * self.parts * number // group, size * self.parts * (number + 1) // group
        if iteration < 0:
            return begin, end
        width = -(-operation.chunks * self.parts // operation.iterations)
        return min(begin + iteration * width, end), min(begin + (iteration + 1) * width, end)


def shared_offsets(plan: Plan, rank: int) -> tuple[int, int]:
    """Chunks at which a rank's input and output begin in the memory that holds both."""
    chunks = plan.gpus[rank].chunks
    if not plan.in_place:
        return 0, chunks[INPUT]
    if plan.collective == "allgather":
        return rank * chunks[INPUT], 0
    return 0, rank * chunks[OUTPUT] if plan.collective == "reducescatter" else 0


def shared_chunks(plan: Plan, rank: int) -> int:
    """Chunks of the memory that holds a rank's input and output."""
    chunks = plan.gpus[rank].chunks
    given, needed = shared_offsets(plan, rank)
    return max(given + chunks[INPUT], needed + chunks[OUTPUT])
