"""The choice of a library: its candidates do what they promise, and the fastest of them alone is taken."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.collectives.collective import COLLECTIVES, promise_of
from astrasim_py.core.choices import SWITCH
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.units import transfer_ps
from astrasim_py.dialects.library.lower_choice import ways_of_nccl
from astrasim_py.engine.simulation import plan_for
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.grid import nodes_of
from astrasim_py.topology.hardware import profile
from astrasim_py.topology.profile import LibraryProfile
from astrasim_py.verification.verifier import verify

NETWORKS = {
    1: {"shape": "switch", "npus": 8, "bandwidth": "450 GB/s", "latency": "300 ns"},
    3: {"preset": "dgx_h100", "nodes": 3},
    8: {"preset": "dgx_h100", "nodes": 8},
}


def chosen(problem) -> tuple[Algorithm, str]:
    """The algorithm of the only call, and what the tables say of it."""
    instance = plan_for(problem).instances[0]
    return instance.algorithm, instance.algorithm_name


@pytest.mark.parametrize("seed", range(12))
def test_candidates_for_any_group_are_verified_and_the_fastest_is_taken(seed):
    rng = random.Random(seed)
    topology = ap.build_topology(**NETWORKS[rng.choice([1, 3, 8])])
    npus = rng.sample(range(topology.npus), rng.randint(2, min(topology.npus, 20)))
    collective, size = rng.choice([*COLLECTIVES]), rng.choice([0, 1, 1000, 2**16, 2**20 + 4])
    more = rng.choice([{}, {"profile": "dgx_h100"}, {"profile": "dgx_h100", "protocol": "LL"}])
    root = rng.randrange(len(npus)) if promise_of(collective).rooted else 0
    problem = ap.collective(collective, size, topology, algorithm="nccl", npus=npus, root=root, **more)
    taken = ap.simulate(problem, engine="both").makespan
    machine = replace(problem, jobs=())
    times = {}
    for algorithm, protocol in ways_of_nccl(machine, collective, tuple(npus), size, root):
        name = f"{algorithm.name} {protocol}".strip()
        if protocol != SWITCH:
            verdict = verify(algorithm)
            assert verdict.ok and verdict.race_free and verdict.order_consistent, (name, verdict.problems)
            alone = ap.collective(
                collective, size, topology, algorithm=algorithm, npus=npus, root=root,
                **more | ({"protocol": protocol} if more else {}),
            )  # fmt: skip
            times[name] = ap.simulate(alone).makespan
    name = chosen(problem)[1]
    assert taken <= min(times.values())
    if SWITCH not in name:
        assert taken == times[name] == min(times.values())


@pytest.mark.parametrize("named", [None, "dgx_h100"])
def test_large_calls_on_several_nodes_use_all_nics(named):
    topology = ap.build_topology(preset="dgx_h100", nodes=4)
    more = {"profile": named} if named else {}
    size = 2**28
    time = {
        name: ap.simulate(ap.collective("all_gather", size, topology, algorithm=name, **more)).makespan
        for name in ("ring", "nccl")
    }
    assert 6 < time["ring"] / time["nccl"] < 8.1


def test_small_calls_take_trees_and_large_ones_rings_or_the_switch():
    topology = ap.build_topology(preset="dgx_h100", nodes=8)

    def name(size: str, npus: range, **more) -> str:
        return chosen(
            ap.collective("all_reduce", size, topology, algorithm="nccl", npus=npus, profile="dgx_h100", **more)
        )[1]

    assert name("1 KiB", range(64)).startswith("rail_tree")
    assert name("256 MiB", range(64)) == "rail_ring_x8 Simple"
    assert name("1 KiB", range(8)) == "ring LL"
    assert name("256 MiB", range(8)) == "switch"
    assert name("256 MiB", range(8), switch_reduction=False) == "ring Simple"
    assert name("256 MiB", range(8), protocol="LL") == "ring LL"


def test_large_groups_on_one_switch_take_trees_as_those_of_several_nodes_do():
    names, times = {}, {}
    for nodes in (1, 2):
        rack = ap.build_topology(preset="gb200_nvl72", nodes=nodes)
        npus = [72 * (rank % nodes) + rank // nodes for rank in range(18)]
        problem = ap.collective(
            "all_reduce", "256 MiB", rack, algorithm="nccl", npus=sorted(npus), profile="gb200_nvl72"
        )
        names[nodes], times[nodes] = chosen(problem)[1], ap.simulate(problem).makespan
        found = ways_of_nccl(replace(problem, jobs=()), "all_reduce", tuple(sorted(npus)), 2**28, 0)
        assert any(algorithm.name.startswith("rail_tree") for algorithm, _ in found)
    assert times[1] <= times[2], (names, times)
    small = tuple(range(8))
    found = ways_of_nccl(replace(problem, jobs=()), "all_reduce", small, 2**28, 0)
    assert not any(algorithm.name.startswith("rail_tree") for algorithm, _ in found)


def test_groups_of_like_shape_share_a_choice():
    topology = ap.build_topology(preset="dgx_h100", nodes=4)
    rails = [tuple(range(first, 32, 8)) for first in range(8)]
    taken = {
        chosen(ap.collective("all_reduce", 2**20, topology, algorithm="nccl", npus=rail, profile="dgx_h100"))[0]
        for rail in rails
    }
    assert len(taken) == 1
    assert nodes_of(topology, (9, 0, 8, 3)) == [[1, 3], [2, 0]]


@pytest.mark.parametrize("name", ["rccl", "mscclpp"])
def test_libraries_without_data_are_not_offered(name):
    with pytest.raises(AstraError, match="is not a builder"):
        ap.simulate(ap.collective("all_reduce", 1024, ap.build_topology(preset="dgx_h100"), algorithm=name))


@pytest.mark.parametrize("protocol,share", [("Simple", 1), ("LL", 2)])
def test_messages_between_nodes_pay_the_network_of_the_profile(protocol, share):
    topology = ap.build_topology(preset="dgx_h100", nodes=2)
    costs = profile("dgx_h100")
    size = 48 * 10**7
    problem = ap.collective("broadcast", size, topology, npus=[0, 8], profile="dgx_h100", protocol=protocol)
    # 48 of the 50 GB/s of a NIC; LL sends a flag with every 4 bytes.
    time = costs.protocols[protocol].launch + costs.network.steps[protocol] + share * 10**10
    time += transfer_ps(size, 2 * costs.copy_rate)
    assert ap.simulate(problem, engine="both").makespan == time


TABLE = (
    {"collective": "all_reduce", "size": "<= 64 KiB", "ranks": ">= 16", "algorithm": "tree", "protocol": "LL"},
    {"size": "<= 2 MiB", "protocol": "LL"},
    {"collective": "all_reduce", "ranks": "== 8", "algorithm": "switch"},
    {"collective": "all_reduce", "algorithm": "ring"},
)


@pytest.mark.parametrize(
    "kind,size,npus,taken",
    [
        ("all_reduce", "1 KiB", 16, "rail_tree_x1 LL"),
        ("all_reduce", "2 MiB", 16, "rail_ring_x16 LL"),
        ("all_reduce", "4 MiB", 8, "switch"),
        ("all_reduce", "16 MiB", 16, "rail_ring_x8 Simple"),
        ("all_gather", "2 MiB", 8, "ring LL"),
        ("all_gather", "64 MiB", 8, "ring Simple"),
    ],
)
def test_the_table_of_a_profile_chooses_before_the_fastest(kind, size, npus, taken):
    topology = ap.build_topology(preset="dgx_h100", nodes=2)
    table = LibraryProfile.model_validate(dict(profile("dgx_h100")) | {"choose": TABLE})
    problem = ap.collective(kind, size, topology, algorithm="nccl", npus=range(npus), profile=table)
    assert chosen(problem)[1] == taken
    by_hand = ap.collective("all_gather", size, topology, npus=range(8), profile=table, protocol="Simple")
    assert chosen(by_hand)[1] == "ring Simple"


def test_a_table_cannot_choose_what_there_is_not():
    table = LibraryProfile.model_validate(dict(profile("dgx_h100")) | {"choose": [{"algorithm": "tree"}]})
    problem = ap.collective("all_gather", 1024, ap.build_topology(preset="dgx_h100"), algorithm="nccl", profile=table)
    with pytest.raises(ScenarioError, match="chooses tree for all_gather"):
        ap.simulate(problem)
    for row, said in (({"algorithm": "switch", "protocol": "LL"}, "no protocols"), ({"protocol": "LL128"}, "no LL128")):
        with pytest.raises(ScenarioError, match=said):
            LibraryProfile.model_validate(dict(profile("dgx_h100")) | {"choose": [row]})


def test_a_choice_keeps_no_algorithm():
    algorithm = build("ring", "all_reduce", 4)
    topology = ap.build_topology(preset="dgx_h100")
    ap.simulate(ap.collective("all_reduce", 4096, topology, algorithm=algorithm, npus=range(4), profile="dgx_h100"))
    kept = weakref.ref(algorithm)
    del algorithm
    gc.collect()
    assert kept() is None
