"""Insert transfers into the idle intervals of links, and find the earliest arrivals that these allow.

The calendar of a link is the ascending list of the moments at which it is taken or becomes free. To take an interval
and to give it back are the same operation: each end is put into the list, or out of it if it is there. `grow` follows a
chunk from a rank, forward in time to those who need it or backward to those whose parts of a sum it collects.
"""

from collections import namedtuple

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import inlined, lean
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import random_below

#: Beyond every time.
FAR = np.int64(2**62)
NEVER = 2**62
#: A stop signal that is never set.
GO = np.zeros(1, dtype=np.int64)
#: Loads are rounded to this share of the mean load, and cut at this number of shares.
_FINE, _MOST = 16, 48
_TIES = 64
#: Rows of the notes of `grow` about ranks.
REACHED, SEEN, LEAST, KNOWN = range(4)

#: When links are taken: int64[resources, room] moments in ps (without room no calendars are kept), how many each link
#: has, and the ps that transfers hold each link.
Calendars = namedtuple("Calendars", "points filled load")

#: The preferences, the memory and the result of `grow`. `ahead`: int64[goals, n], the least time from a rank to the
#: goal, one row of zeros for trees. `weight`: how much the load of a link, in units of `grain` ps, counts among equals.
#: `mean`: ps on a link if all carried the same; links that carry more are avoided (0: only time counts). `arcs`,
#: `starts`: the tree or path of the last call.
Growth = namedtuple("Growth", "ahead weight mean grain random stamp note heap begins arcs starts")


def growth(network: Network, ahead: np.ndarray, random: np.ndarray, weight=0, mean=0, grain=1) -> Growth:
    n, arcs = network.ranks, network.arcs
    note, starts = np.zeros((4, n), dtype=np.int64), np.empty(n, dtype=np.int64)
    return Growth(
        ahead, weight, mean, grain, random, np.zeros(1, dtype=np.int64), note, np.empty(arcs, dtype=ENTRY),
        np.empty(arcs, dtype=np.int64), np.empty(n, dtype=np.int32), starts,
    )  # fmt: skip


def calendars(network: Network, room: int = 0) -> Calendars:
    """Calendars in which others' intervals stand, with room for those at least."""
    taken = np.diff(network.occupied_ptr)
    resources = len(network.links)
    points = np.empty((resources, max(room, 2 * int(taken.max(initial=0)) + 16 * (room > 0))), dtype=np.int64)
    owner = np.repeat(np.arange(resources), taken)
    place = 2 * (np.arange(len(owner)) - network.occupied_ptr[:-1][owner])
    points[owner, place], points[owner, place + 1] = network.occupied_start, network.occupied_end
    return Calendars(points, 2 * taken.astype(np.int64), np.zeros(resources, dtype=np.int64))


@lean
def _place(calendar, r, moment):
    """How many moments of a calendar are before this one."""
    low, high = np.int64(0), calendar.filled[r]
    while low < high:
        middle = (low + high) >> 1
        if calendar.points[r, middle] < moment:
            low = middle + 1
        else:
            high = middle
    return low


@lean
def _turn(calendar, r, moment):
    """Put a moment into a calendar, or out of it if it is there; False: there is no room."""
    points, filled, low = calendar.points, calendar.filled, _place(calendar, r, moment)
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
def hold(net, calendar, a, t, z, sign):
    """Take (sign 1) or give back (-1) the links of a transfer over arc a; False: there is no room."""
    for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        r = np.int64(net.hop[h])
        calendar.load[r] += sign * net.hold[z, h]
        if calendar.points.shape[1] and net.hold[z, h]:
            start = t + net.offset[z, h]
            if not _turn(calendar, r, start) or not _turn(calendar, r, start + net.hold[z, h]):
                return False
    return True


@lean
def _free(calendar, r, t, length, forward):
    """The start nearest to t, not before it (or not after it), of a long enough idle interval of link r."""
    points, filled, low = calendar.points, calendar.filled, _place(calendar, r, t + 1 if forward else t + length)
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


@inlined
def nearest(net, calendar, a, z, t, forward):
    """When a transfer over arc a begins: from t on as early, or up to t as late, as its links are free; < 0: never."""
    while True:
        asked = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            r = np.int64(net.hop[h])
            if calendar.filled[r]:
                t = _free(calendar, r, t + net.offset[z, h], net.hold[z, h], forward) - net.offset[z, h]
        if t == asked or t < 0 or net.hop_ptr[a + 1] - net.hop_ptr[a] == 1:
            return t


@inlined
def ordered(net, calendar, a, z, t, free):
    """Earliest start of a transfer over arc a after all transfers that its links carried (`free`: their ends)."""
    while True:
        asked = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            t = max(t, free[net.hop[h]] - net.offset[z, h])
        t = nearest(net, calendar, a, z, t, True)
        if t == asked:
            return t


