"""Nodes: issue and completion."""

# ruff: noqa: SIM109

import numpy as np

from astrasim_py.core import heap
from astrasim_py.core.jit import inlined, lean, optional
from astrasim_py.engine.compiled import arrivals, blocks, events, queue, records, table
from astrasim_py.engine.compiled.arrivals import receive_later
from astrasim_py.engine.compiled.needs import lose_need, release
from astrasim_py.system.programs import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND, SOFTWARE

COMPUTE_SLOT = np.int64(2)


# -- slots and connections ----------------------------------------------------------------------------------------

begin_chunks = optional("astrasim_py.dialects.chunks.kernel:begin_chunks")
end_phase = optional("astrasim_py.dialects.chunks.kernel:end_phase")
start_runs = optional("astrasim_py.dialects.chunks.kernel:start_runs")
begin_step = optional("astrasim_py.dialects.thread_blocks.kernel:begin_step")
head_is_here = optional("astrasim_py.dialects.thread_blocks.kernel:head_is_here")
hold_tiled = optional("astrasim_py.dialects.tiles.kernel:hold")
tiled_begun = optional("astrasim_py.dialects.tiles.kernel:begun")
tiled_ended = optional("astrasim_py.dialects.tiles.kernel:ended")
interrupted = optional("astrasim_py.dialects.detours.kernel:interrupted")


@lean
def refuse(state, rank, kind, node):
    """Queue a ready workload node that found no free slot."""
    slot = table.slots(state, records.SLOT_KINDS * rank + kind)
    if slot.refused == 0:
        slot.refused = queue.take(state, 3 * table.templates(state, table.ranks(state, rank).template).nodes)
    heap.push(table.arena_heap(state, slot.refused), slot.refused_count, node, np.int64(0), node)
    slot.refused_count += 1


@lean
def slot_freed(state, rank, kind, node):
    """Wake the refused nodes after a workload node has freed its slot.

    With a single slot, waking stops after the first node that is sure to hold the slot for some time: the others would
    only be refused again.
    """
    slot, row = table.slots(state, records.SLOT_KINDS * rank + kind), blocks.workload_row(state, rank)
    slot.used -= 1
    while slot.refused_count:
        refused = table.arena_heap(state, slot.refused)
        again = refused[0].item
        slot.refused_count = heap.pop(refused, slot.refused_count)
        release(state, blocks.workload_block(rank), again, row.row + node)
        if table.capacity(state)[kind] == 1:
            at = table.nodes(state, row.first + again)
            if at.kind == SEND or (at.kind == COMPUTE and table.longs(state)[state.duration + at.size]):
                break


@lean
def slot_of(state, block, message):
    call = table.blocks(state, block).call
    place = table.progress(state, call).place + table.calls(state, call).slots
    return table.message_slots(state, place + 2 * message)


@lean
def release_slot(state, block, message, node):
    """Free the slot of a message of a connection; a send that waits for it becomes ready."""
    slot = slot_of(state, block, message)
    before = slot.state
    slot.state = records.FREE
    if before < records.WAITED:
        return
    other, send = (before - records.WAITED) >> 32, (before - records.WAITED) & queue.NODE_MASK
    release(state, other, send, table.blocks(state, block).row + node)
    queue.wake(state, np.int64(table.blocks(state, other).rank))


@lean
def enter_slot(state, block, node, kind):
    """Whether the connection slot that a node needs is free; if so, a send also frees the slot that it releases."""
    template = table.templates(state, table.blocks(state, block).template)
    needed = np.int64(table.ints(state)[template.connections + node])
    if needed >= 0:
        slot = slot_of(state, block, needed)
        if slot.state != records.FREE:
            slot.state = queue.entry_of(block, node) + records.WAITED
            slot.since = state.now
            return False
    freed = np.int64(table.ints(state)[template.connections + template.nodes + node])
    if kind == SEND and freed >= 0 and not table.blocks(state, block).flags & records.STEPS:
        release_slot(state, block, freed, node)
    return True


