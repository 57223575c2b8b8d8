"""Chunks with one receiver: valid on any network, at the bound on regular ones, no slower than known algorithms."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds.networks import COSTS, ROUTED, edge_list, synthesize

import astrasim_py as ap
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.bounds.cuts import reducing_cut, spreading_cut
from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import as_schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.portfolio import find_schedule
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.synthesis.search.routed import Side, policies, route
from astrasim_py.synthesis.search.tree_packing_search import Packer
from astrasim_py.topology import Topology, build

SERIAL = CostModel(link_busy="latency+bytes")
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
SHAPES = (
    {"shape": "torus", "dims": [3, 3]},
    {"shape": "mesh", "dims": [2, 4]},
    {"shape": "switch", "npus": 6},
    {"shape": "fully_connected", "npus": 5},
    {"shape": "ring", "npus": 8},
)


def root_of(collective: str, rank: int) -> int | None:
    return None if collective == "all_to_all" else rank


@pytest.mark.parametrize("collective", ROUTED)
@pytest.mark.parametrize("seed", range(12))
def test_schedules_are_valid_and_above_every_bound(collective, seed):
    topology = edge_list(seed, most=9) if seed % 3 else build({**SHAPES[seed // 3], **LINK})
    root = root_of(collective, seed % topology.npus)
    size = (10**6 + seed, 7, 0)[seed % 5 % 3]
    schedule = synthesize(topology, collective, size, chunks=1 + seed % 3, root=root, cost=COSTS[seed % 3], rounds=12)
    assert check(schedule) == []
    network, demand = schedule.network, schedule.demand
    assert all(bound.time <= schedule.time for bound in lower_bounds(network, demand))
    moved = np.unique(schedule.chunk)
    assert (moved == np.flatnonzero(demand.origin != demand.receivers)).all()
    assert not schedule.reduces.any()


def test_paths_that_outgrow_their_rows_leave_calendars_as_large_as_they_were():
    network = Network.of(build({"shape": "ring", "npus": 8, **LINK}))
    side = Side(network, Demand.of("all_to_all", 8, 1, 8 * 65536))
    packer = Packer(network, side.timing, side.packer.chunks, 1)
    room = packer._room
    time, rows = packer.run(1)
    assert rows.length.max() > 1 and packer._room == room
    wide = Packer(network, side.timing, side.packer.chunks, 8).run(1)
    assert wide[0] == time


def test_every_way_makes_valid_schedules():
    network = Network.of(edge_list(5, most=9), cost=SERIAL)
    demand = Demand.of("all_to_all", network.ranks, 2, 10**6 + 3)
    offered = policies(network, demand)
    assert {p.backward for p in offered} == {False, True} and {p.rule for p in offered} == {0, 1, 2, 3}
    for rounds in (1, len(offered), 3 * len(offered)):
        found = route(network, demand, 0, Effort(rounds=rounds))
        schedule = as_schedule(network, demand, found.columns, found.search)
        assert check(schedule) == [] and schedule.time <= found.time and found.search.rounds == rounds


@pytest.mark.parametrize(
    ("shape", "collective", "steps"),
    [
        # A ring of 8: distances 1, 2, 3 and half of all 4 in each direction. A 4×4 torus: 16 · (mean 32/15) · 15 / 64.
        ({"shape": "ring", "npus": 8}, "all_to_all", 8),
        ({"shape": "torus", "dims": [4, 4]}, "all_to_all", 8),
        # 8 · 8 chunks cross the middle over 4 links.
        ({"shape": "mesh", "dims": [4, 4]}, "all_to_all", 16),
        ({"shape": "fully_connected", "npus": 8}, "all_to_all", 1),
        ({"shape": "torus", "dims": [4, 4]}, "scatter", 4),
        ({"shape": "mesh", "dims": [4, 4]}, "gather", 8),
        ({"shape": "fully_connected", "npus": 8}, "gather", 1),
    ],
)
def test_regular_networks_are_at_the_bound(shape, collective, steps):
    topology = build({**shape, **LINK})
    size = topology.npus * 10**6
    schedule = synthesize(topology, collective, size, root=root_of(collective, 0), cost=SERIAL, rounds=80)
    assert schedule.optimal and schedule.efficiency == 1
    # A megabyte takes 20 µs and half a microsecond.
    assert schedule.time == steps * 20_500_000


def test_a_switch_is_shared_by_its_ports():
    topology = build({"shape": "switch", "npus": 12, **LINK})
    schedule = synthesize(topology, "all_to_all", 12 * 10**6, rounds=40)
    # Eleven blocks through each port, none waiting for another.
    assert schedule.optimal and check(schedule) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("collective", ROUTED)
def test_never_slower_than_known_algorithms(shape, collective):
    topology = build({**shape, **LINK})
    size, root = topology.npus * 10**6, root_of(collective, 0)
    # Messages that cross members without being stored there are none of ours: both are stored everywhere.
    cost = CostModel(model="store_and_forward")
    schedule = synthesize(topology, collective, size, root=root, cost=cost, rounds=60)
    names = ("direct", "pairwise", "bruck", "ring") if root is None else ("direct", "binomial_tree", "linear")
    times = []
    for name in names:
        try:
            problem = ap.collective(collective, size, topology, algorithm=name, model="store_and_forward")
        except AlgorithmError:
            continue
        times.append(ap.simulate(problem, engine="simpy", level="summary").makespan)
    assert times and schedule.time <= min(times)


def test_the_checker_sees_what_is_wrong():
    good = synthesize(build({"shape": "ring", "npus": 6, **LINK}), "all_to_all", 6 * 10**6, rounds=10)
    kept = np.arange(good.transfers - 1)
    lost = {name: getattr(good, name)[kept] for name in ("arc", "chunk", "start", "reduces")}
    assert any("never gets" in p for p in check(replace(good, transfers=len(kept), **lost)))
    other = good.chunk.copy()
    other[0] = (other[0] + 7) % good.demand.count
    assert check(replace(good, chunk=other)) != []
    assert any("is held by" in p for p in check(replace(good, start=np.zeros_like(good.start))))


def test_threads_decide_nothing():
    topology = edge_list(7, most=9)
    found = [synthesize(topology, "all_to_all", 10**6, chunks=2, cost=SERIAL, rounds=60, jobs=j) for j in (1, 3)]
    assert found[0].time == found[1].time and found[0].search.policy == found[1].search.policy
    assert (found[0].arc == found[1].arc).all() and (found[0].start == found[1].start).all()


def test_gaps_between_what_others_hold_are_used():
    topology = build({"shape": "ring", "npus": 6, **LINK})
    first = synthesize(topology, "all_to_all", 6 * 10**6, rounds=10)
    second = synthesize(topology, "scatter", 6 * 10**6, root=2, occupied=[first.occupied()], rounds=20)
    assert check(second) == []
    assert second.time < first.time + synthesize(topology, "scatter", 6 * 10**6, root=2, rounds=20).time


def test_blocks_of_any_size():
    random = np.random.default_rng(1)
    sizes = random.integers(0, 3, (6, 6)) * random.integers(1, 10**6, (6, 6))
    network = Network.of(build({"shape": "mesh", "dims": [2, 3], **LINK}))
    schedule_of = Demand.blocks(sizes.tolist(), per_block=2)
    wanted = sizes.copy()
    np.fill_diagonal(wanted, 0)
    got = np.zeros_like(wanted)
    np.add.at(got, (schedule_of.origin, schedule_of.receivers), schedule_of.sizes[schedule_of.size_class])
    assert (got == wanted).all()
    schedule = find_schedule(network, schedule_of, Effort(rounds=30))
    assert check(schedule) == [] and schedule.bound <= schedule.time
    with pytest.raises(AlgorithmError, match="one row"):
        Demand.blocks([[0, 1], [2]])
    with pytest.raises(AlgorithmError, match="-1"):
        Demand.blocks([[0, -1], [2, 0]])


def test_cuts_of_known_networks():
    # Two rings of four, joined by one slow pair of links.
    fast = [(a, (a + 1) % 4) for a in range(4)]
    links = [(a + k, b + k) for k in (0, 4) for a, b in fast + [(b, a) for a, b in fast]] + [(0, 4), (4, 0)]
    topology = Topology.create(
        name="joined",
        shape="edge_list",
        npus=8,
        vertices=8,
        src=np.array([a for a, _ in links]),
        dst=np.array([b for _, b in links]),
        latency_ps=np.zeros(len(links), dtype=np.int64),
        bandwidth_class=np.array([0] * (len(links) - 2) + [1, 1]),
        bandwidths=[Fraction(10**12), Fraction(10**9)],
    )
    network = Network.of(topology, cost=SERIAL)
    slow = 10**6 * 1000
    gather = Demand.of("all_gather", 8, 1, 8 * 10**6)
    timing = network.timing([10**6])
    # Four shards cross, then cross one ring at once; 16 blocks cross of an all_to_all; all eight of an all_reduce.
    assert spreading_cut(network, timing, gather, 1) == 4 * slow
    assert reducing_cut(network, timing, 8, 1) == 8 * slow
    exchange = lower_bounds(network, Demand.of("all_to_all", 8, 1, 8 * 10**6))
    assert max(b.time for b in exchange if b.kind == "cut") == 16 * slow
    scatter = lower_bounds(network, Demand.of("scatter", 8, 1, 8 * 10**6, 1))
    assert scatter[0].time == 4 * slow and scatter[0].kind == "cut"


def test_links_longer_than_the_whole_schedule_raise_no_bound():
    # Nothing goes back over the slow way, which takes longer than all that is sent.
    edges = [
        {"src": 0, "dst": 1, "bandwidth": "50 GB/s", "latency": "0 ns"},
        {"src": 1, "dst": 0, "bandwidth": "50 GB/s", "latency": "1 ms"},
    ]
    network = Network.of(build({"shape": "edge_list", "edges": edges}), cost=CostModel())
    bounds = lower_bounds(network, Demand.of("scatter", 2, 1, 10**6, 0))
    assert {bound.kind: bound.time for bound in bounds if bound.time} == dict.fromkeys(
        ("ingress", "egress", "work", "path", "cut"), 10**7
    )


def test_many_ranks_that_gather_are_bounded_by_their_way_to_the_root():
    mesh = build({"shape": "mesh", "dims": [9, 9], **LINK})
    path = {b.kind: b.time for b in lower_bounds(Network.of(mesh), Demand.of("gather", 81, 1, 0, 40))}["path"]
    assert path == 8 * 500_000, "not the 16 links from corner to corner"
