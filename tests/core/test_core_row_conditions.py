"""``--where``: conditions compare by worth; commas separate alternatives, but in quotes and brackets."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.errors import UsageError
from astrasim_py.core.row_conditions import Cell, parse_condition
from astrasim_py.core.value_order import value_order


def holds(condition: str, value: str) -> bool:
    return parse_condition(condition).holds(Cell(*value_order(value)))


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_sizes_compare_as_numbers_of_bytes_do(a, b):
    for sign, is_so in ((">=", a >= b), ("<=", a <= b), ("<", a < b), (">", a > b), ("=", a == b), ("!=", a != b)):
        assert holds(f"size{sign}{b} B", f"{a} B") == is_so


@given(st.lists(st.text(alphabet='ab ,{}[]"', min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_each_quoted_alternative_is_one_value(values, data):
    condition = "name=" + ",".join('"{}"'.format(value.replace('"', '""')) for value in values)
    wanted = data.draw(st.sampled_from(values))
    parts = parse_condition(condition).values
    assert list(parts[len(values) > 1 :]) == values
    assert parse_condition(condition).holds(Cell(4, Fraction(0), wanted))


@pytest.mark.parametrize(
    ("condition", "value", "is_so"),
    [
        ("ranks=2,8", "8", True),
        ("ranks=2,8", "4", False),
        ("ranks!=2,8", "4", True),
        ("ranks!=2,8", "2", False),
        ("size=1 MiB, 2 MiB", "2048 KiB", True),
        ("name=t*,ring", "torus_2d", True),
        ("name=t*,ring", "mesh", False),
        ("t={shape: ring, npus: 8}", "{shape: ring, npus: 8}", True),
        ("t={shape: ring, npus: 8},mesh", "mesh", True),
        ("placement=0,1,2", "0,1,2", True),
        ('name="a,b"', "a", False),
        ("time<=1 us", "1000 ns", True),
    ],
)
def test_what_holds(condition, value, is_so):
    assert holds(condition, value) == is_so


def test_a_limit_is_one_value_of_its_kind():
    with pytest.raises(UsageError, match="has several limits; write one"):
        parse_condition("size>=1 MiB,2 MiB")
    with pytest.raises(UsageError, match="cannot be compared"):
        holds("size>=1 MiB", "ring")
    with pytest.raises(UsageError, match=r"--hold-out: .*is no condition"):
        parse_condition("size", "--hold-out")
