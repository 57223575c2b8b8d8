"""Dissemination barrier.

Source: Hensgen, Finkel & Manber 1988 ("Two algorithms for barrier synchronization").
"""

from __future__ import annotations

from functools import partial

import numpy as np

from astrasim_py.builders.draft import Draft, finish_rotated, previous
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation


def build(collective: str, ranks: int) -> Algorithm:
    """Barrier in ⌈log2 n⌉ steps of empty messages for any n: in step k rank r tells r + 2**k what it knows."""
    distances = 1 << np.arange((ranks - 1).bit_length())
    return finish_rotated(partial(rounds, ranks, distances), Rotation((ranks,)), "dissemination", collective)


def rounds(ranks: int, distances: np.ndarray, which: np.ndarray) -> Draft:
    """Empty messages: in round k to the rank so far ahead, when that of the round before has come."""
    draft, m = Draft(len(which), 1), len(distances)
    if m:
        rank, k = which[:, None], np.arange(m)
        heard = previous(draft.next_handles(2 * m)[m:])
        draft.send(peer=(rank + distances) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k)
        draft.recv(peer=(rank - distances) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k + 1)
    return draft
