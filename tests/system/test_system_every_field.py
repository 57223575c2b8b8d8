"""Every field of the parameters is used by both engines, and used or refused by everything that is not simulated.

The walk goes over the fields that the models declare. A field without an entry here makes a test fail: say with which
values it is tried, and the walk demands that both engines give the same records, that some world notices the change,
that the lower bound is not above the simulated time, and that closed form and folded run equal it or do not apply.
"""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from worlds import problems, small_problems
from worlds.bounds import problem_bound
from worlds.programs import Blocks

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import FLUID, NETWORK_MODELS, QUEUEING_MODELS
from astrasim_py.core.errors import FoldError, ScenarioError, TraceError, UsageError
from astrasim_py.core.fields import Time
from astrasim_py.core.units import parse_time
from astrasim_py.engine.simpy.network import CutThrough
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.runs.summary import closed_form
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.system.compatible import Exclusion, exclusions
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import (
    ComputeModel,
    Limits,
    MemoryModel,
    MscclModel,
    NetworkModel,
    NicModel,
    ProtocolLatency,
)
from astrasim_py.system.noise import ComputeNoise, Detours, Noise
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build
from astrasim_py.topology.model import Routing
from astrasim_py.topology.profile import LibraryProfile

GB = Fraction(10**9)
PROFILE = LibraryProfile(
    library="any",
    ranks=(2, 6),
    sizes=(1, 10**6),
    dtypes=("half",),
    channels=3,
    channel_bytes=512,
    protocols={
        "LL": {"launch": 500_003, "step": 600_001, "channel_rate": GB / 4},
        "Simple": {"launch": 900_007, "step": 1_700_001, "rate": GB},
    },
    copy_rate=3 * GB,
    peer=300_001,
    link=2 * GB,
    switch={"launch": 900, "rate": GB, "ranks": 3},
)
LINK = {"bandwidth": 2 * GB, "latency": 700_700}
MEMORY = {"kind": "per_npu", "latency_ps": 300, "bandwidth": GB}
ROOFLINE = {"peak": Fraction(10**12), "memory_bandwidth": GB}


class Slow(CutThrough):
    """A network model in Python that carries every message late."""

    def carry(self, message):
        yield self.env.timeout(5000)
        yield from super().carry(message)


