"""An algorithm without thread blocks as a program: operations, thread blocks, and steps with their dependencies.

For operations see `astrasim_py.msccl.operations`, for thread blocks and channels `astrasim_py.msccl.thread_blocks`.
"""

from itertools import accumulate
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import INT_COLUMNS, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import LETTERS, PLAIN_NOP, Gpu, MscclProgram, MscclStep, ThreadBlock, nop_step
from astrasim_py.msccl.operations import JOIN, RECEIVE_REDUCE, Cells, Operation, OperationGraph, scratch_ends
from astrasim_py.msccl.places import Places
from astrasim_py.msccl.thread_blocks import Assignment, Blocked, schedule, waits_between
from astrasim_py.msccl.well_formed import MAX_NODES, RUNTIMES, Runtime
from astrasim_py.program.algorithm import Algorithm, place_of
from astrasim_py.program.steps import Steps, steps_of
from astrasim_py.program.table import Unusable

#: Names of collectives in XML. Those without one are custom, and the name of the program says which.
COLL_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "custom", "scatter": "custom", "custom": "custom",
}  # fmt: skip

#: Most nodes of an algorithm to be lowered: each takes about 1.6 kB meanwhile.
MAX_TRACE_NODES = 2**20
#: Assignments that are tried to keep within the limits.
_ATTEMPTS = 8


def lower(algorithm: Algorithm, *, protocol: str | None = None, dialect: str = "classic") -> MscclProgram:
    """Make a program of an algorithm that states its cells, with thread blocks and channels of our own.

    The program has the waits of the traces, and no others as long as the runtime has enough channels. So it takes as
    long as the algorithm where messages of one round take equally long. Messages for which the
    traces name a channel keep it, and wait for one another there.

    `protocol`: ``Simple``, ``LL`` or ``LL128``; that of the algorithm by default, or Simple. `dialect`: whose limits
    hold: one of `RUNTIMES`. Returns it ends with two slots per connection, whatever the size of the buffer. Raises
    AlgorithmError: a collective or an algorithm that MSCCL-IR cannot express, or one beyond the limits of the runtime.
    """
    place = place_of(algorithm)
    limits = RUNTIMES[dialect]
    _check(algorithm, limits, place)
    graph = graph_of(algorithm, place)
    gpus = _within(limits, algorithm.ranks, graph, place)
    name = algorithm.name
    if promise_of(algorithm.collective).rooted:
        # Readers take the root of a rooted collective from the name.
        name = f"{algorithm.collective.title()}(n={algorithm.ranks},root={algorithm.root})"
    return MscclProgram(
        name=name,
        proto=protocol or algorithm.protocol or "Simple",
        nchannels=1 + max((tb.chan for gpu in gpus for tb in gpu.tbs), default=0),
        nchunksperloop=algorithm.chunks,
        ngpus=algorithm.ranks,
        # No attribute states a root: the runtime would take the program for any. ncclize calls rooted programs custom.
        coll="custom" if algorithm.root else COLL_NAMES[algorithm.collective],
        inplace=int(graph.steps.in_place),
        gpus=tuple(_sized(gpu, algorithm) for gpu in gpus),
        source=algorithm.source,
    )


def graph_of(algorithm: Algorithm, place: str) -> OperationGraph:
    """The operations of an algorithm that `check_cells` takes. Raises AlgorithmError: verification refuses it."""
    try:
        # Without fused steps: each node is one operation.
        steps = steps_of(algorithm, algorithm.program.with_columns_only(INT_COLUMNS))
        if algorithm.in_place and algorithm.collective in ("gather", "scatter"):
            _out_of_place(steps)
        return OperationGraph(steps, place)
    except Unusable as error:
        raise AlgorithmError(place, error.problem, "fix the algorithm: see the output of verify") from None


