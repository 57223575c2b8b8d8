"""Tables of records as CSV and back, by columns: a run can record ten million rows.

Writing turns a block of rows into a matrix of bytes, in which every cell of a column has the same width; blanks are
bytes that UTF-8 never uses, removed from the whole block at once. The standard library's writer takes four times as
long, and a folded run writes hundreds of megabytes. numpy reads the tables.
"""

import csv
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from astrasim_py.core.records import Categorical, Table
from astrasim_py.core.units import INT64_MAX

#: Columns of records that hold text; every other column holds whole numbers.
TEXT_COLUMNS = frozenset({"job", "group", "type", "algorithm", "kind", "name"})

# A spreadsheet takes a cell that begins with one of these for a formula (or strips it to reach one).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_CHUNK_ROWS = 65536
_CHUNK_BYTES = 2**22
_BLANK = b"\xff"
_COMMA, _NEWLINE = (np.array([[ord(end)]], dtype=np.uint8) for end in ",\n")
#: Texts of more bytes than these are handled one by one.
_LONG = 64
_TEN = np.uint64(10)


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
    makers = [_cells(table, name) for name in table]
    # Cells are as wide as the widest: of long texts there are fewer rows in a block.
    widest = max((len(str(text)) for name in table if table.is_text(name) for text in table.coded(name)[1]), default=0)
    step = max(min(_CHUNK_ROWS, _CHUNK_BYTES // max(widest, 1)), 1)
    for first in range(0, table.height, step):
        part = slice(first, min(first + step, table.height))
        cells = [cell for make in makers for cell in (make(part), _COMMA)]
        cells[-1] = _NEWLINE
        rows = part.stop - part.start
        block = np.concatenate([np.broadcast_to(cell, (rows, cell.shape[1])) for cell in cells], axis=1)
        yield block.tobytes().translate(None, _BLANK)


def _cells(table: Table, name: str):
    """A function from a slice of rows to the cells of a column, uint8[rows, width]."""
    if table.is_text(name):
        codes, labels = table.coded(name)
        texts = [csv_cell(str(label)).encode() for label in labels]
        if max(map(len, texts), default=0) <= _LONG:
            matrix = _text_cells(texts)
            return lambda part: matrix[codes[part]]
        return lambda part: _text_cells([texts[code] for code in codes[part].tolist()])
    column = table[name]
    if column.dtype.kind in "iu":
        return lambda part: _digit_cells(column[part])
    if column.dtype.kind == "S":
        return lambda part: _ascii(column[part])
    return lambda part: _fractions(column[part])


def _ascii(column: np.ndarray) -> np.ndarray:
    """Cells that are bytes already (ASCII, nothing to quote), as rows of bytes."""
    matrix = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.dtype.itemsize)
    return np.where(matrix == 0, np.uint8(_BLANK[0]), matrix)


def _fractions(column: np.ndarray) -> np.ndarray:
    """Numbers with a point as rows of bytes; most occur in many rows."""
    bits, rows = np.unique(np.ascontiguousarray(column, dtype=np.float64).view(np.int64), return_inverse=True)
    values = bits.view(np.float64).tolist()
    return _text_cells([b"" if v != v else repr(v).encode() for v in values])[rows]


def _text_cells(texts: Sequence[bytes]) -> np.ndarray:
    """Texts of unequal length as rows of bytes, filled up with blanks."""
    width = max(map(len, texts), default=0)
    joined = b"".join([text.ljust(width, _BLANK) for text in texts])
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)


def _digit_cells(column: np.ndarray) -> np.ndarray:
    """Whole numbers as rows of characters: a sign or a blank, then digits with blanks in front."""
    negative = column < 0
    rest = column.astype(np.uint64)
    rest[negative] = -rest[negative]
    width = len(str(int(rest.max(initial=0))))
    matrix = np.empty((len(rest), width + 1), dtype=np.uint8)
    matrix[:, 0] = np.where(negative, ord("-"), _BLANK[0])
    for place in range(width, 0, -1):
        above = rest // _TEN
        digit = (rest - above * _TEN).astype(np.uint8) + np.uint8(ord("0"))
        matrix[:, place] = digit if place == width else np.where(rest > 0, digit, np.uint8(_BLANK[0]))
        rest = above
    return matrix


def read_csv(data: bytes) -> Table:
    """The table that `csv_chunks` wrote. Columns beside `TEXT_COLUMNS` hold whole numbers, or numbers with a point
    (empty: NaN). Raises ValueError: rows of unequal length, or a cell that is no number.
    """
    stream = io.StringIO(data.decode(), newline="")
    names = [csv_text(cell) for line in csv.reader([stream.readline()]) for cell in line]
    begin = stream.tell()
    try:
        cells = _cells_of(stream, [object if name in TEXT_COLUMNS else np.int64 for name in names])
    except ValueError:  # fractions, empty cells, numbers beyond int64
        stream.seek(begin)
        cells = _cells_of(stream, [object] * len(names))
    columns: dict[str, np.ndarray | Categorical] = {}
    for name, column in zip(names, cells, strict=True):
        if name in TEXT_COLUMNS:
            found = Categorical.of(column.tolist())
            columns[name] = Categorical(found.codes, [csv_text(cell) for cell in found.labels])
        else:
            columns[name] = _numbers(column.tolist()) if column.dtype == object else column
    return Table(columns)


def _cells_of(stream: io.StringIO, kinds: Sequence[type]) -> list[np.ndarray]:
    """The columns of the rest of a file."""
    fields = np.dtype([(f"f{i}", kind) for i, kind in enumerate(kinds)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data")
        rows = np.loadtxt(stream, dtype=fields, delimiter=",", quotechar='"', comments=None, ndmin=1)
    return [np.ascontiguousarray(rows[name]) for name in fields.names]


def _numbers(cells: Sequence[str]) -> np.ndarray:
    try:
        whole = list(map(int, cells))
    except ValueError:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    if whole and max(whole) > INT64_MAX and min(whole) < 0:
        raise ValueError("numbers below 0 and beyond 2^63 - 1 in one column")
    return np.array(whole, dtype=np.uint64 if whole and max(whole) > INT64_MAX else np.int64)
