"""Rates of arcs at which trees of a collective can be packed: shares of links, found by a linear program with cuts.

Trees of rates x[v] from every rank v fit into arcs of rates y iff for every set X of ranks that leaves one out the arcs
out of X have the rate of the roots in X at least (Edmonds). The program starts with few of these sets. Maximum flows to
ranks find those that its answer breaks; they are added until none is left. Arcs through switches share links, so the
program also chooses who sends to whom (ForestColl, arXiv 2402.06787, removes switches to the same end). Trees of an
all_reduce sum at their roots over some rates and copy from there over others; the program chooses roots as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.cuts.max_flow import FlowGraph
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network

#: Rates are compared in this many parts of the largest one.
_PARTS = 2**28
#: Share of a root's rate that a cut may lack.
_NEARLY = 1e-6
#: Times that the interval of possible stretches is halved.
_HALVINGS = 4
#: Programs that are solved for few arcs at most, and the share of the optimum that they give up.
_FEW, _SPARSE = 100, 0.002
#: Answers that are averaged, and the share of the optimum that they give up.
_DRAWS, _SPREAD = 10, 0.005
#: Programs that are solved at most, and the share of the optimum that is not looked for.
_ROUNDS, _GAP = 200, 3e-4


@dataclass(frozen=True, slots=True)
class ArcRates:
    """Rates of trees and arcs, in bytes per second: `roots` float64[n], `copies` and `sums` float64[arcs]."""

    roots: np.ndarray
    copies: np.ndarray
    sums: np.ndarray

    @property
    def total(self) -> float:
        """Bytes per second of the full buffer."""
        return float(self.roots.sum())


class ArcGraph:
    """Arcs of a network, and the links that they share."""

    def __init__(self, network: Network) -> None:
        self.network, self.n, self.arcs = network, network.ranks, network.arcs
        topology = network.topology
        rates = np.array([float(rate) for rate in topology.bandwidths])
        self.capacity = rates[topology.bandwidth_class[network.links]]
        self.arc_of_hop = np.repeat(np.arange(network.arcs), np.diff(network.hop_ptr))
        self.forward = FlowGraph(self.n, network.src, network.dst)
        self.backward = FlowGraph(self.n, network.dst, network.src)

    def fair(self) -> np.ndarray:
        """float64[arcs]: rates that are max-min fair: all grow alike until one of their links is full."""
        rate, left = np.zeros(self.arcs), self.capacity.copy()
        grows = np.ones(self.arcs, dtype=bool)
        hop = self.network.hop
        while grows.any():
            users = np.bincount(hop[grows[self.arc_of_hop]], minlength=len(left))
            step = np.where(users > 0, left / np.maximum(users, 1), np.inf)
            least = float(step.min())
            rate[grows] += least
            left -= users * least
            full = (users > 0) & (step <= least * (1 + 1e-9))
            grows[self.arc_of_hop[full[hop]]] = False
        return rate

    def broken(self, rates: np.ndarray, roots: np.ndarray, flows: FlowGraph) -> list[np.ndarray]:
        """Sets of ranks, bool[n], whose roots need more than the arcs out of them carry, one for each sink at most."""
        scale = _PARTS / max(float(rates.max()), float(roots.max()), 1e-300)
        capacity = np.ceil(rates * scale).astype(np.int64)
        supply = np.floor(roots * scale * (1 - _NEARLY)).astype(np.int64)
        found: dict[bytes, np.ndarray] = {}
        for sink in range(self.n):
            wanted = supply.copy()
            wanted[sink] = 0
            inside = flows.least_cut(capacity, wanted, sink) if wanted.any() else None
            if inside is not None:
                found.setdefault(inside.tobytes(), inside)
        return list(found.values())


def spreading_rates(graph: ArcGraph, weight: np.ndarray, *, reverse: bool, goal: float, stop=GO) -> ArcRates:
    """Rates of trees from (`reverse`: towards) roots in proportion to `weight` (int64[n]) that make the most of the
    links. `goal`: bytes per second that no rates exceed. After a stop signal they may make less."""
    flows = graph.backward if reverse else graph.forward
    fair, share = graph.fair(), weight / weight.sum()
    total = goal if not graph.broken(fair, share * goal, flows) else _reached(graph, fair, share, flows)
    near = total >= goal * (1 - _GAP)
    if graph.network.direct or (near and np.count_nonzero(weight) > 1):
        return _one_way(share * total, fair, reverse)
    program = _Program(graph, 1, arcs_of=1)

    def need(way: int, inside: np.ndarray) -> None:
        program.need(way, inside, flows, float(share[inside].sum()))

    def broken(point: np.ndarray) -> list[tuple[int, np.ndarray]]:
        return [(0, inside) for inside in graph.broken(point[1:], share * point[0], flows)]

    best = _climbed(program, np.concatenate([[total], fair]), _Sets(need, broken), stop)
    if np.count_nonzero(weight) == 1:
        # Trees from one root need few arcs: those with the shortest ways.
        best = _fewest(program, best, _Sets(need, broken), stop)
    return _one_way(share * best[0], best[1:], reverse)


def _one_way(roots: np.ndarray, rates: np.ndarray, reverse: bool) -> ArcRates:
    nothing = np.zeros_like(rates)
    return ArcRates(roots, nothing, rates) if reverse else ArcRates(roots, rates, nothing)


def _reached(graph: ArcGraph, rates: np.ndarray, share: np.ndarray, flows: FlowGraph) -> float:
    """The most that roots in these shares can send over arcs of these rates."""
    total = np.inf
    singles = (share > 0)[:, None] & np.eye(graph.n, dtype=bool)
    cuts = [row for row in singles if row.any()]
    while cuts:
        for inside in cuts:
            tail, head = flows.tail, flows.head
            total = min(total, float(rates[inside[tail] & ~inside[head]].sum()) / float(share[inside].sum()))
        cuts = graph.broken(rates, share * total, flows)
    return total


def joint_rates(graph: ArcGraph, start: ArcRates, stop=GO) -> ArcRates:
    """Rates of an all_reduce: roots, trees of sums towards them and trees of copies from them. `start`: some that fit;
    after a stop signal the result may be no better."""
    n, arcs = graph.n, graph.arcs
    program, ways = _Program(graph, n, arcs_of=2), (graph.forward, graph.backward)

    def need(way: int, inside: np.ndarray) -> None:
        program.need(way, inside, ways[way])

    def broken(point: np.ndarray) -> list[tuple[int, np.ndarray]]:
        roots, *rates = np.split(point, [n, n + arcs])
        return [(way, inside) for way in (0, 1) for inside in graph.broken(rates[way], roots, ways[way])]

    first = np.concatenate([start.roots, start.copies, start.sums])
    return ArcRates(*np.split(_climbed(program, first, _Sets(need, broken), stop), [n, n + arcs]))


class _Sets(NamedTuple):
    """The sets of ranks that bind a program, by way and bool[n]: `need` adds one, `broken` finds those that a point
    breaks."""

    need: Callable[[int, np.ndarray], None]
    broken: Callable[[np.ndarray], list[tuple[int, np.ndarray]]]


def _climbed(program: _Program, best: np.ndarray, sets: _Sets, stop: np.ndarray) -> np.ndarray:
    """A point that breaks nothing, near the optimum of a program.

    Sets are looked for halfway between the best such point and the optimum of the sets so far, where few are missing
    (in-out separation: Ben-Ameur & Neto, Networks 2007).
    """
    singles = np.eye(program.graph.n, dtype=bool)
    for way in range(program.arcs_of):
        for inside in (*singles, *~singles):
            sets.need(way, inside)
    roots = program.roots
    for _ in range(_ROUNDS):
        top = None if stop[0] else program.solve()
        if top is None:
            break
        lacking: list[tuple[int, np.ndarray]] = []
        while not lacking and best[:roots].sum() < top[:roots].sum() * (1 - _GAP):
            middle = (best + top) / 2
            lacking = sets.broken(middle)
            best = best if lacking else middle
        if not lacking:
            break
        for way, inside in lacking:
            sets.need(way, inside)
    # Where roots are chosen, the optimum uses few arcs, in long ways. The mean of several answers that use few links
    # uses many, in short ones.
    drawn = [] if stop[0] or roots == 1 else program.spread(float(best[:roots].sum()) * (1 - _SPREAD))
    mean = np.mean(drawn, axis=0) if drawn else best
    for _ in range(_ROUNDS):
        if not sets.broken(mean):
            return mean
        mean = (mean + best) / 2
    return best


def _fewest(program: _Program, best: np.ndarray, sets: _Sets, stop: np.ndarray) -> np.ndarray:
    """A point nearly as good as the best one that breaks nothing, with the least work over latencies of arcs."""
    network, random = program.graph.network, np.random.Generator(np.random.PCG64(1))
    delay = network.timing([0]).delay[0].astype(float)
    # A little noise tells equal arcs apart, so that few are used.
    cost = np.concatenate([np.zeros(program.roots), delay / max(delay.max(), 1.0) + 1e-3 * random.random(len(delay))])
    for _ in range(_FEW):
        point = None if stop[0] else program.solved(cost, float(best[: program.roots].sum()) * (1 - _SPARSE))
        if point is None:
            return best
        lacking = sets.broken(point)
        if not lacking:
            return point
        for way, inside in lacking:
            sets.need(way, inside)
    return best


class _Program:
    """Maximize the sum of the first variables; then follow the rates of arcs, `arcs_of` times."""

    def __init__(self, graph: ArcGraph, roots: int, arcs_of: int) -> None:
        from scipy.sparse import coo_array

        self.graph, self.roots, self.arcs_of = graph, roots, arcs_of
        self.scale = float(graph.capacity.max())
        hops = len(graph.network.hop)
        column = np.concatenate([roots + way * graph.arcs + graph.arc_of_hop for way in range(arcs_of)])
        shape = len(graph.capacity), roots + arcs_of * graph.arcs
        self.links = coo_array((np.ones(arcs_of * hops), (np.tile(graph.network.hop, arcs_of), column)), shape).tocsr()
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def need(self, way: int, inside: np.ndarray, flows: FlowGraph, share: float | None = None) -> None:
        """Arcs out of a set carry what its roots send: `share` of the only variable, or the variables inside."""
        crossing = np.flatnonzero(inside[flows.tail] & ~inside[flows.head]) + self.roots + way * self.graph.arcs
        ranks, weights = np.flatnonzero(inside), np.ones(int(inside.sum()))
        if share is not None:
            ranks, weights = np.zeros(1, dtype=np.int64), np.array([share])
        if not inside.all() and weights.any():
            self.rows.append((np.concatenate([ranks, crossing]), np.concatenate([weights, -np.ones(len(crossing))])))

    def solve(self) -> np.ndarray | None:
        """The optimum; None: the solver fails."""
        cost = np.zeros(self.links.shape[1])
        cost[: self.roots] = -1.0
        return self.solved(cost, 0.0)

    def spread(self, least: float) -> list[np.ndarray]:
        """Some points of a sum of `least` that use few links, each in another measure."""
        random, found = np.random.Generator(np.random.PCG64(1)), []
        for _ in range(_DRAWS):
            cost = random.random(self.links.shape[1])
            cost[: self.roots] = 0.0
            found.append(self.solved(cost, least))
        return [point for point in found if point is not None]

    def solved(self, cost: np.ndarray, least: float) -> np.ndarray | None:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        width = self.links.shape[1]
        zeros = np.zeros(self.roots, dtype=np.int64)
        floor = csr_array((-np.ones(self.roots), (zeros, np.arange(self.roots))), (1, width))
        ptr = np.concatenate([[0], np.cumsum([len(columns) for columns, _ in self.rows])])
        columns, values = (np.concatenate(each) for each in zip(*self.rows, strict=True))
        cuts = csr_array((values, columns, ptr), (len(self.rows), width))
        limits = np.concatenate([self.graph.capacity / self.scale, np.zeros(len(self.rows)), [-least / self.scale]])
        found = linprog(cost, A_ub=vstack([self.links, cuts, floor]).tocsr(), b_ub=limits, method="highs")
        return None if found.status else np.maximum(found.x, 0.0) * self.scale


@dataclass(frozen=True, slots=True)
class WholeRates:
    """Whole numbers of trees from every rank and whole capacities of arcs, which have room for them.

    `roots`: int64[n]; `copies`, `sums`: int64[arcs]. `stretch`: how much longer they take than the rates would.
    """

    roots: np.ndarray
    copies: np.ndarray
    sums: np.ndarray
    stretch: float


def whole_rates(graph: ArcGraph, rates: ArcRates, roots: np.ndarray, most: float) -> WholeRates | None:
    """Whole capacities for trees from `roots` (int64[n], in proportion to those of the rates or nearly so), stretched
    by at most `most`; None: there are none."""
    ways = [(column, flows) for column, flows in ((rates.copies, graph.forward), (rates.sums, graph.backward))]
    unit = float(roots.sum()) / rates.total

    def scaled(stretch: float) -> list[np.ndarray]:
        wanted = [column * unit * stretch + 1e-7 for column, _ in ways]
        found = [np.floor(column).astype(np.int64) for column in wanted]
        if not graph.network.direct:
            _fill(graph, wanted, found, np.floor(graph.capacity * unit * stretch + 1e-7).astype(np.int64))
        return found

    def holding(stretch: float) -> WholeRates | None:
        whole = scaled(stretch)
        for (column, flows), each in zip(ways, whole, strict=True):
            if column.any() and _lacks(graph, each, roots, flows):
                return None
        return WholeRates(roots, whole[0], whole[1], stretch)

    best, low, high = holding(most), 1.0, most
    for _ in range(_HALVINGS if best is not None else 0):
        middle = (low + high) / 2
        found = holding(middle)
        low, high, best = (low, middle, found) if found is not None else (middle, high, best)
    return best


def _lacks(graph: ArcGraph, capacity: np.ndarray, roots: np.ndarray, flows: FlowGraph) -> bool:
    """Whether trees from roots do not fit into whole capacities."""
    for sink in range(graph.n):
        wanted = roots.copy()
        wanted[sink] = 0
        if wanted.any() and flows.least_cut(capacity, wanted, sink) is not None:
            return True
    return False


def _fill(graph: ArcGraph, wanted: list[np.ndarray], found: list[np.ndarray], room: np.ndarray) -> None:
    """Round some of the whole rates up, the largest fractions first, while links have room."""
    network = graph.network
    for whole in found:
        room -= np.bincount(network.hop, whole[graph.arc_of_hop], minlength=len(room)).astype(np.int64)
    fractions = np.concatenate([each - whole for each, whole in zip(wanted, found, strict=True)])
    order = np.argsort(-fractions, kind="stable")
    for place in order[fractions[order] > 1e-3].tolist():
        way, arc = divmod(place, graph.arcs)
        links = network.hop[network.hop_ptr[arc] : network.hop_ptr[arc + 1]]
        if (room[links] > 0).all():
            room[links] -= 1
            found[way][arc] += 1
