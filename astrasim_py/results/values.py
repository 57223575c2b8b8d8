"""Values of results: exact decimal numbers."""

from decimal import Context, Decimal
from fractions import Fraction
from typing import overload

from astrasim_py.core import units


@overload
def ns_number(ps: int | Fraction) -> Decimal: ...
@overload
def ns_number(ps: None) -> None: ...
def ns_number(ps: int | Fraction | None) -> Decimal | None:
    """Picoseconds as an exact decimal number of nanoseconds; None stays None.

    >>> ns_number(1500), ns_number(None)
    (Decimal('1.5'), None)
    """
    return None if ps is None else Decimal(units.ns_text(int(ps)))


@overload
def ps_of(ns: Decimal | int) -> int: ...
@overload
def ps_of(ns: None) -> None: ...
@overload
def ps_of(ns: Decimal | int | None) -> int | None: ...
def ps_of(ns: Decimal | int | None) -> int | None:
    """The picoseconds behind a ``*_ns`` value of a row."""
    return None if ns is None else int(Decimal(ns) * units.PS_PER_NS)


def rounded(value: Fraction, digits: int = 9) -> Decimal:
    """A fraction rounded to so many significant digits, in decimal arithmetic (no float on the way)."""
    return Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))
