"""Aligned tables of plain text."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from astrasim_py.core import units
from astrasim_py.results.model import CollectiveRow
from astrasim_py.results.values import ps_of

#: Columns of text are not cut to fewer characters.
_LEAST = 6


def cell_text(value: object) -> str:
    return "" if value is None else str(value)


def time_text(ns: Decimal | int | None) -> str:
    return "" if ns is None else units.format_time(ps_of(ns))


def percent(value: Decimal | float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def rate(value: Decimal | float | None) -> str:
    return "" if value is None else f"{value:.4g}"


class Column(NamedTuple):
    """A column of a table of text. `asked`: how readily it is left out where there is no room; 0: never."""

    heading: str
    cells: Sequence[str]
    numeric: bool
    asked: int = 0


def fitted_table(columns: Sequence[Column], width: int | None, file: str = "") -> str:
    """An aligned table of at most `width` characters: a heading, a rule, and one line a row. What is asked
    for least is left out where it has no room, columns of one value before others; then long texts are cut. `file`:
    where these columns are, for a line below.
    """
    shown = list(columns)
    if width is not None and _width(columns) > width:
        shown = [column for column in columns if not column.asked]
        spare = [column for column in columns if column.asked]
        for column in sorted(spare, key=lambda column: (_constant(column), column.asked)):
            wider = [c for c in columns if c in shown or c is column]
            shown = wider if _width(wider) <= width else shown
    table = text_table(
        [column.heading for column in shown],
        list(zip(*(column.cells for column in shown), strict=True)),
        [column.numeric for column in shown],
        width,
    )
    hidden = len(columns) - len(shown)
    return f"{table}\n+{hidden} column{'s' if hidden > 1 else ''} in {file}" if hidden and file else table


def _constant(column: Column) -> bool:
    return len(column.cells) > 1 and len(set(column.cells)) == 1


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(cell_len, (c.heading, *c.cells))) for c in columns) + 2 * (len(columns) - 1)


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int | None = None
) -> str:
    """An aligned table of plain text: a heading, a rule, and one line a row. `width`: cut the longest texts to it.

    >>> print(text_table(["size", "time"], [["64 KiB", "9 µs"]], [False, True]))
    size    time
    ------  ----
    64 KiB  9 µs
    """
    cleaned = [["".join(c if c.isprintable() else " " for c in cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cleaned, strict=True)]
    room = None if width is None else width - 2 * (len(widths) - 1)
    texts = [i for i, right in enumerate(numeric) if not right]  # a number cut short would be another one
    while room is not None and sum(widths) > room and max((widths[i] for i in texts), default=0) > _LEAST:
        widths[max(texts, key=widths.__getitem__)] -= 1
    lines = [cleaned[0], ["-" * width for width in widths], *cleaned[1:]]
    printed = ["  ".join(map(_cell, line, widths, numeric)).rstrip() for line in lines]
    return "\n".join(line if width is None else _cell(line, min(width, cell_len(line)), False) for line in printed)


def shortened(text: str, width: int) -> str:
    """A text in at most so many columns of a terminal."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _cell(text: str, width: int, right: bool) -> str:
    """A text in so many columns of a terminal."""
    text = shortened(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def collectives_text(rows: Sequence[CollectiveRow], width: int | None = None) -> str:
    """The collectives of one point as plain text: simulated time beside its bound."""
    shown: tuple[tuple[str, int, Callable[[CollectiveRow], str]], ...] = (
        ("collective", 0, lambda row: f"{row.instance}" + (f" ({row.group})" if row.group else "")),
        ("type", 0, lambda row: row.type),
        ("ranks", 2, lambda row: str(row.ranks)),
        ("size", 0, lambda row: units.format_size(row.size)),
        ("algorithm", 1, lambda row: row.algorithm),
        ("time", 0, lambda row: time_text(row.time_ns)),
        ("bound", 4, lambda row: time_text(row.bound_ns)),
        ("bound/time", 3, lambda row: percent(row.efficiency)),
        ("busbw GB/s", 5, lambda row: rate(row.busbw_GBps)),
    )
    texts = ("collective", "type", "algorithm")
    columns = [Column(name, [*map(show, rows)], name not in texts, order) for name, order, show in shown]
    return fitted_table(columns, width, "collectives.csv")
