"""A program in MSCCL-IR as an `Algorithm`: one Chakra trace per gpu, with records that lead back to the program.

A step becomes one to three nodes: a receive, what is computed, a send. The order of a thread block is a data
dependency on the last node of the step before, marked by `tb_prev`; a nop has no node, and its dependency joins those
of the next step. The k-th message of a connection has tag chan * K + k, K being the longest connection of the program,
so that messages pair as they do in the FIFO of a channel. For the way back see `astrasim_py.msccl.from_traces`.
"""

from __future__ import annotations

import json
import os

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.from_traces import PLAIN_NOP, nop_fields
from astrasim_py.msccl.ir import (
    READING,
    RECEIVING,
    SENDING,
    WRITING,
    Gpu,
    MscclProgram,
    MscclStep,
    ThreadBlock,
)
from astrasim_py.msccl.step_table import collective_of
from astrasim_py.msccl.well_formed import refuse_ill_formed
from astrasim_py.msccl.xml_reader import read_program
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import read_algorithm as read_columns
from astrasim_py.program.interchange import promised
from astrasim_py.program.rotation import GivenTraces

#: Longest name of an algorithm.
MAX_NAME = 256
_MOST = 2**31 - 1
_BUFFERS = {"i": int(Buffer.INPUT), "o": int(Buffer.OUTPUT), "s": int(Buffer.SCRATCH)}
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)
_REDUCE, _COPY = int(CompOp.REDUCE), int(CompOp.COPY)
_NO_CELLS = (MISSING, MISSING)
#: Fields of a program that are kept in the metadata as they are.
_RECORDED = ("coll", "nchannels", "inplace", "outofplace", "min_bytes", "max_bytes", "nthreads")

#: Values of every node, in this order; `peer` and `number` (index in its connection) become columns later.
_GATHERED = (
    "type", "peer", "number", "channel", "msg_chunk_idx", "msg_chunk_cnt", "comp_op", "src_buf", "src_off",
    "dst_buf", "dst_off", "peer_buf", "peer_off", "payload", "is_rrc", "chunk_offset", "tb_id",
    "local_time_step", "hasdep", "fused", "tb_prev", "depid", "deps", "source_line",
)  # fmt: skip


def read_algorithm(path: str | os.PathLike, collective: str | None = None, **promises) -> Algorithm:
    """Read an algorithm from any of its files.

    Parameters
    ----------
    path : path
        MSCCL-IR in ``X.xml``, one ``X.npz``, or the prefix of ``.et`` files.
    collective : str, optional
        May be left out where the file states it.
    **promises
        ``made_for``, ``root``, ``in_place`` and ``name``, as of `astrasim_py.program.files.read_algorithm`.

    Raises
    ------
    TraceError
        Files that are missing or cannot be decoded.
    AlgorithmError
        An ill-formed algorithm, or one of another collective.
    """
    if os.fspath(path).endswith(".xml"):
        return promised(read_msccl(path), collective, **promises)
    return read_columns(path, collective, **promises)


def read_msccl(path: str | os.PathLike) -> Algorithm:
    """Read an algorithm from MSCCL-IR XML.

    Raises AlgorithmError: ``file:line: what, why, what to write instead``: no such XML, or an ill-formed program.
    """
    program = read_program(path)
    refuse_ill_formed(program)
    return algorithm_of(program)


def algorithm_of(program: MscclProgram) -> Algorithm:
    """The algorithm that a well-formed program states.

    Where a program may run both in place and out of place it is taken as running in place, so that its buffers alias.

    Its traces carry what `recorded_program` needs to make the same program again. Raises AlgorithmError: more messages
    than tags.
    """
    collective, root, contract = collective_of(program)
    parts = _Nodes(program, collective)
    name = program.name[:MAX_NAME] or "algorithm"
    stated = {
        "ranks": program.ngpus,
        "root": root,
        "chunks": program.nchunksperloop,
        "in_place": bool(program.inplace),
        "protocol": program.proto,
    }
    metadata = {"collective": collective, "algorithm": name, **stated}
    metadata["msccl_name"] = program.name if program.name != name else None
    metadata |= {f"msccl_{field}": getattr(program, field) for field in _RECORDED}
    metadata["msccl_source"] = os.path.basename(program.source) or None
    return Algorithm(
        name=name,
        collective=collective,
        traces=GivenTraces(parts.traces({key: value for key, value in metadata.items() if value is not None})),
        source=program.source,
        contract=contract,
        **stated,
    )


