"""Random numbers for compiled code: xorshift64*, the same on every machine."""

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
def random_bits(state):
    """64 random bits; `state` is uint64[1]."""
    x = state[0]
    x ^= x >> A
    x ^= x << B
    x ^= x >> C
    state[0] = x
    return x * STAR


@lean
def random_below(state, bound):
    """A random number in 0..bound-1."""
    return np.int64(((random_bits(state) >> _32) * np.uint64(bound)) >> _32)


@lean
def shuffle(values, first, end, state):
    """Bring ``values[first:end]`` into random order."""
    for i in range(end - 1, first, -1):
        j = first + random_below(state, i - first + 1)
        values[i], values[j] = values[j], values[i]


@lean
def shuffle_equals(values, size, key, state):
    """Bring the first `size` values, ordered by ``key[value]``, into random order where keys are equal."""
    i = 0
    while i < size:
        j = i + 1
        while j < size and key[values[j]] == key[values[i]]:
            j += 1
        shuffle(values, i, j, state)
        i = j
