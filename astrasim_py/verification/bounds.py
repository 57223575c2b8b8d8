"""Closed forms of known algorithms, and lower bounds of collectives on a topology."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.by_need import load
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.model import Topology

#: Sources from which latencies are computed; a maximum over fewer pairs is still a lower bound.
_SOURCES = 8
#: Shapes whose distances are sums over dimensions.
_PRODUCTS = ("ring", "mesh", "torus", "fully_connected", "switch", "hypercube", "product")
#: Latency of vertices that are not reached, ps.
_FAR = np.iinfo(np.int64).max // 4
#: Links beyond which shortest latencies are not searched in irregular topologies.
_SEARCHED_LINKS = 100_000


def _coefficients(n: int) -> dict[tuple[str, str], tuple[int | Fraction, ...]]:
    """(algorithm, collective) -> latencies, full buffers sent, and full buffers reduced, all one after another.

    Every pair of the n ranks has a link of its own. Names and defaults are those of the builders.
    """
    m, log, several = n - 1, max(0, (n - 1).bit_length()), int(n > 1)
    part, most = Fraction(several, n), Fraction(m, n)
    return {
        # Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, §4.
        ("ring", "all_reduce"): (2 * m, 2 * most, most),
        ("ring", "all_gather"): (m, most, 0),
        ("ring", "reduce_scatter"): (m, most, most),
        # Chan et al., "Collective communication: theory, practice, and experience", CCPE 2007, §4 (chain, one piece).
        ("ring", "broadcast"): (m, m, 0),
        ("ring", "reduce"): (m, m, m),
        ("ring", "barrier"): (m, 0, 0),
        # One message to every peer at once, over links of their own.
        ("direct", "all_reduce"): (2 * several, 2 * part, most),
        ("direct", "all_gather"): (several, part, 0),
        ("direct", "reduce_scatter"): (several, part, most),
        ("direct", "all_to_all"): (several, part, 0),
        ("direct", "broadcast"): (several, several, 0),
        ("direct", "reduce"): (several, several, m),
        ("direct", "gather"): (several, part, 0),
        ("direct", "scatter"): (several, part, 0),
        ("direct", "barrier"): (several, 0, 0),
        ("linear", "broadcast"): (m, m, 0),
        ("linear", "scatter"): (m, most, 0),
        # Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH",
        # IJHPCA 2005, §3 and §4.
        ("pairwise", "all_to_all"): (m, most, 0),
        ("bruck", "all_gather"): (log, most, 0),
        ("bruck", "all_to_all"): (log, Fraction(log, 2), 0),
        ("halving_doubling", "all_reduce"): (2 * log, 2 * most, most),
        ("halving_doubling", "all_gather"): (log, most, 0),
        ("halving_doubling", "reduce_scatter"): (log, most, most),
        ("recursive_doubling", "all_reduce"): (log, log, log),
        ("recursive_doubling", "all_gather"): (log, most, 0),
        ("recursive_doubling", "barrier"): (log, 0, 0),
        ("binomial_tree", "gather"): (log, most, 0),
        ("binomial_tree", "scatter"): (log, most, 0),
        # Chan et al. 2007, §4 (minimum-spanning-tree algorithms), for any n.
        ("binomial_tree", "broadcast"): (log, log, 0),
        ("binomial_tree", "reduce"): (log, log, log),
        ("binomial_tree", "all_reduce"): (2 * log, 2 * log, log),
        ("binomial_tree", "barrier"): (2 * log, 0, 0),
        # Hensgen, Finkel & Manber, "Two algorithms for barrier synchronization", IJPP 1988.
        ("dissemination", "barrier"): (log, 0, 0),
    }


#: Pairs of algorithm and collective with a closed form.
CLOSED_FORMS = tuple(_coefficients(2))
#: Closed forms that hold for powers of two only.
_POWERS_OF_TWO = frozenset(
    [(name, kind) for name, kind in CLOSED_FORMS if name in ("halving_doubling", "recursive_doubling")]
    + [("bruck", "all_to_all"), ("binomial_tree", "gather"), ("binomial_tree", "scatter")]
)


def closed_form_ps(
    algorithm: str,
    collective: str,
    ranks: int,
    size: int,
    alpha_ps: int,
    bandwidth: Fraction,
    gamma: Fraction = Fraction(0),
) -> Fraction:
    """Alpha-beta-gamma time of an algorithm on links of its own.

    `algorithm`, `collective`: one of `CLOSED_FORMS`. `size`: full buffer, bytes. `alpha_ps`: latency of a message, ps.
    `bandwidth`: bytes per second. `gamma`: reduction time, seconds per byte. Returns ps, exact; whole where the chunks
    divide. Raises AlgorithmError: no closed form is known, or only one for powers of two.
    """
    key = algorithm, collective
    if key not in CLOSED_FORMS:
        raise AlgorithmError(f"{algorithm} {collective}", "has no closed form", "simulate it")
    if key in _POWERS_OF_TWO and ranks & (ranks - 1):
        raise AlgorithmError(f"{algorithm} {collective}", f"{ranks} ranks are not a power of two", "simulate it")
    latencies, sent, reduced = _coefficients(ranks)[key]
    return Fraction(latencies * alpha_ps + size * PS_PER_S * (sent / bandwidth + reduced * gamma))


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes that any algorithm must move, with any relays and in any order.

    `ingress`, `egress`: bytes that must enter and leave the root, and any other member (the same twice without a root).
    """

    ingress: tuple[int, int]
    egress: tuple[int, int]
    total: int  # bytes that the members together must receive


