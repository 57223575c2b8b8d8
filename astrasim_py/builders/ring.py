"""Ring algorithms: every rank talks to its neighbours in rank order only.

Sources: Patarasuk & Yuan 2009 ("Bandwidth optimal all-reduce algorithms for clusters of workstations", reduce-scatter
followed by all-gather on a logical ring); Thakur, Rabenseifner & Gropp 2005 (ring all_gather); for broadcast and
reduce the pipelined chain of Chan et al. 2007.

An all_reduce as a loop over its steps; `build` writes the same columns at once, since a loop takes 260 times as long at
16,384 ranks:

>>> def all_reduce(n):
...     rank = np.arange(n)[:, None]
...     draft, latest = Draft(n, n), NONE
...     for step in range(2 * (n - 1)):
...         gathers = step >= n - 1
...         sent, got = (rank - step - 1) % n, (rank - step - 2) % n
...         cells = (Buffer.INPUT, got)
...         send = draft.send(
...             peer=(rank + 1) % n, tag=step, idx=sent, src=(Buffer.INPUT, sent), after=(latest,)
...         )
...         latest = draft.recv(
...             peer=(rank - 1) % n, tag=step, idx=got, dst=cells if gathers else None, after=(send,)
...         )
...         if not gathers:
...             latest = draft.reduce(payload=latest, idx=got, src=cells, dst=cells)
...     return finish(draft, "ring", "all_reduce")
>>> all_reduce(8).digest() == build("all_reduce", 8).digest()
True
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish, finish_rotated, previous
from astrasim_py.builders.paths import Paths, one_way
from astrasim_py.chakra.schema import MISSING
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation


def build(
    collective: str,
    ranks: int,
    *,
    root: int | None = None,
    bidirectional: bool = False,
    chunks: int = 1,
    overlap: bool = False,
    nodes: int | Sequence[Sequence[int]] = 1,
    channels: int | None = None,
) -> Algorithm:
    """Neighbours in a ring, least bytes: for large sizes.

    all_reduce takes 2(n-1) steps, all_gather and reduce_scatter n-1. In step s a rank sends to its successor,
    receives from its predecessor, and reduces where the collective does; in step s+1 it sends what it got.

    As on a GPU, where one thread block runs these steps one after the other, a receive waits for the send of its step,
    and a send is done when it is delivered. This costs nothing where all steps take equally long; a neighbour several
    hops away slows down all ranks. With `overlap` a receive waits only for the receive before it, and a slow step
    delays only its chunk.

    `root`: of a rooted collective. `bidirectional`: half of every shard travels clockwise, half anticlockwise.
    `chunks`: pieces into which each shard (broadcast, reduce: the buffer; with `bidirectional`: each half) is cut; they
    follow each other through the ring as a pipeline. A barrier moves no data and has neither. `overlap`: of all_reduce,
    all_gather and reduce_scatter: post a receive without waiting for the send of its step. `nodes`: ranks of a node, or
    lists of them: rings through nodes, of which ring k enters and leaves each by its rank k, mod their number.
    `channels`: number of those rings, each with its part of every shard; by default one for each rank of a node.
    """
    place = f"ring {collective} over {ranks} ranks"
    relays = collective in ("all_to_all", "gather", "scatter", "barrier")
    if type(nodes) is int and nodes == 1:
        directions = np.array([1, -1] if bidirectional else [1]).repeat(chunks)
        paths, name = one_way(ranks, directions), "ring_bidirectional" if bidirectional else "ring"
    else:
        from astrasim_py.builders.rails import check_nodes_of, through

        listed = check_nodes_of(nodes, ranks, place)
        if bidirectional or relays:
            noun = "bidirectional" if bidirectional else collective
            raise AlgorithmError(place, f"{noun} does not go through nodes", "drop nodes")
        count = max(map(len, listed)) if channels is None else channels
        paths, name = through(listed, count, chunks), f"rail_ring_x{count}"
    steps = {"all_reduce": 5, "all_to_all": ranks + 2, "gather": ranks, "scatter": ranks}.get(collective, 3)
    count = max(ranks - 1, 1) * paths.lanes * steps
    if collective in ("broadcast", "reduce", "gather", "scatter"):
        check_nodes(place, ranks * count)
        chained = collective in ("broadcast", "reduce")
        draft = (
            _chain(collective, ranks, root or 0, paths)
            if chained
            else _relay_to_root(collective, ranks, root or 0, directions)
        )
        return finish(draft, name, collective, root=root)
    if collective == "all_to_all":
        lay = partial(_relay_all, ranks, directions)
    elif collective == "barrier":
        # After round s a rank has heard from s + 1 predecessors.
        from astrasim_py.builders.bruck import rounds

        lay = partial(rounds, ranks, np.ones(ranks - 1, dtype=np.int64))
    else:
        lay = partial(_shards, collective, ranks, paths, overlap)
    rotation = Rotation((ranks,)) if relays else paths.rotation
    check_nodes(place, count if rotation else ranks * count, of_rank=rotation is not None)
    if rotation is None:
        return finish(lay(np.arange(ranks)), name, collective)
    return finish_rotated(lay, rotation, name, collective)


def _shards(collective: str, n: int, paths: Paths, overlap: bool, ranks: np.ndarray) -> Draft:
    """reduce_scatter, all_gather, and all_reduce as one after the other. In step s of a reduce_scatter a rank sends the
    chunk of the rank s + 1 behind it, receives that of the rank s + 2 behind it, and adds its own contribution. In step
    s of an all_gather it sends the chunk of the rank s behind it."""
    lanes, step = paths.lanes, np.arange(n - 1)
    draft = Draft(len(ranks), n * lanes)
    if n == 1:
        return draft
    rank = ranks[:, None]
    buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
    halves = ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,)
    for lane in range(lanes):
        ahead, behind = paths.around(rank, lane, 1), paths.around(rank, lane, -1)
        piece, sender = paths.lane_at(rank, lane), paths.lane_behind(lane)

        def chunk(back: np.ndarray, lane=lane, piece=piece) -> np.ndarray:
            """This lane's chunk of the rank that is `back` ranks behind."""
            return paths.around(rank, lane, -back) * lanes + piece

        done, received = np.array([NONE]), np.array([NONE])
        for number, half in enumerate(halves):
            gathers = half == "all_gather"
            sent, taken = chunk(step + 1 - gathers), chunk(step + 2 - gathers)
            place = number * (n - 1) + step
            order = 3 * place * lanes + lane
            recvs, *sums, sends = draft.next_handles((3 - gathers) * (n - 1)).reshape(-1, n - 1)
            waits = previous(recvs, received[-1]) if overlap else sends
            cells = (buffer, taken)
            draft.recv(
                peer=behind, tag=place * lanes + sender, idx=taken, dst=cells if gathers else None, after=(waits,),
                order=order + lanes, **paths.channel(sender),
            )  # fmt: skip
            if not gathers:
                draft.reduce(payload=recvs, idx=taken, src=cells, dst=cells, order=order + 2 * lanes)
            before, received, done = done[-1], recvs, sums[0] if sums else recvs
            draft.send(
                peer=ahead, tag=place * lanes + lane, idx=sent, src=(buffer, sent), after=(previous(done, before),),
                order=order, **paths.channel(lane),
            )  # fmt: skip
    return draft


