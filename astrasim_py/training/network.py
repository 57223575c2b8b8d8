"""Times of collectives on a network: the messages of their algorithms, level by level, on the routes of a topology.

Messages of a level are on their way at once, in all groups of a role; levels come one after the other. A level takes
the latency of its longest route plus the busy time of its busiest link: exact for algorithms whose ranks proceed in
step.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.units import PS_PER_S
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.model import Topology
from astrasim_py.topology.shares import with_shares

#: Bytes of the buffer for which algorithms are chosen and their messages measured.
LARGE = 2**30
#: The algorithm of a collective, the role of its group, and the NPUs of one of them.
Select = Callable[[str, str, tuple[int, ...]], Algorithm]


class Cost(NamedTuple):
    """Of a collective that all groups of a role call at once.

    `rate`: seconds per byte of the full buffer. `latency`: seconds. `steps`: levels of messages. `busy`: by link, in
    seconds per byte, how long it serves them. `turns`: by link, how often it has messages that wait for each other, at
    the same place of their routes.
    """

    rate: float
    latency: float
    steps: int
    busy: np.ndarray
    turns: np.ndarray


class NetworkCosts:
    """A topology, and the algorithm of each collective on it.

    `select`: ``select(collective, role, npus)``. `near`, `far`: factors on the rates of links that are as fast as those
    of the innermost dimension, and of others. `npus`: by rank; all by default.
    """

    def __init__(
        self, topology: Topology, select: Select, near: float = 1.0, far: float = 1.0, npus: Sequence[int] | None = None
    ) -> None:
        self.topology, self.select, self.near, self.far = topology, select, near, far
        self.npus = np.array(topology.alive if npus is None else npus)
        self._known: dict[tuple, Cost] = {}

    @cached_property
    def _seconds(self) -> np.ndarray:
        """Of a byte on each link."""
        achieved = with_shares(self.topology, self.near, self.far)
        return 1 / np.array([float(rate) for rate in achieved.bandwidths])[achieved.bandwidth_class]

    def cost(self, collective: str, role: str, members: int, stride: int) -> Cost:
        """Of groups of ranks that are `stride` apart; a ``chain`` is a message of each but the last to the next one, a
        ``ring`` of the last one as well.
        """
        key = collective, role, members, stride
        if key not in self._known:
            self._known[key] = self._cost(*key)
        return self._known[key]

    def _cost(self, collective: str, role: str, members: int, stride: int) -> Cost:
        ranks = np.arange(len(self.npus))
        first = ranks[(ranks // stride % members == 0) & (ranks + stride * (members - 1) < len(ranks))]
        groups = self.npus[first[:, None] + stride * np.arange(members)]
        if collective in ("ring", "chain"):
            source = np.arange(members - (collective == "chain"))
            levels = [(1, source, (source + 1) % members, np.ones(len(source)))]
        else:
            levels = _levels(self.select(collective, role, tuple(groups[0].tolist())))
        rate, latency, steps, busy, turns = 0.0, 0.0, 0, *np.zeros((2, len(self._seconds)))
        for count, source, target, shares in levels:
            ptr, links = self.topology.routes(groups[:, source].ravel(), groups[:, target].ravel())
            pair, slowest = graph.owners(ptr), self._seconds[links]
            part, place = np.tile(shares, len(groups))[pair], np.arange(len(links)) - ptr[pair]
            load_of, load, queue = part * slowest, np.zeros(len(busy)), np.zeros(len(busy))
            for hop in range(int(place.max(initial=-1)) + 1):
                at_hop = np.flatnonzero(place == hop)
                if hop:  # a message holds a link as long as it arrives
                    slowest[at_hop] = np.maximum(slowest[at_hop], slowest[at_hop - 1])
                arriving = np.bincount(links[at_hop], load_of[at_hop], len(busy))
                load, queue = load + arriving, np.maximum(queue, arriving)
            held = np.zeros(len(busy))
            np.maximum.at(held, links, part * slowest - load_of)
            delays = np.bincount(pair, self.topology.latency_ps[links], 1)
            rate += count * float((load + held).max(initial=0.0))
            latency += count * float(delays.max()) / PS_PER_S
            steps, busy = steps + count, busy + count * load
            turns += count * np.sqrt(load / np.where(queue > 0, queue, 1.0))
        return Cost(rate, latency, steps, busy, turns)


@lru_cache(maxsize=256)
def _levels(algorithm: Algorithm) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Levels of messages, equal ones once: their number, senders, receivers, and parts of the full buffer."""
    rotation = algorithm.rotation
    program = algorithm.first if rotation else algorithm.program
    sends, receives = (np.flatnonzero(program.type == kind) for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV))
    owners, targets = program.rank[sends], program.column("comm_dst")[sends]
    sources, ends = program.column("comm_src")[receives], program.rank[receives]
    if rotation:  # a receive of rank 0 matches a send of another rank at the same level as its own send
        sources, ends = 0 * sources, rotation.unshift(0, sources)
    tag = program.column("comm_tag")
    sent = sends[np.lexsort((sends, tag[sends], targets, owners))]
    received = receives[np.lexsort((receives, tag[receives], ends, sources))]
    child, parent = np.append(program.child, received), np.append(program.parents, sent)
    order = np.argsort(child, kind="stable")
    ptr, rows = graph.pointers(child[order], len(program)), parent[order]
    order = graph.topological_order(ptr, rows)
    level = graph.longest_path(ptr, rows, order, program.type == NodeType.COMM_SEND)[sends]
    shares = algorithm.bytes_of(program, LARGE)[sends] / LARGE
    levels: dict[tuple[bytes, ...], list] = {}
    for number in np.unique(level).tolist():
        members = level == number
        columns = owners[members], targets[members], shares[members]
        levels.setdefault(tuple(column.tobytes() for column in columns), [0, *columns])[0] += 1
    if not rotation:
        return [tuple(entry) for entry in levels.values()]
    ranks = np.arange(algorithm.ranks)
    return [
        (count, np.repeat(ranks, len(to)), rotation.shift(ranks[:, None], to).ravel(), np.tile(part, len(ranks)))
        for count, _, to, part in levels.values()
    ]
