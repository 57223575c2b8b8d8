"""Tables of records: columns that are made only when somebody asks."""

import pickle

import numpy as np
import pytest

from astrasim_py.core.records import Categorical, LazyColumns, Table


def counted():
    """A table with two later columns, and the list of its makings."""
    made = []

    def make():
        made.append(1)
        return {"rank": np.arange(3), "kind": Categorical(np.array([0, 1, 0], np.int8), ("comp", "coll"))}

    later = LazyColumns(3, make)
    return Table({"rank": later, "kind": later, "start": np.array([5, 6, 7])}), made


def test_lazy_columns_are_made_once_and_on_request():
    table, made = counted()
    assert list(table) == ["rank", "kind", "start"]
    assert table.height == 3
    assert table["start"].tolist() == [5, 6, 7]
    assert made == []
    assert table["kind"].tolist() == ["comp", "coll", "comp"]
    assert table["rank"].tolist() == [0, 1, 2]
    assert table.is_text("kind")
    assert not table.is_text("rank")
    assert table.coded("kind")[1] == ("comp", "coll")
    assert made == [1]


@pytest.mark.parametrize("first", ["is_text", "coded"])
def test_questions_about_a_lazy_column_make_it(first):
    table, made = counted()
    getattr(table, first)("kind")
    assert made == [1]


def test_lazy_columns_are_read_only_like_the_others():
    table, _ = counted()
    for name in ("rank", "kind", "start"):
        with pytest.raises(ValueError, match="read-only"):
            (table.coded(name)[0] if table.is_text(name) else table[name])[0] = 1


def test_another_process_gets_every_column():
    table, made = counted()
    there = pickle.loads(pickle.dumps(table))
    assert {name: there[name].tolist() for name in there} == {name: table[name].tolist() for name in table}
    assert made == [1]


def test_columns_of_unequal_length_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="unequal"):
        Table({"rank": LazyColumns(2, dict), "start": np.arange(3)})
