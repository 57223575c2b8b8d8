"""`SwitchTree`: the switches that take part in an algorithm, as a tree above the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.topology.model import Topology

#: Names of builders of algorithms in which switches take part.
IN_NETWORK = ("switch_tree", "nvls")
#: Bytes of a piece of a shard (of a tree: of the buffer) where `chunks` is not given, and most pieces.
_PIECE, _MOST_PIECES = 2**16, 64
#: Messages that a switch receives at most by that rule.
_MESSAGES = 2**15
#: Name of a switch without a given name.
ONE_SWITCH = "s0"


@dataclass(frozen=True)
class SwitchTree:
    """Switches above n ranks. `above`: the switch above each of the positions 0..n+m-1; -1 for the top. `names`,
    `vertices`: of the switches; without vertices they are found when the algorithm is bound to a topology."""

    above: tuple[int, ...]
    names: tuple[str, ...]
    vertices: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.above) - len(self.names)

    @property
    def top(self) -> int:
        return self.above.index(-1)

    def rooted(self, top: int) -> SwitchTree:
        """The tree with another switch as its top, without switches that then have no rank below."""
        above, child, parent, n = list(self.above), -1, top, self.ranks
        while parent != -1:
            above[parent], child, parent = child, parent, above[parent]
        hung = replace(self, above=tuple(above))
        used = {switch for rank in range(n) for switch in hung.path(rank)}
        switches = [switch for switch in range(n, len(above)) if switch in used]
        position = {switch: n + i for i, switch in enumerate(switches)} | {-1: -1}
        names = tuple(self.names[switch - n] for switch in switches)
        vertices = tuple(self.vertices[switch - n] for switch in switches if self.vertices)
        return SwitchTree(tuple(position[above[node]] for node in (*range(n), *switches)), names, vertices)

    @property
    def levels(self) -> int:
        """Links from a rank to the top, at most."""
        return max(len(self.path(rank)) for rank in range(self.ranks))

    def path(self, position: int) -> list[int]:
        """Switches above a position, up to the top."""
        vertices = []
        while (position := self.above[position]) != -1:
            vertices.append(position)
        return vertices


def switch_tree_of(switches: object, ranks: int, place: str) -> SwitchTree:
    """The tree that an option says: ``{spine0: {leaf0: [0, 1], leaf1: [2, 3]}}``, a name with the ranks or the switches
    below it; one switch above all by default. Raises AlgorithmError: no such tree, or not above all ranks."""
    remedy = "write e.g. {spine0: {leaf0: [0, 1], leaf1: [2, 3]}}, with every rank once"
    if switches is None or isinstance(switches, str):
        return SwitchTree((ranks,) * ranks + (-1,), (switches or ONE_SWITCH,))
    if isinstance(switches, SwitchTree):
        return switches
    above: dict[int, int] = {}
    names: list[str] = []

    def hang(name: object, below: object, parent: int) -> None:
        if not isinstance(name, str) or not name or name in names or len(names) >= 2**16:
            raise AlgorithmError(place, f"switches name {name!r}, which is no name, or twice there", remedy)
        here = ranks + len(names)
        names.append(name)
        above[here] = parent
        if not isinstance(below, int | Mapping) and not below:
            raise AlgorithmError(place, f"nothing is below switch {name}", remedy)
        for child in below if isinstance(below, list | tuple) else (below,):
            if isinstance(child, Mapping) and child:
                for inner, rest in child.items():
                    hang(inner, rest, here)
            elif type(child) is int and 0 <= child < ranks and child not in above:
                above[child] = here
            else:
                problem = f"below {name} is {child!r}, neither one of {ranks} ranks that is left nor switches"
                raise AlgorithmError(place, problem, remedy)

    if not isinstance(switches, Mapping) or len(switches) != 1:
        raise AlgorithmError(place, f"switches is {switches!r}, not one switch with what is below it", remedy)
    hang(*next(iter(switches.items())), -1)
    lost = [rank for rank in range(ranks) if rank not in above]
    if lost:
        raise AlgorithmError(place, f"no switch is above rank {lost[0]}", remedy)
    return SwitchTree(tuple(above[position] for position in range(ranks + len(names))), tuple(names))


@lru_cache(maxsize=256)
def capable_tree(topology: Topology, npus: tuple[int, ...], turn: int = 0) -> SwitchTree | None:
    """The tree of switches that can compute above some NPUs, breadth first from the switch that is nearest to the
    farthest of them. Of several the one of the lowest number, or with `turn` a later one, so that concurrent groups do
    not all share one. None where no such switches reach all."""
    capable = () if topology.computing is None else topology.computing.vertices
    members = np.array(npus, dtype=np.int64)
    rank_of = {int(npu): rank for rank, npu in enumerate(npus)}
    near = np.zeros(topology.vertices, dtype=bool)
    near[list(capable)] = True
    inner = near.copy()
    near[members] = True
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    # Links that computing switches and the group can use both ways.
    forward = np.flatnonzero(near[src] & near[dst] & (inner[src] | inner[dst]))
    pairs = set(zip(src[forward].tolist(), dst[forward].tolist(), strict=True))
    beside: dict[int, list[int]] = {vertex: [] for vertex in capable}
    ranks_at = dict.fromkeys(capable, 0)
    for a, b in sorted(pairs):
        if a in ranks_at and (b, a) in pairs:
            if b in ranks_at:
                beside[a].append(b)
            else:
                ranks_at[a] |= 1 << rank_of[b]
    everyone = (1 << len(rank_of)) - 1
    reach, before = ranks_at, dict[int, int]()
    while everyone not in reach.values():
        if reach == before:
            return None
        before = reach
        reach = {v: bits | _union(reach[w] for w in beside[v]) for v, bits in reach.items()}
    tops = sorted(vertex for vertex, bits in reach.items() if bits == everyone)
    return _breadth_first(topology, tops[turn % len(tops)], beside, ranks_at, len(rank_of))


def _union(bits) -> int:
    union = 0
    for bit in bits:
        union |= bit
    return union


def _breadth_first(
    topology: Topology, top: int, beside: Mapping[int, list[int]], own: Mapping[int, int], ranks: int
) -> SwitchTree:
    parent, order, hung = {top: -1}, [top], dict[int, int]()
    left = (1 << ranks) - 1
    for vertex in order:
        hanging = own[vertex] & left
        left &= ~hanging
        hung |= {rank: vertex for rank in range(ranks) if hanging >> rank & 1}
        for other in beside[vertex]:
            if other not in parent:
                parent[other] = vertex
                order.append(other)
    used = set()
    for vertex in hung.values():
        while vertex != -1 and vertex not in used:
            used.add(vertex)
            vertex = parent[vertex]
    switches = [vertex for vertex in order if vertex in used]
    position = {vertex: ranks + i for i, vertex in enumerate(switches)} | {-1: -1}
    above = [position[hung[rank]] for rank in range(ranks)] + [position[parent[vertex]] for vertex in switches]
    return SwitchTree(tuple(above), tuple(map(topology.vertex_name, switches)), tuple(switches))


def switches_above(
    topology: Topology,
    npus: Sequence[int],
    builder: str,
    collective: str,
    options: Mapping[str, object],
    size: int = 0,
    turn: int = 0,
) -> BuilderKeys:
    """Options of a builder in the network that the topology and the size of a call decide: the switches above its NPUs,
    how many cells they have, and the pieces. `builder`: ``switch_tree``, ``nvls``, or ``hierarchical`` with one of them
    in some dimension. Raises AlgorithmError: no switches that compute reach all, or no single one as nvls needs."""
    if builder == "hierarchical":
        return _above_groups(topology, npus, collective, options, size)
    remedy = "write switches: {capable: …} in the topology, or a case with when: {switches: true} before another"
    if topology.computing is not None and len(topology.computing.vertices) == topology.vertices - topology.npus > 0:
        remedy = "all of them compute, but no tree of them does; use hierarchical with nvls in every node, or another"
    where, computing = f"{builder} {collective} over {len(npus)} ranks", topology.computing
    stated = "switches" in options and computing is not None
    tree = None if stated else capable_tree(topology, tuple(npus), turn)
    if computing is None or (tree is None and not stated):
        raise AlgorithmError(where, f"no switches of {topology.name} that compute reach all of its NPUs", remedy)
    if builder == "nvls" and tree is not None and len(tree.names) > 1:
        problem = f"no one switch of {topology.name} that computes is linked to all of its NPUs"
        raise AlgorithmError(where, problem, "use switch_tree, or hierarchical with nvls in every node")
    decided = BuilderKeys() if stated else BuilderKeys(switches=tree)
    slots, cells = computing.slots, len(npus) * (2 if collective == "all_reduce" else 1)
    if slots is not None and builder == "switch_tree" and "slots" not in options:
        decided["slots"] = slots
    elif slots is not None and builder != "switch_tree" and "window" not in options:
        decided["window"] = min(max(slots // cells, 1), 2)
    if size and collective != "barrier" and "chunks" not in options:
        shards = len(npus) if builder == "nvls" else 1
        decided["chunks"] = max(min(size // (shards * _PIECE), _MOST_PIECES, _MESSAGES // (shards * len(npus))), 1)
    return decided


def reached(
    topology: Topology, npus: tuple[int, ...], builder: str = "", options: Mapping[str, object] | None = None
) -> bool:
    """Whether switches that compute reach all NPUs as such a builder needs them; without a name, as a tree."""
    if not builder:
        return capable_tree(topology, npus) is not None
    options = {key: value for key, value in (options or {}).items() if key != "switches"}
    try:
        switches_above(topology, npus, builder, "all_reduce", options)
    except AlgorithmError:
        return False
    return True


def _above_groups(
    topology: Topology, npus: Sequence[int], collective: str, options: Mapping[str, object], size: int
) -> BuilderKeys:
    dims, levels = options.get("dims"), options.get("algorithms")
    trees, stride = {}, 1
    if not isinstance(dims, list | tuple) or not all(type(size) is int and size > 0 for size in dims):
        return {}
    if "switches" in options or not isinstance(levels, list | tuple) or prod(dims) != len(npus):
        # The builder reports errors in them.
        return {}
    members, levels = np.array(npus), list(levels)
    for d, (width, level) in enumerate(zip(dims, levels, strict=False)):
        options_of = dict(level) if isinstance(level, Mapping) else {"builder": level}
        builder = options_of.pop("builder", None)
        if isinstance(builder, str) and builder in IN_NETWORK and width > 1 and "switches" not in options_of:
            groups = members.reshape(-1, width, stride).transpose(0, 2, 1).reshape(-1, width)
            listed = [
                switches_above(topology, group.tolist(), builder, collective, options_of, size // stride, turn)
                for turn, group in enumerate(groups)
            ]
            trees[d] = [keys["switches"] for keys in listed]
            levels[d] = {"builder": builder, **options_of, **listed[0]}
            del levels[d]["switches"]
        stride *= width
    return {"switches": trees, "algorithms": levels} if trees else {}
