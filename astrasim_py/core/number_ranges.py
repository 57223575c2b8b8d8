"""Whole numbers in a row, in short."""

from collections.abc import Sequence

import numpy as np


def number_ranges(numbers: Sequence[int], limit: int = 3) -> str:
    """Ascending whole numbers, in short.

    >>> number_ranges([0, 1, 2, 5, 8]), number_ranges(range(0, 64, 4))
    ('0–2, 5, 8', '0, 4, …, 60')
    """
    values = np.asarray(numbers)
    parts = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
    texts = [str(p[0]) if len(p) == 1 else f"{p[0]}{'–' if len(p) > 2 else ', '}{p[-1]}" for p in parts if len(p)]
    return ", ".join(texts if len(texts) <= limit else [*texts[:2], "…", texts[-1]])
