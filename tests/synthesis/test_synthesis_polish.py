"""Searches that polish: never slower for it, the same on every machine, no slower than TACOS on what nobody tuned."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from oracle.causal_tacos import all_gather
from worlds.networks import synthesize

from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Search, as_schedule, copied
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.search.greedy import Policy
from astrasim_py.synthesis.search.greedy_search import GreedyRuns, search
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.topology import Topology, build

TACOS = CostModel(link_busy="latency+bytes")
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def network_of(links: dict[tuple[int, int], tuple[int, int]], n: int) -> Topology:
    """Direct links: (source, target) → (GiB/s, ns)."""
    kinds = sorted({bandwidth for bandwidth, _ in links.values()})
    pairs = sorted(links)
    return Topology.create(
        name="links",
        shape="edge_list",
        npus=n,
        vertices=n,
        src=np.array([a for a, _ in pairs]),
        dst=np.array([b for _, b in pairs]),
        latency_ps=np.array([links[p][1] * 1000 for p in pairs]),
        bandwidth_class=np.array([kinds.index(links[p][0]) for p in pairs]),
        bandwidths=[Fraction(k * 2**30) for k in kinds],
    )


def mixed(seed: int) -> tuple[Topology, int]:
    """Connected groups of ranks, slow links between them, some one-way ones; and a number of chunks."""
    random = np.random.default_rng([seed, 77])
    groups, size = int(random.integers(1, 4)), int(random.integers(3, 6))
    n = groups * size
    links: dict[tuple[int, int], tuple[int, int]] = {}
    for v in range(n):
        base = v // size * size
        links[v, base + (v + 1) % size] = links[base + (v + 1) % size, v] = (100, 500)
    for g in range(groups):
        a, b = g * size + int(random.integers(size)), (g + 1) % groups * size + int(random.integers(size))
        if a != b:
            links[a, b] = links[b, a] = (int(random.choice([25, 50])), 700)
    for a, b in random.integers(0, n, (int(random.integers(0, 2 * n)), 2)).tolist():
        if a != b:
            links[a, b] = (int(random.choice([25, 50, 100, 200])), int(random.choice([300, 500, 1000])))
    return network_of(links, n), int(random.integers(1, 5))


def dgx1() -> Topology:
    """Two groups of four; double links are twice as fast."""
    links = {}
    for a, b, double in [
        (0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 4, 1), (1, 2, 1), (1, 3, 0), (1, 5, 1), (2, 3, 1), (2, 6, 0), (3, 7, 0),
        (4, 5, 0), (4, 6, 0), (4, 7, 1), (5, 6, 1), (5, 7, 0), (6, 7, 1),
    ]:  # fmt: skip
        links[a, b] = links[b, a] = (50 if double else 25, 700)
    return network_of(links, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["links", "switch", "shared"])
@pytest.mark.parametrize("seed", range(4))
def test_polished_schedules_are_valid_and_no_slower(kind, seed):
    occupied = ()
    topology, chunks = mixed(seed)
    if kind != "links":
        topology, chunks = build({"shape": "switch", "npus": 4 + seed, **LINK}), 2
    if kind == "shared":
        other = synthesize(topology, "all_to_all", 2**18, rounds=1)
        occupied = [other.occupied()]
    network = Network.of(topology, cost=[TACOS, CostModel()][seed % 2], occupied=occupied)
    demand = Demand.of("all_gather", network.ranks, chunks, network.ranks * 2**20 + seed)
    runs = GreedyRuns(network, demand)
    time, _, columns = runs.run(Policy(samples=1), seed)
    assert columns is not None and runs.polishable
    bound = lower_bounds(network, demand)[0].time
    nothing = runs.polish(columns, seed, bound, 0)
    assert nothing[0] == time
    found = runs.polish(columns, seed, bound, 500)
    assert bound <= found[0] <= time
    again = runs.polish(columns, seed, bound, 500)
    assert all((a == b).all() for a, b in zip(found[1], again[1], strict=True))
    for one in (nothing, found):
        schedule = as_schedule(network, demand, copied(one[1]), Search(seed=seed, policy="", rounds=1))
        assert check(schedule) == [] and schedule.time <= one[0]


def test_unlike_links_are_used_as_well_as_can_be():
    schedule = synthesize(dgx1(), "all_gather", 8 * 2**20, cost=TACOS)
    # What must enter the NPU with one double link takes this long: nobody can be faster.
    assert schedule.optimal and schedule.time == schedule.bound
    assert schedule.search.policy.endswith("polished")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_more_rounds_are_never_worse_and_threads_decide_nothing(seed):
    topology, chunks = mixed(20 + seed)
    network = Network.of(topology, cost=TACOS)
    demand = Demand.of("all_gather", network.ranks, chunks, network.ranks * 2**20)
    # A bound that cannot be met, so that all rounds are made.
    times = [search(network, demand, 0, Effort(rounds=r, jobs=1)).time for r in (1, 2, 33, 40, 41, 60, 97, 200)]
    assert times == sorted(times, reverse=True)
    one, three = (search(network, demand, 0, Effort(rounds=100, jobs=jobs)) for jobs in (1, 3))
    assert (one.time, one.search.policy, one.search.rounds) == (three.time, three.search.policy, three.search.rounds)
    assert all((a == b).all() for a, b in zip(one.columns, three.columns, strict=True))
    assert search(network, demand, 0, Effort(rounds=100), record=False).time == one.time


@pytest.mark.parametrize("seed", range(12))
def test_no_slower_than_causal_tacos_on_networks_that_nobody_tuned(seed):
    topology, chunks = mixed(100 + seed)
    network = Network.of(topology, cost=TACOS)
    demand = Demand.of("all_gather", network.ranks, chunks, network.ranks * chunks * 2**18)
    delay = network.timing(demand.sizes).delay[0].tolist()
    links = list(zip(network.src.tolist(), network.dst.tolist(), delay, strict=True))
    theirs = min(all_gather(network.ranks, links, chunks, run) for run in range(5))
    ours = synthesize(topology, "all_gather", network.ranks * chunks * 2**18, chunks=chunks, cost=TACOS)
    assert ours.bound <= ours.time <= theirs