def _chain(collective: str, n: int, root: int, paths: Paths) -> Draft:
    """broadcast and reduce: a pipelined chain that starts (broadcast) or ends (reduce) at the root."""
    lanes = paths.lanes
    draft = Draft(n, lanes)
    if n == 1:
        return draft
    hop, lane = (a.ravel() for a in np.meshgrid(np.arange(n - 1), np.arange(lanes), indexing="ij"))
    # Hop h of a broadcast goes from position h to h + 1; a reduce runs the same chain backwards.
    near, far = paths.around(root, lane, hop), paths.around(root, lane, hop + 1)
    source, target = (near, far) if collective == "broadcast" else (far, near)
    step = hop if collective == "broadcast" else n - 2 - hop
    cell, channel = (Buffer.INPUT, lane), paths.channel(lane)
    # Channels take turns piece by piece, so that none waits for all of another.
    turn = lane % paths.pieces * (lanes // paths.pieces) + lane // paths.pieces if paths.channels else lane
    recv = draft.recv(
        rank=target, peer=source, tag=lane, idx=lane, order=(2 * step + 1) * lanes + turn,
        dst=cell if collective == "broadcast" else None, **channel,
    )  # fmt: skip
    # Pieces of a path are received in order.
    before = np.where(lane % paths.pieces > 0, recv - 1, NONE)
    draft.depend(recv[before != NONE], before[before != NONE])
    done = recv
    if collective == "reduce":
        done = draft.reduce(
            payload=recv, rank=target, idx=lane, src=cell, dst=cell, order=(2 * step + 1) * lanes + turn
        )
    # A hop sends on the data of the hop before it (towards the start of the chain).
    previous = hop - 1 if collective == "broadcast" else hop + 1
    inside = (previous >= 0) & (previous < n - 1)
    waits = np.where(inside, done[np.clip(previous, 0, n - 2) * lanes + lane], NONE)
    draft.send(
        rank=source, peer=target, tag=lane, idx=lane, src=cell, after=(waits,), order=2 * step * lanes + turn, **channel
    )
    return draft


def _relay_to_root(collective: str, n: int, root: int, directions: np.ndarray) -> Draft:
    """gather and scatter: shards travel along the ring, handed on by every rank between."""
    lanes = len(directions)
    draft = Draft(n, n * lanes)
    if n == 1:
        return draft
    # A shard that belongs at distance k from the root makes the hops h = 0..k-1 (between h and h + 1).
    k, h = (a for a in np.tril_indices(n, -1))
    k, h = np.tile(k, lanes), np.tile(h, lanes)
    lane = np.arange(lanes).repeat(n * (n - 1) // 2)
    d = directions[lane]
    near, far = (root + d * h) % n, (root + d * (h + 1)) % n
    index = (root + d * k) % n * lanes + lane
    tag = k * lanes + lane
    if collective == "gather":
        source, target, step = far, near, k - 1 - h  # a rank passes its own on first, then those from behind
        buffer = Buffer.OUTPUT
        rank_order = k * lanes + lane
    else:
        source, target, step = near, far, h
        buffer = Buffer.INPUT
        rank_order = (n - k) * lanes + lane  # the farthest first
    recv = draft.recv(rank=target, peer=source, tag=tag, idx=index, dst=(buffer, index), order=2 * rank_order)
    handle = np.full((lanes, n, n), NONE, dtype=np.int64)
    handle[lane, k, h] = recv
    previous = h + 1 if collective == "gather" else h - 1
    waits = np.where(step > 0, handle[lane, k, np.clip(previous, 0, n - 1)], NONE)
    draft.send(
        rank=source, peer=target, tag=tag, idx=index, src=(buffer, index), after=(waits,),
        order=2 * rank_order + 1,
    )  # fmt: skip
    return draft


def _relay_all(n: int, directions: np.ndarray, which: np.ndarray) -> Draft:
    """all_to_all: every block travels from neighbour to neighbour until it is home."""
    lanes = len(directions)
    draft = Draft(len(which), n * lanes)
    r = which[:, None]
    for lane, d in enumerate(directions.tolist()):
        own = r * lanes + lane
        draft.copy(idx=own, src=(Buffer.INPUT, own), dst=(Buffer.OUTPUT, own), order=lane)
        if n == 1:
            continue
        # Hop h (from 1) of the block whose home is k ranks ahead of its origin; farthest homes first.
        h, k = (a + 1 for a in np.triu_indices(n - 1))
        k = n - 1 + h - k
        origin = (r - d * (h - 1)) % n
        home = (origin + d * k) % n
        tag = (h * n + k) * lanes + lane
        at = np.full((n + 1, n + 1), NONE, dtype=np.int64)
        at[h, k] = draft.next_handles(len(h))
        final = h == k
        from_origin = (r - d * h) % n
        arrives = (from_origin + d * k) % n
        order = ((h * n) + (n - k)) * 2 * lanes + lane + lanes
        draft.recv(
            peer=(r - d) % n,
            tag=tag,
            idx=arrives * lanes + lane,
            # Only a block that is home is written; the others are forwarded as they arrive.
            dst=(np.where(final, int(Buffer.OUTPUT), MISSING), np.where(final, from_origin * lanes + lane, MISSING)),
            order=order + lanes,
        )
        carried = at[h - 1, k]
        draft.send(
            peer=(r + d) % n,
            tag=tag,
            idx=home * lanes + lane,
            src=(np.where(h == 1, int(Buffer.INPUT), MISSING), np.where(h == 1, home * lanes + lane, MISSING)),
            payload=carried,
            after=(carried,),
            order=order,
        )
    return draft
