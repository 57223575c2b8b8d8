"""Folding of workloads with roles: a few ranks tell what the full run tells, or by how much they may be off."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds.problems import random_profile
from worlds.training import TINY, ByWork, fast, layout_of, problem_of

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import FoldError
from astrasim_py.core.records import Records, Table
from astrasim_py.dialects.chunks.lower import DimensionPlanner
from astrasim_py.engine import fold_roles
from astrasim_py.engine.compare import differences
from astrasim_py.engine.fold_roles import run_folded_roles
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.machine_models import Collectives, NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import from_keys, shapes
from astrasim_py.training.traces import training_workload


def nodes_of(nodes: int, npus: int, nic: int = 10):
    """Nodes of NPUs, each with a NIC of its own."""
    keys = {"shape": "dgx", "nodes": nodes, "npus": npus, "nvlink_bandwidth": "300 GB/s", "nvlink_latency": "300 ns"}
    return from_keys.build(keys | {"nic_bandwidth": f"{nic} GB/s", "nic_latency": "1 us"}, "test", written=True)


def training(topology, ranks: int, network: NetworkModel | None = None, **keys) -> Problem:
    return problem_of(training_workload(layout_of(ranks, **keys), ByWork()), topology, network)


def folded(problem: Problem, most: int) -> Records:
    """The folded run in which a copy may have so many nodes."""

    def run(part: Problem, level: str):
        plan = plan_for(part)
        return plan, simulate(plan, engine="compiled", level=level)

    return run_folded_roles(plan_for(problem, fold=True), "links", run, most)


def assert_equal(full: Records, some: Records) -> None:
    """All that the folded run tells is what the full run does."""
    rows = some.collective["instance"]
    part = Table({name: column[rows] for name, column in full.collective.items()})
    found = differences(replace(full, collective=part), some)
    assert [line for line in found if not line.startswith(("events", "fold"))] == []


def case(seed: int) -> Problem:
    """A small training on some network."""
    draw = random.Random(seed)
    tp, pp, dp, cp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), draw.choice([2, 3, 4]), draw.choice([1, 1, 2])
    keys = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "zero": draw.choice([0, 1, 2, 3]), "model": TINY}
    keys |= {"sp": tp > 1 and draw.random() < 0.5, "recompute": draw.choice(["none", "full"])}
    keys |= {"overlap": {"dp": draw.random() < 0.5}, "microbatches": draw.choice([1, 3, 4])}
    if draw.random() < 0.3 and 1 < pp < 4:
        keys |= {"vp": 2, "schedule": "interleaved", "microbatches": 2 * pp}
    elif draw.random() < 0.3:
        keys |= {"model": TINY | {"experts": 8, "topk": 2, "moe_ffn": 64}, "ep": dp * cp if dp != 3 else 1}
    ranks = tp * pp * dp * cp
    network = NetworkModel(model=draw.choice(["cut_through", "store_and_forward", "analytical"]))
    where = draw.choice(["nodes", "nodes", "full", "fast"])
    if where == "nodes":
        topology = nodes_of(ranks // tp, tp, draw.choice([1, 10, 100]))
    elif where == "full":
        topology = shapes.FullyConnected(npus=ranks, bandwidth=Fraction(10**9), latency=1000).build()
    else:
        topology = fast(ranks)
    return training(topology, ranks, network, **keys)


def under_a_profile(problem: Problem, seed: int) -> Problem:
    """The same with collectives of a library."""
    profile = random_profile(random.Random(seed)).model_copy(update={"link": max(problem.topology.bandwidths)})
    return replace(problem, network=NetworkModel(profile=profile))


@pytest.mark.parametrize("seed", range(30))
def test_folded_is_full_or_within_what_it_says(seed):
    problem = case(seed) if seed < 24 else under_a_profile(case(seed), seed)
    full = simulate(problem, engine="compiled", level="links")
    for most in (0, 10**6):
        some = folded(problem, most)
        assert abs(some.makespan - full.makespan) <= some.fold.deviation
        if some.fold.exact:
            assert_equal(full, some)
    assert some.fold.exact or some.fold.copies > 1


def test_one_rank_of_each_stage_stands_for_all():
    keys = {"tp": 2, "pp": 4, "dp": 4, "zero": 1, "sp": False, "microbatches": 4, "overlap": {"dp": True}}
    problem = training(nodes_of(16, 2), 32, NetworkModel(model="analytical"), **keys)
    some = simulate(problem, fold=True)
    assert (some.fold.exact, some.fold.deviation, some.fold.ranks, some.fold.copies) == (True, 0, 4, 8)
    assert some.engine.endswith("+fold")
    assert_equal(simulate(problem, engine="compiled"), some)


def test_roles_that_share_links_are_kept_or_reported():
    """Gradients and activations leave by one NIC at one time."""
    keys = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "sp": False, "microbatches": 4, "overlap": {"dp": True}}
    problem = training(nodes_of(4, 2, 1), 8, **keys)
    full = simulate(problem, engine="compiled")
    kept, lanes = folded(problem, 10**6), folded(problem, 0)
    assert (kept.fold.exact, kept.fold.ranks, kept.makespan) == (True, 4, full.makespan)
    assert (lanes.fold.exact, lanes.fold.ranks) == (False, 2)
    assert 0 < abs(lanes.makespan - full.makespan) <= lanes.fold.deviation
    assert "collectives of dp" in lanes.fold.text and "meet on" in lanes.fold.text
    assert "with an error of" in lanes.fold.text and "with an error of" not in kept.fold.text


def test_folded_collectives_are_communication():
    keys = {"tp": 4, "pp": 1, "dp": 2, "zero": 0, "sp": False, "microbatches": 2}
    problem = training(nodes_of(2, 4), 8, **keys)
    some, full = (simulate(problem, engine="compiled", fold=fold) for fold in (True, False))
    assert some.fold.ranks == 1
    assert np.array_equal(some.exposed_comm, full.exposed_comm) and int(full.exposed_comm.min()) > 0
    assert np.array_equal(some.compute, full.compute)


def refused(problem: Problem, *words: str, **options) -> None:
    with pytest.raises(FoldError) as error:
        simulate(problem, fold=True, **options)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert len(error.value.lines()) == 1


def test_what_is_refused():
    keys = {"tp": 2, "pp": 2, "dp": 2, "microbatches": 2}
    problem = training(nodes_of(4, 2), 8, **keys)
    job = problem.jobs[0]
    refused(problem, "single ranks", level="nodes")
    refused(problem, "both", engine="both")
    refused(replace(problem, jobs=(replace(job, start_delay_ps={3: 5}),)), "start_delay")
    refused(replace(problem, jobs=(replace(job, compute_speed={3: Fraction(1, 2)}),)), "speeds")
    refused(replace(problem, semantics=Semantics(comm_slots=1)), "comm_slots")
    refused(replace(problem, semantics=Semantics(base="astra_sim")), "message_match")
    swapped = (1, 0, 2, 5, 4, 3, 6, 7)
    refused(replace(problem, jobs=(replace(job, placement=swapped),)), "routes", "rank")


def test_workloads_without_roles_are_folded_as_before():
    flat = shapes.FullyConnected(npus=8, bandwidth=Fraction(10**9), latency=1000).build()
    problem = training(flat, 8, tp=2, pp=2, dp=2, microbatches=2)
    workload = problem.jobs[0].workload
    plain = replace(workload, traces=tuple(map(workload.trace, range(8))), roles={}, shifts=())
    refused(
        replace(problem, jobs=(replace(problem.jobs[0], workload=plain),)), "meet in collectives in different orders"
    )


def test_a_collective_that_meets_itself_is_not_exact():
    """Two microbatches exchange tokens at one time: equal calls of one role on the same links."""
    moe = TINY | {"experts": 8, "topk": 2, "moe_ffn": 64}
    keys = {"dp": 4, "ep": 4, "zero": 1, "microbatches": 4, "overlap": {"ep": True}, "model": moe}
    problem = training(nodes_of(4, 1, 1), 4, **keys)
    full, some, kept = simulate(problem, engine="compiled"), folded(problem, 0), folded(problem, 10**6)
    assert not some.fold.exact and 0 < full.makespan - some.makespan <= some.fold.deviation
    assert kept.fold.exact
    assert_equal(full, kept)


def test_orders_that_fold_may_change_are_not_exact(monkeypatch):
    """Gathered weights and activations leave a rank at one time; which of them goes first depends on a folded role."""
    keys = {"tp": 4, "pp": 2, "cp": 2, "vp": 2, "schedule": "interleaved", "microbatches": 2, "zero": 3, "sp": True}
    keys |= {"recompute": "full", "overlap": {"dp": True, "tp": True}, "model": TINY | {"layers": 8}}
    torus = from_keys.build(
        {"shape": "torus", "dims": [4, 4], "bandwidth": "100 GB/s", "latency": "500 ns"}, "test", written=True
    )
    found = {}
    for name in ("store_and_forward", "analytical"):
        problem = training(torus, 16, NetworkModel(model=name), **keys)
        full, ring, kept = simulate(problem, engine="compiled"), folded(problem, 0), folded(problem, 10**6)
        with monkeypatch.context() as without_rings:
            without_rings.setattr(fold_roles, "covered", lambda *_: None)
            some = folded(problem, 0)
        found[name] = some.fold.exact
        assert kept.fold.exact and ring.fold.exact
        assert_equal(full, kept)
        assert_equal(full, ring)
        if some.fold.exact:
            assert_equal(full, some)
    assert found == {"store_and_forward": False, "analytical": True}


def by_dimension(problem: Problem, **how) -> Problem:
    """A problem whose collectives are cut into chunks that visit one dimension after the other."""
    topology, (job,) = problem.topology, problem.jobs
    sizes = tuple(dim.size for dim in topology.dims)
    planner = DimensionPlanner(
        sizes=sizes,
        make=lambda collective, ranks, dim, size: build("ring", collective, ranks),
        how=Collectives(**how),
        rate=(Fraction(10**9),) * len(sizes),
        placement=job.placement,
    )
    return replace(problem, jobs=(replace(job, planner=planner),))


@pytest.mark.parametrize("how", [{"chunks": 4}, {"chunks": 2, "active_chunks": 2, "order": "themis"}])
def test_collectives_by_dimension_are_folded(how):
    keys = {"tp": 2, "pp": 2, "dp": 3, "zero": 1, "microbatches": 2, "overlap": {"dp": True}, "model": TINY}
    shape = {"shape": "torus", "bandwidth": "1 GB/s", "latency": "500 ns"}
    for dims, exact in ([2, 3, 2], True), ([6, 2], False):
        torus = from_keys.build(shape | {"dims": dims}, "test", written=True)
        problem = by_dimension(training(torus, 12, **keys), **how)
        full, some, kept = simulate(problem, engine="compiled"), folded(problem, 0), folded(problem, 10**6)
        assert some.fold.exact == exact and some.fold.ranks == 2
        assert abs(some.makespan - full.makespan) <= some.fold.deviation
        assert_equal(full, kept)
        if exact:
            assert_equal(full, some)


def test_chunks_of_two_roles_in_one_queue_are_not_exact():
    """Both roles have links of their own, but their chunks wait for each other in the queue of a dimension."""
    keys = {
        "tp": 2,
        "pp": 1,
        "dp": 2,
        "zero": 1,
        "microbatches": 2,
        "overlap": {"dp": True},
        "sp": False,
        "model": TINY,
    }
    every = from_keys.build(
        {"shape": "fully_connected", "npus": 4, "bandwidth": "1 GB/s", "latency": "0 s"}, "", written=True
    )
    problem = training(every, 4, NetworkModel(model="analytical"), **keys)
    assert folded(problem, 0).fold.exact
    planned = folded(by_dimension(problem, chunks=2), 0).fold
    assert not planned.exact and "queue 0 of NPU 0" in planned.text
