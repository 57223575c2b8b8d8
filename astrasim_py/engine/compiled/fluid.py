"""The network model ``fluid``: flows that share links, by pair of NPUs, and when their messages end.

A flow is the number of its route. Its rate changes once per instant at most, when nothing else is left to do at it.
A link keeps a list of the flows that use it, through the places of their routes in `path`.
"""

import numpy as np

from astrasim_py.core import heap, wide
from astrasim_py.core.jit import inlined, lean, optional
from astrasim_py.core.units import PS_PER_S
from astrasim_py.engine.compiled import events, queue, records, table

#: Work of one byte: rates are in units of 2^-16 bytes per second.
BYTE = np.int64(PS_PER_S << 16)
MOST = np.int64(2**63 - 1)


@inlined
def route_of(state, number):
    """The first place of a route, and the one after its last."""
    at = state.route_ptr + number
    return table.longs(state)[at], table.longs(state)[at + 1]


@inlined
def link_at(state, place):
    return np.int64(table.path(state)[place])


@inlined
def whole(rate):
    """A rate in whole bytes per second, rounded up."""
    return (rate + 65535) >> 16


@inlined
def quotient_up(a, b):
    return a // b + np.int64(a % b != 0) if a > 0 else np.int64(0)


@inlined
def is_tight(link):
    return link.demand > link.capacity >> 16


# -- messages -----------------------------------------------------------------------------------------------------


@optional
def join(state, e):
    """A message is to leave: now, or after those of its pair that were issued before it."""
    event = table.events(state, e)
    number = np.int64(event.route)
    flow = table.flows(state, number)
    event.tail = state.now
    if flow.cap == 0:
        flow.cap = MOST
        first, last = route_of(state, number)
        for place in range(first, last):
            flow.cap = min(flow.cap, table.shared(state, link_at(state, place)).capacity)
            flow.latency += table.links(state, link_at(state, place)).latency
    if flow.message == 0:
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
    event, flow, now = table.events(state, e), table.flows(state, number), state.now
    nbytes = table.longs(state)[state.nbytes + event.size]
    high, low = wide.product(nbytes, BYTE)
    flow.message = e + 1
    flow.left_high, flow.left_low = np.int64(high), np.int64(low)
    flow.since = now
    flow.begun = now
    first, last = route_of(state, number)
    for place in range(first, last):
        link = table.links(state, link_at(state, place))
        link.bytes += nbytes
        if state.record_links:
            hold = table.longs(state)[link.hold + event.size]
            link.messages += 1
            link.busy += hold
            if hold < 0 or link.busy < 0:
                events.fail(state, records.OVERFLOW)
        if link.bytes < 0:
            events.fail(state, records.OVERFLOW)
    if state.record_messages:
        table.message_rows(state, event.row).start = now
    event.kind = records.LEAVE
    if nbytes:
        touch(state, number)
    else:
        queue.push(state, now, e)


@optional
def leave(state, e):
    """The last byte of a message leaves its sender."""
    event, now = table.events(state, e), state.now
    number = np.int64(event.route)
    flow, row = table.flows(state, number), table.blocks(state, event.block)
    first, last = route_of(state, number)
    if state.record_messages:
        message = table.message_rows(state, event.row)
        high, low = wide.product(table.longs(state)[state.nbytes + event.size], BYTE)
        message.queued = now - event.tail - wide.divided_up(high, low, cap_of(state, number))
        for place in range(first, last):
            hop = table.hop_rows(state, state.hop_row_count)
            state.hop_row_count += 1
            hop.message = event.row
            hop.link = link_at(state, place)
            hop.requested = event.tail
            hop.start = flow.begun
            hop.end = now
    latency = np.int64(flow.latency)
    if row.flags & records.PACED and not event.asks:
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
def cap_of(state, number):
    """The most that the message of a flow gets: its route's capacity, or its connection's pace; 0: there is none."""
    flow = table.flows(state, number)
    if flow.message == 0:
        return np.int64(0)
    event = table.events(state, flow.message - 1)
    row = table.blocks(state, event.block)
    if row.flags & records.PACED and not event.asks:
        pace = table.templates(state, row.template).pace_units
        if pace:
            return min(flow.cap, pace)
    return np.int64(flow.cap)


@lean
def touch(state, number):
    """Look at a flow when rates are set at the end of this instant."""
    flow = table.flows(state, number)
    if not flow.touched:
        flow.touched = 1
        flow.next = state.touched
        state.touched = number + 1


# -- rates --------------------------------------------------------------------------------------------------------


@optional
def settle(state):
    """Set the rates from this instant on."""
    first = state.touched
    state.touched = 0
    state.crossed_count = 0
    state.taken_count = 0
    least = min(note_changes(state, first), change_links(state, first))
    collect(state, first, least - (least >> 20))
    fill(state)
    for i in range(state.taken_count):
        number = table.taken(state, 0)[i].item
        flow = table.flows(state, number)
        flow.taken = 0
        if flow.next_rate != flow.rate:
            set_rate(state, number, np.int64(flow.next_rate))
    while first:
        number = first - 1
        flow = table.flows(state, number)
        first = flow.next
        if flow.touched and flow.message:
            set_rate(state, number, np.int64(flow.rate))
        flow.touched = 0


