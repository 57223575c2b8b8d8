"""Building from keys and values: what is accepted, what is refused and with which words; overrides and failures."""

from __future__ import annotations

import math
import time
import tracemalloc
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import SHAPES, Dim, Topology, build
from astrasim_py.topology.export import to_networkx

L = {"bandwidth": "50 GB/s", "latency": "500 ns"}
RING = {"shape": "ring", "npus": 8, **L}
TORUS = {"shape": "torus", "dims": [4, 4], **L}
DGX = {
    "shape": "dgx",
    "nodes": 1,
    "nvlink_bandwidth": "300 GB/s",
    "nvlink_latency": "300 ns",
    "nic_bandwidth": "200 Gb/s",
    "nic_latency": "1 us",
}
LEAF = {"shape": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 2, **L}


def refusal(spec, **options) -> str:
    with pytest.raises(TopologyError) as caught:
        build(spec, **options)
    error = caught.value
    assert "\n" not in str(error)
    return str(error)


# What is accepted.

EXAMPLES = {
    "ring": RING,
    "mesh": {"shape": "mesh", "dims": [3, 2], **L},
    "torus": TORUS,
    "fully_connected": {"shape": "fully_connected", "npus": 4, **L},
    "switch": {"shape": "switch", "npus": 4, **L},
    "hypercube": {"shape": "hypercube", "npus": 8, **L},
    "product": {
        "shape": "product",
        "dims": [{"kind": "ring", "size": 4, **L}, {"kind": "switch", "size": 2, **L}],
    },
    "leaf_spine": LEAF,
    "fat_tree": {"shape": "fat_tree", "k": 4, **L},
    "dragonfly": {"shape": "dragonfly", "a": 2, "h": 1, "p": 2, **L},
    "dgx": DGX,
    "edge_list": {"shape": "edge_list", "edges": [{"src": 0, "dst": 1, **L, "directions": "both"}]},
}


def test_every_shape_has_an_example_here():
    assert EXAMPLES.keys() == SHAPES.keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_built_and_checked(shape):
    topology = build(EXAMPLES[shape])
    assert topology.shape == shape
    assert topology.digest() == build(EXAMPLES[shape]).digest()
    for column in (topology.src, topology.dst, topology.latency_ps, topology.bandwidth_class):
        assert len(column) == topology.links
        assert not column.flags.writeable


@pytest.mark.parametrize("shape", SHAPES)
def test_required_keys_are_required_and_every_key_is_known(shape):
    model = SHAPES[shape]
    assert EXAMPLES[shape].keys() <= model.model_fields.keys()
    for key in EXAMPLES[shape].keys() - {"shape", "nodes", "nic_bandwidth", "nic_latency", "edges"}:
        less = {k: v for k, v in EXAMPLES[shape].items() if k != key}
        assert f'"{key}" is missing' in refusal(less)


def test_text_and_parsed_values_make_the_same():
    parsed = {"shape": "ring", "npus": 8, "bandwidth": Fraction(50 * 10**9), "latency": 500_000}
    assert build(parsed).digest() == build(RING).digest()


def test_what_a_person_wrote_needs_units():
    spec = {**RING, "latency": 500}
    assert build(spec).latency_ps[0] == 500
    assert "500 is not a time: it has no unit" in refusal(spec, written=True)
    edge = {"src": 0, "dst": 1, "bandwidth": "1 GB/s", "latency": 7, "directions": "both"}
    spec = {"shape": "edge_list", "edges": [edge]}
    assert build(spec).latency_ps.tolist() == [7, 7]
    assert "no unit" in refusal(spec, written=True)


def test_a_product_of_one_dimension_equals_its_shape():
    product = build({"shape": "product", "dims": [{"kind": "ring", "size": 8, **L}]})
    ring = build(RING)
    assert product.digest() == ring.digest()
    given = build({"shape": "product", "dims": [Dim("ring", 8, Fraction(50 * 10**9), 500_000)]})
    assert given.digest() == ring.digest()


def test_bandwidth_and_latency_may_differ_per_dimension():
    topology = build({**TORUS, "bandwidth": ["50 GB/s", "25 GB/s"], "latency": ["500 ns", "1 us"]})
    assert topology.bandwidths == (Fraction(25 * 10**9), Fraction(50 * 10**9))
    for link in range(topology.links):
        along_0 = topology.src[link] // 4 == topology.dst[link] // 4
        assert topology.bandwidth(link) == (50 if along_0 else 25) * 10**9
        assert topology.latency_ps[link] == (500_000 if along_0 else 1_000_000)


