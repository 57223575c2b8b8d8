"""An explanation accounts for the whole makespan, piece by piece."""

from __future__ import annotations

import importlib.util
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import small_problems
from worlds.problems import world
from worlds.tiles import in_tiles

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.records import NODE_COLUMNS, Records, Table, called_instances, empty_table
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.report.busiest_links import busiest_links
from astrasim_py.report.critical_path import CATEGORIES
from astrasim_py.report.explain import explain, explanation_text
from astrasim_py.report.intervals import covered, union
from astrasim_py.report.neighbours import Part
from astrasim_py.runs.summary import edge_table
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.workload.items import Collective, Compute, Send
from astrasim_py.workload.microbenchmarks import generate

RATE = Fraction(10**9)  # a byte a nanosecond
US = 10**6


def load(path: Path):
    """A helper module beside the tests, under a name of its own."""
    name = f"tests_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class One:
    """One builder for every collective."""

    def __init__(self, name: str) -> None:
        self.name = name

    def select(self, collective, size, ranks, group, root=0, **_):
        """The algorithm."""
        return build(self.name, collective, ranks)


def run(topology, items, algorithm="ring", level="messages", **more):
    job = Job(workload=generate(items, topology.npus), placement=tuple(range(topology.npus)), algorithms=One(algorithm))
    return simulate(Problem(topology=topology, jobs=(job,), **more), level=level)


def contiguous(explanation) -> bool:
    at = 0
    for piece in explanation.path:
        if piece.start != at or piece.end <= piece.start:
            return False
        at = piece.end
    return at == explanation.makespan


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(small_problems.problems(), st.booleans())
def test_the_path_accounts_for_the_whole_makespan(problem, with_edges):
    records = simulate(problem, level="messages")
    edges = edge_table(problem.topology, records.link["link"]) if with_edges else None
    explanation = explain(records, edges)
    assert contiguous(explanation)
    assert sum(explanation.totals.values()) == records.makespan
    assert set(explanation.totals) == set(CATEGORIES)
    assert explanation_text(explanation)


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical"])
@pytest.mark.parametrize("busy", ["bytes", "latency+bytes"])
@pytest.mark.parametrize("completes", ["delivery", "injected"])
def test_every_network_model_is_explained(model, busy, completes):
    topology = shapes.Torus(dims=[2, 3], bandwidth=RATE, latency=500).build()
    network = NetworkModel(model=model, link_busy=busy, send_completes=completes)
    items = [Compute(time=US), Collective(type="all_to_all", size=6000), Send(source=0, to=3, size=100)]
    records = run(topology, items, "direct", network=network)
    explanation = explain(records, edge_table(topology, records.link["link"]))
    assert contiguous(explanation)
    assert bool(explanation.totals["transfer"]) == (model == "analytical")
    assert bool(explanation.totals["latency"]) == (model != "analytical")


def test_a_ring_is_latency_and_serialization_and_nothing_else():
    topology = shapes.Ring(npus=4, bandwidth=RATE, latency=500).build()
    records = run(topology, [Collective(type="all_reduce", size=4000)])
    explanation = explain(records, edge_table(topology, records.link["link"]))
    spent = {category: ps for category, ps in explanation.totals.items() if ps}
    assert spent == {"latency": 6 * 500, "serialization": 6 * 1000 * 1000}
    assert {piece.instance for piece in explanation.path} == {0}
    (only,) = explanation.exposures
    assert (only.duration, only.exposed, only.on_path) == (records.makespan,) * 3


def test_what_a_broken_off_collective_has_done_is_beyond_the_makespan():
    topology = shapes.Ring(npus=4, bandwidth=RATE, latency=500).build()
    items = [Compute(time=US), Collective(type="all_reduce", size=4000)]
    records = run(topology, items, limits=Limits(max_sim_time_ps=US + 2_500_000))
    assert records.makespan == US < int(records.node["end"].max())
    explanation = explain(records)
    assert contiguous(explanation) and explanation.totals["compute"] == US


@pytest.mark.parametrize("latency", [0, 500])
def test_shared_bandwidth_is_neither_serialization_nor_latency(latency):
    """Of two messages on one link, each at half its bandwidth; both links of a route are used at once."""
    topology = shapes.Switch(npus=3, bandwidth=RATE, latency=latency).build()
    items = [Send(source=0, to=2, size=1000, name="a"), Send(source=1, to=2, size=1000, name="b", after=())]
    records = run(topology, items, network=NetworkModel(model="fluid"))
    explanation = explain(records, edge_table(topology, records.link["link"]))
    assert contiguous(explanation)
    spent = {category: ps for category, ps in explanation.totals.items() if ps}
    assert spent == {"sharing": 10**6, "serialization": 10**6} | ({"latency": 2 * latency} if latency else {})
    assert explanation.waits("sharing") == [("switch0->2", 10**6)]
    assert "slowed down on switch0->2 1 µs" in explanation_text(explanation)


