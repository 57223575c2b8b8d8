"""Interruptions of compute at regular times."""

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import queue
from astrasim_py.engine.compiled.events import MOST


@lean
def interrupted(state, work, phase):
    """When work that begins now is done, with detours (`Detours.end`)."""
    place, begin = (state.now - phase) % state.period, state.now
    if place < state.detour:
        begin, place = begin + state.detour - place, state.detour
    beyond, later = work - (state.period - place), np.int64(0)
    if beyond > 0:
        later = 1 + (beyond - 1) // (state.period - state.detour)
    if later > (MOST - begin - work) // state.detour:
        return queue.NONE
    return begin + work + later * state.detour