@pytest.mark.parametrize("value", [2, 2.0, "2:1", Fraction(2)])
def test_oversubscription_halves_the_uplinks(value):
    topology = build({**LEAF, "oversubscription": value})
    # 4 hosts of 50 GB/s over 2 spines, halved.
    assert set(topology.bandwidths) == {Fraction(50 * 10**9), 4 * Fraction(50 * 10**9) / 2 / 2}
    up = [i for i in range(topology.links) if topology.src[i] >= 16 or topology.dst[i] >= 20]
    topology = build({**LEAF, "oversubscription": 3})
    uplink = next(i for i in up if topology.vertex_name(int(topology.dst[i])).startswith("spine"))
    assert topology.bandwidth(uplink) == Fraction(100 * 10**9, 3)


def test_uplinks_may_be_given_outright():
    topology = build({**LEAF, "uplink_bandwidth": "400 Gb/s", "uplink_latency": "2 us"})
    uplink = [topology.link_name(i) for i in range(topology.links)].index("leaf0->spine1")
    assert topology.bandwidth(uplink) == 50 * 10**9
    assert topology.latency_ps[uplink] == 2_000_000


def test_counts_of_switched_networks():
    tree = build({"shape": "fat_tree", "k": 8, **L})
    assert (tree.npus, tree.vertices - tree.npus, tree.links) == (128, 80, 2 * 3 * 128)
    fly = build({"shape": "dragonfly", "a": 4, "h": 2, "p": 2, **L})
    assert (fly.npus, fly.vertices - fly.npus) == (72, 36)
    assert fly.links == 2 * 72 + 36 * 3 + 36 * 2
    # Every router has all its h global links in use.
    routers = fly.src >= 72
    across = routers & (fly.dst >= 72) & ((fly.src - 72) // 4 != (fly.dst - 72) // 4)
    assert set(np.bincount(fly.src[across] - 72).tolist()) == {2}
    dgx = build({**DGX, "nodes": 4, "spines": 2})
    assert (dgx.npus, dgx.links) == (32, 2 * 32 + 2 * 32 + 2 * 8 * 2)
    assert dgx.bandwidths[-1] == 300 * 10**9
    up = [dgx.link_name(i) for i in range(dgx.links)].index("rail0->spine0")
    assert dgx.bandwidth(up) == 4 * 25 * 10**9 // 2


def test_dgx_routes_keep_to_nvlink_and_rails():
    def path(topology, a, b):
        return [topology.vertex_name(int(topology.dst[link])) for link in topology.route(a, b)]

    rail_only = build({**DGX, "nodes": 2})
    assert path(rail_only, 0, 3) == ["nvswitch0", "3"]
    assert path(rail_only, 0, 8) == ["rail0", "8"]
    assert path(rail_only, 0, 9) == ["nvswitch0", "1", "rail1", "9"]
    spines = build({**DGX, "nodes": 2, "spines": 2})
    assert path(spines, 0, 9) == ["rail0", "spine0", "rail1", "9"]
    relayed = build({**DGX, "nodes": 2, "spines": 2, "cross_rail": "nvlink"})
    assert path(relayed, 0, 9) == ["nvswitch0", "1", "rail1", "9"]


def test_dims_are_the_hierarchy_of_ids():
    dims = {shape: build(EXAMPLES[shape]).dims for shape in SHAPES}
    for shape in SHAPES:
        assert not dims[shape] or math.prod(d.size for d in dims[shape]) == build(EXAMPLES[shape]).npus
    regular = {"ring", "mesh", "torus", "fully_connected", "switch", "hypercube", "product"}
    regular |= {"leaf_spine", "fat_tree", "dragonfly", "dgx"}
    assert all(dims[shape] for shape in regular) and not dims["edge_list"]


def test_digest_is_of_the_network_not_of_names():
    assert build(RING, name="a").digest() == build(RING, name="b").digest()
    assert build(RING, name="a").name == "a"
    different = [
        RING,
        {**RING, "npus": 9},
        {**RING, "bandwidth": "51 GB/s"},
        {**RING, "latency": "501 ns"},
        {**RING, "bidirectional": False},
        {**RING, "routing": {"ecmp": True}},
        {**RING, "routing": {"ecmp": True, "seed": 1}},
        {**RING, "failed": {"npus": [3]}},
        {**RING, "failed": {"links": [[0, 1]]}},
        {**RING, "links": [{"from": 0, "to": 1, "latency": "1 us"}]},
    ]
    assert len({build(spec).digest() for spec in different}) == len(different)


# What is refused.


@pytest.mark.parametrize("value", ["0 GB/s", "-1 GB/s", "nan", "inf GB/s", "fast", "1e400 GB/s", "50", 50, None])
def test_bad_bandwidths_are_refused_with_an_example(value):
    text = refusal({**RING, "bandwidth": value})
    assert text.startswith("bandwidth: ") or '"bandwidth" is missing' in text
    assert "50 GB/s" in text


@pytest.mark.parametrize("value", ["-5 ns", "nan ns", "fast", "1e30 s", "500", True, [[1]]])
def test_bad_latencies_are_refused_with_an_example(value):
    assert refusal({**RING, "latency": value}).startswith("latency")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**RING, "npus": 0}, "npus: 0 is less than 1"),
        ({**RING, "npus": -1}, "npus: -1 is less than 1"),
        ({**RING, "npus": 10**9}, "1000000000 is more than the cap of 1,048,576"),
        ({**RING, "npus": 10**400}, "a number beyond 10^20 is more than the cap"),
        ({**RING, "npus": "8"}, 'npus: "8" is not a whole number'),
        ({**RING, "npus": 8.0}, "npus: 8.0 is not a whole number"),
        ({**RING, "npus": True}, "npus: true is not a whole number"),
        ({**TORUS, "dims": [2**10, 2**11]}, "2097152 NPUs are more than the cap of 1048576"),
        ({**TORUS, "dims": [2**20] * 32}, "more than 10^20 NPUs"),
        ({**TORUS, "dims": [1] * 33}, "dims: 33 items are more than 32"),
        ({**TORUS, "dims": []}, "dims: 0 items are fewer than 1"),
        ({**TORUS, "dims": 4}, "dims: 4 is not a list"),
        ({**TORUS, "dims": "44"}, 'dims: "44" is not a list'),
        ({**TORUS, "dims": [4, 0]}, "dims[1]: 0 is less than 1"),
        ({**TORUS, "latency": ["1 us"]}, "latency: 1 values for 2 dims"),
        ({"shape": "fully_connected", "npus": 5000, **L}, "24995000 links are more than the cap of 16777216"),
        ({"shape": "fat_tree", "k": 2**18, **L}, "NPUs are more than the cap"),
        ({"shape": "fat_tree", "k": 5, **L}, "k: 5 ports cannot be halved"),
        ({"shape": "fat_tree", "k": 4, "pods": 5, **L}, "pods: 5 pods are more than the 4 ports"),
        (
            {"shape": "hypercube", "npus": 12, **L},
            "npus: 12 is not a power of two, as a hypercube needs; write 8 or 16",
        ),
        ({"shape": "dragonfly", "a": 2, "h": 1, "p": 1, "g": 4, **L}, "g: 4 groups are more than a h + 1 = 3"),
        ({"shape": "dragonfly", "a": 2**10, "h": 2**10, "p": 2**10, **L}, "NPUs are more than the cap"),
        ({**DGX, "rails": 3}, "rails: 3 rails do not divide 8"),
        ({**DGX, "nodes": 2, "oversubscription": 4}, "oversubscription: describes uplinks, but there are no spines"),
        ({"preset": "dgx_h100", "nic_bandwidth": "1 GB/s"}, "nic_bandwidth: has no effect on one node"),
        ({**DGX, "nodes": 2, "rails": 1, "spines": 1, "cross_rail": "nvlink"}, "cross_rail: there is one rail"),
        (
            {**LEAF, "oversubscription": 4, "uplink_bandwidth": "50 GB/s"},
            "is written beside uplink_bandwidth; keep one",
        ),
        ({**RING, "link_preset": "nvlink3"}, "link_preset: is written beside bandwidth and latency; drop it"),
        ({**DGX, "nodes": 2, "cross_rail": "spine"}, "cross_rail: spine, but there are no spines"),
        ({**DGX, "cross_rail": "spin"}, 'did you mean "spine"?'),
        ({k: v for k, v in DGX.items() if k != "nic_latency"} | {"nodes": 2}, "nic_latency: missing, but there are 2"),
        ({**LEAF, "oversubscription": 0}, "oversubscription: 0 is not a ratio above 0"),
        ({**LEAF, "oversubscription": "3:0"}, "is not a ratio above 0"),
        ({**LEAF, "oversubscription": math.nan}, "is not a ratio above 0"),
        ({**LEAF, "spines": 0}, "spines: 0 is less than 1"),
        ({"shape": "rin", "npus": 8}, 'shape: "rin" is not a shape; did you mean "ring"?'),
        ({"shape": ["ring"]}, "is not a shape"),
        ({"npus": 8}, "has neither shape nor preset; write e.g. shape: ring"),
        ([], "a list is not a mapping"),
        ({**RING, "bandwith": "50 GB/s"}, 'bandwith: is not a key here; did you mean "bandwidth"?'),
        ({**RING, 7: 8}, "7: is not a key here"),
        ({**RING, "bidirectional": "no"}, 'bidirectional: "no" is not true or false'),
        ({"shape": "product", "dims": [{"kind": "rong", "size": 2, **L}]}, 'dims[0].kind: "rong" is not one of'),
        ({"shape": "product", "dims": [{"kind": "ring", "size": 2}]}, 'dims[0]: "bandwidth" is missing'),
        ({"shape": "product", "dims": ["ring"]}, 'dims[0]: "ring" is not a mapping'),
        (
            {"shape": "product", "dims": [{"kind": "mesh", "size": 2, "bidirectional": False, **L}]},
            "dims[0].bidirectional: only a ring can be one-way",
        ),
        ({**RING, "latency": "100 min", "npus": 2**16}, "does not fit 63 bits"),
        ({"shape": "edge_list"}, '"file" is missing'),
        ({"shape": "edge_list", "file": "a.csv", "edges": []}, "either edges or a file"),
        ({"shape": "edge_list", "file": 5}, "file: 5 is not text"),
        ({"preset": "dgx_a10"}, 'preset: there is no preset "dgx_a10"; did you mean "dgx_a100"?'),
        ({"preset": "pcie_gen4_x16"}, 'preset: there is no preset "pcie_gen4_x16"'),
        ({"preset": "dgx_a100", "shape": "ring"}, "preset: a preset has its own shape"),
        ({"preset": "dgx_a100", "nodez": 2}, 'nodez: is not a key here; did you mean "nodes"?'),
        ({"shape": "ring", "npus": 4, "link_preset": "tpu"}, 'link_preset: there is no link preset "tpu"'),
    ],
)
def test_what_cannot_be_built_is_refused_by_key_and_value(spec, said):
    text = refusal(spec)
    assert said in text
    assert len(text) < 400


