"""The greedy core: every rank needs every chunk, over any network, one seed and policy per call.

Conceptually a time-expanded network: at every moment at which something changes, the free arcs into a rank are
matched to chunks that their sources hold and that the rank neither has nor is about to get. It is never built:
what a rank holds and what it holds or expects are bitsets over chunks, so the candidates of an arc are
``has[source] & ~expected[target]``, and only ranks at which something changed since are looked at again.

* Matching at a rank is made larger by one-step augmenting paths: an arc that finds nothing takes the chunk of an
  arc matched just now if that one has another.
* Of a few random candidates the one is taken that fewest ranks hold or expect (rarest first). Where rows are long,
  all ranks look at the same random part of theirs first at one moment, which then lies in the cache.
* *Hierarchy*: a slow arc prefers chunks that nobody holds or expects among the ranks that its target reaches, both
  ways, over strictly faster arcs: what is there already comes over those.
* *Guard*: other chunks a slow arc carries only if the faster arcs would not be done with everything before it.
* *Laziness*: at random a slow arc waits, so that a search sees schedules that no eager run makes.
* *Overtaking*: an arc without candidates may bring a chunk that is on its way already, if it brings it earlier. The
  slower transfer is then undone: its arc carries another chunk from the same moment on, if its source had one then,
  and otherwise was never used.

Times are ps; a transfer never begins before its source holds the chunk, so every schedule is causal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.random_numbers import STAR, A, B, C, random_below, seeded

_FAR = np.int64(2**62)
#: Policies of a call, as positions in its options.
SAMPLES, HIERARCHY, GUARD, OVERTAKE, LAZY, OPTIONS = range(6)
#: What a call returns besides the time.
DONE, WORSE, STUCK, FULL = range(4)

_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_64, _63 = np.uint64(64), np.uint64(63)
_32 = np.uint64(32)
_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACE = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _PLACE[(0x03F79D71B4CB0A89 << _bit & (2**64 - 1)) >> 58] = _bit
_TOP = np.uint64(58)
_26, _32BITS, _23 = np.uint64(26), np.uint64(2**32 - 1), np.uint64(23)
_CHAINS = 4096
#: Words of a row after which no more candidates are looked for: where they are so few, a choice gains little.
_LOOKS = 32
#: Lines of a row beyond which one with candidates is enough to look at.
_FEW = 4
#: Words of a line: 64 bytes.
_WIDE = 8


@lean
def lowest_bit(x):
    """Position of the lowest bit that is set."""
    return _PLACE[((x & (~x + _ONE)) * _DEBRUIJN) >> _TOP]


@lean
def _holds(bits, v, c):
    """Whether row v has the bit of chunk c."""
    w = c >> 6
    return (bits[w >> 3, v, w & 7] >> np.uint64(c & 63)) & _ONE != _ZERO


@lean
def _expect(expected, lacks, v, c):
    """Set the bit of chunk c in row v; a line that is full then is not looked at again."""
    w = c >> 6
    x = expected[w >> 3, v, w & 7] | (_ONE << np.uint64(c & 63))
    expected[w >> 3, v, w & 7] = x
    if x == _FULL:
        for each in range(expected.shape[2]):
            x &= expected[w >> 3, v, each]
        if x == _FULL:
            lacks[v, w >> 9] &= ~(_ONE << np.uint64((w >> 3) & 63))


@lean
def _pick(has, u, some, expected, v, lacks, avoid, k, first, samples, count, state):
    """A chunk that u holds, v does not expect and (k >= 0) row k of `avoid` lacks; the rarest of some, or -1.

    Lines are looked at in turn from line `first` on, one candidate a word. Which words have any is found first, for
    the branches of a search word by word go either way and cost more than that.
    """
    x = state[0]
    x ^= x >> A
    x ^= x << B
    x ^= x >> C
    state[0] = x
    x *= STAR
    turn = x >> _TOP
    lines, wide, blocks = has.shape[0], has.shape[2], some.shape[1]
    start = np.uint64((((x >> _26) & _32BITS) * np.uint64(wide)) >> _32)
    best, least, found, looked = np.int64(-1), np.int64(2**31), 0, 0
    block = first >> 6
    left = some[u, block] & lacks[v, block] & (_FULL << np.uint64(first & 63))
    for _ in range(blocks + 1):
        while left != _ZERO:
            line = block * 64 + lowest_bit(left)
            left &= left - _ONE
            filled = _ZERO
            for w in range(wide):
                x = has[line, u, w] & ~expected[line, v, w]
                if k >= 0:
                    x &= ~avoid[k, line * wide + w]
                filled |= np.uint64(x != _ZERO) << np.uint64(w)
            if filled != _ZERO:
                # From a random word on; where there is no other line, several times, from other bits on.
                turned = (filled >> start) | (filled << (np.uint64(wide) - start))
                turned &= (_ONE << np.uint64(wide)) - _ONE
                while found < samples:
                    rest = turned
                    while rest != _ZERO and found < samples:
                        w = lowest_bit(rest) + np.int64(start)
                        w = w if w < wide else w - wide
                        rest &= rest - _ONE
                        x = has[line, u, w] & ~expected[line, v, w]
                        if k >= 0:
                            x &= ~avoid[k, line * wide + w]
                        x = (x >> turn) | (x << ((_64 - turn) & _63))
                        c = (line * wide + w) * 64 + ((lowest_bit(x) + np.int64(turn)) & 63)
                        often = np.int64(count[c])
                        best = c if often < least else best
                        least = often if often < least else least
                        found += 1
                    if lines > 1:
                        break
                    turn = (turn + _23) & _63
                if lines > _FEW or found >= samples or looked >= _LOOKS:
                    return best
            looked += wide
        block += 1
        if block == blocks:
            block = 0
        left = some[u, block] & lacks[v, block]
    return best


@lean
def _ready(a, t, hop_ptr, hop, offset, hold, free, simple, occupied_ptr, occupied_start, occupied_end):
    """The earliest moment from t on at which arc a can begin (with a chunk of the largest size)."""
    if simple:
        until = free[hop[a]] - offset[0, a]
        return until if until > t else t
    while True:
        before = t
        for h in range(hop_ptr[a], hop_ptr[a + 1]):
            r = hop[h]
            if free[r] - offset[0, h] > t:
                t = free[r] - offset[0, h]
            for i in range(occupied_ptr[r], occupied_ptr[r + 1]):
                if occupied_end[i] > t + offset[0, h]:
                    if occupied_start[i] < t + offset[0, h] + hold[0, h]:
                        t = occupied_end[i] - offset[0, h]
                    else:
                        break
        if t == before:
            return t


@lean
def _find(time, times, following, chains, heap, state):
    """The entry of a moment, made if it is new; `state` is [entries in the heap, free entry]."""
    chain = np.int64((np.uint64(time) * STAR) >> np.uint64(52))
    entry = chains[chain]
    while entry >= 0:
        if times[entry] == time:
            return entry
        entry = following[entry]
    entry = state[1]
    state[1] = following[entry]
    times[entry] = time
    following[entry] = chains[chain]
    chains[chain] = entry
    at = state[0]
    state[0] += 1
    while at > 0:
        up = (at - 1) >> 1
        if times[heap[up]] <= time:
            break
        heap[at] = heap[up]
        at = up
    heap[at] = entry
    return -1 - entry


@lean
def _pop(times, following, chains, heap, state):
    """Take the entry of the earliest moment; its list is read before the entry is given back."""
    top = heap[0]
    state[0] -= 1
    size = state[0]
    if size:
        last = heap[size]
        time = times[last]
        at = 0
        while True:
            down = 2 * at + 1
            if down >= size:
                break
            if down + 1 < size and times[heap[down + 1]] < times[heap[down]]:
                down += 1
            if times[heap[down]] >= time:
                break
            heap[at] = heap[down]
            at = down
        heap[at] = last
    chain = np.int64((np.uint64(times[top]) * STAR) >> np.uint64(52))
    entry, before = chains[chain], -1
    while entry != top:
        before, entry = entry, following[entry]
    if before < 0:
        chains[chain] = following[top]
    else:
        following[before] = following[top]
    following[top] = state[1]
    state[1] = top
    return top


@kernel("the synthesizer", threads=True)
def greedy(
    chunks, origin, size_class, in_ptr, order, src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay,
    occupied_ptr, occupied_start, occupied_end, level, part, parts, options, seed, limit, stop, room,
    arc_of, chunk_of, start_of,
):  # fmt: skip
    """One greedy run.

    Parameters
    ----------
    chunks : int
    origin, size_class : int32[chunks]
    in_ptr : int64[n + 1]
    order : int32[arcs]
        The arcs into each rank, fastest first.
    src, dst, out_ptr, out_arc, hop_ptr, hop, offset, hold, delay, occupied_ptr, occupied_start, occupied_end
        Of the network and its timing.
    level : int32[arcs]
        Row of `part` that holds for a slow arc; -1 for arcs without preference.
    part : int32[levels, n]
        Number of the part (strongly connected by faster arcs) that a rank is in, in 0..parts-1.
    options : int64[OPTIONS]
    limit : int
        ps: give up when it cannot be done earlier than that.
    stop : int64[1] or [3]
        Not 0: give up now. Then, where there is room: ps up to which everything is decided, and transfers so far.
    room : int
        Most transfers under way, and moments to come, at once; with more the run ends `FULL`.
    arc_of, chunk_of, start_of : int32, int32, int64[n * chunks] or [0]
        Filled with the transfers (arc -1: none) where there is room.

    Returns
    -------
    (time, transfers, rows, status)
    """
    n, words = len(in_ptr) - 1, (chunks + 63) // 64
    samples, hierarchy, guard = options[SAMPLES], options[HIERARCHY] != 0, options[GUARD]
    lazy = options[LAZY]
    overtake, record = options[OVERTAKE] != 0, len(arc_of) > 0
    arcs, classes = len(src), len(delay)
    simple = len(hop) == arcs and len(occupied_start) == 0
    # In this model an arc is free again when its transfer arrives, which is looked at anyway.
    serial = simple and classes == 1
    if serial:
        for a in range(arcs):
            if offset[0, a] != 0 or hold[0, a] != delay[0, a]:
                serial = False
                break
    shared = len(hop) > arcs
    random = seeded(seed)
    # Rows are cut into lines of memory, and a line of all rows lies together: at one moment all look there first.
    wide = min(words, _WIDE)
    lines = (words + wide - 1) // wide
    words = lines * wide
    has = np.zeros((lines, n, wide), dtype=np.uint64)
    expected = np.zeros((lines, n, wide), dtype=np.uint64)
    # Which lines of a row have a bit, and which lines of the expected ones lack one.
    some = np.zeros((n, (lines + 63) // 64), dtype=np.uint64)
    lacks = np.zeros((n, (lines + 63) // 64), dtype=np.uint64)
    for line in range(lines):
        for v in range(n):
            lacks[v, line >> 6] |= _ONE << np.uint64(line & 63)
    for c in range(chunks, words * 64):
        for v in range(n):
            expected[c >> 9, v, (c >> 6) & 7] |= _ONE << np.uint64(c & 63)
    wanted = np.full(n, chunks, dtype=np.int64)
    count = np.ones(chunks, dtype=np.int32)
    levels = len(part)
    present = np.zeros((parts if hierarchy else 0, words), dtype=np.uint64)
    for c in range(chunks):
        v, w, bit = origin[c], c >> 6, _ONE << np.uint64(c & 63)
        has[w >> 3, v, w & 7] |= bit
        some[v, w >> 9] |= _ONE << np.uint64((w >> 3) & 63)
        _expect(expected, lacks, v, np.int64(c))
        wanted[v] -= 1
        if hierarchy:
            for k in range(levels):
                present[part[k, v], w] |= bit
    left = np.int64(n - 1) * chunks
    free = np.zeros(len(hop) if simple else hop.max() + 1, dtype=np.int64)
    cells = n * chunks if overtake else 0
    due = np.empty(cells, dtype=np.int64)
    since = np.zeros(cells, dtype=np.int64)
    item_of = np.empty(cells, dtype=np.int32)

    # Moments, and per moment a list of items: arrivals (arc >= 0) or ranks to look at again (-1 - rank).
    times, heads = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    following, heap = np.arange(1, room + 1), np.empty(room, dtype=np.int64)
    chains, queue = np.full(_CHAINS, -1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    what, which, begun, row_of = (
        np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64),
    )  # fmt: skip
    onward = np.arange(1, room + 1)
    spare = 0
    looking = np.full(n, _FAR, dtype=np.int64)

    dirty, marked = np.empty(n, dtype=np.int32), np.zeros(n, dtype=np.bool_)
    dirties = 0
    for v in range(n):
        if wanted[v]:
            dirty[dirties] = v
            dirties += 1
            marked[v] = True
    widest = 0
    for v in range(n):
        widest = max(widest, in_ptr[v + 1] - in_ptr[v])
    open_arcs = np.empty(widest, dtype=np.int32)
    taken_arc, taken_chunk = np.empty(widest, dtype=np.int32), np.empty(widest, dtype=np.int32)
    vacant = np.empty(cells, dtype=np.int64)
    vacancies = 0
    rows, transfers = np.int64(0), np.int64(0)
    t, finish = np.int64(0), np.int64(0)
    last_time, last_entry = np.int64(-1), np.int64(0)

    while True:
        if shared:
            for i in range(dirties - 1, 0, -1):
                j = random_below(random, i + 1)
                dirty[i], dirty[j] = dirty[j], dirty[i]
        elif dirties > 64 and dirties * 8 > n:
            # In the order of their numbers neighbours come close to each other, while their bits are in the cache.
            dirties = 0
            for v in range(n):
                if marked[v]:
                    dirty[dirties] = v
                    dirties += 1
        first = random_below(random, lines) if lines > 1 else np.int64(0)
        at = 0
        while at < dirties:
            v = np.int64(dirty[at])
            at += 1
            marked[v] = False
            if wanted[v] == 0 and not overtake:
                continue
            opened, again = 0, _FAR
            for i in range(in_ptr[v], in_ptr[v + 1]):
                a = order[i]
                ready = (
                    free[hop[a]] - offset[0, a]
                    if simple
                    else _ready(
                        np.int64(a),
                        t,
                        hop_ptr,
                        hop,
                        offset,
                        hold,
                        free,
                        simple,
                        occupied_ptr,
                        occupied_start,
                        occupied_end,
                    )
                )
                if ready <= t:
                    open_arcs[opened] = a
                    opened += 1
                elif ready < again:
                    again = ready
            if opened > 1:
                i = 0
                while i < opened:
                    j = i + 1
                    while j < opened and delay[0, open_arcs[j]] == delay[0, open_arcs[i]]:
                        j += 1
                    for k in range(j - 1, i, -1):
                        other = i + random_below(random, k - i + 1)
                        open_arcs[k], open_arcs[other] = open_arcs[other], open_arcs[k]
                    i = j
            taken = 0
            for i in range(opened):
                a = np.int64(open_arcs[i])
                u = np.int64(src[a])
                if shared:
                    ready = _ready(
                        a, t, hop_ptr, hop, offset, hold, free, simple, occupied_ptr, occupied_start, occupied_end
                    )
                    if ready > t:
                        again = min(again, ready)
                        continue
                c = np.int64(-1)
                if lazy and level[a] >= 0 and random_below(random, 64) < lazy:
                    continue
                if wanted[v]:
                    k = np.int64(level[a]) if hierarchy else -1
                    if k >= 0:
                        k = np.int64(part[k, v])
                        c = _pick(has, u, some, expected, v, lacks, present, k, first, samples, count, random)
                        if c < 0 and guard:
                            # Chunks per delay of this arc that the faster ones bring, in 1/1024.
                            rate = np.int64(0)
                            for j in range(in_ptr[v], in_ptr[v + 1]):
                                b = order[j]
                                if delay[0, b] >= delay[0, a]:
                                    break
                                rate += (delay[0, a] * 1024) // max(hold[0, hop_ptr[b]], 1)
                            if rate * guard >= wanted[v] * 4096:
                                continue
                    if c < 0:
                        c = _pick(has, u, some, expected, v, lacks, present, -1, first, samples, count, random)
                    if c < 0:
                        helped = False
                        for j in range(taken):
                            other = np.int64(taken_chunk[j])
                            if not _holds(has, u, other):
                                continue
                            found = _pick(
                                has,
                                np.int64(src[taken_arc[j]]),
                                some,
                                expected,
                                v,
                                lacks,
                                present,
                                -1,
                                first,
                                samples,
                                count,
                                random,
                            )
                            if found >= 0:
                                # That arc takes what was found, and this one what it leaves.
                                c, taken_arc[taken], taken_chunk[taken] = found, a, other
                                taken_chunk[j] = found
                                helped = True
                                break
                        if helped:
                            bit = _ONE << np.uint64(c & 63)
                            _expect(expected, lacks, v, c)
                            wanted[v] -= 1
                            count[c] += 1
                            if hierarchy:
                                for k in range(levels):
                                    present[part[k, v], c >> 6] |= bit
                            if overtake:
                                due[v * chunks + c] = 0
                            taken += 1
                            if shared:
                                for h in range(hop_ptr[a], hop_ptr[a + 1]):
                                    free[hop[h]] = t + offset[0, h] + hold[0, h]
                            continue
                if c < 0 and overtake:
                    latest = np.int64(0)
                    for w in range(words):
                        line, w8 = w >> 3, w & 7
                        x = has[line, u, w8] & expected[line, v, w8] & ~has[line, v, w8]
                        while x != _ZERO:
                            one = w * 64 + lowest_bit(x)
                            x &= x - _ONE
                            # What was matched in this very pass is not under way yet: its item is not made.
                            if due[v * chunks + one] > latest:
                                latest = due[v * chunks + one]
                                c = one
                    if c >= 0 and t + delay[size_class[c], a] < latest:
                        item = item_of[v * chunks + c]
                        b = np.int64(what[item])
                        w0, begin = np.int64(src[b]), begun[item]
                        instead = np.int64(-1)
                        for w in range(words):
                            x = has[w >> 3, w0, w & 7] & ~expected[w >> 3, v, w & 7]
                            while x != _ZERO:
                                one = w * 64 + lowest_bit(x)
                                x &= x - _ONE
                                if since[w0 * chunks + one] > begin or size_class[one] != size_class[c]:
                                    continue
                                if instead < 0 or count[one] < count[instead]:
                                    instead = one
                        if instead >= 0:
                            which[item] = instead
                            due[v * chunks + instead] = latest
                            item_of[v * chunks + instead] = item
                            _expect(expected, lacks, v, instead)
                            wanted[v] -= 1
                            count[instead] += 1
                            if record:
                                chunk_of[row_of[item]] = instead
                        else:
                            which[item] = -1
                            transfers -= 1
                            if record:
                                arc_of[row_of[item]] = -1
                                vacant[vacancies] = row_of[item]
                                vacancies += 1
                            if simple and free[hop[b]] == begin + offset[size_class[c], b] + hold[size_class[c], b]:
                                free[hop[b]] = t + offset[0, b]
                            if not marked[v]:
                                # Its arc is free at once; the list holds no rank twice from `at` on.
                                marked[v] = True
                                if dirties == n:
                                    for j in range(at, dirties):
                                        dirty[j - at] = dirty[j]
                                    dirties -= at
                                    at = 0
                                dirty[dirties] = v
                                dirties += 1
                        wanted[v] += 1
                        count[c] -= 1
                        w = c >> 6
                        expected[w >> 3, v, w & 7] &= ~(_ONE << np.uint64(c & 63))
                        lacks[v, w >> 9] |= _ONE << np.uint64((w >> 3) & 63)
                    else:
                        c = -1
                if c < 0:
                    continue
                bit = _ONE << np.uint64(c & 63)
                _expect(expected, lacks, v, c)
                wanted[v] -= 1
                count[c] += 1
                if hierarchy:
                    for k in range(levels):
                        present[part[k, v], c >> 6] |= bit
                if overtake:
                    due[v * chunks + c] = 0
                taken_arc[taken], taken_chunk[taken] = a, c
                taken += 1
                if shared:
                    for h in range(hop_ptr[a], hop_ptr[a + 1]):
                        free[hop[h]] = t + offset[0, h] + hold[0, h]
            for i in range(taken):
                a, c = np.int64(taken_arc[i]), np.int64(taken_chunk[i])
                z = size_class[c]
                for h in range(hop_ptr[a], hop_ptr[a + 1]):
                    free[hop[h]] = t + offset[z, h] + hold[z, h]
                arrives = t + delay[z, a]
                if arrives > finish:
                    finish = arrives
                    if finish >= limit and not overtake:
                        return finish, transfers, rows, WORSE
                if spare == room:
                    return t, transfers, rows, FULL
                item = spare
                spare = onward[item]
                what[item], which[item], begun[item] = a, c, t
                if record:
                    if vacancies:
                        vacancies -= 1
                        row = vacant[vacancies]
                    else:
                        row = rows
                        rows += 1
                    arc_of[row], chunk_of[row], start_of[row] = a, c, t
                    row_of[item] = row
                transfers += 1
                if overtake:
                    due[v * chunks + c] = arrives
                    item_of[v * chunks + c] = item
                if arrives != last_time:
                    last_time = arrives
                    last_entry = _find(arrives, times, following, chains, heap, queue)
                    if last_entry < 0:
                        last_entry = -1 - last_entry
                        heads[last_entry] = -1
                entry = last_entry
                onward[item] = heads[entry]
                heads[entry] = item
                if not serial:
                    ready = _ready(
                        a, t, hop_ptr, hop, offset, hold, free, simple, occupied_ptr, occupied_start, occupied_end
                    )
                    again = min(again, ready)
            if not serial and wanted[v] and again < _FAR and (looking[v] <= t or again < looking[v]):
                looking[v] = again
                if spare == room:
                    return t, transfers, rows, FULL
                item = spare
                spare = onward[item]
                what[item] = -1 - v
                entry = _find(again, times, following, chains, heap, queue)
                if entry < 0:
                    entry = -1 - entry
                    heads[entry] = -1
                onward[item] = heads[entry]
                heads[entry] = item
        dirties = 0
        if left == 0:
            return t, transfers, rows, DONE
        if queue[0] == 0:
            if guard or lazy:
                # Everybody waits for something faster that does not come.
                guard, lazy = np.int64(0), np.int64(0)
                for v in range(n):
                    if wanted[v]:
                        dirty[dirties] = v
                        dirties += 1
                        marked[v] = True
                continue
            return t, transfers, rows, STUCK
        entry = _pop(times, following, chains, heap, queue)
        t, last_time = times[entry], np.int64(-1)
        if len(stop) > 2:
            stop[1], stop[2] = t, transfers
        if t >= limit or stop[0] != 0:
            return t, transfers, rows, WORSE
        item = heads[entry]
        while item >= 0:
            after = onward[item]
            if what[item] < 0:
                v = np.int64(-1 - what[item])
                if wanted[v] and not marked[v]:
                    marked[v] = True
                    dirty[dirties] = v
                    dirties += 1
            else:
                a, c = np.int64(what[item]), np.int64(which[item])
                if c >= 0:
                    v, w, bit = np.int64(dst[a]), c >> 6, _ONE << np.uint64(c & 63)
                    has[w >> 3, v, w & 7] |= bit
                    some[v, w >> 9] |= _ONE << np.uint64((w >> 3) & 63)
                    left -= 1
                    if overtake:
                        since[v * chunks + c] = t
                    if not marked[v] and (wanted[v] or overtake):
                        marked[v] = True
                        dirty[dirties] = v
                        dirties += 1
                    for i in range(out_ptr[v], out_ptr[v + 1]):
                        to = dst[out_arc[i]]
                        if not marked[to] and (wanted[to] or overtake):
                            marked[to] = True
                            dirty[dirties] = to
                            dirties += 1
            onward[item] = spare
            spare = item
            item = after


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run prefers; see the module.

    Attributes
    ----------
    samples : int
        Candidates among which the rarest is taken; 1 is a random choice.
    hierarchy : bool
    guard : int
        In quarters: 4 trusts the faster arcs to be as fast as they can, 2 to be half as fast; 0: no guard.
    overtake : bool
    lazy : int
        In 64ths: how often a slow arc waits for the next moment.
    """

    samples: int = 8
    hierarchy: bool = False
    guard: int = 0
    overtake: bool = False
    lazy: int = 0

    def __str__(self) -> str:
        parts = [f"samples {self.samples}"]
        parts += ["hierarchy"] * self.hierarchy + [f"guard {self.guard}/4"] * bool(self.guard)
        parts += [f"lazy {self.lazy}/64"] * bool(self.lazy)
        return "greedy: " + ", ".join(parts + ["overtaking"] * self.overtake)
