"""Every field of the parameters is used by both engines, and used or refused by everything that is not simulated.

The walk goes over the fields that the models declare. A field without an entry here makes a test fail: say with which
values it is tried, and the walk demands that both engines give the same records, that some world notices the change,
that the lower bound is not above the simulated time, and that closed form and folded run equal it or do not apply.
"""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
from worlds import problems, small_problems
from worlds.programs import Blocks

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import FoldError, TraceError, UsageError
from astrasim_py.core.fields import Time
from astrasim_py.engine.simpy.network import CutThrough
from astrasim_py.engine.simulation import simulate
from astrasim_py.study.summary import closed_form
from astrasim_py.synthesis.model.network import CostModel
from astrasim_py.system.bound import problem_bound
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import (
    NO_MEMORY,
    ComputeModel,
    Limits,
    MemoryModel,
    MscclModel,
    NetworkModel,
    ProtocolLatency,
)
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build

GB = Fraction(10**9)
LINK = {"bandwidth": 2 * GB, "latency": 700_700}
MEMORY = {"kind": "per_npu", "latency_ps": 300, "bandwidth": GB}
ROOFLINE = {"peak": Fraction(10**12), "memory_bandwidth": GB}


class Slow(CutThrough):
    """A network model in Python that carries every message late."""

    def carry(self, message):
        yield self.env.timeout(5000)
        yield from super().carry(message)


#: Model → field → values to try, each with what has to be set beside it.
FIELDS: dict[type, dict[str, list[tuple]]] = {
    NetworkModel: {
        "model": [("store_and_forward",), ("analytical",)],
        "link_busy": [("latency+bytes",)],
        "send_completes": [("injected",)],
        "msccl": [(MscclModel(slots=1), {"send_completes": "injected"}), (MscclModel(latency_ps={"Simple": 900}),)],
        "factory": [(Slow,)],
    },
    MscclModel: {
        "protocol": [("LL",)],
        "slots": [(1,)],
        "channel_bandwidth": [(GB / 7,)],
        "latency_ps": [(ProtocolLatency(Simple=777),)],
    },
    ProtocolLatency: {
        "Simple": [(777,)],
        "LL": [(777, "LL")],
        "LL128": [(777, "LL128")],
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
        "analytical_route": [("lowest_dim", {"model": "analytical"})],
        "message_match": [("bytes",)],
        "rendezvous_bytes": [(512,)],
        "event_order": [("scheduled",)],
        "exposed": [("finish_minus_compute",)],
    },
    ComputeModel: {
        "preset": [("dgx_a100",)],
        "precision": [("fp32", {"preset": "dgx_a100"})],
        "roofline": [(False, ROOFLINE), (True, ROOFLINE)],
        "peak": [(Fraction(10**10),)],
        "memory_bandwidth": [(GB / 2, {"peak": Fraction(10**12)})],
    },
    MemoryModel: {
        "kind": [("per_node",), ("pool",), ("none",)],
        "latency_ps": [(9999,)],
        "bandwidth": [(GB / 3,)],
        "npus_per_node": [(2, {"kind": "per_node"})],
    },
    Limits: {"max_events": [(7,)], "max_sim_time_ps": [(1000,)]},
}
#: Rules that only readers of scenarios apply: `decimal_bandwidth` decides what a text means, before there is a Problem.
READERS_ONLY = {(Semantics, "decimal_bandwidth")}
#: Rules that decide nothing in these worlds but in what is stuck or ill-formed; other tests show their effect.
SILENT = {(Semantics, "message_match"), (Semantics, "event_order")}


def changed(model: type, field: str, value, beside=None) -> dict:
    """Arguments of a problem with one field changed."""
    beside = beside or {}
    if model is NetworkModel:
        more = {"model": "mine"} if field == "factory" else {}
        return {"network": NetworkModel(**{field: value}, **beside, **more)}
    if model is MscclModel:
        return {"network": NetworkModel(msccl=MscclModel(**{field: value}), send_completes="injected")}
    if model is ProtocolLatency:
        msccl = MscclModel(protocol=beside or None, latency_ps={field: value})
        return {"network": NetworkModel(msccl=msccl)}
    if model is Semantics:
        return {"semantics": Semantics(**{field: value}), "network": NetworkModel(**beside)}
    if model is ComputeModel:
        return {"compute": ComputeModel(**beside, **{field: value})}
    if model is MemoryModel:
        kept = {**MEMORY, **beside, field: value}
        return {"memory": NO_MEMORY if value == "none" else MemoryModel(**kept)}
    return {"limits": Limits(**{field: value})}


def usual(model: type, beside=None) -> dict:
    """The arguments with which a change is compared."""
    if model is NetworkModel and beside:
        return {"network": NetworkModel(**beside)}
    if model is MscclModel:
        return {"network": NetworkModel(msccl=MscclModel(), send_completes="injected")}
    if model is ProtocolLatency:
        return {"network": NetworkModel(msccl=MscclModel(protocol=beside or None))}
    if model is Semantics and beside:
        return {"network": NetworkModel(**beside)}
    if model is ComputeModel and beside:
        return {"compute": ComputeModel(**beside)}
    return {}


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
    return Problem(**{"topology": topology, "jobs": (job,), "memory": MemoryModel(**MEMORY), **rules})


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
    return Problem(topology=build({"shape": "ring", "npus": 2, **LINK}), jobs=(job,), **rules)


