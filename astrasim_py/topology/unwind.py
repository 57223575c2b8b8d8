"""Unwinding: switches replaced by direct links between their ports.

Synthesizers that support only links between NPUs, such as TACOS (Won et al., arXiv 2304.05301), model a switch as a
few direct links per port. With degree d every port sends to the next d ports, each at 1/d of its
bandwidth: no NPU ever sends or receives more than its port carries, but a single message is d times as slow.
"""

from collections import defaultdict
from fractions import Fraction

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.model import Topology

#: Most links that unwinding makes.
MAX_LINKS = 2**21


def unwound(topology: Topology, degree: int, *, place: str = "") -> Topology:
    """The topology with each switch replaced by links from each of its ports to `degree` others.

    Switches are removed one by one, the last first. The neighbours with links to and from a switch form a circle, by
    number; each is linked to the next `degree`. Neighbours with links in one direction only are linked to, or from, as
    many of those. A new link from u to v replaces two: its latency is their sum, its bandwidth the lesser of theirs,
    each divided by its number of new links. Links between the same two vertices are merged: the sum of their
    bandwidths, the longer latency. The result has no dimensions, and shortest-path routes. Raises TopologyError: a
    topology without switches, or more than `MAX_LINKS` links.
    """
    if degree < 1:
        raise TopologyError(place, f"unwinds to a degree of {degree}", "write 1 or more")
    if topology.vertices == topology.npus:
        raise TopologyError(place, f"{topology.name} has no switch to unwind", "leave unwind out")
    # Links without a switch are kept, parallel ones included.
    plain = (topology.src < topology.npus) & (topology.dst < topology.npus)
    rates = [topology.bandwidth(i) for i in range(topology.links)]
    links = list(zip(topology.src.tolist(), topology.dst.tolist(), rates, topology.latency_ps.tolist(), strict=True))
    rows = [links[i] for i in np.flatnonzero(plain).tolist()]
    after: dict[int, dict[int, tuple[Fraction, int]]] = defaultdict(dict)
    before: dict[int, set[int]] = defaultdict(set)

    def join(u: int, v: int, bandwidth: Fraction, latency: int) -> None:
        link = after[u].get(v)
        after[u][v] = (bandwidth, latency) if link is None else (link[0] + bandwidth, max(link[1], latency))
        before[v].add(u)

    for i in np.flatnonzero(~plain).tolist():
        join(*links[i])
    pairs_made = 0
    for switch in range(topology.vertices - 1, topology.npus - 1, -1):
        into = {u: after[u].pop(switch) for u in sorted(before.pop(switch, ()))}
        out = dict(sorted(after.pop(switch, {}).items()))
        for v in out:
            before[v].discard(switch)
        pairs = _pairs(list(into), list(out), degree)
        pairs_made += len(pairs)
        if pairs_made > MAX_LINKS:
            raise TopologyError(place, f"unwinds to more than {MAX_LINKS} links", "unwind to a smaller degree")
        sends = np.bincount([u for u, _ in pairs], minlength=topology.vertices)
        gets = np.bincount([v for _, v in pairs], minlength=topology.vertices)
        for u, v in pairs:
            share = min(into[u][0] / int(sends[u]), out[v][0] / int(gets[v]))
            join(u, v, share, into[u][1] + out[v][1])
    rows += [(u, v, *link) for u, links_of in sorted(after.items()) for v, link in sorted(links_of.items())]
    src, dst, bandwidths, latency = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Topology.create(
        name=f"{topology.name}, unwound to degree {degree}",
        shape="edge_list",
        npus=topology.npus,
        vertices=topology.npus,
        src=np.array(src, dtype=np.int64),
        dst=np.array(dst, dtype=np.int64),
        latency_ps=np.array(latency, dtype=np.int64),
        bandwidth_class=np.arange(len(rows)),
        bandwidths=bandwidths,
        failed=topology.failed,
        routing=topology.routing,
        place=place,
    )


def _pairs(into: list[int], out: list[int], degree: int) -> list[tuple[int, int]]:
    """New links (u, v) of a switch, from vertices with links into it to vertices with links out of it."""
    both = sorted(set(into) & set(out))
    only_in, only_out = sorted(set(into) - set(both)), sorted(set(out) - set(both))
    n = len(both)
    if not n:
        return [(u, v) for u in only_in for v in only_out]
    near = range(1, min(degree, n - 1) + 1)
    pairs = [(u, both[(i + step) % n]) for i, u in enumerate(both) for step in near]
    steps = range(min(degree, n))
    pairs += [(u, both[(k * degree + step) % n]) for k, u in enumerate(only_in) for step in steps]
    pairs += [(both[(k * degree + step) % n], v) for k, v in enumerate(only_out) for step in steps]
    return pairs
