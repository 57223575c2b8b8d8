"""Lower bounds of collectives on a part of a machine, whose members reach each other by some of its links only."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import demand, time_at_ps

#: Groups from so many members on are not bounded by the routes between each two of them.
_MOST = 129


@dataclass(frozen=True, eq=False)
class RoutedRates:
    """What carries the messages between the members of a group, where each pair has one route: the links (int32,
    ascending), rates, bytes per second, of those by which they enter and leave each member, and the least latency of
    these."""

    links: np.ndarray

    into: tuple[Fraction, ...]
    out: tuple[Fraction, ...]
    latency_in: int
    latency_out: int


def routed_rates(topology: Topology, npus: Sequence[int]) -> RoutedRates | None:
    """The links of the routes between NPUs; None where two are not connected or have several routes, where routes
    change, and for a large group.
    """
    members, n = np.asarray(npus, dtype=np.int64), len(npus)
    if not 1 < n < _MOST or topology.routing.ecmp or topology.events:
        return None
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    ptr, links = topology.routes(members[i], members[j], connected=False)
    if (np.diff(ptr) == 0).any():
        return None
    classes, sides = len(topology.bandwidths), []
    for member, ends in ((j, links[ptr[1:] - 1]), (i, links[ptr[:-1]])):
        distinct = np.unique(member * topology.links + ends.astype(np.int64))
        which = distinct // topology.links * classes + topology.bandwidth_class[distinct % topology.links]
        counts = np.bincount(which, minlength=n * classes).reshape(n, classes).tolist()
        rates = (sum((k * b for k, b in zip(row, topology.bandwidths, strict=True)), Fraction(0)) for row in counts)
        sides.append((tuple(rates), int(topology.latency_ps[ends].min())))
    (into, latency_in), (out, latency_out) = sides
    return RoutedRates(np.unique(links), into, out, latency_in, latency_out)


def routed_bound_ps(collective: str, size: int, rates: RoutedRates, root: int = 0) -> int:
    """A time that no algorithm can beat whose messages go from member to member by their routes: what must enter and
    leave each of them, and what all must receive, over the links that these routes take. Parameters as of
    `CallBounds.of`; returns ps, rounded down.

    A group whose members are on different nodes reaches each of them by one NIC, whatever else its node has.
    """
    need, best = demand(collective, size, len(rates.into)), 0
    sides = ((need.ingress, rates.into, rates.latency_in), (need.egress, rates.out, rates.latency_out))
    for (of_root, of_others), of_members, latency in sides:
        for member, rate in enumerate(of_members):
            nbytes = of_root if member == root else of_others
            best = max(best, time_at_ps(nbytes, rate) + latency if nbytes else 0)
    if need.total:
        best = max(best, time_at_ps(need.total, sum(rates.into, Fraction(0))) + rates.latency_in)
    return best
