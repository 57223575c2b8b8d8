"""Waves: the ready nodes of a rank in the order in which they are issued."""

import numpy as np

from astrasim_py.core import heap
from astrasim_py.core.jit import lean, optional
from astrasim_py.engine.compiled import queue, table
from astrasim_py.system.programs import AFTER_CALLS

by_hash_set = optional("astrasim_py.dialects.astra_sim.kernel:by_hash_set")


@lean
def make_wave(state, number):
    """Take the ready nodes of a rank in ascending (call, node), and scheduled chunks in order of arrival."""
    rank, entries = table.ranks(state, number), table.wave(state, 0)
    count = rank.ready
    rank.ready = 0
    state.wave_next = 0
    state.wave_size = count
    ascending = True
    for i in range(count):
        entry = table.arena(state)[rank.others + i - 1] if i else rank.entry
        block = table.blocks(state, entry >> 32)
        order = block.call + 1
        if state.scheduled and block.run:
            order = AFTER_CALLS + table.runs(state, block.run).arrival
        key = queue.entry_of(order, entry & queue.NODE_MASK)
        if i and key < entries[i - 1].key:
            ascending = False
        heap.place(entries, i, key, np.int64(i), entry)
    if state.scheduled:
        ascending &= not by_hash_set(state, entries, count)
    if not ascending:
        heap.sort(entries, count)
