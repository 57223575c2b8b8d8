"""Paths of messages that share links evenly."""

from collections import namedtuple
from functools import cached_property

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.core.rows import pointers
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_to, rows_of
from astrasim_py.synthesis.model.insertion import FAR, GO, calendars, grow, growth, hold
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import shuffle
from astrasim_py.topology.routing import mix

#: Bits that costs may have.
_COST_BITS = 34

#: Paths of messages: int32[messages, stride] arcs, int32[messages] lengths, int64[resources] ps of load per link.
Paths = namedtuple("Paths", "arc length load")


@kernel("the synthesizer", threads=True, lean=True)
def _balance(net, calendar, growth, origin, goal, kind, order, passes, stop, arc, length):
    """Let every message choose its path anew, by the price of links, `passes` times; False: no success."""
    take, give, forward = np.int64(1), np.int64(-1), True
    for _ in range(passes):
        for q in range(len(order)):
            m = order[q]
            z = np.int64(kind[m])
            for i in range(length[m]):
                hold(net, calendar, np.int64(arc[m, i]), np.int64(0), z, give)
            root, to = np.int64(origin[m]), np.int64(goal[m])
            goes = grow(net, calendar, growth, root, to, np.int64(0), forward, FAR, z)[1]
            if goes < 1 or goes > arc.shape[1]:
                return False
            length[m] = goes
            for i in range(goes):
                arc[m, i] = growth.arcs[i]
                hold(net, calendar, np.int64(arc[m, i]), np.int64(0), z, take)
            if stop[0] != 0:
                return False
        shuffle(order, np.int64(0), len(order), growth.random)
    return True


class Messages:
    """The chunks of a demand with one receiver each that must move: int32[messages] columns."""

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.chunk = np.flatnonzero(demand.origin != demand.targets).astype(np.int32)
        self.origin = np.ascontiguousarray(demand.origin[self.chunk], dtype=np.int32)
        self.receiver = np.ascontiguousarray(demand.targets[self.chunk], dtype=np.int32)
        self.kind = np.ascontiguousarray(demand.size_class[self.chunk], dtype=np.int32)
        self.timing = network.timing(demand.sizes)

    @cached_property
    def ahead(self) -> np.ndarray:
        """int64[n, n]: the least time to each rank from each, in ps."""
        # A chunk of the smallest class is the fastest: no path takes less time than its path.
        return distances_to(self.timing, self.timing.delay[-1])

    @cached_property
    def hops(self) -> int:
        """Most arcs of a shortest path."""
        return max(int(distances_to(self.timing, np.ones(self.network.arcs, dtype=np.int64)).max()), 1)

    @cached_property
    def stride(self) -> int:
        """Room for the arcs of a path."""
        return min(2 * self.hops + 4, self.network.ranks)

    def shortest_paths(self, rows: np.ndarray) -> Paths:
        """Shortest paths of some messages (int[rows]), which are spread over the arcs that begin one."""
        timing, origin, receiver = self.timing, self.origin[rows].astype(np.int64), self.receiver[rows]
        ptr, out = timing.out_ptr, timing.out_arc
        # A picosecond an arc, so that a path of arcs that take no time is no circle.
        delay = timing.delay[-1] + 1
        ahead, delay, end, tail = distances_to(timing, delay), delay[out], timing.dst[out], timing.src[out]
        steps: list[np.ndarray] = []
        ends = pointers(np.bincount(receiver, minlength=self.network.ranks))
        order = np.argsort(receiver, kind="stable")
        for goal in np.flatnonzero(np.diff(ends)).tolist():
            cost = delay + ahead[goal, end]
            ties = np.cumsum(cost == np.minimum.reduceat(cost, ptr[:-1])[tail])
            before = np.append(0, ties)[ptr]
            going, hop = order[ends[goal] : ends[goal + 1]], 0
            place = origin[going]
            while len(going):
                # Origins begin by turns; what meets on the way then goes on by chance.
                turn = (goal + place).astype(np.uint64) if hop == 0 else mix(goal, origin[going], hop)
                turn = (turn % np.diff(before)[place].astype(np.uint64)).astype(np.int64)
                arc = out[np.searchsorted(ties, before[place] + turn + 1)]
                if hop == len(steps):
                    steps.append(np.full(len(rows), -1, dtype=np.int32))
                steps[hop][going] = arc
                place, hop = timing.dst[arc], hop + 1
                going, place = going[place != goal], place[place != goal]
        arc = np.stack(steps, axis=1) if steps else np.empty((len(rows), 0), dtype=np.int32)
        length = (arc >= 0).sum(axis=1, dtype=np.int32)
        return Paths(arc, length, self._load(arc, length, self.kind[rows]))

    def balanced_paths(self, passes: int, seed: int, stop: np.ndarray | None = None) -> Paths | None:
        """Paths that share links evenly, every message choosing its path `passes` times; None after a stop signal."""
        network, timing, count = self.network, self.timing, len(self.chunk)
        shift = max(int(timing.delay.max(initial=1)).bit_length() - _COST_BITS, 0)
        cheap = timing._replace(
            offset=np.zeros_like(timing.offset), hold=timing.hold >> shift, delay=timing.delay >> shift
        )
        # Mean load of a link if every message took the path with the least total hold.
        weight = np.zeros(network.arcs, dtype=np.int64)
        np.add.at(weight, np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr)), cheap.hold[0])
        whole = float(distances_to(timing, weight)[self.receiver, self.origin].astype(np.float64).sum())
        mean = max(int(whole) // max(len(network.links), 1), 1)
        random = np.random.Generator(np.random.PCG64(seed))
        order, state, stride = random.permutation(count), random.integers(1, 2**63, 1, dtype=np.uint64), self.stride
        stop = GO if stop is None else stop
        while True:
            arc, length = np.zeros((count, stride), dtype=np.int32), np.zeros(count, dtype=np.int32)
            empty = calendars(network.alone)
            tree = growth(network, self.ahead >> shift, state.copy(), 0, mean, 1)
            if _balance(
                cheap, empty, tree, self.origin, self.receiver, self.kind, order.copy(), passes, stop, arc, length
            ):
                break
            if stop[0] or stride >= network.ranks:
                return None
            stride = min(2 * stride, network.ranks)
        return Paths(arc, length, self._load(arc, length, self.kind))

    def _load(self, arc: np.ndarray, length: np.ndarray, kind: np.ndarray) -> np.ndarray:
        """int64[resources]: ps that paths hold each link."""
        used = np.arange(arc.shape[1]) < length[:, None]
        ptr, hops = rows_of(self.network.hop_ptr, arc[used])
        kind = np.repeat(np.repeat(kind, length), np.diff(ptr))
        load = np.zeros(len(self.network.links), dtype=np.int64)
        np.add.at(load, self.network.hop[hops], self.timing.hold[kind, hops])
        return load
