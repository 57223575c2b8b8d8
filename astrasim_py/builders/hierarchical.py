"""Multi-dimensional algorithms: a collective as phases along the dimensions of the group, any algorithm in each.

Ranks have coordinates (a0, a1, …), rank = a0 + n0·(a1 + n1·(…)). A phase runs one algorithm in all groups of ranks
that differ in one coordinate only. Sources: Cho et al. 2019 ("BlueConnect", reduce_scatter up and all_gather down the
dimensions); Chan et al. 2007 (§ on multidimensional meshes); the two-phase all_to_all of MSCCL and of hypercubes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import lcm, prod

import numpy as np

from astrasim_py.builders.draft import (
    NONE,
    Draft,
    Place,
    check_count,
    check_nodes,
    check_program,
    finish,
    finish_rotated,
)
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import PEERS, Rotation

Builder = Callable[..., Algorithm]


def build(
    build_phase: Builder,
    collective: str,
    ranks: int,
    *,
    root: int | None = None,
    dims: Sequence[int] = (),
    algorithms: Sequence[str | Mapping] | None = None,
    chunks: int = 1,
) -> Algorithm:
    """Multi-dimensional algorithm.

    all_reduce is a reduce_scatter in every dimension from 0 up, an all_reduce in the last, and the all_gathers back
    down: most bytes move in dimension 0, which should be the fastest. reduce_scatter and all_gather are the two
    halves, with a local permutation of shards before or after. all_to_all exchanges in each dimension, all blocks
    for one coordinate together. broadcast goes from the last dimension down, reduce from 0 up; a barrier is one in
    every dimension. On a rank a phase begins when what it received and summed in the phase before is complete.

    `build_phase`: ``build_phase(name, collective, ranks, **options)`` builds the algorithm of a phase. `dims`: size of
    each dimension, 0 (the fastest varying coordinate) first; their product is `ranks`. `algorithms`: for each dimension
    the name of a builder, or ``{"builder": name, option: value}``; ring by default. `chunks`: pieces of the buffer (of
    every shard) that go through the phases as a pipeline, one piece per phase at a time.

    Raises AlgorithmError: dimensions that do not make up the group, or an algorithm that does not know the collective
    of its phase.
    """
    place = f"hierarchical {collective} over {ranks} ranks"
    wrong = isinstance(dims, str) or not isinstance(dims, Sequence)
    _refuse(wrong, place, f"dims is {dims!r}, not a list", "write e.g. dims: [8, 8]")
    sizes = [check_count(size, "dims", place) for size in dims]
    product = prod(sizes) if sizes else 0
    problem = f"dims {list(dims)} are {product} ranks, the group has {ranks}"
    _refuse(product != ranks, place, problem, "write dims whose product is the size of the group")
    names = ["ring"] * len(sizes) if algorithms is None else algorithms
    problem = f"algorithms {names!r} are not one for each of {len(sizes)} dims"
    _refuse(isinstance(names, str) or len(names) != len(sizes), place, problem, "write e.g. [ring, direct]")
    levels = [(*_builder(build_phase, name, place), size) for name, size in zip(names, sizes, strict=True)]
    name = f"hierarchical({', '.join(f'{label}[{size}]' for label, _, size in levels)})"
    # A dimension of one rank has no phase.
    levels = [level for level in levels if level[2] > 1] or levels[:1]
    phases = _Phases(collective, [(make, size) for _, make, size in levels], root, chunks, place)
    in_place = collective != "all_to_all"
    rotation = phases.rotation()
    if rotation is not None:
        return finish_rotated(phases.draft, rotation, name, collective, in_place=in_place)
    return finish(phases.draft(np.arange(ranks)), name, collective, root=root, in_place=in_place)


def _refuse(wrong: bool, place: str, problem: str, remedy: str) -> None:
    if wrong:
        raise AlgorithmError(place, problem, remedy)


def _builder(build_phase: Builder, spec: str | Mapping, place: str) -> tuple[str, Builder]:
    """Label and factory (collective, ranks, root=…) of the algorithm of one dimension."""
    options = dict(spec) if isinstance(spec, Mapping) else {"builder": spec}
    name = options.pop("builder", None)
    problem = f"{spec!r} is not the algorithm of a dimension"
    _refuse(
        not isinstance(name, str) or name == "hierarchical", place, problem, "write the name of a builder, e.g. ring"
    )
    return name, partial(build_phase, name, **options)


class _Phase:
    """An algorithm of one dimension, which is placed in all groups of that dimension."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.chunks = algorithm, algorithm.chunks
        # Ranks of a rotation have as many nodes and tags and as much scratch as its first.
        program = algorithm.program_of([0]) if algorithm.rotation else algorithm.program
        self.tags = int(program.column("comm_tag").max(initial=-1)) + 1
        self.depth = int(np.diff(program.bounds).max())
        self.scratch = 0
        for side in ("src", "dst"):
            ends = program.column(f"{side}_off") + program.column("msg_chunk_cnt")
            own = ends[program.column(f"{side}_buf") == Buffer.SCRATCH]
            self.scratch = max(self.scratch, int(own.max(initial=0)))


