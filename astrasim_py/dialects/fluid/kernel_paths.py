"""Routes of flows under ``fluid``, which events of the topology change, and what is known of their messages then."""

import numpy as np

from astrasim_py.core import wide
from astrasim_py.core.jit import lean
from astrasim_py.core.units import PS_PER_S
from astrasim_py.dialects.fluid.kernel_rates import MOST, link_at
from astrasim_py.engine.compiled import table

#: Work of one byte: rates are in units of 2^-16 bytes per second.
BYTE = np.int64(PS_PER_S << 16)


@lean
def take_route(state, number):
    """The messages of a flow take the route of now."""
    flow, at = table.flows(state, number), state.routes_now + number
    flow.first, flow.last = table.longs(state)[at], table.longs(state)[at + 1]
    know_route(state, number)


@lean
def know_route(state, number):
    """Set the cap of a flow and its latency, which are those of its route; its cap is 0 without one."""
    flow = table.flows(state, number)
    cap, latency = MOST, np.int64(flow.extra)
    for place in range(flow.first, flow.last):
        cap = min(cap, table.shared(state, link_at(state, place)).capacity)
        latency += table.links(state, link_at(state, place)).latency
    flow.cap = cap if flow.last > flow.first else 0
    flow.latency = latency


@lean
def hold(state, at, nbytes):
    """Time (ps) of a number of bytes alone on a link."""
    high, low = wide.product(nbytes, BYTE)
    return wide.divided_up(high, low, np.int64(table.shared(state, at).capacity))


@lean
def bytes_left(state, number):
    flow = table.flows(state, number)
    return wide.divided_up(np.uint64(flow.left_high), np.uint64(flow.left_low), BYTE)


@lean
def more_hops(state, e, count):
    """Count the links that a message takes beyond those of its first route."""
    state.hops += count
    if state.record_messages:
        table.message_rows(state, table.events(state, e).row).hops += count


@lean
def cut_off(state, number):
    """There is no path for a flow until the next event of the topology."""
    table.reroutes(state, number).cut = 1
    state.cut_count += 1


@lean
def may_begin(state, number, e):
    """Whether there is a path for the next message of a flow; if not, it waits for one at the head of its line."""
    flow, other, event = table.flows(state, number), table.reroutes(state, number), table.events(state, e)
    if other.stale:
        other.stale = 0
        take_route(state, number)
    if flow.first == flow.last:
        event.next = flow.line - 1
        if flow.line == 0:
            flow.line_last = e + 1
        flow.line = e + 1
        cut_off(state, number)
        return False
    high, low = wide.product(table.longs(state)[state.nbytes + event.size], BYTE)
    other.whole_high, other.whole_low = np.int64(high), np.int64(low)
    other.queued = 0
    as_written = state.route_ptr + number
    more_hops(state, e, flow.last - flow.first - table.longs(state)[as_written + 1] + table.longs(state)[as_written])
    return True
