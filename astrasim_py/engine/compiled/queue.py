"""The kernel's memory, its queue of events, and the ranks that must dispatch.

*Arena*: words of 64 bits, handed out in powers of two; every size has a list of free places.
Events, matches, blocks and so on are rows of separate pools; free rows are linked.

*Queue*: events of one time form a list, the bucket of that time. A heap holds the distinct times, a hash table finds
the bucket of a time, and a list is sorted when its time comes, if it is not in order already. Events scheduled for the
current time during that time are inserted in order.
"""

import numpy as np

from astrasim_py.core import heap
from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import records, table

#: de Bruijn multiplication finds the lowest bit of a word.
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
LOWEST = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    LOWEST[((1 << _bit) * int(DE_BRUIJN) & (1 << 64) - 1) >> 58] = _bit
NODE_MASK = np.int64(0xFFFFFFFF)
NONE = np.int64(-1)


@inlined
def entry_of(block, node):
    return (np.int64(block) << 32) | np.int64(node)


# -- the arena and the pools --------------------------------------------------------------------------------------


@lean
def size_class(words):
    """Return the size of the arena's places that hold `words` words, a power of two, and its number."""
    size, number = np.int64(4), np.int64(0)
    while size < words:
        size *= 2
        number += 1
    return size, number


@lean
def take(state, words):
    """Allocate uninitialised words of the arena."""
    size, number = size_class(words)
    found = table.free_words(state)[number]
    if found:
        table.free_words(state)[number] = table.arena(state)[found]
        return found
    found = state.arena_top
    state.arena_top = found + size
    return found


@lean
def take_zeros(state, words):
    """Allocate zeroed words of the arena."""
    place = take(state, words)
    for i in range(words):
        table.arena(state)[place + i] = 0
    return place


@lean
def give(state, place, words):
    _, number = size_class(words)
    table.arena(state)[place] = table.free_words(state)[number]
    table.free_words(state)[number] = place


@inlined
def take_row(state, rows, pool):
    """Allocate a row of a pool; `rows` is the pool's access function."""
    row = table.pools(state, pool).free
    if row >= 0:
        table.pools(state, pool).free = rows(state, row).next
        return row
    row = table.pools(state, pool).top
    table.pools(state, pool).top = row + 1
    return row


@inlined
def give_row(state, rows, pool, row):
    rows(state, row).next = table.pools(state, pool).free
    table.pools(state, pool).free = row


# -- the queue of events ------------------------------------------------------------------------------------------


@inlined
def before(state, a, b):
    """Whether event `a` comes before event `b` of the same time."""
    left, right = table.events(state, a), table.events(state, b)
    if left.scheduled != right.scheduled:
        return left.scheduled < right.scheduled
    return left.number < right.number


@inlined
def push(state, time, e):
    if time == state.last_time:
        append(state, state.last_bucket, e)
    else:
        push_elsewhere(state, time, e)


@inlined
def append(state, number, e):
    bucket = table.buckets(state, number)
    table.events(state, e).next = -1
    if bucket.first < 0:
        bucket.first = e
    else:
        table.events(state, bucket.last).next = e
        if before(state, e, bucket.last):
            bucket.ascending = 0
    bucket.last = e


@lean
def push_elsewhere(state, time, e):
    """Schedule an event for a time other than that of the last one."""
    if time == state.now:
        join_present(state, e)
        return
    slot = ((time * records.SPREAD) >> 20) & state.hash_mask
    bucket = np.int64(table.hashed(state)[slot])
    while bucket >= 0 and table.buckets(state, bucket).time != time:
        bucket = table.buckets(state, bucket).next
    if bucket < 0:
        bucket = take_row(state, table.buckets, records.BUCKETS)
        new = table.buckets(state, bucket)
        new.time = time
        new.first = -1
        new.ascending = 1
        new.next = np.int64(table.hashed(state)[slot])
        table.hashed(state)[slot] = bucket
        heap.push(table.times(state, 0), state.time_count, time, bucket, bucket)
        state.time_count += 1
    state.last_time = time
    state.last_bucket = bucket
    append(state, bucket, e)


@lean
def join_present(state, e):
    """Insert an event into the ordered list of events of the current time."""
    last = state.current_last
    table.events(state, e).next = -1
    if state.current < 0:
        state.current = e
        state.current_last = e
    elif not before(state, e, last):
        table.events(state, last).next = e
        state.current_last = e
    elif before(state, e, state.current):
        table.events(state, e).next = state.current
        state.current = e
    else:
        behind = state.current
        while not before(state, e, np.int64(table.events(state, behind).next)):
            behind = np.int64(table.events(state, behind).next)
        table.events(state, e).next = table.events(state, behind).next
        table.events(state, behind).next = e


