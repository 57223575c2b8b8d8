"""Routes of messages: from a table, or computed hop by hop on rings, tori and meshes.

A route is one number: if tabled, the next link << 32 | the end, both places in the table of links; if computed, the
current NPU << 32 | the destination.
"""

import numpy as np

from astrasim_py.core.jit import inlined, lean, optional
from astrasim_py.engine.compiled import blocks, records, table

_LOW = np.int64(0xFFFFFFFF)

next_queue_pair = optional("astrasim_py.dialects.queue_pairs.kernel:next_queue_pair")


@lean
def route_number(state, source, target):
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
    if state.qps > 1:
        number = next_queue_pair(state, number)
    place = state.route_ptr + number
    event.route = (table.longs(state)[place] << 32) | table.longs(state)[place + 1]
    if state.model == records.ANALYTICAL:
        event.tail = number
    elif state.model == records.FLUID:
        event.route = number
    return table.longs(state)[place + 1] - table.longs(state)[place]


@inlined
def first_hop(state, route):
    """Return the first link of a route, and the rest of the route."""
    if state.computed:
        return computed_hop(state, route)
    return np.int64(table.path(state)[route >> 32]), route + (np.int64(1) << 32)


@lean
def computed_hop(state, route):
    """Return the first link of a computed route, in the lowest dimension in which the NPUs differ, and the rest."""
    npu, target, d, weight = route >> 32, route & _LOW, np.int64(0), np.int64(1)
    size = np.int64(table.ints(state)[state.shape])
    while npu // weight % size == target // weight % size:
        d, weight = d + 1, weight * size
        size = np.int64(table.ints(state)[state.shape + d])
    a, b = npu // weight % size, target // weight % size
    down = (b - a) % size > (a - b) % size if table.ints(state)[state.wraps + d] else b < a
    link = np.int64(table.ints(state)[state.steps + 2 * (npu * state.dims + d) + down])
    moved = (a + (size - 1 if down else 1)) % size
    return link, ((npu + (moved - a) * weight) << 32) | target


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
    return (route >> 32) == (route & _LOW)
