"""The table of a run fits the terminal, answers the question of many rows, and can be sorted, filtered and exported."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from rich.cells import cell_len

from astrasim_py.core.errors import UsageError
from astrasim_py.report.result_table import columns_of, csv_text, markdown_text, summary_text
from astrasim_py.report.row_selection import parse_selection
from astrasim_py.results.model import Row

SIZES = ("1 KiB", "64 KiB", "1 MiB")


def row(time: int | None, **sweep: object) -> Row:
    return Row(
        scenario="s",
        point=",".join(f"{k}={v}" for k, v in sweep.items()),
        sweep={key: str(value) for key, value in sweep.items()},
        time_ns=None if time is None else Decimal(time),
        bound_ns=Decimal(10),
        efficiency=None if time is None else Decimal(10) / time,
        busbw_GBps=Decimal(40),
        algbw_GBps=Decimal(20),
        exposed_comm_ns=None if time is None else Decimal(time),
        messages=24,
        busiest_link="0->1",
        busiest_link_GBps=Decimal(50),
        status="stuck" if time is None else "done",
    )


ROWS = [row(10 * (i + 1) * (j + 1), topology=t, size=s) for i, t in enumerate("abc") for j, s in enumerate(SIZES)]


@pytest.mark.parametrize("width", [1, 12, 24, 40, 79, 80, 100, 200])
def test_no_line_of_the_table_is_wider_than_the_terminal(width):
    long = [row(5, topology="ring of very many NPUs 環状ネットワーク" * 2, size="1 MiB"), *ROWS]
    for rows in (ROWS, long, ROWS[:1]):
        lines = summary_text(rows, width).splitlines()
        table = [line for line in lines if not line.startswith("+")]
        assert max(map(cell_len, table)) <= width
        assert len(table) == len(rows) + 2, "nothing is wrapped, and no row is lost"
        assert width < 24 or all("us" in line or "ns" in line for line in table[2:]), "the time stays"


def test_columns_that_tell_least_go_first_and_are_counted():
    wide = summary_text(ROWS)
    assert wide == summary_text(ROWS, 500) and "+" not in wide
    lines = summary_text(ROWS, 40).splitlines()
    # Constant ones (bandwidths, bound, messages, link) go before those that differ.
    assert lines[0].split() == ["topology", "size", "time", "bound/time"]
    assert lines[-1] == "+7 columns in summary.csv"
    assert summary_text(ROWS, len(wide.splitlines()[0]) - 1).splitlines()[-1] == "+1 column in summary.csv"
    same = summary_text([row(t, topology="a", size=s) for t, s in zip((1, 2), SIZES, strict=False)], 14)
    assert same.splitlines()[0].split() == ["size", "time"], "a swept key with one value, too"


def test_wide_letters_stay_aligned():
    text = summary_text([row(5, topology="環状"), row(5, topology="ab")]).splitlines()
    assert cell_len(text[2].split("5 ns")[0]) == cell_len(text[3].split("5 ns")[0])


def test_many_rows_show_the_first_and_the_last():
    rows = [row(s, size=f"{s} KiB") for s in range(1, 301)]
    lines = summary_text(rows, None, 30).splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == [*map(str, range(1, 16)), "…", *map(str, range(286, 301))]
    assert lines[-1] == "the first and the last 15; all 300 rows: summary.csv, --top, --sort, --where"
    assert summary_text(rows, 60, 30).splitlines()[-2:] == lines[-1].split("; ")
    first = summary_text(rows, None, 30, ordered=True).splitlines()
    assert len(first) == 33 and first[-1].startswith("the first 30; all 300")
    assert len(summary_text(rows[:30], None, 30).splitlines()) == 32, "30 rows are"


@pytest.mark.parametrize(
    ("where", "left"),
    [
        (["topology=a"], 3),
        (["topology!=a"], 6),
        (["topology=[ab]"], 6),
        (["size>=64KiB", "size<1MiB"], 3),
        (["size=65536"], 3),
        (["time<=20ns"], 3),
        (["time_ns<=20"], 3),
        (["bound/time>=50%"], 3),
        (["bound/time>=0.5"], 3),
        (["busbw>=40"], 9),
        (["busbw>40 GB/s"], 0),
        (["status=done", "size>1 KiB", "topology>= b"], None),
        (["algorithm=ring"], 0),
    ],
)
def test_rows_are_chosen_by_values_not_by_letters(where, left):
    selection = parse_selection(where, None, None)
    if left is None:
        with pytest.raises(UsageError, match="cannot be compared"):
            selection.of(ROWS)
    else:
        assert len(selection.of(ROWS)) == left


def test_rows_are_sorted_by_what_they_are_worth():
    sizes = lambda text, top=None: [r.sweep["size"] for r in parse_selection([], text, top).of(ROWS[:3])]  # noqa: E731
    assert sizes("size") == list(SIZES) and sizes("-size") == list(SIZES[::-1])
    assert sizes("-time") == list(SIZES[::-1]) and sizes("-time", 1) == ["1 MiB"]
    some = [row(None, size="1 B"), *ROWS]
    assert [r.time_ns for r in parse_selection([], "-time", None).of(some)][-1] is None, "what has none comes last"


@pytest.mark.parametrize(
    ("where", "sort", "says"),
    [
        ([], "tiem", 'there is no column "tiem"; did you mean "time"'),
        (["sizes=1"], None, 'did you mean "size"'),
        (["topology=aa"], None, 'no point has topology=aa; did you mean "a"'),
        (["size>=5 GB/s"], None, "cannot be compared"),
        (["size"], None, 'is no condition; write e.g. topology=ring or "size>=1 MiB"'),
    ],
)
def test_mistakes_are_told_before_anything_runs(where, sort, says):
    with pytest.raises(UsageError, match=says):
        parse_selection(where, sort, None).check({"topology": ("a", "b", "c"), "size": SIZES})


def test_other_programs_read_the_rows():
    rows = list(csv.DictReader(io.StringIO(csv_text(ROWS))))
    assert len(rows) == 9 and rows[0]["size"] == "1 KiB" and rows[0]["time_ns"] == "10"
    lines = markdown_text(columns_of([row(5, topology="a|b")])).splitlines()
    assert lines[0].startswith("| topology | time |") and lines[1].startswith("| --- | ---: |")
    assert lines[2].startswith("| a\\|b | 5 ns |")
