"""Builders run on the switches that a scenario names, or refuse in one line."""

from __future__ import annotations

import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import plan_for

SCENARIO = """
name: s
topologies:
  t:
    {{shape: leaf_spine, leaves: 2, hosts_per_leaf: 2, spines: 2, bandwidth: 50 GB/s, latency: 500 ns,
      switches: {{capable: {capable}}}}}
workload: [{{{kind}: {{size: 1 MiB}}}}]
algorithms: {{{kind}: {case}}}
"""


def problem(tmp_path, case: str, capable: str = "all", kind: str = "all_reduce"):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(case=case, capable=capable, kind=kind))
    return ap.prepare(next(iter(ap.expand(ap.load_scenario(path)))))


def switches_of(given) -> set[str]:
    """Switches that take part in a run: the ends of messages."""
    plan = plan_for(given)
    return {given.topology.vertex_name(plan.npu_of[rank]) for rank in range(plan.npu_ranks, len(plan.npu_of))}


@pytest.mark.parametrize("spine", ["spine0", "spine1"])
@pytest.mark.parametrize(
    ("case", "taken"),
    [
        ("{{builder: switch_tree, chunks: 2, switches: {{{spine}: {{leaf0: [0, 1], leaf1: [2, 3]}}}}}}",
         {"leaf0", "leaf1"}),
        ("{{builder: switch_tree, switches: {spine}}}", set()),
        ("{{builder: switch_tree, actors: {{s0: {spine}}}}}", set()),
        ("{{builder: switch_tree, switches: top, actors: {{top: {spine}}}}}", set()),
        ("{{builder: nvls, actors: {{s0: {spine}}}}}", set()),
        ("{{builder: nvls, chunks: 2, switches: {spine}}}", set()),
        ("{{builder: hierarchical, dims: [4], algorithms: [nvls], switches: {{0: [{spine}]}}}}", set()),
        ("{{builder: hierarchical, dims: [2, 2], algorithms: [nvls, nvls], switches: {{0: [leaf0, leaf1],"
         " 1: [spine0, spine1]}}}}", {"leaf0", "leaf1", "spine0", "spine1"}),
    ],
)  # fmt: skip
def test_builders_run_on_the_switches_named(tmp_path, case, taken, spine) -> None:
    assert switches_of(problem(tmp_path, case.format(spine=spine))) == taken | {spine}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{builder: switch_tree, switches: spine7}", "algorithms.all_reduce.switches: t has no switch"),
        ("{builder: nvls, actors: {s0: spine7}}", "algorithms.all_reduce.actors.s0: t has no switch"),
        ("{builder: nvls, actors: {s1: spine0}}", "algorithms.all_reduce.actors.s1: nvls has no switch"),
        ("{builder: ring, actors: {s0: spine0}}", "algorithms.all_reduce.actors.s0: ring has no switch"),
        ("{builder: switch_tree, switches: spine0}", "switch spine0 is spine0, which does not compute; take one of"),
        ("{builder: switch_tree, switches: {a: {b: [0, 1], c: [2, 3]}}, actors: {a: leaf0, b: leaf0, c: leaf1}}",
         "switches a and b are both leaf0; give each a switch of its own"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused_in_one_line(tmp_path, case, said) -> None:
    with pytest.raises(AstraError) as caught:
        switches_of(problem(tmp_path, case, capable="[leaf, spine1]"))
    (line,) = caught.value.lines()
    assert said in line


def test_an_actor_of_a_made_algorithm_is_the_switch_of_its_name() -> None:
    network = ap.build_topology(
        shape="leaf_spine", leaves=2, hosts_per_leaf=2, spines=2, bandwidth="50 GB/s", latency="500 ns",
        switches={"capable": "all"},
    )  # fmt: skip
    tree = {"spine1": {"leaf1": [2, 3], "leaf0": [0, 1]}}
    made = build("switch_tree", "all_reduce", 4, switches=tree).with_verdict(True)
    assert switches_of(ap.collective("all_reduce", "1 MiB", network, algorithm=made)) == {"spine1", "leaf0", "leaf1"}


@pytest.mark.parametrize(
    ("capable", "remedy"), [("all", "all of them compute, but no tree"), ("[rail0]", "capable: …")]
)
def test_a_remedy_does_not_ask_for_what_is_there(tmp_path, capable, remedy):
    """Switches of nodes and those of rails form no tree."""
    text = f"topology: {{preset: dgx_h100, nodes: 2, switches: {{capable: {capable}}}}}\n"
    (tmp_path / "s.yaml").write_text(
        text + "workload: [{all_reduce: {size: 1 MiB}}]\nalgorithms: {all_reduce: switch_tree}\n"
    )
    made = ap.run(tmp_path / "s.yaml", out=tmp_path / "out", jobs=1)
    (failure,) = made.failures
    assert "reach all of its NPUs" in failure.lines[0] and remedy in failure.lines[0]
