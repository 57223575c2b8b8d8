"""Double binary tree: two complementary binary trees, each carrying half of the data.

Sources: Sanders, Speck & Träff 2009 ("Two-tree algorithms for full bandwidth broadcast, reduction and scan"); the pair
of trees is NCCL's: the first alternates leaves and inner nodes by the lowest set bit of the rank, the second is its
mirror image (n even) or the same shifted by one rank (n odd), so that a leaf of one is an inner node of the other.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.builders.draft import Draft, check_nodes, finish
from astrasim_py.builders.tree import Tree, down, up
from astrasim_py.program.algorithm import Algorithm

COLLECTIVES = ("all_reduce", "broadcast", "reduce")


def build(collective: str, ranks: int, *, root: int | None = None, chunks: int = 1) -> Algorithm:
    """Double binary tree.

    all_reduce sums up each tree and broadcasts down the same tree. For broadcast and reduce the trees span the
    other n-1 ranks, and the root stands above both of theirs (Sanders et al.).

    `chunks`: pieces into which the half of each tree is cut; they follow each other as a pipeline.
    """
    q = chunks
    check_nodes(f"double_binary_tree {collective} over {ranks} ranks", ranks * q * 10)
    draft = Draft(ranks, 2 * q)
    for half in (0, 1):
        tree = _tree(ranks, half) if collective == "all_reduce" else _below(ranks, root, half)
        if not len(tree.child):
            continue
        pieces = half * q + np.arange(q)
        start = None
        if collective != "broadcast":
            start = up(draft, tree, pieces, tag=half * q)
        if collective != "reduce":
            later = 2 * q if collective == "all_reduce" else 0
            down(draft, tree, pieces, tag=later + half * q, order=8 * q, start=start)
    return finish(draft, "double_binary_tree", collective, root=root)


def _tree(n: int, half: int) -> Tree:
    """NCCL's first or second tree over ranks 0..n-1."""
    r = np.arange(1, n)
    bit = r & -r
    parent = (r ^ bit) | (bit << 1)
    # A parent beyond the last rank does not exist: the next one up on the left takes its place.
    parent = np.where(parent >= n, r ^ bit, parent)
    if half == 0:
        number = np.arange(n)
    elif n % 2 == 0:
        number = n - 1 - np.arange(n)
    else:
        number = (np.arange(n) + 1) % n
    # At most two children: the one below its parent's number first.
    first = r < parent
    has_first = np.zeros(n, dtype=bool)
    has_first[parent[first]] = True
    place = np.where(first, 0, has_first[parent].astype(np.int64))
    return Tree(number[r], number[parent], place.astype(np.int64), int(number[0]))


def _below(n: int, root: int, half: int) -> Tree:
    """One of the two trees over all ranks but the root, with the root above it."""
    if n == 1:
        none = np.empty(0, dtype=np.int64)
        return Tree(none, none, none, root)
    inner = _tree(n - 1, half)

    def rank(i: np.ndarray) -> np.ndarray:
        return (root + 1 + i) % n

    return Tree(
        np.append(rank(inner.child), rank(np.int64(inner.root))),
        np.append(rank(inner.parent), root),
        np.append(inner.place, 0),
        root,
    )
