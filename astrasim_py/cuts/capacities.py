"""The links that may carry a collective among some NPUs, as a graph with whole capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np

from astrasim_py.core.units import PS_PER_S
from astrasim_py.cuts.max_flow import FlowGraph
from astrasim_py.topology.model import Topology
from astrasim_py.topology.symmetry import Rotations, rotation_groups

#: Largest capacity in whole units: flows of all ranks then fit 63 bits.
_LARGEST = 2**32
_FAR = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, eq=False, kw_only=True)
class CapacityGraph:
    """Links between members and what may stand between them. Make one with `CapacityGraph.of`.

    Vertices are those of the topology. `unit`: bytes per second of capacity 1. `rounded`: whether capacities were
    rounded up to fit; bounds then are true, and none is exact.
    """

    topology: Topology
    members: np.ndarray  # int64[n]: NPUs, by rank
    links: np.ndarray  # int64[edges]: links of the topology
    capacity: np.ndarray  # int64[edges]
    unit: Fraction
    rounded: bool

    @classmethod
    def of(
        cls, topology: Topology, npus: Sequence[int], *, relays: bool = True, links: np.ndarray | None = None
    ) -> CapacityGraph:
        """`relays`: whether NPUs outside the group may pass data on. `links`: which may be used, all by default."""
        members = np.asarray(npus, dtype=np.int64)
        links = np.arange(topology.links) if links is None else np.unique(np.asarray(links, dtype=np.int64))
        if not relays:
            stays = np.ones(topology.vertices, dtype=bool)
            stays[: topology.npus] = False
            stays[members] = True
            links = links[stays[topology.src[links]] & stays[topology.dst[links]]]
        rates = [Fraction(rate) for rate in topology.bandwidths]
        common = lcm(*(rate.denominator for rate in rates)) if rates else 1
        whole = [int(rate * common) for rate in rates]
        unit = Fraction(int(np.gcd.reduce(np.array(whole, dtype=object))) if whole else 1, common)
        table = [int(rate / unit) for rate in rates]
        rounded = max(table, default=0) > _LARGEST
        if rounded:
            unit = max(rates) / _LARGEST
            table = [-int(-rate // unit) for rate in rates]
        capacity = np.array(table, dtype=np.int64)[topology.bandwidth_class[links]]
        return cls(topology=topology, members=members, links=links, capacity=capacity, unit=unit, rounded=rounded)

    @property
    def ranks(self) -> int:
        return len(self.members)

    @property
    def turned(self) -> bool:
        """Whether every link is turned round."""
        return False

    @cached_property
    def tail(self) -> np.ndarray:
        """int64[edges]: vertices."""
        return self.topology.src[self.links].astype(np.int64)

    @cached_property
    def head(self) -> np.ndarray:
        """int64[edges]: vertices."""
        return self.topology.dst[self.links].astype(np.int64)

    @cached_property
    def balanced(self) -> bool:
        """Whether as much leads into every vertex that is no member as out of it: then it can be replaced by links of
        members without a loss (Mader; Frank)."""
        sums = [np.bincount(ends, self.capacity, self.topology.vertices) for ends in (self.tail, self.head)]
        return bool((sums[0] == sums[1])[self.rank_of < 0].all())

    @cached_property
    def flows(self) -> FlowGraph:
        return FlowGraph(self.topology.vertices, self.tail, self.head)

    @cached_property
    def rank_of(self) -> np.ndarray:
        """int64[vertices]: ranks of members; -1 of others."""
        ranks = np.full(self.topology.vertices, -1, dtype=np.int64)
        ranks[self.members] = np.arange(self.ranks)
        return ranks

    @cached_property
    def reversed(self) -> CapacityGraph:
        """The graph with every link turned round."""
        return _Reversed(
            topology=self.topology, members=self.members, links=self.links, capacity=self.capacity, unit=self.unit,
            rounded=self.rounded,
        )  # fmt: skip

    @cached_property
    def idle(self) -> np.ndarray:
        """int64[edges]: ps in which a link that carries data from member to member carries none: its own latency, and
        the least ones before it and behind it where it begins or ends at another vertex."""
        latency = self.topology.latency_ps[self.links].astype(np.int64)
        into, out = (np.full(self.topology.vertices, _FAR, dtype=np.int64) for _ in range(2))
        np.minimum.at(into, self.head, latency)
        np.minimum.at(out, self.tail, latency)
        into[self.members], out[self.members] = 0, 0
        return latency + np.where(into >= _FAR, 0, into)[self.tail] + np.where(out >= _FAR, 0, out)[self.head]

    @cached_property
    def rotations(self) -> Rotations | None:
        """The largest group of rotations of ranks that the graph, with its switches, is proven to have."""
        groups = rotation_groups(self.ranks, lambda image: self.image_of(image) is not None)
        return groups[0] if groups else None

    @cached_property
    def first_of_classes(self) -> np.ndarray:
        """int64[classes]: the first rank of every class of ranks that rotations map to each other."""
        if self.rotations is None:
            return np.arange(self.ranks)
        return np.unique(self.rotations.class_of, return_index=True)[1]

    def image_of(self, image: np.ndarray) -> np.ndarray | None:
        """int64[vertices]: where every vertex goes if rank r takes the place of rank ``image[r]``; None: some link then
        lies where there is none of its kind, or the search for the places of switches fails."""
        vertices = np.arange(self.topology.vertices)
        place = vertices.copy()
        place[self.members] = self.members[image]
        others = np.flatnonzero(self.rank_of < 0)
        if len(others):
            before, moved = (self._labels(seed) for seed in (vertices, place))
            order, new = others[np.argsort(before[others], kind="stable")], np.argsort(moved[others], kind="stable")
            place[others[new]] = order
        kinds = np.stack([self.tail, self.head, self.capacity, self.topology.latency_ps[self.links]])
        there = np.stack([place[self.tail], place[self.head], *kinds[2:]])
        same = np.array_equal(kinds[:, np.lexsort(kinds)], there[:, np.lexsort(there)])
        return place if same else None

    def _labels(self, seed: np.ndarray) -> np.ndarray:
        """uint64[vertices]: equal for vertices that are joined alike to NPUs of these numbers (seed of each vertex)."""
        start = np.where(np.arange(len(seed)) < self.topology.npus, _mixed(seed.astype(np.uint64) + 1), np.uint64(1))
        label, sizes = start, _mixed(self.capacity.astype(np.uint64))
        known = 0
        for _ in range(len(seed)):
            total = start.copy()
            np.add.at(total, self.head, _mixed(label[self.tail] ^ sizes))
            np.add.at(total, self.tail, _mixed(label[self.head] + sizes))
            label = np.where(np.arange(len(seed)) < self.topology.npus, start, _mixed(total))
            kinds = len(np.unique(label))
            if kinds == known:
                break
            known = kinds
        return label

    def rate(self, capacity: int) -> Fraction:
        """Bytes per second of a capacity."""
        return capacity * self.unit

    def room_time(self, weight: np.ndarray, work: int) -> int:
        """The least time in ps, rounded down, in which edges together carry so much: bytes times weights (int64[edges],
        or bool: some edges)."""
        used = np.flatnonzero((weight > 0) & (self.capacity > 0))
        if not work or not len(used):
            return 0
        # Each link carries from its idle time on; to use only some of them takes at least as long as to use all.
        order = used[np.argsort(self.idle[used], kind="stable")]
        rates = self.capacity[order].astype(object) * weight[order].astype(np.int64).astype(object)
        together, late = np.cumsum(rates), np.cumsum(rates * self.idle[order].astype(object))
        scaled = work * PS_PER_S / self.unit
        return min(int((scaled + behind) / rate) for rate, behind in zip(together, late, strict=True))


class _Reversed(CapacityGraph):
    @property
    def turned(self) -> bool:
        return True

    @cached_property
    def tail(self) -> np.ndarray:
        return self.topology.dst[self.links].astype(np.int64)

    @cached_property
    def head(self) -> np.ndarray:
        return self.topology.src[self.links].astype(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Numbers of 64 bits mixed (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
