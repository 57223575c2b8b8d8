"""Nodes of a layer on one class of ranks: its computations, in wholes, pieces or tiles, and its communication."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from astrasim_py.training.assembly import COMPUTE, Amount, Block
from astrasim_py.training.buckets import Weights
from astrasim_py.training.lanes import Lane, Unit, chunks_of
from astrasim_py.training.layers import Comm, Item, Op, backward, embedding, forward, logits, recomputed
from astrasim_py.training.prices import Prices
from astrasim_py.training.routing import Routes
from astrasim_py.training.runs import NodeOps, runs_of
from astrasim_py.training.schedules import BACKWARD, FORWARD, SPLIT_BACKWARD, WEIGHT
from astrasim_py.training.segments import Segment, cut_into_segments
from astrasim_py.training.strategy import Layout
from astrasim_py.workload.tiles import tile_times

#: Numbers in the column `phase`, by part of an operation.
PHASES = {"F": 0, "I": 1, "W": 2, "O": 3, "R": 4}
SUFFIX = ("fwd", "bwd", "wgrad", "step", "rec")
#: Pieces in which a computation and the collectives beside it overlap.
PIECES = 4

#: FLOPs, bytes and picoseconds of a node; None for the last without prices.
Price = tuple[Amount, Amount, Amount | None]


class LayerWriter:
    """Writes passes through layers of one class of ranks; what writes a run returns the rows that the next waits for.

    `inside`: place of the first rank of the class in its `stage`. `first`: rank of the job at which the stages begin.
    """

    def __init__(
        self,
        layout: Layout[int],
        prices: Prices | None,
        stage: int,
        inside: int,
        routes: Routes | None = None,
        *,
        first: int = 0,
    ) -> None:
        self.layout, self.prices, self.stage, self.inside, self.routes = layout, prices, stage, inside, routes
        self.rank = first + stage * int(layout.stage_ranks) + inside
        self.chunks = chunks_of(layout, stage)
        self.split = layout.schedule in SPLIT_BACKWARD
        self.sizes = {role: group.members.shape[1] for role, group in layout.groups().items()}
        overlap = layout.overlap
        self.cut = frozenset(role for role in ("tp", "ep") if overlap.by_parts(role) and role in self.sizes)
        self.by_weights = overlap.by_parts("dp")
        kinds = {(unit.kind, unit.wide): unit for units in self.chunks for unit in units}
        self.runs = {
            (*kind, step): self._runs(unit, step)
            for kind, unit in kinds.items()
            for step in (FORWARD, BACKWARD, WEIGHT)
        }
        by_parts = kinds if self.by_weights and layout.zero == 3 else {}
        self.weights = {kind: Weights(self._items(unit), self.parts) for kind, unit in by_parts.items()}
        self.priced: dict[tuple, Price] = {}
        self.delays: dict[Comm, int] = {}
        self.launched: dict[tuple[str, bool, int], int] = {}

    def parts(self, role: str) -> int:
        """Parts of a collective of a role's groups."""
        return self.layout.overlap.parts_of(self.sizes[role]) if role in self.sizes else 1

    def _items(self, unit: Unit, step: int = FORWARD) -> list[Item]:
        """What a pass through a unit computes and sends."""
        layout = self.layout.reading_all if unit.wide else self.layout
        if unit.kind in ("embedding", "logits"):
            all_items = (embedding if unit.kind == "embedding" else logits)(layout)
            items = [item for item in all_items if (item.part == "F") == (step == FORWARD)]
        else:
            items = list((forward if step == FORWARD else backward)(layout, unit.kind))
        if step != FORWARD and self.split:
            items = [item for item in items if (item.part == "W") == (step == WEIGHT)]
        return items

    def _runs(self, unit: Unit, step: int) -> list[NodeOps | Comm]:
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

    # -- runs ------------------------------------------------------------------------------------------------

    def write(self, lane: Lane, unit: Unit, runs: deque[NodeOps | Comm]) -> bool:
        """Write runs up to an all-to-all that others run beside, and the shared expert; whether there was one."""
        while runs:
            run = runs.popleft()
            before, lane.tail = lane.tail, self._run(lane, unit, run)
            if isinstance(run, Comm) and self.layout.overlap.ep:
                done, sent = before, lane.tail
            elif isinstance(run, NodeOps) and run.uses(self.cut & {"ep"}):
                done, sent = lane.tail[:-1], lane.tail[-1:]
            else:
                continue
            lane.tail = done
            while runs and _shared(runs[0]):
                lane.tail = self._run(lane, unit, runs.popleft())
            lane.tail = sent if isinstance(run, Comm) and lane.tail == done else [*lane.tail, *sent]
            return True
        return False

    def _run(self, lane: Lane, unit: Unit, run: NodeOps | Comm) -> list[int]:
        """The computation of a run, and its collectives.

        Those that are used in tiles run beside computation; that which brings the input of the run comes before those
        that only weight gradients wait for.
        """
        if isinstance(run, Comm):
            return self._exchange(lane, unit, run)
        if self._in_pieces(run):
            return self._pieces(lane, unit, run)
        tail = last = lane.tail
        brought: list[int] = []
        later: list[int] = []
        for comm in run.before:
            if comm.group in self.cut:
                row = self.collective(lane, unit, comm, stream=comm.group, after=tail)
                (later if comm.part == "W" else brought).append(row)
                last = [row]
            else:
                tail = last = [self.collective(lane, unit, comm, after=last)]
        if run.ring:
            return self._after(lane, unit, run, self._ring(lane, unit, run, run.ring, tail))
        sent: list[int] = []
        for segment in run.segments:
            if segment.consumes or segment.produces:
                role = (run.after if segment.produces else run.before)[0].group
                tail = self._tiles(lane, unit, segment, tail, brought, role)
            else:
                after = [*tail, *brought, *(later if segment.beside else ())]
                tail = [self.compute(lane.compute, unit, segment, after=after)]
                lane.made(unit, segment.ops, tail[0])
            brought = []
            if segment.produces:
                calls = [
                    self.collective(lane, unit, comm, stream=comm.group, after=tail, in_parts=True)
                    for comm in run.after
                ]
                for tile in tail:
                    lane.block.rows[tile]["produces"] = calls[0]
                for comm, row in zip(run.after, calls, strict=True):
                    sent += self.delay(lane, unit, comm, stream=comm.group, after=[row]) or [row]
        return [*tail, *sent] if sent else self._after(lane, unit, run, tail)

    def _after(self, lane: Lane, unit: Unit, run: NodeOps, tail: list[int]) -> list[int]:
        """The collectives after a run, one after the other."""
        for comm in run.after:
            tail = [self.collective(lane, unit, comm, after=tail)]
        return tail

    def _in_pieces(self, run: NodeOps) -> bool:
        """Whether a run is cut into pieces together with its collectives."""
        return self.layout.overlap.tp is True and bool(run.ops) and not run.ring and run.uses({"tp"})

    def _tiles(
        self, lane: Lane, unit: Unit, segment: Segment, tail: list[int], brought: list[int], role: str
    ) -> list[int]:
        """The tiles of a segment, which run in any order after the node before them."""
        flops, nbytes, time = self._priced(segment, unit)
        overlap, parts, block = self.layout.overlap, self.parts(role), lane.block
        times: Sequence[Amount | None] = [None] * parts
        if time is not None:
            times = tile_times(int(time), parts, overlap.tile_overhead or 0, overlap.comm_slows_compute or 1)
        first, behind, rows = len(block.rows), (COMPUTE, *lane.first()), []
        where: dict[str, Any] = {"stream": None, "marks": COMPUTE, "behind": behind, "as_of": first}
        where |= {"after": [*tail, *brought], "lane": lane.number}
        for tile in range(parts):
            uses: dict[str, Any] = {"tile_order": 1}
            if segment.consumes:
                uses |= {"consumes": brought[0], "consumes_tile": tile, "consumes_tiles": parts}
            if segment.produces:
                uses |= {"produces_tile": tile, "produces_tiles": parts}
            price = _part(flops, tile, parts), _part(nbytes, tile, parts), times[tile]
            name = f" tile {tile + 1}/{parts}"
            rows.append(self._node(block.compute, unit, segment, name, price, **where, **uses))
        return rows

    def _pieces(self, lane: Lane, unit: Unit, run: NodeOps) -> list[int]:
        """A computation in pieces, each of which runs beside the collectives of the one before it."""
        tail, row = lane.tail, -1
        of_tp: dict[str, Any] = {"stream": "tp"}
        gathers = [
            [self.collective(lane, unit, comm, piece=(i, PIECES), after=tail, **of_tp) for comm in run.before]
            for i in range(PIECES)
        ]
        for i in range(PIECES):
            after = [*tail, *gathers[i]]
            row = self.compute(lane.compute, unit, run.segments[0], piece=(i, PIECES), after=after)
            for comm in run.after:
                self.collective(lane, unit, comm, piece=(i, PIECES), after=[row], **of_tp)
        lane.made(unit, run.ops, row)
        return list(dict.fromkeys([row, len(lane.block.rows) - 1]))

    def _ring(self, lane: Lane, unit: Unit, run: NodeOps, comm: Comm, tail: list[int]) -> list[int]:
        """Attention to the keys and values of one rank after the other, which pass around the ring meanwhile."""
        layout, block = self.layout, lane.block
        place = self.inside // layout.tp % layout.cp
        to, source = (self.rank + ((place + way) % layout.cp - place) * layout.tp for way in (1, -1))
        arrived, last = tail, self.compute(lane.compute, unit, run.segments[0], piece=(0, layout.cp), after=tail)
        for step in range(1, layout.cp):
            common = self._message(lane, unit, comm, step)
            name, size = f"{unit.label}.{comm.name}.{SUFFIX[PHASES[comm.part]]}.{step}", int(comm.size)
            ready = self.delay(lane, unit, comm, f"send {name}", stream=None, after=arrived) or arrived
            block.send(f"send {name}", size, self.rank, to, after=ready, **common)
            row = block.receive(f"receive {name}", size, self.rank, source, stream="receive kv", **common)
            arrived = [row]
            last = self.compute(lane.compute, unit, run.segments[0], piece=(step, layout.cp), after=[last, row])
        return [last]

    def _exchange(self, lane: Lane, unit: Unit, comm: Comm) -> list[int]:
        """An all-to-all of experts: a collective, or messages where its blocks are unequal."""
        if self.routes is None:
            stream = None if self.layout.overlap.ep else COMPUTE
            return [self.collective(lane, unit, comm, stream=stream, after=lane.tail)]
        block, layout, behind = lane.block, self.layout, lane.first()
        outward = (comm.name == "dispatch") == (comm.part in ("F", "R"))
        table = self.routes.rows(unit.layer)
        row_bytes = int(comm.size) // self.routes.sent
        common = self._message(lane, unit, comm, layout.cp + (not outward))
        name = f"{unit.label}.{comm.name}.{SUFFIX[PHASES[comm.part]]}"
        me, rows, tail = self.expert, [], lane.tail
        if delay := self.delay(lane, unit, comm, stream=None, after=tail, behind=behind):
            tail, behind = delay, ()
        for step in range(1, layout.ep):
            to, source = (me + step) % layout.ep, (me - step) % layout.ep
            out = table[:, me, to] if outward else table[:, to, me]
            into = table[:, source, me] if outward else table[:, me, source]
            there, back = (self.rank + (peer - me) * layout.etp for peer in (to, source))
            sends = {"after": tail, "behind": behind}
            rows.append(block.send(f"send {name}", out * row_bytes, self.rank, there, **sends, **common))
            stream = "receive rows"
            rows.append(block.receive(f"receive {name}", into * row_bytes, self.rank, back, stream=stream, **common))
        return rows

    @property
    def expert(self) -> int:
        """Place of the rank in its expert group."""
        return self.inside // self.layout.etp % self.layout.ep

    def _message(self, lane: Lane, unit: Unit, comm: Comm, step: int) -> dict[str, Any]:
        """Columns of a message inside a stage. Its tag: one for each layer, pass and step, and what each micro-batch
        adds.
        """
        steps = self.layout.cp + 2
        layers = self.layout.model.layers + self.layout.model.mtp
        tag = (unit.layer * 3 + "FIR".index(comm.part)) * steps + step, layers * 3 * steps
        return {"tag": tag, "lane": lane.number, "phase": PHASES[comm.part]} | unit.columns

    # -- nodes -----------------------------------------------------------------------------------------------

    def compute(
        self, add: Callable[..., int], unit: Unit, segment: Segment, piece: tuple[int, int] = (0, 1), **others: Any
    ) -> int:
        """A node of a segment, or one of several equal pieces of it."""
        numbered = f".{piece[0]}" if piece[1] > 1 else ""
        return self._node(add, unit, segment, numbered, self._priced(segment, unit, piece), **others)

    def _node(
        self,
        add: Callable[..., int],
        unit: Unit,
        segment: Segment,
        number: str,
        price: Price,
        behind: tuple[str, ...] = (),
        **others: Any,
    ) -> int:
        flops, nbytes, time = price
        phases = {op.part for op in segment.ops}
        phase = PHASES["I" if phases > {"W"} else phases.pop()]
        label = segment.name if unit.layer < 0 else f"{unit.label}.{segment.name}"
        columns = unit.columns | {"phase": phase, "behind": (*behind, *self._needs(unit, segment))} | others
        return add(f"{label}.{SUFFIX[phase]}{number}", flops=flops, nbytes=nbytes, time_ps=time, **columns)

    def _needs(self, unit: Unit, segment: Segment) -> tuple[str, ...]:
        """Streams of the parts of gathered parameters that a segment waits for."""
        weights = self.weights.get((unit.kind, unit.wide))
        return weights.of(segment.ops) if weights else ()

    def _priced(self, segment: Segment, unit: Unit, piece: tuple[int, int] = (0, 1)) -> Price:
        """The price of a piece of a segment, as `price` gives it; of experts that of its rows."""
        totals: list[Amount | None] = [0, 0, 0]
        for span in segment.spans:
            for ops, sign in ((span.ops, 1), (span.before, -1)):
                for place, value in enumerate(self.price(ops, unit) if ops else ()):
                    total = totals[place]
                    if value is None or total is None:
                        totals[place] = None
                        continue
                    value = _part(value, *piece)
                    if self.routes is not None and span.experts and isinstance(value, int) and value:
                        value = self.routes.share(value, unit.layer, self.expert)
                    totals[place] = total + sign * value
        flops, nbytes, time = totals
        return 0 if flops is None else flops, 0 if nbytes is None else nbytes, time

    def price(self, ops: tuple[Op, ...], unit: Unit) -> Price:
        """FLOPs, bytes and picoseconds of a node, ints or arrays by micro-batch."""
        if ops not in self.priced:
            time = None
            if self.prices is not None:
                place = self.inside // self.layout.tp % self.layout.cp
                time = self.prices.op_ps(*ops) + self.prices.uneven_ps(self.layout, place, ops)
            self.priced[ops] = sum(int(op.flops) for op in ops), sum(int(op.nbytes) for op in ops), time
        return self.priced[ops]

    def collective(
        self,
        to: Lane | Block,
        unit: Unit,
        comm: Comm,
        name: str = "",
        piece: tuple[int, int] = (0, 1),
        *,
        in_parts: bool = False,
        **others: Any,
    ) -> int:
        """A collective, or one of several equal pieces of it, after what software takes for it, unless the input comes
        in parts, which `delay` would hold up.
        """
        if not in_parts:
            where = {key: others[key] for key in ("stream", "lane", "after", "behind", "as_of") if key in others}
            if delay := self.delay(to, unit, comm, name, **where):
                others = {key: value for key, value in others.items() if key not in ("behind", "as_of")}
                others["after"] = delay
        size: Amount = int(comm.size)
        if self.routes is not None and comm.group == "etp":  # rows of the experts of this rank
            size = self.routes.share(int(comm.size), unit.layer, self.expert)
        label = _name_of(unit, comm, name) + (f".{piece[0]}" if piece[1] > 1 else "")
        columns = unit.columns | {"phase": PHASES[comm.part]} | others
        return to.collective(label, comm.collective, _part(size, *piece), comm.group, self.sizes[comm.group], **columns)

    def delay(self, to: Lane | Block, unit: Unit, comm: Comm, name: str = "", **others: Any) -> list[int]:
        """What software takes for a collective beside its messages; nothing where that is no time."""
        if comm not in self.delays:
            self.delays[comm] = 0 if self.prices is None else self.prices.delay_ps(self.layout, comm)
        if not self.delays[comm]:
            return []
        columns = unit.columns | {"phase": PHASES[comm.part]} | others
        return [to.wait(f"{_name_of(unit, comm, name)}.delay", self.delays[comm], **columns)]

    def host_ps(self, unit: Unit, step: int) -> int:
        """Picoseconds in which the host launches a pass through a unit, with the latencies of its collectives."""
        if self.prices is None:
            return 0
        key = unit.kind, unit.wide, step
        if key not in self.launched:
            passes = 1.0
            if step == BACKWARD:  # weight gradients that are computed apart have launches of their own
                passes += (not self.split) + float(recomputed(self.layout))
            self.launched[key] = self.prices.host_ps(self.layout, unit.kind, self._items(unit, step), passes)
        return self.launched[key]


def _part(value: Amount, index: int, pieces: int) -> Amount:
    """Part `index` of a number or array that is cut into `pieces`, as equal as can be."""
    return value * (index + 1) // pieces - value * index // pieces


def _name_of(unit: Unit, comm: Comm, name: str) -> str:
    """Name of a collective that may have another one for its layer and pass."""
    label = comm.block if unit.layer < 0 else f"{unit.label}.{comm.block}"
    return f"{name or f'{label}.{SUFFIX[PHASES[comm.part]]}'}.{comm.collective}"


def _shared(run: NodeOps | Comm) -> bool:
    """Whether a run computes the shared expert."""
    return isinstance(run, NodeOps) and bool(run.ops) and all(op.block == "shared" for op in run.ops)
