"""Links that fail, change and return during a run: closed forms exact to the picosecond, laws, and an oracle."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from worlds import small_problems
from worlds.bounds import problem_bound
from worlds.flows import delivered, flows, oracle, random_messages

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import FoldError, ScenarioError
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.engine.stuck import explanation
from astrasim_py.report.explain import explain
from astrasim_py.runs.summary import edge_table
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import build
from astrasim_py.topology.link_states import event_texts

RATE = 50 * 10**9
GB, MS, US = 10**9, 10**9, 10**6
#: Under this seed the pairs (0, 2) and (1, 3) take a spine each.
ECMP = {"ecmp": True, "seed": 1}
TWO = [(0, 2, GB, 0), (1, 3, GB, 0)]
UPLINK = ["leaf0", "spine0"]


def failed(at: int, *links) -> dict:
    return {"at": at, "failed": {"links": [*links]}}


def changed(at: int, a, b, **keys) -> dict:
    return {"at": at, "links": [{"from": a, "to": b, **keys}]}


def two_spines(*events, delay: int = MS, **keys):
    """Hosts 0, 1 below leaf0 and 2, 3 below leaf1, 50 GB/s and 1 us a link."""
    given = {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2, "routing": ECMP}
    given |= {"bandwidth": Fraction(RATE), "latency": US, "events": [*events], "reroute_delay": delay}
    return build(given | keys)


def pair(*events, delay: int = MS, **keys):
    """Two NPUs, and a link each way between them."""
    given = {"shape": "ring", "npus": 2, "bandwidth": Fraction(RATE), "latency": US}
    return build(given | {"events": [*events], "reroute_delay": delay} | keys)


# -- closed forms -------------------------------------------------------------------------------------------------


def test_two_flows_over_a_spine_each():
    assert delivered(two_spines(), TWO) == [20_004 * US] * 2


@pytest.mark.parametrize("repaired", [(), ({"at": 10 * MS},)])
def test_the_flow_that_loses_its_uplink_shares_that_of_the_other(repaired):
    """0.25 GB each by 5 ms; at 6 ms 0.7 GB is left of the one; 28 ms later it is done; then 0.05 GB of the other."""
    topology = two_spines(failed(5 * MS, UPLINK), *repaired)
    assert delivered(topology, TWO) == [35_004 * US, 34_004 * US]


@pytest.mark.parametrize("delay", [0, 1, 3 * MS])
def test_a_message_that_is_alone_loses_only_the_delay(delay):
    topology = two_spines(failed(5 * MS, UPLINK), delay=delay)
    records = flows(topology, TWO[:1])
    assert records.message["delivered"].tolist() == [20_004 * US + delay]
    assert records.message["queued"].tolist() == [delay]


def test_a_pair_that_is_idle_takes_the_route_of_now_at_once():
    later = [(0, 2, GB, 10 * MS)]
    assert delivered(two_spines(failed(5 * MS, UPLINK)), later) == [30_004 * US]
    links = flows(two_spines(failed(5 * MS, UPLINK), {"at": 9 * MS}), later).hop["link"]
    assert links.tolist() == list(two_spines().route(0, 2))


def test_a_pair_that_is_busy_keeps_its_route_when_links_return():
    topology = two_spines(failed(5 * MS, UPLINK), {"at": 10 * MS})
    records = flows(topology, [(0, 2, GB, 0), (0, 2, GB, 0), (0, 2, GB, 50 * MS)])
    detour = list(build_detour().route(0, 2))
    for message, first in ((1, detour), (2, detour)):
        assert records.hop["link"][records.hop["message"] == message].tolist() == first


def build_detour():
    """The topology of `two_spines` with the numbers of its links, all messages over spine1."""
    whole, keys = two_spines(), {"failed": {"links": [UPLINK]}, "events": None, "reroute_delay": None}
    left = two_spines(**keys)

    class Numbers:
        def route(self, a, b):
            names = {whole.link_name(link): link for link in range(whole.links)}
            return [names[left.link_name(link)] for link in left.route(a, b)]

    return Numbers()


@pytest.mark.parametrize("back", [5 * MS + MS // 2, 7 * MS, 30 * MS])
def test_without_a_path_a_message_waits_for_the_next_event(back):
    """But no less than the delay."""
    topology = pair(failed(5 * MS, [0, 1]), {"at": back})
    wait = max(back - 5 * MS, MS)
    assert delivered(topology, [(0, 1, GB, 0)]) == [20_001 * US + wait]
    assert delivered(topology, [(0, 1, GB, 5 * MS)]) == [back + 20_001 * US]


def test_a_link_is_lost_in_one_direction():
    topology = pair(failed(0, {"from": 0, "to": 1, "directions": "one"}), {"at": 7 * MS})
    assert delivered(topology, [(0, 1, GB, 0), (1, 0, GB, 0)]) == [27_001 * US, 20_001 * US]


def test_a_changed_bandwidth_counts_from_its_time_on():
    """0.25 GB in 5 ms, then 0.1 GB in 10 ms, and the rest at full rate."""
    topology = pair(changed(5 * MS, 0, 1, bandwidth=Fraction(RATE, 5)), {"at": 15 * MS})
    assert delivered(topology, [(0, 1, GB, 0)]) == [15 * MS + 13 * MS + US]
    records = flows(topology, [(0, 1, GB, 0)])
    assert records.message["queued"].tolist() == [0]
    assert records.link["busy"].max() == 28 * MS and records.link["bytes"].max() == GB


def test_a_wider_link_is_shared_anew():
    topology = build(
        {"shape": "switch", "npus": 3, "bandwidth": Fraction(RATE), "latency": 0, "reroute_delay": 0}
        | {"events": [changed(10 * MS, "switch0", 2, bandwidth=2 * Fraction(RATE))]}
    )
    assert delivered(topology, [(0, 2, GB, 0), (1, 2, GB, 0)]) == [10 * MS + 15 * MS] * 2


def test_the_latency_is_that_of_when_the_last_byte_leaves():
    assert delivered(pair(changed(5 * MS, 0, 1, latency=7 * US)), [(0, 1, GB, 0)]) == [20_007 * US]
    assert delivered(pair(changed(20 * MS + 1, 0, 1, latency=7 * US)), [(0, 1, GB, 0)]) == [20_001 * US]


def test_an_event_comes_first_at_its_time():
    """A message whose last byte would leave at that time is caught; one that is on its way is not."""
    assert delivered(pair(failed(20 * MS, [0, 1]), {"at": 22 * MS}), [(0, 1, GB, 0)]) == [22_001 * US]
    assert delivered(pair(failed(20 * MS + 1, [0, 1]), {"at": 22 * MS}), [(0, 1, GB, 0)]) == [20_001 * US]
    assert delivered(pair(failed(5 * MS, [0, 1]), {"at": 6 * MS}), [(0, 1, GB, 5 * MS)]) == [26_001 * US]


def test_events_are_not_cumulative_and_come_on_top_of_what_is_written():
    events = failed(5 * MS, UPLINK), changed(6 * MS, 0, "leaf0", bandwidth=Fraction(RATE, 2))
    topology = two_spines(*events, failed={"links": [["leaf0", "spine1"]]})
    assert delivered(topology, [(0, 2, GB, 0)]) == [6 * MS + 30 * MS + 4 * US]


# -- laws ---------------------------------------------------------------------------------------------------------

NETWORKS = (
    {"shape": "leaf_spine", "hosts_per_leaf": 3, "leaves": 2, "spines": 3},
    {"shape": "torus", "dims": [3, 3]},
    {"shape": "fat_tree", "k": 4, "pods": 2, "hosts_per_edge": 2},
    {"shape": "mesh", "dims": [2, 4]},
    {"shape": "switch", "npus": 6},
    {"shape": "dragonfly", "a": 2, "h": 1, "p": 2, "g": 3},
)


def random_events(rng: random.Random, keys: dict, longest: int) -> list[dict]:
    """Some links that fail, change and return, in one direction or both; now and then all is healthy."""
    whole = build(keys)

    def link() -> dict:
        one = rng.randrange(whole.links)
        ends = {key: int(v) if v < whole.npus else whole.vertex_name(v) for key, v in
                (("from", whole.src[one]), ("to", whole.dst[one]))}  # fmt: skip
        return ends | {"directions": rng.choice(("both", "one"))}

    events = []
    for at in sorted(rng.sample(range(longest), rng.randint(1, 5))):
        event = {"at": at}
        if rng.random() < 0.8:
            event["failed"] = {"links": [link() for _ in range(rng.randint(0, 3))]}
            event["links"] = [link() | {"bandwidth": Fraction(rng.randint(1, 99) * 10**9)} for _ in range(2)]
        events.append(event)
    return events


def random_network(seed: int, **more):
    rng = random.Random(seed)
    rate = Fraction(rng.randint(1, 99) * 10**9)
    keys = {**NETWORKS[seed % len(NETWORKS)], "bandwidth": rate, "latency": 0, **more}
    if rng.random() < 0.5:
        keys["routing"] = {"ecmp": True, "seed": seed}
    events = random_events(rng, keys, 3 * 10**7)
    return build(keys | {"events": events, "reroute_delay": rng.choice((0, 777, 10**6))}), rng


@pytest.mark.parametrize("seed", range(60))
def test_times_are_those_of_exact_fractions(seed):
    topology, rng = random_network(seed)
    messages = random_messages(rng, topology.npus, 14)
    found, exact = delivered(topology, messages), oracle(topology, messages)
    assert all(end == time if time < 0 else abs(end - time) <= 1 for end, time in zip(found, exact, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_conserved_across_events(seed):
    topology, rng = random_network(seed, latency=700)
    messages = random_messages(rng, topology.npus, 20)
    records = flows(topology, messages)
    message, hop = records.message, records.hop
    assert hop.height == records.message_hops == message["hops"].sum() or records.outcome.status == "stuck"
    moved = dict.fromkeys(range(topology.vertices), 0)
    for src, dst, nbytes in zip(*(records.link[name].tolist() for name in ("src", "dst", "bytes")), strict=True):
        moved[dst] += nbytes
        moved[src] -= nbytes
    if records.outcome.status == "done":
        for npu in range(topology.npus):
            sent = sum(nbytes for src, _, nbytes, _ in messages if src == npu)
            assert moved[npu] == sum(nbytes for _, dst, nbytes, _ in messages if dst == npu) - sent
        assert not any(moved[switch] for switch in range(topology.npus, topology.vertices))
    assert (message["queued"] >= 0).all() and (hop["end"] >= hop["start"]).all()


def all_reduce(topology, algorithm: str = "ring", nbytes: int = 80_000_000, **rules) -> Problem:
    call = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": nbytes}
    job = Job(
        workload=small_problems.workload([[dict(call)] for _ in range(topology.npus)]),
        placement=tuple(range(topology.npus)),
        algorithms=small_problems.Table(algorithm),
    )
    return Problem(topology=topology, jobs=(job,), network=NetworkModel(model="fluid"), **rules)


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_holds_across_events(seed):
    topology, _ = random_network(seed, latency=700)
    problem = all_reduce(topology, nbytes=80_000)
    records = simulate(problem)
    if records.outcome.status == "done":
        assert problem_bound(plan_for(problem)) <= records.makespan


def test_the_bound_takes_the_greatest_bandwidth_of_each_link():
    wide = {"bandwidth": 10 * Fraction(RATE), "directions": "both"}
    topology = build(
        {"shape": "ring", "npus": 4, "bandwidth": Fraction(RATE), "latency": 0, "reroute_delay": 0}
        | {"events": [{"at": 1, "links": [{"from": i, "to": (i + 1) % 4, **wide} for i in range(4)]}]}
    )
    problem = all_reduce(topology)
    narrow = problem_bound(plan_for(replace(problem, topology=replace(topology, events=()))))
    assert problem_bound(plan_for(problem)) == -(-narrow // 10) <= simulate(problem).makespan < narrow


def test_events_after_the_end_change_nothing():
    messages = random_messages(random.Random(3), 4, 20)
    plain, later = (flows(two_spines(*events), messages) for events in ((), (failed(10**12, UPLINK),)))
    for table in ("message", "hop", "node"):
        for name, column in getattr(plain, table).items():
            assert (column == getattr(later, table)[name]).all()
    assert plain.link["busy"].sum() == later.link["busy"].sum()
    limited = flows(two_spines(failed(10**12, UPLINK)), messages, limits=Limits(max_sim_time_ps=plain.makespan))
    assert (limited.outcome.status, limited.makespan) == ("done", plain.makespan)


# -- ends and refusals --------------------------------------------------------------------------------------------


def test_a_run_that_can_no_longer_end_says_which_links_failed_and_who_waits():
    both = [UPLINK, ["leaf0", "spine1"]]
    records = flows(two_spines(failed(3 * MS, UPLINK), failed(5 * MS, *both)), TWO)
    assert records.outcome.status == "stuck"
    text = "\n".join(explanation(records.outcome))
    assert "no path is left between NPUs (0 to 2, 1 to 3)" in text
    assert "leaf0->spine0 at 3 ms, leaf0->spine1 at 5 ms" in text
    assert "no path is left from NPU 1 to NPU 3" in text


def test_a_limit_comes_before_an_event_that_messages_wait_for():
    topology = pair(failed(5 * MS, [0, 1]), {"at": 70 * MS})
    assert flows(topology, [(0, 1, GB, 0)], limits=Limits(max_sim_time_ps=60 * MS)).outcome.status == "limit"


def test_a_fold_and_other_network_models_are_refused():
    problem = all_reduce(pair(failed(MS, [0, 1])))
    with pytest.raises(FoldError, match=r"network\.model fluid"):
        simulate(problem, fold=True)
    for model in ("cut_through", "store_and_forward", "analytical"):
        for fold in (False, True):
            with pytest.raises(ScenarioError, match=f"{model} reserves links .* no link can fail"):
                simulate(replace(problem, network=NetworkModel(model=model)), fold=fold)


def test_bandwidths_that_its_integers_do_not_hold_are_refused():
    with pytest.raises(ScenarioError, match="fluid supports links of 1 B/s to 140 TB/s"):
        flows(pair(changed(MS, 0, 1, bandwidth=Fraction(1, 2))), [(0, 1, 1, 0)])


# -- what a run says of it ----------------------------------------------------------------------------------------


def explained(topology, messages):
    records = flows(topology, messages)
    changes = [event.at_ps for event in topology.events]
    found = explain(records, edge_table(topology, records.link["link"]), changes=changes)
    assert [piece.start for piece in found.path] == [0, *(piece.end for piece in found.path[:-1])]
    assert sum(found.totals.values()) == found.makespan == records.makespan
    return {category: ps for category, ps in found.totals.items() if ps}


def test_the_delay_is_explained_as_rerouting():
    spent = explained(two_spines(failed(5 * MS, UPLINK), delay=3 * MS), TWO[:1])
    assert spent == {"serialization": 20 * MS, "rerouting": 3 * MS, "latency": 4 * US}
    topology = pair(failed(5 * MS, [0, 1]), {"at": 9 * MS, "links": [{"from": 0, "to": 1, "latency": 7 * US}]})
    spent = explained(topology, [(0, 1, GB, 0)])
    assert spent == {"serialization": 20 * MS, "rerouting": 4 * MS, "latency": 7 * US}


def test_sharing_after_a_detour_is_explained_as_such():
    """The rerouted message waits 1 ms and has half of the uplink until the other one is done, 28 ms later."""
    spent = explained(two_spines(failed(5 * MS, UPLINK)), TWO)
    assert spent == {"serialization": 20 * MS, "sharing": 14 * MS, "rerouting": MS, "latency": 4 * US}


def test_a_message_without_a_path_is_explained_as_rerouting():
    spent = explained(pair(failed(0, [0, 1]), {"at": 7 * MS}), [(0, 1, GB, 0)])
    assert spent == {"serialization": 20 * MS, "rerouting": 7 * MS, "latency": US}


@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_of_a_path_across_events_add_up(seed):
    topology, rng = random_network(seed, latency=700)
    if flows(topology, messages := random_messages(rng, topology.npus, 12)).outcome.status == "done":
        explained(topology, messages)


def test_events_are_put_in_words():
    events = [
        failed(MS, UPLINK) | changed(MS, 0, "leaf0", bandwidth=Fraction(RATE, 5), latency=7 * US),
        failed(2 * MS, UPLINK, ["leaf1", "spine1"]),
        {"at": 3 * MS},
        {"at": 4 * MS},
        failed(5 * MS, {"from": "leaf0", "to": "spine1", "directions": "one"}),
    ]
    assert event_texts(two_spines(*events)) == [
        "leaf0->spine0, spine0->leaf0 fail; 0->leaf0, leaf0->0 change to 10 GB/s, 7 µs",
        "leaf1->spine1, spine1->leaf1 fail; 0->leaf0, leaf0->0 change back",
        "leaf0->spine0, leaf1->spine1, spine0->leaf0, spine1->leaf1 return",
        "no change",
        "leaf0->spine1 fails",
    ]
