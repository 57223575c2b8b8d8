"""What a scenario says and nothing in it uses is told: by runs, in results, by check, and as an error if asked for."""

from __future__ import annotations

import json

import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.optimizer.optimize import optimize

RING = "topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}\n"
GRID = "topology: {shape: torus, dims: [2, 2], bandwidth: 50 GB/s, latency: 500 ns}\n"
SWITCH = "topology: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns, switches: {capable: all}}\n"
REDUCE = "workload: [{all_reduce: {size: 64 KiB}}]\n"
WORK = "workload: [{compute: {time: 1 us}}, {all_reduce: {size: 64 KiB}}]\n"
COUNTED = "workload: [{compute: {operations: 1 GFLOP}}]\n"
ALONE = "workload: [{compute: {time: 1 us, ranks: [0]}}]\n"
REMOTE = "workload: [{memory: {load: 1 MiB}}]\n"
NOISE, PEAK = "noise: {seed: 1, compute: {exponential: 1 us}}\n", "compute: {peak: 1 TFLOP/s}\n"
MEMORY, NIC = "memory: {kind: per_npu, bandwidth: 10 GB/s}\n", "nic: {overhead: 10 ns}\n"
GROUPED = "workload: [{all_reduce: {size: 64 KiB, group: tp}}]\n"
SMALL = 'algorithms: {all_reduce: [{builder: direct, when: {size: "< 1 KiB"}}, ring]}\n'
HIERARCHICAL = "algorithms: {all_reduce: hierarchical}\ncollectives: {chunks: 4}\n"
MSCCL = "network: {msccl: {latency: {LL: 1 us}}}\n"

NODE, REDUCTION = "topology: {preset: dgx_h100, nodes: 1}\n", "network: {profile: dgx_h100, switch_reduction: false}\n"

#: Keys of topologies, as the scenario holds them once it is read.
WITHIN = {
    name: f"topologies.topology.{key}" for name, key in (("switches", "switches"), ("a seed of routes", "routing.seed"))
}

