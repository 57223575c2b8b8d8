"""Rows of unequal length, one after the other (CSR), numbers within groups, orders and distinct values."""

from collections.abc import Sequence

import numpy as np


def distinct(values: np.ndarray) -> np.ndarray:
    """Distinct values, ascending, by sorting: `numpy.unique` hashes, which is slow for many values."""
    values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def compact(values: np.ndarray) -> np.ndarray:
    """The same values, read-only and in the memory of one where all are equal."""
    return np.broadcast_to(values[0].copy(), values.shape) if len(values) and (values == values[0]).all() else values


def inverse(order: np.ndarray) -> np.ndarray:
    """int64[n]: the place of each element in an order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def joined(rows: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """Rows, one after the other; there may be none."""
    return np.concatenate([np.zeros(0, dtype=dtype), *rows])


def pointers(counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """int64[k + 1]: where each row begins, by their lengths."""
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def ranges(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For counts[i] elements of every i: their i, and their number 0, 1 … within it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def numbered(group: np.ndarray, *turns: np.ndarray) -> np.ndarray:
    """Numbers 0, 1 … within each group, in the order of the turns, the last of which counts most."""
    order = np.lexsort((*turns, group))
    out = np.empty(len(group), dtype=np.int64)
    out[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    return out