#: Collectives that move as many bytes as others do, the other way.
_REVERSED = {"reduce_scatter": "all_gather", "reduce": "broadcast", "gather": "scatter"}


def demand(collective: str, size: int, ranks: int, switches: bool = False) -> Demand:
    """The bytes that a collective of `size` bytes (full buffer) on `ranks` members must move.

    Counted per byte of the buffer; a relay by an NPU of the group or another one only adds to these counts. No network
    device reduces unless `switches`.

    * all_gather, broadcast, gather, scatter: a byte must leave its origin and enter every member that needs it.
    * reduce_scatter, reduce: a member's contribution to a byte must leave it, or the sum must if it is formed there; a
      byte of the others must enter the owner of the sum. A byte takes n-1 messages.
    * all_reduce: at the member v where the sum is complete first, a byte of the others enters and the sum leaves; at
      every other member its contribution leaves and the sum enters. So every byte costs every member one
      reception and one sending at least. In total it is a complete gossip, which takes 2(n-1) one-way messages (Harary
      & Schwenk, J. Franklin Inst. 1974; Patarasuk & Yuan 2009).
    * where switches reduce, a byte takes one message to each member that needs its sum; bytes that leave and enter a
      member stay the same.
    * all_to_all: a block for each of the other members must leave, and one from each must enter.

    Shards that do not divide are rounded to the side that keeps the bound true for any rounding of messages.
    """
    n, s = ranks, size
    low, high = s // n, -(-s // n)
    if n < 2 or collective == "barrier":
        return Demand((0, 0), (0, 0), 0)
    if collective in _REVERSED:
        forward = demand(_REVERSED[collective], size, ranks)
        total = {"reduce_scatter": n * low, "reduce": s}.get(collective) if switches else None
        return Demand(forward.egress, forward.ingress, forward.total if total is None else total)
    shares = {
        "all_reduce": Demand((s, s), (s, s), n * s if switches else 2 * (n - 1) * s),
        "all_to_all": Demand(((n - 1) * low,) * 2, ((n - 1) * low,) * 2, n * (n - 1) * low),
        "all_gather": Demand((s - high, s - high), (low, low), (n - 1) * s),
        "broadcast": Demand((0, s), (s, 0), (n - 1) * s),
        "scatter": Demand((0, low), (s - high, 0), s - high),
    }
    if collective not in shares:
        raise AlgorithmError(collective, "is not a collective")
    return shares[collective]


