"""The table of jobs: when each was done, and how long its iterations took."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.core.records import Records
from astrasim_py.core.units import PS_PER_S, format_time
from astrasim_py.report.tables import ns_number, ps_of, rounded, text_table
from astrasim_py.system.problem import Job

JOB_KEYS = (
    "point", "job", "ranks", "arrival_ns", "finish_ns", "time_ns", "iterations", "iteration_mean_ns",
    "iteration_p50_ns", "iteration_p99_ns", "iterations_per_s",
)  # fmt: skip


def job_rows(point: str, jobs: Sequence[Job], records: Records) -> list[dict]:
    """One row per job.

    `time_ns`: from its arrival to the end of its last node; empty if it is not done. `iterations`: those that are done.
    An iteration ends with its last collective; the first one begins with the arrival. Percentiles are nearest ranks. A
    job without collectives has no times of iterations.
    """
    unfinished, first = frozenset(records.outcome.unfinished_ranks), 0
    named = records.collective["job"]
    rows = []
    for job in jobs:
        ranks = range(first, first := first + job.ranks)
        done = records.outcome.status == "done" and unfinished.isdisjoint(ranks)
        mine = np.flatnonzero(named == job.name)
        ends = _iteration_ends(job, records, mine)
        finish = int(records.finish[ranks.start : ranks.stop].max(initial=0)) if done else None
        took = np.diff(ends, prepend=job.arrival_ps)
        count = len(ends) if len(mine) else job.iterations if done else 0
        until = int(ends[-1]) if len(ends) else finish
        span = until - job.arrival_ps if count and until is not None else 0
        rows.append(
            {
                "point": point,
                "job": job.name,
                "ranks": job.ranks,
                "arrival_ns": ns_number(job.arrival_ps),
                "finish_ns": ns_number(finish),
                "time_ns": None if finish is None else ns_number(finish - job.arrival_ps),
                "iterations": count,
                "iteration_mean_ns": ns_number(int(took.sum()) // len(took)) if len(took) else None,
                "iteration_p50_ns": _percentile(took, 50),
                "iteration_p99_ns": _percentile(took, 99),
                "iterations_per_s": rounded(Fraction(count * PS_PER_S, span)) if span > 0 else None,
            }
        )
    return rows


def _iteration_ends(job: Job, records: Records, mine: np.ndarray) -> np.ndarray:
    """int64[k]: end of each iteration that is done, ps; `mine`: rows of the collectives of the job."""
    ends = np.zeros(job.iterations if len(mine) else 0, dtype=np.int64)
    done = np.ones(len(ends), dtype=bool)
    group, end = records.collective.coded("group")[0][mine], records.collective["end"][mine]
    for one in np.unique(group):
        by_iteration = end[group == one].reshape(job.iterations, -1)
        done &= (by_iteration >= 0).all(axis=1)
        ends = np.maximum(ends, by_iteration.max(axis=1))
    return ends[done]


def _percentile(values: np.ndarray, percent: int):
    """A percentile of times in ps, as the nearest rank, in ns; None of no values."""
    return ns_number(np.sort(values)[-(-len(values) * percent // 100) - 1]) if len(values) else None


def jobs_text(rows: Sequence[Mapping]) -> str:
    """Rows of jobs as plain text."""
    several = len({row["point"] for row in rows}) > 1
    headings = [
        *(["point"] if several else []),
        "job",
        "ranks",
        "arrival",
        "finish",
        "time",
        "iterations",
        "mean",
        "p50",
    ]
    headings += ["p99", "iterations/s"]

    def time(value) -> str:
        return "" if value is None else format_time(ps_of(value))

    cells = [
        [
            *([str(row["point"])] if several else []),
            row["job"],
            str(row["ranks"]),
            *(time(row[f"{name}_ns"]) for name in ("arrival", "finish", "time")),
            str(row["iterations"]),
            *(time(row[f"iteration_{name}_ns"]) for name in ("mean", "p50", "p99")),
            "" if row["iterations_per_s"] is None else f"{row['iterations_per_s']:.4g}",
        ]
        for row in rows
    ]
    return text_table(headings, cells, [heading not in ("point", "job") for heading in headings])
