"""Compiled algorithms on directed graphs whose arcs are stored by source or by target (CSR)."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.model.network import Network

#: Beyond every distance.
_FAR = np.int64(2**62)


@kernel("the synthesizer")
def _components(n, out_ptr, out_arc, dst, keep):
    """Tarjan's algorithm, without recursion."""
    label = np.full(n, -1, dtype=np.int32)
    number, low = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    stack, path = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    cursor = out_ptr[:n].copy()
    counter, found, height = 0, 0, 0
    for root in range(n):
        if number[root] >= 0:
            continue
        depth = 1
        path[0] = root
        while depth:
            v = path[depth - 1]
            if number[v] < 0:
                number[v] = low[v] = counter
                counter += 1
                stack[height] = v
                height += 1
            if cursor[v] < out_ptr[v + 1]:
                a = out_arc[cursor[v]]
                cursor[v] += 1
                if keep[a]:
                    u = dst[a]
                    if number[u] < 0:
                        path[depth] = u
                        depth += 1
                    elif label[u] < 0:
                        low[v] = min(low[v], number[u])
                continue
            depth -= 1
            if depth:
                low[path[depth - 1]] = min(low[path[depth - 1]], low[v])
            if low[v] == number[v]:
                while True:
                    height -= 1
                    u = stack[height]
                    label[u] = found
                    if u == v:
                        break
                found += 1
    return label, found


def components(network: Network, keep: np.ndarray) -> tuple[np.ndarray, int]:
    """(int32[n] labels, number) of the strongly connected components over the arcs that are kept (bool[arcs])."""
    return _components(network.ranks, *network.out, network.dst, keep)


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


def distances_from(network: Network, delay: np.ndarray, source: int) -> np.ndarray:
    """int64[n]: sums of delays (int64[arcs]) over the shortest paths from a rank."""
    delay = np.ascontiguousarray(delay)
    return _distances(network.ranks, *network.out, network.dst, delay, np.array([source]))[0]


def distances_to(network: Network, cost: np.ndarray) -> np.ndarray:
    """int64[n, n]: the least sum of costs (int64[arcs]) from rank v to rank r, at [r, v]; 2**62: there is no path."""
    arcs, cost = np.arange(network.arcs, dtype=np.int32), np.ascontiguousarray(cost)
    return _distances(network.ranks, network.in_ptr, arcs, network.src, cost, np.arange(network.ranks))
