"""Symmetry of a plan under rotations: the proof, on the arrays of the plan, that one rank represents all.

Every rotation (`astrasim_py.program.rotation.Rotation`) maps links to links of equal bandwidth and latency, routes to
routes, and the program of a rank to that of the rotated rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from astrasim_py.core.errors import FoldError
from astrasim_py.program.rotation import Rotation
from astrasim_py.system import compatible
from astrasim_py.system.plan import CollectiveCall, Instance, Instances, Phase, Plan
from astrasim_py.system.programs import KIND_NAMES, MEMORY, SEND, RankProgram, rotate
from astrasim_py.system.routes import MAX_ROUTE_LINKS
from astrasim_py.topology.fabrics import Rails
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import DimensionOrder

#: Most pairs for which routes are compared one by one; beyond it the rule of the router must be symmetric.
_PAIRS = 2**20
#: Sample of NPUs at which the routes of such a router are compared too.
_SAMPLE = 256


def refuse(problem: str) -> FoldError:
    """The error for a plan whose symmetry is broken or cannot be shown."""
    return FoldError("fold", problem, "run it without fold")


@dataclass(frozen=True, eq=False)
class Links:
    """Classes of links: rotations map the links of a class to each other."""

    of: np.ndarray  # int32[links]: class of each link
    anchor: np.ndarray  # int32[links]: the NPU that identifies a link in its class, and rotates with it
    first: np.ndarray  # int64[classes]: a link of each class


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A plan and the group of rotations under which it is symmetric.

    Two messages of rank 0 cross a class of links with equal anchors exactly if messages of one source cross one link.
    """

    plan: Plan
    group: Rotation  # acts on ranks, and by the same rule on NPUs
    links: Links
    called: Mapping[int, Sequence[int]]  # instances of rank 0, ascending → those of other ranks in their place
    deltas: np.ndarray  # int64[k]: ranks that rank 0 sends to, ascending
    route_ptr: np.ndarray  # routes from rank 0 to these, as CSR of hops
    route_class: np.ndarray  # by hop: class of the link
    route_anchor: np.ndarray  # by hop: its anchor

    @cached_property
    def tabled(self) -> bool:
        """Whether the full run has a table of routes; without one it also records unused links."""
        if not self.plan.folded:
            return not self.plan.computed_routes
        return not self.plan.problem.topology.walked or self.plan.ranks * len(self.route_class) <= MAX_ROUTE_LINKS


def symmetry_of(plan: Plan) -> Symmetry:
    """Show that a plan is symmetric. Raises FoldError: it is not, or this cannot be shown, and why."""
    refuse_rules(plan, compatible.FOLD)
    first: FoldError | None = None
    for group in _groups(plan):
        try:
            links = link_classes(plan.problem.topology, group)
            _check_placement(plan, group)
            called, peers = _ProgramCheck(plan, group).check()
            return _check_routes(plan, group, links, called, np.unique(peers))
        except FoldError as error:
            first = first or error
    raise first or refuse("no rotation maps its ranks to each other")


def refuse_rules(plan: Plan, use: str) -> None:
    """Raise FoldError: rules that can break the symmetry of any plan; `use`: a fold, or one of roles."""
    problem, job, ranks = plan.problem, plan.problem.jobs[0], plan.ranks
    topology, delays = problem.topology, job.start_delay_ps
    shared = problem.memory.kind if problem.memory.kind not in ("none", "per_npu") else None
    lowest = problem.network.model == "analytical" and problem.semantics.analytical_route == "lowest_dim"
    late = [rank for rank in range(ranks) if delays.get(rank, 0) != delays.get(0, 0)] if delays else []
    features = {
        compatible.SWITCHES: plan.rank_name(plan.npu_ranks) if plan.npu_ranks < ranks else None,
        compatible.JOBS: len(problem.jobs) if len(problem.jobs) != 1 else None,
        compatible.TILES: bool(plan.tiles),
        compatible.LOWEST_DIM: lowest,
        compatible.FAILED: topology.failed[0] if topology.failed else None,
        compatible.EMPTY: ranks if ranks != topology.npus else None,
        compatible.LATE: f"rank {late[0]}" if late else None,
        compatible.DELAYS: bool(delays),
        compatible.SPEEDS: bool(job.compute_speed),
        compatible.SHARED_MEMORY: shared,
        compatible.USED_MEMORY: shared if shared and bool((plan.workload[0].structure.kind == MEMORY).any()) else None,
        compatible.PLANNER: job.planner is not None and not hasattr(job.planner, "placed"),
    }
    parts = problem.parts | features | {"npus": topology.npus}
    for exclusion in compatible.exclusions(parts, (use,)):
        raise refuse(exclusion.problem)


