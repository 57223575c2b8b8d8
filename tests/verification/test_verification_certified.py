"""Bounds of calls by cuts: those of certificates, and below every simulated time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from worlds.topologies import topology as random_topology

import astrasim_py as ap
from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.cli.topologies import topology_of
from astrasim_py.collectives.collective import promise_of
from astrasim_py.cuts import max_flow
from astrasim_py.cuts.certificate import certificate
from astrasim_py.engine.simulation import plan_for
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology.model import Topology
from astrasim_py.verification import certified
from astrasim_py.verification.bounds import CallBounds, Capacities, quick_bounds
from astrasim_py.workload.build import WorkloadBuilder
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "scatter", "gather")
PAIRS = [(name, kind) for name in ("ring", "direct") for kind in ALGORITHMS[name][0] if kind in KINDS]


def one_call(net: Topology, name: str, kind: str, size: int, npus: Sequence[int]) -> Problem:
    """A call on some NPUs that begins on all at once."""
    root = {"root": 0} if promise_of(kind).rooted else {}
    algorithm = build(name, kind, len(npus), **root).with_verdict(True)
    job = Job(
        workload=generate([Collective(type=kind, size=size, **root)], len(npus)),
        placement=tuple(npus),
        algorithms=AlgorithmTable({}, default=lambda *_: algorithm),
    )
    return Problem(topology=net, jobs=(job,))


@pytest.mark.parametrize("name", ["rail_h100_64", "fc_mi250_8p8", "random_3", "fat_2to1_64"])
def test_the_bound_of_a_run_is_that_of_its_certificate(golden, name):
    net, size = topology_of(str(golden / "synthesis" / "topologies" / f"{name}.csv")), 10**9
    npus, capacities = tuple(range(net.npus)), Capacities(net)
    for kind in ("all_gather", "all_reduce", "broadcast", "all_to_all"):
        (instance,) = plan_for(one_call(net, "direct", kind, size, npus)).instances.values
        proof = certificate(kind, size - size % net.npus if kind == "all_gather" else size, net, npus)
        quick = max(quick_bounds(kind, size, capacities, npus, 0, switches=False).values())
        assert instance.bound == max(proof.time_ps, quick)
        assert instance.bound_by == str(proof) or instance.bound > proof.time_ps


@pytest.mark.parametrize("seed", range(24))
def test_no_call_on_a_part_of_a_network_is_below_its_bound(seed):
    rng = random.Random(seed)
    net = random_topology(rng, rng.randint(3, 9))
    name, kind = rng.choice(PAIRS)
    npus = rng.sample(net.alive, rng.randint(2, len(net.alive)))
    problem = one_call(net, name, kind, rng.choice((7, 1000, 10**6)), npus)
    for model in ("cut_through", "store_and_forward", "fluid"):
        plan = plan_for(replace(problem, network=NetworkModel(model=model)))
        engine = "simpy" if model == "fluid" else "both"
        table = ap.simulate(plan, engine=engine).collective
        assert (table["bound"] <= table["end"] - table["start"]).all()


def test_no_cut_is_tighter_where_quick_bounds_are_taken_alone():
    """Up to latencies, which cuts see better."""
    alike = 0
    for seed in range(120):
        rng = random.Random(seed)
        net = random_topology(rng, rng.randint(2, 12))
        npus, bounds = range(net.npus), CallBounds(net)
        if not bounds.as_quick(npus):
            continue
        alike += 1
        size = net.npus * 10**8
        for kind in KINDS:
            proof = certificate(kind, size, net, npus)
            quick = quick_bounds(kind, size, bounds.capacities, npus, 0, switches=False)
            assert proof.time_ps <= max(quick.values()) + 3 * int(net.latency_ps.max()), (seed, kind, net.name)
    assert alike > 40


def test_cuts_in_python_are_those_of_compiled_code(monkeypatch):
    for seed in range(6):
        net = random_topology(random.Random(seed), 9)
        texts = []
        for edges in (0, 2**40):
            monkeypatch.setattr(max_flow, "_COMPILED", edges)
            texts.append([str(certificate(kind, 10**9, net, net.alive)) for kind in KINDS])
        assert texts[0] == texts[1]


def test_an_all_reduce_on_a_large_machine_is_bounded_by_its_nodes(monkeypatch):
    net = ap.build_topology(preset="dgx_h100", nodes=8)
    time, proof = CallBounds(net).of("all_reduce", 10**9, range(64), switches=False)
    monkeypatch.setattr(certified, "_MOST_LINKS", 0)
    assert CallBounds(net).of("all_reduce", 10**9, range(64), switches=False) == (time, proof.removesuffix(", exact"))
    assert proof.startswith("partition: 8 parts (8 NPUs each)")
    assert not CallBounds(net).of("all_gather", 10**9, range(64), switches=False)[1].startswith("cut: ")


def test_a_cut_that_is_named_of_an_alike_group_says_so():
    net = ap.build_topology(preset="dgx_h100", nodes=6)
    algorithm = build("ring", "broadcast", 16, root=0).with_verdict(True)
    work = WorkloadBuilder(48, groups={"pairs": [range(i, i + 16) for i in (0, 16, 32)]})
    problem = ap.problem(work.collective("broadcast", 10**6, root=0, group="pairs"), net, algorithm=algorithm)
    calls = plan_for(problem).instances.values
    assert len({call.bound for call in calls}) == 1
    assert [call.bound_by.endswith("so named of an alike group") for call in calls] == [False, True, True]
    assert calls[0].bound_by.startswith("cut: NPUs 0–7 to NPUs 8–15, ")
