"""Messages by rotation: every rank sends at once, each to the rank that is as far on as all others' receivers are.

Where ranks form nodes whose members reach each other, and ports of nodes reach ports of others, a message goes inside
its node to a port that reaches its receiver, and from there over that port. In step d node a sends to node a + d. A
port sends its own messages first, then those of the other members by turns, which come to it a slot earlier, so that
every port sends one message and receives one in each slot. Some messages of a port slower than others take another one,
and go on inside the receiver's node. Messages that no such route carries take a shortest path.
Nothing is searched: the transfers are posted in the order of slots and executed as the engines do (see `queueing`).
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from astrasim_py.core.compiling import clock
from astrasim_py.core.rows import numbered
from astrasim_py.synthesis.bounds.balanced_paths import Messages
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import components
from astrasim_py.synthesis.model.insertion import NEVER
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound, Schedule
from astrasim_py.synthesis.search.multi_start import BestRun, Effort, compete, in_turn, search_of
from astrasim_py.synthesis.search.patterns import groupings, posted

#: Hops × classes of size beyond which timing takes too much memory.
MAX_TIMES = 2**25
#: Transfers beyond which one rotation is executed at a time, because of their memory.
_LARGE = 2**18
#: Of more messages than the first, a rotation is near its bound where it lies above by 1 / the second of it.
_MANY, _NEAR = 2**14, 1000
#: Pairs of nodes × rails beyond which rails are taken to be equally fast.
_MANY_WAYS = 2**23


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which nodes ranks form, and an order of posts."""

    nodes: int  # which grouping of ranks
    parts: bool = False  # whether first parts of all messages come before second ones
    farthest: bool = False  # whether messages with the longest way come first

    def __str__(self) -> str:
        order = "farthest first" if self.farthest else "first parts first" if self.parts else "by turns"
        return f"rotation of {'nodes' if self.nodes else 'ranks'}, {order}"


