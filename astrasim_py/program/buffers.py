"""The layout of all buffers: one number for every chunk of every rank, a cell; buffers may alias.

In place, input and output share cells: for all_reduce, reduce, broadcast, all_to_all and custom collectives output k
is input k; for all_gather and gather input k of rank r is output r·per + k; for reduce_scatter and scatter output k of
rank r is input r·per + k, with per = chunks / ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.program.steps import Steps
from astrasim_py.program.table import Unusable

#: Cells that are executed at most, and as many more for every step; beyond it the verdict is unknown.
MAX_CELLS = 2**21
CELLS_PER_STEP = 64

#: Plain integers: members of an enumeration are slow to compare, a million times over.
_INPUT, _OUTPUT, _SCRATCH = int(Buffer.INPUT), int(Buffer.OUTPUT), int(Buffer.SCRATCH)
_NAMES = {_INPUT: "input", _OUTPUT: "output", _SCRATCH: "scratch"}


class Layout:
    """Cells of a rank: [0, width) input (with the output, where they alias), then the output, then scratch. `stride`:
    cells of one rank. `per`: chunks of a shard. `reads`, `writes`: first cell of each step, over all ranks; -1 for
    none. Raises Unusable: more cells than are executed, or an access beyond a buffer."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.promise = steps, promise_of(steps.collective)
        self.per = self.promise.shard(steps.ranks, steps.chunks)
        width = max(steps.chunks, steps.inputs, steps.outputs)
        if steps.in_place and (self.promise.gathers or self.promise.scatters):
            # A shard's buffer begins at its place in the other, and may be declared larger than a shard.
            declared = steps.inputs if self.promise.gathers else steps.outputs
            width = max(width, (steps.ranks - 1) * self.per + declared)
        end = 0
        for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
            for buffer, offset, count in zip(buffers, offsets, steps.count, strict=True):
                if buffer == _SCRATCH and offset + count > end:
                    end = offset + count
        self.output = 0 if steps.in_place else width
        self.scratch = self.output + width
        self.stride = self.scratch + end
        if self.stride * steps.ranks > MAX_CELLS + CELLS_PER_STEP * len(steps):
            raise Unusable(f"its {self.stride * steps.ranks} cells are too many to execute", unknown=True)
        self.reads = self._cells(steps.read_buf, steps.read_off)
        self.writes = self._cells(steps.write_buf, steps.write_off)

    def input_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's input, and how many there are."""
        steps, promise = self.steps, self.promise
        many = (steps.collective == CUSTOM and steps.inputs) or promise.input_chunks(steps.ranks, steps.chunks)
        return rank * self.stride + rank * self.per * (promise.gathers and steps.in_place), many

    def output_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's output, and how many there are."""
        steps, promise = self.steps, self.promise
        many = (steps.collective == CUSTOM and steps.outputs) or promise.output_chunks(steps.ranks, steps.chunks)
        return rank * self.stride + (rank * self.per * promise.scatters if steps.in_place else self.output), many

    def cell_name(self, rank: int, cell: int) -> tuple[str, int]:
        """Buffer and chunk of a cell of a rank; an aliased cell by the name of the larger buffer."""
        cell -= rank * self.stride
        if cell >= self.scratch:
            return "scratch", cell - self.scratch
        if cell >= self.output and not self.steps.in_place:
            return "output", cell - self.output
        return "output" if self.steps.in_place and self.promise.gathers else "input", cell

    def _bounds(self, rank: int) -> dict[int, tuple[int, int]]:
        """First cell of a rank's buffers and the cell after the last one that may be accessed."""
        steps, first = self.steps, rank * self.stride
        (inputs, many), (outputs, more) = self.input_of(rank), self.output_of(rank)
        ends = inputs + max(many, steps.inputs), outputs + max(more, steps.outputs)
        if steps.in_place:
            ends = (first + self.scratch,) * 2
        return {_INPUT: (inputs, ends[0]), _OUTPUT: (outputs, ends[1]), _SCRATCH: (first + self.scratch, 2**62)}

    def _cells(self, buffers: Sequence[int], offsets: Sequence[int]) -> list[int]:
        steps, out = self.steps, []
        bounds = [self._bounds(rank) for rank in range(steps.ranks)]
        for g, (rank, buffer, offset, count) in enumerate(zip(steps.rank, buffers, offsets, steps.count, strict=True)):
            if buffer < 0 or count <= 0:
                out.append(-1)
                continue
            if buffer not in _NAMES:
                raise Unusable(f"{steps.place(g)} names buffer {buffer}, which is none of 1, 2, 3")
            base, end = bounds[rank][buffer]
            if base + offset + count > end:
                chunk, many = offset + count - 1, end - base
                raise Unusable(f"{steps.place(g)} accesses {_NAMES[buffer]} chunk {chunk} of {many}")
            out.append(base + offset)
        return out
