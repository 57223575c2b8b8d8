"""Plans as Chakra traces: their data flow once more, both engines, and the way back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import astrasim_py as ap
from astrasim_py.mscclpp.ir import walk
from astrasim_py.mscclpp.reader import plan_of, read_plan
from astrasim_py.mscclpp.to_traces import algorithm_of, iterations_for, recorded_plan
from astrasim_py.mscclpp.verify import verify_plan
from astrasim_py.program.files import read_algorithm as read_columns
from astrasim_py.verification.bounds import may_reduce
from astrasim_py.verification.verifier import verify


@pytest.fixture(scope="module")
def plans(golden):
    """By name the plans that end."""
    paths = sorted((golden / "mscclpp" / "plans").glob("*.json"))
    read = {path.stem: read_plan(path) for path in paths}
    return {name: plan for name, plan in read.items() if verify_plan(plan).terminates}


def test_lowered_plans_are_right_where_plans_are(plans):
    for name, plan in plans.items():
        ours, lowered = verify_plan(plan), verify(algorithm_of(plan))
        assert (lowered.well_formed, lowered.terminates) == (True, True), name
        assert lowered.correct is ours.correct, name
        # Nodes of a rank are ordered by their cells, so what races in the plan does not in its traces.
        assert lowered.race_free, name


def test_traces_keep_the_plan(plans, tmp_path):
    for name, plan in plans.items():
        algorithm = algorithm_of(plan)
        assert recorded_plan(algorithm).document == plan.document, name
    for name in ("repo__allreduce", "single_node__allreduce_pkt", "multi_node__reducescatter_pkt"):
        algorithm = algorithm_of(plans[name])
        ap.write_algorithm(tmp_path / name, algorithm)
        ap.write_algorithm(tmp_path / f"{name}.npz", algorithm)
        for form in (name, f"{name}.npz"):
            again = read_columns(tmp_path / form)
            assert recorded_plan(again).document == plans[name].document
            assert verify(again).correct


def test_a_changed_trace_has_no_plan(plans):
    algorithm = algorithm_of(plans["repo__allreduce"])
    head = algorithm.traces[0]
    column = head.column("msg_chunk_cnt").copy()
    column[column == 1] = 2
    changed = head.replace(msg_chunk_cnt=column)
    other = replace(algorithm, traces=(changed, *list(algorithm.traces)[1:]))
    assert recorded_plan(other) is None


def test_pipelines_have_as_many_iterations_as_units(plans):
    plan = plans["repo__allreduce_pipeline"]
    (unit,) = {operation.unit_bytes for *_, operation in walk(plan) if operation.name == "pipeline"}
    chunks = plan.gpus[0].chunks["i"]
    for units in (1, 2, 3, 5):
        for size, expected in ((units * unit * chunks, units), (units * unit * chunks + chunks, units + 1)):
            assert iterations_for(plan, size) == expected
            algorithm = algorithm_of(plan, size)
            assert verify(algorithm).correct and verify(algorithm).race_free
            copies = int((algorithm.traces[0].column("comp_op") == 2).sum())
            assert copies == expected * 2 * chunks
    assert iterations_for(plan, None) == 1


def test_bytes_on_the_wire(plans):
    """A packet has a flag for each word; a store of n - 1 chunks of each of n ranks is the whole less one share."""
    size = 64 * 1024
    simple = algorithm_of(plans["single_node__allgather"])
    assert simple.message_bytes(0, size)[simple.traces[0].type == 5].sum() == size // 2
    packets = algorithm_of(plans["single_node__allreduce_pkt"])
    sent = packets.message_bytes(0, size)[packets.traces[0].type == 5].sum()
    # Each rank sends 7 of 8 shares raw and 7 sums, in packets of twice the bytes.
    assert sent == 2 * (2 * size * 7 // 8)


def two_ranks(first, second, **more):
    """A plan of 2 ranks with a thread block each, memory channels both ways, and access to all buffers."""
    gpus = [
        {
            "id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2,
            "threadblocks": [
                {"id": 0, "ops": ops, "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                 "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1, 2]}]}
            ],
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": [
                {"rank": 1 - rank, "type": kind, "access_channel_types": ["memory"]} for kind in "ios"
            ],
            "semaphores": [],
        }
        for rank, ops in enumerate((first, second))
    ]  # fmt: skip
    document = {"name": "two", "collective": "test", "protocol": "Simple", "inplace": False, "gpus": gpus} | more
    return plan_of(json.loads(json.dumps(document)))


NOP = {"name": "nop"}


def put(source, target, size=1):
    return {
        "name": "put", "channel_type": "memory", "src_buff": [{"type": "i", "index": source, "size": size}],
        "dst_buff": [{"buffer_id": 1, "index": target, "size": size}],
    }  # fmt: skip


def over(name):
    return {"name": name, "channel_ids": [0], "channel_type": "memory"}


def test_time_of_a_put_a_signal_and_a_wait():
    """α + b/B for the stores, and the signal arrives with them; the peer's entry takes α before."""
    first = [over("rlxwait"), NOP, put(0, 1), NOP, over("signal")]
    plan = two_ranks(first, [over("rlxsignal"), over("wait"), NOP])
    assert verify_plan(plan).race_free
    algorithm = algorithm_of(plan)
    topology = ap.build_topology(shape="ring", npus=2, bandwidth="10 GB/s", latency="1 us")
    size = 2_000_000
    for engine in ("simpy", "compiled"):
        run = ap.simulate(ap.collective("custom", size, topology, algorithm=algorithm), engine=engine)
        # The signal is sent once the stores are delivered.
        assert run.makespan == 3 * 10**6 + size // 2 * 100


def test_bounds_allow_for_multimem(plans):
    """A switch that adds takes each rank's bytes once, fewer than all_reduces between ranks need."""
    topology = ap.build_topology(preset="dgx_h100")
    for name, plan in plans.items():
        multimem = any(operation.channel_type == "switch" for *_, operation in walk(plan))
        assert may_reduce(topology, [algorithm_of(plan)]) is multimem, name


@pytest.mark.parametrize(("released", "semaphores"), [([0, 0], 1), ([0, 1], 2)])
def test_a_release_of_several_semaphores_counts_in_each(released, semaphores):
    """Two blocks release all; two others acquire each as often."""
    acquired = [{"name": "sem_acquire", "semaphore_ids": [k]} for k in released]
    blocks = [[{"name": "sem_release", "semaphore_ids": released}]] * 2 + [acquired] * 2
    gpu = {
        "id": 0,
        "input_chunks": 1,
        "output_chunks": 1,
        "scratch_chunks": 0,
        "threadblocks": [{"id": number, "ops": ops} for number, ops in enumerate(blocks)],
        "semaphores": [{"init_value": 0}] * semaphores,
    }
    plan = plan_of({"name": "s", "collective": "test", "protocol": "Simple", "inplace": False, "gpus": [gpu]})
    assert verify_plan(plan).passes
    program = algorithm_of(plan).program
    counted, awaited = (program.column(name).tolist() for name in ("counter", "count_of"))
    assert {counted.count(counter) for counter in range(semaphores)} == {2 * len(released) // semaphores}
    assert set(range(semaphores)) <= {*awaited}