@lean
def note_changes(state, first):
    """List the links of flows that change; returns the least rate of these that a link held up, or could."""
    least = MOST
    while first:
        number = first - 1
        flow = table.flows(state, number)
        first = flow.next
        flow.wanted = cap_of(state, number)
        if flow.wanted == flow.limit:
            continue
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            at = link_at(state, place)
            link = table.shared(state, at)
            if not link.seen:
                see(state, at)
                link.held = np.int64(is_tight(link))
            if link.held and flow.rate:
                least = min(least, flow.rate)
    return least


@lean
def see(state, at):
    """List a link."""
    table.shared(state, at).seen = 1
    table.crossed(state)[state.crossed_count] = at
    state.crossed_count += 1


@lean
def change_links(state, first):
    """Enter flows that begin on their links, and take off those that stop; returns the least equal share of the new."""
    following = first
    while following:
        number = following - 1
        flow = table.flows(state, number)
        following = flow.next
        flow.changed = np.int64(flow.wanted != flow.limit)
        if not flow.changed:
            continue
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            link = table.shared(state, link_at(state, place))
            link.demand += whole(flow.wanted) - whole(flow.limit)
            if flow.limit == 0:
                enter(state, link, place, number)
            elif flow.wanted == 0:
                take_off(state, link, place)
        flow.limit = flow.wanted
        if flow.wanted == 0:
            flow.rate = 0
    least = MOST
    while first:
        number = first - 1
        flow = table.flows(state, number)
        first = flow.next
        if not flow.changed or flow.limit == 0:
            continue
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            at = link_at(state, place)
            link, counted = table.shared(state, at), table.links(state, at)
            if is_tight(link):
                least = min(least, quotient_up(link.capacity, link.count))
            counted.most_waiting = max(counted.most_waiting, link.count - 1)
    return least


@lean
def enter(state, link, place, number):
    """Put a flow on the list of a link."""
    use = table.uses(state, place)
    use.flow = number
    use.behind = 0
    use.next = link.first
    if link.first:
        table.uses(state, link.first - 1).behind = place + 1
    link.first = place + 1
    link.count += 1


@lean
def take_off(state, link, place):
    """Take a flow off the list of a link."""
    use = table.uses(state, place)
    if use.behind:
        table.uses(state, use.behind - 1).next = use.next
    else:
        link.first = use.next
    if use.next:
        table.uses(state, use.next - 1).behind = use.behind
    link.count -= 1


@lean
def take(state, number):
    """List a flow whose rate is to be found."""
    flow = table.flows(state, number)
    flow.taken = 1
    heap.place(table.taken(state, 0), state.taken_count, np.int64(flow.limit), np.int64(0), number)
    state.taken_count += 1


@lean
def collect(state, first, kept):
    """List the flows whose rates may change, and the links that may hold them up.

    Flows slower than `kept` keep their rates: their links are full before any is that has changed.
    """
    while first:
        number = first - 1
        flow = table.flows(state, number)
        first = flow.next
        if not flow.changed or flow.limit == 0:
            continue
        tight = False
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            tight |= is_tight(table.shared(state, link_at(state, place)))
        if tight:
            take(state, number)
        else:
            set_rate(state, number, np.int64(flow.limit))
    i = np.int64(0)
    active = np.int64(0)
    while i < state.crossed_count:
        at = table.crossed(state)[i]
        i += 1
        link = table.shared(state, at)
        tight = is_tight(link)
        if not link.held and not tight:
            continue
        use = link.first
        while use:
            other = np.int64(table.uses(state, use - 1).flow)
            use = table.uses(state, use - 1).next
            flow = table.flows(state, other)
            if flow.taken or flow.rate < kept:
                continue
            take(state, other)
            begin_place, end_place = route_of(state, other)
            for place in range(begin_place, end_place):
                near = link_at(state, place)
                if not table.shared(state, near).seen and is_tight(table.shared(state, near)):
                    see(state, near)
    for i in range(state.crossed_count):
        at = table.crossed(state)[i]
        link = table.shared(state, at)
        link.seen = 0
        link.held = 0
        if is_tight(link):
            count_open(state, link)
            table.crossed(state)[active] = at
            active += 1
    state.crossed_count = active


@lean
def count_open(state, link):
    """What is left of a link, and how many flows are to share it."""
    link.rest = link.capacity
    link.growing = 0
    link.dirty = 1
    use = link.first
    while use:
        flow = table.flows(state, np.int64(table.uses(state, use - 1).flow))
        use = table.uses(state, use - 1).next
        if flow.taken:
            link.growing += 1
        else:
            link.rest -= flow.rate


