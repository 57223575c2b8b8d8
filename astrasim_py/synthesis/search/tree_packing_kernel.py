"""The compiled core that packs chunks into time: trees of sums and copies, or paths, in the gaps of others.

Chunks are put in one after the other, each in the gaps that those before it leave on links.

* What everybody needs spreads over a tree from its origin, every arc as early as its links let it.
* What one rank needs takes the path of earliest arrival.
* What comes together at a rank (reduce, reduce_scatter) does so over a tree found from there, backward in time.
* What is summed first (all_reduce) has a root, any rank, and a moment m at which its sum is whole there. From (root, m)
  its copies spread forward in time, and its partial sums are followed backward, as late as links let them, until every
  rank's is found. Of a few roots the one is taken whose last copy arrives first, m being the earliest moment for which
  no partial sum would have to begin before time 0. No chunk waits for another one's sum, so links that copies do not
  need carry sums and the other way round.

Then chunks are taken out again, one that finishes last and those in its way, and put in anew; what is no better is
undone. Where no calendars are kept, all of them are put in anew in every turn, by the price of links: ways that share
links evenly.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.insertion import FAR, grow, hold
from astrasim_py.synthesis.model.random_numbers import random_below

#: What a call that comes to nothing returns, negative.
FULL, STUCK = np.int64(1), np.int64(2)
#: Steps after which a sum that cannot be whole never will be.
_FURTHEST = np.int64(2**32)


@lean
def _put(c, z, sign, rows, starts, length, hop_ptr, hop, offset, held, points, filled, load):
    """Put a chunk's transfers in (sign 1) or take them out (-1); False: there is no room."""
    for i in range(length):
        if not hold(np.int64(rows[c, i]), starts[c, i], z, sign, hop_ptr, hop, offset, held, points, filled, load):
            return False
    return True


@lean
def _copy(rows, starts, c, to_rows, to_starts, to, length):
    for i in range(length):
        to_rows[to, i], to_starts[to, i] = rows[c, i], starts[c, i]


@lean
def _mark(c, value, rows, length, hop_ptr, hop, used):
    """Mark the links of a chunk."""
    for i in range(length):
        for h in range(hop_ptr[rows[c, i]], hop_ptr[rows[c, i] + 1]):
            used[hop[h]] = value


@lean
def _meets(c, rows, length, hop_ptr, hop, used):
    """Whether a chunk has a link that is marked."""
    for i in range(length):
        for h in range(hop_ptr[rows[c, i]], hop_ptr[rows[c, i] + 1]):
            if used[hop[h]]:
                return True
    return False


@lean
def _shuffle(what, first, size, random):
    for i in range(size - 1, first, -1):
        j = first + random_below(random, i - first + 1)
        what[i], what[j] = what[j], what[i]


