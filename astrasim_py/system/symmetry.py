"""Symmetry of a plan under rotations: the proof that lets one rank stand for all.

A *rotation* adds a vector, digit by digit and modulo the dimensions, to the number of every rank and every NPU
(`astrasim_py.program.rotation.Rotation`). A plan is symmetric if every rotation

* maps links to links of equal bandwidth and latency, and the switch behind a link to a switch,
* maps the route of every pair that exchanges messages to the route of the rotated pair,
* maps the program of a rank (workload and algorithms) to that of the rotated rank: same nodes, dependencies, tags,
  bytes and durations, and peers that are rotated.

Each of these is checked on the arrays of the plan; names of shapes and algorithms prove nothing. What a run can still
do to break the symmetry is that two messages of unlike sources ask for one link at one time, where the order of
ranks decides: that is seen by running (`astrasim_py.engine.fold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from astrasim_py.core.errors import FoldError
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.plan import KIND_NAMES, MEMORY, SEND, CollectiveCall, Counters, Instance, Plan, RankProgram
from astrasim_py.system.routes import MAX_ROUTE_LINKS
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import DimensionOrder

#: Pairs whose routes are compared one by one; of more, only those of a router whose rule is itself symmetric.
_PAIRS = 2**20
#: NPUs at which the routes of such a router are compared all the same.
_SAMPLE = 256

_REMEDY = "run it without fold"


def refuse(problem: str) -> FoldError:
    """The error of a plan whose symmetry is broken or cannot be shown."""
    return FoldError("fold", problem, _REMEDY)


@dataclass(frozen=True, eq=False)
class Links:
    """Links by class: those that rotations map to each other.

    Attributes
    ----------
    of : numpy.ndarray
        int32[links]: class of each link.
    anchor : numpy.ndarray
        int32[links]: the NPU that tells the links of a class apart. It turns with them.
    first : numpy.ndarray
        int64[classes]: a link of each class.
    """

    of: np.ndarray
    anchor: np.ndarray
    first: np.ndarray


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A plan and the group of rotations under which it is symmetric.

    Attributes
    ----------
    plan : Plan
    group : Rotation
        It acts on ranks, and by the same rule on NPUs.
    links : Links
    called : mapping of int to sequence of int
        Collectives (by index) that rank 0 takes part in, ascending, and those that other ranks are in in their place.
    deltas : numpy.ndarray
        int64[k]: ranks that rank 0 sends to, ascending.
    route_ptr, route_class, route_anchor : numpy.ndarray
        Routes from rank 0 to these: of each hop the class of its link, and its anchor. Two messages of rank 0 cross a
        class by equal anchors exactly where a link of it is crossed by messages of one source.
    """

    plan: Plan
    group: Rotation
    links: Links
    called: Mapping[int, Sequence[int]]
    deltas: np.ndarray
    route_ptr: np.ndarray
    route_class: np.ndarray
    route_anchor: np.ndarray

    @cached_property
    def tabled(self) -> bool:
        """Whether the full run has a table of routes; without one it records links that nobody uses, too."""
        if self.plan.folded:
            walked = self.plan.problem.topology.walked
            return not walked or self.plan.ranks * len(self.route_class) <= MAX_ROUTE_LINKS
        return self.plan.route_links is not None

    @cached_property
    def used(self) -> np.ndarray:
        """int64[c]: classes of links that messages cross, ascending."""
        return np.unique(self.route_class).astype(np.int64)


def symmetry_of(plan: Plan) -> Symmetry:
    """Show that a plan is symmetric.

    Raises
    ------
    FoldError
        It is not, or it cannot be shown: with what breaks it.
    """
    _rules(plan)
    first: FoldError | None = None
    for group in _groups(plan):
        try:
            links = link_classes(plan.problem.topology, group)
            _placement(plan, group)
            called, peers = _programs(plan, group)
            return _routes(plan, group, links, called, np.unique(peers))
        except FoldError as error:
            first = first or error
    raise first or refuse("no rotation maps its ranks to each other")


# -- rules -------------------------------------------------------------------------------------------------------


