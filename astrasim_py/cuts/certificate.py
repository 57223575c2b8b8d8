"""The best bound of a collective by cuts of a topology, and what proves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.number_ranges import number_ranges
from astrasim_py.core.units import number_of
from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.partitions import Partition, partitions
from astrasim_py.cuts.spreading import SpreadingCut, spreading_cut
from astrasim_py.topology.model import Topology

_GO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A time that no schedule of a collective beats, whatever its messages, and what proves it.

    `time_ps`: rounded down. `rate`: bytes per second of the full buffer that no schedule exceeds. `exact`: whether
    some schedule reaches that rate, with large buffers and small messages. `text`: the cut, by name, and what was
    tried.
    """

    time_ps: int
    rate: Fraction
    kind: str  # ``cut``, ``partition``, ``weights``
    exact: bool
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}: at most {_GBps(self.rate)}{', exact' * self.exact}"


class GroupCuts:
    """Cuts of a graph, each searched once, whatever the sizes of collectives."""

    def __init__(self, graph: CapacityGraph) -> None:
        self.graph = graph
        self.every = np.ones(graph.ranks, dtype=np.int64)
        self._spreading: dict[tuple[bytes, int], SpreadingCut] = {}
        self._partitions: dict[int, list[Partition]] = {}

    @cached_property
    def reversed(self) -> "GroupCuts":
        return GroupCuts(self.graph.reversed)

    def spreading(self, weight: np.ndarray, stop: np.ndarray, sink: int = -1) -> SpreadingCut:
        """The tightest cut before a rank, by default before any."""
        key = weight.tobytes(), sink
        if key not in self._spreading:
            self._spreading[key] = spreading_cut(self.graph, weight, np.array([sink]) if sink >= 0 else None, stop)
        return self._spreading[key]

    def only(self, rank: int) -> np.ndarray:
        """int64[n]: 1 of one rank."""
        return (np.arange(self.graph.ranks) == rank).astype(np.int64)

    def partitions(self, *cuts: SpreadingCut) -> list[Partition]:
        if len(cuts) not in self._partitions:
            self._partitions[len(cuts)] = partitions(self.graph, cuts)
        return self._partitions[len(cuts)]


def certificate(
    collective: str,
    size: int,
    topology: Topology,
    npus: Sequence[int],
    root: int = 0,
    *,
    relays: bool = True,
    links: np.ndarray | None = None,
    solver_s: float | None = 0.0,
    stop: np.ndarray = _GO,
) -> Certificate | None:
    """The certificate of a collective of `size` bytes (full buffer) where no switch computes; None: nothing to move.

    `npus`: members by rank. `root`: a rank. `relays`, `links`: see `CapacityGraph.of`. `solver_s`: seconds for the
    linear program of an all_to_all; 0: it is not solved; None: no limit. `stop`: a signal after which the cuts tried so
    far count.
    """
    if len(npus) < 2:
        return None
    cuts = GroupCuts(CapacityGraph.of(topology, npus, relays=relays, links=links))
    return certificate_of(cuts, collective, size, root, solver_s=solver_s, stop=stop)


