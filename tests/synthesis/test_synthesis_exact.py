"""The exact mode: as fast as exhaustive search, never slower than the greedy search, its schedules valid."""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from worlds.networks import synthesize

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.extras import exact
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule, Search, as_schedule, copied
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.topology import Topology, build
from astrasim_py.topology.topology_files import read_edge_list

pytest.importorskip("ortools.sat.python.cp_model")

TACOS = CostModel(link_busy="latency+bytes")
COSTS = (TACOS, CostModel(), CostModel(model="store_and_forward"))
GOLDEN = os.environ.get("ASTRASIM_GOLDEN")
DGX1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def network_of(links: dict[tuple[int, int], int], n: int, latency: int = 400_000) -> Topology:
    """Direct links of 25 GB/s times their value."""
    pairs = sorted(links)
    return Topology.create(
        name="small",
        shape="edge_list",
        npus=n,
        vertices=n,
        src=np.array([a for a, _ in pairs]),
        dst=np.array([b for _, b in pairs]),
        latency_ps=np.full(len(pairs), latency),
        bandwidth_class=np.array([links[p] - 1 for p in pairs]),
        bandwidths=[Fraction(10**9 * 25), Fraction(10**9 * 50)],
    )


def small(seed: int) -> Topology:
    random = np.random.default_rng(seed)
    n = 3 + seed % 2
    links = {(i, (i + 1) % n): int(random.integers(1, 3)) for i in range(n)}
    for a, b in random.integers(0, n, (2, 2)).tolist():
        if a != b:
            links[a, b] = int(random.integers(1, 3))
    return network_of(links, n)


def exhausted(network: Network, demand: Demand, most: int) -> int:
    """The least time of any schedule that copies, by trying every transfer at every step; `most` if none is below."""
    timing = network.timing(demand.sizes)
    best = most
    seen: dict[tuple, int] = {}
    n, count = network.ranks, demand.count
    need = n * count if demand.receivers is None else None

    def done(has: dict) -> int | None:
        if need is not None:
            return max(has.values()) if len(has) == need else None
        cells = [(int(v), c) for c, v in enumerate(demand.receivers)]
        return max(has[cell] for cell in cells) if all(cell in has for cell in cells) else None

    def extend(has: dict, free: tuple, clock: int) -> None:
        nonlocal best
        end = done(has)
        if end is not None:
            best = min(best, end)
            return
        state = (tuple(sorted(has.items())), free)
        if seen.get(state, 2**62) <= clock:
            return
        seen[state] = clock
        for a in range(network.arcs):
            u, v = int(network.src[a]), int(network.dst[a])
            for c in range(count):
                if (u, c) not in has or (v, c) in has:
                    continue
                z = int(demand.size_class[c])
                hops = range(int(network.hop_ptr[a]), int(network.hop_ptr[a + 1]))
                start = max([clock, has[u, c], *(free[network.hop[h]] - int(timing.offset[z, h]) for h in hops)])
                arrives = start + int(timing.delay[z, a])
                if arrives >= best:
                    continue
                later = list(free)
                for h in hops:
                    later[network.hop[h]] = start + int(timing.offset[z, h] + timing.hold[z, h])
                # Transfers are tried in the order of their starts.
                extend({**has, (v, c): arrives}, tuple(later), start)

    extend({(int(o), c): 0 for c, o in enumerate(demand.origin)}, (0,) * len(network.links), 0)
    return best


def in_turn(network: Network, demand: Demand) -> Schedule:
    """A slow schedule: one transfer after the other."""
    delay = network.timing(demand.sizes).delay
    arc, chunk, start, clock = [], [], [], 0
    for c, origin in enumerate(demand.origin.tolist()):
        has = {origin}
        while len(has) < network.ranks:
            a = next(a for a in range(network.arcs) if network.src[a] in has and network.dst[a] not in has)
            has.add(int(network.dst[a]))
            arc.append(a)
            chunk.append(c)
            start.append(clock)
            clock += int(delay[demand.size_class[c], a])
    columns = np.array(arc), np.array(chunk), np.array(start, dtype=np.int64)
    return as_schedule(network, demand, copied(columns), Search(seed=0, policy="in turn", rounds=1))


def proven(topology: Topology, kind: str, size: int, *, limit: float = exact.LIMIT, **options) -> Schedule:
    """What the greedy search finds, made the fastest."""
    exact.admit(topology.npus, limit)
    return exact.prove(synthesize(topology, kind, size, **options), limit=limit)


@pytest.mark.parametrize("seed", range(9))
def test_as_fast_as_exhaustive_search(seed):
    network = Network.of(small(seed), cost=COSTS[seed % 3])
    kind = ("all_gather", "broadcast")[seed % 2 if network.ranks == 3 else 1]
    demand = Demand.of(kind, network.ranks, 2 if kind == "broadcast" else 1, 10**6 + seed, 0)
    slow = in_turn(network, demand)
    found = exact.prove(slow)
    assert check(found) == [] and found.optimal and not found.search.cut
    assert found.time == exhausted(network, demand, slow.time + 1)


