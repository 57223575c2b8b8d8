"""One class of ranks of a pipeline stage: its layers in a trace, and their order."""

from collections import deque
from collections.abc import Iterator

import numpy as np

from astrasim_py.training.assembly import COMPUTE, Block
from astrasim_py.training.buckets import Buckets, Weights, part_stream
from astrasim_py.training.lanes import Lane, Unit
from astrasim_py.training.layers import (
    Comm,
    Item,
    Op,
    backward,
    boundary,
    embedding,
    forward,
    gradient_comms,
    logits,
    optimizer,
)
from astrasim_py.training.routing import Routes
from astrasim_py.training.runs import Run, runs_of
from astrasim_py.training.schedules import BACKWARD, FORWARD, SPLIT_BACKWARD, WEIGHT, virtual_stage
from astrasim_py.training.segments import Segment, cut_into_segments
from astrasim_py.training.strategy import Layout
from astrasim_py.workload.tiles import tile_times

#: Numbers in the column `phase`, by part of an operation.
PHASES = {"F": 0, "I": 1, "W": 2, "O": 3, "R": 4}
SUFFIX = ("fwd", "bwd", "wgrad", "step", "rec")
#: Pieces in which a computation and the collectives beside it overlap.
PIECES = 4


class Stage:
    """Blocks of one class of ranks, written when the program of its stage first needs them."""

    def __init__(self, layout: Layout, prices, stage: int, inside: int, gather: str, routes: Routes | None) -> None:
        self.layout, self.prices, self.stage, self.inside, self.routes = layout, prices, stage, inside, routes
        self.gather = gather if layout.zero in (1, 2) else ""
        self.rank = stage * layout.stage_ranks + inside
        self.split = layout.schedule in SPLIT_BACKWARD
        self.ends = WEIGHT if self.split else BACKWARD
        self.depth = layout.pp * layout.vp
        self.boundary = int(boundary(layout))
        self.sizes = {role: group.members.shape[1] for role, group in layout.groups().items()}
        overlap = layout.overlap
        self.cut = frozenset(role for role in ("tp", "ep") if overlap.by_parts(role) and role in self.sizes)
        self.by_weights = overlap.by_parts("dp")
        self.chunks = [self._units(chunk) for chunk in range(layout.vp)]
        self.comms = {unit: gradient_comms(layout, unit.kind) for units in self.chunks for unit in units}
        kinds = {(unit.kind, unit.wide): unit for unit in self.comms}
        self.runs = {
            (*kind, step): self._runs(unit, step)
            for kind, unit in kinds.items()
            for step in (FORWARD, BACKWARD, WEIGHT)
        }
        by_parts = kinds if self.by_weights and layout.zero == 3 else {}
        self.weights = {kind: Weights(self._items(unit), self.parts) for kind, unit in by_parts.items()}
        self.blocks: dict[tuple, Block] = {}
        self.priced: dict[tuple[Op, ...], tuple] = {}

    def _units(self, chunk: int) -> list[Unit]:
        """Layers of a chunk, in forward order."""
        model = self.layout.model
        virtual = virtual_stage(self.layout.schedule, self.layout.pp, self.stage, chunk)
        dense = model.dense_layers if model.experts else model.layers
        layers = self.layout.chunk_layers(self.stage, chunk)
        wide = [bool(model.window) and model.reads_all(layer) for layer in range(model.layers + model.mtp)]
        units = [Unit("dense" if layer < dense else "moe", layer, wide[layer]) for layer in layers]
        if virtual == 0:
            units = [Unit("embedding"), *units]
        if virtual == self.depth - 1:
            units += [Unit("mtp", layer, wide[layer]) for layer in range(model.layers, len(wide))] + [Unit("logits")]
        return units

    def _items(self, unit: Unit, step: int = FORWARD) -> list[Item]:
        """What a pass through a unit computes and sends."""
        layout = self.layout.reading_all if unit.wide else self.layout
        if unit.kind in ("embedding", "logits"):
            everything = (embedding if unit.kind == "embedding" else logits)(layout)
            items = [item for item in everything if (item.part == "F") == (step == FORWARD)]
        else:
            items = list((forward if step == FORWARD else backward)(layout, unit.kind))
        if step != FORWARD and self.split:
            items = [item for item in items if (item.part == "W") == (step == WEIGHT)]
        return items

    def _runs(self, unit: Unit, step: int) -> list[Run | Comm]:
        """Nodes of a pass through a unit."""
        nodes, beside, items = self.layout.nodes, self.layout.overlap.ep is True, self._items(unit, step)
        apart = beside or self.routes is not None
        runs = runs_of(items, nodes, apart=apart, cut=self.cut)
        wholes = runs_of(items, nodes, apart=apart)
        cut_into_segments(
            runs, wholes, self.cut, lambda run: self.by_weights and not run.ring and not self._in_pieces(run)
        )
        exchanges = [place for place, run in enumerate(runs) if isinstance(run, Comm) or run.uses(self.cut & {"ep"})]
        if (beside or "ep" in self.cut) and step == FORWARD and exchanges:
            shared = [run for run in runs if _shared(run)]
            rest = [run for run in runs if run not in shared]
            runs = rest[: exchanges[0] + 1] + shared + rest[exchanges[0] + 1 :]
        return runs

    # -- the program -----------------------------------------------------------------------------------------

    def copies(self, program: np.ndarray, together: frozenset[int]) -> list[tuple[Block, tuple[int, ...]]]:
        """Blocks of the trace of a program; `together`: rows of the program that run together with the next one."""
        layout, steps = self.layout, program.tolist()
        first = {chunk: place for place, (kind, _, chunk) in reversed([*enumerate(steps)]) if kind == FORWARD}
        last = {chunk: place for place, (kind, _, chunk) in enumerate(steps) if kind == self.ends}
        ahead: list = [None] * len(steps)  # the next block that reads parameters
        for place in range(len(steps) - 1, 0, -1):
            ahead[place - 1] = ahead[place] if steps[place][0] == WEIGHT else steps[place]
        copies = [(self._start(), (steps[0][1],))]
        place = 0
        while place < len(steps):
            chosen = steps[place : place + (2 if place in together else 1)]
            gathers = ahead[place] if layout.zero == 3 and chosen[0][0] != WEIGHT else None
            key = (
                (gathers and (gathers[0], gathers[2])),
                *(
                    (kind, chunk, first[chunk] == at, last[chunk] == at)
                    for at, (kind, _, chunk) in enumerate(chosen, place)
                ),
            )
            if key not in self.blocks:
                self.blocks[key] = self._block(*key)
            micro = [k for _, k, _ in chosen] + ([gathers[1]] if gathers else [])
            copies.append((self.blocks[key], tuple(micro)))
            place += len(chosen)
        return [*copies, (self._end(), (-1,))]

    def _start(self) -> Block:
        """Parameters that are gathered before the first forward pass."""
        block = Block()
        units = [unit for units in self.chunks for unit in units]
        if self.layout.zero == 3:
            self._ahead(block, units[0], FORWARD, lane=0)
        elif self.gather == "start":
            buckets = self._buckets(block)
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp")
            block.gives = {("parameters", *key): row for key, row in buckets.close().items()}
        return block

    def _end(self) -> Block:
        """Gradients that did not overlap, the optimizer, and parameters that are gathered after it."""
        block = Block()
        buckets = self._buckets(block)
        units = [unit for units in self.chunks for unit in units]
        if not self.layout.overlap.dp:
            for unit in reversed(units):
                buckets.add(unit, "W", "iteration", stream=COMPUTE)
            buckets.close()
        op = optimizer(self.layout, self.stage)
        if op.there:
            segment = Segment.whole([op], "optimizer")
            self._compute(block.compute, Unit("optimizer"), segment, behind=("dp", "tie"))
        if self.gather == "end":
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp", behind=(COMPUTE,))
            buckets.close()
        return block

    def _buckets(self, block: Block, *, by_parts: bool = False) -> Buckets:
        parts = self.parts if by_parts and self.by_weights else None
        return Buckets(block, self.comms, self.layout.bucket or 0, self.collective, parts)

    def parts(self, role: str) -> int:
        """Parts of a collective of a role's groups."""
        return self.layout.overlap.parts_of(self.sizes[role]) if role in self.sizes else 1

    def _block(self, gathers: tuple[int, int] | None, *passes: tuple) -> Block:
        """Passes that run together, each in its lane, which take turns at every all-to-all."""
        block = Block()
        lanes = [self._pass(Lane(block, number), *one, gathers) for number, one in enumerate(passes)]
        while lanes:
            lanes = [lane for lane in lanes if next(lane, "done") != "done"]
        return block

    def _pass(self, lane: Lane, kind: int, chunk: int, first: bool, last: bool, gathers) -> Iterator[None]:
        """One pass through a chunk."""
        block, zero3 = lane.block, self.layout.zero == 3
        units = self.chunks[chunk][:: 1 if kind == FORWARD else -1]
        following = [(unit, kind, lane.number) for unit in units[1:]]
        if gathers:
            following.append((self.chunks[gathers[1]][0 if gathers[0] == FORWARD else -1], gathers[0], 1))
        overlaps = self.layout.overlap.dp or zero3
        whens = ("microbatch",) + (("iteration",) if last and self.layout.overlap.dp else ())
        buckets = self._buckets(block, by_parts=overlaps)
        if kind != WEIGHT:
            self._message(lane, kind, chunk, arrives=True)
        for place, unit in enumerate(units):
            begin, received = len(block.rows), lane.tail
            whole = zero3 and kind != WEIGHT and not self.weights
            lane.behind = (*("tp",) * (not place), *("gather",) * whole)
            yield from self.visit(lane, unit, kind)
            if first and self.gather == "start":
                needs = [comm for comm in self.comms[unit] if comm.part == "F" and comm.when == "iteration"]
                block.needs += [(begin, ("parameters", unit, comm.group)) for comm in needs]
            if zero3 and kind != WEIGHT and place < len(following):
                self._ahead(block, *following[place], as_of=begin, after=received)
            if kind == self.ends:
                waits = {"stream": "dp", "after": lane.tail} if overlaps else {"stream": COMPUTE}
                for when in whens:
                    buckets.add(unit, "W", when, lane=lane, **waits)
        buckets.close()
        if kind != WEIGHT:
            self._message(lane, kind, chunk, arrives=False)

    def _message(self, lane: Lane, kind: int, chunk: int, *, arrives: bool) -> None:
        """The receive before a pass or the send after it, if the neighbour is another rank."""
        layout = self.layout
        mine = virtual_stage(layout.schedule, layout.pp, self.stage, chunk)
        step = 1 if kind == FORWARD else -1
        other = mine - step if arrives else mine + step
        stage = _holder(layout, other)
        if not 0 <= other < self.depth or stage == self.stage:
            return
        peer = self.rank + (stage - self.stage) * layout.stage_ranks
        to = mine if arrives else other
        stride = layout.pp * layout.vp + layout.pp + 2
        tag = (kind * stride + to, 2 * stride)
        suffix = f"{SUFFIX[kind]} s{to}"
        common = {"tag": tag, "phase": kind, "lane": lane.number}
        if arrives:
            stream = f"receive {SUFFIX[kind]}"
            row = lane.block.receive(f"receive {suffix}", self.boundary, self.rank, peer, stream=stream, **common)
            lane.tail = [row]
        else:
            common["stream"] = None if layout.overlap.pp else COMPUTE
            lane.block.send(f"send {suffix}", self.boundary, self.rank, peer, after=lane.tail, **common)

    def _ahead(self, block: Block, unit: Unit, kind: int, lane: int, **others) -> None:
        """ZeRO 3: gather the parameters of the next layer when this one starts."""
        for comm in self.comms[unit]:
            if comm.when == "microbatch" and comm.part == ("F" if kind == FORWARD else "I"):
                where = {"stream": "dp", "marks": "gather", "behind": (COMPUTE,), "lane": lane}
                name = f"{unit.label}.{comm.name}"
                row = self.collective(block.collective, unit, comm, name, **(where | others))
                for part in range(self.parts(comm.group) if self.weights else 0):
                    tile = {"consumes": row, "consumes_tile": part, "consumes_tiles": self.parts(comm.group)}
                    where = {"after": [row], "marks": part_stream(comm.group, part), "lane": lane}
                    block.mark(f"{name} part {part + 1}/{self.parts(comm.group)}", **where, **tile)

    # -- layers ----------------------------------------------------------------------------------------------

    def visit(self, lane: Lane, unit: Unit, kind: int) -> Iterator[None]:
        """One pass through a layer; yields when an all-to-all is on its way."""
        runs = deque(self.runs[unit.kind, unit.wide, kind])
        while runs:
            run = runs.popleft()
            before = lane.tail
            if isinstance(run, Comm):
                self._exchange(lane, unit, run)
            else:
                self._run(lane, unit, run)
            if isinstance(run, Comm) and self.layout.overlap.ep:
                sent, lane.tail = lane.tail, before
            elif not isinstance(run, Comm) and run.uses(self.cut & {"ep"}):
                sent, lane.tail = lane.tail[-1:], lane.tail[:-1]
            else:
                continue
            before = lane.tail
            while runs and _shared(runs[0]):
                self._run(lane, unit, runs.popleft())
            lane.tail = sent if isinstance(run, Comm) and lane.tail == before else [*lane.tail, *sent]
            yield

    def _run(self, lane: Lane, unit: Unit, run: Run) -> None:
        """The computation of a run, and its collectives.

        Those that are used in tiles run beside computation; that which brings the input of the run comes before those
        that only weight gradients wait for.
        """
        if self._in_pieces(run):
            self._pieces(lane, unit, run)
            return
        tail, brought, later = lane.tail, [], []
        for comm in run.before:
            if comm.group in self.cut:
                row = self.collective(lane.collective, unit, comm, stream=comm.group, after=tail)
                (later if comm.part == "W" else brought).append(row)
            else:
                tail = [self.collective(lane.collective, unit, comm)]
        lane.tail = tail
        if run.ring:
            self._ring(lane, unit, run)
        sent = []
        for segment in run.segments if not run.ring else ():
            if segment.consumes or segment.produces:
                self._tiles(lane, unit, segment, brought, (run.after if segment.produces else run.before)[0].group)
            else:
                after = [*lane.tail, *brought, *(later if segment.beside else ())]
                row = self._compute(lane.compute, unit, segment, after=after)
                lane.made(unit, segment.ops, row)
            brought = []
            if segment.produces:
                tiles = lane.tail
                for comm in run.after:
                    sent.append(self.collective(lane.collective, unit, comm, stream=comm.group, after=tiles))
                for tile in tiles:
                    lane.block.rows[tile]["produces"] = sent[0]
                lane.tail = tiles
        lane.tail = [*lane.tail, *sent]
        for comm in run.after if not sent else ():
            self.collective(lane.collective, unit, comm)

    def _in_pieces(self, run: Run) -> bool:
        """Whether a run is cut into pieces together with its collectives."""
        return self.layout.overlap.tp is True and bool(run.ops) and not run.ring and run.uses({"tp"})

    def _compute(self, add, unit: Unit, segment: Segment, piece: tuple[int, int] = (0, 1), **others) -> int:
        """A node of a segment, or one of several equal pieces of it."""
        values = self._priced(segment, unit, piece)
        numbered = f".{piece[0]}" if piece[1] > 1 else ""
        return self._node(add, unit, segment, numbered, values, **others)

    def _tiles(self, lane: Lane, unit: Unit, segment: Segment, brought: list[int], role: str) -> None:
        """The tiles of a segment, which run in any order after the node before them."""
        flops, nbytes, time = self._priced(segment, unit)
        overlap, parts, block, tail = self.layout.overlap, self.parts(role), lane.block, [*lane.tail, *brought]
        times = [None] * parts
        if time is not None:
            times = tile_times(time, parts, overlap.tile_overhead or 0, overlap.comm_slows_compute or 1)
        first, behind, rows = len(block.rows), (COMPUTE, *lane.first()), []
        where = {"stream": None, "marks": COMPUTE, "behind": behind, "as_of": first, "after": tail, "lane": lane.number}
        for tile in range(parts):
            uses = {"tile_order": 1}
            if segment.consumes:
                uses |= {"consumes": brought[0], "consumes_tile": tile, "consumes_tiles": parts}
            if segment.produces:
                uses |= {"produces_tile": tile, "produces_tiles": parts}
            values = _part(flops, tile, parts), _part(nbytes, tile, parts), times[tile]
            name = f" tile {tile + 1}/{parts}"
            rows.append(self._node(block.compute, unit, segment, name, values, **where, **uses))
        lane.tail = rows

    def _node(self, add, unit: Unit, segment: Segment, number: str, values, behind=(), **others) -> int:
        flops, nbytes, time = values
        phases = {op.part for op in segment.ops}
        phase = PHASES["I" if phases > {"W"} else phases.pop()]
        label = f"{unit.label}.{segment.name}" if unit.layer is not None else segment.name
        behind = (*behind, *self._needs(unit, segment))
        columns = unit.columns | {"phase": phase, "behind": behind} | others
        return add(f"{label}.{SUFFIX[phase]}{number}", flops=flops, nbytes=nbytes, time_ps=time, **columns)

    def _needs(self, unit: Unit, segment: Segment) -> tuple[str, ...]:
        """Streams of the parts of gathered parameters that a segment waits for."""
        weights = self.weights.get((unit.kind, unit.wide))
        return weights.of(segment.ops) if weights else ()

    def _priced(self, segment: Segment, unit: Unit, piece: tuple[int, int] = (0, 1)) -> tuple:
        """FLOPs, bytes and picoseconds of a piece of a segment, as `price` gives them; of experts those of its rows."""
        found = (0, 0, 0)
        for span in segment.spans:
            for ops, sign in ((span.ops, 1), (span.before, -1)):
                values = self.price(ops, unit) if ops else (0, 0, 0)
                values = [value if value is None else _part(value, *piece) for value in values]
                if self.routes is not None and span.experts:
                    values = [value and self.routes.share(value, unit.layer, self.expert) for value in values]
                both = zip(found, values, strict=True)
                found = tuple(None if a is None or b is None else a + sign * b for a, b in both)
        return found

    def price(self, ops: tuple[Op, ...], unit: Unit) -> tuple:
        """FLOPs, bytes and picoseconds of a node, ints or arrays by micro-batch; None for the last without prices."""
        if ops not in self.priced:
            time = None if self.prices is None else self.prices.op_ps(*ops)
            self.priced[ops] = sum(int(op.flops) for op in ops), sum(int(op.nbytes) for op in ops), time
        return self.priced[ops]

    def collective(self, add, unit: Unit, comm: Comm, name: str = "", piece: tuple[int, int] = (0, 1), **others) -> int:
        """A collective, or one of several equal pieces of it."""
        phase = PHASES[comm.part]
        label = f"{unit.label}.{comm.block}" if unit.layer is not None else comm.block
        name = f"{name or f'{label}.{SUFFIX[phase]}'}.{comm.collective}" + (f".{piece[0]}" if piece[1] > 1 else "")
        columns = unit.columns | {"phase": phase}
        size = int(comm.size)
        if self.routes is not None and comm.group == "etp":  # rows of the experts of this rank
            size = self.routes.share(size, unit.layer, self.expert)
        size = _part(size, *piece)
        return add(name, comm.collective, size, comm.group, self.sizes[comm.group], **columns, **others)

    def _pieces(self, lane: Lane, unit: Unit, run: Run) -> None:
        """A computation in pieces, each of which runs beside the collectives of the one before it."""
        block, tail = lane.block, lane.tail
        gathers = [
            [
                self.collective(lane.collective, unit, comm, piece=(i, PIECES), stream="tp", after=tail)
                for comm in run.before
            ]
            for i in range(PIECES)
        ]
        for i in range(PIECES):
            after = [*tail, *gathers[i]]
            row = self._compute(lane.compute, unit, run.segments[0], piece=(i, PIECES), after=after)
            for comm in run.after:
                self.collective(lane.collective, unit, comm, piece=(i, PIECES), stream="tp", after=[row])
        lane.made(unit, run.ops, row)
        lane.tail = list(dict.fromkeys([row, len(block.rows) - 1]))

    def _ring(self, lane: Lane, unit: Unit, run: Run) -> None:
        """Attention to the keys and values of one rank after the other, which pass around the ring meanwhile."""
        layout, block, comm = self.layout, lane.block, run.ring
        own = self.inside // layout.tp % layout.cp
        arrived = lane.tail
        self._compute(lane.compute, unit, run.segments[0], piece=(0, layout.cp))
        for step in range(1, layout.cp):
            ahead, behind = ((own + one) % layout.cp - own for one in (1, -1))
            common = {
                "tag": self._tag(unit, comm, step),
                "lane": lane.number,
                "phase": PHASES[comm.part],
            } | unit.columns
            name, size = f"{unit.label}.{comm.name}.{SUFFIX[PHASES[comm.part]]}.{step}", int(comm.size)
            to, source = self.rank + ahead * layout.tp, self.rank + behind * layout.tp
            block.send(f"send {name}", size, self.rank, to, after=arrived, **common)
            row = block.receive(f"receive {name}", size, self.rank, source, stream="receive kv", **common)
            arrived = [row]
            after = [*lane.tail, row]
            self._compute(lane.compute, unit, run.segments[0], piece=(step, layout.cp), after=after)

    def _exchange(self, lane: Lane, unit: Unit, comm: Comm) -> None:
        """An all-to-all of experts: a collective, or messages where its blocks are unequal."""
        stream = None if self.layout.overlap.ep else COMPUTE
        if self.routes is None:
            self.collective(lane.collective, unit, comm, stream=stream)
            return
        block, layout, behind = lane.block, self.layout, lane.first()
        outward = (comm.name == "dispatch") == (comm.part in ("F", "R"))
        table = self.routes.rows(unit.layer)
        row_bytes = int(comm.size) // self.routes.sent
        common = {"tag": self._tag(unit, comm, layout.cp + (not outward)), "lane": lane.number}
        common |= unit.columns | {"phase": PHASES[comm.part]}
        name = f"{unit.label}.{comm.name}.{SUFFIX[PHASES[comm.part]]}"
        me, rows, tail = self.expert, [], lane.tail
        for step in range(1, layout.ep):
            to, source = (me + step) % layout.ep, (me - step) % layout.ep
            out = table[:, me, to] if outward else table[:, to, me]
            into = table[:, source, me] if outward else table[:, me, source]
            peers = [self.rank + (one - me) * layout.etp for one in (to, source)]
            rows.append(
                block.send(f"send {name}", out * row_bytes, self.rank, peers[0], after=tail, behind=behind, **common)
            )
            stream = "receive rows"
            rows.append(
                block.receive(f"receive {name}", into * row_bytes, self.rank, peers[1], stream=stream, **common)
            )
        lane.tail = rows

    @property
    def expert(self) -> int:
        """Place of the rank in its expert group."""
        return self.inside // self.layout.etp % self.layout.ep

    def _tag(self, unit: Unit, comm: Comm, step: int) -> tuple[int, int]:
        """Tag of a message inside a stage: one for each layer, pass and step, and what each micro-batch adds."""
        steps = self.layout.cp + 2
        layers = self.layout.model.layers + self.layout.model.mtp
        return (unit.layer * 3 + "FIR".index(comm.part)) * steps + step, layers * 3 * steps


def _holder(layout: Layout, virtual: int) -> int:
    """Pipeline rank of a virtual stage."""
    if layout.schedule == "zbv" and virtual >= layout.pp:
        return 2 * layout.pp - 1 - virtual
    return virtual % layout.pp


def _part(value, index: int, pieces: int):
    """One of so many parts of a number or array, as equal as can be."""
    return value * (index + 1) // pieces - value * index // pieces


def _shared(run: Run | Comm) -> bool:
    """Whether a run computes the shared expert."""
    return isinstance(run, Run) and bool(run.ops) and all(op.block == "shared" for op in run.ops)
