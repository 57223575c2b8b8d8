"""Local search on a schedule: transfers are taken out, with all that hangs on them, and put in anew.

A schedule in which every rank gets every chunk once is a tree per chunk. A move takes subtrees of a few chunks out,
one of them with an arrival that is too late, and lets each chunk grow back from what is left of its tree, every rank
being reached as early as the calendars of the links allow (see `gaps`); at times some arcs are left out at random, so
that others are tried. Schedules are compared by how much later than the best known time their arrivals are, summed:
0 is a faster schedule. A worse one is accepted if it is better than what was there some moves ago (late acceptance:
Burke & Bykov, Eur. J. Oper. Res. 2017).

The greedy cores decide once, in the order of time, and never wait for a better moment; this one does not know of
moments. It is slow for large networks and strong for small ones of unlike links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.core.jit import helper, kernel
from astrasim_py.synthesis.model.insertion import drop, hold, nearest, push
from astrasim_py.synthesis.model.random_numbers import random_below, seeded

#: Whom a chunk did not reach, and where it begins, in place of the arc over which it came.
LACKING, ORIGIN = -2, -1
#: Moves after which what there was is compared with, and most subtrees taken out at once.
_MEMORY, _MOST = 50, 6
#: Of 64 arcs so many are left out, in every other move.
_LEFT_OUT = 4
_TIES = 64
#: Draws for a chunk that a rank gets, and most steps from a late arrival to what is taken out with it.
_DRAWS, _AROUND = 8, 3


@helper
def _regrow(
    c, z, lacking, left_out, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, points, filled,
    load, arc_at, arrival, heap, random,
):  # fmt: skip
    """Bring chunk c to all who lack it, each as early as can be; False: some were not reached, or room was lacking."""
    n, size, take = len(in_ptr) - 1, np.int64(0), np.int64(1)
    for v in range(n):
        if arc_at[c, v] != LACKING:
            continue
        for a in range(in_ptr[v], in_ptr[v + 1]):
            u = np.int64(src[a])
            if arc_at[c, u] == LACKING or (left_out and random_below(random, 64) < left_out):
                continue
            t = nearest(a, z, arrival[c, u], True, hop_ptr, hop, offset, held, points, filled)
            push(heap, size, t + delay[z, a], random_below(random, _TIES), a)
            size += 1
    while lacking and size:
        key, tie, a = heap[0, 0], heap[1, 0], heap[2, 0]
        drop(heap, size)
        size -= 1
        v = np.int64(dst[a])
        if arc_at[c, v] != LACKING:
            continue
        t = nearest(a, z, arrival[c, src[a]], True, hop_ptr, hop, offset, held, points, filled)
        if t + delay[z, a] > key:
            # Its links were taken by a transfer of this chunk since.
            push(heap, size, t + delay[z, a], tie, a)
            size += 1
            continue
        if not hold(a, t, z, take, hop_ptr, hop, offset, held, points, filled, load):
            return False
        arc_at[c, v], arrival[c, v] = a, t + delay[z, a]
        lacking -= 1
        for i in range(out_ptr[v], out_ptr[v + 1]):
            b = np.int64(out_arc[i])
            if arc_at[c, dst[b]] != LACKING or (left_out and random_below(random, 64) < left_out):
                continue
            t = nearest(b, z, arrival[c, v], True, hop_ptr, hop, offset, held, points, filled)
            push(heap, size, t + delay[z, b], random_below(random, _TIES), b)
            size += 1
    return lacking == 0


@helper
def _take_out(
    c, v, z, gone, removed, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, points, filled, load, arc_at,
    arrival,
):  # fmt: skip
    """Take chunk c from rank v (from all but its origin, if that is v) and all who have it from there.

    They are noted in ``removed`` (int64[4, room]: chunk, rank, arc, arrival) from row `gone` on; returns the rows.
    """
    give = np.int64(-1)
    at = gone
    if arc_at[c, v] != ORIGIN:
        removed[0, gone], removed[1, gone] = c, v
        removed[2, gone], removed[3, gone] = arc_at[c, v], arrival[c, v]
        gone += 1
        arc_at[c, v] = LACKING
    u = v
    while True:
        for i in range(out_ptr[u], out_ptr[u + 1]):
            w = np.int64(dst[out_arc[i]])
            if arc_at[c, w] == out_arc[i]:
                removed[0, gone], removed[1, gone] = c, w
                removed[2, gone], removed[3, gone] = arc_at[c, w], arrival[c, w]
                gone += 1
                arc_at[c, w] = LACKING
        a = removed[2, at]
        if at == gone:
            return gone
        hold(a, removed[3, at] - delay[z, a], z, give, hop_ptr, hop, offset, held, points, filled, load)
        u = removed[1, at]
        at += 1


@helper
def _lateness(c, goal, grain, arrival):
    """By how much chunk c arrives after `goal`, summed over ranks, each late one counting `grain` more."""
    late = np.int64(0)
    for v in range(arrival.shape[1]):
        if arrival[c, v] > goal:
            late += grain + arrival[c, v] - goal
    return late


@helper
def _keep(arc_at, arrival, best_arc, best_arrival):
    """Copy a schedule to where the fastest one is kept; its time."""
    time = np.int64(0)
    for c in range(arrival.shape[0]):
        for v in range(arrival.shape[1]):
            best_arc[c, v], best_arrival[c, v] = arc_at[c, v], arrival[c, v]
            time = max(time, arrival[c, v])
    return time


@kernel("the synthesizer", threads=True)
def polish(
    size_class, origin, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, occupied_ptr,
    occupied_start, occupied_end, moves, seed, bound, stop, points, arc_at, arrival, best_arc, best_arrival,
):  # fmt: skip
    """Make a schedule faster.

    Parameters
    ----------
    size_class, origin : int32[chunks]
    src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, occupied_ptr, occupied_start, occupied_end
        Of the network and its timing.
    moves, seed : int
    bound : int
        ps: done when it is met.
    stop : int64[1]
        Not 0: end now.
    points : int64[resources, room]
        Scratch: calendars.
    arc_at, arrival : int64[chunks, n]
        The schedule: over which arc a rank gets a chunk (`ORIGIN` where it begins), and when it is there. Scratch
        afterwards.
    best_arc, best_arrival : int64[chunks, n]
        Filled with the fastest.

    Returns
    -------
    int
        Its time; -1 where there was no room for the calendars of the schedule.
    """
    chunks, n, arcs, resources = len(size_class), len(in_ptr) - 1, len(src), len(points)
    take, give = np.int64(1), np.int64(-1)
    random = seeded(seed)
    filled, load = np.zeros(resources, dtype=np.int64), np.zeros(resources, dtype=np.int64)
    for r in range(resources):
        for i in range(occupied_ptr[r], occupied_ptr[r + 1]):
            if filled[r] and points[r, filled[r] - 1] == occupied_start[i]:
                points[r, filled[r] - 1] = occupied_end[i]
            else:
                points[r, filled[r]], points[r, filled[r] + 1] = occupied_start[i], occupied_end[i]
                filled[r] += 2
    grain, best = np.int64(2**62), np.int64(0)
    for c in range(chunks):
        z = np.int64(size_class[c])
        for v in range(n):
            a = arc_at[c, v]
            best_arc[c, v], best_arrival[c, v] = a, arrival[c, v]
            best = max(best, arrival[c, v])
            if a >= 0:
                grain = min(grain, (delay[z, a] >> 3) + 1)
                if not hold(
                    a, arrival[c, v] - delay[z, a], z, take, hop_ptr, hop, offset, held, points, filled, load
                ):  # fmt: skip
                    return np.int64(-1)
    late, total, goal = np.zeros(chunks, dtype=np.int64), np.int64(0), best
    history = np.zeros(_MEMORY, dtype=np.int64)
    heap = np.empty((3, 2 * arcs), dtype=np.int64)
    removed = np.empty((4, n * _MOST + 1), dtype=np.int64)
    picked, lacking = np.empty(_MOST, dtype=np.int64), np.empty(_MOST, dtype=np.int64)
    new_late = np.empty(_MOST, dtype=np.int64)
    for move in range(moves):
        if total == 0:
            # What there is becomes the best, and is late again.
            best = _keep(arc_at, arrival, best_arc, best_arrival)
            goal = best - 1
            for c in range(chunks):
                late[c] = _lateness(c, goal, grain, arrival)
                total += late[c]
            history[:] = total
        if best <= bound or stop[0] != 0:
            break
        first = random_below(random, chunks)
        while late[first] == 0:
            first = first + 1 if first + 1 < chunks else np.int64(0)
        there = random_below(random, n)
        while arrival[first, there] <= goal:
            there = there + 1 if there + 1 < n else np.int64(0)
        whole = random_below(random, 4) == 0
        gone, several = np.int64(0), 0
        for pick in range(1 + random_below(random, _MOST)):
            c, v = first, there
            if pick == 0:
                # Something on its way there.
                for _ in range(random_below(random, _AROUND + 1)):
                    if arc_at[c, v] >= 0 and arc_at[c, src[arc_at[c, v]]] >= 0:
                        v = np.int64(src[arc_at[c, v]])
            else:
                for _ in range(random_below(random, _AROUND)):
                    if in_ptr[v] < in_ptr[v + 1]:
                        v = np.int64(src[in_ptr[v] + random_below(random, in_ptr[v + 1] - in_ptr[v])])
                for _ in range(_DRAWS):
                    c = random_below(random, chunks)
                    if arc_at[c, v] >= 0:
                        break
            if arc_at[c, v] < 0:
                continue
            place = 0
            while place < several and picked[place] != c:
                place += 1
            if place == several:
                picked[place], lacking[place] = c, 0
                several += 1
            before = gone
            gone = _take_out(
                c, np.int64(origin[c]) if whole else v, np.int64(size_class[c]), gone, removed, src, dst, out_ptr,
                out_arc, hop_ptr, hop, offset, held, delay, points, filled, load, arc_at, arrival,
            )  # fmt: skip
            lacking[place] += gone - before
        for i in range(several - 1, 0, -1):
            j = random_below(random, i + 1)
            picked[i], picked[j] = picked[j], picked[i]
            lacking[i], lacking[j] = lacking[j], lacking[i]
        left_out = np.int64(_LEFT_OUT) * random_below(random, 2)
        came_about, new_total = True, total
        for i in range(several):
            c = picked[i]
            came_about = came_about and _regrow(
                c, np.int64(size_class[c]), lacking[i], left_out, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop,
                offset, held, delay, points, filled, load, arc_at, arrival, heap, random,
            )  # fmt: skip
            new_late[i] = _lateness(c, goal, grain, arrival)
            new_total += new_late[i] - late[c]
        slot = move % _MEMORY
        if came_about and (new_total <= total or new_total <= history[slot]):
            total = new_total
            for i in range(several):
                late[picked[i]] = new_late[i]
        else:
            # What was put in comes out again before what there was comes back.
            for i in range(2 * gone):
                back = i >= gone
                row = i - gone if back else i
                c, v = removed[0, row], removed[1, row]
                z = np.int64(size_class[c])
                if back:
                    arc_at[c, v], arrival[c, v] = removed[2, row], removed[3, row]
                a = arc_at[c, v]
                if a >= 0 and not hold(
                    a, arrival[c, v] - delay[z, a], z, take if back else give, hop_ptr, hop, offset, held, points,
                    filled, load,
                ):  # fmt: skip
                    return best
        history[slot] = total
    if total == 0:
        best = _keep(arc_at, arrival, best_arc, best_arrival)
    return best


@dataclass(frozen=True, slots=True)
class Polish:
    """A run that makes the best schedule of the generations before it faster.

    Attributes
    ----------
    what : str
        Where that schedule comes from.
    """

    what: str = ""

    def __str__(self) -> str:
        return self.what if self.what.endswith(", polished") else f"{self.what}, polished"
