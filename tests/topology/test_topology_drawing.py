"""Drawings of networks: vertices do not touch, links do not run over vertices, wraparound links leave their row."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from worlds.images import assert_picture

import astrasim_py as ap
from astrasim_py.topology.drawing import _over, _paths
from astrasim_py.topology.irregular import clearance
from astrasim_py.topology.layout import positions, spread

L = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def edges(*pairs):
    return {"shape": "edge_list", "edges": [{"src": a, "dst": b, **L} for p in pairs for a, b in (p, p[::-1])]}


def random_edges(npus: int):
    rng = np.random.default_rng(npus)
    tree = [(int(rng.integers(0, i)), i) for i in range(1, npus)]
    more = [tuple(rng.integers(0, npus, 2).tolist()) for _ in range(npus)]
    return edges(*dict.fromkeys((min(p), max(p)) for p in [*tree, *more] if p[0] != p[1]))


def product(*kinds):
    return {"shape": "product", "dims": [{"kind": kind, "size": size, **L} for kind, size in kinds]}


SHAPES = {
    "ring": {"shape": "ring", "npus": 64, **L},
    "torus": {"shape": "torus", "dims": [8, 8], **L},
    "cube": {"shape": "torus", "dims": [4, 4, 4], **L},
    "mesh": {"shape": "mesh", "dims": [3, 4, 5], **L},
    "hypercube": {"shape": "hypercube", "npus": 32, **L},
    "fat_tree": {"shape": "fat_tree", "k": 6, **L},
    "leaf_spine": {"shape": "leaf_spine", "leaves": 4, "hosts_per_leaf": 8, "spines": 4, **L},
    "dragonfly": {"shape": "dragonfly", "a": 4, "h": 2, "p": 2, **L},
    "dgx": {"preset": "dgx_a100", "nodes": 4},
    "nvl72": {"preset": "gb200_nvl72"},
    "dgx1": {"preset": "dgx1_v100"},
    "switch": {"shape": "switch", "npus": 72, **L},
    "ring of switches": product(("ring", 4), ("switch", 4)),
    "switches of switches": product(("switch", 8), ("switch", 4)),
    "switches of rings": product(("switch", 3), ("ring", 5)),
    "five": random_edges(5),
    "sixty": random_edges(60),
    "hundred and twenty-eight": random_edges(128),
    "hosts": edges(
        *((2 * s + h, f"s{s}") for s in range(6) for h in (0, 1)), *((f"s{s}", f"s{(s + 1) % 6}") for s in range(6))
    ),
}


def placed(spec):
    topology = ap.build_topology(**spec)
    x, y = positions(topology) or (np.full(topology.vertices, np.nan),) * 2
    switch = np.arange(topology.vertices) >= topology.npus
    return topology, *spread(np.array(x), np.array(y), switch, topology.src, topology.dst)


@pytest.mark.parametrize("name", SHAPES)
def test_every_vertex_has_a_place_of_its_own(name):
    _, x, y = placed(SHAPES[name])
    apart = np.hypot(x[:, None] - x, y[:, None] - y)
    np.fill_diagonal(apart, np.inf)
    assert np.isfinite(x).all() and np.isfinite(y).all()
    assert apart.min() > 0.01 * np.median(apart.min(axis=1))


@pytest.mark.parametrize("name", SHAPES)
def test_vertices_fit_into_the_picture_and_do_not_touch(name):
    from matplotlib.figure import Figure

    axes = Figure(figsize=(3.35, 3.35)).subplots()
    topology = ap.build_topology(**SHAPES[name])
    assert topology.draw(ax=axes) is axes
    (low, high), (below, above) = axes.get_xlim(), axes.get_ylim()
    _, x, y = placed(SHAPES[name])
    assert low < x.min() and x.max() < high and below < y.min() and y.max() < above
    size = max(np.sqrt(c.get_sizes()[0]) for c in axes.collections if len(getattr(c, "get_sizes", list)()))
    unit = min(72 * 3.35 * 0.77 / (high - low), 72 * 3.35 * 0.77 / (above - below))
    apart = np.hypot(x[:, None] - x, y[:, None] - y)
    np.fill_diagonal(apart, np.inf)
    assert size <= 2.0 or np.percentile(apart.min(axis=1), 10) * unit > 0.6 * size


def test_irregular_networks_are_placed_by_distance():
    """Neighbours are nearer than others; a path is a line, a ring is round."""
    for name in ("sixty", "hosts"):
        topology, x, y = placed(SHAPES[name])
        apart = np.hypot(x[:, None] - x, y[:, None] - y)
        linked = np.zeros(apart.shape, dtype=bool)
        linked[topology.src, topology.dst] = True
        others = ~linked & ~np.eye(len(x), dtype=bool)
        assert apart[linked].mean() < 0.7 * apart[others].mean()
    _, x, y = placed(edges(*((i, i + 1) for i in range(7))))
    assert np.hypot(x[7] - x[0], y[7] - y[0]) == pytest.approx(7, rel=0.02)
    _, x, y = placed(edges(*((i, (i + 1) % 12) for i in range(12))))
    radius = np.hypot(x - x.mean(), y - y.mean())
    assert np.ptp(radius) < 1e-6 * radius.mean()
    nowhere = np.full(4, np.nan)
    x, y = spread(nowhere, nowhere.copy(), np.zeros(4, dtype=bool), np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2]))
    assert np.hypot(x[0] - x[1], y[0] - y[1]) < np.hypot(x[0] - x[2], y[0] - y[2])


def joined(*graphs):
    return nx.convert_node_labels_to_integers(nx.disjoint_union_all(graphs))


def dragonfly(groups: int, routers: int):
    """Complete groups, and a link between each two of them."""
    pairs = [(g * routers + i, g * routers + j) for g in range(groups) for j in range(routers) for i in range(j)]
    pairs += [(a * routers + b % routers, b * routers + (a - 1) % routers) for a in range(groups) for b in range(a)]
    return nx.Graph(pairs)


def fat_tree():
    pairs = [(8 + e, e * 2 + h) for e in range(4) for h in (0, 1)]
    pairs += [(8 + e, 12 + e // 2 * 2 + s) for e in range(4) for s in (0, 1)]
    return nx.Graph([*pairs, *((12 + a, 16 + a % 2 * 2 + c) for a in range(4) for c in (0, 1))])


SHUFFLED = dict(enumerate([7, 2, 9, 0, 5, 3, 8, 1, 6, 4]))
GRAPHS = {
    "petersen": nx.petersen_graph(),
    "petersen, other numbers": nx.relabel_nodes(nx.petersen_graph(), SHUFFLED),
    "heawood": nx.heawood_graph(),
    "desargues": nx.desargues_graph(),
    "dodecahedron": nx.dodecahedral_graph(),
    "hoffman-singleton": nx.hoffman_singleton_graph(),
    "complete": nx.complete_graph(8),
    "complete, two parts": nx.complete_bipartite_graph(3, 3),
    "two": nx.path_graph(2),
    "three": nx.path_graph(3),
    "path": nx.path_graph(9),
    "ring": nx.cycle_graph(12),
    "star": nx.star_graph(8),
    "star of stars": nx.balanced_tree(5, 2),
    "binary tree": nx.balanced_tree(2, 4),
    "barbell": nx.barbell_graph(5, 2),
    "caves": nx.connected_caveman_graph(4, 5),
    "a leaf that no link joins": joined(nx.petersen_graph(), nx.empty_graph(1)),
    "two parts": joined(nx.cycle_graph(5), nx.star_graph(4)),
    "dragonfly": dragonfly(5, 4),
    "fat tree": fat_tree(),
    **{f"hypercube {d}": joined(nx.hypercube_graph(d)) for d in (3, 4, 5)},
    **{f"grid {d}": joined(nx.grid_2d_graph(d, d)) for d in (4, 8)},
    "torus": joined(nx.grid_2d_graph(4, 4, periodic=True)),
    **{f"regular {n} {k}": nx.random_regular_graph(k, n, seed=n) for n, k in ((16, 3), (32, 4), (48, 3), (64, 4))},
    **{f"random {seed}": nx.gnm_random_graph(20, 40, seed=seed) for seed in range(4)},
    "regular 128 3": nx.random_regular_graph(3, 128, seed=3),
}


def drawing_of(graph) -> tuple[np.ndarray, np.ndarray]:
    """Places of a graph's vertices, and its links."""
    pairs = np.array(sorted(graph.edges()))
    count = graph.number_of_nodes()
    src, dst = pairs.T
    ways = np.append(src, dst), np.append(dst, src)
    return np.stack(spread(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, bool), *ways), axis=1), pairs


