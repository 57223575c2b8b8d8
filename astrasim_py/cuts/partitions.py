"""Partitions of members, and the bounds that follow for all_reduce and all_to_all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.spreading import SpreadingCut
from astrasim_py.topology.routing import reachable

#: Bandwidths, and latencies, at which graphs are cut into parts, at most.
_STEPS = 6
#: Rounds in which switches join the part of most of their links.
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Partition:
    """Parts of the members of a graph. `part`: int64[n], 0.., by rank."""

    graph: CapacityGraph
    part: np.ndarray

    @cached_property
    def count(self) -> int:
        return int(self.part.max()) + 1

    @cached_property
    def of_vertex(self) -> np.ndarray:
        """int64[vertices]: a switch is of the part that has more than half of its links; -1: of none."""
        graph, vertices = self.graph, self.graph.topology.vertices
        part = np.full(vertices, -1, dtype=np.int64)
        part[graph.members] = self.part
        switches = np.flatnonzero(graph.rank_of < 0)
        for _ in range(_ROUNDS if len(switches) else 0):
            ends, others = np.concatenate([graph.tail, graph.head]), np.concatenate([graph.head, graph.tail])
            weight = np.concatenate([graph.capacity, graph.capacity])
            at_switch = graph.rank_of[ends] < 0
            key = ends[at_switch] * (self.count + 1) + part[others[at_switch]] + 1
            keys, which = np.unique(key, return_inverse=True)
            size = np.bincount(which.reshape(-1), weight[at_switch])
            whole = np.bincount(keys // (self.count + 1), size, minlength=vertices)
            most = (2 * size > whole[keys // (self.count + 1)]) & (keys % (self.count + 1) > 0)
            part[switches] = -1
            part[keys[most] // (self.count + 1)] = keys[most] % (self.count + 1) - 1
        return part

    @cached_property
    def entering(self) -> np.ndarray:
        """bool[edges]: edges into a part from outside."""
        tail, head = self.of_vertex[self.graph.tail], self.of_vertex[self.graph.head]
        return (head >= 0) & (tail != head)

    @cached_property
    def leaving(self) -> np.ndarray:
        """bool[edges]: edges out of a part."""
        tail, head = self.of_vertex[self.graph.tail], self.of_vertex[self.graph.head]
        return (tail >= 0) & (tail != head)

    def all_reduce_ps(self, nbytes: int) -> int:
        """The time, ps, that no all_reduce without computing switches beats: to sum a byte, and to spread the sum, all
        parts but one must each be entered, and left, once."""
        crossings = 2 * (self.count - 1) * nbytes
        return max(self.graph.room_time(edges, crossings) for edges in (self.entering, self.leaving))

    def cuts(self) -> Iterator[np.ndarray]:
        """bool[vertices]: each part, one of each kind by its ranks and capacities."""
        graph, known = self.graph, set[tuple]()
        ranks = np.bincount(self.part, minlength=self.count)
        sides = []
        for edges, end in ((self.entering, graph.head), (self.leaving, graph.tail)):
            sides.append(np.bincount(self.of_vertex[end[edges]], graph.capacity[edges], minlength=self.count))
        for number, kind in enumerate(zip(ranks.tolist(), *(side.tolist() for side in sides), strict=True)):
            if kind not in known:
                known.add(kind)
                yield self.of_vertex == number


def partitions(graph: CapacityGraph, cuts: tuple[SpreadingCut, ...] = ()) -> list[Partition]:
    """Partitions worth a look: single members, members that fast or near links join, members of the same switches, and
    what lies beyond `cuts` with its rotations."""
    found: dict[bytes, np.ndarray] = {}

    def offer(label: np.ndarray) -> None:
        part = np.unique(label, return_inverse=True)[1].reshape(-1)
        if part.max(initial=0) > 0:
            found.setdefault(part.astype(np.int64).tobytes(), part.astype(np.int64))

    offer(np.arange(graph.ranks))
    latency = graph.topology.latency_ps[graph.links]
    for column, sign in ((graph.capacity, -1), (latency, 1)):
        steps = np.unique(sign * column)[:-1]
        for step in steps[np.unique(np.linspace(0, len(steps) - 1, _STEPS).astype(int))] if len(steps) else ():
            offer(_joined(graph, sign * column <= step)[graph.members])
    offer(_same_switches(graph))
    for cut in cuts:
        offer(_beyond(graph, np.setdiff1d(np.arange(graph.ranks), cut.members)))
    return [Partition(graph, part) for part in found.values()]


def _joined(graph: CapacityGraph, keep: np.ndarray) -> np.ndarray:
    """int64[vertices]: equal for vertices that are joined by some edges, whatever their direction."""
    vertices = graph.topology.vertices
    ends, others = (np.concatenate(pair) for pair in ((graph.tail[keep], graph.head[keep]),
                                                      (graph.head[keep], graph.tail[keep])))  # fmt: skip
    order = np.argsort(ends, kind="stable")
    ptr, heads = np.searchsorted(ends[order], np.arange(vertices + 1)).tolist(), others[order].tolist()
    label = np.full(vertices, -1, dtype=np.int64)
    for vertex in range(vertices):
        if label[vertex] < 0:
            label[list(reachable(ptr, heads, vertex))] = vertex
    return label


def _same_switches(graph: CapacityGraph) -> np.ndarray:
    """int64[n]: equal for members whose widest link to a switch leads to the same one."""
    best, where = np.zeros(graph.ranks, dtype=np.int64), -1 - np.arange(graph.ranks)
    rank = graph.rank_of[graph.tail]
    for edge in np.flatnonzero((rank >= 0) & (graph.rank_of[graph.head] < 0)).tolist():
        if graph.capacity[edge] > best[rank[edge]]:
            best[rank[edge]], where[rank[edge]] = graph.capacity[edge], graph.head[edge]
    return where


def _beyond(graph: CapacityGraph, members: np.ndarray) -> np.ndarray:
    """int64[n]: a set of ranks and those of its rotations that do not meet as parts, all other ranks alone."""
    label = -1 - np.arange(graph.ranks)
    group = graph.rotations
    images = members[None]
    if group is not None:
        turned = group.sums[group.element[members]].T  # [order, members]
        images = group.rank_at[group.class_of[members], turned]
    for number, image in enumerate(images):
        if (label[image] < 0).all():
            label[image] = number
    return label
