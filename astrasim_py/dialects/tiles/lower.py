"""Tiles: computations that wait for a part of a collective's output, or make a part of its input.

A node that consumes tile t of T waits for the steps that write the cells of this tile last on its rank. Where a node
produces tile t of T, the steps that touch the cells of this tile on its rank wait for it, and the collective begins
with the first of its tiles. Cells are the chunks of the algorithm's buffers; of C cells tile t has those from ⌊tC/T⌋
on. T divides C or is a multiple of it.

With ``tile_order`` tile k is the k-th in the order in which the collective of `produces` sends the tiles of this rank,
those that it does not send last; without `produces`, the k-th in the order in which that of `consumes` brings them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.core.rows import ranges
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import Program
from astrasim_py.system.plan import CollectiveCall, Instance
from astrasim_py.system.programs import BEGINS, ENDS, RECV, RankProgram, TileGates, TileUses

_SIDES = (("consumes", "consumes_tile", "consumes_tiles"), ("produces", "produces_tile", "produces_tiles"))


def tile_uses(table: Program, refuse: Callable[..., None]) -> TileUses | None:
    """The uses of collectives in tiles by the nodes of a rank's workload; None where there are none.

    `table`: of one rank. `refuse(rows, bad, problem, remedy, values)`: raises an error for the first bad row.
    """
    node, found = np.argsort(table.by_id), []
    edges = table.child * len(table) + table.parents
    for number, (side, which, count) in enumerate(_SIDES):
        ids, target = table.column(side), table.rows_named(side)
        # What has been inlined has dependencies in place of gates.
        inlined = (target >= 0) & (table.column("inlined_call")[target] != MISSING)
        rows = np.flatnonzero((ids != MISSING) & ~inlined)
        target, tile, tiles = target[rows], table.column(which)[rows], table.column(count)[rows]
        refuse(rows, table.type[rows] != NodeType.COMP, f"{side} a tile, and is not a computation", "move it to one")
        refuse(rows, target < 0, f"{side} node {{}}, which is not there", "write the id of a collective", ids[rows])
        what = f"{side} node {{}}, which is not a collective"
        refuse(rows, table.type[target] != NodeType.COMM_COLL, what, "write the id of a collective", ids[rows])
        what = f"has {which} {{}}, which is not one of its tiles"
        refuse(rows, (tiles < 1) | (tile < 0) | (tile >= tiles), what, f"number tiles from 0, and write {count}", tile)
        child, parent = (rows, target) if side == "consumes" else (target, rows)
        what = f"{side} node {{}}, which " + ("it does not wait for" if side == "consumes" else "does not wait for it")
        refuse(rows, ~np.isin(child * len(table) + parent, edges), what, "add it to the dependencies", ids[rows])
        ordered = table.column("tile_order")[rows] == 1
        if side == "produces":
            for each in np.unique(target).tolist():
                own = target == each
                same = tiles[own] == tiles[own][0]
                what = f"produces one of {{}} tiles of node {int(table.node_id[each])}, and others divide it otherwise"
                refuse(rows[own], ~same, what, "divide it once", tiles[own])
                what = f"produces a tile of node {int(table.node_id[each])}, and its tile_order is not that of others"
                refuse(
                    rows[own], ordered[own] != ordered[own][0], what, "write it on all of them, or on none", tile[own]
                )
                lost = np.setdiff1d(np.arange(tiles[own][0]), tile[own])
                what = f"produces tiles of node {int(table.node_id[each])}, and none produces tile {{}}"
                refuse(rows[own][:1], np.array([len(lost) > 0]), what, "give each tile a node", np.append(lost, 0)[:1])
        columns = [np.full(len(rows), number), node[rows], node[target], tile, tiles, ordered]
        found.append(np.stack(columns, axis=1)[tiles > 1])
    uses = np.concatenate(found)
    return TileUses(uses) if len(uses) else None


def without_whole(uses: TileUses, child: np.ndarray, parents: np.ndarray, need: np.ndarray) -> tuple[np.ndarray, ...]:
    """The edges of a workload without those that tiles take the place of, and the needs with a gate in their place."""
    n = len(need)
    side, node, collective = uses.rows[:, 0], uses.rows[:, 1], uses.rows[:, 2]
    gone = np.where(side == 0, node * n + collective, collective * n + node)
    kept = ~np.isin(child * n + parents, gone)
    need = need - np.bincount(child[~kept], minlength=n)
    need[np.unique(np.where(side == 0, node, collective))] += 1
    return child[kept], parents[kept], need


def in_program(uses: TileUses, table: Program, program: RankProgram) -> TileUses:
    """The uses by the nodes of a program made of the table, whose messages may have been split."""
    node = np.empty(len(table), dtype=np.int64)
    node[program.rows] = np.arange(len(program))
    made = uses.rows.copy()
    made[:, 1:3] = node[table.by_id[uses.rows[:, 1:3]]]
    return TileUses(made)


class Cells(NamedTuple):
    """The cells of a rank's buffers in an algorithm. Rows are those of the rank's trace."""

    last: np.ndarray  # int64[outputs]: row that writes each cell of the output last; -1: none does
    same: np.ndarray  # int64[outputs]: cell of the input that it is, -1 for none
    inputs: int
    touched: np.ndarray  # int64[k, 2]: rows that read or write a cell of the input, and the cell
    place: np.ndarray  # int64[rows]: of each row in the order of execution
    sends: np.ndarray  # bool[rows]
    parents: np.ndarray  # int64[e, 2]: rows, and rows that they wait for


def cells_of_rank(algorithm: Algorithm, rank: int) -> Cells:
    """The cells of a rank (`Layout` says where buffers share cells)."""
    table, promise = algorithm.program_of([rank]), promise_of(algorithm.collective)
    per = promise.shard(algorithm.ranks, algorithm.chunks)
    inputs, outputs = (of(algorithm.ranks, algorithm.chunks) for of in (promise.input_chunks, promise.output_chunks))
    count = table.column("msg_chunk_cnt")
    ends = [table.column(f"{side}_off").max(initial=0) for side in ("src", "dst")]
    width = int(max(*ends, 0)) + max(algorithm.chunks, int(count.max(initial=0))) + algorithm.ranks * per
    first = np.zeros(4, dtype=np.int64)
    first[[Buffer.OUTPUT, Buffer.SCRATCH]] = 0 if algorithm.in_place else width, 2 * width
    if algorithm.in_place:
        first[[Buffer.INPUT, Buffer.OUTPUT]] = rank * per * promise.gathers, rank * per * promise.scatters
    order = np.argsort(table.place, kind="stable")
    accesses = []
    for side in ("dst", "src"):
        buffer, offset = table.column(f"{side}_buf"), table.column(f"{side}_off")
        rows = order[((buffer >= 0) & (offset >= 0) & (count > 0))[order]]
        owner, within = ranges(count[rows])
        accesses.append((rows[owner], (first[buffer[rows]] + offset[rows])[owner] + within))
    last = np.full(3 * width, -1, dtype=np.int64)
    # The rows are in the order of execution: the last one stays.
    last[accesses[0][1]] = accesses[0][0]
    output = first[Buffer.OUTPUT] + np.arange(outputs)
    same = output - first[Buffer.INPUT] if algorithm.in_place else np.full(outputs, -1)
    rows, cells = (np.concatenate(each) for each in zip(*accesses, strict=True))
    cells = cells - first[Buffer.INPUT]
    touched = np.unique(np.stack([rows, cells], axis=1)[(cells >= 0) & (cells < inputs)], axis=0)
    same = np.where((same >= 0) & (same < inputs), same, -1)
    edges, sends = np.stack([table.child, table.parents], axis=1), table.type == NodeType.COMM_SEND
    return Cells(last[output], same, inputs, touched, table.place, sends, edges)


class _TilePattern(NamedTuple):
    """What tiles of a call's buffers wait for on one rank. Nodes are those of its program."""

    reads: np.ndarray  # int64[a, 2]: tile of the output, node that writes it
    present: np.ndarray  # int64[b, 2]: tile of the output with cells that no node writes, tile of the input or -1
    holds: np.ndarray  # int64[c, 2]: node, tile of the input that it touches


