"""Which switch an actor is, what is refused, and how reports name switches."""

import json
from dataclasses import replace

import pytest

from astrasim_py.builders.draft import Draft, finish
from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AlgorithmError, AstraError, FoldError
from astrasim_py.dialects.switches.lower import SwitchRanks, bind
from astrasim_py.engine.simulation import simulate
from astrasim_py.engine.stuck import explanation
from astrasim_py.preparation.from_python import collective
from astrasim_py.report.critical_path import CriticalPath
from astrasim_py.report.explain import explain, explanation_text
from astrasim_py.report.timeline import timeline
from astrasim_py.runs.summary import edge_table
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build as topology_of

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def leaves(**switches):
    keys = {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2, **LINK}
    return topology_of({**keys, "switches": switches}, written=True)


def star(n=3, **switches):
    return topology_of({"shape": "switch", "npus": n, **LINK, "switches": switches}, written=True)


def problem(made, topology, **more):
    return replace(collective("all_reduce", "1 MiB", topology, algorithm=made), **more)


TREE = build("switch_tree", "all_reduce", 6, switches={"top": {"a": [0, 1, 2], "b": [3, 4, 5]}})


def test_actors_are_found_beside_their_peers():
    topology = leaves()
    found = bind(TREE, range(6), topology)
    assert [topology.vertex_name(v) for v in found] == ["spine0", "leaf0", "leaf1"]
    found = bind(TREE, (3, 4, 5, 0, 1, 2), topology)
    assert [topology.vertex_name(v) for v in found] == ["spine0", "leaf1", "leaf0"]
    found = bind(replace(TREE, vertices=(9, -1, -1)), range(6), topology)
    assert [topology.vertex_name(v) for v in found] == ["spine1", "leaf0", "leaf1"]


@pytest.mark.parametrize(
    ("made", "topology", "said"),
    [
        (TREE, topology_of({"shape": "switch", "npus": 6, **LINK}), "no switch of switch 6 computes; write"),
        (TREE, leaves(capable=["leaf"]), "linked to all peers of switch top; name one: {file: …, actors: {top"),
        (TREE, leaves(capable=["spine", "leaf0"]), "is free and linked to all peers of switch b"),
        (replace(TREE, vertices=(6, -1, 6)), leaves(), "switches top and b are both leaf0; give each a switch of its"),
        (replace(TREE, vertices=(9, 6, 7)), leaves(capable=["leaf"]), "switch top is spine1, which does not compute"),
        (
            build("switch_tree", "all_reduce", 6, chunks=4),
            star(6, slots=3),
            "4 chunks at once, and switch0 has 3",
        ),
    ],
)
def test_what_is_no_switch_for_an_actor_is_refused(made, topology, said):
    with pytest.raises(AlgorithmError) as caught:
        make_plan(problem(made, topology))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"network": NetworkModel(link_busy="latency+bytes")}, "network.link_busy: does not support switches"),
        ({"network": NetworkModel(msccl=True)}, "network.msccl: does not support switches"),
        ({"network": NetworkModel(profile="dgx_h100", protocol="LL")}, "network.profile: does not support switches"),
        ({"semantics": Semantics.astra_sim()}, "semantics.rounding: does not support switches"),
        ({"semantics": Semantics.native(message_match="bytes")}, "semantics.message_match: does not support switches"),
    ],
)
def test_rules_that_do_not_know_switches_are_refused(more, said):
    with pytest.raises(AstraError) as caught:
        make_plan(problem(build("nvls", "all_reduce", 3), star(), **more))
    assert said in str(caught.value)
    assert "nvls has switches that take part" in str(caught.value)


def test_a_fold_and_collectives_by_dimension_are_refused():
    with pytest.raises(FoldError, match="switch switch0 takes part in collectives"):
        simulate(problem(build("nvls", "all_reduce", 3), star()), fold=True)
    with pytest.raises(AstraError, match="collectives: are cut by dimension, and nvls has switches that take part"):
        SwitchRanks(problem(TREE, leaves()), 6).of_call(build("nvls", "all_reduce", 3), (0, 1, 2), planned=True)


def test_a_preset_changes_nothing_without_algorithms_in_the_network():
    with_key = topology_of({"preset": "dgx_h100"}, written=True)
    without = replace(with_key, computing=None)
    found = [simulate(problem(build("ring", "all_reduce", 8), topology)) for topology in (with_key, without)]
    assert found[0].makespan == found[1].makespan
    assert found[0].collective["bound"].tolist() == found[1].collective["bound"].tolist()


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_stuck_report_names_the_switch(engine):
    draft = Draft(3, 1)
    for a, b in ((0, 2), (2, 0)):
        first = draft.recv(rank=[a], peer=b, tag=b, order=0, idx=0)
        draft.send(rank=[a], peer=b, tag=a, order=1, idx=0, after=(first,))
    made = finish(draft, "waits", "all_reduce", actors=("s0",))
    outcome = simulate(problem(made, star(2)), engine=engine).outcome
    assert outcome.status == "stuck"
    text = "\n".join(explanation(outcome))
    assert "in a ring, 0→switch0→0" in text
    assert "a message from switch switch0, tag 2" in text
    assert "switch switch0 has not sent it" in text
    assert "a message from rank 0, tag 0" in text


def test_a_send_without_receive_is_told_by_name():
    draft = Draft(3, 1)
    draft.send(rank=[0], peer=2, tag=5, order=0, idx=0)
    made = finish(draft, "half", "all_reduce", actors=("s0",))
    with pytest.raises(
        AlgorithmError, match="rank 0 sends 1 messages to switch s0 with tag 5, and switch s0 receives 0"
    ):
        make_plan(problem(made, star(2)))


def test_reports_name_the_switch():
    topology = star(4, latency="200 ns", reduce_bandwidth="10 GB/s")
    plan = make_plan(problem(build("switch_tree", "all_reduce", 4, chunks=2), topology))
    records = simulate(plan, level="messages")
    assert plan.switches == ["switch0"]
    assert len(records.finish) == 4
    edges = edge_table(topology, records.link["link"])
    told = explain(records, edges, switches=plan.switches, switch_latency=200_000)
    assert sum(told.totals.values()) == records.makespan
    spent = told.at_switches()["switch0"]
    reduction = (1 << 19) * 100  # half a MiB at 10 GB/s
    assert spent["local"] >= 3 * reduction
    assert spent["latency"] == 700_000
    text = explanation_text(told)
    assert "switch switch0 and what it sent took" in text
    assert "→ switch switch0" in text
    drawn = json.loads(b"".join(timeline(records, edges, plan.npu_of, (), plan.switches)))["traceEvents"]
    assert {"switch switch0", "collectives", "links"} <= {
        event["args"]["name"] for event in drawn if event["name"] == "process_name"
    }
    assert any(event["name"].startswith("switch0 → ") for event in drawn)
    # Without its latency that time counts as bytes on links.
    assert sum(piece.end - piece.start for piece in CriticalPath(records, {}, {}).walk()) == records.makespan
