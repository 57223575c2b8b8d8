"""LogGP's o and g: closed forms exact to the picosecond in every network model, and both engines alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import small_problems
from worlds.bounds import problem_bound

from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.errors import FoldError, ScenarioError
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.runs.summary import closed_form
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.machine_models import NetworkModel, NicModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build

#: o, g, L and the time of a byte, ps.
O, G, L, BYTE = 500_000, 1_300_000, 9_000_000, 20


def network(npus: int, shape: str = "fully_connected"):
    return build({"shape": shape, "npus": npus, "bandwidth": "50 GB/s", "latency": "9 us"})


def call(collective: str, builder: str, npus: int, size: int, shape: str, **keys) -> Problem:
    """One collective over links of its own for each pair that exchanges messages."""
    node = {"type": NodeType.COMM_COLL, "comm_type": int(CommType[collective.upper()]), "comm_size": size}
    if promise_of(collective).rooted:
        node["comm_root"] = 0
    job = Job(
        workload=small_problems.workload([[dict(node)] for _ in range(npus)]),
        placement=tuple(range(npus)),
        algorithms=small_problems.Table(builder),
    )
    return Problem(topology=network(npus, shape), jobs=(job,), **keys)


def messages(sent: list[tuple[int, int, int]], npus: int, **keys) -> Problem:
    """Messages (source, destination, bytes), posted at once."""
    nodes: list[list[dict]] = [[] for _ in range(npus)]
    for tag, (src, dst, nbytes) in enumerate(sent):
        ends = {"comm_src": src, "comm_dst": dst, "comm_size": nbytes, "comm_tag": tag}
        nodes[src].append({"type": NodeType.COMM_SEND, **ends})
        nodes[dst].append({"type": NodeType.COMM_RECV, **ends})
    nodes = [mine or [{"type": NodeType.METADATA}] for mine in nodes]
    job = Job(
        workload=small_problems.workload(nodes),
        placement=tuple(range(npus)),
        algorithms=small_problems.Table("ring"),
    )
    return Problem(topology=network(npus), jobs=(job,), **keys)


def rules(model: str, *, overhead: int = O, gap: int = G) -> dict:
    return {"network": NetworkModel(model=model), "nic": NicModel(overhead=overhead, gap=gap)}


MODELS = pytest.mark.parametrize("model", NETWORK_MODELS)


@MODELS
def test_a_message_pays_both_overheads(model):
    """o + k G + L + o."""
    records = simulate(messages([(0, 1, 1000)], 2, **rules(model)), engine="both", level="messages")
    assert records.makespan == 2 * O + L + 1000 * BYTE
    message = records.message
    assert (message["posted"][0], message["start"][0]) == (0, O)
    assert message["delivered"][0] == records.makespan - O  # the receive is done later


@MODELS
@pytest.mark.parametrize("nbytes", [0, 1000, 500_000])
@pytest.mark.parametrize(("overhead", "gap"), [(O, G), (O, 0), (0, G), (3 * G, G)])
def test_the_rate_of_messages_is_the_least_of_three(model, nbytes, overhead, gap):
    """k messages of one rank to another enter max(o, g) apart, and cross the link b / B apart:
    2 o + L + b / B + (k - 1) max(o, g, b / B)."""
    k, hold = 7, nbytes * BYTE
    problem = messages([(0, 1, nbytes)] * k, 2, **rules(model, overhead=overhead, gap=gap))
    apart = max(overhead, gap, 0 if model == "analytical" else hold)
    assert simulate(problem, engine="both").makespan == 2 * overhead + L + hold + (k - 1) * apart


@MODELS
@pytest.mark.parametrize(("overhead", "gap"), [(O, G), (O, 0), (0, G), (3 * G, G)])
def test_a_receiver_takes_messages_a_gap_apart(model, overhead, gap):
    """n - 1 ranks send to one at once: o + L + b / B + (n - 2) max(o, g) + o."""
    n = 6
    problem = messages([(src, 0, 100) for src in range(1, n)], n, **rules(model, overhead=overhead, gap=gap))
    records = simulate(problem, engine="both", level="messages")
    first = overhead + L + 100 * BYTE
    assert records.makespan == first + (n - 2) * max(overhead, gap) + overhead
    assert sorted(records.message["delivered"].tolist()) == [first + i * gap for i in range(n - 1)]


@MODELS
@pytest.mark.parametrize("npus", [2, 5, 8])
def test_ring(model, npus):
    """Every step of an all_reduce: o + L + b / B + o."""
    size = npus * 4000
    shape = "ring" if npus > 2 else "fully_connected"
    records = simulate(call("all_reduce", "ring", npus, size, shape, **rules(model)), engine="both")
    assert records.makespan == 2 * (npus - 1) * (2 * O + L + 4000 * BYTE)


@MODELS
@pytest.mark.parametrize("npus", [2, 5, 8])
@pytest.mark.parametrize(("overhead", "gap"), [(O, G), (O, 0), (3 * G, G)])
def test_direct(model, npus, overhead, gap):
    """All messages of an all_to_all are posted at once: 2 o + L + b / B + (n - 2) max(o, g), if the last is posted
    before the first is there."""
    gap = min(gap, L // npus)
    overhead = min(overhead, L // npus)
    records = simulate(
        call("all_to_all", "direct", npus, npus * 4000, "fully_connected", **rules(model, overhead=overhead, gap=gap)),
        engine="both",
    )
    apart = max(overhead, gap)
    assert records.makespan == 2 * overhead + L + 4000 * BYTE + (npus - 2) * apart


def children(rank: int, npus: int) -> list[int]:
    """Of a rank in a binomial tree, in the order in which it sends."""
    lowest = rank & -rank or 1 << npus.bit_length()
    steps = [1 << bit for bit in range(lowest.bit_length() - 1)]
    return [rank + step for step in reversed(steps) if rank + step < npus]


@MODELS
@pytest.mark.parametrize("npus", [2, 4, 8, 13, 16])
@pytest.mark.parametrize(("overhead", "gap"), [(O, G), (O, 0), (3 * G, G)])
def test_binomial_broadcast(model, npus, overhead, gap):
    """A rank that has the message at t sends to its i-th child at t + o + i max(o, g); that has it L + b / B + o later.

    For a power of two, and if overhead and gap are short, these are log2 n (2 o + L + b / B) in all.
    """
    has, nodes = [0] * npus, [[] for _ in range(npus)]
    for rank in range(npus):
        for place, child in enumerate(children(rank, npus)):
            ends = {"comm_src": rank, "comm_dst": child, "comm_size": 4000, "comm_tag": 0}
            nodes[child].append({"type": NodeType.COMM_RECV, **ends})
            nodes[rank].append({"type": NodeType.COMM_SEND, **ends, "deps": {0} if rank else set()})
            has[child] = has[rank] + overhead + place * max(overhead, gap) + L + 4000 * BYTE + overhead
    job = Job(
        workload=small_problems.workload(nodes),
        placement=tuple(range(npus)),
        algorithms=small_problems.Table("ring"),
    )
    problem = Problem(topology=network(npus), jobs=(job,), **rules(model, overhead=overhead, gap=gap))
    assert simulate(problem, engine="both").makespan == max(has)
    if npus & (npus - 1) == 0:
        assert max(has) == (npus.bit_length() - 1) * (2 * overhead + L + 4000 * BYTE)


@MODELS
@pytest.mark.parametrize("npus", [2, 4, 8, 16])
def test_the_built_in_binomial_tree(model, npus):
    """It has one send in flight at a time: the same time."""
    records = simulate(call("broadcast", "binomial_tree", npus, 4000, "fully_connected", **rules(model)), engine="both")
    assert records.makespan == (npus.bit_length() - 1) * (2 * O + L + 4000 * BYTE)


@MODELS
def test_sends_and_receives_of_a_rank_share_its_overhead(model):
    """A rank sends two messages as one arrives: it is received after both are posted."""
    late = 2 * O + L // 4
    problem = messages([(0, 1, 0), (0, 1, 0), (1, 0, 0)], 2, **rules(model, overhead=late, gap=0))
    records = simulate(problem, engine="both", level="messages")
    arrived = late + L
    assert records.finish[0] == max(2 * late, arrived) + late


@MODELS
def test_nothing_is_nothing(model):
    plain = simulate(messages([(0, 1, 1000), (1, 0, 10)], 2, network=NetworkModel(model=model)), level="messages")
    free = simulate(messages([(0, 1, 1000), (1, 0, 10)], 2, **rules(model, overhead=0, gap=0)), level="messages")
    assert plain.makespan == free.makespan and plain.finish.tolist() == free.finish.tolist()


def test_bounds_hold_and_closed_forms_do_not_apply():
    problem = call("all_reduce", "ring", 4, 4000, "ring", **rules("cut_through"))
    plan = plan_for(problem)
    assert closed_form(plan) is None
    assert 0 < problem_bound(plan) <= simulate(problem).makespan
    with pytest.raises(FoldError, match="nic"):
        simulate(problem, fold=True)


def test_times_beyond_63_bits_are_an_error_in_both_engines():
    problem = messages([(0, 1, 0)] * 200, 2, **rules("analytical", overhead=86_400 * 10**12))
    for engine in ("simpy", "compiled"):
        with pytest.raises(Exception, match="63"):
            simulate(problem, engine=engine)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"semantics": Semantics(event_order="scheduled")}, "event_order: scheduled"),
        ({"semantics": Semantics(rendezvous_bytes=8)}, "rendezvous_bytes: 8"),
        ({"network": NetworkModel(profile="dgx_h100", protocol="LL")}, "profile"),
    ],
)
def test_rules_that_it_is_not_made_for_are_refused(changes, said):
    with pytest.raises(ScenarioError, match=said) as raised:
        simulate(replace(messages([(0, 1, 1)], 2, nic=NicModel(overhead=1)), **changes))
    assert str(raised.value).startswith("nic: ")


SCENARIO = """
name: s
topologies: {net: {shape: ring, npus: 2, bandwidth: 50 GB/s, latency: 1 us}}
"""


@pytest.mark.parametrize(
    ("nic", "said"),
    [
        ("{}", "nic: has neither overhead nor gap; write e.g. overhead: 500 ns"),
        ("{overhead: 5}", "nic.overhead: 5 is not a time"),
        ("{gap: -1 ns}", "nic.gap"),
        ("{gap: 90000 s}", "nic.gap: more than a day; write less"),
        ("{o: 1 us}", "nic.o: is not a key here"),
        ("{gap: 1 us}\nnetwork: {qps: 2}", "s.yaml:6:16: network.qps: queue pairs change nothing: net has one route"),
        (
            "{gap: 1 us}\nsemantics: {rendezvous_bytes: 1 B}",
            "s.yaml:5:6: nic: overhead and gap do not support semantics.rendezvous",
        ),
    ],
)
def test_wrong_keys_are_refused_in_a_line(tmp_path, nic, said):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + f"workload: [{{all_reduce: {{size: 1 MiB}}}}]\nnic: {nic}\n")
    with pytest.raises(Exception, match=said) as raised:
        load_scenario(path)
    assert len(raised.value.lines()) == 1


def test_scenarios_use_it_and_closed_forms_of_training_refuse_it(tmp_path):
    path = tmp_path / "s.yaml"
    nic = "nic: {overhead: 500 ns, gap: 50 ns}\n"
    path.write_text(SCENARIO + "workload: [{all_reduce: {size: 1 MiB}}]\n" + nic)
    assert prepare(expand(load_scenario(path))[0]).problem.nic == NicModel(overhead=500_000, gap=50_000)
    training = "compute: {preset: dgx_a100}\nworkload: {training: {model: gpt3-22b, gbs: 2, tp: 2}}\n"
    path.write_text(SCENARIO + training + nic)
    with pytest.raises(ScenarioError, match="nic: is not known to the closed form; drop it"):
        estimate(expand(load_scenario(path))[0])
    path.write_text(SCENARIO + training + "network: {profile: dgx_h100}\n")
    with pytest.raises(ScenarioError, match=r"network\.profile: closed forms do not know profiles; drop it"):
        estimate(expand(load_scenario(path))[0])
