"""The cut that bounds collectives of which every member gets every share: all_gather, broadcast, and their reverses.

All members can send to all others at rates x·w (w: share of each) iff for every set X of vertices that leaves a member
out, x·w(X) is at most the capacity of the links out of X (Edmonds, "Edge-disjoint branchings", 1973; switches can be
split off: Mader 1978, Frank 1988; used for collectives by Zhao et al., ForestColl, arXiv 2402.06787). The cut is found
by Newton's method on the ratio: a maximum flow to each member names a cut with a smaller one, or there is none.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from astrasim_py.cuts.capacities import CapacityGraph

#: A stop signal that is never set.
_GO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class SpreadingCut:
    """A cut, and the rate that it allows.

    `inside`: bool[vertices], the near side. `share`: x, bytes per second and unit of `weight`; no schedule reaches
    more. `exact`: whether some schedule reaches it, with messages as small as one likes: all members were tried as
    sinks, or one of each class of rotations of the graph. `proof`: what was tried, in words.
    """

    graph: CapacityGraph
    weight: np.ndarray  # int64[n]: share of each rank
    inside: np.ndarray
    share: Fraction
    exact: bool
    proof: str

    @property
    def crossing(self) -> np.ndarray:
        """bool[edges]: links out of the near side."""
        return self.inside[self.graph.tail] & ~self.inside[self.graph.head]

    @property
    def members(self) -> np.ndarray:
        """int64: ranks of the near side."""
        return np.flatnonzero(self.inside[self.graph.members])

    @property
    def rate(self) -> Fraction:
        """Bytes per second of the full buffer."""
        return self.share * int(self.weight.sum())

    def time_ps(self, nbytes: np.ndarray) -> int:
        """The time that no schedule beats, ps, where rank r has ``nbytes[r]`` that all others need."""
        return self.graph.room_time(self.crossing, int(nbytes[self.members].sum()))


def spreading_cut(
    graph: CapacityGraph, weight: np.ndarray, sinks: np.ndarray | None = None, stop: np.ndarray = _GO
) -> SpreadingCut:
    """The tightest cut. `weight`: int64[n], share of every rank, some positive. `sinks`: ranks to be reached, by
    default all. After a stop signal the sinks tried so far count."""
    vertices, n = graph.topology.vertices, graph.ranks
    classes = np.arange(n) if sinks is None else sinks
    symmetric = sinks is None and (weight == weight[0]).all()
    if symmetric and n > 2:
        classes = graph.first_of_classes
    into = np.bincount(graph.head, graph.capacity, minlength=vertices)[graph.members[classes]]
    others = weight.sum() - weight[classes]
    # A rank that holds everything needs nothing.
    classes, into = classes[others > 0], into[others > 0]
    order = classes[np.argsort(into / others[others > 0], kind="stable")]
    best: tuple[Fraction, np.ndarray] | None = None
    tried = 0
    for sink in order.tolist():
        if tried and stop[0]:
            break
        best = _tightened(graph, weight, sink, best)
        tried += 1
    if best is None:
        raise ValueError("no rank needs anything")
    proof = ""
    if tried < len(classes):
        proof = f", {tried} of {len(classes)} sinks tried"
    elif sinks is None:
        by_class = f"one sink of each class of symmetry tried ({len(classes)})"
        proof = f", {by_class if symmetric and len(classes) < n else 'all sinks tried'}"
    # To a single rank any flow will do; trees to several need vertices that can be split off.
    reachable = graph.balanced or sinks is not None
    exact = tried == len(classes) and not graph.rounded and reachable
    return SpreadingCut(
        graph=graph, weight=weight, inside=best[1], share=best[0] * graph.unit, exact=exact, proof=proof
    )


def _tightened(
    graph: CapacityGraph, weight: np.ndarray, sink: int, best: tuple[Fraction, np.ndarray] | None
) -> tuple[Fraction, np.ndarray]:
    """The tightest cut that leaves a rank out, if it is tighter than the best one."""
    vertices = graph.topology.vertices
    if best is None:
        inside = np.ones(vertices, dtype=bool)
        inside[graph.members[sink]] = False
        best = _ratio(graph, weight, inside), inside
    while True:
        share = best[0]
        supply = np.zeros(vertices, dtype=np.int64)
        supply[graph.members] = weight * share.numerator
        supply[graph.members[sink]] = 0
        nearer = graph.flows.least_cut(graph.capacity * share.denominator, supply, int(graph.members[sink]))
        if nearer is None:
            return best
        best = _ratio(graph, weight, nearer), nearer


def _ratio(graph: CapacityGraph, weight: np.ndarray, inside: np.ndarray) -> Fraction:
    crossing = inside[graph.tail] & ~inside[graph.head]
    return Fraction(int(graph.capacity[crossing].sum()), int(weight[inside[graph.members]].sum()))
