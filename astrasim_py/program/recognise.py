"""The rotation of an algorithm that came as one trace per rank.

Files name no rotation. It is found by comparing, column by column, all that a plan and an engine read of the traces, so
that one program for all ranks gives the plan that the files themselves give.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.program.rotation import VARYING, RotatedTraces, Rotation

#: Columns that no engine and no plan reads, where the data of a node lie; and those that are compared by themselves.
_FREE = frozenset(VARYING) | {"src_buf", "dst_buf"}
#: `CompOp.REDUCE`, of the module that needs this one.
_REDUCE = 1
#: Peers of all ranks that are compared at once.
_BLOCK_NODES = 2**18


class GivenTraces(tuple[ExecutionTrace, ...]):
    """Traces that were given one by one; algorithms with the same traces share the rotation found among them."""

    @cached_property
    def rotated(self) -> RotatedTraces | None:
        """These traces as those of a rotation; None where they are not."""
        rotation = rotation_of(self)
        return None if rotation is None else RotatedTraces(rotation, self[0], _Columns(self), self)

    def __reduce__(self):
        return type(self), (tuple(self),)


class _Columns:
    """Columns of some of the traces that were given."""

    def __init__(self, traces: GivenTraces) -> None:
        self.traces = traces

    def __call__(self, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        some = [self.traces[rank] for rank in ranks.tolist()]
        size = len(self.traces[0])
        found = {}
        for name in names:
            found[name] = np.empty((len(some), size), dtype=np.int64)
            for row, trace in zip(found[name], some, strict=True):
                row[:] = trace.picked(name)
        return found


def rotation_of(traces: Sequence[ExecutionTrace]) -> Rotation | None:
    """The rotation under which all ranks run the program of rank 0; None where there is none.

    Peers of rank p must be those of rank 0 turned by p, and all else that a plan or an engine reads must be equal:
    nodes, their ids and order, kinds, dependencies, tags, chunk counts, sizes, durations, counters. Which chunks a
    node covers, how many a local copy moves, where they lie, names and metadata are each rank's own.

    Time is linear in what is compared, and comparing ends at the first difference.
    """
    ranks, base = len(traces), traces[0]
    if ranks < 2 or any(len(trace) != len(base) for trace in traces):
        return None
    send, receive = (np.flatnonzero(base.type == kind) for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV))
    mine = _peers(base, send, receive)
    if not len(mine) or int(mine.min()) < 0 or int(mine.max()) >= ranks:
        return None
    dims = _dims(mine, lambda rank: _peers(traces[rank], send, receive), ranks)
    if dims is None:
        return None
    rotation = Rotation(dims)
    step = max(_BLOCK_NODES // len(mine), 1)
    for start in range(1, ranks, step):
        block = np.arange(start, min(start + step, ranks))
        theirs = np.stack([_peers(traces[rank], send, receive) for rank in block.tolist()])
        if not np.array_equal(theirs, rotation.shift(mine[None, :], block[:, None])):
            return None
    # Nobody waits for the bytes of a local copy. Others must be as many; without a chunk, a size is stated otherwise.
    rows = np.flatnonzero((base.type != NodeType.COMP) | (base.picked("comp_op") == _REDUCE))
    index, count = base.picked("msg_chunk_idx", rows) >= 0, base.picked("msg_chunk_cnt", rows)
    for trace in traces[1:]:
        if not (
            trace.runs_like(base, _FREE)
            and np.array_equal(trace.picked("msg_chunk_cnt", rows), count)
            and np.array_equal(trace.picked("msg_chunk_idx", rows) >= 0, index)
        ):
            return None
    return rotation


def _peers(trace: ExecutionTrace, send: np.ndarray, receive: np.ndarray) -> np.ndarray:
    """int64: peers of the sends, then of the receives."""
    return np.concatenate([trace.picked("comm_dst", send), trace.picked("comm_src", receive)])


def _dims(mine: np.ndarray, peers_of, ranks: int) -> tuple[int, ...] | None:
    """Radices, the least significant first, for which the peers of some ranks speak; None where they speak of none.

    Rank s, the first of a digit that s numbers precede, adds 1 to that digit of every peer: s, or, from the last
    value of the digit to the first, s less its radix times s.
    """
    dims, stride = [], 1
    while stride < ranks:
        back = mine - peers_of(stride)
        wrapped = back[back != -stride]
        size = ranks // stride
        if len(wrapped):
            size, rest = divmod(int(wrapped[0]), stride)
            size += 1
            if rest or size < 2 or ranks % (stride * size):
                return None
        dims.append(size)
        stride *= size
    return tuple(dims)