def test_places_are_prefixed_and_keys_follow():
    text = refusal({**TORUS, "dims": [4, -2]}, place="a.yaml:3:5: topologies.t")
    assert text.startswith("a.yaml:3:5: topologies.t.dims[1]: -2 is less than 1")


def test_the_cap_is_met_before_anything_is_allocated():
    tracemalloc.start()
    begun = time.process_time()
    for spec in (
        {"shape": "fully_connected", "npus": 2**20, **L},
        {"shape": "torus", "dims": [2**20, 2**20], **L},
        {"shape": "dragonfly", "a": 2**20, "h": 2**20, "p": 2**20, **L},
        {"shape": "leaf_spine", "leaves": 2**20, "hosts_per_leaf": 1, "spines": 2**20, **L},
    ):
        refusal(spec)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert time.process_time() - begun < 20


# Overrides.


def test_an_override_changes_both_directions_or_one():
    both = build({**RING, "links": [{"from": 0, "to": 1, "bandwidth": "10 GB/s"}]})
    slow = {both.link_name(i) for i in range(both.links) if both.bandwidth(i) == 10 * 10**9}
    assert slow == {"0->1", "1->0"}
    one = build({**RING, "links": [{"from": 0, "to": 1, "latency": "2 us", "directions": "one"}]})
    assert {one.link_name(i) for i in range(one.links) if one.latency_ps[i] == 2_000_000} == {"0->1"}


