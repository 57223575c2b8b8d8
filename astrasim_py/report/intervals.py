"""Sets of times as disjoint intervals, and lanes for intervals that overlap."""

import heapq

import numpy as np


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint ascending intervals that cover the same points."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], reach[closes]


def covered(start: np.ndarray, end: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Length of disjoint ascending intervals before each time."""
    total = np.concatenate([[0], np.cumsum(end - start)])
    index = np.searchsorted(start, until, side="right")
    over = np.where(index > 0, np.maximum(end[np.maximum(index - 1, 0)] - until, 0), 0) if len(start) else 0
    return total[index] - over


def coverage(
    row: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    rows: int,
    bins: int,
    until: int,
    weight: np.ndarray | float = 1.0,
) -> np.ndarray:
    """float64[rows, bins]: length of intervals in each bin of [0, until], times their weight.

    `row`: of each interval. Overlaps count more than once.
    """
    width = max(until, 1) / bins
    part, slope = np.zeros(rows * (bins + 1)), np.zeros(rows * (bins + 1))
    for sign, moment in ((1.0, start), (-1.0, end)):
        position = np.clip(moment / width, 0, bins)
        place = np.minimum(position.astype(np.int64), bins - 1)
        cell = row * (bins + 1) + place
        # Of the bin that it falls in what is left, and of all later ones the whole.
        part += np.bincount(cell, weights=sign * weight * (place + 1 - position), minlength=len(part))
        slope += np.bincount(cell + 1, weights=sign * weight * np.ones(len(position)), minlength=len(slope))
    before = np.cumsum(slope.reshape(rows, bins + 1), axis=1)
    return np.clip((part.reshape(rows, bins + 1) + before)[:, :bins], 0.0, None) * width


def lanes(group: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A lane for each interval, so that intervals of one lane and group do not overlap; the fewest, lowest first.

    `group`, `start`, `end`: of each interval; groups are numbered from 0, and each has its own lanes.

    >>> lanes(np.array([0, 0, 0, 1]), np.array([0, 1, 5, 0]), np.array([4, 3, 6, 9])).tolist()
    [0, 1, 0, 0]
    """
    result = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((end, start, group))
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    last = None
    for row, key, begin, stop in zip(
        *(c.tolist() for c in (order, group[order], start[order], end[order])), strict=True
    ):
        if key != last:
            busy, free, last = [], [], key
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        result[row] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stop, int(result[row])))
    return result
