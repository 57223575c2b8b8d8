"""Levels of a shared workload, each with less of the original than the one before.

strip
    Names become kinds of kernels; attributes that no simulation reads, metadata and file names are gone.
hash
    Nodes come in another topological order, kinds have random labels, groups random numbers.
skeleton
    Only calls, and the longest compute paths between them.
quantise
    Paths and sizes in bins of equal ratio.
twin
    One random warp of time for all ranks, other sizes of equal sums.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log, log1p

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import COLLECTIVE_NAMES, INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.sharing.skeleton import START, Skeleton, check_dims, find_skeleton, is_call

#: Kinds of kernels by what their names contain; the first that fits.
_KINDS = {
    "attn": r"attn|attention|flash|fmha|softmax",
    "conv": r"conv|cudnn|winograd|miopen",
    "gemm": r"gemm|cutlass|cublas|matmul|linear|mlp|ffn|qkv|proj|cijk|[_:]mm|bmm",
    "norm": r"norm|(^|_)bn_",
    "copy": r"copy|memset|(^|_)cat|transpose|permute|contiguous",
    "index": r"index|gather|scatter|embed|sort|topk",
    "reduce": r"reduc|sum|mean|argmax",
    "elem": r"elementwise|vectorized|(^|[_:])(add|mul|div|sub|exp)|elu|dropout|adam|fill|optim",
}
#: Columns that a simulation reads.
_READ = (
    *("comm_type", "comm_size", "coll_size", "comm_src", "comm_dst", "comm_tag", "comm_root", "comm_priority"),
    *("is_cpu_op", "num_ops", "tensor_size", "duration_ps", "slot_kind"),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: When the calls of each rank begin and end on an ordinary network, in ps by row of its trace.
Times = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Original:
    """A workload to be shared.

    `workload`: every rank has a trace of its own, with real groups and peers. `chained`: by trace, the same with an
    order, as dependencies, of compute that shares a slot. `duration`, `slot`: by trace, int64[n] in ps and int8[n] as
    in `slot_kind`. `dependencies`: kind that orders it. `simulate`: gives the times of calls.
    """

    workload: Workload
    chained: Mapping[ExecutionTrace, ExecutionTrace]
    duration: Mapping[ExecutionTrace, np.ndarray]
    slot: Mapping[ExecutionTrace, np.ndarray]
    dependencies: str
    simulate: Callable[[Workload], Times]

    def each(self, change: Callable[[ExecutionTrace], ExecutionTrace]) -> Workload:
        """The workload with other traces; ranks that share one still do."""
        made = {trace: change(trace) for trace in dict.fromkeys(self.workload.traces)}
        return Workload(tuple(map(made.__getitem__, self.workload.traces)), self.workload.groups)

    @cached_property
    def like(self) -> tuple[int, ...]:
        """By rank, the first rank with the same program, except for names, groups and peers."""
        shapes: dict[tuple, int] = {}
        return tuple(
            shapes.setdefault(_shape(self.chained[trace], self.duration[trace], self.dependencies), rank)
            for rank, trace in enumerate(self.workload.traces)
        )

    @cached_property
    def skeletons(self) -> tuple[Skeleton, ...]:
        """By rank; ranks that share a trace share it."""
        made: dict[ExecutionTrace, Skeleton] = {}
        for first, trace in zip(self.like, self.workload.traces, strict=True):
            like = made.get(self.workload.traces[first])
            own = self.chained[trace]
            if trace not in made:
                made[trace] = (
                    replace(like, trace=own)
                    if like
                    else find_skeleton(own, self.duration[trace], self.dependencies, exact=False)
                )
        return tuple(map(made.__getitem__, self.workload.traces))

    def with_skeletons(self, skeletons: Sequence[Skeleton]) -> Workload:
        """The workload of some skeletons, without names."""
        built = {each: each.build() for each in dict.fromkeys(skeletons)}
        made = {each: t.replace(names=[""] * len(t), place="", rank=None) for each, t in built.items()}
        return Workload(tuple(map(made.__getitem__, skeletons)), self.workload.groups)

    @cached_property
    def times(self) -> Times:
        """By rank: when paths to what the skeleton keeps end, and when it ends itself, in ps; last, twice, the rank."""
        found = []
        skeleton = self.with_skeletons(self.skeletons)
        for each, (start, end) in zip(self.skeletons, self.simulate(skeleton), strict=True):
            row = np.argsort(each.places, kind="stable")[len(each.places) - len(each.kept) :]
            last = end.max(initial=0)
            ready = np.where(is_call(each.trace)[each.kept], start[row], end[row])
            found.append((np.append(ready, last), np.append(end[row], last)))
        return found


def _shape(trace: ExecutionTrace, duration: np.ndarray, dependencies: str) -> tuple[bytes, ...]:
    """Key of a rank's program: equal for ranks that differ only in names, groups and peers."""
    codes, names = trace.group_of()
    every = np.array([name in ("", "0") for name in names] + [True])  # the last one of -1
    send, recv = (trace.type == kind for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV))
    peers = np.where(send, trace.column("comm_dst"), np.where(recv, trace.column("comm_src"), -1))
    columns = [trace.type, trace.node_id, duration, *trace.parents(dependencies)]
    columns += [trace.column(name) for name in INT_COLUMNS if name not in ("comm_src", "comm_dst")]
    for named in (np.where(every[codes], -1, codes), peers):
        _, first, place = np.unique(named, return_index=True, return_inverse=True)
        columns.append(np.where(named < 0, -1, first[place]))
    return tuple(np.ascontiguousarray(column).tobytes() for column in columns)


