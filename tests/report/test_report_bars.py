"""Bars: none is thinner than the text beside it, and their axis ends where the longest one does."""

from __future__ import annotations

from itertools import product

import pytest
from worlds.figure_rows import figure_row

import astrasim_py as ap
from astrasim_py.report import figure_style as style
from astrasim_py.report import plots
from astrasim_py.report.record_plots import Panel
from astrasim_py.results.values import ns_number
from astrasim_py.scenario.plot_spec import PlotSpec


def rows_of(topologies: int, sizes: int, models: int = 1, times=lambda t, s, m: 10**9 * (1 + t + 3 * s + m)):
    """Rows of three swept keys, a quarter of each time exposed."""
    rows = []
    for t, s, m in product(range(topologies), range(sizes), range(models)):
        ps = times(t, s, m)
        parts = {"exposed_comm_ns": ps // 4, "compute_ns": ps // 2, "other_ns": ps - ps // 4 - ps // 2}
        rows.append(
            figure_row(
                point=f"{t},{s},{m}",
                sweep={"topology": f"network {t}", "size": f"{2**s} MiB", "model": f"model {m}"},
                size_bytes=2**s,
                time_ns=ns_number(ps),
                **{key: ns_number(part) for key, part in parts.items()},
            )
        )
    return rows


def drawn(rows, **spec):
    with plots.style.our_style():
        drawing = plots.figure_of(PlotSpec(**spec).model_dump(exclude_none=True), rows, place="plots")
        drawing.axes[0].figure.draw_without_rendering()
    return drawing


def thickness(axes, vertical: bool) -> float:
    """Of the thinnest bar, points."""
    boxes = [patch.get_window_extent() for patch in axes.patches]
    return min(box.width if vertical else box.height for box in boxes) * 72 / axes.figure.dpi


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 7), (5, 12), (60, 1), (3, 7, 2), (2, 20, 6)])
def test_breakdown_bars_are_thicker_than_their_names(counts):
    drawing = drawn(rows_of(*counts), kind="breakdown", x="size", series="topology", facet="model")
    for axes in drawing.axes:
        assert thickness(axes, vertical=False) >= drawing.axes[0].get_yticklabels()[0].get_fontsize()


@pytest.mark.parametrize("counts", [(1, 1), (3, 7), (5, 12), (3, 7, 2), (3, 4, 6)])
@pytest.mark.parametrize("widest", [1, 50])
def test_a_breakdown_ends_where_its_longest_bar_does(counts, widest):
    """Whether it shows times or, where they differ widely, shares; the time beside a bar is inside the figure."""
    rows = rows_of(*counts, times=lambda t, s, m: 10**9 * (widest if (t, s, m) == (0, 0, 0) else 1 + t % 2))
    drawing = drawn(rows, kind="breakdown", x="size", series="topology", facet="model")
    axes = drawing.axes[0]
    longest = max(patch.get_x() + patch.get_width() for panel in drawing.axes for patch in panel.patches)
    assert longest <= axes.get_xlim()[1] <= 1.1 * longest
    edge = axes.figure.bbox.width
    assert all(text.get_window_extent().x1 <= edge for panel in drawing.axes for text in panel.texts)


@pytest.mark.parametrize("counts, label", [((4, 1), "topology"), ((4, 3), "message size · topology")])
def test_a_breakdown_says_which_keys_its_bars_are_named_by(counts, label):
    """Also where the figure names no key: a size that all bars share is no name of one of them."""
    drawing = drawn(rows_of(*counts), kind="breakdown")
    axes = drawing.axes[0]
    assert axes.get_ylabel() == label
    assert all(text.get_text().count(" · ") == label.count(" · ") for text in axes.get_yticklabels())


@pytest.mark.parametrize("counts", [(1, 6), (3, 4), (8, 12), (40, 20), (4, 12, 3)])
@pytest.mark.parametrize("width", ["column", "text"])
def test_standing_bars_are_thicker_than_their_names_or_left_out(counts, width):
    drawing = drawn(rows_of(*counts), kind="stacked", x="size", series="topology", facet="model", width=width)
    bars = {patch.get_x() for patch in drawing.axes[0].patches}
    assert all(thickness(axes, vertical=True) >= style.SMALL - 0.1 for axes in drawing.axes)
    whole = len(bars) == counts[0] * counts[1]
    assert whole or any("bars left out of the figure; choose with where" in note for note in drawing.notes)


@pytest.mark.parametrize("counts", [(2, 2), (6, 3), (30, 2), (50, 4)])
def test_bars_over_names_are_thick_or_dots(counts):
    times = lambda t, s, m: 10**9 * (4 + t % 3)  # noqa: E731
    drawing = drawn(rows_of(*counts, times=times), kind="time", x="topology", series="size", scale="linear")
    axes = drawing.axes[0]
    assert (thickness(axes, vertical=True) >= style.SMALL - 0.1) if axes.patches else axes.lines
    assert bool(axes.patches) == (counts[0] * counts[1] < 20)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize(("ranks", "late", "title"), [(4, 0, "A title"), (4, 2, ""), (8, 7, "A title"), (6, 6, "")])
def test_bars_of_a_gantt_chart_are_higher_than_their_names(ranks, late, title, at_once):
    """Also where all ranks do the same and share one row. `late`: how many ranks have computations of their own.
    `at_once`: how many collectives run beside each other.
    """
    step = ap.workload(ranks)
    for _ in range(at_once - 1):
        step.all_to_all("64 MiB", after=[])
    for rank in range(late):
        step.compute(f"{rank + 1} us", ranks=[rank])
    step.compute("20 us").all_reduce("1 MiB")
    topology = ap.build_topology(shape="ring", npus=ranks, bandwidth="50 GB/s", latency="500 ns")
    records = ap.simulate(ap.problem(step, topology, algorithm="ring"), level="nodes")
    panel = Panel(title="a", makespan=records.makespan, tables=records.tables())
    with plots.style.our_style():
        drawing = plots.figure_of({"kind": "gantt", "title": title}, (), panels=[panel], place="plots")
        drawing.axes[0].figure.draw_without_rendering()
    (axes,) = drawing.axes
    bars = [path.get_extents(axes.transData) for c in axes.collections for path in c.get_paths()]
    assert min(bar.ymax - bar.ymin for bar in bars) * 72 / axes.figure.dpi > 5.5
    names = [text for text in axes.texts if not text.get_text().startswith("makespan")]
    assert names
    for text in names:
        x, y = axes.transData.transform(text.get_position())
        (bar,) = (b for b in bars if b.xmin <= x <= b.xmax and b.ymin <= y <= b.ymax)
        assert (bar.ymax - bar.ymin) * 72 / axes.figure.dpi >= text.get_fontsize() - 0.5


def test_figures_write_micro_behind_numbers_of_the_user():
    assert style.clean("latency = 10 us, 2us, focus, us, 3 users") == "latency = 10 µs, 2µs, focus, us, 3 users"
