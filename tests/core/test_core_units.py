"""Quantities carry their units; inside are exact integers and fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core import units
from astrasim_py.core.errors import UnitError


@pytest.mark.parametrize(
    ("text", "ps"),
    [("500 ns", 500_000), ("1.5us", 1_500_000), ("0 s", 0), ("2 ms", 2 * 10**9), ("1 ps", 1), ("0.1 ps", 1)],
)
def test_times_are_picoseconds_rounded_up(text, ps):
    assert units.parse_time(text) == ps


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("64 KiB", 65536), ("1 GiB", 2**30), ("1 GB", 10**9), ("8 b", 1), ("1.5 kB", 1500), ("16 Mbit", 2 * 10**6)],
)
def test_sizes_are_bytes(text, nbytes):
    assert units.parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50 GB/s", Fraction(50 * 10**9)),
        ("400 Gb/s", Fraction(50 * 10**9)),
        ("400 Gbps", Fraction(50 * 10**9)),
        ("50 GiB/s", Fraction(50 * 2**30)),
        ("33.3 GiB/s", Fraction(333, 10) * 2**30),
    ],
)
def test_bandwidths_are_exact(text, rate):
    assert units.parse_bandwidth(text) == rate


def test_decimal_bandwidths_can_be_read_as_binary():
    assert units.parse_bandwidth("50 GB/s", binary=True) == units.parse_bandwidth("50 GiB/s")
    assert units.parse_bandwidth("400 Gb/s", binary=True) == 50 * 10**9


def test_compute_rates_and_operations():
    assert units.parse_compute_rate("312 TFLOP/s") == 312 * 10**12
    assert units.parse_operations("2.5 GFLOP") == 25 * 10**8


@pytest.mark.parametrize(
    "value",
    [
        "500",
        500,
        5.0,
        None,
        True,
        "fast",
        "",
        "nan ns",
        "inf ns",
        "1e400 ns",
        "-1 ns",
        "1 parsec",
        "1 GB",
        "١ ns x",
        "9" * 400 + " ns",
        "200 days",
        "1e30 s",
    ],
)
def test_what_is_no_time_is_refused_with_an_example(value):
    with pytest.raises(UnitError) as caught:
        units.parse_time(value, "s.yaml:5:19: latency")
    assert str(caught.value).startswith("s.yaml:5:19: latency: ")
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["0 GB/s", "-5 GB/s", "NaN GB/s", "inf GB/s", "50", "1e400 GB/s", "50 GB"])
def test_what_is_no_bandwidth_is_refused(value):
    with pytest.raises(UnitError):
        units.parse_bandwidth(value)


def test_sizes_are_whole_and_bounded():
    for bad in ("0.5 B", "3 b", "9223372036854775808 B", "8 EiB"):
        with pytest.raises(UnitError):
            units.parse_size(bad)
    assert units.parse_size("9223372036854775807 B") == 2**63 - 1


@given(st.integers(0, 10**15), st.integers(1, 10**13))
def test_transfer_time_is_the_ceiling(nbytes, rate):
    ps = units.transfer_ps(nbytes, Fraction(rate))
    assert (ps - 1) * rate < nbytes * 10**12 <= ps * rate or (nbytes == 0 and ps == 0)


@given(st.integers(0, 10**18))
def test_nanoseconds_are_exact_decimals(ps):
    assert Fraction(units.ns_text(ps)) * 1000 == ps
