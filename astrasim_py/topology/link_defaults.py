"""What a topology written link by link says beside its links: values for all that name none, and directions."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeVar

from pydantic import ValidationInfo

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import shown, written, wrong
from astrasim_py.core.units import INT64_MAX, parse_bandwidth, parse_time

_PARTS = re.compile(r"\s*[+-]?[\d._]+(?:[eE][+-]?\d+)?\s*(\D.*?)\s*")


class DefaultRate(NamedTuple):
    """A bandwidth, and the unit in which it is written: that of numbers without one. Bytes per second."""

    value: Fraction
    unit: Fraction | None = None


class DefaultLatency(NamedTuple):
    """A latency in whole ps, and the unit in which it is written, ps: that of numbers without one."""

    value: int
    unit: Fraction | None = None


@dataclass(frozen=True, kw_only=True)
class LinkDefaults:
    """Keys beside the links.

    `both`: whether each entry stands for a link in either direction; None: as the form of the file has it. `npus`: how
    many of the numbered vertices are NPUs, where the file does not say it. `place`: of these keys, where one that no
    link uses is refused; None: it is not.
    """

    bandwidth: DefaultRate | None = None
    latency: DefaultLatency | None = None
    both: bool | None = None
    npus: int | None = None
    place: str | None = None


def _unit(text: str) -> str | None:
    parts = _PARTS.fullmatch(text)
    return parts[1] if parts else None


def rate_of(text: str, *, binary: bool = False) -> DefaultRate:
    """Read e.g. ``"50 GB/s"``. Raises UnitError."""
    value, unit = parse_bandwidth(text, binary=binary), _unit(text)
    return DefaultRate(value, parse_bandwidth(f"1 {unit}", binary=binary) if unit else None)


def latency_of(text: str, *, binary: bool = False) -> DefaultLatency:
    """Read e.g. ``"500 ns"``. Raises UnitError."""
    value, unit = parse_time(text), _unit(text)
    return DefaultLatency(value, Fraction(parse_time(f"1 {unit}")) if unit else None)


def read_rate(value: object, info: ValidationInfo) -> DefaultRate:
    """Read a key of a scenario, or bytes per second as a Fraction from Python. Raises pydantic's errors."""
    if not written(info) and isinstance(value, Fraction) and 0 < value <= INT64_MAX:
        return DefaultRate(value)
    return _read(rate_of, value, info, "bandwidth", "50 GB/s")


def read_latency(value: object, info: ValidationInfo) -> DefaultLatency:
    """Read a key of a scenario, or whole ps from Python. Raises pydantic's errors."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if not written(info) and isinstance(value, int) and number and 0 <= value <= INT64_MAX:
        return DefaultLatency(value)
    return _read(latency_of, value, info, "time", "500 ns")


_T = TypeVar("_T")


def _read(read: Callable[..., _T], value: object, info: ValidationInfo, noun: str, example: str) -> _T:
    if not isinstance(value, str):
        raise wrong(f"{shown(value)} is not a {noun}: it has no unit", f'write e.g. "{example}"')
    try:
        return read(value, binary=bool((info.context or {}).get("binary")))
    except UnitError as error:
        raise wrong(error.problem, error.remedy) from None
