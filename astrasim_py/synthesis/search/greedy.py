"""The greedy search: every rank needs every chunk, over any network, one seed and policy per call.

At every moment at which something changes, the free arcs into a rank are matched to chunks that their sources hold and
that the rank neither holds nor expects. Both are bitsets over chunks, so the candidates of an arc are
``has[source] & ~expected[target]``; only ranks at which something changed are looked at again.

* Augmenting: an arc without candidates takes the chunk of an arc matched just now if that one has another.
* Rarest first: of a few random candidates, take the one that the fewest ranks hold or expect.
* Hierarchy: a slow arc prefers chunks that nobody holds or expects among the ranks that its target reaches, both ways,
  over faster arcs.
* Laziness: at random a slow arc waits.
* Overtaking: an arc without candidates may bring a chunk that is already on its way, if it arrives earlier so. The
  slower transfer is undone: its arc carries another chunk from the same moment on, or nothing.

Times are ps; a transfer never begins before its source holds the chunk.
"""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.heap import pop, push
from astrasim_py.core.jit import inlined, kernel
from astrasim_py.synthesis.model.random_numbers import STAR, random_below, shuffle, shuffle_equals
from astrasim_py.synthesis.search.greedy_state import ONE, ZERO, expect, holds, lowest_bit, pick, receive

_FAR = np.int64(2**62)
_52 = np.uint64(52)
#: Status of a run.
DONE, WORSE, STUCK, FULL = range(4)

#: Preferences (see `Policy`), and the time limit in ps.
Options = namedtuple("Options", "samples hierarchy overtake spread limit")
#: The transfers of a run (arc -1: none), where they are recorded, and rows that are vacant.
Record = namedtuple("Record", "arc chunk start vacant")


@inlined
def _ready(p, free, a, t):
    """The earliest moment from t on at which arc a can begin (with a chunk of the largest size)."""
    net = p.net
    if p.simple:
        until = free[net.hop[a]] - net.offset[0, a]
        return until if until > t else t
    while True:
        before = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            r = net.hop[h]
            if free[r] - net.offset[0, h] > t:
                t = free[r] - net.offset[0, h]
            for i in range(p.occupied_ptr[r], p.occupied_ptr[r + 1]):
                if p.occupied_end[i] > t + net.offset[0, h]:
                    if p.occupied_start[i] < t + net.offset[0, h] + net.hold[0, h]:
                        t = p.occupied_end[i] - net.offset[0, h]
                    else:
                        break
        if t == before:
            return t


@inlined
def _moment(g, s, time):
    """The entry of a moment, made if it is new."""
    chain = np.int64((np.uint64(time) * STAR) >> _52)
    entry = g.chains[chain]
    while entry >= 0:
        if g.times[entry] == time:
            return entry
        entry = g.following[entry]
    entry = s.free_moment
    s.free_moment = g.following[entry]
    g.times[entry], g.heads[entry] = time, -1
    g.following[entry] = g.chains[chain]
    g.chains[chain] = entry
    push(g.heap, s.moments, time, np.int64(0), entry)
    s.moments += 1
    return entry


@inlined
def _next_moment(g, s):
    """Take the earliest moment; its list is read before the entry is used again."""
    taken = g.heap[0].item
    s.moments = pop(g.heap, s.moments)
    chain = np.int64((np.uint64(g.times[taken]) * STAR) >> _52)
    entry, before = g.chains[chain], np.int64(-1)
    while entry != taken:
        before, entry = entry, g.following[entry]
    if before < 0:
        g.chains[chain] = g.following[taken]
    else:
        g.following[before] = g.following[taken]
    g.following[taken] = s.free_moment
    s.free_moment = taken
    return taken


@inlined
def _mark(g, s, v):
    """Look at rank v, too."""
    if not g.marked[v]:
        g.marked[v] = True
        g.dirty[s.dirties] = v
        s.dirties += 1


