"""Chunks that one rank each needs: scatter, gather, all_to_all, all_to_all(v).

*Lists* choose paths that balance the load of links; then every free link takes its most urgent waiting message.
Messages wait, whole, at ranks. *Repairs* take a message that arrives last out of the best schedule, with some in its
way, and insert them anew, one after the other by the earliest arrival that idle intervals allow. Each runs forward and,
time reversed, from the receivers to the origins.
"""

from collections import namedtuple
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.bounds.balanced_paths import Messages, Paths
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import by_time
from astrasim_py.synthesis.model.insertion import FAR, GO, calendars, ordered
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import merge
from astrasim_py.synthesis.model.random_numbers import random_below
from astrasim_py.synthesis.model.schedule import NOTHING, Columns, Search, SearchResult, copied, mirrored
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.synthesis.search.multi_start import BestRun, Effort, compete, in_turn, search_of
from astrasim_py.synthesis.search.rotations import MAX_TIMES
from astrasim_py.synthesis.search.tree_packing_search import Chunks, Packer, Rows

#: Rules of urgency: the farthest first, the most loaded link first, by turns, the most crowded path first.
FARTHEST, LOADED, TURN, CROWDED = range(4)

#: Messages: class of size, rank by turns, path.
_Messages = namedtuple("_Messages", "kind turn path length")

#: Memory by message (hops made, urgency, the heap of its arc), by arc (the first that waits) and by link.
_State = namedtuple("_State", "heap step rank left right top free load remaining")


@lean
def _most(net, a, load):
    """The most that a link of arc a carries."""
    most = np.int64(0)
    for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
        most = max(most, load[net.hop[h]])
    return most


@lean
def _urgency(net, state, rule, m, a):
    """How urgent it is that arc a carries message m, the most urgent first."""
    return -(state.rank[m] + (_most(net, a, state.remaining) if rule == LOADED else 0))


@lean
def _rank(net, messages, state, rule, m):
    """The rank of a message that waits where it is, without noise."""
    rest, crowd = np.int64(0), np.int64(0)
    for p in range(state.step[m], messages.length[m]):
        b = np.int64(messages.path[m, p])
        rest += net.delay[messages.kind[m], b]
        if rule == CROWDED:
            crowd = max(crowd, _most(net, b, state.load))
    return -messages.turn[m] if rule == TURN else rest + crowd


@kernel("the synthesizer", threads=True, lean=True)
def _schedule(net, calendar, messages, state, rule, noise, random, limit, stop, start):
    """Fill `start` with a list schedule; returns its end, or 2**62 past `limit` or after a stop signal."""
    arcs, size, end = len(state.top), np.int64(0), np.int64(0)
    # The messages that wait at an arc form a skew heap; each such arc has one entry in the main heap.
    for m in range(len(messages.kind)):
        state.step[m] = 0
        if messages.length[m]:
            push(state.heap, size, np.int64(0), -FAR, m + arcs)
            size += 1
    while size:
        if stop[0] != 0:
            return FAR
        t, s, a = state.heap[0].key, state.heap[0].tie, state.heap[0].item
        size = pop(state.heap, size)
        if a >= arcs:
            m = a - arcs
            state.rank[m] = _rank(net, messages, state, rule, m) + (random_below(random, noise) if noise else 0)
            state.left[m] = state.right[m] = -1
            a = np.int64(messages.path[m, state.step[m]])
            new = state.top[a] < 0
            state.top[a] = merge(state.top[a], m, state.rank, state.left, state.right)
            if new:
                push(state.heap, size, t, _urgency(net, state, rule, m, a), a)
                size += 1
            continue
        m = state.top[a]
        z = np.int64(messages.kind[m])
        urgent = _urgency(net, state, rule, m, a)
        begin = ordered(net, calendar, a, z, t, state.free)
        if begin > t or urgent > s:
            push(state.heap, size, begin, urgent, a)
            size += 1
            continue
        start[m, state.step[m]] = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            state.free[net.hop[h]] = t + net.offset[z, h] + net.hold[z, h]
            state.remaining[net.hop[h]] -= net.hold[z, h]
        state.top[a] = merge(state.left[m], state.right[m], state.rank, state.left, state.right)
        arrives = t + net.delay[z, a]
        if arrives >= limit:
            return FAR
        end = max(end, arrives)
        state.step[m] += 1
        if state.step[m] < messages.length[m]:
            push(state.heap, size, arrives, -FAR, m + arcs)
            size += 1
        if state.top[a] >= 0:
            push(state.heap, size, t, _urgency(net, state, rule, state.top[a], a), a)
            size += 1
    return end


