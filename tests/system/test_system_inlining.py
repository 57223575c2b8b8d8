"""Inlining: the workload runs as with its collectives, event for event."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from worlds.problems import world
from worlds.tiles import in_tiles

from astrasim_py import build_topology
from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import read_prefix, write_prefix
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.inlining import inline
from astrasim_py.system.noise import ComputeNoise, Detours, Noise
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.workload.items import Collective, Compute, Send
from astrasim_py.workload.microbenchmarks import generate

MIB = 2**20
EXAMPLES = max(200, settings().max_examples)


def inlined(problem: Problem) -> Problem:
    workload, lost, *_ = inline(problem)
    assert lost == []
    return replace(problem, jobs=(replace(problem.jobs[0], workload=workload, planner=None),))


def times(records: Records, problem: Problem, *, spliced: bool) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Start and end of each node, by rank, call (-1: the workload) and its own id; without collectives themselves."""
    node, traces, found = records.node, problem.jobs[0].workload.traces, {}
    kinds = [str(kind) for kind in node["kind"]]
    columns = zip(*(node[name].tolist() for name in ("rank", "instance", "node", "start", "end")), kinds, strict=True)
    call, own = ([t.column(name).tolist() for t in traces] for name in ("inlined_call", "inlined_node"))
    row = [{int(i): at for at, i in enumerate(t.node_id.tolist())} for t in traces]
    for rank, instance, recorded, start, end, kind in columns:
        number = recorded % 2**64  # records hold ids as int64
        if spliced and instance >= 0:
            found[rank, instance, number] = start, end
        elif not spliced and own[rank][row[rank][number]] != MISSING:
            at = row[rank][number]
            found[rank, call[rank][at], own[rank][at]] = start, end
        elif kind != "collective" and (spliced or call[rank][row[rank][number]] == MISSING):
            found[rank, -1, number] = start, end
    return found


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.booleans(), st.sampled_from(("simpy", "compiled")))
def test_any_workload_runs_as_with_its_collectives(seed, size, tiles, engine):
    try:
        problem = world(seed, size)
        problem = in_tiles(problem, seed) if tiles else problem
        network = problem.network
        assume(len(problem.jobs) == 1 and not (network.profile or network.msccl or network.split))
        assume(network.qps == 1)
        assume(problem.semantics.message_match == "instance" and problem.semantics.issue_order == "id")
        plan = plan_for(problem)
        # A collective that is produced in tiles begins earlier: receives are posted, and requests sent, at other times.
        first = any((gates.count < np.bincount(gates.triggers[:, 2])).any() for gates in plan.tiles.values())
        assume(not first)
        records = simulate(plan, engine=engine, level="messages")
        assume(records.outcome.status == "done")
        after = inlined(problem)
    except AstraError:
        assume(False)
    again = simulate(after, engine=engine, level="messages")
    assert again.makespan == records.makespan
    assert times(again, after, spliced=False) == times(records, problem, spliced=True)
    for name in ("src", "dst", "bytes", "posted", "delivered", "hops"):
        assert np.array_equal(np.sort(again.message[name]), np.sort(records.message[name]))


class Built:
    """An algorithm table: one builder for all."""

    def __init__(self, name: str, **options) -> None:
        self.name, self.options = name, options

    def select(self, collective, size, ranks, group, **_):
        return replace(build(self.name, collective, ranks, **self.options), verdict=True)


def step(ranks: int, algorithms, **more) -> Problem:
    items = [
        Collective(type="all_gather", size=MIB, name="gather"),
        Compute(time=10**8, name="mm", tiles=4, consumes="gather"),
        Send(source=0, to=1, size=1000, tag=7),
        Collective(type="all_reduce", size=MIB),
    ]
    topology = build_topology(shape="ring", npus=ranks, bandwidth="100 GB/s", latency="1 us")
    job = Job(workload=generate(items, ranks), placement=tuple(range(ranks)), algorithms=algorithms)
    return Problem(topology=topology, jobs=(job,), **more)


def same_times(problem: Problem) -> bool:
    after = inlined(problem)
    spliced, again = (simulate(p, engine="both", level="nodes") for p in (problem, after))
    return times(again, after, spliced=False) == times(spliced, problem, spliced=True)


