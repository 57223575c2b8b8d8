"""Every transfer as early as the order of transfers on its links lets it.

A schedule fixes an order of transfers on every link. What an engine measures of it is the earliest time of each that
keeps this order and the causes; a schedule claims exactly that.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.greedy import _ready


@kernel("the synthesizer", threads=True)
def earliest(
    arc, chunk, order, origin, size_class, n, src, dst, hop_ptr, hop, offset, hold, delay,
    occupied_ptr, occupied_start, occupied_end, start,
):  # fmt: skip
    """Fill `start` with the earliest times, the transfers being taken in `order`; returns the last arrival."""
    chunks = len(origin)
    known = np.zeros(n * chunks, dtype=np.int64)
    free = np.zeros(hop.max() + 1, dtype=np.int64)
    simple = False
    last = np.int64(0)
    for i in range(len(order)):
        row = order[i]
        a, c = np.int64(arc[row]), np.int64(chunk[row])
        z = np.int64(size_class[c])
        t = _ready(
            a, known[src[a] * chunks + c], hop_ptr, hop, offset[z : z + 1], hold[z : z + 1], free, simple,
            occupied_ptr, occupied_start, occupied_end,
        )  # fmt: skip
        start[row] = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            free[hop[h]] = t + offset[z, h] + hold[z, h]
        arrives = t + delay[z, a]
        at = dst[a] * chunks + c
        # A copy replaces nothing: its target waited for it alone. A part of a sum is one of several.
        known[at] = max(known[at], arrives)
        last = max(last, arrives)
    return last
