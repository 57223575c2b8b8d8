"""Lower bounds by cuts: the time in which the links between two parts of a network carry all data that must cross.

For chunks that go to everybody this is the cut bound of Edmonds' branchings, as ForestColl (Zhao et al., arXiv
2402.06787) uses it: in time T links have room for so many whole chunks, and a maximum flow says whether all chunks can
reach every receiver. Chunks with one receiver are bounded by cuts in orders of the ranks, and by weights of links: T
times the sum of the weights is no less than the work of all chunks on their lightest paths (the dual of concurrent
flow). All bounds are exact integers; floating-point numbers only choose where to look.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.max_flow import FlowGraph
from astrasim_py.cuts.partitions import partitions
from astrasim_py.cuts.spreading import spreading_cut as tightest_cut
from astrasim_py.synthesis.bounds.balanced_paths import Messages
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_to
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import Timing

#: Sinks that are tried at most where the network has no symmetry.
_MOST_SINKS = 64
#: Ranks, and arcs, beyond which cuts of chunks with one receiver are not looked for, and arcs for weights of links.
_MAX_RANKS, _MAX_ARCS, _MOST_ARCS = 512, 40_000, 200_000
#: Messages × arcs beyond which loads of links are those of shortest paths.
_QUICK = 2**30
_ORDERS = 48
_TRIED = 6
_SCALE = 20
_FAR = 2**62


class _Rooms:
    """How many chunks of the smallest size every resource has room for in a time."""

    def __init__(self, network: Network, timing: Timing) -> None:
        self.network = network
        hop, arc = network.hop, np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr))
        count = len(network.links)
        self.hold, self.head, self.rest = (np.full(count, _FAR, dtype=np.int64) for _ in range(3))
        np.minimum.at(self.hold, hop, timing.hold[0])
        np.minimum.at(self.head, hop, timing.offset[0])
        np.minimum.at(self.rest, hop, timing.delay[0][arc] - timing.offset[0] - timing.hold[0])

    def within(self, time: int) -> np.ndarray:
        """int64[resources]; a resource that is never held has room for 2**40."""
        free = np.maximum(time - self.head - self.rest, -1)
        rooms = free // np.maximum(self.hold, 1)
        return np.where(self.hold > 0, np.maximum(rooms, 0), np.where(free >= 0, 2**40, 0))

    @cached_property
    def _flows(self) -> FlowGraph:
        """Ranks, then both ends of every resource; the edges of resources come first."""
        network, n, count = self.network, self.network.ranks, len(self.network.links)
        # The hops of an arc stand in the order of the network that is not reversed.
        back = network.reverse_of is not None
        ends = network.hop[network.hop_ptr[:-1]], network.hop[network.hop_ptr[1:] - 1]
        first, last = ends[::-1] if back else ends
        inner = np.ones(len(network.hop), dtype=bool)
        inner[network.hop_ptr[1:] - 1] = False
        at = np.flatnonzero(inner)
        before, behind = (network.hop[at + 1], network.hop[at]) if back else (network.hop[at], network.hop[at + 1])
        tail = np.concatenate([network.src, n + count + last, n + count + before]).astype(np.int64)
        head = np.concatenate([n + first, network.dst, n + behind]).astype(np.int64)
        vertices = n + 2 * count
        tail, head = np.divmod(np.unique(tail * vertices + head), vertices)
        links = np.arange(count)
        return FlowGraph(vertices, np.concatenate([n + links, tail]), np.concatenate([n + count + links, head]))

    @cached_property
    def _backward(self) -> FlowGraph:
        return FlowGraph(self._flows.vertices, self._flows.head, self._flows.tail)

    def flow_time(self, supply: np.ndarray, end: int, floor: int, stop: np.ndarray, *, backward: bool = False) -> int:
        """The least time in which the chunks of all ranks (int64[n]) can flow to one rank, or `backward` from it, if
        that is more than `floor`; after a stop signal, what is proven."""
        count, flows = len(self.network.links), self._backward if backward else self._flows
        supplies = np.zeros(flows.vertices, dtype=np.int64)
        supplies[: self.network.ranks] = supply
        supplies[end] = 0
        total, best = int(supplies.sum()), floor
        while total and not stop[0]:
            capacity = np.full(len(flows.tail), total, dtype=np.int64)
            capacity[:count] = np.minimum(self.within(best), total)
            inside = flows.least_cut(capacity, supplies, end)
            if inside is None:
                break
            used = np.flatnonzero((inside[flows.tail] & ~inside[flows.head])[:count])
            chunks = int(supplies[inside].sum())
            later = self.crossing(used, chunks, best)
            if later <= best:
                break
            best = later
        return best

    def crossing(self, used: np.ndarray, chunks: int, floor: int) -> int:
        """The least time in which resources together have room for so many chunks, if that is more than `floor`."""
        if not chunks or not len(used):
            return floor
        return _least(lambda time: int(self.within(time)[used].sum()) >= chunks, floor)


def _least(feasible: Callable[[int], bool], floor: int, stop: np.ndarray = GO) -> int:
    """The least time from `floor` on that is feasible; after a stop signal, the least not known to be infeasible."""
    if stop[0] or feasible(floor):
        return floor
    step = max(floor // 8, 1)
    low = floor
    while not stop[0] and not feasible(low + step):
        low, step = low + step, 2 * step
        if step > _FAR // 4:
            return floor
    high = low + step
    while high - low > 1 and not stop[0]:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return low + 1


def _sinks(network: Network, rooms: _Rooms) -> list[int]:
    """One rank of each class of symmetry, or, if these are many, some ranks."""
    if not len(network.occupied_start):
        graph = CapacityGraph.of(network.topology, network.npus, relays=network.relays, links=network.links)
        if len(graph.first_of_classes) <= _MOST_SINKS:
            return graph.first_of_classes.tolist()
    return _some(network, rooms)


def _some(network: Network, rooms: _Rooms) -> list[int]:
    """All ranks, or, if these are many, those that are hard to reach, and a few others."""
    if network.ranks <= _MOST_SINKS:
        return list(range(network.ranks))
    rate = np.zeros(network.ranks)
    last = network.hop[network.hop_ptr[1:] - 1]
    np.add.at(rate, network.dst, 1 / np.maximum(rooms.hold[last], 1))
    hard = np.argsort(rate, kind="stable")[: _MOST_SINKS // 2].tolist()
    even = np.linspace(0, network.ranks - 1, _MOST_SINKS).astype(int).tolist()
    return list(dict.fromkeys([*hard, *even]))[:_MOST_SINKS]


def spreading_cut(network: Network, timing: Timing, demand: Demand, floor: int, stop: np.ndarray = GO) -> int:
    """A bound by cuts of a demand that every rank has for every chunk; `floor` if it is no better than that."""
    rooms = _Rooms(network, timing)
    own = np.bincount(demand.origin, minlength=network.ranks)
    best = floor
    sinks = [] if stop[0] else _sinks(network, rooms) if (own == own[0]).all() else _some(network, rooms)
    for sink in sinks:
        best = rooms.flow_time(own, sink, best, stop)
    return best


def reducing_cut(network: Network, timing: Timing, chunks: int, floor: int, stop: np.ndarray = GO) -> int:
    """A bound of all_reduce: every chunk must cross every cut, both ways, wherever it is summed."""
    rooms, best = _Rooms(network, timing), floor
    first, *others = _some(network, rooms)
    for other in [] if stop[0] else others:
        for a, b in ((first, other), (other, first)):
            supply = np.zeros(network.ranks, dtype=np.int64)
            supply[a] = chunks
            best = rooms.flow_time(supply, b, best, stop)
    return best


def partition_bound(network: Network, timing: Timing, chunks: int, floor: int, stop: np.ndarray = GO) -> int:
    """A bound of all_reduce by partitions: to sum a chunk, and to spread the sum, all parts but one must each be
    entered, and left, once."""
    if stop[0] or len(network.occupied_start):
        return floor
    rooms, best = _Rooms(network, timing), floor
    graph = CapacityGraph.of(network.topology, network.npus, relays=network.relays, links=network.links)
    every = np.ones(network.ranks, dtype=np.int64)
    halves = tuple(tightest_cut(each, every, stop=stop) for each in (graph, graph.reversed))
    for partition in partitions(graph, halves):
        for edges in (partition.entering, partition.leaving):
            used = np.searchsorted(network.links, graph.links[edges])
            best = rooms.crossing(used, 2 * (partition.count - 1) * chunks, best)
    return best


def routing_cut(network: Network, timing: Timing, demand: Demand, floor: int, stop: np.ndarray = GO) -> int:
    """A bound by cuts of chunks with one receiver each; `floor` if it is no better than that."""
    moving = demand.targets != demand.origin
    origin, receiver = demand.origin[moving].astype(np.int64), demand.targets[moving].astype(np.int64)
    n = network.ranks
    if not len(origin):
        return floor
    small = n <= _MAX_RANKS and network.arcs <= _MAX_ARCS
    rooms, best = _Rooms(network, timing), floor
    leave, enter = np.bincount(origin, minlength=n), np.bincount(receiver, minlength=n)
    if (enter > 0).sum() == 1:
        return rooms.flow_time(leave, int(enter.argmax()), floor, stop)
    if (leave > 0).sum() == 1:
        return rooms.flow_time(enter, int(leave.argmax()), floor, stop, backward=True)
    if stop[0]:
        return floor
    between = np.bincount(origin * n + receiver, minlength=n * n).reshape(n, n)
    for inside in (*_parts(network), *(_cuts(network, timing, rooms, between, stop) if small else ())):
        chunks = int(between[np.ix_(inside, ~inside)].sum())
        crossing = inside[network.src] & ~inside[network.dst]
        # A resource takes a chunk across if any crossing arc uses it; the most constrained resource of each arc
        # suffices.
        for ends in (network.hop_ptr[:-1], network.hop_ptr[1:] - 1):
            best = max(best, rooms.crossing(np.unique(network.hop[ends[crossing]]), chunks, best))
    return best


def _parts(network: Network) -> Iterator[np.ndarray]:
    """Groups of ranks, bool[n], that switches, links or latencies tell apart, and all other ranks of each."""
    if len(network.occupied_start):
        return
    graph = CapacityGraph.of(network.topology, network.npus, relays=network.relays, links=network.links)
    for partition in partitions(graph):
        for inside in partition.cuts():
            members = inside[graph.members]
            yield members
            yield ~members


def _cuts(network: Network, timing: Timing, rooms: _Rooms, between: np.ndarray, stop: np.ndarray):
    """Parts (bool[n]) with much outgoing demand and little outgoing bandwidth, the worst first."""
    n = network.ranks
    first = network.hop[network.hop_ptr[:-1]]
    rate = np.zeros((n, n))
    # Arcs that share their first link share its rate.
    share = np.bincount(first, minlength=len(network.links))[first]
    rate[network.src, network.dst] = 1 / np.maximum(rooms.hold[first], 1) / share
    slow = np.maximum(rooms.hold[first], 1)
    reach = distances_to(timing, slow)
    orders = [np.argsort(reach[r], kind="stable") for r in np.unique(np.linspace(0, n - 1, _ORDERS).astype(int))]
    both = rate + rate.T
    values, vectors = np.linalg.eigh(np.diag(both.sum(axis=1)) - both)
    # Rounded, so that ties fall alike on every machine.
    size = np.abs(vectors).max(axis=0)
    orders += [np.argsort(np.round(vectors[:, k] / size[k], 6), kind="stable") for k in range(1, min(4, len(values)))]
    found = []
    for row, order in enumerate(orders):
        if stop[0]:
            break
        for row_order in (order, order[::-1]):
            asked, width = (np.zeros(n) for _ in range(2))
            for matrix, into in ((between, asked), (rate, width)):
                m = matrix[np.ix_(row_order, row_order)].astype(float)
                total = np.zeros((n + 1, n + 1))
                total[1:, 1:] = m.cumsum(axis=0).cumsum(axis=1)
                k = np.arange(1, n)
                into[:-1] = total[k, n] - total[k, k]
            ratio = np.where(width[:-1] > 0, asked[:-1] / np.maximum(width[:-1], 1e-300), 0)
            for at in np.argsort(-ratio, kind="stable")[:2].tolist():
                found.append((-float(ratio[at]), row, row_order[: at + 1]))
    found.sort(key=lambda entry: entry[:2])
    for _, _, members in found[:_TRIED]:
        inside = np.zeros(n, dtype=bool)
        inside[members] = True
        yield inside


def weighted_work(network: Network, demand: Demand, floor: int, stop: np.ndarray = GO) -> int:
    """A bound by weights of links, of chunks with one receiver each; `floor` if it is no better than that."""
    moving = demand.targets != demand.origin
    origin, receiver = demand.origin[moving], demand.targets[moving]
    if not len(origin) or network.arcs > _MOST_ARCS:
        return floor
    timing = network.timing(demand.sizes)
    hold = timing.hold[0]
    if not hold.size or hold.max() == 0:
        return floor
    # Least hold of a chunk of each class on any link, in 2^20ths of the hold of the largest.
    part = ((timing.hold[:, hold > 0].astype(object) << _SCALE) // hold[hold > 0].astype(object)).min(axis=1)
    part = part[demand.size_class[moving]]
    rooms = _Rooms(network, network.timing([int(demand.sizes[-1])]))
    idle = rooms.head + rooms.rest
    arc = np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr))
    shift = max(int(hold.max()).bit_length() - 40, 0)
    best = floor
    pairs, which = np.unique(origin.astype(np.int64) * network.ranks + receiver, return_inverse=True)
    parts = np.zeros(len(pairs), dtype=object)
    np.add.at(parts, which.reshape(-1), part)
    loads = None
    for power in (0, 1, 4, 16, 64):
        if stop[0]:
            break
        if power == 0:
            weight = np.full(len(network.links), 1024, dtype=np.int64)
        else:
            if loads is None:
                messages = Messages(network, demand)
                quick = len(messages.chunk) * network.arcs > _QUICK
                every = np.arange(len(messages.chunk))
                paths = messages.shortest_paths(every) if quick else messages.balanced_paths(3, 0, stop)
                if paths is None:
                    break
                loads = paths.load.astype(float)
            weight = np.round(1024 * (loads / max(loads.max(), 1)) ** power).astype(np.int64)
        cost = np.zeros(network.arcs, dtype=np.int64)
        np.add.at(cost, arc, weight[network.hop] * (hold >> shift))
        far = distances_to(timing, cost)[pairs % network.ranks, pairs // network.ranks]
        used = int((far.astype(object) * parts).sum() >> _SCALE) << shift
        best = max(best, _filled(used, weight, idle))
    return best


def _filled(used: int, weight: np.ndarray, idle: np.ndarray) -> int:
    """Least T with Σ weight · max(0, T - idle) ≥ used: a link whose way is longer than T counts for nothing."""
    if not used:
        return 0
    order = np.flatnonzero(weight)
    order = order[np.argsort(idle[order], kind="stable")]
    weights = weight[order].astype(object)
    # Using only the links of shortest paths takes at least as long as using all of them.
    together, late = np.cumsum(weights), np.cumsum(weights * idle[order])
    return min(-(-(used + behind) // rate) for rate, behind in zip(together, late, strict=True))
