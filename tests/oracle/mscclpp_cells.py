"""Cells of 8 bytes of the buffers of an MSCCL++ plan (the raw JSON object), and what its collective wants in them."""

from __future__ import annotations

import hashlib
from math import lcm
from typing import NamedTuple

#: Values are random integers below it, so that sums are equal only if their terms are.
MODULUS = (1 << 61) - 1
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall")


class Shape(NamedTuple):
    """Threads of a block; units of 16 bytes in a chunk, in an iteration of a pipeline, and in a chunk of a scratch
    buffer that iterations use in turn (0: as large as any chunk)."""

    threads: int
    chunk: int
    iteration: int
    wrap: int = 0


def operations(plan):
    """All operations of a plan with those inside pipelines."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                yield op
                yield from op.get("ops", ())


def shape_of(plan):
    """The smallest shape in which threads, starts of ranges, and elements of 16 and 8 bytes do not fall together."""
    ops = list(operations(plan))
    groups = lcm(*(op["tbg_info"]["tbg_size"] for op in ops if "tbg_info" in op))
    pipelined = any(op["name"] == "pipeline" for op in ops)
    least = max([4, *(len(op.get("channel_ids", ())) for op in ops)])
    threads = next(n for n in range(least + 1, 10 * least) if all(n % d for d in range(2, n)))
    return Shape(threads, (4 if pipelined else 2) * groups, 2 * groups)


def digest(*key):
    """A random-looking value for a key."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big") % MODULUS


class Addresses:
    """Names of cells: (rank, i, o, s or p, position); p are packets of scratch. Aliases in place have one name."""

    def __init__(self, plan, shape):
        self.gpus, self.collective, self.chunk = plan["gpus"], plan["collective"], 2 * shape.chunk
        self.shared = plan["inplace"] and self.collective in COLLECTIVES

    def cell(self, rank, buffer, position):
        gpu = self.gpus[rank]
        if self.shared and buffer in "io":
            if self.collective == "allgather" and buffer == "i":
                position += rank * gpu["input_chunks"] * self.chunk
            elif self.collective == "reducescatter" and buffer == "o":
                position += rank * gpu["output_chunks"] * self.chunk
            buffer = "o" if self.collective == "allgather" else "i"
        return rank, buffer, position

    def buffer(self, rank, buffer):
        """Cells of an input or an output."""
        chunks = self.gpus[rank]["input_chunks" if buffer == "i" else "output_chunks"]
        return [self.cell(rank, buffer, position) for position in range(chunks * self.chunk)]

    def contract(self):
        """{cell: [(rank, position in its input) to be added up]}; None without contract."""
        ranks, chunk, wanted = range(len(self.gpus)), self.chunk, {}
        if self.collective not in COLLECTIVES:
            return None
        for rank in ranks:
            size = self.gpus[rank]["input_chunks"] * chunk
            for at, cell in enumerate(self.buffer(rank, "o") or self.buffer(rank, "i")):
                if self.collective == "allreduce":
                    wanted[cell] = [(peer, at) for peer in ranks]
                elif self.collective == "reducescatter":
                    start = rank * self.gpus[rank]["output_chunks"] * chunk
                    wanted[cell] = [(peer, start + at) for peer in ranks]
                elif self.collective == "allgather":
                    wanted[cell] = [divmod(at, size)]
                else:
                    peer, place = divmod(at, size // len(ranks))
                    wanted[cell] = [(peer, rank * size // len(ranks) + place)]
        return wanted


def positions(entries, key, kind, numbers):
    """An operation's channels or buffers are positions in the lists of its block for their type."""
    return [number for entry in entries if entry[key] == kind for number in entry[numbers]]
