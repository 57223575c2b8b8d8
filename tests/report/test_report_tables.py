"""The table of a run is plain text, the same everywhere."""

from __future__ import annotations

from decimal import Decimal

import pytest

from astrasim_py.report import result_table
from astrasim_py.results.model import Row


def row(**more) -> Row:
    return Row(**{"scenario": "s", "point": "p", "sweep": {"size": "1 MiB"}, "status": "done"} | more)


def test_the_table_of_a_run_is_plain_text():
    rows = [
        row(time_ns=Decimal("1500"), bound_ns=Decimal("750"), efficiency=Decimal("0.5"), messages=3),
        row(sweep={"size": "16 MiB"}, time_ns=None, status="stuck"),
    ]
    assert result_table.summary_text(rows).splitlines() == [
        "size      time   bound  bound/time  messages  status",
        "------  ------  ------  ----------  --------  ------",
        "1 MiB   1.5 µs  750 ns      50.0 %         3  done",
        "16 MiB                                        stuck",
    ]
    assert result_table.summary_text([]) == "no points"


def test_text_of_the_user_stays_on_its_line():
    text = result_table.summary_text([row(sweep={"a\nb": "c\x1b[31m"})])
    assert len(text.splitlines()) == 3 and "\x1b" not in text


def test_a_point_without_a_sweep_is_shown_by_name():
    assert result_table.summary_text([row(sweep={}, point="only")]).splitlines()[2] == "only"


@pytest.mark.parametrize(
    "swept,algorithms,is_shown",
    [
        ({"size": ["1 KiB", "1 MiB"]}, ["ring", "ring"], False),
        ({"size": ["1 KiB", "1 MiB"]}, ["tree", "ring"], True),
        ({"size": ["1 KiB", "1 MiB"]}, ["ring LL", "ring LL"], True),
        ({"algorithm": ["a", "b"]}, ["tree", "ring"], False),
        ({"algorithm": ["nccl", "nccl"], "size": ["1 KiB", "1 MiB"]}, ["tree", "ring"], True),
        ({"topology": ["a", "b"]}, ["tree", "ring"], True),
        ({"size": ["1 KiB", "1 MiB"]}, [None, "ring"], False),
    ],
)
def test_the_table_says_what_was_chosen_where_the_sweep_does_not(swept, algorithms, is_shown):
    rows = [
        row(algorithm=name, sweep={key: values[i] for key, values in swept.items()})
        for i, name in enumerate(algorithms)
    ]
    assert ("chosen" in result_table.summary_text(rows).splitlines()[0]) == is_shown
