"""Random numbers for compiled code: xorshift64*, the same on every machine."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import lean

#: Shifts and factor of xorshift64*.
A, B, C = np.uint64(12), np.uint64(25), np.uint64(27)
STAR = np.uint64(2685821657736338717)
_32 = np.uint64(32)
_MASK = 2**64 - 1


def generator(seed: int) -> np.ndarray:
    """uint64[1]: state of a generator, never 0."""
    x = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return np.array([x ^ x >> 31 | 1], dtype=np.uint64)


@lean
def random_below(state, bound):
    """A random number in 0..bound-1; `state` is uint64[1]."""
    x = state[0]
    x ^= x >> A
    x ^= x << B
    x ^= x >> C
    state[0] = x
    return np.int64((((x * STAR) >> _32) * np.uint64(bound)) >> _32)
