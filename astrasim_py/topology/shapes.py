"""Shapes: functions that make topologies from numbers.

Bandwidths are bytes per second (`fractions.Fraction`) of one link in one direction, latencies picoseconds of
one link. `spec.build` makes the same from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.fabrics import Dragonfly, Fabric, FatTree, LeafSpine, Rails, columns
from astrasim_py.topology.model import Dim, Topology, check_caps, product_of

Rates = Fraction | Sequence[Fraction]
Times = int | Sequence[int]


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _per_dim(value, count: int, key: str, place: str) -> list:
    """One value per dimension: a scalar is repeated."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise TopologyError(
            _at(place, key), f"{len(value)} values for {count} dims", "write one value, or one per dimension"
        )
    return list(value)


def _grid(shape: str, kind: str, dims, bandwidth, latency_ps, bidirectional, place) -> Topology:
    rates = _per_dim(bandwidth, len(dims), "bandwidth", place)
    times = _per_dim(latency_ps, len(dims), "latency", place)
    rows = [Dim(kind, n, b, t, bidirectional) for n, b, t in zip(dims, rates, times, strict=True)]
    return product_of(f"{shape} {'x'.join(map(str, dims))}", shape, rows, place)


def ring(npus: int, bandwidth: Fraction, latency_ps: int, *, bidirectional: bool = True, place: str = "") -> Topology:
    """NPUs in a circle. Messages take the shorter way, at a tie clockwise (+1).

    A ring of two has one link per direction. With ``bidirectional=False`` only the +1 links exist.
    """
    return _grid("ring", "ring", [npus], bandwidth, latency_ps, bidirectional, place)


def mesh(dims: Sequence[int], bandwidth: Rates, latency_ps: Times, *, place: str = "") -> Topology:
    """An n-D grid without wraparound; dimension-order routes from dim 0."""
    return _grid("mesh", "mesh", dims, bandwidth, latency_ps, True, place)


def torus(
    dims: Sequence[int],
    bandwidth: Rates,
    latency_ps: Times,
    *,
    bidirectional: bool = True,
    place: str = "",
) -> Topology:
    """An n-D grid of rings; dimension-order routes from dim 0. A dim of two has one link per direction."""
    return _grid("torus", "ring", dims, bandwidth, latency_ps, bidirectional, place)


def fully_connected(npus: int, bandwidth: Fraction, latency_ps: int, *, place: str = "") -> Topology:
    """A link from every NPU to every other one."""
    return _grid("fully_connected", "fully_connected", [npus], bandwidth, latency_ps, True, place)


def switch(npus: int, bandwidth: Fraction, latency_ps: int, *, place: str = "") -> Topology:
    """All NPUs on one switch; a message crosses two links and pays both latencies."""
    return _grid("switch", "switch", [npus], bandwidth, latency_ps, True, place)


def product(dims: Sequence[Dim], *, place: str = "") -> Topology:
    """A product of dimensions, each with its own kind, size, bandwidth and latency; dim 0 is innermost.

    A switch dimension has one switch per slice (all other coordinates fixed). Routes are dimension-order.
    """
    name = " x ".join(f"{d.kind}({d.size})" for d in dims)
    return product_of(name, "product", dims, place)


def hypercube(npus: int, bandwidth: Fraction, latency_ps: int, *, place: str = "") -> Topology:
    """NPUs whose ids differ in one bit are linked; messages correct the lowest differing bit first (e-cube).

    References
    ----------
    Sullivan, Bashkow: A large scale, homogeneous, fully distributed parallel machine, ISCA 1977.
    """
    if npus & (npus - 1):
        low = 1 << npus.bit_length() - 1
        raise TopologyError(
            _at(place, "npus"),
            f"{npus} is not a power of two, as a hypercube needs",
            f"write {low} or {2 * low}",
        )
    rows = [Dim("ring", 2, bandwidth, latency_ps)] * (npus.bit_length() - 1)
    rows = rows or [Dim("ring", 1, bandwidth, latency_ps)]
    return product_of(f"hypercube {npus}", "hypercube", rows, place)


def _fabric(
    name: str,
    shape: str,
    fabric: Fabric,
    levels: Sequence[tuple[Fraction, int]],
    dims: Sequence[Dim],
    tiers: bool,
    place: str,
) -> Topology:
    """A switched network; `levels` are (bandwidth, latency) by level of its links."""
    switches = sum(count for _, count in fabric.switches)
    check_caps(fabric.npus, fabric.links, switches, place)
    src, dst, level = columns(fabric.blocks())
    return Topology.create(
        name=name,
        shape=shape,
        npus=fabric.npus,
        vertices=fabric.npus + switches,
        src=src,
        dst=dst,
        latency_ps=np.array([latency for _, latency in levels], dtype=np.int64)[level],
        bandwidth_class=level,
        bandwidths=[bandwidth for bandwidth, _ in levels],
        dims=tuple(dims),
        switches=fabric.switches,
        tiers=(fabric.npus, *(count for _, count in fabric.switches)) if tiers else (),
        router=fabric,
        place=place,
    )


