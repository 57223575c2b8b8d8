"""Chunks of a buffer: where they lie in a rank, what is done to them, how many bytes they are, and messages of them.

Connections of MSCCL-style runtimes hold 8 steps, as in NCCL (NCCL_STEPS); an operation takes 4 of them under the
protocol Simple and one under LL and LL128.
"""

from enum import IntEnum

import numpy as np

#: Messages that a connection holds, by protocol.
PROTOCOL_SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
#: Bytes of data of one such message, by protocol: half of a 4 MiB buffer; 512 threads × 8 lines × 8 bytes; 15/16 of an
#: eighth of 640 × 120 × 8 × 8 bytes.
SLOT_BYTES = {"Simple": 2 * 2**20, "LL": 32 * 2**10, "LL128": 576_000}
#: Most chunks of one message: the width of the interpreter's field.
MAX_CHUNKS_PER_MESSAGE = 71


class Buffer(IntEnum):
    """Buffers of a rank, as columns `src_buf` and `dst_buf` number them."""

    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


class CompOp(IntEnum):
    """Operations of COMP nodes, as column `comp_op` numbers them."""

    REDUCE = 1
    COPY = 2


def share(whole: np.ndarray, number: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """int64[k]: the `number`-th (from 0) of equal parts of each whole, ⌊(k + 1) b / q⌋ - ⌊k b / q⌋; they sum to it."""
    quotient, rest = whole // parts, whole % parts
    return quotient + (rest * (number + 1) // parts - rest * number // parts)


def chunk_bytes(index: np.ndarray, count: np.ndarray, size: int, total: int) -> np.ndarray:
    """Bytes of chunks [index, index + count) of a buffer of `size` bytes that is cut into `total` chunks.

    They are ⌊(i + cnt)·S/T⌋ - ⌊i·S/T⌋, so the chunks of a buffer sum to exactly `size` also where `total` does
    not divide it.

    `index`, `count`: int64[k], not negative. `size`: bytes, 0 ≤ size < 2**63. `total`: at least 1. Returns int64[k]
    bytes.
    """
    index, count = np.asarray(index, dtype=np.int64), np.asarray(count, dtype=np.int64)
    quotient, rest = divmod(size, total)
    last = int((index + count).max(initial=0))
    if last * max(quotient, rest, 1) >= 2**62:  # beyond int64: exact, but slow
        end = (index.astype(object) + count) * size // total
        return (end - index.astype(object) * size // total).astype(np.int64)
    return count * quotient + ((index + count) * rest // total - index * rest // total)


def max_count(protocol: str, size: int, chunks: int) -> int:
    """Chunks that one message holds: clamp(⌊slot bytes / ⌈size / chunks⌉⌋, 1, 71). A chunk that is larger than a slot
    is one message all the same."""
    chunk = -(-size // chunks) if chunks else 0
    return min(max(SLOT_BYTES[protocol] // chunk, 1), MAX_CHUNKS_PER_MESSAGE) if chunk else MAX_CHUNKS_PER_MESSAGE
