"""Integers of 128 bits for compiled code, each as two of 64 bits, the high one first; none is negative."""

import numpy as np

from astrasim_py.core.jit import lean

_LOW, _HALF, _ZERO = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(0)
_INT64_MAX = np.uint64(2**63 - 1)
_TWO_64, _TWO_62, _LESS = 2.0**64, 2.0**62, 1 - 2.0**-50


@lean
def product(a, b):
    """The product of two int64."""
    x, y = np.uint64(a), np.uint64(b)
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    low = x0 * y0
    middle = x1 * y0 + (low >> _HALF)
    other = x0 * y1 + (middle & _LOW)
    return x1 * y1 + (middle >> _HALF) + (other >> _HALF), (other << _HALF) | (low & _LOW)


@lean
def difference(high, low, other_high, other_low):
    """The difference of two numbers; the second is at most the first."""
    return high - other_high - np.uint64(low < other_low), low - other_low


@lean
def divided_up(high, low, divisor):
    """A number divided by an int64 > 0, rounded up; -1: 2^62 or more.

    Doubles guess a little less than the quotient; what is left is divided again, until it fits into 63 bits.
    """
    quotient = np.int64(0)
    while high != _ZERO or low > _INT64_MAX:
        guess = (np.float64(high) * _TWO_64 + np.float64(low)) / np.float64(divisor) * _LESS
        if guess >= _TWO_62:
            return np.int64(-1)
        part = max(np.int64(guess), np.int64(1))
        part_high, part_low = product(part, divisor)
        high, low = difference(high, low, part_high, part_low)
        quotient += part
    rest = np.int64(low)
    return quotient + rest // divisor + np.int64(rest % divisor != 0)
