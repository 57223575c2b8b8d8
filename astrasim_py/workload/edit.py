"""Parts of workloads, and workloads as one: side by side, or one after the other."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import encode_trace, parse_trace
from astrasim_py.chakra.graph import longest_path
from astrasim_py.chakra.groups import OTHER_NAMES
from astrasim_py.chakra.schema import MISSING, REFERENCES, CommType, NodeType
from astrasim_py.chakra.storage import RawFile
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError

_ROOTED = (CommType.REDUCE, CommType.GATHER, CommType.SCATTER, CommType.BROADCAST)
#: Attribute of recordings: why a node waits for each of its data dependencies.
_KINDS = "dep_kinds"
_MOST_EDGES = 20_000_000


def recorded_times(workload: Workload) -> list[tuple[np.ndarray, np.ndarray]]:
    """Start and end in ps of every node of every rank, each as soon as its dependencies end and as long as recorded.

    Start times are those of the producer, after the first one of all ranks, where it gives some and no exact durations.
    Calls without a recorded duration take no time. Raises TraceError: negative times, or of 106 days and more.
    """
    traces = [workload.trace(rank) for rank in range(workload.ranks)]
    starts = [trace.start_time_micros[trace.start_time_micros > 0] for trace in traces]
    first = min((int(times.min()) for times in starts if len(times)), default=0)
    intervals = []
    for trace, times in zip(traces, starts, strict=True):
        exact = trace.column("duration_ps")
        total = (trace.duration_micros.sum(dtype=float) + max(int(times.max(initial=0)) - first, 0)) * 1e6
        if (exact[exact != MISSING] < 0).any() or total + exact[exact != MISSING].sum(dtype=float) >= 2**63:
            raise TraceError(trace.place, "has recorded times that are negative, or 106 days and more", "lint it")
        took = np.where(exact != MISSING, exact, trace.duration_micros.astype(np.int64) * 10**6)
        if len(times) and not trace.has_column("duration_ps"):
            start = (np.maximum(trace.start_time_micros, np.uint64(first)) - np.uint64(first)).astype(np.int64) * 10**6
            intervals.append((start, start + took))
        else:
            end = longest_path(*trace.parents(), trace.order(), took)
            intervals.append((end - took, end))
    return intervals


def keep_nodes(trace: ExecutionTrace, keep: np.ndarray) -> ExecutionTrace:
    """The trace without some nodes (`keep`: bool[n]); what waited for one of them waits for what that waited for.

    Nodes that wait for none of them stay byte for byte. Of the others the dependencies change, and `dep_kinds`, where
    the new ones are ``through``. Raises TraceError: dangling dependencies or a cycle; far too many new dependencies.
    """
    if keep.all():
        return trace
    raw = _raw(trace)
    ways = {"data_deps": _through(trace, keep, "data")}
    if len(trace.ctrl_deps.ids):
        ways["ctrl_deps"] = _through(trace, keep, "data+ctrl")  # paths may lead by way of both
    bodies = []
    for row in np.flatnonzero(keep).tolist():
        body = raw.node(row)
        if any(row in parents for parents in ways.values()):
            node = pb.Node.FromString(body)
            for name, parents in ways.items():
                _replace_gone(node, name, {int(trace.node_id[parent]) for parent in parents.get(row, ())}, keep, trace)
            body = node.SerializeToString(deterministic=True)
        bodies.append(body)
    return _assembled(trace, raw, bodies)


def _replace_gone(node: pb.Node, name: str, parents: set[int], keep: np.ndarray, trace: ExecutionTrace) -> None:
    """Dependencies of a node without those that are gone, and with others in their place."""
    old = list(getattr(node, name))
    stay = keep[trace.rows_of(np.array(old, dtype=np.uint64))].tolist()
    left = [parent for parent, here in zip(old, stay, strict=True) if here]
    new = sorted(parents.difference(left, node.data_deps if name == "ctrl_deps" else ()))
    getattr(node, name)[:] = left + new
    for attribute in node.attr if name == "data_deps" else ():
        kinds = attribute.string_val.split()
        if attribute.name == _KINDS and len(kinds) == len(old):
            kept_kinds = [kind for kind, here in zip(kinds, stay, strict=True) if here]
            attribute.string_val = " ".join([*kept_kinds, *["through"] * len(new)])


def _through(trace: ExecutionTrace, keep: np.ndarray, kind: str) -> dict[int, tuple[int, ...]]:
    """By node that is kept and waits for one that is not: rows that it now waits for."""
    ptr, parents = (array.tolist() for array in trace.parents(kind))
    keeps = keep.tolist()
    waits: list[tuple[int, ...]] = [()] * len(keeps)  # of nodes that are kept, and of those that are not
    replaced: dict[int, tuple[int, ...]] = {}
    edges = 0
    for row in trace.order(kind).tolist():
        parents_of_row = parents[ptr[row] : ptr[row + 1]]
        here = {parent for parent in parents_of_row if keeps[parent]}
        gone = [parent for parent in parents_of_row if not keeps[parent]]
        far = {ancestor for parent in gone for ancestor in waits[parent]} - here
        # Drop dependencies that others imply.
        far = far.difference(*(waits[ancestor] for ancestor in far | here)) if far else far
        waits[row] = tuple(sorted(here | far))
        edges += len(far)
        if edges > _MOST_EDGES:
            problem = f"would have more than {_MOST_EDGES} new dependencies"
            raise TraceError(trace.place, problem, "keep the nodes that join many others")
        if gone and keeps[row]:
            replaced[row] = waits[row]
    return replaced


def _raw(trace: ExecutionTrace) -> RawFile:
    """The bytes of a trace, as they would be written."""
    if trace.raw is not None and trace.changed is None:
        return trace.raw
    raw = parse_trace(encode_trace(trace), trace.place, trace.rank).raw
    assert raw is not None, "a trace that was parsed has its bytes"
    return raw


def _assembled(trace: ExecutionTrace, raw: RawFile, bodies: Iterable[bytes]) -> ExecutionTrace:
    parts = [raw.data[: raw.metadata[1]]]
    for body in bodies:
        parts += varint(len(body)), body
    return parse_trace(b"".join(parts), trace.place, trace.rank)


def _each_node(trace: ExecutionTrace, change: Callable[[pb.Node], None], rows: Iterable[int]) -> ExecutionTrace:
    """The trace with some nodes changed."""
    raw = _raw(trace)
    bodies = [raw.node(row) for row in range(len(trace))]
    for row in rows:
        node = pb.Node.FromString(bodies[row])
        change(node)
        bodies[row] = node.SerializeToString(deterministic=True)
    return _assembled(trace, raw, bodies)


def _declaring(traces: Iterable[ExecutionTrace], groups: Mapping[str, tuple[int, ...]]) -> Workload:
    """A workload of groups; METADATA nodes that declare groups declare these."""
    text = json.dumps([{"pg_name": name, "ranks": list(ranks)} for name, ranks in groups.items()])

    def declare(node: pb.Node) -> None:
        if "pg_name" in node.inputs.values:
            node.inputs.values = text

    declared: dict[ExecutionTrace, ExecutionTrace] = {}
    traces = tuple(traces)
    for trace in dict.fromkeys(traces):
        rows = np.flatnonzero(trace.type == NodeType.METADATA).tolist()
        declared[trace] = _each_node(trace, declare, rows) if rows else trace
    return Workload(tuple(declared[trace] for trace in traces), groups)


def take(workload: Workload, ranks: Sequence[int], wanted: Sequence[np.ndarray]) -> tuple[Workload, Counter]:
    """A part of a workload.

    Parameters
    ----------
    workload : Workload
    ranks : sequence of int
        Ranks to take, renumbered in this order. Groups keep the remaining members, each with its former contribution:
        an all_gather of two of four ranks has half the size.
    wanted : sequence of bool[n]
        Nodes to take, by taken rank. Calls and messages are taken if they are marked on all of their ranks.

    Returns
    -------
    Workload
    Counter
        Dropped calls and messages: ranks are gone, or only one rank or no root is left (``outside``); not marked on all
        ranks (``incomplete``). Kept calls with fewer ranks than before: ``smaller``.

    Raises
    ------
    TraceError
        As `keep_nodes`; a call of an unknown group.
    """
    lost: Counter = Counter()
    number = {rank: index for index, rank in enumerate(ranks)}
    members = {name: tuple(number[r] for r in workload.members(name) if r in number) for name in workload.groups}
    members[""] = tuple(range(len(ranks)))
    traces = [workload.trace(rank) for rank in ranks]
    keep = [mask.copy() for mask in wanted]
    columns: list[dict] = [{} for _ in ranks]
    cut = [*ranks] != [*range(workload.ranks)]
    if cut:
        columns = [_cut(workload, *pair, number, members, lost) for pair in zip(traces, keep, strict=True)]
    for ends in _meetings(traces, ranks):
        if not all(keep[index][row] for index, row in ends):
            for index, row in ends:
                lost["incomplete"] += int(keep[index][row])
                keep[index][row] = False
    columns_of = [
        keep_nodes(trace.replace(rank=index, **own), mask)
        for index, (trace, own, mask) in enumerate(zip(traces, columns, keep, strict=True))
    ]
    if not cut:
        return Workload(tuple(columns_of), workload.groups), lost
    return _declaring(columns_of, {name: own for name, own in members.items() if name and len(own) > 1}), lost


def _cut(
    workload: Workload,
    trace: ExecutionTrace,
    keep: np.ndarray,
    number: Mapping[int, int],
    members: Mapping[str, tuple[int, ...]],
    lost: Counter,
) -> dict[str, list[int]]:
    """Columns of a trace as they are without the other ranks; `keep` loses what needs these."""
    columns = {
        name: trace.column(name).tolist()
        for name in ("comm_src", "comm_dst", "comm_root", "comm_size", "coll_size")
        if trace.has_column(name) or name == "comm_root"
    }
    for name, kind in (("comm_src", NodeType.COMM_RECV), ("comm_dst", NodeType.COMM_SEND)):
        for row, peer in enumerate(columns.get(name, ())):
            columns[name][row] = number.get(peer, MISSING)
            if trace.type[row] == kind and peer not in number and peer != MISSING:
                lost["outside"] += int(keep[row])
                keep[row] = False
    codes, names = trace.group_of()
    for row in np.flatnonzero((trace.type == NodeType.COMM_COLL) & keep).tolist():
        name = names[codes[row]] if codes[row] >= 0 and names[codes[row]] != "0" else ""
        before, after, kind = workload.members(name), members[name], trace.column("comm_type")[row]
        root = before[min(max(columns["comm_root"][row], 0), len(before) - 1)]
        if len(after) < 2 or (kind in _ROOTED and root not in number):
            keep[row] = False
            lost["outside"] += 1
        elif len(after) < len(before):
            lost["smaller"] += 1
            if kind in _ROOTED:
                columns["comm_root"][row] = after.index(number[root])
            for size in {CommType.ALL_GATHER: ("coll_size",), CommType.GATHER: ("comm_size", "coll_size")}.get(
                kind, ()
            ):
                if size in columns and columns[size][row] != MISSING:
                    columns[size][row] = -(-columns[size][row] * len(after) // len(before))
    return columns


def _meetings(traces: Sequence[ExecutionTrace], ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Nodes that meet, as (position in `ranks`, row): calls of a group, a send and its receive.

    The k-th call of a group meets the k-th of each member in the order of issue; of ids, where only these agree.
    """
    calls: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    meet: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
    for index, (trace, rank) in enumerate(zip(traces, ranks, strict=True)):
        codes, names = trace.group_of()
        order = trace.order()
        peers = {int(NodeType.COMM_SEND): trace.column("comm_dst"), int(NodeType.COMM_RECV): trace.column("comm_src")}
        tags, nth = trace.column("comm_tag"), Counter[tuple[int, tuple[int, int], int]]()
        for row in order[trace.type[order] >= NodeType.COMM_SEND].tolist():
            kind = int(trace.type[row])
            if kind == NodeType.COMM_COLL:
                name = names[codes[row]] if codes[row] >= 0 else ""
                calls["" if name == "0" else name][index].append(row)
            elif peers[kind][row] != MISSING:
                pair = (rank, int(peers[kind][row])) if kind == NodeType.COMM_SEND else (int(peers[kind][row]), rank)
                nth[kind, pair, int(tags[row])] += 1
                meet[pair, int(tags[row]), nth[kind, pair, int(tags[row])]].append((index, row))
    for name, by_rank in calls.items():
        kinds = [traces[index].column("comm_type")[rows].tolist() for index, rows in by_rank.items()]
        for index, rows in by_rank.items():
            if any(rank_kinds != kinds[0] for rank_kinds in kinds):
                rows = sorted(rows, key=traces[index].node_id.__getitem__)
            for k, row in enumerate(rows):
                meet[name, k].append((index, row))
    return [*meet.values()]