@inlined
def next_time(state):
    """Return the next time with events; -1 if there is none."""
    return table.times(state, 0)[0].key if state.time_count else NONE


@lean
def advance_time(state):
    """Advance to the next time with events, and make them current."""
    first = table.times(state, 0)[0]
    time, number = first.key, first.item
    state.now = time
    state.time_count = heap.pop(table.times(state, 0), state.time_count)
    bucket = table.buckets(state, number)
    slot = ((time * records.SPREAD) >> 20) & state.hash_mask
    behind = np.int64(table.hashed(state)[slot])
    if behind == number:
        table.hashed(state)[slot] = bucket.next
    else:
        while table.buckets(state, behind).next != number:
            behind = table.buckets(state, behind).next
        table.buckets(state, behind).next = bucket.next
    if state.last_time == time:
        state.last_time = -1
    state.current, state.current_last = bucket.first, bucket.last
    if not bucket.ascending:
        state.current, state.current_last = sort_events(state, bucket.first)
    give_row(state, table.buckets, records.BUCKETS, number)


@lean
def end_of_run(state, e):
    """Return the last event of the ascending run that begins with `e`."""
    following = np.int64(table.events(state, e).next)
    while following >= 0 and not before(state, following, e):
        e = following
        following = np.int64(table.events(state, e).next)
    return e


@lean
def sort_events(state, head):
    """Sort a list of events by a stable merge sort of its ascending runs; returns its first and its last."""
    while True:
        first, tail, merges = NONE, NONE, 0
        rest = head
        while rest >= 0:
            merges += 1
            a = rest
            last = end_of_run(state, a)
            b = np.int64(table.events(state, last).next)
            table.events(state, last).next = -1
            rest = NONE
            if b >= 0:
                last = end_of_run(state, b)
                rest = np.int64(table.events(state, last).next)
                table.events(state, last).next = -1
            while a >= 0 or b >= 0:
                if b < 0 or (a >= 0 and not before(state, b, a)):
                    taken = a
                    a = np.int64(table.events(state, a).next)
                else:
                    taken = b
                    b = np.int64(table.events(state, b).next)
                if tail < 0:
                    first = taken
                else:
                    table.events(state, tail).next = taken
                tail = taken
            table.events(state, tail).next = -1
        head = first
        if merges <= 1:
            return head, tail


@inlined
def next_event(state):
    """Return the next event of the current time; -1 if none is left."""
    e = state.current
    if e >= 0:
        state.current = table.events(state, e).next
    return e


# -- ranks that must dispatch -------------------------------------------------------------------------------------


@lean
def wake(state, number):
    """Mark a rank as having ready nodes: it will dispatch."""
    rank = table.ranks(state, number)
    if rank.awake:
        return
    rank.awake = 1
    if state.scheduled:
        rank.next_awake = -1
        if state.awake < 0:
            state.awake = number
        else:
            table.ranks(state, state.awake_last).next_awake = number
        state.awake_last = number
        return
    table.dirty(state)[number >> 6] |= np.int64(1) << (number & 63)
    state.first_dirty = min(state.first_dirty, number >> 6)
    state.awake_count += 1


@lean
def next_awake(state):
    """Remove and return the next rank that must dispatch; -1 if there is none."""
    if state.scheduled:
        rank = state.awake
        if rank >= 0:
            state.awake = table.ranks(state, rank).next_awake
        return rank
    if state.awake_count == 0:
        state.first_dirty = state.rank_count
        return NONE
    while table.dirty(state)[state.first_dirty] == 0:
        state.first_dirty += 1
    word = table.dirty(state)[state.first_dirty]
    lowest = np.uint64(word & -word)
    table.dirty(state)[state.first_dirty] = word & (word - 1)
    state.awake_count -= 1
    return (state.first_dirty << 6) + LOWEST[np.int64((lowest * DE_BRUIJN) >> np.uint64(58))]


@lean
def grow_ready(state, number):
    """Double a rank's room for ready nodes, and note that waves may be as long."""
    rank = table.ranks(state, number)
    count, old = rank.room, rank.others
    size = max(2 * count, np.int64(4))
    place = take(state, size)
    for i in range(count):
        table.arena(state)[place + i] = table.arena(state)[old + i]
    if count:
        give(state, old, count)
    rank.others = place
    rank.room = size
    if size > state.most_ready:
        state.most_ready = size
        state.budget = 0


@inlined
def make_ready(state, number, block, node):
    """Add a node to its rank's ready nodes."""
    rank = table.ranks(state, number)
    count = rank.ready
    rank.ready = count + 1
    if count == 0:
        rank.entry = entry_of(block, node)
        return
    if count >= rank.room:
        grow_ready(state, number)
    table.arena(state)[rank.others + count - 1] = entry_of(block, node)