def _groups(plan: Plan) -> Iterator[Rotation]:
    """Groups of rotations to try: first the topology's dimensions, then the algorithms' rotations."""
    n = plan.ranks
    candidates = [tuple(d.size for d in plan.problem.topology.dims)]
    candidates += [call.rotation.dims for call in plan.calls.values if call.rotation is not None]
    candidates += [(n,), (2,) * (n.bit_length() - 1)]
    for dims in dict.fromkeys(tuple(size for size in dims if size > 1) or (1,) for dims in candidates):
        if prod(dims) == n:
            yield Rotation(dims)


def link_classes(topology: Topology, group: Rotation) -> Links:
    """Classes of links that rotations of the NPUs map to each other, with equal bandwidth and latency."""
    n, src, dst = topology.npus, topology.src.astype(np.int64), topology.dst.astype(np.int64)
    if not len(src):
        return Links(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64))
    up, down = dst >= n, src >= n
    between = np.flatnonzero(up & down)
    if len(between):
        raise refuse(f"{topology.name} has links between switches ({topology.link_name(int(between[0]))})")
    anchor = np.where(down, dst, src)
    router = topology.router
    if isinstance(router, DimensionOrder) and router.links == topology.links:
        part = np.repeat(np.arange(len(router.dims)), [dim.links(n) for dim in router.dims])
    else:  # an NPU of a machine has links in its node, and out of it
        part = 2 * topology.parallel + topology.in_node
    key = (part * 3 + up + 2 * down) * n
    direct = slice(None) if not (up.any() or down.any()) else np.flatnonzero(~(up | down))
    key[direct] += group.unshift(dst[direct], src[direct])
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    links = Links(of=of.astype(np.int32), anchor=anchor.astype(np.int32), first=first)
    _check_complete(topology, group, links)
    for values, property_name in ((topology.latency_ps, "latency"), (topology.bandwidth_class, "bandwidth")):
        unlike = np.flatnonzero(values != values[first][of])
        if len(unlike):
            pair = " and ".join(map(topology.link_name, (int(first[of[unlike[0]]]), int(unlike[0]))))
            raise refuse(f"links {pair} of {topology.name} differ in {property_name}")
    _check_switches(topology, group, links)
    return links


def _check_complete(topology: Topology, group: Rotation, links: Links) -> None:
    """Every class must have one link at each NPU."""
    n, classes = topology.npus, len(links.first)
    uneven = np.bincount(links.of, minlength=classes) != n
    if not uneven.any():
        at = links.of.astype(np.int64) * n + links.anchor
        uneven = (np.bincount(at, minlength=classes * n) != 1).reshape(classes, n).any(axis=1)
    if not uneven.any():
        return
    which = int(np.argmax(uneven))
    lacks = np.setdiff1d(np.arange(n), links.anchor[links.of == which])
    link = topology.link_name(int(links.first[which]))
    at = f", NPU {int(lacks[0])} has no link like {link}" if len(lacks) else ""
    raise refuse(f"{topology.name} does not look the same from every NPU under rotations of {_text(group)}{at}")


def _check_switches(topology: Topology, group: Rotation, links: Links) -> None:
    """NPUs that share a switch must still share one when rotated, for its incoming and its outgoing links."""
    n, src, dst = topology.npus, topology.src, topology.dst
    here = np.arange(n, dtype=np.int64)
    rotated = [group.shift(here, step) for step in _unit_steps(group)]
    images = [np.full(topology.vertices, -1, dtype=np.int64) for _ in rotated]
    for number in np.flatnonzero((dst[links.first] >= n) | (src[links.first] >= n)).tolist():
        members = np.flatnonzero(links.of == number)
        switch = np.empty(n, dtype=np.int64)
        switch[links.anchor[members]] = (dst if dst[members[0]] >= n else src)[members]
        for image, target in zip(images, rotated, strict=True):
            new = image[switch] < 0
            image[switch[new]] = switch[target[new]]
            torn = np.flatnonzero(image[switch] != switch[target])
            if len(torn):
                name = topology.vertex_name(int(switch[torn[0]]))
                raise refuse(f"rotations of {_text(group)} split the NPUs at switch {name} of {topology.name}")


