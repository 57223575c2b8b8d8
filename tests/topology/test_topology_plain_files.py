"""Plain edge lists, GraphML and networkx graphs are the same topologies as CSV, or are refused with the line."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.cli.topologies import topology_of
from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import build
from astrasim_py.topology.model import Topology

L = {"bandwidth": "50 GB/s", "latency": "500 ns"}
GB = 10**9
PETERSEN = [(int(a), int(b)) for a, b in nx.petersen_graph().edges]


def links(topology):
    """(name, bytes per second, ps) of every link, by name."""
    rows = range(topology.links)
    return sorted((topology.link_name(i), topology.bandwidth(i), int(topology.latency_ps[i])) for i in rows)


def read(tmp_path, text, *, name="net.txt", **keys):
    (tmp_path / name).write_text(text)
    return build({"shape": "edge_list", "file": str(tmp_path / name), **keys}, "topology")


def petersen():
    edges = [{"src": a, "dst": b, "directions": "both"} for a, b in PETERSEN]
    return build({"shape": "edge_list", "edges": edges, **L})


@pytest.mark.parametrize("separator", [" ", ",", "\t", " , "])
@pytest.mark.parametrize("name", ["net.txt", "net.csv", "net.edges", "net.edgelist"])
def test_lines_of_two_numbers_are_links_both_ways(tmp_path, separator, name):
    text = "# a comment\n\n" + "".join(f"{a}{separator}{b}  # rack\n" for a, b in PETERSEN)
    assert links(read(tmp_path, text, name=name, **L)) == links(petersen())


def test_lists_in_which_every_line_has_its_reverse_are_directed(tmp_path):
    text = "".join(f"{a} {b}\n{b} {a}\n" for a, b in PETERSEN)
    assert links(read(tmp_path, text, **L)) == links(petersen())
    assert read(tmp_path, text, **L, directions="both").links == 60
    assert read(tmp_path, "0 1\n1 2\n2 0\n", **L, directions="one").links == 3
    with pytest.raises(
        TopologyError, match=r"net.txt:1: 0 1 has its reverse in line 2, and 1 2 of line 3 has none; wri"
    ):
        read(tmp_path, "0 1\n1 0\n1 2\n", **L)


def test_numbers_without_a_unit_have_that_of_the_default(tmp_path):
    rates = {(0, 1): (25 * GB, 10**6), (1, 2): (GB * 25 // 2, 3 * 10**6)}
    expected = sorted((f"{x}->{y}", *rates[a, b]) for a, b in rates for x, y in ((a, b), (b, a)))
    for text in ("0 1 25\n1 2 12.5 3\n", "0,1,25\n1,2,12.5,3\n"):
        assert links(read(tmp_path, text, bandwidth="100 GB/s", latency="1 us")) == expected
    for text in ("0 1 25 GB/s\n1 2 12.5 GB/s 3 us\n", "0,1,25 GB/s\n1,2,12.5 GB/s,3 us"):
        assert links(read(tmp_path, text, latency="1 us")) == expected
        with pytest.raises(TopologyError, match=r"topology\.bandwidth: every link has its own bandwidth with its unit"):
            read(tmp_path, text, bandwidth="100 GB/s", latency="1 us")
    rows = "src,dst,bandwidth,latency\n0,1,25,\n1,0,,2\n"
    topology = read(tmp_path, rows, name="t.csv", bandwidth="400 Gb/s", latency="500 ns")
    assert links(topology) == [("0->1", 25 * GB // 8, 500_000), ("1->0", 50 * GB, 2000)]
    topology = read(tmp_path, "src,dst\n0,1\n", name="t.csv", **L, directions="both")
    assert links(topology) == [("0->1", 50 * GB, 500_000), ("1->0", 50 * GB, 500_000)]
    # A scenario in ASTRA-sim's units reads GB of the default as 2**30, and so does a number in its unit.
    loaded = ap.load_scenario(
        {"topology": {"shape": "edge_list", "file": str(tmp_path / "b.txt"), **L}, "workload": ["barrier"],
         "semantics": "astra_sim"}, allow_outside=True
    ) if (tmp_path / "b.txt").write_text("0 1 1\n") else None  # fmt: skip
    assert ap.prepare(ap.expand(loaded)[0]).topology.bandwidths == (Fraction(2**30),)


def test_lists_that_networkx_writes_are_read(tmp_path):
    graph = nx.cycle_graph(5)
    nx.set_edge_attributes(graph, "25 GB/s", "bandwidth")
    nx.set_edge_attributes(graph, 3, "weight")
    nx.write_edgelist(graph, tmp_path / "g.edgelist")
    nx.write_edgelist(nx.cycle_graph(5), tmp_path / "plain.edgelist")
    ring = build({"shape": "edge_list", "file": str(tmp_path / "g.edgelist"), "latency": "1 us"})
    assert (ring.links, set(ring.bandwidths), ring.route(0, 2)) == (10, {25 * GB}, ring.route(0, 2))
    assert build({"shape": "edge_list", "file": str(tmp_path / "plain.edgelist"), **L}).links == 10
    nx.write_graphml(graph, tmp_path / "g.graphml")
    assert links(build({"shape": "edge_list", "file": str(tmp_path / "g.graphml"), "latency": "1 us"})) == links(ring)


def test_names_are_switches_and_npus_may_be_fewer_than_numbers(tmp_path):
    assert (read(tmp_path, "0 tor\n1 tor\n", **L).npus, read(tmp_path, "0 tor\n1 tor\n", **L).vertices) == (2, 3)
    topology = read(tmp_path, "0 2\n1 2\n", **L, npus=2)
    assert (topology.npus, topology.switch_names) == (2, ("2",))
    assert read(tmp_path, "# npus 2\n0 2\n1 2\n", **L).npus == 2


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ("0 1\n", {"bandwidth": "1 GB/s"}, "net.txt:1: there is no latency; add latency"),
        ("# c\n0 1 5\n", {"latency": "1 us"}, 'net.txt:2: bandwidth: "5" is not a bandwidth: it has no unit; write'),
        ("0 1 5\n", {"latency": "1 us"}, "50 GB/s, or bandwidth: 50 GB/s beside file:, whose unit it then has"),
        ("0 1\n2\n", L, 'net.txt:2: "2" is one end of a link; write two, e.g. 0 1'),
        ("0 1\n1 1\n", L, "net.txt:2: a self-loop: 1 to 1"),
        ("0 1 5 6 7\n", L, 'net.txt:1: "5 6 7" is not a bandwidth and a latency'),
        ("0 1 fast\n", L, 'net.txt:1: "fast" is not a bandwidth and a latency'),
        ("0 1 5 furlongs\n", L, 'net.txt:1: bandwidth: "5 furlongs" is not a bandwidth: unknown unit "furlongs"'),
        ("0 1 -5\n", L, "net.txt:1: bandwidth: -5 is out of range"),
        ("0 1 {'bandwidth': __import__('os')}\n", L, "net.txt:1: {'bandwidth': __import__('os')} is not a dictionary"),
        ("0 1.5\n", L, 'net.txt:1: dst: "1.5" is not a vertex'),
        ("src dst\n0 1\n", L, "net.txt:1: columns are separated by blanks"),
        ("h0 s0\n", L, 'net.txt:1: "h0 s0" names neither columns nor an NPU by its number; number the'),
        ("node_a,node_b\n0,1\n", L, '"node_a,node_b" names neither columns nor an NPU by its number'),
        ("0 1\n2 3\n", L, "no path leads from NPU 0 to NPU 2"),
        ("", L, "net.txt:1: the file is empty"),
        ("0 1\n", {**L, "npus": 3}, "topology.npus: 3, and the file has 2; delete it"),
    ],
)  # fmt: skip
def test_bad_lines_are_refused_with_their_number(tmp_path, text, keys, expected):
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, text, **keys)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_command_line_names_a_file_and_its_defaults(tmp_path):
    (tmp_path / "n.txt").write_text("0 1\n1 2\n")
    topology = topology_of(f"{tmp_path}/n.txt,bandwidth=50 GB/s,latency=500 ns")
    assert (topology.npus, topology.links, topology.bandwidth(0)) == (3, 4, 50 * GB)
    with pytest.raises(TopologyError, match=r'or write ".*n\.txt,bandwidth=50 GB/s"'):
        topology_of(f"{tmp_path}/n.txt")


GRAPHML = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="b" for="edge" attr.name="bandwidth" attr.type="string"><default>40 GB/s</default></key>
<key id="k" for="node" attr.name="kind" attr.type="string"/>
<graph edgedefault="undirected">
<node id="n0"><data key="k">npu</data></node><node id="n1"><data key="k">npu</data></node>
<node id="tor"/>
<edge source="n0" target="tor"><data key="b">20 GB/s</data></edge>
<edge source="n1" target="tor"/>
</graph></graphml>
"""


