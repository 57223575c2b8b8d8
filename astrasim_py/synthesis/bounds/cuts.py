"""Lower bounds by cuts: the time in which the links between two parts of a network carry all data that must cross.

For chunks that go to everybody this is the cut bound of Edmonds' branchings, as ForestColl (Zhao et al., arXiv
2402.06787) uses it: in time T links have room for so many whole chunks, and a maximum flow says whether all chunks can
reach every receiver. Chunks with one receiver are bounded by cuts in orders of the ranks, and by weights of links: T
times the sum of the weights is no less than the work of all chunks on their lightest paths (the dual of concurrent
flow). All bounds are exact integers; floating-point numbers only choose where to look.
"""

from collections.abc import Callable

import numpy as np

from astrasim_py.synthesis.bounds.balanced_paths import Messages
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_to
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import Timing

#: Sinks × links of the flows of one bound, at most.
_FLOWS = 2_000
_MOST_SINKS = 12
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


def _flow_time(rooms: _Rooms, supply: np.ndarray, need: np.ndarray, floor: int, stop: np.ndarray) -> int:
    """The least time in which all supplies of ranks can flow to their demands, if that is more than `floor`."""
    import networkx as nx

    total = int(need.sum())
    if not total:
        return floor
    network = rooms.network
    graph: nx.DiGraph = nx.DiGraph()
    for r in range(len(network.links)):
        graph.add_edge(("in", r), ("out", r), capacity=0)
    ends = network.hop[network.hop_ptr[1:] - 1].tolist(), network.hop[network.hop_ptr[:-1]].tolist()
    for u, v, last, first in zip(network.src.tolist(), network.dst.tolist(), *ends, strict=True):
        graph.add_edge(u, ("in", first))
        graph.add_edge(("out", last), v)
    inner = np.ones(len(network.hop), dtype=bool)
    inner[network.hop_ptr[1:] - 1] = False
    for at in np.flatnonzero(inner).tolist():
        graph.add_edge(("out", int(network.hop[at])), ("in", int(network.hop[at + 1])))
    for rank in range(network.ranks):
        if supply[rank]:
            graph.add_edge("from", rank, capacity=int(supply[rank]))
        if need[rank]:
            graph.add_edge(rank, "to", capacity=int(need[rank]))

    def feasible(time: int) -> bool:
        for r, room in enumerate(rooms.within(time).tolist()):
            graph["in", r]["out", r]["capacity"] = room
        return nx.maximum_flow_value(graph, "from", "to", flow_func=nx.algorithms.flow.dinitz) >= total

    return _least(feasible, floor, stop)


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
    """Ranks that are likely to be hard to reach, and a few others."""
    most = min(_MOST_SINKS, _FLOWS // max(len(network.links), 1), network.ranks)
    if most < 1:
        return []
    rate = np.zeros(network.ranks)
    last = network.hop[network.hop_ptr[1:] - 1]
    np.add.at(rate, network.dst, 1 / np.maximum(rooms.hold[last], 1))
    hard = np.argsort(rate, kind="stable")[: (most + 1) // 2].tolist()
    even = np.linspace(0, network.ranks - 1, most).astype(int).tolist()
    return list(dict.fromkeys([*hard, *even]))[:most]


def spreading_cut(network: Network, timing: Timing, demand: Demand, floor: int, stop: np.ndarray = GO) -> int:
    """A bound by cuts of a demand that every rank has for every chunk; `floor` if it is no better than that."""
    rooms = _Rooms(network, timing)
    own = np.bincount(demand.origin, minlength=network.ranks)
    best = floor
    for sink in [] if stop[0] else _sinks(network, rooms):
        supply, need = own.copy(), np.zeros(network.ranks, dtype=np.int64)
        supply[sink] = 0
        need[sink] = int(supply.sum())
        best = _flow_time(rooms, supply, need, best, stop)
    return best


def reducing_cut(network: Network, timing: Timing, chunks: int, floor: int, stop: np.ndarray = GO) -> int:
    """A bound of all_reduce: every chunk must cross every cut, both ways, wherever it is summed."""
    rooms = _Rooms(network, timing)
    best = floor
    sinks = _sinks(network, rooms)
    for other in sinks[1 : 1 + len(sinks) // 2]:
        for a, b in ((sinks[0], other), (other, sinks[0])):
            supply, need = np.zeros((2, network.ranks), dtype=np.int64)
            supply[a], need[b] = chunks, chunks
            best = _flow_time(rooms, supply, need, best, stop)
    return best


def routing_cut(network: Network, timing: Timing, demand: Demand, floor: int, stop: np.ndarray = GO) -> int:
    """A bound by cuts of chunks with one receiver each; `floor` if it is no better than that."""
    moving = demand.targets != demand.origin
    origin, receiver = demand.origin[moving].astype(np.int64), demand.targets[moving].astype(np.int64)
    n = network.ranks
    if not len(origin) or n > _MAX_RANKS or network.arcs > _MAX_ARCS:
        return floor
    rooms = _Rooms(network, timing)
    leave, enter = np.bincount(origin, minlength=n), np.bincount(receiver, minlength=n)
    if min((leave > 0).sum(), (enter > 0).sum()) == 1:
        if len(network.links) > _FLOWS:
            return floor
        return _flow_time(rooms, leave, enter, floor, stop)
    between = np.bincount(origin * n + receiver, minlength=n * n).reshape(n, n)
    best = floor
    if stop[0]:
        return floor
    for inside in _cuts(network, timing, rooms, between, stop):
        chunks = int(between[np.ix_(inside, ~inside)].sum())
        crossing = inside[network.src] & ~inside[network.dst]
        # A resource takes a chunk across if any crossing arc uses it; the most constrained resource of each arc
        # suffices.
        used = np.unique(network.hop[network.hop_ptr[:-1][crossing]])
        best = max(best, _crossing(rooms, used, chunks, best))
        used = np.unique(network.hop[network.hop_ptr[1:][crossing] - 1])
        best = max(best, _crossing(rooms, used, chunks, best))
    return best


def _crossing(rooms: _Rooms, used: np.ndarray, chunks: int, floor: int) -> int:
    if not chunks:
        return floor
    return _least(lambda time: int(rooms.within(time)[used].sum()) >= chunks, floor)


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
