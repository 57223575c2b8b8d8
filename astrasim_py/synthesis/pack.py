"""The greedy core of a joint all_reduce: every chunk has a tree that reduces and one that copies, packed into time.

Chunks are put in one after the other. A chunk has a root, any rank, and a moment m at which its sum is whole there.
From (root, m) its copies spread forward in time, over every arc as early as the links that the chunks before it left
free let them; and its partial sums are followed backward in time, as late as links let them, until every rank's is
found. Of a few roots the one is taken whose last copy arrives first, m being the earliest moment for which no partial
sum would have to begin before time 0. No chunk waits for another one's sum, so links that copies do not need carry
sums and the other way round.

Then chunks are taken out again, the ones that finish last and random ones, and put in anew; what is no better is
undone.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import helper, kernel, lean
from astrasim_py.synthesis.greedy import random_below, seeded

_NEVER = np.int64(2**62)
#: What a call returns besides the time.
DONE, FULL, STUCK = range(3)
#: Most chunks taken out at once.
_MOST = 8
#: Steps after which a sum that cannot be whole never will be.
_FURTHEST = np.int64(2**32)


@lean
def _after(busy, until, filled, r, t, hold):
    """The earliest moment from t on at which resource r is free for so long."""
    low, high = np.int64(0), np.int64(filled[r])
    while low < high:
        middle = (low + high) >> 1
        if until[r, middle] > t:
            high = middle
        else:
            low = middle + 1
    while low < filled[r] and busy[r, low] < t + hold:
        t = until[r, low]
        low += 1
    return t


@lean
def _before(busy, until, filled, r, t, hold):
    """The latest moment up to t from which on resource r is free for so long."""
    low, high = np.int64(0), np.int64(filled[r])
    while low < high:
        middle = (low + high) >> 1
        if busy[r, middle] < t + hold:
            low = middle + 1
        else:
            high = middle
    low -= 1
    while low >= 0 and until[r, low] > t:
        t = busy[r, low] - hold
        low -= 1
    return t


@lean
def _begin(a, z, t, forward, hop_ptr, hop, offset, hold, busy, until, filled):
    """When a transfer over arc a begins: from t on as early, or up to t as late, as its links are free; -1: never."""
    while True:
        asked = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            at = t + offset[z, h]
            if forward:
                t = _after(busy, until, filled, np.int64(hop[h]), at, hold[z, h]) - offset[z, h]
            else:
                t = _before(busy, until, filled, np.int64(hop[h]), at, hold[z, h]) - offset[z, h]
        if t < 0:
            return np.int64(-1)
        if t == asked or hop_ptr[a + 1] - hop_ptr[a] == 1:
            return t


@lean
def _take(busy, until, filled, r, start, end):
    """Hold resource r, which is free then; False: there is no room to note it."""
    if start == end:
        return True
    low, high = np.int64(0), np.int64(filled[r])
    while low < high:
        middle = (low + high) >> 1
        if busy[r, middle] < end:
            low = middle + 1
        else:
            high = middle
    joins_left = low > 0 and until[r, low - 1] == start
    joins_right = low < filled[r] and busy[r, low] == end
    if joins_left and joins_right:
        until[r, low - 1] = until[r, low]
        filled[r] -= 1
        for i in range(low, filled[r]):
            busy[r, i], until[r, i] = busy[r, i + 1], until[r, i + 1]
    elif joins_left:
        until[r, low - 1] = end
    elif joins_right:
        busy[r, low] = start
    else:
        if filled[r] == busy.shape[1]:
            return False
        for i in range(filled[r], low, -1):
            busy[r, i], until[r, i] = busy[r, i - 1], until[r, i - 1]
        busy[r, low], until[r, low] = start, end
        filled[r] += 1
    return True


@lean
def _give(busy, until, filled, r, start, end):
    """Undo `_take`; False: there is no room."""
    if start == end:
        return True
    low, high = np.int64(0), np.int64(filled[r])
    while low < high:
        middle = (low + high) >> 1
        if until[r, middle] < end:
            low = middle + 1
        else:
            high = middle
    if busy[r, low] == start and until[r, low] == end:
        filled[r] -= 1
        for i in range(low, filled[r]):
            busy[r, i], until[r, i] = busy[r, i + 1], until[r, i + 1]
    elif busy[r, low] == start:
        busy[r, low] = end
    elif until[r, low] == end:
        until[r, low] = start
    else:
        if filled[r] == busy.shape[1]:
            return False
        for i in range(filled[r], low, -1):
            busy[r, i], until[r, i] = busy[r, i - 1], until[r, i - 1]
        filled[r] += 1
        until[r, low], busy[r, low + 1] = start, end
    return True


@lean
def _hold(a, t, z, taking, hop_ptr, hop, offset, hold, busy, until, filled):
    """Take, or give back, the links of a transfer; False: there is no room."""
    for h in range(hop_ptr[a], hop_ptr[a + 1]):
        start = t + offset[z, h]
        end = start + hold[z, h]
        r = np.int64(hop[h])
        if taking:
            if not _take(busy, until, filled, r, start, end):
                return False
        elif not _give(busy, until, filled, r, start, end):
            return False
    return True


@helper
def _put(c, z, sign, arcs, starts, load, hop_ptr, hop, offset, hold, busy, until, filled):
    """Put a chunk's transfers in (sign 1) or take them out (-1); False: there is no room."""
    for i in range(arcs.shape[1]):
        a = np.int64(arcs[c, i])
        load[a] += sign
        if not _hold(a, starts[c, i], z, sign > 0, hop_ptr, hop, offset, hold, busy, until, filled):
            return False
    return True


