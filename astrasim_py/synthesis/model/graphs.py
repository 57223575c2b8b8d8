"""Rows of unequal length (CSR), and components and distances of networks stored so."""

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.core.rows import pointers
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.topology.routing import reachable

#: Beyond every distance.
_FAR = np.int64(2**62)


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


def components(net: Timing, keep: np.ndarray) -> tuple[np.ndarray, int]:
    """(int32[n] labels, number) of the strongly connected components over the arcs that are kept (bool[arcs])."""
    label, found, ways = np.full(len(net.in_ptr) - 1, -1, dtype=np.int32), 0, []
    for tails, heads in ((net.src, net.dst), (net.dst, net.src)):
        arcs = np.flatnonzero(keep)[np.argsort(tails[keep], kind="stable")]
        ways.append((pointers(np.bincount(tails[arcs], minlength=len(label))).tolist(), heads[arcs].tolist()))
    for first in range(len(label)):
        if label[first] < 0:
            label[list(reachable(*ways[0], first) & reachable(*ways[1], first))] = found
            found += 1
    return label, found


def ranked(values: np.ndarray) -> np.ndarray:
    """int64[rows]: equal values numbered 0.. in ascending order; faster than ``return_inverse`` where few differ."""
    return np.searchsorted(np.unique(values), values)


@kernel("the synthesizer", threads=True)
def _distances(n, ptr, arcs, ends, cost, roots):
    """Label correcting from every root, with a queue of ranks: int64[roots, n]."""
    reach = np.full((len(roots), n), _FAR, dtype=np.int64)
    queue, waits = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    for row in range(len(roots)):
        reach[row, roots[row]], queue[0], waits[roots[row]] = 0, roots[row], True
        first, size = 0, 1
        while size:
            v = queue[first]
            first = first + 1 if first + 1 < n else 0
            size -= 1
            waits[v] = False
            for i in range(ptr[v], ptr[v + 1]):
                a = arcs[i]
                u, there = ends[a], reach[row, v] + cost[a]
                if there < reach[row, u]:
                    reach[row, u] = there
                    if not waits[u]:
                        waits[u] = True
                        at = first + size
                        queue[at if at < n else at - n] = u
                        size += 1
    return reach


def distances_from(net: Timing, delay: np.ndarray, source: int) -> np.ndarray:
    """int64[n]: sums of delays (int64[arcs]) over the shortest paths from a rank."""
    n, delay = len(net.in_ptr) - 1, np.ascontiguousarray(delay)
    return _distances(n, net.out_ptr, net.out_arc, net.dst, delay, np.array([source]))[0]


def distances_to(net: Timing, cost: np.ndarray) -> np.ndarray:
    """int64[n, n]: the least sum of costs (int64[arcs]) from rank v to rank r, at [r, v]; 2**62: there is no path."""
    arcs, n = np.arange(len(net.src), dtype=np.int32), len(net.in_ptr) - 1
    return _distances(n, net.in_ptr, arcs, net.src, np.ascontiguousarray(cost), np.arange(n))
