"""The network model ``fluid``: closed forms exact to the picosecond, laws, and an oracle in fractions."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from worlds import small_problems
from worlds.bounds import problem_bound
from worlds.flows import delivered, flows, oracle, random_messages

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import FoldError, ScenarioError
from astrasim_py.dialects.fluid.simpy import Fluid, fill
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build
from astrasim_py.topology.edge_list import read_csv

RATE = 50 * 10**9
#: A network of ps per byte: 20.
BYTE = 10**12 // RATE
MIB, GIB = 2**20, 2**30


def star(npus: int, **keys):
    """NPUs around a switch."""
    return build({"shape": "switch", "npus": npus, "bandwidth": Fraction(RATE), "latency": 0, **keys})


def line(*rates: int):
    """NPUs in a row, with a link of each rate from one to the next, and back."""
    ends = [(at + way, at + 1 - way, rate) for at, rate in enumerate(rates) for way in (0, 1)]
    links = [f"{a},{b},{rate} B/s,0 s" for a, b, rate in ends]
    return read_csv("\n".join(["src,dst,bandwidth,latency", *links]), "line")


# -- closed forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 11, 64])
def test_n_equal_flows_end_at_n_times_one(n):
    assert delivered(star(n + 1), [(i, n, MIB, 0) for i in range(n)]) == [n * MIB * BYTE] * n


def test_the_shorter_of_two_ends_at_twice_its_own_time():
    short, long = MIB, 5 * MIB
    assert delivered(star(3), [(0, 2, short, 0), (1, 2, long, 0)]) == [2 * short * BYTE, (short + long) * BYTE]


def test_an_elephant_hardly_holds_up_a_mouse():
    messages = [(0, 2, GIB, 0), (1, 2, MIB, 10**6)]
    assert delivered(star(3), messages) == [21_495_808_000, 42_943_040]
    assert delivered(star(3), messages, network=NetworkModel())[1] > 21_000_000_000


@pytest.mark.parametrize("wide", [1, 2])
def test_flows_of_a_parking_lot_share_each_link(wide):
    topology = line(RATE, wide * RATE)
    ends = delivered(topology, [(0, 2, MIB, 0), (0, 1, MIB, 0), (1, 2, MIB, 0)])
    alone = MIB * BYTE
    assert ends == [2 * alone, 2 * alone, 2 * alone if wide == 1 else -(-2 * alone // 3)]


def test_a_lone_message_takes_the_time_of_its_slowest_link():
    topology = line(3 * RATE, RATE)
    assert delivered(topology, [(0, 2, 12_345, 0)]) == [12_345 * BYTE]


def test_messages_of_one_pair_leave_in_order():
    ends = delivered(star(3), [(0, 2, 3000, 0), (0, 2, 1000, 0), (0, 2, 0, 0), (1, 2, 10**6, 0)])
    assert ends[:3] == [6000 * BYTE, 8000 * BYTE, 8000 * BYTE]


def test_the_latency_of_a_route_follows_the_last_byte():
    records = flows(star(3, latency=700), [(0, 2, 1000, 0), (1, 2, 1000, 0)])
    assert records.message["delivered"].tolist() == [2000 * BYTE + 1400] * 2
    assert records.hop["end"].tolist() == [2000 * BYTE] * 4
    assert records.message["queued"].tolist() == [1000 * BYTE] * 2
    assert records.link["max_queue"].max() == 1 and records.link["queued"].max() == 0


def test_an_injected_send_is_done_when_its_last_byte_has_left():
    network = NetworkModel(model="fluid", send_completes="injected")
    records = flows(star(3, latency=700), [(0, 2, 1000, 0), (1, 2, 1000, 0)], network=network)
    assert sorted(records.finish.tolist()) == [2000 * BYTE] * 2 + [2000 * BYTE + 1400]


# -- laws ---------------------------------------------------------------------------------------------------------


NETWORKS = (
    {"shape": "switch", "npus": 6},
    {"shape": "torus", "dims": [3, 3]},
    {"shape": "mesh", "dims": [2, 4]},
    {"shape": "leaf_spine", "hosts_per_leaf": 3, "leaves": 2, "spines": 2},
)


@pytest.mark.parametrize("seed", range(12))
def test_times_are_those_of_exact_fractions(seed):
    rng = random.Random(seed)
    given = NETWORKS[seed % len(NETWORKS)]
    topology = build({**given, "bandwidth": Fraction(rng.randint(1, 99) * 10**9, rng.choice((1, 7))), "latency": 0})
    messages = random_messages(rng, topology.npus, 14)
    found = delivered(topology, messages)
    assert all(exact - 1 <= end <= exact + 1 for end, exact in zip(found, oracle(topology, messages), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_rates_are_max_min_fair_and_links_are_not_overbooked(seed, monkeypatch):
    settled = []
    settle = Fluid.settle

    def checked(model):
        settle(model)
        busy = {pair: flow for pair, flow in model.flows.items() if flow.rate}
        tight_links = {number: link for number, link in model.links.items() if link.tight}
        assert fill(busy, tight_links) == {pair: flow.rate for pair, flow in busy.items()}  # from scratch
        capacity = {number: link.capacity for number, link in model.links.items()}
        of_link = {
            number: [f.rate for f in busy.values() for x in f.links if x.link.index == number] for number in capacity
        }
        for number, rates in of_link.items():
            assert sum(rates) <= capacity[number] + len(busy)
        for flow in busy.values():
            tight = [x.link.index for x in flow.links if sum(of_link[x.link.index]) >= x.capacity]
            held = any(flow.rate >= max(of_link[number]) - len(busy) for number in tight)
            assert flow.rate == flow.cap or held
        settled.append(len(busy))

    monkeypatch.setattr(Fluid, "settle", checked)
    topology = build({**NETWORKS[seed], "bandwidth": Fraction(7 * 10**9, 3), "latency": 100})
    flows(topology, random_messages(random.Random(seed), topology.npus, 60), engine="simpy")
    assert max(settled) > 10


@pytest.mark.parametrize("spines", [1, 3, 8])
def test_many_flows_that_keep_their_rates_end_when_simpy_says(spines):
    """All pairs at once over routes by ECMP, then some more: links become tight and loose, in any order of rates."""
    hosts, rng = 16, random.Random(spines)
    topology = build(
        {"shape": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": spines, "bandwidth": Fraction(RATE)}
        | {"latency": 1000, "routing": {"ecmp": True, "seed": spines}}
    )
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    late = [(*rng.choice(pairs), rng.choice((MIB, 10**5)), rng.randrange(5 * 10**8)) for _ in range(60)]
    records = flows(topology, [(a, b, MIB, 0) for a, b in pairs] + late, engine="both")
    assert len(np.unique(records.message["delivered"])) > 30


def test_numbers_of_npus_and_links_decide_nothing():
    messages = random_messages(random.Random(5), 6, 30)
    other = [3, 1, 5, 0, 2, 4]
    renamed = [(other[a], other[b], *rest) for a, b, *rest in messages]
    assert delivered(star(6), messages) == delivered(star(6), renamed)


def test_bytes_are_conserved():
    messages = random_messages(random.Random(6), 6, 30)
    records = flows(star(6), messages)
    assert records.link["bytes"].sum() == 2 * sum(nbytes for *_, nbytes, _ in messages)
    assert records.link["busy"].sum() == 2 * BYTE * sum(nbytes for *_, nbytes, _ in messages)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
@pytest.mark.parametrize("slots", [None, {"slots": 2}])
def test_without_shared_links_it_is_cut_through(algorithm, slots):
    """Node by node, where no link serves two pairs at once."""
    topology = build({"shape": "fully_connected", "npus": 8, "bandwidth": Fraction(RATE), "latency": 500})
    call = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 80_000}
    job = Job(
        workload=small_problems.workload([[dict(call)] for _ in range(8)]),
        placement=tuple(range(8)),
        algorithms=small_problems.Table(algorithm),
    )
    tables = []
    for model in ("fluid", "cut_through"):
        network = NetworkModel(model=model, msccl=slots, send_completes="injected")
        problem = Problem(topology=topology, jobs=(job,), network=network)
        tables.append(simulate(problem, engine="both", level="messages"))
        if slots is None:
            assert problem_bound(plan_for(problem)) <= tables[-1].makespan
    for name in ("rank", "node", "start", "end", "released_by"):
        assert np.array_equal(tables[0].node[name], tables[1].node[name])


# -- limits and refusals ------------------------------------------------------------------------------------------


def test_a_time_limit_counts_only_what_happens():
    messages = [(0, 2, MIB, 0), (1, 2, 1000, 0)]
    whole = flows(star(3), messages)
    at_end = flows(star(3), messages, limits=Limits(max_sim_time_ps=whole.makespan))
    assert (at_end.outcome.status, at_end.makespan) == ("done", whole.makespan)
    cut = flows(star(3), messages, limits=Limits(max_sim_time_ps=whole.makespan - 1))
    assert cut.outcome.status == "limit"


@pytest.mark.parametrize(
    ("semantics", "named"),
    [({"rounding": "floor_ns"}, "rounding: floor_ns"), ({"event_order": "scheduled"}, "event_order: scheduled")],
)
def test_rules_that_it_is_not_made_for_are_refused_by_name(semantics, named):
    with pytest.raises(ScenarioError, match=f"network.model: fluid does not support semantics.{named}"):
        flows(star(2), [(0, 1, 1, 0)], semantics=Semantics.native(**semantics))


def test_links_that_hold_the_latency_are_refused():
    with pytest.raises(ScenarioError, match="fluid needs link_busy: bytes"):
        NetworkModel(model="fluid", link_busy="latency+bytes")


@pytest.mark.parametrize(("rate", "nbytes"), [(140 * 10**12, 1), (Fraction(1, 2), 1), (RATE, 2**47)])
def test_what_its_integers_do_not_hold_is_refused(rate, nbytes):
    with pytest.raises(ScenarioError, match="fluid supports"):
        flows(star(2, bandwidth=Fraction(rate)), [(0, 1, nbytes, 0)])


def test_a_fold_is_refused():
    job = Job(
        workload=small_problems.workload([[{"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": 80}]] * 4),
        placement=(0, 1, 2, 3),
        algorithms=small_problems.Table("ring"),
    )
    with pytest.raises(FoldError, match=r"network\.model fluid"):
        simulate(Problem(topology=star(4), jobs=(job,), network=NetworkModel(model="fluid")), fold=True)


def test_a_larger_share_of_a_shared_link_ends_sooner():
    ends = [delivered(star(3, bandwidth=Fraction(rate)), [(0, 2, MIB, 0), (1, 2, MIB, 0)]) for rate in (RATE, 2 * RATE)]
    assert all(later > sooner for later, sooner in pairwise(times[0] for times in ends))
