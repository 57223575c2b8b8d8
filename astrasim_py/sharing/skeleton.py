"""The skeleton of a trace: its calls, and the longest compute paths between them.

A *call* is a node whose time the network or the memory decides: a collective, a send, a receive, a memory request.
Compute between two calls only adds up, so the longest compute path from one to the other decides when the second is
ready. Calls and longest paths therefore give every call the same time on every network, from a graph that is
often a hundred times smaller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from astrasim_py.chakra.attributes import leaves_out_dims
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import TraceError
from astrasim_py.core.rows import pointers

#: The start of a rank as the source of a path.
START = -1
#: A compute node between more calls than so many before it, and several after it, is kept, since it takes less than all
#: pairs. Which number gives the smallest skeleton depends on the trace: they are tried in this order, until there are
#: less than so many nodes for a call.
MOST_SOURCES = (2, 1, 4, 8)
_FEW = 1.5
#: Number of kept predecessors of a node that are searched for a detour around a path.
_WINDOW = 32
#: A length is the picoseconds of a path times this, plus the nodes of no duration after its last one of any.
_UNIT = 1 << 32
_CALLS = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.MEM_LOAD, NodeType.MEM_STORE)
_SLOTS = ("", "cpu_slots", "compute_slots", "comm_slots")


@dataclass(frozen=True, eq=False, kw_only=True)
class Skeleton:
    """The calls of a rank and the longest compute paths between them."""

    trace: ExecutionTrace  # that it was made of
    kept: np.ndarray  # int64[k]: rows that are kept, in topological order: all calls, and few compute nodes
    number: np.ndarray  # int64[k]: place of each among them by ascending id
    duration: np.ndarray  # int64[k]: ps, 0 of calls
    source: np.ndarray  # int64[p]: place in `kept` that each path leads from; `START`: start of the rank
    target: np.ndarray  # int64[p]: that it leads to; k: end of the rank
    ps: np.ndarray  # int64[p]: durations of the paths
    steps: np.ndarray  # int64[p]: nodes of no duration at its end, which decide the order at one instant alone
    exact: bool  # whether the order at one instant is kept

    @property
    def places(self) -> np.ndarray:
        """int64: by row of the trace that `build` makes, the place of what is kept; -1 for paths."""
        return np.array(self._graph.place)

    @cached_property
    def _graph(self) -> "_SkeletonGraph":
        graph = _SkeletonGraph()
        node_of: dict[int, tuple[int, ...]] = {START: ()}
        begin = np.searchsorted(self.target, np.arange(len(self.kept) + 2)).tolist()
        paths = list(zip(self.source.tolist(), self.ps.tolist(), self.steps.tolist(), strict=True))
        exact = np.append(is_call(self.trace)[self.kept] | self.exact, True).tolist()
        durations = [*self.duration.tolist(), 0]
        for place in range(len(self.kept) + 1):
            graph.leads_to, into = place, paths[begin[place] : begin[place + 1]]
            # A kept compute node takes the common part of all paths to it, so one path fewer needs a node.
            common = 0 if exact[place] else min(ps for _, ps, _ in into)
            alike: dict[tuple[int, int], list[int]] = {}
            for source, ps, steps in into:
                alike.setdefault((ps - common, steps), []).append(source)
            ends = [graph.path(tuple(s), sum((node_of[e] for e in s), ()), *path) for path, s in alike.items()]
            if place < len(self.kept):
                node_of[place] = (graph.add(place, sum(ends, ()), durations[place] + common),)
        if not graph.deps:
            graph.add(-1, ())
        return graph

    def build(self) -> ExecutionTrace:
        """The skeleton as a trace: a compute node without a slot for every path of some duration."""
        graph = self._graph
        place, duration = self.places, np.array(graph.duration, dtype=np.int64)
        number = np.append(self.number, len(self.kept))[graph.anchor]  # compute comes just before its successor
        ids = np.argsort(np.argsort(number, kind="stable"))
        deps = [[*map(ids.__getitem__, parents)] for parents in graph.deps]
        trace, is_new = self.trace, place < 0
        rows = self.kept[np.maximum(place, 0)] if len(self.kept) else np.zeros(len(place), np.int64)
        compute = is_new | ~is_call(trace)[rows]
        codes, names = trace.group_of()
        columns = {name: trace.column(name)[rows] for name in INT_COLUMNS if trace.has_column(name)}
        columns = {name: np.where(compute, MISSING, column) for name, column in columns.items()}
        slot = columns.get("slot_kind", np.full(len(rows), MISSING))
        columns |= {"duration_ps": np.where(compute, duration, MISSING), "slot_kind": np.where(compute, 0, slot)}
        return ExecutionTrace.from_columns(
            node_id=ids,
            type=np.where(compute, NodeType.COMP, trace.type[rows]),
            names=["compute" if c else trace.names[row] for c, row in zip(compute, rows.tolist(), strict=True)],
            pg_name=(np.where(compute, -1, codes[rows]).astype(np.int32), names),
            duration_micros=np.where(compute, -(-duration // 10**6), 0),
            data_deps=Csr(pointers([*map(len, deps)]), np.array([node for row in deps for node in row], np.uint64)),
            place=trace.place,
            rank=trace.rank,
            **columns,
        )


@dataclass(slots=True)
class _SkeletonGraph:
    """Nodes of a skeleton; equal paths from the same calls share theirs."""

    place: list[int] = field(default_factory=list)  # of kept nodes, -1 for a path
    anchor: list[int] = field(default_factory=list)  # the place that the node leads to
    duration: list[int] = field(default_factory=list)
    deps: list[tuple[int, ...]] = field(default_factory=list)
    of_path: dict[tuple[tuple[int, ...], int, int], tuple[int, ...]] = field(default_factory=dict)
    leads_to: int = 0

    def add(self, place: int, deps: tuple[int, ...], duration: int = 0) -> int:
        self.place.append(place)
        self.anchor.append(self.leads_to)
        self.duration.append(duration)
        self.deps.append(tuple(sorted(set(deps))))
        return len(self.place) - 1

    def path(self, sources: tuple[int, ...], after: tuple[int, ...], ps: int, steps: int) -> tuple[int, ...]:
        """The last node of a path, made where there is none yet."""
        if not ps and not steps:
            return after
        key = sources, ps, steps
        if key not in self.of_path:
            if steps:
                after, ps = self.path(sources, after, ps, steps - 1), 0
            self.of_path[key] = (self.add(-1, after, ps),)
        return self.of_path[key]


def is_call(trace: ExecutionTrace) -> np.ndarray:
    """bool[n]: nodes whose time the network or the memory decides."""
    return np.isin(trace.type, _CALLS)


def check_dims(trace: ExecutionTrace) -> None:
    """Raise TraceError if a collective leaves out dimensions, which only the attributes of a file can say."""
    for row in leaves_out_dims(trace):
        problem = f"node {trace.node_id[row]} leaves out dimensions (involved_dim), which would be lost"
        raise TraceError(trace.place, problem, "use the full trace, or name its ranks with pg_name and --groups")


def find_skeleton(
    trace: ExecutionTrace, duration: np.ndarray, dependencies: str = "data", *, exact: bool = True
) -> Skeleton:
    """Find the skeleton of a trace.

    `duration`: int64[n] in ps, of compute nodes. `exact`: keep the order of what is ready at one instant, too: calls
    keep the order of their ids, and nodes of no duration count. Else calls are in the order of execution.

    Raises TraceError: cycles and dangling dependencies; nodes that wait for a count; with `exact`, ids against the
    dependencies where the calls would be matched in another order.
    """
    counting = [name for name in ("counter", "count_of", "detached") if trace.has_column(name)]
    if counting:
        raise TraceError(trace.place, f"nodes have {counting[0]}, which a skeleton cannot keep", "use the full trace")
    check_dims(trace)
    call = is_call(trace)
    duration = np.where(trace.type == NodeType.COMP, duration, 0)
    into, end = _smallest(trace, duration, dependencies, exact)
    kept = np.array(list(into), dtype=np.int64)
    place = {START: START} | {row: number for number, row in enumerate(kept.tolist())}
    paths = [(place[t], place[s], length) for t, sources in into.items() for s, length in sources.items()]
    paths += [(len(kept), place[s], length) for s, length in end.items() if length >= _UNIT]
    target, source, length = zip(*sorted(paths), strict=True) if paths else ((), (), ())
    return Skeleton(
        trace=trace,
        kept=kept,
        number=np.argsort(np.argsort(trace.node_id[kept])) if exact else np.arange(len(kept)),
        duration=np.where(call[kept] | (not exact), 0, duration[kept]),
        source=np.array(source, dtype=np.int64),
        target=np.array(target, dtype=np.int64),
        ps=np.array([path // _UNIT for path in length], dtype=np.int64),
        steps=np.array([path % _UNIT for path in length], dtype=np.int64),
        exact=exact,
    )


def exact_skeleton(
    trace: ExecutionTrace, duration: np.ndarray, slot: np.ndarray, limited: Sequence[str], dependencies: str = "data"
) -> ExecutionTrace:
    """The skeleton of a trace, which gives every call the same times, and the rank the same end, on every network.

    `slot`: int8[n]: what each node holds, 0 nothing, else as in `slot_kind`. `limited`: rules of slots that are not
    unlimited.

    Raises TraceError: as `find_skeleton`; compute that may have to wait for a slot; calls in another order.
    """
    for kind, name in enumerate(_SLOTS):
        if name in limited and (trace.type[slot == kind] == NodeType.COMP).any():
            check_chain(trace, slot == kind, name, dependencies)
    skeleton = find_skeleton(trace, duration, dependencies).build()
    before, after = trace.order(dependencies), skeleton.order()
    before = trace.node_id[before[trace.type[before] == NodeType.COMM_COLL]]
    after = after[skeleton.type[after] == NodeType.COMM_COLL]
    if not np.array_equal(np.argsort(np.argsort(before)), np.argsort(np.argsort(after))):
        remedy = "use the full trace, or number its nodes in the order of execution"
        raise TraceError(trace.place, "without its compute the order of its collectives would change", remedy)
    return skeleton


def check_chain(trace: ExecutionTrace, holds: np.ndarray, name: str, dependencies: str) -> None:
    """Raise TraceError if nodes that hold slots of a kind (bool[n]) may be ready at once; `name`: of the rule."""
    ptr, parents = (array.tolist() for array in trace.parents(dependencies))
    latest, held, chain = [0] * len(holds), holds.tolist(), [-1]
    for row in trace.order(dependencies).tolist():
        latest[row] = max([latest[p] for p in parents[ptr[row] : ptr[row + 1]]], default=0)
        if held[row]:
            if latest[row] < len(chain) - 1:
                lower, higher = sorted(int(trace.node_id[node]) for node in (chain[-1], row))
                problem = f"nodes {lower} and {higher} may be ready at once, and {name} would decide which goes first"
                raise TraceError(trace.place, problem, f"write {name}: unlimited, or use the full trace")
            latest[row] = len(chain)
            chain.append(row)


def _then(first: int, second: int) -> int:
    """The length of one path after another."""
    return first // _UNIT * _UNIT + second if second >= _UNIT else first + second


def _smallest(
    trace: ExecutionTrace, duration: np.ndarray, dependencies: str, exact: bool
) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """The walk that leaves the fewest nodes."""
    calls, order = is_call(trace).tolist(), trace.order(dependencies).tolist()
    ptr, parents = (array.tolist() for array in trace.parents(dependencies))
    lists = order, ptr, parents, calls
    weights = [ps * _UNIT if ps else int(exact) for ps in duration.tolist()]
    forks, count = _forks(*lists), sum(calls)
    best: tuple[dict[int, dict[int, int]], dict[int, int]] = {}, {}
    fewest = float("inf")
    for most in MOST_SOURCES:

        def keeps(row: int, sources: int, most: int = most) -> bool:
            return sources > most and forks[row]

        into, end = _walk(*lists, weights, keeps, exact)
        paths = {path for lengths in (*into.values(), end) for path in lengths.items() if path[1]}
        nodes = len(paths) + (len(into) if exact else count)  # else a path leads into a kept node
        if nodes < fewest:
            best, fewest = (into, end), nodes
        if nodes <= _FEW * count:
            break
    return best


def _walk(
    order: list[int],
    ptr: list[int],
    parents: list[int],
    calls: list[bool],
    weights: list[int],
    keeps: Callable[[int, int], bool],
    exact: bool,
) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """Lengths of the longest paths into every kept node, in order, and into the end, by the row that they come from.

    One pass in topological order: every node carries the lengths of the longest paths to its end, by the kept node that
    they come from. Lengths restart at a call. A node with one parent shares the lengths of its parent, with an offset.
    `weights`: lengths of nodes. `keeps`: whether a compute node, of so many sources, is kept.
    """
    carried: list[dict[int, int]] = [{}] * len(calls)
    offset = [0] * len(calls)
    into: dict[int, dict[int, int]] = {}
    around: dict[int, dict[int, int]] = {START: {}}  # lengths of paths to the end of a kept node, from earlier ones

    def merged(rows: list[int]) -> dict[int, int]:
        lengths: dict[int, int] = {}
        for row in rows:
            add = offset[row]
            for source, length in carried[row].items():
                length = _then(length, add) if add else length
                if length >= lengths.get(source, 0):
                    lengths[source] = length
        return _pruned(lengths, around) if len(lengths) > 1 else lengths

    for row in order:
        rows = parents[ptr[row] : ptr[row + 1]]
        if len(rows) == 1 and not calls[row]:
            carried[row], offset[row] = carried[rows[0]], _then(offset[rows[0]], weights[row])
            continue
        lengths = merged(rows) if rows else {START: 0}
        if not calls[row] and not keeps(row, len(lengths)):
            carried[row], offset[row] = lengths, weights[row]
            continue
        takes = 0 if calls[row] else weights[row]
        if takes and not exact:
            lengths, takes = {source: _then(length, takes) for source, length in lengths.items()}, 0
        into[row] = lengths
        carried[row], around[row] = {row: 0}, _around(lengths, around, takes)
    last = np.bincount(np.array(parents, dtype=np.int64), minlength=len(calls)) == 0
    return into, merged(np.flatnonzero(last).tolist())


def _forks(order: list[int], ptr: list[int], parents: list[int], calls: list[bool]) -> list[bool]:
    """By row: whether paths lead from it to several calls or ends."""
    towards = [-1] * len(calls)  # the one call or end that paths lead to; -1 none yet, -2 several
    for row in reversed(order):
        end = row if calls[row] or towards[row] == -1 else towards[row]
        for parent in parents[ptr[row] : ptr[row + 1]]:
            towards[parent] = end if towards[parent] in (-1, end) else -2
    return [target == -2 for target in towards]


def _pruned(lengths: dict[int, int], around: dict[int, dict[int, int]]) -> dict[int, int]:
    """Lengths of paths without those that follow from others: a way by another kept node is as long."""
    follows = set()
    for way, rest in lengths.items():
        for source, length in around[way].items():
            if source in lengths and _then(length, rest) >= lengths[source]:
                follows.add(source)
    return {source: length for source, length in lengths.items() if source not in follows} if follows else lengths


def _around(lengths: dict[int, int], around: dict[int, dict[int, int]], takes: int) -> dict[int, int]:
    """Least times from earlier kept nodes to the end of one that takes `takes`, calls taking no time."""
    reached: dict[int, int] = {}
    for way, rest in lengths.items():
        rest = _then(rest, takes)
        for source, length in [*around[way].items(), (way, 0)]:
            reached[source] = max(reached.get(source, 0), _then(length, rest))
    if len(reached) > _WINDOW:  # the latest ones, and the start
        reached = {source: reached[source] for source in [*list(reached)[-_WINDOW:], START] if source in reached}
    return reached
