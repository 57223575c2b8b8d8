"""Conditions on rows, ``--where``: ``size>=1 MiB``, ``name=t*``, ``ranks=2,8``."""

import operator
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import NamedTuple

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.value_order import NUMBERS, TEXTS, value_order

_CONDITION = re.compile(r"\s*(?P<key>[^<>=!]+?)\s*(?P<sign>>=|<=|!=|==|=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)
#: A value of several that commas separate: quoted, or with the commas that brackets hold.
_VALUE = re.compile(r'\s*(?:"((?:[^"]|"")*)"|((?:\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[^,])*?))\s*(?:,|\Z)', re.DOTALL)
#: Values that are listed where there is no such value.
_LISTED = 24
_SIGNS = {">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt}


class Cell(NamedTuple):
    """The value of a row in a column. `kind`, `worth`: see `value_order`. `bare`: what 1 without a unit is worth there;
    0: a unit is needed.
    """

    kind: int
    worth: Fraction
    text: str
    bare: int = 0


class Condition(NamedTuple):
    """``key sign value``. `values`: alternatives, the whole text first."""

    key: str
    sign: str
    values: tuple[str, ...]
    place: str = "--where"

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.values[0]}"

    def holds(self, cell: Cell | None) -> bool:
        """Whether a row meets it. `cell`: None where the row has no value. Raises UsageError: the value cannot be
        compared.
        """
        if cell is None:
            return self.sign == "!="
        if self.sign in _SIGNS:
            return _SIGNS[self.sign](cell.worth, self._limit(cell))
        return any(cell_equals(cell, value) for value in self.values) == (self.sign == "=")

    def parts(self) -> "list[Condition]":
        """A condition for each alternative of an equality; else this one."""
        alternatives = self.values[1:] if self.sign == "=" else ()
        return [self._replace(values=(value,)) for value in alternatives] or [self]

    def _limit(self, cell: Cell) -> Fraction:
        worth = _worth(cell, self.values[0])
        if worth is None:
            problem = f'{self}: "{self.values[0]}" cannot be compared with "{cell.text}"'
            raise UsageError(self.place, problem, "write a value of its kind, with its unit")
        return worth


def cell_equals(cell: Cell, text: str) -> bool:
    """Whether a cell has a value: the same in any unit, or a text such as ``t*``."""
    worth = _worth(cell, text)
    return cell.text == text or (fnmatchcase(cell.text, text) if worth is None else cell.worth == worth)


def nearest(text: str, values: Iterable[str]) -> str:
    """What to write where there is no such value: which there are, and the text that is most like it.

    >>> nearest("rign", ["torus", "ring"]), nearest("2 MiB", ["16 MiB", "1 MiB"])
    ('did you mean "ring"? there are ring, torus', 'write one of 1 MiB, 16 MiB')
    """
    ordered = sorted(dict.fromkeys(values), key=value_order)
    listed = ", ".join(ordered[:_LISTED]) + (", …" if len(ordered) > _LISTED else "")
    if value_order(text)[0] == TEXTS and (guess := did_you_mean(text, ordered)).startswith("did"):
        return f"{guess} there are {listed}"
    return f"write one of {listed}" if ordered else "there are none here"


def parse_condition(text: str, place: str = "--where") -> Condition:
    """A condition as a person writes it. Raises UsageError, at `place`.

    >>> parse_condition("ranks=2,8").values, parse_condition('name="a,b"').values
    (('2,8', '2', '8'), ('a,b',))
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(place, f'"{text[:64]}" is no condition', 'write e.g. topology=ring or "size>=1 MiB"')
    sign, value = match["sign"].replace("==", "="), match["value"]
    parts = [(quoted or plain).replace('""', '"') for quoted, plain in _VALUE.findall(value)][:-1] or [value]
    if sign in _SIGNS and len(parts) > 1:
        raise UsageError(place, f'"{text[:64]}" has several limits', "write one")
    return Condition(match["key"], sign, tuple(parts) if len(parts) == 1 else (value, *parts), place)


def _worth(cell: Cell, text: str) -> Fraction | None:
    """What a text is worth in the unit of a cell; None where it is of another kind."""
    kind, worth, _ = value_order(text)
    if text.endswith("%") and value_order(text[:-1])[0] == NUMBERS:
        kind, worth = NUMBERS, value_order(text[:-1])[1] / 100
    if kind == NUMBERS and cell.bare:
        kind, worth = cell.kind, worth * cell.bare
    return worth if kind == cell.kind != TEXTS else None
