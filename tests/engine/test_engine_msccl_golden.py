"""Real programs under the link model: stuck with the slots, and only those, that verification finds too few."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
from oracle.replay import Replay

from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.to_traces import read_msccl
from astrasim_py.program.steps import steps_of
from astrasim_py.system.machine_models import MscclModel, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.verification.termination import Flow
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

FOLDER = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "msccl" / "public"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="ASTRASIM_GOLDEN names no folder of real programs")
GB = Fraction(10**9)
MIB = 2**20


def problem(algorithm, size, msccl) -> Problem:
    """The program on a fully connected topology of its size."""
    n = algorithm.ranks

    class Only:
        def select(self, *_, **__):
            return algorithm

    job = Job(
        workload=generate([Collective(type="all_reduce", size=size)], n),
        placement=tuple(range(n)),
        algorithms=Only(),
    )
    network = NetworkModel(msccl=msccl, send_completes="injected")
    return Problem(
        topology=shapes.FullyConnected(npus=n, bandwidth=25 * GB, latency=500_000).build(), jobs=(job,), network=network
    )


def outcome(made: Problem):
    """How it ends, on both engines."""
    return simulate(made, engine="both").outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "lyd_allreduce_binary_tree_h_p_1ch_intra_2ch_inter_Simple_gpu64_ins1",
        "lyd_allreduce_binary_tree_h_p_2ch_intra_4ch_inter_Simple_gpu64_ins1",
        "lyd_allreduce_binary_tree_h_p_2nic_4gpu_p_Simple_gpu64_ins1_nchunk_16_nch_8",
    ],
)
def test_trees_that_need_three_slots_are_stuck_with_two(name):
    algorithm = read_msccl(FOLDER / f"{name}.xml")
    made = {slots: outcome(problem(algorithm, 64 * MIB, MscclModel(slots=slots))) for slots in (2, 3)}
    assert [outcome.status for outcome in made.values()] == ["stuck", "done"]
    assert made[2].cycle
    assert any(entry.slots == 2 for entry in made[2].waiting)
    protocols = [outcome(problem(algorithm, 64 * MIB, MscclModel(protocol=p))) for p in (None, "LL")]
    assert [outcome.status for outcome in protocols] == ["stuck", "done"]  # it is made for Simple


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [
        ("mt_simple_allreduce_ring_n6_i1", 2, 2),
        ("mt_allgather_ring_n8_c1_i1_LL128", 2, 2),
        ("mt_allgather_recdoub_n16_i1_Simple", 1, 8),
        ("mt_allreduce_pcie_hier_n4_i4_LL", 2, 8),
        ("mt_allreduce_1step_n8_i1_LL", 1, 8),
        ("mt_hier_allreduce_g4x2_i1_auto", 1, 1),
        ("capi_allgather_hierarchical", 1, 2),
    ],
)
def test_programs_need_exactly_the_slots_of_the_verdict(name, small, large):
    algorithm = read_msccl(FOLDER / f"{name}.xml")
    flow = Flow(steps_of(algorithm))
    assert (flow.smallest(), flow.smallest(flow.split(1))) == (small, large)
    for size, least in ((algorithm.chunks, small), (4 * MIB * algorithm.chunks, large)):
        for slots in range(max(1, least - 1), least + 1):
            status = outcome(problem(algorithm, size, MscclModel(slots=slots))).status
            assert status == ("done" if slots >= least else "stuck")


@pytest.mark.parametrize(
    "name",
    [
        "mt_allreduce_ring_n8_c1_i1_LL128",
        "azsched_ncv4_ar_hier_12_Simple",
        "lyd_allreduce_binary_tree_Simple_gpu2_ins1",
    ],
)
def test_all_engines_agree_on_real_programs(name):
    from astrasim_py.system.lowering import make_plan

    algorithm = read_msccl(FOLDER / f"{name}.xml")
    model = MscclModel(channel_bandwidth=20 * GB, latency_ps={"Simple": 1000, "LL128": 400})
    plan = make_plan(problem(algorithm, 3 * MIB * algorithm.chunks, model))
    records = simulate(plan, engine="both", level="messages")
    assert records.outcome.status == "done"
    other = Replay(plan).run()
    first = plan.first_row
    ends = records.node["end"]
    assert len(other.nodes) == len(ends)
    assert all(ends[first(rank, index) + node] == done for (rank, index, node), (_, done) in other.nodes.items())
