"""Tree algorithms: reduction up a rooted tree and broadcast down; binomial trees and double binary trees.

Sources: Thakur, Rabenseifner & Gropp 2005 (§3.3), Chan et al. 2007 (minimum-spanning-tree algorithms); Sanders, Speck &
Träff 2009 ("Two-tree algorithms for full bandwidth broadcast, reduction and scan").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.builders.draft import NONE, Arguments, Draft, check_nodes, finish
from astrasim_py.builders.rails import check_nodes_of, from_rail
from astrasim_py.chakra.schema import MISSING
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered
from astrasim_py.program.algorithm import Algorithm


@dataclass(frozen=True)
class Tree:
    """A rooted tree over ranks, as its edges. `child`, `parent`: int64[e]: the two ranks of every edge; each child
    once. `place`: int64[e]: order of the edge among those of its parent, from 0, in which the parent sends; it receives
    in the reverse order."""

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


class _TreeMessages:
    """One message for every edge and piece, edge by edge; without pieces one without data (a barrier)."""

    def __init__(self, draft: Draft, tree: Tree, pieces: np.ndarray, tag: int, order: int, channel: int) -> None:
        self.shape = len(tree.child), max(len(pieces), 1)
        edges, self.q = self.shape
        self.first_order = order
        self.child, self.parent = tree.child.repeat(self.q), tree.parent.repeat(self.q)
        self.below = tree.by_parent(draft.ranks)
        chunk = np.tile(pieces, edges) if len(pieces) else np.zeros(edges, dtype=np.int64)
        self.cells = (Buffer.INPUT, chunk) if len(pieces) else None
        self.fields: Arguments = {
            "tag": tag + np.tile(np.arange(self.q), edges),
            "idx": chunk,
            "cnt": min(len(pieces), 1),
        }
        self.fields["channel"] = channel

    def order(self, turn: np.ndarray | int) -> np.ndarray:
        """Orders of nodes, where `turn` numbers those of a rank and a piece, by edge."""
        by_edge = np.broadcast_to(turn, self.shape[:1])[:, None]
        return (self.first_order + np.arange(self.q) * self.below.shape[1] + by_edge).ravel()

    def next_handles(self, draft: Draft) -> np.ndarray:
        return draft.next_handles(self.shape[0] * self.q).reshape(self.shape)


def up(
    draft: Draft,
    tree: Tree,
    pieces: np.ndarray,
    *,
    tag: int,
    order: int = 0,
    channel: int = MISSING,
    one_send_at_a_time: bool = False,
) -> np.ndarray:
    """Reduce to the root: a rank sends to its parent when it has summed what its children sent. `pieces` int64[q] are
    the chunks that take this tree, a message each; without chunks there is one message without data (a barrier). Their
    tags count on from `tag`. Returns int64[q] handles of the root's last reductions."""
    all_of = _TreeMessages(draft, tree, pieces, tag, order, channel)
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
    channel: int = MISSING,
    start: np.ndarray | None = None,
    one_send_at_a_time: bool = False,
) -> None:
    """Broadcast from the root: a rank sends each piece to its children when it has received it. The root waits for the
    handles `start` int64[q]; otherwise as `up`. With `one_send_at_a_time` a rank sends piece by piece, and a piece
    child by child, each when the one before is delivered."""
    all_of = _TreeMessages(draft, tree, pieces, tag, order, channel)
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