@inlined
def _begin_run(p, options, h, g, s):
    """Set the bits of the first chunks, and mark every rank that wants some."""
    lines, n, wide = h.has.shape
    chunks = len(p.origin)
    for line in range(lines):
        for v in range(n):
            h.lacks[v, line >> 6] |= ONE << np.uint64(line & 63)
    for c in range(chunks, lines * wide * 64):
        for rank in range(n):
            h.expected[c >> 9, rank, (c >> 6) & 7] |= ONE << np.uint64(c & 63)
    for c in range(chunks):
        home = np.int64(p.origin[c])
        receive(h, home, np.int64(c))
        expect(h, home, np.int64(c))
        h.wanted[home] -= 1
        if options.hierarchy:
            for k in range(len(p.part)):
                h.present[p.part[k, home], c >> 6] |= ONE << np.uint64(c & 63)
    s.left = np.int64(n - 1) * chunks
    s.last_time = -1
    for v in range(n):
        if h.wanted[v]:
            _mark(g, s, v)


@inlined
def _order_ranks(p, g, s, random):
    """Sort the ranks to look at."""
    if p.shared:
        shuffle(g.dirty, np.int64(0), s.dirties, random)
    elif s.dirties > 64 and s.dirties * 8 > len(g.marked):
        # In ascending order neighbours are close to each other, while their bits are in the cache.
        s.dirties = 0
        for v in range(len(g.marked)):
            if g.marked[v]:
                g.dirty[s.dirties] = v
                s.dirties += 1


@inlined
def _open_arcs(p, h, g, v, t, random):
    """List the arcs into rank v that are free, fastest first; (how many, when the next one is free)."""
    opened, again = 0, _FAR
    for i in range(p.net.in_ptr[v], p.net.in_ptr[v + 1]):
        a = np.int64(p.order[i])
        ready = _ready(p, h.free, a, t)
        if ready <= t:
            g.open_arcs[opened] = a
            opened += 1
        elif ready < again:
            again = ready
    shuffle_equals(g.open_arcs, opened, p.net.delay[0], random)
    return opened, again


@inlined
def _choose(p, options, h, g, s, v, a, taken, random):
    """(chunk that rank v expects now, chunk that arc a carries); -1: none."""
    u, none = np.int64(p.net.src[a]), np.int64(-1)
    c = none
    if options.hierarchy and p.level[a] >= 0:
        part = np.int64(p.part[p.level[a], v])
        c = pick(h, u, v, part, s.first, options.samples, random)
    if c < 0:
        c = pick(h, u, v, none, s.first, options.samples, random)
    if c >= 0:
        return c, c
    for j in range(taken):
        other = np.int64(g.taken_chunk[j])
        if holds(h.has, u, other):
            c = pick(h, np.int64(p.net.src[g.taken_arc[j]]), v, none, s.first, options.samples, random)
            if c >= 0:
                # The other arc takes the chunk found; this arc takes the other arc's chunk.
                g.taken_chunk[j] = c
                return c, other
    return none, none


@inlined
def _latest(h, u, v, chunks):
    """(chunk, its arrival) that rank v expects last of those that rank u has; -1: none."""
    chosen, latest = np.int64(-1), np.int64(0)
    for line in range(h.has.shape[0]):
        for word in range(h.has.shape[2]):
            x = h.has[line, u, word] & h.expected[line, v, word] & ~h.has[line, v, word]
            while x != ZERO:
                c = (line * h.has.shape[2] + word) * 64 + lowest_bit(x)
                x &= x - ONE
                # Chunks matched in this pass have no item yet.
                if h.due[v * chunks + c] > latest:
                    latest, chosen = h.due[v * chunks + c], c
    return chosen, latest


@inlined
def _instead(p, h, source, v, begin, z):
    """The rarest chunk of a size class that `source` had at `begin` and rank v does not expect, or -1."""
    chunks, chosen = len(p.origin), np.int64(-1)
    for line in range(h.has.shape[0]):
        for word in range(h.has.shape[2]):
            x = h.has[line, source, word] & ~h.expected[line, v, word]
            while x != ZERO:
                c = (line * h.has.shape[2] + word) * 64 + lowest_bit(x)
                x &= x - ONE
                if h.since[source * chunks + c] > begin or p.size_class[c] != z:
                    continue
                if chosen < 0 or h.count[c] < h.count[chosen]:
                    chosen = c
    return chosen