#: Where the fields of a model stand among the arguments of a problem.
PLACES: dict[type, tuple[str, ...]] = {
    NetworkModel: ("network",),
    MscclModel: ("network", "msccl"),
    ProtocolLatency: ("network", "msccl", "latency_ps"),
    Semantics: ("semantics",),
    ComputeModel: ("compute",),
    MemoryModel: ("memory",),
    Limits: ("limits",),
    Noise: ("noise",),
    NicModel: ("nic",),
    ComputeNoise: ("noise", "compute"),
    Detours: ("noise", "detours"),
}
#: Of the topology: several routes between two NPUs.
ECMP = {"ecmp": True}
DETOURS = {"noise": {"detours": {"period": 1_000_000, "length": 300_000}}}
PROFILED = {"network": {"profile": PROFILE}}
INJECTED = {"network": {"send_completes": "injected"}}
PRESET, PEAK = {"compute": {"preset": "dgx_a100"}}, {"compute": {"peak": Fraction(10**12)}}
#: Model → field → values to try, each with what has to be set beside it.
FIELDS: dict[type, dict[str, list[tuple]]] = {
    NetworkModel: {
        "model": [("store_and_forward",), ("analytical",), (FLUID,)],
        "link_busy": [("latency+bytes",)],
        "send_completes": [("injected",)],
        "msccl": [({"slots": 1}, INJECTED), ({"latency_ps": {"Simple": 900}},)],
        "profile": [(PROFILE,)],
        "protocol": [("LL", PROFILED), ("Simple", PROFILED)],
        "switch_reduction": [(True, PROFILED)],
        "qps": [(3, ECMP)],
        "split": [(True, {"network": {"qps": 3}} | ECMP)],
        "factory": [(Slow,)],
    },
    MscclModel: {
        "protocol": [("LL", INJECTED)],
        "slots": [(1, INJECTED)],
        "channel_bandwidth": [(GB / 7, INJECTED)],
        "latency_ps": [({"Simple": 777}, INJECTED)],
    },
    ProtocolLatency: {
        "Simple": [(777,)],
        "LL": [(777, {"network": {"msccl": {"protocol": "LL"}}})],
        "LL128": [(777, {"network": {"msccl": {"protocol": "LL128"}}})],
    },
    Semantics: {
        "name": [("astra_sim",)],
        "dependencies": [("data+ctrl",)],
        "rounding": [("floor_ns",)],
        "decimal_bandwidth": [("binary",)],
        "zero_duration_ps": [(1000,)],
        "gamma": [(Fraction(1, 10**9),)],
        "cpu_slots": [(2,), (None,)],
        "compute_slots": [(2,), (None,)],
        "comm_slots": [(1,), (2,)],
        "injected_sizes": [("verbatim",)],
        "analytical_route": [("lowest_dim",)],
        "message_match": [("bytes",)],
        "rendezvous_bytes": [(512,)],
        "event_order": [("scheduled",)],
        "issue_order": [("hash_set", {"semantics": {"event_order": "scheduled"}})],
        "exposed": [("finish_minus_compute",)],
    },
    ComputeModel: {
        "preset": [("dgx_a100",)],
        "precision": [("fp32", PRESET)],
        "roofline": [(False, {"compute": ROOFLINE}), (True, {"compute": ROOFLINE})],
        "peak": [(Fraction(10**10),)],
        "memory_bandwidth": [(GB / 2, PEAK)],
    },
    MemoryModel: {
        "kind": [("per_node",), ("pool",), ("none",)],
        "latency_ps": [(9999,)],
        "bandwidth": [(GB / 3,)],
        "npus_per_node": [(2, {"memory": {"kind": "per_node"}})],
    },
    Noise: {
        "seed": [(7, {"noise": {"compute": {"exponential": 900_000}}}), (7, DETOURS)],
        "compute": [({"exponential": 777_000},)],
        "detours": [({"period": 1_000_000, "length": 300_000},)],
    },
    NicModel: {"overhead": [(700_000,)], "gap": [(2_000_000,)]},
    Detours: {"period": [(2_000_000, DETOURS)], "length": [(400_000, DETOURS)]},
    ComputeNoise: {"exponential": [(777_000,)], "uniform": [((5, 777_000),)]},
    Limits: {"max_events": [(7,)], "max_sim_time_ps": [(1000,)]},
}
#: Rules that only readers of scenarios apply: `decimal_bandwidth` decides what a text means, before there is a Problem.
READERS_ONLY = {(Semantics, "decimal_bandwidth")}
#: Rules that decide nothing in these worlds but in what is stuck or ill-formed; other tests show their effect.
SILENT = {(Semantics, "message_match"), (Semantics, "event_order"), (Semantics, "issue_order")}
#: Rules under which a field has no meaning, and must not change anything.
MEANINGLESS = {
    (NetworkModel, "link_busy"): {"model": {"analytical"}},
    (NetworkModel, "qps"): {"model": {"analytical"}},  # where routes of one pair are equally fast
    (Semantics, "analytical_route"): {"model": {"cut_through", "store_and_forward", FLUID}},
}

#: Network model and order of events: under each of them other methods of the engines decide.
RULES = {
    f"{model}-{order}": {"network": {"model": model}, "semantics": {"event_order": order}}
    for model, order in itertools.product(NETWORK_MODELS, ("issued", "scheduled"))
    if (model, order) != (FLUID, "scheduled")  # refused
}
#: What else replaces the methods by which messages move.
WAYS = {
    "rounded": {"semantics": {"rounding": "floor_ns"}},
    "rendezvous": {"semantics": {"rendezvous_bytes": 512}},
    "lowest_dim": {"semantics": {"analytical_route": "lowest_dim"}},
    "paced": {"network": {"msccl": {"channel_bandwidth": GB / 7}}},
    "cut_short": {"limits": {"max_sim_time_ps": 6_000_000}},
}


def merged(*many: dict) -> dict:
    """Nested arguments, the later ones over the former ones."""
    result: dict = {}
    for one in many:
        for key, value in one.items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def with_field(model: type, field: str, value, arguments: dict) -> dict:
    """The arguments with one field more."""
    given = {field: value}
    for step in reversed(PLACES[model]):
        given = {step: given}
    return merged(arguments, given)


def ring(**rules) -> Problem:
    """One all_reduce of which the closed form is exact."""
    topology = build({"shape": "ring", "npus": 4, **LINK})
    node = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 8000}
    job = Job(
        workload=small_problems.workload([[dict(node)] for _ in range(4)]),
        placement=(0, 1, 2, 3),
        algorithms=small_problems.Table("ring"),
    )
    return Problem(topology=topology, jobs=(job,), **rules)