def test_ranks_that_share_a_trace_have_their_own_peers_and_groups():
    """Also where a trace names a role in place of a group."""
    items = [Send(source=0, to=1, size=1000, tag=7), Collective(type="all_reduce", size=MIB, group=(0, 1))]
    pair = [t.replace(pg_name=(t.group_of()[0], ("pair",))) for t in generate(items, 2).traces]
    groups, roles = {"a": (0, 1), "b": (2, 3)}, {"pair": ("a", "a", "b", "b")}
    workload = Workload((*pair, *pair), groups, roles=roles, shifts=(0, 0, 2, 2))
    problem = step(4, Built("ring"))
    problem = replace(problem, jobs=(replace(problem.jobs[0], workload=workload),))
    assert same_times(problem)
    made = inlined(problem).jobs[0].workload
    assert [made.traces[rank].group_of()[1] for rank in range(4)] == [("a",), ("a",), ("b",), ("b",)]


def test_noise_is_that_of_the_workload():
    noise = Noise(seed=3, compute=ComputeNoise(exponential="2 us"), detours=Detours(period="20 us", length="2 us"))
    assert same_times(step(4, Built("ring"), noise=noise, semantics=Semantics.native(gamma="20 us/MiB")))


@pytest.mark.parametrize("gamma", [0, "20 ns/MiB"])
def test_every_rank_has_its_own_cells(gamma):
    """Also where reductions take time, and chunks of unequal size another one on each rank."""
    problem, table = step(4, Built("ring"), semantics=Semantics.native(gamma=gamma)), Built("ring")
    workload = generate([Collective(type="all_reduce", size=MIB + 1)], 4)
    job = replace(problem.jobs[0], workload=workload, algorithms=table)
    made = table.select("all_reduce", MIB + 1, 4, "")
    for rank, trace in enumerate(inline(replace(problem, jobs=(job,)))[0].traces):
        own, rows = made.program_of([rank]), np.flatnonzero(trace.column("inlined_node") != MISSING)
        for name in ("src_off", "dst_off", "msg_chunk_idx"):
            assert np.array_equal(trace.column(name)[rows], own.column(name)), (rank, name)


def test_an_inlined_set_is_clean_and_comes_back_from_files(tmp_path):
    workload, *_ = inline(step(4, Built("ring")))
    write_prefix(tmp_path / "one", workload.traces)
    again = read_prefix(tmp_path / "one")
    assert [trace.digest() for trace in again] == [trace.digest() for trace in workload.traces]
    assert not [found for found in lint(again) if found.severity == "error"]
    sends, receives = Counter(), Counter()
    for rank, trace in enumerate(workload.traces):
        columns = [trace.column(name).tolist() for name in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
        for kind, src, dst, tag, size in zip(trace.type.tolist(), *columns, strict=True):
            if kind == NodeType.COMM_SEND:
                sends[rank, dst, tag, size] += 1
            elif kind == NodeType.COMM_RECV:
                receives[src, rank, tag, size] += 1
    assert sends == receives and sends[0, 1, 7, 1000] == 1 and max(sends.values()) == 1
    assert not any((trace.type == NodeType.COMM_COLL).any() for trace in again)
    told = workload.traces[0].attribute(0, "collective"), workload.traces[0].attribute(0, "algorithm")
    assert told == ("all_gather", "ring")


def numbered(first: int) -> Problem:
    """A step whose nodes have ids from `first` on."""
    problem = step(2, Built("ring"))
    traces = generate([Compute(time=10**8), Collective(type="all_reduce", size=MIB)], 2).traces
    shift = np.uint64(first)
    traces = [
        t.replace(node_id=t.node_id + shift, data_deps=Csr(t.data_deps.ptr, t.data_deps.ids + shift)) for t in traces
    ]
    return replace(problem, jobs=(replace(problem.jobs[0], workload=Workload(traces, {})),))


@pytest.mark.parametrize("first", [2**53 + 1, 2**63 - 3, 2**63, 2**64 - 9])
def test_ids_of_any_size_are_kept(first):
    assert same_times(numbered(first))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (numbered(2**64 - 4), "rank 0: node 18446744073709551613: leaves no ids for "),
        (step(4, Built("ring"), semantics=Semantics.native(comm_slots=1)), "semantics.comm_slots: holds a slot"),
    ],
)
def test_what_a_trace_cannot_say_is_refused(problem, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        inline(problem)
