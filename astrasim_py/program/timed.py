"""Algorithms with something bound to them that their producer leaves open: a delay per message, sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import RotatedTraces

#: Columns that hold ids of nodes.
_REFERENCES = ("payload", "fused", "tb_prev", "count_from")


def with_endpoint_delay(algorithm: Algorithm, delay_ps: int) -> Algorithm:
    """The algorithm in which every message costs its receiver a delay before anything that waits for it goes on."""
    if not delay_ps:
        return algorithm
    if isinstance(algorithm.traces, RotatedTraces):
        trace, order = _delayed(algorithm.traces.base, delay_ps)
        origin = np.where(order < len(algorithm.traces.base), order, -1)
        return replace(algorithm, traces=algorithm.traces.rows(trace, origin))
    made = {trace: _delayed(trace, delay_ps)[0] for trace in dict.fromkeys(algorithm.traces)}
    return replace(algorithm, traces=tuple(made[trace] for trace in algorithm.traces))


def _delayed(trace: ExecutionTrace, delay_ps: int) -> tuple[ExecutionTrace, np.ndarray]:
    """The trace with delays, and of each of its rows the row before; a delay is no row, len(trace) or more."""
    n = len(trace)
    received = np.flatnonzero(trace.type == NodeType.COMM_RECV)
    # A delay gets the id after its receive, so that it runs next.
    order = np.argsort(np.concatenate([2 * np.arange(n), 2 * received + 1]), kind="stable")
    by_id = np.argsort(trace.node_id, kind="stable")
    sorted_ids = trace.node_id[by_id]
    rank = np.empty(n, dtype=np.int64)
    rank[by_id] = np.arange(n)

    def renamed(ids: np.ndarray, *, done: bool) -> np.ndarray:
        """New ids; with `done` those of the delay where the node is a receive."""
        rows = by_id[np.searchsorted(sorted_ids, ids)]
        new = 2 * rank[rows]
        return new + (trace.type[rows] == NodeType.COMM_RECV) if done else new

    def dependencies(deps: Csr, extra: np.ndarray | None) -> Csr:
        given = [renamed(deps.ids, done=True)]
        if extra is not None:
            given.append(extra)
        lengths = np.concatenate([np.diff(deps.ptr), np.full(len(received), 0 if extra is None else 1)])
        first = (np.cumsum(lengths) - lengths)[order]
        ptr = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(lengths[order], out=ptr[1:])
        at = np.repeat(first - ptr[:-1], lengths[order]) + np.arange(ptr[-1])
        return Csr(ptr, np.concatenate(given).astype(np.uint64)[at])

    columns = {}
    for name in INT_COLUMNS:
        if not trace.has_column(name):
            continue
        values = trace.column(name)
        if name in _REFERENCES:
            given = values != MISSING
            values = values.copy()
            values[given] = renamed(values[given].astype(np.uint64), done=name == "count_from")
        columns[name] = np.concatenate([values, np.full(len(received), MISSING)])[order]
    duration = columns.get("duration_ps", np.full(len(order), MISSING))
    columns["duration_ps"] = np.where(order >= n, delay_ps, duration)
    micros = np.concatenate([trace.duration_micros, np.zeros(len(received), dtype=np.uint64)])[order]
    new_ids = np.concatenate([2 * rank, 2 * rank[received] + 1])[order]
    made = ExecutionTrace.from_columns(
        node_id=new_ids.astype(np.uint64),
        type=np.concatenate([trace.type, np.full(len(received), NodeType.COMP, dtype=trace.type.dtype)])[order],
        duration_micros=micros,
        data_deps=dependencies(trace.data_deps, 2 * rank[received]),
        ctrl_deps=dependencies(trace.ctrl_deps, None),
        place=trace.place,
        **columns,
    )
    return made, order


def with_sizes(algorithm: Algorithm, size: int) -> Algorithm:
    """The algorithm with the sizes of a buffer of `size` bytes in place of sizes in chunks."""

    def sized(trace: ExecutionTrace, moved: np.ndarray) -> ExecutionTrace:
        moving = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
        moving |= (trace.type == NodeType.COMP) & (trace.column("comp_op") != MISSING)
        return trace.replace(comm_size=np.where(moving, moved, MISSING), total_chunk_cnt=MISSING)

    traces: Sequence[ExecutionTrace]
    lasting = isinstance(algorithm.traces, RotatedTraces) and not algorithm.traces.may_differ("msg_chunk_cnt")
    if lasting and algorithm.same_bytes(size):
        traces = algorithm.traces.on(sized(algorithm.traces.base, algorithm.message_bytes(0, size)))
    else:
        traces = tuple(sized(t, algorithm.message_bytes(rank, size)) for rank, t in enumerate(algorithm.traces))
    return replace(algorithm, traces=traces, chunks=0)