#: Text of a scenario that uses something, the same that does not, and what is said then.
PAIRS = {
    "noise": (RING + WORK + NOISE, RING + REDUCE + NOISE, "noise: no node computes"),
    "compute": (RING + COUNTED + PEAK, RING + WORK + PEAK, "compute: no node counts operations"),
    "memory": (RING + REMOTE + MEMORY, RING + REDUCE + MEMORY, "memory: no node loads from or stores"),
    "nic": (RING + REDUCE + NIC, RING + ALONE + NIC, "nic: no message is sent"),
    "stragglers": (
        RING + ALONE + "stragglers: {compute_speed: {0: 0.5}}\n",
        RING + ALONE + "stragglers: {compute_speed: {0: 0.5, 1: 0.5}}\n",
        "stragglers.compute_speed: no node of rank 1 computes",
    ),
    "groups": (
        RING + GROUPED + "groups: {tp: [0, 1]}\n",
        RING + GROUPED + "groups: {tp: [0, 1], dp: [0, 2]}\n",
        "groups.dp: no item of the workload runs in it",
    ),
    "a case": (
        RING + SMALL + REDUCE.replace("64 KiB", "512 B"),
        RING + SMALL + REDUCE,
        "algorithms.all_reduce[0]: no call is carried out by this case",
    ),
    "switches": (
        SWITCH + REDUCE + "algorithms: {all_reduce: switch_tree}\n",
        SWITCH + REDUCE + "algorithms: {all_reduce: ring}\n",
        "switches: no algorithm lets switches compute",
    ),
    "link_busy": (
        RING + REDUCE + "network: {model: store_and_forward, link_busy: latency+bytes}\n",
        RING + REDUCE + "network: {model: analytical, link_busy: latency+bytes}\n",
        "network.link_busy: changes nothing under analytical",
    ),
    "analytical_route": (
        GRID + REDUCE + "network: {model: analytical}\nsemantics: {analytical_route: lowest_dim}\n",
        GRID + REDUCE + "semantics: {analytical_route: lowest_dim}\n",
        "semantics.analytical_route: is for the model analytical, not for cut_through",
    ),
    "msccl": (
        RING + REDUCE + "network: {msccl: true}\n",
        RING + ALONE + "network: {msccl: true}\n",
        "network.msccl: is for collectives, and none is called",
    ),
    "a protocol": (
        RING + REDUCE + MSCCL + "algorithms: {all_reduce: {builder: ring, protocol: LL}}\n",
        RING + REDUCE + MSCCL,
        "network.msccl.latency.LL: no algorithm uses LL",
    ),
    "algorithms": (
        RING + REDUCE + "algorithms: {all_reduce: direct, all_gather: direct}\n",
        RING + REDUCE + "algorithms: {all_gather: direct}\n",
        "algorithms: none of all_gather is called",
    ),
    "a library": (
        RING + REDUCE + "algorithms: nccl\n",
        RING + ALONE + "algorithms: nccl\n",
        "algorithms: no collective is called",
    ),
    "collectives": (
        GRID + REDUCE + "collectives: {chunks: 4}\n",
        GRID + ALONE + "collectives: {chunks: 4}\n",
        "collectives: none of all_reduce, reduce_scatter, all_gather, all_to_all is called",
    ),
    "chunks": (
        GRID + REDUCE + "algorithms: {all_reduce: ring}\ncollectives: {chunks: 4}\n",
        GRID + REDUCE + HIERARCHICAL,
        "collectives: chunks: not used where all_reduce by hierarchical is carried out at once",
    ),
    "chunks of another collective": (
        GRID + REDUCE + "collectives: {chunks: 4}\n",
        GRID + "workload: [{broadcast: {size: 64 KiB}}]\ncollectives: {chunks: 4}\n",
        "collectives: none of all_reduce, reduce_scatter, all_gather, all_to_all is called",
    ),
    "nodes of memory": (
        RING + REMOTE + "memory: {kind: per_node, bandwidth: 10 GB/s, npus_per_node: 2}\n",
        RING + REMOTE + "memory: {kind: pool, bandwidth: 10 GB/s, npus_per_node: 2}\n",
        "memory.npus_per_node: is for kind: per_node, not for pool",
    ),
    "a seed of routes": (
        GRID.replace("500 ns}", "500 ns, routing: {ecmp: true, seed: 2}}") + REDUCE,
        GRID.replace("500 ns}", "500 ns, routing: {seed: 2}}") + REDUCE,
        "routing.seed: without ecmp every pair has one route",
    ),
    "a reduction in switches": (
        NODE + REDUCE + "algorithms: nccl\n" + REDUCTION,
        NODE + REDUCE + "algorithms: {all_reduce: ring}\n" + REDUCTION,
        "network.switch_reduction: without nccl no switch reduces",
    ),
    "a reduction of nothing": (
        NODE + REDUCE + "algorithms: nccl\n" + REDUCTION,
        NODE + "workload: [{all_gather: {size: 64 KiB}}]\nalgorithms: nccl\n" + REDUCTION,
        "network.switch_reduction: no all_reduce is called",
    ),
    "all_reduce": (
        GRID + REDUCE + "collectives: {all_reduce: baseline}\n",
        GRID + "workload: [{all_gather: {size: 64 KiB}}]\ncollectives: {all_reduce: baseline}\n",
        "collectives.all_reduce: no all_reduce is called",
    ),
}


