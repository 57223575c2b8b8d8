"""The best bound of a collective by cuts of a topology, and what proves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

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
    if len(npus) < 2 or collective == "barrier" or not size:
        return None
    graph = CapacityGraph.of(topology, npus, relays=relays, links=links)
    if promise_of(collective).reduces and collective != "all_reduce":
        graph = graph.reversed
    n = graph.ranks
    every, alone = np.ones(n, dtype=np.int64), (np.arange(n) == root).astype(np.int64)
    shards = np.diff(np.arange(n + 1, dtype=object) * size // n).astype(np.int64)
    if collective in ("all_gather", "reduce_scatter"):
        return _of_cut(spreading_cut(graph, every, stop=stop), shards)
    if collective in ("broadcast", "reduce"):
        return _of_cut(spreading_cut(graph, alone, stop=stop), alone * size)
    if collective in ("gather", "scatter"):
        cut = spreading_cut(graph if collective == "gather" else graph.reversed, every, np.array([root]), stop)
        return _of_cut(cut, shards)
    if collective == "all_reduce":
        return _of_all_reduce(graph, size, stop)
    return _of_all_to_all(graph, size, solver_s, stop)


def _of_cut(cut: SpreadingCut, nbytes: np.ndarray) -> Certificate:
    graph, ranks = cut.graph, cut.members
    sides = [_named(graph, ranks), _named(graph, np.setdiff1d(np.arange(graph.ranks), ranks))]
    text = f"{' to '.join(sides[::-1] if graph.turned else sides)}, {_crossing(graph, cut.crossing)}"
    return Certificate(
        time_ps=cut.time_ps(nbytes), rate=cut.rate, kind="cut", exact=cut.exact, text=f"{text}{cut.proof}"
    )


def _of_all_reduce(graph: CapacityGraph, size: int, stop: np.ndarray) -> Certificate:
    every, first = np.ones(graph.ranks, dtype=np.int64), (np.arange(graph.ranks) == 0).astype(np.int64)
    # A cut that leaves some rank out lies between the first rank and another one, in one direction.
    halves = [spreading_cut(each, every, stop=stop) for each in (graph, graph.reversed)]
    found = []
    for each in (graph, graph.reversed):
        cut = spreading_cut(each, first, stop=stop)
        sides = f"{_named(graph, cut.members)} and the others, one way, {_crossing(graph, cut.crossing)}"
        found.append((cut.time_ps(first * size), cut.share, "cut", sides))
    for partition in partitions(graph, tuple(halves)):
        rate = _rate_of(partition)
        text = f"{partition.count} parts ({_parts(partition)}), {_crossing(graph, partition.entering)} into them"
        found.append((partition.all_reduce_ps(size), rate, "partition", text))
    time, rate, kind, text = max(found, key=lambda entry: (entry[0], -entry[1]))
    # Reachable: a reduce_scatter, then an all_gather.
    reached = 1 / (1 / halves[0].rate + 1 / halves[1].rate)
    exact = rate == reached and all(half.exact for half in halves)
    return Certificate(time_ps=time, rate=rate, kind=kind, exact=exact, text=text)


def _rate_of(partition: Partition) -> Fraction:
    """Bytes per second of an all_reduce, at most."""
    graph, rates = partition.graph, []
    for edges in (partition.entering, partition.leaving):
        rates.append(Fraction(int(graph.capacity[edges].sum()), 2 * (partition.count - 1)))
    return min(rates) * graph.unit


def _of_all_to_all(graph: CapacityGraph, size: int, solver_s: float | None, stop: np.ndarray) -> Certificate:
    from astrasim_py.cuts.concurrent_flow import concurrent_weights, weighted_distances

    n, best = graph.ranks, None
    low = size // n
    for partition in partitions(graph, (spreading_cut(graph, np.ones(n, dtype=np.int64), stop=stop),)):
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
    return f"{each} NPU{'s' * (sizes[-1] > 1)} each"


def _GBps(rate: Fraction) -> str:
    return f"{float(rate) / 1e9:.6g} GB/s"
