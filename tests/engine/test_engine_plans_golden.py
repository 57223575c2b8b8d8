"""Real MSCCL++ plans, timed: both engines alike, with and without costs, and no link faster than it is."""

from __future__ import annotations

from fractions import Fraction

import pytest

import astrasim_py as ap
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.engine.simulation import simulate
from astrasim_py.mscclpp.to_traces import read_algorithm
from astrasim_py.topology.hardware import profile

#: Plans that never end, or have an operation that executors refuse.
REFUSED = 5


def test_both_engines_time_real_plans_alike(golden):
    machine, refused = profile("dgx_h100"), 0
    for path in sorted((golden / "mscclpp" / "plans").glob("*.json")):
        try:
            plan = read_algorithm(path)
        except AlgorithmError:
            refused += 1
            continue
        npus = min(plan.ranks, 8)
        topology = ap.build_topology(preset="dgx_h100", nodes=plan.ranks // npus, npus=npus)
        for costs in ({}, {"profile": machine}):
            call = ap.collective(plan.collective, 2**15 * plan.ranks, topology, algorithm=plan, **costs)
            records = simulate(call, engine="both", level="links")
            inside = max(records.link["bytes"].tolist(), default=0)
            rate = machine.plans["Simple"].link if costs and plan.ranks <= 8 else Fraction(450 * 10**9)
            assert records.makespan >= inside * PS_PER_S // rate, path.stem
            assert not costs or plan.ranks == 1 or records.makespan > machine.plans["LL"].launch
    assert refused == REFUSED


@pytest.mark.parametrize("preset", ["dgx_a100", "dgx_h100"])
def test_a_plan_of_packets_takes_about_as_long_as_the_measured_kernel(golden, preset):
    """Of 24 KiB, by a kernel of the same two phases, but of 21 thread blocks instead of 8."""
    plan = read_algorithm(golden / "mscclpp" / "plans" / "single_node__allreduce_pkt.json")
    topology = ap.build_topology(preset=preset)
    took = simulate(ap.collective("all_reduce", 24 * 2**10, topology, algorithm=plan, profile=preset)).makespan
    measured_us = {"dgx_a100": 7.24, "dgx_h100": 6.18}[preset]
    assert took / 1e6 == pytest.approx(measured_us, rel=1 / 3)
