"""Messages by rotation: at the cut between nodes on rails of any numbers, valid everywhere, in memory by transfers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from worlds.networks import COSTS, edge_list

from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction
from astrasim_py.synthesis.bounds.balanced_paths import Messages
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.cells import cells_of
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound, Schedule, Search, as_schedule
from astrasim_py.synthesis.portfolio import find_schedule
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.synthesis.search.rotations import Rotation, Rotations, best_rotation
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import Topology, build
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

#: Of a megabyte a message: 20 µs over a port, 2.2 µs or 5 µs inside a node.
MESSAGE, SLOT = 10**6, 20_000_000


def rails(nodes: int, members: int, switches: int, inside: str = "450 GB/s", slow=(), rate: str = "") -> Topology:
    """Nodes whose members reach each other over one switch, and a switch for every so many of their NICs.

    NICs of slow ranks have another rate; empty: they failed.
    """
    edges = []
    for rank in range(nodes * members):
        node, lane = divmod(rank, members)
        nic = rate if rank in slow else "50 GB/s"
        for switch, bandwidth in ((f"node{node}", inside), (f"rail{lane * switches // members}", nic)):
            if bandwidth:
                edges += [{"src": a, "dst": b, "bandwidth": bandwidth} for a, b in ((rank, switch), (switch, rank))]
    names = list(dict.fromkeys(edge["dst"] for edge in edges if isinstance(edge["dst"], str)))
    number = {name: nodes * members + i for i, name in enumerate(names)}
    edges = [{key: number.get(value, value) for key, value in edge.items()} | {"latency": "500 ns"} for edge in edges]
    return build({"shape": "edge_list", "npus": nodes * members, "edges": edges})


def rotated(topology: Topology, collective: str = "all_to_all", chunks: int = 1, **more) -> Schedule:
    network = Network.of(topology, **more)
    root = None if collective == "all_to_all" else 1
    demand = Demand.of(collective, network.ranks, chunks, network.ranks * chunks * MESSAGE, root)
    schedule = best_rotation(Queues(network, demand), Bound(0, ""), 0, Effort(jobs=1))
    assert schedule is not None
    return schedule


def measured(schedule: Schedule, engine: str) -> int:
    demand, topology = schedule.demand, schedule.network.topology
    algorithm = emit(schedule)
    table = AlgorithmTable({demand.collective: [Case(source=FromFunction(lambda *_: algorithm))]})
    workload = generate([Collective(type=demand.collective, size=demand.size, root=demand.root or 0)], demand.ranks)
    job = Job(workload=workload, placement=tuple(range(demand.ranks)), algorithms=table)
    return simulate(Problem(topology=topology, jobs=(job,)), engine=engine, level="summary").makespan


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize(("members", "switches"), [(2, 2), (3, 3), (4, 4), (5, 5), (8, 8), (4, 2), (8, 2), (4, 1)])
def test_ports_of_nodes_never_idle(nodes, members, switches):
    schedule = rotated(rails(nodes, members, switches))
    assert check(schedule) == []
    # (N - 1) · g messages over each port, one after the other, and the latency of one.
    assert schedule.time == (nodes - 1) * members * SLOT + 1_000_000
    # Every message crosses once; of those for other rails, each goes inside its node before.
    width = members // switches
    crossing, inside = (nodes - 1) * members, members - 1 + (nodes - 1) * (members - width)
    assert schedule.transfers == nodes * members * (crossing + inside)


def test_both_engines_measure_what_is_claimed():
    for nodes, members, switches, inside in ((3, 4, 4, "450 GB/s"), (4, 4, 2, "50 GB/s"), (5, 2, 2, "30 GB/s")):
        schedule = rotated(rails(nodes, members, switches, inside))
        assert check(schedule) == []
        for engine in ("simpy", "compiled"):
            assert measured(schedule, engine) == schedule.time


def test_ports_are_never_idle_where_messages_come_later_than_their_slot():
    # A message takes 20.23 µs inside, more than a slot: a port then sends another message of its own first.
    schedule = rotated(rails(4, 4, 4, "52 GB/s"))
    assert check(schedule) == []
    assert schedule.time == 3 * 4 * SLOT + 1_000_000


@pytest.mark.parametrize(("slow", "rate", "ports"), [((0,), "", 7), ((0,), "12.5 GB/s", 7.25), ((3,), "25 GB/s", 7.5)])
def test_other_ports_carry_what_a_slow_or_failed_one_cannot(slow, rate, ports):
    for every in (False, True):
        if every and not rate:
            continue
        ranks = range(slow[0], 64, 8) if every else slow
        schedule = rotated(rails(8, 8, 8, slow=ranks, rate=rate))
        assert check(schedule) == []
        # Of the node with the slow port 8 · 56 messages leave over what is like so many ports.
        cut = 8 * 56 * SLOT / ports
        assert cut <= schedule.time <= 1.01 * cut


@pytest.mark.parametrize("cost", COSTS, ids=("bytes", "latency+bytes", "store_and_forward"))
@pytest.mark.parametrize("collective", ["all_to_all", "scatter", "gather"])
@pytest.mark.parametrize("seed", range(4))
def test_every_rotation_is_valid_on_any_network(seed, collective, cost):
    network = Network.of(edge_list(seed, most=9, switch=seed % 2 > 0), cost=cost)
    demand = Demand.of(collective, network.ranks, 2, 10**6, None if collective == "all_to_all" else 0)
    rotations, queues = Rotations(network, demand), Queues(network, demand)
    assert {rotation.farthest for rotation in rotations.offered()} >= {False}
    for rotation in rotations.offered():
        time, (arc, chunk, reduces, start) = queues.executed(*rotations.transfers(rotation), 2**62)
        order = np.argsort(start, kind="stable")
        columns = arc[order], chunk[order], start[order], reduces[order]
        schedule = Schedule.of(network, demand, columns, time, Search(seed=1, policy="", rounds=1))
        assert check(schedule) == []


def test_shortest_paths_share_equal_ways():
    network = Network.of(build({"shape": "torus", "dims": [4, 4], "bandwidth": "50 GB/s", "latency": "500 ns"}))
    messages = Messages(network, Demand.of("all_to_all", 16, 1, 16 * MESSAGE))
    arc, length, load = messages.shortest_paths(np.arange(len(messages.chunk)))
    assert length.max() == messages.hops == 4 and (length == (arc >= 0).sum(axis=1)).all()
    # 16 · 15 messages of 32/15 arcs on 64 arcs are 8 messages an arc.
    assert load.sum() == 64 * 8 * SLOT and load.max() < 2 * 8 * SLOT


def test_memory_goes_by_transfers():
    network = Network.of(rails(16, 8, 8))
    demand = Demand.of("all_to_all", network.ranks, 1, network.ranks * MESSAGE)
    rotations, queues = Rotations(network, demand), Queues(network, demand)
    rows = rotations.transfers(Rotation(1))
    _, (arc, chunk, reduces, start) = queues.executed(*rows, 2**62)
    order = np.argsort(start, kind="stable")
    columns = arc[order], chunk[order], start[order], reduces[order]
    assert cells_of(network, arc, chunk, demand.count).total <= 2 * len(arc) < network.ranks * demand.count // 10
    schedule = as_schedule(network, demand, columns, Search(seed=1, policy="", rounds=1))
    check(schedule)
    for what in (
        lambda: rotations.transfers(Rotation(1)),
        lambda: queues.executed(*rows, 2**62),
        lambda: as_schedule(network, demand, columns, schedule.search),
        lambda: check(schedule),
    ):
        tracemalloc.start()
        what()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 400 * len(arc)


def test_no_search_follows_a_rotation_near_the_bound(monkeypatch):
    monkeypatch.setattr("astrasim_py.synthesis.portfolio.route", None)
    network = Network.of(rails(4, 4, 4))
    demand = Demand.of("all_to_all", network.ranks, 1, network.ranks * MESSAGE)
    assert find_schedule(network, demand, Effort(jobs=1)).optimal


@pytest.mark.parametrize("collective", ["all_to_all", "scatter", "gather"])
def test_no_time_at_all_is_enough_for_the_first_rotation(collective):
    network = Network.of(rails(4, 4, 4, slow=(1,), rate="20 GB/s"))
    demand = Demand.of(collective, network.ranks, 2, network.ranks * MESSAGE, None if collective == "all_to_all" else 3)
    schedule = find_schedule(network, demand, Effort(jobs=1, budget=0.0))
    assert check(schedule) == [] and schedule.search.policy.startswith("rotation of ")


@pytest.mark.nightly
def test_exchanges_of_512_ranks_are_at_their_bound(golden):
    file = str(golden / "synthesis" / "topologies" / "rail_h100_512.csv")
    network = Network.of(build({"shape": "edge_list", "file": file}))
    demand = Demand.of("all_to_all", network.ranks, 1, 2**30)
    tracemalloc.start()
    schedule = find_schedule(network, demand, Effort(jobs=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 63 nodes get 8 messages of each port of a node.
    message = schedule.timing.hold[0].max()
    assert schedule.time == 63 * 8 * message + 1_000_000 and schedule.bound >= 0.999 * schedule.time
    assert schedule.transfers == 487_424 and peak < 600 * schedule.transfers
    assert measured(schedule, "compiled") == schedule.time
