"""The compiled engine leaves the records of the SimPy engine, event for event, on random problems of every kind."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds.problems import over_time, world
from worlds.switches import in_network

from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import AstraError
from astrasim_py.core.records import Records
from astrasim_py.engine.compare import differences
from astrasim_py.engine.simpy import npu
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan

#: In the suite so many, in the nightly profile as many as it says.
EXAMPLES = max(300, settings().max_examples)


def outcome(plan: Plan, engine: str, level: str) -> Records | str:
    """What an engine leaves behind, or the error that it raises."""
    try:
        return simulate(plan, engine=engine, level=level)
    except AstraError as error:
        return f"{type(error).__name__}: {error}"


def both(plan: Plan, level: str = "messages") -> tuple[Records | str, Records | str]:
    return outcome(plan, "simpy", level), outcome(plan, "compiled", level)


def assert_same(plan: Plan, level: str = "messages") -> Records | str:
    """Hold both engines to each other."""
    reference, compiled = both(plan, level)
    if isinstance(reference, Records) and isinstance(compiled, Records):
        assert differences(reference, compiled) == []
        assert (reference.engine, compiled.engine) == ("simpy", "compiled")
    else:
        assert reference == compiled
    return reference


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.sampled_from((*LEVELS, "messages", "messages")))
def test_any_problem_leaves_the_same_records(seed, size, level):
    assert_same(plan_for(over_time(world(seed, size), seed)), level)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.sampled_from((*LEVELS, "messages", "messages")))
def test_any_problem_with_switches_that_compute_leaves_the_same_records(seed, size, level):
    problem = in_network(world(seed, size), seed)
    if problem.topology.computing is not None:
        assert_same(plan_for(over_time(problem, seed)), level)


def kinds(plan: Plan, records: Records | str) -> set[str]:
    """What a problem has, in words."""
    problem = plan.problem
    semantics, network = problem.semantics, problem.network
    jobs = problem.jobs
    programs = [*plan.workload, *(p for part in plan.calls for p in part.programs)]
    counters = [p.counters for p in programs if p.counters is not None]
    found = {
        network.model: True,
        network.link_busy: True,
        network.send_completes: True,
        f"match {semantics.message_match}": True,
        f"order {semantics.event_order}": True,
        semantics.rounding: True,
        "rendezvous": semantics.rendezvous_bytes > 0,
        "lowest dimension": semantics.analytical_route == "lowest_dim" and network.model == "analytical",
        "exposed as in ASTRA-sim": semantics.exposed == "finish_minus_compute",
        "few slots": semantics.comm_slots is not None,
        "connections": any(part.connections is not None for part in plan.calls),
        "streams": any(i.chunks for i in plan.instances),
        "turns": any(s.turns for i in plan.instances for s in i.chunks),
        "counters": bool(counters),
        "counts from a node": any((c.start >= 0).any() for c in counters),
        "detached sends": any(c.detached.any() for c in counters),
        "several jobs": len(jobs) > 1,
        "start delays": any(job.start_delay_ps for job in jobs),
        "stragglers": any(job.compute_speed for job in jobs),
        "groups": any(len(i.members) < jobs[i.job].ranks for i in plan.instances),
        "groups of one": any(len(i.members) == 1 for i in plan.instances),
        "memory": problem.memory.kind in ("per_node", "pool") and any((p.structure.kind == 4).any() for p in programs),
        "roofline": problem.compute.roofline,
        "irregular links": problem.topology.router is None or not problem.topology.pristine,
        "spread routes": problem.topology.routing.ecmp,
        "switches": problem.topology.vertices > problem.topology.npus,
        "limits": problem.limits != Limits(),
    }
    ends = records.outcome.status if isinstance(records, Records) else "error"
    return {name for name, there in found.items() if there} | {ends}


@pytest.mark.slow
def test_random_problems_are_of_every_kind_and_mostly_end():
    seen: Counter[str] = Counter()
    count = 160
    for seed in range(count):
        plan = plan_for(world(seed))
        seen.update(kinds(plan, outcome(plan, "compiled", "summary")))
    assert seen["done"] >= 0.7 * count
    assert seen["stuck"] >= 10
    rare = {name: number for name, number in seen.items() if number < 3}
    assert set(rare) <= {"error", "limit"}, rare
    assert len(seen) >= 36


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["the highest rank dispatches first", "who comes first dispatches first"])
def test_a_wrong_order_at_one_instant_is_seen(rule, monkeypatch):
    """So that agreement says something: another tie-break in one engine, and records differ."""
    before = npu.Npu.__init__

    def otherwise(self, simulation, rank):
        before(self, simulation, rank)
        self.dispatch_number = npu.DISPATCH + (-rank if "highest" in rule else 0)

    plans = [plan_for(world(seed)) for seed in range(60)]
    monkeypatch.setattr(npu.Npu, "__init__", otherwise)
    found = 0
    for plan in plans:
        reference, compiled = both(plan)
        if isinstance(reference, Records) and isinstance(compiled, Records):
            found += bool(differences(reference, compiled))
    assert found >= 3
