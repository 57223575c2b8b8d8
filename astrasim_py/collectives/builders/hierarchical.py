"""Multi-dimensional algorithms: a collective as phases along the dimensions of the group, any algorithm in each.

Ranks have coordinates (a0, a1, …), rank = a0 + n0·(a1 + n1·(…)). A phase runs one algorithm in all groups of ranks
that differ in one coordinate only. Sources: Cho et al. 2019 ("BlueConnect", reduce_scatter up and all_gather down the
dimensions); Chan et al. 2007 (§ on multidimensional meshes); the two-phase all_to_all of MSCCL and of hypercubes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import lcm, prod

import numpy as np

from astrasim_py.chakra.trace import MISSING, NodeType
from astrasim_py.collectives.algorithm import SHARDED, Algorithm, Buffer
from astrasim_py.collectives.builders.draft import NONE, Flat, check_nodes, finish
from astrasim_py.collectives.builders.options import check_count
from astrasim_py.core.errors import AlgorithmError

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "barrier",
)

Builder = Callable[..., Algorithm]


def build(
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

    Parameters
    ----------
    collective : str
    ranks : int
    root : int, optional
    dims : sequence of int
        Size of each dimension, 0 (the fastest varying coordinate) first; their product is `ranks`.
    algorithms : sequence of str or mapping, optional
        For each dimension the name of a builder, or ``{"builder": name, option: value}``; ring by default.
    chunks : int
        Pieces of the buffer (of every shard) that go through the phases as a pipeline, one piece per phase at a time.

    Returns
    -------
    Algorithm

    Raises
    ------
    AlgorithmError
        Dimensions that do not make up the group, or an algorithm that does not know the collective of its phase.
    """
    place = f"hierarchical {collective} over {ranks} ranks"
    pieces = check_count(chunks, "chunks", place)
    if isinstance(dims, str) or not isinstance(dims, Sequence):
        raise AlgorithmError(place, f"dims is {dims!r}, not a list", "write e.g. dims: [8, 8]")
    sizes = [check_count(size, "dims", place) for size in dims]
    if prod(sizes) != ranks or not sizes:
        raise AlgorithmError(
            place,
            f"dims {list(dims)} are {prod(sizes) if sizes else 0} ranks, the group has {ranks}",
            "write dims whose product is the size of the group",
        )
    names = ["ring"] * len(sizes) if algorithms is None else algorithms
    if isinstance(names, str) or len(names) != len(sizes):
        raise AlgorithmError(
            place, f"algorithms {names!r} are not one for each of {len(sizes)} dims", "write e.g. [ring, direct]"
        )
    levels = [_Level(*_builder(name, place), size) for name, size in zip(names, sizes, strict=True)]
    label = ", ".join(f"{level.label}[{level.size}]" for level in levels)
    # A dimension of one rank has no phase.
    levels = [level for level in levels if level.size > 1] or levels[:1]
    planner = _Planner(collective, levels, root, pieces, place)
    draft = planner.draft()
    in_place = collective != "all_to_all"
    return finish(draft, f"hierarchical({label})", collective, root=root, in_place=in_place)


def _builder(spec: str | Mapping, place: str) -> tuple[str, Builder]:
    """Label and factory (collective, ranks, root=…) of the algorithm of one dimension."""
    from astrasim_py.collectives import builders

    options = dict(spec) if isinstance(spec, Mapping) else {"builder": spec}
    name = options.pop("builder", None)
    if not isinstance(name, str) or name == "hierarchical":
        raise AlgorithmError(
            place, f"{spec!r} is not the algorithm of a dimension", "write the name of a builder, e.g. ring"
        )

    def factory(collective: str, ranks: int, **more) -> Algorithm:
        return builders.build(name, collective, ranks, **options, **more)

    return name, factory


class _Level:
    """One dimension: its algorithm and size."""

    def __init__(self, label: str, factory: Builder, size: int) -> None:
        self.label, self.factory, self.size = label, factory, size


