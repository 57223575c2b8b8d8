"""Pairwise exchange: n-1 steps, in each of which a rank exchanges with one pair of partners.

Source: Thakur, Rabenseifner & Gropp 2005 (§3.4 all_to_all, §3.2 reduce_scatter, long messages).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from astrasim_py.builders.draft import Draft, check_program, finish_rotated, previous
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation

COLLECTIVES = ("all_to_all", "reduce_scatter")


def build(collective: str, ranks: int) -> Algorithm:
    """Pairwise exchange: in step s rank r sends to r+s and receives from r-s.

    A step begins when send and receive of the step before are done.
    """
    check_program(f"pairwise {collective} over {ranks} ranks", 3 * ranks)
    lay = partial(_lay, collective, ranks)
    return finish_rotated(lay, Rotation((ranks,)), "pairwise", collective, in_place=collective != "all_to_all")


def _lay(collective: str, n: int, which: np.ndarray) -> Draft:
    draft = Draft(len(which), n)
    r = which[:, None]
    all_to_all = collective == "all_to_all"
    if all_to_all:
        draft.copy(idx=r, src=(Buffer.INPUT, r), dst=(Buffer.OUTPUT, r))
    if n > 1:
        s = np.arange(1, n)
        ahead, behind = (r + s) % n, (r - s) % n
        mine = np.broadcast_to(r, (len(which), n - 1))
        sends, recvs = draft.next_handles(2 * (n - 1)).reshape(2, n - 1)
        step = (previous(sends), previous(recvs))
        draft.send(peer=ahead, tag=0, idx=ahead, src=(Buffer.INPUT, ahead), after=step, order=3 * s)
        draft.recv(
            peer=behind,
            tag=0,
            idx=mine,
            dst=(Buffer.OUTPUT, behind) if all_to_all else None,
            after=step,
            order=3 * s + 1,
        )
        if not all_to_all:
            sums = draft.next_handles(n - 1)
            cells = (Buffer.INPUT, mine)
            draft.reduce(payload=recvs, idx=mine, src=cells, dst=cells, after=(previous(sums),), order=3 * s + 2)
    return draft
