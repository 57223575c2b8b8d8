"""Tables are exact, the same everywhere, and no cell is a formula."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.records import Table
from astrasim_py.report import result_table, tables

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


def row(**more) -> dict:
    base = dict.fromkeys(tables.ROW_KEYS)
    return base | {"scenario": "s", "point": "p", "sweep": {"size": "1 MiB"}, "status": "done"} | more


@pytest.mark.parametrize(
    "value", ["9007199254740993.125", "0.001", "-1.5", "92233720368547758.07", "0", "1E+3", "12345678901234567890"]
)
def test_json_keeps_decimals_exact(value):
    text = tables.json_text({"time_ns": Decimal(value)})
    assert Decimal(tables.parse_json(text)["time_ns"]) == Decimal(value)
    assert "E" not in text
    assert float(json.loads(text)["time_ns"]) == float(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_is_what_the_standard_library_reads(value):
    assert json.loads(tables.json_text(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), {1, 2}, object()])
def test_json_refuses_what_it_cannot_hold(value):
    with pytest.raises((TypeError, ValueError)):
        tables.json_text([value])


def test_numpy_integers_are_numbers_in_json():
    assert tables.json_text([np.int64(3), True]) == "[3, true]"


@given(st.integers(0, 2**63 - 1))
def test_nanoseconds_are_exact(ps):
    assert tables.ps_of(tables.ns_number(ps)) == ps
    assert tables.ps_of(tables.parse_json(tables.json_text(tables.ns_number(ps)))) == ps


def test_bandwidths_are_bytes_per_nanosecond():
    assert tables.bandwidth_GBps(10**9, 10**12) == 1
    assert tables.bandwidth_GBps(1, 3) == Decimal("333.333333")
    assert tables.bandwidth_GBps(1, 0) is None
    assert tables.bounded(1, 3) == {"bound_ns": Decimal("0.001"), "efficiency": Decimal("0.333333333")}
    assert tables.bounded(3, 3)["efficiency"] == 1
    assert tables.bounded(0, 0) == {"bound_ns": 0, "efficiency": None}
    assert set(tables.bounded(4, 3).values()) == set(tables.bounded(None, 3).values()) == {None}


def test_the_table_of_a_run_is_plain_text():
    rows = [
        row(time_ns=Decimal("1500"), bound_ns=Decimal("750"), efficiency=Decimal("0.5"), messages=3),
        row(sweep={"size": "16 MiB"}, time_ns=None, status="stuck"),
    ]
    assert result_table.summary_text(rows).splitlines() == [
        "size      time   bound  bound/time  messages  status",
        "------  ------  ------  ----------  --------  ------",
        "1 MiB   1.5 us  750 ns      50.0 %         3  done",
        "16 MiB                                        stuck",
    ]
    assert result_table.summary_text([]) == "no points"


def test_text_of_the_user_stays_on_its_line():
    text = result_table.summary_text([row(sweep={"a\nb": "c\x1b[31m"})])
    assert len(text.splitlines()) == 3 and "\x1b" not in text


def test_a_point_without_a_sweep_is_shown_by_name():
    assert result_table.summary_text([row(sweep={}, point="only")]).splitlines()[2] == "only"


def test_collectives_have_their_bandwidths():
    table = Table(
        {
            "instance": [0, 1],
            "job": ["job0", "job0"],
            "group": ["world", "world"],
            "type": ["all_reduce", "barrier"],
            "size": [1000, 0],
            "algorithm": ["ring", ""],
            "ranks": [4, 4],
            "start": [0, -1],
            "end": [20_000, -1],
            "bound": [10_000, -1],
        }
    )
    done, missing = tables.collective_rows("p", table, {("all_reduce", 4): Fraction(3, 2)})
    assert (done["algbw_GBps"], done["busbw_GBps"], done["efficiency"]) == (50, 75, Decimal("0.5"))
    assert [missing[key] for key in ("start_ns", "time_ns", "bound_ns", "algbw_GBps", "busbw_GBps")] == [None] * 5
    assert "all_reduce" in tables.collectives_text([done, missing])


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
