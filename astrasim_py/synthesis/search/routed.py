"""Schedules of chunks that one rank has and one other needs: scatter, gather, all_to_all, all_to_all(v).

Three kinds of run compete. *Lists*: paths are chosen first, so that no link has more to carry than it must; then every
free link takes the most urgent message that waits for it. *Insertions*: messages are routed one after the other, the
farthest first, each by the earliest arrival that gaps between reservations allow. *Repairs*: the best schedule so far
is improved by taking out a message that arrives last, and some that are in its way, and routing them anew. Each is
tried forwards and, time reversed, from the receivers to the origins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import GO, NEVER, calendars
from astrasim_py.synthesis.model.network import Network, Timing
from astrasim_py.synthesis.model.transfers import Transfers, copied, mirrored
from astrasim_py.synthesis.search.greedy_search import Found
from astrasim_py.synthesis.search.multi_start import Outcome, Progress, compete
from astrasim_py.synthesis.search.tree_packing_runs import Load, Rows, packed

#: Ranks × chunks beyond which nothing is routed: the checker looks at every chunk at every rank.
MAX_CELLS = 2**27
#: Transfers that all runs of a search make together, about; a search of more makes fewer runs.
_EFFORT = 40_000_000
_FEWEST_ROUNDS = 6
#: Hops × classes of size beyond which timing takes too much memory.
_MAX_TIMES = 2**25
#: Messages that an improving step takes out at most, and searches that make up a repair, about.
_VICTIMS, _REPAIR = 12, 400_000
#: Bits that costs of balancing may have.
_COST_BITS = 34


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One way of making a run.

    Attributes
    ----------
    way : str
        ``list`` or ``insert``.
    rule : int
        Of a list: farthest first, most loaded link first, by turns (the distance between the numbers of the ranks),
        or the most crowded path first. Of an insertion: the order of messages, in the same numbers.
    passes : int
        Of a list: how often every message chooses its path.
    noise : int
        Of 64ths of the longest way, added to priorities at random.
    backward : bool
    """

    way: str = "list"
    rule: int = 0
    passes: int = 3
    noise: int = 0
    backward: bool = False

    def __str__(self) -> str:
        rule = ("farthest", "most loaded", "by turns", "most crowded")[self.rule]
        parts = [f"routed: {self.way}, {rule} first"]
        parts += [f"{self.passes} passes"] * (self.way == "list") + [f"noise {self.noise}/64"] * bool(self.noise)
        return ", ".join(parts + ["backwards"] * self.backward)


