"""Arrays of rows of unequal length (CSR), and the order of transfers."""

from __future__ import annotations

import numpy as np

from astrasim_py.topology.routing import pointers


def rows_of(ptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pointers, indices) of some rows, one after the other."""
    lengths = np.diff(ptr)[rows]
    new = pointers(lengths)
    return new, np.arange(new[-1]) + np.repeat(ptr[:-1][rows] - new[:-1], lengths)


def by_time(start: np.ndarray) -> np.ndarray:
    """Order of rows by time, equals as they are."""
    if (start[1:] >= start[:-1]).all():
        return np.arange(len(start))
    return np.argsort(start, kind="stable")


def index_in_group(key: np.ndarray) -> np.ndarray:
    """int64[rows]: how many rows before each have its key."""
    order = np.argsort(key, kind="stable")
    out = np.empty(len(key), dtype=np.int64)
    out[order] = np.arange(len(key)) - np.searchsorted(key[order], key[order])
    return out
