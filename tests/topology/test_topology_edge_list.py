"""Edge lists: CSV, YAML, node-link JSON and inline lists are read exactly, or refused with the line."""

from __future__ import annotations

import json
import os
import random
import time
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import build
from astrasim_py.topology.edge_list import MAX_YAML, read_csv, read_yaml
from astrasim_py.topology.export import node_link_json, to_networkx
from astrasim_py.topology.node_link import read_json
from astrasim_py.topology.topology_files import read_edge_list

GB = 10**9
L = {"bandwidth": "50 GB/s", "latency": "500 ns"}
PAIR = "src,dst,bandwidth,latency\n0,1,50 GB/s,500 ns\n1,0,50 GB/s,500 ns\n"


def links(topology):
    """(name, bytes per second, ps) of every link."""
    return [(topology.link_name(i), topology.bandwidth(i), int(topology.latency_ps[i])) for i in range(topology.links)]


def refusal(read, text) -> str:
    with pytest.raises(TopologyError) as caught:
        read(text, "t.x")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# CSV.


@pytest.mark.parametrize(
    "text",
    [
        PAIR,
        PAIR.replace("\n", "\r\n"),
        '# a comment, with a " quote\n# npus 2\n\n' + PAIR,
        "#npus: 2\n" + PAIR,
        "latency,dst,src,bandwidth\n500 ns,1,0,50 GB/s\n0.5 us,0,1,400 Gb/s\n",
        "src, dst, bandwidth, latency\n 0, 1, 50 GB/s, 500 ns\n 1, 0, 50 GB/s, 500 ns\n",
        "src,dst,bw_GBps,lat_us\n0,1,50,0.5\n1,0,5e1,.5\n",
        "src,dst,bandwidth_Gbps,latency_ns\n0,1,400,500\n1,0,400,500\n",
        "source,target,bw_MBps,lat_ms\n0,1,50000,0.0005\n1,0,50000,0.0005\n",
        "src,dst,bandwidth,latency,npus\n0,1,50 GB/s,500 ns,2\n1,0,50 GB/s,500 ns,\n",
        '"src","dst","bandwidth","latency"\n"0","1","50 GB/s","500 ns"\n1,0,50 GB/s,500 ns\n',
    ],
)
def test_spellings_of_one_topology_are_equal(text):
    expected = [("0->1", 50 * GB, 500_000), ("1->0", 50 * GB, 500_000)]
    topology = read_csv(text, "t.csv")
    assert links(topology) == expected
    assert (topology.npus, topology.vertices, topology.name) == (2, 2, "t")


def test_units_are_exact():
    text = "src,dst,bw_GiBps,lat_us\n0,1,42.8571,0.7\n1,0,0.1,1e-6\n"
    topology = read_csv(text, "t.csv")
    assert topology.bandwidth(0) == Fraction(428571, 10**4) * 2**30
    assert topology.bandwidth(1) == Fraction(2**30, 10)
    assert topology.latency_ps.tolist() == [700_000, 1]


def test_numbers_from_npus_on_and_names_are_switches():
    text = "# npus 2\nsrc,dst,bandwidth,latency\n" + "".join(
        f"{a},{b},50 GB/s,1 us\n{b},{a},50 GB/s,1 us\n"
        for a, b in [(0, "tor-b"), ("tor-b", 9), (9, 4), (4, "tor.a"), ("tor.a", 1)]
    )
    topology = read_csv(text, "t.csv")
    assert (topology.npus, topology.vertices) == (2, 6)
    assert [topology.vertex_name(v) for v in range(6)] == ["0", "1", "4", "9", "tor-b", "tor.a"]
    path = [topology.link_name(i) for i in topology.route(0, 1)]
    assert path == ["0->tor-b", "tor-b->9", "9->4", "4->tor.a", "tor.a->1"]


def test_without_npus_all_numbers_are_npus_and_all_names_switches():
    text = "src,dst,bandwidth,latency\n" + "".join(f"{i},hub,50 GB/s,1 us\nhub,{i},50 GB/s,1 us\n" for i in range(5))
    topology = read_csv(text, "t.csv")
    assert (topology.npus, topology.vertices, topology.vertex_name(5)) == (5, 6, "hub")