def _out_of_place(steps: Steps) -> None:
    """Give gather and scatter an input and an output of their own, unless they overwrite a rank's own shard.

    In place runtimes take them for custom collectives, whose output chunk k is input chunk k; here input k of rank r is
    output r·per + k (gather), or the other way round (scatter). Only the root has the whole buffer: other ranks keep
    forwarded data in scratch.
    """
    per = steps.chunks // steps.ranks
    gathers = steps.collective == "gather"
    large, shard = (Buffer.OUTPUT, Buffer.INPUT) if gathers else (Buffer.INPUT, Buffer.OUTPUT)
    uses: list[list[tuple[int, bool, bool]]] = [[] for _ in range(steps.ranks)]  # step, reads or writes, all within
    for g, (rank, count) in enumerate(zip(steps.rank, steps.count, strict=True)):
        low, high = rank * per, (rank + 1) * per
        for reads, buffer, begin in (
            (True, steps.read_buf[g], steps.read_off[g]),
            (False, steps.write_buf[g], steps.write_off[g]),
        ):
            if buffer == shard or (gathers and not reads and buffer == large and begin < high and low < begin + count):
                return
            if buffer == large and count > 0 and begin < high and low < begin + count:
                uses[rank].append((g, reads, low <= begin and begin + count <= high))
    steps.in_place = False
    for rank, of_rank in enumerate(uses):
        first = rank * per
        touching = [g for g, _, within in of_rank if not (gathers and within)]
        if gathers:
            copies = bool(touching) or rank == steps.root
            renamed = [(g, steps.read_buf, steps.read_off) for g, _, within in of_rank if within]
        else:
            copies = not of_rank or any(reads or not within for _, reads, within in of_rank)
            renamed = [] if copies else [(g, steps.write_buf, steps.write_off) for g in touching]
        for g, buffers, offsets in renamed:
            buffers[g], offsets[g] = int(shard), offsets[g] - first
        if copies:
            copy = len(steps)
            ends = ((int(shard), 0), (int(large), first)) if gathers else ((int(large), first), (int(shard), 0))
            written = () if gathers else tuple(g for g, reads, _ in of_rank if not reads)
            row: tuple[tuple[list[Any], Any], ...] = (
                (steps.rank, rank), (steps.chain, -1), (steps.count, per), (steps.takes, -1), (steps.gives, -1),
                (steps.reduces, False), (steps.payload, -1), (steps.read_buf, ends[0][0]), (steps.read_off, ends[0][1]),
                (steps.write_buf, ends[1][0]), (steps.write_off, ends[1][1]), (steps.parents, written),
                (steps.waits, ()), (steps.line, 0),
            )  # fmt: skip
            for values, value in row:
                values.append(value)
            if gathers:
                for g in touching:
                    steps.parents[g] = (*steps.parents[g], copy)
    base = scratch_ends(steps)
    for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
        for g, rank in enumerate(steps.rank):
            if rank != steps.root and buffers[g] == large:
                buffers[g], offsets[g] = int(Buffer.SCRATCH), offsets[g] + base[rank]