def side_by_side(workloads: Sequence[Workload]) -> Workload:
    """Workloads on disjoint ranks, side by side; groups have numbers."""
    groups: dict[str, tuple[int, ...]] = {}
    traces: list[ExecutionTrace] = []
    for workload in workloads:
        traces += _numbered(workload, len(traces), groups)
    return _declaring(traces, groups)


def one_after_another(workloads: Sequence[Workload]) -> Workload:
    """Workloads on the same ranks, each begun by a rank when it has done the one before; groups have numbers.

    Ids of later workloads are larger. Raises TraceError: unequal numbers of ranks.
    """
    groups: dict[str, tuple[int, ...]] = {}
    traces = _numbered(workloads[0], 0, groups)
    for workload in workloads[1:]:
        if workload.ranks != len(traces):
            problem = f"has {workload.ranks} ranks, and the one before {len(traces)}"
            raise TraceError(workload.name, problem, "join sets of as many ranks, or put them side by side")
        traces = [_followed(*pair) for pair in zip(traces, _numbered(workload, 0, groups), strict=True)]
    return _declaring(traces, groups)


def _numbered(workload: Workload, first: int, groups: dict[str, tuple[int, ...]]) -> list[ExecutionTrace]:
    """Traces of ranks from `first`, with numbers for groups, which are added to `groups`."""
    number = {name: str(len(groups) + index) for index, name in enumerate(("", *workload.groups), 1)}
    for name, new in number.items():
        groups[new] = tuple(first + rank for rank in workload.members(name))
    traces = []
    for rank in range(workload.ranks):
        trace = workload.trace(rank)
        codes, names = trace.group_of()
        call = trace.type == NodeType.COMM_COLL
        for code in np.unique(codes[call & (codes >= 0)]).tolist():
            workload.members(names[code])  # raises if it is unknown
        message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
        changed = call | (codes >= 0) | (message & (first > 0))
        numbered = _each_node(trace, lambda node: _renumber(node, first, number), np.flatnonzero(changed).tolist())
        traces.append(numbered.replace(rank=first + rank))
    return traces


