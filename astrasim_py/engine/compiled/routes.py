"""Routes of messages: from a table, or computed hop by hop on rings, tori and meshes.

A route is one number: from a table the next link << 32 | the end, both as places in the table of links; computed the
present NPU << 32 | the destination.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled.blocks import peer_of, rank_at
from astrasim_py.engine.compiled.layout import *
from astrasim_py.engine.compiled.pools import plain, upper

_LOW = np.int64(0xFFFFFFFF)


@inlined
def route_number(h, nd, it, sl, R, B, pairs, block, node):
    """Number of the route of a node's message."""
    s = np.int64(B[block, B_SLICE])
    row = B[block, B_FIRST] + node
    if s < 0:
        return np.int64(nd[row, N_ROUTE])
    if sl[s, S_ROUTES] >= 0:
        column = nd[row, N_PEER] if sl[s, S_FLAGS] & F_ROTATED else nd[row, N_ROUTE]
        return np.int64(it[sl[s, S_ROUTES] + B[block, B_POSITION] * sl[s, S_DELTAS] + column])
    other = rank_at(it, B, block, peer_of(nd, it, sl, B, block, node))
    return number_of_pair(pairs, R[B[block, B_RANK], R_NPU] * h[H_NPUS] + R[other, R_NPU])


@lean
def number_of_pair(pairs, pair):
    """Number of the route between a pair of NPUs."""
    low, high = np.int64(0), np.int64(len(pairs))
    while low < high:
        middle = (low + high) >> 1
        if pairs[middle] < pair:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def set_out(h, nd, it, lg, sl, R, B, E, pairs, e, block, node, now):
    """Give a node's message its route, and return that."""
    number = np.int64(0)
    if h[H_COMPUTED]:
        other = rank_at(it, B, block, peer_of(nd, it, sl, B, block, node))
        route = (R[B[block, B_RANK], R_NPU] << 32) | R[other, R_NPU]
        if h[H_MODEL] == ANALYTICAL:
            number = route_number(h, nd, it, sl, R, B, pairs, block, node)
    else:
        number = route_number(h, nd, it, sl, R, B, pairs, block, node)
        place = h[H_ROUTE_PTR] + number
        route = (lg[place] << 32) | lg[place + 1]
    E[e, E_TAIL] = number if h[H_MODEL] == ANALYTICAL else now
    E[e, E_ROUTE] = route
    return route


@lean
def step(h, it, npu, target):
    """The dimension of the next hop (the lowest in which two NPUs differ), 0 up or 1 down, size and weight."""
    weight = np.int64(1)
    for d in range(h[H_NDIMS]):
        size = np.int64(it[h[H_SHAPE] + d])
        a, b = npu // weight % size, target // weight % size
        if a != b:
            up, down = b - a, a - b
            if it[h[H_WRAPS] + d]:
                up, down = up % size, down % size
                return np.int64(d), np.int64(0 if up <= down else 1), size, weight
            return np.int64(d), np.int64(0 if up > 0 else 1), size, weight
        weight *= size
    return np.int64(0), np.int64(0), np.int64(1), np.int64(1)


@inlined
def link_at(h, it, path, route):
    """The next link of a route."""
    if h[H_COMPUTED]:
        return link_computed(h, it, route)
    return plain(path[upper(route)])


@lean
def link_computed(h, it, route):
    """The same where routes are computed."""
    npu = route >> 32
    d, down, _, _ = step(h, it, npu, route & _LOW)
    return np.int64(it[h[H_STEPS] + 2 * (npu * h[H_NDIMS] + d) + down])


@inlined
def after_hop(h, it, route):
    """What is left of a route after its next link."""
    if not h[H_COMPUTED]:
        return route + (np.int64(1) << 32)
    return after_computed(h, it, route)


@lean
def after_computed(h, it, route):
    """The same where routes are computed."""
    npu, target = route >> 32, route & _LOW
    _, down, size, weight = step(h, it, npu, target)
    digit = npu // weight % size
    moved = (digit + size - 1) % size if down else (digit + 1) % size
    return ((npu + (moved - digit) * weight) << 32) | target


@inlined
def at_end(route):
    """Whether a route has no link left."""
    return (route >> 32) == (route & _LOW)


@inlined
def hops_of(h, it, route):
    """Links of a route."""
    if not h[H_COMPUTED]:
        return (route & _LOW) - (route >> 32)
    return hops_computed(h, it, route)


@lean
def hops_computed(h, it, route):
    """The same where routes are computed."""
    npu, target, hops = route >> 32, route & _LOW, np.int64(0)
    for d in range(h[H_NDIMS]):
        size = np.int64(it[h[H_SHAPE] + d])
        up, down = target % size - npu % size, npu % size - target % size
        hops += min(up % size, down % size) if it[h[H_WRAPS] + d] else max(up, down)
        npu //= size
        target //= size
    return hops
