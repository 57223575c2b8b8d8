"""MSCCL++ plans under a profile: closed forms by hand, and both engines alike."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from worlds.plan_drafts import PlanDraft

import astrasim_py as ap
from astrasim_py.builders.draft import Draft, finish
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.plan_roles import PlanRole
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.dialects.library.lower_costs import beyond_the_rows
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.traces import Traces
from astrasim_py.topology.profile import LibraryProfile, PlanProtocol, SwitchReduction

GB = Fraction(10**9)
NS, US, MB = 1000, 10**6, 10**6
#: 10 GB/s a block; links of 100 GB/s, of which messages reach half.
COSTS = PlanProtocol(
    launch=4 * US, latency=1 * US, step=300 * NS, rate=10 * GB, link=50 * GB, meeting=50 * NS, request=500 * NS,
    proxy=3 * US,
)  # fmt: skip
NUMBERS = {"library": "L", "ranks": (2, 4), "sizes": (1, 2**40), "dtypes": ("half",), "channels": 1, "link": 100 * GB}


def profile(costs: PlanProtocol | None = COSTS) -> LibraryProfile:
    """Costs of plans, the same under both protocols."""
    return LibraryProfile(**NUMBERS, plans=costs and {"Simple": costs, "LL": costs})


def box(npus: int, nodes: int = 1) -> ap.Topology:
    """Nodes of GPUs behind a switch, with a NIC each."""
    inside = {"nvlink_bandwidth": "100 GB/s", "nvlink_latency": "300 ns"}
    between = {"nodes": nodes, "nic_bandwidth": "25 GB/s", "nic_latency": "1350 ns"}
    return ap.build_topology(shape="dgx", npus=npus, **inside, **(between if nodes > 1 else {}))


def took(plan: PlanDraft | Algorithm, size: int, costs: PlanProtocol = COSTS, *, nodes: int = 1) -> int:
    """Time of a call with a full buffer of `size` bytes, ps, in both engines."""
    algorithm = plan.algorithm() if isinstance(plan, PlanDraft) else plan
    topology = box(algorithm.ranks // nodes, nodes)
    problem = ap.collective("all_reduce", size, topology, algorithm=algorithm, profile=profile(costs))
    return simulate(problem, engine="both", level="nodes").makespan


def ps(nbytes: int, rate: Fraction) -> int:
    """Picoseconds, rounded up."""
    return -(-nbytes * PS_PER_S // rate)


@pytest.mark.parametrize("link", [50, 7])
def test_a_put_keeps_its_block_busy_and_its_link_at_its_own_rate(link):
    plan = PlanDraft(2, 1)
    plan.put(0, 0, 1)
    plan.work(0, 0)
    costs = COSTS.model_copy(update={"link": link * GB})
    arrival = max(ps(MB, COSTS.rate), ps(MB, costs.link)) + COSTS.latency
    block = 2 * ps(MB, COSTS.rate) + COSTS.step
    assert took(plan, MB, costs) == COSTS.launch + max(arrival, block)


def test_a_signal_follows_its_put_and_a_wait_costs_its_latency():
    plan = PlanDraft(2, 1)
    put = plan.put(0, 0, 1)
    plan.meet(0, [0])
    signal = plan.signal(0, 0, 1, [put])
    plan.wait(1, 0, signal)
    plan.meet(1, [0])
    plan.work(1, 0)
    busy = ps(MB, COSTS.rate)
    assert took(plan, MB) == COSTS.launch + busy + COSTS.latency + 2 * COSTS.meeting + COSTS.step + busy


@pytest.mark.parametrize("ranks", [2, 4])
def test_packets_move_twice_their_bytes_and_need_no_signal(ranks):
    plan = PlanDraft(ranks, 1)
    arrivals = [plan.put(0, 0, peer, packets=True) for peer in range(1, ranks)]
    plan.work(ranks - 1, 0, after=arrivals[-1:])
    end = (ranks - 1) * ps(2 * MB, COSTS.rate) + COSTS.latency + COSTS.step + ps(MB, COSTS.rate)
    assert took(plan, MB) == COSTS.launch + end


def test_a_block_stores_to_one_peer_after_the_other():
    """Also where an operation has several targets, which depend on the same node."""
    draft, rank = Draft(4, 1), np.zeros(3, dtype=np.int64)
    peers = np.arange(1, 4)
    common = {"tag": peers, "idx": 0, "cnt": 1, "channel": 0, "plan_role": int(PlanRole.PUT)}
    draft.send(rank=rank, peer=peers, src=(Buffer.INPUT, 0), **common)
    draft.recv(rank=peers, peer=rank, dst=(Buffer.OUTPUT, 0), **common)
    assert took(finish(draft, "x", "all_reduce"), MB) == COSTS.launch + 3 * ps(MB, COSTS.rate) + COSTS.latency


def test_a_block_goes_on_once_a_port_has_its_request():
    plan = PlanDraft(2, 1)
    plan.port(0, 0, 1)
    plan.port(0, 0, 1)
    plan.work(0, 0)
    # The proxy takes up one request after the other; links between nodes keep their rate and latency.
    message = COSTS.request + 2 * COSTS.proxy + ps(MB, 25 * GB) + 2 * 1350 * NS
    wire = COSTS.request + COSTS.proxy + 2 * ps(MB, 25 * GB) + 2 * 1350 * NS
    block = 2 * COSTS.request + COSTS.step + ps(MB, COSTS.rate)
    assert took(plan, MB, nodes=2) == COSTS.launch + max(message, wire, block)
    flushed = PlanDraft(2, 1)
    flushed.port(0, 0, 1, flush=True)
    flushed.work(0, 0)
    once = COSTS.request + COSTS.proxy + ps(MB, 25 * GB) + 2 * 1350 * NS
    assert took(flushed, MB, nodes=2) == COSTS.launch + once + COSTS.step + ps(MB, COSTS.rate)


def test_a_message_of_a_port_is_as_fast_as_its_link():
    plan = PlanDraft(2, 1)
    plan.port(0, 0, 1)
    assert took(plan, MB) == COSTS.launch + COSTS.request + COSTS.proxy + ps(MB, COSTS.link) + COSTS.latency


def test_loads_take_a_round_trip_at_the_rate_of_the_block():
    plan = PlanDraft(2, 1)
    plan.load(0, 0, [1])
    plan.work(0, 0)
    assert took(plan, MB) == COSTS.launch + 2 * COSTS.latency + 2 * ps(MB, COSTS.rate) + COSTS.step


def test_a_load_does_not_wait_for_a_put_of_a_block_of_the_same_number():
    plan = PlanDraft(2, 1)
    plan.put(1, 0, 0)
    plan.load(0, 0, [1])
    assert took(plan, MB) == COSTS.launch + 2 * COSTS.latency + ps(MB, COSTS.rate)


@pytest.mark.parametrize("rate", [10, 40])
def test_blocks_share_a_link(rate):
    """Two blocks send four pieces each: the blocks limit, or the link."""
    plan = PlanDraft(2, 8)
    for _ in range(4):
        for block in range(2):
            plan.put(0, block, 1)
    costs = COSTS.model_copy(update={"rate": rate * GB})
    expected = max(4 * ps(MB, costs.rate), 8 * ps(MB, COSTS.link))
    assert took(plan, 8 * MB, costs) == COSTS.launch + expected + COSTS.latency


def test_work_begins_anew_after_a_meeting():
    plan = PlanDraft(2, 1)
    plan.work(0, 0)
    plan.work(0, 0)
    plan.meet(0, [0])
    plan.work(0, 0)
    assert took(plan, MB) == COSTS.launch + 2 * COSTS.step + COSTS.meeting + 3 * ps(MB, COSTS.rate)


def test_a_signal_waits_for_no_data_of_other_blocks():
    plan = PlanDraft(2, 1)
    plan.put(0, 0, 1)
    plan.wait(1, 0, plan.signal(0, 1, 1))
    plan.work(1, 0)
    plan.work(1, 0)
    assert took(plan, MB) == COSTS.launch + COSTS.latency + COSTS.step + 2 * ps(MB, COSTS.rate)


def test_ranks_that_begin_with_the_same_peer_share_its_link():
    """All send to rank 0 first, then to the others: no longer than 1 / 8 more than if they took turns."""
    plan, ranks = PlanDraft(5, 1), range(5)
    for rank in ranks:
        for peer in ranks:
            if peer != rank:
                plan.put(rank, peer, peer)
    costs = COSTS.model_copy(update={"rate": 40 * GB})
    busy = took(plan, 8 * MB, costs) - COSTS.launch - COSTS.latency
    assert 1 <= Fraction(busy, 4 * ps(8 * MB, COSTS.link)) <= Fraction(9, 8)


@pytest.mark.parametrize("reduce", [True, False])
def test_a_switch_takes_each_link_once(reduce):
    """All ranks reduce their shard and store it, or store it only."""
    n, plan = 4, PlanDraft(4, 4)
    for rank in range(n):
        plan.multimem(rank, 0, reduce=reduce)
    switch = {"switch": SwitchReduction(launch=US, rate=25 * GB)}
    for more, slower in (({}, 1), (switch, 2)):
        machine = LibraryProfile(**NUMBERS, plans={"Simple": COSTS}, **more)
        problem = ap.collective("all_reduce", 12 * MB, box(n), algorithm=plan.algorithm(), profile=machine)
        records = simulate(problem, engine="both", level="nodes")
        expected = (n + 1) * 3 * MB * slower if reduce else n * 3 * MB
        assert {int(b) for b in records.link["bytes"]} == {expected}
        # A block adds and stores its part once, however many ranks have it.
        work, nodes = ps(3 * MB, COSTS.rate), records.node
        took_by_name = {name: set() for name in ("", "store")}
        for name, kind, start, end in zip(nodes["name"], nodes["kind"], nodes["start"], nodes["end"], strict=True):
            if kind == "compute" and name in took_by_name:
                took_by_name[name].add(int(end - start))
        assert took_by_name == {"": {0, COSTS.step + work} if reduce else set(), "store": {work}}


def random_plan(seed: int) -> PlanDraft:
    """Random operations of blocks of random ranks; what waits does so for what was sent before."""
    draw = random.Random(seed)
    ranks, chunks = draw.choice([2, 3, 4]), 4
    plan, arrived, counted = PlanDraft(ranks, chunks), [[] for _ in range(ranks)], [0] * ranks
    for _ in range(draw.randrange(5, 40)):
        rank, block, cnt = draw.randrange(ranks), draw.randrange(3), draw.randrange(1, chunks + 1)
        peer = (rank + draw.randrange(1, ranks)) % ranks
        before = draw.sample(arrived[rank], min(len(arrived[rank]), draw.randrange(3)))
        kinds = [
            "put",
            "packets",
            "signal",
            "wait",
            "count",
            "counted",
            "port",
            "load",
            "multimem",
            "work",
            "meet",
            "all",
        ]
        kind = draw.choice(kinds)
        if kind in ("put", "packets"):
            arrived[peer].append(plan.put(rank, block, peer, cnt, packets=kind == "packets", after=before))
        elif kind == "signal":
            arrived[peer].append(plan.signal(rank, block, peer))
        elif kind == "count":
            plan.signal(rank, block, peer, counter=0)
            counted[peer] += 1
        elif kind == "counted" and counted[rank]:
            plan.wait(rank, block, count=(0, draw.randrange(1, counted[rank] + 1)))
        elif kind == "multimem":
            plan.multimem(rank, block, cnt, reduce=draw.random() < 0.5)
        elif kind == "port":
            arrived[peer].append(plan.port(rank, block, peer, cnt, flush=draw.random() < 0.3))
        elif kind == "load":
            plan.load(rank, block, draw.sample([p for p in range(ranks) if p != rank], draw.randrange(1, ranks)), cnt)
        elif kind == "wait":
            plan.wait(rank, block, *before)
        elif kind == "work":
            plan.work(rank, block, cnt, after=before)
        else:
            plan.meet(rank, [block] if kind == "meet" else range(3))
    return plan


@pytest.mark.parametrize("seed", range(20))
def test_both_engines_run_plans_alike(seed):
    plan = random_plan(seed).algorithm(protocol="LL")
    for size in (1001, 3 * MB):
        charged = took(plan, size)
        plain = simulate(ap.collective("all_reduce", size, box(plan.ranks), algorithm=plan), engine="both").makespan
        assert charged >= COSTS.launch and plain >= 0


def to_the_next(**columns) -> Algorithm:
    """Every rank sends its chunk to the next one, as in traces of files."""
    draft, rank = Draft(3, 3), np.arange(3)[:, None]
    draft.send(peer=(rank + 1) % 3, tag=0, idx=rank, src=(Buffer.INPUT, 0), **columns)
    draft.recv(peer=(rank - 1) % 3, tag=0, idx=(rank - 1) % 3, dst=(Buffer.OUTPUT, 0), **columns)
    traces = Traces.of(tuple(finish(draft, "x", "all_reduce").traces), searched=True)
    return Algorithm(name="x", collective="all_reduce", ranks=3, chunks=3, traces=traces)


@pytest.mark.parametrize("size", [999, 1000])
def test_packets_of_a_rotation_are_twice_as_large(size):
    """Chunks are equal, or not. Bytes that a message states are those on the wire."""
    packets, plain = to_the_next(packets=1), to_the_next()
    assert packets.rotated is not None and plain.rotated is not None
    for rank in range(3):
        assert (packets.message_bytes(rank, size) == 2 * plain.message_bytes(rank, size)).all()
    assert (packets.rotated.bytes_of_ranks([0, 1, 2], size) == 2 * plain.rotated.bytes_of_ranks([0, 1, 2], size)).all()
    stated = to_the_next(packets=1, comm_size=100)
    assert stated.message_bytes(0, size, verbatim=True).tolist() == [100, 100]
    bandwidth = {"nvlink_bandwidth": "1 GB/s", "nvlink_latency": "0 s"}
    topology = ap.build_topology(shape="dgx", npus=3, **bandwidth)
    for algorithm, times in ((packets, 2), (plain, 1)):
        problem = ap.collective("all_reduce", size, topology, algorithm=algorithm)
        assert simulate(problem, engine="both").makespan == times * -(-size // 3) * NS


def test_a_profile_without_costs_of_plans_says_so():
    plan = random_plan(0).algorithm()
    simple = {"protocols": {"Simple": {"launch": 1, "step": 1, "rate": GB}}}
    told = [
        beyond_the_rows(plan_for(ap.collective("all_reduce", MB, box(plan.ranks), algorithm=plan, profile=machine)))
        for machine in (LibraryProfile(**NUMBERS, **simple), profile())
    ]
    assert [any("operations of a plan of plan, which have no costs" in text for text in texts) for texts in told] == [
        True,
        False,
    ]


def test_a_plan_under_a_protocol_without_costs_is_refused():
    plan = random_plan(0).algorithm(protocol="LL")
    machine = LibraryProfile(**NUMBERS, plans={"Simple": COSTS})
    with pytest.raises(ScenarioError, match="costs of plans under Simple, and plan is under LL"):
        simulate(ap.collective("all_reduce", MB, box(plan.ranks), algorithm=plan, profile=machine))