class Side:
    """Messages of one direction of time, and what all runs on them share."""

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.chunk = np.flatnonzero(demand.origin != demand.receivers).astype(np.int32)
        self.origin = np.ascontiguousarray(demand.origin[self.chunk], dtype=np.int32)
        self.receiver = np.ascontiguousarray(demand.receivers[self.chunk], dtype=np.int32)
        self.kind = np.ascontiguousarray(demand.size_class[self.chunk], dtype=np.int32)
        if len(demand.sizes) * len(network.hop) > _MAX_TIMES:
            problem = f"{len(demand.sizes)} sizes of chunks on {len(network.hop)} links are too many"
            raise AlgorithmError(demand.collective, problem, "round the sizes")
        timing = network.timing(demand.sizes.tolist())
        self.timing = timing
        # A chunk of the smallest class is the fastest: no way is shorter than its.
        self.least = self._toward(np.ascontiguousarray(timing.delay[-1]))
        self.far = self.least[self.receiver, self.origin]
        self.load = Load(origin=self.origin, goal=self.receiver, size_class=self.kind, ahead=self.least)
        # What paths are balanced by: if every message took a way of the fewest holds, and all links had the same of it.
        shift = max(int(timing.delay.max(initial=1)).bit_length() - _COST_BITS, 0)
        self.cheap = Timing(np.zeros_like(timing.offset), timing.hold >> shift, timing.delay >> shift)
        self.even = replace(self.load, ahead=self.least >> shift)
        weight = np.zeros(network.arcs, dtype=np.int64)
        np.add.at(weight, np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr)), self.cheap.hold[0])
        whole = float(self._toward(weight)[self.receiver, self.origin].astype(np.float64).sum())
        self.mean = max(int(whole) // max(len(network.links), 1), 1)
        self.hops = max(int(self._toward(np.ones_like(weight)).max()), 1)
        self.stride = min(2 * self.hops + 4, network.ranks)
        self.known: dict[tuple, tuple] = {}
        self._room = 64
        self._lock = Lock()

    def _toward(self, cost: np.ndarray) -> np.ndarray:
        from astrasim_py.synthesis.model.graphs import toward

        return toward(self.network.ranks, self.network.in_ptr, self.network.src, cost)

    def paths(self, passes: int, seed: int, stop=None):
        """(path, length, load in ps) that share links evenly, remembered; None when told to stop."""
        key = passes, seed
        with self._lock:
            if key not in self.known:
                found = packed(
                    self.network, self.cheap, self.even, room=0, seed=seed, stride=self.stride, mean=self.mean,
                    improve=passes - 1, stop=stop,
                )  # fmt: skip
                if found is None or (stop is not None and stop[0]):
                    return None
                _, (path, _, length), load, _ = found
                if self.cheap.hold is not self.timing.hold:
                    load = self._carried(path, length)
                self.known[key] = path, length, load
            return self.known[key]

    def _carried(self, path: np.ndarray, length: np.ndarray) -> np.ndarray:
        """int64[resources]: ps that paths hold each link."""
        network = self.network
        load = np.zeros(len(network.links), dtype=np.int64)
        for step in range(path.shape[1]):
            rows = np.flatnonzero(length > step)
            arcs = path[rows, step]
            lengths = np.diff(network.hop_ptr)[arcs]
            for h in range(int(lengths.max(initial=0))):
                some = lengths > h
                at = network.hop_ptr[arcs[some]] + h
                np.add.at(load, network.hop[at], self.timing.hold[self.kind[rows[some]], at])
        return load

    def run(self, policy: RoutePolicy, seed: int, limit: int, stop=None) -> tuple[int, Rows] | None:
        """(time, rows); None if it does not end before `limit`."""
        if policy.way == "insert":
            return self.pack(seed, order=self.order(policy.rule, policy.noise, seed), limit=limit, stop=stop)
        from astrasim_py.synthesis.search.list_schedule import listed

        network, timing = self.network, self.timing
        ways = self.paths(policy.passes, seed % 4, stop)
        if ways is None:
            return None
        path, length, load = ways
        count = len(self.chunk)
        start = np.zeros(path.shape, dtype=np.int64)
        noise = int(timing.delay.max(initial=0)) * self.hops * policy.noise // 64
        state = np.random.Generator(np.random.PCG64(seed)).integers(1, 2**63, 1, dtype=np.uint64)
        turn = (self.receiver.astype(np.int64) - self.origin) % network.ranks
        end = listed(
            turn, self.kind, network.hop_ptr, network.hop, timing.offset, timing.hold, timing.delay,
            *calendars(network), path, length, load, policy.rule, min(noise, 2**31 - 1), state, limit,
            GO if stop is None else stop, np.empty((4, count), dtype=np.int64),
            np.empty((3, count + network.arcs), dtype=np.int64), np.full(network.arcs, -1), np.zeros_like(load),
            load.copy(), start,
        )  # fmt: skip
        return (int(end), (path, start, length)) if end < limit else None

    def pack(self, seed: int, **options) -> tuple[int, Rows] | None:
        """Insert all messages, or improve a schedule of them."""
        found = packed(
            self.network, self.timing, self.load, room=self._room, seed=seed, stride=self.stride, victims=_VICTIMS,
            **options,
        )  # fmt: skip
        if found is None:
            return None
        self._room = max(self._room, found[3])
        return found[:2]

    def order(self, rule: int, noise: int, seed: int) -> np.ndarray:
        """int64[messages]: the order in which they are inserted."""
        random = np.random.Generator(np.random.PCG64(seed))
        size = self.timing.delay.min(axis=1, initial=NEVER)[self.kind]
        key = -(self.far + size)
        if rule == 2:
            key = (self.receiver.astype(np.int64) - self.origin) % self.network.ranks
        elif rule:
            ends = np.bincount(self.origin, minlength=self.network.ranks)
            ends += np.bincount(self.receiver, minlength=self.network.ranks)
            key = key - (ends[self.origin] + ends[self.receiver]) * size
        if noise:
            spread = (int(key.max()) - int(key.min())) * noise // 64
            key = key + random.integers(0, spread + 1, len(key))
        return np.lexsort((random.permutation(len(key)), key)).astype(np.int64)

    def columns(self, rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(arc, chunk, start) of all transfers, those of a chunk in their order."""
        path, start, length = rows
        used = np.arange(path.shape[1]) < length[:, None]
        return path[used], np.repeat(self.chunk, length), start[used]


def policies(network: Network, demand: Demand) -> list[RoutePolicy]:
    """What is tried, the most promising first."""
    lists = [RoutePolicy(rule=rule, passes=p) for p in (3, 1, 6) for rule in (0, 1, 3, 2)]
    lists += [RoutePolicy(rule=rule, passes=3, noise=noise) for noise in (4, 16) for rule in (0, 1, 3)]
    inserts = [RoutePolicy("insert", rule, 0, noise) for noise in (0, 4, 16) for rule in (0, 1, 2)]
    found = [p for pair in zip(lists, inserts, strict=False) for p in pair] + lists[len(inserts) :]
    # Against the time of others nothing is reversed, for its end is not known before.
    sides = (False,) if len(network.occupied_start) else (False, True)
    if demand.collective == "gather":
        sides = sides[::-1]
    return [replace(p, backward=side) for p in found for side in sides]


def route(
    network: Network,
    demand: Demand,
    bound: int,
    *,
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Found, Transfers]:
    """The fastest schedule found for a demand of chunks with one receiver each.

    Parameters
    ----------
    network : Network
    demand : Demand
        With `receivers`.
    bound : int
        ps; a run that meets it ends the search.
    seed, rounds, budget, jobs, progress
        As of `search.search`. Problems of many transfers get fewer rounds.

    Returns
    -------
    found : Found
        Without columns.
    transfers : (arc, chunk, start, reduces)
        On `network`.

    Raises
    ------
    AlgorithmError
        Too many chunks for so many ranks.
    """
    if network.ranks * demand.count > MAX_CELLS:
        problem = f"{demand.count} chunks among {network.ranks} ranks are too many"
        raise AlgorithmError(demand.collective, problem, "use fewer chunks, or a smaller group")
    sides = {False: Side(network, demand)}
    if not len(sides[False].chunk):
        none = np.empty(0, dtype=np.int64)
        return Found(0, None, 0, "", seed, 0, False, 0.0), copied((none, none, none))
    offered = policies(network, demand)
    if budget is not None:
        # The fastest way to a schedule comes first, for nothing stops it.
        offered.insert(0, replace(offered[0], passes=1))
    if any(p.backward for p in offered):
        sides[True] = Side(network.turned(), replace(demand, origin=demand.receivers, receivers=demand.origin))
    size = max(len(sides[False].chunk) * sides[False].hops, 1)
    rounds = min(rounds, max(_EFFORT // (8 * size), _FEWEST_ROUNDS))

    def run(policy: RoutePolicy, number: int, limit: int, stop: np.ndarray, start: Outcome | None):
        side = sides[policy.backward]
        if start is None:
            return side.run(policy, number, limit, stop if limit < NEVER else None)
        turns = min(max(_REPAIR // (len(side.chunk) + 50 * side.hops), 20), 4000)
        return side.pack(number, rows=start.result, improve=turns, bound=bound, stop=stop)

    best = compete(offered, run, bound=bound, seed=seed, rounds=rounds, budget=budget, jobs=jobs, progress=progress)
    columns = sides[best.policy.backward].columns(best.result)
    if best.policy.backward:
        transfers = mirrored(network, demand, _by_time(columns))
        transfers = copied(transfers[:3])
    else:
        transfers = copied(columns)
    label = str(best.policy) + ", repaired" * best.repaired
    return Found(best.time, None, len(columns[0]), label, seed, best.rounds, best.cut, best.seconds), transfers


def _by_time(columns):
    """Transfers in the order of their starts, causes before effects."""
    order = np.argsort(columns[2], kind="stable")
    return tuple(column[order] for column in columns)