@lean
def admit_workload(state, rank, node, kind, slot_kind):
    """Give a workload node its slot and start counting its time; False if no slot is free."""
    if slot_kind and table.capacity(state)[slot_kind] >= 0:
        slot = table.slots(state, records.SLOT_KINDS * rank + slot_kind)
        if slot.used >= table.capacity(state)[slot_kind]:
            refuse(state, rank, slot_kind, node)
            return False
        slot.used += 1
    events.count_time(state, rank, kind, np.int64(1))
    if kind == COMPUTE and slot_kind == COMPUTE_SLOT:
        row = table.ranks(state, rank)
        first = blocks.workload_row(state, rank).first
        row.compute_sum += table.longs(state)[state.duration + table.nodes(state, first + node).size]
        if row.compute_sum < 0:
            events.fail(state, records.OVERFLOW)
    return True


# -- issuing ------------------------------------------------------------------------------------------------------


@lean
def issue(state):
    rank, entry = state.rank, table.wave(state, state.wave_next)[0].item
    state.wave_next += 1
    block, node = entry >> 32, entry & queue.NODE_MASK
    row = table.blocks(state, block)
    at = table.nodes(state, row.first + node)
    kind = np.int64(at.kind)
    if row.flags & records.WORKLOAD:
        if not admit_workload(state, rank, node, kind, np.int64(at.slot)):
            return
    elif row.flags & records.ADMITTED:
        if row.flags & records.STEPS and not head_is_here(state, block, node):
            return
        if row.flags & records.SLOTTED and not enter_slot(state, block, node, kind):
            return
        if at.slot == records.DETACHED:
            # A detached send leaves its block now.
            row.left -= 1
            if row.left == 0:
                events.complete_next(state, block, queue.NONE, row.row + node if state.record_nodes else queue.NONE)
    if state.record_nodes:
        table.node_rows(state, row.row + node).start = state.now
        # Ranks alternate: by this rank's next turn the prefetched line has arrived.
        table.prefetch(table.node_rows(state, row.row + node + 2))
    if row.flags & records.STEPS and kind != COMPUTE:
        begin_step(state, block, node)
    elif kind == SEND:
        issue_send(state, block, node)
    elif kind == RECV:
        issue_receive(state, block, node)
    elif kind == COMPUTE or kind == MEMORY or kind == SOFTWARE:
        issue_timed(state, rank, block, node, kind)
    elif kind == COLLECTIVE:
        issue_collective(state, rank, block, node)
    else:
        events.complete_next(state, block, node, queue.NONE)


@lean
def issue_send(state, block, node):
    """Post a send; its message leaves now or, under the rendezvous, once its receiver has requested it."""
    row, match = table.blocks(state, block), queue.NONE
    if state.counts_references:
        # The reference lasts until delivery.
        row.references += 1
    if table.nodes(state, row.first + node).partner < 0:
        match = blocks.new_match(state, blocks.channel_of(state, block, node, True), records.SEND_POSTED)
        posted = table.matches(state, match)
        posted.send = queue.entry_of(block, node)
        posted.rank = row.rank
        posted.call = row.call
        posted.sender_row = row.row + node
    if state.request < 0 or may_send(state, block, node, match):
        state.sender = block
        state.send_node = node
        state.send_match = match


@lean
def may_send(state, block, node, number):
    """Under the rendezvous: whether a message has been requested and leaves at once."""
    row, request = table.blocks(state, block), queue.NONE
    if number >= 0:
        match = table.matches(state, number)
        if not match.flags & records.ASKED:
            match.flags |= records.UNASKED
            return False
        request = match.row
    elif blocks.meets(state, block, node, records.ARRIVED, records.POSTED):
        request = stored_row(state, row.row + node)
    else:
        return False
    if state.record_messages:
        table.message_rows(state, request).receiver = row.row + node
    if not state.scheduled:
        return True
    # ASTRA-sim's sender receives the request in an event of its own, like any receive of an arrived message.
    e = events.new_event(state, records.GO, block, node)
    table.events(state, e).match = number
    events.number_event(state, e)
    queue.push(state, state.now, e)
    return False


@lean
def stored_row(state, row):
    """Return the row of an early message, stored in its receive's row; -1 if messages are not recorded."""
    if not state.record_messages:
        return queue.NONE
    message = -2 - table.node_rows(state, row).ended
    table.node_rows(state, row).ended = -1
    return message


