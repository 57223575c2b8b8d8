"""Rows of collectives: their times, bounds and bandwidths."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.core import units
from astrasim_py.core.records import NO_RATE, Categorical, Table
from astrasim_py.results.csv_io import value_cell
from astrasim_py.results.model import COLLECTIVE_KEYS, CollectiveRow
from astrasim_py.results.values import ns_number, rounded

#: Collective and ranks → bus bandwidth over algorithm bandwidth.
Factors = Mapping[tuple[str, int], Fraction]


def bandwidth_GBps(size: int, duration_ps: int | Fraction) -> Decimal | None:
    """Bytes over picoseconds as GB/s (10**9 bytes per second); None for an empty interval.

    >>> bandwidth_GBps(1000, 20_000)
    Decimal('50')
    """
    return rounded(Fraction(size * 1000, duration_ps)) if duration_ps > 0 else None


class Bounded(NamedTuple):
    """A lower bound, and its share of a simulated time."""

    bound_ns: Decimal | None
    efficiency: Decimal | None


def bounded(bound_ps: int | None, time_ps: int) -> Bounded:
    """A lower bound, and its share of a simulated time: 1 is perfect. Both are empty where the bound lies above the
    time: it is wrong then, and the run says so.
    """
    if bound_ps is None or bound_ps > time_ps:
        return Bounded(None, None)
    return Bounded(ns_number(bound_ps), rounded(Fraction(bound_ps, time_ps)) if time_ps > 0 else None)


def collective_rows(point: str, table: Table, factors: Factors | None = None) -> list[CollectiveRow]:
    """One row per collective instance, with its algorithm and bus bandwidth. `point`: name of the point, repeated in
    every row. `table`: the collective records. `factors`: bus bandwidth over algorithm bandwidth (nccl-tests,
    doc/PERFORMANCE.md); without an entry the bus bandwidth stays empty.
    """
    rows = []
    for call in table.rows():
        plain = {key: call[key] for key in ("instance", "job", "group", "type", "ranks", "size", "algorithm")}
        times: dict[str, Any] = {f"{key}_ns": _ns(call[key]) for key in ("start", "end")}
        duration = int(_duration(call["start"], call["end"]))
        rates = _rates(factors or {}, call["type"], call["ranks"], call["size"], call["bound"], duration)
        rows.append(CollectiveRow(point=point, **plain, **times, **rates))
    return rows


def collective_table(point: str, folder: str, table: Table, factors: Factors) -> Table:
    """The same rows as columns for `csv_chunks`, and the folder of the point; what rows have in common is made once."""
    start, end = table["start"], table["end"]
    kinds, names = table.coded("type")
    distinct, codes = np.unique(
        np.stack([kinds, table["ranks"], table["size"], table["bound"], _duration(start, end)]),
        axis=1,
        return_inverse=True,
    )
    rates = [_rates(factors, names[kind], *numbers) for kind, *numbers in distinct.T.tolist()]
    zeros = np.zeros(len(start), dtype=np.int32)
    columns: dict[str, Categorical | np.ndarray] = {
        "point": Categorical(zeros, [point]),
        "start_ns": _times(start),
        "end_ns": _times(end),
    }
    columns |= {
        key: Categorical(codes.ravel(), [value_cell(row[key]) for row in rates]) for key in (rates[0] if rates else ())
    }
    columns |= {key: Categorical(*table.coded(key)) for key in ("job", "group", "type", "algorithm")}
    columns |= {key: table[key] for key in ("instance", "ranks", "size")}
    return Table({**{key: columns[key] for key in COLLECTIVE_KEYS if rates}, "folder": Categorical(zeros, [folder])})


def _times(ps: np.ndarray) -> Categorical:
    values, codes = np.unique(ps, return_inverse=True)
    return Categorical(codes, [units.ns_text(value) if value >= 0 else "" for value in values.tolist()])


def _ns(ps: int) -> Decimal | None:
    return ns_number(ps) if ps >= 0 else None


def _duration(start, end):
    """From start to end, in numbers or arrays; -1 where either is missing."""
    return np.where((start >= 0) & (end >= 0), end - start, -1)[()]


def _rates(factors: Factors, kind: str, ranks: int, size: int, bound: int, duration: int) -> dict[str, Any]:
    """What follows of a collective's type, group, size, lower bound and duration."""
    lower, factor = bound if bound >= 0 else None, factors.get((kind, ranks))
    rate = None if bound == NO_RATE else bandwidth_GBps(size, duration)
    sides = bounded(lower, duration) if duration >= 0 else Bounded(ns_number(lower), None)
    return {
        "time_ns": _ns(duration),
        **sides._asdict(),
        "algbw_GBps": rate,
        "busbw_GBps": None if rate is None or factor is None else rounded(Fraction(rate) * factor),
    }