def switched(**rules) -> Problem:
    """The same through a switch, which may reduce."""
    return replace(ring(**rules), topology=build({"shape": "switch", "npus": 4, **LINK}))


def busy(**rules) -> Problem:
    """Crossing messages, computation and memory on every rank of a torus: everything that a rule may change."""
    topology = build({"shape": "torus", "dims": [3, 2], **LINK})
    traces = []
    for rank in range(6):
        nodes = [
            {"type": NodeType.COMP, "micros": 0},
            {"type": NodeType.COMP, "micros": 2, "num_ops": 3_000_000, "tensor_size": 5000, "is_cpu_op": 0},
            {"type": NodeType.COMP, "micros": 1, "is_cpu_op": 1},
            {"type": NodeType.COMP, "micros": 2, "is_cpu_op": 1},
            {"type": NodeType.COMP, "micros": 1, "is_cpu_op": 0},
            {"type": NodeType.MEM_LOAD, "tensor_size": 1001 * (rank + 1), "deps": {0}},
            {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 6006, "deps": {5}},
            {"type": NodeType.COMM_COLL, "comm_type": 6, "comm_size": 9001, "deps": {5}},
        ]
        for far in (1, 3, 4):
            sent = {"comm_src": rank, "comm_dst": (rank + far) % 6, "comm_size": 1001 * far, "comm_tag": 0}
            nodes.append({"type": NodeType.COMM_SEND, **sent, "deps": {5}})
            got = {"comm_src": (rank - far) % 6, "comm_dst": rank, "comm_size": 1001 * far, "comm_tag": 0}
            nodes.append({"type": NodeType.COMM_RECV, **got, "deps": {5}})
        nodes.append({"type": NodeType.COMP, "micros": 3, "is_cpu_op": 0, "deps": {8}})
        nodes.append({"type": NodeType.MEM_LOAD, "tensor_size": 3003})
        made = small_problems.trace(nodes)
        ctrl = [[] for _ in nodes]
        ctrl[-2] = [6]
        ptr = np.concatenate([[0], np.cumsum([len(c) for c in ctrl])]).astype(np.int64)
        traces.append(made.replace(ctrl_deps=Csr(ptr, np.array([6], dtype=np.uint64))))
    job = Job(
        workload=Workload(traces=tuple(traces), groups={}),
        placement=(0, 1, 2, 3, 5, 4),
        algorithms=small_problems.Table("ring"),
    )
    return Problem(topology=topology, jobs=(job,), **rules)


class Only:
    """A table of one algorithm."""

    def __init__(self, algorithm) -> None:
        self.algorithm = algorithm

    def select(self, *_, **__):
        """That algorithm."""
        return self.algorithm


def channel(**rules) -> Problem:
    """Steps of several chunks, with sizes of their own, over one connection of a thread block."""
    blocks = Blocks(2, 8)
    for _ in range(6):
        blocks.step(0, 0, give=(1, 0), count=4)
        blocks.step(1, 0, take=(0, 0), reduce=True, count=4)
    for node in (*blocks.nodes[0], *blocks.nodes[1]):
        if node["type"] != NodeType.COMP:
            node["comm_size"] = 777
    call = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 2**17}
    job = Job(
        workload=small_problems.workload([[dict(call)], [dict(call)]]),
        placement=(0, 1),
        algorithms=Only(blocks.algorithm()),
    )
    topology = build({"shape": "ring", "npus": 2, **LINK, "bandwidth": 40 * GB})
    return Problem(topology=topology, jobs=(job,), **rules)


def message(**rules) -> Problem:
    """One message, of which the lower bound is exact, and which rounding makes shorter."""
    ends = {"comm_src": 0, "comm_dst": 1, "comm_size": 1001, "comm_tag": 0}
    nodes = [[{"type": NodeType.COMM_SEND, **ends}], [{"type": NodeType.COMM_RECV, **ends}]]
    job = Job(workload=small_problems.workload(nodes), placement=(0, 1), algorithms=Only(None))
    return Problem(topology=build({"shape": "ring", "npus": 2, **LINK}), jobs=(job,), **rules)


WORLDS = (ring, switched, busy, channel, message)
PARTS = {"network": NetworkModel, "semantics": Semantics, "compute": ComputeModel, "memory": MemoryModel}
PARTS |= {"limits": Limits, "noise": Noise, "nic": NicModel}


