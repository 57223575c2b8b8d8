"""Tree packing: insert the chunks one after the other into idle intervals of links.

* A chunk for one rank takes the path of earliest arrival.
* A chunk that is reduced follows a tree found from its home, backward in time.
* A chunk of an all_reduce has any rank as its root and a moment at which its sum is complete there. From the root its
  copies are followed forward in time and its partial sums backward. Of a few random roots, take the one whose last copy
  arrives first. The moment is the earliest for which no partial sum begins before time 0.

Repairs then take out a chunk that finishes last and some in its way, and insert them again; a worse result is undone.
No chunk of an all_reduce waits for the sum of another one, so links carry sums and copies at once. That beats
the barrier construction where the ports of ranks differ.
"""

from collections import namedtuple
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import by_time
from astrasim_py.synthesis.model.insertion import FAR, GO, NEVER, calendars, grow, growth, hold
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import random_below, shuffle
from astrasim_py.synthesis.model.schedule import Bound, Schedule, SearchResult, Transfers, as_schedule
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.synthesis.search.multi_start import BestRun, Effort, compete, in_turn, search_of

#: Failures of a run, returned negative: calendars are full, there is no schedule, a path is longer than its row.
_FULL, _STUCK, _LONG = np.int64(1), np.int64(2), np.int64(3)
#: Steps after which a sum that cannot be whole never will be.
_FURTHEST = np.int64(2**32)
#: Chunks of trees that a repair takes out at most.
_VICTIMS = 8
#: Chunks × arcs of one run beyond which none is made.
LARGEST = 2**25
#: Chunks × arcs × runs of a search at most (about ten seconds of one core).
WORK = 2**22
#: Most bits of a delay in ps for which prices of links are sums of 63 bits.
_PRICED_BITS = 40
#: Repairs of the best run (as much work as all runs that start from nothing), and how many of them run at once.
_REPAIRS, _GENERATION = 12, 4

#: Chunks to be inserted: origin, goal (-1: everyone), class of size; the least times to goals (see `Growth`); whether
#: they are summed, and then copied.
Chunks = namedtuple("Chunks", "origin goal size_class ahead sums spreads", defaults=(False, True))

#: Transfers of every chunk: those that reduce, the last first, and those that copy; and their numbers.
Rows = namedtuple("Rows", "arc start length")

#: How a run goes. `roots`: random roots tried per sum; 0: only the origin at first. `turns`: repairs. `bound`: ps:
#: done when it is met. `limit`: ps: a chunk that cannot arrive before ends a run that begins anew.
Options = namedtuple("Options", "roots turns bound limit")

_Memory = namedtuple("_Memory", "queue hint sums_arc sums_start finish kept kept_finish removed used out")


@lean
def _put(net, calendar, chunks, rows, c, sign):
    """Put a chunk's transfers in (sign 1) or take them out (-1); False: there is no room."""
    z = np.int64(chunks.size_class[c])
    fits = True
    for i in range(rows.length[c]):
        fits = fits and hold(net, calendar, np.int64(rows.arc[c, i]), rows.start[c, i], z, sign)
    return fits


@lean
def _copy(rows, c, to, target):
    to.length[target] = rows.length[c]
    for i in range(rows.length[c]):
        to.arc[target, i], to.start[target, i] = rows.arc[c, i], rows.start[c, i]


@lean
def _mark(net, rows, c, value, used):
    """Mark the links of a chunk."""
    for i in range(rows.length[c]):
        for h in range(net.hop_ptr[rows.arc[c, i]], net.hop_ptr[rows.arc[c, i] + 1]):
            used[net.hop[h]] = value


@lean
def _meets(net, rows, c, used):
    """Whether a chunk has a link that is marked."""
    for i in range(rows.length[c]):
        for h in range(net.hop_ptr[rows.arc[c, i]], net.hop_ptr[rows.arc[c, i] + 1]):
            if used[net.hop[h]]:
                return True
    return False