def test_parallel_links_are_kept_and_named():
    topology = read_csv(PAIR + "0,1,25 GB/s,500 ns\n0,1,75 GB/s,400 ns\n", "t.csv")
    assert [name for name, _, _ in links(topology)] == ["0->1", "1->0", "0->1#2", "0->1#3"]
    assert topology.route(0, 1) == (3,)  # equal hops: the least latency
    topology = read_csv(PAIR + "0,1,25 GB/s,500 ns\n", "t.csv")
    assert topology.route(0, 1) == (0,)  # equal cost: the lowest link


def test_overrides_reach_all_parallel_links(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(PAIR + "0,1,25 GB/s,500 ns\n", encoding="utf-8-sig")
    topology = build({"shape": "edge_list", "file": str(file), "links": [{"from": 0, "to": 1, "latency": "1 us"}]})
    assert topology.latency_ps.tolist() == [1_000_000] * 3
    topology = build({"shape": "edge_list", "file": str(file), "routing": {"ecmp": True}, "npus": 2})
    assert topology.npus == 2
    with pytest.raises(TopologyError, match="npus: 3, and the file has 2"):
        build({"shape": "edge_list", "file": str(file), "npus": 3})


def test_one_npu_needs_no_links():
    assert read_csv("# npus 1\nsrc,dst,bandwidth,latency\n", "t.csv").npus == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.x:1: the file is empty"),
        ("# npus 2\n", "the file is empty"),
        ("src,dst,bandwidth,latency\n", "t.x: there are no NPUs"),
        ("src,dst,latency\n0,1,1 us\n", "t.x:1: there is no bandwidth"),
        ("src,dst,bandwidth,latency,colour\n", "t.x:1: colour: an unknown column"),
        ("src,from,dst,bandwidth,latency\n", "t.x:1: from: a second column for src"),
        ("src,dst,bw_GB,latency\n", 't.x:1: bw_GB: "GB" is not a unit of bandwidth; write e.g. bw_GBps'),
        ("src,dst,bandwidth,lat_GBps\n", 'lat_GBps: "GBps" is not a unit of latency'),
        (PAIR + "1,2,50 GB/s\n", "t.x:4: 3 cells under 4 columns"),
        (PAIR + "2,2,50 GB/s,1 us\n", "t.x:4: a self-loop: 2 to 2"),
        (PAIR + "# c\n\n0,1,50,1 us\n", 't.x:6: bandwidth: "50" is not a bandwidth: it has no unit'),
        (PAIR + "0,1,nan GB/s,1 us\n", "t.x:4: bandwidth: "),
        (PAIR + "0,1,0 GB/s,1 us\n", 't.x:4: bandwidth: "0 GB/s" is zero'),
        (PAIR + "0,1,1 GB/s,-1 us\n", 't.x:4: latency: "-1 us" is negative'),
        (PAIR + "0,1,1 GB/s,1e400 us\n", "t.x:4: latency: "),
        ("src,dst,bw_GBps,lat_us\n0,1,50 GB/s,1\n", 't.x:2: bw_GBps: "50 GB/s" is not a number; the column is in GB/s'),
        ("src,dst,bw_GBps,lat_us\n0,1,inf,1\n", '"inf" is not a number'),
        ("src,dst,bw_Bps,lat_us\n0,1,1/0,1\n", '"1/0" is not a number'),
        (PAIR + "-1,1,1 GB/s,1 us\n", 't.x:4: src: "-1" is not a vertex'),
        (PAIR + "0,1.5,1 GB/s,1 us\n", 't.x:4: dst: "1.5" is not a vertex'),
        (PAIR + ",1,1 GB/s,1 us\n", 't.x:4: src: "" is not a vertex'),
        (PAIR + "0,2,1 GB/s,1 us\n", "no path leads from NPU 2 to NPU 0"),
        (PAIR + "2,0,1 GB/s,1 us\n", "no path leads from NPU 0 to NPU 2"),
        ("# npus 3\n" + PAIR, "no path leads from NPU 0 to NPU 2"),
        ("# npus 0\n" + PAIR, "t.x:1: npus: 0 NPUs are less than 1"),
        ("# npus many\n" + PAIR, 't.x:1: npus: "many" is not a number of NPUs'),
        ("# npus 2\n# npus 3\n" + PAIR, "t.x:2: npus: 3 NPUs here, 2 above"),
        ("# npus 1000000000\n" + PAIR, "more than the cap of 1048576"),
        (PAIR + "0,999999999,1 GB/s,1 us\n", "1000000000 NPUs are more than the cap"),
        (PAIR + '0,1,"50 GB/s,1 us\n', "t.x:4: not CSV"),
        (PAIR + f"0,1,{'9' * 200_000} GB/s,1 us\n", "t.x:4: not CSV"),
    ],
)
def test_bad_csv_is_refused_with_its_line(text, said):
    assert said in refusal(read_csv, text)