def test_waiting_for_messages_of_a_pair_is_charged_to_the_link_that_they_share():
    topology = shapes.Switch(npus=3, bandwidth=RATE, latency=0).build()
    items = [Send(source=s, to=2, size=1000, name=f"{s}{i}", after=()) for s in (0, 1) for i in (0, 1)]
    records = run(topology, items, network=NetworkModel(model="fluid"))
    explanation = explain(records, edge_table(topology, records.link["link"]))
    assert contiguous(explanation)
    assert explanation.waits() == [("switch0->2", 2 * 10**6)]
    assert explanation.waits("sharing") == [("switch0->2", 10**6)]


def test_waiting_for_a_link_is_charged_to_that_link():
    topology = shapes.Switch(npus=3, bandwidth=RATE, latency=0).build()
    items = [
        Send(source=0, to=2, size=1000, name="a"),
        Send(source=1, to=2, size=1000, name="b", after=()),
    ]
    records = run(topology, items)
    explanation = explain(records, edge_table(topology, records.link["link"]))
    assert explanation.totals["queueing"] == 10**6 and explanation.totals["serialization"] == 10**6
    assert explanation.waits() == [("switch0->2", 10**6)]
    assert "waited for switch0->2 1 µs" in explanation_text(explanation)
    (p2p,) = explanation.exposures
    assert p2p.instance == -1 and p2p.exposed == p2p.duration == records.makespan


def test_cut_through_does_not_count_bytes_twice():
    topology = shapes.Mesh(dims=[3], bandwidth=RATE, latency=100).build()
    for model, serialized in (("cut_through", 1000), ("store_and_forward", 2000)):
        records = run(topology, [Send(source=0, to=2, size=1000)], network=NetworkModel(model=model))
        for edges in (None, edge_table(topology, records.link["link"])):
            totals = explain(records, edges).totals
            assert (totals["latency"], totals["serialization"]) == (200, serialized * 1000)


def test_compute_hides_communication():
    topology = shapes.Ring(npus=2, bandwidth=RATE, latency=0).build()
    items = [
        Collective(type="all_reduce", size=2000, name="hidden"),
        Compute(time=US, after=()),
    ]
    records = run(topology, items)
    explanation = explain(records)
    assert records.makespan == 2 * US
    (only,) = explanation.exposures
    assert (only.duration, only.exposed) == (2 * US, US)
    assert records.exposed_comm.tolist() == [US, US]


def test_a_collective_produced_in_tiles_is_exposed_after_the_last_of_them():
    topology = shapes.Ring(npus=2, bandwidth=RATE, latency=0).build()
    items = [
        Compute(time=US, tiles=2, produces="sum", name="product"),
        Collective(type="reduce_scatter", size=2000, name="sum"),
    ]
    explanation = explain(run(topology, items))
    (only,) = explanation.exposures
    assert (only.exposed, explanation.makespan) == (explanation.makespan - US, only.duration + US // 2)
    assert only.exposed > 0


def test_the_path_goes_through_the_straggler():
    topology = shapes.Ring(npus=4, bandwidth=RATE, latency=500).build()
    items = [Compute(time=9 * US, ranks=(2,)), Collective(type="all_gather", size=4000)]
    explanation = explain(run(topology, items))
    first = explanation.path[0]
    assert (first.category, first.rank, first.end) == ("compute", 2, 9 * US)


def test_start_delays_are_waiting():
    topology = shapes.Ring(npus=2, bandwidth=RATE, latency=500).build()
    job = Job(
        workload=generate([Collective(type="all_reduce", size=2)], 2),
        placement=(0, 1),
        algorithms=One("ring"),
        start_delay_ps={1: 5 * US},
    )
    explanation = explain(simulate(Problem(topology=topology, jobs=(job,)), level="messages"))
    assert explanation.path[0].category == "waiting" and explanation.path[0].end == 5 * US


def test_lower_levels_are_refused():
    records = run(
        shapes.Ring(npus=2, bandwidth=RATE, latency=500).build(), [Collective(type="all_reduce", size=2)], level="nodes"
    )
    with pytest.raises(UsageError, match="messages"):
        explain(records)


def test_a_run_in_which_nothing_happened():
    node = Table({name: np.empty(0, dtype=np.int64) for name in NODE_COLUMNS})
    nothing = Records(
        level="messages",
        makespan=0,
        finish=np.zeros(1, dtype=np.int64),
        compute=np.zeros(1, dtype=np.int64),
        exposed_comm=np.zeros(1, dtype=np.int64),
        messages=0,
        message_hops=0,
        events=0,
        collective=empty_table(["instance"]),
        link=empty_table(["link"]),
        node=node,
    )
    explanation = explain(nothing)
    assert explanation.path == () and explanation_text(explanation) == "makespan 0 ps"


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda t: (t[0], t[0] + t[1])), max_size=8)


