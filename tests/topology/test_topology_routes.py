"""Laws of routes: they join their ends, are as short as graph theory allows, and follow the stated ties."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import small_problems

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import Dim, Routing, Topology, build
from astrasim_py.topology import shapes as s
from astrasim_py.topology.export import to_networkx

B = Fraction(50 * 10**9)
NS = 1000

#: Shapes whose routes are shortest paths by hops.
SHORTEST = [
    s.Ring(npus=1, bandwidth=B, latency=NS).build(),
    s.Ring(npus=2, bandwidth=B, latency=NS).build(),
    s.Ring(npus=3, bandwidth=B, latency=NS).build(),
    s.Ring(npus=8, bandwidth=B, latency=NS).build(),
    s.Ring(npus=9, bandwidth=B, latency=NS).build(),
    s.Ring(npus=2, bandwidth=B, latency=NS, bidirectional=False).build(),
    s.Ring(npus=5, bandwidth=B, latency=NS, bidirectional=False).build(),
    s.Mesh(dims=[5], bandwidth=B, latency=NS).build(),
    s.Mesh(dims=[4, 3], bandwidth=B, latency=NS).build(),
    s.Mesh(dims=[3, 1, 4], bandwidth=B, latency=NS).build(),
    s.Torus(dims=[4, 4], bandwidth=B, latency=NS).build(),
    s.Torus(dims=[2, 3, 4], bandwidth=B, latency=NS).build(),
    s.Torus(dims=[5, 3], bandwidth=B, latency=NS, bidirectional=False).build(),
    s.Torus(dims=[2, 2, 2, 2], bandwidth=B, latency=NS).build(),
    s.FullyConnected(npus=1, bandwidth=B, latency=NS).build(),
    s.FullyConnected(npus=7, bandwidth=B, latency=NS).build(),
    s.Switch(npus=1, bandwidth=B, latency=NS).build(),
    s.Switch(npus=6, bandwidth=B, latency=NS).build(),
    s.Hypercube(npus=1, bandwidth=B, latency=NS).build(),
    s.Hypercube(npus=16, bandwidth=B, latency=NS).build(),
    s.Product(dims=[Dim("ring", 4, B, NS), Dim("switch", 3, B, NS)]).build(),
    s.Product(dims=[Dim("switch", 2, B, NS), Dim("fully_connected", 3, B, NS), Dim("mesh", 3, B, NS)]).build(),
    s.Product(dims=[Dim("fully_connected", 4, B, NS), Dim("ring", 3, B, NS, False)]).build(),
    s.LeafSpine(leaves=3, hosts_per_leaf=4, spines=2, bandwidth=B, latency=NS).build(),
    s.LeafSpine(leaves=1, hosts_per_leaf=4, spines=2, bandwidth=B, latency=NS).build(),
    s.FatTree(k=2, bandwidth=B, latency=NS).build(),
    s.FatTree(k=4, bandwidth=B, latency=NS).build(),
    s.FatTree(k=4, bandwidth=B, latency=NS, pods=3, hosts_per_edge=3).build(),
    s.FatTree(k=6, bandwidth=B, latency=NS).build(),
    s.Dragonfly(a=2, h=1, p=2, bandwidth=B, latency=NS, g=1).build(),
    s.Dragonfly(a=1, h=3, p=2, bandwidth=B, latency=NS).build(),
    s.Dgx(nvlink_bandwidth=B, nvlink_latency=NS).build(),
    s.Dgx(nvlink_bandwidth=B, nvlink_latency=NS, npus=1).build(),
    s.Dgx(nvlink_bandwidth=B, nvlink_latency=NS, nodes=3, nic_bandwidth=B, nic_latency=NS).build(),
    s.Dgx(nvlink_bandwidth=B, nvlink_latency=NS, nodes=2, rails=4, spines=3, nic_bandwidth=B, nic_latency=NS).build(),
    s.Dgx(nvlink_bandwidth=B, nvlink_latency=NS, nodes=4, npus=1, nic_bandwidth=B, nic_latency=NS).build(),
    s.Dgx(
        nvlink_bandwidth=B,
        nvlink_latency=NS,
        nodes=2,
        npus=4,
        spines=2,
        cross_rail="nvlink",
        nic_bandwidth=B,
        nic_latency=NS,
    ).build(),
]
DRAGONFLIES = [
    s.Dragonfly(a=4, h=2, p=2, bandwidth=B, latency=NS).build(),
    s.Dragonfly(a=4, h=2, p=2, bandwidth=B, latency=NS, g=3).build(),
    s.Dragonfly(a=3, h=2, p=1, bandwidth=B, latency=NS, g=2).build(),
    s.Dragonfly(a=2, h=3, p=2, bandwidth=B, latency=NS, g=4).build(),
]


def name_of(topology):
    return topology.name


def all_pairs(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    alive = np.array(topology.alive)
    return np.repeat(alive, len(alive)), np.tile(alive, len(alive))


def walk(topology: Topology, src: int, links) -> int:
    """Follow a route; returns where it ends."""
    here = src
    for link in links:
        assert topology.src[link] == here
        here = int(topology.dst[link])
    return here


def each_route(topology: Topology):
    src, dst = all_pairs(topology)
    ptr, links = topology.routes(src, dst)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        yield a, b, links[ptr[i] : ptr[i + 1]].tolist()


@pytest.mark.parametrize("topology", SHORTEST + DRAGONFLIES, ids=name_of)
def test_every_route_is_contiguous_and_joins_its_ends(topology):
    for a, b, route in each_route(topology):
        assert walk(topology, a, route) == b
        assert len(set(route)) == len(route)
        assert (route == []) == (a == b)


@pytest.mark.parametrize("topology", SHORTEST, ids=name_of)
def test_routes_have_the_hops_of_shortest_paths(topology):
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(topology)))
    for a, b, route in each_route(topology):
        assert len(route) == lengths[a][b], (a, b)


@pytest.mark.parametrize("topology", SHORTEST, ids=name_of)
def test_search_finds_paths_as_short_as_the_closed_form(topology):
    src, dst = all_pairs(topology)
    closed = np.diff(topology.routes(src, dst)[0])
    search = np.diff(topology._search.routes(src, dst)[0])
    assert closed.tolist() == search.tolist()


@pytest.mark.parametrize("topology", DRAGONFLIES, ids=name_of)
def test_dragonfly_routes_are_shortest_over_one_global_link(topology):
    fabric = topology.router
    graph = to_networkx(topology)
    group = {v: (v // fabric.p if v < topology.npus else v - topology.npus) // fabric.a for v in graph}
    for a, b, route in each_route(topology):
        crossings = [link for link in route if group[topology.src[link]] != group[topology.dst[link]]]
        assert len(crossings) == (group[a] != group[b])
        within = graph.subgraph([v for v in graph if group[v] in (group[a], group[b])])
        assert len(route) == nx.shortest_path_length(within, a, b)


@pytest.mark.parametrize("topology", SHORTEST + DRAGONFLIES, ids=name_of)
def test_many_pairs_at_once_equal_one_by_one(topology):
    pairs = [(a, b, tuple(route)) for a, b, route in each_route(topology)]
    for a, b, route in pairs[:: max(1, len(pairs) // 60)]:
        assert topology.route(a, b) == route


@pytest.mark.parametrize("dims", [[8], [7], [4, 4], [3, 5], [2, 4], [4, 3, 2]])
def test_torus_hops_are_the_sum_of_shorter_ways(dims):
    topology = s.Torus(dims=dims, bandwidth=B, latency=NS).build()
    for a, b, route in each_route(topology):
        hops, x, y = 0, a, b
        for n in dims:
            ahead = (y - x) % n
            hops += min(ahead, n - ahead)
            x, y = x // n, y // n
        assert len(route) == hops


def test_ring_tie_goes_clockwise():
    topology = s.Ring(npus=8, bandwidth=B, latency=NS).build()
    for a in range(8):
        visited = [int(topology.dst[link]) for link in topology.route(a, (a + 4) % 8)]
        assert visited == [(a + i) % 8 for i in range(1, 5)]


def test_torus_corrects_dimension_zero_first():
    topology = s.Torus(dims=[4, 4], bandwidth=B, latency=NS).build()
    visited = [int(topology.dst[link]) for link in topology.route(0, 1 + 4 * 3)]
    assert visited == [1, 13]
    visited = [int(topology.dst[link]) for link in topology.route(13, 0)]
    assert visited == [12, 0]


def test_mesh_never_wraps():
    topology = s.Mesh(dims=[4, 3], bandwidth=B, latency=NS).build()
    for link in range(topology.links):
        a, b = int(topology.src[link]), int(topology.dst[link])
        assert abs(a % 4 - b % 4) + abs(a // 4 - b // 4) == 1


def test_hypercube_links_join_ids_that_differ_in_one_bit():
    topology = s.Hypercube(npus=16, bandwidth=B, latency=NS).build()
    assert topology.links == 16 * 4
    assert {(int(a) ^ int(b)).bit_count() for a, b in zip(topology.src, topology.dst, strict=True)} == {1}


@pytest.mark.parametrize("bidirectional", [True, False])
def test_ring_of_two_has_one_link_per_direction(bidirectional):
    topology = s.Ring(npus=2, bandwidth=B, latency=NS, bidirectional=bidirectional).build()
    assert list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]


def test_switch_of_a_dimension_is_per_slice():
    topology = s.Product(dims=[Dim("ring", 3, B, NS), Dim("switch", 4, B, 2 * NS)]).build()
    assert topology.vertices == 12 + 3
    hubs = [{int(topology.dst[link]) for link in range(topology.links) if topology.src[link] == v} for v in range(12)]
    hubs = [min(h for h in hub if h >= 12) for hub in hubs]
    assert hubs == [12 + v % 3 for v in range(12)]


@pytest.mark.parametrize(
    "topology",
    [
        s.Ring(npus=6, bandwidth=B, latency=NS).build(),
        s.Torus(dims=[3, 4], bandwidth=B, latency=NS).build(),
        s.Torus(dims=[4, 2], bandwidth=B, latency=NS, bidirectional=False).build(),
        s.Product(dims=[Dim("switch", 3, B, NS), Dim("fully_connected", 4, B, 2 * NS)]).build(),
        s.Hypercube(npus=8, bandwidth=B, latency=NS).build(),
    ],
    ids=name_of,
)
def test_translations_are_automorphisms_that_keep_routes(topology):
    by_ends = {}
    for link in range(topology.links):
        by_ends[int(topology.src[link]), int(topology.dst[link])] = link
    seen = set()
    for move in small_problems.translations(topology):
        assert sorted(move.tolist()) == list(range(topology.npus))
        seen.add(tuple(move.tolist()))
        for a, b in itertools.product(range(0, topology.npus, 2), range(topology.npus)):
            here = [int(topology.dst[link]) for link in topology.route(a, b)]
            there = [int(topology.dst[link]) for link in topology.route(int(move[a]), int(move[b]))]
            assert [int(move[v]) for v in here if v < topology.npus] == [v for v in there if v < topology.npus]
            assert len(here) == len(there)
    assert len(seen) == topology.npus


# Shortest paths of arbitrary graphs.


@st.composite
def graphs(draw):
    """A strongly connected random multigraph with switches, unequal latencies and parallel links."""
    npus, switches = draw(st.integers(2, 7)), draw(st.integers(0, 4))
    vertices = npus + switches
    order = draw(st.permutations(range(vertices)))
    ends = [(order[i], order[(i + 1) % vertices]) for i in range(vertices)]
    vertex = st.integers(0, vertices - 1)
    ends += [p for p in draw(st.lists(st.tuples(vertex, vertex), max_size=24)) if p[0] != p[1]]
    ends = draw(st.permutations(ends))
    latency = draw(st.lists(st.integers(0, 3), min_size=len(ends), max_size=len(ends)))
    return npus, vertices, ends, latency


def make(npus, vertices, ends, latency, routing=None):
    return Topology.create(
        name="random",
        shape="edge_list",
        npus=npus,
        vertices=vertices,
        src=np.array([a for a, _ in ends]),
        dst=np.array([b for _, b in ends]),
        latency_ps=np.array(latency),
        bandwidth_class=np.zeros(len(ends), dtype=np.int64),
        bandwidths=[B],
        routing=routing or Routing(),
    )


def cheapest_routes(topology: Topology, a: int, b: int) -> list[tuple[int, ...]]:
    """All routes of least (relaying NPUs, hops, latency), by brute force over networkx's simple paths."""
    graph = to_networkx(topology)
    found: dict[tuple, list] = {}
    for edges in nx.all_simple_edge_paths(graph, a, b):
        route = tuple(link for _, _, link in edges)
        relays = sum(1 for u, _, _ in edges[1:] if u < topology.npus)
        cost = (relays, len(route), sum(int(topology.latency_ps[link]) for link in route))
        found.setdefault(cost, []).append(route)
    return found[min(found)]