@lean
def issue_receive(state, block, node):
    """Post a receive; it completes now if its message has arrived, else, under the rendezvous, requests it."""
    row, match = table.blocks(state, block), queue.NONE
    if table.nodes(state, row.first + node).partner < 0:
        match = blocks.new_match(state, blocks.channel_of(state, block, node, False), records.RECEIVE_POSTED)
        arrived = receive_match(state, block, node, match)
    else:
        arrived = receive_partner(state, block, node)
    if arrived:
        if state.scheduled:
            events.end_later(state, block, node, state.now)
        elif state.nic:
            receive_later(state, block, node, queue.NONE)
        else:
            events.complete_next(state, block, node, queue.NONE)
    elif state.request >= 0:
        state.carried = events.new_message(state, block, node, match, state.request, np.int64(1))


@lean
def receive_match(state, block, node, number):
    """Whether the message of a receive on a channel has arrived."""
    match = table.matches(state, number)
    match.receive = queue.entry_of(block, node)
    if not match.flags & records.HAS_ARRIVED:
        return False
    if state.record_messages:
        table.message_rows(state, match.row).receiver = table.blocks(state, block).row + node
    arrivals.close_match(state, number, np.int64(match.size))
    return True


@lean
def receive_partner(state, block, node):
    """Whether the only message that a receive can match has arrived."""
    row = table.blocks(state, block)
    if not blocks.meets(state, block, node, records.ARRIVED, records.POSTED):
        return False
    if state.record_messages:
        table.message_rows(state, stored_row(state, row.row + node)).receiver = row.row + node
    size = blocks.sent_size(state, block, node)
    if blocks.size_of(state, block, node) != size:
        sender = blocks.rank_at(state, block, blocks.peer_of(state, block, node))
        partner = np.int64(table.nodes(state, row.first + node).partner)
        arrivals.check_size(state, block, node, sender, np.int64(row.call), partner, size)
    return True


@lean
def issue_timed(state, rank, block, node, kind):
    duration = table.longs(state)[state.duration + table.nodes(state, table.blocks(state, block).first + node).size]
    end = state.now + duration
    if state.period and kind == COMPUTE and duration and rank < state.npu_ranks:
        end = interrupted(state, duration, table.ranks(state, rank).phase)
    if state.has_servers and (kind == MEMORY or rank >= state.npu_ranks):
        server = table.ranks(state, rank).server
        if server >= 0:
            end = max(table.servers(state)[server], state.now) + duration
            table.servers(state)[server] = end
    if end < state.now:
        events.fail(state, records.OVERFLOW)
    elif end == state.now:
        events.complete_next(state, block, node, queue.NONE)
    elif state.scheduled:
        e = events.new_event(state, records.TIMER, block, node)
        state.issued += 1
        events.time_together(state, e, rank, end)
        if state.counts_references:
            table.blocks(state, block).references += 1
        queue.push(state, end, e)
    else:
        events.end_later(state, block, node, end)


@lean
def issue_collective(state, rank, block, node):
    row = table.blocks(state, block)
    number = np.int64(table.ints(state)[table.ranks(state, rank).instances + table.nodes(state, row.first + node).size])
    instance = table.instances(state, number)
    if instance.planned:
        begin_chunks(state, rank, number, node)
        return
    position = blocks.position_in(state, number, rank)
    hold_tiled(state, rank, node, instance.first, position)
    spliced = blocks.splice(state, instance.first, position, rank, node, np.int64(0), row.row + node)
    if spliced < 0:
        blocks.leave_call(state, instance.first, rank)
        events.complete_next(state, block, node, queue.NONE)
    else:
        tiled_begun(state, rank, node, spliced)


# -- completing ---------------------------------------------------------------------------------------------------


