"""The linear program of an all_to_all: all pairs of members exchange as much as links allow, by any routes.

By duality its optimum is also the least over weights of links of Σ capacity · weight / Σ shortest path (Shahrokhi &
Matula, J. ACM 1990): weights from the program, rounded, still prove a bound.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.cuts.capacities import CapacityGraph

#: Members × edges beyond which the program is not solved: seconds of one core.
MAX_VARIABLES = 40_000
#: Largest weight.
_SCALE = 2**24


def concurrent_weights(graph: CapacityGraph, seconds: float | None = None) -> np.ndarray | None:
    """int64[edges]: weights of links that bound an all_to_all best; None: too large, too late, or not solved.

    `seconds`: limit of the solver.
    """
    n, edges = graph.ranks, len(graph.links)
    if n * edges > MAX_VARIABLES or not edges:
        return None
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, hstack, kron

    scale = float(graph.capacity.max())
    used, numbers = np.unique(np.concatenate([graph.tail, graph.head, graph.members]), return_inverse=True)
    tail, head, member = np.split(numbers.reshape(-1), [edges, 2 * edges])
    rows = np.concatenate([head, tail])
    balance = coo_array((np.repeat([1.0, -1.0], edges), (rows, np.tile(np.arange(edges), 2))), (len(used), edges))
    demand = np.zeros((n, len(used)))
    demand[:, member] = 1.0
    demand[np.arange(n), member] = 1.0 - n
    # Variables: the flow of each origin on each edge, then the rate of a pair.
    flows = hstack([kron(np.eye(n), balance), csr_array(-demand.reshape(-1, 1))])
    load = hstack([kron(np.ones((1, n)), np.eye(edges)), csr_array((edges, 1))])
    cost = np.zeros(n * edges + 1)
    cost[-1] = -1.0
    options = {} if seconds is None else {"time_limit": max(seconds, 0.1)}
    solved = linprog(
        cost, A_ub=csr_array(load), b_ub=graph.capacity / scale, A_eq=csr_array(flows), b_eq=np.zeros(n * len(used)),
        method="highs", options=options,
    )  # fmt: skip
    if solved.status != 0:
        return None
    weights = np.maximum(-solved.ineqlin.marginals, 0.0)
    return np.round(weights / max(weights.max(), 1e-300) * _SCALE).astype(np.int64)


def weighted_distances(graph: CapacityGraph, weight: np.ndarray) -> np.ndarray:
    """int64[n, n]: the least sum of weights (int64[edges], positive) on the way from rank to rank."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    vertices = graph.topology.vertices
    key = graph.tail * vertices + graph.head
    # Of parallel links the lightest counts.
    order = np.lexsort((weight, key))
    first = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
    matrix = csr_array((weight[first].astype(float), (graph.tail[first], graph.head[first])), (vertices, vertices))
    return dijkstra(matrix, indices=graph.members)[:, graph.members].astype(np.int64)