@inlined
def _overtake(p, h, g, s, record, v, a, t):
    """A chunk on its way to rank v that arc a brings earlier, the slower transfer being undone; -1: none."""
    net, chunks = p.net, len(p.origin)
    c, latest = _latest(h, np.int64(net.src[a]), v, chunks)
    if c < 0 or t + net.delay[p.size_class[c], a] >= latest:
        return np.int64(-1)
    item = h.item_of[v * chunks + c]
    b, begin, z = np.int64(g.what[item]), g.begun[item], p.size_class[c]
    instead = _instead(p, h, np.int64(net.src[b]), v, begin, z)
    if instead >= 0:
        g.which[item] = instead
        h.due[v * chunks + instead], h.item_of[v * chunks + instead] = latest, item
        expect(h, v, instead)
        h.wanted[v] -= 1
        h.count[instead] += 1
        if len(record.arc):
            record.chunk[g.row_of[item]] = instead
    else:
        g.which[item] = -1
        s.transfers -= 1
        if len(record.arc):
            record.arc[g.row_of[item]] = -1
            record.vacant[s.vacancies] = g.row_of[item]
            s.vacancies += 1
        if p.simple and h.free[net.hop[b]] == begin + net.offset[z, b] + net.hold[z, b]:
            h.free[net.hop[b]] = t + net.offset[0, b]
        if not g.marked[v]:
            # Its arc is free at once; the list holds no rank twice from `at` on.
            if s.dirties == len(g.marked):
                for j in range(s.at, s.dirties):
                    g.dirty[j - s.at] = g.dirty[j]
                s.dirties -= s.at
                s.at = 0
            _mark(g, s, v)
    h.wanted[v] += 1
    h.count[c] -= 1
    w = c >> 6
    h.expected[w >> 3, v, w & 7] &= ~(ONE << np.uint64(c & 63))
    h.lacks[v, w >> 9] |= ONE << np.uint64((w >> 3) & 63)
    return c


@inlined
def hold(net, free, a, t, z):
    """Take the links of a transfer over arc a."""
    for i in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        free[net.hop[i]] = t + net.offset[z, i] + net.hold[z, i]


@inlined
def _match(p, options, h, g, s, record, v, t, random):
    """Match the free arcs into rank v to chunks: (how many, when another arc is free)."""
    opened, again = _open_arcs(p, h, g, v, t, random)
    taken = 0
    for i in range(opened):
        a = np.int64(g.open_arcs[i])
        if p.shared:
            ready = _ready(p, h.free, a, t)
            if ready > t:
                again = min(again, ready)
                continue
        if s.lazy and p.level[a] >= 0 and random_below(random, 64) < s.lazy:
            continue
        c, carried = np.int64(-1), np.int64(-1)
        if h.wanted[v]:
            c, carried = _choose(p, options, h, g, s, v, a, taken, random)
        if c < 0 and options.overtake:
            c = carried = _overtake(p, h, g, s, record, v, a, t)
        if c < 0:
            continue
        expect(h, v, c)
        h.wanted[v] -= 1
        h.count[c] += 1
        if options.hierarchy:
            for k in range(len(p.part)):
                h.present[p.part[k, v], c >> 6] |= ONE << np.uint64(c & 63)
        if options.overtake:
            h.due[v * len(p.origin) + c] = 0
        g.taken_arc[taken], g.taken_chunk[taken] = a, carried
        taken += 1
        if p.shared:
            hold(p.net, h.free, a, t, 0)
    return taken, again


@inlined
def _enter(g, s, entry):
    """A new item in the list of a moment; there is room."""
    item = s.spare
    s.spare = g.onward[item]
    g.onward[item] = g.heads[entry]
    g.heads[entry] = item
    return item


@inlined
def _send(p, options, h, g, s, record, v, t, taken, again):
    """Begin the transfers that were matched, and look again when another arc is free; a status."""
    net = p.net
    for i in range(taken):
        a, c = np.int64(g.taken_arc[i]), np.int64(g.taken_chunk[i])
        z = p.size_class[c]
        hold(net, h.free, a, t, z)
        arrives = t + net.delay[z, a]
        if arrives > s.finish:
            s.finish = arrives
            if arrives >= options.limit and not options.overtake:
                return WORSE
        if s.spare == len(g.onward):
            return FULL
        if arrives != s.last_time:
            s.last_time, s.last_moment = arrives, _moment(g, s, arrives)
        item = _enter(g, s, s.last_moment)
        g.what[item], g.which[item], g.begun[item] = a, c, t
        if len(record.arc):
            if s.vacancies:
                s.vacancies -= 1
                row = record.vacant[s.vacancies]
            else:
                row = s.rows
                s.rows += 1
            record.arc[row], record.chunk[row], record.start[row] = a, c, t
            g.row_of[item] = row
        s.transfers += 1
        if options.overtake:
            h.due[v * len(p.origin) + c], h.item_of[v * len(p.origin) + c] = arrives, item
        if not p.serial:
            again = min(again, _ready(p, h.free, a, t))
    if not p.serial and h.wanted[v] and again < _FAR and (g.looking[v] <= t or again < g.looking[v]):
        g.looking[v] = again
        if s.spare == len(g.onward):
            return FULL
        g.what[_enter(g, s, _moment(g, s, again))] = -1 - v
    return DONE


