"""Local search on a schedule: take subtrees of transfers out and insert them anew.

A schedule in which every rank gets every chunk once is a tree per chunk. A move takes subtrees of a few chunks out, one
of them with a late arrival. It grows each chunk back and reaches every rank as early as links allow (see `insertion`).
Some moves leave out random arcs. The cost of a schedule is the lateness of its arrivals against the
best known time, summed: 0 is a faster schedule. A worse one is accepted if it is better than the one some moves ago
(late acceptance: Burke & Bykov, Eur. J. Oper. Res. 2017).
"""

from collections import namedtuple

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import Calendars, hold, nearest
from astrasim_py.synthesis.model.random_numbers import generator, random_below
from astrasim_py.synthesis.model.schedule import Columns
from astrasim_py.synthesis.model.timing import Timing

#: Sentinels in the arc column: not delivered, origin.
LACKING, ORIGIN = -2, -1
#: Number of moves to the earlier schedule of the comparison, and most subtrees taken out at once.
_MEMORY, _MOST = 50, 6
#: Arcs out of 64 that every other move leaves out.
_LEFT_OUT = 4
_TIES = 64
#: Draws for a chunk of a rank, and most steps from a late arrival to another subtree that is taken out.
_DRAWS, _AROUND = 8, 3

#: A schedule: int64[chunks, n] of the arc over which a rank gets a chunk, and when it is there; and its chunks.
_Trees = namedtuple("_Trees", "arc arrival origin size_class")

#: Memory of a move: the heap; (chunk, rank, arc, arrival) of transfers that were taken out; the chunks that were
#: picked, how many ranks lack each, and their new lateness; the lateness of each chunk; totals of earlier moves.
_Move = namedtuple("_Move", "heap removed picked lacking new_late late history random")


@lean
def _offer(net, calendar, trees, move, c, a, left_out, size):
    """Put arc a, which can bring chunk c, into the heap; returns its size."""
    z, u = np.int64(trees.size_class[c]), np.int64(net.src[a])
    if left_out and random_below(move.random, 64) < left_out:
        return size
    t = nearest(net, calendar, a, z, trees.arrival[c, u], True)
    push(move.heap, size, t + net.delay[z, a], random_below(move.random, _TIES), a)
    return size + 1


@lean
def _regrow(net, calendar, trees, move, c, lacking, left_out):
    """Bring chunk c as early as possible to all ranks that lack it; False: not all were reached, or no room."""
    z, size = np.int64(trees.size_class[c]), np.int64(0)
    for rank in range(len(net.in_ptr) - 1):
        if trees.arc[c, rank] == LACKING:
            for a in range(net.in_ptr[rank], net.in_ptr[rank + 1]):
                if trees.arc[c, net.src[a]] != LACKING:
                    size = _offer(net, calendar, trees, move, c, a, left_out, size)
    while lacking and size:
        key, tie, a = move.heap[0].key, move.heap[0].tie, move.heap[0].item
        size = pop(move.heap, size)
        v = np.int64(net.dst[a])
        if trees.arc[c, v] != LACKING:
            continue
        t = nearest(net, calendar, a, z, trees.arrival[c, net.src[a]], True)
        if t + net.delay[z, a] > key:
            # Its links were taken by a transfer of this chunk since.
            push(move.heap, size, t + net.delay[z, a], tie, a)
            size += 1
            continue
        if not hold(net, calendar, a, t, z, np.int64(1)):
            return False
        trees.arc[c, v], trees.arrival[c, v] = a, t + net.delay[z, a]
        lacking -= 1
        for i in range(net.out_ptr[v], net.out_ptr[v + 1]):
            b = np.int64(net.out_arc[i])
            if trees.arc[c, net.dst[b]] == LACKING:
                size = _offer(net, calendar, trees, move, c, b, left_out, size)
    return lacking == 0


@lean
def _note(trees, removed, row, c, v):
    removed[0, row], removed[1, row] = c, v
    removed[2, row], removed[3, row] = trees.arc[c, v], trees.arrival[c, v]
    trees.arc[c, v] = LACKING