def message(**rules) -> Problem:
    """One message, of which the lower bound is exact, and which rounding makes shorter."""
    ends = {"comm_src": 0, "comm_dst": 1, "comm_size": 1001, "comm_tag": 0}
    nodes = [[{"type": NodeType.COMM_SEND, **ends}], [{"type": NodeType.COMM_RECV, **ends}]]
    job = Job(workload=small_problems.workload(nodes), placement=(0, 1), algorithms=Only(None))
    return Problem(topology=build({"shape": "ring", "npus": 2, **LINK}), jobs=(job,), **rules)


WORLDS = (ring, busy, channel, message)


def seen(problem: Problem, engine: str = "simpy"):
    """Everything that a run shows."""
    records = simulate(problem, engine=engine, level="messages")
    node = records.node
    return (
        records.outcome.status,
        records.makespan,
        records.exposed_comm.tolist(),
        *(node[key].tolist() for key in ("rank", "node", "start", "end")),
    )


CASES = [
    pytest.param(model, field, *(*case, None)[:2], id=f"{model.__name__}.{field}-{number}")
    for model, walked in FIELDS.items()
    for field, cases in walked.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_every_field_of_the_parameters_is_walked(model):
    assert FIELDS[model].keys() == model.model_fields.keys()


def test_every_part_of_a_problem_is_walked():
    parts = {type(getattr(ring(), key)) for key in ("network", "semantics", "compute", "memory", "limits")}
    assert parts <= FIELDS.keys()


@pytest.mark.parametrize(("model", "field", "value", "beside"), CASES)
def test_both_engines_use_a_field(model, field, value, beside):
    given = changed(model, field, value, beside)
    noticed = False
    for world in WORLDS:
        try:
            engine = "simpy" if field == "factory" else "both"
            after = seen(world(**given), engine)
        except TraceError as error:
            assert (field, value) == ("kind", "none") and world is busy and "remote memory" in str(error)
            noticed = True
            continue
        noticed |= after != seen(world(**usual(model, beside)))
    if (model, field) not in READERS_ONLY | SILENT and not (field == "roofline" and value):
        assert noticed, "no world notices the change"


@pytest.mark.parametrize("order", ["issued", "scheduled"])
@pytest.mark.parametrize("network", ["cut_through", "store_and_forward"])
@pytest.mark.parametrize(("field", "cases"), FIELDS[NetworkModel].items())
def test_both_engines_use_a_field_of_the_network_under_any_rule(field, cases, network, order):
    """Rules replace methods of the engines, which must then use the field, too."""
    for (value, *beside), limit in itertools.product(cases, (None, 3_000_000)):
        given = {"model": network, **(beside[0] if beside else {}), field: value}
        if field == "factory":
            continue
        rules = {"semantics": Semantics(event_order=order), "limits": Limits(max_sim_time_ps=limit)}
        for world in WORLDS:
            simulate(world(network=NetworkModel(**given), **rules), engine="both", level="messages")


def test_random_worlds_draw_every_field_of_the_network():
    drawn = [problems._network(random.Random(seed)) for seed in range(100)]
    for field in NetworkModel.model_fields.keys() - {"factory"}:
        assert len({repr(getattr(network, field)) for network in drawn}) > 1, f"worlds/problems.py draws no {field}"


@pytest.mark.parametrize(("model", "field", "value", "beside"), CASES)
def test_what_is_not_simulated_equals_the_engine_or_does_not_apply(model, field, value, beside):
    given = changed(model, field, value, beside)
    for world in WORLDS:
        problem = world(**given)
        try:
            records = simulate(problem, engine="simpy")
        except TraceError:
            continue
        if records.outcome.status != "done":
            continue
        plan = make_plan(problem)
        bound = problem_bound(plan)
        assert bound is None or bound <= records.makespan
        formula = closed_form(plan)
        assert formula is None or -(-formula.numerator // formula.denominator) == records.makespan
        with suppress(FoldError):
            assert simulate(problem, fold=True).makespan == records.makespan


def test_the_closed_form_of_the_walk_is_exact_to_begin_with():
    problem = ring()
    records = simulate(problem, engine="simpy")
    assert closed_form(make_plan(problem)) == records.makespan == simulate(problem, fold=True).makespan
    assert 0 < problem_bound(make_plan(problem)) <= records.makespan


def test_an_engine_that_cannot_run_a_model_refuses_it():
    with pytest.raises(UsageError):
        simulate(ring(network=NetworkModel(model="mine", factory=Slow)), engine="compiled")


def test_synthesis_takes_a_stand_on_every_field_of_the_network():
    costed = {field.name for field in fields(CostModel)}
    # Schedules are planned without these; what they cost shows when the algorithm is simulated.
    planned_without = {"send_completes", "msccl", "factory"}
    assert costed | planned_without == set(NetworkModel.model_fields)


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