@lean
def _price(net, a, z, mean, load):
    """The price of arc a besides its time: the hold of every link times the fourth power of its load."""
    price = np.int64(0)
    for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        full = min((load[net.hop[h]] + net.hold[z, h]) * _FINE // mean, np.int64(_MOST))
        price += net.hold[z, h] * ((full * full * full * full) >> 8)
    return price


@lean
def _offer(net, calendar, growth, forward, limit, z, v, goal, paid, size):
    """Put the arcs that lead on from rank v into the heap; returns its size."""
    g = growth
    stamp = g.stamp[0]
    shared = goal < 0 and len(net.hop) > len(net.src)
    row = max(goal, np.int64(0))
    known = g.note[KNOWN, v]
    for i in range(net.out_ptr[v] if forward else net.in_ptr[v], net.out_ptr[v + 1] if forward else net.in_ptr[v + 1]):
        a = np.int64(net.out_arc[i]) if forward else i
        u = np.int64(net.dst[a]) if forward else np.int64(net.src[a])
        if g.note[REACHED, u] == stamp:
            continue
        t = known if forward else known - net.delay[z, a]
        if t >= 0:
            t = nearest(net, calendar, a, z, t, forward)
        if t < 0:
            continue
        key = (t + net.delay[z, a] if forward else -t) + g.ahead[row, u]
        if key >= limit:
            continue
        if g.mean:
            key += paid + _price(net, a, z, g.mean, calendar.load)
        if not shared and g.note[SEEN, u] == stamp and key > g.note[LEAST, u]:
            continue
        g.note[SEEN, u], g.note[LEAST, u], g.begins[a] = stamp, key, t
        tie = g.weight * (calendar.load[net.hop[net.hop_ptr[a]]] // g.grain) + random_below(g.random, _TIES)
        push(g.heap, size, key, tie, a)
        size += 1
    return size


@lean
def _to_goal(net, arcs, starts, found, goal):
    """Move the arcs of the path to the goal to the front; returns how many they are."""
    v, first = goal, found
    for i in range(found - 1, -1, -1):
        if net.dst[arcs[i]] == v:
            v = np.int64(net.src[arcs[i]])
            first -= 1
            arcs[first], starts[first] = arcs[i], starts[i]
    for i in range(found - first):
        arcs[i], starts[i] = arcs[first + i], starts[first + i]
    return found - first


@lean
def grow(net, calendar, growth, root, goal, moment, forward, limit, z):
    """Grow a tree to all ranks (goal -1), or the path to one, from (root, moment); calendars stay as they are.

    Forward, copies spread from `moment` on; else parts of a sum come until then. Arrivals after `limit` are useless.
    Returns (last arrival, transfers): too few transfers if it failed, -1 where room was lacking.
    """
    g = growth
    n = len(net.in_ptr) - 1
    # Links that the transfers of one tree share are held while it grows; those of a path come one after the other.
    shared = goal < 0 and len(net.hop) > len(net.src)
    take, give = np.int64(1), np.int64(-1)
    found, size, paid = np.int64(0), np.int64(0), np.int64(0)
    full = False
    g.stamp[0] += 1
    stamp = g.stamp[0]
    v, last = root, moment
    g.note[REACHED, v], g.note[KNOWN, v] = stamp, moment
    while found < n - 1 and v != goal:
        size = _offer(net, calendar, g, forward, limit, z, v, goal, paid, size)
        a, key = np.int64(-1), np.int64(0)
        while size and a < 0:
            key, tie, a = g.heap[0].key, g.heap[0].tie, g.heap[0].item
            size = pop(g.heap, size)
            if g.note[REACHED, net.dst[a] if forward else net.src[a]] == stamp:
                a = np.int64(-1)
            elif shared:
                # Its links may have been taken by a transfer of this tree since.
                again = nearest(net, calendar, a, z, g.begins[a], forward)
                if again != g.begins[a]:
                    if again >= 0:
                        key += again - g.begins[a] if forward else g.begins[a] - again
                        g.begins[a] = again
                        push(g.heap, size, key, tie, a)
                        size += 1
                    a = np.int64(-1)
        if a < 0:
            break
        g.arcs[found], g.starts[found] = a, g.begins[a]
        found += 1
        v = np.int64(net.dst[a]) if forward else np.int64(net.src[a])
        g.note[REACHED, v] = stamp
        g.note[KNOWN, v] = g.begins[a] + net.delay[z, a] if forward else g.begins[a]
        last = max(last, g.note[KNOWN, v])
        if forward and goal >= 0:
            # A path pays for all of its links, a branch of a tree only for its own.
            paid = key - g.ahead[goal, v] - g.note[KNOWN, v]
        if shared and not hold(net, calendar, a, g.begins[a], z, take):
            full = True
            break
    if shared and not full:
        for i in range(found):
            full = not hold(net, calendar, np.int64(g.arcs[i]), g.starts[i], z, give) or full
    if full:
        return last, np.int64(-1)
    if goal < 0:
        return last, found
    if v != goal:
        return last, np.int64(0)
    return g.note[KNOWN, goal], _to_goal(net, g.arcs, g.starts, found, goal)
