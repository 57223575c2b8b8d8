"""Behind switches: what is claimed is measured though transfers wait in switches, and no known algorithm is faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from worlds.networks import COSTS, synthesize

from astrasim_py.builders.registry import build as algorithm
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import NEVER
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.search.routed import RoutePolicy, Side
from astrasim_py.synthesis.search.tree_packing_search import Rows
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import build
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

NIGHTLY = settings.get_current_profile_name() == "nightly"
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
NETWORKS = {
    "slow uplinks": {"shape": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 1, "oversubscription": "4:1"},
    "fast uplinks": {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 1, "oversubscription": "2:1"},
    "two spines": {"shape": "leaf_spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 2},
    "switch": {"shape": "switch", "npus": 8},
}
KNOWN = (
    ("ring", {}),
    ("ring", {"bidirectional": True}),
    ("direct", {}),
    ("halving_doubling", {}),
    ("double_binary_tree", {}),
    ("binomial_tree", {}),
)


def measured(algorithm, kind: str, topology, size: int, root: int, cost: CostModel) -> int:
    table = AlgorithmTable({kind: [Case(source=FromFunction(lambda *_: algorithm))]})
    workload = generate([Collective(type=kind, size=size, root=root)], topology.npus)
    job = Job(workload=workload, placement=tuple(range(topology.npus)), algorithms=table)
    network = NetworkModel(model=cost.model, link_busy=cost.link_busy)
    records = simulate(Problem(topology=topology, jobs=(job,), network=network), engine="simpy", level="summary")
    assert records.outcome.status == "done"
    return records.makespan


def fastest_known(kind: str, topology, size: int, cost: CostModel) -> int:
    found = []
    for name, options in KNOWN:
        try:
            found.append(measured(algorithm(name, kind, topology.npus, **options), kind, topology, size, 0, cost))
        except AlgorithmError:
            continue
    return min(found)


def made(kind: str, topology, size: int, chunks: int, **more):
    root = 0 if kind in ("broadcast", "reduce") else None
    return synthesize(topology, kind, size, chunks=chunks, root=root, rounds=4, jobs=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_no_known_algorithm_is_faster(name):
    topology = build(NETWORKS[name] | LINK)
    waited = 0
    for turn, kind in enumerate(("all_gather", "reduce_scatter", "all_reduce", "all_to_all")):
        size = (12_000, 10**6)[(turn + len(name)) % 2] * topology.npus
        schedule = made(kind, topology, size, 2)
        # No two posts at once: that may cost a picosecond a rank.
        known = fastest_known(kind, topology, size, COSTS[0])
        assert schedule.bound <= schedule.time <= known + topology.npus
        assert check(schedule) == []
        assert measured(emit(schedule), kind, topology, size, 0, COSTS[0]) == schedule.time
        _, _, start, end = schedule.holds()
        waited += int((schedule.arrival - schedule.start > schedule.timing.delay[0][schedule.arc]).sum())
        assert (end > start).all()
    assert waited or name in ("switch", "two spines")


@pytest.mark.parametrize("cost", COSTS, ids=("bytes", "latency+bytes", "store_and_forward"))
def test_what_waits_in_switches_is_measured_in_every_model(cost):
    topology = build(NETWORKS["slow uplinks"] | LINK)
    for kind in ("all_reduce", "reduce", "all_to_all") if NIGHTLY else ("all_reduce", "reduce"):
        schedule = made(kind, topology, 1_200_007, 2, cost=cost)
        assert check(schedule) == []
        assert schedule.bound <= schedule.time
        assert measured(emit(schedule), kind, topology, schedule.demand.size, 0, cost) == schedule.time


def test_the_checker_executes_queues_on_its_own():
    topology = build(NETWORKS["fast uplinks"] | LINK)
    schedule = made("all_to_all", topology, 1_200_000, 2)
    assert (schedule.arrival - schedule.start > schedule.timing.delay[0][schedule.arc]).any() and check(schedule) == []
    assert "claims" in check(replace(schedule, time=schedule.time - 1))[0]
    late = int(np.argmax(schedule.start))
    first = np.flatnonzero(schedule.src == schedule.src[late])[0]
    moved = schedule.start.copy()
    moved[late] = moved[first]
    assert any("taken when it begins" in problem for problem in check(replace(schedule, start=moved)))


def test_bounds_know_that_a_fast_link_is_not_held_by_what_comes_in_slowly():
    topology = build(NETWORKS["fast uplinks"] | LINK)
    size = 8 * 10**6
    schedule = made("all_to_all", topology, size, 4)
    assert schedule.bound <= fastest_known("all_to_all", topology, size, COSTS[0])
    assert schedule.efficiency > 0.85


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_where_candidates_are_many_known_trees_come_before_all_search(kind, monkeypatch):
    for name, value in (("MANY", 0), ("EFFORT", 0)):
        monkeypatch.setattr(f"astrasim_py.synthesis.portfolio.{name}", value)
    monkeypatch.setattr("astrasim_py.synthesis.portfolio.search", None)
    for name in ("switch", "fast uplinks"):
        topology = build(NETWORKS[name] | LINK)
        schedule = made(kind, topology, topology.npus * 10**6, 1)
        assert check(schedule) == [] and not schedule.search.cut
        assert schedule.efficiency > (0.95 if name == "switch" else 0.6)
        assert schedule.optimal or name != "switch" or kind == "all_reduce"
        assert measured(emit(schedule), kind, topology, schedule.demand.size, 0, COSTS[0]) == schedule.time


def test_repairs_find_ways_that_are_longer_than_all_before():
    topology = build(NETWORKS["fast uplinks"] | LINK)
    demand = Demand.of("all_to_all", topology.npus, 2, 10**7)
    side = Side(Network.of(topology), demand)
    _, (path, start, length) = side.run(RoutePolicy(), 1, NEVER)
    most = int(length.max())
    _, rows = side.packer.run(1, rows=Rows(path[:, :most].copy(), start[:, :most].copy(), length), repairs=200)
    assert rows[0].shape[1] > most == 1