def list_schedule(
    network: Network, timing: Timing, paths: Paths, kind, turn, rule: int, noise: int, seed: int, limit: int, stop=None
) -> tuple[int, np.ndarray] | None:
    """(end in ps, int64[messages, stride] starts) of a list schedule over paths; None: not before `limit`."""
    count, start = len(kind), np.zeros(paths.arc.shape, dtype=np.int64)
    state = _State._make((
        np.empty(count + network.arcs, dtype=ENTRY), *np.empty((4, count), dtype=np.int64), np.full(network.arcs, -1),
        np.zeros_like(paths.load), paths.load, paths.load.copy(),
    ))  # fmt: skip
    random = np.random.Generator(np.random.PCG64(seed)).integers(1, 2**63, 1, dtype=np.uint64)
    end = _schedule(
        timing, calendars(network), _Messages(kind, turn, paths.arc, paths.length), state, rule,
        min(noise, 2**31 - 1), random, limit, GO if stop is None else stop, start,
    )  # fmt: skip
    return (int(end), start) if end < limit else None


#: Transfers that all runs of a search make together (estimate); larger problems get fewer runs.
_EFFORT = 40_000_000
_FEWEST_ROUNDS = 6
#: Messages × arcs that path searches look at in a second, and hops that list schedules make (estimates).
_SPEED, _HOP_SPEED = 1.5e8, 8e4
#: Seconds that the first run may take where another schedule is known and there is no budget.
_PATIENCE = 20.0
#: Most messages that a repair takes out, and path searches of a repair (estimate).
_VICTIMS, _REPAIR = 12, 400_000


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One way of making a run."""

    rule: int = 0  # of `list_schedule`
    passes: int = 3  # how often every message chooses its path; 0: shortest paths
    noise: int = 0  # random noise on priorities, in 64ths of the longest path
    backward: bool = False

    def __str__(self) -> str:
        rule = ("farthest", "most loaded", "by turns", "most crowded")[self.rule]
        parts = [f"routed: list, {rule} first", f"{self.passes} passes"] + [f"noise {self.noise}/64"] * bool(self.noise)
        return ", ".join(parts + ["backwards"] * self.backward)


class Side(Messages):
    """Messages of one direction of time, and what all runs on them share."""

    def __init__(self, network: Network, demand: Demand) -> None:
        if len(demand.sizes) * len(network.hop) > MAX_TIMES:
            problem = f"{len(demand.sizes)} sizes of chunks on {len(network.hop)} links are too many"
            raise AlgorithmError(demand.collective, problem, "round the sizes")
        super().__init__(network, demand)
        chunks = Chunks(self.origin, self.receiver, self.kind, self.ahead)
        self.packer = Packer(network, self.timing, chunks, self.stride, _VICTIMS)
        self._turn = (self.receiver.astype(np.int64) - self.origin) % network.ranks
        self._known: dict[tuple[int, int], Paths | None] = {}
        self._lock = Lock()

    def _paths(self, passes: int, seed: int, stop=None) -> Paths | None:
        """Balanced paths, remembered; None after a stop signal."""
        key = passes, seed
        with self._lock:
            if not passes:
                return self.shortest_paths(np.arange(len(self.chunk)))
            if key not in self._known:
                self._known[key] = self.balanced_paths(passes, seed, stop)
            return self._known[key]

    def run(self, policy: RoutePolicy, seed: int, limit: int, stop=None) -> tuple[int, Rows] | None:
        """(time, rows); None if it does not end before `limit`."""
        paths = self._paths(policy.passes, seed % 4, stop)
        if paths is None:
            return None
        noise = int(self.timing.delay.max(initial=0)) * self.hops * policy.noise // 64
        found = list_schedule(
            self.network, self.timing, paths, self.kind, self._turn, policy.rule, noise, seed, limit, stop
        )
        return None if found is None else (found[0], Rows(paths.arc, found[1], paths.length))

    def columns(self, rows: Rows) -> Columns:
        """(arc, chunk, start) of all transfers, those of a chunk in their order."""
        used = np.arange(rows.arc.shape[1]) < rows.length[:, None]
        return rows.arc[used], np.repeat(self.chunk, rows.length), rows.start[used]


def policies(network: Network, demand: Demand) -> list[RoutePolicy]:
    """Policies to try, the most promising first."""
    lists = [RoutePolicy(rule=rule, passes=p) for p in (3, 1, 6) for rule in (0, 1, 3, 2)]
    lists += [RoutePolicy(rule=rule, passes=3, noise=noise) for noise in (4, 16) for rule in (0, 1, 3)]
    # Nothing is reversed beside other tenants, because the end of the schedule is not known before.
    sides = (False,) if len(network.occupied_start) else (False, True)
    if demand.collective == "gather":
        sides = sides[::-1]
    return [replace(p, backward=side) for p in lists for side in sides]


def seconds_of(network: Network, demand: Demand, passes: int = 1) -> float:
    """Seconds that the first run takes (estimate)."""
    return demand.count * (passes * network.arcs / _SPEED + 1 / _HOP_SPEED)


def route(network: Network, demand: Demand, bound: int, effort: Effort, *, needed: bool = True) -> SearchResult | None:
    """The fastest schedule found for a demand of chunks with one receiver each; a run that meets `bound` ends it.

    Where none is `needed`, there is none if the budget, or the `_PATIENCE` of one, ends before the first run.
    """
    if not needed and seconds_of(network, demand) > (_PATIENCE if effort.budget is None else effort.budget):
        return None
    sides = {False: Side(network, demand)}
    if not len(sides[False].chunk):
        return SearchResult(0, NOTHING, 0, Search(seed=effort.seed, policy="", rounds=0))
    offered = policies(network, demand)
    if effort.budget is not None:
        # The quickest run comes first. Where a schedule is needed, no limit stops it.
        offered.insert(0, replace(offered[0], passes=0 if needed else 1))
    if any(p.backward for p in offered):
        sides[True] = Side(network.reversed, replace(demand, origin=demand.targets, receivers=demand.origin))
    size = max(len(sides[False].chunk) * sides[False].hops, 1)
    rounds = min(effort.rounds, max(_EFFORT // (8 * size), _FEWEST_ROUNDS))
    unsearched = effort.halt.signal()

    def run(policy: RoutePolicy, seed: int, limit: int, stop: np.ndarray, start: BestRun | None):
        side = sides[policy.backward]
        if start is None:
            return side.run(policy, seed, limit, stop if policy.passes else unsearched)
        repairs = min(max(_REPAIR // (len(side.chunk) + 50 * side.hops), 20), 4000)
        return side.packer.run(seed, rows=start.result, repairs=repairs, bound=bound, stop=stop)

    tried = min(len(offered), rounds - rounds // 4)
    best = compete(in_turn(offered, tried), run, bound, replace(effort, rounds=rounds))
    if best is None:
        return None
    columns = sides[best.policy.backward].columns(best.result)
    transfers = copied(columns)
    if best.policy.backward:
        # Causes come before effects.
        order = by_time(columns[2])
        transfers = copied(mirrored(network, demand, (columns[0][order], columns[1][order], columns[2][order]))[:3])
    how = search_of(best, effort, str(best.policy) + ", repaired" * best.repaired)
    return SearchResult(best.time, transfers, len(columns[0]), how)