SLOW = ("hoffman-singleton", "regular 64 4", "regular 128 3", "regular 48 3")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in GRAPHS])
def test_vertices_stand_clear_of_each_other_and_of_links(name):
    """There is room for circles that touch neither each other nor a link: of an area of n equal squares, each of a
    tenth of its square's side or more, in dense graphs of a twentieth.
    """
    place, pairs = drawing_of(GRAPHS[name])
    assert clearance(place, pairs) >= (0.1 if len(pairs) <= 2.5 * len(place) else 0.05) / len(place) ** 0.5


def test_a_graph_is_always_drawn_alike():
    assert drawing_of(GRAPHS["fat tree"])[0].tobytes() == drawing_of(GRAPHS["fat tree"])[0].tobytes()


def test_clearance_is_the_radius_that_touches():
    """A square of side 2, and a vertex 0.5 above its lower side: the link below it is nearer than a vertex."""
    place = np.array([[0.0, 0], [2, 0], [2, 2], [0, 2], [1, 0.5]])
    assert clearance(place, np.array([[0, 1]])) == pytest.approx(0.25)
    assert clearance(place, np.array([[2, 3]])) == pytest.approx(np.hypot(1, 0.5) / 2 / 2)


def test_petersen_is_a_star_in_a_pentagon():
    place, _ = drawing_of(nx.petersen_graph())
    radius = np.hypot(*place.T)
    assert radius[:5] == pytest.approx(radius[0]) and radius[5:] == pytest.approx(radius[0] / 2)


