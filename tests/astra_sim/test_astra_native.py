"""ASTRA-sim's native algorithms: closed forms to the nanosecond, chunks and queues, and what is refused."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.astra_sim.configs import NetworkConfig, SystemConfig
from astrasim_py.astra_sim.input_set import Inputs
from astrasim_py.astra_sim.native_algorithms import (
    MAX,
    MIN,
    Charges,
    Implementation,
    SharedBus,
    native_algorithm,
    size_after,
)
from astrasim_py.astra_sim.planner import CompatiblePlanner
from astrasim_py.astra_sim.quirks import warning
from astrasim_py.chakra.schema import MISSING, CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AlgorithmError, AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import CollectiveRequest, Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.topology.routing import Dim

RATE = Fraction(50 * 2**30)
LATENCY = 500
MEMORY = 1600.0
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def system(word: str, **more) -> SystemConfig:
    """A system file in which every collective is implemented alike."""
    words = {f"{name}_implementation": tuple(map(Implementation.parse, word.split())) for name in COLLECTIVES}
    keys = {
        "preferred_dataset_splits": 1,
        "local_mem_bw": Fraction(MEMORY),
        "collective_optimization": "localBWAware",
        **words,
        **more,
    }
    return SystemConfig(**keys)


def planner_of(config: SystemConfig, sizes) -> CompatiblePlanner:
    """ASTRA-sim's planner of a network of so many NPUs along each dimension."""
    dims = tuple(Dim("ring", size, RATE, LATENCY * 1000) for size in sizes)
    npus = int(np.prod(sizes))
    trace = ExecutionTrace.from_columns(node_id=[7], type=[NodeType.COMM_COLL])
    workload = Workload(traces=(trace,) * npus)
    return CompatiblePlanner(Inputs(workload=workload, network=NetworkConfig(dims=dims), system=config), [])


def times(kind: str, size: int, topology, planner, *, model="analytical") -> list[int | None]:
    """When each rank has finished one collective, ns."""
    npus = topology.npus
    trace = ExecutionTrace.from_columns(
        node_id=np.array([7], dtype=np.uint64),
        type=np.array([NodeType.COMM_COLL], dtype=np.int8),
        comm_type=int(CommType[kind.upper()]),
        comm_size=size,
    )
    problem = Problem(
        topology=topology,
        jobs=(
            Job(
                workload=Workload(traces=(trace,) * npus),
                placement=tuple(range(npus)),
                algorithms=AlgorithmTable({}),
                planner=planner,
            ),
        ),
        network=NetworkModel(model=model),
        semantics=Semantics.astra_sim(event_order="scheduled"),
    )
    records = simulate(problem, engine="both", level="summary")
    if records.outcome.status != "done":
        return [None] * npus
    return [time // 1000 for time in records.finish.tolist()]


def one(word: str, kind: str, size: int, n: int, **more) -> list[int | None]:
    """Times of one collective on n fully connected NPUs."""
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=LATENCY * 1000).build()
    return times(kind, size, topology, planner_of(system(word, **more), (n,)))


def delay(size: int, hops: int = 1) -> int:
    return floor(hops * LATENCY + size / (50 * 2**30 / 1e9))


def red(size: int) -> int:
    return 3 * floor(size / MEMORY)


