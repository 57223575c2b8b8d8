"""Ends of messages under ``fluid``: a heap of flows by the end of their message, with movable entries."""

import numpy as np

from astrasim_py.core import heap
from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import table


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


@lean
def take_first(state):
    """Remove the first flow from the heap and return it."""
    ends = table.ends(state, 0)
    number = np.int64(ends[0].item)
    table.flows(state, number).place = 0
    state.end_count -= 1
    last = ends[state.end_count]
    if state.end_count:
        sink(state, np.int64(0), np.int64(last.key), np.int64(last.tie), np.int64(last.item))
    return number


@lean
def remove(state, number):
    """Remove a flow from the heap."""
    at = table.flows(state, number).place - 1
    table.flows(state, number).place = 0
    state.end_count -= 1
    last = table.ends(state, 0)[state.end_count]
    if last.item != number:
        table.flows(state, last.item).place = at + 1
        schedule(state, np.int64(last.item), np.int64(last.key), np.int64(last.tie))
