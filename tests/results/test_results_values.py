"""Numbers of results are exact."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.exact_json import json_text, parse_json
from astrasim_py.core.records import Table
from astrasim_py.report.tables import collectives_text
from astrasim_py.results.collectives import bandwidth_GBps, bounded, collective_rows
from astrasim_py.results.values import ns_number, ps_of


@given(st.integers(0, 2**63 - 1))
def test_nanoseconds_are_exact(ps):
    assert ps_of(ns_number(ps)) == ps
    assert ps_of(parse_json(json_text(ns_number(ps)))) == ps


def test_bandwidths_are_bytes_per_nanosecond():
    assert bandwidth_GBps(10**9, 10**12) == 1
    assert bandwidth_GBps(1, 3) == Decimal("333.333333")
    assert bandwidth_GBps(1, 0) is None
    assert bounded(1, 3) == (Decimal("0.001"), Decimal("0.333333333"))
    assert bounded(3, 3).efficiency == 1
    assert bounded(0, 0) == (0, None)
    assert bounded(4, 3) == bounded(None, 3) == (None, None)


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
    done, missing = collective_rows("p", table, {("all_reduce", 4): Fraction(3, 2)})
    assert (done["algbw_GBps"], done["busbw_GBps"], done["efficiency"]) == (50, 75, Decimal("0.5"))
    assert [missing[key] for key in ("start_ns", "time_ns", "bound_ns", "algbw_GBps", "busbw_GBps")] == [None] * 5
    assert "all_reduce" in collectives_text([done, missing])
