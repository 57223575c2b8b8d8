"""NICs: overhead and gap of messages."""

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import blocks, events, queue, records, table


@lean
def handle(state, number):
    """Spend the overhead of a message on a rank; returns when that is over. Switches spend nothing."""
    if number >= state.npu_ranks:
        return state.now
    rank = table.ranks(state, number)
    rank.free = max(rank.free, state.now) + state.overhead
    if rank.free < 0:
        events.fail(state, records.OVERFLOW)
    return rank.free


@lean
def after_gap(state, time):
    """Return the time of a gap later."""
    return time + state.gap if time <= events.MOST - state.gap else events.MOST


@lean
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


@lean
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


@lean
def receive(state, block, node, cause):
    """A receive that has its message is done once the overhead is spent; `cause`: row of the node that ends it."""
    done = handle(state, np.int64(table.blocks(state, block).rank))
    if done == state.now:
        events.complete_next(state, block, node, cause)
        return True
    ended = events.new_event(state, records.END, block, node)
    table.events(state, ended).row = cause
    events.number_event(state, ended)
    if state.counts_references:
        table.blocks(state, block).references += 1
    events.push_checked(state, done, ended)
    return False