def cut(spec):
    topology, x, y = placed(spec)
    src, dst = topology.src, topology.dst
    a, b = np.stack([x[src], y[src]], axis=1), np.stack([x[dst], y[dst]], axis=1)
    length = np.hypot(*(b - a).T)
    return topology, *_over(x, y, a, (b - a) / length[:, None], length, src, dst)


@pytest.mark.parametrize("dims", [(4, 4), (8, 3), (4, 4, 4), (2, 5)])
def test_wraparound_links_of_a_torus_are_cut_and_no_others(dims):
    topology, over, around = cut({"shape": "torus", "dims": list(dims), **L})
    coordinates = np.stack(np.unravel_index(np.arange(topology.npus), dims[::-1]))
    far = np.abs(coordinates[:, topology.src] - coordinates[:, topology.dst]).max(axis=0) > 1
    assert (around == far).all() and not over.any()


@pytest.mark.parametrize("name", ["ring", "fat_tree", "dgx", "dragonfly", "sixty", "switches of rings"])
def test_links_of_other_networks_are_whole(name):
    around = cut(SHAPES[name])[2]
    assert around.sum() == (2 * 3 if name == "switches of rings" else 0)  # a ring of five in each of three columns


def test_links_that_skip_vertices_of_a_row_are_bent():
    topology, over, around = cut(product(("fully_connected", 4), ("ring", 6)))
    column = np.abs(topology.src - topology.dst) == 20
    row = (topology.src // 4 == topology.dst // 4) & (np.abs(topology.src - topology.dst) > 1)
    assert (around == column).all() and (over == row).all()


def test_the_two_directions_of_a_cable_lie_beside_each_other():
    x, y = np.array([0.0, 4.0]), np.array([0.0, 0.0])
    src, dst = np.array([0, 1]), np.array([1, 0])
    there, back = _paths(x, y, src, dst, np.array([0.2, 0.2]), 0.3)
    assert there[:, 1] == pytest.approx(-0.2) and back[:, 1] == pytest.approx(0.2)


def test_drawings_look_as_they_should():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    names = ("torus", "cube", "dgx", "dragonfly", "hosts", "switches of rings")
    for name, axes in zip(names, figure.subplots(2, 3).ravel(), strict=True):
        ap.build_topology(**SHAPES[name]).draw(ax=axes)
    assert_picture(figure, "topologies")
