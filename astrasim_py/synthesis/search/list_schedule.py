"""List schedules over paths that were chosen before: a free arc takes the most urgent message that waits for it.

A message is a chunk that one rank has and one other needs. Its path is a row of arcs; it waits at ranks, whole, as
long as need be.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.bounds.balanced_paths import Paths
from astrasim_py.synthesis.model.insertion import FAR, GO, calendars, ordered
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import merge
from astrasim_py.synthesis.model.random_numbers import random_below
from astrasim_py.synthesis.model.timing import Timing

#: Rules of urgency: the farthest first, the most loaded link first, by turns, the most crowded path first.
FARTHEST, LOADED, TURN, CROWDED = range(4)

#: Messages: class of size, rank by turns, path.
_Messages = namedtuple("_Messages", "kind turn path length")

#: Memory by message (hops made, urgency, the heap of its arc), by arc (the first that waits) and by link.
_State = namedtuple("_State", "heap step rank left right top free load remaining")


@lean
def _most(net, a, load):
    """The most that a link of arc a carries."""
    most = np.int64(0)
    for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        most = max(most, load[net.hop[h]])
    return most


@lean
def _urgency(net, state, rule, m, a):
    """How urgent it is that arc a carries message m, the most urgent first."""
    return -(state.rank[m] + (_most(net, a, state.remaining) if rule == LOADED else 0))


@lean
def _rank(net, messages, state, rule, m):
    """The rank of a message that waits where it is, without noise."""
    rest, crowd = np.int64(0), np.int64(0)
    for p in range(state.step[m], messages.length[m]):
        b = np.int64(messages.path[m, p])
        rest += net.delay[messages.kind[m], b]
        if rule == CROWDED:
            crowd = max(crowd, _most(net, b, state.load))
    return -messages.turn[m] if rule == TURN else rest + crowd


@kernel("the synthesizer", threads=True, lean=True)
def _schedule(net, calendar, messages, state, rule, noise, random, limit, stop, start):
    """Fill `start` with a list schedule; returns its end, or 2**62 past `limit` or after a stop signal."""
    arcs, size, end = len(state.top), np.int64(0), np.int64(0)
    # The messages that wait at an arc form a skew heap; each such arc has one entry in the main heap.
    for m in range(len(messages.kind)):
        state.step[m] = 0
        if messages.length[m]:
            push(state.heap, size, np.int64(0), -FAR, m + arcs)
            size += 1
    while size:
        if stop[0] != 0:
            return FAR
        t, s, a = state.heap[0].key, state.heap[0].tie, state.heap[0].item
        size = pop(state.heap, size)
        if a >= arcs:
            m = a - arcs
            state.rank[m] = _rank(net, messages, state, rule, m) + (random_below(random, noise) if noise else 0)
            state.left[m] = state.right[m] = -1
            a = np.int64(messages.path[m, state.step[m]])
            new = state.top[a] < 0
            state.top[a] = merge(state.top[a], m, state.rank, state.left, state.right)
            if new:
                push(state.heap, size, t, _urgency(net, state, rule, m, a), a)
                size += 1
            continue
        m = state.top[a]
        z = np.int64(messages.kind[m])
        urgent = _urgency(net, state, rule, m, a)
        begin = ordered(net, calendar, a, z, t, state.free)
        if begin > t or urgent > s:
            push(state.heap, size, begin, urgent, a)
            size += 1
            continue
        start[m, state.step[m]] = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            state.free[net.hop[h]] = t + net.offset[z, h] + net.hold[z, h]
            state.remaining[net.hop[h]] -= net.hold[z, h]
        state.top[a] = merge(state.left[m], state.right[m], state.rank, state.left, state.right)
        arrives = t + net.delay[z, a]
        if arrives >= limit:
            return FAR
        end = max(end, arrives)
        state.step[m] += 1
        if state.step[m] < messages.length[m]:
            push(state.heap, size, arrives, -FAR, m + arcs)
            size += 1
        if state.top[a] >= 0:
            push(state.heap, size, t, _urgency(net, state, rule, state.top[a], a), a)
            size += 1
    return end


def list_schedule(
    network: Network, timing: Timing, paths: Paths, kind, turn, rule: int, noise: int, seed: int, limit: int, stop=None
) -> tuple[int, np.ndarray] | None:
    """(end in ps, int64[messages, stride] starts) of a list schedule over paths; None: not before `limit`."""
    count, start = len(kind), np.zeros(paths.arc.shape, dtype=np.int64)
    state = _State(
        np.empty(count + network.arcs, dtype=ENTRY), *np.empty((4, count), dtype=np.int64), np.full(network.arcs, -1),
        np.zeros_like(paths.load), paths.load, paths.load.copy(),
    )  # fmt: skip
    random = np.random.Generator(np.random.PCG64(seed)).integers(1, 2**63, 1, dtype=np.uint64)
    end = _schedule(
        timing, calendars(network), _Messages(kind, turn, paths.arc, paths.length), state, rule,
        min(noise, 2**31 - 1), random, limit, GO if stop is None else stop, start,
    )  # fmt: skip
    return (int(end), start) if end < limit else None
