"""Protocols of MSCCL-style runtimes: how much a connection holds.

NCCL keeps 8 steps per connection (NCCL_STEPS); an operation takes 4 of them under Simple and one under LL and LL128.
"""

from __future__ import annotations

#: Messages that a connection holds, by protocol.
PROTOCOL_SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
PROTOCOLS = tuple(PROTOCOL_SLOTS)
#: Bytes of data of one such message, by protocol: half of a 4 MiB buffer; 512 threads × 8 lines × 8 bytes; 15/16 of an
#: eighth of 640 × 120 × 8 × 8 bytes.
SLOT_BYTES = {"Simple": 2 * 2**20, "LL": 32 * 2**10, "LL128": 576_000}
#: Most chunks of one message; the interpreter's field is no wider.
MAX_CHUNKS_PER_MESSAGE = 71


def max_count(protocol: str, size: int, chunks: int) -> int:
    """Chunks that one message holds: clamp(⌊slot bytes / ⌈size / chunks⌉⌋, 1, 71). A chunk that is larger than a slot
    is one message all the same."""
    chunk = -(-size // chunks) if chunks else 0
    return min(max(SLOT_BYTES[protocol] // chunk, 1), MAX_CHUNKS_PER_MESSAGE) if chunk else MAX_CHUNKS_PER_MESSAGE
