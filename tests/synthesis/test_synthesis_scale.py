"""What large problems need of the greedy core: rows of many lines, and word of how far a run has come."""

from __future__ import annotations

import numpy as np
import pytest
from worlds.networks import synthesize

from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Search, as_schedule, copied
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.search.greedy import Policy
from astrasim_py.synthesis.search.greedy_search import GreedyRuns
from astrasim_py.topology import build

TACOS = CostModel(link_busy="latency+bytes")
EVEN = {"shape": "mesh", "dims": [3, 2], "bandwidth": "50 GB/s", "latency": "500 ns"}
UNEVEN = {"shape": "mesh", "dims": [3, 2], "bandwidth": ["50 GB/s", "20 GB/s"], "latency": "500 ns"}


def problem(spec: dict, chunks: int, cost: CostModel = TACOS) -> GreedyRuns:
    network = Network.of(build(spec), cost=cost)
    return GreedyRuns(network, Demand.of("all_gather", network.ranks, chunks, network.ranks * chunks * 65536))


#: Chunks a rank: rows of one line and less, of a few, of more than are looked at, of more than one word has bits for.
@pytest.mark.parametrize("chunks", [1, 85, 86, 200, 430, 6000])
@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(samples=1), Policy(hierarchy=True, overtake=True), Policy(overtake=True, lazy=8)],
    ids=str,
)
@pytest.mark.parametrize("spec", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_rows_of_any_length_make_valid_schedules(spec, policy, chunks):
    if chunks > 1000 and policy.overtake:
        chunks //= 10
    runs = problem(spec, chunks)
    time, transfers, columns = runs.run(policy, 3)
    assert transfers == len(columns[0]) == (runs.network.ranks - 1) * runs.demand.count
    bound = lower_bounds(runs.network, runs.demand)[0]
    schedule = as_schedule(runs.network, runs.demand, copied(columns), Search(seed=3, policy="", rounds=1), bound)
    assert check(schedule) == []
    assert bound.time <= schedule.time <= time
    if spec is EVEN and chunks > 1:
        assert schedule.time <= 1.1 * bound.time


def test_runs_of_one_seed_are_the_same_and_of_another_not():
    runs = problem(UNEVEN, 430)
    once, again, other = (runs.run(Policy(), seed)[2] for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


def test_a_run_says_how_far_it_has_come():
    runs = problem(EVEN, 20)
    told = np.zeros(3, dtype=np.int64)
    time, transfers, _ = runs.run(Policy(), 1, stop=told)
    assert told.tolist() == [0, time, transfers]
    half = np.zeros(3, dtype=np.int64)
    runs.run(Policy(), 1, time // 2, stop=half)
    assert 0 < half[1] <= time // 2 + int(runs.timing.delay.max()) and 0 < half[2] < transfers


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("spec", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_a_schedule_found_at_once_has_the_best_bound(kind, spec):
    topology = build(spec)
    network = Network.of(topology, cost=TACOS)
    root = 0 if kind == "broadcast" else None
    schedule = synthesize(topology, kind, 6 * 65536, root=root, cost=TACOS, rounds=3, jobs=1)
    assert schedule.bound == lower_bounds(network, Demand.of(kind, 6, 1, 6 * 65536, root))[0].time
