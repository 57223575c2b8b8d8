"""ASTRA-sim's workload layer: slots, skipped nodes, replay, roofline, memory, groups, and what it aborts on."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from worlds.chakra_files import message as record

from astrasim_py.astra_sim.input_set import AWARE
from astrasim_py.builders.registry import build
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import parse_trace, write_prefix
from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TraceError
from astrasim_py.program.interchange import algorithm_traces

MIB = 2**20
INVALID, METADATA = NodeType.INVALID, NodeType.METADATA


def refused(folder, message, *traces, error=AstraError, **more):
    """The error, whose text says `message`."""
    with pytest.raises(error) as caught:
        folder.run(*traces, **more)
    assert message in str(caught.value), str(caught.value)
    return caught.value


# -- nodes that ASTRA-sim skips ---------------------------------------------------------------------------------


def test_children_of_a_skipped_node_wait_for_the_next_completion(folder):
    nodes = [
        folder.compute(0, micros=5),
        folder.compute(1, is_cpu_op=1, micros=2),
        (2, INVALID, (1,), {}),
        folder.compute(3, (2,), is_cpu_op=1, micros=1),
    ]
    result = folder.run(nodes)
    # Node 2 is skipped at 2 us; node 3 is not tried before node 0 ends at 5 us.
    assert set(result.finish_ns) == {6000}
    assert any(text.startswith("quirk skipped-node") for text in result.warnings)
    assert set(folder.run(corrected=True).finish_ns) == {5000}


def test_a_child_of_two_skipped_nodes_waits_after_the_later_of_them(folder):
    nodes = [
        folder.compute(0, micros=9),
        folder.compute(1, is_cpu_op=1, micros=2),
        (2, INVALID, (1,), {}),
        folder.compute(3, (1,), is_cpu_op=1, micros=3),
        (4, INVALID, (3,), {}),
        folder.compute(5, (2, 4), is_cpu_op=1, micros=1),
    ]
    assert set(folder.run(nodes).finish_ns) == {10_000}


def test_nothing_else_in_flight_leaves_the_rank_unfinished(folder):
    folder.system(roofline_enabled=1, peak_perf=100)
    nodes = [
        folder.compute(0, num_ops=10**9, tensor_size=0),
        folder.compute(1, (0,), num_ops=10**9, tensor_size=10**6),
    ]
    result = folder.run(nodes)
    assert result.outcome.status == "stuck" and set(result.finish_ns) == {None}
    assert result.lines() == []
    assert folder.run(corrected=True).outcome.status == "done"


# -- compute ----------------------------------------------------------------------------------------------------


def test_a_recorded_duration_of_nothing_takes_a_nanosecond(folder):
    result = folder.run([folder.compute(0), folder.compute(1, (0,))])
    assert set(result.finish_ns) == {2}
    assert any(text.startswith("quirk zero-duration") for text in result.warnings)
    assert set(folder.run(corrected=True).finish_ns) == {0}


def test_the_roofline_takes_the_slower_of_memory_and_peak(folder):
    folder.system(roofline_enabled=1, peak_perf=100, local_mem_bw=50)
    nodes = [
        folder.compute(0, num_ops=10**9, tensor_size=10**3, micros=77),  # 10^9 / 10^14
        folder.compute(1, (0,), num_ops=10**6, tensor_size=10**6, micros=77),  # 10^6 B / 50 GB/s
        folder.compute(2, (1,), is_cpu_op=1, micros=3, num_ops=10**9, tensor_size=0),  # recorded
    ]
    result = folder.run(nodes)
    assert set(result.finish_ns) == {10_000 + 20_000 + 3_000}
    assert set(result.exposed_ns) == {3_000}


def test_the_roofline_needs_its_figures(folder):
    folder.system(roofline_enabled=1)
    refused(folder, "peak-perf: is missing", [folder.compute(0, num_ops=1, tensor_size=1)], error=ScenarioError)
    folder.system(roofline_enabled=1, peak_perf=100)
    refused(folder, "node 0: lacks num_ops", [folder.compute(0, micros=1)], error=TraceError)
    refused(folder, "node 0: lacks tensor_size", [folder.compute(0, num_ops=9)], error=TraceError)
    refused(folder, "divides 0 by 0", [folder.compute(0, num_ops=0, tensor_size=9)])
    refused(folder, "event at time 0", [folder.compute(0, num_ops=1, tensor_size=1)])


def test_replay_only_takes_every_duration_in_its_slot(folder):
    folder.system(replay_only=1)
    nodes = [
        folder.collective(0, "BARRIER", 0, micros=4),
        folder.collective(1, "ALL_REDUCE", MIB, micros=4),  # waits for the slot of 0
        folder.compute(2, micros=6),
        folder.recv(3, 1, 9, micros=5),  # holds nothing
        (4, NodeType.MEM_LOAD, (2,), {"tensor_size": 7, "micros": 1}),
    ]
    result = folder.run(nodes)
    assert set(result.finish_ns) == {9000} and set(result.exposed_ns) == {3000}
    assert set(folder.run(corrected=True).finish_ns) == {9000}


def test_misspelt_dimensions_are_warned_about_once(folder):
    nodes = [pb.Node(id=number, type=NodeType.COMM_COLL) for number in range(2)]
    for node in nodes:
        for name, value in (("comm_type", CommType.ALL_REDUCE), ("comm_size", MIB), ("involve_dims", 1)):
            node.attr.add(name=name, int64_val=value)
    write_prefix(folder.path / "work", [parse_trace(b"\0" + b"".join(map(record, nodes)))] * 8)
    assert sum('did you mean "involved_dim"?' in text for text in folder.run().warnings) == 1


def test_a_broadcast_takes_its_recorded_duration(folder):
    nodes = [folder.collective(0, "BROADCAST", MIB, micros=4), folder.collective(1, "BROADCAST", MIB, micros=4)]
    result = folder.run(nodes)
    assert set(result.finish_ns) == {8000} and set(result.exposed_ns) == {8000}
    assert any(text.startswith("quirk broadcast-replayed") for text in result.warnings)
    assert max(folder.run(corrected=True).finish_ns) > 19_000


# -- what ASTRA-sim aborts on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["REDUCE", "GATHER", "SCATTER", "BARRIER"])
def test_other_collectives_name_their_node(folder, kind):
    refused(folder, f"work.0.et: node 7: {kind} is not simulated", [folder.collective(7, kind, 64)])
    assert folder.run(corrected=True).outcome.status == "done"


def test_what_it_aborts_on_names_its_node(folder):
    refused(folder, "node 3: ASTRA-sim aborts on METADATA", [(3, METADATA, (), {})])
    refused(folder, "node 5: communicates and has is_cpu_op", [folder.collective(5, "ALL_REDUCE", 9, is_cpu_op=1)])
    refused(folder, "node 5: lacks comm_type", [(5, NodeType.COMM_COLL, (), {"comm_size": 9})])
    refused(folder, "node 5: its pg_name", [folder.collective(5, "ALL_REDUCE", 9, group="dp")])
    folder.network(sizes=(2,), kinds=("Switch",))
    refused(folder, "node 0: sends 0 bytes", [folder.send(0, 1, 0)], [folder.recv(0, 0, 0)])
    assert folder.run(corrected=True).outcome.status == "done"
    refused(folder, "node 0: comm_dst 0 is its own rank", [folder.send(0, 0, 8)], [folder.compute(0)])
    refused(folder, "system has none", [(0, NodeType.MEM_LOAD, (), {"tensor_size": 9})])


def test_unequal_sizes_end_in_a_stuck_report(folder):
    folder.network(sizes=(2,), kinds=("Switch",))
    result = folder.run([folder.send(0, 1, 100, tag=4)], [folder.recv(0, 0, 200, tag=4)])
    assert result.outcome.status == "stuck"
    assert result.finish_ns[0] is not None and result.finish_ns[1] is None
    said = [(w.src, w.dst, w.tag, w.bytes) for w in result.outcome.waiting]
    assert (0, 1, 4, 200) in said
    assert any("100 B" in w.reason for w in result.outcome.waiting)


def test_a_missing_rank_file_is_named(folder):
    folder.workload([folder.compute(0, micros=1)])
    (folder.path / "work.5.et").unlink()
    with pytest.raises(TraceError, match=r"8 ranks, and a file is missing: work\.5\.et"):
        folder.inputs()


def test_files_beyond_the_last_rank_are_ignored(folder):
    folder.workload([folder.compute(0, micros=1)])
    folder.network(sizes=(4,))
    inputs = folder.inputs()
    assert inputs.npus == 4 and any("beyond rank 3 are not read" in text for text in inputs.warnings)


# -- collectives ------------------------------------------------------------------------------------------------


def test_what_native_collectives_need(folder):
    nodes = [folder.collective(7, "ALL_REDUCE", MIB)]
    folder.system(preferred_dataset_splits=None)
    refused(folder, "system.json: preferred-dataset-splits: is missing", nodes, error=ScenarioError)
    folder.system(preferred_dataset_splits=0)
    refused(folder, "preferred-dataset-splits: is 0", nodes)
    folder.system(endpoint_delay=0)
    refused(folder, "node 7", nodes)
    folder.system(all_reduce_implementation=None)
    refused(folder, "all-reduce-implementation is missing", nodes)
    folder.system(word="halvingDoubling")
    folder.network(sizes=(6,), kinds=("Switch",))
    refused(folder, "power of two", nodes, error=AlgorithmError)


@pytest.mark.parametrize("word", ["halvingDoubling", "doubleBinaryTree"])
def test_a_power_of_two_is_not_needed_when_corrected(folder, word):
    folder.network(sizes=(6,), kinds=("Switch",))
    folder.system(word=word)
    nodes = [folder.collective(0, "ALL_REDUCE", MIB)]
    refused(folder, "work.0.et: node 0", nodes)
    assert folder.run(corrected=True).outcome.status == "done"


def test_chunks_of_nothing_are_refused(folder):
    folder.system(preferred_dataset_splits=4)
    refused(folder, "node 0", [folder.collective(0, "ALL_GATHER", 3)])
    assert folder.run(corrected=True).outcome.status == "done"
    assert folder.run([folder.collective(0, "ALL_REDUCE", 3)]).outcome.status == "done"


def test_the_optimization_is_needed_on_several_dimensions(folder):
    folder.network(kinds=("Ring", "Ring"), sizes=(4, 2))
    folder.system(dims=2, collective_optimization=None)
    refused(folder, "collective-optimization is missing", [folder.collective(0, "ALL_REDUCE", MIB)])
    assert folder.run([folder.collective(0, "ALL_GATHER", MIB)]).outcome.status == "done"


def test_more_than_four_dimensions_are_refused(folder):
    folder.network(kinds=("Ring",) * 5, sizes=(2,) * 5)
    folder.system(dims=5)
    refused(folder, "node 0: a collective over 5 dimensions", [folder.collective(0, "ALL_REDUCE", MIB)])
    assert folder.run(corrected=True).outcome.status == "done"


def test_a_ring_of_two_aborts_in_the_aware_backend_only(folder):
    folder.network(sizes=(2,))
    nodes = [folder.collective(0, "ALL_REDUCE", MIB)]
    refused(folder, "network.yml: ASTRA-sim's congestion_aware backend aborts", nodes, backend=AWARE)
    assert folder.run().outcome.status == "done"
    assert folder.run(backend=AWARE, corrected=True).outcome.status == "done"


def test_several_dimensions_in_the_aware_backend_are_unofficial(folder):
    folder.network(kinds=("Ring", "Ring"), sizes=(2, 4))
    folder.system(dims=2)
    result = folder.run([folder.collective(0, "ALL_REDUCE", MIB)], backend=AWARE)
    assert result.outcome.status == "done"
    assert any(text.startswith("quirk unofficial-backend") for text in result.warnings)


def test_groups_run_beside_each_other_at_ten_nanoseconds(folder):
    (folder.path / "groups.json").write_text('{"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}')
    halves = [[folder.collective(0, "ALL_GATHER", MIB, group=g)] for g in ("1",) * 4 + ("2",) * 4]
    results = []
    for delay in (10, 1000):
        folder.system(endpoint_delay=delay)
        results.append(folder.run(*halves, groups=folder.path / "groups.json"))
    assert results[0].finish_ns == results[1].finish_ns
    refused(folder, 'group "2" is not defined', *halves, groups=_groups(folder, '{"1": [0, 1, 2, 3]}'))


def _groups(folder, text):
    path = folder.path / "other.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"0": [0]}', "is not a group id"),
        ('{"dp": [0]}', "is not a group id"),
        ('{"1": [0, 9]}', "rank 9 is not one of 8"),
        ('{"1": [0, 0]}', "rank 0 is listed twice"),
        ('{"1": []}', "without ranks"),
        ("[1]", "not an object of groups"),
    ],
)
def test_bad_groups_are_refused(folder, text, said):
    folder.workload([folder.compute(0, micros=1)])
    with pytest.raises(TraceError, match=said):
        folder.inputs(groups=_groups(folder, text))


# -- injected algorithms ----------------------------------------------------------------------------------------


def exchange(folder, size):
    """An algorithm of two ranks: each sends the other a message."""
    return [[folder.send(0, 1 - r, size), folder.recv(1, 1 - r, size)] for r in range(2)]


def test_algorithms_of_nodes_precede_those_of_collectives_and_native_ones(folder):
    folder.network(sizes=(2,), kinds=("Switch",), bandwidth=float(10**9 / 2**30), latency=0.0)
    for name, size in (("one", 1000), ("two", 2000)):
        folder.workload(*exchange(folder, size), name=name)
    (folder.path / "nodes.yml").write_text('4: "two"\n5: "two"\n')
    nodes = [folder.collective(3, "ALL_REDUCE", 64), folder.collective(4, "ALL_REDUCE", 64, (3,))]
    folder.system(all_reduce_implementation_custom=["one"], per_node_custom_implementation="nodes.yml")
    result = folder.run(nodes)
    assert set(result.finish_ns) == {3000}
    assert any("5: no collective of the workload is a node 5" in text for text in result.warnings)
    folder.system(all_reduce_implementation_custom=["one"])
    assert set(folder.run(nodes).finish_ns) == {2000}
    folder.system(all_gather_implementation_custom=["one"])
    assert set(folder.run(nodes).finish_ns) != {2000}


def test_a_group_takes_its_files_by_sorted_position(folder):
    folder.network(sizes=(4,), bandwidth=float(10**9 / 2**30), latency=0.0)
    first = [folder.send(0, 1, 1000), folder.recv(1, 1, 3000)]
    second = [folder.send(0, 0, 3000), folder.recv(1, 0, 1000)]
    folder.workload(first, second, name="pair")
    folder.system(all_reduce_implementation_custom=["pair"])
    calls = [[folder.collective(0, "ALL_REDUCE", 64, group="1")], *[[folder.compute(0, micros=1)]] * 2]
    calls.append(calls[0])
    in_order = folder.run(*calls, groups=_groups(folder, '{"1": [0, 3]}'))
    assert in_order.finish_ns == (3000, 1000, 1000, 3000)
    with pytest.raises(AlgorithmError, match="is its own rank"):
        folder.run(groups=_groups(folder, '{"1": [3, 0]}'))
    assert folder.run(groups=_groups(folder, '{"1": [3, 0]}'), corrected=True).outcome.status == "done"


def test_injected_files_are_held_to_what_astra_sim_can_run(folder):
    folder.network(sizes=(2,), kinds=("Switch",))
    call = [folder.collective(0, "ALL_REDUCE", 64)]
    folder.system(all_reduce_implementation_custom=["none"])
    refused(folder, "2 files are missing: none.0.et, none.1.et", call, error=TraceError)
    cases = {
        "empty": ([folder.send(0, 1, 0)], [folder.recv(0, 0, 0)], "node 0: sends no bytes"),
        "memory": (
            [(5, NodeType.MEM_LOAD, (), {"tensor_size": 1})],
            [folder.compute(0)],
            "node 5: is not SEND, RECV or COMP",
        ),
        "nested": ([folder.collective(2, "ALL_REDUCE", 8)], [folder.compute(0)], "node 2: is not SEND"),
    }
    for name, (first, second, said) in cases.items():
        folder.workload(first, second, name=name)
        folder.system(all_reduce_implementation_custom=[name])
        refused(folder, said, call, error=AlgorithmError)


def injected(folder, kind, npus, size, builder, collective, **options):
    """Inject an algorithm of a builder into one collective of the same size."""
    folder.network(kinds=(kind,), sizes=(npus,))
    algorithm = build(builder, collective, npus, **options)
    write_prefix(folder.path / "alg", algorithm_traces(algorithm, size=size))
    folder.system(**{f"{collective}_implementation_custom": ["alg"]})
    return [folder.collective(0, collective.upper(), size)]


@pytest.mark.parametrize(
    ("kind", "npus", "mib", "builder", "collective", "options", "ns"),
    [  # As ASTRA-sim's congestion-aware backend printed them.
        ("Ring", 16, 1, "double_binary_tree", "all_reduce", {"chunks": 4}, 138_058),
        ("FullyConnected", 16, 1, "double_binary_tree", "all_reduce", {"chunks": 4}, 43_062),
        ("FullyConnected", 16, 16, "double_binary_tree", "all_reduce", {"chunks": 8}, 453_220),
        ("Ring", 8, 1, "direct", "all_reduce", {}, 50_324),
        ("Ring", 16, 1, "direct", "all_to_all", {"window": 4}, 66_440),
    ],
)
def test_nodes_ready_together_are_issued_in_the_order_of_a_hash_set(
    folder, kind, npus, mib, builder, collective, options, ns
):
    call = injected(folder, kind, npus, mib << 20, builder, collective, **options)
    result = folder.run(call, backend=AWARE)
    assert max(result.finish_ns) == ns
    assert any(text.startswith("quirk injected-order") for text in result.warnings)
    corrected = folder.run(backend=AWARE, corrected=True)
    assert not any("injected-order" in text for text in corrected.warnings)


def test_a_file_may_list_children_before_their_parents(folder):
    # The feeder knows a node when it reads it, or a child of it: 9, its parents 1 and 3 as their set has them, then 2.
    folder.network(sizes=(2,), kinds=("Switch",))
    sends = [folder.send(node, 1, 1000 * node, tag=node) for node in (1, 2, 3)]
    folder.workload(
        [folder.compute(9, (3, 1)), *sends], [folder.recv(n, 0, 1000 * n, tag=n) for n in (1, 2, 3)], name="late"
    )
    folder.system(all_reduce_implementation_custom=["late"])
    result = folder.run([folder.collective(0, "ALL_REDUCE", 64)], backend=AWARE, level="messages")
    message = result.records.message
    assert message["bytes"][np.argsort(message["delivered"], kind="stable")].tolist() == [1000, 3000, 2000]


def test_sets_may_be_compressed(folder):
    expected = folder.run([folder.collective(0, "ALL_REDUCE", 64)]).finish_ns
    for path in folder.path.glob("work.*.et"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert folder.run().finish_ns == expected


def test_attributes_of_ours_are_not_read(folder):
    folder.network(sizes=(2,), kinds=("Switch",))
    timed = [[folder.compute(0, micros=1, duration_ps=5_000_000)], [folder.compute(0, micros=1, slot_kind=0)]]
    result = folder.run(*timed)
    assert set(result.finish_ns) == {1000}
    assert any(text.startswith("quirk own-attributes") and "duration_ps" in text for text in result.warnings)
    assert folder.run(corrected=True).finish_ns[0] == 5000


def test_injected_messages_and_point_to_point_share_their_tags(folder):
    folder.network(sizes=(2,), kinds=("Switch",))
    folder.workload(*exchange(folder, 64), name="swap")
    folder.system(all_reduce_implementation_custom=["swap"])
    # Rank 0's receive takes the message that the algorithm of rank 1 sends: the algorithm waits for ever.
    first = [folder.recv(0, 1, 64), folder.collective(1, "ALL_REDUCE", 64)]
    assert folder.run(first, [folder.collective(0, "ALL_REDUCE", 64)]).outcome.status == "stuck"


def test_every_simulated_collective_has_a_number(folder):
    for kind in (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.ALL_TO_ALL, CommType.REDUCE_SCATTER):
        for word in ("ring", "direct"):
            folder.system(word=word, preferred_dataset_splits=2)
            result = folder.run([folder.collective(0, kind.name, MIB)])
            assert result.outcome.status == "done" and len(result.lines()) == 8


# -- flags ------------------------------------------------------------------------------------------------------


def test_the_injection_scale_multiplies_the_endpoint_delay(folder):
    folder.system(endpoint_delay=20)
    slow = folder.run([folder.collective(0, "ALL_REDUCE", MIB)])
    folder.system(endpoint_delay=8)
    assert folder.run(injection_scale=2.6).finish_ns == slow.finish_ns  # 20.8 is cut to 20


def test_the_rendezvous_sends_a_message_back_first(folder):
    folder.network(sizes=(2,), kinds=("FullyConnected",), bandwidth=float(10**9 / 2**30), latency=100.0)
    pair = [folder.send(0, 1, 1000)], [folder.recv(0, 0, 1000)]
    assert folder.run(*pair).finish_ns == (1100, 1100)
    assert folder.run(rendezvous=True).finish_ns == (1100 + 100 + 8192,) * 2
    corrected = folder.run(rendezvous=True, corrected=True)
    assert corrected.finish_ns == (1100, 1100)
    assert any("--rendezvous-protocol: left out" in text for text in corrected.warnings)


def test_memories_serve_one_request_at_a_time(folder):
    nodes = [(0, NodeType.MEM_LOAD, (), {"tensor_size": 10**6})]
    figures = {"remote_mem_latency": 500, "remote_mem_bw": 100}
    one = 500 + 10_000
    folder.memory("PER_NPU_MEMORY_EXPANSION", **figures)
    assert set(folder.run(nodes).finish_ns) == {one}
    folder.memory("MEMORY_POOL", **figures)
    assert sorted(folder.run().finish_ns) == [one * k for k in range(1, 9)]
    folder.memory("PER_NODE_MEMORY_EXPANSION", **figures, num_nodes=2, num_npus_per_node=4)
    assert sorted(folder.run().finish_ns) == sorted([one * k for k in range(1, 5)] * 2)


def test_injected_algorithms_with_cells_are_verified_when_corrected(folder):
    right = build("ring", "all_reduce", 8)
    write_prefix(folder.path / "right", algorithm_traces(right))
    write_prefix(folder.path / "wrong", algorithm_traces(build("ring", "all_gather", 8)))
    call = [folder.collective(0, "ALL_REDUCE", MIB)]
    folder.system(all_reduce_implementation_custom=["right"])
    fast = folder.run(call, corrected=True)
    folder.workload([folder.collective(0, "ALL_REDUCE", 4 * MIB)])
    assert fast.outcome.status == "done" and max(folder.run(corrected=True).finish_ns) > 2 * max(fast.finish_ns)
    refused(folder, "lacks comm_size", call)
    folder.system(all_reduce_implementation_custom=["wrong"])
    refused(folder, "made for all_gather", call, corrected=True, error=AlgorithmError)
    write_prefix(folder.path / "mute", build("ring", "all_gather", 8).traces)
    folder.system(all_reduce_implementation_custom=["mute"])
    refused(folder, "is no all_reduce", call, corrected=True, error=AlgorithmError)
