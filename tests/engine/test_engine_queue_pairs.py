"""Queue pairs: routes of their own, messages that take turns or are split, exact to the picosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import small_problems
from worlds.bounds import problem_bound

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.choices import QUEUEING_MODELS
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.records import queue_pairs
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.report.explain import explain, explanation_text
from astrasim_py.report.timeline import timeline
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build
from astrasim_py.topology.model import Routing
from astrasim_py.topology.routing import mix

RATE, LATENCY, HOSTS = 50 * 10**9, 10**6, 8
#: ps of a byte on a link.
BYTE = 10**12 // RATE


def spines(seed: int = 0, count: int = HOSTS):
    """Two leaves of eight hosts, and spines over which ECMP spreads what goes from one leaf to the other."""
    keys = {"leaves": 2, "hosts_per_leaf": HOSTS, "spines": count, "bandwidth": "50 GB/s", "latency": "1 us"}
    return build({"shape": "leaf_spine", **keys, "routing": {"ecmp": True, "seed": seed}})


def across(messages: int = 1, nbytes: int = 10**6, *, topology=None, receives: int | None = None, **network) -> Problem:
    """Every host of the first leaf sends to one of the second."""
    nodes: list[list[dict]] = [[] for _ in range(2 * HOSTS)]
    for host in range(HOSTS):
        for tag in range(messages):
            ends = {"comm_src": host, "comm_dst": HOSTS + host, "comm_size": nbytes, "comm_tag": tag}
            nodes[host].append({"type": NodeType.COMM_SEND, **ends})
            if receives is None or tag < receives:
                nodes[HOSTS + host].append({"type": NodeType.COMM_RECV, **ends})
        if receives == 0:
            nodes[HOSTS + host].append({"type": NodeType.COMM_RECV, **ends, "comm_tag": 99})
    job = Job(
        workload=small_problems.workload(nodes),
        placement=tuple(range(2 * HOSTS)),
        algorithms=small_problems.Table("ring"),
    )
    return Problem(topology=topology or spines(), jobs=(job,), network=NetworkModel(**network))


def uplinks(problem: Problem) -> np.ndarray:
    """int64[hosts, queue pairs]: the link from leaf to spine of every queue pair."""
    qps = problem.network.qps
    src = np.repeat(np.arange(HOSTS), qps)
    ptr, links = problem.topology.routes(src, src + HOSTS, np.tile(np.arange(qps), HOSTS))
    assert (np.diff(ptr) == 4).all()
    return links[ptr[:-1] + 1].reshape(HOSTS, qps)


@pytest.mark.parametrize("qps", [1, 4, 16])
@pytest.mark.parametrize("seed", range(6))
def test_fluid_the_busiest_uplink_decides_for_every_seed(qps, seed):
    """It carries `most` parts: most b / q / C + 4 a."""
    nbytes = 2**20
    problem = across(nbytes=nbytes, topology=spines(seed), model="fluid", qps=qps, split=qps > 1)
    most = int(np.unique(uplinks(problem), return_counts=True)[1].max())
    assert simulate(problem, engine="both").makespan == most * nbytes // qps * BYTE + 4 * LATENCY


@pytest.mark.parametrize(("qps", "efficiency"), [(1, 0.385), (4, 0.568), (16, 0.730), (64, 0.846)])
def test_more_queue_pairs_collide_less(qps, efficiency):
    """q / E[most parts on one of 8 uplinks] of 8 q parts, over seeds of the hash, beside that of independent draws."""
    leaf = 2 * HOSTS + 1
    hosts, pairs = np.repeat(np.arange(HOSTS), qps), np.tile(np.arange(qps), HOSTS)

    def chosen(seeds: np.ndarray) -> np.ndarray:
        first, word = ((seeds[:, None], hosts, hosts + HOSTS, leaf, *more) for more in ((), (pairs,)))
        return np.where(pairs, mix(*word), mix(*first)) % np.uint64(HOSTS)

    spine = chosen(np.arange(2000)).astype(np.int64) + HOSTS * np.arange(2000)[:, None]
    most = np.bincount(spine.ravel(), minlength=2000 * HOSTS).reshape(2000, HOSTS).max(axis=1)
    assert qps / most.mean() == pytest.approx(efficiency, abs=0.006)
    for seed in range(3):  # it is the hash of the product
        problem = across(topology=spines(seed), model="fluid", qps=max(qps, 2))
        topology, used = problem.topology, uplinks(problem)[:, :qps]
        drawn = chosen(np.array([seed]))[0].reshape(HOSTS, qps)
        assert ((drawn == drawn[0, 0]) == (used == used[0, 0])).all()
        assert {topology.vertex_name(int(v)) for v in topology.src[used.ravel()]} == {"leaf0"}


def test_the_first_queue_pair_has_the_route_of_today():
    topology = spines(7)
    src, dst = (each.ravel() for each in np.meshgrid(np.arange(HOSTS), np.arange(HOSTS, 2 * HOSTS)))
    today, zero, one = (topology.routes(src, dst, *more) for more in ((), (0 * src,), (0 * src + 1,)))
    assert (today[1] == zero[1]).all() and (today[1] != one[1]).any()


@pytest.mark.parametrize("model", [*QUEUEING_MODELS, "analytical", "fluid"])
def test_messages_take_turns(model):
    """Message i of a pair takes queue pair i mod q."""
    problem = across(messages=7, nbytes=1000, model=model, qps=3)
    records, used = simulate(problem, engine="both", level="messages"), uplinks(problem)
    pair, message = queue_pairs(records.message, 3), records.message
    for src in range(HOSTS):
        mine = message["src"] == src
        assert (pair[mine] == message["tag"][mine] % 3).all()
    carried = dict(zip(records.link["link"].tolist(), records.link["messages"].tolist(), strict=True))
    for link in np.unique(used).tolist():
        turns = [sum(tag % 3 == k for tag in range(7)) for k in range(3)]
        assert carried[link] == (np.array(turns) * (used == link)).sum()


@pytest.mark.parametrize("model", [*QUEUEING_MODELS, "fluid"])
def test_parts_of_a_split_message_add_up_and_it_is_delivered_with_the_last(model):
    nbytes, qps = 1_000_003, 5
    records = simulate(across(nbytes=nbytes, model=model, qps=qps, split=True), engine="both", level="messages")
    message, node = records.message, records.node
    parts = [(k + 1) * nbytes // qps - k * nbytes // qps for k in range(qps)]
    for src in range(HOSTS):
        mine = message["src"] == src
        assert message["bytes"][mine].tolist() == parts
        assert records.finish[HOSTS + src] == message["delivered"][mine].max()
        assert (node["node"][message["recv_node"][mine]] == 0).all()


@pytest.mark.parametrize("model", [*QUEUEING_MODELS, "fluid"])
@pytest.mark.parametrize("size", [16 * 4096, 10_007])
def test_collectives_wait_for_all_parts(model, size):
    """All that depends on a message depends on all its parts; bytes stay the same, and nothing is below the bound."""
    network = NetworkModel(model=model, qps=4, split=True)
    node = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": size}
    job = Job(
        workload=small_problems.workload([[dict(node)] for _ in range(2 * HOSTS)]),
        placement=tuple((5 * rank) % (2 * HOSTS) for rank in range(2 * HOSTS)),
        algorithms=small_problems.Table("ring"),
    )
    problem = Problem(topology=spines(3), jobs=(job,), network=network)
    whole = simulate(replace(problem, network=NetworkModel(model=model)), level="messages")
    split = simulate(problem, engine="both", level="messages")
    assert split.messages == 4 * whole.messages
    assert split.message["bytes"].sum() == whole.message["bytes"].sum()
    assert problem_bound(plan_for(problem)) <= split.makespan
    plan = plan_for(replace(problem, network=NetworkModel(model=model)))
    node = split.node
    for rank in range(2 * HOSTS):
        program, mine = plan.program(rank, 0), (node["rank"] == rank) & (node["instance"] == 0)
        parts = [(node["node"][mine] == number).nonzero()[0] for number in program.node_id.tolist()]
        start, end = node["start"][mine], node["end"][mine]
        structure = program.structure
        for parent in range(len(program)):
            assert len(parts[parent]) == (4 if program.peer[parent] >= 0 else 1)
            for child in structure.succ[structure.succ_ptr[parent] : structure.succ_ptr[parent + 1]].tolist():
                assert start[parts[child]].min() >= end[parts[parent]].max()


def test_parts_of_a_lone_message_share_its_first_link():
    """b / C and the latencies, as without queue pairs."""
    problem = across(nbytes=4 * 10**6, model="fluid", qps=4, split=True, topology=spines(0, 1))
    assert simulate(problem).makespan == 4 * 10**6 * BYTE + 4 * LATENCY


def test_reports_name_the_queue_pair():
    problem = across(messages=2, model="cut_through", qps=2)
    records = simulate(problem, level="messages")
    drawn = b"".join(timeline(records, None, range(2 * HOSTS), qps=2)).decode()
    assert '"queue_pair":0' in drawn and '"queue_pair":1' in drawn
    assert "on queue pair 1" in explanation_text(explain(records, qps=2))
    plain = b"".join(timeline(records)).decode() + explanation_text(explain(records))
    assert "queue" not in plain.replace("queueing", "")


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_stuck_run_lists_messages_not_parts(engine):
    outcome = simulate(across(nbytes=1003, receives=0, qps=4, split=True), engine=engine).outcome
    assert outcome.status == "stuck"
    assert [entry.bytes for entry in outcome.waiting] == [1003] * 2 * HOSTS


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"qps": 0}, "network.qps"),
        ({"qps": 129}, "cap of 128"),
        ({"qps": "4"}, "whole number"),
        ({"split": True}, "without queue pairs"),
        ({"qps": 4, "split": True, "model": "analytical"}, "analytical"),
        ({"qps": 4, "split": True, "msccl": {}}, "msccl"),
        ({"qps": 4, "profile": "dgx_h100"}, "profile"),
    ],
)
def test_wrong_networks_are_refused(keys, said):
    with pytest.raises(ScenarioError, match=said):
        NetworkModel(**keys)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"semantics": Semantics(event_order="scheduled")}, "event_order: scheduled"),
        ({"semantics": Semantics(message_match="bytes")}, "message_match: bytes"),
        ({"semantics": Semantics(rendezvous_bytes=1)}, "rendezvous_bytes: 1"),
        ({"semantics": Semantics(comm_slots=2)}, "comm_slots: 2"),
        ({"topology": spines().changed(routing=Routing())}, "change nothing"),
    ],
)
def test_rules_that_queue_pairs_are_not_made_for_are_refused(changes, said):
    with pytest.raises(ScenarioError, match=said):
        simulate(replace(across(qps=2, split=True), **changes))