@lean
def complete(state):
    """Complete the node that is due: release its successors, and end its block if it was the last."""
    if state.done:
        share = state.done
        row = table.shares(state, share)
        state.done = row.next
        block, node, cause = blocks.workload_block(row.rank), row.node, row.cause
        queue.give(state, share, records.SHARE_WORDS + 2 * table.ranks(state, row.rank).queues)
    else:
        state.due_count -= 1
        last = table.due(state, state.due_count)
        block, node, cause = last.block, last.node, last.cause
    row = table.blocks(state, block)
    rank, first_row = np.int64(row.rank), np.int64(row.row)
    if node >= 0:
        if table.nodes(state, row.first + node).slot == records.DETACHED:
            if state.record_nodes:
                table.node_rows(state, first_row + node).end = state.now
            return
        leave_slot(state, block, node)
        if state.record_nodes:
            table.node_rows(state, first_row + node).end = state.now
            table.node_rows(state, first_row + node).ended = cause
        release_successors(state, block, node)
        tiled_ended(state, block, node)
        row.left -= 1
        cause = first_row + node if state.record_nodes else queue.NONE
    if row.left == 0:
        end_block(state, block, cause)
    elif row.flags & records.COUNTS and node >= 0:
        count_completion(state, block, node)
    if table.ranks(state, rank).ready:
        queue.wake(state, rank)


@inlined
def leave_slot(state, block, node):
    """Free the slot of a completing node, and count its time."""
    row = table.blocks(state, block)
    at = table.nodes(state, row.first + node)
    if row.flags & records.WORKLOAD:
        rank, slot = np.int64(row.rank), np.int64(at.slot)
        events.count_time(state, rank, np.int64(at.kind), queue.NONE)
        if slot and table.capacity(state)[slot] >= 0:
            slot_freed(state, rank, slot, node)
    elif row.flags & records.SLOTTED and (at.kind != SEND or row.flags & records.STEPS):
        template = table.templates(state, row.template)
        freed = np.int64(table.ints(state)[template.connections + template.nodes + node])
        if freed >= 0:
            release_slot(state, block, freed, node)


@inlined
def release_successors(state, block, node):
    """Decrement the needs of the successors of a completing node."""
    row = table.blocks(state, block)
    at = table.nodes(state, row.first + node)
    for i in range(np.int64(at.successor), np.int64(at.successor) + at.successors):
        lose_need(state, block, np.int64(table.ints(state)[i]), row.row + node)


@lean
def end_block(state, block, cause):
    """End a block after its last node, and with it its workload's node or its chunk's phase."""
    row = table.blocks(state, block)
    rank, call, run, parent = np.int64(row.rank), np.int64(row.call), np.int64(row.run), np.int64(row.parent)
    if call < 0:
        table.ranks(state, rank).finish = state.now
        state.foreground -= 1 - table.ranks(state, rank).background
        return
    blocks.leave_call(state, call, rank)
    if row.references == 0:
        blocks.free_block(state, block)
    if run:
        end_phase(state, rank, run, cause)
        start_runs(state, rank)
    else:
        events.complete_next(state, blocks.workload_block(rank), parent, cause)


@lean
def count_completion(state, block, node):
    """Advance a node's counter: nodes waiting for this count lose a need; others start counting here."""
    row = table.blocks(state, block)
    template = table.templates(state, row.template)
    base = row.words + template.counter_word
    own = table.counting(state, template.counting + 5 * node)
    if own.counts >= 0:
        counter = table.counters(state, base + 2 * own.counts)
        entries = table.arena_heap(state, base + table.waiting(state, template.waiting + 4 * own.counts).word)
        counter.count += 1
        reached = np.int64(0)
        while counter.waiting and entries[0].key == counter.count:
            waiter = entries[0].item
            counter.waiting = heap.pop(entries, counter.waiting)
            # Queue the waiter behind the heap: nodes it releases must not count first.
            heap.place(entries, counter.waiting, queue.NONE, queue.NONE, waiter)
            reached += 1
        for i in range(reached):
            lose_need(state, block, entries[counter.waiting + i].item, row.row + node)
    for i in range(own.starter_count):
        waiter = table.longs(state)[own.starters + i]
        its = table.counting(state, template.counting + 5 * waiter)
        counter = table.counters(state, base + 2 * its.waits_for)
        entries = table.arena_heap(state, base + table.waiting(state, template.waiting + 4 * its.waits_for).word)
        heap.push(entries, counter.waiting, counter.count + its.target, waiter, waiter)
        counter.waiting += 1