@lean
def fill(state):
    """Find the rates of listed flows: the level rises, and flows stop at their caps and on links that are full."""
    left, at, level = state.taken_count, np.int64(0), np.int64(1)
    taken, crossed = table.taken(state, 0), table.crossed(state)
    for i in range(1, left):
        if taken[i].key < taken[i - 1].key:
            heap.sort(taken, left)
            break
    count, total = state.crossed_count, left
    while left:
        least, open_links = MOST, np.int64(0)
        for i in range(count):
            number = crossed[i]
            link = table.shared(state, number)
            if link.growing == 0:
                continue
            if link.dirty:
                link.dirty = 0
                link.share = quotient_up(link.rest, link.growing)
            least = min(least, link.share)
            crossed[open_links] = number
            open_links += 1
        count = open_links
        while table.flows(state, taken[at].item).taken == 2:
            at += 1
        level = max(level, min(least, taken[at].key))
        for i in range(count):
            link = table.shared(state, crossed[i])
            if link.share <= level:
                use = link.first
                while use:
                    number = np.int64(table.uses(state, use - 1).flow)
                    use = table.uses(state, use - 1).next
                    if table.flows(state, number).taken == 1:
                        stop(state, number, level)
                        left -= 1
        while at < total and taken[at].key <= level:
            if table.flows(state, taken[at].item).taken == 1:
                stop(state, taken[at].item, level)
                left -= 1
            at += 1


@lean
def stop(state, number, level):
    """A flow gets no faster than the level."""
    flow = table.flows(state, number)
    flow.taken = 2
    flow.next_rate = min(level, flow.limit)
    first, last = route_of(state, number)
    for place in range(first, last):
        link = table.shared(state, link_at(state, place))
        link.rest -= flow.next_rate
        link.growing -= 1
        link.dirty = 1


@lean
def set_rate(state, number, rate):
    """A flow has a rate from now on, which says when its message ends."""
    flow, now = table.flows(state, number), state.now
    high, low = np.uint64(flow.left_high), np.uint64(flow.left_low)
    if flow.rate and now > flow.since:
        done_high, done_low = wide.product(np.int64(flow.rate), now - flow.since)
        high, low = wide.difference(high, low, done_high, done_low)
        flow.left_high, flow.left_low = np.int64(high), np.int64(low)
    flow.since = now
    flow.rate = rate
    flow.touched = 0
    takes = wide.divided_up(high, low, rate)
    end = now + takes if takes >= 0 and now + takes > 0 else MOST
    schedule(state, number, end, np.int64(table.events(state, flow.message - 1).number))


# -- ends ---------------------------------------------------------------------------------------------------------


@lean
def put(state, at, key, tie, number):
    """Write an entry of the heap of ends."""
    heap.place(table.ends(state, 0), at, key, tie, number)
    table.flows(state, number).place = at + 1


@lean
def schedule(state, number, key, tie):
    """The message of a flow ends at a time: enter or move it in the heap."""
    ends, at = table.ends(state, 0), table.flows(state, number).place - 1
    if at < 0:
        at = state.end_count
        state.end_count += 1
    while at > 0:
        parent = ends[(at - 1) >> 1]
        if not heap.precedes(key, tie, parent.key, parent.tie):
            break
        put(state, at, parent.key, parent.tie, parent.item)
        at = (at - 1) >> 1
    sink(state, at, key, tie, number)


@lean
def sink(state, at, key, tie, number):
    """Put an entry at a place of the heap or below it."""
    ends, count = table.ends(state, 0), state.end_count
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count:
            left, right = ends[child], ends[child + 1]
            child += np.int64(heap.precedes(right.key, right.tie, left.key, left.tie))
        lower = ends[child]
        if not heap.precedes(lower.key, lower.tie, key, tie):
            break
        put(state, at, lower.key, lower.tie, lower.item)
        at = child
    put(state, at, key, tie, number)


@optional
def next_time(state):
    """The next time (ps) at which an event happens or a message ends; there is one that ends."""
    time, end = queue.next_time(state), table.ends(state, 0)[0].key
    return end if time < 0 else min(time, end)


@optional
def advance_time(state, time):
    """Advance to a time; the messages that end at it join its events."""
    ends = table.ends(state, 0)
    if state.time_count and table.times(state, 0)[0].key == time:
        queue.advance_time(state)
    else:
        state.now = time
        state.current = -1
    if time == MOST:
        events.fail(state, records.OVERFLOW)
    first, last = queue.NONE, queue.NONE
    while state.end_count and ends[0].key == time:
        flow = table.flows(state, ends[0].item)
        flow.place = 0
        state.end_count -= 1
        end = ends[state.end_count]
        if state.end_count:
            sink(state, np.int64(0), np.int64(end.key), np.int64(end.tie), np.int64(end.item))
        e = flow.message - 1
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
