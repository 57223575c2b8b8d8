"""From traces back to the MSCCL program, operation for operation.

Edges decide, not numbers: the chain of `tb_prev` gives the order of a thread block, so nodes may have new numbers or
another order. All but the last dependency of a step become nops; the metadata (`msccl_nops`) describe nops of another
shape, as long as the edges agree.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.msccl.ir import LETTERS, READING, WRITING, Gpu, MscclProgram, MscclStep, ThreadBlock
from astrasim_py.program.algorithm import Algorithm

#: Fields of a nop that only waits: srcbuf, srcoff, dstbuf, dstoff, cnt, hasdep.
PLAIN_NOP = ("i", -1, "o", -1, 0, 0)

_ORDER = {int(NodeType.COMM_RECV): "R", int(NodeType.COMP): "C", int(NodeType.COMM_SEND): "S"}
_COLUMNS = (
    "comm_dst", "comm_src", "comm_tag", "channel", "msg_chunk_cnt", "total_chunk_cnt", "comp_op", "src_buf",
    "src_off", "dst_buf", "dst_off", "peer_buf", "peer_off", "payload", "tb_id", "local_time_step", "hasdep",
    "fused", "tb_prev", "depid", "deps", "source_line",
)  # fmt: skip


def nop_fields(step: MscclStep) -> tuple[str, int, str, int, int, int]:
    """Fields of a nop but its dependency, in the order of `PLAIN_NOP`."""
    return step.srcbuf, step.srcoff, step.dstbuf, step.dstoff, step.cnt, step.hasdep


class _Unrecorded(Exception):
    """The traces do not carry a program, or one that no longer fits their nodes."""


def recorded_program(algorithm: Algorithm) -> MscclProgram | None:
    """The MSCCL program recorded in the traces of an algorithm.

    `algorithm`: as `astrasim_py.msccl.to_traces.algorithm_of` made it, or read back from any file that keeps its
    columns and metadata. Returns none where the traces carry no thread blocks, or where they were changed so that
    thread blocks, channels and fused steps no longer describe them.
    """
    coll = algorithm.traces[0].meta("msccl_coll")
    if not isinstance(coll, str) or not algorithm.chunks:
        return None
    try:
        ranks = [_RecordedRank(algorithm, rank) for rank in range(algorithm.ranks)]
        _check_pairing(ranks)
        gpus = tuple(rank.gpu() for rank in ranks)
    except _Unrecorded:
        return None
    head = algorithm.traces[0]
    name, inplace = head.meta("msccl_name"), _whole(head, "msccl_inplace")
    if not isinstance(name, str) or (name[: len(algorithm.name)] or "algorithm") != algorithm.name:
        name = algorithm.name
    used = max((tb.chan for gpu in gpus for tb in gpu.tbs), default=0)
    return MscclProgram(
        name=name,
        proto=algorithm.protocol or "Simple",
        nchannels=max(_whole(head, "msccl_nchannels") or 0, 1 + used),
        nchunksperloop=algorithm.chunks,
        ngpus=algorithm.ranks,
        coll=coll,
        inplace=inplace if inplace is not None and bool(inplace) == algorithm.in_place else int(algorithm.in_place),
        **{field: _whole(head, f"msccl_{field}") for field in ("outofplace", "min_bytes", "max_bytes", "nthreads")},
        gpus=gpus,
        source=algorithm.source,
    )


def _whole(trace: ExecutionTrace, name: str) -> int | None:
    value = trace.meta(name)
    return value if type(value) is int else None


class _NodeGroup(NamedTuple):
    """Nodes of one step, first to last, as rows; its dependencies, as ids."""

    rows: list[int]
    type: str
    before: int | None
    waits: list[int]


class _Wait(NamedTuple):
    """The dependency of a step or nop: the node that ends the other step; without one, the numbers as written."""

    node: int | None
    depid: int
    deps: int


class _Dependencies(NamedTuple):
    """Written form of the dependencies of a step: nops with their fields, and its own."""

    nops: list[tuple[tuple, _Wait]]
    own: _Wait


class _RecordedRank:
    """The steps of one trace in the order of their thread blocks."""

    def __init__(self, algorithm: Algorithm, rank: int) -> None:
        trace = algorithm.traces[rank]
        self.rank, self.trace = rank, trace
        self.kinds = [_ORDER.get(kind) for kind in trace.type.tolist()]
        self.column = {name: trace.column(name).tolist() for name in _COLUMNS}
        self.ids = trace.node_id.tolist()
        ptr, ids = trace.data_deps.ptr.tolist(), trace.data_deps.ids.tolist()
        self.deps = [ids[a:b] for a, b in pairwise(ptr)]
        count, total = self.column["msg_chunk_cnt"], self.column["total_chunk_cnt"]
        if (
            len(trace.ctrl_deps.ids)
            or None in self.kinds
            or any(block < 0 for block in self.column["tb_id"])
            or any(each < 1 for each in count)
            or any(each != algorithm.chunks for each in total)
        ):
            raise _Unrecorded
        self.table = _table(trace)
        self.blocks = self._chains(self._steps())
        self._number()

    # -- steps and their order

    def _steps(self) -> list[_NodeGroup]:
        row_of = {node: row for row, node in enumerate(self.ids)}
        groups: dict[int, list[int]] = {}
        for row, (node, first) in enumerate(zip(self.ids, self.column["fused"], strict=True)):
            groups.setdefault(node if first == MISSING else first, []).append(row)
        if any(first not in row_of for first in groups):
            raise _Unrecorded
        return [self._step(sorted(rows, key=lambda row: "RCS".index(self.kinds[row]))) for rows in groups.values()]

    def _step(self, rows: list[int]) -> _NodeGroup:
        column = self.column
        kind = self._type(rows)
        for before, row in pairwise(rows):
            if (
                set(self.deps[row]) != {self.ids[before]}
                or column["payload"][row] != self.ids[before]
                or column["tb_prev"][row] != MISSING
                or any(column[name][row] != column[name][before] for name in ("msg_chunk_cnt", "tb_id"))
            ):
                raise _Unrecorded
        first = rows[0]
        waits = list(self.deps[first])
        before = None
        if column["tb_prev"][first] != MISSING:
            before = column["tb_prev"][first]
            if before not in waits:
                raise _Unrecorded
            waits.remove(before)
        if column["payload"][first] != MISSING:
            raise _Unrecorded
        return _NodeGroup(rows, kind, before, waits)

    def _type(self, rows: list[int]) -> str:
        """Type of the step that these nodes make; they must say where they read and write as it does."""
        shape = "".join(self.kinds[row] for row in rows)
        op = next((self.column["comp_op"][row] for row in rows if self.kinds[row] == "C"), None)
        kind = {"S": "s", "R": "r", "RS": "rcs", "RC": "rrc", "RCS": "rrs"}.get(shape)
        if shape == "C":
            kind = {CompOp.COPY: "cpy", CompOp.REDUCE: "re"}.get(op)
        elif "C" in shape and op != CompOp.REDUCE:
            kind = None
        cells = ["".join(side for side in "sd" if self._has(side, row)) for row in rows]
        if kind == "rrs" and cells == ["", "sd", ""]:
            kind = "rrcs"
        expected = {
            "s": ["s"], "r": ["d"], "rcs": ["d", ""], "rrc": ["", "sd"], "rrs": ["", "s", ""], "rrcs": ["", "sd", ""],
            "cpy": ["sd"], "re": ["sd"],
        }  # fmt: skip
        if kind is None or cells != expected[kind]:
            raise _Unrecorded
        return kind

    def _has(self, side: str, row: int) -> bool:
        name = "src" if side == "s" else "dst"
        buffer, offset = self.column[f"{name}_buf"][row], self.column[f"{name}_off"][row]
        if buffer == offset == MISSING:
            return False
        if buffer not in LETTERS or offset < 0:
            raise _Unrecorded
        return True

    def _chains(self, steps: list[_NodeGroup]) -> dict[int, list[_NodeGroup]]:
        """Steps by thread block, in the order that `tb_prev` gives."""
        starts: dict[int, _NodeGroup] = {}
        after: dict[int, _NodeGroup] = {}
        sizes: dict[int, int] = {}
        for step in steps:
            block = self.column["tb_id"][step.rows[0]]
            sizes[block] = sizes.get(block, 0) + 1
            known, key = (starts, block) if step.before is None else (after, step.before)
            if key in known:
                raise _Unrecorded
            known[key] = step
        blocks = {}
        for block, step in starts.items():
            chain = [step]
            while (following := after.get(self.ids[chain[-1].rows[-1]])) is not None:
                chain.append(following)
            if len(chain) != sizes[block] or any(self.column["tb_id"][one.rows[0]] != block for one in chain):
                raise _Unrecorded
            blocks[block] = chain
        if blocks.keys() != sizes.keys():
            raise _Unrecorded
        return blocks

    # -- numbers of steps

    def _number(self) -> None:
        """Shape the nops of every thread block, then number its steps."""
        odd = _odd_nops(self.trace)
        last = {step.rows[-1]: step for steps in self.blocks.values() for step in steps}
        in_step = self.column["local_time_step"]
        #: Place of the step that a node ends: in the recorded program, and now.
        self.was = {self.ids[row]: (self.column["tb_id"][row], in_step[row]) for row in last}
        self.now: dict[int, tuple[int, int]] = {}
        self.shapes: dict[int, _Dependencies] = {}
        for block, steps in self.blocks.items():
            number = 0
            for step in steps:
                end = self.ids[step.rows[-1]]
                shape = self.shapes[end] = self._shape(step, odd.get(self.was[end]))
                number += len(shape.nops)
                self.now[end] = block, number
                number += 1
        self.trailing = {block: nops for (block, at), nops in odd.items() if at == -1}

    def _shape(self, step: _NodeGroup, recorded: list[list] | None) -> _Dependencies:
        if any(node not in self.was for node in step.waits):
            raise _Unrecorded
        first = step.rows[0]
        own = tuple(max(self.column[name][first], -1) for name in ("depid", "deps"))
        if recorded is not None:
            places = {(nop[6], nop[7]) for nop in recorded} | {own}
            places = {place for place in places if place[0] >= 0}
            awaited = {self.was[node]: node for node in step.waits}
            before = [] if step.before is None else [step.before]
            known = awaited | {self.was[node]: node for node in before}
            if awaited.keys() <= places <= known.keys() and len(known) == len(step.waits) + len(before):
                nops = [(tuple(nop[:6]), _Wait(known.get((nop[6], nop[7])), nop[6], nop[7])) for nop in recorded]
                return _Dependencies(nops, _Wait(known.get(own), *own))
        *others, last = [_Wait(node, -1, -1) for node in step.waits] or [_Wait(None, -1, own[1] if own[0] < 0 else -1)]
        return _Dependencies([(PLAIN_NOP, wait) for wait in others], last)

    def _place(self, wait: _Wait) -> tuple[int, int]:
        return (wait.depid, wait.deps) if wait.node is None else self.now[wait.node]

    # -- the gpu

    def gpu(self) -> Gpu:
        """The gpu of this rank."""
        shapes = self.shapes.values()
        awaited = {wait.node for shape in shapes for wait in (shape.own, *(wait for _, wait in shape.nops))}
        now_at = {self.was[node]: place for node, place in self.now.items()}
        tbs = []
        for block in dict.fromkeys([*self.table, *sorted(self.blocks), *sorted(self.trailing)]):
            steps: list[MscclStep] = []
            for one in self.blocks.get(block, ()):
                end = self.ids[one.rows[-1]]
                shape = self.shapes[end]
                for fields, wait in shape.nops:
                    steps.append(_nop_step(len(steps), fields, self._place(wait)))
                steps.append(self._operation(len(steps), one, self._place(shape.own), end in awaited))
            for nop in self.trailing.get(block, ()):
                # A nop behind the last step delays nothing, and has no edge.
                steps.append(_nop_step(len(steps), nop[:6], now_at.get((nop[6], nop[7]), (nop[6], nop[7]))))
            tbs.append(ThreadBlock(block, *self._ends(block), tuple(steps)))
        sizes = (self._size(name, tbs) for name in "ios")
        return Gpu(self.rank, *sizes, tuple(tbs))

    def _operation(self, number: int, step: _NodeGroup, dep: tuple[int, int], awaited: bool) -> MscclStep:
        rows, column = step.rows, self.column

        def cells(side: str) -> tuple[str, int] | None:
            for row in rows:
                buffer = column[f"{side}_buf"][row]
                if buffer in LETTERS and column[f"{side}_off"][row] != MISSING:
                    return LETTERS[buffer], column[f"{side}_off"][row]
            return None

        named = cells("peer")
        source, target = cells("src") or named or cells("dst"), cells("dst") or named or cells("src")
        first = rows[0]
        published = awaited or column["hasdep"][first] > 0
        line = max(column["source_line"][first], 0)
        return MscclStep(
            number, step.type, *source, *target, column["msg_chunk_cnt"][first], *dep, int(published), line
        )

    def _ends(self, block: int) -> tuple[int, int, int]:
        """Send peer, receive peer and channel of a thread block: from its nodes, else from the table."""
        rows = [row for step in self.blocks.get(block, ()) for row in step.rows if self.kinds[row] != "C"]
        out = list(self.table.get(block, (-1, -1, 0)))
        for place, kind, name in ((0, "S", "comm_dst"), (1, "R", "comm_src"), (2, "SR", "channel")):
            found = {self.column[name][row] for row in rows if self.kinds[row] in kind}
            if len(found) > 1 or MISSING in found:
                raise _Unrecorded
            out[place] = found.pop() if found else out[place]
        return tuple(out)

    def _size(self, letter: str, tbs: list[ThreadBlock]) -> int:
        stated = _whole(self.trace, f"msccl_{letter}_chunks")
        if stated is not None:
            return stated
        read = [s.srcoff + s.cnt for tb in tbs for s in tb.steps if s.srcbuf == letter and s.type in READING]
        written = [s.dstoff + s.cnt for tb in tbs for s in tb.steps if s.dstbuf == letter and s.type in WRITING]
        return max([0, *read, *written])

    def messages(self, kind: str) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        """(tag, chunks) of messages sent ("S") or received ("R"), by connection, in order."""
        found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for block, steps in self.blocks.items():
            send, recv, chan = self._ends(block)
            connection = (self.rank, send, chan) if kind == "S" else (recv, self.rank, chan)
            rows = [row for step in steps for row in step.rows if self.kinds[row] == kind]
            if rows and connection in found:
                raise _Unrecorded
            if rows:
                found[connection] = [(self.column["comm_tag"][row], self.column["msg_chunk_cnt"][row]) for row in rows]
        return found


def _nop_step(number: int, fields, dep: tuple[int, int]) -> MscclStep:
    srcbuf, srcoff, dstbuf, dstoff, cnt, hasdep = fields
    return MscclStep(number, "nop", srcbuf, srcoff, dstbuf, dstoff, cnt, *dep, hasdep)


def _check_pairing(ranks: list[_RecordedRank]) -> None:
    """Tags must pair the messages that the order of thread blocks pairs: a runtime knows only that order."""
    sent: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for rank in ranks:
        sent.update(rank.messages("S"))
        received.update(rank.messages("R"))
    if sent != received:
        raise _Unrecorded
    channel_of: dict[tuple[int, int, int], int] = {}
    for (source, target, channel), messages in sent.items():
        for tag, _ in messages:
            if channel_of.setdefault((source, target, tag), channel) != channel:
                raise _Unrecorded


def _table(trace: ExecutionTrace) -> dict[int, tuple[int, int, int]]:
    """Thread blocks as the metadata lists them: id -> (send, recv, chan); none where it is no such list."""
    text = trace.meta("msccl_tbs")
    try:
        rows = [tuple(map(int, row.split(":"))) for row in text.split()] if isinstance(text, str) else []
        return {block: (send, recv, chan) for block, send, recv, chan in rows}
    except ValueError:
        return {}


def _odd_nops(trace: ExecutionTrace) -> dict[tuple[int, int], list[list]]:
    """Nops that edges do not tell, by thread block and the step they precede (-1: the end)."""
    text = trace.meta("msccl_nops")
    try:
        rows = json.loads(text) if isinstance(text, str) else []
        found = {(block, step): nops for block, step, nops in rows}
    except (ValueError, TypeError, RecursionError):
        return {}
    wanted = (str, int, str, int, int, int, int, int)
    for place, nops in found.items():
        good = isinstance(nops, list) and all(type(number) is int for number in place)
        if not good or any(not isinstance(nop, list) or tuple(map(type, nop)) != wanted for nop in nops):
            return {}
    return found
