"""Emitted algorithms: right on every collective, in every format, and exactly as fast as their schedule claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds.networks import SPREADING, measured, synthesize

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule, Search, as_schedule, copied
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.request import Request
from astrasim_py.synthesis.solve import solve
from astrasim_py.topology import Topology, build
from astrasim_py.verification.verifier import verify

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
COSTS = (CostModel(), CostModel(link_busy="latency+bytes"), CostModel(model="store_and_forward"))
ROOTED = ("broadcast", "reduce")
#: Neither 12, 5 nor 3 chunks divide it.
SIZE = 1_000_003


def shape(text: str, **more) -> Topology:
    name, _, size = text.partition(":")
    key = {"dims": [int(part) for part in size.split("x")]} if "x" in size else {"npus": int(size)}
    return build({"shape": name, **key, **LINK, **more}, written=True)


DIRECT = {
    "mesh": shape("mesh:3x4"),
    "torus": shape("torus:3x3"),
    "full": shape("fully_connected:5"),
    "faulty": shape("mesh:3x3", failed={"links": [{"from": 0, "to": 1}]}),
    "uneven": build(
        {"shape": "torus", "dims": [3, 4], "bandwidth": ["25 GB/s", "75 GB/s"], "latency": ["500 ns", "1 us"]},
        written=True,
    ),
}
PORTS = {"switch": shape("switch:6"), "leaves": build(
    {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 1, **LINK}, written=True
)}  # fmt: skip


def made(topology: Topology, kind: str, chunks: int, cost: CostModel, **more) -> Schedule:
    root = 2 if kind in ROOTED else None
    return synthesize(topology, kind, SIZE, chunks=chunks, root=root, cost=cost, rounds=2, jobs=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPREADING)
@pytest.mark.parametrize("name", DIRECT)
def test_on_direct_links_the_order_alone_makes_the_claimed_time(name, kind):
    for cost in COSTS:
        for chunks in (1, 3):
            schedule = made(DIRECT[name], kind, chunks, cost)
            algorithm = emit(schedule)
            verdict = verify(algorithm)
            assert verdict.ok and verdict.passes and verdict.order_consistent, verdict.problem
            assert algorithm.messages == schedule.transfers > 0 and algorithm.symbolic
            assert not algorithm.traces[0].has_column("duration_ps")
            assert measured(schedule, algorithm) == schedule.time
    assert measured(schedule, algorithm, "compiled") == schedule.time


@pytest.mark.parametrize("kind", SPREADING)
@pytest.mark.parametrize("name", PORTS)
def test_behind_switches_a_clock_holds_the_claimed_time(name, kind):
    for cost in COSTS:
        for chunks in (1, 3):
            schedule = made(PORTS[name], kind, chunks, cost)
            algorithm = emit(schedule)
            verdict = verify(algorithm)
            assert verdict.ok and verdict.passes, verdict.problem
            assert measured(schedule, algorithm) == schedule.time
            # Without it, too, all ends well, if not always at that time.
            free = emit(schedule, clock=False)
            assert verify(free).passes and not free.traces[0].has_column("duration_ps")
            assert measured(schedule, free) > 0


def test_a_clock_keeps_out_of_another_schedules_way():
    """Two tenants of a ring, each behind the other's NPUs, run at once as if alone."""
    topology, apart = shape("ring:8"), ((0, 2, 4, 6), (1, 3, 5, 7))
    options = {"chunks": 2, "relays": True, "rounds": 4, "jobs": 1}
    first = synthesize(topology, "all_gather", SIZE, npus=apart[0], **options)
    second = synthesize(topology, "all_gather", SIZE, npus=apart[1], occupied=[first.occupied()], **options)
    assert set(first.network.links) & set(second.network.links)
    jobs = []
    for name, npus, each in zip("ab", apart, (first, second), strict=True):
        (job,) = ap.collective("all_gather", SIZE, shape("ring:4"), algorithm=emit(each)).jobs
        jobs.append(replace(job, name=name, placement=npus))
    problem = replace(ap.collective("all_gather", SIZE, topology), jobs=tuple(jobs))
    ends = simulate(problem, engine="simpy").collective["end"].tolist()
    assert ends == [first.time, second.time]


def test_sends_of_a_link_are_posted_in_order():
    """A send waits, directly or not, for everything that the earlier ones on its link wait for."""
    schedule = made(DIRECT["mesh"], "all_gather", 6, CostModel())
    algorithm = emit(schedule)
    compared = 0
    for trace in algorithm.traces:
        causes: list[frozenset] = []
        sends: dict[int, frozenset] = {}
        deps = trace.data_deps
        for row in range(len(trace)):
            direct = deps.ids[deps.ptr[row] : deps.ptr[row + 1]].tolist()
            assert all(parent < row for parent in direct)
            known = frozenset().union(*(causes[parent] for parent in direct))
            kind = trace.type[row]
            causes.append(known | {row} if kind == NodeType.COMM_RECV else known)
            if kind == NodeType.COMM_SEND:
                peer = int(trace.column("comm_dst")[row])
                assert sends.get(peer, frozenset()) <= known
                compared += peer in sends
                sends[peer] = known
    assert compared > 100


