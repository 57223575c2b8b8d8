"""Every key of every shape changes the network, and what is not simulated equals the engines or does not apply.

A key without an entry here makes a test fail.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from functools import cache

import pytest
from worlds import small_problems
from worlds.bounds import problem_bound

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.choices import FLUID, NETWORK_MODELS
from astrasim_py.core.errors import FoldError, ScenarioError, TopologyError
from astrasim_py.engine.simulation import simulate
from astrasim_py.runs.summary import closed_form
from astrasim_py.synthesis.model.network import Network
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import SHAPES, Topology, build, placement, preset, preset_names
from astrasim_py.topology.shapes import Edge, ProductDim
from astrasim_py.topology.spec import Event, Failed, Link, Override

L = {"bandwidth": "2 GB/s", "latency": "700 ns"}
OTHER = {"bandwidth": "3 GB/s", "latency": "900 ns", "link_preset": "nvlink3"}
DIMS = [{"kind": "ring", "size": 3, **L}, {"kind": "switch", "size": 2, **L}]
BOTH_WAYS = [{"src": i, "dst": (i + 1) % 4, **L, "directions": "both"} for i in range(4)]
NODES = {"nodes": 2, "nvlink_bandwidth": "9 GB/s", "nvlink_latency": "300 ns"}
NICS = {"nic_bandwidth": "2 GB/s", "nic_latency": "1 us"}

#: Shape → its keys in this test.
SPECS = {
    "ring": {"npus": 4, **L},
    "mesh": {"dims": [3, 2], **L},
    "torus": {"dims": [3, 3], **L},
    "fully_connected": {"npus": 4, **L},
    "switch": {"npus": 4, **L},
    "hypercube": {"npus": 4, **L},
    "product": {"dims": DIMS},
    "leaf_spine": {"leaves": 3, "hosts_per_leaf": 2, "spines": 2, **L},
    "fat_tree": {"k": 4, **L},
    "dragonfly": {"a": 3, "h": 1, "p": 2, "g": 3, **L},
    "dgx": {**NODES, **NICS, "npus": 2},
    "edge_list": {"edges": [*BOTH_WAYS[:3], {"src": 3, "dst": 0}], **L, "directions": "both"},
}
#: Shape → key → another value; values of a key that is not written are compared with the shape as it is.
KEYS = {
    "ring": {"npus": 5, **OTHER, "bidirectional": False},
    "mesh": {"dims": [2, 2], **OTHER},
    "torus": {"dims": [3, 2], **OTHER, "bidirectional": False},
    "fully_connected": {"npus": 5, **OTHER},
    "switch": {"npus": 5, **OTHER, "unwind": 2},
    "hypercube": {"npus": 8, **OTHER},
    "product": {"dims": [*DIMS, DIMS[0]], "unwind": 1},
    "leaf_spine": {
        "leaves": 2,
        "hosts_per_leaf": 3,
        "spines": 1,
        **OTHER,
        "oversubscription": 2,
        "uplink_bandwidth": "1 GB/s",
        "uplink_latency": "2 us",
        "unwind": 2,
    },
    "fat_tree": {
        "k": 2,
        "pods": 3,
        "hosts_per_edge": 3,
        **OTHER,
        "fabric_bandwidth": "1 GB/s",
        "fabric_latency": "2 us",
        "unwind": 2,
    },
    "dragonfly": {
        "a": 2,
        "h": 2,
        "p": 1,
        "g": 2,
        **OTHER,
        "local_bandwidth": "1 GB/s",
        "local_latency": "2 us",
        "global_bandwidth": "1 GB/s",
        "global_latency": "2 us",
        "unwind": 2,
    },
    "dgx": {
        "nodes": 3,
        "npus": 4,
        "nvlink_bandwidth": "8 GB/s",
        "nvlink_latency": "1 us",
        "nic_bandwidth": "1 GB/s",
        "nic_latency": "2 us",
        "rails": 1,
        "spines": 2,
        "oversubscription": (2, {"spines": 2}),
        "cross_rail": ("nvlink", {"spines": 2}),
        "unwind": 2,
    },
    "edge_list": {
        "edges": [*BOTH_WAYS[:3], {"src": 3, "dst": 1}],
        "npus": 3,
        "file": None,
        "bandwidth": "3 GB/s",
        "latency": "900 ns",
        "directions": "one",
    },
}
#: Where links are changed: the ends of one.
ENDS = {"leaf_spine": (0, "leaf0"), "fat_tree": (0, "edge0"), "dragonfly": (0, "router0"), "dgx": (0, "nvswitch0")}
ENDS |= {"switch": (0, "switch0")}
#: Keys that say how ranks are placed, or name the shape: no property of the network. What switches compute changes
#: algorithms with switches alone (test_system_switches.py).
NOT_OF_THE_NETWORK = {"shape", "placement", "switches"}


def cases():
    for shape, keys in KEYS.items():
        a, b = ENDS.get(shape, (0, 1))
        common = {"links": [{"from": a, "to": b, "latency": "5 us"}], "failed": {"npus": [1]}}
        if shape == "fat_tree":
            common["failed"] = {"switches": ["core0"]}
        for key, value in (common | {"routing": {"ecmp": True, "seed": 3}} | keys).items():
            if value is not None:
                yield pytest.param(
                    shape, key, *(value if isinstance(value, tuple) else (value, {})), id=f"{shape}.{key}"
                )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_key_of_a_shape_is_walked(shape):
    common = {"links", "failed", "routing", "unwind", "events", "reroute_delay"} | NOT_OF_THE_NETWORK
    assert KEYS[shape].keys() | common == SHAPES[shape].model_fields.keys()


def test_every_model_within_a_shape_is_walked():
    """Parts of keys: their fields, all of which end up in columns of the topology."""
    assert set(Link.model_fields) == {"source", "to", "directions"}
    assert set(Override.model_fields) == {*Link.model_fields, "bandwidth", "latency"}
    assert set(Failed.model_fields) == {"links", "npus", "switches"}
    assert set(Event.model_fields) == {"at", "failed", "links"}
    assert set(ProductDim.model_fields) == {"kind", "size", "bandwidth", "latency", "link_preset", "bidirectional"}
    assert set(Edge.model_fields) == {"src", "dst", "bandwidth", "latency", "directions"}


def outcome(keys: dict) -> str:
    """The digest of the topology of some keys; empty where they are refused."""
    try:
        return build(keys).digest()
    except TopologyError:
        return ""


def beside_each_other():
    for shape, keys in KEYS.items():
        values = {key: value[0] if isinstance(value, tuple) else value for key, value in keys.items()}
        values = {key: value for key, value in values.items() if value is not None}
        bases = [{"shape": shape, **SPECS[shape]}]
        bases += [{"preset": name} for name in preset_names("topology") if preset(name).topology["shape"] == shape]
        for base in bases:
            yield from (pytest.param(base, key, values, id=f"{base.get('preset', shape)}.{key}") for key in values)


@pytest.mark.parametrize(("base", "key", "values"), list(beside_each_other()))
def test_no_key_is_ignored_beside_another(base, key, values):
    """Alone, and beside each other key of the shape, a key changes the topology or is refused."""
    # What an unwound network has of its switches is their bandwidth, in which some keys agree.
    others = [{other: value} for other, value in values.items() if other not in (key, "unwind")]
    tried = ("spine", "nvlink") if key == "cross_rail" else (values[key],)
    for without in (base, *({**base, **other} for other in others)):
        known = outcome(without)
        assert not known or {known} != {outcome({**without, key: value}) for value in tried}, (without, key)


#: Network model and order of events, under each of which other methods of the engines decide.
RULES = [(model, order) for order in ("issued", "scheduled") for model in NETWORK_MODELS]
RULES.remove(("analytical", "scheduled"))  # carried as under ``issued``
RULES.remove((FLUID, "scheduled"))  # refused
#: Shapes with one shortest path between any two NPUs: there `routing` has no choice.
ONE_PATH = {"fully_connected", "switch"}


def problem(topology: Topology, model: str = "cut_through", order: str = "issued", calls: int = 2) -> Problem:
    """An all_reduce of all NPUs that are alive, then an all_to_all, or the first of them only."""
    npus = placement(topology)
    call = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 60 * 64 * len(npus)}
    job = Job(
        workload=small_problems.workload([[call, call | {"comm_type": 6, "deps": {0}}][:calls] for _ in npus]),
        placement=npus,
        algorithms=small_problems.Table("ring"),
    )
    network, semantics = NetworkModel(model=model), Semantics(event_order=order)
    return Problem(topology=topology, jobs=(job,), network=network, semantics=semantics)


@cache
def seen(text: str, model: str, order: str) -> tuple:
    """Everything that a run on the topology of a text shows, with status and makespan first."""
    records = simulate(problem(build(json.loads(text)), model, order), engine="both")
    columns = (records.link[name].tolist() for name in ("src", "dst", "bytes", "busy"))
    return records.outcome.status, records.makespan, *columns


def planned(topology: Topology) -> list:
    """What a synthesis knows of the topology."""
    network = Network.of(topology)
    columns = (network.src, network.dst, network.hop_ptr, network.hop, *network.timing([1001])[-3:])
    return [column.tolist() for column in columns]


def written(shape: str, key: str, value, beside: dict) -> tuple[dict, dict]:
    """The keys of a topology without and with one of them."""
    base = {"shape": shape, **SPECS[shape], **beside}
    # A preset stands for the bandwidth and the latency that are not written.
    kept = {k: v for k, v in base.items() if key != "link_preset" or k not in L}
    return base, {**kept, key: value}


@pytest.mark.parametrize(("shape", "key", "value", "beside"), list(cases()))
def test_a_key_changes_what_a_synthesis_knows(shape, key, value, beside):
    before, after = map(build, written(shape, key, value, beside))
    assert after.digest() != before.digest()
    assert planned(after) != planned(before) or key == "routing"


@pytest.mark.parametrize(("model", "order"), RULES)
@pytest.mark.parametrize(("shape", "key", "value", "beside"), list(cases()))
def test_a_key_is_used_or_refused_under_any_rule(shape, key, value, beside, model, order):
    before, after = (json.dumps(keys) for keys in written(shape, key, value, beside))
    status, makespan, *_ = shown = seen(after, model, order)
    assert status == "done"
    if key != "routing" or shape not in ONE_PATH:
        assert shown != seen(before, model, order), "no engine notices the key"
    given = problem(build(json.loads(after)), model, order)
    bound = problem_bound(make_plan(given))
    assert (bound is None) == (model == "analytical")
    assert bound is None or bound <= makespan
    with suppress(FoldError):
        assert simulate(given, fold=True).makespan == makespan


@pytest.mark.parametrize(("model", "order"), RULES)
@pytest.mark.parametrize(("shape", "key", "value", "beside"), [case for case in cases() if case.values[0] == "ring"])
def test_the_closed_form_knows_every_key_of_a_ring(shape, key, value, beside, model, order):
    """Of other shapes it is the time on links of their own, to compare with."""
    given = problem(build(written(shape, key, value, beside)[1]), model, order, calls=1)
    formula = closed_form(make_plan(given))
    assert formula is None or -(-formula.numerator // formula.denominator) == simulate(given, engine="simpy").makespan


@pytest.mark.parametrize("shape", SHAPES)
def test_events_of_any_shape_are_used_or_refused(shape):
    """One link has a fiftieth of its bandwidth for some time; then it fails, in one direction."""
    a, b = ENDS.get(shape, (0, 1))
    one, plain = {"from": a, "to": b, "directions": "one"}, build({"shape": shape, **SPECS[shape]})
    slow = {"at": "1 us", "links": [one | {"bandwidth": "40 MB/s", "latency": "9 us"}]}
    lost = {"at": "6 us", "failed": {"links": [one]}}
    seen = [problem(plain, FLUID)]
    for delay in ("1 us", "20 us"):
        for events in ([slow], [slow, {"at": "30 us"}], [slow, lost, {"at": "90 us"}]):
            keys = {"shape": shape, **SPECS[shape], "events": events, "reroute_delay": delay}
            seen.append(problem(build(keys, written=True), FLUID))
    assert len({given.topology.digest() for given in seen}) == len(seen)
    runs = [simulate(given) for given in seen]
    assert all(run.outcome.status == "done" for run in runs)
    assert len({run.makespan for run in runs}) >= 4
    for given, run in zip(seen[1:], runs[1:], strict=True):
        assert problem_bound(make_plan(given)) <= run.makespan
        assert closed_form(make_plan(given)) is None
        with pytest.raises(FoldError):
            simulate(given, fold=True)
        with pytest.raises(ScenarioError, match="events"):
            make_plan(problem(given.topology))
        with pytest.raises(TopologyError, match="events"):
            planned(given.topology)


def test_every_column_of_a_topology_takes_part_in_its_digest():
    unseen = {"name", "shape", "switches", "cut"}  # what people see
    events = {"events": [{"at": 5}], "reroute_delay": 1}
    topology = build({"shape": "ring", **SPECS["ring"], "failed": {"npus": [1]}, **events})
    seen = {field.name for field in fields(Topology)} - unseen
    assert seen == {
        "npus",
        "vertices",
        "src",
        "dst",
        "latency_ps",
        "bandwidth_class",
        "bandwidths",
        "dims",
        "failed",
        "routing",
        "computing",
        "router",
        "renumbered",
        "events",
        "reroute_ps",
    }
    assert topology.digest() != build({"shape": "ring", **SPECS["ring"]}).digest()