@given(INTERVALS, st.integers(0, 45))
def test_covered_time_is_the_size_of_the_union(intervals, until):
    start, end = (np.array([i[k] for i in intervals], dtype=np.int64) for k in (0, 1))
    points = {t for a, b in intervals for t in range(a, b)}
    assert int(covered(*union(start, end), np.array([until]))[0]) == sum(t < until for t in points)


def test_busiest_links_are_ordered_by_time_then_bytes_then_number():
    table = Table(
        {
            "link": [0, 1, 2, 3],
            "src": [0, 1, 2, 3],
            "dst": [1, 2, 3, 0],
            "bytes": [5, 9, 5, 5],
            "busy": [1, 1, 7, 1],
            "messages": [1] * 4,
            "max_queue": [-1] * 4,
            "queued": [-1] * 4,
        }
    )
    uses = busiest_links(table, {2: "two"}, count=3)
    assert [use["name"] for use in uses] == ["two", "1->2", "0->1"]
    assert uses[0]["queued"] == 0
    # Of links that are busy equally long, the slowest; by bytes first where nobody looked how long.
    rates = np.array([50, 100, 100, 25])
    assert [use["link"] for use in busiest_links(table, {}, rates)] == [2, 3, 0, 1]
    unknown = Table({**table, "busy": [-1] * 4})
    assert [use["link"] for use in busiest_links(unknown, {}, rates)] == [1, 3, 0, 2]
    assert busiest_links(table, {}, rates, 1)[0]["rate"] == 100


def test_the_path_of_each_job_adds_up():
    found = shared = 0
    for seed in range(120):
        problem = world(seed)
        if len(problem.jobs) < 2:
            continue
        try:
            records = simulate(problem, engine="simpy", level="messages")
        except AstraError:
            continue
        first, parts = 0, []
        for job in problem.jobs:
            parts.append(Part(job.name, range(first, first := first + job.ranks), job.arrival_ps))
        edges = edge_table(problem.topology, records.link["link"])
        for part, path in zip(parts, explain(records, edges, jobs=parts).jobs, strict=True):
            mine = (records.node["rank"] >= part.ranks.start) & (records.node["rank"] < part.ranks.stop)
            last = records.node["end"][mine & (records.node["end"] <= records.makespan)].max(initial=-1)
            assert path.time == sum(path.totals.values()) == max(int(last) - part.arrival, 0)
            assert all(0 < ps <= path.time for _, _, ps in path.shared)
            found += 1
            shared += bool(path.shared)
    assert found > 20 and shared


def test_the_path_through_tiles_adds_up():
    found = through = 0
    for seed in range(150):
        try:
            problem = in_tiles(world(seed), seed)
            plan = plan_for(problem)
            records = simulate(plan, engine="simpy", level="messages") if plan.tiles else None
        except AstraError:
            continue
        if records is None or records.outcome.status != "done":
            continue
        path = explain(records, edge_table(problem.topology, records.link["link"]))
        assert sum(path.totals.values()) == records.makespan
        called, kinds = called_instances(records.node), list(records.node["kind"])
        assert {str(kinds[row]) for row in np.flatnonzero(called >= 0)} <= {"collective"}
        kind, released = records.node["kind"], records.node["released_by"]
        inside = np.flatnonzero((records.node["instance"] >= 0) & (released >= 0))
        through += any(str(kind[row]) == "compute" for row in released[inside].tolist())
        found += 1
    assert found > 30 and through > 10


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical", "fluid"])
def test_records_name_the_network_model_that_the_path_is_split_by(model):
    switch = shapes.Switch(npus=3, bandwidth=RATE, latency=500).build()
    items = [Send(source=rank, to=2, size=4096, name=str(rank), after=()) for rank in (0, 1)]
    records = run(switch, items, network=NetworkModel(model=model))
    explanation = explain(records)
    assert records.network_model == model and contiguous(explanation)
    assert (explanation.totals["transfer"] > 0) == (model == "analytical")
    assert (explanation.totals["sharing"] > 0) == (model == "fluid")
    assert (explanation.totals["queueing"] > 0) == (model in ("cut_through", "store_and_forward"))
