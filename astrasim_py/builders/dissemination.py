"""Dissemination barrier.

Source: Hensgen, Finkel & Manber 1988 ("Two algorithms for barrier synchronization").
"""

from __future__ import annotations

from functools import partial

import numpy as np

from astrasim_py.builders.draft import Draft, finish_rotated, previous
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation

COLLECTIVES = ("barrier",)


def build(collective: str, ranks: int) -> Algorithm:
    """Barrier in ⌈log2 n⌉ steps of empty messages for any n: in step k rank r tells r + 2**k what it knows."""
    return finish_rotated(partial(_lay, ranks), Rotation((ranks,)), "dissemination", collective)


def _lay(ranks: int, which: np.ndarray) -> Draft:
    draft = Draft(len(which), 1)
    steps = (ranks - 1).bit_length()
    if steps:
        r, k = which[:, None], np.arange(steps)
        recvs = draft.next_handles(2 * steps)[steps:]
        heard = previous(recvs)
        draft.send(peer=(r + (1 << k)) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k)
        draft.recv(peer=(r - (1 << k)) % ranks, tag=k, idx=0, cnt=0, after=(heard,), order=2 * k + 1)
    return draft
