"""The greedy core for symmetric networks: the chunks of one rank per orbit, one resource per orbit of links.

What is decided for a chunk and an arc is done, shifted, for all translates at the same moment (see `symmetry`), so the
candidates of an orbit of arcs are pairs (chunk, arc of the orbit) whose source has the chunk and whose target neither
has nor expects it. They are kept in one list per orbit, added when a source gets a chunk and removed when a target is
promised it. Preferences are those of `greedy`; here the scarce thing is not a rare chunk but a target that few arcs
can serve, and the useful thing a target from which the chunk spreads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.random_numbers import random_below, seeded
from astrasim_py.synthesis.search.greedy import DONE, STUCK, WORSE

_FAR = np.int64(2**62)
#: Preferences of a call, as positions in its options.
SAMPLES, HIERARCHY, GUARD, OVERTAKE, LAZY, SCARCE, SPREAD, OPTIONS = range(8)
NOTHING, EXPECTED, HELD = np.uint8(0), np.uint8(1), np.uint8(2)
_HEAVY = np.int64(2**40)


@lean
def _remove(cell, orbit, arcs, place, entries, entry_ptr, length):
    at, last = place[cell], entry_ptr[orbit] + length[orbit] - 1
    moved = entries[last]
    entries[at] = moved
    place[moved] = at
    place[cell] = -1
    length[orbit] -= 1


@kernel("the synthesizer", threads=True)
def orbit_greedy(
    origin, n, in_ptr, src, dst, out_ptr, out_arc, orbit_of, by_speed, resource_ptr, resource, offset, hold,
    delay, resources, level, part, parts, options, seed, limit, stop, arc_of, chunk_of, start_of,
):  # fmt: skip
    """One greedy run on a network up to translations.

    Parameters
    ----------
    origin : int64[q]
        Where each of the chunks to decide for is.
    n : int
        Ranks.
    in_ptr, src, dst, out_ptr, out_arc
        Of the network, whose arcs are sorted by their target.
    orbit_of, resource_ptr, resource, offset, hold, delay
        Of the `Quotient`.
    by_speed : int64[orbits]
        Orbits, fastest first.
    level, part, parts
        As in `greedy`; level: int32[orbits].
    options : int64[OPTIONS]
    limit : int
        ps: give up when it cannot be done earlier than that.
    stop : int64[1]
        Not 0: give up now.
    arc_of, chunk_of, start_of : int32, int32, int64[room]
        Filled with the transfers (arc -1: none). A run with `OVERTAKE` that needs more room than
        ``n * q`` gives up (`STUCK`) where there is none.

    Returns
    -------
    (time, rows, status)
    """
    chunks, arcs, orbits = len(origin), len(src), len(delay)
    samples, hierarchy, guard = options[SAMPLES], options[HIERARCHY] != 0, options[GUARD]
    lazy = options[LAZY]
    overtake, scarce, spread = options[OVERTAKE] != 0, options[SCARCE], options[SPREAD]
    random = seeded(seed)
    state = np.zeros(chunks * n, dtype=np.uint8)
    due, since = np.zeros(chunks * n, dtype=np.int64), np.zeros(chunks * n, dtype=np.int64)
    row_at = np.full(chunks * n, -1, dtype=np.int64)
    reached = np.ones(chunks, dtype=np.int64)
    levels = len(part)
    present = np.zeros((parts if hierarchy else 0, chunks), dtype=np.bool_)
    # Candidates: cell q * arcs + a, in the list of its orbit.
    place = np.full(chunks * arcs, -1, dtype=np.int64)
    entry_ptr = np.zeros(orbits + 1, dtype=np.int64)
    for a in range(arcs):
        if orbit_of[a] >= 0:
            entry_ptr[orbit_of[a] + 1] += chunks
    for o in range(orbits):
        entry_ptr[o + 1] += entry_ptr[o]
    entries, length = np.empty(entry_ptr[orbits], dtype=np.int64), np.zeros(orbits, dtype=np.int64)
    free = np.zeros(resources, dtype=np.int64)
    # Arrivals: a heap of rows by time.
    room = len(arc_of)
    heap, arrival, waiting = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), 0
    vacant, vacancies = np.empty(room, dtype=np.int64), 0
    line = np.empty(orbits, dtype=np.int64)
    matched = np.empty(orbits, dtype=np.int64)
    rows, left, unasked = np.int64(0), np.int64(chunks * (n - 1)), np.int64(chunks * (n - 1))
    t = np.int64(0)
    fresh, news = np.empty(room, dtype=np.int64), 0
    for q in range(chunks):
        cell = q * n + origin[q]
        state[cell] = HELD
        fresh[news] = cell
        news += 1
        if hierarchy:
            for k in range(levels):
                present[part[k, origin[q]], q] = True
    while True:
        for i in range(news):
            q, v = fresh[i] // n, fresh[i] % n
            for j in range(out_ptr[v], out_ptr[v + 1]):
                a = np.int64(out_arc[j])
                o = np.int64(orbit_of[a])
                if o >= 0 and state[q * n + dst[a]] == NOTHING:
                    cell = q * arcs + a
                    place[cell] = entry_ptr[o] + length[o]
                    entries[place[cell]] = cell
                    length[o] += 1
        news = 0
        if left == 0:
            return t, rows, DONE
        # Fastest first, equals in random order.
        line[:] = by_speed
        i = 0
        while i < orbits:
            j = i + 1
            while j < orbits and delay[line[j]] == delay[line[i]]:
                j += 1
            for k in range(j - 1, i, -1):
                other = i + random_below(random, k - i + 1)
                line[k], line[other] = line[other], line[k]
            i = j
        again, matches, repeat = _FAR, 0, False
        for i in range(orbits):
            o = line[i]
            if length[o] == 0 and unasked == 0 and not overtake:
                continue
            ready = t
            for h in range(resource_ptr[o], resource_ptr[o + 1]):
                ready = max(ready, free[resource[h]] - offset[h])
            if ready > t:
                again = min(again, ready)
                continue
            if lazy and level[o] >= 0 and random_below(random, 64) < lazy:
                continue
            chosen, best, seen = np.int64(-1), _FAR, False
            tries = min(samples, length[o])
            all_of = length[o] <= samples
            if tries:
                at = random_below(random, length[o])
                for _ in range(tries):
                    if all_of:
                        at += 1
                        if at >= length[o]:
                            at = np.int64(0)
                    else:
                        at = random_below(random, length[o])
                    cell = entries[entry_ptr[o] + at]
                    q, a = cell // arcs, cell % arcs
                    v = np.int64(dst[a])
                    score = reached[q]
                    there = False
                    if hierarchy and level[o] >= 0:
                        there = present[part[level[o], v], q]
                        if there:
                            score += _HEAVY
                    if scarce:
                        for j in range(in_ptr[v], in_ptr[v + 1]):
                            if place[q * arcs + j] >= 0:
                                score += scarce
                    if spread:
                        for j in range(out_ptr[v], out_ptr[v + 1]):
                            if state[q * n + dst[out_arc[j]]] == NOTHING:
                                score -= spread
                    if score < best:
                        best, chosen, seen = score, cell, there
            if chosen >= 0 and seen and guard:
                rate = np.int64(0)
                for j in range(orbits):
                    b = line[j]
                    if delay[b] >= delay[o]:
                        break
                    rate += (delay[o] * 1024) // max(hold[resource_ptr[b]], 1)
                if rate * guard >= unasked * 4096:
                    continue
            if chosen < 0 and unasked:
                # What was matched just now, by an orbit that has another candidate.
                for j in range(matches):
                    row = matched[j]
                    b = np.int64(arc_of[row])
                    other, q = np.int64(orbit_of[b]), np.int64(chunk_of[row])
                    if length[other] == 0:
                        continue
                    for one in range(in_ptr[dst[b]], in_ptr[dst[b] + 1]):
                        a = np.int64(one)
                        if orbit_of[a] == o and state[q * n + src[a]] == HELD and since[q * n + src[a]] <= t:
                            arc_of[row] = a
                            for h in range(resource_ptr[o], resource_ptr[o + 1]):
                                free[resource[h]] = t + offset[h] + hold[h]
                            arrival[row] = t + delay[o]
                            due[q * n + dst[a]] = arrival[row]
                            chosen = entries[entry_ptr[other] + random_below(random, length[other])]
                            o = other
                            break
                    if chosen >= 0:
                        break
            if chosen < 0 and overtake:
                latest = t + delay[o]
                for q in range(chunks):
                    for j in range(arcs):
                        if orbit_of[j] != o or state[q * n + src[j]] != HELD:
                            continue
                        cell = q * n + dst[j]
                        if state[cell] == EXPECTED and due[cell] > latest and start_of[row_at[cell]] < t:
                            latest = due[cell]
                            chosen = q * arcs + j
                if chosen >= 0:
                    q, a = chosen // arcs, chosen % arcs
                    cell = q * n + np.int64(dst[a])
                    row = row_at[cell]
                    b = np.int64(orbit_of[arc_of[row]])
                    instead = np.int64(-1)
                    for j in range(length[b]):
                        one = entries[entry_ptr[b] + j]
                        if since[(one // arcs) * n + src[one % arcs]] <= start_of[row]:
                            instead = one
                            break
                    state[cell] = NOTHING
                    reached[q] -= 1
                    unasked += 1
                    if instead >= 0:
                        q2, a2 = instead // arcs, instead % arcs
                        cell2 = q2 * n + np.int64(dst[a2])
                        state[cell2] = EXPECTED
                        reached[q2] += 1
                        unasked -= 1
                        due[cell2], row_at[cell2] = arrival[row], row
                        for j in range(in_ptr[dst[a2]], in_ptr[dst[a2] + 1]):
                            one = q2 * arcs + j
                            if place[one] >= 0:
                                _remove(one, orbit_of[j], arcs, place, entries, entry_ptr, length)
                        if hierarchy:
                            for k in range(levels):
                                present[part[k, dst[a2]], q2] = True
                        arc_of[row], chunk_of[row] = a2, q2
                    else:
                        arc_of[row] = -1
                        for h in range(resource_ptr[b], resource_ptr[b + 1]):
                            if free[resource[h]] == start_of[row] + offset[h] + hold[h]:
                                free[resource[h]] = t + offset[h]
                        repeat = True
            if chosen < 0:
                continue
            q, a = chosen // arcs, chosen % arcs
            v = np.int64(dst[a])
            cell = q * n + v
            state[cell] = EXPECTED
            unasked -= 1
            reached[q] += 1
            for j in range(in_ptr[v], in_ptr[v + 1]):
                one = q * arcs + j
                if place[one] >= 0:
                    _remove(one, orbit_of[j], arcs, place, entries, entry_ptr, length)
            if hierarchy:
                for k in range(levels):
                    present[part[k, v], q] = True
            for h in range(resource_ptr[o], resource_ptr[o + 1]):
                free[resource[h]] = t + offset[h] + hold[h]
            if vacancies:
                vacancies -= 1
                row = vacant[vacancies]
            elif rows < room:
                row = rows
                rows += 1
            else:
                return t, rows, STUCK
            arc_of[row], chunk_of[row], start_of[row] = a, q, t
            arrival[row] = t + delay[o]
            if not overtake and arrival[row] >= limit:
                return arrival[row], rows, WORSE
            due[cell], row_at[cell] = arrival[row], row
            matched[matches] = row
            matches += 1
        # Only now is it settled when what was matched arrives: a partner may have changed its orbit.
        for i in range(matches):
            row = matched[i]
            at = waiting
            waiting += 1
            while at > 0:
                up = (at - 1) >> 1
                if arrival[heap[up]] <= arrival[row]:
                    break
                heap[at] = heap[up]
                at = up
            heap[at] = row
        if unasked or overtake:
            for o in range(orbits):
                ready = t
                for h in range(resource_ptr[o], resource_ptr[o + 1]):
                    ready = max(ready, free[resource[h]] - offset[h])
                if ready > t and length[o]:
                    again = min(again, ready)
        if repeat:
            continue
        if waiting == 0:
            if guard or lazy:
                guard, lazy = np.int64(0), np.int64(0)
                continue
            if again == _FAR or unasked == 0:
                return t, rows, STUCK
        now = arrival[heap[0]] if waiting else again
        if again > t and again < now:
            now = again
        t = now
        if t >= limit or stop[0] != 0:
            return t, rows, WORSE
        while waiting and arrival[heap[0]] == t:
            row = heap[0]
            waiting -= 1
            if waiting:
                last = heap[waiting]
                at = 0
                while True:
                    down = 2 * at + 1
                    if down >= waiting:
                        break
                    if down + 1 < waiting and arrival[heap[down + 1]] < arrival[heap[down]]:
                        down += 1
                    if arrival[heap[down]] >= arrival[last]:
                        break
                    heap[at] = heap[down]
                    at = down
                heap[at] = last
            if arc_of[row] < 0:
                vacant[vacancies] = row
                vacancies += 1
                continue
            cell = np.int64(chunk_of[row]) * n + np.int64(dst[arc_of[row]])
            state[cell] = HELD
            since[cell] = t
            left -= 1
            fresh[news] = cell
            news += 1


@dataclass(frozen=True, slots=True)
class OrbitPolicy:
    """What a run prefers.

    Attributes
    ----------
    samples, hierarchy, guard, overtake, lazy
        As in `greedy.Policy`.
    scarce, spread : int
        Weights of how many arcs can serve a target (few are better), and to how many it can pass the chunk on.
    group : int
        Which of the groups of translations.
    """

    samples: int = 8
    hierarchy: bool = False
    guard: int = 0
    overtake: bool = False
    lazy: int = 0
    scarce: int = 0
    spread: int = 0
    group: int = 0

    def __str__(self) -> str:
        parts = [f"samples {self.samples}"]
        parts += ["hierarchy"] * self.hierarchy + [f"guard {self.guard}/4"] * bool(self.guard)
        parts += [f"lazy {self.lazy}/64"] * bool(self.lazy)
        parts += [f"scarce {self.scarce}"] * bool(self.scarce) + [f"spread {self.spread}"] * bool(self.spread)
        return f"symmetric {self.group}: " + ", ".join(parts + ["overtaking"] * self.overtake)