@lean
def _push(keys, ties, what, size, key, tie, a):
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] < key or (keys[up] == key and ties[up] <= tie):
            break
        keys[at], ties[at], what[at] = keys[up], ties[up], what[up]
        at = up
    keys[at], ties[at], what[at] = key, tie, a


@lean
def _drop(keys, ties, what, size):
    """Remove the first entry of a heap of this size."""
    size -= 1
    key, tie, a = keys[size], ties[size], what[size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and (
            keys[down + 1] < keys[down] or (keys[down + 1] == keys[down] and ties[down + 1] < ties[down])
        ):
            down += 1
        if keys[down] > key or (keys[down] == key and ties[down] >= tie):
            break
        keys[at], ties[at], what[at] = keys[down], ties[down], what[down]
        at = down
    keys[at], ties[at], what[at] = key, tie, a


@helper
def _grow(
    root, moment, forward, limit, z, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, busy, until,
    filled, load, weight, reached, known, stamp, keys, ties, what, random, arcs, starts,
):  # fmt: skip
    """Grow one tree from (root, moment), its transfers into `arcs` and `starts`; links stay as they are.

    Returns
    -------
    (last arrival, transfers)
        Fewer transfers than one per rank where it did not come about before `limit` (or after time 0); -1 where room
        was lacking.
    """
    n, shared = len(in_ptr) - 1, len(hop) > len(src)
    size, found, full = 0, 0, False
    v, last = np.int64(root), np.int64(moment)
    reached[v], known[v] = stamp, moment
    while found < n - 1 and not full:
        for i in range(out_ptr[v] if forward else in_ptr[v], out_ptr[v + 1] if forward else in_ptr[v + 1]):
            a = np.int64(out_arc[i]) if forward else np.int64(i)
            if reached[dst[a] if forward else src[a]] == stamp:
                continue
            t = known[v] if forward else known[v] - delay[z, a]
            if t < 0:
                continue
            t = _begin(a, z, t, forward, hop_ptr, hop, offset, hold, busy, until, filled)
            key = t + delay[z, a] if forward else -t
            if t >= 0 and key < limit:
                _push(keys, ties, what, size, key, weight * load[a] + random_below(random, 64), a)
                size += 1
        a = np.int64(-1)
        while size and a < 0:
            key, tie, a = keys[0], ties[0], np.int64(what[0])
            _drop(keys, ties, what, size)
            size -= 1
            if reached[dst[a] if forward else src[a]] == stamp:
                a = np.int64(-1)
                continue
            t = key - delay[z, a] if forward else -key
            if shared:
                # Its links may have been taken by a transfer of this tree since.
                again = _begin(a, z, t, forward, hop_ptr, hop, offset, hold, busy, until, filled)
                if again != t:
                    key = again + delay[z, a] if forward else -again
                    if again >= 0 and key < limit:
                        _push(keys, ties, what, size, key, tie, a)
                        size += 1
                    a = np.int64(-1)
        if a < 0:
            break
        arcs[found], starts[found] = a, t
        found += 1
        full = shared and not _hold(a, t, z, True, hop_ptr, hop, offset, hold, busy, until, filled)
        v = np.int64(dst[a] if forward else src[a])
        reached[v] = stamp
        known[v] = last = key if forward else t
    for i in range(found if shared and not full else 0):
        full = full or not _hold(
            np.int64(arcs[i]), starts[i], z, False, hop_ptr, hop, offset, hold, busy, until, filled
        )
    return last, np.int64(-1) if full else np.int64(found)


@kernel("the synthesizer", threads=True)
def pack(
    n, origin, size_class, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, occupied_ptr,
    occupied_start, occupied_end, roots, weight, rounds, seed, bound, stop, busy, until, tree_arc, tree_start,
    root_of, moment_of, finish_of,
):  # fmt: skip
    """Put all chunks in, then improve.

    Parameters
    ----------
    n : int
    size_class : int32[chunks]
    src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, occupied_ptr, occupied_start, occupied_end
        Of the network and its timing.
    origin : int32[chunks]
        Roots of the chunks where `roots` is 0.
    roots : int
        Roots tried per chunk, at random; 0: only that one at first.
    weight : int
        How much the load of an arc counts among equals.
    rounds : int
        Times that chunks are taken out and put in anew.
    bound : int
        ps: done when it is met.
    stop : int64[1]
        Not 0: end now.
    busy, until : int64[resources, room]
        Scratch: when resources are held.
    tree_arc, tree_start : int32, int64[chunks, 2 (n - 1)]
        Filled with the transfers of each chunk: those that reduce, the last first, and those that copy.
    root_of, moment_of, finish_of : int64[chunks]
        Filled.

    Returns
    -------
    (time, status)
    """
    chunks, arcs, resources = len(size_class), len(src), len(busy)
    random = seeded(seed)
    edges = n - 1
    filled = np.zeros(resources, dtype=np.int64)
    for r in range(resources):
        for i in range(occupied_ptr[r], occupied_ptr[r + 1]):
            if not _take(busy, until, filled, r, occupied_start[i], occupied_end[i]):
                return np.int64(0), FULL
    load = np.zeros(arcs, dtype=np.int64)
    reached, known, stamp = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.int64(0)
    keys, ties, what = np.empty(arcs, dtype=np.int64), np.empty(arcs, dtype=np.int64), np.empty(arcs, dtype=np.int64)
    trial_arc, trial_start = np.empty(edges, dtype=np.int32), np.empty(edges, dtype=np.int64)
    sums_arc, sums_start = np.empty(edges, dtype=np.int32), np.empty(edges, dtype=np.int64)
    grain = _NEVER
    for z in range(len(hold)):
        for h in range(len(hop)):
            if 0 < hold[z, h] < grain:
                grain = hold[z, h]
    if grain == _NEVER:
        grain = np.int64(1)
    queue = np.arange(chunks)
    waiting = chunks
    most = min(chunks, _MOST)
    backup_arc, backup_start = np.empty((most, 2 * edges), dtype=np.int32), np.empty((most, 2 * edges), dtype=np.int64)
    backup, removed = np.empty((most, 3), dtype=np.int64), np.empty(most, dtype=np.int64)
    hint, turn, time, worst = np.int64(0), 0, _NEVER, np.int64(0)
    while True:
        for i in range(waiting - 1, 0, -1):
            j = random_below(random, i + 1)
            queue[i], queue[j] = queue[j], queue[i]
        for q in range(waiting):
            c = queue[q]
            z = np.int64(size_class[c])
            best, best_span = _NEVER, _NEVER
            for _ in range(max(roots, 1)):
                root = random_below(random, n) if roots or turn else np.int64(origin[c])
                # First the earliest moment at which the sum can be whole, galloping from where the last one was: it
                # is possible at `high` and not at `low`. Then the copies from there on.
                low, high, probe, wide, copies = np.int64(-1), np.int64(-1), hint, np.int64(1), False
                while True:
                    stamp += 1
                    last, got = _grow(
                        root, (high if copies else probe) * grain, copies, best + 1 if copies else _NEVER, z, src, dst,
                        in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, busy, until, filled, load, weight,
                        reached, known, stamp, keys, ties, what, random, trial_arc, trial_start,
                    )  # fmt: skip
                    if got < 0:
                        return time, FULL
                    if copies:
                        break
                    if got == edges:
                        high = probe
                        for i in range(edges):
                            sums_arc[i], sums_start[i] = trial_arc[i], trial_start[i]
                    else:
                        low = probe
                    if high < 0:
                        probe = low + wide
                        if probe > _FURTHEST:
                            return time, STUCK
                    elif low < 0:
                        probe = max(high - wide, np.int64(0))
                    else:
                        probe = (low + high) >> 1
                    wide *= 2
                    copies = high == 0 or (high > 0 and high - low == 1)
                hint = high
                if got < edges:
                    continue
                span = np.int64(0)
                for i in range(edges):
                    span += trial_start[i] - sums_start[i]
                if last < best or (last == best and span < best_span):
                    best, best_span = last, span
                    root_of[c], moment_of[c], finish_of[c] = root, high * grain, last
                    for i in range(edges):
                        tree_arc[c, i], tree_start[c, i] = sums_arc[i], sums_start[i]
                        tree_arc[c, edges + i], tree_start[c, edges + i] = trial_arc[i], trial_start[i]
            if stop[0] != 0 and turn == 0:
                return time, STUCK
            if not _put(c, z, 1, tree_arc, tree_start, load, hop_ptr, hop, offset, hold, busy, until, filled):
                return time, FULL
        total, critical = np.int64(0), np.int64(0)
        for c in range(chunks):
            if finish_of[c] > total:
                total, critical = finish_of[c], np.int64(0)
            critical += finish_of[c] == total
        if turn == 0 or total < time or (total == time and critical <= worst):
            time, worst = total, critical
        else:
            for q in range(2 * waiting):
                # What was put in comes out again before what there was comes back.
                back = q >= waiting
                c = removed[q - waiting] if back else queue[q]
                if back:
                    for i in range(2 * edges):
                        tree_arc[c, i], tree_start[c, i] = backup_arc[q - waiting, i], backup_start[q - waiting, i]
                    root_of[c], moment_of[c], finish_of[c] = (
                        backup[q - waiting, 0], backup[q - waiting, 1], backup[q - waiting, 2],
                    )  # fmt: skip
                if not _put(
                    c, np.int64(size_class[c]), 1 if back else -1, tree_arc, tree_start, load, hop_ptr, hop, offset,
                    hold, busy, until, filled,
                ):  # fmt: skip
                    return time, FULL
        if turn == rounds or time <= bound or stop[0] != 0:
            return time, DONE
        turn += 1
        # Take some out: one that finishes last, and others.
        waiting = min(2 + random_below(random, _MOST - 1), most)
        for q in range(waiting):
            again = True
            while again:
                c = random_below(random, chunks)
                again = q == 0 and finish_of[c] < time
                for i in range(q):
                    again = again or removed[i] == c
            removed[q], queue[q] = c, c
            for i in range(2 * edges):
                backup_arc[q, i], backup_start[q, i] = tree_arc[c, i], tree_start[c, i]
            backup[q, 0], backup[q, 1], backup[q, 2] = root_of[c], moment_of[c], finish_of[c]
            if not _put(
                c, np.int64(size_class[c]), -1, tree_arc, tree_start, load, hop_ptr, hop, offset, hold, busy, until,
                filled,
            ):  # fmt: skip
                return time, FULL
