"""A program in MSCCL-IR as an `Algorithm`: one Chakra trace per gpu, with records that lead back to the program.

A step becomes one to three nodes: a receive, what is computed, a send. The order of a thread block is a data
dependency on the last node of the step before, marked by `tb_prev`; a nop has no node, and its dependency joins those
of the next step. The k-th message of a connection has tag chan * K + k, K being the longest connection of the program,
so that messages pair as they do in the FIFO of a channel. For the way back see `astrasim_py.msccl.from_traces`.
"""

import json
import os
from collections import defaultdict
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import BUFFERS, PLAIN_NOP, Gpu, MscclProgram, collective_of, nop_fields, steps_from, walk
from astrasim_py.msccl.well_formed import refuse_ill_formed
from astrasim_py.msccl.xml_reader import read_program
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import read_algorithm as read_columns
from astrasim_py.program.interchange import Promises, promised
from astrasim_py.program.traces import Traces

#: Longest name of an algorithm.
MAX_NAME = 256
_MOST = 2**31 - 1
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)
_REDUCE, _COPY = int(CompOp.REDUCE), int(CompOp.COPY)
#: Fields of a program that are kept in the metadata as they are.
_RECORDED = ("coll", "nchannels", "inplace", "outofplace", "min_bytes", "max_bytes", "nthreads")


def read_algorithm(
    path: str | os.PathLike[str], collective: str | None = None, **promises: Unpack[Promises]
) -> Algorithm:
    """Read an algorithm from any of its files.

    They are MSCCL-IR in ``X.xml``, an MSCCL++ execution plan in ``X.json``, one ``X.npz``, or the prefix of ``.et``
    files.

    Parameters
    ----------
    path : path
    collective : str, optional
        Needed if the file does not state it.
    **promises
        Instead of what the file states: ``made_for`` (full buffer, bytes, for which absolute sizes were computed, or
        for which the pipelines of a plan are unrolled), ``root``, ``in_place`` and ``name``.

    Returns
    -------
    Algorithm

    Raises
    ------
    TraceError
        Files that are missing or cannot be decoded.
    AlgorithmError
        An ill-formed algorithm, or one of another collective.
    """
    if os.fspath(path).endswith(".xml"):
        return promised(read_msccl(path), collective, **promises)
    if os.fspath(path).endswith(".json"):
        from astrasim_py.mscclpp.to_traces import read_algorithm as read_plan

        return read_plan(path, collective, **promises)
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
    name = program.name[:MAX_NAME] or "algorithm"
    stated: dict[str, Any] = {
        "ranks": program.ngpus,
        "root": root,
        "chunks": program.nchunksperloop,
        "in_place": bool(program.inplace),
        "protocol": program.proto,
    }
    metadata = {
        "collective": collective,
        "algorithm": name,
        **stated,
        "msccl_name": program.name if program.name != name else None,
        **{f"msccl_{field}": getattr(program, field) for field in _RECORDED},
        "msccl_source": os.path.basename(program.source) or None,
    }
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return Algorithm(
        name=name,
        collective=collective,
        traces=Traces.of(traces_of(program, collective, metadata), searched=True),
        source=program.source,
        contract=contract,
        **stated,
    )


def traces_of(program: MscclProgram, collective: str, metadata: dict[str, object]) -> tuple[ExecutionTrace, ...]:
    nodes = _StepNodes(program, collective)
    columns, constant = {}, {"total_chunk_cnt": program.nchunksperloop}
    for name, column in nodes.columns().items():
        if not len(column) or (column != column[0]).any():
            columns[name] = column
        elif column[0] != MISSING:
            constant[name] = int(column[0])
    parents, odd = nodes.parents()
    return tuple(
        ExecutionTrace.from_columns(
            node_id=np.arange(high - low, dtype=np.uint64),
            type=nodes.type[low:high],
            data_deps=Csr(
                np.cumsum([0, *map(len, parents[low:high])]),
                np.array([node for before in parents[low:high] for node in before], dtype=np.uint64),
            ),
            metadata=metadata | _of_gpu(gpu, odd[gpu.id]),
            place=f"{program.source or program.name}: rank {gpu.id}",
            rank=gpu.id,
            **(constant if high > low else {}),
            **{name: column[low:high] for name, column in columns.items()},
        )
        for gpu, (low, high) in zip(
            sorted(program.gpus, key=lambda gpu: gpu.id), pairwise(nodes.bounds.tolist()), strict=True
        )
    )