def test_overrides_apply_in_order_and_keep_the_rest():
    topology = build(
        {
            **RING,
            "links": [
                {"from": 0, "to": 1, "bandwidth": "10 GB/s"},
                {"from": 0, "to": 1, "latency": "2 us", "directions": "one"},
                {"from": 1, "to": 0, "bandwidth": "20 GB/s", "directions": "one"},
            ],
        }
    )
    plain = build(RING)
    for i in range(plain.links):
        name = plain.link_name(i)
        assert topology.link_name(i) == name
        assert topology.bandwidth(i) == {"0->1": 10, "1->0": 20}.get(name, 50) * 10**9
        assert topology.latency_ps[i] == (2_000_000 if name == "0->1" else 500_000)
    assert topology.route(0, 4) == plain.route(0, 4)


def test_switches_are_named_in_overrides():
    topology = build({**LEAF, "links": [{"from": "leaf1", "to": "spine0", "bandwidth": "1 GB/s"}]})
    slow = {topology.link_name(i) for i in range(topology.links) if topology.bandwidth(i) == 10**9}
    assert slow == {"leaf1->spine0", "spine0->leaf1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"links": [{"from": 0, "to": 2, "latency": "1 us"}]},
            "links[0]: there is no link from 0 to 2; 0 is linked to 1, 7",
        ),
        ({"links": [{"from": 0, "to": 8, "latency": "1 us"}]}, "links[0]: 8 is not a vertex of the topology"),
        ({"links": [{"from": 0, "to": "leaf0", "latency": "1 us"}]}, '"leaf0" is not a vertex'),
        ({"links": [{"from": 0, "to": True, "latency": "1 us"}]}, "true is not a vertex"),
        ({"links": [{"from": 0, "to": 1}]}, "links[0]: changes neither bandwidth nor latency"),
        ({"links": [{"from": 0, "to": 1, "latency": "-1 us"}]}, "links[0].latency: "),
        ({"links": [{"from": 0, "to": 1, "latency": "1 us", "directions": "up"}]}, '"up" is not one of both, one'),
        ({"links": [{"to": 1, "latency": "1 us"}]}, 'links[0].from: "from" is missing'),
        ({"links": {"from": 0}}, "links: a mapping is not a list"),
        ({"links": [5]}, "links[0]: 5 is not a mapping"),
        ({"failed": {"links": [[0, 1, 2]]}}, "failed.links[0]: 3 ends of a link"),
        ({"failed": {"links": [[0, 2]]}}, "failed.links[0]: there is no link from 0 to 2"),
        ({"failed": {"npus": [8]}}, "failed.npus[0]: 8 is not an NPU of the topology"),
        ({"failed": {"npus": 8}}, "failed.npus: 8 is not a list"),
        ({"failed": {"switches": [0]}}, "failed.switches[0]: 0 is not a switch"),
        ({"failed": [5]}, "failed: a list is not a mapping"),
        ({"failed": {"nodes": [5]}}, "failed.nodes: is not a key here"),
        ({"failed": {"npus": list(range(8))}}, "every NPU has failed"),
        ({"routing": {"ecmp": True, "sead": 1}}, 'routing.sead: is not a key here; did you mean "seed"?'),
        ({"routing": {"seed": -1}}, "routing.seed: -1 is less than 0; write a whole number from 0"),
    ],
)
def test_changes_that_make_no_sense_are_refused(changes, said):
    assert said in refusal({**RING, **changes})


