"""The order of values as they are written: numbers and quantities before plain text."""

from collections.abc import Callable
from fractions import Fraction

from astrasim_py.core import units
from astrasim_py.core.errors import UnitError

#: Kinds of values in their order: what reads them; plain text comes last.
_READERS: tuple[Callable[[str], Fraction | int], ...] = (
    Fraction,
    units.parse_size,
    units.parse_time,
    units.parse_bandwidth,
)
NUMBERS, SIZES, TIMES, RATES, TEXTS = range(len(_READERS) + 1)


def value_order(text: str) -> tuple[int, Fraction, str]:
    """Sort key of a value: its kind, what it is worth, itself.

    >>> sorted(["1 MiB", "ring", "64 KiB"], key=value_order)
    ['64 KiB', '1 MiB', 'ring']
    """
    for kind, parse in enumerate(_READERS):
        try:
            return kind, Fraction(parse(text)), text
        except (UnitError, ValueError, ZeroDivisionError):
            continue
    return TEXTS, Fraction(0), text