def leaf_spine(
    leaves: int,
    hosts_per_leaf: int,
    spines: int,
    bandwidth: Fraction,
    latency_ps: int,
    *,
    oversubscription: Fraction = Fraction(1),
    uplink_bandwidth: Fraction | None = None,
    uplink_latency_ps: int | None = None,
    place: str = "",
) -> Topology:
    """Leaf switches with NPUs, each linked once to every spine (see `fabrics.LeafSpine` for routes).

    Parameters
    ----------
    leaves, hosts_per_leaf, spines : int
    bandwidth, latency_ps
        Of an NPU's link to its leaf.
    oversubscription : fractions.Fraction
        Bandwidth of a leaf's NPUs over the bandwidth of its uplinks, 1 if non-blocking: an uplink then has
        ``hosts_per_leaf * bandwidth / (oversubscription * spines)``.
    uplink_bandwidth : fractions.Fraction, optional
        The bandwidth of one uplink, instead of `oversubscription`.
    uplink_latency_ps : int, optional
        `latency_ps` if not given.
    """
    up = uplink_bandwidth or hosts_per_leaf * bandwidth / (oversubscription * spines)
    up_latency = latency_ps if uplink_latency_ps is None else uplink_latency_ps
    dims = (
        Dim("switch", hosts_per_leaf, bandwidth, latency_ps),
        Dim("switch", leaves, min(bandwidth, up * spines / hosts_per_leaf), up_latency),
    )
    name = f"leaf_spine {leaves}x{hosts_per_leaf}, {spines} spines"
    levels = [(bandwidth, latency_ps), (up, up_latency)]
    return _fabric(name, "leaf_spine", LeafSpine(leaves, hosts_per_leaf, spines), levels, dims, True, place)