@lean
def _take_out(net, calendar, trees, removed, c, v, gone):
    """Take chunk c out of the subtree of rank v (of its origin: of all other ranks); returns the noted rows."""
    z, at, u = np.int64(trees.size_class[c]), gone, v
    if trees.arc[c, v] != ORIGIN:
        _note(trees, removed, gone, c, v)
        gone += 1
    while True:
        for i in range(net.out_ptr[u], net.out_ptr[u + 1]):
            w = np.int64(net.dst[net.out_arc[i]])
            if trees.arc[c, w] == net.out_arc[i]:
                _note(trees, removed, gone, c, w)
                gone += 1
        a = removed[2, at]
        if at == gone:
            return gone
        hold(net, calendar, a, removed[3, at] - net.delay[z, a], z, np.int64(-1))
        u = removed[1, at]
        at += 1


@lean
def _undo(net, calendar, trees, removed, gone):
    """Put everything back that was taken out; False: there is no room."""
    # First take the new transfers out, then put the old ones back.
    for i in range(2 * gone):
        back = i >= gone
        row = i - gone if back else i
        c, v = removed[0, row], removed[1, row]
        z = np.int64(trees.size_class[c])
        if back:
            trees.arc[c, v], trees.arrival[c, v] = removed[2, row], removed[3, row]
        a = trees.arc[c, v]
        sign = np.int64(1 if back else -1)
        if a >= 0 and not hold(net, calendar, a, trees.arrival[c, v] - net.delay[z, a], z, sign):
            return False
    return True


@lean
def _lateness(c, goal, grain, arrival):
    """Sum over ranks of the time by which chunk c arrives after `goal`, plus `grain` for each late one."""
    late = np.int64(0)
    for v in range(arrival.shape[1]):
        if arrival[c, v] > goal:
            late += grain + arrival[c, v] - goal
    return late


@lean
def _keep(trees, best):
    """Copy a schedule to where the fastest one is kept; its time."""
    time = np.int64(0)
    for c in range(trees.arc.shape[0]):
        for v in range(trees.arc.shape[1]):
            best.arc[c, v], best.arrival[c, v] = trees.arc[c, v], trees.arrival[c, v]
            time = max(time, trees.arrival[c, v])
    return time


@lean
def _load(net, calendar, trees):
    """Put a schedule into the calendars; (ps that one late arrival counts, or -1: there is no room)."""
    grain = np.int64(2**62)
    for c in range(len(trees.origin)):
        z = np.int64(trees.size_class[c])
        for v in range(trees.arc.shape[1]):
            a = trees.arc[c, v]
            if a >= 0:
                grain = min(grain, (net.delay[z, a] >> 3) + 1)
                if not hold(net, calendar, a, trees.arrival[c, v] - net.delay[z, a], z, np.int64(1)):
                    return np.int64(-1)
    return grain


@lean
def _late_arrival(move, arrival, goal):
    """A chunk that is late, and a rank that it reaches late."""
    chunks, n = arrival.shape
    c = random_below(move.random, chunks)
    while move.late[c] == 0:
        c = c + 1 if c + 1 < chunks else np.int64(0)
    v = random_below(move.random, n)
    while arrival[c, v] <= goal:
        v = v + 1 if v + 1 < n else np.int64(0)
    return c, v


@lean
def _around(net, trees, random, c, v, first):
    """Another chunk and rank to take out: first something on its way to (c, v), then something near v."""
    if first:
        for _ in range(random_below(random, _AROUND + 1)):
            if trees.arc[c, v] >= 0 and trees.arc[c, net.src[trees.arc[c, v]]] >= 0:
                v = np.int64(net.src[trees.arc[c, v]])
        return c, v
    for _ in range(random_below(random, _AROUND)):
        if net.in_ptr[v] < net.in_ptr[v + 1]:
            v = np.int64(net.src[net.in_ptr[v] + random_below(random, net.in_ptr[v + 1] - net.in_ptr[v])])
    for _ in range(_DRAWS):
        c = random_below(random, len(trees.origin))
        if trees.arc[c, v] >= 0:
            break
    return c, v


