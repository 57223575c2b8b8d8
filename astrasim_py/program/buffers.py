"""Where the cells of an algorithm lie: buffers and their aliases, as one row of numbers per rank.

Where input and output buffer alias (`Steps.in_place`), so do their cells: for all_reduce, reduce, broadcast,
all_to_all and custom collectives output k is input k; for all_gather and gather input k of rank r is output r·per + k;
for reduce_scatter and scatter output k of rank r is input r·per + k, with per = chunks / ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.program.steps import Steps
from astrasim_py.program.table import Unusable

#: Cells that are executed at most, and as many more for every step; beyond it the verdict is unknown.
MAX_CELLS = 2**21
CELLS_PER_STEP = 64

#: As plain integers: members of an enumeration are slow to look up and to compare, a million times over.
_INPUT, _OUTPUT, _SCRATCH = int(Buffer.INPUT), int(Buffer.OUTPUT), int(Buffer.SCRATCH)
_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Cells of a rank: [0, width) input (with the output, where they alias), then the output, then scratch.

    Attributes
    ----------
    stride : int
        Cells of one rank.
    per : int
        Chunks of a shard (of the whole buffer where there are no shards).
    output : int
        First cell of an output that does not alias.
    scratch : int
        First cell of the scratch buffer.
    """

    steps: Steps
    stride: int
    per: int
    output: int
    scratch: int

    def input_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's input, and how many there are."""
        steps, promise = self.steps, promise_of(self.steps.collective)
        many = (steps.collective == CUSTOM and steps.inputs) or promise.input_chunks(steps.ranks, steps.chunks)
        return rank * self.stride + (rank * self.per if promise.gathers and steps.in_place else 0), many

    def output_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's output, and how many there are."""
        steps, promise = self.steps, promise_of(self.steps.collective)
        many = (steps.collective == CUSTOM and steps.outputs) or promise.output_chunks(steps.ranks, steps.chunks)
        if not steps.in_place:
            return rank * self.stride + self.output, many
        return rank * self.stride + (rank * self.per if promise.scatters else 0), many

    def ends(self, rank: int) -> tuple[int, int]:
        """Where a rank's input and output end: buffers may be declared larger than what their collective needs."""
        first = rank * self.stride
        if self.steps.in_place:
            return first + self.scratch, first + self.scratch
        inputs, outputs = self.input_of(rank), self.output_of(rank)
        return (inputs[0] + max(inputs[1], self.steps.inputs), outputs[0] + max(outputs[1], self.steps.outputs))

    def cell_name(self, rank: int, cell: int) -> tuple[str, int]:
        """Buffer and chunk of a cell of a rank; an aliased cell by the name of the larger buffer."""
        if cell >= self.scratch:
            return "scratch", cell - self.scratch
        if cell >= self.output and not self.steps.in_place:
            return "output", cell - self.output
        if self.steps.in_place and promise_of(self.steps.collective).gathers:
            return "output", cell
        return "input", cell


def layout(steps: Steps) -> Layout:
    """Lay the buffers of a program out.

    Raises
    ------
    Unusable
        More cells than are executed.
    """
    total, per = steps.chunks, steps.chunks
    if promise_of(steps.collective).sharded:
        # Shards of unequal size are ill-formed, which is said elsewhere.
        per = max(total // steps.ranks, 1)
    width = max(total, steps.inputs, steps.outputs)
    promise = promise_of(steps.collective)
    if steps.in_place and (promise.gathers or promise.scatters):
        # A shard's buffer begins at its place in the other, and may be declared larger than a shard.
        width = max(width, (steps.ranks - 1) * per + (steps.inputs if promise.gathers else steps.outputs))
    end = 0
    for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
        for buffer, offset, count in zip(buffers, offsets, steps.count, strict=True):
            if buffer == _SCRATCH and offset + count > end:
                end = offset + count
    output = 0 if steps.in_place else width
    scratch = output + width
    stride = scratch + end
    if stride * steps.ranks > MAX_CELLS + CELLS_PER_STEP * len(steps):
        raise Unusable(f"its {stride * steps.ranks} cells are too many to execute", unknown=True)
    return Layout(steps, stride, per, output, scratch)


def cells(steps: Steps, where: Layout, buffers: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """First cell that each step reads or writes, after aliasing, over all ranks; -1 for none.

    Raises
    ------
    Unusable
        An access beyond a buffer.
    """
    ranks = range(steps.ranks)
    inputs, outputs = ([of(r)[0] for r in ranks] for of in (where.input_of, where.output_of))
    ends = [where.ends(r) for r in ranks]
    stride, scratch = where.stride, where.scratch
    out = []
    for g, (rank, buffer, offset, count) in enumerate(zip(steps.rank, buffers, offsets, steps.count, strict=True)):
        if buffer < 0 or count <= 0:
            out.append(-1)
            continue
        if buffer == _SCRATCH:
            out.append(rank * stride + scratch + offset)
            continue
        if buffer == _INPUT:
            base, end = inputs[rank], ends[rank][0]
        elif buffer == _OUTPUT:
            base, end = outputs[rank], ends[rank][1]
        else:
            raise Unusable(f"{steps.place(g)} names buffer {buffer}, which is none of 1, 2, 3")
        if base + offset + count > end:
            name = _NAMES[Buffer(buffer)]
            raise Unusable(f"{steps.place(g)} accesses {name} chunk {offset + count - 1} of {end - base}")
        out.append(base + offset)
    return out
