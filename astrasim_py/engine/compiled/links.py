"""Links: reservation, waiting lines, and the hops of messages."""

import numpy as np

from astrasim_py.core.jit import lean, optional
from astrasim_py.engine.compiled import events, queue, records, table
from astrasim_py.engine.compiled.routes import at_end, first_hop

join_flow = optional("astrasim_py.dialects.fluid.kernel:join")
post = optional("astrasim_py.dialects.nic.kernel:post")


@lean
def carry(state):
    """Move a message: to its destination under the analytical model, else over its next link."""
    e = state.carried
    state.carried = -1
    event = table.events(state, e)
    if state.nic and not event.moved and event.kind != records.POST and not post(state, e):
        return
    if state.model == records.FLUID:
        join_flow(state, e)
        return
    injection = deliver_later(state, e) if state.model == records.ANALYTICAL else take_link(state, e)
    if state.injected and injection >= 0 and not event.asks:
        events.end_later(state, np.int64(event.block), np.int64(event.node), injection)


@lean
def deliver_later(state, e):
    """Schedule the delivery of a message under the analytical model; returns its injection time."""
    event, now = table.events(state, e), state.now
    left = event.route
    while not at_end(left):
        link, left = first_hop(state, left)
        hold = table.longs(state)[table.links(state, link).hold + event.size]
        free, nbytes = now + hold if hold >= 0 else queue.NONE, table.longs(state)[state.nbytes + event.size]
        reserve(state, link, now, now, free, nbytes, False)
    if state.record_messages:
        table.message_rows(state, event.row).start = now
    row, variant = table.blocks(state, event.block), np.int64(0)
    if row.flags & records.CONNECTED and not event.asks:
        variant = table.templates(state, row.template).variant
    place = (table.ints(state)[state.route_class + event.tail] * state.variants + variant) * state.sizes + event.size
    delivery, injection = table.longs(state)[state.delays + 2 * place], table.longs(state)[state.delays + 2 * place + 1]
    event.kind = records.DELIVER
    if delivery < 0 or injection < 0:
        events.fail(state, records.OVERFLOW)
    else:
        events.push_checked(state, now + delivery, e)
    return now + injection


@lean
def take_link(state, e):
    """Request the next link for the head of a message.

    Returns the injection time if this is the first link, else -1.
    """
    event, now = table.events(state, e), state.now
    number, route = first_hop(state, event.route)
    link, row = table.links(state, number), table.blocks(state, event.block)
    hold, latency, longer, interleaved, passes = link.hold, link.latency, np.int64(0), False, False
    nbytes = table.longs(state)[state.nbytes + event.size]
    if row.flags & records.CONNECTED and not event.asks:
        template = table.templates(state, row.template)
        longer = template.longer
        if template.costs >= 0:
            latency = table.longs(state)[template.costs + 2 * number]
            hold = table.longs(state)[template.costs + 2 * number + 1]
            # Messages of a library with a pace use links a little at a time.
            interleaved = template.pace >= 0
            if interleaved and nbytes == 0:
                passes = table.ints(state)[template.connections + 2 * template.nodes + event.node] < 0
    hold = table.longs(state)[hold + event.size]
    if hold < 0:
        events.fail(state, records.OVERFLOW)
        return queue.NONE
    requested, start = now, now if passes else max(link.free, now)
    # Under event_order ``scheduled`` messages wait in a line per link.
    lined, was_freed = state.model == records.STORE_AND_FORWARD and state.scheduled != 0, event.kind == records.FREED
    fed = event.moved != 0 and event.tail > hold
    if lined:
        if was_freed:
            requested, start, fed = event.tail, now, event.fed != 0
        elif link.line >= 0 or not is_free(state, number):
            event.fed = np.int64(fed)
            wait_in_line(state, e, number)
            return queue.NONE
    end, held, latency = start + hold, start + hold, latency + longer
    if state.model == records.CUT_THROUGH:
        end = max(end, event.tail) if end >= 0 else end
        head, tail = start + latency, end + latency
        event.tail = tail
        fed = end > held
    else:
        tail = end + latency
        event.tail = hold
        if link.hop >= 0:
            hop = table.longs(state)[link.hop + event.size]
            tail = start + hop + longer
            if hop < 0:
                events.fail(state, records.OVERFLOW)
        head = tail
    if end < 0 or tail < 0 or head < 0:
        events.fail(state, records.OVERFLOW)
        return queue.NONE
    free = tail if state.hold_latency else end
    if interleaved:
        free, fed = tail if state.hold_latency else held, False
    if not passes:
        reserve(state, number, requested, start, free, nbytes, fed)
    elif state.record_links:
        link.messages += 1
    if state.record_messages:
        record_hop(state, e, number, requested, start, free)
    if state.scheduled:
        events.reschedule(state, e, start)
    injection = queue.NONE if event.moved else end
    event.route = route
    event.moved = 1
    arrived = at_end(route)
    event.kind = records.DELIVER if arrived else records.HOP
    queue.push(state, tail if arrived else head, e)
    if lined:
        state.schedulings += 1
        link.free_scheduled = now
        link.free_number = state.schedulings
        if was_freed and link.line >= 0:
            free_later(state, number)
    return injection


