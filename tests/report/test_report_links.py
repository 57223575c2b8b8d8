"""Figures of the use of links: one scale for all, names of switches, bars where there are too many vertices."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.figure import Figure
from worlds.images import assert_picture
from worlds.panels import link_panel, panel_of

import astrasim_py as ap
from astrasim_py.core.records import Table
from astrasim_py.report import plots, record_plots
from astrasim_py.topology import shapes
from astrasim_py.topology.layout import positions

RATE = Fraction(50 * 10**9)


def drawn(*panels, **keys):
    with plots.style.our_style():
        return plots.figure_of({"kind": "links", **keys}, [], panels=panels, place="plots")


def lines(axes):
    return [c for c in axes.collections if type(c).__name__ == "LineCollection"]


def texts(axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


TOPOLOGIES = [
    shapes.Ring(npus=5, bandwidth=RATE, latency=1).build(),
    shapes.Torus(dims=[4, 4], bandwidth=RATE, latency=1).build(),
    shapes.Mesh(dims=[3, 3, 3], bandwidth=RATE, latency=1).build(),
    shapes.Switch(npus=6, bandwidth=RATE, latency=1).build(),
    shapes.LeafSpine(leaves=2, hosts_per_leaf=2, spines=2, bandwidth=RATE, latency=1).build(),
    shapes.Dragonfly(a=2, h=1, p=1, bandwidth=RATE, latency=1).build(),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.shape)
def test_links_are_drawn_on_any_topology(topology):
    (axes,) = drawn(link_panel(topology)).axes
    assert sum(len(c.get_paths()) for c in lines(axes)) == topology.links


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.shape)
def test_switches_are_named(topology):
    names = [topology.vertex_name(vertex) for vertex in range(topology.npus, topology.vertices)]
    assert set(names) <= texts(drawn(link_panel(topology)).axes[0])


def test_the_scale_is_from_0_to_100_percent():
    busy = link_panel(TOPOLOGIES[0])
    idle = replace(busy, tables={**busy.tables, "link": Table({**busy.tables["link"], "busy": np.array([1] * 5)})})
    for panel in (busy, idle):
        made = drawn(panel)
        (scale,) = {(c.norm.vmin, c.norm.vmax) for c in lines(made.axes[0]) if c.get_array() is not None}
        assert scale == (0.0, 1.0)
        bar = [axes for axes in made.axes[0].figure.axes if axes.get_label() == "<colorbar>"]
        assert len(bar) == 1 and bar[0].get_ylim() == (0.0, 1.0)


def test_links_that_carried_nothing_are_faint():
    panel = link_panel(TOPOLOGIES[0])
    nothing = Table({**panel.tables["link"], "bytes": np.zeros(5, dtype=np.int64)})
    made = drawn(replace(panel, tables={**panel.tables, "link": nothing}))
    assert sum(len(c.get_paths()) for c in lines(made.axes[0]) if c.get_array() is not None) == 0


def test_links_that_failed_are_drawn_dashed():
    made = drawn(replace(link_panel(TOPOLOGIES[0]), failed=[0, 3]))
    assert [len(c.get_paths()) for c in lines(made.axes[0]) if c.get_linestyle()[0][1]] == [2]
    legend = made.axes[0].figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["link that failed at some time"]


def test_switches_that_compute_are_marked():
    network = ap.build_topology(
        shape="switch", npus=4, bandwidth="50 GB/s", latency="1 us", switches={"capable": "all"}
    )
    panel = panel_of(ap.collective("all_reduce", "1 MiB", network, algorithm="switch_tree"), level="links")
    from matplotlib.colors import to_rgb

    assert panel.switches == ["switch0"]
    made = drawn(panel)
    assert [t.get_text() for t in made.axes[0].figure.legends[0].get_texts()] == ["switch that computes"]
    plain = drawn(replace(panel, switches=()))
    assert not plain.axes[0].figure.legends
    for one, count in ((made, 1), (plain, 0)):
        yellow = [c for c in one.axes[0].collections if c.get_facecolor().tolist() == [[*to_rgb("#F0E442"), 1.0]]]
        assert sum(len(c.get_offsets()) for c in yellow) == count


def test_npus_have_the_colours_of_their_jobs():
    panel = replace(link_panel(TOPOLOGIES[1]), jobs={0: "a", 1: "a", 2: "b"}, npu_of=[5, 6, 7])
    made = drawn(panel)
    assert [t.get_text() for t in made.axes[0].figure.legends[0].get_texts()] == ["job = a", "job = b"]
    (npus,) = [
        c for c in made.axes[0].collections if len(getattr(c, "get_offsets", list)()) == 16 and c.get_lw()[0] > 0
    ]
    faces = npus.get_facecolor().tolist()
    assert faces[5] == faces[6] != faces[7] != faces[0]


@pytest.fixture(scope="module")
def large():
    return link_panel(shapes.FatTree(k=8, bandwidth=RATE, latency=1).build())


def test_more_than_128_vertices_are_bars_from_the_busiest_on(large):
    assert large.tables["vertex"].height > 128
    made = drawn(large)
    (axes,) = made.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert len(labels) == 6 and all("(128)" in label for label in labels)
    assert axes.get_ylim() == (0, 1)
    bars = [bar.patches for bar in axes.containers]
    assert sum(round(bar.get_width()) for kind in bars for bar in kind) == large.tables["edge"].height
    for kind in bars:
        heights = [bar.get_height() for bar in kind]
        assert heights == sorted(heights, reverse=True)


def test_the_data_are_those_of_the_links(large):
    for panel in (large, link_panel(TOPOLOGIES[3])):
        table, link = drawn(panel).table, panel.tables["link"]
        assert table.height == panel.tables["edge"].height
        assert table["bytes"].sum() == link["bytes"].sum()
        assert table["busy_share"].sum() == pytest.approx(link["busy"].sum() / 100)


def test_vertices_without_a_place_get_one():
    vertex = Table(
        {
            "vertex": np.arange(4),
            "name": ["0", "1", "s", "t"],
            "kind": ["npu", "npu", "switch", "switch"],
            "x": np.full(4, np.nan),
            "y": np.full(4, np.nan),
        }
    )
    edge = Table({"src": np.array([0, 1, 2, 2, 2, 3]), "dst": np.array([2, 2, 0, 1, 3, 2])})
    x, y, switch = record_plots.places(vertex, edge)
    assert not np.isnan(x).any() and y.tolist()[0] == y.tolist()[1] < y[2] < y[3]
    assert switch.tolist() == [False, False, True, True]


def test_a_figure_looks_as_it_should(large):
    torus = shapes.Torus(dims=[4, 3], bandwidth=RATE, latency=1).build()
    leaves = shapes.LeafSpine(leaves=2, hosts_per_leaf=4, spines=2, bandwidth=RATE, latency=1).build()
    panel = replace(link_panel(leaves), failed=[3], switches=["spine1"])
    assert_picture(drawn(link_panel(torus), panel).axes[0].figure, "links")
    assert_picture(drawn(large).axes[0].figure, "links_bars")


@pytest.mark.parametrize(("shape", "inches"), [("torus", 6.7), ("torus", 3.4), ("ring", 6.7), ("ring", 3.4)])
@pytest.mark.parametrize("side", [3, 6, 8])
def test_every_link_in_use_has_an_arrow_that_no_vertex_hides(shape, inches, side):
    """Also where links are short: arrows are at least 1.2 points long, and lie between the vertices."""
    size = {"dims": [side, side]} if shape == "torus" else {"npus": side * side}
    topology = ap.build_topology(shape=shape, **size, bandwidth="50 GB/s", latency="1 us")
    panel = link_panel(topology)
    axes = drawn(panel, width=2.54 * inches).axes[0]
    axes.figure.draw_without_rendering()
    to_points = 72 / axes.figure.dpi
    heads = [c for c in axes.collections if type(c).__name__ == "PolyCollection"][-1]
    corners = np.array([axes.transData.transform(path.vertices[:3]) for path in heads.get_paths()]) * to_points
    assert len(corners) == (panel.tables["link"]["bytes"] > 0).sum()
    tip, back = corners[:, 0], corners[:, 1:].mean(axis=1)
    assert np.hypot(*(tip - back).T).min() >= 1.2
    vertices = next(c for c in axes.collections if type(c).__name__ == "PathCollection")
    centres = axes.transData.transform(vertices.get_offsets()) * to_points
    apart = np.hypot(*np.moveaxis(centres[:, None] - corners.reshape(1, -1, 2), -1, 0))
    assert apart.min() > 0.5 * np.sqrt(vertices.get_sizes()[0]) - 0.6


DOWN = {"shape": "torus", "dims": [4, 4], "bandwidth": "50 GB/s", "latency": "1 us", "failed": {"links": [[5, 6]]}}


def test_a_link_that_is_down_is_drawn_with_a_cross_and_explained():
    topology = ap.build_topology(**DOWN)
    assert topology.cut == ((5, 6), (6, 5)) and topology.digest() == replace(topology, cut=()).digest()
    x, y = (positions(topology)[axis][[5, 6]].mean() for axis in (0, 1))
    axes = drawn(replace(link_panel(topology), cut=topology.cut)).axes[0]
    for where in (topology.draw(ax=Figure().add_subplot()), axes):
        (cross,) = (line for line in where.lines if line.get_marker() == "x")
        assert np.allclose(np.column_stack(cross.get_data()), [[x, y]])
    legends = [axes.figure.legends[0], topology.draw(ax=Figure().add_subplot()).get_legend()]
    assert all("link that is down" in [text.get_text() for text in legend.get_texts()] for legend in legends)
    whole = drawn(link_panel(ap.build_topology(**{**DOWN, "failed": {}})))
    assert not whole.axes[0].lines and not whole.axes[0].figure.legends


def test_a_stored_point_says_which_links_were_down(tmp_path):
    scenario = {"name": "down", "topology": DOWN, "workload": [{"all_reduce": {"size": "1 MiB"}}]}
    result = ap.run(scenario, out=tmp_path, figures=False)
    assert [tuple(ends) for ends in result.summaries[0].cut_links] == [(5, 6), (6, 5)]
