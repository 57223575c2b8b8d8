"""Messages and events: sending, completions, and timers."""

import numpy as np

from astrasim_py.core.jit import inlined, lean
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
    if row.flags & records.CONNECTED:
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
    asks, connection = posted, np.int64(table.ints(state)[column])
    if template.pace >= 0 and connection >= 0:
        asks = pace_connection(state, event, row, template, first + connection, posted)
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
    if template.costs >= 0:
        event.tail = enters + pace
    elif state.model != records.FLUID:
        asks += max(pace - hold, np.int64(0))
    return asks


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
