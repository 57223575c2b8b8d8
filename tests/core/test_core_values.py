"""Digests tell different values apart and do not depend on order of keys; tables are read-only columns."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.choices import LEVELS
from astrasim_py.core.digest import digest
from astrasim_py.core.records import Table, empty_table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.fractions(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_equal_digests_mean_equal_values(a, b):
    def plain(value):
        if isinstance(value, list):
            return ("l", tuple(plain(v) for v in value))
        if isinstance(value, dict):
            return ("m", tuple(sorted((k, plain(v)) for k, v in value.items())))
        return (type(value).__name__, value)

    assert (digest(a) == digest(b)) == (plain(a) == plain(b))


@dataclasses.dataclass(frozen=True)
class Pair:
    a: int
    b: object


def test_digests_of_arrays_and_dataclasses():
    assert digest(np.arange(3)) == digest(np.arange(3).astype(">i8"))
    assert digest(np.arange(3)) != digest(np.arange(3, dtype=np.int32))
    assert digest(Pair(1, (2, Fraction(1, 3)))) == digest(Pair(1, [2, Fraction(1, 3)]))
    with pytest.raises(TypeError):
        digest({1, 2})


def test_tables_are_columns_of_equal_length():
    table = Table({"a": [1, 2], "b": ["x", "y"]})
    assert table.height == 2
    assert list(table.rows()) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(ValueError):
        table["a"][0] = 5
    with pytest.raises(ValueError):
        Table({"a": [1], "b": [1, 2]})
    assert empty_table(("a",)).height == 0
    assert LEVELS[0] == "summary"
