"""Forests: trees that span, within the capacities of links, at the rate of the bound; executed as claimed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.networks import edge_list

from astrasim_py.cli.topologies import topology_of
from astrasim_py.cuts.certificate import certificate
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective as problem_of
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound
from astrasim_py.synthesis.search.forest_packing import Forest
from astrasim_py.synthesis.search.forests import Forests, forests, grown
from astrasim_py.synthesis.search.turning import settled
from astrasim_py.topology.edge_list import read_csv
from astrasim_py.topology.model import Topology

COLLECTIVES = ("all_gather", "reduce_scatter", "broadcast", "reduce", "all_reduce")
NEVER = 2**62


def packed(topology: Topology, collective: str, joint: bool = False, most: int = 8) -> Forests:
    root = 0 if collective in ("broadcast", "reduce") else None
    found = forests(Network.of(topology), collective, root, joint=joint, most=most)
    assert found is not None
    return found


def load(network: Network, forest: Forest | None) -> np.ndarray:
    """Trees over every link; each tree is seen to span."""
    total = np.zeros(len(network.links), dtype=np.int64)
    for root, many, arcs in zip(*(() if forest is None else (forest.root, forest.many, forest.arc)), strict=True):
        used = arcs[arcs >= 0]
        assert len(used) == network.ranks - 1 and arcs[root] < 0
        for arc in used.tolist():
            total[network.hop[network.hop_ptr[arc] : network.hop_ptr[arc + 1]]] += many
    return total


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(seed=st.integers(0, 200), switch=st.booleans())
@settings(max_examples=8)
def test_trees_span_and_fit_into_links_at_their_rate(collective: str, seed: int, switch: bool) -> None:
    topology = edge_list(seed, switch=switch)
    if topology.npus < 3:
        return
    for joint in (False, True) if collective == "all_reduce" else (False,):
        found = packed(topology, collective, joint)
        network = found.network
        for forest, (tail, head) in (
            (found.copies, (network.src, network.dst)),
            (found.sums, (network.dst, network.src)),
        ):
            for root, arcs in () if forest is None else zip(forest.root, forest.arc, strict=True):
                for rank, arc in enumerate(arcs.tolist()):
                    # Every way leads to the root, in fewer steps than there are ranks.
                    steps = 0
                    while arc >= 0:
                        assert head[arc] == rank and steps < network.ranks
                        rank, steps = int(tail[arc]), steps + 1
                        arc = int(arcs[rank])
                    assert rank == root
        trees = load(network, found.copies) + load(network, found.sums)
        seconds = int(found.trees.sum()) / found.rate
        rates = np.array([float(rate) for rate in topology.bandwidths])[topology.bandwidth_class[network.links]]
        assert (trees <= rates * seconds * (1 + 1e-6)).all()


@pytest.mark.parametrize("n", [3, 4, 5, 7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_forests_reach_the_bound_of_a_ring(n: int, collective: str) -> None:
    """Both directions of a ring are used, whatever the number of NPUs."""
    ring = topology_of(f"ring:{n},bandwidth=10 GB/s,latency=0 ns")
    least = certificate(collective, n * 10**6, ring, range(n))
    assert least is not None
    assert packed(ring, collective, most=64).rate == pytest.approx(float(least.rate), rel=0.02)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("chunks", [1, 3, 4, 5])
@pytest.mark.parametrize("spec", ["mesh:2x3", "torus:3x3"])
def test_schedules_are_right_and_take_what_they_claim(collective: str, chunks: int, spec: str) -> None:
    topology = topology_of(f"{spec},bandwidth=50 GB/s,latency=500 ns")
    n, root = topology.npus, 0 if collective in ("broadcast", "reduce") else None
    demand = Demand.of(collective, n, chunks, 999_983, root)
    network = Network.of(topology)
    schedule = grown(packed(topology, collective), Queues(network, demand), Bound(0, ""), 0, NEVER, 1)
    assert schedule is not None and check(schedule) == []
    problem = problem_of(collective, demand.size, topology, algorithm=emit(schedule), root=root or 0)
    for engine in ("simpy", "compiled"):
        assert simulate(problem, engine=engine, level="summary").makespan == schedule.time


@given(seed=st.integers(0, 200), chunks=st.integers(1, 5))
@settings(max_examples=20)
def test_turning_time_round_never_loses(seed: int, chunks: int) -> None:
    topology = edge_list(seed, switch=bool(seed % 2))
    if topology.npus < 3:
        return
    demand = Demand.of("all_gather", topology.npus, chunks, 10**6)
    queues = Queues(Network.of(topology), demand)
    transfers = packed(topology, "all_gather", most=chunks).transfers(queues)
    assert transfers is not None
    first, best = queues.executed(*transfers, NEVER), settled(queues, transfers, NEVER, 0)
    assert first is not None and best is not None and best[0] <= first[0]


def test_roots_of_sums_are_chosen_where_bandwidth_is_not_alike() -> None:
    """NPU 3 hangs on one slow link, over which all must go once each way."""
    near = [(a, b, 100) for a in range(3) for b in range(3) if a != b]
    links = [*near, (0, 3, 10), (3, 0, 10)]
    topology = read_csv("# npus 4\nsrc,dst,bw_GBps,lat_us\n" + "".join(f"{a},{b},{rate},1\n" for a, b, rate in links))
    halves, joint = (packed(topology, "all_reduce", each, most=32) for each in (False, True))
    least = certificate("all_reduce", 10**9, topology, range(4))
    assert least is not None and least.rate == Fraction(10 * 10**9)
    assert joint.rate == pytest.approx(float(least.rate), rel=0.02)
    # A reduce_scatter and then an all_gather take three of four shards over that link, each way.
    assert halves.rate == pytest.approx(float(least.rate) * 4 / 6, rel=0.02)