@kernel("the synthesizer", threads=True, lean=True)
def pack(
    origin, goal, size_class, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay, ahead, queue,
    sums, spreads, roots, weight, mean, turns, bound, limit, random, stop, points, filled, load, note, heap, begins,
    trial_arc, trial_start, sums_arc, sums_start, finish, kept_arc, kept_start, kept, removed, used, out, rows, starts,
    length,
):  # fmt: skip
    """Put all chunks in, then improve.

    Parameters
    ----------
    origin : int32[chunks]
        Where chunks are at first; roots of sums where `roots` is 0.
    goal : int32[chunks]
        Who needs a chunk; -1: everyone.
    size_class : int32[chunks]
    src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop, offset, held, delay
        Of the network and its timing.
    ahead : int64[goals, n]
        The least time from a rank to the goal; one row of zeros where everyone is.
    queue : int64[chunks]
        The order in which chunks are put in; scratch then.
    sums, spreads : bool
        Whether chunks are summed at first, and whether they are copied (then).
    roots : int
        Roots tried per sum, at random; 0: only the origin at first.
    weight, mean : int
        See `gaps.grow`.
    turns : int
        Times that chunks are taken out and put in anew.
    bound : int
        ps: done when it is met.
    limit : int
        ps: a chunk that cannot arrive before makes the first turn the last.
    random : uint64[1]
        State of the generator, not 0.
    stop : int64[1]
        Not 0: end now.
    points, filled : int64[resources, room], int64[resources]
        Calendars of links, with what others hold in them; without room none are kept.
    load : int64[resources]
        Zeros; becomes what the links carry, ps.
    note, heap, begins, trial_arc, trial_start, sums_arc, sums_start, finish, kept_arc, kept_start, kept
        Scratch.
    removed, used, out
        Scratch; as many chunks as `removed` has room for are taken out at once, at most.
    rows, starts, length : int32, int64[chunks, transfers], int32[chunks]
        Filled with the transfers of each chunk: those that reduce, the last first, and those that copy. A chunk that
        has some is put in with them.

    Returns
    -------
    int
        ps; or -FULL where there is no room, -STUCK where it was given up.
    """
    chunks, edges, most = len(size_class), len(in_ptr) - 2, len(removed)
    take, give, stamp = np.int64(1), np.int64(-1), np.int64(0)
    note[:] = 0
    used[:] = 0
    out[:] = 0
    reserving = points.shape[1] > 0
    grain = FAR
    for z in range(len(held)):
        for h in range(len(hop)):
            if 0 < held[z, h] < grain:
                grain = held[z, h]
    if grain == FAR:
        grain = np.int64(1)
    waiting, hint, turn, time = np.int64(chunks), np.int64(0), np.int64(0), FAR
    while True:
        done, worst, worth, now, score = np.int64(0), limit - 1, FAR, np.int64(0), np.int64(0)
        if turn and reserving:
            worst, worth = np.int64(0), np.int64(0)
            for q in range(waiting):
                worst, worth = max(worst, kept[q, 1]), worth + kept[q, 1]
        for q in range(waiting):
            c = queue[q]
            z, had, toward = np.int64(size_class[c]), np.int64(length[c]), np.int64(goal[c])
            best, best_span, needed = FAR, FAR, np.int64(edges if spreads else 0)
            if had and not reserving:
                if not _put(c, z, give, rows, starts, had, hop_ptr, hop, offset, held, points, filled, load):
                    return -FULL
                had = np.int64(0)
            if had:
                best = np.int64(0)
                for i in range(had):
                    best = max(best, starts[c, i] + delay[z, rows[c, i]])
            for _ in range(0 if had else max(roots, 1)):
                root = random_below(random, edges + 1) if roots or (sums and spreads and turn) else np.int64(origin[c])
                # First the earliest moment at which the sum can be whole, galloping from where the last one was: it
                # is possible at `high` and not at `low`. Then the copies from there on.
                low, high, probe, wide, copies = np.int64(-1), np.int64(-1), hint, np.int64(1), not sums
                while True:
                    if copies and not spreads:
                        last, got = high * grain, np.int64(0)
                        break
                    stamp += 1
                    at, until = probe, FAR
                    if copies:
                        at, until = max(high, np.int64(0)), min(best, worst) + 1
                    last, got = grow(
                        root, toward, at * grain, copies, until, z, src, dst, in_ptr, out_ptr, out_arc, hop_ptr, hop,
                        offset, held, delay, ahead, weight, mean, grain, points, filled, load, stamp, note,
                        heap, begins, random, trial_arc, trial_start,
                    )  # fmt: skip
                    if got < 0:
                        return -FULL
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
                            return -STUCK
                    elif low < 0:
                        probe = max(high - wide, np.int64(0))
                    else:
                        probe = (low + high) >> 1
                    wide *= 2
                    copies = high == 0 or (high > 0 and high - low == 1)
                if sums:
                    hint = high
                if toward >= 0:
                    needed = max(got, np.int64(1))
                if got < needed:
                    continue
                span = np.int64(0)
                for i in range(edges if sums and spreads else 0):
                    span += trial_start[i] - sums_start[i]
                if last < best or (last == best and span < best_span):
                    best, best_span = last, span
                    first = np.int64(edges if sums else 0)
                    if first + got > rows.shape[1]:
                        return -FULL
                    length[c] = first + got
                    for i in range(first):
                        rows[c, i], starts[c, i] = sums_arc[i], sums_start[i]
                    for i in range(got):
                        rows[c, first + i], starts[c, first + i] = trial_arc[i], trial_start[i]
            if best == FAR:
                if turn == 0 or not reserving:
                    return -STUCK
                now = FAR
                break
            if not _put(
                c, z, take, rows, starts, np.int64(length[c]), hop_ptr, hop, offset, held, points, filled, load
            ):
                return -FULL
            finish[c] = best
            done += 1
            now, score = max(now, best), score + best
            if now > worst or (stop[0] != 0 and (turn == 0 or not reserving)):
                break
        if turn == 0 and done < waiting:
            return -STUCK
        if turn and reserving and (now > worst or (now == worst and score > worth)):
            for q in range(done):
                c = queue[q]
                if not _put(
                    c, np.int64(size_class[c]), give, rows, starts, np.int64(length[c]), hop_ptr, hop, offset, held,
                    points, filled, load,
                ):  # fmt: skip
                    return -FULL
            for q in range(waiting):
                c = removed[q]
                length[c], finish[c] = kept[q, 0], kept[q, 1]
                _copy(kept_arc, kept_start, q, rows, starts, c, kept[q, 0])
                if not _put(
                    c, np.int64(size_class[c]), take, rows, starts, kept[q, 0], hop_ptr, hop, offset, held, points,
                    filled, load,
                ):  # fmt: skip
                    return -FULL
        time = np.int64(0)
        for c in range(chunks):
            time = max(time, finish[c])
        if turn == turns or stop[0] != 0 or (reserving and (time <= bound or most < 1)):
            return time
        turn += 1
        if not reserving:
            _shuffle(queue, np.int64(0), waiting, random)
            continue
        # One that finishes last, any of those, and others that have a link of its.
        c = random_below(random, chunks)
        while finish[c] < time:
            c = c + 1 if c + 1 < chunks else np.int64(0)
        critical = c
        _mark(critical, take, rows, np.int64(length[critical]), hop_ptr, hop, used)
        wanted = min(2 + random_below(random, max(most - 1, np.int64(1))), most)
        waiting = np.int64(0)
        for attempt in range(16 * wanted):
            if not out[c] and (attempt >= 12 * wanted or _meets(c, rows, np.int64(length[c]), hop_ptr, hop, used)):
                out[c] = 1
                removed[waiting], queue[waiting] = c, c
                waiting += 1
            if waiting == wanted:
                break
            c = random_below(random, chunks)
        _mark(critical, np.int64(0), rows, np.int64(length[critical]), hop_ptr, hop, used)
        for q in range(waiting):
            c = removed[q]
            out[c] = 0
            kept[q, 0], kept[q, 1] = length[c], finish[c]
            _copy(rows, starts, c, kept_arc, kept_start, q, kept[q, 0])
            if not _put(
                c, np.int64(size_class[c]), give, rows, starts, kept[q, 0], hop_ptr, hop, offset, held, points, filled,
                load,
            ):  # fmt: skip
                return -FULL
            length[c] = 0
        # The last one first, or all in any order.
        _shuffle(queue, np.int64(1 if random_below(random, 4) else 0), waiting, random)