@given(graphs())
def test_search_takes_the_cheapest_path_with_the_lowest_last_links(graph):
    topology = make(*graph)
    src, dst = all_pairs(topology)
    ptr, links = topology.routes(src, dst)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        route = tuple(links[ptr[i] : ptr[i + 1]].tolist())
        if a != b and (a + b) % 3 == 0:  # brute force is slow; a third of the pairs will do
            assert route == min(cheapest_routes(topology, a, b), key=lambda r: r[::-1])
        else:
            assert walk(topology, a, route) == b


@given(graphs(), st.integers(0, 5))
def test_ecmp_takes_one_of_the_cheapest_paths(graph, seed):
    topology = make(*graph, routing=Routing(ecmp=True, seed=seed))
    for a, b in ((0, 1), (1, 0), (0, topology.npus - 1)):
        if a != b:
            assert topology.route(a, b) in cheapest_routes(topology, a, b)


@given(graphs(), st.booleans(), st.randoms(use_true_random=False))
def test_routes_do_not_depend_on_what_was_asked_before(graph, ecmp, random):
    routing = Routing(ecmp=ecmp, seed=3)
    src, dst = all_pairs(make(*graph, routing=routing))
    at_once = make(*graph, routing=routing)
    ptr, links = at_once.routes(src, dst)
    expected = [tuple(links[ptr[i] : ptr[i + 1]].tolist()) for i in range(len(src))]
    one_by_one = make(*graph, routing=routing)
    order = list(range(len(src)))
    random.shuffle(order)
    for i in order:
        assert one_by_one.route(int(src[i]), int(dst[i])) == expected[i]


