"""Bounds by cuts against all cuts of small graphs, closed forms, and optima that others computed."""

from __future__ import annotations

import csv
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrasim_py.cli.topologies import topology_of
from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.certificate import certificate
from astrasim_py.cuts.spreading import spreading_cut
from astrasim_py.topology.model import Topology

GB = 10**9


def topology(npus: int, vertices: int, links: list[tuple[int, int, int]]) -> Topology:
    """Links (tail, head, GB/s) of no latency."""
    rates = sorted({Fraction(rate * GB) for *_, rate in links})
    src, dst, kind = (np.array(each) for each in zip(*((a, b, rates.index(r * GB)) for a, b, r in links), strict=True))
    names = tuple((f"s{i}", None) for i in range(vertices - npus))
    return Topology.create(
        npus=npus, vertices=vertices, src=src, dst=dst, latency_ps=np.zeros(len(src), dtype=np.int64),
        bandwidth_class=kind, bandwidths=rates, name="drawn", shape="edge_list", switches=names,
    )  # fmt: skip


def least_ratio(net: Topology, weight: np.ndarray) -> Fraction:
    """The least capacity out of a set of vertices per weight inside, over all sets that leave an NPU out."""
    best: Fraction | None = None
    for size in range(1, net.vertices):
        for chosen in combinations(range(net.vertices), size):
            inside = np.zeros(net.vertices, dtype=bool)
            inside[list(chosen)] = True
            held = int(weight[inside[: net.npus]].sum())
            if inside[: net.npus].all() or not held:
                continue
            crossing = inside[net.src] & ~inside[net.dst]
            rate = sum((net.bandwidths[k] for k in net.bandwidth_class[crossing].tolist()), Fraction(0))
            best = rate / held if best is None else min(best, rate / held)
    assert best is not None
    return best


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    npus, switches = draw(st.integers(2, 5)), draw(st.integers(0, 2))
    vertices = npus + switches
    ring = [(a, (a + 1) % vertices) for a in range(vertices)]
    pairs = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1)).filter(lambda p: p[0] != p[1])
    more = draw(st.lists(pairs, max_size=10, unique=True))
    return topology(npus, vertices, [(a, b, draw(st.integers(1, 7))) for a, b in [*ring, *more]])


@given(networks(), st.data())
@settings(max_examples=60)
def test_the_cut_is_the_tightest_of_all(net: Topology, data: st.DataObject) -> None:
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=net.npus, max_size=net.npus)))
    weight[data.draw(st.integers(0, net.npus - 1))] += 1
    cut = spreading_cut(CapacityGraph.of(net, range(net.npus)), weight)
    assert cut.share == least_ratio(net, weight)
    # Links through an unbalanced switch may not all be of use.
    assert cut.exact == cut.graph.balanced


@given(networks())
@settings(max_examples=30)
def test_a_certificate_is_a_bound_of_what_a_schedule_takes(net: Topology) -> None:
    """A schedule that sends every share straight from its origin, one after the other, is no faster."""
    from astrasim_py.synthesis.request import Request
    from astrasim_py.synthesis.solve import solve

    for collective in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"):
        root = 0 if collective == "broadcast" else None
        request = Request(
            topology=net, npus=tuple(range(net.npus)), collective=collective, size=10**6 + 7, chunks=1,
            root=root, rounds=1,
        )  # fmt: skip
        time = solve(request, jobs=1).schedule.time
        bound = certificate(collective, 10**6 + 7, net, range(net.npus), 0, solver_s=None)
        assert bound is not None and bound.time_ps <= time


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 16, 17])
def test_closed_forms(n: int) -> None:
    ring = topology_of(f"ring:{n},bandwidth=10 GB/s,latency=1 us")
    least = certificate("all_gather", n * 10**6, ring, range(n))
    # Two links into every NPU (one where two NPUs share a pair of links), the latency of the last hop.
    ways = 2 if n > 2 else 1
    assert least is not None and least.exact
    assert least.rate == Fraction(ways * 10 * GB * n, n - 1)
    assert least.time_ps == (n - 1) * 10**18 // (ways * 10 * GB) + 10**6


