"""Pipeline schedules: the order in which each stage computes its micro-batches, and the bubble it leaves.

A program is an int64[n, 3] array of one pipeline rank, a row per block: pass, micro-batch, chunk. A pass is `FORWARD`,
`BACKWARD` (with the weight gradients, where the schedule does not split them off) or `WEIGHT`.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zbv")
#: Schedules that compute weight gradients in blocks of their own.
SPLIT_BACKWARD = ("zb_h1", "zb_h2", "zbv")


def programs(
    schedule: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    times: tuple[int, int, int] = (1, 1, 1),
    *,
    paired: bool = False,
) -> tuple[np.ndarray, ...]:
    """Programs of all p pipeline ranks, int64[n, 3] each.

    `stages`, `microbatches`, `chunks`: pipeline ranks p, micro-batches m, and model chunks of each rank v; ``zbv`` has
    two. `times`: of one forward, input-gradient and weight-gradient block in any unit. Only ``zbv`` orders its blocks
    by them; the order of ``zb_h2`` for equal times loses the least with other times, too. `paired`: the forward and the
    backward block beside each other in the steady part of ``1f1b`` and ``interleaved`` run together (see `pairs`), so a
    micro-batch takes two turns of each rank on its way there and back: ranks warm up with a block more for each rank
    after them, and one for themselves. The interleaved schedule has the former. Raises ValueError: an unknown schedule,
    chunks that it does not have, or micro-batches that the interleaved one cannot divide.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is not one of {', '.join(SCHEDULES)}")
    expected = {"interleaved": chunks, "zbv": 2}.get(schedule, 1)
    if chunks != expected:
        raise ValueError(f"{schedule} has {expected} chunks a rank, not {chunks}")
    if schedule == "interleaved" and microbatches % stages:
        raise ValueError(f"interleaved needs micro-batches that are a multiple of {stages} stages, not {microbatches}")
    if schedule in ("zb_h2", "zbv"):
        rows_of = _list_schedule(schedule, stages, microbatches, times if schedule == "zbv" else (1, 1, 1))
    else:
        make = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleaved, "zb_h1": _zb_h1}
        shape = stages, microbatches, chunks, int(paired)
        rows_of = [list(make[schedule](*shape, rank)) for rank in range(stages)]
    return tuple(np.array(rows, dtype=np.int64).reshape(-1, 3) for rows in rows_of)


def pairs(program: np.ndarray) -> np.ndarray:
    """int64[k]: rows of a `paired` program whose forward block runs together with the backward block after it."""
    kinds = program[:, 0]
    first = int(np.argmax(kinds != FORWARD))
    if not (kinds[first:] == FORWARD).any():
        return np.empty(0, np.int64)
    return np.flatnonzero((kinds[:-1] == FORWARD) & (kinds[1:] == BACKWARD))


def virtual_stage(schedule: str, stages: int, rank, chunk):
    """Place of a chunk in the model, from 0; `rank` and `chunk` may be arrays. On the V the second chunk goes back."""
    if schedule == "zbv":
        return rank + chunk * (2 * stages - 1 - 2 * rank)
    return chunk * stages + rank


def bubble(schedule: str, stages, chunks, times: tuple, microbatches):
    """Makespan less m (F + I + W): the time that the schedule loses when communication takes none.

    `times`: F, I, W of a micro-batch on one rank, all its chunks together. With whole numbers the result is an exact
    Fraction; stages, chunks, times and `microbatches` m may also be floats or arrays. A weight block of ``zb_h1`` and
    ``zb_h2`` fills a forward block's time at most, and the last micro-batch's comes after all others. The form of
    ``zbv`` holds for F = I = W only. Sources: Qi et al., Zero Bubble Pipeline Parallelism (2023), whose forms are those
    for W <= F and many micro-batches; Narayanan et al. (2021) for the interleaved schedule.
    """
    exact: list[Any] = [Fraction(time) if isinstance(time, int | Fraction) else time for time in times]
    forward, grad, weight = exact
    last, filling = stages - 1, np.minimum(weight, forward)
    filled = {name: np.minimum(k * last, microbatches - 1) * filling for name, k in (("zb_h1", 1), ("zb_h2", 2))}
    forms = {
        "gpipe": last * (forward + grad + weight),
        "1f1b": last * (forward + grad + weight),
        "interleaved": last * (forward + grad + weight) / chunks,
        "zb_h1": last * (forward + grad) - filled["zb_h1"],
        "zb_h2": np.maximum(last * (forward + grad) - filled["zb_h2"], last * forward),
        "zbv": last * forward / 2,
    }
    return forms[schedule]