def test_graphml_has_defaults_kinds_and_lines(tmp_path):
    topology = read(tmp_path, GRAPHML, name="g.graphml", latency="1 us")
    assert (topology.npus, topology.switch_names) == (2, ("tor",))
    assert [rate for _, rate, _ in links(topology)] == [20 * GB, 40 * GB, 20 * GB, 40 * GB]
    # A default outside of a key is of nothing.
    stray = GRAPHML.replace("<graph ", "<default>5</default><graph ")
    assert links(read(tmp_path, stray, name="g.graphml", latency="1 us")) == links(topology)
    for old, new, expected in (
        ("<graphml", "<!DOCTYPE x><graphml", "g.graphml:2: a DOCTYPE; delete it"),
        ("</graph>", "<graph></graph></graph>", "g.graphml:10: a second graph"),
        ("20 GB/s", "20", 'g.graphml:8: bandwidth: "20" is not a bandwidth: it has no unit'),
        ("</graphml>", "", "g.graphml:11: not XML: no element found"),
        ('<edge source="n1" target="tor"/>', '<edge source="n1"/>', "g.graphml:9: <edge> has no target"),
        ('source="n1"', 'source="n7"', "g.graphml:9: an end of the edge is not among the nodes"),
        ("npu</data>", "gpu</data>", 'g.graphml:6: kind: "gpu" is neither npu nor switch'),
        ("graphml", "html", "g.graphml:2: <html> is not <graphml>"),
    ):
        with pytest.raises(TopologyError) as caught:
            read(tmp_path, GRAPHML.replace(old, new), name="g.graphml", latency="1 us")
        assert expected in str(caught.value)


