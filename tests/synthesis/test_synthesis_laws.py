"""Laws of every collective on random networks and groups, with relays, failures, switches and links others hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds.networks import COSTS, ROUTED, SPREADING, case, edge_list, measured, synthesize

from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.search.multi_start import Effort, compete, in_turn
from astrasim_py.synthesis.search.tree_packing_search import improved
from astrasim_py.topology import build

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
KINDS = (*SPREADING, *ROUTED)
ROOTED = ("broadcast", "reduce", "scatter", "gather")


def made(kind: str, topology, seed: int, **more) -> Schedule:
    ranks = len(more.get("npus", topology.alive))
    root = seed % ranks if kind in ROOTED else None
    size = 7 if seed % 5 == 4 else 10**6 + seed
    return synthesize(topology, kind, size, chunks=1 + seed % 4, root=root, rounds=6, jobs=1, seed=seed, **more)


@pytest.mark.parametrize("seed", range(16))
def test_what_is_claimed_is_checked_and_measured(seed):
    topology, npus, cost = case(seed)
    for kind in (KINDS[seed % len(KINDS)], "all_reduce"):
        schedule = made(kind, topology, seed, npus=npus, cost=cost, relays=True)
        assert check(schedule) == []
        assert schedule.bound <= schedule.time == measured(schedule, emit(schedule))
        # Nobody outside the group sends or gets anything, though routes pass through them.
        assert len(npus) == schedule.demand.ranks > max(schedule.network.src.max(initial=0), 0)


def test_exchanges_pass_through_relays():
    topology = build({"shape": "torus", "dims": [3, 4], **LINK})
    npus = [0, 2, 5, 7, 8, 10]
    for kind in ROUTED:
        for cost in COSTS:
            schedule = made(kind, topology, 2, npus=npus, cost=cost, relays=True)
            network = schedule.network
            assert (np.diff(network.hop_ptr)[schedule.arc] > 1).any()
            passed = set(topology.dst[network.links].tolist()) | set(topology.src[network.links].tolist())
            assert passed - set(npus)
            assert check(schedule) == [] and measured(schedule, emit(schedule)) == schedule.time


@pytest.mark.parametrize("kind", KINDS)
def test_beside_another_tenant(kind):
    for seed in range(3):
        topology, cost = edge_list(seed + 40, most=7, switch=seed == 1), COSTS[seed]
        first = made("all_gather", topology, seed, cost=cost)
        alone = made(kind, topology, seed, cost=cost)
        beside = made(kind, topology, seed, cost=cost, occupied=[first.occupied()])
        assert check(beside) == []
        # Never before it could, and at worst once the other is done; greedy copies may be a little later than that.
        slack = 1.0 if kind in ("reduce_scatter", "reduce", "all_reduce") else 1.15
        assert beside.bound <= beside.time <= slack * (first.time + alone.time)


def test_sums_use_the_gaps_of_others():
    topology = build({"shape": "mesh", "dims": [4, 4], **LINK})
    first = synthesize(topology, "all_gather", 16 * 10**6, cost=COSTS[1], rounds=20)
    taken = [first.occupied()]
    trees = synthesize(topology, "reduce_scatter", 16 * 10**6, chunks=2, cost=COSTS[1], occupied=taken, rounds=20)
    alone = synthesize(topology, "reduce_scatter", 16 * 10**6, chunks=2, cost=COSTS[1], rounds=20)
    assert check(trees) == [] and trees.search.policy.startswith("trees")
    assert trees.time < first.time + alone.time


def test_trees_of_sums():
    for seed in range(6):
        topology = edge_list(seed + 60, most=8, switch=seed % 2 == 0)
        for kind in ("reduce", "reduce_scatter"):
            schedule = made(kind, topology, seed, cost=COSTS[seed % 3])
            # As late as can be, so that any packing is better.
            late = replace(schedule, start=schedule.start + 10**12, time=schedule.time + 10**12)
            packed = improved(late, 0, Effort(rounds=4, jobs=1))
            assert packed.search.policy.startswith("trees") and check(packed) == []
            assert schedule.bound <= packed.time


def test_rounds_of_any_number_of_threads_come_to_the_same():
    def run(policy, number, limit, stop, start):
        took = (number * 7919 + policy * 31) % 1000 - (start is not None)
        return (took, (policy, number)) if took < limit or start is not None else None

    told = []
    efforts = [Effort(seed=4, rounds=60, jobs=jobs, progress=told.append) for jobs in (1, 2, 5)]
    runs = [compete(in_turn([1, 2, 3], 3), run, -5, effort) for effort in efforts]
    assert len({(r.time, r.policy, r.result, r.rounds) for r in runs}) == 1
    assert runs[0].rounds == 60 and len(told) == 180 and not runs[0].cut
    assert compete(in_turn([1], 1), run, 10**6, Effort(rounds=60)).rounds == 1
    assert compete(in_turn([1], 1), lambda *_: None, 0, Effort(rounds=3)) is None
