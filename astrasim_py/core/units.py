"""Quantities with units: text at the edge, exact integers and fractions inside.

Inside the package time is an integer count of picoseconds, sizes are integer bytes, and rates are exact
fractions (bytes per second, operations per second). A bare number is never accepted: "50 GB/s", "500 ns",
"64 KiB", "400 Gb/s", "312 TFLOP/s".
"""

import re
from decimal import Decimal
from fractions import Fraction

from astrasim_py.core.errors import UnitError

PS_PER_S = 10**12
PS_PER_NS = 1000
#: Largest time and largest size accepted: the maximum of a signed 64-bit integer.
INT64_MAX = 2**63 - 1

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = {**_DECIMAL, **_BINARY}

_TIME = {
    "ps": 1,
    "ns": 10**3,
    "us": 10**6,
    "µs": 10**6,
    "μs": 10**6,
    "ms": 10**9,
    "s": 10**12,
    "min": 60 * 10**12,
}
_SIZE = {f"{p}B": Fraction(m) for p, m in _PREFIX.items()} | {
    f"{p}{b}": Fraction(m, 8) for p, m in _PREFIX.items() for b in ("b", "bit")
}
_BANDWIDTH = {f"{unit}/s": factor for unit, factor in _SIZE.items()} | {
    f"{p}bps": Fraction(m, 8) for p, m in _PREFIX.items()
}
_BINARY_BANDWIDTH = _BANDWIDTH | {f"{p}B/s": Fraction(_BINARY[f"{p.upper()}i"]) for p in ("k", "K", "M", "G", "T")}
_COMPUTE = {
    f"{p}{unit}": Fraction(m) for p, m in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS", "FLOPs/s", "OP/s", "OPS")
}
_OPERATIONS = {f"{p}{unit}": Fraction(m) for p, m in _DECIMAL.items() for unit in ("FLOP", "FLOPs", "OP")}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*([^\d\s].*?)?\s*")
_MAX_TEXT = 64


def _parse(text: object, units: dict, noun: str, example: str, place: str) -> Fraction:
    remedy = f'write e.g. "{example}"'
    if not isinstance(text, str):
        raise UnitError(place, f"{text!r} is not a {noun}: it has no unit", remedy)
    shown = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    problem = f'"{shown}" is not a {noun}'
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is not None:
        number, unit = match.groups()
        value = Decimal(number.replace("_", ""))
        if unit is None:
            problem += ": it has no unit"
        elif unit not in units:
            problem += f': unknown unit "{unit}"'
        elif value < 0:
            problem = f'"{shown}" is negative'
        elif value and not -60 < value.adjusted() < 60:
            problem = f'"{shown}" is out of range'
        else:
            return Fraction(value) * units[unit]
    raise UnitError(place, problem, remedy)


def parse_time(text: object, place: str = "") -> int:
    """Read a time such as ``"1.5 us"``: picoseconds, rounded up, at most 2**63 - 1 (about 106 days).

    All functions here raise UnitError for text that they cannot read, with `place` in front.
    """
    value = _parse(text, _TIME, "time", "500 ns", place)
    picoseconds = -(-value.numerator // value.denominator)
    if picoseconds > INT64_MAX:
        raise UnitError(place, f'"{text}" is longer than 2^63 - 1 ps (106 days)', "write a shorter time")
    return picoseconds


def parse_size(text: object, place: str = "") -> int:
    """Read a size such as ``"64 KiB"`` (2**10 bytes each) or ``"1.5 kB"`` (10**3): a whole number of bytes."""
    value = _parse(text, _SIZE, "size", "64 KiB", place)
    if value.denominator != 1:
        raise UnitError(place, f'"{text}" is not a whole number of bytes', 'write e.g. "64 KiB"')
    if value.numerator > INT64_MAX:
        raise UnitError(place, f'"{text}" is more than 2^63 - 1 bytes', "write a smaller size")
    return value.numerator


def _parse_rate(text: object, units: dict, noun: str, example: str, place: str) -> Fraction:
    value = _parse(text, units, noun, example, place)
    if not 0 < value <= INT64_MAX:
        raise UnitError(place, f'"{text}" is {"out of range" if value else "zero"}', f'write e.g. "{example}"')
    return value


def parse_bandwidth(text: object, place: str = "", *, binary: bool = False) -> Fraction:
    """Read a bandwidth such as ``"50 GB/s"`` or ``"400 Gb/s"`` (b = bit, B = byte): bytes per second, exact.

    `binary`: kB, MB, GB and TB are powers of 1024, as ASTRA-sim reads network bandwidths.
    """
    return _parse_rate(text, _BINARY_BANDWIDTH if binary else _BANDWIDTH, "bandwidth", "50 GB/s", place)


def parse_compute_rate(text: object, place: str = "") -> Fraction:
    """Read a compute rate such as ``"312 TFLOP/s"``: operations per second, exact."""
    return _parse_rate(text, _COMPUTE, "compute rate", "312 TFLOP/s", place)


def parse_operations(text: object, place: str = "") -> int:
    """Read a count of operations such as ``"2.5 GFLOP"``: a whole number."""
    value = _parse(text, _OPERATIONS, "count of operations", "2.5 GFLOP", place)
    if value.denominator != 1 or value.numerator > INT64_MAX:
        raise UnitError(place, f'"{text}" is not a whole number of operations', 'write e.g. "2.5 GFLOP"')
    return value.numerator


def transfer_ps(nbytes: int, bandwidth: Fraction) -> int:
    """Serialization time of `nbytes` at `bandwidth` bytes per second, rounded up to whole picoseconds."""
    return -(-nbytes * PS_PER_S * bandwidth.denominator // bandwidth.numerator)


def format_time(ps: int) -> str:
    """A time as text: four significant digits and a suitable unit, ``µs`` among them; see `typed_time`."""
    steps = (("s", 10**12), ("ms", 10**9), ("µs", 10**6), ("ns", 10**3))
    unit, factor = next((step for step in steps if abs(ps) >= step[1]), ("ps", 1))
    return f"{ps / factor:.4g} {unit}"


def typed_time(ps: int) -> str:
    """The same as one types it into a scenario, in ASCII."""
    return format_time(ps).replace("µ", "u")


def format_size(nbytes: int) -> str:
    """A size as text, in binary units, exact if it divides."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            quotient, rest = divmod(nbytes, factor)
            return f"{quotient} {unit}" if not rest else f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


def number_of(count: int, noun: str) -> str:
    """A count with its noun.

    >>> number_of(1, "point"), number_of(2000, "point")
    ('1 point', '2,000 points')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ns_text(ps: int) -> str:
    """Picoseconds as an exact decimal number of nanoseconds: 1500 ps are ``1.5``."""
    sign, ps = ("-", -ps) if ps < 0 else ("", ps)
    quotient, rest = divmod(ps, PS_PER_NS)
    return f"{sign}{quotient}" + (f".{rest:03d}".rstrip("0") if rest else "")