@lean
def reserve(state, number, requested, start, free, nbytes, fed):
    """Reserve a link from `start` to `free` for a message that requested it at `requested`.

    `fed`: whether a slower link feeds it meanwhile.
    """
    link = table.links(state, number)
    link.free = free
    link.bytes += nbytes
    if link.bytes < 0 or free < 0:
        events.fail(state, records.OVERFLOW)
    held_up = start > requested and link.fed != 0
    link.held_up += np.int64(held_up)
    link.fed = np.int64(fed or held_up)
    if not state.record_links:
        return
    link.messages += 1
    link.busy += free - start
    while link.first >= 0 and table.waits(state, link.first).start <= requested:
        first = link.first
        link.first = table.waits(state, first).next
        link.waiting -= 1
        queue.give_row(state, table.waits, records.WAITS, first)
    if start > requested:
        link.queued += start - requested
        waiting = queue.take_row(state, table.waits, records.WAITS)
        table.waits(state, waiting).start = start
        table.waits(state, waiting).next = -1
        if link.first >= 0:
            table.waits(state, link.last).next = waiting
        else:
            link.first = waiting
        link.last = waiting
        link.waiting += 1
        link.most_waiting = max(link.most_waiting, link.waiting)
    if link.busy < 0 or link.queued < 0:
        events.fail(state, records.OVERFLOW)


@lean
def record_hop(state, e, link, requested, start, free):
    event = table.events(state, e)
    message = table.message_rows(state, event.row)
    if not event.moved:
        message.start = start
    message.queued += start - requested
    row = table.hop_rows(state, state.hop_row_count)
    state.hop_row_count += 1
    row.message = event.row
    row.link = link
    row.requested = requested
    row.start = start
    row.end = free


@lean
def is_free(state, number):
    """Whether a link is free at the current event."""
    link = table.links(state, number)
    if link.free != state.now:
        return link.free < state.now
    if link.free_scheduled != state.taken_scheduled:
        return link.free_scheduled < state.taken_scheduled
    return link.free_number <= state.taken_number


@lean
def wait_in_line(state, e, number):
    event, link = table.events(state, e), table.links(state, number)
    event.tail = state.now
    event.next = -1
    if link.line >= 0:
        table.events(state, link.line_last).next = e
    else:
        link.line = e
        free_later(state, number)
    link.line_last = e


@lean
def free_later(state, number):
    """Schedule the event at which a busy link becomes free."""
    e, link = events.new_event(state, records.FREED, np.int64(0), number), table.links(state, number)
    table.events(state, e).scheduled = link.free_scheduled
    table.events(state, e).number = link.free_number
    queue.push(state, link.free, e)
