"""Schedules of chunks that one rank has and one other needs: scatter, gather, all_to_all, all_to_all(v).

Three kinds of run compete. *Lists*: paths are chosen first, so that no link has more to carry than it must; then every
free link takes the most urgent message that waits for it. *Insertions*: messages are routed one after the other, the
farthest first, each by the earliest arrival that gaps between reservations allow. *Repairs*: the best schedule so far
is improved by taking out a message that arrives last, and some that are in its way, and routing them anew. Each is
tried forwards and, time reversed, from the receivers to the origins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.compose import Transfers, copied, mirrored
from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.network import Network
from astrasim_py.synthesis.search import Found, Progress

#: Ranks × chunks beyond which nothing is routed: the checker looks at every chunk at every rank.
MAX_CELLS = 2**27
#: Transfers that all runs of a search make together, about; a search of more makes fewer runs.
_EFFORT = 40_000_000
_FEWEST_ROUNDS = 6
#: Hops × classes of size beyond which timing takes too much memory.
_MAX_TIMES = 2**25
_NEVER = 2**62
_GENERATION = 16
_LENGTH = 2**16
#: Bits that costs of balancing may have.
_COST_BITS = 34


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One way of making a run.

    Attributes
    ----------
    way : str
        ``list``, ``insert`` or ``repair``.
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
        parts = [f"routed: {self.way}", *([] if self.way == "repair" else [f"{rule} first"])]
        parts += [f"{self.passes} passes"] * (self.way == "list") + [f"noise {self.noise}/64"] * bool(self.noise)
        return ", ".join(parts + ["backwards"] * self.backward)


class Side:
    """Messages of one direction of time, and what all runs on them share."""

    def __init__(self, network: Network, demand: Demand) -> None:
        from astrasim_py.synthesis.paths import toward

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
        out_ptr, out_arc = network.out
        self.graph = (network.ranks, network.src, network.dst, out_ptr, out_arc, network.hop_ptr, network.hop)
        # A chunk of the smallest class is the fastest: no way is shorter than its.
        self.least = toward(network.ranks, network.in_ptr, network.src, np.ascontiguousarray(timing.delay[-1]))
        self.far = self.least[self.receiver, self.origin]
        shift = max(int(timing.delay.max(initial=1)).bit_length() - _COST_BITS, 0)
        self.cheap = (timing.hold >> shift, timing.delay >> shift, self.least >> shift)
        # If every message took a way of the fewest holds, and all links had the same of it.
        weight = np.zeros(network.arcs, dtype=np.int64)
        np.add.at(weight, np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr)), self.cheap[0][0])
        ways = toward(network.ranks, network.in_ptr, network.src, weight)
        whole = float(ways[self.receiver, self.origin].astype(np.float64).sum())
        self.mean = max(int(whole) // max(len(network.links), 1), 1)
        self.hops = max(int(toward(network.ranks, network.in_ptr, network.src, np.ones_like(weight)).max()), 1)
        self.known: dict[tuple, tuple] = {}

    def paths(self, passes: int, seed: int):
        """(path, length, load in ps) that share links evenly; remembered."""
        from astrasim_py.synthesis.paths import DONE, balanced

        key = passes, seed
        if key not in self.known:
            count, stride = len(self.chunk), min(2 * self.hops + 4, self.network.ranks)
            n, src, dst, out_ptr, out_arc, hop_ptr, hop = self.graph
            hold, delay, least = self.cheap
            load = np.zeros(len(self.network.links), dtype=np.int64)
            while True:
                path, length = np.zeros((count, stride), dtype=np.int32), np.zeros(count, dtype=np.int32)
                status = balanced(
                    self.origin, self.receiver, self.kind, n, src, dst, out_ptr, out_arc, hop_ptr, hop, hold, delay,
                    least, self.mean, passes, seed, path, length, load,
                )  # fmt: skip
                if status == DONE:
                    break
                stride = min(2 * stride, n)
            load[:] = 0
            for step in range(stride):
                rows = np.flatnonzero(length > step)
                arcs = path[rows, step]
                lengths = np.diff(hop_ptr)[arcs]
                for h in range(int(lengths.max(initial=0))):
                    some = lengths > h
                    at = hop_ptr[arcs[some]] + h
                    np.add.at(load, hop[at], self.timing.hold[self.kind[rows[some]], at])
            self.known[key] = path, length, load
        return self.known[key]

    def run(self, policy: RoutePolicy, seed: int, limit: int):
        """(time, (path, length, start)), or a time of 2**62."""
        from astrasim_py.synthesis.paths import listed

        if policy.way == "insert":
            order = self.order(policy.rule, policy.noise, seed)
            return self.reroute(None, order, 0, 0, seed)
        n, src, dst, _, _, hop_ptr, hop = self.graph
        network, timing = self.network, self.timing
        path, length, load = self.paths(policy.passes, seed % 4)
        start = np.zeros(path.shape, dtype=np.int64)
        noise = int(timing.delay.max(initial=0)) * self.hops * policy.noise // 64
        end = listed(
            self.origin, self.receiver, self.kind, n, src, dst, hop_ptr, hop, timing.offset, timing.hold, timing.delay,
            network.occupied_ptr, network.occupied_start, network.occupied_end, path, length, load, policy.rule,
            min(noise, 2**31 - 1), seed, limit, start,
        )  # fmt: skip
        return end, (path, length, start)

    def order(self, rule: int, noise: int, seed: int) -> np.ndarray:
        """int64[messages]: the order in which they are inserted."""
        random = np.random.Generator(np.random.PCG64(seed))
        size = self.timing.delay.min(axis=1, initial=_NEVER)[self.kind]
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

    def reroute(self, rows, order, turns: int, bound: int, seed: int):
        """Insert all messages, or improve a schedule of them."""
        from astrasim_py.synthesis.paths import DONE, rerouted

        network, timing = self.network, self.timing
        count, n = len(self.chunk), network.ranks
        stride = min(2 * self.hops + 4, n) if rows is None else rows[0].shape[1]
        busiest = int(np.diff(network.occupied_ptr).max(initial=0))
        room = busiest + 4 * stride + 64 + 4 * count * self.hops // max(len(network.links), 1)
        if rows is not None:
            path, length = rows[:2]
            carried = np.zeros(len(network.links), dtype=np.int64)
            for step in range(path.shape[1]):
                arcs = path[length > step, step]
                np.add.at(carried, network.hop[_hops(network, arcs)], 1)
            room = max(room, int(carried.max(initial=0)) + busiest + 4 * stride + 16)
        while True:
            begins = np.zeros((len(network.links), room), dtype=np.int64)
            ends = np.zeros_like(begins)
            taken = np.diff(network.occupied_ptr).astype(np.int64)
            for r in np.flatnonzero(taken).tolist():
                span = slice(network.occupied_ptr[r], network.occupied_ptr[r + 1])
                begins[r, : taken[r]], ends[r, : taken[r]] = network.occupied_start[span], network.occupied_end[span]
            if rows is None:
                path, length = np.zeros((count, stride), dtype=np.int32), np.zeros(count, dtype=np.int32)
                start = np.zeros((count, stride), dtype=np.int64)
            else:
                path, length, start = (column.copy() for column in rows)
            end, status = rerouted(
                self.origin, self.receiver, self.kind, *self.graph, timing.offset, timing.hold, timing.delay,
                self.least, order, turns, _victims(count), bound, seed, begins, ends, taken, path, length, start,
            )  # fmt: skip
            if status == DONE:
                return end, (path, length, start)
            room, stride = 2 * room, min(2 * stride, n)

    def columns(self, rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(arc, chunk, start) of all transfers, those of a chunk in their order."""
        path, length, start = rows
        used = np.arange(path.shape[1]) < length[:, None]
        return path[used], np.repeat(self.chunk, length), start[used]


