"""Motifs: successive repetitions in a sequence, such as the layers of a model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Longest period that is looked for, and fewest repeats.
MAX_PERIOD, LEAST_REPEATS = 5000, 3


class Motif(NamedTuple):
    """Elements ``start .. start + period * repeats`` are `repeats` copies of one block."""

    start: int
    period: int
    repeats: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.repeats


def find_motif(keys: Sequence) -> Motif | None:
    """The block that covers most of a sequence, of those that are repeated at least three times one after the other.

    For every lag, the longest run of elements that are equal to those before them by the lag; of equal covers the
    shortest period, then the first. None if nothing is repeated.

    >>> find_motif("xababababz")
    Motif(start=1, period=2, repeats=4)
    """
    code: dict[object, int] = {}
    numbers = np.array([code.setdefault(key, len(code)) for key in keys], dtype=np.int64)
    best, cover = None, 0
    for lag in range(1, min(len(numbers) // LEAST_REPEATS, MAX_PERIOD) + 1):
        breaks = np.flatnonzero(numbers[lag:] != numbers[:-lag])
        edges = np.concatenate([[-1], breaks, [len(numbers) - lag]])
        runs = np.diff(edges) - 1
        longest = int(runs.argmax())
        repeats = (int(runs[longest]) + lag) // lag
        if repeats >= LEAST_REPEATS and repeats * lag > cover:
            best, cover = Motif(int(edges[longest]) + 1, lag, repeats), repeats * lag
    return best