def binomial(collective: str, ranks: int, *, root: int | None = None, chunks: int = 1) -> Algorithm:
    """One tree, log2 n rounds: small sizes from or to a root. ⌈log2 n⌉ rounds; a rank has one send in flight at a time.
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
    """The tree, and for every edge the range [first, last) of positions below it; position p is rank (root + p) mod n.

    It is made by halving the range of ranks: its first rank keeps the smaller half and sends to the first of the other.
    For a power of two that is the classical binomial tree; for any n both a broadcast with one send at a time and a
    reduction take exactly ⌈log2 n⌉ sends.
    """
    low, high = np.array([0]), np.array([n])
    edges = [np.empty((4, 0), dtype=np.int64)]
    for level in range(n.bit_length()):
        wide = high - low > 1
        head, end = low[wide], high[wide]
        middle = head + (end - head) // 2
        edges.append(np.array([head, middle, end, np.full(len(head), level)]))
        low = np.concatenate((low[~wide], head, middle))
        high = np.concatenate((high[~wide], middle, end))
    parent, child, last, depth = np.concatenate(edges, axis=1)
    # An edge that is split off earlier has a larger subtree and is served sooner.
    tree = Tree((root + child) % n, (root + parent) % n, numbered(parent, depth), root)
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


def double_binary(
    collective: str,
    ranks: int,
    *,
    root: int | None = None,
    chunks: int = 1,
    nodes: int | Sequence[Sequence[int]] = 1,
    channels: int | None = None,
) -> Algorithm:
    """Two trees, half of the buffer each: log2 n steps. all_reduce sums up each tree and broadcasts down the same tree.
    For broadcast and reduce the trees span the other n-1 ranks, and the root stands above both of theirs (Sanders et
    al.). `chunks`: pieces into which the half of each tree is cut; they follow each other as a pipeline. `nodes`, of
    all_reduce: ranks of a node, or lists of them: the trees span nodes, in which ranks form a chain; those of channel k
    end at rank k of every node, mod their number. `channels`: how many of them, each with its part of the buffer; one
    for each rank of a node.
    """
    q, place = chunks, f"double_binary_tree {collective} over {ranks} ranks"
    listed = check_nodes_of(nodes, ranks, place)
    if nodes == 1:
        count, name = 1, "double_binary_tree"
    elif collective != "all_reduce":
        raise AlgorithmError(place, f"{collective} does not go through nodes", "drop nodes")
    else:
        count = max(map(len, listed)) if channels is None else channels
        name = f"rail_tree_x{count}"
    check_nodes(place, ranks * q * 10 * count)
    draft = Draft(ranks, 2 * q * count)
    for part in range(2 * count):
        channel, half = divmod(part, 2)
        if collective != "all_reduce":
            tree = _below(ranks, root or 0, half)
        else:
            tree = _with_chains([from_rail(node, channel) for node in listed], _half_tree(len(listed), half))
        if not len(tree.child):
            continue
        pieces, start = part * q + np.arange(q), None
        lane = channel if count > 1 else MISSING
        if collective != "broadcast":
            start = up(draft, tree, pieces, tag=part * q, channel=lane)
        if collective != "reduce":
            later = 2 * q * count if collective == "all_reduce" else 0
            down(draft, tree, pieces, tag=later + part * q, order=8 * q, start=start, channel=lane)
    return finish(draft, name, collective, root=root)


def _with_chains(nodes: list[list[int]], tree: Tree) -> Tree:
    """A tree over nodes as one over their ranks: the other ranks of a node form a chain below its first."""
    first = np.array([node[0] for node in nodes])
    chains = [np.array([node[1:], node[:-1]], dtype=np.int64) for node in nodes]
    child, parent = np.concatenate(chains, axis=1)
    # After the other nodes, so that it is summed first.
    place = np.zeros(len(child), dtype=np.int64)
    children = np.bincount(tree.parent, minlength=len(nodes))
    begin = np.cumsum([0, *(len(node) - 1 for node in nodes)])[:-1]
    has_chain = np.array([len(node) > 1 for node in nodes])
    place[begin[has_chain]] = children[has_chain]
    return Tree(
        np.append(first[tree.child], child),
        np.append(first[tree.parent], parent),
        np.append(tree.place, place),
        int(first[tree.root]),
    )


def _half_tree(n: int, half: int) -> Tree:
    """NCCL's first or second tree over ranks 0..n-1. The first alternates leaves and inner nodes by the lowest set bit
    of the rank, the second is its mirror image (n even) or the same shifted by one rank (n odd), so that a leaf of one
    is an inner node of the other."""
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
    inner = _half_tree(n - 1, half)

    def rank(i: np.ndarray | np.int64) -> np.ndarray | np.int64:
        return (root + 1 + i) % n

    return Tree(
        np.append(rank(inner.child), rank(np.int64(inner.root))),
        np.append(rank(inner.parent), root),
        np.append(inner.place, 0),
        root,
    )