@pytest.mark.parametrize("cells", [1, 40, 10**6])
def test_routes_do_not_depend_on_batches(monkeypatch, cells):
    topology = s.Torus(dims=[5, 4], bandwidth=B, latency=NS).build()
    src, dst = all_pairs(topology)
    expected = topology._search.routes(src, dst)
    from astrasim_py.topology import routing

    monkeypatch.setattr(routing, "_BATCH_CELLS", cells)
    again = routing.ShortestPaths(20, 20, topology.src, topology.dst, topology.latency_ps)
    for _ in range(2):
        ptr, links = again.routes(src, dst)
        assert ptr.tolist() == expected[0].tolist()
        assert links.tolist() == expected[1].tolist()


def test_ecmp_spreads_over_parallel_links_and_seeds():
    spec = {"shape": "leaf_spine", "leaves": 8, "hosts_per_leaf": 8, "spines": 4, "bandwidth": B, "latency": 5}
    used = {}
    for seed in (0, 1):
        topology = build({**spec, "routing": {"ecmp": True, "seed": seed}})
        src, dst = all_pairs(topology)
        links = topology.routes(src, dst)[1]
        used[seed] = np.bincount(links, minlength=topology.links)
        up = used[seed][2 * 64 : 2 * 64 + 32]
        # 3584 pairs change leaves: 112 per uplink on average, all used and none hot.
        assert up.sum() == 64 * 56
        assert 70 < up.min() <= up.max() < 160
    assert used[0].tolist() != used[1].tolist()


