"""Tables: rows of finished points and columns of records as text, CSV and JSON.

Everything here is a pure function of its arguments: the same rows give the same characters on every machine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from numbers import Integral
from operator import index
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size

from astrasim_py.core import units
from astrasim_py.core.errors import UnitError
from astrasim_py.core.records import NO_RATE, Categorical, Table
from astrasim_py.report.csv_io import csv_cell

#: Columns of text are not cut to fewer characters.
_LEAST = 6

#: Keys of a row, in this order, in every format.
ROW_KEYS = (
    "scenario", "point", "sweep", "topology", "algorithm", "size_bytes", "npus", "engine", "network_model",
    "time_ns", "bound_ns", "efficiency", "algbw_GBps", "busbw_GBps", "exposed_comm_ns", "messages", "message_hops",
    "busiest_link", "busiest_link_GBps", "cpu_s", "status",
)  # fmt: skip


def ns_number(ps: int | None) -> Decimal | None:
    """Picoseconds as an exact decimal number of nanoseconds; None stays None.

    >>> ns_number(1500), ns_number(None)
    (Decimal('1.5'), None)
    """
    return None if ps is None else Decimal(units.ns_text(int(ps)))


def ps_of(ns: Decimal | int | None) -> int | None:
    """The picoseconds behind a ``*_ns`` value of a row."""
    return None if ns is None else int(Decimal(ns) * units.PS_PER_NS)


def rounded(value: Fraction, digits: int = 9) -> Decimal:
    """A fraction rounded to so many significant digits, in decimal arithmetic (no float on the way)."""
    return Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))


def plain(value: Decimal) -> str:
    """A decimal number without exponent and without trailing zeros.

    >>> plain(Decimal("1.50E+3")), plain(Decimal("0.2500"))
    ('1500', '0.25')
    """
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def json_text(value: object) -> str:
    """JSON with decimal numbers kept exact (`json.dumps` would turn them into floats); ASCII only.

    Raises TypeError: a value that JSON cannot hold (also NaN and infinity).

    >>> json_text([Decimal("9007199254740993.125")])
    '[9007199254740993.125]'
    """
    return _json(value, "\n")


def _json(value: object, line: str | None) -> str:
    """JSON of a value; `line`: start of a line at its depth; None: all on one line."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise TypeError(f"{value} is not a JSON number")
        return plain(value)
    if isinstance(value, Mapping):
        below = None if line is None else line + "  "
        brackets, items = "{}", [f"{json.dumps(str(key))}: {_json(v, below)}" for key, v in value.items()]
    elif isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return json.dumps(value)
    elif isinstance(value, list | tuple):
        if not any(isinstance(item, Mapping | list | tuple) for item in value):
            line = None
        below = None if line is None else line + "  "
        brackets, items = "[]", [_json(item, below) for item in value]
    else:
        return json.dumps(value, allow_nan=False, default=index)
    if line is None or not items:
        return brackets[0] + ", ".join(items) + brackets[1]
    return brackets[0] + below + f",{below}".join(items) + line + brackets[1]


def json_bytes(value: object) -> bytes:
    return (json_text(value) + "\n").encode()


def parse_json(text: str) -> object:
    """The inverse of `json_text`: numbers with a point become `decimal.Decimal`. Raises ValueError: it is no JSON, of
    which NaN and Infinity are no part.
    """
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


#: Kinds of swept values in their order: what reads them; plain text comes last.
_KINDS = (Fraction, units.parse_size, units.parse_time, units.parse_bandwidth)
SIZES, TEXTS = 1, len(_KINDS)


def value_order(text: str) -> tuple[int, Fraction, str]:
    """Sort key of a swept value (its kind, what it is worth, itself): numbers and quantities before plain text.

    >>> sorted(["1 MiB", "ring", "64 KiB"], key=value_order)
    ['64 KiB', '1 MiB', 'ring']
    """
    for kind, parse in enumerate(_KINDS):
        try:
            return kind, Fraction(parse(text)), text
        except (UnitError, ValueError, ZeroDivisionError):
            continue
    return TEXTS, Fraction(0), text