def _hops(network: Network, arcs: np.ndarray) -> np.ndarray:
    lengths = np.diff(network.hop_ptr)[arcs]
    ends = np.cumsum(lengths)
    return np.repeat(network.hop_ptr[:-1][arcs] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))


def _victims(count: int) -> int:
    return max(1, min(12, count - 1))


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
    if any(p.backward for p in offered):
        sides[True] = Side(network.turned(), replace(demand, origin=demand.receivers, receivers=demand.origin))
    size = max(len(sides[False].chunk) * sides[False].hops, 1)
    rounds = min(rounds, max(_EFFORT // (8 * size), _FEWEST_ROUNDS))
    _compile(sides[False])
    jobs = jobs or os.cpu_count() or 1
    begin = time.monotonic()
    pool = ThreadPoolExecutor(jobs) if jobs > 1 else None
    best: tuple | None = None
    made, cut, dry = 0, False, 0

    def one(entry, limit: int, rows):
        index, policy = entry
        side, number = sides[policy.backward], (seed * 1_000_003 + index) % 2**31
        if policy.way != "repair":
            return side.run(policy, number, limit)
        turns = min(max(400_000 // (len(side.chunk) + 50 * side.hops), 20), 4000)
        return side.reroute(rows, np.arange(len(side.chunk)), turns, bound, number)

    try:
        while made < rounds and not cut and not (best and best[0] <= bound):
            # What a generation does is settled before it begins: the number of threads decides nothing.
            lineup = []
            for index in range(made, min(rounds, made + (1 if made == 0 else _GENERATION))):
                first = index < min(len(offered), rounds - rounds // 4)
                repairs = best is not None and not first and (dry < 3 or index % 4)
                policy = RoutePolicy("repair", 0, 0, 0, best[2].backward) if repairs else offered[index % len(offered)]
                lineup.append((index, policy))
            limit, rows = (best[0], best[3]) if best else (_NEVER, None)
            # Paths are shared among runs: made before threads need them.
            for index, policy in lineup:
                if policy.way == "list" and (best is None or pool is not None):
                    sides[policy.backward].paths(policy.passes, (seed * 1_000_003 + index) % 2**31 % 4)
            work = pool.map if pool is not None and len(lineup) > 1 else map
            results = work(lambda entry, limit=limit, rows=rows: one(entry, limit, rows), lineup)
            better = False
            for (index, policy), (took, found) in zip(lineup, results, strict=True):
                made = index + 1
                if best is None or took < best[0]:
                    named = policy if policy.way != "repair" else best[4]
                    best = (int(took), index, policy, found, named)
                    better = True
                elif policy.way == "repair" and took == best[0] and not better:
                    # As good and different: the next repair begins elsewhere.
                    best = (best[0], best[1], best[2], found, best[4])
                if progress is not None:
                    progress(Progress(best[0], bound, made, rounds))
                if best[0] <= bound:
                    break
                if budget is not None and time.monotonic() - begin > budget:
                    cut = made < rounds
                    break
            dry = 0 if better else dry + 1
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
    took, index, policy, rows, named = best
    columns = sides[policy.backward].columns(rows)
    if policy.backward:
        arc, chunk, start, _ = mirrored(network, demand, _by_time(columns))
        transfers = copied((arc, chunk, start))
    else:
        transfers = copied(columns)
    label = str(named) + (", repaired" if policy.way == "repair" else "")
    found = Found(took, None, len(columns[0]), label, seed, made, cut, time.monotonic() - begin)
    return found, transfers


def _by_time(columns):
    """Transfers in the order of their starts, causes before effects."""
    order = np.argsort(columns[2], kind="stable")
    return tuple(column[order] for column in columns)


def _compile(side: Side) -> None:
    """Compile before the clock begins, on the first message alone."""
    small = object.__new__(Side)
    small.__dict__.update(side.__dict__)
    small.known = {}
    for name in ("chunk", "origin", "receiver", "kind", "far"):
        setattr(small, name, getattr(side, name)[:1])
    small.run(RoutePolicy(passes=1), 0, _NEVER)
    small.run(RoutePolicy("insert"), 0, _NEVER)
