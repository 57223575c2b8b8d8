"""Placements put each rank on its own living NPU; drawings put each vertex in its own place; presets cite sources."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import SHAPES, Dim, build, placement, preset, preset_names
from astrasim_py.topology.layout import positions
from astrasim_py.topology.placement import RandomPlacement

L = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def torus(*dims, **more):
    return build({"shape": "torus", "dims": list(dims), **L, **more})


@pytest.mark.parametrize("kind", ["linear", "snake"])
@pytest.mark.parametrize("dims", [(1,), (8,), (4, 4), (3, 5), (2, 3, 4), (3, 3, 3), (4, 1, 2)])
def test_placements_are_permutations(kind, dims):
    topology = torus(*dims)
    assert sorted(placement(topology, kind)) == list(range(topology.npus))


def test_linear_is_the_identity():
    assert placement(torus(4, 4)) == tuple(range(16))
    assert placement(torus(4, 4), "linear", 5) == (0, 1, 2, 3, 4)


def test_snake_of_a_square_runs_to_and_fro():
    assert placement(torus(4, 4), "snake") == (0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12)


@pytest.mark.parametrize("shape", ["torus", "mesh"])
@pytest.mark.parametrize("dims", [[8], [4, 4], [3, 5], [2, 3, 4], [3, 3, 3], [5, 2, 2, 3]])
def test_successive_ranks_of_a_snake_are_neighbours(shape, dims):
    topology = build({"shape": shape, "dims": dims, **L})
    order = placement(topology, "snake")
    assert np.diff(topology.routes(order[:-1], order[1:])[0]).tolist() == [1] * (topology.npus - 1)


@pytest.mark.parametrize("dims", [[8], [4, 4], [8, 8], [4, 4, 4], [4, 3], [3, 4], [5, 2, 3], [3, 3, 2]])
def test_the_snake_of_an_even_torus_closes(dims):
    topology = torus(*dims)
    order = placement(topology, "snake")
    assert len(topology.route(order[-1], order[0])) == 1


def test_random_placements_follow_their_seed():
    topology = torus(4, 4)
    orders = [placement(topology, RandomPlacement(random=seed)) for seed in (0, 1, 1)]
    assert orders[0] != orders[1] == orders[2] and all(sorted(order) == list(range(16)) for order in orders)
    # The same on every machine.
    assert placement(topology, RandomPlacement(random=1), 5) == orders[1][:5] == (12, 8, 6, 7, 14)


def test_placements_skip_failed_npus():
    topology = torus(4, 4, failed={"npus": [1, 6]})
    assert placement(topology) == tuple(i for i in range(16) if i not in (1, 6))
    whole = placement(torus(4, 4), "snake")
    assert placement(topology, "snake") == tuple(i for i in whole if i not in (1, 6))
    assert len(placement(topology, "snake", 14)) == 14


def test_a_list_is_taken_as_it_is():
    topology = torus(4, 4)
    assert placement(topology, [3, 0, 9]) == (3, 0, 9)
    assert placement(topology, np.array([3, 0, 9]), 3) == (3, 0, 9)


@pytest.mark.parametrize(
    ("kind", "ranks", "said"),
    [
        ("linear", 17, "17 ranks are more than the 15 NPUs of the topology (1 of 16 failed)"),
        ("snake", 16, "16 ranks are more than the 15 NPUs"),
        ("linear", 0, "0 ranks cannot be placed"),
        ([], None, "0 ranks cannot be placed"),
        ("zigzag", None, '"zigzag" is not a placement; write linear, snake, or a list'),
        ([0, 1, 0], None, "NPU 0 is listed for ranks 0 and 2"),
        ([0, 16], None, "NPU 16 (rank 1) does not exist; NPUs are numbered 0 to 15"),
        ([-1], None, "NPU -1 (rank 0) does not exist"),
        ([0, 5], None, "NPU 5 (rank 1) has failed"),
        ([0, True], None, "True (rank 1) is not an NPU id"),
        ([0, 1.0], None, "1.0 (rank 1) is not an NPU id"),
        ([0, "1"], None, "'1' (rank 1) is not an NPU id"),
        ([0, 1], 3, "2 NPUs are listed for 3 ranks"),
    ],
)
def test_placements_that_cannot_be_are_refused(kind, ranks, said):
    topology = torus(4, 4, failed={"npus": [5]})
    with pytest.raises(TopologyError) as caught:
        placement(topology, kind, ranks, "a.yaml:1:1: placement")
    assert str(caught.value).startswith("a.yaml:1:1: placement: ")
    assert said in str(caught.value)


def test_a_topology_without_dims_has_no_snake():
    with pytest.raises(TopologyError, match="no dims to snake through; write linear"):
        placement(build({"preset": "dgx1_v100"}), "snake")


# Drawings.


@pytest.mark.parametrize(
    "spec",
    [
        {"shape": "ring", "npus": 1, **L},
        {"shape": "ring", "npus": 16, **L},
        {"shape": "switch", "npus": 5, **L},
        {"shape": "mesh", "dims": [6], **L},
        {"shape": "torus", "dims": [4, 3], **L},
        {"shape": "torus", "dims": [4, 3, 5], **L},
        {"shape": "torus", "dims": [3, 3, 3, 3], **L},
        {"shape": "hypercube", "npus": 32, **L},
        {"shape": "product", "dims": [{"kind": "ring", "size": 4, **L}, {"kind": "switch", "size": 3, **L}]},
        {"shape": "product", "dims": [{"kind": "switch", "size": 4, **L}, {"kind": "switch", "size": 3, **L}]},
        {"shape": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 2, **L},
        {"shape": "fat_tree", "k": 4, **L},
        {"preset": "dgx_h100", "nodes": 3},
    ],
)
def test_every_vertex_of_a_regular_topology_has_its_own_place(spec):
    topology = build(spec)
    x, y = positions(topology)
    assert len(x) == len(y) == topology.vertices
    assert np.isfinite(x).all() and np.isfinite(y).all()
    assert len(set(zip(x.round(6).tolist(), y.round(6).tolist(), strict=True))) == topology.vertices


def test_a_torus_is_drawn_as_a_grid():
    x, y = positions(torus(4, 3))
    assert x.tolist() == [0, 1, 2, 3] * 3
    assert y.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_irregular_topologies_have_no_natural_drawing():
    assert positions(build({"preset": "dgx1_v100"})) is None


# Presets.


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_cites_its_sources_and_can_be_used(name):
    found = preset(name)
    assert found.title
    assert len(found.sources) >= 2
    assert all(len(each.what) > 5 and len(each.where) > 5 for each in found.sources)
    assert found.topology is not None or found.link is not None
    if found.topology is not None:
        assert found.topology["shape"] in SHAPES
        topology = build({"preset": name})
        assert topology.npus > 1
        src, dst = np.repeat(np.arange(topology.npus), 2), np.tile([0, topology.npus - 1], topology.npus)
        assert len(topology.routes(src, dst)[1]) > 0
    if found.link is not None:
        topology = build({"shape": "ring", "npus": 4, "link_preset": name})
        assert (topology.bandwidths[0], int(topology.latency_ps[0])) == (found.link.bandwidth, found.link.latency)
    if found.compute is not None:
        assert found.compute.memory_bandwidth > 0 and found.compute.memory > 0
        assert all(rate >= 10**12 for rate in found.compute.peak.values())


def test_the_presets_asked_for_are_there():
    nodes = {"dgx1_v100", "dgx_a100", "dgx_h100", "dgx_h200", "gb200_nvl72", "tpu_v4", "tpu_v5e", "mi300x"}
    assert nodes <= set(preset_names("topology"))
    assert nodes <= set(preset_names("compute"))
    assert {"infiniband_hdr", "infiniband_ndr", "pcie_gen4_x16", "pcie_gen5_x16"} <= set(preset_names("link"))


def test_a_dgx1_gpu_has_six_nvlinks():
    topology = build({"preset": "dgx1_v100"})
    for npu in range(8):
        rate = sum(topology.bandwidth(i) for i in range(topology.links) if topology.src[i] == npu)
        assert rate == 6 * 25 * 10**9


def test_presets_may_be_changed_key_by_key():
    topology = build({"preset": "dgx_a100", "nodes": 2, "nic_bandwidth": "400 Gb/s"})
    assert topology.npus == 16
    assert topology.bandwidths == (Fraction(50 * 10**9), Fraction(300 * 10**9))
    cube = build({"preset": "tpu_v4", "dims": [4, 4, 8]})
    assert [d.size for d in cube.dims] == [4, 4, 8]
    assert isinstance(cube.dims[0], Dim)


def test_a_link_preset_gives_way_to_what_is_written():
    topology = build({"shape": "ring", "npus": 4, "link_preset": "infiniband_ndr", "latency": "2 us"})
    assert (topology.bandwidths[0], topology.latency_ps[0]) == (50 * 10**9, 2_000_000)