# ------------------------------------------------------------------------------------------------- nodes


class _Nodes:
    """The nodes of all ranks, one after the other, and the dependencies of each."""

    def __init__(self, program: MscclProgram, collective: str) -> None:
        self.program, self.collective = program, collective
        self.per = program.nchunksperloop // program.ngpus
        self.rows: list[tuple[int, ...]] = []
        #: Rows that receive, with the message (connection, k) that they wait for.
        self.awaited: list[tuple[int, tuple[int, int, int], int]] = []
        self.sent: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.received: dict[tuple[int, int, int], int] = {}
        self.gpus = sorted(program.gpus, key=lambda gpu: gpu.id)
        self.bounds = [0]
        self.deps: list[Csr] = []
        self.odd: list[list] = []
        for gpu in self.gpus:
            self._gpu(gpu)
            self.bounds.append(len(self.rows))

    def _gpu(self, gpu: Gpu) -> None:
        first, last = {}, {}
        base = len(self.rows)
        for tb in gpu.tbs:
            first[tb.id], last[tb.id] = [], []
            before = -1
            for step in tb.steps:
                first[tb.id].append(len(self.rows) - base)
                if step.type == "nop":
                    last[tb.id].append(-1)
                    continue
                self._step(gpu, tb, step, len(self.rows) - base, before)
                before = len(self.rows) - base - 1
                last[tb.id].append(before)
        waits, odd = self._waits(gpu, first, last)
        counts = np.ones(len(self.rows) - base, dtype=np.int64)
        ids: list[int] = []
        for node in range(len(counts)):
            own = waits.get(node)
            if own is None:
                ids.append(node - 1)
            else:
                counts[node] = len(own)
                ids += own
        ptr = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=ptr[1:])
        self.deps.append(Csr(ptr, np.array(ids, dtype=np.uint64)))
        self.odd.append(odd)

    def _waits(self, gpu: Gpu, first: dict, last: dict) -> tuple[dict[int, list[int]], list]:
        """Dependencies of the first node of every step; and the nops that these do not lead back to."""
        waits: dict[int, list[int]] = {}
        odd = []
        for tb in gpu.tbs:
            before, nops = -1, []
            for step in tb.steps:
                if step.type == "nop":
                    nops.append(step)
                    continue
                targets = [last[one.depid][one.deps] for one in (*nops, step) if one.depid >= 0]
                # A node awaits another once, even if the program repeats it: readers count open dependencies.
                kept = [node for node in dict.fromkeys(reversed(targets)) if node != before][::-1]
                waits[first[tb.id][step.s]] = ([before] if before >= 0 else []) + kept
                plain = all(nop_fields(nop) == PLAIN_NOP for nop in nops)
                if kept != targets or not plain or len(targets) < len(nops) + bool(nops):
                    odd.append([tb.id, step.s, [_nop(nop) for nop in nops]])
                before, nops = last[tb.id][step.s], []
            if nops:
                odd.append([tb.id, -1, [_nop(nop) for nop in nops]])
        return waits, odd

    def _position(self, rank: int, buffer: str, offset: int, count: int) -> int:
        """Place of cells in the full buffer; 0 where they have none, as chunks are alike but for rounding."""
        if buffer == "s" or offset < 0:
            return 0
        shards = ("all_gather", "gather") if buffer == "i" else ("reduce_scatter", "scatter")
        if self.collective in shards and offset + count <= self.per:
            offset += rank * self.per
        return offset if offset + count <= self.program.nchunksperloop else 0

    def _step(self, gpu: Gpu, tb: ThreadBlock, step: MscclStep, node: int, before: int) -> None:
        kind, count, chan = step.type, step.cnt, tb.chan
        source, target = (_BUFFERS[step.srcbuf], step.srcoff), (_BUFFERS[step.dstbuf], step.dstoff)
        reads, writes = kind in READING, kind in WRITING
        local = (step.dstbuf, step.dstoff) if writes else (step.srcbuf, step.srcoff)
        at = self._position(gpu.id, *local, count)
        several = kind in RECEIVING and kind != "r"
        tail = (tb.id, step.s, int(bool(step.hasdep)), node if several else MISSING)
        first = (before if before >= 0 else MISSING, step.depid, step.deps, step.line)
        later = (MISSING, -1, -1, step.line)
        payload = MISSING
        if kind in RECEIVING:
            connection = (tb.recv, gpu.id, chan)
            number = self.received.get(connection, 0)
            self.received[connection] = number + 1
            self.awaited.append((len(self.rows), connection, number))
            cells = target if kind in ("r", "rcs") else _NO_CELLS
            named = source if kind in ("r", "rcs") else _NO_CELLS
            head = (_RECV, tb.recv, number, chan, at, count, MISSING)
            rrc = 1 if kind == "rrc" else MISSING
            self.rows.append((*head, *_NO_CELLS, *cells, *named, MISSING, rrc, local[1], *tail, *first))
            payload, first = node, later
        if reads and kind != "s":
            head = (_COMP, MISSING, MISSING, MISSING, at, count, _COPY if kind == "cpy" else _REDUCE)
            cells = target if writes else _NO_CELLS
            self.rows.append((*head, *source, *cells, *_NO_CELLS, payload, MISSING, local[1], *tail, *first))
            payload = node + 1 if several else payload
        if kind in SENDING:
            connection = (gpu.id, tb.send, chan)
            messages = self.sent.setdefault(connection, [])
            head = (_SEND, tb.send, len(messages), chan, at, count, MISSING)
            messages.append((at, count))
            cells = source if kind == "s" else _NO_CELLS
            named = target if kind in ("s", "rrs") else _NO_CELLS
            self.rows.append((*head, *cells, *_NO_CELLS, *named, payload, MISSING, local[1], *tail, *first))

    def traces(self, metadata: dict[str, object]) -> tuple[ExecutionTrace, ...]:
        table = np.array(self.rows, dtype=np.int64).reshape(-1, len(_GATHERED)).T
        columns = dict(zip(_GATHERED, table, strict=True))
        self._agree(columns["msg_chunk_idx"])
        kinds, peer, number = (columns.pop(name) for name in ("type", "peer", "number"))
        sends, receives = kinds == _SEND, kinds == _RECV
        longest = max([1, *(len(messages) for messages in self.sent.values()), *self.received.values()])
        channel = columns["channel"]
        if len(channel) and (int(channel.max()) + 1) * longest > _MOST:
            problem = (
                f"{longest} messages on a connection of channel {int(channel.max())} need more tags than there are"
            )
            place = f"{self.program.source or self.program.name}:{self.program.line}"
            raise AlgorithmError(place, problem, "number channels from 0")
        columns["comm_dst"] = np.where(sends, peer, MISSING)
        columns["comm_src"] = np.where(receives, peer, MISSING)
        columns["comm_tag"] = np.where(sends | receives, channel * longest + number, MISSING)
        constant = {"total_chunk_cnt": self.program.nchunksperloop}
        for name in tuple(columns):
            column = columns[name]
            if len(column) and (column == column[0]).all():
                value = int(columns.pop(name)[0])
                if value != MISSING:
                    constant[name] = value
        return tuple(
            ExecutionTrace.from_columns(
                node_id=np.arange(high - low, dtype=np.uint64),
                type=kinds[low:high],
                data_deps=deps,
                metadata=metadata | _of_gpu(gpu, odd),
                place=f"{self.program.source or self.program.name}: rank {gpu.id}",
                rank=gpu.id,
                **(constant if high > low else {}),
                **{name: column[low:high] for name, column in columns.items()},
            )
            for gpu, low, high, deps, odd in zip(
                self.gpus, self.bounds, self.bounds[1:], self.deps, self.odd, strict=False
            )
        )

    def _agree(self, index: np.ndarray) -> None:
        """Let both ends of a message name the sender's chunks, so that they count the same bytes."""
        for row, connection, number in self.awaited:
            messages = self.sent.get(connection, ())
            if number < len(messages) and messages[number][1] == self.rows[row][_COUNT]:
                index[row] = messages[number][0]


_COUNT = _GATHERED.index("msg_chunk_cnt")


def _nop(step: MscclStep) -> list:
    return [*nop_fields(step), step.depid, step.deps]


def _of_gpu(gpu: Gpu, odd: list) -> dict[str, object]:
    """Metadata of one rank."""
    own: dict[str, object] = {
        "msccl_i_chunks": gpu.i_chunks,
        "msccl_o_chunks": gpu.o_chunks,
        "msccl_s_chunks": gpu.s_chunks,
        "msccl_tbs": " ".join(f"{tb.id}:{tb.send}:{tb.recv}:{tb.chan}" for tb in gpu.tbs),
    }
    if odd:
        own["msccl_nops"] = json.dumps(odd, separators=(",", ":"))
    return own