@lean
def _grow_from(net, calendar, tree, chunks, memory, c, root, until):
    """Grow what a chunk needs from a root: (last arrival, copies; negative: no room, or it never succeeds)."""
    # Galloping from the chunk before finds the earliest grain at which the sum can be whole; copies spread from there.
    z, goal, edges = np.int64(chunks.size_class[c]), np.int64(chunks.goal[c]), len(net.in_ptr) - 2
    if not chunks.sums:
        last, got = grow(net, calendar, tree, root, goal, np.int64(0), True, until, z)
        return last, got if got >= 0 else -_FULL
    low, high, probe, wide = np.int64(-1), np.int64(-1), memory.hint[0], np.int64(1)
    while high != 0 and (high < 0 or high - low != 1):
        _, got = grow(net, calendar, tree, root, goal, probe * tree.grain, False, FAR, z)
        if got < 0:
            return FAR, -_FULL
        if got == edges:
            high = probe
            for i in range(edges):
                memory.sums_arc[i], memory.sums_start[i] = tree.arcs[i], tree.starts[i]
        else:
            low = probe
        if high < 0:
            probe = low + wide
            if probe > _FURTHEST:
                return FAR, -_STUCK
        elif low < 0:
            probe = max(high - wide, np.int64(0))
        else:
            probe = (low + high) >> 1
        wide *= 2
    memory.hint[0] = high
    if not chunks.spreads:
        return high * tree.grain, np.int64(0)
    last, got = grow(net, calendar, tree, root, goal, high * tree.grain, True, until, z)
    return last, got if got >= 0 else -_FULL


@lean
def _find_transfers(net, calendar, tree, chunks, options, rows, memory, c, anew, worst):
    """Write the transfers of a chunk to its row: its last arrival, `FAR` if that is later than `worst`, or negative."""
    edges = len(net.in_ptr) - 2
    best, best_span = FAR, FAR
    for _ in range(max(options.roots, 1)):
        root = np.int64(chunks.origin[c])
        if options.roots or (chunks.sums and chunks.spreads and not anew):
            root = random_below(tree.random, edges + 1)
        last, got = _grow_from(net, calendar, tree, chunks, memory, c, root, min(best, worst) + 1)
        if got < 0:
            return got
        if got < (1 if chunks.goal[c] >= 0 else edges if chunks.spreads else 0):
            continue
        span = np.int64(0)
        for i in range(edges if chunks.sums and chunks.spreads else 0):
            span += tree.starts[i] - memory.sums_start[i]
        if last < best or (last == best and span < best_span):
            best, best_span = last, span
            first = np.int64(edges if chunks.sums else 0)
            if first + got > rows.arc.shape[1]:
                return -_LONG
            rows.length[c] = first + got
            for i in range(first):
                rows.arc[c, i], rows.start[c, i] = memory.sums_arc[i], memory.sums_start[i]
            for i in range(got):
                rows.arc[c, first + i], rows.start[c, first + i] = tree.arcs[i], tree.starts[i]
    return best


@lean
def _insert(net, calendar, tree, chunks, options, rows, memory, waiting, anew, worst, stop):
    """Insert the first chunks of the queue: (how many, their last arrival, sum of arrivals); negative: no room."""
    now, score = np.int64(0), np.int64(0)
    for q in range(waiting):
        c = memory.queue[q]
        best, z = np.int64(0), np.int64(chunks.size_class[c])
        if rows.length[c]:
            for i in range(rows.length[c]):
                best = max(best, rows.start[c, i] + net.delay[z, rows.arc[c, i]])
        else:
            best = _find_transfers(net, calendar, tree, chunks, options, rows, memory, c, anew, worst)
        if best < 0:
            return best, now, score
        if best == FAR:
            return q, FAR, score
        if not _put(net, calendar, chunks, rows, c, np.int64(1)):
            return -_FULL, now, score
        memory.finish[c] = best
        now, score = max(now, best), score + best
        if now > worst or (stop[0] != 0 and anew):
            return q + 1, now, score
    return waiting, now, score


@lean
def _take_out(net, calendar, tree, chunks, rows, memory, time):
    """Take out a chunk that finishes last, and some that share a link with it; how many, or negative: no room."""
    random, count, most = tree.random, len(chunks.origin), len(memory.removed)
    critical = random_below(random, count)
    while memory.finish[critical] < time:
        critical = critical + 1 if critical + 1 < count else np.int64(0)
    _mark(net, rows, critical, np.int64(1), memory.used)
    wanted = min(2 + random_below(random, max(most - 1, np.int64(1))), most)
    waiting, c = np.int64(0), critical
    for attempt in range(16 * wanted):
        if not memory.out[c] and (attempt >= 12 * wanted or _meets(net, rows, c, memory.used)):
            memory.out[c] = 1
            memory.removed[waiting], memory.queue[waiting] = c, c
            waiting += 1
        if waiting == wanted:
            break
        c = random_below(random, count)
    _mark(net, rows, critical, np.int64(0), memory.used)
    for q in range(waiting):
        c = memory.removed[q]
        memory.out[c] = 0
        memory.kept_finish[q] = memory.finish[c]
        _copy(rows, c, memory.kept, q)
        if not _put(net, calendar, chunks, rows, c, np.int64(-1)):
            return -_FULL
        rows.length[c] = 0
    # The last one first, or all in any order.
    shuffle(memory.queue, np.int64(1 if random_below(random, 4) else 0), waiting, random)
    return waiting


