"""Which rows of a result are wanted, and in which order: ``--where``, ``--sort``, ``--top``."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TypeVar

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.units import PS_PER_NS
from astrasim_py.report.result_table import HEADINGS
from astrasim_py.results.model import ROW_KEYS, Row, SweptRecord
from astrasim_py.results.values import SIZES, TEXTS, ps_of, value_order

AnySwept = TypeVar("AnySwept", bound=SweptRecord)
_CONDITION = re.compile(r"\s*(?P<key>[^<>=!]+?)\s*(?P<sign>>=|<=|!=|==|=|<|>)\s*(?P<value>.*?)\s*")
_SIGNS = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "==": operator.eq, "=": operator.eq,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_NUMBERS, _TIMES, _RATES = 0, 2, 3  # kinds of `value_order`


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows that are wanted. `where`: key, sign, value. `sort`: a key. `top`: so many of the first rows."""

    where: tuple[tuple[str, str, str], ...] = ()
    sort: str = ""
    falling: bool = False
    top: int | None = None

    def check(self, swept: Mapping[str, Iterable[str]]) -> None:
        """Raise UsageError where a key is neither swept nor a column, or no swept value can be the one that is wanted.
        `swept`: values by key.
        """
        columns = {key: key for key in (*swept, *ROW_KEYS, *HEADINGS) if key != "sweep"}
        for option, key in [*(("--where", key) for key, _, _ in self.where), ("--sort", self.sort)]:
            if key and key not in columns and key != "size":
                raise UsageError(option, f'there is no column "{key}"', did_you_mean(key, columns))
        for key, sign, text in self.where:
            values = swept.get(key, ())
            rows = (Row(scenario="", point="", sweep={key: value}, status="") for value in values)
            if values and not any(_meets(row, key, sign, text) for row in rows):
                raise UsageError("--where", f"no point has {key}{sign}{text}", did_you_mean(text, values))

    def of(self, rows: Iterable[AnySwept]) -> list[AnySwept]:
        """The rows that are wanted. Raises UsageError: a value that its column cannot be compared with."""
        chosen = [row for row in rows if all(_meets(row, *condition) for condition in self.where)]
        if self.sort:
            pairs = [(worth, row) for row in chosen if (worth := _worth(row, self.sort)) is not None]
            pairs.sort(key=lambda pair: pair[0], reverse=self.falling)
            chosen = [row for _, row in pairs] + [row for row in chosen if _worth(row, self.sort) is None]
        return chosen[: self.top]


def parse_selection(texts: Sequence[str], sort: str | None, top: int | None) -> Selection:
    """A selection as it is written on the command line. Raises UsageError."""
    conditions = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise UsageError("--where", f'"{text}" is no condition', 'write e.g. topology=ring or "size>=1 MiB"')
        conditions.append((match["key"], match["sign"], match["value"]))
    sort = sort or ""
    return Selection(where=tuple(conditions), sort=sort.removeprefix("-"), falling=sort[:1] == "-", top=top)


def _value(row: SweptRecord, key: str) -> tuple[str, object]:
    """The key of a row that is meant, and its value."""
    if key in row.sweep:
        return "", row.sweep[key]
    key = "size_bytes" if key == "size" else HEADINGS.get(key, key)
    return key, getattr(row, key, None)


def _worth(row: SweptRecord, key: str) -> tuple[int, Fraction, str] | None:
    """A value in the order of `value_order`; None where there is none."""
    key, value = _value(row, key)
    if value is None or value == "":
        return None
    if key.endswith("_ns") and isinstance(value, int | Decimal):
        return _TIMES, Fraction(ps_of(value)), ""
    if isinstance(value, int | float | Decimal):
        return SIZES if key == "size_bytes" else _NUMBERS, Fraction(value), ""
    return value_order(str(value))


def _meets(row: SweptRecord, key: str, sign: str, text: str) -> bool:
    have = _worth(row, key)
    if have is None:
        return sign == "!="
    kind, worth, _ = value_order(text)
    if text.endswith("%") and value_order(text[:-1])[0] == _NUMBERS:
        kind, worth = _NUMBERS, value_order(text[:-1])[1] / 100
    name = _value(row, key)[0]
    if kind == _NUMBERS and name.endswith("_ns"):
        kind, worth = _TIMES, worth * PS_PER_NS
    elif kind == _NUMBERS and have[0] == SIZES:
        kind = SIZES
    elif kind == _RATES and name.endswith("_GBps"):
        kind, worth = _NUMBERS, worth / 10**9
    if kind == have[0] != TEXTS:
        return _SIGNS[sign](have[1], worth)
    if sign in ("=", "==", "!="):
        return fnmatchcase(str(_value(row, key)[1]), text) == (sign != "!=")
    problem = f'"{text}" cannot be compared with "{_value(row, key)[1]}"'
    raise UsageError("--where", f"{key}{sign}{text}: {problem}", "write a value of its kind, with its unit")
