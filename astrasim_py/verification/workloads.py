"""Verification of a workload with its collectives inlined: every result is right, and so is what each tile reads.

The nodes of all ranks, their dependencies and their messages are one graph. Over it the steps of each call are executed
symbolically, as those of an algorithm are. Nodes that make a tile of its input write it; nodes that consume a tile of
its output read it. So these laws hold if nothing is wrong and nothing races:

* a tile reads no cell before its final value, and nothing writes the cell later;
* no step reads a cell of the input before the node that makes it, and none writes it before.

Cells are cut further where there are more tiles than chunks.
"""

from collections.abc import Mapping, Sequence
from math import lcm
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import messages
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.program.algorithm import Algorithm, without_cells
from astrasim_py.program.steps import Layout, Steps, steps_of
from astrasim_py.program.table import Program, Unusable
from astrasim_py.program.traces import Traces
from astrasim_py.verification import races, values
from astrasim_py.verification.termination import Flow, Order
from astrasim_py.verification.verifier import Examination, Verdict

#: What the node where a call begins says of it, in words.
STATED = ("collective", "chunks", "in_place", "root")


def is_inlined(traces: Sequence[ExecutionTrace]) -> bool:
    """Whether traces are a workload with collectives inlined."""
    return any(trace.has_column("inlined_call") for trace in traces)


def verify_workload(traces: Sequence[ExecutionTrace], contracts: Mapping[int, Contract] | None = None) -> Verdict:
    """Verify a workload with its collectives inlined, one trace per rank (`astrasim_py.system.inlining.inline`).
    `contracts`: of custom collectives, by the number of the call.

    A verdict is unknown where a collective does not state its cells or is not inlined. Barriers, which move no data,
    are not judged.
    """
    examination = Examination([], [])
    examination.fields["slots"] = 0
    with examination.usable():
        _WorkloadCheck(traces, examination, contracts or {}).run()
    return examination.verdict()


class _TileUse(NamedTuple):
    """A node that consumes (`side` 0) or produces (1) a tile; `row`: of the table of all ranks."""

    row: int
    side: int
    tile: int
    tiles: int


class _CheckedCall(NamedTuple):
    """A call of a collective; `members`: ranks, by their position in its group."""

    number: int
    collective: str
    chunks: int
    in_place: bool
    root: int | None
    members: tuple[int, ...]
    rows: list[int]
    uses: list[_TileUse]

    @property
    def name(self) -> str:
        return f"{self.collective}, call {self.number}"

    def per_chunk(self, use: _TileUse) -> int:
        """Cells per chunk with which a tile is whole cells; 0: there are none."""
        many = self.many(use.side)
        return 1 if many % use.tiles == 0 else use.tiles // many if use.tiles % many == 0 else 0

    def many(self, side: int) -> int:
        """Chunks of the output (`side` 0) or the input (1) of a rank."""
        promise = promise_of(self.collective)
        return (promise.input_chunks if side else promise.output_chunks)(len(self.members), self.chunks)


