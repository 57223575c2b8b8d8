"""One class of ranks of a pipeline stage: the blocks of its trace and their order, and the passes that they are of."""

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from astrasim_py.training.assembly import COMPUTE, HOST, Block
from astrasim_py.training.buckets import Buckets, part_stream
from astrasim_py.training.lanes import Lane, Unit
from astrasim_py.training.layer_writer import PHASES, SUFFIX, LayerWriter
from astrasim_py.training.layers import Comm, boundary, gradient_comms, optimizer
from astrasim_py.training.runs import NodeOps
from astrasim_py.training.schedules import BACKWARD, FORWARD, WEIGHT, virtual_stage
from astrasim_py.training.segments import Segment
from astrasim_py.training.strategy import Layout

if TYPE_CHECKING:
    from astrasim_py.training.interference import Interference


class PassKey(NamedTuple):
    """What the nodes of a pass depend on: its kind and chunk, and whether it is the first or last of the chunk."""

    kind: int
    chunk: int
    first: bool = False
    last: bool = False


class Stage:
    """Blocks of one class of ranks, written when the program of its stage first needs them.

    `writer`: of its layers. `gather`: when ZeRO 1 and 2 gather parameters. `interference`: what overlap costs.
    """

    def __init__(self, writer: LayerWriter, gather: str = "end", interference: "Interference | None" = None) -> None:
        self.interference = interference
        self.layout = layout = writer.layout
        self.writer, self.stage, self.rank, self.chunks = writer, writer.stage, writer.rank, writer.chunks
        self.gather = gather if layout.zero in (1, 2) else ""
        self.ends = WEIGHT if writer.split else BACKWARD
        self.boundary = int(boundary(layout) if writer.prices is None else writer.prices.boundary(layout))
        self.comms = {unit: gradient_comms(layout, unit.kind) for units in self.chunks for unit in units}
        self.blocks: dict[tuple, Block] = {}

    def waits(self, unit: Unit) -> tuple[str, ...]:
        """Streams that the first node of a layer waits for besides."""
        return ()

    def give(self, lane: Lane, unit: Unit) -> None:
        """Write what follows a layer."""

    def copies(self, program: np.ndarray, together: frozenset[int]) -> list[tuple[Block, tuple[int, ...]]]:
        """Blocks of the trace of a program; `together`: rows of the program that run together with the next one."""
        layout, steps = self.layout, program.tolist()
        first = {chunk: place for place, (kind, _, chunk) in reversed([*enumerate(steps)]) if kind == FORWARD}
        last = {chunk: place for place, (kind, _, chunk) in enumerate(steps) if kind == self.ends}
        following: list = [None] * len(steps)  # the next block that reads parameters
        for place in range(len(steps) - 1, 0, -1):
            following[place - 1] = following[place] if steps[place][0] == WEIGHT else steps[place]
        copies: list[tuple[Block, tuple[int, ...]]] = [(self._start(), (steps[0][1],))]
        place = 0
        while place < len(steps):
            passes = steps[place : place + (2 if place in together else 1)]
            gathers = following[place] if layout.zero == 3 and passes[0][0] != WEIGHT else None
            keys = tuple(
                PassKey(kind, chunk, first[chunk] == index, last[chunk] == index)
                for index, (kind, _, chunk) in enumerate(passes, place)
            )
            way = (gathers[0], gathers[2]) if gathers else None
            if (way, keys) not in self.blocks:
                self.blocks[way, keys] = self.block(*keys, gathers=way)
            micro = [k for _, k, _ in passes] + ([gathers[1]] if gathers else [])
            copies.append((self.blocks[way, keys], tuple(micro)))
            place += len(passes)
        return [*copies, (self._end(), (-1,))]

    def block(self, *keys: PassKey, gathers: tuple[int, int] | None = None) -> Block:
        """Passes that run together, each in its lane, which take turns at every all-to-all."""
        block = Block()
        passes = [LanePass(self, Lane(block, number), key, gathers) for number, key in enumerate(keys)]
        while passes:
            passes = [lane_pass for lane_pass in passes if lane_pass.step()]
        return block

    def _start(self) -> Block:
        """Parameters that are gathered before the first forward pass."""
        block = Block()
        units = [unit for units in self.chunks for unit in units]
        if self.layout.zero == 3:
            self.ahead(block, units[0], FORWARD, lane=0)
        elif self.gather == "start":
            buckets = self.buckets(block)
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp")
            block.gives = {("parameters", *key): row for key, row in buckets.close().items()}
        return block

    def _end(self) -> Block:
        """Gradients that did not overlap, the optimizer, and parameters that are gathered after it."""
        block = Block()
        buckets = self.buckets(block)
        units = [unit for units in self.chunks for unit in units]
        if not self.layout.overlap.dp:
            for unit in reversed(units):
                buckets.add(unit, "W", "iteration", stream=COMPUTE, behind=(HOST,))
            buckets.close()
        op = optimizer(self.layout, self.stage)
        if op.there:
            segment = Segment.whole([op], "optimizer")
            self.writer.compute(block.compute, Unit("optimizer"), segment, behind=("dp", "tie", HOST))
        if self.gather == "end":
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp", behind=(COMPUTE,))
            buckets.close()
        fixed = 0 if self.writer.prices is None else self.writer.prices.fixed_ps(self.layout)
        if self.interference is not None:
            fixed += self.interference.iteration_ps(units)
        if fixed:
            block.wait("iteration.step", fixed, stream=COMPUTE, behind=("dp", "tie", HOST), phase=PHASES["O"])
        return block

    def buckets(self, block: Block, *, by_parts: bool = False) -> Buckets:
        """Buckets of a block. `by_parts`: gradients leave by parts, if the layout has that."""
        parts = self.writer.parts if by_parts and self.writer.by_weights else None
        return Buckets(block, self.comms, self.layout.bucket or 0, self.writer, parts)

    def ahead(self, block: Block, unit: Unit, kind: int, lane: int, **others: Any) -> None:
        """ZeRO 3: gather the parameters of the next layer when this one starts."""
        writer = self.writer
        for comm in self.comms[unit]:
            if comm.when == "microbatch" and comm.part == ("F" if kind == FORWARD else "I"):
                where: dict[str, Any] = {"stream": "dp", "marks": "gather", "behind": (COMPUTE,), "lane": lane}
                name = f"{unit.label}.{comm.name}"
                row = writer.collective(block, unit, comm, name, **(where | others))
                parts = writer.parts(comm.group) if writer.weights else 0
                for part in range(parts):
                    where = {"after": [row], "marks": part_stream(comm.group, part), "lane": lane}
                    where |= {"consumes": row, "consumes_tile": part, "consumes_tiles": parts}
                    block.mark(f"{name} part {part + 1}/{parts}", **where)


