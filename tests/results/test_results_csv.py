"""Records as CSV: what the standard library would write and read, column by column."""

from __future__ import annotations

import csv
import io
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.records import NODE_COLUMNS, Categorical, Table, empty_table
from astrasim_py.results import csv_io
from astrasim_py.results.csv_io import csv_cell, csv_chunks, csv_text, read_csv

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
#: Texts without quotes.
PLAIN = st.text(st.sampled_from("ab0é-='€ "), max_size=30) | st.just("x" * 80)
SIGNED = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-1, 10**4)
    | st.sampled_from([10**k - s for k in range(19) for s in (0, 1)])
)
BLOCKS = st.sampled_from([1, 3, 65536])


def column(texts) -> np.ndarray:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def plainly(table: Table) -> bytes:
    """What `csv_chunks` is to write, cell by cell."""
    lines = [",".join(table)]
    for row in table.rows():
        cells = [csv_cell(v) if isinstance(v, str) else "" if v != v else repr(v) for v in row.values()]
        lines.append(",".join(cells))
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(autouse=True, scope="module")
def _blocks_back():
    before = csv_io._CHUNK_ROWS
    yield
    csv_io._CHUNK_ROWS = before


@given(st.lists(st.tuples(SIGNED, TEXT | PLAIN, PLAIN, st.integers(0, 2**64 - 1)), max_size=12), BLOCKS)
def test_csv_reads_back_what_was_written(rows, blocks):
    csv_io._CHUNK_ROWS = blocks
    numbers, first, second, wide = ([row[i] for row in rows] for i in range(4))
    table = Table(
        {
            "start": np.array(numbers, dtype=np.int64),
            "name": column(first),
            "kind": Categorical.of(second),
            "node": np.array(wide, dtype=np.uint64),
        }
    )
    data = b"".join(csv_chunks(table))
    assert data == plainly(table)
    again = read_csv(data)
    assert [again[name].tolist() for name in table] == [numbers, first, second, wide]
    assert again["start"].dtype == np.int64
    lines = list(csv.reader(io.StringIO(data.decode(), newline="")))[1:]
    assert [csv_text(line[1]) for line in lines] == first
    assert not any(line[1].startswith(("=", "+", "-", "@", "\t", "\r")) for line in lines)


@pytest.mark.parametrize("width", [np.int8, np.uint8, np.int16, np.int32, np.uint64])
def test_whole_numbers_of_every_width(width):
    ends = np.iinfo(width)
    table = Table({"start": np.array([ends.min, ends.max, 0, 1, 9, 10, 99, 100, 127], dtype=width)})
    data = b"".join(csv_chunks(table))
    assert data.decode().split()[1:] == [str(int(v)) for v in table["start"]]
    assert read_csv(data)["start"].tolist() == table["start"].tolist()


def test_csv_of_fractional_columns():
    x = np.array([float("nan"), 0.1, -2.5e-9, 1e300, 3.0])
    again = read_csv(b"".join(csv_chunks(Table({"x": x, "start": np.arange(5)}))))
    np.testing.assert_array_equal(again["x"], x)
    assert again["start"].tolist() == [0, 1, 2, 3, 4]


def test_csv_of_many_blocks():
    csv_io._CHUNK_ROWS = 7
    names = [f"n{i % 3}" for i in range(50)]
    table = Table({"start": np.arange(50), "name": Categorical.of(names)})
    chunks = list(csv_chunks(table))
    assert len(chunks) == 9  # the heading, and eight blocks
    again = read_csv(b"".join(chunks))
    assert again["start"].tolist() == list(range(50)) and again["name"].tolist() == names
    assert sorted(again.coded("name")[1]) == ["n0", "n1", "n2"]


def test_fractions_are_kept_where_warnings_are_shown_or_ignored():
    for action in ("ignore", "always"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            assert read_csv(b"x,y\n0.0,1\n0.636619772,2\n")["x"].tolist() == [0.0, 0.636619772]


def test_fractions_and_numbers_beyond_int64_count_for_the_whole_column():
    assert read_csv(b"x,start\n1,1\n2.5,9223372036854775808\n")["x"].tolist() == [1.0, 2.5]
    assert read_csv(b"x,start\n1,1\n2.5,9223372036854775808\n")["start"].tolist() == [1, 2**63]


def test_an_empty_table_has_its_heading():
    data = b"".join(csv_chunks(empty_table(NODE_COLUMNS)))
    assert data.decode() == ",".join(NODE_COLUMNS) + "\n"
    assert read_csv(data).height == 0 and list(read_csv(data)) == list(NODE_COLUMNS)


@pytest.mark.parametrize(
    "data",
    [
        b"a,b\n1\n",
        b"a,b\n1,2,3\n",
        b'a,b\n"1"\n',
        b"a,b\n1,2\n3\n,4,5\n",
        b"a,b\n1,2\n3,4,5\n6\n",
        b"start\nx\n",
        b"start\n-\n",
        b"start\n1-2\n",
        b"start\n12345678/\n",
        b"start\n-9223372036854775809\n",
        b"start\n18446744073709551616\n",
        "start\n\U000d68cb\n".encode(),
        b"name\n\xff\n",
    ],
)
def test_a_damaged_csv_is_refused(data):
    with pytest.raises(ValueError):
        read_csv(data)


def test_a_coded_column_is_one_of_text():
    table = Table({"kind": Categorical(np.array([1, 0, 1], dtype=np.uint8), ("recv", "send")), "start": [3, 4, 5]})
    assert table["kind"].tolist() == ["send", "recv", "send"] and table.height == 3
    assert (table["kind"] == "send").tolist() == [True, False, True] and table["kind"] is table["kind"]
    assert next(table.rows()) == {"kind": "send", "start": 3}
    assert table.is_text("kind") and not table.is_text("start")
    codes, labels = Table({"kind": column(["b", "a", "b"])}).coded("kind")
    assert (codes.tolist(), labels) == ([0, 1, 0], ("b", "a"))
