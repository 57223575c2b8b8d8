"""Levels of a shared workload, each with less of the original than the one before.

strip
    Names become kinds of kernels; attributes that no simulation reads, metadata and file names are gone.
hash
    Nodes come in another topological order, kinds have random labels, groups random numbers.
skeleton
    Only calls, and the longest compute paths between them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, INT_COLUMNS, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.sharing.skeleton import Skeleton, check_dims, find_skeleton, is_call

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
        changed = {trace: change(trace) for trace in dict.fromkeys(self.workload.traces)}
        return Workload(tuple(map(changed.__getitem__, self.workload.traces)), self.workload.groups)

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
        skeletons: dict[ExecutionTrace, Skeleton] = {}
        for first, trace in zip(self.like, self.workload.traces, strict=True):
            like = skeletons.get(self.workload.traces[first])
            chained = self.chained[trace]
            if trace not in skeletons:
                skeletons[trace] = (
                    replace(like, trace=chained)
                    if like
                    else find_skeleton(chained, self.duration[trace], self.dependencies, exact=False)
                )
        return tuple(map(skeletons.__getitem__, self.workload.traces))

    def with_skeletons(self, skeletons: Sequence[Skeleton]) -> Workload:
        """The workload of some skeletons, without names."""
        traces = {skeleton: skeleton.build() for skeleton in dict.fromkeys(skeletons)}
        nameless = {skeleton: t.replace(names=[""] * len(t), place="", rank=None) for skeleton, t in traces.items()}
        return Workload(tuple(map(nameless.__getitem__, skeletons)), self.workload.groups)


def _shape(trace: ExecutionTrace, duration: np.ndarray, dependencies: str) -> tuple[bytes, ...]:
    """Key of a rank's program: equal for ranks that differ only in names, groups and peers."""
    codes, names = trace.group_of()
    is_world = np.array([name in ("", "0") for name in names] + [True])  # the last one of -1
    send, recv = (trace.type == kind for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV))
    peers = np.where(send, trace.column("comm_dst"), np.where(recv, trace.column("comm_src"), -1))
    columns = [trace.type, trace.node_id, duration, *trace.parents(dependencies)]
    columns += [trace.column(name) for name in INT_COLUMNS if name not in ("comm_src", "comm_dst")]
    for labels in (np.where(is_world[codes], -1, codes), peers):
        _, first, place = np.unique(labels, return_index=True, return_inverse=True)
        columns.append(np.where(labels < 0, -1, first[place]))
    return tuple(np.ascontiguousarray(column).tobytes() for column in columns)


# -- strip -------------------------------------------------------------------------------------------------------------


def kind_of(name: str) -> str:
    """The kind of a kernel.

    >>> kind_of("sm80_xmma_gemm_f16"), kind_of("gap 3"), kind_of("x")
    ('gpu:gemm', 'gap', 'gpu:other')
    """
    name = name.lower()
    kinds = (kind for kind, pattern in _KINDS.items() if re.search(pattern, name))
    return "gap" if name.startswith("gap") else f"gpu:{next(kinds, 'other')}"


def stripped(trace: ExecutionTrace, dependencies: str) -> ExecutionTrace:
    """The trace with kinds for names, the dependencies that order it, and what a simulation reads.

    Raises TraceError: collectives that leave out dimensions.
    """
    check_dims(trace)
    ptr, rows = trace.parents(dependencies)
    kinds = {name: kind_of(name) for name in dict.fromkeys(trace.names)}
    names = [
        COLLECTIVE_OF_CODE.get(code, "other") if kind == NodeType.COMM_COLL
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


def strip(original: Original, rng: np.random.Generator) -> Workload:
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
    number = dict(zip(names, (str(value + 1) for value in rng.permutation(len(names)).tolist()), strict=True))
    renamed: dict[ExecutionTrace, ExecutionTrace] = {}
    for trace in dict.fromkeys(workload.traces):
        codes, called = trace.group_of()
        renamed[trace] = trace.replace(pg_name=[number.get(called[code]) if code >= 0 else None for code in codes])
    groups = {number[name]: workload.groups[name] for name in sorted(names, key=lambda name: int(number[name]))}
    return Workload(tuple(map(renamed.__getitem__, workload.traces)), groups)


def hashed(original: Original, rng: np.random.Generator) -> Workload:
    def change(trace: ExecutionTrace) -> ExecutionTrace:
        return shuffled(stripped(trace, original.dependencies), is_call(trace) | (original.slot[trace] > 0), rng)

    workload = original.each(change)
    kinds = sorted({name for trace in dict.fromkeys(workload.traces) for name in trace.names})
    numbers = rng.choice(len(_LETTERS) ** 3, size=len(kinds), replace=False).tolist()
    labels = ("".join(_LETTERS[value // len(_LETTERS) ** k % len(_LETTERS)] for k in range(3)) for value in numbers)
    label = dict(zip(kinds, labels, strict=True))
    relabelled = {t: t.replace(names=[*map(label.__getitem__, t.names)]) for t in dict.fromkeys(workload.traces)}
    return renumbered(replace(workload, traces=tuple(map(relabelled.__getitem__, workload.traces))), rng)


# -- skeleton ----------------------------------------------------------------------------------------------------------


def skeleton(original: Original, rng: np.random.Generator) -> Workload:
    return renumbered(original.with_skeletons(original.skeletons), rng)
