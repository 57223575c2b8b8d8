"""Reduction up a tree and broadcast down a tree, for any rooted tree over the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.builders.draft import NONE, Draft
from astrasim_py.collectives.chunks import Buffer


@dataclass(frozen=True)
class Tree:
    """A rooted tree over ranks, as its edges.

    `child`, `parent`: int64[e]: the two ranks of every edge; each child once. `place`: int64[e]: order of the edge
    among those of its parent, from 0, in which the parent sends; it receives in the reverse order.
    """

    child: np.ndarray
    parent: np.ndarray
    place: np.ndarray
    root: int

    def by_child(self, ranks: int) -> np.ndarray:
        """int64[ranks]: edge above each rank, -1 for none."""
        out = np.full(ranks, NONE, dtype=np.int64)
        out[self.child] = np.arange(len(self.child))
        return out

    def by_parent(self, ranks: int) -> np.ndarray:
        """int64[ranks, most children]: edges below each rank in their order, -1 for none."""
        width = int(self.place.max(initial=-1)) + 1
        out = np.full((ranks, width + 1), NONE, dtype=np.int64)
        out[self.parent, self.place] = np.arange(len(self.child))
        return out


def at_edges(handles: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Rows of int64[e, q] handles by edge; NONE for edge -1."""
    return np.where(edge[:, None] == NONE, NONE, handles[np.maximum(edge, 0)])


class _Messages:
    """One message for every edge and piece, edge by edge; without pieces one without data (a barrier)."""

    def __init__(self, draft: Draft, tree: Tree, pieces: np.ndarray, tag: int, order: int) -> None:
        self.shape = len(tree.child), max(len(pieces), 1)
        edges, self.q = self.shape
        self.first_order = order
        self.child, self.parent = tree.child.repeat(self.q), tree.parent.repeat(self.q)
        self.below = tree.by_parent(draft.ranks)
        chunk = np.tile(pieces, edges) if len(pieces) else np.zeros(edges, dtype=np.int64)
        self.cells = (Buffer.INPUT, chunk) if len(pieces) else None
        self.fields = {"tag": tag + np.tile(np.arange(self.q), edges), "idx": chunk, "cnt": min(len(pieces), 1)}

    def order(self, turn: np.ndarray | int) -> np.ndarray:
        """Orders of nodes, where `turn` numbers those of a rank and a piece, by edge."""
        by_edge = np.broadcast_to(turn, self.shape[:1])[:, None]
        return (self.first_order + np.arange(self.q) * self.below.shape[1] + by_edge).ravel()

    def next_handles(self, draft: Draft) -> np.ndarray:
        """int64[edges, q]"""
        return draft.next_handles(self.shape[0] * self.q).reshape(self.shape)


def up(
    draft: Draft, tree: Tree, pieces: np.ndarray, *, tag: int, order: int = 0, one_send_at_a_time: bool = False
) -> np.ndarray:
    """Reduce to the root: a rank sends to its parent when it has summed what its children sent.

    `pieces` int64[q] are the chunks that take this tree, a message each; without chunks there is one message without
    data (a barrier). Their tags count on from `tag`. Returns int64[q] handles of the root's last reductions.
    """
    all_of = _Messages(draft, tree, pieces, tag, order)
    below, cells = all_of.below, all_of.cells
    # Receives run through the children from the last to the first; the send of a piece comes after all of them.
    slot, send_slot = all_of.order(below.shape[1] - 2 - tree.place), all_of.order(below.shape[1] - 1)
    next_sibling = below[tree.parent, tree.place + 1]
    done = all_of.next_handles(draft)
    before = at_edges(done, next_sibling).ravel() if cells is None else NONE
    draft.recv(rank=all_of.parent, peer=all_of.child, order=slot, after=(before,), **all_of.fields)
    if cells is not None:
        received, done = done, all_of.next_handles(draft)
        draft.reduce(
            payload=received.ravel(), rank=all_of.parent, idx=cells[1], src=cells, dst=cells, order=slot,
            after=(at_edges(done, next_sibling).ravel(),),
        )  # fmt: skip
    summed = at_edges(done, below[:, 0])
    earlier = np.full(all_of.shape, NONE, dtype=np.int64)
    if one_send_at_a_time:
        earlier[:, 1:] = all_of.next_handles(draft)[:, :-1]
    draft.send(
        rank=all_of.child, peer=all_of.parent, src=cells, order=send_slot, **all_of.fields,
        after=(summed[tree.child].ravel(), earlier.ravel()),
    )  # fmt: skip
    return summed[tree.root]


def down(
    draft: Draft,
    tree: Tree,
    pieces: np.ndarray,
    *,
    tag: int,
    order: int = 0,
    start: np.ndarray | None = None,
    one_send_at_a_time: bool = False,
) -> None:
    """Broadcast from the root: a rank sends each piece to its children when it has received it.

    The root waits for the handles `start` int64[q]; otherwise as `up`. With `one_send_at_a_time` a rank sends piece by
    piece, and a piece child by child, each when the one before is delivered.
    """
    all_of = _Messages(draft, tree, pieces, tag, order)
    below = all_of.below
    recvs = all_of.next_handles(draft)
    earlier = np.full(all_of.shape, NONE, dtype=np.int64)
    earlier[:, 1:] = recvs[:, :-1]
    draft.recv(
        rank=all_of.child, peer=all_of.parent, dst=all_of.cells, order=all_of.order(0), after=(earlier.ravel(),),
        **all_of.fields,
    )  # fmt: skip
    have = at_edges(recvs, tree.by_child(draft.ranks)[tree.parent])
    if start is not None:
        have = np.where((tree.parent == tree.root)[:, None], start, have)
    earlier = np.full(all_of.shape, NONE, dtype=np.int64)
    if one_send_at_a_time:
        sends, first = all_of.next_handles(draft), tree.place == 0
        earlier = at_edges(sends, np.where(first, NONE, below[tree.parent, tree.place - 1]))
        # The first child of a piece follows the last child of the piece before.
        last = below[tree.parent, (below[tree.parent] != NONE).sum(axis=1) - 1]
        earlier[first, 1:] = sends[last[first], :-1]
    draft.send(
        rank=all_of.parent, peer=all_of.child, src=all_of.cells, order=all_of.order(1 + tree.place),
        after=(have.ravel(), earlier.ravel()), **all_of.fields,
    )  # fmt: skip