def _unit_steps(group: Rotation) -> list[int]:
    """Rotations by one along each dimension."""
    return np.cumprod((1, *group.dims[:-1]), dtype=np.int64).tolist()


def _check_placement(plan: Plan, group: Rotation) -> None:
    """Check that rotating ranks rotates their NPUs."""
    placed = np.asarray(plan.npu_of, dtype=np.int64)
    wrong = np.flatnonzero(placed != group.shift(np.arange(len(placed)), int(placed[0])))
    if len(wrong):
        rank = int(wrong[0])
        both = f"rank 0 is on NPU {int(placed[0])} and rank {rank} on NPU {int(placed[rank])}"
        raise refuse(f"the placement is not linear: {both}")


def _check_routes(plan: Plan, group: Rotation, links: Links, called: Mapping, peers: np.ndarray) -> Symmetry:
    """Routes from rank 0 as classes; check that every other rank has the same."""
    topology, home = plan.problem.topology, int(plan.npu_of[0])
    n = topology.npus
    to = group.shift(peers, home)
    ptr, hops = topology.routes(np.full(len(to), home), to)
    classes, anchors = links.of[hops], links.anchor[hops].astype(np.int64)
    lengths = np.diff(ptr)
    if len(peers) * n <= _PAIRS:
        others = np.arange(n, dtype=np.int64)
    elif isinstance(topology.router, DimensionOrder | Rails) and topology.renumbered is None:
        # The router's rule uses differences of coordinates only, or equal nodes and rails, which the classes of links
        # keep: a few NPUs suffice as a sample.
        steps = np.array(_unit_steps(group))
        spread = np.arange(0, n, max(n // _SAMPLE, 1), dtype=np.int64)
        others = np.unique(np.concatenate([steps % n, (n - steps) % n, spread]))
        others = others[: max(_PAIRS // max(len(peers), 1), len(steps) * 2)]
    else:
        raise refuse(f"{topology.name} has too many routes to compare, and no rule for them that is known")
    for block in np.array_split(others, max(1, len(others) * len(peers) // 2**18)):
        by = np.repeat(block, len(peers))
        sources = group.shift(by, home)
        there_ptr, there = topology.routes(sources, group.shift(np.tile(peers, len(block)), sources))
        expected = np.tile(lengths, len(block))
        same = np.diff(there_ptr) == expected
        if same.all():
            rotated = group.shift(np.tile(anchors, len(block)), np.repeat(by, expected))
            fits = (links.of[there] == np.tile(classes, len(block))) & (links.anchor[there] == rotated)
            same[np.repeat(np.arange(len(same)), expected)[~fits]] = False
        if not same.all():
            wrong = int(np.argmin(same))
            source, number = int(sources[wrong]), wrong % len(peers)
            raise refuse(
                f"the route from NPU {source} to NPU {int(group.shift(int(peers[number]), source))} of {topology.name} "
                f"is not that from NPU {home} to NPU {int(to[number])} rotated"
            )
    return Symmetry(plan, group, links, called, peers, ptr, classes, anchors)


class _ProgramCheck:
    """Shows that every rank runs the program of rank 0, rotated."""

    def __init__(self, plan: Plan, group: Rotation) -> None:
        self.plan, self.group = plan, group
        self._equal: set[tuple[RankProgram, RankProgram]] = set()

    def check(self) -> tuple[dict[int, tuple[int, ...]], np.ndarray]:
        """Instances of rank 0 with those of other ranks in their place, and the ranks that rank 0 sends to."""
        plan, base = self.plan, self.plan.workload[0]
        peers = [_destinations(base, base.peer.astype(np.int64), "the workload")]
        own = np.unique(base.instance[base.instance >= 0]).tolist()
        #: Instance of rank 0 → corresponding instances of other ranks, and those ranks.
        called: dict[int, dict[int, list[int]]] = {index: {index: [*range(1, plan.ranks)]} for index in own}
        if not plan.workload.alike:
            called = {index: {} for index in own}
            for rank in range(1, plan.ranks):
                for index, theirs in self._check_workload(rank):
                    called[index].setdefault(theirs, []).append(rank)
        for index, others in called.items():
            peers += self._check_instance(index, others)
        same = {index: tuple(dict.fromkeys((index, *others))) for index, others in called.items()}
        return same, np.concatenate(peers)

    def _check_workload(self, rank: int) -> list[tuple[int, int]]:
        """Instances of rank 0 and those of another rank in their place."""
        base, other = self.plan.workload[0], self.plan.workload[rank]
        self._compare(base, other, f"ranks 0 and {rank} do not run the same workload")
        wrong = np.flatnonzero(rotate(self.group, base.peer, rank) != other.peer)
        if len(wrong):
            node = int(base.node_id[wrong[0]])
            raise refuse(f"node {node} of the workload has another peer on rank {rank} than on rank 0, rotated")
        both = np.unique(np.stack([base.instance, other.instance]), axis=1)
        mine, theirs = both[:, (both >= 0).any(axis=0)]
        if (mine[1:] == mine[:-1]).any() or (theirs[1:] <= theirs[:-1]).any() or (theirs < 0).any():
            raise refuse(f"ranks 0 and {rank} meet in collectives in different orders")
        return list(zip(mine.tolist(), theirs.tolist(), strict=True))

    def _compare(self, one: RankProgram, other: RankProgram, problem: str) -> None:
        """Raise unless two programs are equal except for peers and instances."""
        if one is other or (one, other) in self._equal:
            return
        if one.structure is not other.structure:
            raise refuse(f"{problem}: their nodes or dependencies differ")
        for name, unit in (("nbytes", "bytes"), ("duration", "ps"), ("tag", "tag"), ("slot", "slot")):
            mine, theirs = getattr(one, name), getattr(other, name)
            unlike = (mine != theirs) & ((one.peer >= 0) | (name != "nbytes"))
            if unlike.any():
                at = int(np.argmax(unlike))
                node = f"{KIND_NAMES[one.structure.kind[at]]} node {int(one.node_id[at])}"
                raise refuse(f"{problem}: {node} has {int(mine[at])} and {int(theirs[at])} {unit}")
        for name in ("counts", "of", "k", "detached"):
            mine, theirs = (np.asarray(getattr(program.counters, name, None)) for program in (one, other))
            if not np.array_equal(mine, theirs):
                raise refuse(f"{problem}: their counters differ")
        self._equal.add((one, other))

    def _check_instance(self, index: int, others: Mapping[int, Sequence[int]]) -> list[np.ndarray]:
        """Ranks that rank 0 sends to in a collective, once the ranks of `others` (by instance) run the same."""
        instances, instance = self.plan.instances, self.plan.instances[index]
        if any(len(chunk.turns) != len(chunk.phases) for chunk in instance.chunks):
            raise refuse("a planner gives no turns to the phases of a collective, and the order of arrivals decides")
        for other, ranks in others.items():
            if _outline(instances[other]) != _outline(instance):
                raise refuse(f"rank {ranks[0]} calls another collective than rank 0, or one that is planned otherwise")
        found = []
        done: set[tuple] = set()
        for mine, *phases in zip(instances.phases(index), *map(instances.phases, others), strict=True):
            call = mine.calls[mine.call_of[0]]
            # Chunks of equal size share the calls of a phase.
            key = call, *(phase.calls for phase in phases)
            if key in done or not call.programs:
                continue
            done.add(key)
            _check_even(call, instance)
            whole = instance.only_call is not None and tuple(call.members) == tuple(range(self.plan.ranks))
            if whole and call.rotation is not None and set(others) <= {index}:
                found.append(self._check_rotated_call(instance, call))
            else:
                there = [(r, phase) for phase, ranks in zip(phases, others.values(), strict=True) for r in ranks]
                found.append(self._check_calls(instance, call, there))
        return found

    def _check_rotated_call(self, instance: Instance, call: CollectiveCall) -> np.ndarray:
        """Ranks that rank 0 sends to in an algorithm of a rotation among all ranks."""
        plan, group, rotation = self.plan, self.group, call.rotation
        assert call.algorithm is not None and rotation is not None, "a call with programs"
        what = f"{call.algorithm.name} {instance.type}"
        deltas = np.unique(_destinations(call.base, call.base.peer.astype(np.int64), what))
        ranks = np.arange(plan.ranks, dtype=np.int64)
        if tuple(size for size in rotation.dims if size > 1) != group.dims:
            for block in np.array_split(ranks, max(1, len(ranks) * len(deltas) // 2**22)):
                if bool((rotation.shift(deltas[:, None], block) != group.shift(deltas[:, None], block)).any()):
                    raise refuse(
                        f"{what} is the same on every rank of a layout of {_text(rotation)}, but "
                        f"{plan.problem.topology.name} looks the same from every NPU only in a layout of {_text(group)}"
                    )
        return deltas

    def _check_calls(self, instance: Instance, call: CollectiveCall, there: list[tuple[int, Phase]]) -> np.ndarray:
        """Ranks that rank 0 sends to in a call, once those of other ranks (rank, phase) are shown to be the same."""
        assert call.algorithm is not None, "a call with programs"
        what = f"{call.algorithm.name} {instance.type}"
        program, peers = peers_in(call, call.members.index(0))
        destinations = _destinations(program, peers, what)
        for rank, phase in there:
            number = phase.call_of[rank]
            other = phase.calls[number]
            if not other.programs:
                raise refuse(f"{what}: rank {rank} has nothing to do")
            _check_even(other, instance)
            theirs, their_peers = peers_in(other, self.plan.position(rank, phase.first + number))
            self._compare(program, theirs, f"{what} is not the same for ranks 0 and {rank}")
            wrong = np.flatnonzero(rotate(self.group, peers, rank) != their_peers)
            if len(wrong):
                node, mine, peer = (int(column[wrong[0]]) for column in (program.node_id, peers, their_peers))
                raise refuse(
                    f"{what}: rotations of {_text(self.group)} do not map the peer of rank 0 at node {node}, "
                    f"rank {mine}, to that of rank {rank}, rank {peer}"
                )
        return destinations


def _outline(instance: Instance) -> tuple:
    """Properties besides programs that two symmetric collectives share."""
    chunks = tuple((c.priority, c.turns, tuple((p.queue, p.priority) for p in c.phases)) for c in instance.chunks)
    return instance.type, instance.size, len(instance.members), instance.only_call is None, chunks


def _check_even(call: CollectiveCall, instance: Instance) -> None:
    """Refuse messages that differ by a byte between the members of a rotation."""
    member_bytes = call.programs.member_bytes
    if member_bytes is not None:
        algorithm = member_bytes.algorithm
        raise refuse(
            f"{instance.size} bytes of {instance.type} are not a multiple of the {algorithm.chunks} chunks of "
            f"{algorithm.name}: messages of different ranks differ by a byte"
        )


def _destinations(program: RankProgram, peers: np.ndarray, what: str) -> np.ndarray:
    """Destinations of a program; refuse programs that depend on the arrival order of messages."""
    if program.counters is not None and bool((program.counters.start >= 0).any()):
        raise refuse(f"{what} counts from the completion of a node, where the order of arrivals matters")
    return peers[program.structure.kind == SEND]


def calls_of(instances: Instances, number: int, rank: int) -> list[tuple[int, CollectiveCall]]:
    """The calls of a collective that a rank takes part in, in order, each with its index."""
    return [(p.first + p.call_of[rank], p.calls[p.call_of[rank]]) for p in instances.phases(number)]


def peers_in(call: CollectiveCall, position: int) -> tuple[RankProgram, np.ndarray]:
    """The program of a member of a call (for a rotation: the first member's), and its peers' ranks by node."""
    program = call.programs.shared[position]
    peers = call.programs.peers(position, program.peer)
    return program, np.where(peers >= 0, np.asarray(call.members, dtype=np.int64)[np.maximum(peers, 0)], -1)


def _text(group: Rotation) -> str:
    return "x".join(map(str, group.dims))
