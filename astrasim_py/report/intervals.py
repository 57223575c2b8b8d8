"""Sets of times as disjoint intervals."""

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
