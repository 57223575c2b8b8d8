"""Laws that every run obeys, whatever the problem."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import small_problems
from worlds.bounds import problem_bound

from astrasim_py.builders.registry import build
from astrasim_py.core.choices import LEVELS
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
GB = Fraction(10**9)


@relaxed
@given(small_problems.problems())
def test_no_event_before_its_cause(problem):
    records = simulate(problem, level="messages")
    node, message, hop = records.node, records.message, records.hop
    done = node["end"] >= 0
    assert (node["end"][done] >= node["start"][done]).all()
    cause = node["released_by"]
    # Nodes of a stuck run that never started have a cause only.
    for row in np.flatnonzero((cause >= 0) & (node["start"] >= 0)).tolist():
        before = int(cause[row])
        if node["instance"][row] >= 0 and node["kind"][before] == "collective":
            assert node["start"][row] == node["start"][before]
        else:
            assert node["end"][before] == node["start"][row]
    for row in np.flatnonzero(node["ended_by"] >= 0).tolist():
        assert 0 <= node["end"][int(node["ended_by"][row])] <= node["end"][row]
    assert (message["start"] >= message["posted"]).all()
    arrived = message["delivered"] >= 0
    assert (message["delivered"][arrived] >= message["start"][arrived]).all()
    assert (hop["start"] >= hop["requested"]).all()
    received = message["recv_node"] >= 0
    assert (node["end"][message["recv_node"][received]] >= message["delivered"][received]).all()


@relaxed
@given(small_problems.problems(slots=False))
def test_every_node_runs_once(problem):
    plan = make_plan(problem)
    records = simulate(plan, level="nodes")
    assert records.outcome.status == "done"
    assert records.node.height == plan.row_count
    assert (records.node["end"] >= 0).all()
    assert records.messages == plan.messages
    assert records.makespan == max(records.node["end"].max(initial=0), 0)


@relaxed
@given(small_problems.problems(slots=False))
def test_bytes_are_conserved(problem):
    records = simulate(problem, level="messages")
    message, hop, link = records.message, records.hop, records.link
    if problem.network.contention:
        on_link = np.zeros(problem.topology.links, dtype=np.int64)
        np.add.at(on_link, hop["link"], message["bytes"][hop["message"]])
        assert (on_link[link["link"]] == link["bytes"]).all()
        assert on_link.sum() == link["bytes"].sum()
    assert link["bytes"].sum() == (message["bytes"] * message["hops"]).sum()
    assert link["messages"].sum() == message["hops"].sum() == records.message_hops
    assert (message["recv_node"] >= 0).all()


@relaxed
@given(small_problems.problems(models=("cut_through", "store_and_forward")))
def test_links_are_first_in_first_out(problem):
    records = simulate(problem, level="messages")
    hop = records.hop
    for index in set(hop["link"].tolist()):
        rows = np.flatnonzero(hop["link"] == index)
        assert (np.diff(hop["requested"][rows]) >= 0).all()
        assert (hop["start"][rows][1:] >= hop["end"][rows][:-1]).all()
    busy = records.link["busy"]
    last = max(records.makespan, hop["end"].max(initial=0))
    assert (busy <= last).all()


@relaxed
@given(small_problems.problems(slots=False))
def test_no_time_is_below_its_bound(problem):
    plan = make_plan(problem)
    records = simulate(plan, level="links")
    bound = problem_bound(plan)
    if problem.network.contention:
        assert bound is not None
        assert bound <= records.makespan
        table = records.collective
        assert (table["bound"] <= table["end"] - table["start"]).all()
    else:
        assert bound is None
        assert (records.collective["bound"] == -1).all()


@relaxed
@given(small_problems.problems(slots=False))
def test_levels_do_not_change_what_happens(problem):
    plan = make_plan(problem)
    runs = [simulate(plan, level=level) for level in LEVELS]
    for run in runs[1:]:
        assert run.makespan == runs[0].makespan
        assert run.finish.tolist() == runs[0].finish.tolist()
        assert run.exposed_comm.tolist() == runs[0].exposed_comm.tolist()
        assert run.link["bytes"].tolist() == runs[0].link["bytes"].tolist()
        assert run.collective["end"].tolist() == runs[0].collective["end"].tolist()


def collective_problem(topology, collective, size, algorithm, placement=None, model="cut_through") -> Problem:
    """One collective on all NPUs."""
    n = topology.npus
    made = dataclasses.replace(build(algorithm, collective, n), verdict=True)

    class One:
        def select(self, *_, **__):
            return made

    return Problem(
        topology=topology,
        jobs=(
            Job(
                workload=generate([Collective(type=collective, size=size)], n),
                placement=tuple(placement or range(n)),
                algorithms=One(),
            ),
        ),
        network=NetworkModel(model=model),
    )


@given(
    st.sampled_from(["ring", "direct"]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.sampled_from(["cut_through", "store_and_forward", "analytical"]),
    st.sampled_from(["ring", "fully_connected", "switch"]),
    st.integers(1, 50),
)
@settings(max_examples=40)
def test_doubled_bandwidth_halves_the_time(algorithm, collective, model, shape, chunk):
    n, size = 6, 6 * 2 * chunk * 1000
    times = []
    for rate in (GB, 2 * GB):
        topology = shapes.SHAPES[shape](npus=n, bandwidth=rate, latency=0).build()
        times.append(simulate(collective_problem(topology, collective, size, algorithm, model=model)).makespan)
    assert times[0] == 2 * times[1] > 0


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical"])
@pytest.mark.parametrize(("algorithm", "collective"), [("ring", "all_reduce"), ("direct", "all_to_all")])
@pytest.mark.parametrize("shape", ["ring", "torus"])
def test_translating_all_ranks_changes_no_time(model, algorithm, collective, shape):
    topology = (
        shapes.Ring(npus=8, bandwidth=GB, latency=700).build()
        if shape == "ring"
        else shapes.Torus(dims=[4, 3], bandwidth=GB, latency=700).build()
    )
    n = topology.npus
    base = [int(p) for p in np.random.default_rng(7).permutation(n)]
    moves = list(small_problems.translations(topology))
    assert len(moves) == n
    times = set()
    for move in moves:
        placement = [int(move[p]) for p in base]
        problem = collective_problem(topology, collective, n * 1000, algorithm, placement, model)
        times.add(simulate(problem).makespan)
    assert len(times) == 1


def test_a_model_without_contention_is_not_slower():
    topology = shapes.Ring(npus=8, bandwidth=GB, latency=500).build()
    times = {
        model: simulate(collective_problem(topology, "all_to_all", 8000, "direct", model=model)).makespan
        for model in ("analytical", "cut_through", "store_and_forward")
    }
    assert times["analytical"] <= times["cut_through"] <= times["store_and_forward"]
    assert times["analytical"] < times["cut_through"]
