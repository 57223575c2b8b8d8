"""Classic trees (star, chain, binomial, binary), combined over switch levels, executed in the order of queues.

Each chunk follows a tree from its origin: a star (direct), a chain (ring), a binomial tree (recursive doubling,
halving) or a binary one. In a hierarchy of switches it goes to one rank of every group by one tree, and within each
group by another, so that it crosses the links between groups once. Reductions take the same trees from the leaves up.
The transfers are posted in an order of urgency and executed as the engines do (see `queueing`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from astrasim_py.core.rows import numbered
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.graphs import components
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound, Schedule, Search
from astrasim_py.synthesis.search.multi_start import BestRun, Effort, compete, in_turn, search_of
from astrasim_py.synthesis.search.turning import Urgent, mirrored_queues, settled, turned_round

#: Ranks, and hops of all transfers, beyond which nothing is tried.
MAX_RANKS, MAX_HOPS = 2**11, 2**23
#: Hops that all runs execute together (estimate).
_EFFORT = 2**22
#: Levels of groups at most.
_MAX_LEVELS = 3
#: Orders of posts.
NEAR, FAR, TURNS = range(3)

#: ``shape(i) -> j``: the i-th rank of a row gets a chunk from the j-th, i > 0.
SHAPES: dict[str, Callable[[int], int]] = {
    "star": lambda i: 0,
    "chain": lambda i: i - 1,
    "doubling": lambda i: i - (1 << (i.bit_length() - 1)),
    "halving": lambda i: i & (i - 1),
    "binary": lambda i: i // 2,
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of trees, and an order of posts."""

    between: str = "star"
    within: str = "star"
    groups: int = -1  # which grouping of ranks; -1: none
    ways: int = 1  # 2: every other chunk goes the other way round
    rule: int = NEAR  # first posts: near the origin, far from the end, or chunk after chunk

    def __str__(self) -> str:
        trees = self.within if self.groups < 0 else f"{self.between} of groups, {self.within}"
        rule = ("near", "far", "first chunks")[self.rule]
        return f"pattern: {trees}{', both ways' * (self.ways > 1)}, {rule} first"


def patterns(groupings: int) -> list[Pattern]:
    """Patterns to try, the most promising first."""
    pairs = [("star", "star"), ("chain", "chain"), ("star", "chain"), ("chain", "star")]
    pairs += [("doubling", "doubling"), ("doubling", "star"), ("binary", "binary")]
    found = []
    for rule in (NEAR, FAR, TURNS):
        found += [Pattern(within="star", rule=rule), Pattern(within="chain", rule=rule)]
        for group in range(groupings):
            found += [Pattern(*pair, groups=group, rule=rule) for pair in pairs]
        for shape in ("chain", "binary", "doubling", "halving"):
            found += [Pattern(within=shape, ways=ways, rule=rule) for ways in (1, 2)]
    return list(dict.fromkeys(found))


def groupings(network: Network, sizes: Iterable[int]) -> list[list[np.ndarray]]:
    """Labels of ranks, int64[n] for each level from the largest groups on: by hops between them, and by time."""
    found: list[list[np.ndarray]] = []
    for distance in (np.diff(network.hop_ptr), network.timing(sizes).delay[0]):
        steps = np.unique(distance)[:-1]
        if len(steps) > _MAX_LEVELS:
            steps = steps[np.linspace(0, len(steps) - 1, _MAX_LEVELS).astype(int)]
        levels: list[np.ndarray] = []
        for step in steps[::-1].tolist():
            label, parts = components(network.timing(sizes), distance <= step)
            if 1 < parts < network.ranks and not any(np.array_equal(label, other) for other in levels):
                levels.append(np.asarray(label, dtype=np.int64))
        if levels and not any(np.array_equal(levels, other) for other in found):
            found.append(levels)
    return found


def _trees(roots: np.ndarray, pattern: Pattern, levels: list[np.ndarray], back: bool) -> np.ndarray:
    """The rank from which each rank gets the chunks of a root: int64[roots, n]; of a root, itself."""
    n, tree = len(levels[0]), np.arange(len(roots))
    parent = np.repeat(roots[:, None], n, axis=1)

    def place(holder: np.ndarray, members: np.ndarray, level: int) -> None:
        # The last level has a label per rank: the rows of the smallest groups.
        label = levels[level][members]
        _, first = np.unique(label, return_index=True)
        rows = [members[label == label[i]] for i in np.sort(first)]
        row_of, place_of = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        for i, row in enumerate(rows):
            row_of[row], place_of[row] = i, np.arange(len(row))
        own, at, count = row_of[holder], place_of[holder], len(rows)
        last = level == len(levels) - 1
        shape = pattern.within if last else pattern.between
        turns = np.arange(count)
        if shape in ("doubling", "halving") and count & (count - 1) == 0:
            order = own[:, None] ^ turns
        else:
            order = (own[:, None] + (-turns if back else turns)) % count
        # The k-th rank of each group represents the group towards the k-th rank of another.
        stand = np.stack([row[at % len(row)] for row in rows], axis=1)
        heads = np.take_along_axis(stand, order, axis=1)
        for i in range(1, count):
            parent[tree, heads[:, i]] = heads[:, SHAPES[shape](i)]
        if not last:
            for i, row in enumerate(rows):
                place(stand[:, i], row, level + 1)

    place(roots, np.arange(n), 0)
    return parent


