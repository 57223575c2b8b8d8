"""Lower bounds are below every simulated time and every closed form, and tight where a known algorithm is optimal."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.bounds import lower_bound_ps

import astrasim_py as ap
from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.collectives.collective import COLLECTIVES, promise_of
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.verification.bounds import (
    CallBounds,
    closed_form_ps,
    cut_demand,
    demand,
)
from astrasim_py.verification.routed_bounds import routed_bound_ps, routed_rates
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

GB = Fraction(10**9)
RATE, ALPHA = 50 * GB, 500_000
ALL = [(a, c) for a, (collectives, _) in ALGORITHMS.items() for c in collectives]
LINK = {"bandwidth": RATE, "latency": ALPHA}
NODES = {"nodes": 2, "nvlink_bandwidth": RATE}


def topologies(n: int) -> list:
    half = n // 2
    return [
        shapes.Ring(npus=n, **LINK).build(),
        shapes.Mesh(dims=[n], bandwidth=3 * GB, latency=1000).build(),
        shapes.Torus(dims=[2, half], bandwidth=[RATE, 7 * GB], latency=[1000, ALPHA]).build(),
        shapes.FullyConnected(npus=n, **LINK).build(),
        shapes.Switch(npus=n, bandwidth=RATE, latency=0).build(),
        shapes.LeafSpine(leaves=2, hosts_per_leaf=half, spines=1, **LINK, oversubscription=Fraction(2)).build(),
        shapes.Dgx(
            nvlink_bandwidth=RATE, nvlink_latency=1000, nodes=2, npus=half, nic_bandwidth=5 * GB, nic_latency=ALPHA
        ).build(),
    ]


def simulated(a: Algorithm, size: int, topology, npus, model: str) -> int:
    """Makespan of one collective."""
    item = Collective(type=a.collective, size=size, root=a.root or 0)
    job = Job(
        workload=generate([item], a.ranks),
        placement=tuple(npus),
        algorithms=AlgorithmTable({}, default=lambda collective, ranks, root: a.with_verdict(True)),
    )
    problem = Problem(topology=topology, jobs=(job,), network=NetworkModel(model=model), semantics=Semantics.native())
    records = simulate(problem, level="summary")
    assert records.outcome.status == "done"
    return records.makespan


def routed(collective: str, size: int, topology, npus, root: int) -> int:
    """The bound by the routes between the members of a group."""
    rates = routed_rates(topology, npus)
    return 0 if rates is None else routed_bound_ps(collective, size, rates, root)


@pytest.mark.parametrize(("algorithm", "collective"), ALL)
@pytest.mark.parametrize("model", ["cut_through", "store_and_forward"])
def test_no_simulated_time_is_below_the_bound(algorithm, collective, model):
    n = 8 if algorithm == "halving_doubling" else 6
    options = {"dims": [2, 3]} if algorithm == "hierarchical" else {}
    a = build(algorithm, collective, n, root=1 if promise_of(collective).rooted else None, **options)
    # Sizes that divide, that do not, and that leave some chunks empty, two per topology; a model per topology.
    mine = (model == "cut_through") ^ (ALL.index((algorithm, collective)) % 2)
    for i, topology in enumerate(topologies(n)):
        if i % 2 == mine:
            continue
        npus = tuple(np.roll(np.arange(n), i).tolist())
        for size in ((1, 1_000_003), (4, 1000), (5, 48_000))[i % 3]:
            bound = lower_bound_ps(collective, size, topology, npus, a.root or 0)
            assert max(bound, routed(collective, size, topology, npus, a.root or 0)) <= simulated(
                a, size, topology, npus, model
            ), (topology.shape, size)


@settings(max_examples=40)
@given(st.data())
def test_no_random_case_is_below_the_bound(data):
    n = data.draw(st.sampled_from([2, 3, 4, 5, 8]))
    usable = [(a, c) for a, c in ALL if a != "hierarchical" and not (a == "halving_doubling" and n & (n - 1))]
    algorithm, collective = data.draw(st.sampled_from(usable))
    size = data.draw(st.one_of(st.integers(0, 3 * n), st.integers(0, 10**6)))
    root = data.draw(st.integers(0, n - 1)) if promise_of(collective).rooted else None
    made = shapes.Product(dims=[shapes.Dim("ring", 2, RATE, 100), shapes.Dim("switch", n, GB, 5000)]).build()
    topology = data.draw(
        st.sampled_from(
            [
                shapes.Ring(npus=2 * n, **LINK).build(),
                shapes.Mesh(dims=[n + 1], bandwidth=GB, latency=7).build(),
                made,
                shapes.Dgx(
                    nvlink_bandwidth=RATE, nvlink_latency=9, nodes=n, npus=2, nic_bandwidth=5 * GB, nic_latency=ALPHA
                ).build(),
            ]
        )
    )
    npus = data.draw(st.permutations(range(topology.npus)))[:n]
    a = build(algorithm, collective, n, root=root)
    bounds = [bound(collective, size, topology, npus, root or 0) for bound in (lower_bound_ps, routed)]
    assert max(bounds) <= simulated(a, size, topology, npus, "cut_through")


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("size", [64, 4096, 2**24])
@pytest.mark.parametrize(
    ("algorithm", "collective"), [("ring", "all_reduce"), ("direct", "all_gather"), ("binomial_tree", "broadcast")]
)
def test_closed_forms_are_not_below_the_bound(algorithm, collective, n, size):
    topology = shapes.FullyConnected(npus=n, **LINK).build()
    exact = closed_form_ps(algorithm, collective, n, size - size % n, ALPHA, RATE)
    assert lower_bound_ps(collective, size - size % n, topology, range(n)) <= exact


def test_the_bound_is_met_where_an_algorithm_is_optimal():
    size = 8 * 2**20
    crossbar = shapes.FullyConnected(npus=8, **LINK).build()
    # One shard over every link at once.
    for collective in ("all_gather", "reduce_scatter", "all_to_all"):
        bound = lower_bound_ps(collective, size, crossbar, range(8))
        assert bound == closed_form_ps("direct", collective, 8, size, ALPHA, RATE)
    # A ring with latencies small against the bytes: 2(n-1)/n of the buffer through every link in one direction.
    one_way = shapes.Ring(npus=8, bandwidth=RATE, latency=0, bidirectional=False).build()
    assert lower_bound_ps("all_reduce", size, one_way, range(8)) == closed_form_ps(
        "ring", "all_reduce", 8, size, 0, RATE
    )
    # A barrier: the longest way somebody must hear over.
    assert lower_bound_ps("barrier", 0, shapes.Ring(npus=8, **LINK).build(), range(8)) == 4 * ALPHA
    assert lower_bound_ps("broadcast", 0, shapes.Mesh(dims=[8], **LINK).build(), range(8), 2) == 5 * ALPHA


def test_a_group_over_nodes_is_bound_by_the_nic_of_each_member():
    """One GPU of each node: the NVLink of a node carries nothing, and the ring of the NICs is optimal."""
    topology = ap.build_topology(preset="dgx_h100", nodes=8)
    npus, size = tuple(range(3, 64, 8)), 2**30
    bound = routed("all_reduce", size, topology, npus, 0)
    assert bound == 2 * 7 * size * 10**12 // (8 * 50 * 10**9) + 1_350_000
    assert lower_bound_ps("all_reduce", size, topology, npus) < bound / 9
    ring = build("ring", "all_reduce", 8).with_verdict(True)
    assert bound <= simulated(ring, size, topology, npus, "cut_through") < 1.001 * bound
    (instance,) = plan_for(ap.collective("all_reduce", size, topology, npus=npus, algorithm=ring)).instances.values
    assert instance.bound == bound


def test_a_thin_cut_bounds_the_time():
    nodes = shapes.Dgx(
        nvlink_bandwidth=RATE, nvlink_latency=0, nodes=2, npus=4, nic_bandwidth=GB, nic_latency=0
    ).build()
    size = 10**9
    # All contributions of one node must reach the other at least once: 4 NICs of 1 GB/s.
    assert lower_bound_ps("all_reduce", size, nodes, range(8)) >= 10**12 // 4


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_needs_no_time(collective):
    assert lower_bound_ps(collective, 2**20, shapes.Ring(npus=4, **LINK).build(), [2]) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(size=st.integers(0, 10**6), n=st.integers(1, 20), data=st.data())
def test_demands_of_cuts_and_members_agree(collective, size, n, data):
    need = demand(collective, size, n)
    for position in range(min(n, 2)):
        out, back = cut_demand(collective, size, n, 1, position == 0)
        kind = 0 if position == 0 else 1
        if n > 1:
            # A cut around one member asks for no more than the member's own demand.
            assert out <= need.egress[kind] or collective == "all_gather"
            assert back <= need.ingress[kind] or collective == "reduce_scatter"
    inside = data.draw(st.integers(0, n))
    out, back = cut_demand(collective, size, n, inside, True)
    assert out >= 0
    assert back >= 0
    if inside in (0, n):
        assert out == back == 0


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "broadcast"])
def test_a_thousand_ranks_are_bounded_quickly(collective):
    for topology in (
        shapes.FullyConnected(npus=1024, **LINK).build(),
        shapes.Torus(dims=[16, 8, 8], **LINK).build(),
        shapes.FatTree(k=16, **LINK).build(),
    ):
        begin = time.process_time()
        bound = lower_bound_ps(collective, 2**30, topology, range(1024))
        assert bound > 0
        assert time.process_time() - begin < 20  # 0.02 to 0.2 s


def test_bounds_of_earlier_calls_change_nothing():
    topology = shapes.Dgx(
        nvlink_bandwidth=RATE, nvlink_latency=9, nodes=2, npus=4, nic_bandwidth=5 * GB, nic_latency=ALPHA
    ).build()
    shared = CallBounds(topology)
    for collective in COLLECTIVES:
        for size in (12345, 10**6):
            again = shared.of(collective, size, range(8), switches=False)
            assert again == CallBounds(topology).of(collective, size, range(8), switches=False)


def test_where_switches_reduce_only_the_total_is_less():
    n, size = 6, 1000
    for collective in ("all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "all_to_all", "scatter"):
        plain, reduced = demand(collective, size, n), demand(collective, size, n, switches=True)
        assert (plain.ingress, plain.egress) == (reduced.ingress, reduced.egress)
        total = {"all_reduce": n * size, "reduce_scatter": n * (size // n), "reduce": size}
        assert reduced.total == total.get(collective, plain.total)


def test_switches_of_the_user_count_in_bounds_and_those_of_presets_do_not():
    keys = {"shape": "switch", "npus": 8, "bandwidth": "50 GB/s", "latency": "500 ns"}
    plain, computing = ap.build_topology(**keys), ap.build_topology(**keys, switches={"capable": "all"})
    size, npus = 8 * 10**6, range(8)
    # 7/4 S/B over every link, or S/B; both from beyond the switch.
    assert lower_bound_ps("all_reduce", size, plain, npus) == 281_000_000
    assert lower_bound_ps("all_reduce", size, plain, npus, switches=True) == 161_000_000
    assert lower_bound_ps("all_reduce", size, computing, npus) == 161_000_000
    machine = replace(computing, computing=replace(computing.computing, of_machine=True))
    assert lower_bound_ps("all_reduce", size, machine, npus) == 281_000_000
