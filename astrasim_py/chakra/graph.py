"""Dependency graphs as CSR arrays of row numbers: orders and cycles, without recursion."""

import heapq
from array import array
from collections.abc import Collection, Mapping, Sequence

import numpy as np

#: Most edges that the search for the shortest cycle visits; then the shortest one so far is returned.
CYCLE_SEARCH_EDGES = 1_000_000


def plain_array(column: np.ndarray) -> array:
    """The column as an `array` of plain numbers: fast element access in a fifth of the memory of a list."""
    return array("q", column.astype(np.int64).tobytes())


def owners(ptr: np.ndarray) -> np.ndarray:
    """int64[ptr[n]]: row that each entry of a CSR belongs to."""
    return np.repeat(np.arange(len(ptr) - 1, dtype=np.int64), np.diff(ptr))


def pointers(owner: np.ndarray, size: int) -> np.ndarray:
    """int64[size + 1]: where the entries of each row begin, given the row that each entry belongs to."""
    out = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=size), out=out[1:])
    return out


def transpose(ptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn a CSR of parents into a CSR of children (or back); children come in ascending order."""
    return pointers(rows, len(ptr) - 1), owners(ptr)[np.argsort(rows, kind="stable")]


def topological_order(ptr: np.ndarray, rows: np.ndarray, rank: np.ndarray | None = None) -> np.ndarray:
    """Topological order; among ready nodes the least rank comes first.

    `ptr`, `rows`: CSR of parents: int64[n + 1], int64[m]. `rank`: int64[n], a permutation of 0..n-1; the row itself by
    default. Returns int64[k] rows; where k < n, the other nodes are in a cycle or behind one.
    """
    n = len(ptr) - 1
    by_rank = np.arange(n, dtype=np.int64) if rank is None else np.argsort(rank)
    # If every parent precedes its child in the preferred order, that order is the answer.
    if not len(rows):
        return by_rank
    child = owners(ptr)
    if bool((rows < child).all()) if rank is None else bool((rank[rows] < rank[child]).all()):
        return by_rank
    child_ptr, child_rows = map(plain_array, transpose(ptr, rows))
    waiting = plain_array(np.diff(ptr))
    place = range(n) if rank is None else plain_array(rank)
    row_at = plain_array(by_rank)
    heap = sorted(place[row] for row in range(n) if not waiting[row])
    out = array("q")
    while heap:
        row = row_at[heapq.heappop(heap)]
        out.append(row)
        for child_row in child_rows[child_ptr[row] : child_ptr[row + 1]]:
            waiting[child_row] -= 1
            if not waiting[child_row]:
                heapq.heappush(heap, place[child_row])
    return np.array(out, dtype=np.int64)


def longest_path(ptr: np.ndarray, rows: np.ndarray, order: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """int64[n]: largest sum of weights over the paths that end in each node, the node itself included.

    `order` is a topological order of all rows; `weight` is int64[n], not negative.
    """
    starts, parents, total = ptr.tolist(), rows.tolist(), weight.tolist()
    for row in order.tolist():
        begin, end = starts[row], starts[row + 1]
        if end - begin == 1:
            total[row] += total[parents[begin]]
        elif end > begin:
            total[row] += max([total[p] for p in parents[begin:end]])
    return np.array(total, dtype=np.int64)


def shortest_cycle(ptr: np.ndarray, rows: np.ndarray, order: np.ndarray) -> list[int]:
    """A shortest cycle of a graph that `topological_order` could not finish, or the shortest of those in reach.

    Returns rows, each depending on the next and the last on the first, beginning with the least; empty if there is no
    cycle.
    """
    import networkx as nx

    left = np.ones(len(ptr) - 1, dtype=bool)
    left[order] = False
    child = owners(ptr)
    inside = left[child] & left[rows]
    graph = nx.DiGraph(zip(child[inside].tolist(), rows[inside].tolist(), strict=True))
    loops = child[child == rows]
    if len(loops):
        return [int(loops.min())]
    best: list[int] = []
    budget = CYCLE_SEARCH_EDGES
    for root in sorted(row for rows in nx.strongly_connected_components(graph) if len(rows) > 1 for row in rows):
        if best and (len(best) == 2 or budget <= 0):
            break
        cycle, looked_at = _cycle_through(root, graph.adj, len(best) or len(ptr))
        budget -= looked_at
        best = cycle or best
    least = best.index(min(best)) if best else 0
    return best[least:] + best[:least]


def _cycle_through(root: int, parents: Mapping[int, Collection[int]], longer: int) -> tuple[list[int], int]:
    """A shortest cycle through a row, if it is shorter than `longer`, and the number of edges looked at."""
    came_from = {root: -1}
    frontier, looked_at = [root], 0
    for _ in range(1, longer):
        following = []
        for row in frontier:
            looked_at += len(parents[row])
            if root in parents[row]:
                path = []
                while row >= 0:
                    path.append(row)
                    row = came_from[row]
                return path[::-1], looked_at
            for parent in parents[row]:
                if parent not in came_from:
                    came_from[parent] = row
                    following.append(parent)
        frontier = following
    return [], looked_at


def cycle_text(ids: Sequence[int]) -> str:
    """One line for a dependency cycle, each node depending on the next."""
    if len(ids) == 1:
        return f"node {ids[0]} depends on itself"
    shown = [str(i) for i in ids] if len(ids) <= 12 else [*map(str, ids[:8]), "…", *map(str, ids[-3:])]
    return f"cycle of {len(ids)} nodes, each depending on the next: {' → '.join([*shown, str(ids[0])])}"
