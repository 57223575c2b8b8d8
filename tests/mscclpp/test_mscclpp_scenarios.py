"""Plans in scenarios: what is said of them, and of sizes that they are called with."""

from __future__ import annotations

import json

import pytest

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import ScenarioError
from astrasim_py.mscclpp.from_algorithm import plan_document
from astrasim_py.mscclpp.reader import plan_of
from astrasim_py.mscclpp.to_traces import MAX_ITERATIONS, algorithm_of, doubts_of_size, iterations_for
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.verification.verifier import verify

SCENARIO = (
    "topologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
    "workload: [{all_gather: {size: 1 MiB}}]\nalgorithms: {all_gather: {file: plan.json}}\n"
)


@pytest.fixture
def warnings(tmp_path):
    def of(document, size=2**20):
        (tmp_path / "plan.json").write_text(json.dumps(document))
        (tmp_path / "s.yaml").write_text(SCENARIO)
        algorithms = prepare(expand(load_scenario(tmp_path / "s.yaml"))[0]).problem.jobs[0].algorithms
        algorithms.select("all_gather", size, 4, "world")
        return algorithms.notes.warnings

    return of


def test_plans_of_the_same_nodes_have_verdicts_of_their_own(warnings):
    """With one half of scratch, packets of the next call race with those of this one, and the nodes are the same."""
    right = plan_document(build("ring", "all_gather", 4), protocol="LL")
    wrong = {**right, "use_double_scratch_buffer": False}
    assert algorithm_of(plan_of(right)).digest() == algorithm_of(plan_of(wrong)).digest()
    assert not warnings(right)
    (warning,) = warnings(wrong)
    assert "race: packets of scratch chunk" in warning
    assert not warnings(right)


@pytest.mark.parametrize(("size", "refused"), [(64, False), (96, True), (1000, True), (2**20, False)])
def test_says_which_sizes_executors_refuse(warnings, size, refused):
    said = warnings(plan_document(build("direct", "all_gather", 4)), size)
    assert [("executors refuse" in warning) for warning in said] == [True] * refused


def pipelined(unit):
    """One rank copies a chunk."""
    copy = {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 1}]}
    copy["dst_buff"] = [{"type": "o", "index": 0, "size": 1}]
    loop = {"name": "pipeline", "iter_context": {"unit_size": unit, "num_chunks": 1}, "ops": [copy]}
    gpu = {
        "id": 0,
        "input_chunks": 1,
        "output_chunks": 1,
        "scratch_chunks": 0,
        "threadblocks": [{"id": 0, "ops": [loop]}],
    }
    names = {"name": "copy", "collective": "allreduce", "protocol": "Simple", "inplace": False}
    return plan_of({**names, "gpus": [gpu]})


def test_every_call_has_the_iterations_of_its_size(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(pipelined(4096).document))
    (tmp_path / "s.yaml").write_text(
        SCENARIO.replace("all_gather: {file", "all_reduce: {protocol: LL, file").replace("npus: 4", "npus: 2")
    )
    algorithms = prepare(expand(load_scenario(tmp_path / "s.yaml"))[0]).problem.jobs[0].algorithms
    for iterations in (1, 5, 2):
        algorithm = algorithms.select("all_reduce", iterations * 4096, 1, "one")
        assert (algorithm.traces[0].column("comp_op") > 0).sum() == iterations
        assert algorithm.protocol == "LL"
    assert not algorithms.notes.warnings


def test_says_when_iterations_are_too_many():
    plan = pipelined(16)
    for iterations, doubts in ((MAX_ITERATIONS, 0), (MAX_ITERATIONS + 1, 1)):
        assert iterations_for(plan, iterations * 16) == MAX_ITERATIONS
        assert len(doubts_of_size(plan, iterations * 16)) == doubts


def multimem(ranks):
    """Rank 0 sums input 0 of all ranks into scratch by a switch, and then all gather their inputs."""
    everyone = list(range(ranks))

    def gpu(rank):
        peers = [peer for peer in everyone if peer != rank]
        channels = list(range(ranks - 1))

        def sync(name):
            return {"name": name, "channel_ids": channels, "channel_type": "memory"}

        nop, own = {"name": "nop"}, {"type": "i", "index": 0, "size": 1}
        here, there = ({"switch_channel_id": position, "index": 0, "size": 1} for position in (0, 1))
        total = {"name": "glres", "src_buff": [here], "dst_buff": [there], "channel_type": "switch"}
        targets = [{"buffer_id": position, "index": rank, "size": 1} for position in channels]
        put = {"name": "put", "src_buff": [own] * len(peers), "dst_buff": targets, "channel_type": "memory"}
        copy = {"name": "copy", "src_buff": [own], "dst_buff": [{"type": "o", "index": rank, "size": 1}]}
        meet = [sync("signal"), sync("wait"), nop]
        ops = [*meet, *([total] if rank == 0 else []), nop, *meet, copy, put, nop, *meet]
        groups = [{"size": ranks, "ranks": everyone}]
        switches = [{"channel_type": "switch", "buffer_type": buffer, "rank_groups": groups} for buffer in "is"]
        block = {
            "id": 0,
            "ops": ops,
            "channels": [
                {"channel_type": "memory", "channel_ids": channels},
                {"channel_type": "switch", "channel_ids": [0, 1]},
            ],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": channels}],
        }
        return {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": ranks,
            "scratch_chunks": 1,
            "threadblocks": [block],
            "channels": [{"channel_type": "memory", "connected_to": peers}, *switches],
            "remote_buffers": [{"rank": p, "type": "o", "access_channel_types": ["memory"]} for p in peers],
        }

    names = {"name": "kept", "collective": "allgather", "protocol": "Simple", "inplace": False}
    return plan_of({**names, "gpus": [gpu(rank) for rank in everyone]})


def test_sums_of_switches_leave_their_sources():
    assert verify(algorithm_of(multimem(3))).correct


@pytest.mark.parametrize("key", ["made_for: 1 MiB", "root: 1", "contract: none.yaml", "actors: {s0: leaf0}"])
def test_refuses_what_is_for_other_files(tmp_path, key):
    (tmp_path / "plan.json").write_text(json.dumps(plan_document(build("ring", "all_gather", 4))))
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("plan.json", f"plan.json, {key}"))
    algorithms = prepare(expand(load_scenario(tmp_path / "s.yaml"))[0]).problem.jobs[0].algorithms
    with pytest.raises(ScenarioError, match=rf"all_gather\.{key.split(':')[0]}: is not for execution plans; drop it"):
        algorithms.select("all_gather", 2**20, 4, "world")
