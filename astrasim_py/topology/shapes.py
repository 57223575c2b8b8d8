"""Shapes: functions that make topologies from numbers.

Bandwidths are bytes per second (`fractions.Fraction`) of one link in one direction, latencies picoseconds of
one link.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.model import Dim, Topology, product_of

Rates = Fraction | Sequence[Fraction]
Times = int | Sequence[int]


def _per_dim(value, count: int, key: str, place: str) -> list:
    """One value per dimension: a scalar is repeated."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise TopologyError(
            f"{place}.{key}" if place else key,
            f"{len(value)} values for {count} dims",
            "write one value, or one per dimension",
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
        raise TopologyError(
            f"{place}.npus" if place else "npus",
            f"{npus} is not a power of two, as a hypercube needs",
            f"write {1 << npus.bit_length() - 1} or {1 << npus.bit_length()}",
        )
    rows = [Dim("ring", 2, bandwidth, latency_ps)] * (npus.bit_length() - 1)
    return product_of(f"hypercube {npus}", "hypercube", rows or [Dim("ring", 1, bandwidth, latency_ps)], place)