def _rules(plan: Plan) -> None:
    """What can break the symmetry of any plan."""
    problem = plan.problem
    network, semantics, topology = problem.network, problem.semantics, problem.topology
    if len(problem.jobs) != 1:
        raise refuse(f"there are {len(problem.jobs)} jobs, and only the ranks of one can be alike")
    for bad, problem_text in (
        (network.factory is not None, f"network model {network.model} is not ours, nothing is known of its symmetry"),
        (network.msccl is not None, "with slots of connections (network.msccl) the order of ranks matters"),
        (
            semantics.message_match == "bytes",
            "messages that match by bytes (semantics.message_match) meet across calls",
        ),
        (semantics.event_order == "scheduled", "semantics.event_order: scheduled makes the order of ranks matter"),
        (semantics.rendezvous_bytes > 0, "with a rendezvous the order of ranks matters"),
        (
            network.model == "analytical" and semantics.analytical_route == "lowest_dim",
            "semantics.analytical_route: lowest_dim looks at pairs of NPUs, not at links",
        ),
        (topology.routing.ecmp, f"routes of {topology.name} are spread by a hash (ecmp)"),
        (bool(topology.failed), f"NPU {(*topology.failed, 0)[0]} of {topology.name} has failed"),
        (plan.ranks != topology.npus, f"{plan.ranks} ranks do not fill the {topology.npus} NPUs of {topology.name}"),
    ):
        if bad:
            raise refuse(problem_text)
    delays = problem.jobs[0].start_delay_ps
    late = [rank for rank in range(plan.ranks) if delays.get(rank, 0) != delays.get(0, 0)] if delays else []
    if late:
        raise refuse(f"rank {late[0]} starts later or earlier than rank 0 (start_delay)")


def _groups(plan: Plan) -> Iterator[Rotation]:
    """Groups of rotations to try: that of the topology's dimensions, then those of the algorithms."""
    n = plan.ranks
    given = [tuple(d.size for d in plan.problem.topology.dims)]
    given += [part.rotation.dims for part in plan.calls if getattr(part, "rotation", None) is not None]
    given += [(n,), (2,) * (n.bit_length() - 1)]
    seen = set()
    for dims in given:
        dims = tuple(size for size in dims if size > 1) or (1,)
        if prod(dims) == n and dims not in seen:
            seen.add(dims)
            yield Rotation(dims)


# -- topology ----------------------------------------------------------------------------------------------------


def link_classes(topology: Topology, group: Rotation) -> Links:
    """Classes of links that rotations of the NPUs map to each other.

    Raises
    ------
    FoldError
        A rotation maps a link to none, or to one of another bandwidth or latency.
    """
    n, src, dst = topology.npus, topology.src.astype(np.int64), topology.dst.astype(np.int64)
    if not len(src):
        return Links(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64))
    up, down = dst >= n, src >= n
    if bool((up & down).any()):
        link = int(np.flatnonzero(up & down)[0])
        raise refuse(f"{topology.name} has links between switches ({topology.link_name(link)})")
    anchor = np.where(down, dst, src)
    part, parts = _parts(topology)
    key = (part * 3 + up + 2 * down) * n
    direct = slice(None) if not (up.any() or down.any()) else np.flatnonzero(~(up | down))
    key[direct] += group.unshift(dst[direct], src[direct])
    present = np.zeros(parts * 3 * n, dtype=np.int32)
    present[key] = 1
    names = np.cumsum(present, dtype=np.int32) - 1
    of = names[key]
    classes = int(names[-1]) + 1
    first = np.empty(classes, dtype=np.int64)
    first[of[::-1]] = np.arange(len(src) - 1, -1, -1)
    counts = np.bincount(of, minlength=classes)
    _complete(topology, group, of, anchor, counts, first)
    for values, what in ((topology.latency_ps, "latency"), (topology.bandwidth_class, "bandwidth")):
        unlike = np.flatnonzero(values != values[first][of])
        if len(unlike):
            link, other = int(unlike[0]), int(first[of[unlike[0]]])
            raise refuse(
                f"links {topology.link_name(other)} and {topology.link_name(link)} of {topology.name} differ in {what}"
            )
    _hubs(topology, group, of, anchor, first)
    return Links(of=of, anchor=anchor.astype(np.int32), first=first)


