"""Planned collectives when they run: nobody blocks, and Themis does what it promises."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.dialects.chunks.lower import DimensionPlanner
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import Collectives, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.topology.routing import Dim

_FILE = Path(__file__).resolve().parents[1] / "oracle" / "replay.py"
_SPEC = importlib.util.spec_from_file_location("tests_replay_of_plans", _FILE)
replay = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(replay)

GIBI = 2**30
RATE = Fraction(50 * GIBI)


@lru_cache
def built(name: str, collective: str, ranks: int):
    return build(name, collective, ranks)


def planned(sizes, kind: str, size: int, planner, *, calls=1, delays=(), model="analytical", shape="switch") -> Plan:
    npus = prod(sizes)
    trace = ExecutionTrace.from_columns(
        node_id=np.arange(calls, dtype=np.uint64),
        type=np.full(calls, NodeType.COMM_COLL, dtype=np.int8),
        comm_type=int(CommType[kind.upper()]),
        comm_size=size,
    )
    problem = Problem(
        topology=shapes.Product(dims=[Dim(kind=shape, size=n, bandwidth=RATE, latency_ps=1000) for n in sizes]).build(),
        jobs=(
            Job(
                workload=Workload(traces=(trace,) * npus),
                placement=tuple(range(npus)),
                algorithms=AlgorithmTable({}),
                planner=planner,
                start_delay_ps=dict(enumerate(delays)),
            ),
        ),
        network=NetworkModel(model=model),
    )
    return make_plan(problem)


@pytest.mark.parametrize(("order", "expected"), [("fixed", 2 * GIBI * 3 / 4), ("themis", 2 * GIBI * 63 / 64 / 3)])
def test_themis_loads_all_dimensions_alike(order, expected):
    """Rashidi et al., ISCA 2022: the fixed order is as slow as its first dimension, Themis uses all of them."""
    planner = DimensionPlanner(
        sizes=(4, 4, 4),
        make=lambda collective, ranks, dim, size: built("halving_doubling", collective, ranks),
        how=Collectives(chunks=32, all_reduce="two_way", order=order, endpoint_delay=10_000),
        rate=(RATE,) * 3,
        latency_ps=(2000,) * 3,
    )
    records = simulate(planned((4, 4, 4), "all_reduce", GIBI, planner), level="summary")
    ideal = expected / float(RATE)
    assert records.outcome.status == "done"
    assert ideal <= int(records.finish.max()) / 1e12 < 1.03 * ideal


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 4), min_size=1, max_size=3).filter(lambda sizes: prod(sizes) <= 24),
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]),
    size=st.integers(1, 10**6),
    chunks=st.integers(1, 6),
    active=st.integers(1, 2),
    queues=st.integers(1, 2),
    order=st.sampled_from(["fixed", "themis"]),
    calls=st.integers(1, 2),
    delays=st.lists(st.integers(0, 10**8), max_size=8),
    model=st.sampled_from(["analytical", "cut_through"]),
)
def test_ranks_that_start_at_different_times_do_not_block_each_other(
    sizes, kind, size, chunks, active, queues, order, calls, delays, model
):
    planner = DimensionPlanner(
        sizes=tuple(sizes),
        make=lambda collective, ranks, dim, size: built(
            "direct" if collective == "all_to_all" else "ring", collective, ranks
        ),
        how=Collectives(chunks=chunks, active_chunks=active, queues=queues, order=order),
        rate=(RATE,) * len(sizes),
    )
    delays = delays[: prod(sizes)]
    plan = planned(sizes, kind, size, planner, calls=calls, delays=delays, model=model, shape="ring")
    records = simulate(plan, level="messages")
    assert records.outcome.status == "done"
    # The other engine does the same at the same times.
    other = replay.Replay(plan).run()
    first, total = plan.first_row, plan.row_count
    expected = [-1] * total
    for (rank, index, node), (_, done) in other.nodes.items():
        expected[first(rank, index) + node] = -1 if done is None else done
    assert records.node["end"].tolist() == expected