# Failures.

DAMAGED = [
    {**RING, "failed": {"links": [[2, 3]]}},
    {**RING, "failed": {"npus": [5]}},
    {**TORUS, "failed": {"links": [[0, 1], {"from": 5, "to": 6, "directions": "one"}], "npus": [10]}},
    {**TORUS, "failed": {"npus": [0, 15]}},
    {"shape": "mesh", "dims": [4, 4], **L, "failed": {"npus": [5, 6]}},
    {**LEAF, "failed": {"switches": ["spine0"], "links": [["leaf1", 7]], "npus": [7]}},
    {
        "shape": "fat_tree",
        "k": 4,
        **L,
        "failed": {"switches": ["core0", "aggregation3"], "links": [["edge0", "aggregation0"]]},
    },
    {"shape": "dragonfly", "a": 4, "h": 2, "p": 1, **L, "failed": {"links": [["router0", "router1"]], "npus": [2]}},
    {**DGX, "nodes": 3, "spines": 2, "failed": {"links": [[0, "rail0"]], "switches": ["spine1"]}},
    {**DGX, "nodes": 2, "failed": {"npus": [3], "switches": ["rail6"]}},
]


@pytest.mark.parametrize("ecmp", [False, True])
@pytest.mark.parametrize("spec", DAMAGED)
def test_failed_elements_are_never_used(spec, ecmp):
    sound = build({k: v for k, v in spec.items() if k != "failed"})
    damaged = build({**spec, "routing": {"ecmp": ecmp, "seed": 1}})
    graph = to_networkx(damaged)
    dead = set(damaged.failed)
    names = {sound.link_name(i) for i in range(sound.links)} - {damaged.link_name(i) for i in range(damaged.links)}
    assert names  # something is gone
    alive = np.array(damaged.alive)
    src, dst = np.repeat(alive, len(alive)), np.tile(alive, len(alive))
    ptr, links = damaged.routes(src, dst)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        route = links[ptr[i] : ptr[i + 1]].tolist()
        here = a
        for link in route:
            assert damaged.src[link] == here
            here = int(damaged.dst[link])
            assert here not in dead
            assert damaged.link_name(link) not in names
        assert here == b
        if not ecmp and not (graph.number_of_nodes() > damaged.npus):
            regular = [sound.link_name(link) for link in sound.route(a, b)]
            kept = [damaged.link_name(link) for link in route]
            if names.isdisjoint(regular):
                assert kept == regular
            else:
                assert len(kept) == nx.shortest_path_length(graph, a, b)


