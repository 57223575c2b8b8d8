"""Points that were repeated with other seeds: the run of the median time, and the interval of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from astrasim_py.core.units import format_time
from astrasim_py.results.values import ps_of

#: Swept key of a repeated point: what is added to each of its seeds.
SEED = "seed"
#: Percentiles at the ends of the interval.
LOW, HIGH = 10, 90
#: Columns of a row that stands for several runs.
REPEAT_KEYS = ("time_low_ns", "time_high_ns", "seeds")


def nearest_rank(ascending: Sequence[Any], percent: int) -> Any:
    """A percentile as one of the values: the least that so many percent of them do not exceed.

    >>> [nearest_rank(range(1, 21), percent) for percent in (10, 50, 90)]
    [2, 10, 18]
    """
    return ascending[-(-len(ascending) * percent // 100) - 1]


def medians(rows: Sequence[Mapping]) -> list[dict]:
    """The rows, with one in place of those of a point (and job) that was repeated: the run of the median time.

    It has the swept key `SEED` in a column of its own, `REPEAT_KEYS`, the ``interval`` as text, and all ``runs``. Where
    a run is not done, the first such stands for the point, without an interval.
    """
    groups: dict[object, list[Mapping]] = {}
    for number, row in enumerate(rows):
        sweep = tuple((key, value) for key, value in row["sweep"].items() if key != SEED)
        key = (row["scenario"], sweep, row.get("job")) if row.get("seeds") else number
        groups.setdefault(key, []).append(row)
    return [_median(group) if group[0].get("seeds") else dict(group[0]) for group in groups.values()]


def _median(runs: Sequence[Mapping]) -> dict:
    untimed = [run for run in runs if run.get("time_ns") is None]
    ascending = sorted(runs, key=lambda run: run["time_ns"]) if not untimed else untimed[:1]
    low, middle, high = (nearest_rank(ascending, percent) for percent in (LOW, 50, HIGH))
    sweep = {key: value for key, value in middle["sweep"].items() if key != SEED}
    made = {
        **middle,
        "point": ",".join(f"{key}={value}" for key, value in sweep.items()) or middle["scenario"],
        "sweep": sweep,
        SEED: middle["sweep"][SEED],
        "seeds": len(runs),
        "runs": list(runs),
    }
    if untimed:
        return made
    made |= {"time_low_ns": low["time_ns"], "time_high_ns": high["time_ns"]}
    return made | {"interval": " … ".join(format_time(ps_of(run["time_ns"])) for run in (low, high))}


def first_seed(row: Mapping) -> bool:
    """Whether a row is the only one of its point, or the first of those that repeat it."""
    return not row.get("seeds") or row["sweep"][SEED] == "0"
