"""Every transfer as early as the order of transfers on its links lets it.

A schedule fixes an order of transfers on every link. What an engine measures of it is the earliest time of each that
keeps this order and the causes; a schedule claims exactly that.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.model.insertion import ordered


@kernel("the synthesizer", threads=True, lean=True)
def earliest(
    arc, chunk, order, size_class, src, dst, hop_ptr, hop, offset, held, delay, points, filled, free, known, start,
):  # fmt: skip
    """Fill `start` with the earliest times, the transfers being taken in `order`; returns the last arrival.

    Parameters
    ----------
    points, filled
        Calendars of what others hold.
    free, known : int64[resources], int64[n, chunks]
        Zeros.
    """
    last = np.int64(0)
    for i in range(len(order)):
        row = order[i]
        a, c = np.int64(arc[row]), np.int64(chunk[row])
        z = np.int64(size_class[c])
        t = ordered(a, z, known[src[a], c], hop_ptr, hop, offset, held, points, filled, free)
        start[row] = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            free[hop[h]] = t + offset[z, h] + held[z, h]
        arrives = t + delay[z, a]
        # A copy replaces nothing: its target waited for it alone. A part of a sum is one of several.
        known[dst[a], c] = max(known[dst[a], c], arrives)
        last = max(last, arrives)
    return last
