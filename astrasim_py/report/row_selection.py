"""Which rows of a result are wanted, and in which order: ``--where``, ``--sort``, ``--top``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.row_conditions import Cell, Condition, nearest, parse_condition
from astrasim_py.core.units import PS_PER_NS
from astrasim_py.core.value_order import NUMBERS, RATES, SIZES, TIMES, value_order
from astrasim_py.report.result_table import HEADINGS
from astrasim_py.results.model import ROW_KEYS, Row, SweptRecord
from astrasim_py.results.values import ps_of

AnySwept = TypeVar("AnySwept", bound=SweptRecord)
_PER_GBPS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows that are wanted. `where`: conditions that all hold. `sort`: a key. `top`: so many of the first rows."""

    where: tuple[Condition, ...] = ()
    sort: str = ""
    falling: bool = False
    top: int | None = None

    def check(self, swept: Mapping[str, Iterable[str]]) -> None:
        """Raise UsageError where a key is neither swept nor a column, or no swept value can be the one that is wanted.
        `swept`: values by key.
        """
        columns = {key: key for key in (*swept, *ROW_KEYS, *HEADINGS) if key != "sweep"}
        for option, key in [*(("--where", condition.key) for condition in self.where), ("--sort", self.sort)]:
            if key and key not in columns and key != "size":
                raise UsageError(option, f'there is no column "{key}"', did_you_mean(key, columns))
        for condition in self.where:
            values = swept.get(condition.key, ())
            rows = [Row(scenario="", point="", sweep={condition.key: value}, status="") for value in values]
            for part in condition.parts() if rows else ():
                if not any(part.holds(cell_of(row, condition.key)) for row in rows):
                    raise UsageError("--where", f"no point has {part}", nearest(part.values[0], values))

    def of(self, rows: Iterable[AnySwept]) -> list[AnySwept]:
        """The rows that are wanted. Raises UsageError: a value that its column cannot be compared with."""
        chosen = [row for row in rows if all(condition.holds(cell_of(row, condition.key)) for condition in self.where)]
        if self.sort:
            pairs = [(cell[:3], row) for row in chosen if (cell := cell_of(row, self.sort)) is not None]
            pairs.sort(key=lambda pair: pair[0], reverse=self.falling)
            chosen = [row for _, row in pairs] + [row for row in chosen if cell_of(row, self.sort) is None]
        return chosen[: self.top]


def parse_selection(texts: Sequence[str], sort: str | None, top: int | None) -> Selection:
    """A selection as it is written on the command line. Raises UsageError."""
    sort = sort or ""
    conditions = tuple(map(parse_condition, texts))
    return Selection(where=conditions, sort=sort.removeprefix("-"), falling=sort[:1] == "-", top=top)


def cell_of(row: SweptRecord, key: str) -> Cell | None:
    """The value of a row that a key means, a swept one or a column; None where there is none."""
    if key in row.sweep:
        kind, worth, text = value_order(row.sweep[key])
        return Cell(kind, worth, text, int(kind == SIZES)) if text else None
    key = "size_bytes" if key == "size" else HEADINGS.get(key, key)
    value = getattr(row, key, None)
    if value is None or value == "":
        return None
    text = str(value)
    if key.endswith("_ns") and isinstance(value, int | Decimal):
        return Cell(TIMES, Fraction(ps_of(value)), text, PS_PER_NS)
    if not isinstance(value, int | float | Decimal):
        return Cell(*value_order(text))
    if key == "size_bytes":
        return Cell(SIZES, Fraction(value), text, 1)
    if key.endswith("_GBps"):
        return Cell(RATES, Fraction(value) * _PER_GBPS, text, _PER_GBPS)
    return Cell(NUMBERS, Fraction(value), text, 1)