@pytest.mark.parametrize("kind", ["all_gather", "broadcast", "reduce_scatter", "reduce"])
def test_never_slower_and_proven(kind):
    topology = network_of({(0, 1): 2, (1, 0): 1, (1, 2): 1, (2, 1): 2, (2, 3): 1, (3, 2): 1, (3, 0): 2, (0, 3): 1}, 4)
    root = 1 if kind in ("broadcast", "reduce") else None
    options = {"chunks": 2, "root": root, "cost": TACOS, "rounds": 1}
    greedy = synthesize(topology, kind, 8 * 10**5, **options)
    found = proven(topology, kind, 8 * 10**5, **options)
    assert check(found) == []
    assert found.bound <= found.time <= greedy.time and found.bound >= greedy.bound
    assert found.optimal
    again = proven(topology, kind, 8 * 10**5, **options)
    assert not found.search.cut
    assert (again.arc == found.arc).all() and (again.start == found.start).all()


def test_an_all_reduce_is_summed_and_copied_in_one_model():
    links = {(0, 1): 2, (1, 0): 1, (1, 2): 1, (2, 1): 2, (2, 0): 2, (0, 2): 1}
    options = {"chunks": 1, "cost": TACOS, "rounds": 1}
    greedy = synthesize(network_of(links, 3), "all_reduce", 3 * 10**5, **options)
    found = proven(network_of(links, 3), "all_reduce", 3 * 10**5, limit=3, **options)
    assert check(found) == [] and found.reduces.any() and not found.reduces.all()
    assert greedy.bound <= found.bound <= found.time <= greedy.time


def test_dgx1_is_gathered_as_fast_as_its_ports_allow():
    links = DGX1 | {(b, a): speed for (a, b), speed in DGX1.items()}
    options = {"cost": TACOS, "rounds": 10}
    for kind in ("all_gather", "reduce_scatter"):
        greedy = synthesize(network_of(links, 8), kind, 8 * 2**20, **options)
        found = proven(network_of(links, 8), kind, 8 * 2**20, **options)
        assert not greedy.optimal and found.optimal and found.time < greedy.time
        assert check(found) == []


def test_chunks_with_one_receiver():
    # Two chunks leave rank 0 over one link each; a third that takes the slow way would be late.
    topology = network_of({(0, 1): 2, (1, 2): 2, (0, 2): 1, (2, 0): 1, (1, 0): 1}, 3)
    network = Network.of(topology, cost=TACOS)
    demand = Demand.of("scatter", 3, 1, 3 * 10**6, 0)
    slow = as_schedule(
        network,
        demand,
        copied((_arcs(network, [(0, 1), (0, 1), (1, 2)]), np.array([1, 2, 2]), np.array([0, 10**9, 2 * 10**9]))),
        Search(seed=0, policy="by hand", rounds=1),
    )
    assert check(slow) == []
    found = exact.prove(slow)
    assert check(found) == [] and found.optimal
    assert found.time == exhausted(network, demand, slow.time) < slow.time


def _arcs(network: Network, pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array([np.flatnonzero((network.src == a) & (network.dst == b))[0] for a, b in pairs])


def test_what_others_hold_is_left_to_them():
    topology = build({"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"})
    first = synthesize(topology, "broadcast", 10**6, root=0, cost=TACOS, rounds=5)
    second = proven(topology, "all_gather", 10**6, limit=20, cost=TACOS, rounds=1, occupied=[first.occupied()])
    assert check(second) == [] and second.bound <= second.time


def test_what_cannot_be_done_is_told(monkeypatch):
    ring = build({"shape": "ring", "npus": 17, "bandwidth": "50 GB/s", "latency": "500 ns"})
    with pytest.raises(AlgorithmError, match="17 ranks are more than the 16"):
        proven(ring, "all_gather", 10**6)
    square = build({"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"})
    with pytest.raises(AlgorithmError, match="not above 0"):
        proven(square, "all_gather", 10**6, limit=0)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(AlgorithmError, match=r"astrasim-py\[exact\]"):
        proven(square, "all_gather", 10**6)


def test_transfers_of_no_time_are_refused():
    network = Network.of(network_of({(0, 1): 1, (1, 2): 1, (2, 0): 1}, 3, latency=0), cost=TACOS)
    demand = Demand.of("all_gather", 3, 1, 2)
    slow = in_turn(network, demand)
    if slow.timing.delay.min() == 0:
        with pytest.raises(AlgorithmError, match="take no time"):
            exact.prove(slow)


@pytest.mark.slow
@pytest.mark.skipif(not GOLDEN, reason="ASTRASIM_GOLDEN is not set")
@pytest.mark.parametrize(
    ("name", "least"), [("dgx1_8", 60.694), ("heteromesh2d_4x4", 149.484), ("heterotorus2d_4x4", 99.656)]
)
def test_known_optima(name, least):
    topology = read_edge_list(Path(GOLDEN) / "tacos" / "problems" / f"{name}.csv")
    found = proven(topology, "all_gather", topology.npus * 2**20, cost=TACOS, rounds=50)
    assert found.optimal and abs(found.time / 1e6 - least) < 0.002
