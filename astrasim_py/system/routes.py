"""What ASTRA-sim's congestion-unaware backend charges a message for: one dimension, whatever its route."""

from __future__ import annotations

from fractions import Fraction

from astrasim_py.topology.model import Topology


def lowest_dimension(topology: Topology, src: int, dst: int) -> tuple[int, Fraction, int]:
    """Hops, bandwidth and latency (ps a hop) of the lowest dimension in which two NPUs differ.

    Raises
    ------
    ValueError
        They are the same NPU.
    """
    for dim in topology.dims:
        src, a = divmod(src, dim.size)
        dst, b = divmod(dst, dim.size)
        if a == b:
            continue
        if dim.kind == "ring":
            hops = min((b - a) % dim.size, (a - b) % dim.size)
        elif dim.kind == "mesh":
            hops = abs(b - a)
        else:
            hops = 2 if dim.kind == "switch" else 1
        return hops, dim.bandwidth, dim.latency_ps
    raise ValueError("source and destination are the same NPU")
