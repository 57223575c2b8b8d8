"""A checker of schedules that shares no code with the search.

It reads the topology and the columns of a schedule, derives the routes, the holds of links and the arrivals from the
cost model on its own, and executes the schedule.
"""

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import kernel
from astrasim_py.core.rows import distinct
from astrasim_py.core.units import PS_PER_S
from astrasim_py.synthesis.model.schedule import Schedule

_NEVER = np.int64(2**62)
#: Most problems in the list.
_MOST = 20


def check(schedule: Schedule) -> list[str]:
    """List the faults of a recorded schedule; empty if there are none.

    Every transfer crosses the route of its ends. No two hold a link at once; without other tenants they may wait in
    switches in the order of requests. A rank sends what it has, and its partial sum once, when it is complete. In the
    end every rank has what the collective promises, with every contribution once, at the claimed time.
    """
    if not schedule.recorded:
        return ["its transfers were counted, not recorded: nothing can be checked"]
    found: list[str] = []
    links, ptr, source, target, begin, arrival = _courses(schedule, found)
    if found:
        return found
    _check_links(schedule, links, ptr, begin, found)
    _check_data(schedule, source, target, arrival, found)
    last = int(arrival.max(initial=0))
    if last != schedule.time:
        found.append(f"claims {schedule.time} ps, and its last transfer arrives at {last} ps")
    return found[:_MOST]