def problem_of(world, arguments: dict) -> Problem:
    """A world under rules."""
    given = merged({"memory": MEMORY}, arguments)
    ecmp = given.pop("ecmp", False)
    problem = world(**{key: PARTS[key](**value) for key, value in given.items()})
    return replace(problem, topology=problem.topology.changed(routing=Routing(ecmp=ecmp)))


def excluded(arguments: dict) -> list[Exclusion]:
    """What the table of what excludes what says of these rules."""
    network = NetworkModel.model_construct(**arguments.get("network", {}))
    parts = {"network": network, "semantics": Semantics(**arguments.get("semantics", {})), "nic": "nic" in arguments}
    return list(exclusions(parts | {"topology": "net", "topology.ecmp": arguments.get("ecmp", False)}))


SEEN: dict[tuple, tuple | TraceError] = {}


def seen(world, arguments: dict) -> tuple | TraceError:
    """Everything that a run shows, with status and makespan first; the engines show the same."""
    key = world.__name__, repr(arguments)
    if key not in SEEN:
        network = arguments.get("network", {})
        engine = "simpy" if "factory" in network else "both"
        try:
            records = simulate(problem_of(world, arguments), engine=engine, level="messages")
        except TraceError as error:
            SEEN[key] = error
        else:
            columns = (records.node[name].tolist() for name in ("rank", "node", "start", "end"))
            exposed = records.exposed_comm.tolist()
            SEEN[key] = records.outcome.status, records.makespan, exposed, *columns
    return SEEN[key]


def rules_of(model: type) -> dict[str, dict]:
    """The rules under which the fields of a model are tried."""
    if model is NetworkModel:
        ways = itertools.product(RULES.items(), WAYS.items())
        return RULES | {f"{rule}-{way}": merged(given, more) for (rule, given), (way, more) in ways}
    if PLACES[model][0] in ("network", "semantics", "nic"):
        return RULES
    return {rule: given for rule, given in RULES.items() if rule.startswith("cut_through")}


CASES = [
    pytest.param(model, field, value, merged(given, *beside), id=f"{model.__name__}.{field}-{number}-{rule}")
    for model, walked in FIELDS.items()
    for field, cases in walked.items()
    for number, (value, *beside) in enumerate(cases)
    for rule, given in rules_of(model).items()
]


def means_nothing(model: type, field: str, arguments: dict) -> bool:
    """Whether a field has no meaning under these rules."""
    of_the_network = MEANINGLESS.get((model, field), {})
    return any(arguments["network"].get(key) in values for key, values in of_the_network.items())


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_every_field_of_the_parameters_is_walked(model):
    assert FIELDS[model].keys() == model.model_fields.keys()


def test_every_part_of_a_problem_is_walked():
    parts = {type(getattr(ring(), key)) for key in ("network", "semantics", "compute", "memory", "limits")}
    assert parts <= FIELDS.keys()


@pytest.mark.parametrize(("model", "field", "value", "beside"), CASES)
def test_both_engines_use_a_field_under_any_rule(model, field, value, beside):
    """Rules replace methods of the engines, which must then use the field, too."""
    given = with_field(model, field, value, beside)
    if reasons := excluded(given):
        with pytest.raises(ScenarioError) as caught:
            seen(ring, given)
        assert caught.value.problem in {reason.problem for reason in reasons}
    if reasons or excluded(beside):
        return
    noticed = [seen(world, given) != seen(world, beside) for world in WORLDS]
    for world in WORLDS:
        if isinstance(error := seen(world, given), TraceError):
            assert (field, value) == ("kind", "none") and world is busy and "remote memory" in str(error)
    if means_nothing(model, field, beside):
        assert not any(noticed)
    elif (model, field) not in READERS_ONLY | SILENT and given != beside and not (field == "roofline" and value):
        assert any(noticed), "no world notices the change"


def test_random_worlds_draw_every_field_of_the_network():
    drawn = [problems._network(random.Random(seed)) for seed in range(100)]
    for field in NetworkModel.model_fields.keys() - {"factory"}:
        assert len({repr(getattr(network, field)) for network in drawn}) > 1, f"worlds/problems.py draws no {field}"


