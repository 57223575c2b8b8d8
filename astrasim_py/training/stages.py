"""One class of ranks of a pipeline stage: its layers in a trace, and their order."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from astrasim_py.training.assembly import COMPUTE, Block
from astrasim_py.training.layers import (
    Comm,
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
from astrasim_py.training.strategy import Layout

#: Numbers in the column `phase`, by part of an operation.
PHASES = {"F": 0, "I": 1, "W": 2, "O": 3, "R": 4}
SUFFIX = ("fwd", "bwd", "wgrad", "step", "rec")
#: Pieces in which a computation and the collectives beside it overlap.
PIECES = 4


class Unit(NamedTuple):
    """A layer, the embedding or the logits."""

    kind: str
    layer: int | None = None
    wide: bool = False  # attention without the model's window

    @property
    def label(self) -> str:
        return self.kind if self.layer is None else f"L{self.layer}"

    @property
    def columns(self) -> dict[str, int]:
        return {} if self.layer is None else {"layer": self.layer}


@dataclass(slots=True)
class Lane:
    """The chain of one micro-batch in a block: each node waits for the one before it in the chain."""

    block: Block
    number: int
    tail: list[int] = field(default_factory=list)
    extras: dict = field(default_factory=dict)  # of the next node

    def compute(self, *args, **others) -> int:
        """Add a computation."""
        return self._then(self.block.compute, *args, **others)

    def collective(self, *args, **others) -> int:
        """Add a collective that the rank waits for, unless its stream is another."""
        return self._then(self.block.collective, *args, **({"stream": COMPUTE} | others))

    def _then(self, add, *args, after=None, **others) -> int:
        row = add(*args, after=self.tail if after is None else after, lane=self.number, **(others | self.extras))
        self.extras, self.tail = {}, [row]
        return row


class _Buckets:
    """Collectives on parameters or gradients, joined up to the layout's bucket size."""

    def __init__(self, stage: "Stage", block: Block) -> None:
        self.stage, self.block = stage, block
        self.open: dict[tuple, list[tuple[Unit, Comm]]] = {}
        self.others: dict[tuple, dict] = {}
        self.rows: dict[tuple[Unit, str], int] = {}

    def add(self, unit: Unit, part: str, when: str, *, stream: str, **others) -> None:
        """Add those of a layer; the last ones of a bucket decide when it is sent."""
        for comm in self.stage.comms[unit]:
            if (comm.part, comm.when) != (part, when):
                continue
            key = comm.group, comm.collective
            self.open.setdefault(key, []).append((unit, comm))
            self.others[key] = others | {"stream": "tie" if key[0] == "tie" and stream == "dp" else stream}
            if sum(one.size for _, one in self.open[key]) >= (self.stage.layout.bucket or 0):
                self._send(key)

    def close(self) -> dict[tuple[Unit, str], int]:
        """Send the rest; rows by layer and group."""
        for key in list(self.open):
            self._send(key)
        return self.rows

    def _send(self, key: tuple) -> None:
        found = self.open.pop(key)
        comm = replace(found[0][1], size=sum(one.size for _, one in found))
        label = "-".join(dict.fromkeys((found[0][0].label, found[-1][0].label)))
        row = self.stage.collective(
            self.block.collective, found[0][0], comm, f"{label}.{comm.name}", **self.others[key]
        )
        self.rows |= {(unit, key[0]): row for unit, _ in found}


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
        self.chunks = [self._units(chunk) for chunk in range(layout.vp)]
        self.comms = {unit: gradient_comms(layout, unit.kind) for units in self.chunks for unit in units}
        self.runs = {
            (*kind, step): self._runs(*kind, step)
            for kind in dict.fromkeys((unit.kind, unit.wide) for unit in self.comms)
            for step in (FORWARD, BACKWARD, WEIGHT)
        }
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

    def _runs(self, kind: str, wide: bool, step: int) -> list[Run | Comm]:
        """Nodes of a pass through a layer."""
        layout = self.layout.reading_all if wide else self.layout
        if kind in ("embedding", "logits"):
            everything = (embedding if kind == "embedding" else logits)(layout)
            items = [item for item in everything if (item.part == "F") == (step == FORWARD)]
        else:
            items = list((forward if step == FORWARD else backward)(layout, kind))
        if step != FORWARD and self.split:
            items = [item for item in items if (item.part == "W") == (step == WEIGHT)]
        apart = layout.overlap.ep or self.routes is not None
        runs = runs_of(items, layout.nodes, apart=apart)
        dispatch = [place for place, run in enumerate(runs) if isinstance(run, Comm)][:1]
        if layout.overlap.ep and step == FORWARD and dispatch:
            shared = [run for run in runs if _shared(run)]
            rest = [run for run in runs if run not in shared]
            runs = rest[: dispatch[0] + 1] + shared + rest[dispatch[0] + 1 :]
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
            buckets = _Buckets(self, block)
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp")
            block.gives = {("parameters", *key): row for key, row in buckets.close().items()}
        return block

    def _end(self) -> Block:
        """Gradients that did not overlap, the optimizer, and parameters that are gathered after it."""
        block = Block()
        buckets = _Buckets(self, block)
        units = [unit for units in self.chunks for unit in units]
        if not self.layout.overlap.dp:
            for unit in reversed(units):
                buckets.add(unit, "W", "iteration", stream=COMPUTE)
            buckets.close()
        op = optimizer(self.layout, self.stage)
        if op.there:
            self._compute(block.compute, Unit("optimizer"), [op], "optimizer", behind=("dp", "tie"))
        if self.gather == "end":
            for unit in units:
                buckets.add(unit, "F", "iteration", stream="dp", behind=(COMPUTE,))
            buckets.close()
        return block

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
        buckets = _Buckets(self, block)
        if kind != WEIGHT:
            self._message(lane, kind, chunk, arrives=True)
        for place, unit in enumerate(units):
            begin, received = len(block.rows), lane.tail
            lane.extras = {"behind": (*("tp",) * (not place), *("gather",) * (zero3 and kind != WEIGHT))}
            yield from self.visit(lane, unit, kind)
            if first and self.gather == "start":
                needs = [comm for comm in self.comms[unit] if comm.part == "F" and comm.when == "iteration"]
                block.needs += [(begin, ("parameters", unit, comm.group)) for comm in needs]
            if zero3 and kind != WEIGHT and place < len(following):
                self._ahead(block, *following[place], as_of=begin, after=received)
            if kind == self.ends:
                waits = {"stream": "dp", "after": lane.tail} if overlaps else {"stream": COMPUTE}
                for when in whens:
                    buckets.add(unit, "W", when, lane=lane.number, **waits)
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
                self.collective(block.collective, unit, comm, f"{unit.label}.{comm.name}", **(where | others))

    # -- layers ----------------------------------------------------------------------------------------------

    def visit(self, lane: Lane, unit: Unit, kind: int) -> Iterator[None]:
        """One pass through a layer; yields when an all-to-all is on its way."""
        runs = deque(self.runs[unit.kind, unit.wide, kind])
        while runs:
            run = runs.popleft()
            if isinstance(run, Run):
                self._run(lane, unit, run)
                continue
            before = lane.tail
            self._exchange(lane, unit, run)
            if self.layout.overlap.ep:
                sent, lane.tail = lane.tail, before
                while runs and _shared(runs[0]):
                    self._run(lane, unit, runs.popleft())
                lane.tail = sent if lane.tail == before else [*lane.tail, *sent]
                yield

    def _run(self, lane: Lane, unit: Unit, run: Run) -> None:
        """The computation of a run, and its collectives."""
        if self.layout.overlap.tp and run.ops and not run.ring and any(c.group == "tp" for c in run.before + run.after):
            self._pieces(lane, unit, run)
            return
        for comm in run.before:
            self.collective(lane.collective, unit, comm)
        if run.ring:
            self._ring(lane, unit, run)
        elif run.ops:
            self._compute(lane.compute, unit, run.ops, run.name)
        for comm in run.after:
            self.collective(lane.collective, unit, comm)

    def _compute(self, add, unit: Unit, ops: Sequence[Op], name: str, piece: tuple[int, int] = (0, 1), **others) -> int:
        """A node of these operations, or one of several equal pieces of it."""
        parts = {op.part for op in ops}
        phase = PHASES["I" if parts > {"W"} else parts.pop()]
        values = [value if value is None else _part(value, *piece) for value in self.price(tuple(ops), unit)]
        if self.routes is not None and any(op.name.startswith("experts") for op in ops):
            values = [value and self.routes.share(value, unit.layer, self.expert) for value in values]
        label = f"{unit.label}.{name}" if unit.layer is not None else name
        numbered = f".{piece[0]}" if piece[1] > 1 else ""
        flops, nbytes, time = values
        columns = unit.columns | {"phase": phase}
        return add(f"{label}.{SUFFIX[phase]}{numbered}", flops=flops, nbytes=nbytes, time_ps=time, **columns, **others)

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
            row = self._compute(lane.compute, unit, run.ops, run.name, piece=(i, PIECES), after=[*tail, *gathers[i]])
            for comm in run.after:
                self.collective(lane.collective, unit, comm, piece=(i, PIECES), stream="tp", after=[row])
        lane.tail = list(dict.fromkeys([row, len(block.rows) - 1]))

    def _ring(self, lane: Lane, unit: Unit, run: Run) -> None:
        """Attention to the keys and values of one rank after the other, which pass around the ring meanwhile."""
        layout, block, comm = self.layout, lane.block, run.ring
        own = self.inside // layout.tp % layout.cp
        arrived = lane.tail
        self._compute(lane.compute, unit, run.ops, run.name, piece=(0, layout.cp))
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
            self._compute(lane.compute, unit, run.ops, run.name, piece=(step, layout.cp), after=after)

    def _exchange(self, lane: Lane, unit: Unit, comm: Comm) -> None:
        """An all-to-all of experts: a collective, or messages where its blocks are unequal."""
        stream = None if self.layout.overlap.ep else COMPUTE
        if self.routes is None:
            self.collective(lane.collective, unit, comm, stream=stream)
            return
        block, layout, extras = lane.block, self.layout, lane.extras
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
                block.send(f"send {name}", out * row_bytes, self.rank, peers[0], after=tail, **common, **extras)
            )
            stream = "receive rows"
            rows.append(
                block.receive(f"receive {name}", into * row_bytes, self.rank, peers[1], stream=stream, **common)
            )
        lane.tail, lane.extras = rows, {}

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
