"""Tables of records as CSV and back, by columns: a run can record ten million rows.

A block of rows is formatted at once, which takes half as long as the standard library's writer. numpy reads the tables.
"""

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from numbers import Integral

import numpy as np

from astrasim_py.core.exact_json import plain
from astrasim_py.core.records import Categorical, Table
from astrasim_py.core.units import INT64_MAX

#: Columns of records that hold text; every other column holds whole numbers.
TEXT_COLUMNS = frozenset({"job", "group", "type", "algorithm", "kind", "name"})

# A spreadsheet takes a cell that begins with one of these for a formula (or strips it to reach one).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_CHUNK_ROWS = 65536


def csv_cell(text: str) -> str:
    """A text cell, quoted where needed and protected from being read as a formula.

    Text that begins with ``= + - @``, a tab, a carriage return or an apostrophe gets an apostrophe in front;
    `csv_text` takes it off again.

    >>> csv_cell("=1+1"), csv_cell("a,b"), csv_cell("plain")
    ("'=1+1", '"a,b"', 'plain')
    """
    if text.startswith(_FORMULA):
        text = "'" + text
    if any(c in text for c in ',"\n\r'):
        text = '"' + text.replace('"', '""') + '"'
    return text


def csv_text(cell: str) -> str:
    """The text that `csv_cell` was given, after the CSV reader took off the quotes."""
    return cell[1:] if cell.startswith("'") else cell


def csv_chunks(table: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """A table of records as CSV, a block of rows at a time (UTF-8, lines end with a newline)."""
    yield (",".join(map(csv_cell, table)) + "\n").encode()
    if not isinstance(table, Table):
        table = Table(table)
    cells_of = [_cells(table, name) for name in table]
    line = ",".join(["%s"] * len(cells_of)) + "\n"
    for first in range(0, table.height, _CHUNK_ROWS):
        part = slice(first, min(first + _CHUNK_ROWS, table.height))
        rows = zip(*(cells(part) for cells in cells_of), strict=True)
        yield (line * (part.stop - part.start) % tuple(chain.from_iterable(rows))).encode()


def _cells(table: Table, name: str) -> Callable[[slice], list]:
    """A function from a slice of rows to the cells of a column."""
    if table.is_text(name):
        codes, labels = table.coded(name)
        texts = [csv_cell(str(label)) for label in labels]
        return lambda part: [texts[code] for code in codes[part].tolist()]
    column = table[name]
    if column.dtype.kind == "S":  # ASCII, nothing to quote
        return lambda part: column[part].astype(str).tolist()
    if column.dtype.kind == "f":
        return lambda part: ["" if value != value else value for value in column[part].tolist()]
    return lambda part: column[part].tolist()


def read_csv(data: bytes) -> Table:
    """The table that `csv_chunks` wrote. Columns beside `TEXT_COLUMNS` hold whole numbers, or numbers with a point
    (empty: NaN). Raises ValueError: rows of unequal length, or a cell that is no number.
    """
    stream = io.StringIO(data.decode(), newline="")
    names = [csv_text(cell) for line in csv.reader([stream.readline()]) for cell in line]
    begin = stream.tell()
    try:
        # loadtxt reads beyond its memory at a character of other alphabets in place of a number.
        number = np.int64 if data.isascii() else object
        cells = _cells_of(stream, [object if name in TEXT_COLUMNS else number for name in names])
    except ValueError:  # fractions, empty cells, numbers beyond int64
        stream.seek(begin)
        cells = _cells_of(stream, [object] * len(names))
    columns: dict[str, np.ndarray | Categorical] = {}
    for name, column in zip(names, cells, strict=True):
        if name in TEXT_COLUMNS:
            texts = Categorical.of(column.tolist())
            columns[name] = Categorical(texts.codes, [csv_text(cell) for cell in texts.labels])
        else:
            columns[name] = _numbers(column.tolist()) if column.dtype == object else column
    return Table(columns)


def _cells_of(stream: io.StringIO, kinds: Sequence[type]) -> list[np.ndarray]:
    """The columns of the rest of a file."""
    names = [f"f{i}" for i in range(len(kinds))]
    fields = np.dtype(list(zip(names, kinds, strict=True)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data")
        # Some versions of numpy would cut off fractions.
        warnings.filterwarnings("error", category=DeprecationWarning)
        rows = np.loadtxt(stream, dtype=fields, delimiter=",", quotechar='"', comments=None, ndmin=1)
    return [np.ascontiguousarray(rows[name]) for name in names]


def _numbers(cells: Sequence[str]) -> np.ndarray:
    try:
        integers = list(map(int, cells))
    except ValueError:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    low, high = min(integers, default=0), max(integers, default=0)
    kind = np.int64 if high <= INT64_MAX else np.uint64
    if low < np.iinfo(kind).min or high > np.iinfo(kind).max:
        raise ValueError("numbers beyond 64 bits, or below 0 and beyond 2^63 - 1 in one column")
    return np.array(integers, dtype=kind)


def csv_rows(keys: Sequence[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Rows of plain values as CSV; None is an empty cell, decimals are exact."""
    lines = [",".join(map(csv_cell, keys))]
    lines += [",".join(value_cell(row.get(key)) for key in keys) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def value_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, float):
        return repr(value)
    return str(int(value)) if isinstance(value, Integral) else csv_cell(str(value))