@lean
def _undo(net, calendar, chunks, rows, memory, waiting, done):
    """Put the chunks that were taken out back as they were; False: there is no room."""
    for q in range(done):
        if not _put(net, calendar, chunks, rows, memory.queue[q], np.int64(-1)):
            return False
    for q in range(waiting):
        c = memory.removed[q]
        memory.finish[c] = memory.kept_finish[q]
        _copy(memory.kept, q, rows, c)
        if not _put(net, calendar, chunks, rows, c, np.int64(1)):
            return False
    return True


@kernel("the synthesizer", threads=True, lean=True)
def pack(net, calendar, tree, chunks, options, rows, memory, stop):
    """Insert all chunks, those with rows as they are, then repair: ps; negative: no room, or it was given up."""
    waiting, turn = np.int64(len(chunks.origin)), 0
    while True:
        worst, worth = options.limit - 1, FAR
        if turn:
            worst, worth = np.int64(0), np.int64(0)
            for q in range(waiting):
                worst, worth = max(worst, memory.kept_finish[q]), worth + memory.kept_finish[q]
        done, now, score = _insert(net, calendar, tree, chunks, options, rows, memory, waiting, turn == 0, worst, stop)
        if done < 0:
            return done
        if turn == 0 and done < waiting:
            return -_STUCK
        worse = now > worst or (now == worst and score > worth)
        if turn and worse and not _undo(net, calendar, chunks, rows, memory, waiting, done):
            return -_FULL
        time = np.int64(0)
        for c in range(len(memory.finish)):
            time = max(time, memory.finish[c])
        if turn == options.turns or stop[0] != 0 or time <= options.bound or len(memory.removed) < 1:
            return time
        turn += 1
        waiting = _take_out(net, calendar, tree, chunks, rows, memory, time)
        if waiting < 0:
            return waiting


class Packer:
    """Runs of one problem, which remember the room that calendars take."""

    def __init__(self, network: Network, timing: Timing, chunks: Chunks, stride: int = 0, victims=_VICTIMS) -> None:
        self.network, self.timing, self.chunks = network, timing, chunks
        self.stride = stride or (network.ranks - 1) * (chunks.sums + chunks.spreads)
        self.victims = min(victims, len(chunks.origin))
        self.grain = int(timing.hold[timing.hold > 0].min(initial=NEVER)) % NEVER or 1
        self._room = 64

    def run(
        self, seed: int, *, rows: Rows | None = None, roots: int = 0, weight: int = 0,
        mean: int = 0, repairs: int = 0, bound: int = 0, limit: int = NEVER, stop: np.ndarray | None = None,
    ) -> tuple[int, Rows] | None:  # fmt: skip
        """One run, over `rows` to repair or anew: (ps, rows), or None if it was given up."""
        network, chunks, count = self.network, self.chunks, len(self.chunks.origin)
        random = np.random.Generator(np.random.PCG64(seed))
        order = random.permutation(count)
        state = random.integers(1, 2**63, 1, dtype=np.uint64)
        room, stride = self._room, self.stride if rows is None else rows.arc.shape[1]
        while True:
            filled = _rows(count, stride)
            if rows is not None:
                # A path may be longer than all of those before.
                filled.arc[:, : rows.arc.shape[1]], filled.start[:, : rows.arc.shape[1]] = rows.arc, rows.start
                filled.length[:] = rows.length
            tree = growth(network, chunks.ahead, state.copy(), weight, mean, self.grain)
            memory = _Memory(
                order.astype(np.int64), np.zeros(1, dtype=np.int64), np.empty_like(tree.arcs),
                np.empty_like(tree.starts), np.zeros(count, dtype=np.int64), _rows(self.victims, stride),
                np.empty(self.victims, dtype=np.int64), np.empty(self.victims, dtype=np.int64),
                np.zeros(len(network.links), dtype=np.int64), np.zeros(count, dtype=np.int64),
            )  # fmt: skip
            took = pack(
                self.timing, calendars(network, room), tree, chunks, Options(roots, repairs, bound, limit), filled,
                memory, GO if stop is None else stop,
            )  # fmt: skip
            if took >= 0:
                self._room = max(self._room, room)
                return int(took), filled
            if took == -_FULL:
                room *= 2
            elif took == -_LONG:
                stride = max(stride + 1, min(2 * stride, network.ranks))
            else:
                return None


def _rows(count: int, stride: int) -> Rows:
    shape = (count, stride)
    return Rows(np.zeros(shape, np.int32), np.zeros(shape, np.int64), np.zeros(count, np.int32))


