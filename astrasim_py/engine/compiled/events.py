"""Messages and events: sending, arrival, freed links, and timers."""

import numpy as np

from astrasim_py.core.jit import inlined, lean, optional
from astrasim_py.engine.compiled import blocks, queue, records, table
from astrasim_py.engine.compiled.routes import first_hop, set_out
from astrasim_py.system.programs import COLLECTIVE, COMPUTE, RECV, SEND

MOST = np.int64(2**63 - 1)

# -- common -----------------------------------------------------------------------------------------------


@lean
def fail(state, status):
    if state.status == records.RUNNING:
        state.status = status
        state.budget = 0


@lean
def new_event(state, kind, block, node):
    e = np.int64(queue.take_row(state, table.events, records.EVENTS))
    event = table.events(state, e)
    event.block = block
    event.node = node
    event.kind = kind
    event.match = -1
    event.size = 0
    event.moved = 0
    event.asks = 0
    event.row = -1
    return e


@lean
def number_event(state, e):
    """Give an event the next number in the order of issue."""
    event = table.events(state, e)
    if state.scheduled:
        reschedule(state, e, state.now)
    else:
        event.scheduled = 0
        event.number = state.issued
    state.issued += 1


@inlined
def reschedule(state, e, time):
    """Number an event as if it were scheduled at `time`."""
    state.schedulings += 1
    table.events(state, e).scheduled = time
    table.events(state, e).number = state.schedulings


@lean
def push_checked(state, time, e):
    """Schedule an event, unless its time has overflowed."""
    if time < state.now:
        fail(state, records.OVERFLOW)
    else:
        queue.push(state, time, e)


@lean
def complete_next(state, block, node, cause):
    """Make a node due; the last node made due completes first. `cause`: row of the node that caused it."""
    row = table.due(state, state.due_count)
    row.block = block
    row.node = node
    row.cause = cause
    state.due_count += 1


@lean
def end_later(state, block, node, time):
    ended = new_event(state, records.END, block, node)
    number_event(state, ended)
    if state.counts_references:
        table.blocks(state, block).references += 1
    push_checked(state, time, ended)


@lean
def count_time(state, number, kind, change):
    """Charge elapsed time to compute or communication, as a node of a kind begins (change 1) or ends (-1)."""
    rank = table.ranks(state, number)
    elapsed = state.now - rank.accounted
    if kind != COMPUTE and kind != SEND and kind != RECV and kind != COLLECTIVE:
        return
    if rank.computing:
        rank.compute += elapsed
    elif rank.communicating:
        rank.exposed += elapsed
    rank.accounted = state.now
    if kind == COMPUTE:
        rank.computing += change
    else:
        rank.communicating += change


# -- sending ------------------------------------------------------------------------------------------------------


@lean
def new_message(state, block, node, match, size, asks):
    """Make a message of a node, without sending it."""
    e = new_event(state, records.HOP, block, node)
    event = table.events(state, e)
    event.match = match
    event.size = size
    event.asks = asks
    number_event(state, e)
    hops = set_out(state, e, block, node)
    state.sent += 1
    state.hops += hops
    if state.record_messages:
        event.row = record_message(state, block, node, size, hops)
    return e


@lean
def record_message(state, block, node, size, hops):
    number, sender = state.message_row_count, table.blocks(state, block)
    state.message_row_count = number + 1
    row = table.message_rows(state, number)
    row.call = sender.call
    row.src = sender.rank
    row.dst = blocks.rank_at(state, block, blocks.peer_of(state, block, node))
    row.node = sender.first + node
    row.bytes = table.longs(state)[state.nbytes + size]
    row.posted = state.now
    row.start = -1
    row.delivered = -1
    row.hops = hops
    row.queued = 0
    row.sender = sender.row + node
    row.receiver = -1
    return number


@lean
def send(state):
    block = state.sender
    state.sender = -1
    e = new_message(
        state, block, state.send_node, state.send_match, blocks.size_of(state, block, state.send_node), np.int64(0)
    )
    state.carried = e
    row = table.blocks(state, block)
    if row.flags & records.PACED:
        template = table.templates(state, row.template)
        if template.pace >= 0 or template.post:
            enter_connection(state, e)


@lean
def enter_connection(state, e):
    """Delay a message until the earlier ones of its rank are posted, and those of its connection in the network."""
    event = table.events(state, e)
    row = table.blocks(state, event.block)
    template, call = table.templates(state, row.template), table.calls(state, row.call)
    column = template.connections + 2 * template.nodes + event.node
    first = table.progress(state, row.call).place + call.slots + 2 * call.messages
    first += row.position * template.of_member
    posted = state.now
    if template.post:
        place = first + table.ints(state)[column + template.nodes]
        posted = max(table.arena(state)[place], posted)
        table.arena(state)[place] = posted + template.post
        if posted + template.post < 0:
            fail(state, records.OVERFLOW)
    asks = posted
    if template.pace >= 0:
        asks = pace_connection(state, event, row, template, first + table.ints(state)[column], posted)
    if asks > state.now:
        event.kind = records.ENTER
        queue.push(state, asks, e)
        state.carried = -1