ED = 10


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("size", [1000, 1048576, 12345678])
def test_ring(n, size):
    m = size // n
    d, r = delay(m), red(m)
    assert set(one("ring", "all_reduce", size, n)) == {ED + 2 * (n - 1) * (d + ED) + (n - 1) * r}
    assert set(one("ring", "reduce_scatter", size, n)) == {ED + (n - 1) * (d + ED + r)}
    assert set(one("ring", "all_gather", size, n)) == {ED + (n - 1) * (delay(size) + ED)}
    assert set(one("ring", "all_to_all", size, n)) == {ED + n * (n - 1) // 2 * (d + ED)}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_direct_has_all_its_messages_on_the_way_at_once(n):
    size = 1048576
    d, r = delay(size // n), red(size // n)
    assert set(one("direct", "reduce_scatter", size, n)) == {ED + d + ED + r}
    assert set(one("direct", "all_gather", size, n)) == {ED + delay(size) + ED}
    assert set(one("direct", "all_to_all", size, n)) == {ED + d + ED}
    assert set(one("direct", "all_reduce", size, n)) == {ED + (d + ED + r) + (d + ED)}


@pytest.mark.parametrize("n", [3, 4, 7])
def test_direct_with_a_window_of_one_reduces_every_other_cycle(n):
    size = 1048576
    d, r = delay(size // n), red(size // n)
    scattered = sum(k % 2 == 0 for k in range(n - 1))
    reduced = sum(k % 4 == 0 for k in range(2 * (n - 1)))
    assert set(one("direct1", "reduce_scatter", size, n)) == {ED + (n - 1) * (d + ED) + scattered * r}
    assert set(one("direct1", "all_to_all", size, n)) == {ED + (n - 1) * (d + ED)}
    assert set(one("direct1", "all_reduce", size, n)) == {ED + 2 * (n - 1) * (d + ED) + reduced * r}


def test_a_window_as_wide_as_the_group_is_none():
    size = 1048576
    for kind in COLLECTIVES:
        assert one("direct7", kind, size, 8) == one("direct99", kind, size, 8) == one("direct", kind, size, 8)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_halving_doubling(levels):
    n, size = 2**levels, 1048576
    halves = [size >> (k + 1) for k in range(levels)]
    # Of L receptions of the first half the last is free, and the others cost what is sent next would.
    half = sum(delay(m) + ED for m in halves) + sum(red(m) for m in halves[1:])
    assert set(one("halvingDoubling", "reduce_scatter", size, n)) == {ED + half}
    assert set(one("halvingDoubling", "all_reduce", size, n)) == {ED + half + sum(delay(m) + ED for m in halves)}
    doubles = [size << k for k in range(levels)]
    assert set(one("halvingDoubling", "all_gather", size, n)) == {ED + sum(delay(m) + ED for m in doubles)}


def test_halving_doubling_truncates_odd_messages_twice():
    algorithm = native_algorithm("halvingDoubling", "all_reduce", 1000, 16, Charges())
    trace = algorithm.traces[5]
    sends = trace.type == NodeType.COMM_SEND
    assert trace.column("comm_size")[sends].tolist() == [500, 250, 125, 62, 62, 124, 248, 496]
    assert trace.column("comm_dst")[sends].tolist() == [4, 7, 1, 13, 13, 1, 7, 4]


def test_double_binary_tree_ends_before_its_children():
    size = 1048576
    d, r = delay(size), red(size)
    # 3 is the root over 1, whose children are the leaves 0 and 2.
    root = (ED + d) + (ED + r + d) + (ED + r)
    inner = root + d + ED + r
    leaf = inner + d + ED
    assert one("doubleBinaryTree", "all_reduce", size, 4) == [leaf, inner, leaf, root]
    assert one("doubleBinaryTree", "all_gather", size, 4) == [leaf, inner, leaf, root]
    assert one("doubleBinaryTree", "all_reduce", size, 2) == [ED + d + ED + r + d + ED, ED + d + ED + r]


def test_trees_have_their_roots_at_either_end():
    for tree, root in ((MAX, 7), (MIN, 0)):
        algorithm = native_algorithm("doubleBinaryTree", "all_reduce", 64, 8, Charges(), tree=tree)
        messages = [int((trace.type == NodeType.COMM_SEND).sum()) for trace in algorithm.traces]
        assert sum(messages) == 2 * 7
        sent = [set(trace.column("comm_dst").tolist()) - {MISSING} for trace in algorithm.traces]
        assert sorted(len(peers) for peers in sent) == [1, 1, 1, 1, 1, 3, 3, 3]
        assert len(sent[root]) == 1


def test_chunks_follow_each_other_unless_more_are_active():
    n, size = 8, 1048576
    chunk = set(one("ring", "all_reduce", size // 4, n)).pop()
    assert set(one("ring", "all_reduce", size, n, preferred_dataset_splits=4)) == {4 * chunk}
    for active, rounds in ((2, 2), (4, 1), (9, 1)):
        more = {"preferred_dataset_splits": 4, "active_chunks_per_dimension": active}
        assert set(one("ring", "all_reduce", size, n, **more)) == {rounds * chunk}
    # A remainder is a whole chunk more.
    third = set(one("ring", "all_reduce", 349525, n)).pop()
    assert set(one("ring", "all_reduce", size, n, preferred_dataset_splits=3)) == {4 * third}


def test_dimensions_follow_each_other():
    dims = [Dim(kind="fully_connected", size=n, bandwidth=RATE, latency_ps=LATENCY * 1000) for n in (4, 2)]
    topology = shapes.Product(dims=dims).build()
    size = 1048576

    def ring(kind: str, size: int, n: int) -> int:
        return set(one("ring", kind, size, n)).pop()

    planner = planner_of(system("ring ring"), (4, 2))
    expected = ring("reduce_scatter", size, 4) + ring("all_reduce", size // 4, 2) + ring("all_gather", size // 4, 4)
    assert set(times("all_reduce", size, topology, planner)) == {expected}


def call(kind: str, size: int, ranks, **more) -> CollectiveRequest:
    members = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    return CollectiveRequest(type=kind, size=size, members=members, group=more.pop("group", "world"), node=3, **more)


def shown(streams) -> list[list[tuple]]:
    """(collective, queue, bytes, number of slices) of each phase of each stream."""
    return [[(p.calls[0][1].collective, p.queue, p.size, len(p.calls)) for p in stream.phases] for stream in streams]


def test_phases_and_sizes_by_dimension():
    planner = planner_of(system("ring direct halvingDoubling"), (4, 3, 2))
    assert shown(planner.plan(call("all_reduce", 1000, 24))) == [
        [
            ("reduce_scatter", 0, 1000, 6),
            ("reduce_scatter", 1, 250, 8),
            ("all_reduce", 2, 83, 12),
            ("all_gather", 1, 83, 8),
            ("all_gather", 0, 249, 6),
        ]
    ]
    assert shown(planner.plan(call("all_gather", 1000, 24)))[0][-1] == ("all_gather", 0, 6000, 6)
    base = planner_of(system("ring ring ring", collective_optimization="baseline"), (4, 3, 2))
    assert [p[:3] for p in shown(base.plan(call("all_reduce", 1000, 24)))[0]] == [
        ("all_reduce", 0, 1000),
        ("all_reduce", 1, 1000),
        ("all_reduce", 2, 1000),
    ]
    involved = planner.plan(call("all_reduce", 1000, 24, dims=(True, False, False, True)))
    assert [p[:3] for p in shown(involved)[0]] == [("all_reduce", 0, 1000)]


def test_trees_take_turns_and_a_repeated_call_gets_the_same_plan():
    planner = planner_of(system("doubleBinaryTree doubleBinaryTree", preferred_dataset_splits=2), (4, 4))
    streams = planner.plan(call("all_reduce", 1024, 16))
    charges = Charges(memory_bandwidth=MEMORY)

    def tree(collective: str, end: str):
        return native_algorithm("doubleBinaryTree", collective, 512, 4, charges, tree=end)

    built = [[phase.calls[0][1] for phase in stream.phases] for stream in streams]
    # Each dimension counts on by itself, chunk after chunk: the first is visited twice by each, the last once.
    assert [each is tree("reduce_scatter", MAX) for each in (built[0][0], built[1][0])] == [True, True]
    assert [built[0][1] is tree("all_reduce", MAX), built[1][1] is tree("all_reduce", MIN)] == [True, True]
    assert [each is tree("all_gather", MIN) for each in (built[0][2], built[1][2])] == [True, True]
    assert planner.plan(call("all_reduce", 1024, 16)) is streams


def test_groups_smaller_than_the_world():
    config = system("halvingDoubling", endpoint_delay=500)
    planner = planner_of(config, (8,))
    (stream,) = planner.plan(call("all_reduce", 1024, (6, 2, 0, 4), group="3"))
    ((ranks, algorithm),) = stream.phases[0].calls
    assert ranks == (6, 2, 0, 4) and algorithm.name == "halvingDoubling"
    assert algorithm is native_algorithm("halvingDoubling", "all_reduce", 1024, 4, Charges(memory_bandwidth=MEMORY))
    assert warning("local-delay") in planner.warnings
    planner = planner_of(system("direct direct"), (4, 2))
    (stream,) = planner.plan(call("all_gather", 1024, (0, 1, 4, 5), group="1"))
    assert stream.phases[0].calls[0][1].name == "ring"
    assert warning("local-ring") in planner.warnings


def test_whole_implementations_run_over_ids():
    planner = planner_of(system("oneRing"), (4, 4))
    assert shown(planner.plan(call("all_reduce", 1024, 16))) == [[("all_reduce", 0, 1024, 1)]]
    assert warning("whole") in planner.warnings


def test_quirks_are_told_once():
    planner = planner_of(system("ring", preferred_dataset_splits=3, local_mem_bw=None), (8,))
    for number in range(3):
        planner.plan(call("all_reduce", 1048576, 8, number=number))
    assert sorted(planner.warnings) == sorted(
        {warning("rounded-up"), warning("lost-remainder"), warning("no-memory-bandwidth")}
    )
    planner.plan(call("all_reduce", 10, 8))
    assert warning("least-chunk") in planner.warnings
    fine = planner_of(system("ring"), (8,))
    fine.plan(call("all_reduce", 1048576, 8))
    assert fine.warnings == []


@pytest.mark.parametrize(
    ("words", "more", "sizes", "asked", "what"),
    [
        ("halvingDoubling", {}, (6,), ("all_reduce", 600, 6), "power of two"),
        ("doubleBinaryTree", {}, (6,), ("all_reduce", 600, 6), "power of two"),
        ("halvingDoubling", {}, (8,), ("all_to_all", 1024, 8), "no all_to_all"),
        ("ring", {"preferred_dataset_splits": None}, (8,), ("all_reduce", 1024, 8), "preferred-dataset-splits"),
        ("ring", {"preferred_dataset_splits": 0}, (8,), ("all_reduce", 1024, 8), "preferred-dataset-splits"),
        ("ring", {"preferred_dataset_splits": 4}, (8,), ("all_gather", 3, 8), "0 B"),
        ("ring", {"endpoint_delay": 0}, (8,), ("all_reduce", 1024, 8), "endpoint-delay"),
        ("ring ring", {}, (8,), ("all_reduce", 1024, 8), "lists 2"),
        ("ring ring", {"collective_optimization": None}, (2, 4), ("all_reduce", 1024, 8), "collective-optimization"),
        ("doubleBinaryTree", {}, (8,), ("all_reduce", 1024, (0, 1)), "smaller than the world"),
        ("doubleBinaryTree", {}, (4, 2), ("all_reduce", 1024, 8), "last dimension"),
        ("sing", {}, (8,), ("all_reduce", 1024, 8), "sing"),
        ("direct0", {}, (8,), ("all_reduce", 1024, 8), "never ends"),
        ("ring4", {}, (8,), ("all_reduce", 1024, 8), "only direct"),
        ("direct", {"model_shared_bus": True}, (8,), ("all_reduce", 1024, 8), "shared-bus"),
        ("", {}, (8,), ("all_reduce", 1024, 8), "is missing"),
        ("ring", {"preferred_dataset_splits": 10**12}, (8,), ("all_reduce", 1024, 8), "more than"),
        ("ring", {"local_mem_bw": Fraction(1, 10**15)}, (8,), ("all_reduce", 1024, 8), "2\\^62"),
        ("ring", {}, (8,), ("all_gather", 2**60, 8), "2\\^62"),
    ],
)
def test_what_astra_sim_cannot_finish_is_an_error(words, more, sizes, asked, what):
    with pytest.raises(AstraError, match=what):
        planner_of(system(words, **more), sizes).plan(call(*asked))


def test_nothing_to_do_is_an_error():
    with pytest.raises(AlgorithmError, match="no dimension"):
        planner_of(system("ring"), (8,)).plan(call("all_reduce", 1024, 8, dims=(False,)))


@pytest.mark.parametrize("word", ["oneRing", "oneDirect", "oneDirect3", "oneHalvingDoubling", "direct12", "ring"])
def test_words(word):
    made = Implementation.parse(word)
    assert made.whole == word.startswith("one")
    assert made.window == (int(word[-2:].strip("t")) if word[-1].isdigit() else None)


@pytest.mark.parametrize("word", ["Ring", "onering", "oneDoubleBinaryTree", "onedoubleBinaryTree", "", "direct-3"])
def test_words_that_are_none(word):
    with pytest.raises(AlgorithmError):
        Implementation.parse(word)


def test_shared_bus_charges():
    bus = SharedBus(latency=100, overhead=10, per_byte=0.01, reduction=2)
    charges = Charges(memory_bandwidth=1600.0, bus=bus)
    size = 131072
    over, memory = floor(120 + 0.01 * (size - 1)), floor(120 + 0.0038 * (size - 1))
    reduced = red(size) + 1310 * 2 + 50 + 2 * memory
    assert charges.packet_ns(size) == over + memory
    assert charges.packet_ns(size, flagged=True) == 2 * (over + memory)
    assert charges.packet_ns(size, flagged=True, last=True) == over + memory
    assert charges.packet_ns(size, flagged=True, reduced=True) == 2 * (over + memory) + reduced


@given(
    kind=st.sampled_from(["ring", "direct", "halvingDoubling", "doubleBinaryTree"]),
    collective=st.sampled_from(COLLECTIVES),
    levels=st.integers(1, 3),
    size=st.integers(16, 5000),
    window=st.sampled_from([None, 1, 2, 3]),
    direction=st.sampled_from([1, -1]),
)
def test_every_send_has_its_receive(kind, collective, levels, size, window, direction):
    if kind == "halvingDoubling" and collective == "all_to_all":
        return
    n = 2**levels
    algorithm = native_algorithm(kind, collective, size, n, Charges(), window=window, direction=direction)
    sent, received = [], []
    for rank, trace in enumerate(algorithm.traces):
        columns = [trace.column(c).tolist() for c in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
        for kind_of, src, dst, tag, nbytes in zip(trace.type.tolist(), *columns, strict=True):
            if kind_of == NodeType.COMM_SEND:
                sent.append((rank, dst, tag, nbytes))
            elif kind_of == NodeType.COMM_RECV:
                received.append((src, rank, tag, nbytes))
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent)
    assert native_algorithm(kind, collective, size, n, Charges(), window=window, direction=direction) is algorithm


def test_sizes_handed_on():
    assert size_after("ring", "reduce_scatter", 10, 4) == 2
    assert size_after("ring", "all_gather", 10, 4) == 40
    assert size_after("direct", "all_to_all", 10, 4) == size_after("ring", "all_reduce", 10, 4) == 10
    assert size_after("doubleBinaryTree", "reduce_scatter", 10, 4) == 10


def test_small_rows_of_astra_sim(golden):
    """Some native rows of small groups, on both official backends."""
    folder = golden / "astra_sim"
    make = {"Ring": shapes.Ring, "FullyConnected": shapes.FullyConnected, "Switch": shapes.Switch}
    compared = 0
    with open(folder / "cases.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] in ("grid_1d_small", "knobs_8npus")]
    for row in rows[::12]:
        if row["flags"] or row["outcome"] != "ok":
            continue
        network = yaml.safe_load((folder / row["network"]).read_text())
        text = json.loads((folder / row["system"]).read_text())
        config = system(
            text["all-reduce-implementation"][0],
            **{
                "preferred_dataset_splits": text["preferred-dataset-splits"],
                "active_chunks_per_dimension": text.get("active-chunks-per-dimension", 1),
                "collective_optimization": text["collective-optimization"],
                "endpoint_delay": text.get("endpoint-delay", 10),
                "local_mem_bw": Fraction(text["local-mem-bw"]) if "local-mem-bw" in text else None,
                "model_shared_bus": bool(text.get("model-shared-bus", 0)),
                **{key: Fraction(str(text.get(key, 0))) for key in ("L", "o", "g", "G")},
            },
        )
        n = network["npus_count"][0]
        rate = Fraction(str(network["bandwidth"][0])) * 2**30
        latency = int(Fraction(str(network["latency"][0])) * 1000)
        topology = make[network["topology"][0]](npus=n, bandwidth=rate, latency=latency).build()
        model = {"congestion_unaware": "analytical", "congestion_aware": "store_and_forward"}[row["backend"]]
        got = times(row["collective"], int(row["size_bytes"]), topology, planner_of(config, (n,)), model=model)
        expected = [int(each) for each in row["t_ns_per_npu"].split(";")]
        assert got == (expected * n if len(expected) == 1 else expected), row
        compared += 1
    assert compared > 40
