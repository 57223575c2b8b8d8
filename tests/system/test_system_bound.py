"""No time is below its bound, whoever enters a collective late, leaves it early, or takes part in it."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.bounds import problem_bound
from worlds.problems import calls, over_time, world
from worlds.switches import in_network
from worlds.tiles import in_tiles

import astrasim_py as ap
from astrasim_py.builders.registry import BUILDERS, IN_NETWORK, build, default_algorithm
from astrasim_py.builders.switch_trees import switches_above
from astrasim_py.collectives.collective import COLLECTIVES, promise_of
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import plan_for
from astrasim_py.workload.build import WorkloadBuilder

RANKS = 4
NETWORKS = {
    "one switch": {"shape": "switch", "npus": RANKS},
    "two leaves": {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1},
}


def assert_bounded(problem) -> None:
    """A run ends, at its bound or later; and so does each of its collectives."""
    plan = plan_for(problem)
    records = ap.simulate(plan, level="links", engine="simpy")
    if records.outcome.status != "done":
        return
    bound, table = problem_bound(plan), records.collective
    assert bound is None or bound <= records.makespan
    ended = table["end"] >= 0  # one of a job in the background may not
    assert (table["bound"] <= table["end"] - table["start"])[ended].all()


@pytest.mark.parametrize("where", NETWORKS)
@pytest.mark.parametrize(
    ("builder", "kind"),
    [(name, kind) for name in IN_NETWORK for kind in BUILDERS[name][0]]
    + [(default_algorithm(kind), kind) for kind in COLLECTIVES],
)
def test_one_rank_may_leave_early_or_enter_late(where, builder, kind) -> None:
    topology = ap.build_topology(
        **NETWORKS[where], bandwidth="50 GB/s", latency="1 us", switches={"capable": "all", "latency": "200 ns"}
    )
    npus, options = tuple(range(RANKS)), {}
    if builder == "nvls" and where != "one switch":
        return
    if builder in IN_NETWORK:
        options |= switches_above(topology, npus, builder, kind, options)
    rooted = {"root": 1} if promise_of(kind).rooted else {}
    for rank, late in product(range(RANKS), (False, True)):
        algorithm = build(builder, kind, RANKS, **rooted, **options).with_verdict(True)
        work = WorkloadBuilder(RANKS)
        work = work.compute("30 us", ranks=[rank]) if late else work
        work = work.collective(kind, 100 if kind != "barrier" else 0, **rooted)
        assert_bounded(ap.problem(work.compute("30 us", ranks=[rank]), topology, algorithm=algorithm))


def no_call_is_below_its_bound(seed: int) -> None:
    problem = calls(seed)
    if seed % 3:
        problem = in_network(problem, seed)
    assert_bounded(in_tiles(problem, seed) if seed % 5 == 0 else problem)


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_no_random_call_is_below_its_bound(seed) -> None:
    no_call_is_below_its_bound(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("tens", range(20))
def test_no_call_of_many_is_below_its_bound(tens) -> None:
    for seed in range(100 * tens, 100 * tens + 100):
        no_call_is_below_its_bound(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_no_random_problem_is_below_its_bound(seed) -> None:
    problem = over_time(in_network(world(seed, 6), seed), seed)
    with suppress(AstraError):  # it contradicts itself
        assert_bounded(problem)
