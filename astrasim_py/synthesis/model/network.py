"""What a synthesizer sees of a topology: arcs between ranks, the links that each arc occupies, and for how long.

An *arc* is what a message from one rank to another crosses without passing a third: the route of the topology from
NPU to NPU, be it one direct link, a path through switches, or one that borrows NPUs outside the group. Switches are
thus modelled by their ports: an arc through a switch occupies the sender's link into it and the receiver's link out
of it, so ingress and egress capacity are what is shared.

Cost models
-----------
A transfer that starts at t and waits nowhere holds the link of hop i during ``[t + offset_i, t + offset_i + hold_i)``
and arrives at ``t + delay``, as the network models of the engines have it (`fifo` has those that wait in switches):

* ``cut_through``: the head passes hop after hop, ``offset_i`` is the sum of the latencies before hop i;
* ``store_and_forward``: hop i begins when the whole message has crossed hop i - 1;
* ``link_busy: bytes`` holds a link for bytes / bandwidth (latency is pipelined), ``latency+bytes`` until the message
  has left the far end (latency is serialised with the transfer, the cost model of TACOS, arXiv 2304.05301).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from astrasim_py.core.errors import ScenarioError, TopologyError
from astrasim_py.core.units import transfer_ps
from astrasim_py.topology.model import Topology

#: Most ranks of a group whose arcs are found by looking at every pair.
MAX_PAIRED_RANKS = 2048
#: Longest transfer, ps, so that sums over a schedule fit 63 bits.
_LONGEST = 2**52

_MODELS = ("cut_through", "store_and_forward")
_LINK_BUSY = ("bytes", "latency+bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """For how long a transfer holds links.

    Attributes
    ----------
    model : str
        ``cut_through`` or ``store_and_forward``; they agree on direct links.
    link_busy : str
        ``bytes`` or ``latency+bytes``.
    """

    model: str = "cut_through"
    link_busy: str = "bytes"

    def __post_init__(self) -> None:
        for key, value, allowed in (("model", self.model, _MODELS), ("link_busy", self.link_busy, _LINK_BUSY)):
            if value not in allowed:
                raise ScenarioError(key, f'"{value}" is unknown', f"write one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class Occupied:
    """When links are taken by somebody else: intervals ``[start, end)`` of a link of the topology.

    Attributes
    ----------
    link : numpy.ndarray
        int32[k], links of the topology.
    start, end : numpy.ndarray
        int64[k], ps.
    """

    link: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of transfers by class of chunk size.

    Attributes
    ----------
    offset, hold : numpy.ndarray
        int64[classes, hops]: when a hop's link is first held, counted from the start, and for how long.
    delay : numpy.ndarray
        int64[classes, arcs]: from start to arrival.
    """

    offset: np.ndarray
    hold: np.ndarray
    delay: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """Arcs between the ranks of a group. Make one with `Network.of`.

    Attributes
    ----------
    topology : Topology
    npus : tuple of int
        rank → NPU.
    cost : CostModel
    relays : bool
        Whether routes through NPUs outside the group are used.
    src, dst : numpy.ndarray
        int32[arcs], ranks; arcs are sorted by (dst, src), and there is at most one per pair.
    hop_ptr : numpy.ndarray
        int64[arcs + 1].
    hop : numpy.ndarray
        int32[hops]: arc a crosses the resources ``hop[hop_ptr[a]:hop_ptr[a + 1]]``, in that order.
    links : numpy.ndarray
        int32[resources]: the link of the topology that a resource is.
    occupied_ptr, occupied_start, occupied_end : numpy.ndarray
        int64, CSR by resource: intervals in which it is not to be had, ascending and disjoint.
    base : Network or None
        The network of which this is the reverse (see `turned`).
    base_arc : numpy.ndarray or None
        int32[arcs]: the arc of `base` that is turned round here.
    waits : bool
        Whether `timing` is of what may have waited in switches: a link that is faster than the one before it is held
        for no longer than it needs, at the end of the time in which the message comes in.
    """

    topology: Topology
    npus: tuple[int, ...]
    cost: CostModel
    relays: bool
    src: np.ndarray = field(repr=False)
    dst: np.ndarray = field(repr=False)
    hop_ptr: np.ndarray = field(repr=False)
    hop: np.ndarray = field(repr=False)
    links: np.ndarray = field(repr=False)
    occupied_ptr: np.ndarray = field(repr=False)
    occupied_start: np.ndarray = field(repr=False)
    occupied_end: np.ndarray = field(repr=False)
    base: Network | None = field(default=None, repr=False)
    base_arc: np.ndarray | None = field(default=None, repr=False)
    waits: bool = field(default=False, repr=False)

    @classmethod
    def of(
        cls,
        topology: Topology,
        npus: Sequence[int] | None = None,
        *,
        cost: CostModel | None = None,
        relays: bool = False,
        occupied: Iterable[Occupied] = (),
        place: str = "",
    ) -> Network:
        """Arcs of a group on a topology.

        Parameters
        ----------
        topology : Topology
        npus : sequence of int, optional
            rank → NPU; all NPUs that are alive by default.
        cost : CostModel, optional
        relays : bool
            Use routes through NPUs that are not in the group.
        occupied : iterable of Occupied
            What other schedules hold.

        Raises
        ------
        TopologyError
            A bad list of NPUs; ranks that cannot reach each other; too many ranks behind switches.
        """
        from astrasim_py.topology.model import placement

        cost = cost or CostModel()
        members = np.array(placement(topology, "linear" if npus is None else list(npus), place=place), dtype=np.int64)
        n = len(members)
        rank_of = np.full(topology.vertices, -1, dtype=np.int64)
        rank_of[members] = np.arange(n)
        source, target, ptr, path = _routes(topology, members, rank_of, relays, place)
        order = np.lexsort((source, target))
        lengths = np.diff(ptr)[order]
        hop_ptr = _pointers(lengths)
        begin = np.repeat(ptr[:-1][order] - hop_ptr[:-1], lengths)
        path = path[begin + np.arange(hop_ptr[-1])]
        links, hop = np.unique(path, return_inverse=True)
        src, dst = source[order].astype(np.int32), target[order].astype(np.int32)
        _check_connected(n, src, dst, members, relays, place)
        return cls(
            topology=topology,
            npus=tuple(members.tolist()),
            cost=cost,
            relays=relays,
            src=src,
            dst=dst,
            hop_ptr=hop_ptr,
            hop=hop.astype(np.int32).reshape(-1),
            links=links.astype(np.int32),
            **_intervals(links, occupied),
        )

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return len(self.npus)

    @property
    def arcs(self) -> int:
        """Number of arcs."""
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

    def timing(self, sizes: Sequence[int]) -> Timing:
        """Times of transfers of each of these sizes in bytes.

        Raises
        ------
        TopologyError
            A transfer that takes longer than 2**52 ps (75 minutes).
        """
        if self.base is not None:
            forward = self.base.timing(sizes)
            delay = np.ascontiguousarray(forward.delay[:, self.base_arc])
            begin = np.repeat(self.base.hop_ptr[:-1][self.base_arc] - self.hop_ptr[:-1], np.diff(self.hop_ptr))
            hops = begin + np.arange(len(self.hop))
            # In the order of rows like all others, for which it is compiled.
            hold = np.ascontiguousarray(forward.hold[:, hops])
            until = np.ascontiguousarray(forward.offset[:, hops]) + hold
            return Timing(np.repeat(delay, np.diff(self.hop_ptr), axis=1) - until, hold, delay)
        lengths = np.diff(self.hop_ptr)
        times, latency = self.services(sizes)
        offset = np.zeros((len(sizes), len(self.hop)), dtype=np.int64)
        hold, delay = np.zeros_like(offset), np.zeros((len(sizes), self.arcs), dtype=np.int64)
        keeps = self.cost.link_busy == "latency+bytes"
        for row, alone in enumerate(times):
            head, tail = np.zeros(self.arcs, dtype=np.int64), np.zeros(self.arcs, dtype=np.int64)
            for position in range(int(lengths.max(initial=0))):
                arcs = np.flatnonzero(lengths > position)
                at = self.hop_ptr[arcs] + position
                begin = head[arcs] if self.cost.model == "cut_through" else tail[arcs]
                end = np.maximum(begin + alone[at], tail[arcs])
                head[arcs], tail[arcs] = begin + latency[at], end + latency[at]
                offset[row, at] = begin
                if self.waits:
                    offset[row, at] = end - alone[at]
                hold[row, at] = (tail[arcs] if keeps else end) - offset[row, at]
            delay[row] = tail
        return Timing(offset, hold, delay)

    def services(self, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Of every hop: (int64[sizes, hops] ps that a message takes to pass alone, int64[hops] latency in ps).

        Raises
        ------
        TopologyError
            As `timing`.
        """
        topology, links = self.topology, self.links[self.hop]
        alone = np.empty((len(sizes), len(self.hop)), dtype=np.int64)
        for row, size in enumerate(sizes):
            times = [transfer_ps(int(size), b) for b in topology.bandwidths]
            if max(times, default=0) > _LONGEST:
                raise TopologyError(topology.name, f"{size} B take longer than 2^52 ps on a link", "use more chunks")
            alone[row] = np.array(times, dtype=np.int64)[topology.bandwidth_class[links]]
        return alone, topology.latency_ps[links].astype(np.int64)

    def turned(self) -> Network:
        """The network with every arc turned round and time running backwards.

        A schedule on it that gathers is, mirrored in time, one on this network that reduces: the transfer over arc
        a that starts at s there starts at ``T - s - delay`` here, over ``base_arc[a]``. What others occupy is left
        out, because T is not known before.
        """
        if self.base is not None:
            return self.base
        order = np.lexsort((self.dst, self.src))
        lengths = np.diff(self.hop_ptr)[order]
        hop_ptr = _pointers(lengths)
        hops = np.repeat(self.hop_ptr[:-1][order] - hop_ptr[:-1], lengths) + np.arange(len(self.hop))
        return Network(
            topology=self.topology,
            npus=self.npus,
            cost=self.cost,
            relays=self.relays,
            src=self.dst[order],
            dst=self.src[order],
            hop_ptr=hop_ptr,
            hop=self.hop[hops],
            links=self.links,
            **_intervals(self.links, ()),
            base=self,
            base_arc=order.astype(np.int32),
            waits=self.waits,
        )

    @cached_property
    def least(self) -> Network:
        """The network as bounds see it: each link is held for the shortest time that a transfer may hold it."""
        return self if self.direct or len(self.occupied_start) else replace(self, waits=True)

    @cached_property
    def alone(self) -> Network:
        """The network as if nobody else occupied links."""
        return replace(self, **_intervals(self.links, ())) if len(self.occupied_start) else self

    @cached_property
    def idle_links(self) -> int:
        """Links between members that no route takes (all but one of parallel links): no message can use them."""
        member = np.zeros(self.topology.vertices, dtype=bool)
        member[list(self.npus)] = True
        between = member[self.topology.src] & member[self.topology.dst]
        between[self.links] = False
        return int(between.sum())


def _pointers(lengths: np.ndarray) -> np.ndarray:
    ptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ptr[1:])
    return ptr


def _routes(
    topology: Topology, members: np.ndarray, rank_of: np.ndarray, relays: bool, place: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(source ranks, target ranks, pointers, links) of every arc."""
    n = len(members)
    outside = n < len(topology.alive)
    if topology.vertices == topology.npus and not (relays and outside):
        a, b = rank_of[topology.src], rank_of[topology.dst]
        inside = np.flatnonzero((a >= 0) & (b >= 0))
        pairs, first, count = np.unique(a[inside] * n + b[inside], return_index=True, return_counts=True)
        path = inside[first].astype(np.int32)
        several = count > 1
        # A single direct link is the route of its ends, whichever way routes are found.
        if several.any():
            path[several] = topology.routes(*members[np.stack(np.divmod(pairs[several], n))])[1]
        return pairs // n, pairs % n, np.arange(len(pairs) + 1), path
    if n > MAX_PAIRED_RANKS:
        problem = f"{n} ranks behind switches or relays are more than {MAX_PAIRED_RANKS}"
        raise TopologyError(place or topology.name, problem, "synthesize for a smaller group")
    pairs = np.arange(n * n)
    source, target = np.divmod(pairs[pairs // n != pairs % n], n)
    ptr, path = topology.routes(members[source], members[target])
    lengths = np.diff(ptr)
    inner = np.ones(len(path), dtype=bool)
    inner[ptr[1:][lengths > 0] - 1] = False
    passed = topology.dst[path]
    wrong = inner & (rank_of[passed] >= 0 if relays else passed < topology.npus)
    spoilt = np.zeros(len(source), dtype=bool)
    spoilt[np.repeat(np.arange(len(source)), lengths)[wrong]] = True
    kept = np.repeat(~spoilt, lengths)
    return source[~spoilt], target[~spoilt], _pointers(lengths[~spoilt]), path[kept]


def _check_connected(n: int, src: np.ndarray, dst: np.ndarray, members: np.ndarray, relays: bool, place: str) -> None:
    from astrasim_py.topology.routing import reachable

    for tails, heads, forward in ((src, dst, True), (dst, src, False)):
        order = np.argsort(tails, kind="stable")
        ptr = np.searchsorted(tails[order], np.arange(n + 1))
        lost = np.flatnonzero(~reachable(ptr, heads[order], 0)[:n])
        if len(lost):
            a, b = (members[0], members[lost[0]]) if forward else (members[lost[0]], members[0])
            remedy = "choose other NPUs" if relays else "choose other NPUs, or allow relays"
            raise TopologyError(place, f"no path leads from NPU {a} to NPU {b} through NPUs of the group", remedy)


def _intervals(links: np.ndarray, occupied: Iterable[Occupied]) -> dict[str, np.ndarray]:
    """CSR of disjoint intervals per resource."""
    parts = [(o.link, o.start, o.end) for o in occupied]
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return {
            "occupied_ptr": np.zeros(len(links) + 1, dtype=np.int64),
            "occupied_start": none,
            "occupied_end": none,
        }
    link, start, end = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    at = np.searchsorted(links, link)
    ours = (at < len(links)) & (links[np.minimum(at, len(links) - 1)] == link) & (end > start)
    order = np.lexsort((start[ours], at[ours]))
    at, start, end = at[ours][order], start[ours][order], end[ours][order]
    keep_at: list[int] = []
    keep_start: list[int] = []
    keep_end: list[int] = []
    for resource, begin, until in zip(at.tolist(), start.tolist(), end.tolist(), strict=True):
        if keep_at and keep_at[-1] == resource and begin <= keep_end[-1]:
            keep_end[-1] = max(keep_end[-1], until)
        else:
            keep_at.append(resource)
            keep_start.append(begin)
            keep_end.append(until)
    return {
        "occupied_ptr": np.searchsorted(keep_at, np.arange(len(links) + 1)).astype(np.int64),
        "occupied_start": np.array(keep_start, dtype=np.int64),
        "occupied_end": np.array(keep_end, dtype=np.int64),
    }
