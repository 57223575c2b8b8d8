"""Points that were repeated with other seeds: the run of the median time, and the interval of the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from astrasim_py.results.model import Row

AnyRow = TypeVar("AnyRow", bound=Row)

#: Swept key of a repeated point: what is added to each of its seeds.
SEED = "seed"
#: Percentiles at the ends of the interval.
LOW, HIGH = 10, 90
#: Columns of a row that stands for several runs.
REPEAT_KEYS = ("time_low_ns", "time_high_ns", "seeds")


def nearest_rank(ascending: Sequence[Any] | np.ndarray, percent: int) -> Any:
    """A percentile as one of the values: the least that so many percent of them do not exceed.

    >>> [nearest_rank(range(1, 21), percent) for percent in (10, 50, 90)]
    [2, 10, 18]
    """
    return ascending[-(-len(ascending) * percent // 100) - 1]


def medians(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """The rows, with one in place of those of a point (and job) that was repeated: the run of the median time.

    It has the seed, the interval of times and all ``runs``. Where a run is not done, the first such stands for the
    point, without an interval.
    """
    groups: dict[object, list[AnyRow]] = {}
    for number, row in enumerate(rows):
        sweep = tuple((key, value) for key, value in row.sweep.items() if key != SEED)
        key = (row.scenario, sweep, row.job and row.job.job) if row.seeds else number
        groups.setdefault(key, []).append(row)
    return [_median(group) if group[0].seeds else group[0] for group in groups.values()]


def _median(runs: Sequence[AnyRow]) -> AnyRow:
    untimed = [run for run in runs if run.time_ns is None]
    ascending = untimed[:1] or sorted(runs, key=lambda run: run.time_ns or 0)
    low, middle, high = (nearest_rank(ascending, percent) for percent in (LOW, 50, HIGH))
    sweep = {key: value for key, value in middle.sweep.items() if key != SEED}
    median = replace(
        middle,
        point=",".join(f"{key}={value}" for key, value in sweep.items()) or middle.scenario,
        sweep=sweep,
        seed=middle.sweep[SEED],
        seeds=len(runs),
        runs=tuple(runs),
    )
    return median if untimed else replace(median, time_low_ns=low.time_ns, time_high_ns=high.time_ns)


def first_seed(row: Row) -> bool:
    """Whether a row is the only one of its point, or the first of those that repeat it."""
    return not row.seeds or row.sweep[SEED] == "0"
