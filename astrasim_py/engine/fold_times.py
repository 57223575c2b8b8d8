"""Times of ranks, from the starts and ends of their nodes."""

import numpy as np

from astrasim_py.system.plan import COMPUTE, COMPUTE_SLOT, INSTANT, MEMORY, RankProgram


def rank_times(program: RankProgram, start: np.ndarray, end: np.ndarray, *, summed: bool) -> tuple[int, int, int]:
    """Finish, time with computation running, and time with communication alone, of a rank, ps.

    `start`, `end`: int64[n], by node. `summed`: the last is the finish less the sum of computation instead.
    """
    kind = program.structure.kind
    finish = int(end.max(initial=0))
    counted = (kind != MEMORY) & (kind != INSTANT)
    when = np.concatenate([start[counted], end[counted]])
    step = np.repeat([1, -1], int(counted.sum()))
    computes = np.tile(kind[counted] == COMPUTE, 2)
    order = np.argsort(when, kind="stable")
    lasts = np.diff(when[order], append=finish)
    computing, communicating = (np.cumsum(np.where(one, step, 0)[order]) > 0 for one in (computes, ~computes))
    compute = int(lasts[computing].sum())
    if summed:
        return finish, compute, finish - int(program.duration[(kind == COMPUTE) & (program.slot == COMPUTE_SLOT)].sum())
    return finish, compute, int(lasts[communicating & ~computing].sum())