class _Program:
    """An algorithm of one dimension as one table: rows of all its ranks, ready to be placed in many groups."""

    FIELDS = ("comm_tag", "msg_chunk_idx", "msg_chunk_cnt", "comp_op", "src_buf", "src_off", "dst_buf", "dst_off")

    def __init__(self, algorithm: Algorithm) -> None:
        traces = algorithm.traces
        starts = np.cumsum([0, *(len(t) for t in traces)])
        self.chunks = algorithm.chunks
        self.size = int(starts[-1])
        self.rank = np.repeat(np.arange(algorithm.ranks), [len(t) for t in traces])
        self.type = np.concatenate([t.type for t in traces]).astype(np.int64)
        self.columns = {f: np.concatenate([t.column(f) for t in traces]) for f in self.FIELDS}
        self.peer = np.concatenate(
            [np.where(t.type == NodeType.COMM_SEND, t.column("comm_dst"), t.column("comm_src")) for t in traces]
        )
        # A topological position is an order also where ids are not.
        position, payload, child, parent = [], [], [], []
        for t, start in zip(traces, starts.tolist(), strict=False):
            order = np.empty(len(t), dtype=np.int64)
            order[t.order()] = np.arange(len(t))
            position.append(order)
            taken = t.column("payload")
            rows = t.rows_of(np.where(taken == MISSING, 0, taken).astype(np.uint64))
            payload.append(np.where(taken == MISSING, NONE, rows + start))
            ptr, rows = t.parents()
            child.append(np.repeat(np.arange(len(t)), np.diff(ptr)) + start)
            parent.append(rows + start)
        self.position, self.payload = np.concatenate(position), np.concatenate(payload)
        self.child, self.parent = np.concatenate(child), np.concatenate(parent)
        self.first = np.flatnonzero(np.bincount(self.child, minlength=self.size) == 0)
        # What makes a phase complete on a rank: receives and local operations that none other waits for. Own sends
        # need not be delivered: what overwrites their cells later is made of what they carry.
        local = self.type != NodeType.COMM_SEND
        inner = np.zeros(self.size, dtype=bool)
        inner[self.parent[local[self.child]]] = True
        self.last = np.flatnonzero(local & ~inner)
        scratch = [
            np.where(
                self.columns[f"{end}_buf"] == Buffer.SCRATCH,
                self.columns[f"{end}_off"] + self.columns["msg_chunk_cnt"],
                0,
            )
            for end in ("src", "dst")
        ]
        self.scratch = int(max((part.max(initial=0) for part in scratch), default=0))
        self.tags = int(self.columns["comm_tag"].max(initial=-1)) + 1
        self.depth = int(self.position.max(initial=-1)) + 1


