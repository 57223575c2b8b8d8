"""Schedules of the greedy cores: valid on any network, at the bound on symmetric ones, the same on every machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds.networks import COSTS, SPREADING, edge_list, synthesize

from astrasim_py.core.errors import TopologyError
from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Search, as_schedule, copied
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.search.greedy_search import GreedyRuns, policies, search
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.synthesis.search.symmetric import arc_labels
from astrasim_py.topology import Topology, build
from astrasim_py.topology.symmetry import find_rotations

TACOS = CostModel(link_busy="latency+bytes")
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def edges(topology: Topology) -> Topology:
    """The same links, and nothing said of their shape."""
    return Topology.create(
        name="edges",
        shape="edge_list",
        npus=topology.npus,
        vertices=topology.vertices,
        src=topology.src,
        dst=topology.dst,
        latency_ps=topology.latency_ps,
        bandwidth_class=topology.bandwidth_class,
        bandwidths=topology.bandwidths,
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_policy_makes_valid_schedules_above_the_bound(seed):
    topology, cost = edge_list(seed), COSTS[seed % 3]
    network = Network.of(topology, cost=cost)
    demand = Demand.of("all_gather", network.ranks, 1 + seed % 4, [10**6, 7, 0][seed % 5 % 3])
    bounds = lower_bounds(network, demand)
    runs = GreedyRuns(network, demand)
    offered = policies(runs)
    assert offered
    for index, policy in enumerate(offered):
        time, transfers, columns = runs.run(policy, index)
        assert time is not None
        if policy.symmetric:
            columns = runs.symmetric.rotated(columns)
        assert transfers == len(columns[0]) == (network.ranks - 1) * demand.count
        schedule = as_schedule(network, demand, copied(columns), Search(seed=0, policy=str(policy), rounds=1))
        assert check(schedule) == []
        assert bounds[0].time <= schedule.time <= time


@pytest.mark.parametrize("collective", SPREADING)
@pytest.mark.parametrize("seed", range(6))
def test_collectives_are_valid_on_random_networks(collective, seed):
    topology = edge_list(100 + seed)
    root = seed % topology.npus if collective in ("broadcast", "reduce") else None
    schedule = synthesize(topology, collective, 10**6 + seed, chunks=2, root=root, cost=COSTS[seed % 3], rounds=8)
    assert check(schedule) == []
    assert schedule.bound <= schedule.time
    halves = 2 if collective == "all_reduce" else 1
    assert schedule.transfers == halves * (topology.npus - 1) * schedule.demand.count
    assert schedule.reduces.any() == (collective in ("reduce_scatter", "reduce", "all_reduce"))


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ({"shape": "ring", "npus": 16}, 2),
        ({"shape": "torus", "dims": [4, 4]}, 1),
        ({"shape": "torus", "dims": [4, 4, 4]}, 2),
        ({"shape": "fully_connected", "npus": 8}, 4),
        ({"shape": "hypercube", "npus": 32}, 2),
        ({"shape": "mesh", "dims": [6, 6]}, 1),
    ],
)
def test_regular_networks_are_gathered_at_the_bound(shape, chunks):
    topology = build({**shape, **LINK})
    for each in (topology, edges(topology)):
        schedule = synthesize(each, "all_gather", each.npus * 2**20, chunks=chunks, cost=TACOS, rounds=20)
        assert schedule.optimal and schedule.efficiency == 1
        mirrored = synthesize(each, "reduce_scatter", each.npus * 2**20, chunks=chunks, cost=TACOS, rounds=20)
        assert mirrored.time == schedule.time


def test_a_switch_is_shared_by_its_ports():
    topology = build({"shape": "switch", "npus": 8, **LINK})
    schedule = synthesize(topology, "all_gather", 8 * 2**20, cost=CostModel(), rounds=20)
    # Seven shards enter every NPU through one link, one after the other.
    assert schedule.optimal and schedule.bound_kind in ("ingress", "work")
    _, resource, start, end = schedule.holds()
    into = resource == resource[-1]
    assert int((end - start)[into].sum()) <= schedule.time


def test_rotations_are_found_in_bare_links():
    def digits(topology: Topology) -> list[tuple]:
        network = Network.of(edges(topology), cost=TACOS)
        labels = arc_labels(network, network.timing([1000]))
        return [g.digits for g in find_rotations(network.ranks, network.src, network.dst, labels)]

    torus = build({"shape": "torus", "dims": [3, 5], **LINK})
    assert digits(torus)[0] == ((1, 3, True), (3, 5, True))
    assert digits(build({"shape": "mesh", "dims": [3, 5], **LINK})) == []
    uneven = torus.changed(links=[([0], None, 9)])
    assert digits(uneven) == []


def test_threads_decide_nothing():
    topology = edge_list(7)
    found = [synthesize(topology, "all_gather", 10**6, chunks=3, cost=TACOS, rounds=80, jobs=j) for j in (1, 2, 4)]
    for other in found[1:]:
        assert other.time == found[0].time and other.search.policy == found[0].search.policy
        assert (other.arc == found[0].arc).all() and (other.start == found[0].start).all()
    another = synthesize(topology, "all_gather", 10**6, chunks=3, cost=TACOS, rounds=80, seed=2)
    assert another.search.seed == 2 and check(another) == []


def test_two_tenants_share_a_mesh():
    topology = build({"shape": "mesh", "dims": [4, 4], **LINK})
    first = synthesize(topology, "all_gather", 2**20, npus=range(8), relays=True, rounds=10)
    alone = synthesize(topology, "all_gather", 2**20, npus=range(4, 12), rounds=10)
    second = synthesize(topology, "all_gather", 2**20, npus=range(4, 12), occupied=[first.occupied()], rounds=10)
    assert check(second) == []
    assert second.time > alone.time
    link = np.concatenate([s.network.links[s.holds()[1]] for s in (first, second)])
    start = np.concatenate([s.holds()[2] for s in (first, second)])
    end = np.concatenate([s.holds()[3] for s in (first, second)])
    order = np.lexsort((start, link))
    same = link[order][1:] == link[order][:-1]
    assert same.any() and (start[order][1:] >= end[order][:-1])[same].all()


def test_relays_connect_what_the_group_does_not():
    topology = build({"shape": "mesh", "dims": [3, 3], **LINK})
    corners = [0, 2, 6, 8]
    with pytest.raises(TopologyError, match="allow relays"):
        synthesize(topology, "all_gather", 4096, npus=corners)
    schedule = synthesize(topology, "all_gather", 4096, npus=corners, relays=True, rounds=10)
    assert check(schedule) == [] and (np.diff(schedule.network.hop_ptr) == 2).all()


def test_the_checker_sees_what_is_wrong():
    topology = build({"shape": "ring", "npus": 6, **LINK})
    for collective in ("all_gather", "all_reduce"):
        good = synthesize(topology, collective, 6 * 2**20, rounds=10)
        assert check(good) == []
        last = good.transfers - 1
        kept = np.arange(last)
        lost = {name: getattr(good, name)[kept] for name in ("arc", "chunk", "start", "reduces")}
        assert any("never gets" in p or "claims" in p for p in check(replace(good, transfers=last, **lost)))
        early = good.start.copy()
        early[last] = 0
        assert check(replace(good, start=early)) != []
        other = good.chunk.copy()
        other[0] = (other[0] + 1) % good.demand.count
        assert check(replace(good, chunk=other)) != []
        assert any("claims" in p for p in check(replace(good, time=good.time - 1)))
        moved = good.arc.copy()
        moved[:] = moved[0]
        assert any("is held by" in p for p in check(replace(good, arc=moved)))
    reduced = synthesize(topology, "reduce_scatter", 6 * 2**20, rounds=10)
    assert any("twice" in p or "never" in p for p in check(replace(reduced, chunk=reduced.chunk[::-1].copy())))


def test_bounds_of_known_networks():
    topology = build({"shape": "mesh", "dims": [8, 8], "bandwidth": "50 GiB/s", "latency": "500 ns"})
    network = Network.of(topology, cost=TACOS)
    step = 20_031_250
    gather = lower_bounds(network, Demand.of("all_gather", 64, 1, 64 * 2**20))
    # 63 shards come into a corner over two links.
    assert (gather[0].time, gather[0].kind) == (32 * step, "ingress")
    # The way from corner to corner has 14 links.
    assert next(b.time for b in gather if b.kind == "path") == 14 * step
    # 2 · 63 · 64 transfers over 224 links.
    reduce = lower_bounds(network, Demand.of("all_reduce", 64, 1, 64 * 2**20))
    assert (reduce[0].time, reduce[0].kind) == (36 * step, "work")


def test_one_rank_needs_nothing():
    schedule = synthesize(build({"shape": "ring", "npus": 1, **LINK}), "all_reduce", 4096)
    assert (schedule.time, schedule.transfers, check(schedule)) == (0, 0, [])


def test_counting_finds_the_same_time():
    network = Network.of(build({"shape": "mesh", "dims": [5, 5], **LINK}), cost=TACOS)
    demand = Demand.of("all_gather", 25, 1, 25 * 2**20)
    counted, recorded = (search(network, demand, 0, Effort(rounds=3), record=record) for record in (False, True))
    assert counted.columns is None
    assert (counted.time, counted.transfers) == (recorded.time, recorded.transfers) == (recorded.time, 600)
