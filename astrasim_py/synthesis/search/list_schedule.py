"""Compiled cores of routing: least costs of ways, and list schedules over paths that were chosen before.

A message is a chunk that one rank has and one other needs. Its path is a row of arcs; it waits at ranks, whole, as
long as need be.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.insertion import FAR, drop, ordered, push
from astrasim_py.synthesis.model.random_numbers import random_below

#: Priorities of list schedules.
FARTHEST, LOADED, TURN, CROWDED = range(4)
#: Rows of what is noted of messages: hops made, urgency, and what is below them where they wait.
STEP, RANK, LEFT, RIGHT = range(4)


@lean
def _merge(a, b, note):
    """The root of two skew heaps of messages made one, the greatest rank first."""
    if a < 0:
        return b
    if b < 0:
        return a
    if note[RANK, a] < note[RANK, b]:
        a, b = b, a
    root = a
    while True:
        r = note[RIGHT, a]
        note[RIGHT, a] = note[LEFT, a]
        if r < 0:
            note[LEFT, a] = b
            return root
        if note[RANK, r] < note[RANK, b]:
            r, b = b, r
        note[LEFT, a] = r
        a = r


@lean
def _urgent(rule, m, a, note, remaining, hop_ptr, hop):
    """How urgent it is that arc a carries message m, the most urgent first."""
    most = np.int64(0)
    if rule == LOADED:
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            most = max(most, remaining[hop[h]])
    return -(note[RANK, m] + most)


@kernel("the synthesizer", threads=True, lean=True)
def listed(
    turn, kind, hop_ptr, hop, offset, held, delay, points, filled, path, length, load, rule, noise, random, limit,
    stop, note, heap, top, free, remaining, start,
):  # fmt: skip
    """Fill `start` (int64[messages, stride]) with a list schedule over paths; returns its end, or 2**62 past `limit`.

    Whenever an arc is free it takes the most urgent of the messages that wait for it.

    Parameters
    ----------
    turn : int64[messages]
        The rank by turns.
    points, filled
        Calendars of what others hold.
    load : int64[resources]
        What the paths come to, ps.
    stop : int64[1]
        Not 0: give up, as past `limit`.
    note, heap : int64[4, messages], int64[3, messages + arcs]
        Scratch.
    top : int64[arcs]
        Filled with -1.
    free, remaining : int64[resources]
        Zeros, and a copy of `load`.
    """
    arcs, size, end = len(top), np.int64(0), np.int64(0)
    # What waits at an arc is a heap of its own; an arc at which something waits has one entry among all.
    for m in range(len(kind)):
        note[STEP, m] = 0
        if length[m]:
            push(heap, size, np.int64(0), -FAR, m + arcs)
            size += 1
    while size:
        if stop[0] != 0:
            return FAR
        t, s, a = heap[0, 0], heap[1, 0], heap[2, 0]
        drop(heap, size)
        size -= 1
        if a >= arcs:
            m = a - arcs
            rest, crowd = np.int64(0), np.int64(0)
            for p in range(note[STEP, m], length[m]):
                b = np.int64(path[m, p])
                rest += delay[kind[m], b]
                if rule == CROWDED:
                    for h in range(hop_ptr[b], hop_ptr[b + 1]):
                        crowd = max(crowd, load[hop[h]])
            if rule == TURN:
                rest = -turn[m]
            note[RANK, m] = rest + crowd + (random_below(random, noise) if noise else 0)
            note[LEFT, m] = note[RIGHT, m] = -1
            a = np.int64(path[m, note[STEP, m]])
            new = top[a] < 0
            top[a] = _merge(top[a], m, note)
            if new:
                push(heap, size, t, _urgent(rule, m, a, note, remaining, hop_ptr, hop), a)
                size += 1
            continue
        m = top[a]
        z = np.int64(kind[m])
        urgent = _urgent(rule, m, a, note, remaining, hop_ptr, hop)
        begin = ordered(a, z, t, hop_ptr, hop, offset, held, points, filled, free)
        if begin > t or urgent > s:
            push(heap, size, begin, urgent, a)
            size += 1
            continue
        start[m, note[STEP, m]] = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            free[hop[h]] = t + offset[z, h] + held[z, h]
            remaining[hop[h]] -= held[z, h]
        top[a] = _merge(note[LEFT, m], note[RIGHT, m], note)
        arrives = t + delay[z, a]
        if arrives >= limit:
            return FAR
        end = max(end, arrives)
        note[STEP, m] += 1
        if note[STEP, m] < length[m]:
            push(heap, size, arrives, -FAR, m + arcs)
            size += 1
        if top[a] >= 0:
            push(heap, size, t, _urgent(rule, top[a], a, note, remaining, hop_ptr, hop), a)
            size += 1
    return end