def _parts(topology: Topology) -> tuple[np.ndarray, int]:
    """What tells links apart that join NPUs alike: the dimension of a regular shape, else which of parallel ones."""
    router = topology.router
    if isinstance(router, DimensionOrder) and router.links == topology.links:
        counts = [dim.links(topology.npus) for dim in router.dims]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts), len(counts)
    key = topology.src.astype(np.int64) * topology.vertices + topology.dst
    order = np.argsort(key, kind="stable")
    new = np.concatenate([[True], key[order][1:] != key[order][:-1]])
    index = np.arange(len(order))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = index - np.maximum.accumulate(np.where(new, index, 0))
    return number, int(number.max()) + 1


def _complete(
    topology: Topology, group: Rotation, of: np.ndarray, anchor: np.ndarray, counts: np.ndarray, first: np.ndarray
) -> None:
    """Every class must have one link at each NPU."""
    n = topology.npus
    most = len(counts) * n
    taken = np.bincount(of.astype(np.int64) * n + anchor, minlength=most) if most <= len(of) else None
    if taken is not None and bool((taken == 1).all()):
        return
    short = np.flatnonzero(counts != n)
    which = int(short[0]) if len(short) else int(of[np.flatnonzero(taken[of * n + anchor] != 1)[0]])
    link = int(first[which])
    lacks = np.setdiff1d(np.arange(n), anchor[of == which])
    at = f", NPU {int(lacks[0])} has no link like {topology.link_name(link)}" if len(lacks) else ""
    raise refuse(f"{topology.name} does not look the same from every NPU under rotations of {_text(group)}{at}")


def _hubs(topology: Topology, group: Rotation, of: np.ndarray, anchor: np.ndarray, first: np.ndarray) -> None:
    """NPUs that share a switch must still share one when they are rotated, on its way in as on its way out."""
    n = topology.npus
    to_switch = [c for c, link in enumerate(first.tolist()) if topology.dst[link] >= n or topology.src[link] >= n]
    if not to_switch:
        return
    steps = np.cumprod((1, *group.dims[:-1]), dtype=np.int64)
    here = np.arange(n, dtype=np.int64)
    turned = [group.shift(here, int(step)) for step in steps]
    images: list[np.ndarray] = [np.full(topology.vertices, -1, dtype=np.int64) for _ in steps]
    for c in to_switch:
        links = np.flatnonzero(of == c)
        hub = np.empty(n, dtype=np.int64)
        ends = topology.dst if topology.dst[links[0]] >= n else topology.src
        hub[anchor[links]] = ends[links]
        for image, turn in zip(images, turned, strict=True):
            known = image[hub] >= 0
            image[hub[~known]] = hub[turn[~known]]
            if bool((image[hub] != hub[turn]).any()):
                at = int(np.flatnonzero(image[hub] != hub[turn])[0])
                name = topology.vertex_name(int(hub[at]))
                raise refuse(f"rotations of {_text(group)} tear the NPUs at switch {name} of {topology.name} apart")


def _placement(plan: Plan, group: Rotation) -> None:
    """Rotating ranks must rotate the NPUs they are on."""
    if isinstance(plan.npu_of, range) and plan.npu_of == range(plan.ranks):
        return
    placed = np.asarray(plan.npu_of, dtype=np.int64)
    wrong = np.flatnonzero(placed != group.shift(np.arange(len(placed)), int(placed[0])))
    if len(wrong):
        rank = int(wrong[0])
        raise refuse(
            f"the placement is not linear: rank 0 is on NPU {int(placed[0])} and rank {rank} on NPU {int(placed[rank])}"
        )


