"""Lower bounds in the model of the synthesizer: whole chunks over arcs, no link carrying two at once.

They are sharper than `collectives.bounds`, which counts bytes, because a link that has time for two and a half chunks
carries two.
"""

from bisect import bisect_left

import numpy as np

from astrasim_py.synthesis.bounds.cuts import partition_bound, reducing_cut, routing_cut, spreading_cut, weighted_work
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_from
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Bound
from astrasim_py.synthesis.model.timing import Timing

#: Ranks from which shortest paths are searched where there are more.
_SOURCES = 64
#: Arcs beyond which no paths are searched from more than a few ranks.
_MANY_ARCS = 50_000


def lower_bounds(
    network: Network,
    demand: Demand,
    *,
    halves: bool | None = None,
    largest: bool = False,
    cuts: bool = True,
    stop: np.ndarray = GO,
    known: dict | None = None,
) -> list[Bound]:
    """Bounds of a demand on a network (not reversed), the greatest first.

    `halves` bounds only the half of an all_reduce that reduces (True) or copies (False). `largest` takes all chunks to
    be as large as the largest. Without `cuts`, and after a stop signal, the slow bounds are left out. `known` keeps
    bounds of one demand between calls.

    * *ingress*, *egress*: the ports of a rank carry its chunks one after the other, in their idle intervals;
    * *work*: all ports together carry all chunks; an all_reduce needs 2 (n - 1) transfers per chunk (complete gossip:
      Harary & Schwenk, J. Franklin Inst. 1974);
    * *cut*, *partition*: the links between parts of the ranks carry what must cross (see `cuts`);
    * *path*: the longest of the shortest paths between an origin and a rank that needs its chunk.
    """
    if demand.ranks < 2:
        return [Bound(0, "none")]
    size = int(demand.sizes[0 if largest else -1])
    network = network.least
    known = {} if known is None else known

    def copying(reverse: bool) -> list[Bound]:
        key = network, reverse, size, cuts
        if key not in known:
            net = network.reversed if reverse else network
            known[key] = _copying(net, demand, size, cuts=cuts, stop=stop)
        return known[key]

    if demand.reduces or halves:
        return copying(True)
    if demand.collective == "all_reduce" and halves is None:
        both = copying(False) + copying(True)
        every, timing = np.full(demand.ranks, demand.count), network.timing([size])
        both += [
            Bound(_ports(network, timing, every, inward=True), "ingress"),
            Bound(_ports(network, timing, every, inward=False), "egress"),
            Bound(_work(network, timing, 2 * (demand.ranks - 1) * demand.count), "work"),
        ]
        both.append(Bound(reducing_cut(network, timing, demand.count, max(b.time for b in both), stop), "cut"))
        if cuts:
            least = partition_bound(network, timing, demand.count, both[-1].time, stop)
            both.append(Bound(least, "partition"))
        return sorted(both, key=lambda b: -b.time)
    return copying(False)


def _copying(network: Network, demand: Demand, size: int, *, cuts: bool, stop: np.ndarray) -> list[Bound]:
    n, count = demand.ranks, demand.count
    timing = network.timing([size])
    own = np.bincount(demand.origin, minlength=n)
    if demand.receivers is None:
        enter, leave = count - own, own
    else:
        moving = demand.targets != demand.origin
        enter = np.bincount(demand.targets[moving], minlength=n)
        leave = np.bincount(demand.origin[moving], minlength=n)
    names = ("ingress", "egress") if network.reverse_of is None else ("egress", "ingress")
    bounds = [
        Bound(_ports(network, timing, enter, inward=True), names[0]),
        Bound(_ports(network, timing, leave, inward=False), names[1]),
        Bound(_work(network, timing, int(enter.sum())), "work"),
        Bound(_paths(network, timing, demand), "path"),
    ]
    best = max(b.time for b in bounds)
    if demand.receivers is None:
        if cuts:
            bounds.append(Bound(spreading_cut(network, timing, demand, best, stop), "cut"))
    else:
        bounds.append(Bound(routing_cut(network, timing, demand, best, stop), "cut"))
        bounds.append(Bound(weighted_work(network, demand, bounds[-1].time, stop), "work"))
    # The sort is stable: among equal bounds the simplest stays first.
    return sorted(bounds, key=lambda b: -b.time)


def _ports(network: Network, timing: Timing, need: np.ndarray, *, inward: bool) -> int:
    """The least time in which the ports of every rank carry their chunks."""
    rank, hold, rest, port = _ends(network, timing, inward=inward)
    n = network.ranks
    known: dict[tuple, int] = {}
    best = 0
    bounds = np.searchsorted(rank, np.arange(n + 1))
    taken = _taken(network, timing, port)
    for v in range(n):
        chunks = int(need[v])
        if not chunks:
            continue
        rows = slice(int(bounds[v]), int(bounds[v + 1]))
        busy = {row - rows.start: taken[row] for row in range(rows.start, rows.stop) if row in taken}
        shape = (chunks, hold[rows].tobytes(), rest[rows].tobytes(), v if busy else -1)
        if shape not in known:
            known[shape] = _carry(chunks, hold[rows].tolist(), rest[rows].tolist(), busy)
        best = max(best, known[shape])
    return best


