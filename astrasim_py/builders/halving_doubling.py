"""Recursive halving and doubling on powers of two.

Source: Rabenseifner 2004 and Thakur, Rabenseifner & Gropp 2005 (§4): a reduce_scatter by recursive halving of the
vector and of the distance, an all_gather by recursive doubling, an all_reduce as one after the other.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, finish_rotated
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


def build(collective: str, ranks: int) -> Algorithm:
    """Recursive halving (reduce_scatter), doubling (all_gather), or both (all_reduce).

    Takes log2(n) steps per half and moves (n-1)/n of the buffer in each half. Raises AlgorithmError where the number
    of ranks is not a power of two.
    """
    if ranks & (ranks - 1):
        raise AlgorithmError(
            f"halving_doubling {collective} over {ranks} ranks",
            f"{ranks} is not a power of two, which this algorithm needs",
            "use ring, or recursive_doubling, which folds the rest",
        )
    levels = ranks.bit_length() - 1
    lay = partial(_lay, collective, levels)
    # Partners differ in one bit.
    return finish_rotated(lay, Rotation((2,) * levels), "halving_doubling", collective)


def _lay(collective: str, levels: int, which: np.ndarray) -> Draft:
    n = 1 << levels
    draft = Draft(len(which), n)
    buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
    r = which[:, None]
    done, before, tag = np.array([NONE]), np.array([NONE]), 0
    if collective != "all_gather":
        for k in range(levels):
            distance = n >> (k + 1)
            kept = r & ~(distance - 1)
            given = kept ^ distance
            span = {"peer": r ^ distance, "tag": tag, "cnt": distance}
            draft.send(idx=given, src=(buffer, given), after=(done,), **span)
            before = draft.recv(idx=kept, after=(before,), **span)
            # After the reduction before, which wrote the same cells and more.
            done = draft.reduce(
                payload=before, idx=kept, cnt=distance, src=(buffer, kept), dst=(buffer, kept), after=(done,)
            )
            tag += 1
    summed = done
    if collective != "reduce_scatter":
        for k in range(levels):
            distance = 1 << k
            mine = r & ~(distance - 1)
            theirs = mine ^ distance
            span = {"peer": r ^ distance, "tag": tag, "cnt": distance}
            draft.send(idx=mine, src=(buffer, mine), after=(summed, done), **span)
            done = before = draft.recv(idx=theirs, dst=(buffer, theirs), after=(before,), **span)
            tag += 1
    return draft
