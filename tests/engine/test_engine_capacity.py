"""The compiled engine's tables grow: counts around powers of two end as with SimPy, and no run stands still."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import small_problems
from worlds.problems import over_time, world
from worlds.switches import in_network

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.cli.main import main
from astrasim_py.core.errors import InternalError
from astrasim_py.engine.compare import differences
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.build import kernel_input
from astrasim_py.engine.compiled.state import State
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics

US = 10**6
FREE = Semantics.native(cpu_slots=None, compute_slots=None)


@pytest.fixture
def tight(monkeypatch):
    """Tables begin as small as can be and hold no more than one step takes: all of them grow, all the time."""
    monkeypatch.setattr(State, "rows", 1)
    monkeypatch.setattr(State, "spare", 1)


def compute(count: int, *, step: int = 0) -> list[dict]:
    """Nodes that wait for nothing, of 1 us and `step` ps more each."""
    return [{"type": NodeType.COMP, "duration_ps": US + step * i} for i in range(count)]


def messages(count: int, *, late: bool = False) -> list[list[dict]]:
    """Messages of one tag from rank 0 to rank 1, which waits for a while if it is `late`."""
    ends = {"comm_src": 0, "comm_dst": 1, "comm_size": 1000, "comm_tag": 0}
    wait = [{"type": NodeType.COMP, "duration_ps": 10**10}] * late
    receives = [{"type": NodeType.COMM_RECV, **ends, "deps": {0} if late else set()}] * count
    return [[{"type": NodeType.COMM_SEND, **ends}] * count, wait + receives]


def calls(count: int) -> list[list[dict]]:
    """Collectives that wait for nothing."""
    return [[{"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 64}] * count] * 2


#: By table: the nodes of two ranks that take so many rows of it at once, and the slots of the ranks.
WORLDS = {
    "wave": (lambda count: [compute(count), compute(1)], Semantics.native()),
    "events": (lambda count: [compute(count), compute(1)], FREE),
    "buckets": (lambda count: [compute(count, step=1), compute(1)], FREE),
    "matches": (lambda count: messages(count, late=True), FREE),
    "waits": (lambda count: messages(count + 1), FREE),
    "message_rows": (messages, FREE),
    "hop_rows": (messages, FREE),
    "blocks": (calls, FREE),
    "arena": (calls, FREE),
}


def plan_of(table: str, count: int, **more) -> Plan:
    nodes, semantics = WORLDS[table]
    job = Job(workload=small_problems.workload(nodes(count)), placement=(0, 1), algorithms=small_problems.Table("ring"))
    net = ap.build_topology(shape="ring", npus=2, bandwidth="1 GB/s", latency="1 us")
    return plan_for(Problem(topology=net, jobs=(job,), semantics=semantics, **more))


def assert_same(plan: Plan) -> None:
    reference, compiled = (simulate(plan, engine=engine, level="messages") for engine in ("simpy", "compiled"))
    assert differences(reference, compiled) == []


def test_every_table_that_grows_has_a_world():
    assert set(WORLDS) == set(records.POOLS)


@pytest.mark.parametrize("table", WORLDS)
@pytest.mark.parametrize("count", [1023, 1024, 1025, 1026])
def test_counts_around_the_room_that_tables_begin_with(table, count):
    assert_same(plan_of(table, count))


@pytest.mark.nightly
@pytest.mark.parametrize("table", WORLDS)
@pytest.mark.parametrize("power", [11, 12, 13])
def test_counts_around_larger_powers_of_two(table, power):
    for count in range(2**power - 1, 2**power + 3):
        assert_same(plan_of(table, count))


@pytest.mark.parametrize("table", WORLDS)
def test_counts_around_powers_of_two(table, tight):
    """With the least room, from which tables grow as little as they can."""
    for power in range(2, 8):
        for count in range(2**power - 1, 2**power + 3):
            plan = plan_of(table, count)
            assert_same(plan)
            state = State(kernel_input(plan, rows=True), nodes=plan.row_count, messages=True)
            state.run()
            reached = len(state.tables["wave"]) if table == "wave" else state.top(table)
            assert reached >= count


@pytest.mark.parametrize("steps", [50, 2**20])
@settings(suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 9))
def test_any_problem_in_tables_without_spare_room(tight, monkeypatch, seed, size, steps):
    """The bound of what one step takes holds for every rule, and the kernel can return between any two."""
    monkeypatch.setattr(State, "steps", steps)
    problem = over_time(in_network(world(seed, size), seed), seed)
    level = "messages" if seed % 3 else "summary"
    told = []
    for engine in ("simpy", "compiled"):
        try:
            told.append(simulate(problem, engine=engine, level=level))
        except ap.AstraError as error:
            told.append(str(error))
    assert told[0] == told[1] if isinstance(told[0], str) else differences(*told) == []


@pytest.mark.parametrize("limits", [{"max_events": 1025}, {"max_events": 1}, {"max_sim_time_ps": 1024 * US}])
@pytest.mark.parametrize("table", WORLDS)
def test_limits_hold_while_tables_grow(table, limits, tight):
    plan = plan_of(table, 1025, limits=Limits(**limits))
    reference, compiled = (simulate(plan, engine=engine, level="nodes") for engine in ("simpy", "compiled"))
    assert reference.outcome == compiled.outcome
    if table == "wave":
        assert compiled.outcome.status == "limit"


# -- the watchdog ---------------------------------------------------------------------------------------------------

SCENARIO = """
topologies: {pair: {shape: ring, npus: 2, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_reduce: {size: 1 MiB}}]
"""


def test_a_kernel_that_stands_still_is_a_defect_in_one_line(tmp_path, monkeypatch, capsys, tight):
    """Here because it does not get the room that it asks for."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    command = ["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"), "--engine", "compiled", "--jobs", "1"]
    monkeypatch.setattr(State, "_grow", lambda *_: None)
    assert main(command) == 70
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if "stands still" in line]
    assert "defect" in line
    assert "--engine simpy" in line


