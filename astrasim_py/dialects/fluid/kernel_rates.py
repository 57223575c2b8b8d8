"""Max-min fair rates of flows, under ``fluid``: set once per instant, by raising all flows that may change together.

A flow is the number of its route. A link keeps a list of its flows, through the places of their routes in `path`, and
the sum of their rates. A link is tight if its flows could use more than it has. The list of a tight link descends by
rate, so that flows that keep theirs are not looked at, unless it is *loose*.
"""

import numpy as np

from astrasim_py.core import heap, wide
from astrasim_py.core.jit import inlined, lean
from astrasim_py.dialects.fluid import kernel_ends as ends
from astrasim_py.engine.compiled import events, records, table

MOST = np.int64(2**63 - 1)


@inlined
def route_of(state, number):
    """The first place of the route of a flow, and the one after its last."""
    flow = table.flows(state, number)
    return np.int64(flow.first), np.int64(flow.last)


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


@lean
def cap_of(state, number):
    """The most that the message of a flow gets: its route's capacity, or its connection's pace; 0: there is none."""
    flow = table.flows(state, number)
    if flow.message == 0:
        return np.int64(0)
    event = table.events(state, flow.message - 1)
    row = table.blocks(state, event.block)
    if row.flags & records.CONNECTED and not event.asks:
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


# -- changes ------------------------------------------------------------------------------------------------------


@lean
def settle(state):
    """Set the rates from this instant on."""
    first = state.touched
    state.touched = 0
    state.crossed_count = 0
    state.taken_count = 0
    if state.altered:
        see_all(state)
    changed, held = note_changes(state, first)
    least = min(held, change_links(state, changed))
    if state.altered:
        state.altered, least = 0, np.int64(0)
    state.kept = least - (least >> 20)
    collect(state)
    fill(state)
    for i in range(state.taken_count):
        number = table.taken(state, 0)[i].item
        flow = table.flows(state, number)
        flow.taken = 0
        if flow.next_rate != flow.rate or flow.begun == state.now:
            set_rate(state, number, np.int64(flow.next_rate))


@lean
def note_changes(state, first):
    """List the flows with changed limits, and their links.

    Returns the first of these flows, and the least of their rates that a link limited.
    """
    changed, least = np.int64(0), MOST
    while first:
        number = first - 1
        flow = table.flows(state, number)
        first = flow.next
        flow.touched = 0
        flow.wanted = cap_of(state, number)
        if flow.wanted == flow.limit:
            if flow.message:
                set_rate(state, number, np.int64(flow.rate))
            continue
        flow.next = changed
        changed = number + 1
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            link = see(state, link_at(state, place))
            if link.held and flow.rate:
                least = min(least, flow.rate)
    return changed, least


@lean
def links_changed(state):
    """Whether an event has changed links since rates were last set."""
    return state.altered


@lean
def see_all(state):
    """List all links, which an event of the topology may have changed."""
    for at in range(state.link_count):
        see(state, np.int64(at)).held = 1


@inlined
def see(state, at):
    """List a link, if it is not listed, and return it; `held`: whether it was tight before any change."""
    link = table.shared(state, at)
    if not link.seen:
        link.seen = 1
        link.held = np.int64(is_tight(link))
        table.crossed(state)[state.crossed_count] = at
        state.crossed_count += 1
        open_link(link)
    return link


@inlined
def open_link(link):
    """No flow of a link is to grow yet."""
    link.rest = link.capacity - link.used
    link.growing = 0


@lean
def change_links(state, changed):
    """Enter flows that begin on their links, take off those that stop, and list those that begin.

    Returns the least equal share of a link that the latter use.
    """
    following = changed
    while following:
        number = following - 1
        flow = table.flows(state, number)
        following = flow.next
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            link = table.shared(state, link_at(state, place))
            link.demand += whole(flow.wanted) - whole(flow.limit)
            if link.demand < 0:
                events.fail(state, records.OVERFLOW)
            if flow.limit == 0:
                enter(state, link, place, number)
            elif flow.wanted == 0:
                link.used -= flow.rate
                take_off(state, link, place)
        flow.limit = flow.wanted
        if flow.wanted == 0:
            flow.rate = 0
    for i in range(state.crossed_count):
        open_link(table.shared(state, np.int64(table.crossed(state)[i])))
    least = MOST
    while changed:
        number = changed - 1
        flow = table.flows(state, number)
        changed = flow.next
        if flow.limit == 0:
            continue
        tight = False
        begin_place, end_place = route_of(state, number)
        for place in range(begin_place, end_place):
            at = link_at(state, place)
            link, counted = table.shared(state, at), table.links(state, at)
            counted.most_waiting = max(counted.most_waiting, link.count - 1)
            if is_tight(link):
                tight = True
                least = min(least, quotient_up(link.capacity, link.count))
        if tight:
            take(state, number)
        else:
            set_rate(state, number, np.int64(flow.limit))
            for place in range(begin_place, end_place):
                table.shared(state, link_at(state, place)).loose = 1
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


