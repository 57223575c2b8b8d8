"""Cells of text files as rows of bytes, columns at a time, for a run can leave ten million rows.

Every cell of a column has the same width; blanks are bytes that UTF-8 does not have, and fall out of a whole block of
rows in one go (`packed`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLANK = b"\xff"
#: Texts of more bytes than these are handled one by one.
LONG = 64
_MOST_DIGITS = 20

_POWERS = [np.uint64(10**k) for k in range(_MOST_DIGITS)]
_TEN_THOUSAND = np.uint64(10_000)
#: 0…9999 as four digits of one byte each.
_FOUR = np.array([[n // 1000, n // 100 % 10, n // 10 % 10, n % 10] for n in range(10_000)], np.uint8).view("<u4")[:, 0]


def packed(cells: Sequence[np.ndarray | bytes], rows: int) -> bytes:
    """Some rows of a file, from what stands in them side by side: cells of a column, or what is in every row."""
    widths = [len(cell) if isinstance(cell, bytes) else cell.shape[1] for cell in cells]
    block = np.empty((rows, sum(widths)), dtype=np.uint8)
    at = 0
    for cell, width in zip(cells, widths, strict=True):
        block[:, at : at + width] = np.frombuffer(cell, dtype=np.uint8) if isinstance(cell, bytes) else cell
        at += width
    return block.tobytes().translate(None, BLANK)


def text_cells(texts: Sequence, *, encode: bool = False) -> np.ndarray:
    """Texts of unequal length as rows of bytes, filled up with blanks."""
    texts = [text.encode() for text in texts] if encode else texts
    width = max(map(len, texts), default=0)
    joined = b"".join([text.ljust(width, BLANK) for text in texts])
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)


def digit_cells(column: np.ndarray) -> np.ndarray:
    """Whole numbers as rows of decimal digits, blanks in front."""
    negative = column < 0
    signed = bool(negative.any())
    rest = column.astype(np.uint64)
    if signed:
        rest[negative] = -rest[negative]
    longest = len(str(int(rest.max(initial=0))))
    digits = np.ones(len(rest), dtype=np.intp)
    for power in _POWERS[1:longest]:
        digits += rest >= power
    words = -(-(longest + signed) // 4)
    if signed:
        digits += negative * (_MOST_DIGITS + 1)
    frame = _FRAMES[:, len(_FRAMES[0]) - words :]
    matrix = np.empty((len(rest), words), dtype="<u4")
    for word in reversed(range(words)):
        above = rest // _TEN_THOUSAND
        matrix[:, word] = _FOUR[(rest - above * _TEN_THOUSAND).astype(np.intp)] | frame[digits, word]
        rest = above
    return matrix.view(np.uint8)


def _frames() -> np.ndarray:
    """By number of digits (and, after all of them, again with a sign): what turns digits into characters."""
    words = _MOST_DIGITS // 4 + 1
    frames = np.full((2 * (_MOST_DIGITS + 1), 4 * words), 0xFF, dtype=np.uint8)
    for sign in (0, 1):
        for digits in range(1, _MOST_DIGITS + 1):
            row = frames[sign * (_MOST_DIGITS + 1) + digits]
            row[-digits:] = ord("0")
            if sign:
                row[-digits - 1] = ord("-")
    return frames.view("<u4")


_FRAMES = _frames()


def decimal_cells(column: np.ndarray, places: int) -> np.ndarray:
    """Whole numbers, not below 0, divided by ``10**places``, as exact decimals without zeros at their end."""
    unit = 10**places
    whole, rest = np.divmod(column, unit)
    tail = np.full((len(column), 1 + places), BLANK[0], dtype=np.uint8)
    some = np.flatnonzero(rest)
    if len(some):
        tail[some, 0] = ord(".")
        left = rest[some]
        for place in range(1, places + 1):
            unit //= 10
            digit, below = np.divmod(left, unit)
            tail[some, place] = np.where(left > 0, digit + ord("0"), BLANK[0])
            left = below
    return np.concatenate([digit_cells(whole), tail], axis=1)