def test_a_kernel_that_writes_beyond_a_table_is_a_defect(monkeypatch):
    monkeypatch.setattr(State, "top", lambda self, name: 2**20 if name == "matches" else 0)
    with pytest.raises(InternalError, match="beyond its table of matches"):
        simulate(plan_of("wave", 1), engine="compiled", level="summary")


# -- runs of users --------------------------------------------------------------------------------------------------


def switch(npus: int):
    return ap.build_topology(shape="switch", npus=npus, bandwidth="50 GB/s", latency="500 ns")


@pytest.mark.parametrize(("npus", "size"), [(4, "1 MiB"), (2, "256 MiB")])
@pytest.mark.parametrize("chunks", [511, 512, 513])
def test_trees_of_many_chunks(npus, size, chunks):
    made = ap.build_algorithm("double_binary_tree", "all_reduce", npus, chunks=chunks)
    given = ap.collective("all_reduce", size, switch(npus), algorithm=made)
    assert_same(plan_for(given))


@pytest.mark.parametrize("npus", [512, 513, 514])
def test_all_to_all_of_many_ranks(npus):
    """Each link in or out carries n - 1 messages one after the other, and no message waits for another's head."""
    given = ap.collective("all_to_all", npus * 10_000, switch(npus))
    took = simulate(given, engine="compiled", level="summary").makespan
    # 10,000 bytes at 50 GB/s are 200 ns; two links of 500 ns.
    assert took == (npus - 1) * 200_000 + 2 * 500_000


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_candidates_of_a_library_end(tmp_path, engine):
    """Two ranks on two nodes, for which trees of 512 chunks are priced; with either engine these runs are compiled."""
    (tmp_path / "s.yaml").write_text(
        "topologies: {two: {preset: dgx_h100, nodes: 2}}\nalgorithms: nccl\n"
        "workload: [{all_reduce: {size: 256 MiB, group: [0, 8]}}]\n"
    )
    row = ap.run(tmp_path / "s.yaml", out=tmp_path / "out", jobs=1, engine=engine).rows[0]
    # 256 MiB over a link of 50 GB/s.
    assert float(row["time_ns"]) == pytest.approx(2**28 / 50, rel=0.01)


LOG = """\
# nccl-tests version 2.17.8 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 67108864 maxBytes 1073741824 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4000 on      node0 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4008 on      node1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
    67108864      16777216     float     sum      -1  1398.10   48.00   48.00       0  1398.10   48.00   48.00       0
   268435456      67108864     float     sum      -1  5592.41   48.00   48.00       0  5592.41   48.00   48.00       0
  1073741824     268435456     float     sum      -1  22369.6   48.00   48.00       0  22369.6   48.00   48.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 48
"""


@pytest.mark.slow
def test_validation_with_a_log_of_two_nodes_ends(tmp_path, capsys):
    (tmp_path / "log.txt").write_text(LOG)
    assert main(["measured", "validate", "collectives", str(tmp_path / "log.txt"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 3
