"""Direct algorithms: every rank exchanges with every other without intermediaries.

Sources: Thakur, Rabenseifner & Gropp 2005 (§ on long-message alltoall and reduce_scatter); the all_reduce is the
two-phase form of MSCCL's all-pairs: a direct reduce_scatter and a direct all_gather. Pairwise exchange is of §3.4 and
§3.2 there.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish, finish_rotated, previous
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation


def build(
    collective: str, ranks: int, *, root: int | None = None, window: int | None = None, chunks: int = 1
) -> Algorithm:
    """Every rank to every other one at once: for switches.

    Rank r sends to r+1, r+2, … (mod n) and receives from r-1, r-2, …; receives are posted at once. Contributions
    are summed in that order, one after the other, so the result has the same bits in every run. all_reduce
    gathers when the own shard is summed: two phases.

    `root`: of a rooted collective. `window`: at most this many sends of a rank are in flight (a send is in flight until
    it is delivered): send i waits for send i - window, so the sends form `window` chains of one send at a time; all at
    once by default. `chunks`: pieces into which every shard (or the buffer) is cut; each is a message of its own.
    """
    place = f"direct {collective} over {ranks} ranks"
    name = "direct" if window is None else f"direct{window}"
    if collective in ("broadcast", "reduce", "gather", "scatter"):
        check_nodes(place, ranks * chunks * 3)
        return finish(star(collective, ranks, root or 0, window=window, pieces=chunks), name, collective, root=root)
    check_nodes(place, ranks * chunks * (5 if collective == "all_reduce" else 3), of_rank=True)
    lay = partial(_all_pairs, collective, ranks, window, chunks, False)
    return finish_rotated(lay, Rotation((ranks,)), name, collective)


def linear(collective: str, ranks: int, *, root: int | None = None) -> Algorithm:
    """The root and the others one by one: the baseline. n-1 messages between the root and the others, in the order
    root+1, root+2, … In broadcast and scatter a send waits until the one before is delivered; in gather and reduce all
    ranks send at once and the root takes their messages in order.
    """
    check_nodes(f"linear {collective} over {ranks} ranks", 3 * ranks)
    return finish(star(collective, ranks, root or 0, window=1, in_order=True), "linear", collective, root=root)


def pairwise(collective: str, ranks: int) -> Algorithm:
    """One partner in each step: all_to_all without crowds. In step s rank r sends to r+s and receives from r-s. A step
    begins when send and receive of the step before are done.
    """
    check_nodes(f"pairwise {collective} over {ranks} ranks", 3 * ranks, of_rank=True)
    lay = partial(_all_pairs, collective, ranks, None, 1, True)
    return finish_rotated(lay, Rotation((ranks,)), "pairwise", collective)


def _chained(handles: np.ndarray, window: int | None) -> np.ndarray:
    """For each send the one that must be delivered before it."""
    out = np.full(len(handles), NONE, dtype=np.int64)
    if window is not None and window < len(handles):
        out[window:] = handles[:-window]
    return out


def _all_pairs(collective: str, n: int, window: int | None, pieces: int, in_steps: bool, ranks: np.ndarray) -> Draft:
    barrier = collective == "barrier"
    pieces = 1 if barrier else pieces
    draft = Draft(len(ranks), 1 if barrier else n * pieces)
    r = ranks[:, None]
    if collective == "all_to_all":
        cells = r * pieces
        draft.copy(idx=cells, cnt=pieces, src=(Buffer.INPUT, cells), dst=(Buffer.OUTPUT, cells), order=-1)
    if n == 1:
        return draft
    # Peer distance k = 1..n-1, and within a peer its pieces.
    k, piece = (a.ravel() for a in np.meshgrid(np.arange(1, n), np.arange(pieces), indexing="ij"))
    m = len(k)
    ahead, behind = (r + k) % n, (r - k) % n
    cell, theirs_ahead, theirs_behind = r * pieces + piece, ahead * pieces + piece, behind * pieces + piece
    buffer = Buffer.OUTPUT if collective in ("all_gather", "all_to_all") else Buffer.INPUT
    sends, recvs = draft.next_handles(2 * m).reshape(2, m)
    waits: Sequence[np.ndarray] = (_chained(sends, window),)
    posted: Sequence[np.ndarray] = ()
    orders: list[np.ndarray | None] = [None, None, None]
    if in_steps:
        waits = posted = previous(sends), previous(recvs)
        orders = [3 * k, 3 * k + 1, 3 * k + 2]
    done: np.ndarray = np.array([NONE])
    if barrier:
        draft.send(peer=ahead, tag=0, idx=0, cnt=0, after=waits)
        draft.recv(peer=behind, tag=0, idx=0, cnt=0)
        return draft
    if collective != "all_gather":
        draft.send(
            peer=ahead, tag=piece, idx=theirs_ahead, src=(Buffer.INPUT, theirs_ahead), after=waits, order=orders[0]
        )
        home = (Buffer.OUTPUT, theirs_behind) if collective == "all_to_all" else None
        draft.recv(peer=behind, tag=piece, idx=cell, dst=home, after=posted, order=orders[1])
    if collective == "all_to_all":
        return draft
    if collective != "all_gather":
        reduces = draft.next_handles(m)
        # Sums of one piece of the own shard are chained: they write the same cell.
        before = np.append(np.full(pieces, NONE), reduces[:-pieces])
        draft.reduce(payload=recvs, idx=cell, src=(buffer, cell), dst=(buffer, cell), after=(before,), order=orders[2])
        done = reduces[-pieces:]
    if collective != "reduce_scatter":
        first = collective == "all_reduce"
        own_done = done[piece] if first else NONE
        earlier = sends if first else np.empty(0, dtype=np.int64)
        gathers = draft.next_handles(m)
        freed = _chained(np.concatenate((earlier, gathers)), window)[len(earlier) :]
        tag = piece + (pieces if first else 0)
        draft.send(
            peer=ahead, tag=tag, idx=np.broadcast_to(cell, (len(ranks), m)), src=(buffer, cell), after=(own_done, freed)
        )
        draft.recv(peer=behind, tag=tag, idx=theirs_behind, dst=(buffer, theirs_behind))
    return draft


def star(
    collective: str, n: int, root: int, *, window: int | None = None, pieces: int = 1, in_order: bool = False
) -> Draft:
    """Rooted collectives in which the root exchanges with every other rank itself, `pieces` messages with each. At most
    `window` sends of the root are in flight. With `in_order` it posts a receive when the one before is done."""
    sharded = collective in ("gather", "scatter")
    draft = Draft(n, n * pieces if sharded else pieces)
    if n == 1:
        return draft
    k, piece = (a.ravel() for a in np.meshgrid(np.arange(1, n), np.arange(pieces), indexing="ij"))
    peer = (root + k) % n
    index = peer * pieces + piece if sharded else piece
    cell = (Buffer.OUTPUT if collective == "gather" else Buffer.INPUT, index)
    hub = np.full(len(k), root)
    if collective in ("broadcast", "scatter"):
        sends = draft.next_handles(len(k))
        draft.send(rank=hub, peer=peer, tag=piece, idx=index, src=cell, after=(_chained(sends, window),))
        draft.recv(rank=peer, peer=hub, tag=piece, idx=index, dst=cell)
        return draft
    draft.send(rank=peer, peer=hub, tag=piece, idx=index, src=cell)
    recvs = draft.next_handles(len(k))
    waits = _chained(recvs, 1) if in_order else NONE
    draft.recv(rank=hub, peer=peer, tag=piece, idx=index, dst=cell if collective == "gather" else None, after=(waits,))
    if collective == "reduce":
        reduces = draft.next_handles(len(k))
        before = np.append(np.full(pieces, NONE), reduces[:-pieces])
        draft.reduce(payload=recvs, rank=hub, idx=index, src=cell, dst=cell, after=(before,))
    return draft