@lean
def pace_connection(state, event, row, template, place, posted):
    """Pace a message by its connection (word at `place`); returns when it requests its first link."""
    pace = table.longs(state)[template.pace + event.size]
    hold = np.int64(0)
    if state.model != records.FLUID:
        link, _ = first_hop(state, event.route)
        hold = table.longs(state)[table.links(state, link).hold + event.size]
    enters = max(table.arena(state)[place], posted)
    if pace < 0 or hold < 0 or enters + pace < 0:
        fail(state, records.OVERFLOW)
    table.arena(state)[place] = enters + pace
    asks = enters
    if row.flags & records.INTERLEAVED:
        event.tail = enters + pace
    elif state.model != records.FLUID:
        asks += max(pace - hold, np.int64(0))
    return asks


# -- NICs ---------------------------------------------------------------------------------------------------------


@lean
def handle(state, number):
    """Spend the overhead of a message on a rank; returns when that is over. Switches spend nothing."""
    if number >= state.npu_ranks:
        return state.now
    rank = table.ranks(state, number)
    rank.free = max(rank.free, state.now) + state.overhead
    if rank.free < 0:
        fail(state, records.OVERFLOW)
    return rank.free


@lean
def after_gap(state, time):
    """Return the time of a gap later."""
    return time + state.gap if time <= MOST - state.gap else MOST


@optional
def post(state, e):
    """A message is posted; returns whether it enters the network now."""
    number = np.int64(table.blocks(state, table.events(state, e).block).rank)
    rank = table.ranks(state, number)
    enters = max(handle(state, number), rank.sends)
    if number < state.npu_ranks:
        rank.sends = after_gap(state, enters)
    if enters > state.now:
        table.events(state, e).kind = records.POST
        queue.push(state, enters, e)
        return False
    return True


@optional
def take(state, e):
    """A message arrives; returns whether it is delivered now."""
    event = table.events(state, e)
    block, node = np.int64(event.block), np.int64(event.node)
    number = np.int64(blocks.rank_at(state, block, blocks.peer_of(state, block, node)))
    rank = table.ranks(state, number)
    taken = max(state.now, rank.takes)
    if number < state.npu_ranks:
        rank.takes = after_gap(state, taken)
    if taken > state.now:
        event.kind = records.TAKE
        queue.push(state, taken, e)
        return False
    return True


@optional
def receive(state, block, node, cause):
    """A receive that has its message is done once the overhead is spent; `cause`: row of the node that ends it."""
    done = handle(state, np.int64(table.blocks(state, block).rank))
    if done == state.now:
        complete_next(state, block, node, cause)
        return True
    ended = new_event(state, records.END, block, node)
    table.events(state, ended).row = cause
    number_event(state, ended)
    if state.counts_references:
        table.blocks(state, block).references += 1
    push_checked(state, done, ended)
    return False


# -- arriving -----------------------------------------------------------------------------------------------------


@lean
def check_size(state, block, node, rank, call, sent, size):
    """Stop the run if a receive has other bytes than its message; `rank`, `call`, `sent`: of the send."""
    if blocks.size_of(state, block, node) != size and state.status == records.RUNNING:
        state.wrong_receive = queue.entry_of(block, node)
        state.wrong_sender = rank
        state.wrong_call = call
        state.wrong_node = sent
        state.wrong_size = size
        fail(state, records.UNEQUAL_BYTES)


@lean
def message_arrives(state, e):
    """Deliver a message: complete its receive if posted and, under `delivery`, its send."""
    event = table.events(state, e)
    block, node = np.int64(event.block), np.int64(event.node)
    row = table.blocks(state, block)
    if event.match >= 0:
        posted, other, partner = matched_arrival(state, e)
    else:
        posted, other, partner = partner_arrival(state, e)
        if posted:
            check_size(state, other, partner, np.int64(row.rank), np.int64(row.call), node, np.int64(event.size))
    if posted:
        if state.record_messages:
            table.message_rows(state, event.row).receiver = table.blocks(state, other).row + partner
        if state.nic:
            receive(state, other, partner, np.int64(row.row + node))
        else:
            complete_next(state, other, partner, row.row + node)
    if not state.injected:
        complete_next(state, block, node, queue.NONE)
    if state.counts_references:
        blocks.release_block(state, block)


