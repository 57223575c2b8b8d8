"""All_reduce without a barrier: valid on any network, never slower than with one, faster where ports are uneven."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds.networks import COSTS, edge_list, synthesize

from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.schedule import Schedule, Search, as_schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.synthesis.search.tree_packing_search import JOINT, Packing, improved
from astrasim_py.topology import build
from astrasim_py.topology.topology_files import read_edge_list

TACOS = CostModel(link_busy="latency+bytes")
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
GOLDEN = os.environ.get("ASTRASIM_GOLDEN")
NOTHING = Search(seed=0, policy="", rounds=1)


def packed(network: Network, demand: Demand, policy, seed: int, repairs: int = 0) -> tuple[int, Schedule]:
    """What the core claims, and the schedule of it."""
    packing = Packing(network, demand)
    took, rows = packing.pack(seed, policy, repairs=repairs)
    return took, as_schedule(network, demand, packing.transfers(rows), NOTHING)


@pytest.mark.parametrize("seed", range(24))
def test_every_policy_packs_valid_schedules_above_the_bound(seed):
    network = Network.of(edge_list(seed, most=9, switch=seed % 3 == 0), cost=COSTS[seed % 3])
    size = 0 if seed == 5 else 10**6 + seed
    demand = Demand.of("all_reduce", network.ranks, 1 + seed % 4, size)
    bound = lower_bounds(network, demand)[0]
    for index, policy in enumerate(JOINT):
        took, schedule = packed(network, demand, policy, index, repairs=10 * (index % 2))
        assert check(schedule) == []
        assert schedule.transfers == 2 * (network.ranks - 1) * demand.count
        assert int(schedule.reduces.sum()) * 2 == schedule.transfers
        assert bound.time <= schedule.time
        if network.direct and size:
            # What was packed holds as it is: nothing comes later than it was put.
            assert schedule.time <= took


def test_what_others_hold_stays_theirs():
    topology = build({"shape": "mesh", "dims": [3, 3], **LINK})
    links = np.arange(0, topology.links, 2, dtype=np.int32)
    start = np.full(len(links), 5_000_000, dtype=np.int64)
    taken = Occupied(links, start, start + 40_000_000)
    network = Network.of(topology, cost=TACOS, occupied=[taken])
    demand = Demand.of("all_reduce", 9, 2, 9 * 2**20)
    _, schedule = packed(network, demand, JOINT[0], 1, repairs=20)
    assert check(schedule) == []
    _, alone = packed(Network.of(topology, cost=TACOS), demand, JOINT[0], 1, repairs=20)
    assert check(replace(alone, network=network)) != []


def test_improving_never_makes_it_slower():
    network = Network.of(build({"shape": "mesh", "dims": [4, 4], **LINK}), cost=TACOS)
    demand = Demand.of("all_reduce", 16, 2, 2**24)
    times = [packed(network, demand, JOINT[0], 3, repairs)[0] for repairs in (0, 20, 100, 400)]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]


def test_the_better_one_is_taken_and_named():
    uneven = synthesize(build({"shape": "mesh", "dims": [5, 5], **LINK}), "all_reduce", 25 * 2**20, chunks=2, rounds=20)
    assert uneven.search.policy.startswith(("joint", "forest"))
    even = synthesize(build({"shape": "ring", "npus": 8, **LINK}), "all_reduce", 2**23, chunks=2, cost=TACOS, rounds=20)
    assert even.search.policy.startswith(("barrier", "forest")) and even.optimal
    # One that no joint schedule beats is given back.
    network, demand = even.network, even.demand
    same = improved(even, 0, Effort(rounds=6, jobs=1))
    assert same.time == even.time and same.search.policy == even.search.policy
    assert same.search.rounds > even.search.rounds
    # One that is as bad as can be is not.
    late = as_schedule(network, demand, (even.arc, even.chunk, even.start, even.reduces), NOTHING)
    late = replace(late, start=late.start + 10**12, time=late.time + 10**12)
    assert check(late) == [] and improved(late, 0, Effort(rounds=6)).time < late.time


def test_threads_change_nothing():
    topology = build({"shape": "mesh", "dims": [4, 4], **LINK})
    one, two = (synthesize(topology, "all_reduce", 2**24, chunks=4, rounds=12, jobs=jobs) for jobs in (1, 2))
    assert one.search.policy.startswith(("joint", "forest")) and one.search.policy == two.search.policy
    for name in ("arc", "chunk", "start", "reduces"):
        assert (getattr(one, name) == getattr(two, name)).all()


def test_the_checker_counts_contributions():
    network = Network.of(build({"shape": "mesh", "dims": [3, 3], **LINK}), cost=TACOS)
    demand = Demand.of("all_reduce", 9, 1, 9 * 2**20)
    _, good = packed(network, demand, JOINT[0], 1)
    assert check(good) == []
    # Somewhere the sum is made at another rank than the chunk's owner.
    senders = set(zip(good.src[good.reduces].tolist(), good.chunk[good.reduces].tolist(), strict=True))
    homes = [next(v for v in range(9) if (v, c) not in senders) for c in range(9)]
    assert homes != demand.origin.tolist()
    first = int(np.flatnonzero(good.reduces)[0])
    copy = good.reduces.copy()
    copy[first] = False
    assert any("before it has it" in p or "never sends" in p for p in check(replace(good, reduces=copy)))
    again = good.chunk.copy()
    again[first] = (again[first] + 1) % 9
    assert any("never sends its part" in p for p in check(replace(good, chunk=again)))
    as_owner = replace(good, demand=Demand.of("reduce_scatter", 9, 1, 9 * 2**20))
    assert any("leaves its home" in p for p in check(as_owner))


@pytest.mark.skipif(not GOLDEN, reason="ASTRASIM_GOLDEN is not set")
@pytest.mark.parametrize(
    ("name", "chunks", "policy", "barrier", "gain"),
    [("mesh2d_8x8", 4, 0, 1356.469, 1.2), ("faultymesh2d_8x8", 1, 1, 2523.938, 1.4)],
)
def test_gain_over_the_barrier(name, chunks, policy, barrier, gain):
    topology = read_edge_list(Path(GOLDEN) / "tacos" / "problems" / f"{name}.csv")
    network = Network.of(topology, cost=TACOS)
    demand = Demand.of("all_reduce", 64, chunks, 64 * 2**20)
    _, schedule = packed(network, demand, JOINT[policy], 1, repairs=100)
    assert check(schedule) == []
    assert schedule.time * gain <= barrier * 1e6