def _tiles_of(cells: np.ndarray, many: int, tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the given cells, and the tiles that each has a part of; one for each pair."""
    low = cells * tiles // many
    owner, within = ranges(np.full(len(cells), max(tiles // many, 1)))
    return owner, low[owner] + within


def _grouped(pairs: np.ndarray) -> dict[int, list[int]]:
    """The second values of pairs by their first ones."""
    found: dict[int, list[int]] = {}
    for first, second in pairs.tolist():
        found.setdefault(first, []).append(second)
    return found


class TileLowering:
    """The gates of ranks whose workloads use collectives in tiles; cells are looked up once."""

    def __init__(self, place: Callable[[int, int], str]) -> None:
        #: ``place(rank, node)`` names a node of a workload for errors.
        self.place = place
        self.cells, self.pattern, self.order = cache(cells_of_rank), cache(self._pattern), cache(self._order)
        #: Gates by the uses of a trace, and by what each of its calls is on the rank.
        self.known: dict[tuple, TileGates] = {}

    def _pattern(
        self, algorithm: Algorithm, program: RankProgram, position: int, outputs: int, inputs: int
    ) -> _TilePattern:
        """The pattern for so many tiles of output and input (1: not in tiles)."""
        cells = self.cells(algorithm, position)
        of_row: dict[int, list[int]] = {}
        for node, row in enumerate(program.rows.tolist()):
            of_row.setdefault(row, []).append(node)
        if program.blocks is not None:
            # A step of a thread block is one node, under one of its rows.
            table = algorithm.program_of([position])
            of_step = {int(table.step[row]): nodes for row, nodes in of_row.items() if row >= 0}
            of_row = {row: of_step[step] for row, step in enumerate(table.step.tolist()) if step in of_step}

        def nodes(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
            """Pairs of each row's nodes and its value."""
            pairs = [(n, v) for r, v in zip(rows.tolist(), values.tolist(), strict=True) for n in of_row[r]]
            return np.unique(np.array(pairs, dtype=np.int64).reshape(-1, 2), axis=0)

        owner, tile = _tiles_of(np.arange(len(cells.last)), len(cells.last), outputs)
        row, same = cells.last[owner], cells.same[owner]
        written = row >= 0
        reads = nodes(row[written], tile[written])[:, ::-1]
        own, at = _tiles_of(same[~written], cells.inputs, inputs)
        at = np.where(same[~written][own] < 0, -1, at)
        present = np.unique(np.stack([tile[~written][own], at], axis=1), axis=0)
        if inputs == 1:
            return _TilePattern(reads, present, np.zeros((0, 2), dtype=np.int64))
        owner, tile = _tiles_of(cells.touched[:, 1], cells.inputs, inputs)
        row = cells.touched[owner, 0]
        # What a row waits for may have waited for the same tile.
        child, parent = cells.parents.T
        order = np.argsort(child, kind="stable")
        begin, end = (np.searchsorted(child[order], row, side=side) for side in ("left", "right"))
        pair, within = ranges(end - begin)
        known = np.isin(parent[order][begin[pair] + within] * inputs + tile[pair], row * inputs + tile)
        needed = np.ones(len(row), dtype=bool)
        needed[pair[known]] = False
        holds = nodes(row[needed], tile[needed])
        # Tiles that no step touches hold the end of the rank's part: its last receive, or else its last node.
        structure = program.structure
        ends = np.flatnonzero(np.diff(structure.succ_ptr) == 0)
        end = max(ends.tolist(), key=lambda node: (structure.kind[node] == RECV, node))
        rest = np.setdiff1d(np.arange(inputs), tile)
        return _TilePattern(reads, present, np.concatenate([holds, np.stack([np.full(len(rest), end), rest], axis=1)]))

    def gates(self, rank: int, program: RankProgram, instance_of: Callable[[int], Instance]) -> TileGates:
        """The gates of a rank; `program`: its workload's own.

        Raises AlgorithmError: an algorithm without cells, or a number of tiles that does not go with its chunks. Raises
        ScenarioError: a collective that runs dimension by dimension, a barrier, or a custom one.
        """
        assert program.tiles is not None, "only ranks that use tiles have gates"
        calls: dict[int, CollectiveCall] = {}
        for collective in np.unique(program.tiles.rows[:, 2]).tolist():
            instance = instance_of(int(program.instance[collective]))
            if instance.type in ("barrier", CUSTOM):
                what = f"is used in tiles, and a {instance.type} collective promises no parts of an input or output"
                raise ScenarioError(self.place(rank, collective), what, "wait for all of it: write tiles: 1")
            if instance.only_call is None:
                what = "is used in tiles, and its collective runs dimension by dimension"
                raise ScenarioError(self.place(rank, collective), what, "choose one algorithm for all of its ranks")
            calls[collective] = instance.only_call
        kinds = ((call.algorithm, call.programs, call.members.index(rank)) for call in calls.values())
        key = program.tiles, *kinds
        if key not in self.known:
            self.known[key] = self._made(rank, program.tiles.rows, calls)
        return self.known[key]

    def _made(self, rank: int, numbered: np.ndarray, calls: Mapping[int, CollectiveCall]) -> TileGates:
        gates = _GateColumns()
        rows = self.ordered(rank, numbered, calls)
        for collective, call in calls.items():
            uses = rows[rows[:, 2] == collective]
            consumers, producers = ([(n, t, k) for s, n, _, t, k, _ in uses.tolist() if s == side] for side in (0, 1))
            begin = gates.add(-1, collective) if producers else -1
            if call.algorithm is None:
                # A group of one: there is nothing to send.
                for node, _, _ in consumers:
                    gates.triggers.append((collective, ENDS, gates.add(-1, node)))
                gates.triggers += [(node, ENDS, begin) for node, _, _ in producers]
                continue
            patterns = self.patterns(rank, collective, call.algorithm, call, consumers, producers)
            holds = next(iter(patterns.values())).holds.tolist()
            makes: dict[int, list[int]] = {}
            for node, tile, _ in producers:
                makes.setdefault(tile, []).append(node)
                gates.triggers.append((node, ENDS, begin))
            held = {node: gates.add(collective, node) for node in dict.fromkeys(node for node, _ in holds)}
            gates.triggers += [(p, ENDS, held[node]) for node, tile in holds for p in makes[tile]]
            reads, there = ({k: _grouped(p[i]) for k, p in patterns.items()} for i in (0, 1))
            for node, tile, tiles in consumers:
                own, present = gates.add(-1, node), there[tiles].get(tile, [])
                gates.triggers += [(collective, n, own) for n in reads[tiles].get(tile, [])]
                gates.triggers += [(collective, BEGINS, own)] * bool(present)
                if producers:
                    gates.triggers += [(p, ENDS, own) for at in present if at >= 0 for p in makes[at]]
            if producers:
                gates.first.add(begin)
        return gates.made(rows)

    def ordered(self, rank: int, rows: np.ndarray, calls: Mapping[int, CollectiveCall]) -> np.ndarray:
        """Uses with the tiles themselves in place of their numbers in the order of the collective."""
        made = rows.copy()
        produced = {node: (collective, tiles) for side, node, collective, _, tiles, _ in rows.tolist() if side == 1}
        for row, (_, node, collective, tile, tiles, by_order) in enumerate(rows.tolist()):
            if not by_order:
                continue
            leads, many = produced.get(node, (collective, tiles))
            if many != tiles:
                what = f"has tile_order, consumes one of {tiles} tiles and produces one of {many}"
                raise ScenarioError(self.place(rank, node), what, "divide both by the same number, or drop tile_order")
            call = calls[leads]
            if call.algorithm is not None and call.algorithm.has_cells:
                made[row, 3] = self.order(call.algorithm, call.members.index(rank), tiles, node in produced)[tile]
        return made

    def _order(self, algorithm: Algorithm, position: int, tiles: int, produced: bool) -> list[int]:
        """Tiles of the input in the order in which a rank sends them, or of the output in that of their last writes."""
        cells = self.cells(algorithm, position)
        many = cells.inputs if produced else len(cells.last)
        at = np.full(many, len(cells.place) if produced else -1)
        if produced:
            sent = cells.touched[cells.sends[cells.touched[:, 0]]]
            np.minimum.at(at, sent[:, 1], cells.place[sent[:, 0]])
        else:
            written = cells.last >= 0
            at[written] = cells.place[cells.last[written]]
        owner, tile = _tiles_of(np.arange(many), many, tiles)
        of_tile = np.full(tiles, len(cells.place) if produced else -1)
        (np.minimum if produced else np.maximum).at(of_tile, tile, at[owner])
        return np.argsort(of_tile, kind="stable").tolist()

    def patterns(
        self,
        rank: int,
        collective: int,
        algorithm: Algorithm,
        call: CollectiveCall,
        consumers: Iterable[tuple],
        producers: Iterable[tuple],
    ) -> dict[int, _TilePattern]:
        """The patterns of a call by the number of tiles of its output; 1 where its output is not used in tiles."""
        place = self.place(rank, collective)
        if not algorithm.has_cells:
            what = f"is used in tiles, and {algorithm.name} does not say which cells its steps read and write"
            raise AlgorithmError(place, what, "use an algorithm with cells, or tiles: 1")
        position = call.members.index(rank)
        cells = self.cells(algorithm, position)
        sizes = []
        for word, many, listed in (("output", len(cells.last), consumers), ("input", cells.inputs, producers)):
            tiles = {k for _, _, k in listed}
            for k in sorted(tiles):
                if many % k and k % many:
                    what = f"is used in {k} tiles, and {algorithm.name} has {many} chunks of {word} on a rank"
                    raise AlgorithmError(place, what, f"write tiles: {_near(many, k)}, or change its chunks")
            sizes.append(tiles)
        program = call.programs.shared[position]
        outputs, (inputs, *_) = (sorted(each) or [1] for each in sizes)
        return {tiles: self.pattern(algorithm, program, position, tiles, inputs) for tiles in outputs}


def _near(many: int, tiles: int) -> int:
    """The number of tiles next to a wrong one that goes with `many` chunks."""
    return min((k for k in range(1, 2 * tiles + 1) if many % k == 0 or k % many == 0), key=lambda k: abs(k - tiles))


class _GateColumns:
    """Gates as they are made."""

    def __init__(self) -> None:
        self.targets: list[tuple[int, int]] = []
        self.triggers: list[tuple[int, int, int]] = []
        self.first: set[int] = set()

    def add(self, collective: int, node: int) -> int:
        self.targets.append((collective, node))
        return len(self.targets) - 1

    def made(self, uses: np.ndarray) -> TileGates:
        triggers = np.unique(np.array(self.triggers, dtype=np.int64).reshape(-1, 3), axis=0)
        targets = np.array(self.targets, dtype=np.int64).reshape(-1, 2)
        count = np.bincount(triggers[:, 2], minlength=len(targets))
        count[sorted(self.first)] = 1
        return TileGates(uses, count, targets[:, 0], targets[:, 1], triggers)


def tile_gates(
    programs: Mapping[int, RankProgram], instance_of: Callable[[int], Instance], place: Callable[[int, int], str]
) -> dict[int, TileGates]:
    """The gates of the ranks whose workloads (`programs`, by rank) use collectives in tiles."""
    lowering = TileLowering(place)
    return {rank: lowering.gates(rank, program, instance_of) for rank, program in programs.items()}
