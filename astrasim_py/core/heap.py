"""A binary heap for compiled code: the first `size` entries of an array of `ENTRY`, the least one first.

Entries are ordered by (key, tie). The caller stores the size and ensures capacity before a push.
"""

import numpy as np

from astrasim_py.core.jit import inlined, lean

#: An entry: its key, the tie-break among equal keys, and its item.
ENTRY = np.dtype([("key", np.int64), ("tie", np.int64), ("item", np.int64)], align=True)


@inlined
def precedes(key, tie, other_key, other_tie):
    """Whether (key, tie) < (other_key, other_tie), without a hard-to-predict branch."""
    return (key < other_key) | ((key == other_key) & (tie < other_tie))


@inlined
def place(heap, at, key, tie, item):
    """Write an entry."""
    entry = heap[at]
    entry.key = key
    entry.tie = tie
    entry.item = item


@lean
def push(heap, size, key, tie, item):
    """Add an entry to a heap of `size` entries; among equal (key, tie) it comes last."""
    hole = np.int64(size)
    while hole > 0:
        parent = heap[(hole - 1) >> 1]
        if not precedes(key, tie, parent.key, parent.tie):
            break
        place(heap, hole, parent.key, parent.tie, parent.item)
        hole = (hole - 1) >> 1
    place(heap, hole, key, tie, item)


@lean
def pop(heap, size):
    """Remove the first entry of a heap of `size` entries; read ``heap[0]`` before. Returns the new size."""
    size = np.int64(size) - 1
    last = heap[size]
    key, tie, item = last.key, last.tie, last.item
    hole = np.int64(0)
    while True:
        at = 2 * hole + 1
        if at >= size:
            break
        # The entry after the last one still exists: it is the one being moved.
        left, right = heap[at], heap[at + 1]
        at += np.int64(precedes(right.key, right.tie, left.key, left.tie))
        child = heap[at]
        if not precedes(child.key, child.tie, key, tie):
            break
        place(heap, hole, child.key, child.tie, child.item)
        hole = at
    place(heap, hole, key, tie, item)
    return size


@lean
def sort(entries, count):
    """Sort the first `count` entries in place, in time O(count log count) and without memory."""
    for i in range(count):
        entry = entries[i]
        push(entries, i, entry.key, entry.tie, entry.item)
    for size in range(count, 0, -1):
        first = entries[0]
        key, tie, item = first.key, first.tie, first.item
        pop(entries, size)
        place(entries, size - 1, key, tie, item)
    # The greatest is first now.
    for i in range(count // 2):
        left, right = entries[i], entries[count - 1 - i]
        key, tie, item = left.key, left.tie, left.item
        place(entries, i, right.key, right.tie, right.item)
        place(entries, count - 1 - i, key, tie, item)
