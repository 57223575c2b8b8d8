"""Small problems: parts to build one by hand, and random ones that finish."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.system.machine_models import MemoryModel, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes

GB = Fraction(10**9)
COMM = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}


class Table:
    """The smallest algorithm table: one builder for everything, made once."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.made: dict = {}

    def select(self, collective: str, size: int, ranks: int, group: str, root: int = 0, **_):
        """The one algorithm."""
        key = collective, ranks
        if key not in self.made:
            name = "direct" if collective == "all_to_all" else self.algorithm
            self.made[key] = dataclasses.replace(build(name, collective, ranks), verdict=True)
        return self.made[key]


def trace(nodes: list[dict]) -> ExecutionTrace:
    """A trace from dicts with `type`, `deps` and integer columns; ids are 0..n-1."""
    names = sorted({key for node in nodes for key in node} - {"type", "deps", "micros"})
    parents = [sorted(node.get("deps", ())) for node in nodes]
    ptr = np.concatenate([[0], np.cumsum([len(p) for p in parents])]).astype(np.int64)
    ids = np.array([p for ps in parents for p in ps], dtype=np.uint64)
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(nodes), dtype=np.uint64),
        type=np.array([node["type"] for node in nodes], dtype=np.int8),
        data_deps=Csr(ptr, ids),
        duration_micros=np.array([node.get("micros", 0) for node in nodes], dtype=np.uint64),
        **{name: np.array([node.get(name, MISSING) for node in nodes], dtype=np.int64) for name in names},
    )


def workload(per_rank: list[list[dict]], groups=None) -> Workload:
    """A workload from lists of node dicts."""
    return Workload(traces=tuple(trace(nodes) for nodes in per_rank), groups=groups or {})


def translations(topology):
    """NPU permutations ``id -> id + vector``, digit by digit in the dims of a topology."""
    ids = np.arange(topology.npus)
    for vector in range(topology.npus):
        moved, stride = np.zeros_like(ids), 1
        for dim in topology.dims:
            moved += (ids // stride + vector // stride) % dim.size * stride
            stride *= dim.size
        yield moved


@st.composite
def topologies(draw, npus: int):
    """A regular topology of `npus` with times on a coarse grid, so that much happens at once."""
    kind = draw(st.sampled_from(["ring", "mesh", "fully_connected", "switch", "torus"]))
    rate, latency = draw(st.sampled_from([GB, 2 * GB, 3 * GB])), draw(st.sampled_from([0, 1000, 2000]))
    link = {"bandwidth": rate, "latency": latency}
    if kind == "mesh":
        return shapes.Mesh(dims=[npus], **link).build()
    if kind == "torus":
        return shapes.Torus(dims=[2, npus // 2] if npus % 2 == 0 else [npus], **link).build()
    return shapes.SHAPES[kind](npus=npus, **link).build()


@st.composite
def problems(draw, *, models=("cut_through", "store_and_forward", "analytical"), compute=True, slots=True):
    """A problem of 2 to 6 ranks: point-to-point, compute, memory and collectives over groups, always finishing
    unless slots are scarce."""
    ranks = draw(st.integers(2, 6))
    topology = draw(topologies(ranks))
    groups = {"even": tuple(range(0, ranks, 2)), "back": tuple(reversed(range(ranks)))}
    nodes: list[list[dict]] = [[] for _ in range(ranks)]

    def add(rank: int, **node) -> None:
        mine = nodes[rank]
        chosen = draw(st.sets(st.integers(max(0, len(mine) - 3), len(mine) - 1), max_size=2)) if mine else set()
        mine.append({**node, "deps": chosen})

    kinds = ["p2p", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"] + (["compute", "memory"] * compute)
    codes: list[list[str]] = [[] for _ in range(ranks)]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(kinds))
        if kind == "p2p":
            src = draw(st.integers(0, ranks - 1))
            dst = (src + draw(st.integers(1, ranks - 1))) % ranks
            tag = draw(st.integers(0, 1))
            size = (src * 7 + dst * 3 + tag) % 5 * 1000  # one per pair and tag: the k-th posted meets the k-th posted
            for rank, node_type in ((src, NodeType.COMM_SEND), (dst, NodeType.COMM_RECV)):
                # The k-th of a pair and tag is posted k-th: else a receive may take a message that a later one needs.
                mine = nodes[rank]
                same = {"type": node_type, "comm_src": src, "comm_dst": dst, "comm_tag": tag}
                last = [i for i, node in enumerate(mine) if same.items() <= node.items()]
                add(rank, **same, comm_size=size)
                mine[-1]["deps"] = set(mine[-1]["deps"]) | set(last[-1:])
            codes[src].append("")
            codes[dst].append("")
        elif kind == "compute":
            rank = draw(st.integers(0, ranks - 1))
            add(rank, type=NodeType.COMP, micros=draw(st.integers(0, 3)), is_cpu_op=draw(st.integers(0, 1)))
            codes[rank].append("")
        elif kind == "memory":
            rank = draw(st.integers(0, ranks - 1))
            add(rank, type=NodeType.MEM_LOAD, tensor_size=draw(st.integers(0, 3)) * 1000)
            codes[rank].append("")
        else:
            group = draw(st.sampled_from(["", "even", "back"]))
            members = groups.get(group, tuple(range(ranks)))
            size = draw(st.sampled_from([0, 1, 12, 1000, 6000]))
            for rank in members:
                # Collectives of a group are chained, so that every member calls them in one order.
                mine = nodes[rank]
                last = [i for i, node in enumerate(mine) if node["type"] == NodeType.COMM_COLL]
                add(rank, type=NodeType.COMM_COLL, comm_type=COMM[kind], comm_size=size)
                mine[-1]["deps"] = set(mine[-1]["deps"]) | set(last[-1:])
                codes[rank].append(group)
    traces = []
    for rank in range(ranks):
        made = trace(nodes[rank]) if nodes[rank] else trace([{"type": NodeType.COMP}])
        traces.append(with_groups(made, codes[rank]) if nodes[rank] else made)
    limited = draw(st.sampled_from([None, None, 1, 2])) if slots else None
    return Problem(
        topology=topology,
        jobs=(
            Job(
                workload=Workload(traces=tuple(traces), groups=groups),
                placement=tuple(draw(st.permutations(range(ranks)))),
                algorithms=Table("ring" if draw(st.booleans()) else "direct"),
                start_delay_ps={0: draw(st.sampled_from([0, 1_000_000]))},
                compute_speed={0: Fraction(draw(st.sampled_from([1, 2])), 3)},
            ),
        ),
        network=NetworkModel(
            model=draw(st.sampled_from(models)),
            link_busy=draw(st.sampled_from(["bytes", "latency+bytes"])),
            send_completes=draw(st.sampled_from(["delivery", "injected"])),
        ),
        semantics=Semantics.native(comm_slots=limited, gamma=draw(st.sampled_from([Fraction(0), Fraction(1, 10**9)]))),
        memory=MemoryModel(
            kind=draw(st.sampled_from(["per_npu", "per_node", "pool"])),
            latency_ps=1000,
            bandwidth=GB,
            npus_per_node=2,
        ),
    )


def with_groups(made: ExecutionTrace, names: list[str]) -> ExecutionTrace:
    """The same trace with a group name per node ("" for the world)."""
    return made.replace(pg_name=names)