def _ends(network: Network, timing: Timing, *, inward: bool) -> tuple[np.ndarray, ...]:
    """(rank, ps that one chunk holds it, ps of the rest of the route, resource) of the ports of all ranks, by rank."""
    end = network.dst if inward else network.src
    # A port is the last (first) link of an arc; in a reversed network, the first (last).
    last = inward == (network.reverse_of is None)
    at = network.hop_ptr[1:] - 1 if last else network.hop_ptr[:-1]
    hold, rest = timing.hold[0, at], timing.delay[0] - timing.hold[0, at]
    key = end.astype(np.int64) * len(network.links) + network.hop[at]
    order = np.lexsort((hold, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    ports = order[first]
    # Links that take turns on one port share it at the shortest hold and the shortest rest of any of them.
    return end[ports], hold[ports], np.minimum.reduceat(rest[order], first), network.hop[at[ports]]


def _taken(network: Network, timing: Timing, port: np.ndarray) -> dict[int, tuple[int, int, list[int], list[int]]]:
    """Per row of `port`: least ps before and after it on the route, and intervals of others (starts, ends)."""
    real = network if network.reverse_of is None else network.reverse_of[0]
    if not len(real.occupied_start):
        return {}
    arc = np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr))
    before, after = timing.offset[0], timing.delay[0][arc] - timing.offset[0] - timing.hold[0]
    if network.reverse_of is not None:
        before, after = after, before
    found = {}
    for row, resource in enumerate(port.tolist()):
        rows = slice(int(real.occupied_ptr[resource]), int(real.occupied_ptr[resource + 1]))
        if rows.stop > rows.start:
            uses = network.hop == resource
            starts, ends = real.occupied_start[rows].tolist(), real.occupied_end[rows].tolist()
            found[row] = int(before[uses].min()), int(after[uses].min()), starts, ends
    return found


def _work(network: Network, timing: Timing, transfers: int) -> int:
    """The least time in which all ports together carry a number of chunks."""
    _, hold, rest, _ = _ends(network, timing, inward=True)
    kinds, count = np.unique(np.stack([hold, rest]), axis=1, return_counts=True)
    if not transfers or kinds[0].min() == 0:
        return 0
    most = int(kinds[1].max()) + int(kinds[0].max()) * -(-transfers // len(hold))

    def enough(time: int) -> bool:
        return int((np.maximum(time - kinds[1], 0) // kinds[0] * count).sum()) >= transfers

    return bisect_left(range(most), True, key=enough)


def _carry(chunks: int, hold: list[int], rest: list[int], busy: dict | None = None) -> int:
    """Least T with Σ ⌊(T - rest) / hold⌋ ≥ chunks; of a port that others hold, a ⌊…⌋ for every gap between them."""
    busy = busy or {}
    if not hold:
        return 0
    if min(hold) == 0:
        return min(r for h, r in zip(hold, rest, strict=True) if h == 0)
    most = max(rest) + max(hold) * chunks + max((b[3][-1] for b in busy.values()), default=0)

    def enough(time: int) -> bool:
        ports = enumerate(zip(hold, rest, strict=True))
        return sum(_room(time, h, *busy[i]) if i in busy else max(0, time - r) // h for i, (h, r) in ports) >= chunks

    return bisect_left(range(most), True, key=enough)


def _room(until: int, hold: int, before: int, after: int, starts: list[int], ends: list[int]) -> int:
    """How many holds fit between `before` and ``until - after``, outside the given intervals."""
    free, last, count = before, until - after, 0
    for start, end in zip(starts, ends, strict=True):
        if start >= last:
            break
        count += max(0, start - free) // hold
        free = max(free, end)
    return count + max(0, last - free) // hold


def longest_path(network: Network, demand: Demand, *, whole: bool = False) -> int:
    """The time in ps that something needs to reach the rank farthest from it: its first byte, or a whole chunk."""
    if demand.ranks < 2:
        return 0
    network = network.reversed if demand.reduces else network
    return _paths(network, network.timing([int(demand.sizes[-1]) if whole else 0]), demand)


def _paths(network: Network, timing: Timing, demand: Demand) -> int:
    """The longest shortest path over which a chunk must come."""
    order = sources = np.unique(demand.origin).tolist()
    most = _SOURCES if network.arcs <= _MANY_ARCS else 2
    lag, best, seen = _lags(network, timing, demand), 0, set()
    for _ in range(min(most, len(sources))):
        source = next(v for v in order if v not in seen)
        seen.add(source)
        reach = distances_from(timing, timing.delay[0], source)
        wanted = reach if demand.receivers is None else reach[demand.receivers[demand.origin == source]]
        best = max(best, int(wanted.max(initial=0)) + lag[source])
        if len(sources) > most:
            # Only ranks far from each other matter: continue from the farthest.
            order = np.argsort(-reach, kind="stable").tolist()
    return best


def _lags(network: Network, timing: Timing, demand: Demand) -> list[int]:
    """Per rank: the least time at which the last of the chunks that it has alone begins to leave it."""
    own = np.bincount(demand.origin, minlength=network.ranks)
    if demand.receivers is not None or (own < 2).all():
        return [0] * network.ranks
    rank, hold, *_ = _ends(network, timing, inward=False)
    bounds = np.searchsorted(rank, np.arange(network.ranks + 1))
    known: dict[tuple, int] = {}
    lags = []
    for v, chunks in enumerate(own.tolist()):
        rates = hold[bounds[v] : bounds[v + 1]]
        key = chunks, rates.tobytes()
        if key not in known:
            # With p ports p chunks leave at once; each further group begins one hold later.
            known[key] = _carry(max(chunks - len(rates), 0), rates.tolist(), [0] * len(rates)) if len(rates) else 0
        lags.append(known[key])
    return lags