@pytest.mark.parametrize(("model", "field", "value", "beside"), CASES)
def test_what_is_not_simulated_equals_the_engine_or_does_not_apply(model, field, value, beside):
    given = with_field(model, field, value, beside)
    for world in () if excluded(given) else WORLDS:
        shown = seen(world, given)
        if isinstance(shown, TraceError) or shown[0] != "done":
            continue
        makespan, problem = shown[1], problem_of(world, given)
        plan = plan_for(problem)
        bound = problem_bound(plan)
        assert bound is None or bound <= makespan
        formula = None if world is switched else closed_form(plan)  # of messages that cross one link
        assert formula is None or -(-formula.numerator // formula.denominator) == makespan
        with suppress(FoldError):
            assert simulate(problem, fold=True).makespan == makespan


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_simulated_is_exact_to_begin_with(rule):
    problem, (_, makespan, *_) = problem_of(ring, RULES[rule]), seen(ring, RULES[rule])
    assert closed_form(make_plan(problem)) == makespan
    if problem.network.contention:
        assert 0 < problem_bound(make_plan(problem)) <= makespan
    if problem.semantics.event_order == "issued" and problem.network.model != FLUID:
        assert simulate(problem, fold=True).makespan == makespan


def test_an_engine_that_cannot_run_a_model_refuses_it():
    with pytest.raises(UsageError):
        simulate(ring(network=NetworkModel(model="mine", factory=Slow)), engine="compiled")


def test_synthesis_takes_a_stand_on_every_field_of_the_network():
    costed = {field.name for field in fields(CostModel)}
    # Schedules are planned without these; what they cost shows when the algorithm is simulated.
    planned_without = {"send_completes", "msccl", "factory", "profile", "protocol", "switch_reduction"}
    planned_without |= {"qps", "split"}
    assert costed | planned_without == set(NetworkModel.model_fields)


SYNTHESIS = """
name: made
topologies: {net: {shape: SHAPE, npus: 3, bandwidth: 2 GB/s, latency: 700700 ps}}
workload: [{all_gather: {size: 9009 B}}]
algorithms: {all_gather: {synthesize: {rounds: 1, chunks: 2}}}
"""


def planned_and_simulated(folder, shape: str, network: NetworkModel) -> tuple[int, int]:
    """Time (ps) that a synthesis expects of its schedule, and that of its simulation."""
    path = folder / "made.yaml"
    path.write_text(SYNTHESIS.replace("SHAPE", shape), "utf-8")
    (point,) = expand(load_scenario(path))
    point.spec.network = network
    prepared = prepare(point)
    plan = plan_for(prepared.problem)
    made = prepared.notes_with(plan).synthesized
    records = simulate(plan, engine="simpy")
    return parse_time(f"{made[0]['time_ns']} ns"), records.makespan


#: Fields of the cost model, with values that schedules are planned for.
COSTED = [
    pytest.param(field.name, value, id=field.name)
    for field in fields(CostModel)
    for value, *_ in FIELDS[NetworkModel][field.name]
    if value not in ("analytical", FLUID)
]


@pytest.mark.parametrize("network", QUEUEING_MODELS)
@pytest.mark.parametrize(("field", "value"), COSTED)
def test_synthesis_counts_the_time_that_the_network_takes(tmp_path, field, value, network):
    """Through a switch, where messages wait for ports, and over links of their own."""
    plain, given = NetworkModel(model=network), NetworkModel(**{"model": network, field: value})
    noticed = False
    for shape in ("switch", "ring"):
        (before, simulated), (after, simulated_too) = (
            planned_and_simulated(tmp_path, shape, each) for each in (plain, given)
        )
        assert (before, after) == (simulated, simulated_too)
        noticed |= before != after
    assert noticed or given == plain


@pytest.mark.parametrize(("field", "value"), COSTED)
def test_every_cost_changes_the_times_of_transfers(field, value):
    topology = build({"shape": "switch", "npus": 3, **LINK})
    plain, given = (Network.of(topology, cost=cost) for cost in (CostModel(), CostModel(**{field: value})))
    for waits in (False, True):
        times = [np.concatenate(replace(each, waits=waits).timing([1001])[-3:], axis=1) for each in (plain, given)]
        assert (times[0] != times[1]).any()


class Unknown(NetworkModel):
    """A network model with a field that nothing but a newcomer's engine knows."""

    unknown_to_all_ps: Time = 0


def test_a_new_field_is_refused_until_somebody_takes_a_stand():
    plain, unknown = ring(network=Unknown()), ring(network=Unknown(unknown_to_all_ps=5))
    assert closed_form(make_plan(plain)) is not None and problem_bound(make_plan(plain)) is not None
    assert closed_form(make_plan(unknown)) is None and problem_bound(make_plan(unknown)) is None
    assert simulate(plain, fold=True).outcome.status == "done"
    with pytest.raises(FoldError, match=r"network\.unknown_to_all_ps may break the symmetry"):
        simulate(unknown, fold=True)
