"""Synthesized algorithms in `optimize`: they fit between the other calls, groups get their own, and all is written."""

from __future__ import annotations

import pytest

from astrasim_py.api import run
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.optimizer import extras
from astrasim_py.optimizer.calls import classes_of
from astrasim_py.optimizer.optimize import optimize
from astrasim_py.optimizer.synthesized import TracedStep, synthesized
from astrasim_py.optimizer.write import REPORT, SCENARIO, write_optimized
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.files import read_algorithm
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.verification.verifier import verify

MESH = {"shape": "mesh", "dims": [3, 3], "bandwidth": "50 GB/s", "latency": "500 ns"}
TWO_CALLS = [
    {"all_gather": {"name": "all", "size": "9 MiB", "after": []}},
    {"broadcast": {"name": "one", "size": "4 MiB", "after": []}},
    {"compute": {"time": "20 us", "after": ["all", "one"]}},
]


def scenario(workload=TWO_CALLS, topology=MESH, **keys):
    return {"name": "step", "topologies": {"own": topology}, "workload": workload, **keys}


def found(said, folder, evaluations=80, over="algorithms"):
    result = optimize(load_scenario(said), folder, seconds=None, evaluations=evaluations, over=over)
    write_optimized(result, folder)
    return result


def made_for(said, number=0):
    """The plan of a scenario, and what is synthesized for one of its classes."""
    plan = plan_for(prepare(expand(load_scenario(said))[0]).problem)
    calls = classes_of(plan, [""])[number]
    return plan, calls, list(synthesized(calls, TracedStep.of_plan(None, plan, [""]), 1, lambda: None))


def test_a_step_gets_faster_and_all_of_it_is_written(tmp_path):
    found(scenario(), tmp_path, evaluations=5)
    result = found(scenario(), tmp_path)
    assert result.makespan_ps < min(result.found.alone[1], *result.found.uniform.values())
    (row,) = run(tmp_path / SCENARIO, out=tmp_path / "results", jobs=1).rows
    assert round(float(row["time_ns"]) * 1000) == result.makespan_ps
    plan = plan_for(result.space.problem(result.best))
    files = {path.stem: read_algorithm(str(path)) for path in (tmp_path / "algorithms").iterdir()}
    assert any(name.startswith("synthesized-") for name in files)
    assert {a.digest() for a in files.values()} == {i.algorithm.digest() for i in plan.instances.values}
    assert all(verify(algorithm).ok for algorithm in files.values())
    inlined = scenario({"trace": "inlined/job0"})
    (tmp_path / "again.yaml").write_text(str(inlined))
    problem = prepare(expand(load_scenario(tmp_path / "again.yaml"))[0]).problem
    assert simulate(problem, level="summary").makespan == result.makespan_ps
    report = (tmp_path / REPORT).read_text()
    assert all(f"algorithms/{name}.npz" in report for name in files)


def test_links_are_used_when_they_are_idle():
    """A message of 105 us is on the way between two NPUs when the call begins, 1 us later. The call does not wait."""
    other = {"send": {"from": 0, "to": 1, "size": "5 MiB", "after": []}}
    soon = {"compute": {"name": "soon", "time": "1 us", "after": []}}
    said = scenario([other, soon, {"all_gather": {"size": "9 MiB", "after": ["soon"]}}])
    _, calls, (alone, _, clocked) = made_for(said)

    def times(made):
        given = {calls.collective: [case.keys for case in made.value]}
        point = expand(load_scenario({**said, "algorithms": given}))[0]
        records = simulate(prepare(point, given=made.algorithms).problem, level="messages")
        return int(records.collective["end"][0]), int(records.message["delivered"][records.message["bytes"] > 2**22][0])

    assert times(clocked)[1] == 5 * 2**20 * 20 + 500_000
    assert times(clocked)[0] < times(alone)[0]


def test_groups_that_lie_differently_get_their_own():
    """Groups a rotation of the ring apart share one; the third goes along the ring in another order."""
    groups = {"tp": [[0, 1, 2], [3, 4, 5], [7, 6, 8]]}
    ring = {"shape": "ring", "npus": 9, "bandwidth": "50 GB/s", "latency": "500 ns"}
    said = scenario([{"all_gather": {"size": "3 MiB", "group": "tp"}}], ring, groups=groups)
    _, _, (made,) = made_for(said)
    assert len(made.algorithms) == 2 and "for tp.2" in made.text
    point = expand(load_scenario({**said, "algorithms": {"all_gather": [case.keys for case in made.value]}}))[0]
    plan = plan_for(prepare(point, given=made.algorithms).problem)
    first, second, third = (plan.instances[i].algorithm.digest() for i in range(3))
    assert first == second != third
    beyond = [{"builder": "ring", "when": {"group": "tp.3"}}, {"builder": "ring"}]
    with pytest.raises(AstraError, match=r'no group is called "tp\.3"'):
        load_scenario({**said, "algorithms": {"all_gather": beyond}})


@pytest.mark.parametrize(
    "keys, patched, said",
    [
        (
            {"semantics": {"base": "native", "comm_slots": 1}},
            {},
            "traces: semantics.comm_slots: holds a slot",
        ),
        ({}, {"_NODES": 5}, "more than 5."),
        ({}, {"_MESSAGES": 3}, "No file of "),
    ],
)
def test_what_is_not_written_is_said(tmp_path, monkeypatch, keys, patched, said):
    for name, value in patched.items():
        monkeypatch.setattr(extras, name, value)
    found(scenario(**keys), tmp_path, evaluations=2)
    assert said in (tmp_path / REPORT).read_text()
    assert (tmp_path / "inlined").exists() == ("_MESSAGES" in patched)
    assert (tmp_path / "algorithms").exists() != ("_MESSAGES" in patched)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"network": {"model": "store_and_forward"}}, ""),
        ({"network": {"model": "fluid"}}, "planned for cut_through, and the scenario has network.model: fluid:"),
        ({"network": {"model": "analytical", "msccl": True}}, "has network.model: analytical, network.msccl:"),
        ({"network": {"msccl": True}}, "has network.msccl:"),
        ({"nic": {"overhead": "100 ns"}}, "has nic:"),
    ],
)
def test_what_a_plan_leaves_out_is_said(more, said):
    """By the optimizer, and of a scenario that synthesizes: the links are those of a queueing model."""
    step = scenario([{"all_gather": {"size": "64 KiB"}}], **more)
    _, _, (made, *_) = made_for(step)
    assert said in made.text and bool(said) == ("another one may be faster" in made.text)
    own = {**step, "algorithms": {"all_gather": {"synthesize": {"rounds": 1}}}}
    prepared = prepare(expand(load_scenario(own))[0])
    hints = prepared.notes_with(plan_for(prepared.problem)).hints
    assert len(hints) == bool(said) and all(said in text for text in hints)
