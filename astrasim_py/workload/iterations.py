"""Workloads repeated: iterations of a job."""

import dataclasses

import numpy as np

from astrasim_py.chakra.control import as_data
from astrasim_py.chakra.schema import COLUMN_KINDS, MISSING, REFERENCES
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.workload.microbenchmarks import MAX_NODES


def iterate(workload: Workload, iterations: int) -> Workload:
    """Repeat a workload, without a barrier.

    On each rank the nodes that depend on none wait, from the second iteration on, for all nodes of the iteration before
    on which none depends. Iteration i has the ids of the trace plus i times the largest id plus 1. Attributes without a
    column are lost.

    Raises
    ------
    TraceError
        More than `MAX_NODES` nodes or dependencies, ranks of equal traces counted once; ids beyond 2^63 - 1.
    """
    if iterations == 1:
        return workload
    if workload.dependencies != "data":
        # Links between iterations are data dependencies, and control dependencies would no longer order it.
        ordered = {trace: as_data(trace) for trace in dict.fromkeys(workload.traces)}
        workload = dataclasses.replace(workload, traces=tuple(map(ordered.__getitem__, workload.traces)))
    distinct = dict.fromkeys(workload.traces)
    total = iterations * sum(max(len(trace), len(trace.data_deps.ids)) for trace in distinct)
    if total > MAX_NODES:
        problem = f"has {total} nodes or dependencies in {iterations} iterations, more than {MAX_NODES}"
        raise TraceError(workload.name, problem, "write fewer iterations")
    repeated = {trace: _repeated(trace, iterations) for trace in distinct}
    return dataclasses.replace(workload, traces=tuple(repeated[trace] for trace in workload.traces))


def _repeated(trace: ExecutionTrace, iterations: int) -> ExecutionTrace:
    shift = int(trace.node_id.max(initial=0)) + 1
    if shift * iterations >= 2**63:
        raise TraceError(trace.place, f"ids of nodes are too large for {iterations} iterations", "renumber its nodes")
    ids, later = trace.node_id.astype(np.int64), np.arange(iterations)[:, None] * shift
    columns = {name: np.tile(trace.column(name), iterations) for name in COLUMN_KINDS if trace.has_column(name)}
    for name in columns.keys() & {*REFERENCES}:
        column = trace.column(name)
        columns[name] = np.where(column == MISSING, MISSING, column + later).ravel()
    codes, names = trace.group_of()
    return ExecutionTrace.from_columns(
        node_id=(ids + later).ravel(),
        type=np.tile(trace.type, iterations),
        data_deps=_chained(trace, ids, iterations, shift),
        ctrl_deps=_chained(trace, None, iterations, shift),
        duration_micros=np.tile(trace.duration_micros, iterations),
        start_time_micros=np.tile(trace.start_time_micros, iterations),
        names=trace.names * iterations,
        pg_name=(np.tile(codes, iterations), names),
        metadata=trace.metadata,
        rest=None if trace.rest is None else (np.tile(trace.rest[0], iterations), trace.rest[1]),
        version=trace.version,
        place=trace.place,
        rank=trace.rank,
        **columns,
    )


def _chained(trace: ExecutionTrace, ids: np.ndarray | None, iterations: int, shift: int) -> Csr:
    """Dependencies of all iterations; with `ids`: data dependencies, including those between iterations."""
    deps = trace.ctrl_deps if ids is None else trace.data_deps
    counts, parents = np.diff(deps.ptr), deps.ids.astype(np.int64)
    owner, before = np.repeat(np.arange(len(counts)), counts), np.zeros(len(parents), dtype=np.int64)
    if ids is not None:
        roots, sinks = np.flatnonzero(counts == 0), np.setdiff1d(ids, parents)
        if len(roots) * len(sinks) * iterations > MAX_NODES:
            problem = f"begins with {len(roots)} nodes, and ends with {len(sinks)}: too many to wait for each other"
            raise TraceError(trace.place, problem, "write fewer iterations")
        owner = np.concatenate([owner, np.repeat(roots, len(sinks))])
        parents = np.concatenate([parents, np.tile(sinks, len(roots))])
        before = np.concatenate([before, np.full(len(roots) * len(sinks), shift)])
        order = np.argsort(owner, kind="stable")
        owner, parents, before = owner[order], parents[order], before[order]
    new_counts = np.concatenate([counts, np.tile(np.bincount(owner, minlength=len(counts)), iterations - 1)])
    later = (parents - before + np.arange(1, iterations)[:, None] * shift).ravel()
    return Csr(
        np.concatenate([[0], np.cumsum(new_counts)]).astype(np.int64),
        np.concatenate([deps.ids.astype(np.int64), later]).astype(np.uint64),
    )