def test_only_pairs_that_lost_their_route_are_moved():
    sound, damaged = build(TORUS), build({**TORUS, "failed": {"links": [[0, 1]]}})
    moved = 0
    for a in range(16):
        for b in range(16):
            before = [sound.link_name(i) for i in sound.route(a, b)]
            after = [damaged.link_name(i) for i in damaged.route(a, b)]
            if {"0->1", "1->0"} & set(before):
                moved += 1
                assert before != after
            else:
                assert before == after
    assert moved > 0


def test_failed_npus_are_not_alive_and_keep_their_numbers():
    topology = build({**TORUS, "failed": {"npus": [5, 0]}})
    assert topology.failed == (0, 5)
    assert topology.alive == tuple(i for i in range(16) if i not in (0, 5))
    assert topology.npus == 16
    assert not np.isin(topology.src, [0, 5]).any()


def test_failing_twice_equals_failing_at_once():
    torus = build(TORUS)
    names = [torus.link_name(i) for i in range(torus.links)]
    once = build({**TORUS, "failed": {"links": [[0, 1]], "npus": [6]}})
    first = torus.changed(failed_links=[names.index("0->1"), names.index("1->0")])
    second = first.changed(failed_npus=[6])
    assert second.digest() == once.digest()
    assert second.route(1, 0) == once.route(1, 0)


@pytest.mark.parametrize(
    ("spec", "pair"),
    [
        ({**RING, "bidirectional": False, "failed": {"links": [[3, 4]]}}, "from NPU 0 to NPU 4"),
        ({**RING, "failed": {"npus": [0, 4]}}, "from NPU 1 to NPU 5"),
        ({"shape": "switch", "npus": 4, **L, "failed": {"switches": ["switch0"]}}, "from NPU 0 to NPU 1"),
        ({**LEAF, "failed": {"links": [{"from": 7, "to": "leaf1", "directions": "one"}]}}, "from NPU 7 to NPU 0"),
    ],
)
def test_a_disconnected_pair_is_named(spec, pair):
    text = refusal(spec, place="t")
    assert f"t: no path leads {pair}" in text


def test_connectivity_is_checked_in_linear_time():
    begun = time.process_time()
    topology = build({"shape": "ring", "npus": 2**17, **L, "failed": {"links": [[0, 1]]}})
    assert time.process_time() - begun < 50
    assert len(topology.route(2, 1)) == 1


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_seeds_fill_63_bits(seed):
    topology = build({**TORUS, "routing": {"ecmp": True, "seed": seed}})
    assert len(topology.route(0, 10)) == 4
    assert "routing.seed: " in refusal({**TORUS, "routing": {"seed": seed + 2**63}})


def test_a_copy_of_a_topology_routes_alike():
    import copy
    import pickle

    topology = build({**TORUS, "failed": {"npus": [5]}})
    topology.route(4, 6)
    for again in (pickle.loads(pickle.dumps(topology)), copy.deepcopy(topology)):
        assert isinstance(again, Topology)
        assert again.digest() == topology.digest()
        assert again.alive == topology.alive
        assert again.route(4, 6) == topology.route(4, 6)
        assert not again.src.flags.writeable
