"""Published runs that ran, and that ran out of memory, against the estimate of peak memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.training.memory import RESERVE, peak_memory
from astrasim_py.validation.training_rows import OUT_OF_MEMORY, TrainingRow


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """How the estimate judges runs: it fits where it needs at most what is usable.

    `usable_gib`: of each NPU, by size, ascending. `ran`, `failed`: runs that ran, and that ran out of memory;
    `ran_fits`, `failed_exceeds`: the share of them that is judged so; None where there are none. `peaks`: runs with a
    printed peak; `peak_median_rel_error`, `peak_median_bias`: median of |ours / printed - 1|, and with its sign.
    """

    usable_gib: tuple[float, ...]
    ran: int
    ran_fits: float | None
    failed: int
    failed_exceeds: float | None
    peaks: int
    peak_median_rel_error: float | None
    peak_median_bias: float | None


def judge_memory(rows: Sequence[TrainingRow]) -> MemoryReport | None:
    """The report of the rows that say how they ended; None where none does."""
    known = [row for row in rows if row.outcome and row.layout is not None and row.system is not None]
    if not known:
        return None
    peaks, usable = [], []
    for row in known:
        assert row.layout is not None and row.system is not None
        peaks.append(float(sum(peak_memory(row.layout).values())))
        usable.append(float(row.system.compute.memory) * (1 - RESERVE))
    peak, limit = np.array(peaks), np.array(usable)
    failed = np.array([row.outcome == OUT_OF_MEMORY for row in known])
    printed = np.array([row.peak_gib or np.nan for row in known])
    ratio = (peak / 2**30 / printed - 1)[~failed & ~np.isnan(printed)]
    return MemoryReport(
        usable_gib=tuple(sorted({round(size / 2**30, 2) for size in usable})),
        ran=int((~failed).sum()),
        ran_fits=float(np.mean(peak[~failed] <= limit[~failed])) if (~failed).any() else None,
        failed=int(failed.sum()),
        failed_exceeds=float(np.mean(peak[failed] > limit[failed])) if failed.any() else None,
        peaks=len(ratio),
        peak_median_rel_error=float(np.median(np.abs(ratio))) if len(ratio) else None,
        peak_median_bias=float(np.median(ratio)) if len(ratio) else None,
    )


def memory_text(report: MemoryReport) -> str:
    """The report in a line for each kind of runs."""
    limits = ", ".join(f"{size:g}" for size in report.usable_gib)
    lines = [f"memory: {limits} GiB of an NPU are usable"]
    if report.ran_fits is not None:
        lines.append(f"  of {report.ran} runs that ran {100 * report.ran_fits:.1f} % fit")
    if report.failed_exceeds is not None:
        lines.append(f"  of {report.failed} runs that ran out of memory {100 * report.failed_exceeds:.1f} % do not")
    if report.peak_median_rel_error is not None and report.peak_median_bias is not None:
        error, bias = 100 * report.peak_median_rel_error, 100 * report.peak_median_bias
        lines.append(f"  {report.peaks} printed peaks: off by {error:.1f} % in the median ({bias:+.1f} %)")
    return "\n".join(lines)