def test_mistakes_in_keys_have_the_line_of_the_scenario(tmp_path):
    (tmp_path / "n.txt").write_text("0 1\n")
    (tmp_path / "s.yaml").write_text(
        "topology: {shape: edge_list, file: n.txt, bandwith: 50 GB/s, latency: 5}\nworkload: [barrier]\n"
    )
    with pytest.raises(ap.AstraError) as caught:
        ap.load_scenario(tmp_path / "s.yaml")
    lines = caught.value.lines()
    assert any('s.yaml:1:43: topology.bandwith: is not a key here; did you mean "bandwidth"?' in line for line in lines)
    assert any("latency" in line and "it has no unit" in line for line in lines)


# networkx.


def test_graphs_of_networkx_become_topologies():
    topology = Topology.from_networkx(nx.petersen_graph(), **L)
    assert links(topology) == links(petersen())
    assert ap.simulate(ap.collective("all_gather", "1 MiB", topology)).makespan > 0
    grid = Topology.from_networkx(
        nx.grid_2d_graph(3, 4, periodic=True), bandwidth="50 GB/s", latency="500 ns", name="g"
    )
    assert (grid.npus, grid.links, grid.name) == (12, 48, "g")
    directed = Topology.from_networkx(nx.cycle_graph(5, create_using=nx.DiGraph), **L)
    assert (directed.links, directed.route(1, 0)) == (5, (1, 2, 3, 4))


def test_parallel_edges_switches_and_attributes_count():
    graph = nx.MultiGraph()
    graph.add_edge(0, "tor", bandwidth="25 GB/s", colour="red")
    graph.add_edge(0, "tor", bandwidth=np.float64(12.5), latency="1 us")
    graph.add_edge(1, "tor")
    topology = Topology.from_networkx(graph, **L)
    assert (topology.npus, topology.switch_names) == (2, ("tor",))
    rates = {name: (rate, ps) for name, rate, ps in links(topology)}
    assert rates["0->tor"] == (25 * GB, 500_000) and rates["0->tor#2"] == (GB * 25 // 2, 10**6)
    named = nx.Graph([("a", "b"), ("b", "hub")])
    nx.set_node_attributes(named, {"a": "npu", "b": "npu"}, "kind")
    assert Topology.from_networkx(named, **L).switch_names == ("hub",)
    numbered = nx.star_graph(3)
    numbered.nodes[0]["kind"] = "switch"
    assert (Topology.from_networkx(numbered, **L).npus, Topology.from_networkx(numbered, **L).switch_names) == (
        3,
        ("0",),
    )


@pytest.mark.parametrize("spec", [{"shape": "fat_tree", "k": 4, **L}, {"preset": "dgx_a100", "nodes": 2}])
def test_a_topology_survives_networkx(spec):
    topology = build(spec)
    again = Topology.from_networkx(topology.to_networkx())
    assert links(again) == links(topology) and again.npus == topology.npus


def test_wrong_graphs_are_refused_in_one_line():
    for graph, keys, expected in (
        (nx.path_graph(3), {"latency": "1 us"}, "graph: edge 0 1: there is no bandwidth"),
        (nx.path_graph(3), {"bandwidth": 50, "latency": "1 us"}, "bandwidth: 50 is not a bandwidth: it has no unit"),
        (nx.Graph([("a", "b")]), L, "there are no NPUs; number the NPUs from 0, or give their nodes"),
        (nx.Graph([(0, 1), (2, 3)]), L, "no path leads from NPU 0 to NPU 2"),
        ([(0, 1)], L, "graph: list is not a networkx graph"),
    ):  # fmt: skip
        with pytest.raises(ap.AstraError) as caught:
            Topology.from_networkx(graph, **keys)
        assert expected in str(caught.value) and "\n" not in str(caught.value)