def fat_tree(
    k: int,
    bandwidth: Fraction,
    latency_ps: int,
    *,
    pods: int | None = None,
    hosts_per_edge: int | None = None,
    fabric_bandwidth: Fraction | None = None,
    fabric_latency_ps: int | None = None,
    place: str = "",
) -> Topology:
    """A three-tier fat tree of k-port switches (see `fabrics.FatTree` for wiring and routes).

    By default the full one of the literature: k pods, k/2 NPUs per edge switch, k^3/4 NPUs, rearrangeably
    non-blocking.

    Parameters
    ----------
    k : int
        Ports per switch, even.
    bandwidth, latency_ps
        Of an NPU's link, and of all links unless the next ones are given.
    pods : int, optional
        At most k.
    hosts_per_edge : int, optional
        More than k/2 oversubscribes the edge switches, fewer undersubscribes them.
    fabric_bandwidth, fabric_latency_ps : optional
        Of one link between switches.
    """
    if k % 2:
        raise TopologyError(_at(place, "k"), f"{k} ports cannot be halved", f"write {k + 1}")
    pods = k if pods is None else pods
    if pods > k:
        raise TopologyError(
            _at(place, "pods"), f"{pods} pods are more than the {k} ports of a core switch", f"write {k}"
        )
    fabric = FatTree(k, pods, hosts_per_edge or k // 2)
    inner = fabric_bandwidth or bandwidth
    inner_latency = latency_ps if fabric_latency_ps is None else fabric_latency_ps
    share = min(bandwidth, inner * fabric.half / fabric.hosts)
    dims = (
        Dim("switch", fabric.hosts, bandwidth, latency_ps),
        Dim("switch", fabric.half, share, inner_latency),
        Dim("switch", pods, share, inner_latency),
    )
    levels = [(bandwidth, latency_ps), (inner, inner_latency), (inner, inner_latency)]
    return _fabric(f"fat_tree {fabric.npus}", "fat_tree", fabric, levels, dims, True, place)


def dragonfly(
    a: int,
    h: int,
    p: int,
    bandwidth: Fraction,
    latency_ps: int,
    *,
    g: int | None = None,
    local_bandwidth: Fraction | None = None,
    local_latency_ps: int | None = None,
    global_bandwidth: Fraction | None = None,
    global_latency_ps: int | None = None,
    place: str = "",
) -> Topology:
    """A dragonfly with minimal routing (see `fabrics.Dragonfly` for wiring and routes).

    Parameters
    ----------
    a : int
        Routers per group.
    h : int
        Global links per router.
    p : int
        NPUs per router.
    bandwidth, latency_ps
        Of an NPU's link, and of all links unless the next ones are given.
    g : int, optional
        Groups; ``a h + 1`` by default, which is the most there can be.
    local_bandwidth, local_latency_ps, global_bandwidth, global_latency_ps : optional
        Of one link within, and between, groups.
    """
    g = a * h + 1 if g is None else g
    if g > a * h + 1:
        raise TopologyError(
            _at(place, "g"),
            f"{g} groups are more than a h + 1 = {a * h + 1}, the number that a x h global links can join",
            f"write {a * h + 1}",
        )
    fabric = Dragonfly(a, h, p, g)
    inner, outer = local_bandwidth or bandwidth, global_bandwidth or bandwidth
    inner_latency = latency_ps if local_latency_ps is None else local_latency_ps
    outer_latency = latency_ps if global_latency_ps is None else global_latency_ps
    dims = (
        Dim("switch", p, bandwidth, latency_ps),
        Dim("fully_connected", a, inner, inner_latency),
        Dim("fully_connected", g, outer, outer_latency),
    )
    levels = [(bandwidth, latency_ps), (inner, inner_latency), (outer, outer_latency)]
    return _fabric(f"dragonfly {fabric.npus}", "dragonfly", fabric, levels, dims, False, place)


def dgx(
    nvlink_bandwidth: Fraction,
    nvlink_latency_ps: int,
    *,
    nodes: int = 1,
    npus: int = 8,
    nic_bandwidth: Fraction | None = None,
    nic_latency_ps: int | None = None,
    rails: int | None = None,
    spines: int = 0,
    oversubscription: Fraction = Fraction(1),
    cross_rail: str | None = None,
    place: str = "",
) -> Topology:
    """Nodes of NPUs behind an NVSwitch, one NIC per NPU, rail-optimised (see `fabrics.Rails` for routes).

    The NVSwitch chips of a node are one vertex: an NPU spreads its traffic over all of them, so only its own
    bandwidth limits it. Rail and spine switches are as large as needed.

    Parameters
    ----------
    nvlink_bandwidth, nvlink_latency_ps
        Of all NVLinks of one NPU together, in one direction, to the NVSwitch; between two NPUs there are two
        such links, so twice the latency.
    nodes : int
    npus : int
        Per node.
    nic_bandwidth, nic_latency_ps
        From an NPU through its NIC to the rail switch; needed when there are several nodes.
    rails : int, optional
        Rail switches, a divisor of `npus`; as many as `npus` by default.
    spines : int
        0: rails are not linked to each other.
    oversubscription : fractions.Fraction
        Bandwidth of the NICs on a rail over the bandwidth of its links to the spines.
    cross_rail : {"nvlink", "spine"}, optional
        How messages change rails; ``spine`` if there are any by default.
    """
    rails = npus if rails is None else rails
    if nodes > 1 and (nic_bandwidth is None or nic_latency_ps is None):
        key = "nic_bandwidth" if nic_bandwidth is None else "nic_latency"
        example = '"400 Gb/s"' if nic_bandwidth is None else '"1 us"'
        raise TopologyError(_at(place, key), f"missing, and there are {nodes} nodes", f"write e.g. {example}")
    if npus % rails:
        raise TopologyError(_at(place, "rails"), f"{rails} rails do not divide {npus} NPUs per node", f"write {npus}")
    cross_rail = cross_rail or ("spine" if spines else "nvlink")
    if cross_rail == "spine" and not spines and nodes > 1 and rails > 1:
        raise TopologyError(_at(place, "cross_rail"), "spine, and there are no spines", "write spines: 1")
    fabric = Rails(nodes, npus, rails, spines if nodes > 1 else 0, cross_rail)
    levels = [(nvlink_bandwidth, nvlink_latency_ps)]
    dims = [Dim("switch", npus, nvlink_bandwidth, nvlink_latency_ps)]
    if nodes > 1:
        up = nodes * (npus // rails) * nic_bandwidth / (oversubscription * max(1, spines))
        levels += [(nic_bandwidth, nic_latency_ps), (up, nic_latency_ps)]
        dims.append(Dim("switch", nodes, nic_bandwidth, nic_latency_ps))
    if not fabric.links:
        return product_of("dgx 1x1", "dgx", dims, place)
    return _fabric(f"dgx {nodes}x{npus}", "dgx", fabric, levels, dims, True, place)
