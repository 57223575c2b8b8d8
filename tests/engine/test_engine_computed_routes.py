"""Routes that the kernel computes hop by hop are those of the table: the records are those of the SimPy engine."""

from __future__ import annotations

import dataclasses

import pytest

from astrasim_py.api import build_topology
from astrasim_py.core.choices import COMPILED, SIMPY
from astrasim_py.engine.compare import differences
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.system import routes
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.semantics import Semantics

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
SHAPES = {
    "ring of 2": {"shape": "ring", "npus": 2},
    "odd ring": {"shape": "ring", "npus": 7},
    "even ring": {"shape": "ring", "npus": 8},
    "torus": {"shape": "torus", "dims": [4, 3]},
    "torus of 2": {"shape": "torus", "dims": [2, 5]},
    "deep torus": {"shape": "torus", "dims": [3, 2, 4]},
    "line": {"shape": "mesh", "dims": [6]},
    "mesh": {"shape": "mesh", "dims": [3, 4]},
    "deep mesh": {"shape": "mesh", "dims": [2, 3, 3]},
}

#: Routes of these need a table: the next link does not follow from where a message is and where it goes by the rules of
#: two-way rings and meshes.
TABLED = {
    "one-way ring": {"shape": "ring", "npus": 6, "bidirectional": False, **LINK},
    "switch": {"shape": "switch", "npus": 6, **LINK},
    "fully connected": {"shape": "fully_connected", "npus": 6, **LINK},
    "nodes on a ring": {
        "shape": "product",
        "dims": [{"kind": "fully_connected", "size": 3, **LINK}, {"kind": "ring", "size": 4, **LINK}],
    },
    "switches on a mesh": {
        "shape": "product",
        "dims": [{"kind": "mesh", "size": 3, **LINK}, {"kind": "switch", "size": 4, **LINK}],
    },
    "by hash": {"shape": "torus", "dims": [4, 4], "routing": {"ecmp": True}, **LINK},
    "with a failed link": {"shape": "torus", "dims": [4, 3], "failed": {"links": [[0, 1]]}, **LINK},
}


@pytest.mark.parametrize("shape", TABLED)
def test_other_routes_are_in_a_table_however_many(monkeypatch, shape):
    monkeypatch.setattr(routes, "MAX_ROUTE_LINKS", 0)
    topology = build_topology(**TABLED[shape])
    plan = make_plan(collective("all_to_all", f"{topology.npus * 1000} B", topology, algorithm="direct"))
    assert not plan.computed_routes
    reference, compiled = (simulate(plan, engine=each, level="messages") for each in (SIMPY, COMPILED))
    assert compiled.message_hops >= compiled.messages > 0
    assert differences(reference, compiled) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["all_to_all", "all_reduce"])
@pytest.mark.parametrize("model", ["cut_through", "store_and_forward"])
@pytest.mark.parametrize("order", ["issued", "scheduled"])
def test_computed_routes_leave_the_same_records(monkeypatch, shape, kind, model, order):
    topology = build_topology(**SHAPES[shape], **LINK)
    problem = collective(kind, f"{topology.npus * 1000} B", topology, algorithm="direct", model=model)
    problem = dataclasses.replace(problem, semantics=Semantics(event_order=order))
    table = simulate(make_plan(problem), engine=COMPILED, level="messages")
    monkeypatch.setattr(routes, "MAX_ROUTE_LINKS", 0)
    plan = make_plan(problem)
    assert plan.computed_routes
    reference, compiled = (simulate(plan, engine=each, level="messages") for each in (SIMPY, COMPILED))
    assert compiled.message_hops >= compiled.messages > 0
    assert differences(reference, compiled) == []
    # A table says which links are used, without one all are told of.
    for name in ("node", "message", "hop"):
        one, other = getattr(table, name), getattr(compiled, name)
        assert {column: one[column].tolist() for column in one} == {c: other[c].tolist() for c in other}
