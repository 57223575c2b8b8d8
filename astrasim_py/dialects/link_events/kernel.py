"""Links that fail, change and return during a run, under the network model ``fluid``.

An event of the topology comes before all else at its time. It is applied step by step: `change` takes the flows off
their links that have lost one, one flow a step, so that there is room for their hops; the last step changes the links,
and lets flows that had no path look for one.
"""

import numpy as np

from astrasim_py.core import wide
from astrasim_py.core.jit import lean
from astrasim_py.dialects.fluid import kernel as fluid
from astrasim_py.dialects.fluid import kernel_ends as ends
from astrasim_py.dialects.fluid import kernel_paths as paths
from astrasim_py.dialects.fluid import kernel_rates as rates
from astrasim_py.engine.compiled import events, records, table


@lean
def next_change(state):
    return table.changes(state, state.changes + records.CHANGE_WORDS * state.change_next)


@lean
def begin_change(state, time):
    """Begin to apply the next event of the topology; returns whether it is its turn.

    `time`: the next time (ps) at which anything else happens; -1: nothing does.
    """
    if state.change_next == state.change_count or (state.background and state.foreground == 0):
        return False
    at = np.int64(next_change(state).time)
    if at > time if time >= 0 else not state.cut_count:
        return False
    if state.max_time >= 0 and at > state.max_time:
        events.fail(state, records.TOO_LATE)
    else:
        fluid.advance_queue(state, at)
        state.changing = 1
    return True


@lean
def change(state):
    """Apply an event of the topology that has begun, up to the next flow that has lost a link; False: none has."""
    if not state.changing:
        return False
    capacity = next_change(state).capacity
    for number in range(state.changing - 1, state.flow_count):
        flow, other = table.flows(state, number), table.reroutes(state, number)
        other.stale = np.int64(flow.message == 0)
        if flow.limit == 0:
            continue
        divide(state, number)
        count_rest(state, number, np.int64(-1))
        lost = False
        for place in range(flow.first, flow.last):
            lost |= table.longs(state)[capacity + rates.link_at(state, place)] == 0
        if lost:
            lose(state, number)
            state.changing = number + 2
            return True
    change_links(state)
    state.changing = 0
    fluid.join_ends(state, np.int64(state.now))
    return True


@lean
def divide(state, number):
    """Split the work of a message at a change of its cap."""
    flow, other = table.flows(state, number), table.reroutes(state, number)
    high, low = np.uint64(flow.left_high), np.uint64(flow.left_low)
    done_high, done_low = wide.product(np.int64(flow.rate), state.now - flow.since)
    if done_high > high or (done_high == high and done_low > low):
        done_high, done_low = high, low
    high, low = wide.difference(high, low, done_high, done_low)
    cap = rates.cap_of(state, number)
    other.queued -= wide.divided_up(np.uint64(other.whole_high), np.uint64(other.whole_low), cap)
    other.queued += wide.divided_up(high, low, cap)
    flow.left_high, flow.left_low = np.int64(high), np.int64(low)
    other.whole_high, other.whole_low = flow.left_high, flow.left_low
    flow.since = state.now


@lean
def count_rest(state, number, sign):
    """Count what is left of a message on its links, or take it off."""
    flow, nbytes = table.flows(state, number), paths.bytes_left(state, number)
    for place in range(flow.first, flow.last):
        at = rates.link_at(state, place)
        link = table.links(state, at)
        link.bytes += sign * nbytes
        if state.record_links:
            link.busy += sign * paths.hold(state, at, nbytes)
        if link.bytes < 0 or link.busy < 0:
            events.fail(state, records.OVERFLOW)


@lean
def lose(state, number):
    """Remove a flow from its links, one of which failed; it is rerouted after the delay."""
    flow, other, now = table.flows(state, number), table.reroutes(state, number), state.now
    e = flow.message - 1
    event = table.events(state, e)
    for place in range(flow.first, flow.last):
        link = table.shared(state, rates.link_at(state, place))
        link.demand -= rates.whole(flow.limit)
        link.used -= flow.rate
        rates.take_off(state, link, place)
    other.queued += now - event.tail
    if state.record_messages:
        fluid.record_hops(state, number, e)
        table.message_rows(state, event.row).queued = other.queued
    event.tail = now
    flow.limit = 0
    flow.rate = 0
    flow.cap = 0
    flow.last = flow.first
    ends.remove(state, number)
    event.kind = records.RESUME
    events.push_checked(state, now + state.reroute_ps, e)


@lean
def change_links(state):
    """Links have other capacities and latencies from now on, and pairs other routes."""
    event = next_change(state)
    state.change_next += 1
    state.routes_now = event.routes
    for at in range(state.link_count):
        table.shared(state, at).capacity = table.longs(state)[event.capacity + at]
        table.links(state, at).latency = table.longs(state)[event.latency + at]
    state.altered = 1
    for number in range(state.flow_count):
        flow = table.flows(state, number)
        if flow.limit:
            paths.know_route(state, number)
            count_rest(state, number, np.int64(1))
            if rates.cap_of(state, number) != flow.limit:
                rates.touch(state, number)
    if not state.cut_count:
        return
    state.cut_count = 0
    for number in range(state.flow_count):
        other, flow = table.reroutes(state, number), table.flows(state, number)
        if other.cut:
            other.cut = 0
            if flow.message:
                look_for_route(state, number)
            else:
                e = flow.line - 1
                flow.line = np.int64(table.events(state, e).next) + 1
                fluid.begin(state, number, e)


@lean
def resume(state, e):
    """Reroute a message after the delay; False: the event is another one."""
    if table.events(state, e).kind != records.RESUME:
        return False
    look_for_route(state, np.int64(table.events(state, e).route))
    return True


@lean
def look_for_route(state, number):
    """Go on with the message of a flow over the route of now, if there is one."""
    flow = table.flows(state, number)
    paths.take_route(state, number)
    if flow.first == flow.last:
        paths.cut_off(state, number)
        return
    e = flow.message - 1
    paths.more_hops(state, e, flow.last - flow.first)
    fluid.enter(state, number, e, paths.bytes_left(state, number))