def _check(algorithm: Algorithm, limits: Runtime, place: str) -> None:
    """Refuse, before any work, what MSCCL-IR cannot express, and what exceeds the limits under every assignment."""
    collective = algorithm.collective
    if collective not in COLL_NAMES:
        others = ", ".join(name for name in COLL_NAMES if name != "custom")
        problem = f"MSCCL-IR has no {collective}: its steps move at least one chunk"
        raise AlgorithmError(place, problem, f"keep it as .et, or write one of {others}")
    check_cells(algorithm, place, "MSCCL-IR")
    for rank, trace in enumerate(algorithm.traces):
        columns = (NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")
        peers = [trace.column(column)[trace.type == kind] for kind, column in columns]
        blocks = max(len(np.unique(peer)) for peer in peers)
        _refuse(blocks, 2 + algorithm.ranks + max(map(len, peers)), rank, limits, place)


def check_cells(algorithm: Algorithm, place: str, language: str) -> None:
    """Refuse what no language of programs on chunks of ranks can express; `language` is the one to name."""
    chunks, ranks = algorithm.chunks, algorithm.ranks
    if algorithm.actors:
        problem = f"switch {algorithm.actors[0]} runs a part of it, and {language} has programs of gpus only"
        raise AlgorithmError(place, problem, "keep it as .et or .npz")
    if not algorithm.has_cells:
        problem = f"does not state in chunks which cells its steps read and write, as {language} must"
        raise AlgorithmError(place, problem, "give src_buf/src_off and dst_buf/dst_off, as builders do")
    if promise_of(algorithm.collective).sharded and chunks % ranks:
        problem = f"its {chunks} chunks do not divide among {ranks} ranks"
        raise AlgorithmError(place, problem, f"use a multiple of {ranks} chunks")
    if algorithm.nodes > MAX_TRACE_NODES:
        problem = f"has {algorithm.nodes} nodes, more than {MAX_TRACE_NODES}"
        raise AlgorithmError(place, problem, "use fewer ranks or chunks, or keep it as .et")


def _refuse(blocks: int, nodes: int, rank: int, limits: Runtime, place: str) -> None:
    """Refuse more thread blocks, or elements of XML, of a rank than a runtime takes."""
    if blocks > limits.thread_blocks:
        problem = f"rank {rank} needs {blocks} thread blocks, {limits.name} runs {limits.thread_blocks} per gpu"
        raise AlgorithmError(place, problem, "use an algorithm with fewer peers, or fewer messages at once")
    if nodes > MAX_NODES:
        problem = f"rank {rank} has {nodes} elements of XML, {limits.name} reads {MAX_NODES}"
        raise AlgorithmError(place, problem, "use fewer ranks or chunks")


def _within(limits: Runtime, ranks: int, graph: OperationGraph, place: str) -> list[Gpu]:
    """Thread blocks of all ranks, within the limits of a runtime."""
    # A fused thread block has one step more than messages.
    cap, channels = limits.steps - 2, limits.channels
    ops = graph.operations()
    scratch = scratch_ends(graph.steps)
    blocks = 0
    for _ in range(_ATTEMPTS):
        while True:
            try:
                schedule(ops, place, channels=channels, cap=cap)
                break
            except Blocked as blocked:
                blocks += 1
                # After repeated blocking, move all receives aside.
                graph.receive_aside(blocked.receives if blocks < _ATTEMPTS else ops)
                ops = graph.operations()
        writer = _Writer(ops, Assignment(ops, ranks), scratch, graph.cells)
        gpus = [writer.gpu(rank) for rank in range(ranks)]
        longest = max((len(tb.steps) for gpu in gpus for tb in gpu.tbs), default=0)
        most = max(gpus, key=lambda gpu: len(gpu.tbs))
        used = 1 + max((tb.chan for gpu in gpus for tb in gpu.tbs), default=0)
        if longest > limits.steps and cap > 1:
            # Fewer messages per connection make shorter thread blocks, and more of them.
            cap = max(1, min(cap - 1, cap * limits.steps // (longest + 1)))
        elif len(most.tbs) > limits.thread_blocks and used > 1:
            # Fewer channels make fewer thread blocks, and messages wait for one another.
            channels = max(1, min(used - 1, used * limits.thread_blocks // len(most.tbs)))
        else:
            break
    if longest > limits.steps:
        problem = f"a thread block has {longest} steps, {limits.name} runs {limits.steps}"
        raise AlgorithmError(place, problem, "use fewer chunks, or another algorithm")
    for gpu in gpus:
        nodes = 2 + ranks + len(gpu.tbs) + sum(len(tb.steps) for tb in gpu.tbs)
        _refuse(len(gpu.tbs), nodes, gpu.id, limits, place)
    return gpus


def _sized(gpu: Gpu, algorithm: Algorithm) -> Gpu:
    """A gpu with its i_chunks and o_chunks: 0 where a buffer is not used, else all of it, as runtimes check."""
    full = {"i": algorithm.chunks, "o": algorithm.chunks}
    part = {"all_gather": "i", "reduce_scatter": "o"}.get(algorithm.collective)
    if part:
        full[part] //= algorithm.ranks
    used = {"i": 0, "o": 0, "s": 0}
    for step in (step for tb in gpu.tbs for step in tb.steps if step.cnt):
        for letter, offset in ((step.srcbuf, step.srcoff), (step.dstbuf, step.dstoff)):
            used[letter] = max(used[letter], full.get(letter, 0), offset + step.cnt)
    return gpu._replace(i_chunks=used["i"], o_chunks=used["o"])


class _Writer:
    """The steps of all thread blocks."""

    def __init__(self, ops: list[Operation], assignment: Assignment, scratch: list[int], fresh: int) -> None:
        self.assignment, self.fed = assignment, assignment.fused
        self.places = Places(scratch, fresh)
        self.joins: list[list[Operation]] = [[] for _ in scratch]
        for op in ops:
            if op.kind == JOIN:
                self.joins[op.rank].append(op)

    # -- what a step does

    def _work(self, op: Operation, spare: list[Cells]) -> list[tuple[str, Cells, Cells]]:
        """Types, sources and destinations of the steps that an operation becomes.

        `spare`: a place of the thread block for data that is received only to be forwarded.
        """
        if op.number in self.fed:
            return [self._fused(op, self.fed[op.number], spare)]
        return self.places.work(op)

    def _fused(self, send: Operation, receive: Operation, spare: list[Cells]) -> tuple[str, Cells, Cells]:
        """A receive and a send as one step."""
        others = any(reader is not send for reader in receive.readers)
        if receive.kind == RECEIVE_REDUCE:
            # The sum is only sent, never read from memory.
            if not others and (receive.target is None or receive.overwritten):
                return ("rrs", receive.reads, receive.reads)
            return ("rrcs", receive.reads, self.places.cells(receive))
        if receive.target is None and not others:
            if not spare:
                spare.append(self.places.unused(send.rank, 1))
            return ("rcs", spare[0], spare[0])
        return ("rcs", self.places.cells(receive), self.places.cells(receive))

    # -- thread blocks

    def gpu(self, rank: int) -> Gpu:
        blocks = self.assignment.blocks[rank]
        waits = waits_between(blocks, self.joins[rank], self.fed)
        #: By thread block its operations, each with its steps and what it waits for.
        listed: list[list[tuple[Operation, list, list]]] = []
        #: Steps are numbered with their nops, and a dependency names the last step of an operation.
        ends: list[list[int]] = []
        for block, awaited in zip(blocks, waits, strict=True):
            spare: list[Cells] = []
            listed.append(
                [(op, self._work(op, spare), waits_of) for op, waits_of in zip(block.operations, awaited, strict=True)]
            )
            sizes = [max(len(waits_of) - 1, 0) + len(parts) for _, parts, waits_of in listed[-1]]
            ends.append([end - 1 for end in accumulate(sizes)])
        published = {(b, ends[b][index]) for awaited in waits for waits_of in awaited for b, index in waits_of}
        tbs = []
        for b, (block, work) in enumerate(zip(blocks, listed, strict=True)):
            steps: list[MscclStep] = []
            for op, parts, waits_of in work:
                named = [(other, ends[other][index]) for other, index in waits_of] or [(-1, -1)]
                for dep in named[:-1]:
                    steps.append(nop_step(len(steps), PLAIN_NOP, dep))
                dep = named[-1]
                for kind, (source, first, _), (target, last, _) in parts:
                    shown = int((b, len(steps)) in published)
                    places = LETTERS[source], first, LETTERS[target], last
                    steps.append(MscclStep(len(steps), kind, *places, op.count, dep[0], dep[1], shown))
                    dep = -1, -1
            tbs.append(ThreadBlock(b, block.send, block.recv, block.channel, tuple(steps)))
        return Gpu(rank, 0, 0, self.places.ends[rank], tuple(tbs))