# YAML and inline lists.


def test_yaml_equals_csv():
    text = "npus: 2\nlinks:\n  - {src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns, directions: both}\n"
    assert read_yaml(text, "t.yaml").digest() == read_csv(PAIR, "t.csv").digest()
    text = "links:\n- {src: 0, dst: 1, bw_GBps: 50, lat_us: 0.5}\n- {src: 1, dst: 0, bw_GBps: 50, lat_us: 0.5}\n"
    assert read_yaml(text, "t.yaml").digest() == read_csv(PAIR, "t.csv").digest()


def test_inline_edges_equal_csv():
    edges = [{"src": 0, "dst": 1, **L}, {"src": 1, "dst": 0, "bandwidth": "400 Gb/s", "latency": "0.5 us"}]
    assert build({"shape": "edge_list", "edges": edges}).digest() == read_csv(PAIR, "t.csv").digest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.x:1:1: the file is empty"),
        ("- 1", "t.x:1:1: not a mapping"),
        ("npus: 2", "t.x:1:1: there are no links"),
        ("npus: 2\nlink: []", "t.x:2:1: link: an unknown key"),
        ("npus: 2\nnpus: 3\nlinks: []", 't.x:2:1: npus: the key "npus" appears twice'),
        ("npus: x\nlinks: []", 't.x:1:7: npus: "x" is not a number of NPUs'),
        ("links: 5", "t.x:1:8: links: not a list"),
        ("links:\n- 5", "t.x:2:3: a link is not a mapping"),
        ("links:\n- {src: 0, dst: 0, bandwidth: 1 GB/s, latency: 1 us}", "t.x:2:3: a self-loop"),
        ("links:\n- {src: 0, dst: 1, bandwidth: 1 GB/s, latency: 5}", "t.x:2:3: latency: "),
        ("links:\n- {src: 0, dst: 1, bandwidth: 1 GB/s}", "t.x:2:3: there is no latency"),
        ("links:\n- {src: 0, dst: 1, bandwidth: 1 GB/s, latency: 1 us, directions: up}", "neither one nor both"),
        ("links: [{src: [0], dst: 1, bandwidth: 1 GB/s, latency: 1 us}]", "is not a vertex"),
        ("links: &x [*x]", "t.x:1:8: an alias refers to the value that contains it"),
        ("npus: !!python/object:os.system 2", 'the tag "!!python/object:os.system" is not allowed'),
        ("npus: 2\n---\nnpus: 3", "t.x:2:1: a second document begins here"),
        ("links: " + "[" * 50_000, "nested deeper than 32 levels"),
        ("links: [", "t.x:1:9: while parsing a flow node"),
        ("? [a]\n: b", "a key that is not plain text"),
        ('links: "\\U00110000"', "not YAML"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(text, said):
    begun = time.process_time()
    assert said in refusal(read_yaml, text)
    assert time.process_time() - begun < 20


# Node-link JSON.


@pytest.mark.parametrize(
    "spec",
    [
        {"shape": "torus", "dims": [3, 3], **L},
        {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2, "oversubscription": 3, **L},
        {"preset": "dgx_a100", "nodes": 2},
        {"preset": "dgx1_v100"},
        {"shape": "ring", "npus": 1, **L},
    ],
)
def test_node_link_json_round_trips(spec):
    topology = build(spec)
    again = read_json(node_link_json(topology), "t.json")
    assert links(again) == links(topology)
    assert (again.npus, again.vertices) == (topology.npus, topology.vertices)


@pytest.mark.parametrize("edges", ["edges", "links"])
def test_networkx_writes_what_we_read(edges):
    topology = build({"shape": "fat_tree", "k": 4, **L})
    text = json.dumps(nx.node_link_data(to_networkx(topology), edges=edges))
    # networkx lists edges source by source.
    assert sorted(links(read_json(text, "t.json"))) == sorted(links(topology))
    graph = nx.node_link_graph(json.loads(node_link_json(topology)), edges="edges")
    assert nx.utils.graphs_equal(graph, to_networkx(topology))


def test_undirected_graphs_have_two_links_per_edge():
    graph = nx.cycle_graph(4)
    nx.set_edge_attributes(graph, 50, "bw_GBps")
    nx.set_edge_attributes(graph, 0.5, "lat_us")
    nx.set_edge_attributes(graph, 3, "weight")
    topology = read_json(json.dumps(nx.node_link_data(graph, edges="edges")), "t.json")
    assert topology.links == 8
    assert set(topology.bandwidths) == {50 * GB}
    assert set(topology.latency_ps.tolist()) == {500_000}


def test_named_npus_are_numbered_as_listed():
    data = {
        "directed": False,
        "nodes": [{"id": "gpu-b", "kind": "npu"}, {"id": "tor"}, {"id": "gpu-a", "kind": "npu"}],
        "edges": [{"source": "gpu-a", "target": "tor", **L}, {"source": "gpu-b", "target": "tor", **L}],
    }
    topology = read_json(json.dumps(data), "t.json")
    assert (topology.npus, topology.vertex_name(2)) == (2, "tor")
    assert topology.src.tolist() == [1, 2, 0, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.x:1:1: not JSON"),
        ("{\n,}", "t.x:2:1: not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("5", "not a node-link graph"),
        ('{"nodes": [], "edges": {}}', "not a node-link graph"),
        ('{"nodes": [], "edges": []}', "there are no NPUs"),
        ('{"nodes": [], "nodes": [], "edges": []}', 'key "nodes" appears twice'),
        ('{"nodes": [{"id": NaN}], "edges": []}', "NaN is not a number"),
        ('{"nodes": [{"id": ' + "9" * 5000 + '}], "edges": []}', "not JSON"),
        ('{"nodes": [{}], "edges": []}', "nodes[0]: a node has no id"),
        ('{"nodes": [{"id": 0}, {"id": "0"}], "edges": []}', "nodes[1]: node 0 is listed twice"),
        ('{"nodes": [{"id": 0, "kind": "gpu"}], "edges": []}', "nodes[0]: kind: "),
        ('{"graph": {"npus": 2}, "nodes": [{"id": 0}], "edges": []}', "graph.npus: 2, and 1 nodes are NPUs"),
        ('{"nodes": [{"id": 0}], "edges": [5]}', "edges[0]: an edge is not an object"),
        ('{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 1}]}', "edges[0]: there is no bandwidth"),
        (
            '{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 1, "bandwidth": "1 GB/s", "latency": "1 us"}]}',
            "edges[0]: an end of the edge is not among the nodes",
        ),
        (
            '{"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1, "bandwidth": 5, "latency": 1}]}',
            "edges[0]: bandwidth: ",
        ),
    ],
)  # fmt: skip
def test_bad_json_is_refused(text, said):
    assert said in refusal(read_json, text)


# Files.


def test_the_suffix_tells_the_form(tmp_path):
    topology = read_csv(PAIR, "t.csv")
    for name, text in (
        ("t.csv", PAIR),
        ("t.yml", "links: [{src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns, directions: both}]"),
        ("t.json", node_link_json(topology)),
    ):
        (tmp_path / name).write_text(text)
        assert read_edge_list(tmp_path / name).digest() == topology.digest()


@pytest.mark.parametrize(
    "name",
    ["zero.csv", "missing.csv", "folder.csv", "fifo.csv", "t.doc", "latin.csv", "nul.csv", "a\0b.csv", "huge.yaml"],
)
def test_files_that_cannot_be_read_are_refused_at_once(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "t.doc").write_text(PAIR)
    (tmp_path / "latin.csv").write_bytes(PAIR.encode() + b"# \xe9\n")
    (tmp_path / "nul.csv").write_text(PAIR + "\0")
    with open(tmp_path / "huge.yaml", "wb") as stream:
        stream.truncate(MAX_YAML + 1)
    begun = time.process_time()
    with pytest.raises(TopologyError) as caught:
        build({"shape": "edge_list", "file": str(tmp_path / name)})
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_csv, PAIR),
        (read_yaml, "npus: 2\nlinks: [{src: 0, dst: 1, bandwidth: 1 GB/s, latency: 1 us}]"),
        (read_json, node_link_json(build({"shape": "ring", "npus": 3, **L}))),
    ],
    ids=["csv", "yaml", "json"],
)
def test_damaged_text_is_read_or_refused_but_nothing_else(read, text):
    rng = random.Random(1)
    junk = "\0\"',:[]{}#-\n\t &*!|>%@\\0189.eG/xäÿ\u2028\U0001f600"
    for _ in range(400):
        at, cut = rng.randrange(len(text)), rng.randrange(3)
        damaged = text[:at] + "".join(rng.choice(junk) for _ in range(rng.randrange(4))) + text[at + cut :]
        try:
            read(damaged, "t.x")
        except TopologyError as error:
            assert "\n" not in "".join(error.lines())