def _renumber(node: pb.Node, first: int, number: Mapping[str, str]) -> None:
    """Change the group and the peers of a node; attributes that name its group otherwise go."""
    named = [index for index, attribute in enumerate(node.attr) if attribute.name in OTHER_NAMES]
    for index in reversed(named) if node.type == NodeType.COMM_COLL else ():
        del node.attr[index]
    if node.type == NodeType.COMM_COLL and not any(attribute.name == "pg_name" for attribute in node.attr):
        node.attr.add(name="pg_name", string_val="")
    for attribute in node.attr:
        held = getattr(attribute, attribute.WhichOneof("value") or "string_val")
        if attribute.name == "pg_name" and isinstance(held, str):
            attribute.string_val = number.get("" if held == "0" else held, held)
        elif attribute.name in ("comm_src", "comm_dst") and isinstance(held, int):
            setattr(attribute, "int32_val" if held + first < 2**31 else "int64_val", held + first)


def _followed(trace: ExecutionTrace, later: ExecutionTrace) -> ExecutionTrace:
    """A trace, and another that begins when it is done: a node that takes no time joins them."""
    join = int(trace.node_id.max(initial=0)) + 1
    if join + int(later.node_id.max(initial=0)) >= 2**62:
        raise TraceError(later.place, "ids of nodes are too large to append it to another", "renumber its nodes")
    raw, then = _raw(trace), _raw(later)
    end = shift = 0
    if trace.start_time_micros.any():
        starts = later.start_time_micros[later.start_time_micros > 0]
        end = max(map(sum, zip(trace.start_time_micros.tolist(), trace.duration_micros.tolist(), strict=True)))
        shift = end - min(starts.tolist(), default=end)
        if max(end, shift + int(starts.max(initial=0))) >= 2**62:
            raise TraceError(later.place, "has start times too large to append it to another", "give smaller ones")
    node = pb.Node(id=join, name="join", type=pb.COMP_NODE, start_time_micros=end)
    node.data_deps.extend(np.setdiff1d(trace.node_id, trace.data_deps.ids).tolist())
    node.attr.add(name="slot_kind", int32_val=0)
    bodies = [*map(raw.node, range(len(trace))), node.SerializeToString(deterministic=True)]
    points = any(map(later.has_column, REFERENCES))
    for row in range(len(later)):
        node = pb.Node.FromString(then.node(row))
        node.id += join + 1
        node.start_time_micros = max(node.start_time_micros + shift, 0)
        for deps in (node.data_deps, node.ctrl_deps):
            deps[:] = [dep + join + 1 for dep in deps]
        if not node.data_deps:
            node.data_deps.append(join)
        for attribute in node.attr if points else ():
            if attribute.name in REFERENCES and attribute.WhichOneof("value"):
                attribute.int64_val = getattr(attribute, attribute.WhichOneof("value")) + join + 1
        bodies.append(node.SerializeToString(deterministic=True))
    return _assembled(trace, raw, bodies)
