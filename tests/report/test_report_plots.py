"""Figures: the same bytes on every run, text never taken for mathematics, every series to be seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from worlds.figure_rows import figure_row

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import parse_size
from astrasim_py.report import plots
from astrasim_py.results.collectives import bandwidth_GBps
from astrasim_py.results.values import ns_number

RATE = Fraction(50 * 10**9)


def rows(series=("ring", "torus", "mesh"), sizes=("64 KiB", "1 MiB", "1 GiB"), models=("cut_through",), factor=None):
    made = []
    for s, name in enumerate(series):
        for size in sizes:
            for model in models:
                ps = 500_000 + 20 * parse_size(size) * (1 + (factor or {}).get(name, 0))
                made.append(
                    figure_row(
                        point=f"{name},{size},{model}",
                        sweep={"topology": name, "size": size, "model": model},
                        topology=name,
                        size_bytes=parse_size(size),
                        time_ns=ns_number(ps),
                        bound_ns=ns_number(ps // 2),
                        busbw_GBps=bandwidth_GBps(parse_size(size), ps),
                        exposed_comm_ns=ns_number(ps // 4),
                        compute_ns=ns_number(ps // 2 + s),
                        other_ns=ns_number(ps - ps // 4 - ps // 2 - s),
                    )
                )
    return made


SPECS = {
    "slowdown": {"kind": "slowdown", "x": "size", "series": "topology", "facet": "model", "baseline": "ring"},
    "time": {"kind": "time", "x": "size", "series": "topology", "facet": "model"},
    "busbw": {"kind": "busbw", "x": "size", "series": "topology"},
    "breakdown": {"kind": "breakdown", "x": "size", "series": "topology"},
}


def figure(spec, data, **more):
    """The matplotlib figure behind `draw`, without spending time on its bytes."""
    return drawn(spec, data, **more).axes[0].figure


def drawn(spec, data, **more):
    with plots.style.our_style():
        made = plots.figure_of(spec, data, place="plots", **more)
        made.axes[0].figure.draw_without_rendering()
    return made


def pictures(spec, data, **more) -> dict[str, bytes]:
    return {form: b"".join(parts) for form, parts in plots.draw(spec, data, **more).data.items()}


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_figures_are_drawn_as_svg_and_png(kind):
    images = pictures(SPECS[kind], rows(sizes=("64 KiB", "1 GiB"), models=("a", "b")), title="t")
    assert images["png"].startswith(b"\x89PNG") and images["svg"].startswith(b"<?xml")


@pytest.mark.slow
def test_figures_have_the_same_bytes_in_every_process():
    code = """
        import hashlib, importlib.util, sys
        spec = importlib.util.spec_from_file_location("cases", sys.argv[1])
        cases = importlib.util.module_from_spec(spec)
        sys.path.insert(0, sys.argv[2])
        spec.loader.exec_module(cases)
        from astrasim_py.topology import shapes
        from worlds.panels import link_panel
        state = hashlib.sha256()
        jobs = [(cases.SPECS["slowdown"], cases.rows(), ())]
        torus = shapes.Torus(dims=[3, 3], bandwidth=cases.RATE, latency=1).build()
        jobs.append(({"kind": "links"}, [], [link_panel(torus)]))
        for spec, rows, panels in jobs:
            for data in cases.pictures(spec, rows, panels=panels, title="t").values():
                state.update(data)
        print(state.hexdigest())
    """
    printed = set()
    for seed, locale, home in (("0", "C", "/"), ("1", "de_DE.UTF-8", "/tmp")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": "Asia/Tokyo", "HOME": home}
        command = [sys.executable, "-c", textwrap.dedent(code), __file__, str(Path(__file__).parents[1])]
        printed.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(printed) == 1 and len(printed.pop()) == 65


def test_a_matplotlibrc_of_the_user_changes_nothing():
    import matplotlib

    before = pictures(SPECS["time"], rows(), title="t")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "text.parse_math": True}):
        after = pictures(SPECS["time"], rows(), title="t")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert before == after


def test_figures_carry_no_date():
    svg = pictures(SPECS["time"], rows(), title="t")["svg"]
    assert not re.search(rb"<dc:date>|matplotlib v|Matplotlib v", svg)


@pytest.mark.parametrize("title", ["none", "None", ""])
def test_a_figure_may_have_no_title(title):
    """Said of the figure, or of the scenario; the room of the title goes, too."""
    titled = figure(SPECS["time"], rows(), title="A scenario")
    assert titled.get_suptitle() == "A scenario"
    for spec, of_scenario in ((SPECS["time"] | {"title": title}, "A scenario"), (SPECS["time"], title)):
        bare = figure(spec, rows(), title=of_scenario)
        assert bare.get_suptitle() == "" and bare.get_figheight() < titled.get_figheight()
    assert figure(SPECS["time"] | {"title": "Mine"}, rows(), title="none").get_suptitle() == "Mine"


def test_text_of_the_user_is_never_mathematics():
    evil = r"$\frac{1}{0} <script> & \$ _^"
    data = rows(series=(evil, "a\nb\x07", "$", "x" * 500))
    spec = {"kind": "time", "x": "size", "series": "topology"}
    fig = figure(spec, data, title=evil + "\n$x^{")
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels[0] == evil
    assert labels[1].startswith("a b ") and len(labels[3]) <= 100
    written = [fig._suptitle, *fig.legends[0].get_texts()]
    assert not any(text.get_parse_math() for text in written)
    assert b"<script>" not in pictures(spec, data, title=evil + "\n$x^{")["svg"]


@pytest.mark.parametrize("spec", [{"kind": "time", "x": "topology"}, {"kind": "breakdown", "x": "topology"}])
def test_labels_of_ticks_are_never_mathematics(spec):
    bad = r"$\nonsense{$"  # matplotlib refuses to draw this as mathematics
    assert pictures({**spec, "facet": "model"}, rows(series=(bad,), sizes=("1 KiB",), models=(bad,)))


def test_series_that_coincide_say_so_and_are_equally_thick():
    fig = figure(SPECS["slowdown"], rows(factor={"mesh": 1}))
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels == ["ring", "torus (= ring)", "mesh"]
    lines = [line for line in fig.axes[0].lines if line.get_marker() not in ("None", None, "")]
    assert len({line.get_marker() for line in lines}) == len({line.get_markersize() for line in lines}) == 3
    assert len({line.get_color() for line in lines}) == len({line._unscaled_dash_pattern for line in lines}) == 3
    assert len({line.get_linewidth() for line in lines}) == 1
    assert lines[0].get_markersize() > lines[1].get_markersize()
    assert lines[0].get_zorder() < lines[1].get_zorder()


def test_slowdown_is_time_over_the_time_of_the_baseline():
    fig = figure(SPECS["slowdown"], rows(factor={"mesh": 1, "torus": Fraction(1, 2)}))
    base, half, double = (line.get_ydata() for line in fig.axes[0].lines[:3])
    assert list(base) == [1.0, 1.0, 1.0]
    assert half[-1] == pytest.approx(1.5, rel=1e-3) and double[-1] == pytest.approx(2, rel=1e-3)


def test_every_panel_shows_its_highest_point():
    data = [
        replace(row, time_ns=row.time_ns * 3) if row.sweep["model"] == "b" and row.topology == "mesh" else row
        for row in rows(models=("a", "b"))
    ]
    fig = figure(SPECS["slowdown"], data)
    for axes in fig.axes:
        low, high = axes.get_ylim()
        for line in axes.lines:
            assert low <= min(line.get_ydata()) and max(line.get_ydata()) <= high


def test_axes_of_sizes_are_readable():
    fig = figure({**SPECS["time"], "width": "text"}, rows(sizes=("64 KiB", "1 MiB", "16 MiB", "256 MiB", "1 GiB")))
    labels = [tick.get_text() for tick in fig.axes[0].get_xticklabels()]
    assert labels == ["64 KiB", "1 MiB", "16 MiB", "256 MiB", "1 GiB"]
    assert fig.axes[0].get_xscale() == "log" and fig.axes[0].get_yscale() == "log"
    shown = [tick.get_text() for tick in fig.axes[0].get_yticklabels()]
    assert {"10", "100", "1,000"} <= set(shown) and fig.axes[0].get_ylabel() == "time (µs)"


def test_values_are_ordered_by_what_they_are_worth():
    fig = figure(SPECS["time"], rows(sizes=("1 GiB", "64 KiB", "1 MiB")))
    assert list(fig.axes[0].lines[0].get_xdata()) == sorted(fig.axes[0].lines[0].get_xdata())


def test_the_bound_is_dashed_and_never_crossed():
    fig = figure(SPECS["busbw"], rows())
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels[-1] == "upper bound"
    curves = [line.get_ydata() for line in fig.axes[0].lines]
    assert all(b >= a for a, b in zip(curves[0], curves[-1], strict=True))


def test_a_swept_key_that_no_axis_shows_goes_to_the_series():
    fig = figure({"kind": "time", "x": "size", "series": "topology"}, rows(models=("a", "b")))
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels[0] == "ring, a" and "ring, b (= ring, a)" in labels


def test_the_metadata_of_a_figure_name_the_engines_that_ran():
    plain = rows(("ring",), ("64 KiB", "1 MiB"))
    some = [replace(row, engine=engine) for row, engine in zip(plain, ("simpy", "compiled"), strict=True)]
    for given, said in ((some, "engine: compiled, simpy"), (some[:1], "engine: simpy"), (plain[:1], None)):
        images = pictures(SPECS["time"], given)
        for data in (images["png"], images["svg"]):
            assert (b"engine: " in data) == (said is not None)
            assert said is None or said.encode() in data


def test_only_finished_points_are_drawn():
    first, *others = rows()
    data = [replace(first, status="stuck", time_ns=None), *others]
    fig = figure(SPECS["slowdown"], data)
    assert [len(line.get_xdata()) for line in fig.axes[0].lines[:3]] == [2, 2, 2]
    assert figure(SPECS["breakdown"], [replace(row, status="failed") for row in rows()]).axes[0].texts


def test_where_chooses_points():
    fig = figure({**SPECS["time"], "where": {"topology": "ring"}}, rows())
    assert len([line for line in fig.axes[0].lines if line.get_marker() == "o"]) == 1


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"kind": "pie"}, "unknown"),
        ({"kind": "time", "x": "colour"}, '"colour" is not swept; write one of the swept keys: topology, size'),
        ({"kind": "slowdown", "x": "size", "series": "topology", "baseline": "rnig"}, "write one of ring, torus, mesh"),
        ({"kind": "slowdown", "x": "size"}, "there is no series"),
    ],
)
def test_what_cannot_be_drawn_says_why(spec, problem):
    with pytest.raises(ScenarioError, match=re.escape(problem)):
        plots.draw(spec, rows())


def test_parts_of_a_bar_add_up_to_the_time():
    fig = figure(SPECS["breakdown"], rows(sizes=("1 MiB",)))
    ends = {}
    for bar in fig.axes[0].patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert set(ends.values()) == {float(rows(sizes=("1 MiB",))[0]["time_ns"] * 1000)}


def test_nothing_to_draw_is_drawn_as_such():
    for spec in (*SPECS.values(), {"kind": "links"}, {"kind": "gantt"}, {"kind": "utilisation"}):
        fig = figure(spec, [])
        assert "no finished points" in [text.get_text() for text in fig.axes[0].texts]


def test_keys_that_follow_from_others_are_not_in_the_legend():
    from astrasim_py.report.plots import Grid

    rows = [
        figure_row(sweep={"nic": nic, "zero": zero, "memory": memory}, time_ns=1)
        for nic in ("25 GB/s", "50 GB/s")
        for zero, memory in (("3", "local"), ("1", "expanded"))
    ]
    assert Grid({"x": "nic", "series": "memory"}, rows, "plots").series == [("local",), ("expanded",)]
    assert Grid({"x": "nic"}, rows, "plots").series == [("3",), ("1",)]
    assert Grid({"x": "nic", "series": "zero"}, rows[:2], "plots").series == [("3",), ("1",)]


def test_long_headings_take_several_lines():
    from astrasim_py.report.figure_style import Sheet

    heading = "Recommendation on few accelerators with expanded memory, or on many of them without it"
    figure, _ = Sheet(heading=heading).panels(1)
    lines = figure.get_suptitle().splitlines()
    assert len(lines) > 1 and " ".join(lines) == heading


@pytest.mark.parametrize(
    ("kind", "baseline", "name"),
    [
        ("speedup", "ring", ["slower"]),
        ("speedup", "mesh", []),
        ("slowdown", "ring", []),
        ("slowdown", "mesh", ["faster"]),
    ],
)
def test_what_is_below_one_is_named(kind, baseline, name):
    """A speed-up below one is slower, a slowdown faster; where there is none, nothing is said."""
    spec = {"kind": kind, "x": "size", "series": "topology", "baseline": baseline}
    (axes,) = figure(spec, rows(factor={"torus": 1, "mesh": 3})).axes
    assert [text.get_text() for text in axes.texts] == name
    assert bool(axes.patches) == bool(name)


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_a_figure_without_a_title_has_no_room_for_one(kind):
    one, none = (figure({**SPECS[kind], "title": title}, rows()) for title in ("A title", "none"))
    untitled = drawn(SPECS[kind], rows(), title="").axes[0].figure
    assert none.get_suptitle() == "" != one.get_suptitle()
    assert one.get_figheight() > none.get_figheight() == untitled.get_figheight()
    top = max(box.y1 for axes in none.axes if (box := axes.get_tightbbox()))
    assert none.bbox.height - top < 0.12 * none.dpi
