"""Steps of thread blocks: the heads that they wait for, and their begins."""

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import blocks, events, queue, records, table
from astrasim_py.engine.compiled.links import record_hop, reserve
from astrasim_py.engine.compiled.needs import release
from astrasim_py.engine.compiled.routes import at_end, first_hop


@inlined
def place_of(state, block, message):
    """Return the place of a message of a block's call."""
    call = np.int64(table.blocks(state, block).call)
    row = table.calls(state, call)
    return table.progress(state, call).place + row.slots + 2 * row.messages + records.STEP_MESSAGE_WORDS * message


@inlined
def message_of(state, block, node, column):
    """Return a node's received message (column 0) or sent one (1); -1 for none."""
    template = table.templates(state, table.blocks(state, block).template)
    return np.int64(table.ints(state)[template.steps + column * template.nodes + node])


@lean
def head_is_here(state, block, node):
    """Whether the head of the message that a node receives is here; if not, the node waits for it."""
    taken = message_of(state, block, node, 0)
    if taken >= 0:
        message = table.step_messages(state, place_of(state, block, taken))
        if message.state != records.FREE:
            message.state = queue.entry_of(block, node) + records.WAITED
            message.since = state.now
            return False
    return True


@lean
def begin_step(state, block, node):
    """Begin a step that sends or receives: schedule its end, and the head of the message that it sends."""
    row, size = table.blocks(state, block), blocks.size_of(state, block, node)
    template = table.templates(state, row.template)
    pace, begin = table.longs(state)[template.pace + size], state.now + template.step_ps
    end = begin + pace
    if pace < 0 or end < 0:
        events.fail(state, records.OVERFLOW)
        return
    taken, given = message_of(state, block, node, 0), message_of(state, block, node, 1)
    if taken >= 0:
        received = table.step_messages(state, place_of(state, block, taken))
        end = max(end, received.tail)
        if state.record_messages:
            table.message_rows(state, received.row).receiver = row.row + node
    if given >= 0:
        e = events.new_message(state, block, node, queue.NONE, size, np.int64(0))
        event, left, latency = table.events(state, e), np.int64(table.events(state, e).route), np.int64(0)
        while not at_end(left):
            link, left = first_hop(state, left)
            costs = template.costs + 2 * link
            latency += table.longs(state)[costs]
            hold = table.longs(state)[table.longs(state)[costs + 1] + size]
            start = max(table.links(state, link).free, begin)
            if hold < 0:
                events.fail(state, records.OVERFLOW)
                return
            reserve(state, link, begin, start, start + hold, table.longs(state)[state.nbytes + size], False)
            if state.record_messages:
                record_hop(state, e, link, begin, start, start + hold)
                event.moved = 1
            end = max(end, start + hold)
        event.kind = records.HEAD
        event.tail = place_of(state, block, given)
        event.route = row.row + node
        sent = table.step_messages(state, event.tail)
        sent.tail = end + latency
        sent.row = event.row
        if state.record_messages:
            table.message_rows(state, event.row).delivered = sent.tail
        waits = (end - begin + 1) >> 1 if template.half else np.int64(0)
        events.push_checked(state, begin + latency + waits, e)
    events.end_later(state, block, node, end)


@lean
def head_arrives(state, e):
    """The head of a message is at its receiver."""
    event = table.events(state, e)
    message = table.step_messages(state, event.tail)
    waiting = np.int64(message.state)
    message.state = records.FREE
    if waiting >= records.WAITED:
        block, node = (waiting - records.WAITED) >> 32, (waiting - records.WAITED) & queue.NODE_MASK
        release(state, block, node, np.int64(event.route))
        queue.wake(state, np.int64(table.blocks(state, block).rank))
    queue.give_row(state, table.events, records.EVENTS, e)
