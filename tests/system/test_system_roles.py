"""A workload of shared traces with roles and shifts is the workload in which every rank has its own trace."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds.problems import world
from worlds.role_workloads import own_traces, role_workload, with_roles, without_roles
from worlds.small_problems import trace

from astrasim_py.chakra.et_io import read_prefix, write_prefix
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import AstraError, TraceError
from astrasim_py.core.records import Records
from astrasim_py.engine.compare import differences
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.lowering import make_plan

CALL = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 8}


def outcome(problem, engine: str, level: str) -> Records | str:
    try:
        return simulate(make_plan(problem), engine=engine, level=level)
    except AstraError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.slow
@settings(max_examples=max(60, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.sampled_from((*LEVELS, "messages")))
def test_roles_leave_the_records_of_ranks_with_own_traces(seed, size, level):
    shared = with_roles(world(seed, size), seed, size + 4)
    expected = outcome(without_roles(shared), "simpy", level)
    for engine in ("simpy", "compiled"):
        found = outcome(shared, engine, level)
        if isinstance(expected, Records) and isinstance(found, Records):
            assert differences(expected, found) == []
        else:
            assert expected == found


def test_own_traces_have_own_groups_and_peers():
    nodes = [CALL, {"type": NodeType.COMM_SEND, "comm_src": 0, "comm_dst": 2, "comm_tag": 1, "comm_size": 4}]
    shared = trace(nodes).replace(pg_name=["tp", None])
    idle = trace([{"type": NodeType.COMP}])
    roles = {"tp": ["a", "b", None, None]}
    workload = Workload((shared, shared, idle, idle), {"a": (0,), "b": (1,)}, roles=roles, shifts=(0, 1, 0, 0))
    own = workload.trace(1)
    assert own.group_of()[1] == ("b",)
    assert own.column("comm_dst").tolist() == [MISSING, 3]
    assert own.column("comm_src").tolist() == [MISSING, 1]
    assert workload.trace(2) is idle
    assert workload.digest() != Workload(workload.traces, workload.groups, roles=roles).digest()
    assert workload.digest() != own_traces(workload).digest()


@pytest.mark.parametrize("seed", range(8))
def test_own_traces_are_written_read_and_clean(seed, tmp_path):
    workload = role_workload(random.Random(seed), 6, 12)
    own = own_traces(workload)
    assert not [finding for finding in lint(own.traces, own.groups) if finding.severity == "error"]
    write_prefix(tmp_path / "x", own.traces)
    again = read_prefix(tmp_path / "x")
    assert [trace.digest() for trace in again] == [trace.digest() for trace in own.traces]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"roles": {"tp": ["a", "a"]}}, 'role tp: gives rank 1 the group "a", and is not one of its members'),
        ({"roles": {"tp": ["a", "c"]}}, 'role tp: gives rank 1 the group "c", and there is no such group'),
        ({"roles": {"tp": ["a"]}}, "role tp: has 1 values for 2 ranks"),
        ({"roles": {"a": ["a", None]}}, "role a: is also the name of a group"),
        ({"shifts": [0]}, "shifts: has 1 values for 2 ranks"),
    ],
)
def test_bad_roles_are_refused_in_one_line(more, text):
    with pytest.raises(TraceError) as caught:
        Workload((trace([CALL]),) * 2, {"a": (0,)}, **more)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("node", "name", "more", "text"),
    [
        (CALL, "tp", {"roles": {"tp": ["a", None]}}, "role tp: gives rank 1 no group, but its trace uses one"),
        (CALL, "dp", {"roles": {"tp": ["a", None]}}, 'rank 0: node 0: its group "dp" is not defined'),
        (
            {"type": NodeType.COMM_SEND, "comm_dst": 1, "comm_tag": 0, "comm_size": 4},
            None,
            {"shifts": [0, 1]},
            "rank 1: node 0: comm_dst 2 is not a rank of this workload (0..1)",
        ),
        (
            {"type": NodeType.COMM_RECV, "comm_src": 1, "comm_tag": 0, "comm_size": 4},
            None,
            {"shifts": [0, -2]},
            "rank 1: node 0: a receive node has comm_src -1",
        ),
    ],
)
def test_roles_that_fit_no_rank_are_refused_in_one_line(node, name, more, text):
    problem = next(p for p in map(world, range(99)) if len(p.jobs) == 1 and p.jobs[0].ranks == 2)
    workload = Workload((trace([node]).replace(pg_name=name),) * 2, {"a": (0,)}, **more)
    job = type(problem.jobs[0])(workload=workload, placement=(0, 1), algorithms=problem.jobs[0].algorithms)
    with pytest.raises(TraceError) as caught:
        make_plan(type(problem)(topology=problem.topology, jobs=(job,)))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
