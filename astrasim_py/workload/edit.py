"""Parts of workloads, and workloads side by side."""

from collections.abc import Sequence

import numpy as np

from astrasim_py.chakra.graph import longest_path
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.rows import pointers


def recorded_times(trace: ExecutionTrace) -> tuple[np.ndarray, np.ndarray]:
    """Start and end in ps of every node, each as soon as its dependencies end and as long as recorded.

    Start times are those of the producer where it gives some and no exact durations. Calls without a
    recorded duration take no time.
    """
    exact = trace.column("duration_ps")
    took = np.where(exact != MISSING, exact, trace.duration_micros.astype(np.int64) * 10**6)
    if trace.start_time_micros.any() and not trace.has_column("duration_ps"):
        start = (trace.start_time_micros - trace.start_time_micros.min()).astype(np.int64) * 10**6
        return start, start + took
    end = longest_path(*trace.parents(), trace.order(), took)
    return end - took, end


def keep_nodes(trace: ExecutionTrace, keep: np.ndarray) -> ExecutionTrace:
    """The trace without some nodes (`keep`: bool[n]); what waited for one of them waits for what that waited for.

    Ids, names and all columns stay; attributes that have no column are gone.
    """
    rows = np.flatnonzero(keep)
    codes, names = trace.group_of()
    deps = {"data_deps": _through(trace, keep, "data")}
    if len(trace.ctrl_deps.ids):
        deps["ctrl_deps"] = _through(trace, keep, "data+ctrl")  # paths may lead by way of both
    return ExecutionTrace.from_columns(
        node_id=trace.node_id[rows],
        type=trace.type[rows],
        names=[trace.names[row] for row in rows.tolist()],
        pg_name=(codes[rows], names),
        duration_micros=trace.duration_micros[rows],
        start_time_micros=trace.start_time_micros[rows],
        place=trace.place,
        rank=trace.rank,
        **deps,
        **{name: trace.column(name)[rows] for name in INT_COLUMNS if trace.has_column(name)},
    )


def _through(trace: ExecutionTrace, keep: np.ndarray, kind: str) -> Csr:
    """Dependencies of nodes that are kept on others that are."""
    ptr, parents = (array.tolist() for array in trace.parents(kind))
    kept = keep.tolist()
    stands_for: list[tuple[int, ...]] = [()] * len(kept)
    found: dict[int, list[int]] = {}
    for row in trace.order(kind).tolist():
        own = sorted({each for parent in parents[ptr[row] : ptr[row + 1]] for each in stands_for[parent]})
        stands_for[row] = (row,) if kept[row] else tuple(own)
        if kept[row]:
            found[row] = own
    lists = [found[row] for row in sorted(found)]
    rows = np.array([each for own in lists for each in own], dtype=np.int64)
    return Csr(pointers(np.array([*map(len, lists)], dtype=np.int64)), trace.node_id[rows])


def keep_ranks(workload: Workload, ranks: Sequence[int]) -> Workload:
    """Some ranks of a workload, numbered anew in the order given.

    Groups have the members that are left; calls of groups with one member, and messages from or to ranks that are gone,
    are left out.
    """
    number = {rank: at for at, rank in enumerate(ranks)}
    members = {name: [number[r] for r in workload.members(name) if r in number] for name in workload.groups}
    traces = []
    for rank in ranks:
        trace = workload.trace(rank)
        codes, names = trace.group_of()
        alone = np.array([len(members.get(name, ranks)) < 2 for name in names] + [len(ranks) < 2])
        gone = (trace.type == NodeType.COMM_COLL) & alone[codes]
        columns = {}
        for kind, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
            gone |= (trace.type == kind) & ~np.isin(trace.column(name), list(ranks))
        for name in ("comm_src", "comm_dst"):
            if trace.has_column(name):
                columns[name] = [number.get(peer, MISSING) for peer in trace.column(name).tolist()]
        traces.append(keep_nodes(trace.replace(**columns), ~gone) if columns else keep_nodes(trace, ~gone))
    groups = {name: tuple(own) for name, own in members.items() if len(own) > 1}
    return Workload(tuple(traces), groups, workload.name)


def side_by_side(workloads: Sequence[Workload]) -> Workload:
    """Workloads on ranks of their own, one after the other; groups have numbers."""
    traces: list[ExecutionTrace] = []
    groups: dict[str, tuple[int, ...]] = {}
    for workload in workloads:
        first = len(traces)
        number = {name: str(len(groups) + at) for at, name in enumerate(("", *workload.groups), 1)}
        for name, new in number.items():
            groups[new] = tuple(first + rank for rank in workload.members(name))
        for rank in range(workload.ranks):
            trace = workload.trace(rank)
            codes, names = trace.group_of()
            called = [number.get("" if name == "0" else name) for name in names] + [number[""]]
            collective = (trace.type == NodeType.COMM_COLL).tolist()
            columns = {
                name: np.where(trace.column(name) == MISSING, MISSING, trace.column(name) + first)
                for name in ("comm_src", "comm_dst")
                if trace.has_column(name)
            }
            own = [called[code] if call else None for code, call in zip(codes.tolist(), collective, strict=True)]
            traces.append(trace.without_raw().replace(pg_name=own, rank=len(traces), **columns))
    return Workload(tuple(traces), groups)
