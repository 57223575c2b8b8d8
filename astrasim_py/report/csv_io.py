"""Tables of records as CSV and back: columns at a time, for a run can leave ten million rows.

A block of rows becomes a matrix of bytes in which every cell has the width of its column; blanks are bytes that
UTF-8 does not have, and fall out of the whole block in one go. Reading finds the separators, takes numbers eight
digits at a time out of 64-bit words, and tells texts apart by the words they fill. What does not fit (quoted cells,
long texts, fractions) goes the way of the standard library.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from astrasim_py.core.records import Coded, Table
from astrasim_py.core.units import INT64_MAX
from astrasim_py.report.cells import BLANK, LONG, digit_cells, packed, text_cells

#: Columns of records that hold text; every other column holds whole numbers.
TEXT_COLUMNS = frozenset({"job", "group", "type", "algorithm", "kind", "name"})

# A spreadsheet takes a cell that begins with one of these for a formula (or strips it to reach one).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_CHUNK_ROWS = 65536
_CHUNK_BYTES = 2**22
#: So many digits never go beyond 63 bits.
_SURE_DIGITS = 18


def csv_cell(text: str) -> str:
    """A text cell, quoted where needed and kept from being taken for a formula.

    Text that begins with ``= + - @``, a tab, a carriage return or an apostrophe gets an apostrophe in front;
    `csv_text` takes it off again.

    Examples
    --------
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


# -- writing ----------------------------------------------------------------------------------------------------


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
        cells = [cell for make in makers for cell in (make(part), b",")]
        yield packed([*cells[:-1], b"\n"], part.stop - part.start)


def _cells(table: Table, name: str):
    """What makes the cells of some rows of a column: uint8[rows, width]."""
    if table.is_text(name):
        codes, labels = table.coded(name)
        texts = [csv_cell(str(label)).encode() for label in labels]
        if max(map(len, texts), default=0) <= LONG:
            matrix = text_cells(texts)
            return lambda part: matrix[codes[part]]
        return lambda part: text_cells([texts[code] for code in codes[part].tolist()])
    column = table[name]
    if column.dtype.kind in "iu":
        return lambda part: digit_cells(column[part])
    if column.dtype.kind == "S":
        return lambda part: _ascii(column[part])
    return lambda part: _fractions(column[part])


def _ascii(column: np.ndarray) -> np.ndarray:
    """Cells that are bytes already (ASCII, nothing to quote), as rows of bytes."""
    matrix = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.dtype.itemsize)
    return np.where(matrix == 0, np.uint8(BLANK[0]), matrix)


def _fractions(column: np.ndarray) -> np.ndarray:
    """Numbers with a point as rows of bytes; most occur in many rows."""
    bits, rows = np.unique(np.ascontiguousarray(column, dtype=np.float64).view(np.int64), return_inverse=True)
    values = bits.view(np.float64).tolist()
    return text_cells(["" if v != v else repr(v) for v in values], encode=True)[rows]


# -- reading ----------------------------------------------------------------------------------------------------


def read_csv(data: bytes, text_columns: Iterable[str] = TEXT_COLUMNS) -> Table:
    """The table that `csv_chunks` wrote.

    Parameters
    ----------
    data : bytes
        A whole file.
    text_columns : iterable of str
        Names of columns that hold text; the others hold whole numbers, or numbers with a point (empty: NaN).

    Raises
    ------
    ValueError
        Rows of unequal length, or a cell that is no number.
    """
    text = frozenset(text_columns)
    if b'"' in data or b"\r" in data:
        return _by_library(data, text)
    end = data.find(b"\n")
    header = data[: end if end >= 0 else len(data)].decode().split(",")
    columns = [_Texts() if csv_text(name) in text else _Numbers() for name in header]
    at = end + 1 if end >= 0 else len(data)
    while at < len(data):
        stop = data.find(b"\n", min(at + _CHUNK_BYTES, len(data) - 1)) + 1 or len(data)
        _read_block(data[at:stop], columns)
        at = stop
    return Table({csv_text(name): column.whole() for name, column in zip(header, columns, strict=True)})


def _read_block(lines: bytes, columns: Sequence[_Texts | _Numbers]) -> None:
    lines = lines if lines.endswith(b"\n") else lines + b"\n"
    padded = np.frombuffer(b"0" * 8 + lines + b"0" * 8, dtype=np.uint8)
    newline = padded == ord("\n")
    ends = np.flatnonzero(newline | (padded == ord(",")))
    width = len(columns)
    if len(ends) % width or not newline[ends[width - 1 :: width]].all() or newline.sum() * width != len(ends):
        raise ValueError(f"a line has more or fewer than {width} cells")
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 8, ends[:-1] + 1
    block = _Block(padded)
    for number, column in enumerate(columns):
        column.read(block, starts[number::width], ends[number::width])


