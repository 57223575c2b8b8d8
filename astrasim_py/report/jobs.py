"""The table of jobs as text: when each was done, and how long its iterations took."""

from collections.abc import Callable, Sequence
from itertools import starmap

from astrasim_py.report.tables import Column, cell_text, fitted_table, rate, time_text
from astrasim_py.results.model import JobRow, Row

#: Heading and cell of a row and its job; a column without any value is left out.
_SHOWN: tuple[tuple[str, Callable[[Row, JobRow], str]], ...] = (
    ("job", lambda row, job: job.job),
    ("ranks", lambda row, job: str(job.ranks)),
    ("arrival", lambda row, job: time_text(job.arrival_ns)),
    ("finish", lambda row, job: time_text(job.finish_ns)),
    ("time", lambda row, job: time_text(job.time_ns)),
    ("10 to 90 %", lambda row, job: row.interval),
    ("seeds", lambda row, job: cell_text(row.seeds)),
    ("alone", lambda row, job: time_text(job.alone_ns)),
    ("slowdown", lambda row, job: rate(job.slowdown)),
    ("iterations", lambda row, job: str(job.iterations)),
    ("mean", lambda row, job: time_text(job.iteration_mean_ns)),
    ("p50", lambda row, job: time_text(job.iteration_p50_ns)),
    ("p99", lambda row, job: time_text(job.iteration_p99_ns)),
    ("iterations/s", lambda row, job: rate(job.iterations_per_s)),
)


def jobs_text(rows: Sequence[Row], width: int | None = None) -> str:
    """Rows of jobs (see `Row.of_job`) as plain text, of at most `width` characters."""
    pairs = [(row, row.job) for row in rows if row.job]
    columns = [
        Column(heading, list(starmap(cell, pairs)), heading != "job", 0 if heading in ("job", "time") else order)
        for order, (heading, cell) in enumerate(_SHOWN)
    ]
    columns = [column for column in columns if any(column.cells)]
    if len({row.point for row, _ in pairs}) > 1:
        columns.insert(0, Column("point", [row.point for row, _ in pairs], False))
    table = fitted_table(columns, width, "jobs.csv")
    unfinished = [job for _, job in pairs if job.time_ns is None and job.alone_ns is not None]
    if unfinished:
        names = ", ".join(dict.fromkeys(job.job for job in unfinished))
        table += f"\nslowdown of {names}, not done when the run ended: of the iterations that are, if any"
    return table