def _routes(plan: Plan, group: Rotation, links: Links, called: Mapping, peers: np.ndarray) -> Symmetry:
    """Routes from rank 0, as classes; those from every other rank must be the same."""
    topology, home = plan.problem.topology, int(plan.npu_of[0])
    n = topology.npus
    to = group.shift(peers, home)
    ptr, hops = topology.routes(np.full(len(to), home), to)
    classes, anchors = links.of[hops], links.anchor[hops].astype(np.int64)
    lengths = np.diff(ptr)
    if len(peers) * n <= _PAIRS:
        others = np.arange(n, dtype=np.int64)
    elif isinstance(topology.router, DimensionOrder) and topology.renumbered is None:
        # Its rule knows differences of coordinates only: a few NPUs show that the classes fit it.
        steps = np.cumprod((1, *group.dims[:-1]), dtype=np.int64)
        spread = np.arange(0, n, max(n // _SAMPLE, 1), dtype=np.int64)
        others = np.unique(np.concatenate([steps % n, (n - steps) % n, spread]))
        others = others[: max(_PAIRS // max(len(peers), 1), len(steps) * 2)]
    else:
        raise refuse(f"{topology.name} has too many routes to compare, and no rule for them that is known")
    for block in np.array_split(others, max(1, len(others) * len(peers) // 2**18)):
        shifted = np.repeat(block, len(peers))
        from_ = group.shift(shifted, home)
        there = topology.routes(from_, group.shift(np.tile(peers, len(block)), from_))
        same = np.diff(there[0]) == np.tile(lengths, len(block))
        if bool(same.all()):
            turned = group.shift(np.tile(anchors, len(block)), np.repeat(shifted, np.tile(lengths, len(block))))
            fits = (links.of[there[1]] == np.tile(classes, len(block))) & (links.anchor[there[1]] == turned)
            same = np.ones(len(same), dtype=bool)
            same[np.repeat(np.arange(len(same)), np.diff(there[0]))[~fits]] = False
        wrong = np.flatnonzero(~same)
        if len(wrong):
            source = int(from_[wrong[0]])
            target = int(group.shift(int(peers[wrong[0] % len(peers)]), source))
            raise refuse(
                f"the route from NPU {source} to NPU {target} of {topology.name} is not that from NPU {home} to NPU "
                f"{int(to[wrong[0] % len(peers)])} rotated"
            )
    return Symmetry(plan, group, links, called, peers, ptr, classes, anchors)


# -- programs ----------------------------------------------------------------------------------------------------


def _programs(plan: Plan, group: Rotation) -> tuple[dict[int, tuple[int, ...]], np.ndarray]:
    """What rank 0 calls, and its peers (as ranks), once every other rank is shown to run the same, rotated."""
    base = plan.workload[0]
    peers = [_check(base, "the workload")]
    memory = plan.problem.memory
    if memory.kind not in ("none", "per_npu") and bool((base.structure.kind == MEMORY).any()):
        raise refuse(f"ranks share their memory ({memory.kind})")
    alike = _Alike()
    mine = np.unique(base.instance[base.instance >= 0]).tolist()
    called: dict[int, dict[int, Sequence[int]]] = {index: {index: range(1, plan.ranks)} for index in mine}
    if _several(plan):
        found: dict[int, dict[int, list[int]]] = {index: {} for index in mine}
        for rank in range(1, plan.ranks):
            for index, theirs in _workload(plan, group, rank, alike):
                found[index].setdefault(theirs, []).append(rank)
        called = dict(found)
    for index, others in called.items():
        peers += _instance(plan, group, plan.instances[index], others, alike)
    return {index: tuple(dict.fromkeys((index, *others))) for index, others in called.items()}, np.concatenate(peers)


def _workload(plan: Plan, group: Rotation, rank: int, alike: _Alike) -> list[tuple[int, int]]:
    """Collectives of rank 0 and those of another rank in their place, once both are shown to run one workload."""
    base, other = plan.workload[0], plan.workload[rank]
    alike.check(base, other, f"ranks 0 and {rank} do not run the same workload")
    turned = _turned(group, base.peer.astype(np.int64), rank)
    if bool((turned != other.peer).any()):
        node = int(base.node_id[np.flatnonzero(turned != other.peer)[0]])
        raise refuse(f"node {node} of the workload has another peer on rank {rank} than on rank 0, rotated")
    pairs = [
        tuple(pair)
        for pair in np.unique(np.stack([base.instance, other.instance]), axis=1).T.tolist()
        if max(pair) >= 0
    ]
    theirs = [index for _, index in pairs]
    if len({index for index, _ in pairs}) != len(pairs) or sorted(set(theirs)) != theirs or min(theirs, default=0) < 0:
        raise refuse(f"ranks 0 and {rank} meet in collectives in different orders")
    return pairs


def _several(plan: Plan) -> bool:
    """Whether not all ranks share one program of the workload."""
    distinct = getattr(plan.workload, "distinct", None)
    return len({id(program) for program in (plan.workload if distinct is None else distinct)}) > 1


def _whole(instance: Instance, ranks: int) -> bool:
    """Whether a collective runs one algorithm, declared to turn, among all ranks in their order."""
    part = instance.whole
    if part is None or len(part.members) != ranks:
        return False
    in_order = part.members == range(ranks) if isinstance(part.members, range) else part.members == tuple(range(ranks))
    return in_order and (not part.programs or getattr(part, "rotation", None) is not None)


def _check(program: RankProgram, what: str) -> np.ndarray:
    """Peers that a program sends to; nothing of it may depend on the order in which messages arrive."""
    counters = program.counters
    if counters is not None and bool((counters.start >= 0).any()):
        raise refuse(f"{what} counts from the completion of a node, where the order of arrivals matters")
    return program.peer[program.structure.kind == SEND].astype(np.int64)


class _Alike:
    """Compares programs but for their peers, each pair once."""

    def __init__(self) -> None:
        self.known: set[tuple[int, int]] = set()
        self.keep: list[object] = []

    def check(self, one: RankProgram, other: RankProgram, problem: str) -> None:
        """Raise unless they are equal but for peers and instances."""
        key = (id(one), id(other))
        if one is other or key in self.known:
            return
        if one.structure.key != other.structure.key:
            raise refuse(f"{problem}: their nodes or dependencies differ")
        for name in ("nbytes", "duration", "tag", "slot"):
            unlike = getattr(one, name) != getattr(other, name)
            if name == "nbytes":
                unlike &= one.peer >= 0
            unlike = np.flatnonzero(unlike)
            if len(unlike):
                node, kind = int(one.node_id[unlike[0]]), KIND_NAMES[one.structure.kind[unlike[0]]]
                mine, theirs = (int(getattr(p, name)[unlike[0]]) for p in (one, other))
                what = {"nbytes": "bytes", "duration": "ps"}.get(name, name)
                raise refuse(f"{problem}: {kind} node {node} has {mine} and {theirs} {what}")
        if not _same_counters(one.counters, other.counters):
            raise refuse(f"{problem}: their counters differ")
        self.known.add(key)
        self.keep += [one, other]


def _same_counters(one: Counters | None, other: Counters | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(bool((getattr(one, name) == getattr(other, name)).all()) for name in ("counts", "of", "k", "detached"))


def _turned(group: Rotation, peers: np.ndarray, rank: int | np.ndarray) -> np.ndarray:
    """Peers rotated by a rank; -1 stays."""
    return np.where(peers >= 0, group.shift(np.maximum(peers, 0), rank), -1)


def calls_of(instance: Instance, rank: int) -> list[tuple[int, CollectiveCall]]:
    """The slices of a collective that a rank runs, in order: their indices, and they."""
    if instance.whole is not None:
        return [(instance.first, instance.whole)]
    visits = [visit for stream in instance.chunks for visit in stream.phases]
    return [(visit.first + visit.call_of[rank], visit.calls[visit.call_of[rank]]) for visit in visits]


def _shape(instance: Instance) -> tuple:
    """What two collectives must have in common besides programs."""
    streams = tuple(
        (stream.priority, stream.turns, tuple((visit.queue, visit.priority) for visit in stream.phases))
        for stream in instance.chunks
    )
    return instance.type, instance.size, len(instance.members), instance.whole is None, streams


def _instance(
    plan: Plan, group: Rotation, instance: Instance, others: Mapping[int, Sequence[int]], alike: _Alike
) -> list[np.ndarray]:
    """Peers of rank 0 in a collective, once the ranks of `others` (by their collective) are shown to run the same."""
    if any(len(stream.turns) != len(stream.phases) for stream in instance.chunks):
        raise refuse("a planner gives no turns to the phases of a collective, and the order of arrivals decides")
    for index, listed in others.items():
        if _shape(plan.instances[index]) != _shape(instance):
            raise refuse(f"rank {listed[0]} calls another collective than rank 0, or one that is planned otherwise")
    found = []
    done: set[tuple] = set()
    for place, (_, part) in enumerate(calls_of(instance, 0)):
        # Chunks of equal size share the slices of a phase.
        key = tuple(id(slices) for index in others for slices in [_slices(plan.instances[index], place)])
        if (id(part), key) in done:
            continue
        done.add((id(part), key))
        if not part.programs:
            continue
        what = f"{part.algorithm.name} {instance.type}"
        if _whole(instance, plan.ranks) and set(others) <= {instance.index}:
            found.append(_of_all(plan, group, instance, part, what))
        else:
            found.append(_of_part(plan, group, instance, place, others, alike, what))
    return found


def _of_all(plan: Plan, group: Rotation, instance: Instance, part: CollectiveCall, what: str) -> np.ndarray:
    """Peers of rank 0 in an algorithm among all ranks that is declared to turn."""
    if not part.uniform_bytes:
        raise _uneven(part, instance)
    deltas = np.unique(_check(part.base, what))
    ranks = np.arange(plan.ranks, dtype=np.int64)
    if _plain(part.rotation) != _plain(group):
        for block in np.array_split(ranks, max(1, len(ranks) * len(deltas) // 2**22)):
            if bool((part.rotation.shift(deltas[:, None], block) != group.shift(deltas[:, None], block)).any()):
                raise refuse(
                    f"{what} is the same for all ranks under rotations of {_text(part.rotation)}, not under those of "
                    f"{_text(group)}, by which {plan.problem.topology.name} turns"
                )
    return deltas


def _of_part(
    plan: Plan,
    group: Rotation,
    instance: Instance,
    place: int,
    others: Mapping[int, Sequence[int]],
    alike: _Alike,
    what: str,
) -> np.ndarray:
    """Peers of rank 0 in one slice, once the slices of the other ranks at that place are shown to be the same."""
    part = calls_of(instance, 0)[place][1]
    if getattr(part, "rotation", None) is not None and not part.uniform_bytes:
        raise _uneven(part, instance)
    program, deltas = peers_in(part, part.members.index(0))
    _check(program, what)
    positions: dict[int, dict[int, int]] = {}
    for index, listed in others.items():
        slices, slice_of = _slices(plan.instances[index], place), _slice_of(plan.instances[index], place)
        for rank in listed:
            other = slices[0 if slice_of is None else slice_of[rank]]
            if id(other) not in positions:
                positions[id(other)] = {member: at for at, member in enumerate(other.members)}
            if not other.programs:
                raise refuse(f"{what}: rank {rank} has nothing to do")
            if getattr(other, "rotation", None) is not None and not other.uniform_bytes:
                raise _uneven(other, instance)
            theirs, peers = peers_in(other, positions[id(other)][rank])
            alike.check(program, theirs, f"{what} is not the same for ranks 0 and {rank}")
            wrong = np.flatnonzero(_turned(group, deltas, rank) != peers)
            if len(wrong):
                node = int(program.node_id[wrong[0]])
                raise refuse(
                    f"{what}: rotations of {_text(group)} do not map the peer of rank 0 at node {node}, rank "
                    f"{int(deltas[wrong[0]])}, to that of rank {rank}, rank {int(peers[wrong[0]])}"
                )
    return deltas[program.structure.kind == SEND]


def _slices(instance: Instance, place: int) -> tuple[CollectiveCall, ...]:
    """The slices of a collective at one place: its only one, or those of a visit."""
    if instance.whole is not None:
        return (instance.whole,)
    return [visit for stream in instance.chunks for visit in stream.phases][place].calls


def _slice_of(instance: Instance, place: int) -> Mapping[int, int] | None:
    if instance.whole is not None:
        return None
    return [visit for stream in instance.chunks for visit in stream.phases][place].call_of


def peers_in(part: CollectiveCall, at: int) -> tuple[RankProgram, np.ndarray]:
    """The program of the member at a position of a slice, and the ranks of its peers by node."""
    rotation = getattr(part, "rotation", None)
    members = np.asarray(part.members, dtype=np.int64)
    program = part.programs[at] if rotation is None else part.base
    peers = program.peer.astype(np.int64)
    if rotation is not None:
        peers = _turned(rotation, peers, at)
    return program, np.where(peers >= 0, members[np.maximum(peers, 0)], -1)


def _uneven(part: CollectiveCall, instance: Instance) -> FoldError:
    chunks = part.algorithm.chunks
    return refuse(
        f"{instance.size} bytes of {instance.type} are not a multiple of the {chunks} chunks of {part.algorithm.name}: "
        "messages of unlike ranks differ by a byte"
    )


def _plain(group: Rotation) -> tuple[int, ...]:
    return tuple(size for size in group.dims if size > 1)


def _text(group: Rotation) -> str:
    return "x".join(map(str, group.dims))
