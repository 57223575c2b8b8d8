"""The table that compares the points of a sweep: multiples of a baseline or of the fastest, within 80 columns."""

from __future__ import annotations

from decimal import Decimal
from itertools import product

import pytest
from rich.cells import cell_len

from astrasim_py.report.comparison import MOST_ROWS, comparison_text, multiples
from astrasim_py.results.model import Row
from astrasim_py.scenario.plot_spec import PlotSpec

SLOWDOWN = PlotSpec(kind="slowdown", x="size", series="topology", baseline="ring")


def row(time: int | None, npus: int = 16, **sweep: object) -> Row:
    return Row(
        scenario="s",
        point="p",
        sweep={key: str(value) for key, value in sweep.items()},
        npus=npus,
        time_ns=None if time is None else Decimal(time),
        status="stuck" if time is None else "done",
    )


def swept(time, **axes: tuple) -> list[Row]:
    """A row for each combination of values, which takes ``time(**values)`` ns."""
    points = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [row(time(**values), **values) for values in points]


TORUS = swept(
    lambda topology, size: size * (1, 2, 3)[("ring", "2d", "3d").index(topology)],
    topology=("ring", "2d", "3d"),
    size=(64, 128),
)


def test_times_are_multiples_of_the_baseline_of_the_figure():
    lines = comparison_text(TORUS, [SLOWDOWN]).splitlines()
    assert lines[0] == "slowdown against ring, which has its time"
    assert [line.split() for line in lines[1:]] == [
        ["topology", "64", "128"],
        ["--------", "-----", "------"],
        ["ring", "64", "ns", "128", "ns"],
        ["2d", "2.00×", "2.00×"],
        ["3d", "3.00×", "3.00×"],
    ]


def test_a_speed_up_is_the_reverse():
    spec = PlotSpec(kind="speedup", x="size", series="topology", baseline="ring")
    lines = comparison_text(TORUS, [spec]).splitlines()
    assert lines[0] == "speed-up over ring, which has its time; below 1: slower"
    assert lines[-1].split() == ["3d", "0.33×", "0.33×"]


def test_without_a_baseline_the_fastest_of_each_size_is_the_reference():
    rows = [
        row(100, algorithm="ring", size="1 KiB"),
        row(50, algorithm="tree", size="1 KiB"),
        row(100, algorithm="ring", size="1 MiB"),
        row(250, algorithm="tree", size="1 MiB"),
    ]
    lines = comparison_text(rows).splitlines()
    assert lines[0] == "the fastest algorithm for each size has its time, others a multiple of it"
    assert lines[3].split() == ["ring", "2.00×", "100", "ns"] and lines[4].split() == ["tree", "50", "ns", "2.50×"]


def test_larger_machines_are_not_compared_with_smaller_ones():
    rows = [row(n * s, n, nodes=n, size=f"{s} KiB") for n in (4, 16) for s in (1, 2)]
    lines = comparison_text(rows).splitlines()
    assert lines[0] == "time by nodes and size" and lines[-1].split() == ["16", "16", "ns", "32", "ns"]


def test_a_name_among_quantities_makes_alternatives_of_them():
    column = multiples([row(10, flap="none"), row(20, flap="1 ms")])
    assert column is not None and column.cells == ["1.00×", "2.00×"]
    assert multiples([row(10, n="4 GPUs"), row(20, n="8 GPUs")]) is None


def test_counts_on_one_machine_are_alternatives():
    lines = comparison_text(swept(lambda tp, pp: 100 * tp + pp, tp=(1, 2), pp=(1, 2))).splitlines()
    assert lines[0] == "the fastest tp and pp has its time, others a multiple of it"
    assert sum("101 ns" in line for line in lines) == 1 and sum(line.count("×") for line in lines) == 3


def test_what_is_stuck_says_so_and_never_is_a_reference():
    rows = [row(None, algorithm="a", size="1 B"), row(7, algorithm="b", size="1 B"), row(14, algorithm="c", size="1 B")]
    rows += [row(None, algorithm=name, size="2 B") for name in "abc"]
    lines = comparison_text(rows).splitlines()
    assert [line.split() for line in lines[3:]] == [
        ["a", "stuck", "stuck"],
        ["b", "7", "ns", "stuck"],
        ["c", "2.00×", "stuck"],
    ]


def test_keys_that_go_together_are_one():
    rows = [
        row(s * (1 + "ab".index(t)), topology=t, npu=f"npu of {t}", size=f"{s} B") for t in "ab" for s in (10, 20, 30)
    ]
    assert "npu" not in comparison_text(rows) and len(comparison_text(rows).splitlines()) == 5


def test_one_key_makes_a_column_where_its_values_are_alternatives():
    column = multiples([row(30, layout="tp"), row(10, layout="pp"), row(None, layout="dp")])
    assert column is not None and (column.heading, column.cells) == ("time/best", ["3.00×", "1.00×", ""])
    column = multiples([row(30, topology="2d"), row(10, topology="ring"), row(5, topology="all")], [SLOWDOWN])
    assert column is not None and (column.heading, column.cells) == ("time/baseline", ["3.00×", "1.00×", "0.50×"])
    assert multiples([row(1, size="1 B"), row(2, size="2 B")]) is None, "larger sizes are no alternatives"
    assert multiples([row(1)]) is None and comparison_text([row(1)]) == "" == comparison_text([])


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize(
    "axes",
    [
        {"topology": ("ring", "torus"), "size": tuple(f"{s} KiB" for s in range(1, 60))},
        {"algorithm": tuple(f"a rather long name of an algorithm {i}" for i in range(50)), "size": ("1 KiB", "1 MiB")},
        {"a": ("x", "y", "z"), "b": ("u", "v"), "c": (1, 2, 4), "size": ("1 KiB", "1 MiB"), "d": ("p", "q", "r")},
        {"topology": ("環状ネットワーク", "b"), "size": ("1 KiB", "1 MiB")},
    ],
)
def test_it_fits_whatever_the_shape_of_the_sweep(axes, width):
    rows = swept(lambda **values: 10 + len(str(values)), **axes)
    lines = comparison_text(rows, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines and len(lines) <= 4 + 2 * MOST_ROWS
    shown = sum(line.count("×") + line.count(" ns") for line in lines)
    assert shown == len(rows) or lines[-1].startswith("left out: ")