def cut_demand(collective: str, size: int, ranks: int, inside: int, root_inside: bool) -> tuple[int, int]:
    """Bytes that must cross from `inside` members to the others, and back, by the reasoning of `demand`."""
    n, s = ranks, size
    outside, low = n - inside, size // n
    if not inside or not outside or collective == "barrier":
        return 0, 0
    if collective in _REVERSED:
        return cut_demand(_REVERSED[collective], size, ranks, inside, root_inside)[::-1]
    return {
        "all_reduce": (s, s),
        "all_to_all": (inside * outside * low, inside * outside * low),
        "all_gather": (inside * low, outside * low),
        "broadcast": (s, 0) if root_inside else (0, s),
        "scatter": (outside * low, 0) if root_inside else (0, inside * low),
    }[collective]


class Capacities:
    """Rates of a topology, computed once: per NPU, and of some cuts.

    `kind`: int64[npus]: NPUs of one kind have equal rates and latencies. `ingress`, `egress`: by kind, bytes per second
    of all links into an NPU and out of it. `near_in`, `near_out`: by kind, ps: least latency from any other NPU to one,
    and from one to any other. `first_link`: by kind, ps: least latency from one to any other vertex.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        classes = len(topology.bandwidths)
        n = topology.npus

        def counts(end: np.ndarray) -> np.ndarray:
            at_npu = end < n
            per_npu = np.bincount(end[at_npu] * classes + topology.bandwidth_class[at_npu], minlength=n * classes)
            return per_npu.reshape(n, classes)

        into, out = counts(topology.dst.astype(np.int64)), counts(topology.src.astype(np.int64))
        near_in = self._near(topology.dst, topology.src)
        near_out = self._near(topology.src, topology.dst)
        first_link = self._nearest(topology.src)[:n]
        rows = np.column_stack([into, out, near_in, near_out, first_link])
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        self.kind = kind.reshape(n)
        self.ingress, self.egress = ([self._total(row) for row in rows[first]] for rows in (into, out))
        self.near_in, self.near_out = near_in[first].tolist(), near_out[first].tolist()
        self.first_link = first_link[first].tolist()
        self.cuts = self._cuts()

    def _near(self, end: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Least latency over one link, or two where the first end is a switch; int64[npus]."""
        topology, best = self.topology, self._nearest(end)
        onward = np.where(other >= topology.npus, best[other], 0)
        reach = np.full(topology.vertices, _FAR, dtype=np.int64)
        np.minimum.at(reach, end, topology.latency_ps + onward)
        near = reach[: topology.npus]
        return np.where(near >= _FAR, 0, near)

    def _nearest(self, end: np.ndarray) -> np.ndarray:
        """Least latency of the links at each vertex; int64[vertices]."""
        best = np.full(self.topology.vertices, _FAR, dtype=np.int64)
        np.minimum.at(best, end, self.topology.latency_ps)
        return best

    def rate_in(self, npus: np.ndarray) -> Fraction:
        """Bytes per second of all links into some NPUs (int64[k])."""
        counts = np.bincount(self.kind[npus], minlength=len(self.ingress)).tolist()
        return sum((count * rate for count, rate in zip(counts, self.ingress, strict=True)), Fraction(0))

    def _cuts(self) -> list[tuple[np.ndarray, Fraction, Fraction]]:
        """Some cuts: (bool[npus] inside, bytes per second out, bytes per second in)."""
        topology = self.topology
        n, block, sides = topology.npus, 1, []
        ids = np.arange(n)
        for dim in topology.dims:
            sides += [ids // block % dim.size < dim.size // 2, ids < block * dim.size]
            block *= dim.size
        sides.append(ids < n // 2)
        result = []
        for inside in {side.tobytes(): side for side in sides}.values():
            if not inside.any() or inside.all():
                continue
            member = np.zeros(topology.vertices, dtype=bool)
            member[:n] = inside
            # A switch is on the side of most of its neighbours; any assignment gives a true bound.
            for _ in range(3 if topology.vertices > n else 0):
                weight = np.bincount(topology.src, np.where(member[topology.dst], 1, -1), topology.vertices)
                member[n:] = weight[n:] > 0
            out = member[topology.src] & ~member[topology.dst]
            back = ~member[topology.src] & member[topology.dst]
            result.append((inside, self._rate(out), self._rate(back)))
        return result

    def _rate(self, links: np.ndarray) -> Fraction:
        return self._total(np.bincount(self.topology.bandwidth_class[links], minlength=len(self.topology.bandwidths)))

    def _total(self, counts: np.ndarray) -> Fraction:
        """Bytes per second of so many links of each class of bandwidth."""
        return sum((c * b for c, b in zip(counts.tolist(), self.topology.bandwidths, strict=True)), Fraction(0))

    def latency(self, sources: Sequence[int], targets: Sequence[int]) -> int:
        """A latency, ps, that at least one message from a source to a target has: a maximum over shortest paths."""
        topology = self.topology
        ends = np.asarray(targets, dtype=np.int64)
        if topology.shape in _PRODUCTS and topology.pristine:
            return max((self._by_dimension(source, ends) for source in sources), default=0)
        if topology.links > _SEARCHED_LINKS:
            return 0
        reach = (self._search(source)[ends] for source in sources)
        return max((int(times[times < _FAR].max(initial=0)) for times in reach), default=0)

    def _by_dimension(self, source: int, targets: np.ndarray) -> int:
        """Greatest latency from a vertex to some others, as a sum over dimensions."""
        total = np.zeros(len(targets), dtype=np.int64)
        for dim in self.topology.dims:
            source, a = divmod(source, dim.size)
            targets, b = np.divmod(targets, dim.size)
            hops = np.not_equal(a, b).astype(np.int64) * (2 if dim.kind == "switch" else 1)
            if dim.kind == "ring":
                hops = np.minimum((b - a) % dim.size, (a - b) % dim.size) if dim.bidirectional else (b - a) % dim.size
            elif dim.kind == "mesh":
                hops = np.abs(b - a)
            total += hops * dim.latency_ps
        return int(total.max(initial=0))

    def _search(self, source: int) -> np.ndarray:
        """Shortest latencies from a vertex, ps: int64[vertices] (Bellman and Ford)."""
        topology = self.topology
        reach = np.full(topology.vertices, _FAR, dtype=np.int64)
        reach[source] = 0
        before = np.zeros(0, dtype=np.int64)
        while not np.array_equal(reach, before):
            before = reach.copy()
            np.minimum.at(reach, topology.dst, before[topology.src] + topology.latency_ps)
        return reach


def time_at_ps(nbytes: int, rate: Fraction) -> int:
    """Bytes at a rate, rounded down: a bound must not exceed the truth."""
    return nbytes * PS_PER_S * rate.denominator // rate.numerator if rate else 0


def may_reduce(topology: Topology, algorithms: Sequence[Algorithm] = ()) -> bool:
    """Whether bounds must allow for switches that reduce: the user has said that some do, or an algorithm has them do.
    Presets of machines also name them, for algorithms in the network.
    """
    stated = topology.computing is not None and not topology.computing.of_machine
    given = (trace for algorithm in algorithms for trace in algorithm.given if trace.has_column("plan_role"))
    multimem = any((trace.column("plan_role") == 12).any() for trace in given)  # PlanRole.MULTIMEM
    return stated or multimem or any(algorithm.actors for algorithm in algorithms)


def member_times(
    collective: str, size: int, capacities: Capacities, npus: Sequence[int], root: int = 0, *, to_switch: bool = False
) -> tuple[list[int], list[int]]:
    """Per member: ps for which its links in, and its links out, must at least be busy, with the latency from and to the
    nearest NPU; or, `to_switch`, to the nearest vertex: a member's part ends where a switch has what it sends.
    """
    need = demand(collective, size, len(npus))
    kinds = capacities.kind[np.asarray(npus, dtype=np.int64)].tolist()
    tables = []
    for volumes, rates, near in (
        (need.ingress, capacities.ingress, capacities.near_in),
        (need.egress, capacities.egress, capacities.first_link if to_switch else capacities.near_out),
    ):
        by_kind = [
            [time_at_ps(nbytes, rate) + latency if nbytes else 0 for rate, latency in zip(rates, near, strict=True)]
            for nbytes in volumes
        ]
        times = [by_kind[1][kind] for kind in kinds]
        if times:
            times[root] = by_kind[0][kinds[root]]
        tables.append(times)
    return tables[0], tables[1]


class CallBounds:
    """Lower bounds of collectives on a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.capacities = topology, Capacities(topology)

    def of(
        self,
        collective: str,
        size: int,
        npus: Sequence[int],
        root: int = 0,
        *,
        switches: bool,
        links: np.ndarray | None = None,
    ) -> tuple[int, str]:
        """A time that no algorithm can beat, in models with contention, from the first send to the last delivery, and
        what proves it.

        `size`: full buffer, bytes. `npus`: the members' NPUs, in the order of the group. `root`: position in the group.
        `switches`: whether switches may reduce. `links`: of all messages between members, where these have one route.
        Returns ps, rounded down.
        """
        if len(npus) < 2:
            return 0, ""
        parts = quick_bounds(collective, size, self.capacities, npus, root, switches=switches)
        bounds = [(ps, of) for of, ps in parts.items()]
        if not switches and not self.as_quick(npus):
            certificate = self._certified.certificate(collective, size, npus, root, links)
            bounds = bounds if certificate is None else [(certificate.time_ps, str(certificate)), *bounds]
        return max(bounds, key=lambda bound: bound[0])

    def as_quick(self, npus: Sequence[int]) -> bool:
        """Whether no cut is tighter than the quick ones: all of a whole shape takes part, and all links are alike."""
        topology = self.topology
        whole = topology.dims and topology.renumbered is None and len(npus) == topology.npus
        return bool(whole) and len(topology.bandwidths) == 1

    @cached_property
    def _certified(self) -> Any:  # `CertifiedBounds`, loaded by runs that need it
        return load("astrasim_py.verification.certified:CertifiedBounds")(self.topology)


def quick_bounds(
    collective: str, size: int, capacities: Capacities, npus: Sequence[int], root: int, *, switches: bool
) -> dict[str, int]:
    """Times that no algorithm can beat, ps, by what they are of: what must enter and leave every NPU over the rate of
    its links (plus the latency of the last hop); what all members together must receive over all their links; what must
    cross some cuts (every half of a dimension, every block of inner dimensions, half of the NPUs); the longest of the
    shortest latencies between members whose data must reach each other. Parameters as of `CallBounds.of`.
    """
    n = len(npus)
    into, out = member_times(collective, size, capacities, npus, root)
    parts = {"links of one NPU": max(max(into), max(out))}
    need = demand(collective, size, n, switches)
    members = np.asarray(npus, dtype=np.int64)
    if need.total:
        nearest = min(
            capacities.near_in[kind] for kind in np.flatnonzero(np.bincount(capacities.kind[members])).tolist()
        )
        parts["links of all NPUs"] = nearest + time_at_ps(need.total, capacities.rate_in(members))
    across = 0
    for inside, rate_out, rate_in in capacities.cuts:
        count = int(inside[members].sum())
        over, back = cut_demand(collective, size, n, count, bool(inside[npus[root]]))
        across = max(across, time_at_ps(over, rate_out), time_at_ps(back, rate_in))
    spread = list(npus) if n <= _SOURCES else [npus[i * n // _SOURCES] for i in range(_SOURCES)]
    if promise_of(collective).from_root:
        latency = capacities.latency([npus[root]], npus)
    elif promise_of(collective).to_root:
        latency = max(capacities.latency([v], [npus[root]]) for v in spread)
    else:
        latency = capacities.latency(spread, npus)
    return parts | {"links between halves or blocks": across, "latency of the longest shortest path": latency}