# -- filling ------------------------------------------------------------------------------------------------------


@lean
def take(state, number):
    """List a flow that needs a rate, and the tight links that may limit it."""
    flow = table.flows(state, number)
    flow.taken = 1
    heap.place(table.taken(state, 0), state.taken_count, np.int64(flow.limit), np.int64(0), number)
    state.taken_count += 1
    first, last = route_of(state, number)
    for place in range(first, last):
        at = link_at(state, place)
        if is_tight(table.shared(state, at)):
            link = see(state, at)
            link.rest += flow.rate
            link.growing += 1


@lean
def collect(state):
    """List the flows with rates that may change: those of listed links, and of links listed for them.

    Flows slower than `kept` keep their rates: their links fill up before any changed link does.
    """
    i = np.int64(0)
    while i < state.crossed_count:
        link = table.shared(state, np.int64(table.crossed(state)[i]))
        i += 1
        if not (link.held or is_tight(link)):
            continue
        use, before, loose = np.int64(link.first), MOST, np.int64(0)
        while use:
            other = np.int64(table.uses(state, use - 1).flow)
            use = table.uses(state, use - 1).next
            flow = table.flows(state, other)
            if flow.taken:
                continue
            if flow.rate >= state.kept:
                take(state, other)
            elif link.loose:
                if flow.rate > before:
                    loose = np.int64(1)
                before = np.int64(flow.rate)
            else:
                break
        link.loose = loose


@lean
def fill(state):
    """Find the rates of listed flows: the level rises, and flows stop at their caps and on links that are full."""
    taken, filling = table.taken(state, 0), table.filling(state, 0)
    left, links, at, level = state.taken_count, queue_links(state), np.int64(0), np.int64(1)
    for i in range(1, left):
        if taken[i].key < taken[i - 1].key:
            heap.sort(taken, left)
            break
    total = left
    while left:
        links = renew(state, links)
        while table.flows(state, taken[at].item).taken == 2:
            at += 1
        least = taken[at].key
        if links:
            least = min(least, filling[0].key)
        level = max(level, least)
        while links and filling[0].key <= level:
            use = table.shared(state, filling[0].item).first
            while use:
                number = np.int64(table.uses(state, use - 1).flow)
                use = table.uses(state, use - 1).next
                if table.flows(state, number).taken == 1:
                    stop(state, number, level)
                    left -= 1
            links = renew(state, heap.pop(filling, links))
        while at < total and taken[at].key <= level:
            if table.flows(state, taken[at].item).taken == 1:
                stop(state, taken[at].item, level)
                left -= 1
            at += 1


@lean
def queue_links(state):
    """Put listed tight links into a heap by the share of each growing flow; returns their number."""
    links = np.int64(0)
    for i in range(state.crossed_count):
        at = np.int64(table.crossed(state)[i])
        link = table.shared(state, at)
        link.seen = 0
        link.stale = 0
        if link.growing and is_tight(link):
            heap.push(table.filling(state, 0), links, quotient_up(link.rest, link.growing), at, at)
            links += 1
    return links


@lean
def renew(state, links):
    """Find the link of the least share; a share never falls as the level rises, so the first of the heap suffices."""
    filling = table.filling(state, 0)
    while links:
        at = np.int64(filling[0].item)
        link = table.shared(state, at)
        if link.growing and not link.stale:
            break
        links = heap.pop(filling, links)
        if link.growing:
            link.stale = 0
            heap.push(filling, links, quotient_up(link.rest, link.growing), at, at)
            links += 1
    return links


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
        link.stale = 1
        if flow.next_rate < state.kept or not is_tight(link):
            link.loose = 1
        elif link.first != place + 1:
            take_off(state, link, place)
            enter(state, link, place, number)


@lean
def set_rate(state, number, rate):
    """A flow has a rate from now on, which says when its message ends."""
    flow, now = table.flows(state, number), state.now
    high, low = np.uint64(flow.left_high), np.uint64(flow.left_low)
    if flow.rate and now > flow.since:
        done_high, done_low = wide.product(np.int64(flow.rate), now - flow.since)
        high, low = wide.difference(high, low, done_high, done_low)
        flow.left_high, flow.left_low = np.int64(high), np.int64(low)
    if rate != flow.rate:
        first, last = route_of(state, number)
        for place in range(first, last):
            table.shared(state, link_at(state, place)).used += rate - flow.rate
    flow.since = now
    flow.rate = rate
    takes = wide.divided_up(high, low, rate)
    end = now + takes if takes >= 0 and now + takes > 0 else MOST
    ends.schedule(state, number, end, np.int64(table.events(state, flow.message - 1).number))