class _Phases:
    """The phases of one collective, and what they have in common."""

    def __init__(
        self, collective: str, levels: list[tuple[Builder, int]], root: int | None, pieces: int, place: str
    ) -> None:
        self.collective, self.levels, self.root, self.place = collective, levels, root, place
        self.pieces = 1 if collective == "barrier" else pieces
        self.sizes = [size for _, size in levels]
        self.n = prod(self.sizes)
        self.strides = [prod(self.sizes[:d]) for d in range(len(levels))]
        #: True if a phase works on the part of the buffer that the phases below it leave to a rank.
        self.nested = collective in ("all_reduce", "reduce_scatter", "all_gather")
        self._made: dict[tuple[str, int], _Phase] = {}
        sharded = promise_of(collective).sharded
        # Pieces of shards do not lie side by side, nor do shards of one coordinate: both take copies.
        self.permuted = sharded and (len(levels) > 1 or self.pieces > 1)
        #: Chunks of one piece: the least number that every phase can cut as it needs.
        self.total = 1
        if collective != "barrier":
            needs = [self.made(c, d).chunks * (self.strides[d] if self.nested else 1) for c, d in self.order()]
            self.total = lcm(*needs, self.n if sharded else 1)

    def coordinates(self, ranks: np.ndarray) -> list[np.ndarray]:
        """Coordinates of ranks, one array per dimension."""
        return [ranks // s % size for s, size in zip(self.strides, self.sizes, strict=True)]

    def made(self, collective: str, d: int) -> _Phase:
        """The algorithm of a phase in dimension d."""
        if (collective, d) not in self._made:
            make, size = self.levels[d]
            rooted = {"root": self.root // self.strides[d] % size} if promise_of(collective).rooted else {}
            self._made[collective, d] = _Phase(make(collective, size, **rooted))
        return self._made[collective, d]

    def order(self) -> list[tuple[str, int]]:
        """(collective, dimension) of every phase in order."""
        up = range(len(self.levels))
        if self.collective == "all_reduce":
            scatters = [("reduce_scatter", d) for d in up[:-1]]
            gathers = [("all_gather", d) for d in reversed(up[:-1])]
            return [*scatters, ("all_reduce", len(self.levels) - 1), *gathers]
        down = self.collective in ("all_gather", "broadcast")
        return [(self.collective, d) for d in (reversed(up) if down else up)]

    def rotation(self) -> Rotation | None:
        """That of the whole, where the phases of every dimension have one in common."""
        rotations = [(d, self.made(collective, d).algorithm.rotation) for collective, d in self.order()]
        dims: list[int] = []
        for d in range(len(self.levels)):
            found = {rotation for where, rotation in rotations if where == d}
            if None in found or len(found) > 1:
                return None
            dims += found.pop().dims
        return Rotation(tuple(dims))

    def length(self, d: int) -> int:
        """Chunks of a piece that a phase of dimension d works on."""
        return self.total // self.strides[d] if self.nested else self.total

    def draft(self, which: np.ndarray) -> Draft:
        """The algorithm for some ranks int64[k], which are ranks 0..k-1 of the draft."""
        order = self.order()
        nodes = sum(self.made(c, d).algorithm.nodes * (self.n // self.sizes[d]) for c, d in order)
        nodes = self.pieces * (nodes + (self.n**2 * len(order) if self.permuted else 0))
        if self.rotation() is None:
            check_nodes(self.place, nodes)
        else:
            check_program(self.place, nodes // self.n)
        layout = _Layout(self, which)
        for piece in range(self.pieces):
            layout.lay(piece)
        return layout.draft


class _Layout:
    """The draft for some ranks, and how far it is laid. Ranks are meant by their places among those ranks."""

    def __init__(self, plan: _Phases, which: np.ndarray) -> None:
        self.plan, self.which = plan, which
        self.draft = Draft(len(which), plan.total * plan.pieces)
        self.coordinates = plan.coordinates(which)
        self.tag = self.order = self.scratch = 0
        #: The current piece; the handle that completes it so far, by rank; and such handles after every phase, of
        #: this piece and of the one before.
        self.piece, self.done = 0, self.nothing()
        self.ends: list[np.ndarray] = []
        self.before: list[np.ndarray] = []

    def nothing(self) -> np.ndarray:
        """int64[k] of NONE."""
        return np.full(len(self.which), NONE, dtype=np.int64)

    def lay(self, piece: int) -> None:
        """Lay all phases of one piece."""
        self.piece, self.done = piece, self.nothing()
        self.before, self.ends = self.ends, []
        (self.lay_all_to_all if self.plan.collective == "all_to_all" else self.lay_nested)()

    def shard(self, rank: np.ndarray) -> np.ndarray:
        """First chunk of this piece of each rank's shard in the user's buffer."""
        per = self.plan.total // self.plan.n
        return rank * per * self.plan.pieces + self.piece * per

    def area(self) -> int:
        """A fresh part of scratch as large as the piece."""
        self.scratch += self.plan.total
        return self.scratch - self.plan.total

    def complete(self, rank: np.ndarray, handles: np.ndarray) -> np.ndarray:
        """One handle per rank for several of them: a join where there is more than one."""
        done = self.nothing()
        done[rank] = handles
        many = np.flatnonzero(np.bincount(rank, minlength=len(done)) > 1)
        if len(many):
            done[many] = self.draft.join(many, order=self.order)
            self.order += 1
            waiting = np.isin(rank, many)
            self.draft.depend(done[rank[waiting]], handles[waiting])
        return done

    def copies(self, source: tuple[int, np.ndarray], target: tuple[int, np.ndarray], count: int) -> None:
        """On every rank copy ranges of `count` chunks; offsets are int64[ranges] or int64[k, ranges]."""
        shape = (len(self.which), max(np.shape(source[1])[-1], np.shape(target[1])[-1]))
        rank = np.broadcast_to(np.arange(shape[0])[:, None], shape).ravel()
        begin, end = (np.broadcast_to(at, shape).ravel() for _, at in (source, target))
        handles = self.draft.copy(
            rank=rank, idx=0, cnt=count, src=(source[0], begin), dst=(target[0], end),
            after=(self.done[rank],), order=self.order,
        )  # fmt: skip
        self.order += 1
        self.done = self.complete(rank, handles)

    def taking_part(self, d: int) -> np.ndarray:
        """int64[m]: ranks whose groups of dimension d take part."""
        taking = np.ones(len(self.which), dtype=bool)
        if promise_of(self.plan.collective).rooted:
            # Lower coordinates are the root's: the others have nothing yet (broadcast) or no more (reduce).
            for lower, root in enumerate(self.plan.coordinates(np.array([self.plan.root]))[:d]):
                taking &= self.coordinates[lower] == root
        return np.flatnonzero(taking)

    def run(self, phase: tuple[str, int], who: np.ndarray, at: np.ndarray, buffers: Mapping[int, Place]) -> None:
        """Run a phase in all groups at once.

        `at` is the first chunk of the part of the piece that the group of each rank works on; `buffers` maps the
        algorithm's buffers to (buffer, offsets).
        """
        plan, draft, made, number = self.plan, self.draft, self.plan.made(*phase), len(self.ends)
        stride, coordinate = plan.strides[phase[1]], self.coordinates[phase[1]][who]
        positions, which = np.unique(coordinate, return_inverse=True)
        program = made.algorithm.program_of(positions).some(which)
        given, owner, shift = program.column, program.rank, int(draft.next_handles(1)[0])
        rank, origin = who[owner], (self.which[who] - coordinate * stride)[owner]
        # A chunk of the algorithm is so many chunks of the buffer.
        width = plan.length(phase[1]) // made.chunks
        index = (self.piece * plan.total + at)[owner]

        def where(name: str, values: np.ndarray) -> np.ndarray:
            return np.where(given(name) == MISSING, MISSING, values)

        values: dict[str, object] = {
            "type": program.type,
            "rank": rank,
            "order": self.order + program.place,
            "comp_op": given("comp_op"),
            "comm_tag": where("comm_tag", given("comm_tag") + self.tag),
            "msg_chunk_cnt": where("msg_chunk_cnt", given("msg_chunk_cnt") * width),
            "msg_chunk_idx": where("msg_chunk_cnt", given("msg_chunk_idx") * width + index),
            "payload": np.where(program.payload < 0, NONE, program.payload + shift),
        }
        for name in PEERS:
            values[name] = where(name, origin + given(name) * stride)
        buffers = {**buffers, int(Buffer.SCRATCH): (int(Buffer.SCRATCH), np.full(len(who), self.scratch))}
        for side in ("src", "dst"):
            old = given(f"{side}_buf")
            buffer, offset = np.full_like(old, MISSING), np.full_like(old, MISSING)
            for each, (new, first) in buffers.items():
                mine = old == each
                buffer[mine], offset[mine] = new, (given(f"{side}_off") * width + first[owner])[mine]
            values[f"{side}_buf"], values[f"{side}_off"] = buffer, offset
        draft.extend(len(program), values)
        draft.depend(program.child + shift, program.parents + shift)
        first = np.flatnonzero(np.diff(program.ptr) == 0)
        # It begins when the phase before is complete, and so is this phase of the piece before.
        for handles in (self.done, *self.before[number : number + 1]):
            waits = handles[rank[first]]
            draft.depend(first[waits != NONE] + shift, waits[waits != NONE])
        self.order, self.tag = self.order + made.depth, self.tag + made.tags
        self.scratch += made.scratch * width
        # It is complete with the receives and local operations that nothing else waits for. Its sends need not be
        # delivered: what overwrites their chunks later is made of what they carry.
        local = program.type != NodeType.COMM_SEND
        local[program.parents[local[program.child]]] = False
        last = np.flatnonzero(local)
        ended = self.complete(rank[last], last + shift)
        # A rank that takes no part in this phase is where it was.
        self.done = np.where(ended == NONE, self.done, ended)
        self.ends.append(self.done)

    def lay_nested(self) -> None:
        """Phases that work on nested contiguous parts: dimension 0 cuts the buffer, dimension 1 each part, …"""
        plan, collective = self.plan, self.plan.collective
        per, parts = plan.total // plan.n, [plan.length(d) // size for d, size in enumerate(plan.sizes)]
        buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
        inner = self.piece * plan.total

        def nested(coordinates: list[np.ndarray]) -> np.ndarray:
            """First chunks of shards in nested order."""
            return inner + sum(c * part for c, part in zip(coordinates, parts, strict=True))

        if plan.permuted:
            buffer, inner = Buffer.SCRATCH, self.area()
            every = np.arange(plan.n)
            shards, own = self.shard(every), self.shard(self.which)[:, None]
            all_nested, own_nested = nested(plan.coordinates(every)), nested(self.coordinates)[:, None]
            if collective == "reduce_scatter":
                self.copies((Buffer.INPUT, shards), (buffer, all_nested), per)
            else:
                self.copies((Buffer.OUTPUT, own), (buffer, own_nested), per)
        for phase in plan.order():
            who = self.taking_part(phase[1])
            at = np.zeros(len(who), dtype=np.int64)
            for lower in range(phase[1] if plan.nested else 0):
                at += self.coordinates[lower][who] * parts[lower]
            place = (int(buffer), at + inner)
            self.run(phase, who, at, {1: place, 2: place})
        if plan.permuted and collective == "all_gather":
            self.copies((buffer, all_nested), (Buffer.OUTPUT, shards), per)
        elif plan.permuted:
            self.copies((buffer, own_nested), (Buffer.INPUT, own), per)

    def lay_all_to_all(self) -> None:
        """all_to_all: before phase d a rank holds the blocks whose coordinates below d are those of their origin
        and whose others are those of their destination; the phase turns coordinate d.
        """
        plan, n = self.plan, self.plan.n
        block, every = plan.total // n, np.arange(n)
        coordinates = plan.coordinates(every)
        buffer, where = Buffer.INPUT, self.shard(every)
        order = plan.order()
        for phase in order:
            stride, size = plan.strides[phase[1]], plan.sizes[phase[1]]
            # The coordinate of the phase outermost: what goes to one member is one range.
            layout = coordinates[phase[1]] * (n // size) + every % stride + every // (stride * size) * stride
            if not (buffer == Buffer.INPUT and plan.pieces == 1 and np.array_equal(layout, every)):
                source, area = (buffer, where), self.area()
                buffer, where = Buffer.SCRATCH, area + layout * block
                self.copies(source, (buffer, where), block)
            direct = phase == order[-1] and plan.pieces == 1
            target, offset = (Buffer.OUTPUT, 0) if direct else (Buffer.SCRATCH, self.area())
            zero = np.zeros(len(self.which), dtype=np.int64)
            places = {1: (int(buffer), zero + int(where.min())), 2: (int(target), zero + offset)}
            self.run(phase, np.arange(len(self.which)), zero, places)
            buffer, where = target, offset + layout * block
        if buffer != Buffer.OUTPUT:
            self.copies((buffer, where), (Buffer.OUTPUT, self.shard(every)), block)
