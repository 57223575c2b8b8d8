"""The SimPy engine and the small replay engine agree on every node and every hop, to the picosecond."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from oracle.replay import Replay
from worlds import small_problems

from astrasim_py.api import build_topology
from astrasim_py.builders.registry import build
from astrasim_py.engine.compare import differences
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.system.lowering import make_plan


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(small_problems.problems())
def test_both_engines_leave_the_same_records(problem):
    plan = make_plan(problem)
    records = simulate(plan, level="messages")
    other = Replay(plan).run()
    first, total = plan.first_row, plan.row_count
    start, end = records.node["start"].tolist(), records.node["end"].tolist()
    expected_start, expected_end = [-1] * total, [-1] * total
    for (rank, index, node), (begin, done) in other.nodes.items():
        expected_start[first(rank, index) + node] = begin
        expected_end[first(rank, index) + node] = -1 if done is None else done
    assert start == expected_start
    assert end == expected_end
    hops = list(zip(*(records.hop[c].tolist() for c in ("link", "requested", "start", "end")), strict=True))
    assert hops == [hop[:4] for hop in other.hops]
    assert (records.outcome.status == "done") == (-1 not in expected_end)


def test_far_more_hops_than_messages_are_recorded():
    ring = build_topology(shape="ring", npus=32, bandwidth="50 GB/s", latency="500 ns")
    given = collective("all_to_all", 32 * 32, ring, algorithm="direct")
    reference, compiled = (simulate(given, engine=engine, level="messages") for engine in ("simpy", "compiled"))
    assert differences(reference, compiled) == []
    assert compiled.hop.height > 8 * compiled.message.height > 4096


def test_nodes_with_many_dependencies_in_calls_of_one_program():
    # A node of the second phase needs 63 nodes of the first: more than its state can count.
    torus = build_topology(shape="torus", dims=[64, 2], bandwidth="50 GB/s", latency="500 ns")
    algorithm = build("hierarchical", "all_reduce", 128, dims=[64, 2])
    plan = make_plan(collective("all_reduce", 128 * 1000, torus, algorithm=algorithm))
    assert plan.calls[0].base.structure.need.max() >= 63
    reference, compiled = (simulate(plan, engine=engine, level="nodes") for engine in ("simpy", "compiled"))
    assert differences(reference, compiled) == []
