"""Forests: trees packed into all the bandwidth there is, and chunks that follow one another down them.

Trees of a shard carry its chunks in turn. A free link takes the waiting chunk with the smallest number within its
shard, so that all shards advance alike; chunks of an all_reduce are summed at the root of one tree and copied over
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.spreading import spreading_cut
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound, Schedule, Search
from astrasim_py.synthesis.search.arc_rates import (
    ArcGraph,
    ArcRates,
    WholeRates,
    joint_rates,
    spreading_rates,
    whole_rates,
)
from astrasim_py.synthesis.search.forest_packing import Forest, pack_trees
from astrasim_py.synthesis.search.patterns import posted
from astrasim_py.synthesis.search.turning import Urgent, mirrored_queues, settled, turned_round

#: Trees for a shard (of an all_reduce: for a rank, in the mean) that are tried, the first that lose little are taken.
_TREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
#: Losses of whole capacities that are accepted, the first that some number of trees keeps.
_LOSSES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
#: Forests of which the best is taken, and ranks × arcs up to which several are packed.
_CHOICES, _QUICK = 4, 100_000
#: Ranks beyond which no forest is packed, and ranks × arcs: some ten seconds.
MAX_RANKS, MAX_ARCS = 160, 450_000
#: Ranks beyond which roots of an all_reduce are not chosen.
MAX_JOINT = 72


@dataclass(frozen=True, eq=False)
class Forests:
    """Trees for a collective. `copies`: from roots to all; `sums`: from all to roots; either may be missing. `trees`:
    int64[n], trees from every rank."""

    network: Network
    collective: str
    trees: np.ndarray
    copies: Forest | None
    sums: Forest | None
    rate: float  # bytes per second of the full buffer, at most
    joint: bool  # whether roots of an all_reduce were chosen

    @property
    def per_shard(self) -> int:
        """Trees of a shard (of broadcast and reduce: of the buffer); chunks should be a multiple."""
        whole = int(self.trees.sum())
        return whole if self.collective in ("broadcast", "reduce") else whole // self.network.ranks

    @property
    def depth(self) -> int:
        """Arcs of the longest way of a chunk."""
        return sum(int(forest.depth.max()) for forest in (self.sums, self.copies) if forest is not None)

    @property
    def way(self) -> float:
        """Arcs of the way of a chunk to a rank, in the mean."""
        made = [forest for forest in (self.sums, self.copies) if forest is not None]
        return sum(float((each.depth.mean(axis=1) * each.many).sum() / each.many.sum()) for each in made)

    def transfers(self, queues: Queues, stop: np.ndarray = GO) -> Urgent | None:
        """Transfers of a demand, the most urgent first; None: stopped."""
        demand = queues.demand
        if demand.collective == "all_reduce":
            # Any rank may be the root of any chunk.
            counts = _parts(self.trees, demand.count)
            root = np.repeat(np.arange(self.network.ranks), counts)
            chunk = np.argsort(np.argsort(_even(counts), kind="stable"), kind="stable")
        else:
            chunk = np.argsort(demand.origin, kind="stable")
            root = demand.origin[chunk].astype(np.int64)
        columns = []
        for reduces, forest in ((True, self.sums), (False, self.copies)):
            if forest is not None:
                columns.append(self._way(forest, root, chunk, reduces))
        arc, chunks, sums, turn, near = (np.concatenate(each) for each in zip(*columns, strict=True))
        # At equal urgency every rank begins with its successor: no two send to the same one.
        shift = (self.network.dst[arc].astype(np.int64) - self.network.src[arc]) % self.network.ranks
        order = np.lexsort((shift, near, sums, turn))
        found = arc[order], chunks[order], sums[order]
        if self.copies is not None:
            return found
        return turned_round(mirrored_queues(queues), (found[0], found[1], ~found[2]), stop)

    def _way(self, forest: Forest, root: np.ndarray, chunk: np.ndarray, reduces: bool) -> tuple[np.ndarray, ...]:
        """Columns of the transfers of chunks (of ascending roots) over trees: arc, chunk, reduces, turn, nearness."""
        counts = np.bincount(root, minlength=self.network.ranks)
        trees = [np.flatnonzero(forest.root == rank) for rank in np.flatnonzero(counts).tolist()]
        tree = np.concatenate([
            mine[_in_turn(forest.many[mine], count)]
            for mine, count in zip(trees, counts[counts > 0].tolist(), strict=True)
        ])  # fmt: skip
        arcs, depth = forest.arc[tree], forest.depth[tree]
        row, rank = np.nonzero(arcs >= 0)
        near = -depth[row, rank] if reduces and self.copies is not None else depth[row, rank]
        return arcs[row, rank], chunk[row], np.full(len(row), reduces), _even(counts)[row], near.astype(np.int64)


def _even(counts: np.ndarray) -> np.ndarray:
    """float64: for each of some rows of so many things the places of its things, spread evenly between 0 and 1."""
    return np.concatenate([(np.arange(count) + 0.5) / count for count in counts.tolist() if count])


def _in_turn(many: np.ndarray, count: int) -> np.ndarray:
    """int64[count]: the tree that each chunk takes, of `many` of each kind, spread evenly."""
    parts = _parts(many, count)
    tree = np.repeat(np.arange(len(many)), parts)
    return tree[np.argsort(_even(parts), kind="stable")]


def _parts(weight: np.ndarray, count: int) -> np.ndarray:
    """int64[weights]: a count in parts in proportion to weights, by largest remainders."""
    whole = int(weight.sum())
    parts = weight * count // whole
    order = np.argsort(-(weight * count % whole), kind="stable")
    parts[order[: count - int(parts.sum())]] += 1
    return parts


def forests(
    network: Network, collective: str, root: int | None, *, joint: bool, most: int, stop: np.ndarray = GO
) -> Forests | None:
    """Trees for a collective; None: stopped, or not found. `joint`: whether roots of an all_reduce are chosen;
    otherwise every rank is the root of its shard. `most`: trees of a shard."""
    n = network.ranks
    graph = ArcGraph(network)
    weight = np.ones(n, dtype=np.int64) if root is None else (np.arange(n) == root).astype(np.int64)
    if collective == "all_reduce":
        rates = _halves(graph, weight, stop)
        rates = joint_rates(graph, rates, stop) if joint else rates
    else:
        rates = _one_way(graph, weight, collective in ("reduce_scatter", "reduce"), stop)
    found: list[Forests] = []
    for whole in _whole(graph, rates, None if root is None else weight, most, stop):
        packed = _packed(network, whole, stop)
        if packed is None:
            break
        found.append(Forests(network, collective, whole.roots, *packed, rates.total / whole.stretch, joint))
        if len(found) == (_CHOICES if n * network.arcs <= _QUICK else 1):
            break
    # Of shallow trees the last chunks come soon.
    return min(found, key=lambda each: round(each.way, 2), default=None)


def _whole(
    graph: ArcGraph, rates: ArcRates, weight: np.ndarray | None, most: int, stop: np.ndarray
) -> Iterator[WholeRates]:
    """Whole numbers of trees that lose little: the least, and then those that are about twice as many."""
    before = 0
    for loss in _LOSSES:
        for each in _TREES:
            if each > most or each < 2 * before or stop[0]:
                continue
            trees = _parts(np.round(rates.roots / rates.total * 2**30).astype(np.int64), graph.n * each)
            whole = whole_rates(graph, rates, trees if weight is None else weight * each, 1 + loss)
            if whole is not None:
                before = each
                yield whole
        if before:
            return


def _packed(network: Network, whole: WholeRates, stop: np.ndarray) -> tuple[Forest | None, Forest | None] | None:
    """Trees that copy and trees that sum; None: stopped."""
    made: list[Forest | None] = []
    for capacity, tail, head in ((whole.copies, network.src, network.dst), (whole.sums, network.dst, network.src)):
        forest = pack_trees(network.ranks, tail, head, capacity, whole.roots, stop) if capacity.any() else None
        if capacity.any() and forest is None:
            return None
        made.append(forest)
    return made[0], made[1]


def may_pack(network: Network, demand: Demand) -> bool:
    """Whether forests are packed for a demand."""
    few = 2 < network.ranks <= MAX_RANKS and network.ranks * network.arcs <= MAX_ARCS
    return few and demand.receivers is None and not len(network.occupied_start)


def grown(
    packed: Forests, queues: Queues, bound: Bound, enough: int, until: int, seed: int, stop: np.ndarray = GO
) -> Schedule | None:
    """The schedule of a demand over forests, the best of some orders, if it ends before `until`; `seed`: of the search
    that asks for it."""
    transfers = packed.transfers(queues, stop)
    found = None if transfers is None else settled(queues, transfers, until - 1, enough, stop)
    if found is None:
        return None
    kinds = sum(len(each.root) for each in (packed.copies, packed.sums) if each is not None)
    roots = ", roots chosen" if packed.joint else ""
    policy = f"forest: {kinds} kinds of trees, {packed.per_shard} per shard{roots}"
    return posted(queues, *found, Search(seed=seed, policy=policy, rounds=0), bound)


def _one_way(graph: ArcGraph, weight: np.ndarray, reverse: bool, stop: np.ndarray) -> ArcRates:
    network = graph.network
    links = CapacityGraph.of(network.topology, network.npus, relays=network.relays)
    goal = float(spreading_cut(links.reversed if reverse else links, weight, stop=stop).rate)
    return spreading_rates(graph, weight, reverse=reverse, goal=goal, stop=stop)


def _halves(graph: ArcGraph, weight: np.ndarray, stop: np.ndarray) -> ArcRates:
    """Rates of an all_reduce of shards: as many trees in as out."""
    out, back = (_one_way(graph, weight, reverse, stop) for reverse in (False, True))
    # Each takes the part of all links that makes both as fast.
    part = back.total / (out.total + back.total)
    return ArcRates(out.roots * part, out.copies * part, back.sums * (1 - part))