@lean
def partner_arrival(state, e):
    """Deliver a message to the only node that can match it. Returns whether that is posted, its block and itself."""
    event = table.events(state, e)
    block, node = np.int64(event.block), np.int64(event.node)
    other = np.int64(blocks.partner_block(state, block, node))
    partner = np.int64(table.nodes(state, table.blocks(state, block).first + node).partner)
    posted = blocks.meets(state, other, partner, records.POSTED, records.ARRIVED)
    if not posted and state.record_messages:
        # Store the message's row in the node's row until it is posted.
        table.node_rows(state, table.blocks(state, other).row + partner).ended = -2 - event.row
    return posted, other, partner


@lean
def matched_arrival(state, e):
    """Deliver a message on a channel. Returns whether its receive is posted, the receive's block and itself."""
    event = table.events(state, e)
    match = table.matches(state, event.match)
    if not match.flags & records.RECEIVE_POSTED:
        match.flags |= records.HAS_ARRIVED
        match.size = event.size
        match.row = event.row
        return False, queue.NONE, queue.NONE
    close_match(state, np.int64(event.match), np.int64(event.size))
    return True, match.receive >> 32, match.receive & queue.NODE_MASK


@lean
def close_match(state, number, size):
    """Free a complete match of a message of some size."""
    match = table.matches(state, number)
    block, node, sent = match.receive >> 32, match.receive & queue.NODE_MASK, match.send & queue.NODE_MASK
    check_size(state, block, node, np.int64(match.rank), np.int64(match.call), sent, size)
    match.flags = -1
    queue.give_row(state, table.matches, records.MATCHES, number)


@lean
def request_arrives(state, e):
    """Under the rendezvous: deliver a receiver's request; the sender's message leaves if it is posted."""
    event = table.events(state, e)
    if event.match >= 0:
        match = table.matches(state, event.match)
        posted, block, node = match.flags & records.UNASKED != 0, match.send >> 32, match.send & queue.NODE_MASK
        if posted:
            match.flags &= ~records.UNASKED
        else:
            match.flags |= records.ASKED
            match.row = event.row
    else:
        posted, block, node = partner_arrival(state, e)
    if posted:
        state.sender = block
        state.send_node = node
        state.send_match = event.match
        if state.record_messages:
            table.message_rows(state, event.row).receiver = table.blocks(state, block).row + node


@lean
def link_freed(state, number):
    """Free a link and start the first message that waits for it."""
    link = table.links(state, number)
    state.carried = link.line
    link.line = table.events(state, state.carried).next
    table.events(state, state.carried).kind = records.FREED


# -- timers -------------------------------------------------------------------------------------------------------


@lean
def time_together(state, e, number, end):
    """Number the end of a timer: timers of one rank that end together share the number of the first."""
    rank, event = table.ranks(state, number), table.events(state, e)
    event.tail = end
    first = rank.timers
    while first and table.events(state, first - 1).tail != end:
        first = table.events(state, first - 1).route
    if first:
        event.scheduled = table.events(state, first - 1).scheduled
        event.number = table.events(state, first - 1).number
    else:
        reschedule(state, e, state.now)
        event.route = rank.timers
        rank.timers = e + 1


@lean
def forget_timer(state, e):
    """Remove an ending timer from its rank's list: later timers no longer share its number."""
    event = table.events(state, e)
    rank = table.ranks(state, table.blocks(state, event.block).rank)
    behind, first = queue.NONE, rank.timers
    while first and first != e + 1:
        behind, first = first - 1, table.events(state, first - 1).route
    if first == 0:
        return
    if behind < 0:
        rank.timers = event.route
    else:
        table.events(state, behind).route = event.route


@lean
def begin_rank(state, rank):
    """Make the root nodes of a rank ready."""
    template = table.templates(state, table.ranks(state, rank).template)
    for i in range(template.root_count):
        queue.make_ready(state, rank, rank, np.int64(table.ints(state)[template.roots + i]))
    if table.ranks(state, rank).ready:
        queue.wake(state, rank)


@lean
def apply(state, e):
    event = table.events(state, e)
    kind, block, node = event.kind, np.int64(event.block), np.int64(event.node)
    state.taken_scheduled = event.scheduled
    state.taken_number = event.number
    if kind == records.HOP or kind == records.ENTER:
        state.carried = e
        return
    if kind == records.POST:
        state.carried = e
        return
    if kind == records.DELIVER and state.gap and not take(state, e):
        return
    if kind == records.DELIVER or kind == records.TAKE:
        if state.record_messages:
            table.message_rows(state, event.row).delivered = state.now
        if event.asks:
            request_arrives(state, e)
        else:
            message_arrives(state, e)
    elif kind == records.FREED:
        link_freed(state, node)
    elif kind == records.BEGIN:
        begin_rank(state, node)
    elif kind == records.GO:
        state.sender = block
        state.send_node = node
        state.send_match = event.match
    else:
        if kind == records.TIMER:
            forget_timer(state, e)
        complete_next(state, block, node, np.int64(event.row))
        if state.counts_references:
            blocks.release_block(state, block)
    queue.give_row(state, table.events, records.EVENTS, e)
