"""Traces of recorded steps: the engines take as long over them as the recording did."""

from fractions import Fraction

import numpy as np
import pytest
from worlds.recordings import device, host, recording
from worlds.training import problem_of

from astrasim_py.chakra.et_io import encode_trace
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.engine.simulation import simulate
from astrasim_py.pytorch.graph import build_graph
from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.nodes import Communication, rank_trace
from astrasim_py.topology import shapes

#: 1 GB/s and no latency: a byte takes a nanosecond.
TWO = shapes.FullyConnected(npus=2, bandwidth=Fraction(10**9), latency=0).build()


def makespans(*traces, groups=None):
    """Time of a set of traces on both engines, ns."""
    workload = Workload(traces if len(traces) > 1 else traces * 2, groups or {})
    records = [simulate(problem_of(workload, TWO), engine=engine, level="summary") for engine in ("simpy", "compiled")]
    assert all(one.outcome.status == "done" for one in records)
    return [Fraction(one.makespan, 1000) for one in records]


def of_name(trace, name):
    return [row for row, other in enumerate(trace.names) if other == name]


@pytest.fixture
def calling():
    """A kernel, a call on another stream that waits for it, a kernel that waits for the call, and a synchronisation."""
    said = {"wait_on_cuda_event_record_corr_id": -1}
    return build_graph(
        recording(
            host("op", "aten::mm", 0, 10),
            host("call", "cudaLaunchKernel", 1, 5, 1),
            device("kernel", "gemm", 8, 100, 1),
            host("call", "cudaStreamWaitEvent", 11, 12, 9),
            device("sync", "wait", 11, 12, 9, stream=20, wait_on_stream=7, **said),
            host("call", "cudaLaunchKernel", 12, 14, 2),
            device("kernel", "nccl", 103, 203, 2, stream=20),
            host("call", "cudaStreamWaitEvent", 15, 16, 10),
            device("sync", "wait", 15, 16, 10, stream=7, wait_on_stream=20, **said),
            host("call", "cudaLaunchKernel", 17, 18, 3),
            device("kernel", "after", 205, 215, 3),
            host("call", "cudaDeviceSynchronize", 20, 220),
            end=230,
        )
    )


def row_of(graph, name):
    events = graph.recording.events
    return int(np.flatnonzero(events.name == graph.recording.names.index(name))[0])


def test_engines_take_as_long_as_the_recording(calling):
    assert calling.makespan == 230_000
    assert makespans(rank_trace(calling)) == [230_000] * 2


def test_nodes_say_what_they_are_and_why_they_wait(calling):
    trace = rank_trace(calling, rank=3)
    assert trace.node_id.tolist() == list(range(len(trace)))
    (gemm,), (nccl,), (after,) = (of_name(trace, name) for name in ("gemm", "nccl", "after"))
    assert (trace.attribute(gemm, "stream"), trace.attribute(gemm, "op")) == (7, "aten::mm")
    assert trace.attribute(nccl, "op") is None
    assert trace.column("duration_ps")[gemm] == 92_000_000
    assert trace.column("slot_kind").tolist() == [0] * len(trace)
    kinds = {row: trace.attribute(row, "dep_kinds").split() for row in (gemm, nccl, after)}
    assert kinds == {gemm: ["gap"], nccl: ["launch", "gap"], after: ["stream", "launch", "gap"]}
    assert all(len(kinds[row]) == len(trace.data_deps.of(row)) for row in kinds)
    gap = trace.row(trace.data_deps.of(nccl)[-1])
    assert (trace.names[gap], trace.attribute(gap, "dep_kinds")) == ("gap", "wait")
    cpu = of_name(trace, "cpu")
    assert [trace.attribute(row, "tid") for row in cpu] == [0] * len(cpu)
    assert trace.column("is_cpu_op")[cpu].all()
    last = cpu[-1]
    assert "sync" in trace.attribute(last, "dep_kinds").split()


def test_traces_lint_clean_and_are_the_same_every_time(calling):
    assert lint([rank_trace(calling)] * 2) == []
    assert encode_trace(rank_trace(calling)) == encode_trace(rank_trace(calling))


def test_dropped_gaps_make_the_step_shorter(calling):
    trace = rank_trace(calling, gaps="drop")
    assert not of_name(trace, "gap")
    assert makespans(trace) == [5000 + 92_000 + 100_000 + 10_000 + 15_000] * 2


def test_a_collective_takes_the_time_of_the_network(calling):
    call = Communication(NodeType.COMM_COLL, {"comm_type": CommType.ALL_REDUCE, "comm_size": 40_000}, "7")
    row = row_of(calling, "nccl")
    trace = rank_trace(calling, {row: [call]})
    assert trace.type[of_name(trace, "nccl")].tolist() == [NodeType.COMM_COLL]
    # A ring of two passes half of the buffer twice.
    assert makespans(trace, groups={"7": (0, 1)}) == [230_000 - 100_000 + 40_000] * 2
    recorded = rank_trace(calling, {row: [call]}, moving={row: 25_000})
    assert makespans(recorded, groups={"7": (0, 1)}) == [230_000 - 100_000 + 40_000 + 25_000] * 2
    assert makespans(rank_trace(calling, {row: []})) == [130_000] * 2


def test_messages_of_one_call_are_joined(calling):
    row = row_of(calling, "nccl")

    def messages(peer):
        sizes = {"comm_size": 30_000, "comm_tag": 0}
        return [
            Communication(NodeType.COMM_SEND, {"comm_dst": peer, **sizes}),
            Communication(NodeType.COMM_RECV, {"comm_src": peer, **sizes}),
        ]

    traces = [rank_trace(calling, {row: messages(1 - rank)}, rank=rank) for rank in (0, 1)]
    (join,) = of_name(traces[0], "join")
    assert traces[0].attribute(join, "dep_kinds").split() == ["call", "call"]
    assert makespans(*traces) == [230_000 - 100_000 + 30_000] * 2


def test_a_rank_may_begin_later(calling):
    assert makespans(rank_trace(calling), rank_trace(calling, skew_ns=7000)) == [237_000] * 2


@pytest.mark.parametrize(
    "file",
    [
        "hta_sync/event_sync.json.gz",
        "tracelens/vllm_decode_graph.json.gz",
        pytest.param("tracelens/b200_eager_rank0of8.json.gz", marks=pytest.mark.slow),
        pytest.param("hta_df_index/df_index_resolver.json.gz", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("host", ["segments", "none"])
def test_public_recordings_take_as_long_in_both_engines(golden, file, host):
    graph = build_graph(read_recording(str(golden / "pytorch" / file)), host)
    assert makespans(rank_trace(graph)) == [graph.makespan] * 2
