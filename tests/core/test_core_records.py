"""Tables of records: columns of numbers and of text."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from astrasim_py.core.records import Categorical, Table


def a_table() -> Table:
    kind = Categorical(np.array([0, 1, 0], dtype=np.int8), ("comp", "coll"))
    return Table({"rank": np.arange(3), "kind": kind, "start": [5, 6, 7]})


def test_a_table_is_a_mapping_of_its_columns():
    table = a_table()
    assert list(table) == ["rank", "kind", "start"]
    assert table.height == 3
    assert table["kind"].tolist() == ["comp", "coll", "comp"]
    assert table.is_text("kind") and not table.is_text("rank")
    assert table.coded("kind")[1] == ("comp", "coll")
    assert next(table.rows()) == {"rank": 0, "kind": "comp", "start": 5}


def test_columns_are_read_only():
    table = a_table()
    for name in table:
        with pytest.raises(ValueError, match="read-only"):
            (table.coded(name)[0] if table.is_text(name) else table[name])[0] = 1


def test_another_process_gets_every_column():
    table = a_table()
    there = pickle.loads(pickle.dumps(table))
    assert {name: there[name].tolist() for name in there} == {name: table[name].tolist() for name in table}


def test_columns_of_a_function_are_made_once_when_used():
    calls = []

    def make() -> dict:
        calls.append(1)
        return {"rank": [0, 1, 1], "kind": Categorical.of(["comp", "coll", "comp"])}

    table = Table({"rank": make, "kind": make, "start": [5, 6, 7]})
    assert (list(table), table.height, table["start"].tolist(), calls) == (["rank", "kind", "start"], 3, [5, 6, 7], [])
    assert table.is_text("kind") and table["kind"].tolist() == ["comp", "coll", "comp"]
    assert table["rank"].tolist() == [0, 1, 1] and calls == [1]
    there = pickle.loads(pickle.dumps(Table({"rank": make, "kind": make})))
    assert there["rank"].tolist() == [0, 1, 1] and there.coded("kind")[1] == ("comp", "coll")


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="unequal"):
        Table({"rank": np.arange(2), "start": np.arange(3)})
