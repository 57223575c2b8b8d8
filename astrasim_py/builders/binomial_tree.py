"""Binomial trees.

Source: Thakur, Rabenseifner & Gropp 2005 (§3.3) and Chan et al. 2007 (minimum-spanning-tree algorithms). The tree is
made by halving the range of ranks: its first rank keeps the smaller half and sends to the first of the other. For a
power of two that is the classical binomial tree; for any n both a broadcast with one send at a time and a reduction
take exactly ⌈log2 n⌉ sends.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish
from astrasim_py.builders.tree import Tree, at_edges, down, up
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier")


def build(collective: str, ranks: int, *, root: int | None = None, chunks: int = 1) -> Algorithm:
    """Binomial tree: ⌈log2 n⌉ rounds; a rank has one send in flight at a time.

    all_reduce is a reduction to rank 0 and a broadcast from it: 2⌈log2 n⌉(alpha + S·beta) on uncontended links.

    `chunks`: pieces of the buffer (not of gather and scatter), sent one after the other.
    """
    place = f"binomial_tree {collective} over {ranks} ranks"
    q = chunks
    if q > 1 and collective in ("gather", "scatter"):
        raise AlgorithmError(place, f"chunks is {q}, but {collective} is not cut", "drop chunks")
    check_nodes(place, ranks * q * 6)
    n, top = ranks, 0 if root is None else root
    tree, span = binomial_tree(n, top)
    if collective in ("gather", "scatter"):
        draft = Draft(n, n)
        if n > 1:
            _sharded(draft, collective, tree, span, top)
        return finish(draft, "binomial_tree", collective, root=root)
    pieces = np.arange(0 if collective == "barrier" else q)
    draft = Draft(n, max(len(pieces), 1))
    if n > 1:
        start = None
        both = collective in ("all_reduce", "barrier")
        if collective != "broadcast":
            start = up(draft, tree, pieces, tag=0, one_send_at_a_time=True)
        if collective != "reduce":
            later = (q + 1) * (n.bit_length() + 3) * 2 if both else 0
            down(draft, tree, pieces, tag=q if both else 0, order=later, start=start, one_send_at_a_time=True)
    return finish(draft, "binomial_tree", collective, root=root)


def binomial_tree(n: int, root: int) -> tuple[Tree, tuple[np.ndarray, np.ndarray]]:
    """The tree, and for every edge the range [first, last) of positions below it.

    Position p of the tree is rank (root + p) mod n.
    """
    low, high = np.array([0]), np.array([n])
    parents, children, lasts, levels = [], [], [], []
    level = 0
    while True:
        wide = high - low > 1
        if not wide.any():
            break
        head, end = low[wide], high[wide]
        middle = head + (end - head) // 2
        parents.append(head)
        children.append(middle)
        lasts.append(end)
        levels.append(np.full(len(head), level))
        low = np.concatenate((low[~wide], head, middle))
        high = np.concatenate((high[~wide], middle, end))
        level += 1
    none = [np.empty(0, dtype=np.int64)]
    parent, child, last, depth = (np.concatenate(part or none) for part in (parents, children, lasts, levels))
    # The earlier an edge is split off, the larger its subtree and the sooner it is served.
    by_parent = np.lexsort((depth, parent))
    place = np.empty(len(parent), dtype=np.int64)
    ordered = parent[by_parent]
    first = np.searchsorted(ordered, ordered)
    place[by_parent] = np.arange(len(parent)) - first
    tree = Tree((root + child) % n, (root + parent) % n, place, root)
    return tree, (child, last)


def _sharded(draft: Draft, collective: str, tree: Tree, span: tuple[np.ndarray, np.ndarray], root: int) -> None:
    """gather and scatter: an edge carries the shards of all ranks below it, a message per contiguous range."""
    n, edges = draft.ranks, len(tree.child)
    first, last = span
    wrap = n - root  # position at which ranks start again from 0
    begin = np.stack((root + first, np.maximum(first, wrap) - wrap), axis=1)
    count = np.stack((np.minimum(last, wrap) - first, last - np.maximum(first, wrap)), axis=1)
    below, above = tree.by_parent(n), tree.by_child(n)
    gather = collective == "gather"
    buffer = Buffer.OUTPUT if gather else Buffer.INPUT
    source, target = (tree.child, tree.parent) if gather else (tree.parent, tree.child)
    # Handles by edge and part; a part may be empty.
    parts = [np.flatnonzero(count[:, part] > 0) for part in (0, 1)]
    recvs, sends = (np.full((edges, 2), NONE, dtype=np.int64) for _ in range(2))
    handle = int(draft.next_handles(1)[0])
    for handles in (recvs, sends):
        for part, e in enumerate(parts):
            handles[e, part] = handle + np.arange(len(e))
            handle += len(e)
    last_recv = np.where(recvs[:, 1] != NONE, recvs[:, 1], recvs[:, 0])[:, None]
    if gather:
        # A rank takes its children from the smallest subtree to the largest, then sends.
        slot, send_slot = 2 * (below.shape[1] - 1 - tree.place), np.full(edges, 2 * below.shape[1])
        recv_after = at_edges(last_recv, below[tree.parent, tree.place + 1])
        send_after = at_edges(last_recv, below[tree.child, 0])
    else:
        slot, send_slot = np.zeros(edges, dtype=np.int64), 2 + 2 * tree.place
        recv_after = np.full((edges, 1), NONE)
        before = np.where(tree.place > 0, below[tree.parent, tree.place - 1], NONE)
        send_after = np.hstack((at_edges(sends, before), at_edges(last_recv, above[tree.parent])))

    def fields(e: np.ndarray, part: int) -> dict[str, object]:
        return {"tag": part, "idx": begin[e, part], "cnt": count[e, part]}

    for part, e in enumerate(parts):
        after = np.where((part == 1) & (recvs[e, 0] != NONE), recvs[e, 0], recv_after[e, 0])
        cells = (buffer, begin[e, part])
        draft.recv(rank=target[e], peer=source[e], dst=cells, after=(after,), order=slot[e] + part, **fields(e, part))
    for part, e in enumerate(parts):
        draft.send(
            rank=source[e], peer=target[e], src=(buffer, begin[e, part]), after=send_after[e].T,
            order=send_slot[e] + part, **fields(e, part),
        )  # fmt: skip
