"""Spanning trees packed into arcs of whole capacities.

Trees are grown arc by arc. An arc joins a tree as often as all trees that are not finished can still be packed into
what remains: the least, over sets of ranks, of capacity into the set less trees that have no rank in it (Lovász, "On
two minimax theorems in graph theory", J. Comb. Theory B 1976), which one maximum flow finds. So no tree ever sticks. Of
the arcs that may join, the one next to the root goes first, wide before narrow: shallow trees fill soon.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.errors import InternalError
from astrasim_py.core.jit import kernel, lean
from astrasim_py.cuts.max_flow import ENDLESS, add_edge, flow_network, max_flow
from astrasim_py.synthesis.model.insertion import GO

#: Trees: root, how many are alike, int32[trees, n] the arc by which a rank is reached, its arcs from the root (-1: not
#: reached), and ranks reached.
_Forest = namedtuple("_Forest", "root many arc depth size")
#: Results of the kernel.
_DONE, _STUCK, _FULL, _STOPPED = range(4)


@dataclass(frozen=True, slots=True)
class Forest:
    """Spanning trees. `root`: int64[trees]. `many`: int64[trees], how many trees are alike. `arc`: int32[trees, n], the
    arc by which each rank is reached; -1 at the root. `depth`: int32[trees, n], arcs from the root."""

    root: np.ndarray
    many: np.ndarray
    arc: np.ndarray
    depth: np.ndarray


@lean
def _others(net, forest, trees, tree, tail):
    """Edges from the source (the last vertex) to what may begin a flow; their sum, beside the endless one to `tail`."""
    n, total = forest.arc.shape[1], np.int64(0)
    source, place = len(net.first) - 1, n
    add_edge(net, source, tail, np.int64(ENDLESS))
    for i in range(tree + 1, trees):
        many = forest.many[i]
        total += many
        if forest.size[i] == 1:
            add_edge(net, source, forest.root[i], many)
            continue
        add_edge(net, source, place, many)
        for v in range(n):
            if forest.depth[i, v] >= 0:
                add_edge(net, place, v, np.int64(ENDLESS))
        place += 1
    return total


@lean
def _fitting(net, tails, heads, rest, forest, trees, tree, arc, most):
    """How many times an arc may join a tree, `most` at most."""
    net.size[0] = 0
    for v in range(len(net.first)):
        net.first[v] = -1
    for a in range(len(tails)):
        if rest[a] > 0:
            add_edge(net, tails[a], heads[a], rest[a])
    total = _others(net, forest, trees, tree, tails[arc])
    return max_flow(net, len(net.first) - 1, heads[arc], total + most) - total


@lean
def _next_arc(tails, heads, rest, refused, forest, tree):
    """The arc that is tried next, or -1."""
    chosen, low, wide = -1, np.int64(0), np.int64(0)
    for a in range(len(tails)):
        if rest[a] > 0 and refused[a] != tree + 1 and forest.depth[tree, heads[a]] < 0:
            depth = np.int64(forest.depth[tree, tails[a]])
            if depth >= 0 and (chosen < 0 or depth < low or (depth == low and rest[a] > wide)):
                chosen, low, wide = a, depth, rest[a]
    return chosen


@kernel("the synthesizer", threads=True, lean=True)
def _pack(net, tails, heads, rest, refused, forest, trees, stop):
    """Grow all trees; (result, how many kinds of trees there are)."""
    n, tree = forest.arc.shape[1], 0
    while tree < trees:
        while forest.size[tree] < n:
            if stop[0] != 0:
                return _STOPPED, trees
            a = _next_arc(tails, heads, rest, refused, forest, tree)
            if a < 0:
                return _STUCK, trees
            most = min(forest.many[tree], rest[a])
            fits = _fitting(net, tails, heads, rest, forest, trees, tree, a, most)
            if fits <= 0:
                # It never will for this tree: capacities only shrink while it grows.
                refused[a] = tree + 1
                continue
            if fits < forest.many[tree]:
                if trees == len(forest.root):
                    return _FULL, trees
                forest.root[trees], forest.many[trees] = forest.root[tree], forest.many[tree] - fits
                forest.size[trees], forest.many[tree] = forest.size[tree], fits
                for v in range(n):
                    forest.arc[trees, v], forest.depth[trees, v] = forest.arc[tree, v], forest.depth[tree, v]
                trees += 1
            forest.arc[tree, heads[a]] = a
            forest.depth[tree, heads[a]] = forest.depth[tree, tails[a]] + 1
            forest.size[tree] += 1
            rest[a] -= fits
        tree += 1
    return _DONE, trees


def pack_trees(
    n: int, tails: np.ndarray, heads: np.ndarray, capacity: np.ndarray, many: np.ndarray, stop: np.ndarray = GO
) -> Forest | None:
    """Trees of n ranks within whole capacities of arcs (int64[arcs]), ``many[v]`` from rank v; None: stopped.

    Capacities must have room for them (see `arc_rates`). Raises InternalError: they have none.
    """
    tails, heads = (np.ascontiguousarray(each, dtype=np.int64) for each in (tails, heads))
    roots, room = np.flatnonzero(many), 4 * n + 64
    while True:
        arc, depth = np.full((2, room, n), -1, dtype=np.int32)
        size = np.ones(room, dtype=np.int64)
        root, count = np.zeros((2, room), dtype=np.int64)
        root[: len(roots)], count[: len(roots)] = roots, many[roots]
        depth[np.arange(len(roots)), roots] = 0
        net = flow_network(n + room + 1, len(tails) + room * (n + 1) + 1)
        result, trees = _pack(
            net, tails, heads, np.array(capacity, dtype=np.int64), np.zeros(len(tails), dtype=np.int64),
            _Forest(root, count, arc, depth, size), len(roots), stop,
        )  # fmt: skip
        if result == _STUCK:
            raise InternalError("capacities have no room for the trees")
        if result == _STOPPED:
            return None
        if result == _DONE:
            return Forest(root[:trees], count[:trees], arc[:trees], depth[:trees])
        room *= 2
