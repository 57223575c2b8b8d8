"""JSON keeps decimal numbers exact."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.exact_json import json_text, parse_json

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


@pytest.mark.parametrize(
    "value", ["9007199254740993.125", "0.001", "-1.5", "92233720368547758.07", "0", "1E+3", "12345678901234567890"]
)
def test_json_keeps_decimals_exact(value):
    text = json_text({"time_ns": Decimal(value)})
    assert Decimal(parse_json(text)["time_ns"]) == Decimal(value)
    assert "E" not in text
    assert float(json.loads(text)["time_ns"]) == float(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_is_what_the_standard_library_reads(value):
    assert json.loads(json_text(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), {1, 2}, object()])
def test_json_refuses_what_it_cannot_hold(value):
    with pytest.raises((TypeError, ValueError)):
        json_text([value])


def test_numpy_integers_are_numbers_in_json():
    assert json_text([np.int64(3), True]) == "[3, true]"
