"""Where switches compute, what is synthesized is never slower than the builders in the network."""

from __future__ import annotations

import pytest

import astrasim_py as ap
from astrasim_py.builders.candidates import candidates_in_network
from astrasim_py.builders.registry import build
from astrasim_py.builders.switch_trees import switches_above
from astrasim_py.engine.choose import better_in_network
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.verification.verifier import verify

SIZE = 2**20


def network(**keys):
    return ap.build_topology(**{"shape": "switch", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns", **keys})


STAR = network(switches={"capable": "all"})
TREE = ap.build_topology(
    shape="leaf_spine", leaves=2, hosts_per_leaf=2, spines=1, bandwidth="50 GB/s", latency="500 ns",
    switches={"capable": "all", "slots": 16},
)  # fmt: skip


def alone(algorithm, topology) -> int:
    return simulate(ap.collective(algorithm.collective, SIZE, topology, algorithm=algorithm)).makespan


@pytest.mark.parametrize("topology", [STAR, TREE], ids=["star", "tree"])
def test_no_candidate_is_faster_than_the_one_that_is_taken(topology) -> None:
    machine = Problem(topology=topology, jobs=(), network=NetworkModel())
    ring = build("ring", "all_reduce", 4).with_verdict(True)
    taken, time = better_in_network(simulate, machine, ring, SIZE, (0, 1, 2, 3))
    assert time == alone(taken, topology) < alone(ring, topology)
    found = list(candidates_in_network(topology, (0, 1, 2, 3), "all_reduce", None, SIZE))
    assert {each.name.partition("(")[0] for each in found} >= {"switch_tree"}
    assert all(verify(each).passes for each in found[::5])
    assert all(time <= alone(each, topology) for each in found[::3])
    slots = topology.computing.slots
    assert slots is None or all(each.slots_of(k) <= slots for each in found for k in range(len(each.actors)))


def test_without_switches_that_compute_nothing_is_better() -> None:
    plain = network()
    machine = Problem(topology=plain, jobs=(), network=NetworkModel())
    assert better_in_network(simulate, machine, build("ring", "all_reduce", 4), SIZE, (0, 1, 2, 3)) is None


def test_a_library_takes_the_switch_for_any_like_group_where_it_is_faster() -> None:
    keys = {"leaves": 2, "hosts_per_leaf": 8, "spines": 1, "bandwidth": "50 GB/s", "latency": "500 ns"}
    able = ap.build_topology(shape="leaf_spine", **keys, switches={"capable": "all"})
    plain = ap.build_topology(shape="leaf_spine", **keys)
    for npus in (range(8), range(8, 16)):
        taken = simulate(ap.collective("all_reduce", 2**26, able, algorithm="nccl", npus=list(npus)))
        ring = simulate(ap.collective("all_reduce", 2**26, plain, algorithm="nccl", npus=list(npus)))
        assert taken.makespan < 0.8 * ring.makespan


@pytest.mark.parametrize("size", [2**13, 2**18, 2**22, 2**26])
@pytest.mark.parametrize("n", [4, 8, 16])
def test_by_default_pieces_suit_the_size(n, size) -> None:
    topology = network(npus=n, bandwidth="370 GB/s", switches={"capable": "all"})
    took = {
        name: simulate(ap.collective("all_reduce", size, topology, algorithm=name)).makespan
        for name in ("ring", "nvls", "switch_tree")
    }
    assert took["switch_tree"] < took["nvls"] < took["ring"]
    # Few bytes cost at most twice what one piece does, many nearly as little as S (1 + 1/n).
    one = simulate(ap.collective("all_reduce", size, topology, algorithm=on_star(n, topology))).makespan
    assert took["nvls"] <= 2 * one
    if size == 2**26:
        assert took["nvls"] < 1.2 * size * (n + 1) / n / 0.37


def on_star(n, topology):
    own = switches_above(topology, tuple(range(n)), "nvls", "all_reduce", {})
    return build("nvls", "all_reduce", n, **own).with_verdict(True)


def test_a_scenario_takes_it_and_a_case_for_switches_holds(tmp_path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\n"
        "topologies:\n"
        "  plain: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}\n"
        "  able: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns, switches: {capable: all}}\n"
        "workload: [{all_reduce: {size: 1 MiB}}]\n"
        "algorithms: {all_reduce: $how}\n"
        "sweep:\n"
        "  topology: [plain, able]\n"
        "  how:\n"
        "    made: {synthesize: {rounds: 2}}\n"
        "    chosen: [{when: {switches: true}, builder: nvls, chunks: 8}, {builder: ring}]\n"
        "    nodes:\n"
        "      - when: {switches: true}\n"
        "        builder: hierarchical\n"
        "        dims: [2, 2]\n"
        "        algorithms: [nvls, ring]\n"
        "      - {builder: ring}\n"
    )
    times = {}
    for point in expand(load_scenario(tmp_path / "s.yaml")):
        prepared = prepare(point)
        plan = plan_for(prepared.problem)
        records, facts = simulate(plan), prepared.notes_with(plan).synthesized
        key = tuple(point.values.values())
        times[key] = records.makespan
        if key == ("able", "made"):
            assert facts[0]["policy"] == "in the network: switch_tree"
            assert facts[0]["time_ns"] * 1000 == records.makespan
            assert facts[0]["bound"] == "switches"
    assert times["able", "made"] < times["plain", "made"]
    assert times["able", "chosen"] < times["plain", "chosen"]
    assert times["able", "nodes"] != times["plain", "nodes"]
