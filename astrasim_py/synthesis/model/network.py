"""The network of a synthesis: arcs between ranks, and the links that each arc occupies.

An *arc* is the route of the topology from NPU to NPU that passes no third rank: one direct link, a path through
switches, or one through NPUs outside the group. An arc through a switch occupies the sender's link into it and the
receiver's link out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypedDict

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.rows import pointers
from astrasim_py.synthesis.model.graphs import rows_of
from astrasim_py.synthesis.model.timing import CostModel, Timing, hop_services, transfer_times
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import reachable


@dataclass(frozen=True, slots=True)
class Occupied:
    """Intervals ``[start, end)`` (int64[k], ps) in which another tenant holds links of the topology."""

    link: np.ndarray  # int32[k], links of the topology
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """Arcs between the ranks of a group. Make one with `Network.of`.

    Arcs are sorted by (dst, src), with at most one per pair. Arc a crosses the resources
    ``hop[hop_ptr[a]:hop_ptr[a + 1]]``, in that order. Others hold resource r in the intervals
    ``occupied_ptr[r]:occupied_ptr[r + 1]``, ascending and disjoint.
    """

    topology: Topology
    npus: tuple[int, ...]  # rank → NPU
    cost: CostModel
    relays: bool  # whether routes through NPUs outside the group are used
    src: np.ndarray = field(repr=False)  # int32[arcs], ranks
    dst: np.ndarray = field(repr=False)
    hop_ptr: np.ndarray = field(repr=False)  # int64[arcs + 1]
    hop: np.ndarray = field(repr=False)  # int32[hops]
    links: np.ndarray = field(repr=False)  # int32[resources]: links of the topology
    occupied_ptr: np.ndarray = field(repr=False)  # int64[resources + 1]
    occupied_start: np.ndarray = field(repr=False)  # int64, ps
    occupied_end: np.ndarray = field(repr=False)
    #: The network of which this is the reverse, and int32[arcs]: its arc.
    reverse_of: tuple[Network, np.ndarray] | None = field(default=None, repr=False)
    waits: bool = field(default=False, repr=False)  # messages may have waited in switches, see `transfer_times`

    @classmethod
    def of(
        cls,
        topology: Topology,
        npus: Sequence[int] | None = None,
        *,
        cost: CostModel | None = None,
        relays: bool = False,
        occupied: Iterable[Occupied] = (),
    ) -> Network:
        """Arcs of a group on a topology, all NPUs that are alive by default. Raises TopologyError."""
        if topology.events:
            problem = "links that fail or change during a run (events): a schedule has one time for each transfer"
            raise TopologyError(topology.name, problem, "synthesize for the topology without events")
        members = np.array(topology.alive if npus is None else npus, dtype=np.int64)
        source, target, ptr, path = _find_arcs(topology, members, relays)
        order = np.lexsort((source, target))
        hop_ptr, at = rows_of(ptr, order)
        links, hop = np.unique(path[at], return_inverse=True)
        return cls(
            topology=topology, npus=tuple(members.tolist()), cost=cost or CostModel(), relays=relays,
            src=source[order].astype(np.int32), dst=target[order].astype(np.int32), hop_ptr=hop_ptr,
            hop=hop.astype(np.int32).reshape(-1), links=links.astype(np.int32), **_intervals(links, occupied),
        )  # fmt: skip

    @property
    def ranks(self) -> int:
        return len(self.npus)

    @property
    def arcs(self) -> int:
        return len(self.src)

    @property
    def direct(self) -> bool:
        """Whether every arc is one link of its own."""
        return len(self.hop) == len(self.src) == len(self.links)

    @cached_property
    def in_ptr(self) -> np.ndarray:
        """int64[ranks + 1]: the arcs into rank v are ``in_ptr[v]:in_ptr[v + 1]``."""
        return np.searchsorted(self.dst, np.arange(self.ranks + 1)).astype(np.int64)

    @cached_property
    def out(self) -> tuple[np.ndarray, np.ndarray]:
        """(int64[ranks + 1], int32[arcs]): arcs by their source, CSR."""
        order = np.argsort(self.src, kind="stable")
        return np.searchsorted(self.src[order], np.arange(self.ranks + 1)).astype(np.int64), order.astype(np.int32)

    @cached_property
    def _timings(self) -> dict[tuple[int, ...], Timing]:
        return {}

    def timing(self, sizes: Iterable[int]) -> Timing:
        """Arcs and times of transfers of each of these sizes in bytes, computed once. Raises TopologyError."""
        key = tuple(int(size) for size in sizes)
        if key not in self._timings:
            self._timings[key] = self.with_times(*self._times(key))
        return self._timings[key]

    def with_times(self, offset: np.ndarray, hold: np.ndarray, delay: np.ndarray) -> Timing:
        """The arcs with these times of transfers."""
        # Numba compiles for rows that lie one after the other.
        times = (np.ascontiguousarray(each) for each in (offset, hold, delay))
        return Timing(self.src, self.dst, self.in_ptr, *self.out, self.hop_ptr, self.hop, *times)

    def _times(self, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.reverse_of is None:
            alone, latency = hop_services(self.topology, self.links[self.hop], sizes)
            return transfer_times(self.cost, self.hop_ptr, alone, latency, self.waits)
        base, arc = self.reverse_of
        forward, hops = base.timing(sizes), rows_of(base.hop_ptr, arc)[1]
        delay, hold = forward.delay[:, arc], forward.hold[:, hops]
        return np.repeat(delay, np.diff(self.hop_ptr), axis=1) - forward.offset[:, hops] - hold, hold, delay

    @cached_property
    def reversed(self) -> Network:
        """The network with arcs and time reversed, without the intervals of others.

        A transfer over arc a that starts at s there starts at ``T - s - delay`` here, over arc ``reverse_of[1][a]``.
        """
        if self.reverse_of is not None:
            return self.reverse_of[0]
        order = np.lexsort((self.dst, self.src))
        hop_ptr, hops = rows_of(self.hop_ptr, order)
        return replace(
            self, src=self.dst[order], dst=self.src[order], hop_ptr=hop_ptr, hop=self.hop[hops],
            reverse_of=(self, order.astype(np.int32)), **_intervals(self.links, ()),
        )  # fmt: skip

    @cached_property
    def least(self) -> Network:
        """The network as bounds see it: each link is held for the shortest time that a transfer may hold it."""
        return self if self.direct or len(self.occupied_start) else replace(self, waits=True)

    @cached_property
    def alone(self) -> Network:
        """The network without the intervals of others."""
        return replace(self, **_intervals(self.links, ())) if len(self.occupied_start) else self

    @cached_property
    def idle_links(self) -> int:
        """Links that no route takes, as all but one of parallel ones, and all but one of parallel switches: no message
        can use them. Between members, and, where no NPU is left out, switches."""
        topology = self.topology
        member = np.zeros(topology.vertices, dtype=bool)
        member[list(self.npus)] = True
        member[topology.npus :] = len(self.npus) == len(topology.alive)
        between = member[topology.src] & member[topology.dst]
        between[self.links] = False
        return int(between.sum())


class _Intervals(TypedDict):
    """Fields of a network."""

    occupied_ptr: np.ndarray
    occupied_start: np.ndarray
    occupied_end: np.ndarray


def _intervals(links: np.ndarray, occupied: Iterable[Occupied]) -> _Intervals:
    """CSR of disjoint intervals per resource."""
    rows: list[list[int]] = []
    for each in occupied:
        at = np.searchsorted(links, each.link)
        ours = (at < len(links)) & (links[np.minimum(at, len(links) - 1)] == each.link) & (each.end > each.start)
        rows += np.stack([at[ours], each.start[ours], each.end[ours]], axis=1).tolist()
    merged: list[list[int]] = []
    for resource, first, last in sorted(rows):
        if merged and merged[-1][0] == resource and first <= merged[-1][2]:
            merged[-1][2] = max(merged[-1][2], last)
        else:
            merged.append([resource, first, last])
    owner, start, end = np.array(merged, dtype=np.int64).reshape(-1, 3).T
    return {
        "occupied_ptr": pointers(np.bincount(owner, minlength=len(links))),
        "occupied_start": np.ascontiguousarray(start),
        "occupied_end": np.ascontiguousarray(end),
    }


#: Most ranks of a group whose arcs are found by looking at every pair.
MAX_PAIRED_RANKS = 2048


def _find_arcs(topology: Topology, members: np.ndarray, relays: bool) -> tuple[np.ndarray, ...]:
    """(source ranks, target ranks, pointers, links) of every arc of a group of NPUs. Raises TopologyError."""
    n = len(members)
    rank_of = np.full(topology.vertices, -1, dtype=np.int64)
    rank_of[members] = np.arange(n)
    if topology.vertices == topology.npus and not (relays and n < len(topology.alive)):
        a, b = rank_of[topology.src], rank_of[topology.dst]
        inside = (a >= 0) & (b >= 0)
        pairs = np.unique(a[inside] * n + b[inside])
    elif n > MAX_PAIRED_RANKS:
        problem = f"{n} ranks behind switches or relays are more than {MAX_PAIRED_RANKS}"
        raise TopologyError(topology.name, problem, "synthesize for a smaller group")
    else:
        pairs = _pairs(topology, rank_of, n, relays)
    source, target = np.divmod(pairs, n)
    ptr, path = topology.routes(members[source], members[target])
    lengths = np.diff(ptr)
    inner = np.ones(len(path), dtype=bool)
    inner[ptr[1:][lengths > 0] - 1] = False
    passed = topology.dst[path]
    wrong = inner & (rank_of[passed] >= 0 if relays else passed < topology.npus)
    good = np.ones(len(source), dtype=bool)
    good[np.repeat(np.arange(len(source)), lengths)[wrong]] = False
    source, target = source[good], target[good]
    _check_connected(source, target, members, relays)
    return source, target, pointers(lengths[good]), path[np.repeat(good, lengths)]


def _pairs(topology: Topology, rank_of: np.ndarray, n: int, relays: bool) -> np.ndarray:
    """Pairs a * n + b of ranks that a link joins, or vertices that routes may pass: no others can have an arc."""
    src, dst = topology.src, topology.dst
    passed = (rank_of < 0) & (relays | (np.arange(topology.vertices) >= topology.npus))
    between = passed[src] & passed[dst]
    label, before = np.arange(topology.vertices), np.full(topology.vertices, -1)
    while not np.array_equal(label, before):
        before = label.copy()
        for tail, head in ((src, dst), (dst, src)):
            np.minimum.at(label, head[between], label[tail[between]])
    parts, label = np.unique(label, return_inverse=True)
    leaves, enters = np.zeros((2, n, len(parts)), dtype=np.float32)
    for ends, inner, rank in ((leaves, dst, rank_of[src]), (enters, src, rank_of[dst])):
        some = (rank >= 0) & passed[inner]
        ends[rank[some], label[inner[some]]] = 1
    joined = leaves @ enters.T > 0
    direct = (rank_of[src] >= 0) & (rank_of[dst] >= 0)
    joined[rank_of[src[direct]], rank_of[dst[direct]]] = True
    np.fill_diagonal(joined, False)
    return np.flatnonzero(joined)


def _check_connected(src: np.ndarray, dst: np.ndarray, members: np.ndarray, relays: bool) -> None:
    n = len(members)
    for tails, heads, forward in ((src, dst, True), (dst, src, False)):
        order = np.argsort(tails, kind="stable")
        ptr = np.searchsorted(tails[order], np.arange(n + 1))
        lost = np.setdiff1d(np.arange(n), list(reachable(ptr.tolist(), heads[order].tolist(), 0)))
        if len(lost):
            a, b = (members[0], members[lost[0]]) if forward else (members[lost[0]], members[0])
            remedy = "choose other NPUs" if relays else "choose other NPUs, or allow relays"
            raise TopologyError("", f"no path leads from NPU {a} to NPU {b} through NPUs of the group", remedy)
