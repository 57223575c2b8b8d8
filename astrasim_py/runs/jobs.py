"""The rows of jobs: when each was done, and how long its iterations took."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from astrasim_py.core.records import Records, Table
from astrasim_py.core.units import PS_PER_S
from astrasim_py.results.model import JobRow
from astrasim_py.results.repeats import nearest_rank
from astrasim_py.results.values import ns_number, rounded
from astrasim_py.system.problem import Job


class Alone(NamedTuple):
    """A job that had the network to itself. `time`: its completion time, ps. `ends`: int64[k]: end of each iteration
    after its arrival, ps.
    """

    time: int
    ends: np.ndarray


def job_rows(point: str, jobs: Sequence[Job], records: Records, alone: Mapping[str, Alone]) -> list[JobRow]:
    """One row per job.

    `time_ns`: from its arrival to the end of its last node; empty if it is not done. `iterations`: those that are done.
    An iteration ends with its last collective; the first one begins with the arrival. Percentiles are nearest ranks. A
    job without collectives has no times of iterations. The slowdown of a job that is not done is that of the iterations
    that are.
    """
    unfinished, first = frozenset(records.outcome.unfinished_ranks), 0
    job_names = records.collective["job"]
    rows = []
    for job in jobs:
        ranks = range(first, first := first + job.ranks)
        finished = records.outcome.status == "done" and unfinished.isdisjoint(ranks)
        calls = np.flatnonzero(job_names == job.name)
        ends = iteration_ends(job, records.collective, calls)
        finish = int(records.finish[ranks.start : ranks.stop].max(initial=0)) if finished else None
        took = np.diff(ends, prepend=job.arrival_ps)
        count = len(ends) if len(calls) else job.iterations if finished else 0
        until = int(ends[-1]) if len(ends) else finish
        span = until - job.arrival_ps if count and until is not None else 0
        time, best = None if finish is None else finish - job.arrival_ps, alone.get(job.name)
        compared = (time, best.time) if best and time is not None else (0, 0)
        if best and time is None and 0 < len(ends) <= len(best.ends):
            compared = int(ends[-1]) - job.arrival_ps, int(best.ends[len(ends) - 1])
        rows.append(
            JobRow(
                point=point,
                job=job.name,
                ranks=job.ranks,
                arrival_ns=ns_number(job.arrival_ps),
                finish_ns=ns_number(finish),
                time_ns=ns_number(time),
                iterations=count,
                iteration_mean_ns=ns_number(int(took.sum()) // len(took)) if len(took) else None,
                iteration_p50_ns=_percentile(took, 50),
                iteration_p99_ns=_percentile(took, 99),
                iterations_per_s=rounded(Fraction(count * PS_PER_S, span)) if span > 0 else None,
                alone_ns=ns_number(best.time) if best else None,
                slowdown=rounded(Fraction(*compared)) if compared[1] else None,
            )
        )
    return rows


def iteration_ends(job: Job, collective: Table, calls: np.ndarray) -> np.ndarray:
    """int64[k]: end of each iteration that is done, ps; `calls`: rows of the collectives of the job."""
    ends = np.zeros(job.iterations if len(calls) else 0, dtype=np.int64)
    complete = np.ones(len(ends), dtype=bool)
    group, end = collective.coded("group")[0][calls], collective["end"][calls]
    for code in np.unique(group):
        by_iteration = end[group == code].reshape(job.iterations, -1)
        complete &= (by_iteration >= 0).all(axis=1)
        ends = np.maximum(ends, by_iteration.max(axis=1))
    return ends[complete]


def _percentile(values: np.ndarray, percent: int) -> Decimal | None:
    """A percentile of times in ps, as the nearest rank, in ns; None of no values."""
    return ns_number(nearest_rank(np.sort(values), percent)) if len(values) else None