@dataclass(frozen=True, slots=True)
class TreePolicy:
    """Preferences of a run; a sum takes the best of some random `roots` (0: the rank that owns it)."""

    roots: int = 0
    weight: int = 0  # weight of the load of a link, against chance, among arcs that are equally early
    priced: bool = False  # whether arcs of loaded links are avoided even if they are early

    def __str__(self) -> str:
        parts = [f"best of {self.roots} roots"] * bool(self.roots) + [f"load {self.weight}"]
        return ", ".join(parts + ["loaded links avoided"] * self.priced)


#: Policies for an all_reduce.
JOINT = tuple(
    TreePolicy(*each)
    for each in ((1, 1), (8, 0), (0, 1), (2, 1), (8, 1), (1, 64), (0, 64), (24, 0), (1, 1, True), (8, 64, True))
)
#: Policies for sums alone.
SUMS = tuple(TreePolicy(0, *each) for each in ((64, True), (1, False), (0, True), (64, False)))


def tree_packing_search(network: Network, demand: Demand, bound: int, effort: Effort) -> SearchResult | None:
    """The fastest packing of trees found, of a demand that reduces; None: too large, or too little time."""
    each = demand.count * network.arcs
    if each > LARGEST or network.ranks < 2:
        return None
    # As much work goes into repairing the best runs as into those that begin anew.
    runs = max(1, min(effort.rounds, WORK // each))
    starts = max(1, runs // 2)
    # A repair inserts five of the chunks anew, a run all of them.
    repairs = (runs - starts) * demand.count // (5 * _REPAIRS) + 1
    both = demand.collective == "all_reduce"
    policies = JOINT if both else SUMS
    packing = Packing(network, demand)

    def run(policy: TreePolicy, seed: int, limit: int, stop: np.ndarray, start: BestRun | None):
        if start is not None:
            return packing.pack(seed, policy, rows=start.result, repairs=repairs, bound=bound, stop=stop)
        return packing.pack(seed, policy, limit=limit, stop=stop)

    found = compete(
        in_turn([policies[i % len(policies)] for i in range(starts)], starts), run, bound,
        replace(effort, rounds=starts + _REPAIRS * (runs > starts)), generation=_GENERATION,
    )  # fmt: skip
    if found is None:
        return None
    label = f"{'joint' if both else 'trees'}: {found.policy}"
    how = search_of(found, effort, label)
    return SearchResult(found.time, packing.transfers(found.result), found.result.arc.size, how)


class Packing(Packer):
    """Runs that pack the trees of a demand that reduces."""

    def __init__(self, network: Network, demand: Demand) -> None:
        timing = network.timing(demand.sizes)
        goal, ahead = np.full(demand.count, -1, dtype=np.int32), np.zeros((1, network.ranks), dtype=np.int64)
        spreads = demand.collective == "all_reduce"
        super().__init__(network, timing, Chunks(demand.origin, goal, demand.size_class, ahead, True, spreads))
        self._mean = 0
        if int(timing.delay.max(initial=0)).bit_length() <= _PRICED_BITS:
            least = float(timing.hold.min(axis=1, initial=NEVER)[demand.size_class].sum())
            self._mean = max(int(least * (network.ranks - 1)) // max(len(network.links), 1), 1)

    def pack(self, seed: int, policy: TreePolicy, **options) -> tuple[int, Rows] | None:
        return self.run(seed, roots=policy.roots, weight=policy.weight, mean=self._mean * policy.priced, **options)

    def transfers(self, rows: Rows) -> Transfers:
        count, width = rows.arc.shape
        sums = self.network.ranks - 1
        # Sums were found from the root outwards, so the first in time stands last.
        order = np.concatenate([np.arange(sums)[::-1], np.arange(sums, width)])
        chunk = np.repeat(np.arange(count, dtype=np.int32), width)
        arc, start = rows.arc[:, order].reshape(-1), rows.start[:, order].reshape(-1)
        reduces = np.tile(np.arange(width) < sums, count)
        order = by_time(start)
        return arc[order], chunk[order], start[order], reduces[order]


def improved(schedule: Schedule, enough: int, effort: Effort) -> Schedule:
    """The better of a schedule of a demand that reduces and the best packing of trees, unless it meets `enough`."""
    if schedule.time <= enough:
        return schedule
    found = tree_packing_search(schedule.network, schedule.demand, enough, effort)
    if found is None:
        return schedule
    bound = Bound(schedule.bound, schedule.bound_kind)
    other = as_schedule(schedule.network, schedule.demand, found.recorded, found.search.after(schedule.search), bound)
    return other if other.time < schedule.time else replace(schedule, search=schedule.search.after(found.search))
