"""Multi-dimensional algorithms: a collective as phases along the dimensions of the group, any algorithm in each.

Ranks have coordinates (a0, a1, …), rank = a0 + n0·(a1 + n1·(…)). A phase runs one algorithm in all groups of ranks
that differ in one coordinate only. Sources: Cho et al. 2019 ("BlueConnect", reduce_scatter up and all_gather down the
dimensions); Chan et al. 2007 (§ on multidimensional meshes); the two-phase all_to_all of MSCCL and of hypercubes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import lcm, prod

import numpy as np

from astrasim_py.builders.draft import (
    NONE,
    Arguments,
    Draft,
    Numbers,
    check_count,
    check_nodes,
    finish,
    finish_rotated,
)
from astrasim_py.builders.switch_trees import SwitchTree, switch_tree_of
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import PEERS, Rotation

Builder = Callable[..., Algorithm]
#: A buffer, and for each rank where in it.
Cells = tuple[int, np.ndarray]


def build(
    build_phase: Builder,
    collective: str,
    ranks: int,
    *,
    root: int | None = None,
    dims: Sequence[int] = (),
    algorithms: Sequence[str | Mapping] | None = None,
    chunks: int = 1,
    switches: Mapping[int, Sequence[object]] | None = None,
) -> Algorithm:
    """Dimension by dimension, each with a builder of its own.

    all_reduce is a reduce_scatter in every dimension from 0 up, an all_reduce in the last, and the all_gathers back
    down: most bytes move in dimension 0, which should be the fastest. reduce_scatter and all_gather are the two
    halves, with a local permutation of shards before or after. all_to_all exchanges in each dimension, all blocks
    for one coordinate together. broadcast goes from the last dimension down, reduce from 0 up; a barrier is one in
    every dimension. On a rank a phase begins when what it received and summed in the phase before is complete.

    `build_phase`: ``build_phase(name, collective, ranks, **options)`` builds the algorithm of a phase. `dims`: size of
    each dimension, 0 (the fastest varying coordinate) first; their product is `ranks`. `algorithms`: for each dimension
    the name of a builder, or ``{"builder": name, option: value}``; ring by default. `chunks`: pieces of the buffer (of
    every shard) that go through the phases as a pipeline, one piece per phase at a time. `switches`: by dimension whose
    algorithm is one in the network, the tree of switches above each of its groups (see `switch_tree_of`), groups in the
    order of their lowest ranks; by default one switch above each.

    Raises AlgorithmError: dimensions that do not make up the group, or an algorithm that does not know the collective
    of its phase.
    """
    place = f"hierarchical {collective} over {ranks} ranks"

    def refuse(wrong: bool, problem: str, remedy: str) -> None:
        if wrong:
            raise AlgorithmError(place, problem, remedy)

    refuse(
        isinstance(dims, str) or not isinstance(dims, Sequence),
        f"dims is {dims!r}, not a list",
        "write e.g. dims: [8, 8], on the command line dims=8+8",
    )
    sizes = [check_count(size, "dims", place) for size in dims]
    product = prod(sizes) if sizes else 0
    problem = f"dims {list(dims)} are {product} ranks, the group has {ranks}"
    remedy = "write dims whose product is the size of the group, as a list; on the command line e.g. dims=8+8"
    refuse(product != ranks, problem, remedy)
    names = ["ring"] * len(sizes) if algorithms is None else algorithms
    problem = f"algorithms {names!r} are not one for each of {len(sizes)} dims"
    refuse(isinstance(names, str) or len(names) != len(sizes), problem, "write e.g. [ring, direct]")
    levels: list[tuple[Builder, int]] = []
    labels = []
    for spec, size in zip(names, sizes, strict=True):
        keys = dict(spec) if isinstance(spec, Mapping) else {"builder": spec}
        label = keys.pop("builder", None)
        problem = f"{spec!r} is not the algorithm of a dimension"
        nested = not isinstance(label, str) or label == "hierarchical"
        refuse(nested, problem, "write the name of a builder, e.g. ring")
        labels.append(f"{label}[{size}]")
        levels.append((partial(build_phase, label, **keys), size))
    trees_of = {} if switches is None else switches
    if isinstance(trees_of, Mapping):  # keys of YAML are text
        trees_of = {int(d) if str(d).isdecimal() else d: trees for d, trees in trees_of.items()}
    listed = isinstance(trees_of, Mapping) and all(isinstance(trees, list | tuple) for trees in trees_of.values())
    problem = f"switches {switches!r} are not a list of trees for some of the dimensions 0 to {len(sizes) - 1}"
    refuse(not listed or not set(trees_of) <= set(range(len(sizes))), problem, "write e.g. {0: [nvswitch0, nvswitch1]}")
    trees = {d: [switch_tree_of(each, sizes[d], place) for each in trees_of[d]] for d in trees_of}
    # A dimension of one rank has no phase.
    kept = [d for d, size in enumerate(sizes) if size > 1] or [0][: len(sizes)]
    levels, trees = [levels[d] for d in kept], {kept.index(d): trees[d] for d in kept if d in trees}
    phases = _Phases(collective, levels, root, chunks, place, trees)
    name = f"hierarchical({', '.join(labels)})"
    if phases.rotation is not None:
        return finish_rotated(phases.draft, phases.rotation, name, collective)
    draft, actors = phases.draft(np.arange(ranks)), phases.actors
    vertices = () if -1 in actors.values() else tuple(actors.values())
    return finish(
        draft, name, collective, root=root, in_place=collective != "all_to_all", actors=tuple(actors),
        vertices=vertices,
    )  # fmt: skip


class _PlacedAlgorithm:
    """An algorithm that is placed in all groups of one dimension."""

    def __init__(self, algorithm: Algorithm, dimension: int) -> None:
        self.algorithm, self.dimension = algorithm, dimension
        # Ranks of a rotation have as many nodes and tags and as much scratch as its first.
        program = algorithm.program_of([0]) if algorithm.rotation else algorithm.program
        self.tags = int(program.column("comm_tag").max(initial=-1)) + 1
        self.depth = int(np.diff(program.bounds).max())
        self.scratch = 0
        for side in ("src", "dst"):
            ends = program.column(f"{side}_off") + program.column("msg_chunk_cnt")
            reach = ends[(program.column(f"{side}_buf") == Buffer.SCRATCH) & (program.rank < algorithm.ranks)]
            self.scratch = max(self.scratch, int(reach.max(initial=0)))
        self.slots = [algorithm.slots_of(k) for k in range(len(algorithm.actors))]


class _Phases:
    def __init__(
        self,
        collective: str,
        levels: list[tuple[Builder, int]],
        root: int | None,
        pieces: int,
        place: str,
        trees: Mapping[int, Sequence[SwitchTree]],
    ) -> None:
        self.collective, self.place = collective, place
        self.pieces = 1 if collective == "barrier" else pieces
        self.sizes = [size for _, size in levels]
        self.n = prod(self.sizes)
        self.strides = [prod(self.sizes[:d]) for d in range(len(levels))]
        #: Coordinates of the root of a rooted collective.
        self.root = None if root is None else self.coordinates(root)
        last = len(levels) - 1
        down = range(last, -1, -1) if collective in ("all_gather", "broadcast") else range(last + 1)
        order = [(collective, d) for d in down]
        if collective == "all_reduce":
            halves = [[(half, d) for d in range(last)] for half in ("reduce_scatter", "all_gather")]
            order = [*halves[0], (collective, last), *reversed(halves[1])]
        self.phases = []
        for kind, d in order:
            make, size = levels[d]
            options: Arguments = {} if self.root is None else {"root": self.root[d]}
            if d in trees:
                options["switches"] = trees[d][0]
            self.phases.append(_PlacedAlgorithm(make(kind, size, **options), d))
        #: Vertex of each switch by its name (-1: found later); and by dimension the vertices of each group.
        self.actors: dict[str, int] = {}
        self.switches = {phase.dimension: self.trees_of(phase, trees) for phase in self.phases if phase.slots}
        #: True if a phase works on the part of the buffer that the phases below it leave to a rank.
        self.nested = collective in ("all_reduce", "reduce_scatter", "all_gather")
        sharded = promise_of(collective).sharded
        # Neither pieces of shards nor shards of one coordinate are contiguous: both need copies.
        self.permuted = sharded and (len(levels) > 1 or self.pieces > 1)
        #: Chunks of one piece: the least number that every phase can cut as it needs.
        self.total = 1
        if collective != "barrier":
            needs = [p.algorithm.chunks * (self.strides[p.dimension] if self.nested else 1) for p in self.phases]
            self.total = lcm(*needs, self.n if sharded else 1)

    def trees_of(self, phase: _PlacedAlgorithm, trees: Mapping[int, Sequence[SwitchTree]]) -> list[list[int]]:
        """Numbers of the switches of each group of a phase."""
        d, groups = phase.dimension, self.n // self.sizes[phase.dimension]
        listed = trees.get(d)
        if listed is None:
            names = phase.algorithm.actors
            first = switch_tree_of(names[0] if len(names) == 1 else None, self.sizes[d], self.place)
            listed = [replace(first, names=(f"{first.names[0]}.{d}.{group}",)) for group in range(groups)]
        if len(listed) != groups or any(tree.above != listed[0].above for tree in listed):
            problem = f"dimension {d} has {groups} groups, and their switches are {len(listed)} trees or not all alike"
            raise AlgorithmError(self.place, problem, "give one tree for each group, all of one form, or use ring")
        lists = []
        for tree in listed:
            self.actors |= zip(tree.names, tree.vertices or [-1] * len(tree.names), strict=True)
            lists.append([list(self.actors).index(name) for name in tree.names])
        return lists

    def coordinates(self, ranks) -> list:
        return [ranks // s % size for s, size in zip(self.strides, self.sizes, strict=True)]

    @cached_property
    def rotation(self) -> Rotation | None:
        """That of the whole, where all phases of all dimensions have it in common."""
        dims: list[int] = []
        for d in range(len(self.sizes)):
            rotations = {phase.algorithm.rotation for phase in self.phases if phase.dimension == d}
            if None in rotations or len(rotations) > 1:
                return None
            (rotation,) = rotations
            assert rotation is not None
            dims += rotation.dims
        return Rotation(tuple(dims))

    def length(self, d: int) -> int:
        return self.total // self.strides[d] if self.nested else self.total

    def draft(self, which: np.ndarray) -> Draft:
        """The algorithm for some ranks int64[k], which are ranks 0..k-1 of the draft."""
        nodes = sum(phase.algorithm.nodes * (self.n // self.sizes[phase.dimension]) for phase in self.phases)
        nodes = self.pieces * (nodes + (self.n**2 * len(self.phases) if self.permuted else 0))
        of_rank = self.rotation is not None
        check_nodes(self.place, nodes // self.n if of_rank else nodes, of_rank=of_rank)
        layout = _HierarchyDraft(self, which)
        for layout.piece in range(self.pieces):
            layout.lay()
        return layout.draft


class _HierarchyDraft:
    """The draft for some ranks, and the progress of laying it out. Ranks are meant by their places among those
    ranks.
    """

    def __init__(self, plan: _Phases, which: np.ndarray) -> None:
        self.plan, self.which = plan, which
        self.draft = Draft(len(which) + len(plan.actors), plan.total * plan.pieces)
        self.coordinates = plan.coordinates(which)
        self.piece = self.tag = self.order = self.scratch = 0
        self.nothing = np.full(self.draft.ranks, NONE, dtype=np.int64)
        #: Cells of each switch that are given to phases, and those of a phase, its group and the switch's number in it.
        self.taken = [0] * len(plan.actors)
        self.given: dict[tuple[int, int, int], int] = {}
        #: The handle that completes this piece so far, by rank.
        self.done = self.nothing
        #: The same after every phase, of this piece and of the piece before.
        self.ends: list[np.ndarray] = []
        self.before: list[np.ndarray] = []

    def lay(self) -> None:
        self.done, self.before, self.ends = self.nothing, self.ends, []
        (self.lay_all_to_all if self.plan.collective == "all_to_all" else self.lay_nested)()

    def shard(self, rank: np.ndarray) -> np.ndarray:
        """First chunk of this piece of each rank's shard in the user's buffer."""
        return (rank * self.plan.pieces + self.piece) * (self.plan.total // self.plan.n)

    def area(self) -> int:
        self.scratch += self.plan.total
        return self.scratch - self.plan.total

    def complete(self, rank: np.ndarray, handles: np.ndarray) -> np.ndarray:
        """One handle per rank for several of them: a join where there is more than one."""
        done = self.nothing.copy()
        done[rank] = handles
        many = np.bincount(rank, minlength=len(done)) > 1
        if many.any():
            done[many] = self.draft.join(np.flatnonzero(many), order=self.order)
            self.order += 1
            waiting = many[rank]
            self.draft.depend(done[rank[waiting]], handles[waiting])
        return done

    def copies(self, source: tuple[int, np.ndarray], target: tuple[int, np.ndarray], count: int) -> None:
        """On every rank copy ranges of `count` chunks; offsets are int64[ranges] or int64[k, ranges]."""
        rank = np.arange(len(self.which))[:, None]
        rank, begin, end = (each.ravel() for each in np.broadcast_arrays(rank, source[1], target[1]))
        handles = self.draft.copy(
            rank=rank, idx=0, cnt=count, src=(source[0], begin), dst=(target[0], end),
            after=(self.done[rank],), order=self.order,
        )  # fmt: skip
        self.order += 1
        self.done = self.complete(rank, handles)

    def taking_part(self, d: int) -> np.ndarray:
        """int64[m]: ranks whose groups of dimension d take part."""
        taking = np.ones(len(self.which), dtype=bool)
        # Lower coordinates are the root's: the others have nothing yet (broadcast) or no more (reduce).
        for place, root in zip(self.coordinates[:d], self.plan.root or (), strict=False):
            taking &= place == root
        return np.flatnonzero(taking)

    def run(self, phase: _PlacedAlgorithm, who: np.ndarray, at: np.ndarray, buffers: Mapping[int, Cells]) -> None:
        """Run a phase in all groups at once. `at` is the first chunk of the part of the piece that the group of each
        rank works on; `buffers` maps the algorithm's buffers to (buffer, offsets)."""
        plan, draft, number, d = self.plan, self.draft, len(self.ends), phase.dimension
        stride, size, more = plan.strides[d], plan.sizes[d], len(phase.slots)
        # A chunk of the algorithm is so many chunks of the buffer.
        width = plan.length(d) // phase.algorithm.chunks
        position = self.coordinates[d][who]
        origin, scratch = self.which[who] - position * stride, np.full(len(who), self.scratch)
        lowest = np.unique(self.which - self.coordinates[d] * stride)
        group = np.searchsorted(lowest, origin)
        switches = np.array(plan.switches.get(d, [[]]), dtype=np.int64)
        if more:
            # Switches of the groups that take part come behind the ranks.
            acting, member = np.unique(group, return_index=True)
            cells = [self.cells(number, phase, int(g), k, width) for g in acting for k in range(more)]
            who, scratch = np.append(who, switches[acting].ravel() + plan.n), np.append(scratch, cells)
            position = np.append(position, np.tile(size + np.arange(more), len(acting)))
            group, origin, at = (np.append(each, each[member].repeat(more)) for each in (group, origin, at))
            buffers = {each: (new, np.append(begin, cells)) for each, (new, begin) in buffers.items()}
        positions, which = np.unique(position, return_inverse=True)
        program = phase.algorithm.program_of(positions).some(which)
        given, owner, shift = program.column, program.rank, int(draft.next_handles(1)[0])
        rank, origin, group = who[owner], origin[owner], group[owner] * bool(more)
        index = (self.piece * plan.total + at)[owner]

        def peer(values: np.ndarray) -> np.ndarray:
            if not more:
                return origin + values * stride
            switch = switches[group, np.clip(values - size, 0, more - 1)] + plan.n
            return np.where(values < size, origin + values * stride, switch)

        def where(name: str, values: np.ndarray) -> np.ndarray:
            return np.where(given(name) == MISSING, MISSING, values)

        values: dict[str, Numbers] = {
            "type": program.type,
            "rank": rank,
            "order": self.order + program.place,
            "comp_op": given("comp_op"),
            "comm_tag": where("comm_tag", given("comm_tag") + self.tag + group * phase.tags),
            "msg_chunk_cnt": where("msg_chunk_cnt", given("msg_chunk_cnt") * width),
            "msg_chunk_idx": where("msg_chunk_cnt", given("msg_chunk_idx") * width + index),
            "payload": np.where(program.payload < 0, NONE, program.payload + shift),
            **{name: where(name, peer(given(name))) for name in PEERS},
        }
        buffers = {**buffers, int(Buffer.SCRATCH): (int(Buffer.SCRATCH), scratch)}
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
        self.order, self.tag = self.order + phase.depth, self.tag + phase.tags * (len(lowest) if more else 1)
        self.scratch += phase.scratch * width
        # It is complete when the receives and local operations without children are. Its sends need not be delivered:
        # data that overwrites their chunks later depends on what they carry.
        local = program.type != NodeType.COMM_SEND
        local[program.parents[local[program.child]]] = False
        if more:
            # The cells of a switch are taken again when all that it sends is out.
            inner = np.zeros(len(program), dtype=bool)
            inner[program.parents] = True
            local = np.where(rank < plan.n, local, ~inner)
        last = np.flatnonzero(local)
        ended = self.complete(rank[last], last + shift)
        # A rank that takes no part in this phase keeps its handle.
        ended = np.where(ended == NONE, self.done, ended)
        self.ends.append(ended)
        # Each phase has its own cells on a switch.
        self.done = np.where(np.arange(draft.ranks) < plan.n, ended, NONE) if more else ended

    def cells(self, number: int, phase: _PlacedAlgorithm, group: int, switch: int, width: int) -> int:
        """First cell of a switch of a group in a phase, which all pieces take in turn."""
        key, actor = (number, group, switch), self.plan.switches[phase.dimension][group][switch]
        if key not in self.given:
            self.given[key] = self.taken[actor]
            self.taken[actor] += phase.slots[switch] * width
        return self.given[key]

    def lay_nested(self) -> None:
        """Phases that work on nested contiguous parts: dimension 0 cuts the buffer, dimension 1 each part, …"""
        plan, collective = self.plan, self.plan.collective
        per, parts = plan.total // plan.n, [plan.length(d) // size for d, size in enumerate(plan.sizes)]
        buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
        inner = self.piece * plan.total

        def nested(coordinates: list[np.ndarray]) -> np.ndarray:
            """First chunks of shards in nested order."""
            return sum((c * part for c, part in zip(coordinates, parts, strict=True)), np.array(inner))

        if plan.permuted:
            buffer, inner = Buffer.SCRATCH, self.area()
            every = np.arange(plan.n)
            shards, own = self.shard(every), self.shard(self.which)[:, None]
            all_nested, own_nested = nested(plan.coordinates(every)), nested(self.coordinates)[:, None]
            if collective == "reduce_scatter":
                self.copies((Buffer.INPUT, shards), (buffer, all_nested), per)
            else:
                self.copies((Buffer.OUTPUT, own), (buffer, own_nested), per)
        for phase in plan.phases:
            who = self.taking_part(phase.dimension)
            at = np.zeros(len(who), dtype=np.int64)
            for lower in range(phase.dimension if plan.nested else 0):
                at += self.coordinates[lower][who] * parts[lower]
            place = (int(buffer), at + inner)
            self.run(phase, who, at, {1: place, 2: place})
        if plan.permuted and collective == "all_gather":
            self.copies((buffer, all_nested), (Buffer.OUTPUT, shards), per)
        elif plan.permuted:
            self.copies((buffer, own_nested), (Buffer.INPUT, own), per)

    def lay_all_to_all(self) -> None:
        """all_to_all: before phase d a rank holds the blocks whose coordinates below d are those of their origin and
        whose others are those of their destination; the phase turns coordinate d."""
        plan, n = self.plan, self.plan.n
        block, every = plan.total // n, np.arange(n)
        coordinates = plan.coordinates(every)
        buffer, where = Buffer.INPUT, self.shard(every)
        for phase in plan.phases:
            d = phase.dimension
            stride, size = plan.strides[d], plan.sizes[d]
            # The coordinate of the phase is outermost, so the data for one member is one range.
            layout = coordinates[d] * (n // size) + every % stride + every // (stride * size) * stride
            if not (buffer == Buffer.INPUT and plan.pieces == 1 and np.array_equal(layout, every)):
                source, area = (buffer, where), self.area()
                buffer, where = Buffer.SCRATCH, area + layout * block
                self.copies(source, (buffer, where), block)
            direct = phase is plan.phases[-1] and plan.pieces == 1
            target, offset = (Buffer.OUTPUT, 0) if direct else (Buffer.SCRATCH, self.area())
            zero = np.zeros(len(self.which), dtype=np.int64)
            places = {1: (int(buffer), zero + int(where.min())), 2: (int(target), zero + offset)}
            self.run(phase, np.arange(len(self.which)), zero, places)
            buffer, where = target, offset + layout * block
        if buffer != Buffer.OUTPUT:
            self.copies((buffer, where), (Buffer.OUTPUT, self.shard(every)), block)
