"""Random numbers for compiled code: xorshift64*, the same on every machine."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import helper, lean

#: Shifts and factor of xorshift64*.
A, B, C = np.uint64(12), np.uint64(25), np.uint64(27)
STAR = np.uint64(2685821657736338717)
_32, _ONE = np.uint64(32), np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@lean
def random_below(state, bound):
    """A random number in 0..bound-1 (xorshift64*); `state` is uint64[1]."""
    x = state[0]
    x ^= x >> A
    x ^= x << B
    x ^= x >> C
    state[0] = x
    return np.int64((((x * STAR) >> _32) * np.uint64(bound)) >> _32)


@helper
def seeded(seed):
    """State of a generator, never 0."""
    state = np.empty(1, dtype=np.uint64)
    x = np.uint64(seed) * _GOLDEN + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    state[0] = x | _ONE
    return state
