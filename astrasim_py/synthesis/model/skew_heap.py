"""Skew heaps for compiled code: many heaps over disjoint sets of numbers, in arrays that they share."""

from __future__ import annotations

from astrasim_py.core.jit import lean


@lean
def merge(a, b, rank, left, right):
    """The root of two heaps (by their roots; -1: empty) made one, the greatest rank first."""
    if a < 0:
        return b
    if b < 0:
        return a
    if rank[a] < rank[b]:
        a, b = b, a
    root = a
    while True:
        r = right[a]
        right[a] = left[a]
        if r < 0:
            left[a] = b
            return root
        if rank[r] < rank[b]:
            r, b = b, r
        left[a] = r
        a = r