def test_static_routes_of_a_fat_tree_load_every_core_link_alike():
    topology = s.FatTree(k=4, bandwidth=B, latency=NS).build()
    src, dst = all_pairs(topology)
    used = np.bincount(topology.routes(src, dst)[1], minlength=topology.links)
    # Down a link goes the traffic of all NPUs outside (14 of 16 for an edge switch, 12 for a pod) to one NPU.
    assert set(used[48:64].tolist()) == {14}
    assert set(used[80:96].tolist()) == {12}


def test_switches_are_preferred_to_relaying_npus():
    # 0 -> 1 -> 2 is two hops through NPU 1; 0 -> s -> t -> 2 is three, through switches only.
    ends = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 2)]
    topology = make(3, 5, ends, [0] * 6)
    assert topology.route(0, 2) == (3, 4, 5)


def test_routes_are_the_same_under_any_hash_seed_and_need_no_networkx():
    code = (
        "import sys\n"
        "from astrasim_py.core.digest import digest\n"
        "from astrasim_py.topology import build\n"
        "t = build({'shape': 'torus', 'dims': [6, 5], 'bandwidth': '50 GB/s', 'latency': '1 us',"
        " 'failed': {'links': [[0, 1]], 'npus': [7]}, 'routing': {'ecmp': True, 'seed': 4}})\n"
        "a = [(x, y) for x in t.alive for y in t.alive]\n"
        "r = t.routes([x for x, _ in a], [y for _, y in a])\n"
        "assert 'networkx' not in sys.modules and 'yaml' not in sys.modules\n"
        "sys.stdout.write(digest([t.digest(), r]))\n"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(results) == 1
    assert len(results.pop()) == 64


def test_routes_refuse_npus_that_do_not_exist():
    topology = s.LeafSpine(leaves=2, hosts_per_leaf=2, spines=1, bandwidth=B, latency=NS).build()
    with pytest.raises(TopologyError, match="NPU 7 does not exist"):
        topology.route(0, 7)
    with pytest.raises(TopologyError, match="NPU -1 does not exist"):
        topology.routes([0, -1], [1, 1])


def test_routes_refuse_failed_npus():
    topology = build({"shape": "torus", "dims": [4, 4], "bandwidth": B, "latency": 5, "failed": {"npus": [5]}})
    with pytest.raises(TopologyError, match="NPU 5 has failed"):
        topology.route(0, 5)
