"""A topology whose links reach a share of their rates."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from astrasim_py.topology.model import Topology


def with_shares(topology: Topology, near: float, far: float) -> Topology:
    """The topology with links at a share of their rates, from 0 to 1: `near` of those that are as fast as the innermost
    dimension with links, `far` of all others; without dimensions all are near.
    """
    inner = next((dim.bandwidth for dim in topology.dims if dim.size > 1), None)
    factors = [_exact(near if inner in (rate, None) else far) for rate in topology.bandwidths]
    if set(factors) == {Fraction(1)}:
        return topology
    rates = [rate * factor for rate, factor in zip(topology.bandwidths, factors, strict=True)]
    distinct = sorted(set(rates))
    classes = np.array([distinct.index(rate) for rate in rates], dtype=np.int32)[topology.bandwidth_class]
    achieved = dict(zip(topology.bandwidths, rates, strict=True))
    dims = tuple(replace(dim, bandwidth=achieved.get(dim.bandwidth, dim.bandwidth)) for dim in topology.dims)
    return replace(topology, bandwidths=tuple(distinct), bandwidth_class=classes, dims=dims)


def _exact(share: float) -> Fraction:
    return Fraction(share).limit_denominator(10**6)