class _Planner:
    """Lays out the phases of one collective."""

    def __init__(self, collective: str, levels: list[_Level], root: int | None, pieces: int, place: str) -> None:
        self.collective, self.levels, self.root, self.pieces, self.place = (
            collective, levels, root, pieces, place,
        )  # fmt: skip
        self.sizes = [level.size for level in levels]
        self.n = prod(self.sizes)
        self.strides = [prod(self.sizes[:d]) for d in range(len(levels))]
        rank = np.arange(self.n)
        self.coordinates = [rank // s % size for s, size in zip(self.strides, self.sizes, strict=True)]
        self._programs: dict[tuple[str, int], _Program] = {}
        self.tag = self.order = 0

    def program(self, collective: str, d: int) -> _Program:
        """The algorithm of dimension d for one phase."""
        key = (collective, d)
        if key not in self._programs:
            more = {"root": int(self.coordinates[d][self.root])} if collective in ("broadcast", "reduce") else {}
            self._programs[key] = _Program(self.levels[d].factory(collective, self.levels[d].size, **more))
        return self._programs[key]

    def phases(self) -> list[tuple[str, int]]:
        """(collective, dimension) of every phase in order."""
        up = range(len(self.levels))
        down = range(len(self.levels) - 1, -1, -1)
        if self.collective == "all_reduce":
            top = len(self.levels) - 1
            return [
                *(("reduce_scatter", d) for d in up[:-1]),
                ("all_reduce", top),
                *(("all_gather", d) for d in down[1:]),
            ]
        order = down if self.collective in ("all_gather", "broadcast") else up
        return [(self.collective, d) for d in order]

    def length(self, d: int, total: int) -> int:
        """Chunks that a phase of dimension d works on, of `total` in a piece."""
        nested = self.collective in ("all_reduce", "reduce_scatter", "all_gather")
        return total // prod(self.sizes[:d]) if nested else total

    def chunks(self) -> int:
        """Chunks of one piece: the least number that every phase can cut as it needs."""
        nested = self.collective in ("all_reduce", "reduce_scatter", "all_gather")
        needs = [
            self.program(collective, d).chunks * (prod(self.sizes[:d]) if nested else 1)
            for collective, d in self.phases()
        ]
        return lcm(*needs, self.n if self.collective in SHARDED else 1)

    def draft(self) -> Flat:
        barrier = self.collective == "barrier"
        total = 1 if barrier else self.chunks()
        pieces = 1 if barrier else self.pieces
        phases = self.phases()
        nodes = sum(self.program(c, d).size * (self.n // self.sizes[d]) for c, d in phases)
        # Pieces of shards do not lie side by side, nor do shards of one coordinate: both take copies.
        permuted = self.collective in SHARDED and (len(self.levels) > 1 or pieces > 1)
        check_nodes(self.place, pieces * (nodes + (self.n**2 * len(phases) if permuted else 0)))
        draft = Flat(self.n, total * pieces)
        scratch = 0
        before: list[np.ndarray] = []  # per phase: what completes it for the piece before
        for piece in range(pieces):
            run = _Piece(self, draft, piece, total, pieces, scratch, permuted)
            before = run.lay(phases, before)
            scratch = run.scratch
        return draft

    def place_program(
        self,
        draft: Flat,
        program: _Program,
        members: np.ndarray,
        *,
        width: int,
        index: np.ndarray,
        buffers: Mapping[int, tuple[int, np.ndarray]],
        start: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Run a program in many groups at once.

        Parameters
        ----------
        draft : Flat
        program : _Program
        members : numpy.ndarray
            int64[groups, size]: rank of each member.
        width : int
            Chunks of the whole buffer per chunk of the program.
        index : numpy.ndarray
            int64[groups]: first chunk of the group's part of the buffer.
        buffers : mapping
            The program's buffer -> (buffer, int64[groups] offset).
        start : sequence of numpy.ndarray
            int64[n] handles that a rank's first nodes wait for.

        Returns
        -------
        numpy.ndarray
            int64[n]: for every rank the handle that says its part is complete; NONE for ranks without a part.
        """
        groups = len(members)
        rank = members[:, program.rank].ravel()

        def spread(values: np.ndarray) -> np.ndarray:
            return np.tile(values, groups)

        def per_group(values: np.ndarray) -> np.ndarray:
            return np.repeat(values, program.size)

        base = draft.next_handles(groups * program.size)[0] if program.size else 0
        shift = base + np.repeat(np.arange(groups) * program.size, program.size)
        given = {name: spread(column) for name, column in program.columns.items()}
        values: dict[str, object] = {
            "type": spread(program.type),
            "rank": rank,
            "order": self.order + spread(program.position),
            "comp_op": given["comp_op"],
            "comm_tag": np.where(given["comm_tag"] == MISSING, MISSING, given["comm_tag"] + self.tag),
        }
        known = given["msg_chunk_cnt"] != MISSING
        values["msg_chunk_cnt"] = np.where(known, given["msg_chunk_cnt"] * width, MISSING)
        values["msg_chunk_idx"] = np.where(known, given["msg_chunk_idx"] * width + per_group(index), MISSING)
        for end in ("src", "dst"):
            buffer, offset = given[f"{end}_buf"], given[f"{end}_off"]
            new_buffer, new_offset = np.full_like(buffer, MISSING), np.full_like(buffer, MISSING)
            for old, (new, shift_by) in buffers.items():
                mine = buffer == old
                new_buffer[mine] = new
                new_offset[mine] = (offset * width + per_group(shift_by))[mine]
            values[f"{end}_buf"], values[f"{end}_off"] = new_buffer, new_offset
        peer = members[:, np.maximum(program.peer, 0)].ravel()
        sends = spread(program.type == NodeType.COMM_SEND)
        recvs = spread(program.type == NodeType.COMM_RECV)
        values["comm_dst"] = np.where(sends, peer, MISSING)
        values["comm_src"] = np.where(recvs, peer, MISSING)
        payload = spread(program.payload)
        values["payload"] = np.where(payload == NONE, NONE, payload + shift)
        draft.extend(groups * program.size, values)
        offsets = (base + np.arange(groups) * program.size)[:, None]
        draft.depend((offsets + program.child).ravel(), (offsets + program.parent).ravel())
        first = (offsets + program.first).ravel()
        for handles in start:
            waits = handles[rank[first - base]]
            draft.depend(first[waits != NONE], waits[waits != NONE])
        self.order += program.depth
        self.tag += program.tags
        last = (offsets + program.last).ravel()
        return self.complete(draft, rank[last - base], last)

    def complete(self, draft: Flat, rank: np.ndarray, handles: np.ndarray) -> np.ndarray:
        """One handle per rank for several of them: a join where there is more than one."""
        done = np.full(self.n, NONE, dtype=np.int64)
        done[rank] = handles
        many = np.flatnonzero(np.bincount(rank, minlength=self.n) > 1)
        if len(many):
            joins = draft.join(many, order=self.order)
            self.order += 1
            done[many] = joins
            waiting = np.isin(rank, many)
            draft.depend(done[rank[waiting]], handles[waiting])
        return done


class _Piece:
    """One piece of the buffer on its way through the phases."""

    def __init__(
        self, plan: _Planner, draft: Flat, piece: int, total: int, pieces: int, scratch: int, permuted: bool
    ) -> None:
        self.plan, self.draft, self.piece, self.total, self.pieces = plan, draft, piece, total, pieces
        self.scratch, self.permuted = scratch, permuted
        #: First chunk of this piece in the numbering of messages.
        self.base = piece * total
        self.done = np.full(plan.n, NONE, dtype=np.int64)

    def shard(self, rank: np.ndarray) -> np.ndarray:
        """First chunk of this piece of each rank's shard in the user's buffer."""
        per = self.total // self.plan.n
        return rank * per * self.pieces + self.piece * per

    def area(self) -> int:
        """A fresh part of scratch as large as the piece."""
        self.scratch += self.total
        return self.scratch - self.total

    def copies(self, source: tuple[int, np.ndarray], target: tuple[int, np.ndarray], count: int) -> None:
        """On every rank copy ranges of `count` chunks; offsets are int64[ranges] or int64[n, ranges]."""
        plan = self.plan
        shape = (plan.n, max(np.shape(source[1])[-1], np.shape(target[1])[-1]))
        rank = np.broadcast_to(np.arange(plan.n)[:, None], shape).ravel()
        begin, end = (np.broadcast_to(at, shape).ravel() for _, at in (source, target))
        handles = self.draft.copy(
            rank=rank, idx=0, cnt=count, src=(source[0], begin), dst=(target[0], end),
            after=(self.done[rank],), order=plan.order,
        )  # fmt: skip
        plan.order += 1
        self.done = plan.complete(self.draft, rank, handles)

    def lay(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """Lay all phases; returns what completes each."""
        if self.plan.collective == "all_to_all":
            return self._lay_all_to_all(phases, before)
        return self._lay_nested(phases, before)

    def _groups(self, d: int) -> np.ndarray:
        """int64[groups, size]: members of every group of dimension d that takes part."""
        plan = self.plan
        first = plan.coordinates[d] == 0
        if plan.collective in ("broadcast", "reduce"):
            # Lower coordinates are the root's: the others have nothing yet (broadcast) or no more (reduce).
            for lower in range(d):
                first &= plan.coordinates[lower] == plan.coordinates[lower][plan.root]
        return np.flatnonzero(first)[:, None] + np.arange(plan.sizes[d]) * plan.strides[d]

    def _run(
        self,
        phase: tuple[str, int],
        before: list[np.ndarray],
        number: int,
        *,
        width: int,
        at: np.ndarray,
        buffers: Mapping[int, tuple[int, np.ndarray]],
    ) -> np.ndarray:
        plan, program = self.plan, self.plan.program(*phase)
        members = self._groups(phase[1])
        zero = np.zeros(len(members), dtype=np.int64)
        places = {**buffers, int(Buffer.SCRATCH): (int(Buffer.SCRATCH), zero + self.scratch)}
        self.scratch += program.scratch * width
        start = [self.done, *(before[number : number + 1])]
        ended = plan.place_program(
            self.draft, program, members, width=width, index=self.base + at, buffers=places, start=start
        )
        # A rank without a part in this phase is where it was.
        self.done = np.where(ended == NONE, self.done, ended)
        return self.done

    def _lay_nested(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """Phases that work on nested contiguous parts: dimension 0 cuts the buffer, dimension 1 each part, …"""
        plan, collective = self.plan, self.plan.collective
        n, every = plan.n, np.arange(plan.n)
        buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
        sharded = collective in ("all_gather", "reduce_scatter")
        inner = self.base
        nested = np.zeros(n, dtype=np.int64)  # where each rank's shard lies in nested order
        if sharded:
            for d, size in enumerate(plan.sizes):
                nested += plan.coordinates[d] * plan.length(d, self.total) // size
            if self.permuted:
                buffer, inner = Buffer.SCRATCH, self.area()
                if collective == "reduce_scatter":
                    self.copies((Buffer.INPUT, self.shard(every)), (buffer, inner + nested), self.total // n)
                else:
                    own = (self.shard(every)[:, None], (inner + nested)[:, None])
                    self.copies((Buffer.OUTPUT, own[0]), (buffer, own[1]), self.total // n)
        ends = []
        for number, phase in enumerate(phases):
            d = phase[1]
            members = self._groups(d)
            at = np.zeros(len(members), dtype=np.int64)
            if collective in ("all_reduce", "all_gather", "reduce_scatter"):
                for lower in range(d):
                    part = plan.length(lower, self.total) // plan.sizes[lower]
                    at += plan.coordinates[lower][members[:, 0]] * part
            program = plan.program(*phase)
            width = plan.length(d, self.total) // program.chunks
            place = (int(buffer), at + inner)
            ends.append(self._run(phase, before, number, width=width, at=at, buffers={1: place, 2: place}))
        if self.permuted and collective == "all_gather":
            self.copies((buffer, inner + nested), (Buffer.OUTPUT, self.shard(every)), self.total // n)
        elif self.permuted and collective == "reduce_scatter":
            own = ((inner + nested)[:, None], self.shard(every)[:, None])
            self.copies((buffer, own[0]), (Buffer.INPUT, own[1]), self.total // n)
        return ends

    def _lay_all_to_all(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """all_to_all: before phase d a rank holds the blocks whose coordinates below d are those of their origin
        and whose others are those of their destination; the phase turns coordinate d."""
        plan, n = self.plan, self.plan.n
        block = self.total // n
        every = np.arange(n)
        buffer, where = Buffer.INPUT, self.shard(every)
        last = len(phases) - 1
        ends = []
        for number, phase in enumerate(phases):
            d = phase[1]
            # Coordinate d outermost: what goes to one member is one range.
            layout = plan.coordinates[d] * (n // plan.sizes[d])
            layout = layout + every % plan.strides[d] + every // (plan.strides[d] * plan.sizes[d]) * plan.strides[d]
            if not (buffer == Buffer.INPUT and self.pieces == 1 and np.array_equal(layout, every)):
                source, area = (buffer, where), self.area()
                buffer, where = Buffer.SCRATCH, area + layout * block
                self.copies(source, (buffer, where), block)
            direct = number == last and self.pieces == 1
            target, offset = (Buffer.OUTPUT, 0) if direct else (Buffer.SCRATCH, self.area())
            zero = np.zeros(n // plan.sizes[d], dtype=np.int64)
            width = self.total // plan.program(*phase).chunks
            ends.append(
                self._run(
                    phase,
                    before,
                    number,
                    width=width,
                    at=zero,
                    buffers={1: (int(buffer), zero + int(where.min())), 2: (int(target), zero + offset)},
                )
            )
            buffer, where = target, offset + layout * block
        if buffer != Buffer.OUTPUT:
            self.copies((buffer, where), (Buffer.OUTPUT, self.shard(every)), block)
        return ends
