"""From traces back to the MSCCL program, operation for operation.

Edges count, not numbers: the chain of `tb_prev` gives the order of a thread block, so nodes may have new numbers or
another order. All but the last dependency of a step become nops; the metadata (`msccl_nops`) describe nops of another
shape, as long as the edges agree. The program is accepted only if it gives the same traces again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import LETTERS, PLAIN_NOP, Gpu, MscclProgram, MscclStep, NopFields, ThreadBlock, nop_step
from astrasim_py.msccl.to_traces import traces_of
from astrasim_py.program.algorithm import Algorithm

_KINDS = {int(NodeType.COMM_RECV): "R", int(NodeType.COMP): "C", int(NodeType.COMM_SEND): "S"}
#: Types of steps by the kinds of their nodes; of a single COMP node by its operation.
_TYPES = {"S": "s", "R": "r", "RS": "rcs", "RC": "rrc", "RCS": "rrs", CompOp.COPY: "cpy", CompOp.REDUCE: "re"}
#: Columns, and the kinds of nodes on which a program states them.
_STATED = {
    "comm_dst": "S", "comm_src": "R", "channel": "SR", "msg_chunk_cnt": "SRC", "total_chunk_cnt": "SRC",
    "comp_op": "C", "src_buf": "SRC", "src_off": "SRC", "dst_buf": "SRC", "dst_off": "SRC", "tb_id": "SRC",
}  # fmt: skip
_COLUMNS = (
    *_STATED, "comm_tag", "peer_buf", "peer_off", "payload", "local_time_step", "hasdep", "fused", "tb_prev", "depid",
    "deps", "source_line",
)  # fmt: skip


class _Unrecorded(Exception):
    """The traces do not carry a program, or one that no longer fits their nodes."""


def recorded_program(algorithm: Algorithm) -> MscclProgram | None:
    """The MSCCL program recorded in the traces of an algorithm.

    `algorithm`: as `astrasim_py.msccl.to_traces.algorithm_of` made it, or read back from any file that keeps its
    columns and metadata. Returns none where the traces carry no thread blocks, or where they were changed so that
    thread blocks, channels and fused steps no longer describe them.
    """
    head = algorithm.traces[0]
    coll, name, inplace = head.meta("msccl_coll"), head.meta("msccl_name"), _whole(head, "msccl_inplace")
    if not isinstance(coll, str) or not algorithm.chunks:
        return None
    if not isinstance(name, str) or (name[: len(algorithm.name)] or "algorithm") != algorithm.name:
        name = algorithm.name
    try:
        ranks = [_RecordedRank(algorithm, rank) for rank in range(algorithm.ranks)]
        gpus = tuple(rank.gpu() for rank in ranks)
        used = max((tb.chan for gpu in gpus for tb in gpu.tbs), default=0)
        program = MscclProgram(
            name=name,
            proto=algorithm.protocol or "Simple",
            nchannels=max(_whole(head, "msccl_nchannels") or 0, 1 + used),
            nchunksperloop=algorithm.chunks,
            ngpus=algorithm.ranks,
            coll=coll,
            inplace=inplace if inplace is not None and bool(inplace) == algorithm.in_place else int(algorithm.in_place),
            outofplace=_whole(head, "msccl_outofplace"),
            min_bytes=_whole(head, "msccl_min_bytes"),
            max_bytes=_whole(head, "msccl_max_bytes"),
            nthreads=_whole(head, "msccl_nthreads"),
            gpus=gpus,
            source=algorithm.source,
        )
        _check_same(ranks, traces_of(program, algorithm.collective, {}))
    except (_Unrecorded, AlgorithmError):
        return None
    return program


def _whole(trace: ExecutionTrace, name: str) -> int | None:
    value = trace.meta(name)
    return value if type(value) is int else None


def _check_same(ranks: list[_RecordedRank], traces: Sequence[ExecutionTrace]) -> None:
    """The program must give these traces; tags must pair the messages that the order of thread blocks pairs."""
    sent, received = {}, {}
    for record, trace in zip(ranks, traces, strict=True):
        record.check_same(trace)
        tags, rows = trace.column("comm_tag").tolist(), record.order
        for row, queued in zip(rows, tags, strict=True):
            fields = tuple(record.column[name][row] for name in ("channel", "comm_tag", "msg_chunk_cnt"))
            if record.kinds[row] == "S":
                sent[record.rank, record.column["comm_dst"][row], queued] = fields
            elif record.kinds[row] == "R":
                received[record.column["comm_src"][row], record.rank, queued] = fields
    pairs = {(source, target, *fields[:2]) for (source, target, _), fields in sent.items()}
    if sent != received or len({(source, target, tag) for source, target, _, tag in pairs}) < len(pairs):
        raise _Unrecorded


class _NodeGroup(NamedTuple):
    """Nodes of one step, first to last, as rows; the node before it in its thread block; others that it waits for."""

    rows: list[int]
    type: str
    before: int
    waits: list[int]


#: What a step or nop waits for: the node that ends another step, or the numbers of one as they are written.
_Wait = int | tuple[int, int]
#: The nops before a step with their fields and waits; the last one stands for the step itself.
_Waits = list[tuple[NopFields, _Wait]]


class _RecordedRank:
    """The steps of one trace in the order of their thread blocks."""

    def __init__(self, algorithm: Algorithm, rank: int) -> None:
        trace = algorithm.traces[rank]
        self.rank, self.trace = rank, trace
        self.kinds = [_KINDS.get(kind, "") for kind in trace.type.tolist()]
        self.column = {name: trace.column(name).tolist() for name in _COLUMNS}
        self.ids = trace.node_id.tolist()
        ptr, ids = trace.data_deps.ptr.tolist(), trace.data_deps.ids.tolist()
        self.deps = [ids[a:b] for a, b in pairwise(ptr)]
        blocks, counts = self.column["tb_id"], self.column["msg_chunk_cnt"]
        if len(trace.ctrl_deps.ids) or "" in self.kinds or min(blocks, default=0) < 0 or min(counts, default=1) < 1:
            raise _Unrecorded
        self.table = _table(trace)
        self.blocks = self._chains()
        self._number()
        #: Rows in the order of the program, and what its thread blocks send to and receive from.
        self.order: list[int] = []
        self.owned: set[tuple[str, int, int]] = set()

    # -- steps and their order

    def _chains(self) -> dict[int, list[_NodeGroup]]:
        """Steps by thread block, in the order that `tb_prev` gives."""
        groups: dict[int, list[int]] = {}
        for row, (node, first) in enumerate(zip(self.ids, self.column["fused"], strict=True)):
            groups.setdefault(node if first == MISSING else first, []).append(row)
        if not groups.keys() <= set(self.ids):
            raise _Unrecorded
        steps = [self._step(sorted(rows, key=lambda row: "RCS".index(self.kinds[row]))) for rows in groups.values()]
        after = {step.before: step for step in steps}
        blocks = {self.column["tb_id"][step.rows[0]]: [step] for step in steps if step.before == MISSING}
        for chain in blocks.values():
            while (following := after.get(self.ids[chain[-1].rows[-1]])) is not None:
                chain.append(following)
        return blocks

    def _step(self, rows: list[int]) -> _NodeGroup:
        column, first = self.column, rows[0]
        shape = "".join(self.kinds[row] for row in rows)
        kind = _TYPES.get(column["comp_op"][first] if shape == "C" else shape)
        if kind is None:
            raise _Unrecorded
        if kind == "rrs" and column["dst_buf"][rows[1]] != MISSING:
            kind = "rrcs"
        before, waits = column["tb_prev"][first], list(self.deps[first])
        if before in waits:
            waits.remove(before)
        return _NodeGroup(rows, kind, before, waits)

    # -- numbers of steps

    def _number(self) -> None:
        """Shape the nops of every thread block, then number its steps."""
        odd = _odd_nops(self.trace)
        last = [step.rows[-1] for steps in self.blocks.values() for step in steps]
        #: Place of the step that a node ends: in the recorded program, and now.
        self.was = {self.ids[row]: (self.column["tb_id"][row], self.column["local_time_step"][row]) for row in last}
        self.now: dict[int, tuple[int, int]] = {}
        self.waits: dict[int, _Waits] = {}
        for block, steps in self.blocks.items():
            number = -1
            for step in steps:
                end = self.ids[step.rows[-1]]
                self.waits[end] = self._shaped(step, odd.get(self.was[end]))
                number += len(self.waits[end])
                self.now[end] = block, number
        self.trailing = {block: nops for (block, index), nops in odd.items() if index == -1}

    def _shaped(self, step: _NodeGroup, recorded: list[tuple] | None) -> _Waits:
        if any(node not in self.was for node in step.waits):
            raise _Unrecorded
        target = tuple(max(self.column[name][step.rows[0]], -1) for name in ("depid", "deps"))
        if recorded is not None:
            all_waits = [*((nop[:6], (nop[6], nop[7])) for nop in recorded), (PLAIN_NOP, target)]
            places = {place for _, place in all_waits if place[0] >= 0}
            node_at = {self.was[node]: node for node in step.waits}
            awaited = set(node_at)
            if step.before in self.was:
                node_at[self.was[step.before]] = step.before
            if awaited <= places <= node_at.keys() and len(node_at) == len(step.waits) + (step.before in self.was):
                return [(fields, node_at.get(place, place)) for fields, place in all_waits]
        waits: Sequence[_Wait] = step.waits or [(-1, target[1] if target[0] < 0 else -1)]
        return [(PLAIN_NOP, wait) for wait in waits]

    def _place(self, wait: _Wait) -> tuple[int, int]:
        return wait if isinstance(wait, tuple) else self.now[wait]

    # -- the gpu

    def gpu(self) -> Gpu:
        awaited = {wait for waits in self.waits.values() for _, wait in waits}
        now_at = {self.was[node]: place for node, place in self.now.items()}
        tbs = []
        for block in dict.fromkeys([*self.table, *sorted(self.blocks), *sorted(self.trailing)]):
            steps: list[MscclStep] = []
            for step in self.blocks.get(block, ()):
                self.order += step.rows
                end = self.ids[step.rows[-1]]
                *nops, (_, end_wait) = self.waits[end]
                for fields, wait in nops:
                    steps.append(nop_step(len(steps), fields, self._place(wait)))
                steps.append(self._operation(len(steps), step, self._place(end_wait), end in awaited))
            for nop in self.trailing.get(block, ()):
                # A nop behind the last step delays nothing, and has no edge.
                steps.append(nop_step(len(steps), nop[:6], now_at.get((nop[6], nop[7]), (nop[6], nop[7]))))
            tbs.append(ThreadBlock(block, *self._ends(block), tuple(steps)))
        inputs, outputs, scratch = (_whole(self.trace, f"msccl_{letter}_chunks") for letter in "ios")
        if inputs is None or outputs is None or scratch is None:
            raise _Unrecorded
        return Gpu(self.rank, inputs, outputs, scratch, tuple(tbs))

    def _operation(self, number: int, step: _NodeGroup, dep: tuple[int, int], awaited: bool) -> MscclStep:
        rows, column, first = step.rows, self.column, step.rows[0]

        def cells(side: str, least: int = 0) -> tuple[str, int] | None:
            stated = ((column[f"{side}_buf"][row], column[f"{side}_off"][row]) for row in rows)
            return next(((LETTERS[b], offset) for b, offset in stated if b in LETTERS and offset >= least), None)

        named, source, target = cells("peer", MISSING + 1), cells("src"), cells("dst")
        return MscclStep(
            number,
            step.type,
            *(source or named or target or ("i", 0)),
            *(target or named or source or ("i", 0)),
            column["msg_chunk_cnt"][first],
            *dep,
            int(awaited or column["hasdep"][first] > 0),
            max(column["source_line"][first], 0),
        )

    def _ends(self, block: int) -> tuple[int, int, int]:
        """Send peer, receive peer and channel of a thread block: from its nodes, else from the table."""
        rows = [row for step in self.blocks.get(block, ()) for row in step.rows]
        out = list(self.table.get(block, (-1, -1, 0)))
        for place, kind, name in ((2, "SR", "channel"), (0, "S", "comm_dst"), (1, "R", "comm_src")):
            value = next((self.column[name][row] for row in rows if self.kinds[row] in kind), None)
            if value is None:
                continue
            out[place] = value
            if value == MISSING or (kind, value, out[2]) in self.owned:
                raise _Unrecorded
            if kind != "SR":
                self.owned.add((kind, value, out[2]))
        return out[0], out[1], out[2]

    def check_same(self, made: ExecutionTrace) -> None:
        """Every node of the program's trace must equal that of this trace."""
        order = np.array(self.order, dtype=np.int64)
        if not len(order) == len(self.ids) == len(made) or (self.trace.type[order] != made.type).any():
            raise _Unrecorded
        number = {self.ids[row]: index for index, row in enumerate(self.order)} | {MISSING: MISSING}
        kinds = np.array(self.kinds)[order]
        same = all(
            np.array_equal(self.trace.column(name)[order][here], made.column(name)[here])
            for name, here in ((name, np.isin(kinds, list(on))) for name, on in _STATED.items())
        )
        named = all(
            [number.get(self.column[name][row]) for row in self.order] == made.column(name).tolist()
            for name in ("payload", "tb_prev")
        )
        waits = [set(map(number.get, self.deps[row])) for row in self.order]
        ptr, ids = (column.tolist() for column in made.data_deps)
        if not same or not named or waits != [set(ids[a:b]) for a, b in pairwise(ptr)]:
            raise _Unrecorded


def _table(trace: ExecutionTrace) -> dict[int, tuple[int, int, int]]:
    """Thread blocks as the metadata lists them: id -> (send, recv, chan); none where it is no such list."""
    text = trace.meta("msccl_tbs")
    try:
        rows = [tuple(map(int, row.split(":"))) for row in text.split()] if isinstance(text, str) else []
        return {block: (send, recv, chan) for block, send, recv, chan in rows}
    except ValueError:
        return {}


#: Nops before a step: thread block, step, and of each nop `PLAIN_NOP`'s fields, depid and deps.
_ODD = TypeAdapter(list[tuple[int, int, list[tuple[str, int, str, int, int, int, int, int]]]])


def _odd_nops(trace: ExecutionTrace) -> dict[tuple[int, int], list[tuple]]:
    """Nops that edges do not show, by thread block and the step they precede (-1: the end)."""
    try:
        nops = trace.meta("msccl_nops")
        rows = _ODD.validate_json(nops if isinstance(nops, str) else "[]", strict=True)
    except ValidationError:
        return {}
    return {(block, step): nops for block, step, nops in rows}
