"""Figures of rows: what they look like, and what holds for every one: labels, scales, legends, data beside them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise

import matplotlib
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from worlds.figure_rows import figure_row
from worlds.images import assert_picture, blocks, difference

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.exact_json import json_text, parse_json
from astrasim_py.core.units import parse_size
from astrasim_py.report import plots, ticks
from astrasim_py.report.pareto_plot import _front
from astrasim_py.results.collectives import bandwidth_GBps, bounded
from astrasim_py.results.values import ns_number
from astrasim_py.scenario.plot_spec import PLOT_KINDS, PlotSpec, of_records

SIZES = ("64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "1 GiB")


def row(sweep, ps, **more):
    """A row of a finished point that took so many ps."""
    size = parse_size(sweep.get("size", "1 MiB"))
    return figure_row(
        **{
            "point": ",".join(f"{key}={value}" for key, value in sweep.items()),
            "sweep": dict(sweep),
            "size_bytes": size,
            "engine": "simpy",
            "time_ns": ns_number(ps),
            **bounded(ps // 3, ps)._asdict(),
            "busbw_GBps": bandwidth_GBps(size, ps),
            "exposed_comm_ns": ns_number(ps // 4),
            "compute_ns": ns_number(ps // 2),
            "other_ns": ns_number(ps - ps // 4 - ps // 2),
            "messages": 7 + ps % 5,
            **more,
        }
    )


def sweep_rows(series=("ring", "torus", "mesh"), sizes=SIZES, models=("cut_through",), **slower):
    return [
        row({"topology": s, "size": x, "model": m}, (500_000 + 20 * parse_size(x)) * slower.get(s, 2 + i) // (1 + j))
        for i, s in enumerate(series)
        for x in sizes
        for j, m in enumerate(models)
    ]


def npus_rows():
    times = {8: 1000, 16: 520, 32: 280, 64: 170}
    return [
        row({"npus": str(n), "overlap": str(o)}, 10**6 * t // (1 + o), npus=n) for n, t in times.items() for o in (0, 1)
    ]


def draw(spec, rows):
    """A figure in our style, laid out."""
    with plots.style.our_style():
        drawn = plots.figure_of(PlotSpec(**spec).model_dump(exclude_none=True), rows, place="plots")
        drawn.axes[0].figure.draw_without_rendering()
    return drawn


BY_SIZE = {"x": "size", "series": "topology"}
SIX = tuple(f"model {n}" for n in range(6))
PICTURES = {
    "time": ({"kind": "time", **BY_SIZE}, sweep_rows()),
    "time_bars": ({"kind": "time", "x": "topology", "series": "model"}, sweep_rows(sizes=SIZES[:1], models=SIX[:2])),
    "time_many": ({"kind": "time", **BY_SIZE}, sweep_rows([f"network {n}" for n in range(12)])),
    "busbw": ({"kind": "busbw", **BY_SIZE, "width": "column"}, sweep_rows()),
    "efficiency": ({"kind": "efficiency", "x": "topology", "series": "size", "scale": "linear"}, sweep_rows(mesh=9)),
    "slowdown_six": ({"kind": "slowdown", **BY_SIZE, "facet": "model", "baseline": "ring"}, sweep_rows(models=SIX)),
    "speedup": ({"kind": "speedup", "x": "npus", "series": "overlap"}, npus_rows()),
    "stacked": ({"kind": "stacked", "x": "npus", "facet": "overlap", "bound": True}, npus_rows()),
    "heatmap": ({"kind": "heatmap", "x": "size", "series": "topology"}, sweep_rows(mesh=40)),
    "pareto": ({"kind": "pareto", "x": "npus", "series": "overlap"}, npus_rows()),
    "cdf": ({"kind": "cdf", "series": "topology"}, sweep_rows()),
}


@pytest.mark.skipif(matplotlib.__version_info__ < (3, 11), reason="text has another size, and so have the axes")
@pytest.mark.parametrize("name", PICTURES)
def test_figures_look_as_before(name):
    assert_picture(draw(*PICTURES[name]).axes[0].figure, f"rows_{name}")


def test_every_kind_of_rows_has_a_picture():
    assert {spec["kind"] for spec, _ in PICTURES.values()} | {"breakdown"} == {
        kind for kind in PLOT_KINDS if not of_records({"kind": kind})
    }
    assert set(plots.KINDS) == set(PLOT_KINDS)


@pytest.mark.parametrize("name", ["time", "slowdown_six", "speedup", "cdf", "stacked", "heatmap", "pareto"])
def test_a_wrong_curve_is_another_picture(name):
    spec, rows = PICTURES[name]
    key, value = next(iter(rows[-1].sweep.items()))
    wrong = [
        replace(one, time_ns=one.time_ns * 2, exposed_comm_ns=one.time_ns) if one.sweep[key] == value else one
        for one in rows
    ]
    before, after = (blocks(draw(spec, some).axes[0].figure) for some in (rows, wrong))
    assert difference(before, after)


# Laws -------------------------------------------------------------------------------------------------------------


def visible_labels(axis):
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label1 for tick in axis.get_major_ticks()
        if tick.label1.get_text() and low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9)
    ]  # fmt: skip


def check_laws(drawn, most=10):
    figure = drawn.axes[0].figure
    renderer = figure._get_renderer()
    for axes in drawn.axes:
        for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
            shown = axis.get_tick_params().get("labelbottom" if axis is axes.xaxis else "labelleft", True)
            labels = visible_labels(axis)
            assert scale != "log" or not shown or len(labels) >= 3
            boxes = [label.get_window_extent(renderer) for label in labels] if shown else []
            if axis is axes.xaxis and boxes and not labels[0].get_rotation():
                assert all(a.x1 <= b.x0 + 1 for a, b in pairwise(sorted(boxes, key=lambda box: box.x0)))
    for limits in ("get_xlim", "get_ylim", "get_xscale", "get_yscale"):
        assert len({getattr(axes, limits)() for axes in drawn.axes}) == 1  # panels side by side share their scales
    panels = [axes.get_window_extent(renderer) for axes in drawn.axes]
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(panel) for panel in panels)
        assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y0 >= -1
        assert len(legend.get_texts()) <= most
    assert not any(axes.get_legend() for axes in drawn.axes)
    whole = figure.get_tightbbox(renderer)
    assert whole.x0 >= -0.02 and whole.x1 <= figure.get_figwidth() + 0.02
    assert whole.y0 >= -0.02 and whole.y1 <= figure.get_figheight() + 0.02
    if len(drawn.axes) == 6:
        place = drawn.axes[0].get_subplotspec().get_gridspec()
        assert {place.nrows, place.ncols} == {2, 3}


def world(kind, counts, names, sizes, spread, width, title):
    many, panels = counts
    many = min(many, 6) if kind == "stacked" else many
    rows = [
        row({"x": x, "series": names.format(i), "facet": f"panel {f}"}, (1 + spread * i) * 10**6 * (1 + j + f))
        for i in range(many)
        for j, x in enumerate(sizes)
        for f in range(panels)
    ]
    spec = {"kind": kind, "series": "series", "facet": "facet", "width": width, "title": title}
    spec |= {"baseline": names.format(0)} if kind == "slowdown" else {}
    spec |= {} if kind == "cdf" else {"x": "time_ns" if kind == "pareto" else "x"}
    return {**spec, "y": "busbw_GBps"} if kind == "pareto" else spec, rows


@pytest.mark.slow
# Drawing takes long: examples are not made smaller.
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(["time", "busbw", "slowdown", "efficiency", "cdf", "pareto", "heatmap", "stacked"]),
    counts=st.sampled_from([(1, 1), (3, 2), (8, 6), (9, 1), (24, 3), (60, 1), (2, 12), (12, 5)]),
    names=st.sampled_from(["n{}", "a rather long name of a series, number {}", "$x^{}$ <&>"]),
    sizes=st.sampled_from([("1 MiB",), ("1 KiB", "1 GiB"), SIZES, ("1 MiB", "2 MiB"), ("ring", "8x8", "torus")]),
    spread=st.sampled_from([0, 1, 3, 10**6]),
    width=st.sampled_from([None, "column", "text", 12]),
    title=st.sampled_from([None, "T " * 60]),
)
@example(
    kind="time", counts=(60, 1), names="a rather long name of a series, number {}", sizes=SIZES, spread=3,
    width="column", title=None,
)  # fmt: skip
@example(kind="cdf", counts=(60, 1), names="n{}", sizes=SIZES, spread=3, width=None, title=None)
@example(
    kind="slowdown", counts=(3, 2), names="a rather long name of a series, number {}", sizes=("ring", "8x8", "torus"),
    spread=1, width=12, title=None,
)  # fmt: skip
def test_whatever_is_drawn_can_be_read(**chosen):
    # With the bound, or the front. A cdf with a facet has nowhere else to name its series.
    check_laws(draw(*world(**chosen)), 60 if chosen["kind"] == "cdf" and chosen["counts"][1] > 1 else 10)


@given(st.floats(1e-12, 1e12), st.floats(1.01, 1e15))
def test_logarithmic_axes_have_three_labels(low, ratio):
    labels = ticks.log_ticks(low, low * ratio)
    assert len(labels) >= 3 and len({ticks.number_text(label) for label in labels}) == len(labels)
    assert all(low * (1 - 1e-6) <= label <= low * ratio * (1 + 1e-6) for label in labels)


@given(st.dictionaries(st.integers(), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), st.booleans())
def test_the_front_is_what_no_point_beats(places, gain):
    sign = -1 if gain else 1
    beaten = {
        a for a, (x, y) in places.items()
        for (u, v) in places.values() if u <= x and sign * v <= sign * y and (u, v) != (x, y)
    }  # fmt: skip
    assert set(_front(places, False, gain)) == set(places) - beaten


@pytest.mark.parametrize("kind", ["time", "busbw", "cdf", "pareto", "stacked"])
def test_axes_of_the_user_are_not_covered_by_the_legend(kind):
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots(1, 2)[1]
    spec = {
        "kind": kind,
        "series": "topology",
        **({} if kind == "cdf" else {"x": "npus" if kind == "pareto" else "size"}),
    }
    rows = [replace(one, npus=4) for one in sweep_rows()]
    assert plots.axes_of(spec, rows, ax=axes) is axes
    figure.draw_without_rendering()
    legend = axes.get_legend().get_window_extent()
    assert not legend.overlaps(axes.get_window_extent()) and legend.y1 <= figure.bbox.y1 + 1


# What is written ----------------------------------------------------------------------------------------------------


def table_of(spec, rows):
    return list(csv.DictReader(io.StringIO(b"".join(plots.draw(spec, rows).data["csv"]).decode())))


def test_the_data_of_a_figure_are_exact():
    table = table_of({"kind": "time", **BY_SIZE, "format": ["svg"]}, rows := sweep_rows())
    assert [(one["topology"], one["size"], one["time_ns"], one["bound_ns"]) for one in table] == [
        (one.sweep["topology"], one.sweep["size"], f"{one.time_ns:f}", f"{one.bound_ns:f}") for one in rows
    ]


def test_speedup_is_the_reciprocal_of_slowdown_and_one_at_its_baseline():
    rows, spec = sweep_rows(), {**BY_SIZE, "baseline": "torus", "format": ["svg"]}
    fast, slow = (table_of({"kind": kind, **spec}, rows) for kind in ("speedup", "slowdown"))
    for one, other in zip(fast, slow, strict=True):
        assert float(one["speedup"]) * float(other["slowdown"]) == pytest.approx(1, rel=1e-12)
        assert one["topology"] != "torus" or one["speedup"] == "1.0"
    scaling = table_of({"kind": "speedup", "x": "npus", "series": "overlap", "format": ["svg"]}, npus_rows())
    assert [one["speedup"] for one in scaling if one["npus"] == "8"] == ["1.0", "1.0"]
    assert [one["ideal"] for one in scaling[:4]] == ["1.0", "2.0", "4.0", "8.0"]


def test_the_bound_of_a_slowdown_is_that_of_the_time():
    (curve, _, _, bound) = (
        draw({"kind": "slowdown", **BY_SIZE, "baseline": "ring", "bound": True}, sweep_rows()).axes[0].lines[:4]
    )
    assert bound.get_ydata() == pytest.approx([float(y) / 3 for y in curve.get_ydata()], rel=1e-3)


def test_a_cdf_rises_to_all():
    rows = [row({"seed": str(n), "t": "a"}, 1000 * (n % 4 + 1)) for n in range(8)]
    table = table_of({"kind": "cdf", "series": "t", "format": ["svg"]}, rows)
    assert [(one["time_ns"], one["share_percent"]) for one in table] == [
        ("1", "25.0"), ("2", "50.0"), ("3", "75.0"), ("4", "100.0"),
    ]  # fmt: skip


def test_columns_of_the_summary_are_drawn():
    (line,) = draw({"kind": "time", "x": "size", "y": "messages"}, rows := sweep_rows(("ring",))).axes[0].lines
    assert line.get_ydata().tolist() == [one["messages"] for one in rows]
    assert line.axes.get_ylabel() == "messages"


def test_text_stays_text_and_widths_are_exact():
    images = plots.draw({"kind": "time", **BY_SIZE, "width": "column", "format": ["svg", "pdf"]}, sweep_rows()).data
    svg, pdf = (b"".join(images[form]) for form in ("svg", "pdf"))
    assert b">message size</text>" in svg and f'width="{8.5 / 2.54 * 72:.6f}'.rstrip("0").encode() in svg
    assert (b"/Type3" not in pdf and b"/TrueType" in pdf) or b"/CIDFontType2" in pdf
    assert set(images) == {"svg", "pdf", "csv"}


def test_an_empty_figure_says_why():
    rows = [replace(one, busbw_GBps=None) for one in sweep_rows()]
    for kind, said in (("busbw", "collectives.csv"), ("pareto", "no bus bandwidth"), ("heatmap", "no bus bandwidth")):
        spec = {"kind": kind} if kind == "busbw" else {"kind": kind, "y": "busbw_GBps", "x": "size"}
        drawn = draw(spec, rows)
        assert said in drawn.notes[0] and " ".join(drawn.axes[0].texts[0].get_text().split()) == drawn.notes[0]


def test_panels_that_are_not_drawn_are_told():
    rows = [row({"size": "1 MiB", "f": str(n)}, 1000) for n in range(20)]
    drawn = draw({"kind": "time", "facet": "f"}, rows)
    assert len(drawn.axes) == 16 and drawn.notes == ["f takes 20 values: the first 16 are drawn"]


def test_a_logarithmic_scale_does_not_hide_zeros():
    rows = [row({"size": size}, 1000, exposed_comm_ns=ns_number(0)) for size in SIZES]
    with pytest.raises(ScenarioError, match="which a log scale cannot show; write scale: linear"):
        draw({"kind": "time", "y": "exposed_comm_ns", "scale": "log"}, rows)
    assert draw({"kind": "time", "y": "exposed_comm_ns"}, rows).axes[0].get_ylim()[0] <= 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "busbw", "y": "time_ns"}, "y: has no effect on kind busbw; drop it, or write one of the kinds time"),
        ({"kind": "gantt", "facet": "size"}, "facet: has no effect on kind gantt"),
        ({"kind": "cdf", "x": "size"}, "x: has no effect on kind cdf"),
        ({"kind": "cdf", "of": "ranks", "y": "efficiency"}, "y: a cdf of ranks is of their times"),
        ({"kind": "time", "y": "tiem_ns"}, 'did you mean "time_ns"?'),
        ({"kind": "time", "width": "3 cm"}, "write column, text, or e.g. 12 cm"),
        ({"kind": "time", "width": True}, "True"),
        ({"kind": "time", "format": ["svgz"]}, 'did you mean "svg"?'),
        ({"kind": "time", "format": []}, "write one of png, svg, pdf"),
        ({"kind": "stacked", "scale": "log"}, "stacked bars need a linear scale"),
        ({"kind": "time", "scale": "share"}, "is for stacked alone"),
        ({"kind": "heatmap", "legend": "below"}, "legend: has no effect on kind heatmap"),
        ({"kind": "pareto", "legend": "direct"}, "no curves to write names at"),
    ],
)
def test_keys_without_effect_are_refused(keys, said):
    with pytest.raises(ScenarioError) as error:
        PlotSpec(**keys)
    assert said.lower() in str(error.value).lower()


@pytest.mark.parametrize("scale", ["linear", "share"])
def test_measured_times_are_marks_at_their_bars(scale):
    """At the values that are named; a value that no bar has is noted."""
    measured = [{"npus": "8", "overlap": "0", "time": "1100 us"}, {"npus": "64", "time": "200 us"}]
    spec = {"kind": "stacked", "x": "npus", "where": {"overlap": 0}, "scale": scale}
    drawn = draw({**spec, "measured": [*measured, {"npus": "128", "time": "1 us"}]}, npus_rows())
    assert [row.get("measured_ns") for row in drawn.table] == [1_100_000, None, None, 200_000]
    assert drawn.notes == ["1 measured times are of points that are not shown"]
    marks = [tuple(line.get_xydata()[0]) for line in drawn.axes[0].lines if line.get_marker() == "D"]
    heights = [1.1, 200 / 170] if scale == "share" else [1.1, 0.2]  # ms; simulated are 1 and 0.17 ms
    assert marks == [(place, pytest.approx(height)) for place, height in zip((0, 3), heights, strict=True)]
    assert drawn.axes[0].get_ylim()[1] > max(heights)


def test_figures_are_drawn_again_from_what_is_stored():
    """Numbers of a spec come back from JSON as decimals."""
    spec = parse_json(json_text(PlotSpec(kind="time", x="size", width=12).model_dump(exclude_none=True)))
    assert plots.draw({**spec, "format": ["svg"]}, sweep_rows()).data["svg"]
