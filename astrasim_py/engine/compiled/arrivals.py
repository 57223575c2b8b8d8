"""What events bring: arrivals of messages, freed links, begins of ranks."""

import numpy as np

from astrasim_py.core.jit import lean, optional
from astrasim_py.engine.compiled import blocks, events, queue, records, table

take_later = optional("astrasim_py.dialects.nic.kernel:take")
receive_later = optional("astrasim_py.dialects.nic.kernel:receive")


@lean
def check_size(state, block, node, rank, call, sent, size):
    """Stop the run if a receive has other bytes than its message; `rank`, `call`, `sent`: of the send."""
    if blocks.size_of(state, block, node) != size and state.status == records.RUNNING:
        state.wrong_receive = queue.entry_of(block, node)
        state.wrong_sender = rank
        state.wrong_call = call
        state.wrong_node = sent
        state.wrong_size = size
        events.fail(state, records.UNEQUAL_BYTES)


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
            receive_later(state, other, partner, np.int64(row.row + node))
        else:
            events.complete_next(state, other, partner, row.row + node)
    if not state.injected:
        events.complete_next(state, block, node, queue.NONE)
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


@lean
def begin_rank(state, rank):
    """Make the root nodes of a rank ready."""
    template = table.templates(state, table.ranks(state, rank).template)
    for i in range(template.root_count):
        queue.make_ready(state, rank, blocks.workload_block(rank), np.int64(table.ints(state)[template.roots + i]))
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
    if kind == records.DELIVER and state.gap and not take_later(state, e):
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
            events.forget_timer(state, e)
        events.complete_next(state, block, node, np.int64(event.row))
        if state.counts_references:
            blocks.release_block(state, block)
    queue.give_row(state, table.events, records.EVENTS, e)