class _Steps(NamedTuple):
    """The steps of a call; behind those of its algorithm, one for each of its uses."""

    call: _CheckedCall
    steps: Steps
    order: Order
    rows: list[int]  # of each step, of the table of all ranks
    fine: int  # cells per chunk
    where: Layout
    run: values.Execution

    def cell(self, position: int, cell: int) -> tuple[str, int, str]:
        """Buffer and chunk of a cell, and both in words."""
        buffer, offset = self.where.cell_name(position, cell)
        chunk, part = divmod(offset, self.fine)
        more = f" (part {part + 1} of {self.fine})" if self.fine > 1 else ""
        return buffer, chunk, f"{buffer} chunk {chunk}{more}"

    def told(self, value: int) -> str:
        """A value in words, with ranks of the workload."""
        return self.told_terms(self.run.values.contributions(value)) if value else "nothing defined"

    def told_terms(self, terms: Mapping[tuple[int, int], int]) -> str:
        return values.terms_text({(self.call.members[r], k // self.fine): n for (r, k), n in terms.items()})

    def moved(self, g: int, cell: int) -> tuple[str, int | None]:
        """What a step does to a cell, and the value that it writes or reads there, where it is known."""
        steps, where, held = self.steps, self.where, self.run.held[g]
        for verb, first in (("writes", where.writes[g]), ("reads", where.reads[g])):
            if 0 <= first <= cell < first + steps.count[g]:
                defined = verb == "writes" or not (steps.reduces[g] or steps.takes[g] >= 0)
                return verb, held[cell - first] if defined else None
        raise AssertionError(cell)


class _WrongValue(NamedTuple):
    """A wrong value; `later`: the right one is written after a step reads it; `cells`: how many are wrong like it."""

    text: str
    call: int
    later: bool
    cells: int
    known: dict[str, object]


class _WorkloadCheck:
    """The graph of all ranks, and what is found in it."""

    def __init__(
        self, traces: Sequence[ExecutionTrace], examination: Examination, contracts: Mapping[int, Contract]
    ) -> None:
        self.traces, self.examination, self.contracts = traces, examination, contracts
        self.program = Program.of_traces(traces, "data")
        algorithm = Algorithm(name="workload", collective=CUSTOM, ranks=len(traces), traces=Traces.of(traces))
        self.steps = steps_of(algorithm, self.program)
        self.number, self.own = (self.program.column(name) for name in ("inlined_call", "inlined_node"))
        self.steps.place, self.bare = self.place, without_cells(self.program)
        #: By call: its name for labels.
        self.names: dict[int, str] = {}
        #: Pairs of steps that use one cell, as first · N + second: the call and the cell.
        self.pairs: dict[int, tuple[_CheckedCall, int]] = {}
        self.wrong: list[_WrongValue] = []

    def place(self, row: int) -> str:
        node, call = self.program.node(row), int(self.number[row])
        if call == MISSING or self.own[row] == MISSING:
            return node
        return f"{node} (step {int(self.own[row])} of {self.names.get(call, f'call {call}')})"

    def run(self) -> None:
        calls = self.calls()
        self.names = {call.number: call.name for call in calls}
        self.flow, fields = Flow(self.steps), self.examination.fields
        fields["terminates"] = self.flow.ends
        if not self.flow.ends:
            self.examination.deadlock(self.flow.run(len(self.steps)), "it never ends")
            self.examination.unknown("it does not end")
            return
        self.when = np.empty(len(self.steps), dtype=np.int64)
        self.when[self.flow.sequence] = np.arange(len(self.steps))
        orders = [self.judge(call) for call in calls if call.collective != "barrier"]
        keys = races.unordered(self.steps, self.flow, self.pairs)
        if keys:
            self.race(keys[0])
        # Where steps race, "later" holds in the order of execution only.
        raced = {self.pairs[key][0].number for key in keys}
        self.wrong = [fault for fault in self.wrong if not (fault.later and fault.call in raced)]
        for fault in self.wrong:
            self.examination.no("post-condition", fault.text, fault.known)
        decided, wrong = "unknown" not in fields, sum(fault.cells for fault in self.wrong)
        fields |= {"correct": False if wrong else decided or None, "wrong_cells": wrong if decided else None}
        fields |= {"race_free": False if keys else decided or None, "races": len(keys) if decided else None}
        fields["order_consistent"] = None if None in orders else all(orders)

    # -- what is there

    def calls(self) -> list[_CheckedCall]:
        """The calls that have steps, in the order of their numbers."""
        program, unnamed = self.program, self.own == MISSING
        for row in np.flatnonzero(program.type == NodeType.COMM_COLL)[:1].tolist():
            self.examination.unknown(f"{program.node(row)} is a collective: inline it")
        begins: dict[int, list[int]] = {}
        for row in np.flatnonzero((self.number != MISSING) & unnamed).tolist():
            begins.setdefault(int(self.number[row]), []).append(row)
        rows: dict[int, list[int]] = {number: [] for number in begins}
        for row in np.flatnonzero((self.number != MISSING) & ~unnamed).tolist():
            rows.setdefault(int(self.number[row]), []).append(row)
        uses = self.uses()
        return [
            self.call(number, begins.get(number, []), rows[number], uses.get(number, []))
            for number in sorted(rows)
            # A group of one has nothing to do.
            if rows[number] or len(begins[number]) > 1
        ]

    def call(self, number: int, begins: list[int], rows: list[int], uses: list[_TileUse]) -> _CheckedCall:
        program = self.program
        positions = program.column("inlined_rank")[begins].tolist()
        ranks = program.rank[begins].tolist()
        if sorted(positions) != list(range(len(begins))) or len(set(ranks)) < len(ranks):
            raise Unusable(f"call {number} does not begin once at each position of its group (inlined_rank)")
        foreign = np.flatnonzero(~np.isin(program.rank[rows], ranks))
        if len(foreign):
            raise Unusable(f"{program.node(rows[foreign[0]])} is of call {number}, which does not begin on its rank")
        promises = [self.told(row) for row in begins]
        odd = next((i for i, promise in enumerate(promises) if promise != promises[0]), None)
        if odd is not None:
            raise Unusable(f"{program.node(begins[odd])} begins another collective than {program.node(begins[0])}")
        collective, chunks, in_place, root = (promises[0].get(name) for name in STATED)
        if collective not in (*COLLECTIVES, CUSTOM) or type(chunks) is not int or chunks < 0:
            raise Unusable(f"{program.node(begins[0])} begins call {number}, and does not say of which collective")
        members = tuple(rank for _, rank in sorted(zip(positions, ranks, strict=True)))
        rooted = promise_of(collective).rooted
        root = root if rooted and type(root) is int and root in range(len(members)) else None
        if rooted and root is None:
            raise Unusable(f"{program.node(begins[0])} begins {collective}, and has no root among {len(members)} ranks")
        call = _CheckedCall(number, collective, chunks, bool(in_place), root, members, rows, uses)
        if uses and collective == "barrier":
            raise Unusable(f"{program.node(uses[0].row)} uses a tile of {call.name}, which moves no data")
        if chunks and promise_of(collective).sharded and chunks % len(members):
            raise Unusable(f"the {chunks} chunks of {call.name} do not divide among {len(members)} ranks")
        return call

    def told(self, row: int) -> dict[str, object]:
        rank = int(self.program.rank[row])
        node = self.traces[rank].node(row - int(self.program.bounds[rank]))
        return {a.name: a.value for a in messages.attributes(node.attr) if a.name in STATED}

    def uses(self) -> dict[int, list[_TileUse]]:
        """By call: the nodes that consume and produce its tiles."""
        program, uses_of = self.program, dict[int, list[_TileUse]]()
        for side, verb in enumerate(("consumes", "produces")):
            ids, targets = program.column(verb), program.rows_named(verb)
            tile, tiles = (program.column(f"{verb}_{part}") for part in ("tile", "tiles"))
            for row in np.flatnonzero(ids != MISSING).tolist():
                target, node = int(targets[row]), program.node(row)
                if target < 0:
                    raise Unusable(f"{node} {verb} node {int(ids[row])}, which is not there")
                if program.type[target] == NodeType.COMM_COLL:
                    continue
                if self.number[target] == MISSING or self.own[target] != MISSING:
                    raise Unusable(f"{node} {verb} node {int(ids[row])}, where no collective begins")
                if program.column("tile_order")[row] != MISSING:
                    raise Unusable(f"{node} has tile_order, which is an order of collectives that are not inlined")
                if not 0 <= tile[row] < tiles[row]:
                    raise Unusable(f"{node} has {verb}_tile {int(tile[row])} of {int(tiles[row])}")
                use = _TileUse(row, side, int(tile[row]), int(tiles[row]))
                uses_of.setdefault(int(self.number[target]), []).append(use)
        return uses_of

    # -- one call

    def part(self, call: _CheckedCall) -> _Steps:
        """The steps of a call, executed."""
        flat, uses = self.steps, call.uses
        fine = 1
        for use in uses:
            per_chunk = call.per_chunk(use)
            if not per_chunk:
                share = f"one of {use.tiles} tiles of the {call.many(use.side)} chunks of {call.name}"
                raise Unusable(f"{self.program.node(use.row)} uses {share}")
            fine = lcm(fine, per_chunk)
        self.check_produced(call)
        rows = [*call.rows, *(use.row for use in uses)]
        index = {row: i for i, row in enumerate(call.rows)}
        more, position = [-1] * len(uses), {rank: p for p, rank in enumerate(call.members)}
        sender = [-1 if flat.takes[g] < 0 else index.get(self.flow.sender[g], -2) for g in call.rows]
        payload = [-1 if flat.payload[g] < 0 else index.get(flat.payload[g], -2) for g in call.rows]
        for column in (sender, payload):
            if -2 in column:
                raise Unusable(f"{self.place(call.rows[column.index(-2)])} takes data that is not of its call")
        many = [call.many(use.side) * fine // use.tiles for use in uses]
        first = [use.tile * count for use, count in zip(uses, many, strict=True)]
        cells: dict[str, list[int]] = {}
        for verb, side, buffer in (("read", 0, Buffer.OUTPUT), ("write", 1, Buffer.INPUT)):
            buf, off = (getattr(flat, f"{verb}_{name}") for name in ("buf", "off"))
            cells[f"{verb}_buf"] = [buf[g] for g in call.rows] + [
                int(buffer) if use.side == side else -1 for use in uses
            ]
            cells[f"{verb}_off"] = [off[g] * fine for g in call.rows] + [
                low if use.side == side else -1 for use, low in zip(uses, first, strict=True)
            ]
        steps = Steps(
            name=call.name, collective=call.collective, ranks=len(call.members), chunks=call.chunks * fine,
            rank=[position[flat.rank[g]] for g in rows], chain=[-1] * len(rows),
            count=[flat.count[g] * fine for g in call.rows] + many, takes=[flat.takes[g] for g in call.rows] + more,
            gives=[-1] * len(rows), reduces=[flat.reduces[g] for g in call.rows] + [False] * len(uses),
            payload=payload + more, read_buf=cells["read_buf"], read_off=cells["read_off"],
            write_buf=cells["write_buf"], write_off=cells["write_off"],
            parents=[()] * len(rows), waits=[()] * len(rows), connections=[],
            contract=None if uses else self.contracts.get(call.number),
            place=lambda i: self.label(call, rows[i]), line=[0] * len(rows), root=call.root, in_place=call.in_place,
            makes=frozenset(len(call.rows) + i for i, use in enumerate(uses) if use.side),
        )  # fmt: skip
        order = Order(sender + more, sorted(range(len(rows)), key=lambda i: self.when[rows[i]]))
        where = Layout(steps)
        return _Steps(call, steps, order, rows, fine, where, values.execute(where, order))

    def check_produced(self, call: _CheckedCall) -> None:
        """Where a rank's input is produced in tiles, each of equal ones is."""
        by_rank: dict[int, list[_TileUse]] = {}
        for use in call.uses:
            if use.side:
                by_rank.setdefault(int(self.program.rank[use.row]), []).append(use)
        for uses in by_rank.values():
            first, tiles = uses[0], {use.tile for use in uses}
            lost = next((tile for tile in range(first.tiles) if tile not in tiles), None)
            if lost is not None or any(use.tiles != first.tiles for use in uses):
                reason = "others divide it otherwise" if lost is None else f"none produces tile {lost}"
                raise Unusable(f"{self.program.node(first.row)} produces a tile of {call.name}, and {reason}")

    def label(self, call: _CheckedCall, row: int) -> str:
        """A step or a use of a call."""
        use = next((use for use in call.uses if use.row == row), None)
        if use is None:
            return self.place(row)
        verb = ("consumes", "produces")[use.side]
        return f"{self.program.node(row)} ({verb}_tile {use.tile} of {use.tiles} of {call.name})"

    def judge(self, call: _CheckedCall) -> bool | None:
        """Find what is wrong with a call, and the pairs of steps that may race; whether all ranks add in one order."""
        if not call.chunks or self.bare[call.rows].any():
            self.examination.unknown(f"{call.name} does not state which cells its steps read and write")
            return None
        part = self.part(call)
        self.early(part)
        self.stale(part)
        order = None
        if part.steps.contract is None and call.collective == CUSTOM:
            self.examination.unknown(f"{call.name} is a custom collective, and nothing says what it must do")
        else:
            order = self.ends(part)
        many, size = len(part.rows), len(self.steps)
        for key, cells in races.conflicts(part.where, part.order.sequence)[0].items():
            first, second = (part.rows[i] for i in divmod(key, many))
            if first not in self.steps.parents[second]:
                self.pairs[first * size + second] = call, cells[0]
        return order

    def note(
        self, part: _Steps, position: int, cell: int, text: str, *, holds: str, expected: str, g: int, cells: int = 0
    ) -> None:
        """A wrong value that step g reads, or, in so many cells, has written last."""
        buffer, chunk, _ = part.cell(position, cell)
        details = {"rank": part.call.members[position], "buffer": buffer, "chunk": chunk, "holds": holds}
        details |= {"expected": expected, "step": part.steps.place(g) if g >= 0 else None}
        self.wrong.append(_WrongValue(text, part.call.number, not cells, cells or 1, details))

    def early(self, part: _Steps) -> None:
        """Steps that read input before it is made."""
        steps, where, place = part.steps, part.where, part.steps.place
        makers = {
            cell: g for g in sorted(steps.makes) for cell in range(where.writes[g], where.writes[g] + steps.count[g])
        }
        when = {g: i for i, g in enumerate(part.order.sequence)}
        for g in dict.fromkeys(part.run.undefined):
            first = where.reads[g] if where.reads[g] >= 0 else where.writes[g]
            for cell in range(first, first + steps.count[g]):
                if cell in makers and when[g] < when[makers[cell]]:
                    _, _, name = part.cell(steps.rank[g], cell)
                    text = f"{place(g)} reads {name}, which holds nothing defined: {place(makers[cell])} makes it later"
                    self.note(part, steps.rank[g], cell, text, holds="nothing defined", expected="input", g=g)
                    return

    def stale(self, part: _Steps) -> None:
        """Tiles that read what is not the final value."""
        steps, run, where = part.steps, part.run, part.where
        for g in range(len(part.call.rows), len(part.rows)):
            for cell, value in enumerate(run.held[g], where.reads[g]) if g not in steps.makes else ():
                if value != run.cells[cell]:
                    holds, final = part.told(value), part.told(run.cells[cell])
                    _, _, name = part.cell(steps.rank[g], cell)
                    text = f"{steps.place(g)} reads {name}, which holds {holds}: "
                    text += f"{steps.place(run.writer[cell])} writes {final} later"
                    self.note(part, steps.rank[g], cell, text, holds=holds, expected=final, g=g)
                    return

    def ends(self, part: _Steps) -> bool:
        """Compare the cells at the end with what the collective promises."""
        result, run = values.judge(part.where, part.run), part.run
        if result.first is not None:
            wrong = result.first
            holds, expected, writer = part.told(wrong.holds), part.told_terms(wrong.expected), run.writer[wrong.cell]
            _, _, name = part.cell(wrong.rank, wrong.cell)
            last = f"last written by {part.steps.place(writer)}" if writer >= 0 else "and no step writes it"
            text = f"rank {part.call.members[wrong.rank]} {name} of {part.call.name} holds {holds} at the end, "
            text += f"not {expected}: {last}"
            self.note(part, wrong.rank, wrong.cell, text, holds=holds, expected=expected, g=writer, cells=result.wrong)
        return result.same_order

    # -- races

    def race(self, key: int) -> None:
        """The counterexample of two unordered steps."""
        call, cell = self.pairs[key]
        part, pair = self.part(call), divmod(key, len(self.steps))
        # A step of a call is before its uses: a node can be both.
        local = [next(i for i, row in enumerate(part.rows) if row == row_of_pair) for row_of_pair in pair]
        position = part.steps.rank[local[0]]
        buffer, chunk, name = part.cell(position, cell)
        texts = []
        for g, noun in zip(local, (name, "it"), strict=True):
            verb, value = part.moved(g, cell)
            texts.append(f"{part.steps.place(g)} {verb} {noun}" + ("" if value is None else f" ({part.told(value)})"))
        problem = f"race: {texts[0]}, {texts[1]}, and nothing says which is first"
        details = {"rank": call.members[position], "buffer": buffer, "chunk": chunk, "step": part.steps.place(local[0])}
        self.examination.no("race", problem, {**details, "chain": [part.steps.place(g) for g in local]})
