"""Skeletons: on every network all calls and ranks begin and end as they do in the full trace."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds.problems import world
from worlds.role_workloads import with_roles
from worlds.small_problems import trace
from worlds.training import ByWork, fast, layout_of, problem_of

from astrasim_py.chakra.lint_rules import lint_trace
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError, TraceError
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.skeletons import skeleton_workload
from astrasim_py.sharing.skeleton import START, exact_skeleton, find_skeleton
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.training.traces import training_workload

COMP, SEND = NodeType.COMP, NodeType.COMM_SEND
#: What a world may have that no skeleton can keep; each is refused by name.
REFUSED = ("at once", "scheduled", "node by node", "cannot keep", "would change")


def with_skeletons(problem: Problem) -> Problem:
    return replace(problem, jobs=tuple(with_skeleton(problem, job) for job in problem.jobs))


def with_skeleton(problem: Problem, job: Job) -> Job:
    options = {"dependencies": job.dependencies, "speeds": job.compute_speed}
    workload = skeleton_workload(job.workload, problem.compute, problem.semantics, **options)
    return replace(job, workload=workload, dependencies="data", skeleton=True)


def times_of_calls(records: Records) -> dict[str, list]:
    """Rank, kind and times of all nodes but those of compute in workloads; messages; and the end of every rank."""
    node = records.node
    own = (node["instance"] < 0) & np.isin(node["kind"], ["compute", "metadata"])
    found = {name: node[name][~own].tolist() for name in ("rank", "instance", "kind", "start", "end")}
    for name in ("instance", "src", "dst", "tag", "bytes", "posted", "start", "delivered"):
        found[f"message {name}"] = sorted(records.message[name].tolist())
    return found | {"finish": records.finish.tolist(), "makespan": records.makespan}


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_every_call_keeps_its_times_on_any_network(first):
    compared = 0
    for seed in range(first, first + 20):
        problem = replace(world(seed), limits=Limits())
        problem = with_roles(problem, seed, 10) if seed % 3 == 0 else problem
        try:
            small = with_skeletons(problem)
        except (ScenarioError, TraceError) as error:
            assert any(reason in str(error) for reason in REFUSED), error
            continue
        full = simulate(problem, engine="simpy", level="messages")
        again = simulate(small, engine="simpy" if seed % 2 else "compiled", level="messages")
        assert times_of_calls(again) == times_of_calls(full), seed
        compared += 1
    assert compared >= 5


def paths_of(nodes: list[dict], **options) -> set[tuple[int, int, int]]:
    """(source, target, ps) of a trace of dicts; times are in microseconds there."""
    made = trace(nodes)
    found = find_skeleton(made, made.duration_micros.astype(np.int64), **options)
    return set(zip(found.source.tolist(), found.target.tolist(), found.ps.tolist(), strict=True))


def compute(micros: int, *deps: int) -> dict:
    return {"type": COMP, "micros": micros, "deps": set(deps)}


def send(*deps: int) -> dict:
    return {"type": SEND, "comm_dst": 1, "comm_size": 8, "comm_tag": 0, "deps": set(deps)}


def test_of_two_paths_the_longer_one_counts():
    nodes = [send(), compute(3, 0), compute(5, 0), compute(4, 1), send(3, 2), compute(9, 4)]
    assert paths_of(nodes) == {(START, 0, 0), (0, 1, 7), (1, 2, 9)}


def test_a_path_that_follows_from_others_is_dropped():
    nodes = [send(), compute(3, 0), send(1), compute(3, 2), compute(6, 0), send(3, 4)]
    assert paths_of(nodes) == {(START, 0, 0), (0, 1, 3), (1, 2, 3)}
    nodes[4] = compute(7, 0)
    assert paths_of(nodes) == {(START, 0, 0), (0, 1, 3), (0, 2, 7), (1, 2, 3)}


def test_asynchronous_calls_do_not_make_all_pairs():
    """A compute chain that starts a call at every step, and awaits it three steps later."""
    nodes: list[dict] = []
    for step in range(400):
        nodes.append(compute(step % 7 + 1, *([2 * step - 2] if step else []), *([2 * step - 7] if step > 3 else [])))
        nodes.append(send(2 * step))
    made = trace(nodes)
    skeleton = exact_skeleton(made, made.duration_micros.astype(np.int64), np.zeros(len(made), np.int8), ())
    assert len(skeleton) <= len(made)


@pytest.mark.parametrize("keys", [{"pp": 4}, {"zero": 3}, {"tp": 2, "overlap": {"dp": True}}])
def test_ranks_of_a_class_share_a_skeleton(keys):
    problem = problem_of(training_workload(layout_of(8, gbs=32, nodes="fine", **keys), ByWork()), fast(8), None)
    small = with_skeletons(problem)
    before, after = (each.jobs[0].workload for each in (problem, small))
    assert len(set(after.traces)) == len(set(before.traces)) < 8
    assert sum(map(len, after.traces)) <= sum(map(len, before.traces))
    assert not [found for each in set(after.traces) for found in lint_trace(each) if found.severity == "error"]
    full, again = (simulate(each, engine="compiled", level="summary") for each in (problem, small))
    assert again.finish.tolist() == full.finish.tolist()


def test_operations_have_the_price_of_the_compute_model():
    nodes = [{"type": COMP, "num_ops": 5 * 10**6, "deps": ()}, send(0)]
    problem = world(0)
    job = replace(problem.jobs[0], workload=Workload((trace(nodes),)), compute_speed={})
    priced = problem.compute.model_copy(update={"roofline": True, "peak": Fraction(10**12), "memory_bandwidth": None})
    made = with_skeleton(replace(problem, compute=priced, semantics=Semantics()), job).workload.traces[0]
    assert made.column("duration_ps")[0] == 5 * 10**6
    assert not made.has_column("num_ops")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([compute(1), compute(2), send(0, 1)], "nodes 0 and 1 may be ready at once, and compute_slots"),
        ([compute(1) | {"counter": 0}, send(0)], "nodes have counter"),
    ],
)
def test_what_a_skeleton_cannot_keep_is_refused(nodes, said):
    made, slots = trace(nodes), np.where([node["type"] == COMP for node in nodes], 2, 3)
    with pytest.raises(TraceError, match=said):
        exact_skeleton(made, made.duration_micros.astype(np.int64), slots, ["cpu_slots", "compute_slots"])
