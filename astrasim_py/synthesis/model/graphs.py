"""Compiled algorithms on directed graphs whose arcs are stored by source or by target (CSR)."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import helper, kernel

#: Beyond every distance.
_FAR = np.int64(2**62)


@helper
def _components(n, out_ptr, out_arc, dst, keep):
    """Strongly connected components over the arcs that are kept (Tarjan, without recursion): int32[n] labels."""
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


@kernel("the synthesizer")
def components(n, out_ptr, out_arc, dst, keep):
    """Labels (int32[n]) and number of the strongly connected components over the arcs that are kept."""
    return _components(n, out_ptr, out_arc, dst, keep)


@kernel("the synthesizer")
def distances(n, out_ptr, out_arc, dst, delay, source):
    """int64[n]: sums of delays over the shortest paths from a rank (label correcting with a queue of ranks)."""
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
def toward(n, in_ptr, src, cost):
    """int64[n, n]: the least sum of costs (int64[arcs]) from rank v to rank r, at [r, v]; 2**62: there is no way."""
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
