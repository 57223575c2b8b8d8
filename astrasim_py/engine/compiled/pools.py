"""What the kernel takes memory from, and its queue of events.

*Arena*: words of 64 bits, handed out in sizes of four steps to each power of two; every size has a list of what is free
again. *Events*, pairs and buckets are rows of pools of their own.

*Queue*: events of one time form a list, the bucket of that time. A heap holds the distinct times, a hash table finds
the bucket of a time, and a list is sorted when its time comes, if it is not in order already. Events that are made for
the present time while it lasts are kept apart, in order.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled.layout import *

#: Multiplier of the hash (2^64 / golden ratio, as a signed number), and of the search for the lowest bit.
SPREAD = -7046029254386353131
DE_BRUIJN = 0x03F79D71B4CB0A89
LOWEST = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    LOWEST[((1 << _bit) * DE_BRUIJN & (1 << 64) - 1) >> 58] = _bit


# -- the arena --------------------------------------------------------------------------------------------------


@inlined
def plain(index):
    """An index that is not negative, in words that the compiler understands: it need not count from the end."""
    return np.int64(index) & np.int64(0x7FFFFFFF)


@inlined
def upper(pair):
    """The first of two numbers of 32 bits."""
    return (pair >> 32) & np.int64(0x7FFFFFFF)


@lean
def size_class(words):
    """The size that holds so many words, and its number."""
    if words <= 4:
        return 4, 0
    power, level = 4, 0
    while power * 2 < words:
        power *= 2
        level += 1
    quarter = power >> 2
    step = (words - power + quarter - 1) // quarter
    return power + step * quarter, 4 * level + step


@lean
def take(G, A, words):
    """Words of the arena, not cleared."""
    size, number = size_class(words)
    found = G[G_CLASSES + number]
    if found:
        G[G_CLASSES + number] = A[found]
        return found
    found = G[G_ARENA_TOP]
    G[G_ARENA_TOP] = found + size
    return found


@lean
def give(G, A, place, words):
    """Give back what `take` gave."""
    _, number = size_class(words)
    A[place] = G[G_CLASSES + number]
    G[G_CLASSES + number] = place


@inlined
def take_row(G, pool, top, free, column):
    """A row of a pool whose free rows are linked by a column."""
    row = G[free]
    if row >= 0:
        row = plain(row)
        G[free] = pool[row, column]
        return row
    row = plain(G[top])
    G[top] = row + 1
    return row


@inlined
def give_row(G, pool, free, column, row):
    """Give back a row of a pool."""
    pool[row, column] = G[free]
    G[free] = row


# -- the queue --------------------------------------------------------------------------------------------------


@inlined
def before(E, a, b):
    """Whether event `a` comes before event `b` of the same time."""
    if E[a, E_KEY_1] != E[b, E_KEY_1]:
        return E[a, E_KEY_1] < E[b, E_KEY_1]
    return E[a, E_KEY_2] < E[b, E_KEY_2]


@lean
def join_present(G, E, e):
    """Put an event among those that were made for the present time, in order."""
    last = G[G_JOINED_LAST]
    E[e, E_NEXT] = -1
    if G[G_JOINED] < 0:
        G[G_JOINED] = e
        G[G_JOINED_LAST] = e
    elif not before(E, e, last):
        E[last, E_NEXT] = e
        G[G_JOINED_LAST] = e
    else:
        behind = G[G_JOINED]
        if before(E, e, behind):
            E[e, E_NEXT] = behind
            G[G_JOINED] = e
        else:
            while not before(E, e, E[behind, E_NEXT]):
                behind = E[behind, E_NEXT]
            E[e, E_NEXT] = E[behind, E_NEXT]
            E[behind, E_NEXT] = e


@lean
def new_bucket(G, K, Q, X, time):
    """The bucket of a time that has none."""
    slot = ((time * SPREAD) >> 20) & (len(X) - 1)
    bucket = take_row(G, K, G_BUCKET_TOP, G_BUCKET_FREE, 4)
    K[bucket, 0] = time
    K[bucket, 1] = -1
    K[bucket, 3] = 1
    K[bucket, 4] = X[slot]
    X[slot] = bucket
    hole = G[G_HEAP]
    G[G_HEAP] = hole + 1
    while hole > 0:
        parent = (hole - 1) >> 1
        if Q[parent, 0] <= time:
            break
        Q[hole, 0] = Q[parent, 0]
        Q[hole, 1] = Q[parent, 1]
        hole = parent
    Q[hole, 0] = time
    Q[hole, 1] = bucket
    return bucket


@lean
def push_elsewhere(G, E, K, Q, X, time, e):
    """Schedule an event for another time than the last one was."""
    if time == G[G_NOW]:
        join_present(G, E, e)
        return
    bucket = np.int64(X[((time * SPREAD) >> 20) & (len(X) - 1)])
    while bucket >= 0 and K[bucket, 0] != time:
        bucket = K[bucket, 4]
    if bucket < 0:
        bucket = new_bucket(G, K, Q, X, time)
    G[G_LAST_TIME] = time
    G[G_LAST] = bucket
    append(E, K, bucket, e)


@inlined
def append(E, K, bucket, e):
    """Put an event behind those of a bucket."""
    E[e, E_NEXT] = -1
    if K[bucket, 1] < 0:
        K[bucket, 1] = e
    else:
        last = plain(K[bucket, 2])
        E[last, E_NEXT] = e
        if before(E, e, last):
            K[bucket, 3] = 0
    K[bucket, 2] = e


@inlined
def push(G, E, K, Q, X, time, e):
    """Schedule an event."""
    if time == G[G_LAST_TIME]:
        append(E, K, plain(G[G_LAST]), e)
    else:
        push_elsewhere(G, E, K, Q, X, time, e)


@lean
def advance_time(G, E, K, Q, X):
    """Go to the next time that has events, and make them the present ones."""
    time, bucket = Q[0, 0], Q[0, 1]
    G[G_NOW] = time
    last = G[G_HEAP] - 1
    G[G_HEAP] = last
    moved_time, moved = Q[last, 0], Q[last, 1]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= last:
            break
        # No branch, which would go wrong half of the time. What lies behind the last has been moved away from there.
        child += np.int64(Q[child + 1, 0] < Q[child, 0]) & np.int64(child + 1 < last)
        if moved_time <= Q[child, 0]:
            break
        Q[hole, 0] = Q[child, 0]
        Q[hole, 1] = Q[child, 1]
        hole = child
    Q[hole, 0] = moved_time
    Q[hole, 1] = moved
    slot = ((time * SPREAD) >> 20) & (len(X) - 1)
    behind = np.int64(X[slot])
    if behind == bucket:
        X[slot] = K[bucket, 4]
    else:
        while K[behind, 4] != bucket:
            behind = K[behind, 4]
        K[behind, 4] = K[bucket, 4]
    if G[G_LAST_TIME] == time:
        G[G_LAST_TIME] = -1
    G[G_CURRENT] = K[bucket, 1] if K[bucket, 3] else sort_events(E, K[bucket, 1])
    give_row(G, K, G_BUCKET_FREE, 4, bucket)


@lean
def end_of_run(E, e):
    """Last event of the ascending run that begins with `e`."""
    following = E[e, E_NEXT]
    while following >= 0 and not before(E, following, e):
        e = following
        following = E[e, E_NEXT]
    return e


@lean
def sort_events(E, head):
    """Sort a list of events: a merge sort of its ascending runs, so that equal keys keep their order."""
    while True:
        first, tail, merges = np.int64(-1), np.int64(-1), 0
        rest = head
        while rest >= 0:
            merges += 1
            a = rest
            last = end_of_run(E, a)
            b = E[last, E_NEXT]
            E[last, E_NEXT] = -1
            rest = np.int64(-1)
            if b >= 0:
                last = end_of_run(E, b)
                rest = E[last, E_NEXT]
                E[last, E_NEXT] = -1
            while a >= 0 or b >= 0:
                if b < 0 or (a >= 0 and not before(E, b, a)):
                    taken = a
                    a = E[a, E_NEXT]
                else:
                    taken = b
                    b = E[b, E_NEXT]
                if tail < 0:
                    first = taken
                else:
                    E[tail, E_NEXT] = taken
                tail = taken
            E[tail, E_NEXT] = -1
        head = first
        if merges <= 1:
            return head


@inlined
def take_event(G, E):
    """The next event of the present time; -1 if none is left."""
    e, joined = G[G_CURRENT], G[G_JOINED]
    if joined >= 0 and (e < 0 or before(E, joined, e)):
        joined = plain(joined)
        G[G_JOINED] = E[joined, E_NEXT]
        return joined
    if e >= 0:
        e = plain(e)
        G[G_CURRENT] = E[e, E_NEXT]
    return e


# -- ranks that must dispatch -----------------------------------------------------------------------------------


@inlined
def wake(h, G, D, R, rank):
    """A rank has something ready: it will dispatch."""
    if R[rank, R_AWAKE]:
        return
    R[rank, R_AWAKE] = 1
    if h[H_SCHEDULED]:
        R[rank, R_WOKEN] = -1
        if G[G_WOKEN] < 0:
            G[G_WOKEN] = rank
        else:
            R[G[G_WOKEN_LAST], R_WOKEN] = rank
        G[G_WOKEN_LAST] = rank
        return
    place = rank
    for level in range(G[G_LEVELS]):
        word = G[G_LEVEL + level] + (place >> 6)
        known = D[word]
        D[word] = known | (np.int64(1) << (place & 63))
        if known:
            break
        place >>= 6


@inlined
def next_woken(h, G, D, R):
    """The rank that dispatches next, taken from those that must; -1 if none must."""
    if h[H_SCHEDULED]:
        rank = G[G_WOKEN]
        if rank >= 0:
            G[G_WOKEN] = R[rank, R_WOKEN]
        return rank
    levels = G[G_LEVELS]
    if D[G[G_LEVEL + levels - 1]] == 0:
        return np.int64(-1)
    place = np.int64(0)
    for level in range(levels - 1, -1, -1):
        word = D[G[G_LEVEL + level] + place]
        lowest = np.uint64(word & -word)
        place = (place << 6) + LOWEST[np.int64((lowest * np.uint64(DE_BRUIJN)) >> np.uint64(58))]
    rank = place
    for level in range(levels):
        word = G[G_LEVEL + level] + (place >> 6)
        D[word] &= ~(np.int64(1) << (place & 63))
        if D[word]:
            break
        place >>= 6
    return plain(rank)


@lean
def most_ready(G, count):
    """One rank can have so many ready nodes."""
    if count > G[G_READY]:
        G[G_READY] = count
        # The arena must have room for more.
        G[G_BUDGET] = 0


@lean
def more_room(G, A, R, rank, count):
    """Room for twice as many ready nodes of a rank."""
    size = max(2 * count, np.int64(4))
    place = take(G, A, size)
    old = R[rank, R_READY]
    for i in range(count):
        A[place + i] = A[old + i]
    if count:
        give(G, A, old, count)
    R[rank, R_READY] = place
    R[rank, R_ROOM] = size
    most_ready(G, size)


@inlined
def make_ready(G, A, R, rank, block, node):
    """A node of a block of a rank is ready."""
    count = R[rank, R_COUNT]
    R[rank, R_COUNT] = count + 1
    if count == 0:
        R[rank, R_ENTRY] = (block << 32) | node
        return
    if count > R[rank, R_ROOM]:
        more_room(G, A, R, rank, count - 1)
    A[R[rank, R_READY] + count - 1] = (block << 32) | node


@lean
def heap_push(A, place, count, key):
    """Add a key to a heap of `count` words at `place` of the arena."""
    hole = np.int64(count)
    while hole > 0:
        parent = (hole - 1) >> 1
        if A[place + parent] <= key:
            break
        A[place + hole] = A[place + parent]
        hole = parent
    A[place + hole] = key


@lean
def heap_pop(A, place, count):
    """Take the least of a heap of `count` words at `place` of the arena."""
    least, last = A[place], A[place + count - 1]
    hole, count = np.int64(0), count - 1
    while True:
        child = 2 * hole + 1
        if child >= count:
            break
        if child + 1 < count and A[place + child + 1] < A[place + child]:
            child += 1
        if last <= A[place + child]:
            break
        A[place + hole] = A[place + child]
        hole = child
    A[place + hole] = last
    return least
