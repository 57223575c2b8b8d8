"""Compiled cores of routing: paths that share links evenly, list schedules over paths, and earliest arrivals in gaps.

A message is a chunk that one rank has and one other needs. Its path is a row of arcs; it waits at ranks, whole, as
long as need be. All three cores work on integers only.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.greedy import _ready, random_below, seeded

_FAR = np.int64(2**62)
#: What a core returns besides its result: done; a path is longer or a link busier than there is room for.
DONE, FULL = 0, 1
#: Priorities of list schedules.
FARTHEST, LOADED, TURN, CROWDED = range(4)
#: A share of the mean load in which crowding is told apart, and the most of it.
_FINE, _MOST = 16, 48


@lean
def _push(key, second, value, size, k, s, v):
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if key[up] < k or (key[up] == k and second[up] <= s):
            break
        key[at], second[at], value[at] = key[up], second[up], value[up]
        at = up
    key[at], second[at], value[at] = k, s, v
    return size + 1


@lean
def _drop(key, second, value, size):
    """Take the first entry away; the caller has read it."""
    size -= 1
    k, s, v = key[size], second[size], value[size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        other = down + 1
        if other < size and (key[other] < key[down] or (key[other] == key[down] and second[other] < second[down])):
            down = other
        if k < key[down] or (k == key[down] and s <= second[down]):
            break
        key[at], second[at], value[at] = key[down], second[down], value[down]
        at = down
    key[at], second[at], value[at] = k, s, v
    return size


@kernel("the synthesizer", threads=True)
def toward(n, in_ptr, src, cost):
    """int64[n, n]: the least sum of costs (int64[arcs]) from rank v to rank r, at [r, v]; 2**62: there is no way."""
    reach = np.full((n, n), _FAR, dtype=np.int64)
    queue, waits = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    for r in range(n):
        reach[r, r], queue[0], waits[r] = 0, r, True
        first, size = 0, 1
        while size:
            v = queue[first]
            first = first + 1 if first + 1 < n else 0
            size -= 1
            waits[v] = False
            for a in range(in_ptr[v], in_ptr[v + 1]):
                u, there = src[a], reach[r, v] + cost[a]
                if there < reach[r, u]:
                    reach[r, u] = there
                    if not waits[u]:
                        waits[u] = True
                        at = first + size
                        queue[at if at < n else at - n] = u
                        size += 1
    return reach


@kernel("the synthesizer", threads=True)
def balanced(
    origin, receiver, kind, n, src, dst, out_ptr, out_arc, hop_ptr, hop, hold, delay, least, mean, passes, seed,
    path, length, load,
):  # fmt: skip
    """Fill `path` and `length` with paths that avoid links on which much lies already; returns DONE or FULL.

    Messages choose one after the other, in `passes` turns, the path of least cost: its delay, and the hold of every
    link times the fourth power of how full that link is. `load` (ps per resource) is what they come to, `mean` what
    they would if all links had the same.
    """
    count = len(origin)
    state = seeded(seed)
    order = np.arange(count)
    cost, before = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    mark, settled = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    room = len(src) + n + 1
    key, second, value = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    load[:] = 0
    length[:] = 0
    stride = path.shape[1]
    turn = np.int64(-1)
    for _ in range(passes):
        for i in range(count - 1, 0, -1):
            j = random_below(state, i + 1)
            order[i], order[j] = order[j], order[i]
        for i in range(count):
            m = order[i]
            z, goal = kind[m], receiver[m]
            for p in range(length[m]):
                for h in range(hop_ptr[path[m, p]], hop_ptr[path[m, p] + 1]):
                    load[hop[h]] -= hold[z, h]
            turn += 1
            start = origin[m]
            cost[start], mark[start], before[start] = 0, turn, -1
            size = _push(key, second, value, 0, least[goal, start], np.int64(0), start)
            while size:
                v = value[0]
                size = _drop(key, second, value, size)
                if settled[v] == turn:
                    continue
                settled[v] = turn
                if v == goal:
                    break
                for j in range(out_ptr[v], out_ptr[v + 1]):
                    a = out_arc[j]
                    u = dst[a]
                    if settled[u] == turn or least[goal, u] >= _FAR:
                        continue
                    there = cost[v] + delay[z, a]
                    for h in range(hop_ptr[a], hop_ptr[a + 1]):
                        full = (load[hop[h]] + hold[z, h]) * _FINE // mean
                        full = min(full, _MOST)
                        there += hold[z, h] * ((full * full * full * full) >> 8)
                    if mark[u] != turn or there < cost[u]:
                        mark[u], cost[u], before[u] = turn, there, a
                        tie = random_below(state, 1024)
                        size = _push(key, second, value, size, there + least[goal, u], tie, np.int64(u))
            steps = 0
            v = np.int64(goal)
            while before[v] >= 0:
                steps += 1
                v = np.int64(src[before[v]])
            if steps > stride:
                return FULL
            length[m] = steps
            v = np.int64(goal)
            while before[v] >= 0:
                steps -= 1
                a = before[v]
                path[m, steps] = a
                for h in range(hop_ptr[a], hop_ptr[a + 1]):
                    load[hop[h]] += hold[z, h]
                v = np.int64(src[a])
    return DONE


@lean
def _merge(a, b, left, right, rank):
    """The root of two skew heaps made one, the greatest rank first."""
    if a < 0:
        return b
    if b < 0:
        return a
    if rank[a] < rank[b]:
        a, b = b, a
    root = a
    while True:
        r = right[a]
        right[a] = left[a]
        if r < 0:
            left[a] = b
            return root
        if rank[r] < rank[b]:
            r, b = b, r
        left[a] = r
        a = r


@lean
def _urgent(rule, m, a, rank, remaining, hop_ptr, hop):
    """How urgent it is that arc a carries message m."""
    if rule != LOADED:
        return rank[m]
    most = np.int64(0)
    for h in range(hop_ptr[a], hop_ptr[a + 1]):
        most = max(most, remaining[hop[h]])
    return rank[m] + most


@kernel("the synthesizer", threads=True)
def listed(
    origin, receiver, kind, n, src, dst, hop_ptr, hop, offset, hold, delay, occupied_ptr, occupied_start,
    occupied_end, path, length, load, rule, noise, seed, limit, start,
):  # fmt: skip
    """Fill `start` (int64[messages, stride]) with a list schedule over paths; returns its end, or 2**62 past `limit`.

    Whenever an arc is free it takes the most urgent of the messages that wait for it.
    """
    count, arcs = len(origin), len(src)
    state = seeded(seed)
    step, rank = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    left, right = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    top, wakes = np.full(arcs, -1, dtype=np.int64), np.zeros(arcs, dtype=np.bool_)
    remaining, free = load.copy(), np.zeros(len(load), dtype=np.int64)
    room = count + arcs + 2
    key, second, value = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    size, end = 0, np.int64(0)
    for m in range(count):
        if length[m]:
            size = _push(key, second, value, size, np.int64(0), -_FAR, np.int64(m + arcs))
    while size:
        t, s, v = key[0], second[0], value[0]
        size = _drop(key, second, value, size)
        if v >= arcs:
            m = v - arcs
            rest, crowd = np.int64(0), np.int64(0)
            for p in range(step[m], length[m]):
                b = path[m, p]
                rest += delay[kind[m], b]
                if rule == CROWDED:
                    for h in range(hop_ptr[b], hop_ptr[b + 1]):
                        crowd = max(crowd, load[hop[h]])
            if rule == TURN:
                rest = -np.int64((receiver[m] - origin[m]) % n)
            rank[m] = rest + crowd + (random_below(state, noise) if noise else 0)
            a = np.int64(path[m, step[m]])
            left[m] = right[m] = -1
            top[a] = _merge(top[a], m, left, right, rank)
            if not wakes[a]:
                wakes[a] = True
                size = _push(key, second, value, size, t, -_urgent(rule, top[a], a, rank, remaining, hop_ptr, hop), a)
            continue
        a = v
        m = top[a]
        z = np.int64(kind[m])
        urgent = -_urgent(rule, m, a, rank, remaining, hop_ptr, hop)
        begin = _ready(
            a, t, hop_ptr, hop, offset[z : z + 1], hold[z : z + 1], free, False,
            occupied_ptr, occupied_start, occupied_end,
        )  # fmt: skip
        if begin > t or urgent > s:
            size = _push(key, second, value, size, begin, urgent, a)
            continue
        start[m, step[m]] = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            free[hop[h]] = t + offset[z, h] + hold[z, h]
            remaining[hop[h]] -= hold[z, h]
        top[a] = _merge(left[m], right[m], left, right, rank)
        arrives = t + delay[z, a]
        if arrives >= limit:
            return _FAR
        end = max(end, arrives)
        step[m] += 1
        if step[m] < length[m]:
            size = _push(key, second, value, size, arrives, -_FAR, m + arcs)
        if top[a] >= 0:
            urgent = -_urgent(rule, top[a], a, rank, remaining, hop_ptr, hop)
            size = _push(key, second, value, size, t, urgent, a)
        else:
            wakes[a] = False
    return end


@lean
def _gap(a, z, t, hop_ptr, hop, offset, hold, begins, ends, taken):
    """The earliest moment from t on at which all links of arc a have a gap for a transfer of class z."""
    while True:
        before = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            r = hop[h]
            low, high = np.int64(0), taken[r]
            while low < high:
                middle = (low + high) >> 1
                if ends[r, middle] > t + offset[z, h]:
                    high = middle
                else:
                    low = middle + 1
            while low < taken[r] and begins[r, low] < t + offset[z, h] + hold[z, h]:
                t = ends[r, low] - offset[z, h]
                low += 1
        if t == before:
            return t


@lean
def _hold(m, path, length, start, z, hop_ptr, hop, offset, hold, begins, ends, taken):
    """Reserve what message m crosses; False if a link has no room."""
    for p in range(length[m]):
        a = path[m, p]
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            if taken[hop[h]] + length[m] > begins.shape[1]:
                return False
    for p in range(length[m]):
        a = path[m, p]
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            r, begin = hop[h], start[m, p] + offset[z, h]
            at = taken[r]
            end = begin + hold[z, h]
            while at > 0 and (begins[r, at - 1] > begin or (begins[r, at - 1] == begin and ends[r, at - 1] > end)):
                begins[r, at], ends[r, at] = begins[r, at - 1], ends[r, at - 1]
                at -= 1
            begins[r, at], ends[r, at] = begin, end
            taken[r] += 1
    return True


@lean
def _release(m, path, length, start, z, hop_ptr, hop, offset, hold, begins, ends, taken):
    for p in range(length[m]):
        a = path[m, p]
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            r, begin = hop[h], start[m, p] + offset[z, h]
            end = begin + hold[z, h]
            low, high = np.int64(0), taken[r]
            while low < high:
                middle = (low + high) >> 1
                if begins[r, middle] < begin or (begins[r, middle] == begin and ends[r, middle] < end):
                    low = middle + 1
                else:
                    high = middle
            taken[r] -= 1
            for i in range(low, taken[r]):
                begins[r, i], ends[r, i] = begins[r, i + 1], ends[r, i + 1]


@lean
def _earliest(
    m, turn, origin, goal, z, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, least, begins, ends,
    taken, when, before, left_at, mark, settled, key, second, value, state, path, length, start,
):  # fmt: skip
    """Find the earliest arrival of message m in the gaps that there are; False if its path is too long."""
    when[origin], mark[origin], before[origin] = 0, turn, -1
    size = _push(key, second, value, 0, least[goal, origin], np.int64(0), np.int64(origin))
    while size:
        v = value[0]
        size = _drop(key, second, value, size)
        if settled[v] == turn:
            continue
        settled[v] = turn
        if v == goal:
            break
        for j in range(out_ptr[v], out_ptr[v + 1]):
            a = out_arc[j]
            u = dst[a]
            if settled[u] == turn or least[goal, u] >= _FAR:
                continue
            t = _gap(a, z, when[v], hop_ptr, hop, offset, hold, begins, ends, taken)
            there = t + delay[z, a]
            if mark[u] != turn or there < when[u]:
                mark[u], when[u], before[u], left_at[u] = turn, there, a, t
                tie = random_below(state, 1024)
                size = _push(key, second, value, size, there + least[goal, u], tie, np.int64(u))
    steps = 0
    v = np.int64(goal)
    while before[v] >= 0:
        steps += 1
        v = np.int64(src[before[v]])
    if steps > path.shape[1]:
        return False
    length[m] = steps
    v = np.int64(goal)
    while before[v] >= 0:
        steps -= 1
        path[m, steps], start[m, steps] = before[v], left_at[v]
        v = np.int64(src[before[v]])
    return True


@lean
def _end(m, path, length, start, delay, z):
    last = length[m] - 1
    return start[m, last] + delay[z, path[m, last]] if last >= 0 else np.int64(0)


@kernel("the synthesizer", threads=True)
def rerouted(
    origin, receiver, kind, n, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, least, order, turns,
    most, bound, seed, begins, ends, taken, path, length, start,
):  # fmt: skip
    """Route messages in `order` by earliest arrival, or improve the schedule that is given; returns (end, status).

    Messages that have a path (a length above 0) keep it at first. Then, `turns` times, a message that arrives last
    and up to `most` others are taken out and routed anew, those of the same links first of all; what does not get
    better or stay as good is undone. `begins`, `ends` (int64[resources, room]) and `taken` hold what is reserved.
    """
    count = len(origin)
    state = seeded(seed)
    when, before, left_at = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    mark, settled = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    room = len(src) + n + 1
    key, second, value = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    stride = path.shape[1]
    for m in range(count):
        z = np.int64(kind[m])
        if length[m] and not _hold(m, path, length, start, z, hop_ptr, hop, offset, hold, begins, ends, taken):
            return _FAR, FULL
    turn = np.int64(0)
    end = np.int64(0)
    arrival = np.empty(count, dtype=np.int64)
    for i in range(count):
        m = order[i]
        z = np.int64(kind[m])
        if not length[m]:
            turn += 1
            if not _earliest(
                m, turn, origin[m], receiver[m], z, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay,
                least, begins, ends, taken, when, before, left_at, mark, settled, key, second, value, state, path,
                length, start,
            ) or not _hold(m, path, length, start, z, hop_ptr, hop, offset, hold, begins, ends, taken):  # fmt: skip
                return _FAR, FULL
        arrival[m] = _end(m, path, length, start, delay, z)
        end = max(end, arrival[m])
    victims = np.empty(most + 1, dtype=np.int64)
    kept_path, kept_start = np.empty((most + 1, stride), np.int32), np.empty((most + 1, stride), np.int64)
    kept_length = np.empty(most + 1, dtype=np.int32)
    out = np.zeros(count, dtype=np.bool_)
    used = np.zeros(len(taken), dtype=np.bool_)
    for _ in range(turns if count > 1 else 0):
        if end <= bound:
            break
        # Any of those that come last, found from a random place on.
        at = random_below(state, count)
        while arrival[at] < end:
            at = at + 1 if at + 1 < count else 0
        victims[0], taken_out = at, 1
        out[at] = True
        for p in range(length[at]):
            for h in range(hop_ptr[path[at, p]], hop_ptr[path[at, p] + 1]):
                used[hop[h]] = True
        wanted = 1 + random_below(state, most)
        for attempt in range(16 * wanted):
            if taken_out > wanted:
                break
            m = random_below(state, count)
            if out[m]:
                continue
            meets = attempt >= 12 * wanted
            for p in range(length[m]):
                for h in range(hop_ptr[path[m, p]], hop_ptr[path[m, p] + 1]):
                    meets = meets or used[hop[h]]
            if meets:
                out[m] = True
                victims[taken_out] = m
                taken_out += 1
        for p in range(length[at]):
            for h in range(hop_ptr[path[at, p]], hop_ptr[path[at, p] + 1]):
                used[hop[h]] = False
        worst, total = np.int64(0), np.int64(0)
        for i in range(taken_out):
            m = victims[i]
            worst, total = max(worst, arrival[m]), total + arrival[m]
            kept_path[i], kept_start[i], kept_length[i] = path[m], start[m], length[m]
            _release(m, path, length, start, np.int64(kind[m]), hop_ptr, hop, offset, hold, begins, ends, taken)
        # The last one first, or the others in any order.
        first = 1 if random_below(state, 4) else 0
        turned = np.arange(taken_out)
        for i in range(taken_out - 1, first, -1):
            j = first + random_below(state, i - first + 1)
            turned[i], turned[j] = turned[j], turned[i]
        now, sum_now, done = np.int64(0), np.int64(0), 0
        for i in range(taken_out):
            m = victims[turned[i]]
            z = np.int64(kind[m])
            turn += 1
            if not _earliest(
                m, turn, origin[m], receiver[m], z, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay,
                least, begins, ends, taken, when, before, left_at, mark, settled, key, second, value, state, path,
                length, start,
            ) or not _hold(m, path, length, start, z, hop_ptr, hop, offset, hold, begins, ends, taken):  # fmt: skip
                now = _FAR
                break
            done += 1
            reached = _end(m, path, length, start, delay, z)
            now, sum_now = max(now, reached), sum_now + reached
            if now > worst:
                break
        if now < worst or (now == worst and sum_now <= total):
            for i in range(taken_out):
                m = victims[i]
                arrival[m] = _end(m, path, length, start, delay, np.int64(kind[m]))
        else:
            for i in range(done):
                m = victims[turned[i]]
                _release(m, path, length, start, np.int64(kind[m]), hop_ptr, hop, offset, hold, begins, ends, taken)
            for i in range(taken_out):
                m = victims[i]
                path[m], start[m], length[m] = kept_path[i], kept_start[i], kept_length[i]
                _hold(m, path, length, start, np.int64(kind[m]), hop_ptr, hop, offset, hold, begins, ends, taken)
        for i in range(taken_out):
            out[victims[i]] = False
        end = np.int64(0)
        for m in range(count):
            end = max(end, arrival[m])
    return end, DONE