class _Block:
    """Bytes, and the 64-bit word that begins at each of them."""

    def __init__(self, padded: np.ndarray) -> None:
        self.bytes = padded
        self.words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))

    def cells(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
        """Cells one by one."""
        data = self.bytes.tobytes()
        return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


_u8 = np.uint64
_ZEROS = _u8(0x3030303030303030)
#: The first, and the last, 0 … 8 bytes of a little-endian word.
_FIRST = np.array([2 ** (8 * k) - 1 for k in range(9)], dtype=np.uint64)
_LAST = ~_FIRST[::-1]


class _Numbers:
    """A column of numbers, block by block."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    def read(self, block: _Block, starts: np.ndarray, ends: np.ndarray) -> None:
        """Whole numbers eight digits at a time; anything else by `float`."""
        negative = block.bytes[starts] == ord("-")
        length = ends - starts - negative
        longest = int(length.max())
        value = np.zeros(len(starts), dtype=np.uint64)
        sound = length >= 1
        for low in range(0, min(longest, _SURE_DIGITS), 8):
            eight, fine = _eight(block.words[np.maximum(ends - low - 8, 0)], np.clip(length - low, 0, 8))
            value += eight * _u8(10**low)
            sound &= fine
        if longest > _SURE_DIGITS or not sound.all():
            self.parts.append(_numbers([cell.decode() for cell in block.cells(starts, ends)]))
            return
        signed = value.astype(np.int64)
        self.parts.append(np.where(negative, -signed, signed) if negative.any() else signed)

    def whole(self) -> np.ndarray:
        """The column: fractions make all of it fractions, and one number beyond int64 all of it unsigned."""
        if len(self.parts) == 1:
            return self.parts[0]
        kinds = {part.dtype.kind for part in self.parts}
        joined = np.concatenate(self.parts) if self.parts else np.zeros(0, dtype=np.int64)
        if kinds == {"i", "u"}:
            if any(part.dtype.kind == "i" and part.min(initial=0) < 0 for part in self.parts):
                raise ValueError("numbers below 0 and beyond 2^63 - 1 in one column")
            return np.concatenate([part.astype(np.uint64) for part in self.parts])
        return joined


def _eight(word: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number that the last `length` (0 to 8) characters of each word write, and whether all are digits.

    Neighbouring digits become pairs, pairs fours, and fours the number.
    """
    digit = (word ^ _ZEROS) & _LAST[length]
    fine = ((digit | (digit + _u8(0x0606060606060606))) & _u8(0xF0F0F0F0F0F0F0F0)) == 0
    digit = (digit * _u8(10) + (digit >> _u8(8))) & _u8(0x00FF00FF00FF00FF)
    digit = (digit * _u8(100) + (digit >> _u8(16))) & _u8(0x0000FFFF0000FFFF)
    digit = (digit * _u8(10000) + (digit >> _u8(32))) & _u8(0x00000000FFFFFFFF)
    return digit, fine


class _Texts:
    """A column of text, block by block, as codes of the texts that occur."""

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self.parts: list[np.ndarray] = []

    def read(self, block: _Block, starts: np.ndarray, ends: np.ndarray) -> None:
        """Cells that fill the same words are equal."""
        length = ends - starts
        longest = int(length.max())
        if longest > LONG:
            cells = block.cells(starts, ends)
            self.parts.append(np.array([self._code(cell) for cell in cells], dtype=np.int32))
            return
        words = [length.astype(np.uint64)]
        for at in range(0, longest, 8):
            word = block.words[np.minimum(starts + at, len(block.words) - 1)]
            words.append(word & _FIRST[np.clip(length - at, 0, 8)])
        mixed = words[0]
        for word in words[1:]:
            mixed = (mixed ^ word) * _u8(0x9E3779B97F4A7C15)
            mixed ^= mixed >> _u8(29)
        if (mixed == mixed[0]).all():
            first, inverse = np.zeros(1, dtype=np.intp), np.zeros(len(mixed), dtype=np.intp)
        else:
            _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        if not all((word == word[first][inverse]).all() for word in words):
            # Two texts of one sum: practically never.
            first, inverse = np.arange(len(mixed)), np.arange(len(mixed))
        cells = block.cells(starts[first], ends[first])
        self.parts.append(np.array([self._code(cell) for cell in cells], dtype=np.int32)[inverse])

    def _code(self, cell: bytes) -> int:
        return self.index.setdefault(cell, len(self.index))

    def whole(self) -> Coded:
        """The column."""
        codes = np.concatenate(self.parts) if self.parts else np.zeros(0, dtype=np.int32)
        return Coded(codes, [csv_text(cell.decode()) for cell in self.index])


def _by_library(data: bytes, text: frozenset[str]) -> Table:
    lines = list(csv.reader(io.StringIO(data.decode(), newline="")))
    if any(len(line) != len(lines[0]) for line in lines):
        raise ValueError(f"a line has more or fewer than {len(lines[0])} cells")
    columns: list[Sequence[str]] = list(zip(*lines[1:], strict=True)) or [()] * len(lines[0])
    result: dict[str, np.ndarray | Coded] = {}
    for name, cells in zip(map(csv_text, lines[0]), columns, strict=True):
        result[name] = Coded.of([csv_text(cell) for cell in cells]) if name in text else _numbers(cells)
    return Table(result)


def _numbers(cells: Sequence[str]) -> np.ndarray:
    try:
        whole = list(map(int, cells))
    except ValueError:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    wide = bool(whole) and max(whole) > INT64_MAX
    return np.array(whole, dtype=np.uint64 if wide else np.int64)
