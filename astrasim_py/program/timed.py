"""Algorithms with a bound delay per message, or bound sizes in bytes."""

from dataclasses import replace

import numpy as np

from astrasim_py.chakra.graph import owners, pointers
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, REFERENCES, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.traces import Traces


def with_endpoint_delay(algorithm: Algorithm, delay_ps: int) -> Algorithm:
    """The algorithm in which every message delays its receiver: children of the receive start after the delay."""
    if not delay_ps:
        return algorithm
    rotated = algorithm.traces.rotated
    if rotated is not None:
        trace, order = _delayed(rotated.base, delay_ps)
        origin = np.where(order < len(rotated.base), order, -1)
        return replace(algorithm, traces=Traces.of_rotation(rotated.on(trace, origin)))
    delayed = {trace: _delayed(trace, delay_ps)[0] for trace in dict.fromkeys(algorithm.traces)}
    return replace(algorithm, traces=Traces.of(delayed[trace] for trace in algorithm.traces))


def _delayed(trace: ExecutionTrace, delay_ps: int) -> tuple[ExecutionTrace, np.ndarray]:
    """The trace with delays, and of each of its rows the row before; a delay is no row, len(trace) or more."""
    n, received = len(trace), np.flatnonzero(trace.type == NodeType.COMM_RECV)
    order = np.argsort(np.concatenate([2 * np.arange(n), 2 * received + 1]), kind="stable")
    position = np.argsort(order)
    # A delay gets the id after its receive, so that it runs next.
    new_id = 2 * np.argsort(np.argsort(trace.node_id, kind="stable"))
    done_id = new_id + (trace.type == NodeType.COMM_RECV)

    def columns(name: str, values: np.ndarray, delays: int) -> np.ndarray:
        if name in REFERENCES:
            rows = trace.rows_of(np.maximum(values, 0).astype(np.uint64))
            values = np.where(values == MISSING, MISSING, (done_id if name == "count_from" else new_id)[rows])
        return np.concatenate([values, np.full(len(received), delays, dtype=values.dtype)])[order]

    def dependencies(deps: Csr, waiting: np.ndarray) -> Csr:
        """Those of the trace, and `waiting` delays on their receives."""
        child = np.concatenate([position[owners(deps.ptr)], position[n : n + len(waiting)]])
        ids = np.concatenate([done_id[trace.rows_of(deps.ids)], new_id[waiting]])
        return Csr(pointers(child, len(order)), ids[np.argsort(child, kind="stable")].astype(np.uint64))

    int_columns = {name: columns(name, trace.column(name), MISSING) for name in INT_COLUMNS if trace.has_column(name)}
    int_columns["duration_ps"] = columns("duration_ps", trace.column("duration_ps"), delay_ps)
    delayed = ExecutionTrace.from_columns(
        node_id=np.concatenate([new_id, new_id[received] + 1])[order].astype(np.uint64),
        type=columns("type", trace.type, NodeType.COMP),
        duration_micros=columns("duration_micros", trace.duration_micros, 0),
        data_deps=dependencies(trace.data_deps, received), ctrl_deps=dependencies(trace.ctrl_deps, received[:0]),
        place=trace.place, **int_columns,
    )  # fmt: skip
    return delayed, order


def with_sizes(algorithm: Algorithm, size: int) -> Algorithm:
    """The algorithm with the sizes of a buffer of `size` bytes in place of sizes in chunks."""

    def sized(trace: ExecutionTrace, moved: np.ndarray) -> ExecutionTrace:
        moving = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
        moving |= (trace.type == NodeType.COMP) & (trace.column("comp_op") != MISSING)
        return trace.replace(comm_size=np.where(moving, moved, MISSING), total_chunk_cnt=MISSING)

    rotated = algorithm.traces.rotated
    if rotated is not None and not rotated.may_differ("msg_chunk_cnt") and algorithm.same_bytes(size):
        traces = Traces.of_rotation(rotated.on(sized(rotated.base, algorithm.message_bytes(0, size))))
    else:
        traces = Traces.of(sized(t, algorithm.message_bytes(rank, size)) for rank, t in enumerate(algorithm.traces))
    return replace(algorithm, traces=traces, chunks=0)
