"""Paths of messages that share links evenly."""

from collections import namedtuple

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import distances_to, rows_of
from astrasim_py.synthesis.model.insertion import FAR, GO, calendars, grow, growth, hold
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.random_numbers import shuffle

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
        self.timing = timing = network.timing(demand.sizes)
        # A chunk of the smallest class is the fastest: no path takes less time than its path.
        self.ahead = distances_to(timing, timing.delay[-1])
        #: Most arcs of a shortest path.
        self.hops = max(int(distances_to(timing, np.ones(network.arcs, dtype=np.int64)).max()), 1)
        self.stride = min(2 * self.hops + 4, network.ranks)

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
        return Paths(arc, length, self._load(arc, length))

    def _load(self, arc: np.ndarray, length: np.ndarray) -> np.ndarray:
        """int64[resources]: ps that paths hold each link."""
        used = np.arange(arc.shape[1]) < length[:, None]
        ptr, hops = rows_of(self.network.hop_ptr, arc[used])
        kind = np.repeat(np.repeat(self.kind, length), np.diff(ptr))
        load = np.zeros(len(self.network.links), dtype=np.int64)
        np.add.at(load, self.network.hop[hops], self.timing.hold[kind, hops])
        return load