def certificate_of(
    cuts: GroupCuts,
    collective: str,
    size: int,
    root: int = 0,
    *,
    solver_s: float | None = 0.0,
    stop: np.ndarray = _GO,
) -> Certificate | None:
    """The certificate of a collective among the members of a graph. Parameters as of `certificate`."""
    n = cuts.graph.ranks
    if n < 2 or collective == "barrier" or not size:
        return None
    if promise_of(collective).reduces and collective != "all_reduce":
        cuts = cuts.reversed
    shards = np.diff(np.arange(n + 1, dtype=object) * size // n).astype(np.int64)
    if collective in ("all_gather", "reduce_scatter"):
        return _of_cut(cuts.spreading(cuts.every, stop), shards)
    if collective in ("broadcast", "reduce"):
        return _of_cut(cuts.spreading(cuts.only(root), stop), cuts.only(root) * size)
    if collective in ("gather", "scatter"):
        return _of_cut((cuts if collective == "gather" else cuts.reversed).spreading(cuts.every, stop, root), shards)
    if collective == "all_reduce":
        return _of_all_reduce(cuts, size, stop)
    return _of_all_to_all(cuts, size, solver_s, stop)


def _of_cut(cut: SpreadingCut, nbytes: np.ndarray) -> Certificate:
    graph, ranks = cut.graph, cut.members
    sides = [_named(graph, ranks), _named(graph, np.setdiff1d(np.arange(graph.ranks), ranks))]
    text = f"{' to '.join(sides[::-1] if graph.turned else sides)}, {_crossing(graph, cut.crossing)}"
    return Certificate(
        time_ps=cut.time_ps(nbytes), rate=cut.rate, kind="cut", exact=cut.exact, text=f"{text}{cut.proof}"
    )


def _of_all_reduce(cuts: GroupCuts, size: int, stop: np.ndarray) -> Certificate:
    graph, both = cuts.graph, (cuts, cuts.reversed)
    # A cut that leaves some rank out lies between the first rank and another one, in one direction.
    halves = [side.spreading(side.every, stop) for side in both]
    # Reachable: a reduce_scatter, then an all_gather.
    reached = 1 / (1 / halves[0].rate + 1 / halves[1].rate)
    bounds = []
    for partition in cuts.partitions(*halves):
        bounds.append((partition.all_reduce_ps(size), _rate_of(partition), "partition", _parts(partition)))
    if all(rate > reached for _, rate, *_ in bounds):
        for side in both:
            cut = side.spreading(side.only(0), stop)
            sides = f"{_named(graph, cut.members)} and the others, one way, {_crossing(graph, cut.crossing)}"
            bounds.append((cut.time_ps(side.only(0) * size), cut.share, "cut", sides))
    time, rate, kind, text = max(bounds, key=lambda entry: (entry[0], -entry[1]))
    exact = rate == reached and all(half.exact for half in halves)
    return Certificate(time_ps=time, rate=rate, kind=kind, exact=exact, text=text)


def of_partition(partition: Partition, size: int) -> Certificate:
    """What a partition alone proves of an all_reduce."""
    return Certificate(
        time_ps=partition.all_reduce_ps(size), rate=_rate_of(partition), kind="partition", exact=False,
        text=_parts(partition),
    )  # fmt: skip


def _rate_of(partition: Partition) -> Fraction:
    """Bytes per second of an all_reduce, at most."""
    graph, rates = partition.graph, []
    for edges in (partition.entering, partition.leaving):
        rates.append(Fraction(int(graph.capacity[edges].sum()), 2 * (partition.count - 1)))
    return min(rates) * graph.unit


def _of_all_to_all(cuts: GroupCuts, size: int, solver_s: float | None, stop: np.ndarray) -> Certificate:
    from astrasim_py.cuts.concurrent_flow import concurrent_weights, weighted_distances

    graph, n, best = cuts.graph, cuts.graph.ranks, None
    low = size // n
    for partition in cuts.partitions(cuts.spreading(cuts.every, stop)):
        for inside in partition.cuts():
            ranks = np.flatnonzero(inside[graph.members])
            pairs = len(ranks) * (n - len(ranks))
            for tail, head in ((graph.tail, graph.head), (graph.head, graph.tail)):
                crossing = inside[tail] & ~inside[head]
                capacity = int(graph.capacity[crossing].sum())
                if not capacity:
                    continue
                time = graph.room_time(crossing, pairs * low)
                if best is None or time > best.time_ps:
                    rate = Fraction(capacity * n, pairs) * graph.unit
                    text = f"{_named(graph, ranks)} and the others, {_crossing(graph, crossing)}"
                    best = Certificate(time_ps=time, rate=rate, kind="cut", exact=False, text=text)
    weight = None if solver_s == 0 or stop[0] else concurrent_weights(graph, solver_s)
    if weight is not None:
        weight = np.maximum(weight, 1)
        reach = int(weighted_distances(graph, weight).sum())
        time, total = graph.room_time(weight, reach * low), int((weight.astype(object) * graph.capacity).sum())
        rate = Fraction(total * n, reach) * graph.unit
        if best is None or time > best.time_ps:
            text = f"prices of {number_of(int((weight > 1).sum()), 'link')}, the dual of concurrent flow"
            best = Certificate(time_ps=time, rate=rate, kind="weights", exact=False, text=text)
    if best is None:
        raise ValueError("members that no link joins")
    return best


def _named(graph: CapacityGraph, ranks: np.ndarray) -> str:
    if len(ranks) * 2 > graph.ranks:
        others = np.setdiff1d(np.arange(graph.ranks), ranks)
        return f"{len(ranks)} NPUs (all but {number_ranges(graph.members[others].tolist())})"
    return f"NPU{'s' * (len(ranks) > 1)} {number_ranges(graph.members[ranks].tolist())}"


def _crossing(graph: CapacityGraph, crossing: np.ndarray) -> str:
    links, capacity = int(crossing.sum()), int(graph.capacity[crossing].sum())
    return f"{number_of(links, 'link')} of {_GBps(graph.rate(capacity))} in sum"


def _parts(partition: Partition) -> str:
    sizes = np.unique(np.bincount(partition.part)).tolist()
    each = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    into = _crossing(partition.graph, partition.entering)
    return f"{partition.count} parts ({each} NPU{'s' * (sizes[-1] > 1)} each), {into} into them"


def _GBps(rate: Fraction) -> str:
    return f"{float(rate) / 1e9:.6g} GB/s"