def warnings(tmp_path, text, *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return list(ap.run(path, out=tmp_path / "out", overrides=overrides, jobs=1, fresh=True).warnings)


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_not_used_is_said_and_what_is_used_is_not(tmp_path, capsys, name):
    used, idle, said = PAIRS[name]
    assert warnings(tmp_path, used) == []
    (line,) = warnings(tmp_path, idle)
    assert said in line and "s.yaml:" in line
    # It is in the stored result, in what check says, and an error if asked for, also of a point that is there already.
    path, out = str(tmp_path / "s.yaml"), str(tmp_path / "out")
    capsys.readouterr()
    assert main(["run", path, "--jobs", "1", "--out", out, "--strict", "--format", "json"]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and [row["status"] for row in json.loads(shown.out)] == ["failed"]
    assert main(["check", path]) == 0 and said in capsys.readouterr().out
    assert main(["check", path, "--strict"]) == 1 and said in capsys.readouterr().err


@pytest.mark.parametrize("name", PAIRS)
def test_it_changes_nothing(tmp_path, name):
    """What is called unused may be left out: the time is the same."""
    _, idle, said = PAIRS[name]
    path = tmp_path / "s.yaml"
    path.write_text(idle)
    document = ap.load_scenario(path).resolver.document.plain()
    *above, last = WITHIN.get(name, said.partition(":")[0].partition("[")[0]).split(".")
    holder = document
    for step in above:
        holder = holder[step]
    if name == "a case":
        holder[last] = holder[last][1:]
    else:
        del holder[last]
    runs = [ap.run(each, out=tmp_path / str(n), jobs=1) for n, each in enumerate((path, document))]
    times = [run.rows[0]["time_ns"] for run in runs]
    assert times[0] == times[1] or name == "stragglers"  # of which one rank computes
    assert not runs[1].warnings


def test_a_sweep_uses_what_one_of_its_points_uses(tmp_path):
    text = RING + "workload: [{all_reduce: {size: $size}}]\n" + SMALL + "sweep: {size: [512 B, 64 KiB]}\n"
    assert warnings(tmp_path, text) == []
    (line,) = warnings(tmp_path, text, "sweep.size=[2 KiB, 64 KiB]")
    assert "algorithms.all_reduce[0]: no call" in line
    models = RING + REDUCE + "network: {model: $model, link_busy: latency+bytes}\n"
    assert warnings(tmp_path, models + "sweep: {model: [cut_through, analytical]}\n") == []


def test_switches_that_compute_are_no_job_of_the_scenario(tmp_path):
    shape = "shape: switch, npus: 3, bandwidth: 50 GB/s, latency: 1 us, switches: {capable: all}"
    star = f"name: s\ntopologies: {{t: {{{shape}}}}}\n"
    text = star + "workload: [{reduce: {size: 1 KiB}}]\nalgorithms: {reduce: switch_tree}\n"
    assert warnings(tmp_path, text) == []
    jobs = "jobs: {a: {workload: [{reduce: {size: 1 KiB}}], ranks: 3, algorithms: {reduce: switch_tree}}}\n"
    assert warnings(tmp_path, star + jobs) == []


def test_groups_beside_traces_are_not_theirs(tmp_path):
    trace = ExecutionTrace.from_columns(node_id=[0], type=[7], comm_type=[0], comm_size=[4096])
    write_prefix(tmp_path / "t", [trace] * 4)
    text = RING + "workload: {trace: t}\n"
    assert warnings(tmp_path, text) == []
    (line,) = warnings(tmp_path, text + "groups: {tp: [0, 1]}\n")
    assert "groups.tp" in line and "write groups: FILE beside trace" in line


def test_keys_of_algorithms(tmp_path):
    ap.write_algorithm(tmp_path / "ring.npz", build("ring", "all_reduce", 4))
    text = RING + REDUCE + "algorithms: {all_reduce: {file: ring.npz, made_for: 1 MiB}}\n"
    (line,) = warnings(tmp_path, text)
    assert "algorithms.all_reduce.made_for: its sizes are in chunks" in line


def test_reported_input(golden, tmp_path):
    path = golden / "reports/20-new-users/chunks_ignored.yaml"
    found = ap.run(path, overrides=["collectives={chunks: 8}"], out=tmp_path, jobs=1)
    assert any("collectives: chunks: not used where all_reduce by hierarchical" in text for text in found.warnings)
    own = "algorithms={all_reduce: {builder: hierarchical, chunks: 8}}"
    assert not ap.run(path, overrides=[own], out=tmp_path, jobs=1).warnings


def test_a_remedy_holds_for_the_key_that_is_not_used(tmp_path):
    """A hierarchical algorithm has chunks of its own, and no delay of endpoints."""
    (line,) = warnings(tmp_path, GRID + REDUCE + HIERARCHICAL.replace("chunks: 4", "endpoint_delay: 1 us"))
    assert "endpoint_delay: not used" in line and "chunks" not in line


def test_the_optimizer_says_it(tmp_path):
    (tmp_path / "s.yaml").write_text(SWITCH + REDUCE + NOISE)
    result = optimize(ap.load_scenario(tmp_path / "s.yaml"), tmp_path / "out", evaluations=1)
    (line,) = result.space.warnings  # switches may be chosen
    assert "s.yaml:" in line and "noise: no node computes" in line
