"""The table of steps that verification looks at, and the contract of the collective, straight from a program.

Every step is one row, fused or not. nops have no row: what they wait for is waited for by the next real step of their
thread block, before its own dependency; at the end of a thread block they are dropped, as runtimes do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import (
    READING,
    RECEIVING,
    REDUCING,
    SENDING,
    STEP_TYPES,
    WRITING,
    Gpu,
    MscclProgram,
    MscclStep,
    ThreadBlock,
)
from astrasim_py.program.steps import NEVER, Connection, Steps

#: Cells of a contract that are written out at most.
MAX_PROMISED = 2**22

_BUFFERS = {"i": int(Buffer.INPUT), "o": int(Buffer.OUTPUT), "s": int(Buffer.SCRATCH)}
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
    collective = _named(program.coll)
    if collective != CUSTOM:
        return collective, (stated_root(program) or 0) if promise_of(collective).rooted else None, None
    if program.coll != CUSTOM:
        return CUSTOM, None, None
    if found := _ROOTED.match(program.name):
        collective, root = found.group(1).lower(), int(found.group(3))
        whole = not promise_of(collective).sharded or chunks % ranks == 0
        return (collective, root, None) if int(found.group(2)) == ranks > root and whole else (CUSTOM, None, None)
    found = _TO_NEXT.match(program.name)
    if found and ranks * chunks <= MAX_PROMISED:
        way = -1 if found.group(1) == "forward" else 1
        outputs = {
            (rank, k): {(rank + way, k): 1} for rank in range(ranks) if 0 <= rank + way < ranks for k in range(chunks)
        }
        return CUSTOM, None, Contract(ranks=ranks, chunks=chunks, outputs=outputs)
    return CUSTOM, None, None


def stated_root(program: MscclProgram) -> int | None:
    """The root that the name states, if it states one of the ranks."""
    found = _ROOT.search(program.name)
    return int(found.group(1)) if found and int(found.group(1)) < program.ngpus else None


def _named(coll: str) -> str:
    """A collective as the XML names it, by its name in the package; `CUSTOM` for any other."""
    try:
        return collective_name(coll)
    except AlgorithmError:
        return CUSTOM


def sharded(coll: str) -> bool:
    """True if the full buffer of a collective, named as in XML, consists of one shard per rank."""
    return promise_of(_named(coll)).sharded


def rooted(coll: str) -> bool:
    """True if a collective, named as in XML, has a root."""
    return promise_of(_named(coll)).rooted


def steps_from(program: MscclProgram, *, in_place: bool | None = None) -> Steps:
    """The table of all steps of a program.

    `program`: well-formed or not: a peer that is none of the ranks is no connection, a dependency on what is never
    published is the parent `NEVER`. `in_place`: whether the buffers alias; the ``inplace`` of the program by default. A
    program that allows both promises both. Returns ranks ascending, thread blocks and steps in the order of the
    document.
    """
    collective, root, contract = collective_of(program)
    chunks, ranks = program.nchunksperloop, program.ngpus

    gpus = sorted(program.gpus, key=lambda gpu: gpu.id)
    number, connections = _connections(gpus, ranks)
    rows: list[tuple] = []
    parents: list[tuple[int, ...]] = []
    waits: list[tuple[int, ...]] = []
    chain = 0
    for gpu in gpus:
        rank = gpu.id
        rows_of: dict[int, tuple[ThreadBlock, list[int]]] = {}
        waiting: list[tuple[int, list[MscclStep]]] = []
        for tb in gpu.tbs:
            sends = number.get((rank, tb.send, tb.chan), -1)
            receives = number.get((tb.recv, rank, tb.chan), -1)
            out, into = connections[sends].sends, connections[receives].receives
            before, nops, here = (), [], []
            for step in tb.steps:
                s, kind, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, _, _, line = step
                if kind == "nop":
                    here.append(-1)
                    if depid >= 0:
                        nops.append(step)
                    continue
                g = len(rows)
                here.append(g)
                takes, gives, reads, writes, reduces = _DOES[kind]
                if takes:
                    into.append(g)
                if gives:
                    out.append(g)
                ends = (receives if takes else -1, sends if gives else -1)
                reading = (_BUFFERS[srcbuf], srcoff) if reads else (-1, -1)
                writing = (_BUFFERS[dstbuf], dstoff) if writes else (-1, -1)
                rows.append((rank, chain, cnt, *ends, reduces, *reading, *writing, line, tb.id, s))
                parents.append(before)
                before = (g,)
                if depid >= 0:
                    nops.append(step)
                if nops:
                    waiting.append((g, nops))
                    nops = []
            rows_of.setdefault(tb.id, (tb, here))
            chain += 1
        waits += [()] * (len(rows) - len(waits))
        published: dict[int, list[int]] = {}
        for g, steps in waiting:
            waits[g] = tuple(_published(step, rows_of, published) for step in steps)
            parents[g] += waits[g]

    *columns, tb_id, s = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(13)]
    column = dict(zip(_COLUMNS, columns, strict=True))
    rank = column["rank"]
    return Steps(
        name=program.name,
        collective=collective,
        ranks=ranks,
        chunks=chunks,
        **column,
        payload=[-1] * len(rank),
        parents=parents,
        waits=waits,
        # The last one is that of peers that are no ranks.
        connections=connections[:-1],
        place=lambda g: f"rank {rank[g]} tb {tb_id[g]} step {s[g]}",
        root=root,
        in_place=bool(program.inplace) if in_place is None else in_place,
        contract=contract,
        protocol=program.proto,
        inputs=max(gpu.i_chunks for gpu in gpus),
        outputs=max(gpu.o_chunks for gpu in gpus),
        source=program.source,
    )


#: Columns of the table that each step fills.
_COLUMNS = ("rank", "chain", "count", "takes", "gives", "reduces")
_COLUMNS += ("read_buf", "read_off", "write_buf", "write_off", "line")
#: Actions of each type of step: receives, sends, reads, writes, reduces.
_DOES = {kind: tuple(kind in does for does in (RECEIVING, SENDING, READING, WRITING, REDUCING)) for kind in STEP_TYPES}


def _connections(gpus: Sequence[Gpu], ranks: int) -> tuple[dict[tuple[int, int, int], int], list[Connection]]:
    """Connections with messages and their numbers, senders ascending; the last is a dummy for other peers."""
    used: dict[tuple[int, int, int], None] = {}
    for peer_of, kinds in ((0, SENDING), (1, RECEIVING)):
        for gpu in gpus:
            for tb in gpu.tbs:
                peer = tb.recv if peer_of else tb.send
                if 0 <= peer < ranks and peer != gpu.id and any(step.type in kinds for step in tb.steps):
                    used[(peer, gpu.id, tb.chan) if peer_of else (gpu.id, peer, tb.chan)] = None
    number = {key: index for index, key in enumerate(used)}
    return number, [Connection(source=a, target=b, channel=c) for a, b, c in [*used, (-1, -1, -1)]]


def _published(
    step: MscclStep, rows_of: dict[int, tuple[ThreadBlock, list[int]]], published: dict[int, list[int]]
) -> int:
    """The step that ends a wait: the one waited for or, as flags only grow, the next one that is published."""
    if step.depid not in rows_of:
        return NEVER
    if step.depid not in published:
        tb, here = rows_of[step.depid]
        following = [NEVER] * (len(here) + 1)
        for index in range(len(here) - 1, -1, -1):
            shown = here[index] >= 0 and tb.steps[index].hasdep
            following[index] = here[index] if shown else following[index + 1]
        published[step.depid] = following
    following = published[step.depid]
    return following[step.deps] if 0 <= step.deps < len(following) else NEVER
