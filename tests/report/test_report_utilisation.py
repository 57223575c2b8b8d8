"""Use of links over time: what is drawn adds up to the bytes that were carried, and never exceeds the link."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from worlds.images import assert_picture
from worlds.panels import panel_of

import astrasim_py as ap
from astrasim_py.core.errors import UsageError
from astrasim_py.report import plots
from astrasim_py.report.intervals import coverage
from astrasim_py.report.link_use import fair, traffic_of, use_over_time

LINK = {"bandwidth": "50 GB/s", "latency": "1 us"}


def drawn(*panels, **keys):
    with plots.style.our_style():
        return plots.figure_of({"kind": "utilisation", **keys}, [], panels=panels, place="plots")


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.fixture(scope="module", params=["cut_through", "store_and_forward", "fluid"])
def panel(request):
    """Several messages at a time on links of two speeds."""
    keys = {"leaves": 3, "hosts_per_leaf": 3, "spines": 2, "uplink_bandwidth": "20 GB/s"}
    network = ap.build_topology(shape="leaf_spine", **keys, **LINK)
    step = ap.workload(9).all_to_all("9 MiB", after=[]).compute("50 us", after=[]).all_reduce("4 MiB")
    return panel_of(ap.problem(step, network, model=request.param))


def every_use(panel, bins: int = 97) -> np.ndarray:
    links, edge = panel.tables["link"]["link"], panel.tables["edge"]
    rate = dict(zip(edge["link"].tolist(), edge["bandwidth"].tolist(), strict=True))
    bandwidth = np.array([float(rate[link]) for link in links.tolist()])
    one = np.zeros(panel.tables["message"].height, dtype=np.int64)
    return use_over_time(traffic_of(panel), links, bandwidth, panel.makespan, bins, one, 1)[:, 0], bandwidth


def test_use_integrates_to_the_bytes_over_the_bandwidth(panel):
    use, bandwidth = every_use(panel)
    seconds = panel.makespan / 1e12
    carried = use.mean(axis=1) * seconds * bandwidth
    assert carried == pytest.approx(panel.tables["link"]["bytes"].astype(float), rel=1e-9)


def test_use_is_between_0_and_100_percent(panel):
    use, _ = every_use(panel, 1000)
    assert use.min() >= 0 and use.max() <= 1 + 1e-6
    assert use.max() > 0.99


def test_rows_are_the_busiest_links_and_equal_ones_share_a_row(panel):
    made = drawn(panel, count=4)
    use, _ = every_use(panel, 100)
    best = np.sort(use.mean(axis=1))[::-1]
    table = made.table
    names = list(dict.fromkeys(table["link"].tolist()))
    assert len(names) == 4
    shown = [table["use"][table["link"] == name].mean() for name in names]
    assert shown[0] == pytest.approx(best[0]) and shown == pytest.approx(sorted(shown, reverse=True))
    edge = panel.tables["edge"]
    row = {str(name): i for i, name in enumerate(edge["name"].tolist())}
    at = {number: i for i, number in enumerate(panel.tables["link"]["link"].tolist())}
    for name in names:
        curves = [use[at[int(edge["link"][row[one]])]] for one in name.split()]
        assert all(np.allclose(curve, curves[0], atol=1e-8) for curve in curves)
        assert np.allclose(curves[0], table["use"][table["link"] == name], atol=1e-8)


def test_links_that_are_left_out_are_counted(panel):
    used = len(panel.tables["link"]["link"])
    some, every = drawn(panel, count=2), drawn(panel, count=used)
    shown = sum(len(name.split()) for name in set(some.table["link"].tolist()))
    assert any(f"the {shown} busiest of {used} links in use are drawn" in note for note in some.notes)
    assert not any("busiest" in note for note in (*every.notes, *drawn(panel, links=("0->leaf0",)).notes))


def test_links_are_chosen_in_order(panel):
    made = drawn(panel, links=("leaf1 → spine0", "0->leaf0"), bins=20)
    assert list(dict.fromkeys(made.table["link"].tolist())) == ["leaf1->spine0", "0->leaf0"]
    assert made.table.height == 40
    with pytest.raises(UsageError, match='there is no link "0->leaf9"; did you mean'):
        drawn(panel, links=("0->leaf9",))


def test_two_messages_that_share_a_link_fill_it():
    """b and 2b bytes on one link of bandwidth B: both at half until 2b/B, then one alone until 3b/B."""
    network = ap.build_topology(shape="switch", npus=3, bandwidth="1 GB/s", latency="0 ns")
    step = ap.workload(3).send(0, 2, "1 MB", after=[]).send(1, 2, "2 MB", after=[])
    panel = panel_of(ap.problem(step, network, model="fluid"))
    assert panel.makespan == 3 * 10**9
    made = drawn(panel, links=("switch0->2", "0->switch0", "1->switch0"), bins=3)
    use = made.table["use"].reshape(3, 3)
    assert use == pytest.approx(np.array([[1, 1, 1], [0.5, 0.5, 0], [0.5, 0.5, 1]]))


def test_rates_are_max_min_fair():
    rng = np.random.default_rng(5)
    for _ in range(60):
        flows, links = rng.integers(1, 9), rng.integers(1, 7)
        uses = rng.random((flows, links)) < 0.4
        uses[np.arange(flows), rng.integers(0, links, flows)] = True
        capacity = rng.integers(1, 20, links).astype(float)
        flow, link = np.nonzero(uses)
        rate = fair(flow, link, flows, capacity)
        load = uses.T @ rate
        assert (load <= capacity * (1 + 1e-9)).all()
        full = load >= capacity * (1 - 1e-9)
        for one in range(flows):
            # A flow has a full link on which no other flow is faster.
            assert any(
                full[at] and rate[one] >= rate[uses[:, at]].max() * (1 - 1e-9) for at in np.flatnonzero(uses[one])
            )


def test_the_use_of_jobs_is_stacked():
    network = ap.build_topology(shape="switch", npus=4, bandwidth="1 GB/s", latency="0 ns")
    panel = panel_of(ap.collective("all_reduce", "1 MB", network))

    made = drawn(replace(panel, jobs={0: "a", 1: "a", 2: "b", 3: "b"}), links=("0->switch0", "2->switch0"))
    table = made.table
    for link, job in (("0->switch0", "a"), ("2->switch0", "b")):
        mine = table["link"] == link
        assert table["use"][mine & (table["job"] == job)].sum() > 0
        assert table["use"][mine & (table["job"] != job)].sum() == 0
    assert [t.get_text() for t in made.axes[0].figure.legends[0].get_texts()] == ["job = a", "job = b"]


def test_a_network_whose_links_are_never_in_use_says_so():
    network = ap.build_topology(shape="ring", npus=4, **LINK)
    problem = ap.problem(ap.workload(4).all_reduce("1 MiB"), network, model="analytical")
    assert "no link was ever in use" in texts(drawn(panel_of(problem)).axes[0])


def test_intervals_cover_their_lengths():
    rng = np.random.default_rng(3)
    start = rng.integers(0, 900, 200)
    end = np.minimum(start + rng.integers(0, 300, 200), 1000)
    row, weight = rng.integers(0, 4, 200), rng.random(200)
    found = coverage(row, start, end, 4, 17, 1000, weight)
    edges = np.linspace(0, 1000, 18)
    for one in range(4):
        for number, (low, high) in enumerate(pairwise(edges)):
            inside = np.clip(np.minimum(end, high) - np.maximum(start, low), 0, None)
            assert found[one, number] == pytest.approx((inside * weight)[row == one].sum())


def test_a_figure_looks_as_it_should():
    network = ap.build_topology(shape="leaf_spine", leaves=2, hosts_per_leaf=2, spines=1, oversubscription=2, **LINK)
    step = ap.workload(4).all_reduce("8 MiB").compute("100 us").all_to_all("4 MiB")
    turns, shared = (panel_of(ap.problem(step, network, model=m)) for m in ("cut_through", "fluid"))
    assert_picture(drawn(turns, shared, count=3).axes[0].figure, "utilisation")
