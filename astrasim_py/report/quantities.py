"""What figures show of points: columns of numbers with their labels and units, and why one can be empty."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from astrasim_py.core.errors import ScenarioError
from astrasim_py.report import ticks
from astrasim_py.report.arranged_rows import FigureRow
from astrasim_py.results.values import ps_of

_LABELS = {
    "time_ns": "time",
    "bound_ns": "lower bound",
    "exposed_comm_ns": "exposed communication",
    "compute_ns": "compute",
    "other_ns": "other waiting",
    "iteration_mean_ns": "mean time of iterations",
    "iteration_p50_ns": "median time of iterations",
    "iteration_p99_ns": "99th percentile of iterations",
    "efficiency": "lower bound / time",
    "algbw_GBps": "algorithm bandwidth (GB/s)",
    "busbw_GBps": "bus bandwidth (GB/s)",
    "busiest_link_GBps": "bandwidth of the busiest link (GB/s)",
    "size_bytes": "message size (B)",
    "npus": "NPUs",
    "messages": "messages",
    "message_hops": "hops of messages",
}
_ONE = "only points of a single collective have it; collectives.csv has that of each call"
_BOUND = "these points have no lower bound (see semantics.md)"
_EMPTY = {
    "size_bytes": _ONE,
    "algbw_GBps": _ONE,
    "busbw_GBps": _ONE,
    "bound_ns": _BOUND,
    "efficiency": _BOUND,
    "iteration_mean_ns": "only jobs with collectives have iterations",
    "iteration_p50_ns": "only jobs with collectives have iterations",
    "iteration_p99_ns": "only jobs with collectives have iterations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number of each point. `column`: its name in tables. `value`: of a row, times in ps; None where it has none."""

    column: str
    label: str
    value: Callable[[FigureRow], float | None]
    time: bool = False
    #: Whether more is better.
    gain: bool = False
    empty: str = ""

    def cell(self, value: float | None) -> object:
        """A value as a cell of a table."""
        if value is None or not self.time:
            return value
        return Decimal(int(value)).scaleb(-3).normalize() if value == int(value) else value / 1000


def quantity_of(y: str) -> Quantity:
    """The quantity that a figure's key `y` names."""
    column = {"completion": "time_ns"}.get(y, f"{y}_ns" if y.startswith("iteration_") else y)
    time = column.endswith("_ns")

    def value(row: FigureRow) -> float | None:
        number = row.value(column)
        return None if number is None else float(ps_of(number) if time else number)

    gain = column in ("efficiency", "algbw_GBps", "busbw_GBps")
    empty = f"no {_LABELS[column].partition(' (')[0]}: " + _EMPTY.get(column, "these points have none")
    return Quantity(column=column, label=_LABELS[column], value=value, time=time, gain=gain, empty=empty)


class Scale(NamedTuple):
    """How values are drawn: on which scale, and divided by `factor`, in a unit. `label`: of their axis."""

    log: bool
    factor: float
    label: str


def scale_of(quantity: Quantity, values: Collection[float], scale: str | None, place: str, ratio: float = 4.0) -> Scale:
    """The scale of values, the one that is given as `scale`, else a logarithmic one if they differ by `ratio`. Raises
    ScenarioError: a logarithmic one for values of 0.
    """
    low, high = min(values), max(values)
    if scale == "log" and low <= 0:
        problem = f"{quantity.label} is {low:g} at some points, which a log scale cannot show"
        raise ScenarioError(f"{place}.scale", problem, "write scale: linear")
    log = low > 0 and high >= ratio * low if scale is None else scale == "log"
    if not quantity.time:
        return Scale(log, 1.0, quantity.label)
    unit, factor = ticks.time_unit(math.sqrt(low * high) if log else high)
    return Scale(log, factor, f"{quantity.label} ({unit})")