@lean
def _take_some_out(net, calendar, trees, move, goal):
    """Take a late arrival and some subtrees near it out; (transfers, chunks) taken out."""
    random = move.random
    first, there = _late_arrival(move, trees.arrival, goal)
    whole = random_below(random, 4) == 0
    gone, several = np.int64(0), 0
    for pick in range(1 + random_below(random, _MOST)):
        c, v = _around(net, trees, random, first, there, pick == 0)
        if trees.arc[c, v] < 0:
            continue
        place = 0
        while place < several and move.picked[place] != c:
            place += 1
        if place == several:
            move.picked[place], move.lacking[place] = c, 0
            several += 1
        before = gone
        gone = _take_out(net, calendar, trees, move.removed, c, np.int64(trees.origin[c]) if whole else v, gone)
        move.lacking[place] += gone - before
    for i in range(several - 1, 0, -1):
        j = random_below(random, i + 1)
        for column in (move.picked, move.lacking):
            column[i], column[j] = column[j], column[i]
    return gone, several


@kernel("the synthesizer", threads=True, lean=True)
def _polish(net, calendar, trees, best, move, moves, bound, stop):
    """Fill `best` with a faster schedule: its time, or -1 where there was no room. `trees` is memory afterwards."""
    grain, total = _load(net, calendar, trees), np.int64(0)
    if grain < 0:
        return grain
    time = _keep(trees, best)
    goal = time
    for turn in range(moves):
        if total == 0:
            # The present schedule becomes the best, and is late again.
            time = _keep(trees, best)
            goal = time - 1
            for c in range(len(move.late)):
                move.late[c] = _lateness(c, goal, grain, trees.arrival)
                total += move.late[c]
            for i in range(_MEMORY):
                move.history[i] = total
        if time <= bound or stop[0] != 0:
            break
        gone, several = _take_some_out(net, calendar, trees, move, goal)
        left_out = np.int64(_LEFT_OUT) * random_below(move.random, 2)
        complete, new_total = True, total
        for i in range(several):
            c = move.picked[i]
            complete = complete and _regrow(net, calendar, trees, move, c, move.lacking[i], left_out)
            move.new_late[i] = _lateness(c, goal, grain, trees.arrival)
            new_total += move.new_late[i] - move.late[c]
        slot = turn % _MEMORY
        if complete and (new_total <= total or new_total <= move.history[slot]):
            total = new_total
            for i in range(several):
                move.late[move.picked[i]] = move.new_late[i]
        elif not _undo(net, calendar, trees, move.removed, gone):
            return time
        move.history[slot] = total
    return _keep(trees, best) if total == 0 else time


def polish(
    timing: Timing, calendar: Calendars, demand: Demand, columns: Columns, moves: int, seed: int, bound: int,
    stop: np.ndarray,
) -> tuple[int, Columns | None]:  # fmt: skip
    """(time, columns) of a schedule made faster by `moves` at most; no columns: calendars have too little room."""
    arc, chunk, start = columns
    n = len(timing.in_ptr) - 1
    came = np.full((demand.count, n), ORIGIN, dtype=np.int64)
    arrival = np.zeros_like(came)
    came[chunk, timing.dst[arc]] = arc
    arrival[chunk, timing.dst[arc]] = start + timing.delay[demand.size_class[chunk], arc]
    trees = _Trees(came, arrival, demand.origin, demand.size_class)
    best = _Trees(came.copy(), arrival.copy(), demand.origin, demand.size_class)
    move = _Move._make((
        np.empty(2 * len(timing.src), ENTRY), np.empty((4, n * _MOST + 1), np.int64), *np.empty((3, _MOST), np.int64),
        np.zeros(demand.count, np.int64), np.zeros(_MEMORY, np.int64), generator(seed),
    ))  # fmt: skip
    time = int(_polish(timing, calendar, trees, best, move, moves, bound, stop))
    if time < 0:
        return time, None
    chunk, rank = np.nonzero(best.arc != ORIGIN)
    arc = best.arc[chunk, rank]
    start = best.arrival[chunk, rank] - timing.delay[demand.size_class[chunk], arc]
    order = np.argsort(start, kind="stable")
    return time, (arc[order].astype(np.int32), chunk[order].astype(np.int32), start[order])