def test_rotations_prove_classes_also_through_switches() -> None:
    nodes, gpus = 6, 4
    n = nodes * gpus
    links = []
    for v in range(n):
        for switch, rate in ((n + v // gpus, 400), (n + nodes + v % gpus, 50)):
            links += [(v, switch, rate), (switch, v, rate)]
    net = topology(n, n + nodes + gpus, links)
    cut = spreading_cut(CapacityGraph.of(net, range(n)), np.ones(n, dtype=np.int64))
    assert cut.exact and "one sink of each class of symmetry tried (1)" in cut.proof
    assert cut.rate == Fraction(n * gpus * 50 * GB, n - gpus)
    for slow, exact in (({(n + nodes, 0), (0, n + nodes)}, True), ({(n + nodes, 0)}, False)):
        # Where a switch takes in more than it gives, trees may not reach what cuts allow.
        broken = topology(n, n + nodes + gpus, [(a, b, 25 if (a, b) in slow else r) for a, b, r in links])
        other = spreading_cut(CapacityGraph.of(broken, range(n)), np.ones(n, dtype=np.int64))
        assert other.exact == exact and "all sinks tried" in other.proof
        assert other.rate == Fraction(n * (gpus * 50 - 25) * GB, n - gpus)


def test_a_regular_graph_without_symmetry_is_not_called_exact_by_one_sink() -> None:
    """Every NPU has three links in and three out, all alike; the only automorphism is the identity."""
    edges = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 6), (3, 7), (4, 8), (4, 9), (5, 10), (5, 11), (6, 8),
             (6, 10), (7, 9), (7, 11), (8, 11), (9, 10)]  # fmt: skip
    assert np.bincount(np.array(edges).reshape(-1)).tolist() == [3] * 12
    net = topology(12, 12, [pair for a, b in edges for pair in ((a, b, 10), (b, a, 10))])
    graph = CapacityGraph.of(net, range(12))
    assert graph.rotations is None
    stopped = spreading_cut(graph, np.ones(12, dtype=np.int64), stop=np.ones(1, dtype=np.int64))
    assert not stopped.exact and "1 of 12 sinks tried" in stopped.proof
    whole = spreading_cut(graph, np.ones(12, dtype=np.int64))
    assert whole.exact and "all sinks tried" in whole.proof


@pytest.mark.parametrize("row", [pytest.param(i, id=str(i)) for i in range(15)])
def test_published_optima(golden: Path, row: int) -> None:
    folder = golden / "synthesis"
    with open(folder / "optima_public.csv", newline="") as file:
        facts = list(csv.DictReader(file))[row]
    net = topology_of(str(folder / "topologies" / f"{facts['topology']}.csv"))
    everyone, size = range(net.npus), 10**15

    def rate(collective: str, **options: object) -> float:
        found = certificate(collective, size, net, everyone, **options)  # type: ignore[arg-type]  # keywords of one call
        assert found is not None
        # Latencies are less than a millionth of so large a buffer.
        assert float(found.rate) == pytest.approx(size / found.time_ps * 10**12, rel=1e-6)
        return float(found.rate) / GB

    gather = certificate("all_gather", size, net, everyone)
    assert gather is not None and gather.exact and gather.rate == Fraction(facts["ag_exact"]) * GB
    assert rate("reduce_scatter") == pytest.approx(float(facts["rs_GBps"]), rel=1e-7)
    assert rate("broadcast") == pytest.approx(float(facts["bc_root0_GBps"]), rel=1e-7)
    reduced = rate("all_reduce")
    assert float(facts["ar_low_GBps"]) * (1 - 1e-6) <= reduced <= float(facts["ar_up_GBps"]) * (1 + 1e-6)
    if facts["ar_GBps"]:
        assert reduced == pytest.approx(float(facts["ar_GBps"]), rel=1e-6)
    small = net.npus <= 36 or facts["topology"].startswith(("rail", "fat"))
    if small:
        solver = None if net.npus <= 36 else 0.0
        assert rate("all_to_all", solver_s=solver) == pytest.approx(float(facts["a2a_GBps"]), rel=1e-3)
