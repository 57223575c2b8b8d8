"""The heap of compiled code: entries leave it in order, whatever order they came in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core import heap
from astrasim_py.core.jit import kernel


@kernel("the heap")
def push(entries, size, key, tie, item):
    heap.push(entries, size, key, tie, item)


@kernel("the heap")
def pop(entries, size):
    return heap.pop(entries, size)


@kernel("the heap")
def sort(entries, count):
    heap.sort(entries, count)


PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**62), 2**62)), max_size=40)


@given(pairs=PAIRS, pops=st.lists(st.booleans(), max_size=40))
def test_heap_pops_the_least_entry(pairs, pops):
    entries, size, inside, popped = np.empty(len(pairs), dtype=heap.ENTRY), 0, [], iter(pops)
    for i, (key, tie) in enumerate(pairs):
        push(entries, size, key, tie, i)
        size += 1
        inside.append((key, tie))
        if next(popped, False):
            assert entries[0].tolist()[:2] == min(inside)
            inside.remove(min(inside))
            size = pop(entries, size)
    while size:
        key, tie, item = entries[0].tolist()
        assert (key, tie) == min(inside) == pairs[item]
        inside.remove((key, tie))
        size = pop(entries, size)
    assert not inside


@given(pairs=PAIRS)
def test_heap_sort_is_the_order_of_key_and_tie(pairs):
    entries = np.array([(key, tie, i) for i, (key, tie) in enumerate(pairs)], dtype=heap.ENTRY)
    sort(entries, len(pairs))
    assert [row[:2] for row in entries.tolist()] == sorted(pairs)
    assert all(pairs[item] == (key, tie) for key, tie, item in entries.tolist())