def test_what_takes_no_time_keeps_its_place_on_a_link():
    # On the line 0 - 1 - 2 the byte for NPU 1 was decided later than the nothing for NPU 2, and may leave with it.
    line = build({"shape": "mesh", "dims": [3], **LINK}, written=True)
    network, demand = Network.of(line, (0, 2, 1)), Demand.of("scatter", 3, 1, 1, 0)
    assert demand.sizes[demand.size_class].tolist() == [0, 0, 1]
    ends = list(zip(network.src.tolist(), network.dst.tolist(), strict=True))
    near, far = ends.index((0, 2)), ends.index((2, 1))
    columns = [np.array(column) for column in ([near, near, far], [2, 1, 1], [1000, 0, 500_000])]
    schedule = as_schedule(network, demand, copied(columns), Search(seed=1, policy="", rounds=1))
    assert (schedule.start.tolist(), schedule.chunk.tolist()) == ([0, 0, 500_000], [1, 2, 1])
    assert measured(schedule, emit(schedule)) == schedule.time == 1_000_000


def test_formats_keep_it(tmp_path):
    schedule = made(DIRECT["mesh"], "all_reduce", 2, CostModel())
    algorithm = emit(schedule)
    for name in ("a.npz", "a.xml", "a"):
        ap.write_algorithm(tmp_path / name, algorithm)
        back = ap.read_algorithm(tmp_path / name)
        assert verify(back).ok and back.messages == schedule.transfers
        if name != "a.xml":
            assert measured(schedule, back) == schedule.time
    timed = emit(made(PORTS["switch"], "all_gather", 2, CostModel()))
    ap.write_algorithm(tmp_path / "t.npz", timed)
    assert ap.read_algorithm(tmp_path / "t.npz").digest() == timed.digest()


def test_other_sizes_are_served():
    schedule = made(DIRECT["torus"], "all_reduce", 2, CostModel())
    algorithm = emit(schedule)
    double = replace(schedule, demand=Demand.of("all_reduce", 9, 2, 2 * SIZE))
    assert measured(double, algorithm) > schedule.time


def test_what_was_only_counted_cannot_be_emitted():
    schedule = made(DIRECT["mesh"], "all_gather", 1, CostModel(), record=False)
    with pytest.raises(AlgorithmError, match="counted"):
        emit(schedule)


def routed(topology: Topology, kind: str, root: int | None) -> Schedule:
    """Every chunk goes alone, one after the other, along a shortest path."""
    network = Network.of(topology)
    demand = Demand.of(kind, network.ranks, 2, SIZE, root)
    n = network.ranks
    arc_of = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(network.src, network.dst, strict=True))}
    follow: dict[tuple[int, int], int] = {}
    for target in range(n):
        front, seen = [target], {target}
        while front:
            nearer = front.pop(0)
            for a, b in arc_of:
                if b == nearer and a not in seen:
                    follow[a, target] = nearer
                    seen.add(a)
                    front.append(a)
    delay = network.timing(demand.sizes).delay
    arcs, chunks, starts, now = [], [], [], 0
    for chunk in range(demand.count):
        here, home = int(demand.origin[chunk]), int(demand.receivers[chunk])
        while here != home:
            arc = arc_of[here, follow[here, home]]
            arcs.append(arc)
            chunks.append(chunk)
            starts.append(now)
            now += int(delay[demand.size_class[chunk], arc])
            here = follow[here, home]
    columns = np.array(arcs, np.int32), np.array(chunks, np.int32), np.array(starts, np.int64)
    return as_schedule(network, demand, copied(columns), Search(seed=1, policy="", rounds=1))


@pytest.mark.parametrize(("kind", "root"), [("gather", 1), ("scatter", 1), ("all_to_all", None)])
def test_chunks_with_one_receiver_are_handed_on(kind, root):
    schedule = routed(DIRECT["mesh"], kind, root)
    algorithm = emit(schedule)
    verdict = verify(algorithm)
    assert verdict.ok and verdict.passes, verdict.problem
    assert measured(schedule, algorithm) == schedule.time


def test_the_number_of_chunks_suits_the_size():
    def run(size):
        request = Request(
            topology=DIRECT["torus"], npus=tuple(range(9)), collective="broadcast", size=size, root=0, cost=COSTS[1],
            rounds=4,
        )  # fmt: skip
        found = solve(request, jobs=1)
        whole = synthesize(DIRECT["torus"], "broadcast", size, chunks=1, root=0, cost=COSTS[1], rounds=4, jobs=1)
        assert found.schedule.time <= whole.time
        assert found.schedule.demand.count == found.chunks
        return found.chunks

    assert run(9 * 64) == 1
    assert run(2**28) > 1