def _gpipe(stages: int, microbatches: int, chunks: int, more: int, rank: int) -> Iterator[tuple[int, int, int]]:
    yield from ((FORWARD, k, 0) for k in range(microbatches))
    yield from ((BACKWARD, k, 0) for k in range(microbatches))


def _one_forward_one_backward(
    stages: int, microbatches: int, chunks: int, more: int, rank: int
) -> Iterator[tuple[int, int, int]]:
    ahead = min((1 + more) * (stages - 1 - rank) + more, microbatches)
    yield from ((FORWARD, k, 0) for k in range(ahead))
    for k in range(microbatches):
        if ahead + k < microbatches:
            yield FORWARD, ahead + k, 0
        yield BACKWARD, k, 0


def _interleaved(stages: int, microbatches: int, chunks: int, more: int, rank: int) -> Iterator[tuple[int, int, int]]:
    total = microbatches * chunks

    def block(k: int) -> tuple[int, int]:
        return k // (stages * chunks) * stages + k % stages, k % (stages * chunks) // stages

    ahead = min(2 * (stages - 1 - rank) + (chunks - 1) * stages + more, total)
    if microbatches == stages:
        ahead = total
    yield from ((FORWARD, *block(k)) for k in range(ahead))
    for k in range(total):
        if ahead + k < total:
            yield FORWARD, *block(ahead + k)
        microbatch, chunk = block(k)
        yield BACKWARD, microbatch, chunks - 1 - chunk


def _zb_h1(stages: int, microbatches: int, chunks: int, more: int, rank: int) -> Iterator[tuple[int, int, int]]:
    for row in _one_forward_one_backward(stages, microbatches, chunks, 0, rank):
        yield row
        if row[0] == BACKWARD and row[1] >= rank:
            yield WEIGHT, row[1] - rank, 0
    yield from ((WEIGHT, k, 0) for k in range(max(microbatches - rank, 0), microbatches))


def _list_schedule(schedule: str, stages: int, microbatches: int, times: tuple[int, int, int]) -> list[list[tuple]]:
    """Programs of ranks that always take the most urgent block: backward, then forward, then weight.

    A rank holds activations of 2p - 1 micro-batches, on the V those of 2p halves; only a weight block frees them. It
    fills the time in which no other block is ready. The second chunk goes forward first, the first one backward.
    """
    chunks = 2 if schedule == "zbv" else 1
    depth = stages * chunks
    room = 2 * stages - 2 + chunks
    stage_of = [[virtual_stage(schedule, stages, rank, chunk) for chunk in range(chunks)] for rank in range(stages)]
    rank_of = {stage: rank for rank, owned in enumerate(stage_of) for stage in owned}
    #: Time at which the input of a block (pass, virtual stage, micro-batch) arrives; known once its producer has
    #: started.
    arrivals = {(FORWARD, 0, k): 0 for k in range(microbatches)}
    done = {(kind, stage): 0 for kind in (FORWARD, BACKWARD) for stage in range(depth)}
    held, free = [0] * stages, [0] * stages
    weights: list[deque] = [deque() for _ in range(stages)]
    blocks: list[list[tuple]] = [[] for _ in range(stages)]

    def choose(rank: int, now: int) -> tuple[int, int, int] | None:
        due = math.inf
        for kind, order in ((BACKWARD, range(chunks)), (FORWARD, range(chunks - 1, -1, -1))):
            for chunk in order:
                stage = stage_of[rank][chunk]
                k = done[kind, stage]
                arrival = arrivals.get((kind, stage, k), math.inf)
                if kind == FORWARD and held[rank] >= room:
                    continue
                if arrival <= now:
                    return kind, k, chunk
                due = min(due, arrival)
        if weights[rank] and due >= now + times[WEIGHT]:
            return WEIGHT, *weights[rank].popleft()
        return None

    wakes = [(0, rank) for rank in range(stages)]  # heap of (time, rank)
    while wakes:
        now, rank = heapq.heappop(wakes)
        block = choose(rank, now) if free[rank] <= now else None
        if block is None:
            continue
        kind, k, chunk = block
        blocks[rank].append(block)
        free[rank] = end = now + times[kind]
        heapq.heappush(wakes, (end, rank))
        if kind == WEIGHT:
            held[rank] -= 1
            continue
        stage = stage_of[rank][chunk]
        done[kind, stage] += 1
        if kind == FORWARD:
            held[rank] += 1
            following = (FORWARD, stage + 1) if stage + 1 < depth else (BACKWARD, stage)
        else:
            weights[rank].append((k, chunk))
            following = BACKWARD, stage - 1
        if following[1] >= 0:
            arrivals[*following, k] = end
            heapq.heappush(wakes, (end, rank_of[following[1]]))
    return blocks
