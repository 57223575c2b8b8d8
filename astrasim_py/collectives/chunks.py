"""Chunks of a buffer: which buffer of a rank they lie in, what is done to them, and how many bytes they are."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Buffer(IntEnum):
    """Buffers of a rank, as columns `src_buf` and `dst_buf` number them."""

    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


class CompOp(IntEnum):
    """Operations of COMP nodes, as column `comp_op` numbers them."""

    REDUCE = 1
    COPY = 2


def chunk_bytes(index: np.ndarray, count: np.ndarray, size: int, total: int) -> np.ndarray:
    """Bytes of chunks [index, index + count) of a buffer of `size` bytes that is cut into `total` chunks.

    They are ⌊(i + cnt)·S/T⌋ - ⌊i·S/T⌋, so the chunks of a buffer sum to exactly `size` also where `total` does
    not divide it.

    `index`, `count`: int64[k], not negative. `size`: bytes, 0 ≤ size < 2**63. `total`: at least 1. Returns int64[k]
    bytes.
    """
    index, count = np.asarray(index, dtype=np.int64), np.asarray(count, dtype=np.int64)
    whole, rest = divmod(size, total)
    last = int((index + count).max(initial=0))
    if last * max(whole, rest, 1) >= 2**62:  # beyond int64: exact, but slow
        end = (index.astype(object) + count) * size // total
        return (end - index.astype(object) * size // total).astype(np.int64)
    return count * whole + ((index + count) * rest // total - index * rest // total)