class _StepNodes:
    """The nodes of all ranks: of each step a receive, work and a send, as far as there are."""

    def __init__(self, program: MscclProgram, collective: str) -> None:
        self.program, self.collective = program, collective
        self.steps = steps = steps_from(program)
        self.walked = list(walk(program))
        takes, self.gives = (np.array(ends, dtype=np.int64) >= 0 for ends in (steps.takes, steps.gives))
        self.reduces, self.writes = np.array(steps.reduces, dtype=bool), np.array(steps.write_buf, dtype=np.int64) >= 0
        self.width = takes.astype(np.int64) + (self.reduces | ~(takes | self.gives)) + self.gives
        #: Of every node its step; of every step its first node.
        self.step = step = np.repeat(np.arange(len(steps)), self.width)
        self.start = np.cumsum(self.width) - self.width
        rank = np.array(steps.rank, dtype=np.int64)
        self.bounds = np.searchsorted(rank[step], np.arange(program.ngpus + 1))
        #: Number of every node in its rank.
        self.at = np.arange(len(step)) - self.bounds[rank[step]]
        self.begins = np.arange(len(step)) == self.start[step]
        self.ends = np.append(self.begins[1:], True)[: len(step)]
        self.receives, self.sends = self.begins & takes[step], self.ends & self.gives[step]
        self.type = np.select([self.sends, self.receives], [_SEND, _RECV], _COMP)

    def columns(self) -> dict[str, np.ndarray]:
        steps, step, receives, sends = self.steps, self.step, self.receives, self.sends
        works, message = ~(receives | sends), receives | sends
        reduces, writes, fused = self.reduces[step], self.writes[step], (self.width > 1)[step]
        fields = np.array(
            [
                (tb.send, tb.recv, tb.chan, tb.id, step.s, step.hasdep, step.depid, step.deps, step.line,
                 BUFFERS[step.srcbuf], step.srcoff, BUFFERS[step.dstbuf], step.dstoff)
                for _, tb, step, _ in self.walked if step
            ], dtype=np.int64,
        ).reshape(-1, 13).T  # fmt: skip
        send, recv, chan, block, number, hasdep, depid, deps, line, *sides = fields[:, step]
        source, target = sides[:2], sides[2:]
        local = np.where(writes, target, source)
        count, chain = np.array([steps.count, steps.chain], dtype=np.int64)[:, step]
        index = self._positions(local[0], local[1], count)
        turn = np.zeros(len(step), dtype=np.int64)
        for connection in steps.connections:
            out, into = np.flatnonzero(self.ends)[connection.sends], self.start[connection.receives]
            turn[out], turn[into] = np.arange(len(out)), np.arange(len(into))
            # Both ends of a message name the sender's chunks, so that they count the same bytes.
            both = min(len(out), len(into))
            index[into[:both]] = index[out[:both]]
        longest = max([1, *(max(len(end.sends), len(end.receives)) for end in steps.connections)])
        channel = int(chan.max(initial=0))
        if (channel + 1) * longest > _MOST:
            problem = f"{longest} messages on a connection of channel {channel} need more tags than there are"
            place = f"{self.program.source or self.program.name}:{self.program.line}"
            raise AlgorithmError(place, problem, "number channels from 0")

        def of(nodes: np.ndarray, values: np.ndarray | int) -> np.ndarray:
            return np.where(nodes, values, MISSING)

        follows = self.begins & np.append(False, chain[1:] == chain[:-1])[: len(step)]
        src, dst = works | (sends & ~fused), (receives & ~reduces) | (works & writes)
        read, named = receives & ~reduces, sends & ~writes
        return {
            "channel": of(message, chan),
            "msg_chunk_idx": index,
            "msg_chunk_cnt": count,
            "comp_op": of(works, np.where(reduces, _REDUCE, _COPY)),
            "src_buf": of(src, source[0]),
            "src_off": of(src, source[1]),
            "dst_buf": of(dst, target[0]),
            "dst_off": of(dst, target[1]),
            "peer_buf": np.select([read, named], [source[0], target[0]], MISSING),
            "peer_off": np.select([read, named], [source[1], target[1]], MISSING),
            "payload": of(~self.begins, self.at - 1),
            "is_rrc": of(receives & reduces & ~self.gives[step], 1),
            "chunk_offset": local[1],
            "tb_id": block,
            "local_time_step": number,
            "hasdep": (hasdep > 0).astype(np.int64),
            "fused": of(fused, self.at[self.start[step]]),
            "tb_prev": of(follows, self.at - 1),
            "depid": np.where(self.begins, depid, -1),
            "deps": np.where(self.begins, deps, -1),
            "source_line": line,
            "comm_dst": of(sends, send),
            "comm_src": of(receives, recv),
            "comm_tag": of(message, chan * longest + turn),
        }

    def _positions(self, buffer: np.ndarray, offset: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Place of cells in the full buffer; 0 where they have none, as chunks are alike but for rounding."""
        chunks, per = self.program.nchunksperloop, self.program.nchunksperloop // self.program.ngpus
        promise = promise_of(self.collective)
        rank = np.array(self.steps.rank, dtype=np.int64)[self.step]
        shards = [BUFFERS["i"]] * promise.gathers + [BUFFERS["o"]] * promise.scatters
        position = offset + np.where(np.isin(buffer, shards) & (offset + count <= per), rank * per, 0)
        return np.where((buffer == BUFFERS["s"]) | (offset < 0) | (position + count > chunks), 0, position)

    def parents(self) -> tuple[list[list[int]], dict[int, list]]:
        """The nodes that each waits for; and by rank the nops that these do not lead back to."""
        steps, last = self.steps, self.at[self.ends].tolist()
        awaited = [[row - 1] for row in self.at.tolist()]
        odd: dict[int, list] = defaultdict(list)
        g = 0
        for gpu, tb, step, nops in self.walked:
            waits = [[*nop_fields(nop), nop.depid, nop.deps] for nop in nops]
            if step is None:
                odd[gpu.id].append([tb.id, -1, waits])
                continue
            targets = [last[p] for p in steps.waits[g]]
            before = [last[p] for p in steps.parents[g][: -len(targets) or None]]
            # A node awaits another once, even if the program repeats it: readers count open dependencies.
            targets_left = [node for node in dict.fromkeys(reversed(targets)) if node not in before][::-1]
            plain = all(nop_fields(nop) == PLAIN_NOP for nop in nops)
            if targets_left != targets or not plain or len(targets) < len(nops) + bool(nops):
                odd[gpu.id].append([tb.id, step.s, waits])
            awaited[self.start[g]] = before + targets_left
            g += 1
        return awaited, odd


def _of_gpu(gpu: Gpu, odd: list) -> dict[str, object]:
    values: dict[str, object] = {
        "msccl_i_chunks": gpu.i_chunks,
        "msccl_o_chunks": gpu.o_chunks,
        "msccl_s_chunks": gpu.s_chunks,
        "msccl_tbs": " ".join(f"{tb.id}:{tb.send}:{tb.recv}:{tb.chan}" for tb in gpu.tbs),
    }
    if odd:
        values["msccl_nops"] = json.dumps(odd, separators=(",", ":"))
    return values
