"""When links are free, and the earliest arrivals that this allows: what trees and paths are found with.

The calendar of a link is the ascending list of the moments at which it is taken or becomes free, so that taking an
interval that is free and giving back one that is taken are the same: both ends are put into the list, or out of it if
they are there. `grow` follows a chunk from a rank, forward in time to those who need it, or backward to those whose
parts of a sum it collects; over calendars without entries, with links priced by what lies on them, it finds ways that
share links evenly.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import random_below

#: Beyond every time.
FAR = np.int64(2**62)
NEVER = 2**62
#: Nobody says stop.
GO = np.zeros(1, dtype=np.int64)
#: A share of the mean load in which crowding is told apart, and the most of it.
_FINE, _MOST = 16, 48
_TIES = 64
#: Rows of what a search notes of ranks.
REACHED, SEEN, LEAST, KNOWN = range(4)


@lean
def push(heap, size, key, tie, what):
    """Put an entry into a heap (int64[3, room]: keys, ties, entries) of this size, the least (key, tie) first."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if heap[0, up] < key or (heap[0, up] == key and heap[1, up] <= tie):
            break
        heap[0, at], heap[1, at], heap[2, at] = heap[0, up], heap[1, up], heap[2, up]
        at = up
    heap[0, at], heap[1, at], heap[2, at] = key, tie, what


@lean
def drop(heap, size):
    """Take the first entry out of a heap of this size; the caller has read it."""
    last = size - 1
    key, tie, what = heap[0, last], heap[1, last], heap[2, last]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        other = down + 1
        if other < last and (
            heap[0, other] < heap[0, down] or (heap[0, other] == heap[0, down] and heap[1, other] < heap[1, down])
        ):
            down = other
        if key < heap[0, down] or (key == heap[0, down] and tie <= heap[1, down]):
            break
        heap[0, at], heap[1, at], heap[2, at] = heap[0, down], heap[1, down], heap[2, down]
        at = down
    heap[0, at], heap[1, at], heap[2, at] = key, tie, what


@lean
def _turn(points, filled, r, moment):
    """Put a moment into a calendar, or out of it if it is there; False: there is no room."""
    low, high = np.int64(0), filled[r]
    while low < high:
        middle = (low + high) >> 1
        if points[r, middle] < moment:
            low = middle + 1
        else:
            high = middle
    if low < filled[r] and points[r, low] == moment:
        filled[r] -= 1
        for i in range(low, filled[r]):
            points[r, i] = points[r, i + 1]
        return True
    if filled[r] == points.shape[1]:
        return False
    for i in range(filled[r], low, -1):
        points[r, i] = points[r, i - 1]
    points[r, low] = moment
    filled[r] += 1
    return True


@lean
def hold(a, t, z, sign, hop_ptr, hop, offset, held, points, filled, load):
    """Take (sign 1) or give back (-1) the links of a transfer over arc a; False: there is no room.

    Calendars without room are not kept at all.
    """
    for h in range(hop_ptr[a], hop_ptr[a + 1]):
        r = np.int64(hop[h])
        load[r] += sign * held[z, h]
        if points.shape[1] and held[z, h]:
            start = t + offset[z, h]
            if not _turn(points, filled, r, start) or not _turn(points, filled, r, start + held[z, h]):
                return False
    return True


@lean
def _free(points, filled, r, t, length, forward):
    """The moment nearest to t, from there on or up to there, from which on link r is free for so long."""
    low, high = np.int64(0), filled[r]
    bar = t + 1 if forward else t + length
    while low < high:
        middle = (low + high) >> 1
        if points[r, middle] < bar:
            low = middle + 1
        else:
            high = middle
    if forward:
        if low & 1:
            t = points[r, low]
            low += 1
        while low < filled[r] and points[r, low] < t + length:
            t = points[r, low + 1]
            low += 2
        return t
    if low & 1:
        low -= 1
        t = points[r, low] - length
    while low > 0 and points[r, low - 1] > t:
        low -= 2
        t = points[r, low] - length
    return t


@lean
def nearest(a, z, t, forward, hop_ptr, hop, offset, held, points, filled):
    """When a transfer over arc a begins: from t on as early, or up to t as late, as its links are free; < 0: never."""
    while True:
        asked = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            r = np.int64(hop[h])
            if filled[r]:
                t = _free(points, filled, r, t + offset[z, h], held[z, h], forward) - offset[z, h]
        if t == asked or t < 0 or hop_ptr[a + 1] - hop_ptr[a] == 1:
            return t


@lean
def ordered(a, z, t, hop_ptr, hop, offset, held, points, filled, free):
    """When a transfer over arc a begins at the earliest, after all that its links carried (`free`: until when)."""
    while True:
        asked = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            t = max(t, free[hop[h]] - offset[z, h])
        t = nearest(a, z, t, True, hop_ptr, hop, offset, held, points, filled)
        if t == asked:
            return t