# -- strip -------------------------------------------------------------------------------------------------------------


def kind_of(name: str) -> str:
    """The kind of a kernel.

    >>> kind_of("sm80_xmma_gemm_f16"), kind_of("gap 3"), kind_of("x")
    ('gpu:gemm', 'gap', 'gpu:other')
    """
    name = name.lower()
    found = (kind for kind, pattern in _KINDS.items() if re.search(pattern, name))
    return "gap" if name.startswith("gap") else f"gpu:{next(found, 'other')}"


def stripped(trace: ExecutionTrace, dependencies: str) -> ExecutionTrace:
    """The trace with kinds for names, the dependencies that order it, and what a simulation reads.

    Raises TraceError: collectives that leave out dimensions.
    """
    check_dims(trace)
    ptr, rows = trace.parents(dependencies)
    kinds = {name: kind_of(name) for name in dict.fromkeys(trace.names)}
    names = [
        COLLECTIVE_NAMES.get(code, "other") if kind == NodeType.COMM_COLL
        else NodeType(kind).name.lower() if kind != NodeType.COMP
        else "cpu" if cpu > 0
        else kinds[name]
        for name, kind, code, cpu in zip(
            trace.names, trace.type.tolist(), trace.column("comm_type").tolist(), trace.column("is_cpu_op").tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return ExecutionTrace.from_columns(
        node_id=trace.node_id,
        type=trace.type,
        names=names,
        pg_name=trace.group_of(),
        duration_micros=trace.duration_micros,
        data_deps=Csr(ptr, trace.node_id[rows]),
        **{name: trace.column(name) for name in _READ if trace.has_column(name)},
    )


def strip(original: Original, rng: np.random.Generator, rel: float) -> Workload:
    return original.each(lambda trace: stripped(trace, original.dependencies))


# -- hash --------------------------------------------------------------------------------------------------------------


def shuffled(trace: ExecutionTrace, fixed: np.ndarray, rng: np.random.Generator) -> ExecutionTrace:
    """The trace in a random topological order, in which `fixed` nodes (bool[n]) keep the order of their ids.

    Where ids do not follow the dependencies, nodes keep their order, and only have other ids.
    """
    order = np.argsort(trace.node_id, kind="stable")
    place = np.argsort(order)
    ptr, rows = trace.parents()
    child = graph.owners(ptr)
    if (place[rows] < place[child]).all():
        chain = order[fixed[order]]
        keys = np.unique(np.concatenate([child * len(trace) + rows, chain[1:] * len(trace) + chain[:-1]]))
        owner, parents = np.divmod(keys, max(len(trace), 1))
        order = graph.topological_order(graph.pointers(owner, len(trace)), parents, rng.permutation(len(trace)))
        place = np.argsort(order)
    lists = [np.sort(place[rows[ptr[row] : ptr[row + 1]]]) for row in order.tolist()]
    codes, names = trace.group_of()
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(trace)),
        type=trace.type[order],
        names=[trace.names[row] for row in order.tolist()],
        pg_name=(codes[order], names),
        duration_micros=trace.duration_micros[order],
        data_deps=Csr(np.append(0, np.cumsum([*map(len, lists)])), np.concatenate([np.zeros(0, np.int64), *lists])),
        **{name: trace.column(name)[order] for name in _READ if trace.has_column(name)},
    )


