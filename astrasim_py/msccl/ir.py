"""A program in MSCCL-IR as in its XML: values and line numbers; its contract, and the table of its steps."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.units import format_size
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.steps import NEVER, Connection, Steps

#: Numbers of buffers in columns, by their letters in XML; and the reverse.
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


NopFields: TypeAlias = tuple[str, int, str, int, int, int]


def nop_step(number: int, fields: NopFields, dep: tuple[int, int]) -> MscclStep:
    """A nop with these `nop_fields`, and the thread block and the step that it waits for."""
    srcbuf, srcoff, dstbuf, dstoff, cnt, hasdep = fields
    return MscclStep(number, "nop", srcbuf, srcoff, dstbuf, dstoff, cnt, *dep, hasdep)


def nop_fields(step: MscclStep) -> NopFields:
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


def window_text(low: int | None, high: int | None, outofplace: int | None) -> str:
    """The sizes (of the full buffer) for which a runtime takes a program, in words; empty where it states none.

    Classic programs, those without ``outofplace``, exclude ``maxBytes``; for others 0 is no limit.
    """
    most = f"less than {format_size(high)}" if high is not None and outofplace is None else ""
    if high and outofplace is not None:
        most = f"at most {format_size(high)}"
    return " and ".join(filter(None, [f"at least {format_size(low)}" if low else "", most]))


def outside_window(algorithm: Algorithm, size: int) -> str:
    """Why a runtime would not take the program of an algorithm for a full buffer of so many bytes; empty where it
    would, as far as the program says.
    """
    if not algorithm.given:
        return ""
    head = algorithm.given[0]
    stated = [head.meta(f"msccl_{name}") for name in ("min_bytes", "max_bytes", "outofplace")]
    low, high, apart = (value if type(value) is int else None for value in stated)
    below = high is None or (high >= size if apart is not None else high > size) or (apart is not None and not high)
    if (low or 0) <= size and below:
        return ""
    window = window_text(low, high, apart)
    return f"runtimes take it for {window} (minBytes, maxBytes), and not for {format_size(size)}"


#: Cells of a contract that are written out at most.
MAX_PROMISED = 2**22

_ROOTED = re.compile(r"(Broadcast|Reduce|Gather|Scatter)\(n=(\d{1,9}),\s*root=(\d{1,9})\)")
_ROOT = re.compile(r"\broot=(\d{1,9})\b")
_TO_NEXT = re.compile(r"alltonext-(forward|backward)s?(?:\b|(?=_x[0-9]))")


def collective_of(program: MscclProgram) -> tuple[str, int | None, Contract | None]:
    """The promise of a program: collective, root and – for a custom collective with a known name – contract.

    ``coll="custom"`` is known by the names that msccl-tools gives: ``Broadcast(n=8,root=0)…``, Reduce, Gather and
    Scatter likewise, ``alltonext-forward`` (every rank but the first outputs the input of the rank before it) and
    ``alltonext-backward``. Without a root in the name, the root of a rooted collective is taken to be 0.
    """
    ranks, chunks = program.ngpus, program.nchunksperloop
    collective = named(program.coll)
    if collective != CUSTOM:
        return collective, (stated_root(program) or 0) if promise_of(collective).rooted else None, None
    if program.coll != CUSTOM:
        return CUSTOM, None, None
    if match := _ROOTED.match(program.name):
        collective, root = match.group(1).lower(), int(match.group(3))
        divisible = not promise_of(collective).sharded or chunks % ranks == 0
        return (collective, root, None) if int(match.group(2)) == ranks > root and divisible else (CUSTOM, None, None)
    match = _TO_NEXT.match(program.name)
    if match and ranks * chunks <= MAX_PROMISED:
        way = -1 if match.group(1) == "forward" else 1
        outputs = {
            (rank, k): {(rank + way, k): 1} for rank in range(ranks) if 0 <= rank + way < ranks for k in range(chunks)
        }
        return CUSTOM, None, Contract(ranks=ranks, chunks=chunks, outputs=outputs)
    return CUSTOM, None, None


def stated_root(program: MscclProgram) -> int | None:
    """The root that the name states, if it states one of the ranks."""
    match = _ROOT.search(program.name)
    return int(match.group(1)) if match and int(match.group(1)) < program.ngpus else None


def named(coll: str) -> str:
    """A collective as the XML names it, by its name in the package; `CUSTOM` for any other."""
    try:
        return collective_name(coll)
    except AlgorithmError:
        return CUSTOM


def walk(program: MscclProgram) -> Iterator[tuple[Gpu, ThreadBlock, MscclStep | None, list[MscclStep]]]:
    """All steps but nops, ranks ascending, else in the order of the document: gpu, thread block, step, nops before.

    Without a step: nops at the end of a thread block.
    """
    for gpu in sorted(program.gpus, key=lambda gpu: gpu.id):
        for tb in gpu.tbs:
            nops: list[MscclStep] = []
            for step in tb.steps:
                if step.type == "nop":
                    nops.append(step)
                else:
                    yield gpu, tb, step, nops
                    nops = []
            if nops:
                yield gpu, tb, None, nops


def steps_from(program: MscclProgram) -> Steps:
    """The table of all steps of a program, fused or not, in the order of `walk`.

    The next step of a thread block also waits for what a nop waits for, before its own dependency. `program`:
    well-formed or not: a peer that is none of the ranks is no connection, a dependency on what is never published is
    the parent `NEVER`.
    """
    collective, root, contract = collective_of(program)
    number: dict[tuple[int, int, int], int] = {}

    def connect(source: int, target: int, channel: int) -> int:
        """Number of a connection; -1 where a peer is no other rank."""
        if source == target or not 0 <= min(source, target) <= max(source, target) < program.ngpus:
            return -1
        return number.setdefault((source, target, channel), len(number))

    for gpu, tb, step, _ in walk(program):
        if step and step.type in SENDING:
            connect(gpu.id, tb.send, tb.chan)
    published = _published(program)
    rows: list[tuple] = []
    parents: list[tuple[int, ...]] = []
    waits: list[tuple[int, ...]] = []
    chain, block = -1, None
    for gpu, tb, step, nops in walk(program):
        if step is None:
            continue
        g, rank = len(rows), gpu.id
        before = (g - 1,) if tb is block else ()
        chain, block = chain + (tb is not block), tb
        takes, gives, reads, writes, reduces = _DOES[step.type]
        ends = (connect(tb.recv, rank, tb.chan) if takes else -1, connect(rank, tb.send, tb.chan) if gives else -1)
        reading = (BUFFERS[step.srcbuf], step.srcoff) if reads else (-1, -1)
        writing = (BUFFERS[step.dstbuf], step.dstoff) if writes else (-1, -1)
        rows.append((rank, chain, step.cnt, *ends, reduces, *reading, *writing, step.line, tb.id, step.s))
        waits.append(
            tuple(published.get((rank, op.depid), {}).get(op.deps, NEVER) for op in (*nops, step) if op.depid >= 0)
        )
        parents.append(before + waits[g])

    *columns, tb_id, s = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(13)]
    column: dict[str, Any] = dict(zip(_COLUMNS, columns, strict=True))
    ranks = column["rank"]
    connections = [Connection(source=a, target=b, channel=c) for a, b, c in number]
    for g, (source, target) in enumerate(zip(column["takes"], column["gives"], strict=True)):
        if source >= 0:
            connections[source].receives.append(g)
        if target >= 0:
            connections[target].sends.append(g)
    return Steps(
        name=program.name,
        collective=collective,
        ranks=program.ngpus,
        chunks=program.nchunksperloop,
        **column,
        payload=[-1] * len(ranks),
        parents=parents,
        waits=waits,
        connections=connections,
        place=lambda g: f"rank {ranks[g]} tb {tb_id[g]} step {s[g]}",
        root=root,
        in_place=bool(program.inplace),
        contract=contract,
        protocol=program.proto,
        inputs=max(gpu.i_chunks for gpu in program.gpus),
        outputs=max(gpu.o_chunks for gpu in program.gpus),
        source=program.source,
    )


#: Columns of the table that each step fills.
_COLUMNS = (
    *("rank", "chain", "count", "takes", "gives", "reduces"),
    *("read_buf", "read_off", "write_buf", "write_off", "line"),
)
#: Actions of each type of step: receives, sends, reads, writes, reduces.
_DOES = {kind: tuple(kind in does for does in (RECEIVING, SENDING, READING, WRITING, REDUCING)) for kind in STEP_TYPES}


def _published(program: MscclProgram) -> dict[tuple[int, int], dict[int, int]]:
    """By rank and thread block: the row that ends a wait for a step, by the number of the step.

    It is the row of that step or, as flags only grow, of the next one that is published.
    """
    rows_of: dict[tuple[int, int], dict[int, int]] = {}
    row = -1
    for gpu in sorted(program.gpus, key=lambda gpu: gpu.id):
        for tb in gpu.tbs:
            rows: dict[int, int] = {}
            waited: list[int] = []
            for index, step in enumerate(tb.steps):
                waited.append(index)
                row += step.type != "nop"
                if step.hasdep and step.type != "nop":
                    rows |= dict.fromkeys(waited, row)
                    waited = []
            rows_of.setdefault((gpu.id, tb.id), rows)
    return rows_of
