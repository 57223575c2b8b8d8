"""The network model ``fluid``: flows that share links, and the ends of their messages.

A flow is the number of a route: a pair of NPUs with messages that leave one after the other.
"""

import numpy as np

from astrasim_py.core import wide
from astrasim_py.core.jit import lean
from astrasim_py.dialects.fluid import kernel_ends as ends
from astrasim_py.dialects.fluid import kernel_paths as paths
from astrasim_py.dialects.fluid.kernel_paths import BYTE
from astrasim_py.dialects.fluid.kernel_rates import MOST, cap_of, link_at, route_of, touch
from astrasim_py.engine.compiled import events, queue, records, table


@lean
def join(state, e):
    """A message is to leave: now, or after those of its pair that were issued before it."""
    event = table.events(state, e)
    number = np.int64(event.route)
    flow = table.flows(state, number)
    event.tail = state.now
    if flow.cap == 0 and flow.message == 0:
        paths.take_route(state, number)
    if flow.message == 0 and not (state.change_count and table.reroutes(state, number).cut):
        begin(state, number, e)
        return
    event.next = -1
    if flow.line == 0:
        flow.line = e + 1
        flow.line_last = e + 1
    elif event.number > table.events(state, flow.line_last - 1).number:
        table.events(state, flow.line_last - 1).next = e
        flow.line_last = e + 1
    elif event.number < table.events(state, flow.line - 1).number:
        event.next = flow.line - 1
        flow.line = e + 1
    else:
        before = flow.line - 1
        after = np.int64(table.events(state, before).next)
        while table.events(state, after).number < event.number:
            before = after
            after = np.int64(table.events(state, before).next)
        event.next = after
        table.events(state, before).next = e


@lean
def begin(state, number, e):
    """It is the turn of a message."""
    if state.change_count and not paths.may_begin(state, number, e):
        return
    event, flow = table.events(state, e), table.flows(state, number)
    nbytes = table.longs(state)[state.nbytes + event.size]
    high, low = wide.product(nbytes, BYTE)
    flow.message = e + 1
    flow.left_high, flow.left_low = np.int64(high), np.int64(low)
    if state.record_messages:
        table.message_rows(state, event.row).start = state.now
    enter(state, number, e, nbytes)


@lean
def enter(state, number, e, nbytes):
    """Begin to move a number of a message's bytes over its links."""
    event, flow, now = table.events(state, e), table.flows(state, number), state.now
    flow.since = now
    flow.begun = now
    first, last = route_of(state, number)
    for place in range(first, last):
        at = link_at(state, place)
        link = table.links(state, at)
        link.bytes += nbytes
        if state.record_links:
            if state.change_count:
                hold = paths.hold(state, at, nbytes)
            else:
                hold = table.longs(state)[link.hold + event.size]
            link.messages += 1
            link.busy += hold
            if hold < 0 or link.busy < 0:
                events.fail(state, records.OVERFLOW)
        if link.bytes < 0:
            events.fail(state, records.OVERFLOW)
    event.kind = records.LEAVE
    if nbytes:
        touch(state, number)
    else:
        queue.push(state, now, e)


@lean
def leave(state, e):
    """The last byte of a message leaves its sender."""
    event, now = table.events(state, e), state.now
    number = np.int64(event.route)
    flow, row = table.flows(state, number), table.blocks(state, event.block)
    first, last = route_of(state, number)
    if state.record_messages:
        record_hops(state, number, e)
        high, low = wide.product(table.longs(state)[state.nbytes + event.size], BYTE)
        earlier = np.int64(0)
        if state.change_count:
            other = table.reroutes(state, number)
            high, low, earlier = np.uint64(other.whole_high), np.uint64(other.whole_low), np.int64(other.queued)
        alone = wide.divided_up(high, low, cap_of(state, number))
        table.message_rows(state, event.row).queued = now - event.tail - alone + earlier
    latency = np.int64(flow.latency)
    if row.flags & records.CONNECTED and not event.asks:
        latency += (last - first) * table.templates(state, row.template).longer
    flow.message = 0
    event.kind = records.DELIVER
    if state.injected and not event.asks:
        events.complete_next(state, np.int64(event.block), np.int64(event.node), queue.NONE)
    events.push_checked(state, now + latency, e)
    if flow.line:
        following = flow.line - 1
        flow.line = np.int64(table.events(state, following).next) + 1
        begin(state, number, following)
    else:
        touch(state, number)


@lean
def record_hops(state, number, e):
    """Record the hops of a message that leaves its links."""
    event, flow = table.events(state, e), table.flows(state, number)
    for place in range(flow.first, flow.last):
        hop = table.hop_rows(state, state.hop_row_count)
        state.hop_row_count += 1
        hop.message = event.row
        hop.link = link_at(state, place)
        hop.requested = event.tail
        hop.start = flow.begun
        hop.end = state.now


@lean
def next_time(state):
    """The next time (ps) at which an event happens or a message ends; there is one that ends."""
    time, end = queue.next_time(state), table.ends(state, 0)[0].key
    return end if time < 0 else min(time, end)


@lean
def advance_time(state, time):
    """Advance to a time; the messages that end at it join its events."""
    advance_queue(state, time)
    join_ends(state, time)


@lean
def advance_queue(state, time):
    """Advance to a time and the events of the queue at it."""
    if state.time_count and table.times(state, 0)[0].key == time:
        queue.advance_time(state)
    else:
        state.now = time
        state.current = -1
    if time == MOST:
        events.fail(state, records.OVERFLOW)


@lean
def join_ends(state, time):
    """The messages that end at this time join its events."""
    first, last = queue.NONE, queue.NONE
    while state.end_count and table.ends(state, 0)[0].key == time:
        e = table.flows(state, ends.take_first(state)).message - 1
        table.events(state, e).next = -1
        if last < 0:
            first = e
        else:
            table.events(state, last).next = e
        last = e
    if first < 0:
        return
    if state.current < 0:
        state.current, state.current_last = first, last
        return
    before = np.int64(state.current_last)
    table.events(state, before).next = first
    if queue.before(state, first, before):
        state.current, state.current_last = queue.sort_events(state, np.int64(state.current))
    else:
        state.current_last = last