class Patterns:
    """The transfers of patterns, and their execution."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.network, self.demand = network, demand = queues.network, queues.demand
        n = network.ranks
        self.arc_of = np.full((n, n), -1, dtype=np.int64)
        self.arc_of[network.src, network.dst] = np.arange(network.arcs)
        self.groupings = groupings(network, demand.sizes)
        self.roots, self.root = np.unique(demand.origin, return_inverse=True)
        self.root = self.root.reshape(-1)
        #: int64[chunks]: index of a chunk at its origin.
        self.turn = numbered(self.root)

    @cached_property
    def mirror(self) -> Queues:
        return mirrored_queues(self.queues)

    def transfers(self, pattern: Pattern, stop: np.ndarray = GO) -> Urgent | None:
        """Transfers, the most urgent first; None: a link is missing, or stopped."""
        demand, n = self.demand, self.network.ranks
        labels = self.groupings[pattern.groups] if pattern.groups >= 0 else []
        levels = [*labels, np.arange(n)]
        roots = self.roots.astype(np.int64)
        parent = np.stack([_trees(roots, pattern, levels, way > 0) for way in range(pattern.ways)])
        missing = [self.arc_of[parent, np.arange(n)], self.arc_of[np.arange(n), parent]]
        itself = parent == np.arange(n)
        sums, spreads = demand.reduces or demand.collective == "all_reduce", not demand.reduces
        if (spreads and (missing[0][~itself] < 0).any()) or (sums and (missing[1][~itself] < 0).any()):
            return None
        depth, height = _measures(parent, itself)
        way, chunk = self.turn % pattern.ways, np.arange(demand.count)
        chunks, ranks = np.repeat(chunk, n), np.tile(np.arange(n), demand.count)
        cell = np.repeat(way, n), np.repeat(self.root, n), ranks
        real = ~itself[cell]
        cell, chunks, ranks = tuple(c[real] for c in cell), chunks[real], ranks[real]
        above, turn = parent[cell], self.turn[chunks]
        depth, height = depth[cell], height[cell]
        late = {NEAR: (depth, turn), FAR: (-height, turn), TURNS: (turn, depth)}[pattern.rule]
        order, none = np.lexsort(((ranks - above) % n, late[1], late[0])), np.zeros(len(ranks), dtype=bool)
        columns = []
        if sums:
            # They go as copies would go the other way, turned round in time.
            turned = turned_round(self.mirror, (self.arc_of[ranks, above][order], chunks[order], none), stop)
            if turned is None:
                return None
            columns.append(turned)
        if spreads:
            columns.append((self.arc_of[above, ranks][order], chunks[order], none))
        arcs, carried, summed = (np.concatenate(column) for column in zip(*columns, strict=True))
        return arcs, carried, summed


def _measures(parent: np.ndarray, itself: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(depth, height) of every rank in every tree: int64[ways, roots, n]."""
    n = parent.shape[-1]
    above = (np.arange(parent[..., 0].size).repeat(n).reshape(parent.shape) * n + parent).reshape(-1)
    # Pointer jumping: the distance to the ancestor doubles every time, until the ancestor is the root.
    depth, ahead = (~itself).astype(np.int64).reshape(-1), above
    while depth[ahead].any():
        depth, ahead = depth + depth[ahead], ahead[ahead]
    height = np.zeros_like(depth)
    order = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(len(ends) - 2, 0, -1):
        rows = order[ends[level] : ends[level + 1]]
        np.maximum.at(height, above[rows], height[rows] + 1)
    return depth.reshape(parent.shape), height.reshape(parent.shape)


def applies(network: Network, demand: Demand) -> bool:
    """Whether transfers may wait in switches here, and are not too many."""
    shared = not network.direct and not len(network.occupied_start) and demand.stated is None
    transfers = demand.count * (1 if demand.receivers is not None else network.ranks - 1)
    transfers *= 1 + (demand.collective == "all_reduce")
    small = transfers * int(np.diff(network.hop_ptr).max(initial=1)) <= MAX_HOPS
    return shared and small and 1 < network.ranks <= MAX_RANKS


def best_pattern(made: Patterns, bound: Bound, enough: int, effort: Effort) -> Schedule | None:
    """The schedule of the fastest pattern; the search ends at one that meets `enough`."""
    offered = patterns(len(made.groupings))
    hops = made.demand.count * int(np.diff(made.network.hop_ptr).max(initial=1)) * made.network.ranks
    tried = min(len(offered), max(_EFFORT // hops, 4))

    def run(pattern: Pattern, seed: int, limit: int, stop: np.ndarray, start: BestRun | None):
        rows = made.transfers(pattern, stop)
        return None if rows is None else made.queues.executed(*rows, limit - 1, stop)

    found = compete(in_turn(offered, tried), run, enough, replace(effort, rounds=tried))
    if found is None:
        return None
    return posted(made.queues, found.time, found.result, search_of(found, effort, str(found.policy), 0), bound)


def posted(queues: Queues, time: int, rows: tuple, search: Search, bound: Bound) -> Schedule:
    """The schedule of executed transfers (arc, chunk, reduces, start), which takes `time` ps."""
    order = np.argsort(rows[3], kind="stable")
    arc, chunk, reduces, start = (column[order] for column in rows)
    return Schedule.of(queues.network, queues.demand, (arc, chunk, start, reduces), time, search, bound)


def in_queues(queues: Queues, schedule: Schedule, enough: int, stop: np.ndarray = GO) -> Schedule:
    """A schedule whose transfers are posted as early as the best order found lets them, if that is faster."""
    found = settled(queues, (schedule.arc, schedule.chunk, schedule.reduces), schedule.time - 1, enough, stop)
    if found is None:
        return schedule
    how = replace(schedule.search, policy=f"{schedule.search.policy}, in queues")
    return posted(queues, *found, how, Bound(schedule.bound, schedule.bound_kind))
