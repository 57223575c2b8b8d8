"""Bruck's algorithms and the dissemination barrier: ⌈log2 n⌉ steps for any n.

Sources: Bruck et al. 1997 ("Efficient algorithms for all-to-all communications in multiport message-passing systems"),
as described by Thakur, Rabenseifner & Gropp 2005 (§3.1, §3.4); Hensgen, Finkel & Manber 1988 ("Two algorithms for
barrier synchronization").
"""

from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish, finish_rotated, previous
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation


def build(collective: str, ranks: int) -> Algorithm:
    """Blocks packed into log2 n steps: for small sizes.

    all_gather doubles what a rank has in each step; blocks are received where they belong, so a range that wraps
    around the end of the buffer is two messages, sent together. all_to_all moves the block for the rank at distance
    j in the steps of the set bits of j, all blocks of a step packed into one message (local copies before and
    after). Such a message counts as its number of blocks times 1/n of the buffer, rounded down.
    """
    n = ranks
    place = f"bruck {collective} over {n} ranks"
    nodes = 4 * n.bit_length()
    if collective == "all_gather":
        # Ranges that wrap around are two messages; which ones wrap differs from rank to rank.
        check_nodes(place, n * nodes)
        return finish(_all_gather(n), "bruck", collective)
    check_nodes(place, nodes + 2 * n, of_rank=True)
    return finish_rotated(partial(_all_to_all, n), Rotation((n,)), "bruck", collective)


def _ranges(begin: np.ndarray, count: int, n: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """[begin, begin + count) mod n as two ranges (first, number), the second of which may be empty."""
    begin = begin % n
    first = np.minimum(count, n - begin)
    return (begin, first), (np.zeros_like(begin), count - first)


def _all_gather(n: int) -> Draft:
    draft = Draft(n, n)
    r = np.arange(n)
    done = np.full(n, NONE, dtype=np.int64)
    for step in range((n - 1).bit_length()):
        distance = 1 << step
        count = min(distance, n - distance)
        for part, (begin, number) in enumerate(_ranges(r, count, n)):
            e = np.flatnonzero(number > 0)
            draft.send(
                rank=e, peer=(e - distance) % n, tag=2 * step + part, idx=begin[e], cnt=number[e],
                src=(Buffer.OUTPUT, begin[e]), after=(done[e],),
            )  # fmt: skip
        done = done.copy()
        for part, (begin, number) in enumerate(_ranges(r + distance, count, n)):
            e = np.flatnonzero(number > 0)
            done[e] = draft.recv(
                rank=e, peer=(e + distance) % n, tag=2 * step + part, idx=begin[e], cnt=number[e],
                dst=(Buffer.OUTPUT, begin[e]), after=(done[e],),
            )  # fmt: skip
    return draft


def _all_to_all(n: int, ranks: np.ndarray) -> Draft:
    """all_to_all without unpacking between steps.

    A block that has distance j to go from its origin is forwarded in the steps of j's set bits, from the lowest. Write
    j = h + low with low < 2**k, k the lowest set bit of h: before step k all blocks of such a "run" h are at one
    rank and go the same way. Every run has its own place in scratch, the runs of a step side by side, so that the
    message of a step is one range. Arrived data is copied to the place of its next step (or to the output).
    Within a run blocks lie by descending low, that is by ascending origin.
    """
    draft = Draft(len(ranks), n)
    r = ranks[:, None]
    draft.copy(idx=r, src=(Buffer.INPUT, r), dst=(Buffer.OUTPUT, r))
    if n == 1:
        return draft
    h = np.arange(n)
    bit = h & -h
    length = np.minimum(bit, n - h)
    levels = (n - 1).bit_length()
    base = np.zeros(n, dtype=np.int64)  # where each run lies in scratch
    packed: list[tuple[np.ndarray, int, int]] = []
    used = 0
    for k in range(levels):
        runs = np.arange(1 << k, n, 2 << k)
        base[runs] = used + np.concatenate(([0], np.cumsum(length[runs])[:-1]))
        packed.append((runs, used, int(length[runs].sum())))
        used += packed[-1][2]
    gaps = np.arange(1, n)
    home = (r + gaps) % n
    copies = draft.copy(idx=home, src=(Buffer.INPUT, home), dst=(Buffer.SCRATCH, base[gaps] + length[gaps] - 1))
    filled = {int(run): [int(handle)] for run, handle in zip(gaps, copies, strict=True)}
    before = np.array([NONE])
    for k, (runs, begin, count) in enumerate(packed):
        distance = 1 << k
        # A message of one block knows which it is.
        sent, target = ((r + distance) % n, r) if count == 1 else (0, 0)
        parts = [handle for run in runs.tolist() for handle in filled[run]]
        draft.send(peer=(r + distance) % n, tag=k, idx=sent, cnt=count, src=(Buffer.SCRATCH, begin), after=parts)
        arrived = used
        used += count
        before = draft.recv(
            peer=(r - distance) % n, tag=k, idx=target, cnt=count, dst=(Buffer.SCRATCH, arrived), after=(before,)
        )
        # Blocks of the first run are home; those of the others come after as many others in their next run.
        final = int(length[runs[0]])
        origin = (r - distance - final + 1) % n
        offset: int | np.ndarray = 0
        for part, (first, number) in enumerate(_ranges(origin, final, n)):
            if part and final == 1:
                break
            draft.copy(
                idx=first, cnt=number, src=(Buffer.SCRATCH, arrived + offset), dst=(Buffer.OUTPUT, first),
                after=(before,),
            )  # fmt: skip
            offset = number
        rest = runs[1:]
        if len(rest):
            there = rest - distance
            moved = draft.copy(
                idx=0,
                cnt=length[rest],
                src=(Buffer.SCRATCH, arrived + base[rest] - begin),
                dst=(Buffer.SCRATCH, base[there] + length[there] - distance - length[rest]),
                after=(before,),
            )
            for run, handle in zip(there.tolist(), moved.tolist(), strict=True):
                filled[run].append(handle)
    return draft


def dissemination(collective: str, ranks: int) -> Algorithm:
    """A barrier in log2 n steps. These are ⌈log2 n⌉ steps of empty messages for any n: in step k rank r sends to r +
    2**k.
    """
    distances = 1 << np.arange((ranks - 1).bit_length())
    return finish_rotated(partial(rounds, ranks, distances), Rotation((ranks,)), "dissemination", collective)


def rounds(ranks: int, distances: np.ndarray, which: np.ndarray) -> Draft:
    """Empty messages: in round k to the rank ``distances[k]`` ahead, after that of the round before has arrived."""
    draft, m = Draft(len(which), 1), len(distances)
    if m:
        rank, k = which[:, None], np.arange(m)
        heard = previous(draft.next_handles(2 * m)[m:])
        draft.send(peer=(rank + distances) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k)
        draft.recv(peer=(rank - distances) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k + 1)
    return draft
