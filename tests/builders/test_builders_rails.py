"""Rings and trees through nodes, one for each rail: what they do for groups of any shape, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.verification.verifier import verify

CHAINED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@st.composite
def groups(draw) -> list[list[int]]:
    """Members of 1 to 8 nodes, of 1 to 8 ranks each, 64 at most, in any order."""
    widths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=8))
    if draw(st.booleans()):
        widths = [widths[0]] * len(widths)
    ranks = list(range(sum(widths)))
    if draw(st.booleans()):
        ranks = draw(st.permutations(ranks))
    return [[ranks.pop(0) for _ in range(width)] for width in widths]


def rails(name: str, collective: str, nodes: list[list[int]], **options):
    ranks = sum(map(len, nodes))
    if promise_of(collective).rooted:
        options["root"] = ranks // 2
    return build(name, collective, ranks, nodes=nodes, **options)


@settings(max_examples=25, deadline=None)
@given(groups(), st.integers(1, 9), st.sampled_from(CHAINED), st.integers(1, 3), st.booleans())
def test_rings_through_any_nodes_do_what_they_promise(nodes, channels, collective, chunks, overlap):
    small = sum(map(len, nodes)) <= 24
    channels, chunks = (channels, chunks) if small else (channels % 3 + 1, 1)
    verdict = verify(rails("ring", collective, nodes, channels=channels, chunks=chunks, overlap=overlap))
    assert verdict.ok and verdict.race_free and verdict.order_consistent, verdict.problems


@settings(max_examples=25, deadline=None)
@given(groups(), st.integers(1, 9), st.integers(1, 3))
def test_trees_through_any_nodes_do_what_they_promise(nodes, channels, chunks):
    verdict = verify(rails("double_binary_tree", "all_reduce", nodes, channels=channels, chunks=chunks))
    assert verdict.ok and verdict.race_free and verdict.order_consistent, verdict.problems


def test_rings_of_all_rails_are_one_rotation():
    algorithm = build("ring", "all_reduce", 32, nodes=8, channels=16)
    assert algorithm.rotation.dims == (8, 4)
    listed = build("ring", "all_reduce", 32, nodes=[[*range(8 * j, 8 * j + 8)] for j in range(4)], channels=16)
    assert listed.digest() == algorithm.digest()


@pytest.mark.parametrize("nodes,width", [(2, 8), (4, 4), (3, 2)])
def test_rail_rings_without_contention_take_what_their_slowest_hop_takes(nodes, width):
    network = ap.build_topology(
        shape="dgx", nodes=nodes, npus=width, nvlink_bandwidth="450 GB/s", nvlink_latency="300 ns",
        nic_bandwidth="50 GB/s", nic_latency="1350 ns",
    )  # fmt: skip
    n = nodes * width
    size = 50_000 * n * width
    problem = ap.collective("all_reduce", size, network, algorithm=build("ring", "all_reduce", n, nodes=width))
    problem = replace(problem, network=NetworkModel(model="analytical"))
    # The last rank of a node sends by the NIC of the first one of its ring: two hops of NVLink, two of the rail.
    hop = 2 * 300_000 + 2 * 1_350_000 + 1_000_000
    assert ap.simulate(problem, engine="both").makespan == 2 * (n - 1) * hop


@pytest.mark.parametrize(
    "options,problem",
    [
        ({"nodes": 5}, "nodes of 5 do not divide 16 ranks"),
        ({"nodes": 0}, "neither a number of ranks nor lists"),
        ({"nodes": [[0, 1], []]}, "neither a number of ranks nor lists"),
        ({"nodes": [[0, 1], [1, 2]]}, "do not have each of the ranks 0 to 15 once"),
        ({"nodes": 8, "bidirectional": True}, "bidirectional does not go through nodes"),
        ({"nodes": 8, "channels": 0}, "channels is 0"),
        ({"channels": "auto"}, "channels is 'auto'"),
    ],
)
def test_nodes_and_channels_that_make_no_sense_are_refused(options, problem):
    with pytest.raises(AlgorithmError, match="ring all_reduce over 16 ranks") as error:
        build("ring", "all_reduce", 16, **options)
    assert problem in error.value.problem


def test_channels_are_instances_side_by_side():
    assert build("direct", "all_to_all", 4, channels=3).name == "direct_x3"
    assert verify(build("halving_doubling", "all_reduce", 8, channels=2)).ok
    with pytest.raises(AlgorithmError, match="nothing to spread"):
        build("ring", "barrier", 4, channels=2)