class LanePass:
    """One pass of a micro-batch through a chunk, in its lane.

    `gathers`: kind and chunk of the pass after it, whose first layer's parameters are gathered meanwhile.
    """

    def __init__(self, stage: Stage, lane: Lane, key: PassKey, gathers: tuple[int, int] | None = None) -> None:
        self.stage, self.lane, self.key = stage, lane, key
        self.units = stage.chunks[key.chunk][:: 1 if key.kind == FORWARD else -1]
        self.following = [(unit, key.kind, lane.number) for unit in self.units[1:]]
        if gathers:
            self.following.append((stage.chunks[gathers[1]][0 if gathers[0] == FORWARD else -1], gathers[0], 1))
        self.overlaps = bool(stage.layout.overlap.dp) or stage.layout.zero == 3
        self.buckets = stage.buckets(lane.block, by_parts=self.overlaps)
        self.place = -1  # of the layer that is being written
        self.runs: deque[NodeOps | Comm] = deque()
        self.begin, self.received = 0, lane.tail
        self.launches = 0  # picoseconds of those of the layer that have no node yet
        self.host: list[int] = []  # their node

    def step(self) -> bool:
        """Write on to the next all-to-all; whether there was one, or the pass is done."""
        if self.place < 0 and self.key.kind != WEIGHT:
            self._message(arrives=True)
        while True:
            if self.place >= 0:
                more = self.stage.writer.write(self.lane, self.units[self.place], self.runs)
                if self.launches:
                    self._launch(self.units[self.place])
                if more:
                    return True
                self._leave(self.units[self.place])
            self.place += 1
            if self.place == len(self.units):
                break
            self._enter(self.units[self.place])
        self.buckets.close()
        if self.key.kind != WEIGHT:
            self._message(arrives=False)
        return False

    def _enter(self, unit: Unit) -> None:
        stage, lane, kind = self.stage, self.lane, self.key.kind
        self.begin, self.received = len(lane.block.rows), lane.tail
        gathers = stage.layout.zero == 3 and kind != WEIGHT and not stage.writer.weights
        first = ("tp",) if lane.number else ("tp", HOST)  # the other lane has waited for launches of earlier passes
        lane.behind = (*first * (not self.place), *("gather",) * gathers, *stage.waits(unit))
        self.launches, self.host = stage.writer.host_ps(unit, kind), []
        self.runs = deque(stage.writer.runs[unit.kind, unit.wide, kind])

    def _launch(self, unit: Unit) -> None:
        """The host's launches of the layer that has begun, beside it."""
        name, columns = f"{unit.label}.{HOST}.{SUFFIX[self.key.kind]}", unit.columns | {"phase": self.key.kind}
        self.host = [self.lane.block.beside(self.begin, name, self.launches, stream=HOST, **columns)]
        self.launches = 0

    def _leave(self, unit: Unit) -> None:
        """What comes with the end of a layer: gathered parameters of the next one, and reduced gradients."""
        stage, lane, kind = self.stage, self.lane, self.key.kind
        lane.tail = [*lane.tail, *self.host]
        stage.give(lane, unit)
        if self.key.first and stage.gather == "start":
            needs = [comm for comm in stage.comms[unit] if comm.part == "F" and comm.when == "iteration"]
            first = self.begin, *self.host
            lane.block.needs += [(row, ("parameters", unit, comm.group)) for comm in needs for row in first]
        if stage.layout.zero == 3 and kind != WEIGHT and self.place < len(self.following):
            following, way, number = self.following[self.place]
            stage.ahead(lane.block, following, way, number, as_of=self.begin, after=self.received)
        self._slow_down(unit)
        if kind != stage.ends:
            return
        stream, after = ("dp", lane.tail) if self.overlaps else (COMPUTE, self.host)
        for when in ("microbatch",) + (("iteration",) if self.key.last and stage.layout.overlap.dp else ()):
            self.buckets.add(unit, "W", when, lane=lane, stream=stream, after=after)

    def _slow_down(self, unit: Unit) -> None:
        """What communication beside a layer costs it, when both are done."""
        lane, kind, interference = self.lane, self.key.kind, self.stage.interference
        if interference is not None and (time := interference.layer_ps(unit, kind)):
            name, columns = f"{unit.label}.interference.{SUFFIX[kind]}", unit.columns | {"phase": kind}
            lane.tail = [lane.wait(name, time, after=lane.tail, behind=("gather",), **columns)]

    def _message(self, *, arrives: bool) -> None:
        """The receive before a pass or the send after it, if the neighbour is another rank."""
        layout, lane, kind, rank = self.stage.layout, self.lane, self.key.kind, self.stage.rank
        here = virtual_stage(layout.schedule, layout.pp, self.stage.stage, self.key.chunk)
        step = 1 if kind == FORWARD else -1
        other = here - step if arrives else here + step
        stage = _holder(layout, other)
        if not 0 <= other < layout.pp * layout.vp or stage == self.stage.stage:
            return
        peer = rank + (stage - self.stage.stage) * int(layout.stage_ranks)
        to = here if arrives else other
        stride = layout.pp * layout.vp + layout.pp + 2
        suffix, size = f"{SUFFIX[kind]} s{to}", self.stage.boundary
        common = {"tag": (kind * stride + to, 2 * stride), "phase": kind, "lane": lane.number}
        if arrives:
            stream = f"receive {SUFFIX[kind]}"
            lane.tail = [lane.block.receive(f"receive {suffix}", size, rank, peer, stream=stream, **common)]
        else:
            common["stream"], after = None if layout.overlap.pp else COMPUTE, lane.tail
            prices = self.stage.writer.prices
            if prices is not None and (delay := prices.message_delay_ps(layout)):
                columns = {key: common[key] for key in ("stream", "phase", "lane")}
                after = [lane.block.wait(f"send {suffix}.delay", delay, after=after, **columns)]
            lane.block.send(f"send {suffix}", size, rank, peer, after=after, **common)


def _holder(layout: Layout[int], virtual: int) -> int:
    """Pipeline rank of a virtual stage."""
    if layout.schedule == "zbv" and virtual >= layout.pp:
        return 2 * layout.pp - 1 - virtual
    return virtual % layout.pp
