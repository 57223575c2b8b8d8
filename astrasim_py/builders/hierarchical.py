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

from astrasim_py.builders.draft import NONE, Draft, check_nodes, check_program, finish, finish_rotated
from astrasim_py.builders.options import check_count
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import RotatedTraces, Rotation

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

    Parameters
    ----------
    build_phase : callable
        ``build_phase(name, collective, ranks, **options)`` builds the algorithm of a phase.
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
    levels = [_Level(*_builder(build_phase, name, place), size) for name, size in zip(names, sizes, strict=True)]
    label = ", ".join(f"{level.label}[{level.size}]" for level in levels)
    # A dimension of one rank has no phase.
    levels = [level for level in levels if level.size > 1] or levels[:1]
    planner = _Planner(collective, levels, root, pieces, place)
    in_place = collective != "all_to_all"
    rotation = planner.rotation()
    if rotation is not None:
        return finish_rotated(planner.draft, rotation, f"hierarchical({label})", collective, in_place=in_place)
    draft = planner.draft(np.arange(ranks))
    return finish(draft, f"hierarchical({label})", collective, root=root, in_place=in_place)


def _builder(build_phase: Builder, spec: str | Mapping, place: str) -> tuple[str, Builder]:
    """Label and factory (collective, ranks, root=…) of the algorithm of one dimension."""
    options = dict(spec) if isinstance(spec, Mapping) else {"builder": spec}
    name = options.pop("builder", None)
    if not isinstance(name, str) or name == "hierarchical":
        raise AlgorithmError(
            place, f"{spec!r} is not the algorithm of a dimension", "write the name of a builder, e.g. ring"
        )

    return name, partial(_build, build_phase, name, options)


def _build(build_phase: Builder, name: str, options: Mapping, collective: str, ranks: int, **more) -> Algorithm:
    return build_phase(name, collective, ranks, **options, **more)


class _Level:
    """One dimension: its algorithm and size."""

    def __init__(self, label: str, factory: Builder, size: int) -> None:
        self.label, self.factory, self.size = label, factory, size