def csv_rows(keys: Sequence[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Rows of plain values as CSV; None is an empty cell, decimals are exact."""
    lines = [",".join(map(csv_cell, keys))]
    lines += [",".join(_value_cell(row.get(key)) for key in keys) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def with_swept_columns(rows: Sequence[Mapping]) -> tuple[list[str], list[dict]]:
    """The columns of ``summary.csv``, with one for each swept key behind ``point``, and the rows with these keys."""
    swept = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
    keys = [key for key in ROW_KEYS if key not in ("sweep", "cpu_s")]
    place = keys.index("point") + 1
    names = {key: key if key not in keys else f"sweep.{key}" for key in swept}
    made = [{**row, **{names[key]: value for key, value in row["sweep"].items()}} for row in rows]
    return [*keys[:place], *names.values(), *keys[place:]], made


def _value_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, float):
        return repr(value)
    return str(int(value)) if isinstance(value, Integral) else csv_cell(str(value))


def cell_text(value: object) -> str:
    return "" if value is None else str(value)


def time_text(ns: object) -> str:
    return "" if ns is None else units.format_time(ps_of(ns))


def percent(value: object) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def rate(value: object) -> str:
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
    kept = list(columns)
    if width is not None and _width(columns) > width:
        kept = [column for column in columns if not column.asked]
        spare = [column for column in columns if column.asked]
        for column in sorted(spare, key=lambda column: (_constant(column), column.asked)):
            more = [one for one in columns if one in kept or one is column]
            kept = more if _width(more) <= width else kept
    table = text_table(
        [column.heading for column in kept],
        list(zip(*(column.cells for column in kept), strict=True)),
        [column.numeric for column in kept],
        width,
    )
    left = len(columns) - len(kept)
    return f"{table}\n+{left} column{'s' if left > 1 else ''} in {file}" if left and file else table


def _constant(column: Column) -> bool:
    return len(column.cells) > 1 and len(set(column.cells)) == 1


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(cell_len, (c.heading, *c.cells))) for c in columns) + 2 * (len(columns) - 1)


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int | None = None
) -> str:
    """An aligned table of plain text: a heading, a rule, and one line a row. `width`: cut the longest texts to it.

    >>> print(text_table(["size", "time"], [["64 KiB", "9 us"]], [False, True]))
    size    time
    ------  ----
    64 KiB  9 us
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


COLLECTIVE_KEYS = (
    "point", "instance", "job", "group", "type", "ranks", "size", "algorithm", "start_ns", "end_ns", "time_ns",
    "bound_ns", "efficiency", "algbw_GBps", "busbw_GBps",
)  # fmt: skip


def bandwidth_GBps(size: int, duration_ps: int) -> Decimal | None:
    """Bytes over picoseconds as GB/s (10**9 bytes per second); None for an empty interval.

    >>> bandwidth_GBps(1000, 20_000)
    Decimal('50')
    """
    return rounded(Fraction(size * 1000, duration_ps)) if duration_ps > 0 else None


def bounded(bound_ps: int | None, time_ps: int) -> dict[str, Decimal | None]:
    """A lower bound, and its share of a simulated time: 1 is perfect. Both are empty where the bound lies above the
    time: it is wrong then, and the run says so.
    """
    known = bound_ps is not None and bound_ps <= time_ps
    return {
        "bound_ns": ns_number(bound_ps) if known else None,
        "efficiency": rounded(Fraction(bound_ps, time_ps)) if known and time_ps > 0 else None,
    }


def collective_rows(point: str, table: Table, factors: Mapping[str, Fraction] | None = None) -> list[dict]:
    """One row per collective instance, with its algorithm and bus bandwidth. `point`: name of the point, repeated in
    every row. `table`: the collective records. `factors`: bus bandwidth over algorithm bandwidth (nccl-tests,
    doc/PERFORMANCE.md); without an entry the bus bandwidth stays empty.
    """
    return [
        {
            **{key: c[key] for key in ("instance", "job", "group", "type", "ranks", "size", "algorithm")},
            "point": point,
            "start_ns": ns_number(c["start"]) if c["start"] >= 0 else None,
            "end_ns": ns_number(c["end"]) if c["end"] >= 0 else None,
            **_rates(c["type"], c["ranks"], c["size"], c["bound"], int(_duration(c["start"], c["end"])), factors or {}),
        }
        for c in table.rows()
    ]


def collective_table(point: str, folder: str, table: Table, factors: Mapping[str, Fraction]) -> Table:
    """The same rows as columns for `csv_chunks`, and the folder of the point; what rows have in common is made once."""
    start, end = table["start"], table["end"]
    kinds, names = table.coded("type")
    distinct, which = np.unique(
        np.stack([kinds, table["ranks"], table["size"], table["bound"], _duration(start, end)]),
        axis=1,
        return_inverse=True,
    )
    rates = [_rates(names[kind], *numbers, factors) for kind, *numbers in distinct.T.tolist()]
    same = np.zeros(len(start), dtype=np.int32)
    columns = {"point": Categorical(same, [point]), "start_ns": _times(start), "end_ns": _times(end)}
    columns |= {
        key: Categorical(which.ravel(), [_value_cell(row[key]) for row in rates]) for key in (rates[0] if rates else ())
    }
    columns |= {key: Categorical(*table.coded(key)) for key in ("job", "group", "type", "algorithm")}
    columns |= {key: table[key] for key in ("instance", "ranks", "size")}
    return Table({**{key: columns[key] for key in COLLECTIVE_KEYS if rates}, "folder": Categorical(same, [folder])})


def _times(ps: np.ndarray) -> Categorical:
    values, which = np.unique(ps, return_inverse=True)
    return Categorical(which, [units.ns_text(value) if value >= 0 else "" for value in values.tolist()])


def _duration(start, end):
    """From start to end, in numbers or arrays; -1 where either is missing."""
    return np.where((start >= 0) & (end >= 0), end - start, -1)[()]


def _rates(kind: str, ranks: int, size: int, bound: int, duration: int, factors: Mapping) -> dict:
    """What follows of a collective's type, group, size, lower bound and duration."""
    lower, factor = bound if bound >= 0 else None, factors.get((kind, ranks))
    rate = None if bound == NO_RATE else bandwidth_GBps(size, duration)
    sides = bounded(lower, duration) if duration >= 0 else {"bound_ns": ns_number(lower), "efficiency": None}
    return {
        "time_ns": ns_number(duration) if duration >= 0 else None,
        **sides,
        "algbw_GBps": rate,
        "busbw_GBps": None if rate is None or factor is None else rounded(Fraction(rate) * factor),
    }


def collectives_text(rows: Sequence[Mapping], width: int | None = None) -> str:
    """The collectives of one point as plain text: simulated time beside its bound."""
    shown = (
        ("collective", 0, lambda row: f"{row['instance']}" + (f" ({row['group']})" if row["group"] else "")),
        ("type", 0, lambda row: row["type"]),
        ("ranks", 2, lambda row: str(row["ranks"])),
        ("size", 0, lambda row: units.format_size(row["size"])),
        ("algorithm", 1, lambda row: row["algorithm"]),
        ("time", 0, lambda row: time_text(row["time_ns"])),
        ("bound", 4, lambda row: time_text(row["bound_ns"])),
        ("bound/time", 3, lambda row: percent(row["efficiency"])),
        ("busbw GB/s", 5, lambda row: rate(row["busbw_GBps"])),
    )
    texts = ("collective", "type", "algorithm")
    columns = [Column(name, [*map(show, rows)], name not in texts, asked) for name, asked, show in shown]
    return fitted_table(columns, width, "collectives.csv")
