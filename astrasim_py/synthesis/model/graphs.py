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


@kernel("the synthesizer")
def _distances_from(n, out_ptr, out_arc, dst, delay, source):
    """Label correcting with a queue of ranks."""
    reach = np.full(n, _FAR, dtype=np.int64)
    queue, waits = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    reach[source], queue[0], waits[source] = 0, source, True
    first, size = 0, 1
    while size:
        v = queue[first]
        first = first + 1 if first + 1 < n else 0
        size -= 1
        waits[v] = False
        for i in range(out_ptr[v], out_ptr[v + 1]):
            a = out_arc[i]
            u, there = dst[a], reach[v] + delay[a]
            if there < reach[u]:
                reach[u] = there
                if not waits[u]:
                    waits[u] = True
                    at = first + size
                    queue[at if at < n else at - n] = u
                    size += 1
    return reach


@kernel("the synthesizer", threads=True)
def _distances_to(n, in_ptr, src, cost):
    """Label correcting from every rank."""
    reach = np.full((n, n), _FAR, dtype=np.int64)
    queue, waits = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    for r in range(n):
        reach[r, r], queue[0], waits[r] = 0, r, True
        first, size = 0, 1
        while size:
            v = queue[first]
            first = first + 1 if first + 1 < n else 0
            size -= 1
            waits[v] = False
            for a in range(in_ptr[v], in_ptr[v + 1]):
                u, there = src[a], reach[r, v] + cost[a]
                if there < reach[r, u]:
                    reach[r, u] = there
                    if not waits[u]:
                        waits[u] = True
                        at = first + size
                        queue[at if at < n else at - n] = u
                        size += 1
    return reach


def distances_from(network: Network, delay: np.ndarray, source: int) -> np.ndarray:
    """int64[n]: sums of delays (int64[arcs]) over the shortest paths from a rank."""
    return _distances_from(network.ranks, *network.out, network.dst, np.ascontiguousarray(delay), source)


def distances_to(network: Network, cost: np.ndarray) -> np.ndarray:
    """int64[n, n]: the least sum of costs (int64[arcs]) from rank v to rank r, at [r, v]; 2**62: there is no path."""
    return _distances_to(network.ranks, network.in_ptr, network.src, np.ascontiguousarray(cost))
