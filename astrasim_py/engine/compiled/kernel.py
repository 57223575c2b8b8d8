"""The kernel: one compiled loop that runs a state to its end.

Each step of the loop takes the first of these actions that applies: complete a due node; send a message; carry a
message over its next link; issue the next node of the dispatching rank's wave; take the next event of the current time;
begin a wave of the lowest rank with ready nodes; advance to the next time.

The kernel returns only between steps: after a number of steps, or when a pool could run out. The caller then enlarges
the pool and calls it again.
"""

import numpy as np

from astrasim_py.core.jit import lean, optional, record_kernel
from astrasim_py.engine.compiled import arrivals, blocks, capacity, events, queue, records, table
from astrasim_py.engine.compiled.dispatch import complete, issue
from astrasim_py.engine.compiled.links import carry
from astrasim_py.engine.compiled.waves import make_wave

change_links = optional("astrasim_py.dialects.link_events.kernel:change")
resume_flow = optional("astrasim_py.dialects.link_events.kernel:resume")
begin_change = optional("astrasim_py.dialects.link_events.kernel:begin_change")
head_arrives = optional("astrasim_py.dialects.thread_blocks.kernel:head_arrives")
leave_link = optional("astrasim_py.dialects.fluid.kernel:leave")
next_end = optional("astrasim_py.dialects.fluid.kernel:next_time")
advance_to_end = optional("astrasim_py.dialects.fluid.kernel:advance_time")
settle = optional("astrasim_py.dialects.fluid.kernel_rates:settle")
links_changed = optional("astrasim_py.dialects.fluid.kernel_rates:links_changed")
make_gates = optional("astrasim_py.dialects.tiles.kernel:make_gates")


@record_kernel("the engine")
def advance(state):
    """Run until no work is left, an error occurs, a pool could run out, or the step budget is used up.

    `state`: `records.STATE` or `records.WHOLE` of `astrasim_py.engine.compiled`.
    """
    state.budget = 0
    if state.status == records.UNBORN:
        begin_run(state)
    while True:
        if state.due_count or state.done:
            complete(state)
        elif state.sender >= 0:
            events.send(state)
        elif state.carried >= 0:
            carry(state)
        else:
            # The kernel can return here.
            state.budget -= 1
            if (state.budget < 0 or state.arena_top > state.arena_limit) and not capacity.has_room(state):
                return
            if state.wave_next < state.wave_size:
                issue(state)
            elif state.rank >= 0:
                next_wave(state)
            elif not take_next(state):
                return


@lean
def next_wave(state):
    """Make the next wave from the nodes that became ready in this one; without any, the rank's dispatch ends."""
    rank = table.ranks(state, state.rank)
    if rank.ready:
        make_wave(state, state.rank)
        return
    rank.awake = 0
    state.rank = -1
    if state.issued + state.hops > state.max_events:
        events.fail(state, records.TOO_MANY_EVENTS)


@lean
def take_next(state):
    """Take the next event or the next dispatching rank, or advance the time; False if nothing is left."""
    if state.scheduled:
        state.rank = queue.next_awake(state)
        if state.rank >= 0:
            return True
    if change_links(state):
        return True
    e = np.int64(queue.next_event(state))
    if e >= 0:
        kind = table.events(state, e).kind
        if kind == records.HEAD:
            head_arrives(state, e)
        elif kind == records.LEAVE:
            leave_link(state, e)
        elif resume_flow(state, e):
            pass
        else:
            arrivals.apply(state, e)
        return True
    if not state.scheduled:
        state.rank = queue.next_awake(state)
        if state.rank >= 0:
            return True
    if state.touched or links_changed(state):
        settle(state)
        return True
    time = next_end(state) if state.end_count else queue.next_time(state)
    if begin_change(state, time):
        return True
    if time < 0 or (state.background and state.foreground == 0):
        state.status = records.FINISHED
        return False
    if state.max_time >= 0 and time > state.max_time:
        state.status = records.TOO_LATE
        return False
    if state.end_count:
        advance_to_end(state, time)
    else:
        queue.advance_time(state)
    return True


@lean
def begin_run(state):
    """Make the blocks of all workloads and start their ranks."""
    state.status = records.RUNNING
    for number in range(state.rank_count):
        rank = table.ranks(state, number)
        words = blocks.new_states(state, rank.template)
        block = table.blocks(state, blocks.new_block(state, rank.template, number, words))
        block.ranks = rank.first
        block.flags |= records.SPLICED
        block.row = rank.row if state.record_nodes else queue.NONE
        state.foreground += 1 if block.left and not rank.background else 0
        make_gates(state, number)
        if rank.queues:
            rank.queue = queue.take_zeros(state, records.QUEUE_WORDS * rank.queues)
            for i in range(rank.queues):
                line = table.queues(state, rank.queue + records.QUEUE_WORDS * i)
                line.capacity = table.longs(state)[rank.capacities + i]
    for number in range(state.rank_count):
        if table.ranks(state, number).delay:
            e = events.new_event(state, records.BEGIN, np.int64(0), number)
            events.number_event(state, e)
            queue.push(state, table.ranks(state, number).delay, e)
        else:
            arrivals.begin_rank(state, number)