class Rotations:
    """The transfers of rotations."""

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.messages = Messages(network, demand)
        n = network.ranks
        self.arc_of = np.full((n, n), -1, dtype=np.int32)
        self.arc_of[network.src, network.dst] = np.arange(network.arcs)
        #: Labels of ranks, int64[n] each; the first has every rank alone.
        self.nodes = [np.arange(n), *(level for levels in groupings(network, demand.sizes) for level in levels)]
        #: int64[messages]: number of a message among those of its ends.
        self.part = numbered(self.messages.origin.astype(np.int64) * n + self.messages.receiver)

    def offered(self) -> list[Rotation]:
        """Rotations that may differ here, the most promising first."""
        whole = [Rotation(nodes) for nodes in range(len(self.nodes))][::-1]
        parts = [Rotation(rotation.nodes, parts=True) for rotation in whole if self.part.any()]
        far = [Rotation(0, farthest=True)] if self.network.arcs < self.network.ranks * (self.network.ranks - 1) else []
        return whole + far + parts

    def transfers(self, rotation: Rotation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(arc, chunk, reduces), the most urgent first."""
        messages = self.messages
        path, slot, turn = self._routes(self.nodes[rotation.nodes])
        row = np.arange(len(path), dtype=np.int32)
        lost = row[path[:, 1] < 0]
        columns = [(path[kept, hop], row[kept], slot[kept] + hop) for hop, kept in enumerate((path >= 0).T)]
        if len(lost):
            arc, length, _ = messages.shortest_paths(lost)
            columns += [
                (arc[length > hop, hop], lost[length > hop], slot[lost[length > hop]] + hop + 1)
                for hop in range(arc.shape[1])
            ]
        arc, row, slot = (np.concatenate(column) for column in zip(*columns, strict=True))
        # All ranks do the same at once, so that no two ask for a port at the same moment.
        keys = [turn[row], slot]
        if rotation.parts:
            keys.append(self.part[row])
        if rotation.farthest:
            keys.append(-messages.ahead[messages.receiver[row], self.network.src[arc]])
        order = np.lexsort(keys)
        return arc[order], messages.chunk[row[order]], np.zeros(len(order), dtype=bool)

    def _routes(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arcs of every message, int32[messages, 3], -1: none is taken; slots and turns, int64[messages].

        They lead to the port of its node, to one of the receiver's node, and to the receiver.
        """
        network, messages = self.network, self.messages
        origin, receiver = messages.origin, messages.receiver
        crossing = node[network.src] != node[network.dst]
        rail, rails = components(messages.timing, crossing)
        nodes, rail = int(node.max()) + 1, rail.astype(np.int64)
        port = node * rails + rail
        place, ports = numbered(port), np.bincount(port, minlength=nodes * rails)
        first, member = np.cumsum(ports) - ports, np.argsort(port, kind="stable")

        def partner(at: np.ndarray, through: np.ndarray, like: np.ndarray) -> np.ndarray:
            """The port of a node on a rail whose place there is that of a rank; the rank itself where none is."""
            wanted = node[at] * rails + through
            there = ports[wanted]
            chosen = member[np.minimum(first[wanted] + place[like] % np.maximum(there, 1), len(member) - 1)]
            return np.where(there > 0, chosen, at)

        inside = node[origin] == node[receiver]
        steps = (node[receiver] - node[origin]) % nodes
        wide, turns = int(ports.max()), (rail[receiver] - rail[origin]) % rails
        turn = turns * wide + (place[receiver] - place[origin]) % wide
        relay, landing = np.where(inside, origin, partner(origin, rail[receiver], origin)), receiver
        over = ~inside & self._too_many(node, rail, crossing, steps, turns)
        relay = np.where(over, origin, relay)
        landing = np.where(over, partner(receiver, rail[origin], receiver), landing)
        way = origin, relay, landing, receiver
        path = np.stack([self.arc_of[ends] for ends in pairwise(way)], axis=1)
        path[np.stack([(path[:, hop] < 0) & (a != b) for hop, (a, b) in enumerate(pairwise(way))]).any(axis=0)] = -1
        size = rails * wide
        # Members have messages for each other in the slots before a port sends its own one, and in the last.
        spread = 2 + turn * (nodes - 1) // size
        return path, np.where(inside, spread * size, steps * size + turn), turn

    def _too_many(self, node, rail, crossing, steps, turns) -> np.ndarray:
        """bool[messages]: those that are too many for a rail slower than others; they take that of their origin."""
        network, messages = self.network, self.messages
        nodes, rails = int(node.max()) + 1, int(rail.max()) + 1
        arcs = np.flatnonzero(crossing)
        rate = np.zeros((2, network.ranks))
        for row, (ends, hop) in enumerate(
            ((network.src, network.hop_ptr[:-1]), (network.dst, network.hop_ptr[1:] - 1))
        ):
            np.maximum.at(rate[row], ends[arcs], 1 / np.maximum(messages.timing.hold[0, hop[arcs]], 1))
        fastest = rate.max()
        if not len(arcs) or ((rate == fastest) | (rate == 0)).all() or nodes * nodes * rails > _MANY_WAYS:
            return np.zeros(len(messages.chunk), dtype=bool)
        leaves, enters = np.zeros((2, nodes, rails))
        np.add.at(leaves, (node, rail), rate[0])
        np.add.at(enters, (node, rail), rate[1])
        ways = np.minimum(leaves[:, None], enters[None])
        a, b, through = node[messages.origin], node[messages.receiver], rail[messages.receiver]
        members = np.bincount(node)
        # Messages between two nodes are shared out by the rates of rails, rounded differently in every step.
        due = (members[:, None] * members)[a, b] * ways[a, b, through] / np.maximum(ways.sum(axis=2)[a, b], 1e-300)
        due = np.floor(due * (steps + 1)) - np.floor(due * steps)
        # Which origins come first changes from step to step; a port sends its own messages in any case.
        late = np.where(turns > 0, 1 + (turns - 1 + steps) % max(rails - 1, 1), 0)
        width = np.bincount(node * rails + rail, minlength=nodes * rails).max()
        return (late * width * width >= due) & (ways[a, b, rail[messages.origin]] > ways[a, b, through])


def rotates(network: Network, demand: Demand) -> bool:
    """Whether each chunk has one receiver, links have no other users, and there are not too many sizes."""
    times = len(demand.sizes) * len(network.hop)
    return demand.receivers is not None and not len(network.occupied_start) and times <= MAX_TIMES


def near(demand: Demand, enough: int) -> int:
    """The time in ps that ends the search: `enough`, or a little more where there are many messages."""
    return enough + (enough // _NEAR if demand.count > _MANY else 0)


def best_rotation(queues: Queues, bound: Bound, enough: int, effort: Effort) -> Schedule | None:
    """The schedule of the fastest rotation; the search ends at one that is near `enough`."""
    rotations = Rotations(queues.network, queues.demand)
    if not len(rotations.messages.chunk):
        return None
    offered = rotations.offered()
    if len(rotations.messages.chunk) > _LARGE:
        effort = replace(effort, jobs=1)

    begin, first = clock(), effort.halt.signal()

    def run(rotation: Rotation, seed: int, limit: int, stop: np.ndarray, start: BestRun | None):
        if limit < NEVER and effort.budget is not None and 2 * (clock() - begin) > effort.budget:
            # The next one takes as long as the first.
            return None
        # Nothing stops the first one: it is the schedule that every search may fall back on.
        return queues.executed(*rotations.transfers(rotation), limit - 1, stop if limit < NEVER else first)

    met = near(queues.demand, enough)
    found = compete(in_turn(offered, len(offered)), run, met, replace(effort, rounds=len(offered)))
    if found is None:
        return None
    return posted(queues, found.time, found.result, search_of(found, effort, str(found.policy), 0), bound)