@lean
def _price(a, z, mean, hop_ptr, hop, held, load):
    """What arc a costs besides its time: every link's hold times the fourth power of how full it is."""
    price = np.int64(0)
    for h in range(hop_ptr[a], hop_ptr[a + 1]):
        full = min((load[hop[h]] + held[z, h]) * _FINE // mean, np.int64(_MOST))
        price += held[z, h] * ((full * full * full * full) >> 8)
    return price


@lean
def grow(
    root, goal, moment, forward, limit, z, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, ahead,
    weight, mean, grain, points, filled, load, stamp, note, heap, begins, random, arcs, starts,
):  # fmt: skip
    """Grow a tree to all ranks, or the path to one, from (root, moment); calendars stay as they are.

    Parameters
    ----------
    goal : int
        The rank that a path leads to; -1: everyone.
    forward : bool
        Copies spread from `moment` on; else parts of a sum come until then.
    limit : int
        ps: what arrives later is of no use.
    ahead : int64[goals, n]
        The least time from a rank to the goal; one row of zeros for trees.
    weight : int
        How much the load of a link, in units of `grain` ps, counts among equals.
    mean : int
        ps on a link if all had the same: links that carry more are avoided; 0: only time counts.
    stamp : int
        Larger than that of every call before with the same scratch.
    note, heap, begins : int64[4, n], int64[3, arcs], int64[arcs]
        Scratch.
    arcs, starts : int32, int64[n - 1]
        Filled.

    Returns
    -------
    (last arrival, transfers)
        Fewer transfers than it takes (none of a path) where it did not come about; -1 where room was lacking.
    """
    n = len(in_ptr) - 1
    # Links that the transfers of one tree share are held while it grows; those of a path come one after the other.
    shared = goal < 0 and len(hop) > len(src)
    take, give = np.int64(1), np.int64(-1)
    row = max(goal, np.int64(0))
    found, size, paid = np.int64(0), np.int64(0), np.int64(0)
    full = False
    v, last = root, moment
    note[REACHED, v], note[KNOWN, v] = stamp, moment
    while found < n - 1 and v != goal:
        for i in range(out_ptr[v] if forward else in_ptr[v], out_ptr[v + 1] if forward else in_ptr[v + 1]):
            a = np.int64(out_arc[i]) if forward else i
            u = np.int64(dst[a]) if forward else np.int64(src[a])
            if note[REACHED, u] == stamp:
                continue
            t = note[KNOWN, v] if forward else note[KNOWN, v] - delay[z, a]
            if t >= 0:
                t = nearest(a, z, t, forward, hop_ptr, hop, offset, held, points, filled)
            if t < 0:
                continue
            key = (t + delay[z, a] if forward else -t) + ahead[row, u]
            if key >= limit:
                continue
            if mean:
                key += paid + _price(a, z, mean, hop_ptr, hop, held, load)
            if not shared and note[SEEN, u] == stamp and key > note[LEAST, u]:
                continue
            note[SEEN, u], note[LEAST, u], begins[a] = stamp, key, t
            tie = weight * (load[hop[hop_ptr[a]]] // grain) + random_below(random, _TIES)
            push(heap, size, key, tie, a)
            size += 1
        a = np.int64(-1)
        while size and a < 0:
            key, tie, a = heap[0, 0], heap[1, 0], heap[2, 0]
            drop(heap, size)
            size -= 1
            if note[REACHED, dst[a] if forward else src[a]] == stamp:
                a = np.int64(-1)
            elif shared:
                # Its links may have been taken by a transfer of this tree since.
                again = nearest(a, z, begins[a], forward, hop_ptr, hop, offset, held, points, filled)
                if again != begins[a]:
                    if again >= 0:
                        key += again - begins[a] if forward else begins[a] - again
                        begins[a] = again
                        push(heap, size, key, tie, a)
                        size += 1
                    a = np.int64(-1)
        if a < 0:
            break
        arcs[found], starts[found] = a, begins[a]
        found += 1
        v = np.int64(dst[a]) if forward else np.int64(src[a])
        note[REACHED, v] = stamp
        note[KNOWN, v] = begins[a] + delay[z, a] if forward else begins[a]
        last = max(last, note[KNOWN, v])
        if forward and goal >= 0:
            # A path pays for all of its links, a branch of a tree only for its own.
            paid = key - ahead[row, v] - note[KNOWN, v]
        if shared and not hold(a, begins[a], z, take, hop_ptr, hop, offset, held, points, filled, load):
            full = True
            break
    if shared and not full:
        for i in range(found):
            a = np.int64(arcs[i])
            full = not hold(a, starts[i], z, give, hop_ptr, hop, offset, held, points, filled, load) or full
    if full:
        return last, np.int64(-1)
    if goal < 0:
        return last, found
    if v != goal:
        return last, np.int64(0)
    # Of what was reached the path is what leads to the goal.
    first = found
    for i in range(found - 1, -1, -1):
        if dst[arcs[i]] == v:
            v = np.int64(src[arcs[i]])
            first -= 1
            arcs[first], starts[first] = arcs[i], starts[i]
    for i in range(found - first):
        arcs[i], starts[i] = arcs[first + i], starts[first + i]
    return note[KNOWN, goal], found - first


def calendars(network: Network, room: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(int64[resources, room], int64[resources]): calendars in which others' intervals stand, and how many moments.

    At least they have room for those.
    """
    taken = np.diff(network.occupied_ptr)
    resources = len(network.links)
    points = np.empty((resources, max(room, 2 * int(taken.max(initial=0)) + 16 * (room > 0))), dtype=np.int64)
    owner = np.repeat(np.arange(resources), taken)
    place = 2 * (np.arange(len(owner)) - network.occupied_ptr[:-1][owner])
    points[owner, place], points[owner, place + 1] = network.occupied_start, network.occupied_end
    return points, 2 * taken.astype(np.int64)
