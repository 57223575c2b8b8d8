"""Routes of messages: from a table, or computed hop by hop on rings, tori and meshes.

A route is one number: if tabled, the next link << 32 | the end, both places in the table of links; if computed, the
current NPU << 32 | the destination.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import blocks, records, table

_LOW = np.int64(0xFFFFFFFF)


@lean
def route_number(state, source, target):
    """Return the number of the route between two NPUs."""
    low, high = table.longs(state)[state.route_first + source], table.longs(state)[state.route_first + source + 1]
    while low < high:
        middle = (low + high) >> 1
        if table.route_targets(state)[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@lean
def set_out(state, e, block, node):
    """Set the route of a node's message; returns its number of links."""
    event, row = table.events(state, e), table.blocks(state, block)
    source, target = (
        table.ranks(state, row.rank).npu,
        table.ranks(state, blocks.rank_at(state, block, blocks.peer_of(state, block, node))).npu,
    )
    event.tail = state.now
    if state.computed:
        event.route = (source << 32) | target
        return computed_hops(state, event.route)
    number = route_number(state, source, target)
    place = state.route_ptr + number
    event.route = (table.longs(state)[place] << 32) | table.longs(state)[place + 1]
    if state.model == records.ANALYTICAL:
        event.tail = number
    return table.longs(state)[place + 1] - table.longs(state)[place]


@lean
def computed_step(state, npu, target):
    """Return the next hop's dimension (the lowest in which two NPUs differ), 0 up or 1 down, size and weight."""
    weight = np.int64(1)
    for d in range(state.dims):
        size = np.int64(table.ints(state)[state.shape + d])
        a, b = npu // weight % size, target // weight % size
        if a != b:
            up, down = b - a, a - b
            if table.ints(state)[state.wraps + d]:
                up, down = up % size, down % size
                return np.int64(d), np.int64(0 if up <= down else 1), size, weight
            return np.int64(d), np.int64(0 if up > 0 else 1), size, weight
        weight *= size
    return np.int64(0), np.int64(0), np.int64(1), np.int64(1)


@inlined
def next_link(state, route):
    """Return the next link of a route."""
    if state.computed:
        return computed_link(state, route)
    return np.int64(table.path(state)[route >> 32])


@lean
def computed_link(state, route):
    """Return the next link of a computed route."""
    npu = route >> 32
    d, down, _, _ = computed_step(state, npu, route & _LOW)
    return np.int64(table.ints(state)[state.steps + 2 * (npu * state.dims + d) + down])


@inlined
def after_hop(state, route):
    """Drop the first link of a route."""
    if state.computed:
        return computed_after_hop(state, route)
    return route + (np.int64(1) << 32)


@lean
def computed_after_hop(state, route):
    """Drop the first link of a computed route."""
    npu, target = route >> 32, route & _LOW
    _, down, size, weight = computed_step(state, npu, target)
    digit = npu // weight % size
    moved = (digit + size - 1) % size if down else (digit + 1) % size
    return ((npu + (moved - digit) * weight) << 32) | target


@lean
def computed_hops(state, route):
    """Count the links of a computed route."""
    npu, target, hops = route >> 32, route & _LOW, np.int64(0)
    for d in range(state.dims):
        size = np.int64(table.ints(state)[state.shape + d])
        up, down = target % size - npu % size, npu % size - target % size
        hops += min(up % size, down % size) if table.ints(state)[state.wraps + d] else max(up, down)
        npu //= size
        target //= size
    return hops


@inlined
def at_end(route):
    """Whether a route has no link left."""
    return (route >> 32) == (route & _LOW)