def _sizes(schedule: Schedule) -> np.ndarray:
    """int64[C]: bytes of every chunk, as stated, or from the definition ⌊(i + 1)·S/T⌋ - ⌊i·S/T⌋."""
    demand = schedule.demand
    if demand.stated is not None:
        return np.asarray(demand.stated, dtype=np.int64)
    ends = [i * demand.size // demand.chunks for i in range(demand.chunks + 1)]
    each = np.diff(np.array(ends, dtype=np.int64))
    return each[np.arange(len(demand.origin)) % demand.chunks]


def _courses(schedule: Schedule, found: list[str]):
    """Links that each transfer crosses (CSR), its ends, hold of each link (start, end), and its arrival."""
    network, demand, topology = schedule.network, schedule.demand, schedule.network.topology
    arcs, chunks, starts = (np.asarray(c, dtype=np.int64) for c in (schedule.arc, schedule.chunk, schedule.start))
    none = np.zeros(0, dtype=np.int64)
    if not len(arcs) == len(chunks) == len(starts) == len(schedule.reduces):
        found.append("has columns of different lengths")
    elif len(arcs) and (arcs.min() < 0 or arcs.max() >= len(network.src)):
        found.append("names an arc that does not exist")
    elif len(arcs) and (chunks.min() < 0 or chunks.max() >= len(demand.origin)):
        found.append("names a chunk that does not exist")
    elif len(arcs) and starts.min() < 0:
        found.append("begins before time 0")
    if found:
        return none, none, none, none, (none, none), none
    used, which = np.unique(arcs, return_inverse=True)
    which = which.reshape(-1)
    npus = np.array(network.npus, dtype=np.int64)
    tails, heads = np.asarray(network.src)[used].astype(np.int64), np.asarray(network.dst)[used].astype(np.int64)
    route_ptr, route = topology.routes(npus[tails], npus[heads])
    lengths = np.diff(route_ptr)
    size = _sizes(schedule)[chunks]
    count = lengths[which]
    ptr = np.concatenate(([0], np.cumsum(count)))
    links = route[np.arange(ptr[-1]) + np.repeat(route_ptr[which] - ptr[:-1], count)]
    # Serialization, exact and rounded up, once per pair of size and bandwidth.
    pairs = np.repeat(size, count) * len(topology.bandwidths) + topology.bandwidth_class[links]
    distinct, inverse = np.unique(pairs, return_inverse=True)
    times = []
    for pair in distinct.tolist():
        nbytes, rate = divmod(pair, len(topology.bandwidths))
        rate = topology.bandwidths[rate]
        times.append(-(-nbytes * PS_PER_S * rate.denominator // rate.numerator))
    alone = np.array(times, dtype=np.int64)[inverse.reshape(-1)]
    latency = topology.latency_ps[links]
    start, end = np.empty(len(links), dtype=np.int64), np.empty(len(links), dtype=np.int64)
    head, tail = starts.copy(), starts.copy()
    for position in range(int(count.max(initial=0))):
        rows = np.flatnonzero(count > position)
        at_hop = ptr[:-1][rows] + position
        start[at_hop] = head[rows] if network.cost.model == "cut_through" else tail[rows]
        sent = np.maximum(start[at_hop] + alone[at_hop], tail[rows])
        head[rows], tail[rows] = start[at_hop] + latency[at_hop], sent + latency[at_hop]
        end[at_hop] = tail[rows] if network.cost.link_busy == "latency+bytes" else sent
    waits = not len(network.occupied_start) and bool((count > 1).any())
    if waits and len(_meetings(links, start, end)[0]):
        tail = _queue(network.cost, links, ptr, starts, alone, latency, (start, end), network.topology, found)
    return links, ptr, tails[which], heads[which], (start, end), tail


def _meetings(links: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of holds, by link and time, that meet."""
    order = np.lexsort((end, start, links))
    links, start, end = links[order], start[order], end[order]
    row = np.flatnonzero((links[1:] == links[:-1]) & (start[1:] < end[:-1]))
    return order[row], order[row + 1]


def _queue(cost, links, ptr, starts, alone, latency, hold, topology, found: list[str]) -> np.ndarray:
    """Arrivals where messages wait for links in the order of asking, then of starts; fills the holds."""
    through, keeps = cost.model == "cut_through", cost.link_busy == "latency+bytes"
    order, tail = np.argsort(starts, kind="stable"), starts.copy()
    free, asked = np.zeros(topology.links, dtype=np.int64), np.full((2, topology.links), -1, dtype=np.int64)
    events, fault = np.empty(len(starts) + 1, dtype=ENTRY), np.empty((_MOST, 4), dtype=np.int64)
    faults = _served(
        links, ptr, starts, alone, latency, through, keeps, order, free, asked, events, *hold, tail, fault
    )  # fmt: skip
    for open_order, link, now, row in fault[:faults].tolist():
        name = topology.link_name(link)
        if open_order:
            found.append(f"two transfers ask for link {name} at {now} ps: either may go first")
        else:
            found.append(f"transfer {row}: link {name} is taken when it begins, at {now} ps")
    return tail


@kernel("the synthesizer", threads=True, lean=True)
def _served(links, ptr, first, alone, latency, through, keeps, order, free, asked, events, start, end, tail, fault):
    """Serve all requests in their order: fills `start`, `end` by hop and `tail` by transfer; returns the faults."""
    size, faults = np.int64(0), 0
    for place in range(len(order)):
        push(events, size, first[order[place]], np.int64(place), ptr[order[place]])
        size += 1
    while size:
        now, tie, at = events[0].key, events[0].tie, events[0].item
        size = pop(events, size)
        row = order[tie]
        link = links[at]
        if asked[0, link] == now and asked[1, link] == first[row] and faults < len(fault):
            fault[faults, 0], fault[faults, 1], fault[faults, 2], fault[faults, 3] = 1, link, now, row
            faults += 1
        asked[0, link], asked[1, link] = now, first[row]
        begin = max(now, free[link])
        if at == ptr[row] and begin > now and faults < len(fault):
            fault[faults, 0], fault[faults, 1], fault[faults, 2], fault[faults, 3] = 0, link, now, row
            faults += 1
        sent = max(begin + alone[at], tail[row]) if through else begin + alone[at]
        tail[row] = sent + latency[at]
        start[at], end[at] = begin, tail[row] if keeps else sent
        free[link] = end[at]
        if at + 1 < ptr[row + 1]:
            push(events, size, begin + latency[at] if through else tail[row], tie, at + 1)
            size += 1
    return faults


def _check_links(schedule: Schedule, links: np.ndarray, ptr: np.ndarray, hold, found: list[str]) -> None:
    start, end = hold
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    network = schedule.network
    if len(network.occupied_start):
        theirs = np.repeat(network.links, np.diff(network.occupied_ptr)).astype(np.int64)
        links = np.concatenate([links, theirs])
        start = np.concatenate([start, network.occupied_start])
        end = np.concatenate([end, network.occupied_end])
        owner = np.concatenate([owner, np.full(len(theirs), -1)])
    for a, b in np.stack(_meetings(links, start, end), axis=1)[:_MOST].tolist():
        name = network.topology.link_name(int(links[a]))
        one, other = (f"transfer {o}" if o >= 0 else "another schedule" for o in (owner[a], owner[b]))
        found.append(f"link {name} is held by {one} until {int(end[a])} ps and by {other} from {int(start[b])} ps")


class _Places:
    """Numbers of the pairs of rank and chunk that a schedule or its promise names.

    All pairs where every rank has to do with every chunk; else the promise and the transfers name few of them.
    """

    def __init__(self, schedule: Schedule, source: np.ndarray, target: np.ndarray) -> None:
        demand = schedule.demand
        self._chunks = len(demand.origin)
        chunk, every = np.asarray(schedule.chunk, dtype=np.int64), np.arange(self._chunks)
        ends = [(demand.origin, every), (source, chunk), (target, chunk)]
        self._named: np.ndarray | None = None
        self.count = demand.ranks * self._chunks
        if demand.receivers is not None:
            ends.append((demand.receivers, every))
            self._named = distinct(np.concatenate([self._pair(*end) for end in ends]))
            self.count = len(self._named)
            self.wanted = self.of(demand.receivers, every)
        self.home, self.source, self.target = (self.of(*end) for end in ends[:3])

    def _pair(self, rank: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        return rank.astype(np.int64) * self._chunks + chunk

    def of(self, rank: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        pair = self._pair(rank, chunk)
        return pair if self._named is None else np.searchsorted(self._named, pair)


def _check_data(schedule: Schedule, source, target, arrival, found: list[str]) -> None:
    """Copies and sums of every chunk, executed in the order of time."""
    demand = schedule.demand
    start, reduces = np.asarray(schedule.start), np.asarray(schedule.reduces, dtype=bool)
    kind = demand.collective
    if demand.receivers is not None and reduces.any():
        found.append("reduces what has one contributor")
        return
    places = _Places(schedule, source, target)
    #: When a rank has a chunk as the collective promises it (a copy, or the whole sum).
    has = np.full(places.count, _NEVER, dtype=np.int64)
    home = places.home
    if reduces.any() or kind in ("reduce_scatter", "reduce", "all_reduce"):
        home, whole = _check_sums(schedule, places, arrival, start, reduces, found)
        has[home] = whole
    else:
        has[home] = 0
    copies = np.flatnonzero(~reduces)
    np.minimum.at(has, places.target[copies], arrival[copies])
    late = copies[has[places.source[copies]] > start[copies]]
    for row in late[:_MOST].tolist():
        found.append(
            f"transfer {row}: rank {int(source[row])} sends chunk {int(schedule.chunk[row])} at {int(start[row])} ps, "
            "before it has it"
        )
    if kind in ("reduce_scatter", "reduce"):
        lacking = np.flatnonzero(has[home] == _NEVER)
        where = demand.origin[lacking]
    elif demand.receivers is not None:
        lacking = np.flatnonzero(has[places.wanted] == _NEVER)
        where = demand.receivers[lacking]
    else:
        where, lacking = np.divmod(np.flatnonzero(has == _NEVER), len(demand.origin))
    for rank, each in zip(where[:_MOST].tolist(), lacking[:_MOST].tolist(), strict=True):
        found.append(f"rank {rank} never gets chunk {each}")


def _check_sums(schedule, places: _Places, arrival, start, reduces, found: list[str]):
    """(cell of rank and chunk, time) at which each sum is whole; every rank must contribute exactly once.

    In an all_reduce every rank has the sum in the end, so any rank that sends no part of it may be the home.
    """
    demand = schedule.demand
    n, count = demand.ranks, len(demand.origin)
    rows = np.flatnonzero(reduces)
    sends, gets, home = places.source[rows], places.target[rows], places.home
    times = np.bincount(sends, minlength=n * count)
    if demand.collective == "all_reduce":
        silent = times.reshape(n, count) == 0
        rank = np.where(silent.any(axis=0), silent.argmax(axis=0), demand.origin.astype(np.int64))
        home = rank * count + np.arange(count)
    needed = np.ones(n * count, dtype=bool)
    needed[home] = False
    twice, never, away = np.flatnonzero(times > 1), np.flatnonzero(needed & (times == 0)), np.flatnonzero(times[home])
    for word, cells in (("sends its part twice of", twice), ("never sends its part of", never)):
        for cell in cells[:_MOST].tolist():
            found.append(f"rank {cell // count} {word} chunk {cell % count}")
    for each in away[:_MOST].tolist():
        found.append(f"chunk {each} leaves its home while it is summed")
    complete = np.zeros(n * count, dtype=np.int64)
    np.maximum.at(complete, gets, arrival[rows])
    early = rows[complete[sends] > start[rows]]
    for row in early[:_MOST].tolist():
        found.append(
            f"transfer {row}: rank {int(schedule.src[row])} sends its part of chunk {int(schedule.chunk[row])} "
            "before it is complete"
        )
    if not found:
        # Transfers that take no time could pass a part round in a circle.
        onward = np.arange(n * count)
        onward[sends] = gets
        for _ in range(n.bit_length()):
            onward = onward[onward]
        for cell in np.flatnonzero(onward != np.tile(home, n))[:_MOST].tolist():
            found.append(f"the part of rank {cell // count} of chunk {cell % count} never reaches its home")
    return home, complete[home]