def renumbered(workload: Workload, rng: np.random.Generator) -> Workload:
    """The workload with numbers for groups, in random order."""
    names = sorted(set(workload.groups) - {"", "0"})
    number = dict(zip(names, (str(each + 1) for each in rng.permutation(len(names)).tolist()), strict=True))
    made: dict[ExecutionTrace, ExecutionTrace] = {}
    for trace in dict.fromkeys(workload.traces):
        codes, called = trace.group_of()
        made[trace] = trace.replace(pg_name=[number.get(called[code]) if code >= 0 else None for code in codes])
    groups = {number[name]: workload.groups[name] for name in sorted(names, key=lambda name: int(number[name]))}
    return Workload(tuple(map(made.__getitem__, workload.traces)), groups)


def hashed(original: Original, rng: np.random.Generator, rel: float) -> Workload:
    def change(trace: ExecutionTrace) -> ExecutionTrace:
        return shuffled(stripped(trace, original.dependencies), is_call(trace) | (original.slot[trace] > 0), rng)

    workload = original.each(change)
    kinds = sorted({name for trace in dict.fromkeys(workload.traces) for name in trace.names})
    drawn = rng.choice(len(_LETTERS) ** 3, size=len(kinds), replace=False).tolist()
    labels = ("".join(_LETTERS[each // len(_LETTERS) ** k % len(_LETTERS)] for k in range(3)) for each in drawn)
    label = dict(zip(kinds, labels, strict=True))
    named = {t: t.replace(names=[*map(label.__getitem__, t.names)]) for t in dict.fromkeys(workload.traces)}
    return renumbered(replace(workload, traces=tuple(map(named.__getitem__, workload.traces))), rng)


# -- skeleton, quantise ------------------------------------------------------------------------------------------------


def skeleton(original: Original, rng: np.random.Generator, rel: float) -> Workload:
    return renumbered(original.with_skeletons(original.skeletons), rng)


def binned(value: float, rel: float) -> int:
    """The middle of a bin; it differs from all values of the bin by at most the fraction `rel` of them."""
    width = 2 * log1p(rel)
    return round(exp(round(log(value) / width) * width)) if value >= 1 else 0


def binned_paths(skeletons: Sequence[Skeleton], times: Times, rel: float) -> list[Skeleton]:
    """Skeletons of all ranks with their paths in bins.

    Rounding errors before a call are subtracted after it. A collective makes its members as late as the latest one.
    """
    late: list[dict[int, float]] = [{START: 0.0} for _ in skeletons]
    arrivals: dict[tuple, tuple[float, float]] = {}  # by matched call: arrival of its last part, before and now
    meeting = [_meetings(each, times[rank][0], rank) for rank, each in enumerate(skeletons)]
    paths = [np.searchsorted(each.target, np.arange(len(each.kept) + 2)).tolist() for each in skeletons]
    ps = [each.ps.copy() for each in skeletons]
    events = sorted(
        (time, place, done, rank)
        for rank, each in enumerate(times)
        for done, column in enumerate(each)
        for place, time in enumerate(column.tolist())
    )
    for _, place, done, rank in events:
        if done:
            before, now = arrivals[meeting[rank][place]]
            late[rank][place] = now - before
            continue
        ends, own = times[rank][1], slice(paths[rank][place], paths[rank][place + 1])
        before = now = 0.0
        came = []
        for source, took in zip(skeletons[rank].source[own].tolist(), ps[rank][own].tolist(), strict=True):
            came.append(((ends[source] if source >= 0 else 0) + took, source, took))
        made = {}
        for arrives, source, took in sorted(came, reverse=True):  # the latest one first
            made[source] = took and binned(max(took - late[rank][source], 0), rel)
            arrived = arrives - took + late[rank][source] + made[source]
            if made[source] and before and arrived > now:  # it was not the latest, and shall not be
                made[source] = binned(made[source] / (1 + rel) ** 2, rel)
                arrived = arrives - took + late[rank][source] + made[source]
            before, now = max(before, arrives), max(now, arrived)
        ps[rank][own] = [made[source] for _, source, _ in came]
        key = meeting[rank][place]
        one, two = arrivals.get(key, (0.0, 0.0))
        arrivals[key] = max(one, before), max(two, now)
    return [replace(each, ps=own) for each, own in zip(skeletons, ps, strict=True)]


def _meetings(skeleton: Skeleton, start: np.ndarray, rank: int) -> list[tuple]:
    """By place, a key shared by all ranks of a call; the last is the end of the rank."""
    trace, count = skeleton.trace, Counter()
    codes, names = trace.group_of()
    kinds, rows = trace.type.tolist(), skeleton.kept.tolist()
    source, target, tag = (trace.column(name).tolist() for name in ("comm_src", "comm_dst", "comm_tag"))
    keys: list[tuple] = []
    for row in rows:
        if kinds[row] == NodeType.COMM_COLL:
            name = names[codes[row]] if codes[row] >= 0 else ""
            keys.append(("call", "" if name == "0" else name))
        elif kinds[row] in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            sends = kinds[row] == NodeType.COMM_SEND
            keys.append(("message", rank, target[row], tag[row]) if sends else ("message", source[row], rank, tag[row]))
        else:
            keys.append(("alone", rank, row))
    posted = np.lexsort((np.arange(len(rows)), start[: len(rows)])).tolist()
    found = [*keys, ("end", rank)]
    for place in posted:
        side = kinds[rows[place]] == NodeType.COMM_SEND
        found[place] = (*keys[place], count[keys[place], side])
        count[keys[place], side] += 1
    return found


def binned_sizes(sizes: np.ndarray, rel: float) -> np.ndarray:
    """float64[n]: sizes in bins; the rounding error of one is subtracted from the next."""
    made, carried = [], 0.0
    for size in sizes.tolist():
        made.append(binned(max(size - carried, 0), rel) if size else 0)
        carried += made[-1] - size
    return np.array(made, dtype=np.float64)


def quantise(original: Original, rng: np.random.Generator, rel: float) -> Workload:
    workload = original.with_skeletons(binned_paths(original.skeletons, original.times, rel))
    return renumbered(resized(workload, lambda sizes, _: binned_sizes(sizes, rel)), rng)


# -- sizes -------------------------------------------------------------------------------------------------------------


def resized(workload: Workload, change: Callable[[np.ndarray, int], np.ndarray]) -> Workload:
    """The workload with other sizes of calls.

    ``change(sizes, number)`` gives those of a sequence, float64 for int64: of the calls of one type by a group; of the
    different messages from one rank to another, by tag and size; of the memory requests of a trace. All ranks that take
    part have the same sequence.
    """
    made: dict[tuple, np.ndarray] = {}
    columns: dict[ExecutionTrace, dict[str, np.ndarray]] = {}
    for rank, trace in enumerate(workload.traces):
        if trace in columns:
            continue
        own = {n: trace.column(n).copy() for n in ("comm_size", "coll_size", "tensor_size") if trace.has_column(n)}
        columns[trace] = own
        for key, rows, name in _sequences(trace, rank):
            full = own[name][rows]
            if name == "comm_size" and "coll_size" in own:
                full = np.where(own["coll_size"][rows] == MISSING, full, own["coll_size"][rows])
            at = np.arange(len(rows))
            if key[0] == "message":
                _, first, at = np.unique(np.stack([trace.column("comm_tag")[rows], full]), axis=1, return_index=True,
                                         return_inverse=True)  # fmt: skip
                full, at = full[first], at.ravel()
            if key not in made:
                made[key] = np.maximum(np.rint(change(full, len(made))), full > 0) / np.maximum(full, 1)
            for column in sorted({name, "coll_size"} & own.keys()):
                before = own[column][rows]
                scaled = np.rint(np.maximum(before, 0) * made[key][at]).astype(np.int64)
                own[column][rows] = np.where(before == MISSING, MISSING, scaled)
    traces = {trace: trace.replace(**own) for trace, own in columns.items()}
    return Workload(tuple(map(traces.__getitem__, workload.traces)), workload.groups)


def _sequences(trace: ExecutionTrace, rank: int) -> Iterator[tuple[tuple, np.ndarray, str]]:
    """Key, rows and column of the calls of a rank that belong together."""
    order = trace.order()
    codes, names = trace.group_of()
    number = {name: i for i, name in enumerate(dict.fromkeys(("", *(n for n in names if n != "0"))))}
    group = np.array([*(number.get(name, 0) for name in names), 0])[codes[order]]
    kind, called = trace.type[order], trace.column("comm_type")[order]
    for name, at in number.items():
        mine = (kind == NodeType.COMM_COLL) & (group == at)
        for code in np.unique(called[mine]).tolist():
            yield ("call", name, code), order[mine & (called == code)], "comm_size"
    for each, column in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        peers = trace.column(column)[order]
        for peer in np.unique(peers[kind == each]).tolist():
            ends = (rank, peer) if each == NodeType.COMM_SEND else (peer, rank)
            yield ("message", *ends), order[(kind == each) & (peers == peer)], "comm_size"
    for each in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        if (kind == each).any():
            yield ("memory", rank, int(each)), order[kind == each], "tensor_size"