# Other systems' problems.


def test_tacos_problems_are_read_with_exact_units(golden):
    files = sorted((golden / "tacos" / "problems").glob("*.csv"))
    assert len(files) == 26
    for file in files:
        topology = read_edge_list(file)
        rows = [line.split(",") for line in file.read_text().splitlines()[2:]]
        assert topology.npus == topology.vertices == int(file.read_text().split()[2])
        assert topology.links == len(rows)
        assert topology.src.tolist() == [int(r[0]) for r in rows]
        assert topology.dst.tolist() == [int(r[1]) for r in rows]
        assert [topology.bandwidth(i) for i in range(len(rows))] == [Fraction(r[2]) * 2**30 for r in rows]
        assert topology.latency_ps.tolist() == [Fraction(r[3]) * 10**6 for r in rows]


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("ring_8", {"shape": "ring", "npus": 8}),
        ("fc_8", {"shape": "fully_connected", "npus": 8}),
        ("torus2d_4x4", {"shape": "torus", "dims": [4, 4]}),
        ("torus3d_3x3x3", {"shape": "torus", "dims": [3, 3, 3]}),
        ("mesh2d_8x8", {"shape": "mesh", "dims": [8, 8]}),
        ("mesh3d_4x4x4", {"shape": "mesh", "dims": [4, 4, 4]}),
        ("hypercube_64", {"shape": "hypercube", "npus": 64}),
        ("dgx1_8", None),
    ],
)
def test_shapes_have_the_links_of_tacos_problems(golden, name, spec):
    theirs = read_edge_list(golden / "tacos" / "problems" / f"{name}.csv")
    latency = "700 ns" if spec is None else "500 ns"
    ours = build({**spec, "bandwidth": "50 GiB/s", "latency": latency} if spec else {"preset": "dgx1_v100"})

    def ends(topology, unit):
        return sorted(
            (int(topology.src[i]), int(topology.dst[i]), topology.bandwidth(i) / unit) for i in range(topology.links)
        )

    # A DGX-1's NVLinks are 25 GB/s; the problem writes 25 GiB/s.
    assert ends(ours, 2**30 if spec else GB) == ends(theirs, 2**30)


def test_hops_of_tacos_meshes_are_those_of_networkx(golden):
    topology = read_edge_list(golden / "tacos" / "problems" / "faultymesh2d_8x8.csv")
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(topology)))
    src, dst = np.repeat(np.arange(64), 64), np.tile(np.arange(64), 64)
    hops = np.diff(topology.routes(src, dst)[0]).tolist()
    assert hops == [lengths[a][b] for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
