"""A program in MSCCL-IR, as its XML has it: values and line numbers, without interpretation."""

from __future__ import annotations

from typing import NamedTuple

from astrasim_py.collectives.chunks import Buffer

#: Buffers as columns number them, by their letters in XML; and the reverse.
BUFFERS = {"i": int(Buffer.INPUT), "o": int(Buffer.OUTPUT), "s": int(Buffer.SCRATCH)}
LETTERS = {number: letter for letter, number in BUFFERS.items()}

#: MscclStep types that runtimes execute.
STEP_TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")
#: Types that receive from, or send to, the peer of their thread block.
RECEIVING = frozenset(("r", "rcs", "rrc", "rrs", "rrcs"))
SENDING = frozenset(("s", "rcs", "rrs", "rrcs"))
#: Types that read their source cells, or write their destination cells, on their own rank.
READING = frozenset(("s", "rrc", "rrs", "rrcs", "cpy", "re"))
WRITING = frozenset(("r", "rcs", "rrc", "rrcs", "cpy", "re"))
#: Types that add.
REDUCING = frozenset(("rrc", "rrs", "rrcs", "re"))
#: Attributes of ``<algo>``, in the order of the first fields of `MscclProgram`.
ALGO_ATTRIBUTES = (
    "name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace", "minBytes", "maxBytes",
    "nthreads",
)  # fmt: skip


class MscclStep(NamedTuple):
    """One ``<step>``."""

    s: int
    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int = -1
    deps: int = -1
    hasdep: int = 0
    line: int = 0


#: Fields of a nop that only waits, in the order of `nop_fields`.
PLAIN_NOP = ("i", -1, "o", -1, 0, 0)


def nop_fields(step: MscclStep) -> tuple[str, int, str, int, int, int]:
    """Fields of a nop but its number and dependency: srcbuf, srcoff, dstbuf, dstoff, cnt, hasdep."""
    return step.srcbuf, step.srcoff, step.dstbuf, step.dstoff, step.cnt, step.hasdep


class ThreadBlock(NamedTuple):
    """One ``<tb>``: peers are ranks, -1 for none."""

    id: int
    send: int
    recv: int
    chan: int
    steps: tuple[MscclStep, ...] = ()
    line: int = 0


class Gpu(NamedTuple):
    """One ``<gpu>``: a rank, its thread blocks in the order of the document, its buffers in chunks."""

    id: int
    i_chunks: int
    o_chunks: int
    s_chunks: int
    tbs: tuple[ThreadBlock, ...] = ()
    line: int = 0


class MscclProgram(NamedTuple):
    """One ``<algo>``. What is absent in the XML is None.

    `gpus` are in the order of the document. `layout` says what only full XML parsers read of the way it is written.
    """

    name: str
    proto: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    coll: str
    inplace: int
    outofplace: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    nthreads: int | None = None
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    line: int = 0
    layout: tuple[str, ...] = ()