@inlined
def _arrive(p, options, h, g, s, t, entry):
    """Process one moment: chunks arrive, and changed ranks are matched again."""
    net = p.net
    item = g.heads[entry]
    while item >= 0:
        after = g.onward[item]
        c = np.int64(g.which[item])
        if g.what[item] < 0:
            if h.wanted[-1 - g.what[item]]:
                _mark(g, s, np.int64(-1 - g.what[item]))
        elif c >= 0:
            v = np.int64(net.dst[g.what[item]])
            receive(h, v, c)
            s.left -= 1
            if options.overtake:
                h.since[v * len(p.origin) + c] = t
            if h.wanted[v] or options.overtake:
                _mark(g, s, v)
            for i in range(net.out_ptr[v], net.out_ptr[v + 1]):
                to = np.int64(net.dst[net.out_arc[i]])
                if h.wanted[to] or options.overtake:
                    _mark(g, s, to)
        g.onward[item] = s.spare
        s.spare = item
        item = after


@kernel("the synthesizer", threads=True, lean=True)
def greedy(p, options, h, g, record, state, random, stop):
    """One greedy run: (time in ps, status).

    `stop` is not 0: give up. Where `stop` has room, the run writes the time up to which all is decided, and its
    transfers so far.
    """
    s, t, lines = state[0], np.int64(0), len(h.has)
    _begin_run(p, options, h, g, s)
    while True:
        _order_ranks(p, g, s, random)
        s.first = random_below(random, lines) if lines > 1 else np.int64(0)
        s.at = 0
        while s.at < s.dirties:
            v = np.int64(g.dirty[s.at])
            s.at += 1
            g.marked[v] = False
            if h.wanted[v] or options.overtake:
                taken, again = _match(p, options, h, g, s, record, v, t, random)
                status = _send(p, options, h, g, s, record, v, t, taken, again)
                if status != DONE:
                    return (s.finish if status == WORSE else t), status
        s.dirties = 0
        if s.left == 0:
            return t, DONE
        if s.moments == 0:
            if not s.lazy:
                return t, STUCK
            # All ranks wait for a faster transfer that never begins.
            s.lazy = 0
            for rank in range(len(h.wanted)):
                if h.wanted[rank]:
                    _mark(g, s, rank)
            continue
        entry = _next_moment(g, s)
        t, s.last_time = g.times[entry], -1
        if len(stop) > 2:
            stop[1], stop[2] = t, s.transfers
        if t >= options.limit or stop[0] != 0:
            return t, WORSE
        _arrive(p, options, h, g, s, t, entry)


@dataclass(frozen=True, slots=True)
class Policy:
    """Preferences of a run; see the module."""

    samples: int = 8  # candidates among which the rarest is taken; 1 is a random choice
    hierarchy: bool = False
    overtake: bool = False
    lazy: int = 0  # in 64ths: how often a slow arc waits for the next moment
    spread: int = 0  # of symmetric runs: weight of the number of ranks to which a target can pass the chunk on
    symmetric: bool = False  # decides for the chunks of one rank (see `symmetric`)

    def __str__(self) -> str:
        parts = [f"samples {self.samples}"]
        parts += ["hierarchy"] * self.hierarchy + [f"lazy {self.lazy}/64"] * bool(self.lazy)
        parts += [f"spread {self.spread}"] * bool(self.spread)
        kind = "symmetric" if self.symmetric else "greedy"
        return f"{kind}: {', '.join(parts + ['overtaking'] * self.overtake)}"