def _ragged(bounds: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges [bounds[i], bounds[i + 1]) for each i of `which`: of every element its place in `which`, and itself."""
    counts = np.diff(bounds)[which]
    owner = np.repeat(np.arange(len(which)), counts)
    first = np.cumsum(counts) - counts
    return owner, (bounds[which] - first)[owner] + np.arange(len(owner))


class _Rows:
    """Programs of some ranks of an algorithm, one after the other in one table."""

    FIELDS = ("comm_tag", "msg_chunk_idx", "msg_chunk_cnt", "comp_op", "src_buf", "src_off", "dst_buf", "dst_off")

    def __init__(self, traces: Sequence[ExecutionTrace]) -> None:
        self.bounds = np.cumsum([0, *(len(t) for t in traces)])
        self.type = np.concatenate([t.type for t in traces]).astype(np.int64)
        self.columns = {f: np.concatenate([t.column(f) for t in traces]) for f in self.FIELDS}
        self.peer = np.concatenate(
            [np.where(t.type == NodeType.COMM_SEND, t.column("comm_dst"), t.column("comm_src")) for t in traces]
        )
        # A topological position is an order also where ids are not.
        position, payload, child, parent = [], [], [], []
        for t, start in zip(traces, self.bounds.tolist(), strict=False):
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
        self.edges = np.cumsum([0, *(len(each) for each in child)])
        size = int(self.bounds[-1])
        first = np.flatnonzero(np.bincount(self.child, minlength=size) == 0)
        # What makes a phase complete on a rank: receives and local operations that none other waits for. Own sends
        # need not be delivered: what overwrites their cells later is made of what they carry.
        local = self.type != NodeType.COMM_SEND
        inner = np.zeros(size, dtype=bool)
        inner[self.parent[local[self.child]]] = True
        last = np.flatnonzero(local & ~inner)
        self.first, self.firsts = first, np.searchsorted(first, self.bounds)
        self.last, self.lasts = last, np.searchsorted(last, self.bounds)


class _Program:
    """An algorithm of one dimension, ready to be placed in many groups."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.chunks = algorithm.chunks
        shared = [algorithm.traces[0]] if algorithm.rotation else algorithm.traces
        self.tags = max(int(t.column("comm_tag").max(initial=-1)) for t in shared) + 1
        self.depth = max(map(len, shared))
        self.scratch = _scratch(algorithm.traces)
        self._known: tuple[bytes, _Rows] = (b"", _Rows(shared[:1]))

    def rows(self, positions: np.ndarray) -> _Rows:
        """Programs of some of its ranks, kept for those asked for last."""
        key = positions.tobytes()
        if self._known[0] != key:
            traces = self.algorithm.traces
            if isinstance(traces, RotatedTraces):
                self._known = key, _Rows(traces.some(positions))
            else:
                self._known = key, _Rows([traces[p] for p in positions.tolist()])
        return self._known[1]


def _scratch(traces: Sequence[ExecutionTrace]) -> int:
    """Chunks of scratch that some rank uses at most."""
    most = 0
    for end in ("src", "dst"):
        if isinstance(traces, RotatedTraces):
            mine = np.flatnonzero(traces.base.column(f"{end}_buf") == Buffer.SCRATCH)
            step = max(2**20 // max(len(traces.base), 1), 1)
            for start in range(0, len(traces) if len(mine) else 0, step):
                ranks = np.arange(start, min(start + step, len(traces)))
                offset, count = traces.columns(ranks, (f"{end}_off", "msg_chunk_cnt")).values()
                most = max(most, int((offset + count)[:, mine].max()))
        else:
            for trace in traces:
                mine = trace.column(f"{end}_buf") == Buffer.SCRATCH
                ends = trace.column(f"{end}_off") + trace.column("msg_chunk_cnt")
                most = max(most, int(ends[mine].max(initial=0)))
    return most


class _Planner:
    """The phases of one collective."""

    def __init__(self, collective: str, levels: list[_Level], root: int | None, pieces: int, place: str) -> None:
        self.collective, self.levels, self.root, self.pieces, self.place = (
            collective, levels, root, pieces, place,
        )  # fmt: skip
        self.sizes = [level.size for level in levels]
        self.n = prod(self.sizes)
        self.strides = [prod(self.sizes[:d]) for d in range(len(levels))]
        self._programs: dict[tuple[str, int], _Program] = {}

    def coordinates(self, ranks: np.ndarray) -> list[np.ndarray]:
        """Coordinates of ranks, one array per dimension."""
        return [ranks // s % size for s, size in zip(self.strides, self.sizes, strict=True)]

    def program(self, collective: str, d: int) -> _Program:
        """The algorithm of dimension d for one phase."""
        key = (collective, d)
        if key not in self._programs:
            rooted = collective in ("broadcast", "reduce")
            more = {"root": self.root // self.strides[d] % self.sizes[d]} if rooted else {}
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

    def rotation(self) -> Rotation | None:
        """That of the whole, where the phases of every dimension have one in common."""
        rotations = [(d, self.program(collective, d).algorithm.rotation) for collective, d in self.phases()]
        dims: list[int] = []
        for d in range(len(self.levels)):
            found = {rotation for where, rotation in rotations if where == d}
            if None in found or len(found) > 1:
                return None
            dims += found.pop().dims
        return Rotation(tuple(dims))

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
        return lcm(*needs, self.n if promise_of(self.collective).sharded else 1)

    def draft(self, which: np.ndarray) -> Draft:
        """The algorithm for some ranks int64[k], which are ranks 0..k-1 of the draft."""
        barrier = self.collective == "barrier"
        total = 1 if barrier else self.chunks()
        pieces = 1 if barrier else self.pieces
        phases = self.phases()
        nodes = sum(self.program(c, d).algorithm.nodes * (self.n // self.sizes[d]) for c, d in phases)
        # Pieces of shards do not lie side by side, nor do shards of one coordinate: both take copies.
        permuted = promise_of(self.collective).sharded and (len(self.levels) > 1 or pieces > 1)
        nodes = pieces * (nodes + (self.n**2 * len(phases) if permuted else 0))
        if self.rotation() is None:
            check_nodes(self.place, nodes)
        else:
            check_program(self.place, nodes // self.n)
        layout = _Layout(self, Draft(len(which), total * pieces), which)
        scratch = 0
        before: list[np.ndarray] = []  # per phase: what completes it for the piece before
        for piece in range(pieces):
            run = _Piece(layout, piece, total, pieces, scratch, permuted)
            before = run.lay(phases, before)
            scratch = run.scratch
        return layout.draft


class _Layout:
    """A draft for some ranks, and how far it is laid. Ranks are meant by their places among those ranks."""

    def __init__(self, plan: _Planner, draft: Draft, which: np.ndarray) -> None:
        self.plan, self.draft, self.which = plan, draft, which
        self.coordinates = plan.coordinates(which)
        self.tag = self.order = 0

    def nothing(self) -> np.ndarray:
        """int64[k] of NONE."""
        return np.full(len(self.which), NONE, dtype=np.int64)

    def place_program(
        self,
        program: _Program,
        d: int,
        who: np.ndarray,
        *,
        width: int,
        index: np.ndarray,
        buffers: Mapping[int, tuple[int, np.ndarray]],
        start: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Run a program of dimension d in all groups at once.

        Parameters
        ----------
        program : _Program
        d : int
        who : numpy.ndarray
            int64[m]: ranks that take part.
        width : int
            Chunks of the whole buffer per chunk of the program.
        index : numpy.ndarray
            int64[m]: first chunk of the part of the buffer that the rank's group works on.
        buffers : mapping
            The program's buffer -> (buffer, int64[m] offset).
        start : sequence of numpy.ndarray
            int64[k] handles that a rank's first nodes wait for.

        Returns
        -------
        numpy.ndarray
            int64[k]: for every rank the handle that says its part is complete; NONE for ranks without a part.
        """
        draft = self.draft
        coordinate = self.coordinates[d][who]
        positions, which = np.unique(coordinate, return_inverse=True)
        rows = program.rows(positions)
        owner, row = _ragged(rows.bounds, which)
        lengths = np.diff(rows.bounds)[which]
        # Handle of row i in the program of a rank: i + shift.
        shift = draft.next_handles(1)[0] + np.cumsum(lengths) - lengths - rows.bounds[which]
        given = {name: column[row] for name, column in rows.columns.items()}
        kind = rows.type[row]
        values: dict[str, object] = {
            "type": kind,
            "rank": who[owner],
            "order": self.order + rows.position[row],
            "comp_op": given["comp_op"],
            "comm_tag": np.where(given["comm_tag"] == MISSING, MISSING, given["comm_tag"] + self.tag),
        }
        known = given["msg_chunk_cnt"] != MISSING
        values["msg_chunk_cnt"] = np.where(known, given["msg_chunk_cnt"] * width, MISSING)
        values["msg_chunk_idx"] = np.where(known, given["msg_chunk_idx"] * width + index[owner], MISSING)
        for end in ("src", "dst"):
            buffer, offset = given[f"{end}_buf"], given[f"{end}_off"]
            new_buffer, new_offset = np.full_like(buffer, MISSING), np.full_like(buffer, MISSING)
            for old, (new, shift_by) in buffers.items():
                mine = buffer == old
                new_buffer[mine] = new
                new_offset[mine] = (offset * width + shift_by[owner])[mine]
            values[f"{end}_buf"], values[f"{end}_off"] = new_buffer, new_offset
        origin = self.which[who] - coordinate * self.plan.strides[d]
        peer = origin[owner] + rows.peer[row] * self.plan.strides[d]
        values["comm_dst"] = np.where(kind == NodeType.COMM_SEND, peer, MISSING)
        values["comm_src"] = np.where(kind == NodeType.COMM_RECV, peer, MISSING)
        payload = rows.payload[row]
        values["payload"] = np.where(payload == NONE, NONE, payload + shift[owner])
        draft.extend(len(row), values)
        edge_owner, edge = _ragged(rows.edges, which)
        draft.depend(rows.child[edge] + shift[edge_owner], rows.parent[edge] + shift[edge_owner])
        first_owner, at = _ragged(rows.firsts, which)
        first = rows.first[at] + shift[first_owner]
        for handles in start:
            waits = handles[who[first_owner]]
            draft.depend(first[waits != NONE], waits[waits != NONE])
        self.order += program.depth
        self.tag += program.tags
        last_owner, at = _ragged(rows.lasts, which)
        return self.complete(who[last_owner], rows.last[at] + shift[last_owner])

    def complete(self, rank: np.ndarray, handles: np.ndarray) -> np.ndarray:
        """One handle per rank for several of them: a join where there is more than one."""
        done = self.nothing()
        done[rank] = handles
        many = np.flatnonzero(np.bincount(rank, minlength=len(done)) > 1)
        if len(many):
            joins = self.draft.join(many, order=self.order)
            self.order += 1
            done[many] = joins
            waiting = np.isin(rank, many)
            self.draft.depend(done[rank[waiting]], handles[waiting])
        return done


class _Piece:
    """One piece of the buffer on its way through the phases."""

    def __init__(self, layout: _Layout, piece: int, total: int, pieces: int, scratch: int, permuted: bool) -> None:
        self.layout, self.plan, self.piece, self.total, self.pieces = layout, layout.plan, piece, total, pieces
        self.scratch, self.permuted = scratch, permuted
        #: First chunk of this piece in the numbering of messages.
        self.base = piece * total
        self.done = layout.nothing()

    def shard(self, rank: np.ndarray) -> np.ndarray:
        """First chunk of this piece of each rank's shard in the user's buffer."""
        per = self.total // self.plan.n
        return rank * per * self.pieces + self.piece * per

    def area(self) -> int:
        """A fresh part of scratch as large as the piece."""
        self.scratch += self.total
        return self.scratch - self.total

    def copies(self, source: tuple[int, np.ndarray], target: tuple[int, np.ndarray], count: int) -> None:
        """On every rank copy ranges of `count` chunks; offsets are int64[ranges] or int64[k, ranges]."""
        layout = self.layout
        shape = (len(layout.which), max(np.shape(source[1])[-1], np.shape(target[1])[-1]))
        rank = np.broadcast_to(np.arange(shape[0])[:, None], shape).ravel()
        begin, end = (np.broadcast_to(at, shape).ravel() for _, at in (source, target))
        handles = layout.draft.copy(
            rank=rank, idx=0, cnt=count, src=(source[0], begin), dst=(target[0], end),
            after=(self.done[rank],), order=layout.order,
        )  # fmt: skip
        layout.order += 1
        self.done = layout.complete(rank, handles)

    def lay(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """Lay all phases; returns what completes each."""
        if self.plan.collective == "all_to_all":
            return self._lay_all_to_all(phases, before)
        return self._lay_nested(phases, before)

    def _part(self, d: int) -> np.ndarray:
        """int64[m]: ranks whose groups of dimension d take part."""
        plan, layout = self.plan, self.layout
        taking = np.ones(len(layout.which), dtype=bool)
        if plan.collective in ("broadcast", "reduce"):
            # Lower coordinates are the root's: the others have nothing yet (broadcast) or no more (reduce).
            root = plan.coordinates(np.array([plan.root]))
            for lower in range(d):
                taking &= layout.coordinates[lower] == root[lower]
        return np.flatnonzero(taking)

    def _run(
        self,
        phase: tuple[str, int],
        who: np.ndarray,
        before: list[np.ndarray],
        number: int,
        *,
        width: int,
        at: np.ndarray,
        buffers: Mapping[int, tuple[int, np.ndarray]],
    ) -> np.ndarray:
        program = self.plan.program(*phase)
        zero = np.zeros(len(who), dtype=np.int64)
        places = {**buffers, int(Buffer.SCRATCH): (int(Buffer.SCRATCH), zero + self.scratch)}
        self.scratch += program.scratch * width
        start = [self.done, *(before[number : number + 1])]
        ended = self.layout.place_program(
            program, phase[1], who, width=width, index=self.base + at, buffers=places, start=start
        )
        # A rank without a part in this phase is where it was.
        self.done = np.where(ended == NONE, self.done, ended)
        return self.done

    def _nested(self, coordinates: list[np.ndarray]) -> np.ndarray:
        """Where the shards of ranks lie in nested order."""
        parts = [self.plan.length(d, self.total) // size for d, size in enumerate(self.plan.sizes)]
        return sum(c * part for c, part in zip(coordinates, parts, strict=True))

    def _lay_nested(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """Phases that work on nested contiguous parts: dimension 0 cuts the buffer, dimension 1 each part, …"""
        plan, layout, collective = self.plan, self.layout, self.plan.collective
        per = self.total // plan.n
        buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
        inner = self.base
        if self.permuted:
            buffer, inner = Buffer.SCRATCH, self.area()
            every = np.arange(plan.n)
            # Of all shards, and of each rank's own: where they lie in the user's buffer and in nested order.
            shards, nested = self.shard(every), inner + self._nested(plan.coordinates(every))
            own = self.shard(layout.which)[:, None], (inner + self._nested(layout.coordinates))[:, None]
            if collective == "reduce_scatter":
                self.copies((Buffer.INPUT, shards), (buffer, nested), per)
            else:
                self.copies((Buffer.OUTPUT, own[0]), (buffer, own[1]), per)
        ends = []
        for number, phase in enumerate(phases):
            d = phase[1]
            who = self._part(d)
            at = np.zeros(len(who), dtype=np.int64)
            if collective in ("all_reduce", "all_gather", "reduce_scatter"):
                for lower in range(d):
                    part = plan.length(lower, self.total) // plan.sizes[lower]
                    at += layout.coordinates[lower][who] * part
            width = plan.length(d, self.total) // plan.program(*phase).chunks
            place = (int(buffer), at + inner)
            ends.append(self._run(phase, who, before, number, width=width, at=at, buffers={1: place, 2: place}))
        if self.permuted and collective == "all_gather":
            self.copies((buffer, nested), (Buffer.OUTPUT, shards), per)
        elif self.permuted:
            self.copies((buffer, own[1]), (Buffer.INPUT, own[0]), per)
        return ends

    def _lay_all_to_all(self, phases: list[tuple[str, int]], before: list[np.ndarray]) -> list[np.ndarray]:
        """all_to_all: before phase d a rank holds the blocks whose coordinates below d are those of their origin
        and whose others are those of their destination; the phase turns coordinate d."""
        plan, n = self.plan, self.plan.n
        block = self.total // n
        every = np.arange(n)
        coordinates = plan.coordinates(every)
        buffer, where = Buffer.INPUT, self.shard(every)
        last = len(phases) - 1
        ends = []
        for number, phase in enumerate(phases):
            d = phase[1]
            # Coordinate d outermost: what goes to one member is one range.
            layout = coordinates[d] * (n // plan.sizes[d])
            layout = layout + every % plan.strides[d] + every // (plan.strides[d] * plan.sizes[d]) * plan.strides[d]
            if not (buffer == Buffer.INPUT and self.pieces == 1 and np.array_equal(layout, every)):
                source, area = (buffer, where), self.area()
                buffer, where = Buffer.SCRATCH, area + layout * block
                self.copies(source, (buffer, where), block)
            direct = number == last and self.pieces == 1
            target, offset = (Buffer.OUTPUT, 0) if direct else (Buffer.SCRATCH, self.area())
            who = self._part(d)
            zero = np.zeros(len(who), dtype=np.int64)
            width = self.total // plan.program(*phase).chunks
            ends.append(
                self._run(
                    phase,
                    who,
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
