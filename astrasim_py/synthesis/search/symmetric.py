"""The greedy search on a network up to its rotations: the chunks of one rank, and one resource per class of links.

A decision for a chunk and an arc holds, rotated, for all others at the same moment (see `topology.symmetry`). The
search decides for several ranks if the network is not symmetric in some digits. Each class of arcs has one list of
candidates: pairs (chunk, arc) whose source has the chunk and whose target neither has nor expects it. Preferences are
those of `greedy`.
"""

from collections import namedtuple
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import inlined, kernel
from astrasim_py.core.rows import pointers
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import ranked, rows_of
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import random_below, shuffle_equals
from astrasim_py.synthesis.model.schedule import Columns
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.synthesis.search.greedy import DONE, STUCK, WORSE, Options, Record, hold
from astrasim_py.topology.symmetry import Rotations, find_rotations

#: Most hops of a network.
_MAX_HOPS = 2**20
#: Chunks to decide for × arcs beyond which no symmetric run is made.
MAX_CANDIDATES = 2**26


@dataclass(frozen=True, eq=False)
class SymmetricNetwork:
    """A network up to rotations, for a demand that is as symmetric."""

    group: Rotations
    per_rank: int  # chunks of a rank
    arcs: np.ndarray  # int64[k]: arcs of the network, but those whose rotations would meet on one link
    class_of: np.ndarray  # int32[k]: equal for arcs that are rotated to each other, 0..
    first: np.ndarray  # int64[classes]: the first arc of each class, an index into `arcs`
    rotations: np.ndarray  # int32[k, order]: an arc rotated, by element of its source
    timing: Timing  # of these arcs and the largest chunks; links that are rotated to each other are one

    @property
    def origin(self) -> np.ndarray:
        """int32[chunks]: origins of the chunks to decide for."""
        return np.repeat(self.group.rank_at[:, 0], self.per_rank).astype(np.int32)

    def rotated(self, columns: Columns) -> Columns:
        """All rotations of transfers (index into `arcs`, chunk to decide for, start)."""
        arc, chunk, start = columns
        arcs = self.rotations[arc[:, None], self.group.sums[self.group.element[self.timing.src[arc]]]]
        chunks = self.group.rank_at[chunk // self.per_rank] * self.per_rank + (chunk % self.per_rank)[:, None]
        return arcs.reshape(-1), chunks.astype(np.int32).reshape(-1), np.repeat(start, self.group.order)


def arc_labels(network: Network, timing: Timing) -> np.ndarray:
    """int64[arcs]: equal for arcs whose transfers of the largest chunks take the same course."""
    lengths = np.diff(network.hop_ptr)
    label = ranked(timing.delay[0])
    for position in range(int(lengths.max(initial=0))):
        arcs = np.flatnonzero(lengths > position)
        for times in (timing.offset[0], timing.hold[0]):
            here = np.full(network.arcs, -1)
            here[arcs] = times[network.hop_ptr[arcs] + position]
            label = ranked(label * network.arcs + ranked(here))
    return label


def symmetric_network(network: Network, demand: Demand) -> SymmetricNetwork | None:
    """The network up to its largest useful group of rotations, if the demand has that symmetry."""
    if demand.root is not None or demand.receivers is not None or len(network.occupied_start) or network.ranks < 3:
        return None
    timing = network.timing(demand.sizes)
    for group in find_rotations(network.ranks, network.src, network.dst, arc_labels(network, timing)):
        if demand.count // group.order * network.arcs <= MAX_CANDIDATES:
            found = _symmetric(network, timing, group, demand.count // network.ranks)
            if found is not None:
                return found
    return None


def _symmetric(network: Network, timing: Timing, group: Rotations, per_rank: int) -> SymmetricNetwork | None:
    if len(network.hop) > _MAX_HOPS:
        return None
    order = group.order
    a, b = network.src.astype(np.int64), network.dst.astype(np.int64)
    step = group.sums[group.element[b], group.sums.argmin(axis=1)[group.element[a]]]
    class_of = ranked((group.class_of[a] * (network.ranks // order) + group.class_of[b]) * order + step)
    arc_at = np.empty((class_of.max() + 1, order), dtype=np.int32)
    arc_at[class_of, group.element[a]] = np.arange(network.arcs)
    lengths = np.diff(network.hop_ptr)
    longest = int(lengths.max())
    hop_class = np.repeat(class_of, lengths)
    slots = hop_class * longest + np.arange(len(network.hop)) - np.repeat(network.hop_ptr[:-1], lengths)
    taken, repeats = np.unique(hop_class * len(network.links) + network.hop, return_counts=True)
    arcs = np.flatnonzero(~np.isin(class_of, taken[repeats > 1] // len(network.links)))
    if not len(arcs):
        return None
    ptr, hops = rows_of(network.hop_ptr, arcs)
    joined = _joined(slots, network.hop, len(arc_at) * longest)[slots[hops]]
    links = np.unique(joined)
    smaller = replace(
        network, src=network.src[arcs], dst=network.dst[arcs], hop_ptr=ptr, hop=ranked(joined).astype(np.int32),
        links=links, occupied_ptr=np.zeros(len(links) + 1, dtype=np.int64),
    )  # fmt: skip
    times = timing.offset[:1, hops], timing.hold[:1, hops], timing.delay[:1, arcs]
    kind = ranked(class_of[arcs])
    return SymmetricNetwork(
        group, per_rank, arcs, kind.astype(np.int32), np.unique(kind, return_index=True)[1], arc_at[class_of[arcs]],
        smaller.with_times(*times),
    )  # fmt: skip


def _joined(slots: np.ndarray, links: np.ndarray, count: int) -> np.ndarray:
    """int64[count] labels of slots; slots of classes that share a link have the same one."""
    label = np.arange(count)
    while True:
        least = np.full(int(links.max(initial=0)) + 1, count)
        np.minimum.at(least, links, label[slots])
        new = label.copy()
        np.minimum.at(new, slots, least[links])
        if (new == label).all():
            return label
        label = new


_FAR = np.int64(2**62)
NOTHING, EXPECTED, HELD = np.uint8(0), np.uint8(1), np.uint8(2)
_HEAVY = np.int64(2**40)
#: Counters of a run.
_COUNTERS = "rows left news waiting vacancies lazy repeat"
_STATE = np.dtype([(name, np.int64) for name in _COUNTERS.split()])

#: The network, its classes of arcs (see `SymmetricNetwork`), fastest first, and the chunks to decide for.
_Problem = namedtuple("_Problem", "net class_of first by_speed delay origin level part")

#: Memory of a run. By chunk and rank: held or expected, when it is due, since when it is there, its row. By chunk: how
#: many have or expect it; by part and chunk: whether it is there. Candidates are cells chunk * arcs + arc: their
#: places, and the list of each class. By class of links: when it is free. By row: arrivals.
_Holdings = namedtuple(
    "_Holdings",
    "state due since row_at reached present place entries entry_ptr length free heap arrival vacant fresh line",
)


@inlined
def _remove(p, h, q, v):
    """Remove the candidates that send chunk q to rank v."""
    for j in range(p.net.in_ptr[v], p.net.in_ptr[v + 1]):
        cell = q * len(p.net.src) + j
        at = h.place[cell]
        if at >= 0:
            o = p.class_of[j]
            moved = h.entries[h.entry_ptr[o] + h.length[o] - 1]
            h.entries[at] = moved
            h.place[moved] = at
            h.place[cell] = -1
            h.length[o] -= 1


@inlined
def _add_candidates(p, h, s):
    """Ranks that got a chunk can send it."""
    n, arcs = len(p.net.in_ptr) - 1, len(p.net.src)
    for i in range(s.news):
        q, v = h.fresh[i] // n, h.fresh[i] % n
        for j in range(p.net.out_ptr[v], p.net.out_ptr[v + 1]):
            a = np.int64(p.net.out_arc[j])
            o = np.int64(p.class_of[a])
            if h.state[q * n + p.net.dst[a]] == NOTHING:
                cell = q * arcs + a
                h.place[cell] = h.entry_ptr[o] + h.length[o]
                h.entries[h.place[cell]] = cell
                h.length[o] += 1
    s.news = 0


@inlined
def _ready(p, h, o, t):
    """When class o of arcs is free."""
    net, a = p.net, p.first[o]
    for i in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        t = max(t, h.free[net.hop[i]] - net.offset[0, i])
    return t


@inlined
def _score(p, options, h, o, q, v):
    """Penalty of sending chunk q to rank v over class o: the higher, the less it helps."""
    net, score = p.net, h.reached[q]
    if options.hierarchy and p.level[o] >= 0 and h.present[p.part[p.level[o], v], q]:
        score += _HEAVY
    if options.spread:
        for j in range(net.out_ptr[v], net.out_ptr[v + 1]):
            if h.state[q * (len(net.in_ptr) - 1) + net.dst[net.out_arc[j]]] == NOTHING:
                score -= options.spread
    return score


@inlined
def _pick(p, options, h, o, random):
    """The best of some candidates of class o, or -1."""
    chosen, best, length = np.int64(-1), _FAR, h.length[o]
    if length == 0:
        return chosen
    at = random_below(random, length)
    for _ in range(min(options.samples, length)):
        if length <= options.samples:
            at = at + 1 if at + 1 < length else np.int64(0)
        else:
            at = random_below(random, length)
        cell = h.entries[h.entry_ptr[o] + at]
        score = _score(p, options, h, o, cell // len(p.net.src), np.int64(p.net.dst[cell % len(p.net.src)]))
        if score < best:
            best, chosen = score, cell
    return chosen


@inlined
def _expect(p, options, h, s, q, v, row):
    """Rank v expects chunk q from now on."""
    n = len(p.net.in_ptr) - 1
    h.state[q * n + v] = EXPECTED
    h.reached[q] += 1
    h.due[q * n + v], h.row_at[q * n + v] = h.arrival[row], row
    _remove(p, h, q, v)
    if options.hierarchy:
        for k in range(len(p.part)):
            h.present[p.part[k, v], q] = True


@inlined
def _overtake(p, options, h, s, record, o, t):
    """A candidate that class o delivers earlier than expected; undo the slower transfer. -1: none."""
    net, n, arcs = p.net, len(p.net.in_ptr) - 1, len(p.net.src)
    chosen, latest = np.int64(-1), t + p.delay[o]
    for q in range(len(p.origin)):
        for j in range(arcs):
            if p.class_of[j] != o or h.state[q * n + net.src[j]] != HELD:
                continue
            cell = q * n + net.dst[j]
            if h.state[cell] == EXPECTED and h.due[cell] > latest and record.start[h.row_at[cell]] < t:
                latest, chosen = h.due[cell], np.int64(q * arcs + j)
    if chosen < 0:
        return chosen
    cell = chosen // arcs * n + np.int64(net.dst[chosen % arcs])
    row = h.row_at[cell]
    b = np.int64(p.class_of[record.arc[row]])
    h.state[cell] = NOTHING
    h.reached[chosen // arcs] -= 1
    for j in range(h.length[b]):
        one = h.entries[h.entry_ptr[b] + j]
        if h.since[(one // arcs) * n + net.src[one % arcs]] <= record.start[row]:
            _expect(p, options, h, s, one // arcs, np.int64(net.dst[one % arcs]), row)
            record.arc[row], record.chunk[row] = one % arcs, one // arcs
            return chosen
    for i in range(net.hop_ptr[p.first[b]], net.hop_ptr[p.first[b] + 1]):
        if h.free[net.hop[i]] == record.start[row] + net.offset[0, i] + net.hold[0, i]:
            h.free[net.hop[i]] = t + net.offset[0, i]
    record.arc[row] = -1
    s.repeat = 1
    return chosen


@inlined
def _match(p, options, h, s, record, t, random):
    """Match the classes that are free to candidates: (when the next one is free, status)."""
    again, arcs = _FAR, len(p.net.src)
    s.repeat = 0
    # Fastest first, equals in random order.
    for i in range(len(h.line)):
        h.line[i] = p.by_speed[i]
    shuffle_equals(h.line, len(h.line), p.delay, random)
    for i in range(len(h.line)):
        o = h.line[i]
        if h.length[o] == 0 and not options.overtake:
            continue
        ready = _ready(p, h, o, t)
        if ready > t:
            again = min(again, ready)
            continue
        if s.lazy and p.level[o] >= 0 and random_below(random, 64) < s.lazy:
            continue
        chosen = _pick(p, options, h, o, random)
        if chosen < 0 and options.overtake:
            chosen = _overtake(p, options, h, s, record, o, t)
        if chosen < 0:
            continue
        hold(p.net, h.free, p.first[o], t, 0)
        if s.vacancies:
            s.vacancies -= 1
            row = h.vacant[s.vacancies]
        elif s.rows == len(record.arc):
            return again, STUCK
        else:
            row = s.rows
            s.rows += 1
        q, a = chosen // arcs, chosen % arcs
        record.arc[row], record.chunk[row], record.start[row] = a, q, t
        h.arrival[row] = t + p.delay[o]
        _expect(p, options, h, s, q, np.int64(p.net.dst[a]), row)
        if not options.overtake and h.arrival[row] >= options.limit:
            return again, WORSE
        push(h.heap, s.waiting, h.arrival[row], np.int64(0), row)
        s.waiting += 1
    for o in range(len(p.delay)):
        ready = _ready(p, h, o, t)
        if ready > t and h.length[o]:
            again = min(again, ready)
    return again, DONE


@inlined
def _arrive(p, h, s, record, t):
    """Chunks arrive."""
    n = len(p.net.in_ptr) - 1
    while s.waiting and h.heap[0].key == t:
        row = h.heap[0].item
        s.waiting = pop(h.heap, s.waiting)
        if record.arc[row] < 0:
            h.vacant[s.vacancies] = row
            s.vacancies += 1
            continue
        cell = np.int64(record.chunk[row]) * n + np.int64(p.net.dst[record.arc[row]])
        h.state[cell], h.since[cell] = HELD, t
        s.left -= 1
        h.fresh[s.news] = cell
        s.news += 1


@kernel("the synthesizer", threads=True, lean=True)
def symmetric_greedy(p, options, h, record, state, random, stop):
    """One greedy run on a network up to rotations; (time in ps, status)."""
    s, t, n, chunks = state[0], np.int64(0), len(p.net.in_ptr) - 1, len(p.origin)
    for q in range(chunks):
        h.state[q * n + p.origin[q]] = HELD
        h.fresh[q] = q * n + p.origin[q]
        if options.hierarchy:
            for k in range(len(p.part)):
                h.present[p.part[k, p.origin[q]], q] = True
    s.news = chunks
    s.left = chunks * (n - 1)
    while True:
        _add_candidates(p, h, s)
        if s.left == 0:
            return t, DONE
        again, status = _match(p, options, h, s, record, t, random)
        if status != DONE:
            return t, status
        if s.repeat:
            continue
        if s.waiting == 0:
            if s.lazy:
                s.lazy = 0
                continue
            if again == _FAR:
                return t, STUCK
        now = h.heap[0].key if s.waiting else again
        t = again if t < again < now else now
        if t >= options.limit or stop[0] != 0:
            return t, WORSE
        _arrive(p, h, s, record, t)


def run(
    each: SymmetricNetwork, options: Options, level: np.ndarray, part: np.ndarray, lazy: int, random: np.ndarray,
    stop: np.ndarray,
) -> tuple[int, int, Record, int]:  # fmt: skip
    """One run: (time in ps, status, record, its rows). `level`, `part`: as in `greedy_state.Problem`."""
    net, origin = each.timing, each.origin
    n, arcs, chunks, classes = len(net.in_ptr) - 1, len(net.src), len(origin), len(each.first)
    # Overtaken transfers keep their rows until the time at which they would have arrived.
    rows = n * chunks * (4 if options.overtake else 1) + 1
    arc, chunk, start = np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows, np.int64)
    record = Record(arc, chunk, start, np.empty(0, np.int64))
    entry_ptr = pointers(np.bincount(each.class_of) * chunks)
    cells, parts = n * chunks, int(part.max(initial=-1)) + 1 if options.hierarchy else 0
    memory = _Holdings._make((
        np.zeros(cells, np.uint8), np.zeros(cells, np.int64), np.zeros(cells, np.int64), np.full(cells, -1),
        np.ones(chunks, np.int64), np.zeros((parts, chunks), np.bool_), np.full(chunks * arcs, -1),
        np.empty(entry_ptr[-1], np.int64), entry_ptr, np.zeros(classes, np.int64),
        np.zeros(int(net.hop.max()) + 1, np.int64), np.empty(rows, ENTRY), *np.empty((3, rows), np.int64),
        np.empty(classes, np.int64),
    ))  # fmt: skip
    delay = net.delay[0, each.first]
    problem = _Problem(
        net, each.class_of, each.first, np.argsort(delay, kind="stable"), delay, origin, level[each.arcs[each.first]],
        part,
    )  # fmt: skip
    state = np.zeros(1, dtype=_STATE)
    state["lazy"] = lazy
    time, status = symmetric_greedy(problem, options, memory, record, state, random, stop)
    return int(time), status, record, int(state["rows"][0])
