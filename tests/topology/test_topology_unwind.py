"""Unwound topologies: no switches, ports never exceeded, everybody still reached."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import build

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
SWITCHED = (
    {"shape": "switch", "npus": 7},
    {"shape": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 2},
    {"shape": "fat_tree", "k": 4},
    {"shape": "dragonfly", "a": 2, "h": 1, "p": 2},
    {"shape": "switch", "npus": 6, "failed": {"npus": [2]}},
)


def flow(topology) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Bandwidth out of and into every NPU."""
    out, into = defaultdict(Fraction), defaultdict(Fraction)
    for link in range(topology.links):
        u, v = int(topology.src[link]), int(topology.dst[link])
        out[u] += topology.bandwidth(link)
        into[v] += topology.bandwidth(link)
    return out, into


@pytest.mark.parametrize("degree", [1, 2, 5, 100])
@pytest.mark.parametrize("spec", SWITCHED)
def test_no_port_carries_more_than_it_did(spec, degree):
    before = build({**spec, **LINK}, written=True)
    after = build({**spec, **LINK, "unwind": degree}, written=True)
    assert (after.npus, after.vertices, after.alive) == (before.npus, before.npus, before.alive)
    assert not after.parallel.any()
    for old, new in zip(flow(before), flow(after), strict=True):
        assert all(0 < new[npu] <= old[npu] for npu in before.alive)


def test_degrees_of_one_switch():
    n, rate = 6, Fraction(50 * 10**9)
    for degree in range(1, 9):
        made = build({"shape": "switch", "npus": n, **LINK, "unwind": degree}, written=True)
        each = min(degree, n - 1)
        assert made.links == n * each and made.bandwidths == (rate / each,)
        assert (made.latency_ps == 10**6).all()
        near = {(int(u), int(v)) for u, v in zip(made.src, made.dst, strict=True)}
        assert near == {(u, (u + step) % n) for u in range(n) for step in range(1, each + 1)}


def test_a_slow_port_makes_its_own_links_slow():
    slow = [{"from": 0, "to": "switch0", "bandwidth": "8 GB/s"}]
    made = build({"shape": "switch", "npus": 3, **LINK, "links": slow, "unwind": 2}, written=True)
    rates = {(int(made.src[i]), int(made.dst[i])): int(made.bandwidth(i)) for i in range(made.links)}
    assert rates == {(u, v): 4 * 10**9 if 0 in (u, v) else 25 * 10**9 for u in range(3) for v in range(3) if u != v}


def test_links_that_come_to_lie_side_by_side_are_one():
    edges = [
        {"src": a, "dst": s, "bandwidth": "10 GB/s", "latency": late, "directions": "both"}
        for s, late in (("x", "1 us"), ("y", "2 us"))
        for a in (0, 1)
    ]
    made = build({"shape": "edge_list", "edges": edges, "unwind": 1}, written=True)
    assert made.links == 2 and made.bandwidths == (Fraction(20 * 10**9),)
    assert np.array_equal(made.latency_ps, [4 * 10**6] * 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"shape": "ring", "npus": 4, "unwind": 2}, "no switch"),
        ({"shape": "switch", "npus": 4, "unwind": 0}, "less than 1"),
        ({"shape": "switch", "npus": 4, "unwind": "all"}, "not a whole number"),
        ({"shape": "switch", "npus": 1500, "unwind": 1499}, "more than"),
    ],
)
def test_what_cannot_be_unwound_is_said(spec, words):
    with pytest.raises(TopologyError, match=words) as caught:
        build({**spec, **LINK}, "topology", written=True)
    assert caught.value.place == "topology.unwind"
