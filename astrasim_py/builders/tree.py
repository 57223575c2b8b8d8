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


def _at(handles: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Rows of int64[e, q] handles by edge; NONE for edge -1."""
    return np.where(edge[:, None] == NONE, NONE, handles[np.maximum(edge, 0)])


def up(
    draft: Draft, tree: Tree, pieces: np.ndarray, *, tag: int, order: int = 0, one_send_at_a_time: bool = False
) -> np.ndarray:
    """Reduce to the root: a rank sends to its parent when it has summed what its children sent.

    `pieces` int64[q] are the chunks that take this tree, a message each; without chunks there is one message without
    data (a barrier). Their tags count on from `tag`. Returns int64[q] handles of the root's last reductions.
    """
    ranks, edges = draft.ranks, len(tree.child)
    empty = not len(pieces)
    pieces = np.zeros(1, dtype=np.int64) if empty else pieces
    q = len(pieces)
    below = tree.by_parent(ranks)
    siblings = below.shape[1]
    count = 0 if empty else 1
    which = np.arange(q)
    # Receives run through the children from the last to the first; the send of a piece comes after all of them.
    slot = (order + which * (siblings + 1) + (siblings - 1 - tree.place)[:, None]).ravel()
    send_slot = (order + which * (siblings + 1) + siblings + np.zeros((edges, 1), dtype=np.int64)).ravel()
    child, parent = tree.child.repeat(q), tree.parent.repeat(q)
    index, tags = np.tile(pieces, edges), tag + np.tile(which, edges)
    cells = None if empty else (Buffer.INPUT, index)
    next_sibling = below[tree.parent, tree.place + 1]
    recvs = draft.recv(rank=parent, peer=child, tag=tags, idx=index, cnt=count, order=slot).reshape(edges, q)
    done = recvs
    if empty:
        after = _at(recvs, next_sibling).ravel()
        draft.depend(recvs.ravel()[after != NONE], after[after != NONE])
    else:
        done = draft.next_handles(edges * q).reshape(edges, q)
        draft.reduce(
            payload=recvs.ravel(), rank=parent, idx=index, src=cells, dst=cells, order=slot,
            after=(_at(done, next_sibling).ravel(),),
        )  # fmt: skip
    summed = _at(done, below[:, 0])
    sends = draft.next_handles(edges * q).reshape(edges, q)
    earlier = np.full((edges, q), NONE, dtype=np.int64)
    if one_send_at_a_time:
        earlier[:, 1:] = sends[:, :-1]
    draft.send(
        rank=child, peer=parent, tag=tags, idx=index, cnt=count, src=cells, order=send_slot,
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
    ranks, edges = draft.ranks, len(tree.child)
    empty = not len(pieces)
    pieces = np.zeros(1, dtype=np.int64) if empty else pieces
    q = len(pieces)
    below, above = tree.by_parent(ranks), tree.by_child(ranks)
    siblings = below.shape[1]
    count = 0 if empty else 1
    which = np.arange(q)
    child, parent = tree.child.repeat(q), tree.parent.repeat(q)
    index, tags = np.tile(pieces, edges), tag + np.tile(which, edges)
    cells = None if empty else (Buffer.INPUT, index)
    recv_slot = (order + which * (siblings + 1) + np.zeros((edges, 1), dtype=np.int64)).ravel()
    send_slot = (order + which * (siblings + 1) + 1 + tree.place[:, None]).ravel()
    recvs = draft.next_handles(edges * q).reshape(edges, q)
    draft.recv(
        rank=child, peer=parent, tag=tags, idx=index, cnt=count, dst=cells, order=recv_slot,
        after=(np.concatenate((np.full((edges, 1), NONE), recvs[:, :-1]), axis=1).ravel(),),
    )  # fmt: skip
    have = _at(recvs, above[tree.parent])
    if start is not None:
        have = np.where((tree.parent == tree.root)[:, None], start, have)
    sends = draft.next_handles(edges * q).reshape(edges, q)
    earlier = np.full((edges, q), NONE, dtype=np.int64)
    if one_send_at_a_time:
        before = np.where(tree.place > 0, below[tree.parent, tree.place - 1], NONE)
        last = below.shape[1] - 1 - np.argmax(below[tree.parent, ::-1] != NONE, axis=1)
        last = below[tree.parent, last]
        earlier = _at(sends, before)
        # The first child of a piece follows the last child of the piece before.
        earlier[:, 1:] = np.where((tree.place == 0)[:, None], _at(sends, last)[:, :-1], earlier[:, 1:])
    draft.send(
        rank=parent, peer=child, tag=tags, idx=index, cnt=count, src=cells, order=send_slot,
        after=(have.ravel(), earlier.ravel()),
    )  # fmt: skip
