"""The order of nodes that become ready together under ``issue_order: hash_set``."""

import numpy as np

from astrasim_py.core import hash_sets, heap
from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import queue, records, table


@lean
def by_hash_set(state, entries, count):
    """Sort nodes of blocks in the order of their hash set (`hash_sets.iteration_order`); whether there are any.

    Together they become ready as roots, which are in order, or by the end of one node of the block.
    """
    found = False
    for i in range(count):
        block = table.blocks(state, entries[i].item >> 32)
        if block.flags & records.HASH_SET:
            found = True
            entries[i].key = queue.entry_of(block.call + 1, i)
    block = table.blocks(state, entries[0].item >> 32)
    template = table.templates(state, block.template)
    if not block.flags & records.HASH_SET or count == 1 or block.left == template.nodes:
        return found
    place, done = block.words + template.words - 1, np.int64(0)
    while done < count:
        buckets = table.arena(state)[place]
        done = min(count, buckets)
        for i in range(done):
            first, own = i, bucket_of(state, template.ids, entries[i].item, buckets)
            for k in range(i - 1, -1, -1):
                if bucket_of(state, template.ids, entries[k].item, buckets) == own:
                    first = k
            entries[i].key = -first
            entries[i].tie = -i
        heap.sort(entries, done)
        if done < count:
            size = 0
            while hash_sets.BUCKETS[size] <= buckets:
                size += 1
            table.arena(state)[place] = hash_sets.BUCKETS[size]
    for i in range(count):
        entries[i].key = queue.entry_of(block.call + 1, i)
    return found


@inlined
def bucket_of(state, ids, entry, buckets):
    """The bucket of a hash set in which a node is."""
    return np.uint64(table.longs(state)[ids + (entry & queue.NODE_MASK)]) % np.uint64(buckets)
