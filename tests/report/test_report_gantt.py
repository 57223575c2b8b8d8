"""Gantt charts: equal ranks share a row, what is left out is said, and every bar is where the records have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds.images import assert_picture, blocks, difference
from worlds.panels import gantt_panel, panel_of

import astrasim_py as ap
from astrasim_py.core.errors import UsageError
from astrasim_py.core.records import Table
from astrasim_py.report import plots
from astrasim_py.report.gantt_rows import COMMUNICATION, COMPUTE, MOST_BARS, bars_of, grouped, rows_of, thinned
from astrasim_py.report.record_plots import Panel
from astrasim_py.workload.items import Collective, Compute
from astrasim_py.workload.microbenchmarks import generate


def drawn(*panels, **keys):
    with plots.style.our_style():
        return plots.figure_of({"kind": "gantt", **keys}, [], panels=panels, place="plots")


def labels(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.fixture(scope="module")
def training():
    """Gradients of 12 buckets, exchanged side by side while the next are computed."""
    link = {"bandwidth": "50 GB/s", "latency": "1 us"}
    network = ap.build_topology(shape="leaf_spine", leaves=2, hosts_per_leaf=4, spines=2, **link)
    step = ap.workload(8)
    for bucket in range(12):
        step.compute("100 us", name=f"b{bucket}", after=[f"b{bucket - 1}"] if bucket else [])
        step.all_reduce("8 MiB", name=f"g{bucket}", after=[f"b{bucket}"])
    return panel_of(ap.problem(step, network), level="nodes")


def test_equal_ranks_share_a_row():
    made = drawn(gantt_panel(64))
    assert labels(made.axes[0]) == ["0–63 (64)"]
    assert [text.get_text() for text in made.axes[0].figure.legends[0].get_texts()] == ["compute", "all-reduce"]


def test_rows_are_of_ranks_with_the_same_bars_and_no_two_rows_are_equal(training):
    node, collective = training.tables["node"], training.tables["collective"]
    bars = bars_of(node, collective, 8)
    rows = rows_of(bars, range(8), {})
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(8))

    def of(rank):
        mine = bars.rank == rank
        return [column[mine].tolist() for column in (bars.part, bars.start, bars.end, bars.name)]

    for row in rows:
        assert all(of(rank) == of(row.ranks[0]) for rank in row.ranks)
    assert len({str(of(row.ranks[0])) for row in rows}) == len(rows)
    apart = rows_of(bars, range(8), {rank: f"job {rank % 2}" for rank in range(8)})
    assert all(len({rank % 2 for rank in row.ranks}) == 1 for row in apart)


def test_bars_are_the_nodes_of_the_records(training):
    node = training.tables["node"]
    table = drawn(training).table
    shown = {(s, e) for s, e in zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True)}
    mine = (node["instance"] < 0) & (node["end"] > node["start"])
    known = zip((node["start"][mine] / 1000).tolist(), (node["end"][mine] / 1000).tolist(), strict=True)
    assert shown == set(known)


def test_the_makespan_is_a_line_at_its_time():
    for axes, panel in zip(drawn(gantt_panel(3), gantt_panel(3, 20)).axes, (30, 70), strict=True):
        (line,) = [line for line in axes.lines if line.get_gid() == "makespan"]
        assert set(line.get_xdata()) == {panel}
        assert f"makespan {panel} ps" in texts(axes)


def test_panels_share_their_scale_unless_runs_differ_tenfold():
    alike = drawn(gantt_panel(3), gantt_panel(3, 20))
    assert len({axes.get_xlim() for axes in alike.axes}) == 1 and not alike.notes
    wide = drawn(gantt_panel(3), gantt_panel(3, 2000))
    assert len({axes.get_xlim() for axes in wide.axes}) == 2 and "ten times" in wide.notes[0]


def test_nine_panels_fit_into_a_column():
    title = "algo = halving_doubling, message size = 16 MiB"
    panel = replace(gantt_panel(), title=title)
    made = drawn(*[panel] * 9, width="column")
    made.axes[0].figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in made.axes]
    bars = [axes.get_window_extent() for axes in made.axes]
    assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i] + bars)
    assert all("16 MiB" in axes.get_title() for axes in made.axes)


def test_at_most_forty_rows_and_those_left_out_are_said():
    made = drawn(gantt_panel(100, 7))
    (axes,) = made.axes
    assert len(set(made.table["ranks"])) == 40 and axes.get_ylim()[0] < 40
    assert "ranks 39–98 left out (60 of 100)" in texts(axes)
    assert any("ranks 39–98 left out" in note and "ranks:" in note for note in made.notes)
    assert "99" in made.table["ranks"]  # the last one to end is there


def test_rows_and_ranks_are_chosen():
    assert len(set(drawn(gantt_panel(100, 7), rows=60).table["ranks"])) == 60
    assert set(drawn(gantt_panel(100, 7), ranks=(3, 50)).table["ranks"]) == {"3", "50"}
    assert not drawn(gantt_panel(100, 7), ranks=(3, 50)).notes
    with pytest.raises(UsageError, match="there is no rank 100; write ranks from 0 to 99"):
        drawn(gantt_panel(100, 7), ranks=(3, 100))


def test_jobs_are_marked_and_separated():
    made = drawn(gantt_panel(6, jobs={rank: "abc"[rank // 2] * 3 for rank in range(6)}))
    assert len(labels(made.axes[0])) == 3
    assert {"aaa", "bbb", "ccc"} <= set(texts(made.axes[0]))
    assert sum(line.get_gid() != "makespan" for line in made.axes[0].lines) == 2


@pytest.mark.parametrize("count", [1, 3, 4, 5, 40, 300])
def test_a_legend_names_four_computations_or_says_other(count):
    names = [f"step {chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(count)]
    node = Table(
        {
            "rank": np.zeros(2 * count, dtype=np.int64),
            "node": np.arange(2 * count),
            "instance": np.full(2 * count, -1),
            "kind": ["compute", "send"] * count,
            "name": [name for name in names for _ in range(2)],
            "start": np.arange(2 * count),
            "end": np.arange(2 * count) + np.repeat(np.arange(count), 2) + 1,
            "released_by": np.full(2 * count, -1),
            "ended_by": np.full(2 * count, -1),
        }
    )
    panel = replace(gantt_panel(1), tables={**gantt_panel(1).tables, "node": node}, makespan=3 * count)
    made = drawn(panel)
    shown = [text.get_text() for text in made.axes[0].figure.legends[0].get_texts()]
    assert len(shown) <= 5 and "send" in shown
    assert ("other compute" in shown) == (count > 4)
    assert set(made.table["colour"]) == set(shown)


def test_names_that_differ_by_numbers_are_one_and_phases_are_seen():
    panel = gantt_panel(1)
    blocks_of = [(block, phase) for block in ("attn", "mlp", "norm", "rope", "out") for phase in ("fwd", "bwd")]
    names = [f"L{layer}.{block}.{phase} mb{mb}" for layer in range(3) for block, phase in blocks_of for mb in range(2)]
    count = len(names)
    node = Table(
        {
            **{key: np.full(count, -1) for key in ("instance", "released_by", "ended_by")},
            "rank": np.zeros(count, dtype=np.int64),
            "kind": ["compute"] * count,
            "name": names,
            "start": np.arange(count),
            "end": np.arange(count) + 1,
        }
    )
    bars = bars_of(node, panel.tables["collective"], 1)
    group, called = grouped(bars, COMPUTE, 4)
    assert called == ["forward", "backward"]
    phases = ["forward" if "fwd" in bars.names[number] else "backward" for number in bars.name.tolist()]
    assert [called[g] for g in group.tolist()] == phases
    assert grouped(bars, COMMUNICATION, 4)[1] == []


def test_names_made_of_kind_and_size_are_the_kind_where_that_is_clear():
    network = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="1 us")
    sizes = [
        panel_of(ap.problem(ap.workload(4).all_reduce(size), network), level="nodes") for size in ("1 MiB", "2 MiB")
    ]
    assert set(drawn(*sizes).table["colour"]) == {"all-reduce"}
    assert set(drawn(*sizes).table["bar"]) == {"all_reduce 1 MiB", "all_reduce 2 MiB"}
    both = ap.workload(4).all_reduce("1 MiB").all_reduce("2 MiB")
    made = drawn(panel_of(ap.problem(both, network), level="nodes"))
    assert set(made.table["colour"]) == {"all_reduce 1 MiB", "all_reduce 2 MiB"}


def test_overlapping_collectives_have_lanes_of_their_own(training):
    bars = bars_of(training.tables["node"], training.tables["collective"], 8)
    for rank in range(8):
        for lane in range(3):
            mine = (bars.rank == rank) & (bars.part == COMMUNICATION) & (bars.lane == lane)
            assert (bars.start[mine][1:] >= bars.end[mine][:-1]).all()


def test_very_many_bars_are_drawn_by_bins():
    rng = np.random.default_rng(1)
    count = 2 * MOST_BARS
    place = np.repeat([0, 1], count // 2)
    start = np.tile(np.arange(count // 2) * 10, 2)
    end = start + rng.integers(2, 10, count)
    group = rng.integers(0, 3, count)
    until = int(end.max())
    where, what, low, high = thinned(place, group, start, end, until)
    assert len(where) <= 2 * 1500 and low.min() >= 0 and high.max() <= until
    for one in (0, 1):
        mine = where == one
        assert (low[mine][1:] >= high[mine][:-1]).all()
    assert set(what) <= {0, 1, 2}
    few = thinned(place[:9], group[:9], start[:9], end[:9], until)
    assert [column.tolist() for column in few] == [c[:9].tolist() for c in (place, group, start, end)]


@pytest.mark.parametrize("more", [0, 1])
def test_bars_that_are_drawn_by_bins_are_said(more):
    """Compute only, one rank, every bar on its own up to the limit."""
    count = MOST_BARS + more
    start = np.arange(count, dtype=np.int64) * 10
    columns = {"rank": 0 * start, "node": np.arange(count), "instance": 0 * start - 1, "kind": ["compute"] * count}
    columns |= {"name": [""] * count, "start": start, "end": start + 9, "released_by": start * 0 - 1}
    panel = Panel(title="", makespan=10 * count, tables={"node": Table(columns | {"ended_by": 0 * start - 1})})
    notes = drawn(panel).notes
    assert any("more than 20,000 bars" in note for note in notes) == bool(more)


def test_a_chart_looks_as_it_should(training):
    assert_picture(drawn(training).axes[0].figure, "gantt")
    jobs = gantt_panel(6, 5, jobs={rank: "ab"[rank // 3] for rank in range(6)})
    assert_picture(drawn(jobs, gantt_panel(50, 3), width="column").axes[0].figure, "gantt_jobs")


def test_pictures_of_other_charts_differ():
    one, other, same = (blocks(drawn(gantt_panel(4, shift)).axes[0].figure) for shift in (1, 9, 1))
    assert difference(one, other) and not difference(one, same)


def test_what_is_not_axes_is_refused():
    with pytest.raises(UsageError, match="int is not matplotlib Axes"):
        plots.axes_of({"kind": "gantt"}, panels=[gantt_panel()], ax=3)


def test_a_problem_is_drawn_into_axes_of_the_user():
    from matplotlib.figure import Figure

    ring = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    axes = Figure().subplots()
    assert ap.plot(ap.collective("all_reduce", "1 MiB", ring), kind="gantt", ax=axes) is axes
    assert labels(axes) == ["0–3 (4)"] and axes.get_xlabel() == "time (µs)"


def test_tiles_have_the_colour_of_their_computation_and_show_their_numbers():
    network = ap.build_topology(shape="ring", npus=2, bandwidth="50 GB/s", latency="1 us")
    items = [Collective(type="all_gather", size=2000, name="gather")]
    items += [Compute(time=500_000_000, name="product", tiles=8, consumes="gather")]
    made = drawn(panel_of(ap.problem(generate(items, 2), network), level="nodes"))
    assert [text.get_text() for text in made.axes[0].figure.legends[0].get_texts()] == ["product", "gather"]
    numbers = {text for text in texts(made.axes[0]) if "makespan" not in text}
    assert numbers == {f"{tile}/8" for tile in range(1, 9)}
