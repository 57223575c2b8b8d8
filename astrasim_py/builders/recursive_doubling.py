"""Recursive doubling: in step k every rank exchanges all it has with the rank whose number differs in bit k.

Source: Thakur, Rabenseifner & Gropp 2005 (§3.1, §4). Groups that are not a power of two are folded as there: of
the first 2·rem ranks the even ones hand their part to the odd neighbour before and get the result after.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish, finish_rotated
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation

COLLECTIVES = ("all_reduce", "all_gather", "barrier")


def build(collective: str, ranks: int) -> Algorithm:
    """Recursive doubling: log2(n) steps, and two more for groups that are not a power of two.

    all_reduce sends the whole buffer in every step (few messages, many bytes: for small sizes), all_gather twice
    as much in each step as in the one before. A reduction waits for the own send of its step, since it overwrites
    what is being sent.
    """
    levels = ranks.bit_length() - 1
    if ranks == 1 << levels:
        # Partners differ in one bit.
        lay = partial(_power_of_two, collective, levels)
        return finish_rotated(lay, Rotation((2,) * levels), "recursive_doubling", collective)
    check_nodes(f"recursive_doubling {collective}", ranks * 3 * (levels + 2))
    return finish(_folded(collective, ranks), "recursive_doubling", collective)


def _power_of_two(collective: str, levels: int, which: np.ndarray) -> Draft:
    draft = Draft(len(which), 1 << levels if collective == "all_gather" else 1)
    count = 0 if collective == "barrier" else 1
    full = (Buffer.INPUT, 0) if count else None
    v = which[:, None]
    done = before = np.array([NONE])
    for k in range(levels):
        span = {"peer": v ^ (1 << k), "tag": 1 + k}
        if collective == "all_gather":
            mine = v >> k << k
            theirs = mine ^ (1 << k)
            span["cnt"] = 1 << k
            draft.send(idx=mine, src=(Buffer.OUTPUT, mine), after=(done,), **span)
            before = done = draft.recv(idx=theirs, dst=(Buffer.OUTPUT, theirs), after=(before,), **span)
            continue
        sent = draft.send(idx=0, cnt=count, src=full, after=(done,), **span)
        before = done = draft.recv(idx=0, cnt=count, after=(before,), **span)
        if collective == "all_reduce":
            done = draft.reduce(payload=before, idx=0, src=full, dst=full, after=(sent,))
    return draft


def _folded(collective: str, n: int) -> Draft:
    """A group that is not a power of two."""
    levels = n.bit_length() - 1
    power = 1 << levels
    rem = n - power
    draft = Draft(n, n if collective == "all_gather" else 1)
    count = 0 if collective == "barrier" else 1
    reduces = collective == "all_reduce"
    full = (Buffer.INPUT, 0) if count else None

    v = np.arange(power)
    actual = np.where(v < rem, 2 * v + 1, v + rem)
    # First shard that participant v stands for; those of v..w-1 are start[v]..start[w]-1.
    start = np.append(np.where(v < rem, 2 * v, v + rem), n)
    folded, keeper = 2 * np.arange(rem), 2 * np.arange(rem) + 1

    done = np.full(power, NONE)
    before = np.full(power, NONE)
    if collective == "all_gather":
        draft.send(rank=folded, peer=keeper, tag=0, idx=folded, src=(Buffer.OUTPUT, folded))
        got = draft.recv(rank=keeper, peer=folded, tag=0, idx=folded, dst=(Buffer.OUTPUT, folded))
    else:
        draft.send(rank=folded, peer=keeper, tag=0, idx=0, cnt=count, src=full)
        got = draft.recv(rank=keeper, peer=folded, tag=0, idx=0, cnt=count)
    before[:rem] = done[:rem] = got
    if reduces:
        done[:rem] = draft.reduce(payload=got, rank=keeper, idx=0, src=full, dst=full)
    for k in range(levels):
        partner = v ^ (1 << k)
        peer, tag = actual[partner], 1 + k
        if collective == "all_gather":
            first = v >> k << k
            mine, mine_count = start[first], start[first + (1 << k)] - start[first]
            theirs, theirs_count = mine[partner], mine_count[partner]
            draft.send(
                rank=actual, peer=peer, tag=tag, idx=mine, cnt=mine_count, src=(Buffer.OUTPUT, mine),
                after=(done,),
            )  # fmt: skip
            before = done = draft.recv(
                rank=actual, peer=peer, tag=tag, idx=theirs, cnt=theirs_count, dst=(Buffer.OUTPUT, theirs),
                after=(before,),
            )  # fmt: skip
            continue
        sent = draft.send(rank=actual, peer=peer, tag=tag, idx=0, cnt=count, src=full, after=(done,))
        before = done = draft.recv(rank=actual, peer=peer, tag=tag, idx=0, cnt=count, after=(before,))
        if reduces:
            done = draft.reduce(payload=before, rank=actual, idx=0, src=full, dst=full, after=(sent,))
    ready, tag = done[:rem], 1 + levels
    if collective != "all_gather":
        draft.send(rank=keeper, peer=folded, tag=tag, idx=0, cnt=count, src=full, after=(ready,))
        draft.recv(rank=folded, peer=keeper, tag=tag, idx=0, cnt=count, dst=full)
    else:
        # All but the shard that the folded rank has itself, which lies in between.
        for part, (low, high) in enumerate(((np.zeros(rem, int), folded), (keeper, np.full(rem, n)))):
            some = np.flatnonzero(high > low)
            cells = (Buffer.OUTPUT, low[some])
            span = {"idx": low[some], "cnt": (high - low)[some], "tag": tag + part}
            draft.send(rank=keeper[some], peer=folded[some], src=cells, after=(ready[some],), **span)
            draft.recv(rank=folded[some], peer=keeper[some], dst=cells, **span)
    return draft
