"""A network up to its rotations: a decision for the chunks of one rank holds, rotated, for those of all others.

The problem shrinks to the chunks of one rank, and the links that rotations map to each other are one resource (see
`topology.symmetry`). Digits in which the network is not symmetric leave several ranks to decide for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.synthesis.model.arrays import rows_of
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Columns
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.topology.symmetry import Rotations, find_rotations

#: Most hops of a network.
_MAX_HOPS = 2**20
#: Chunks to decide for × arcs beyond which no symmetric run is made.
MAX_CANDIDATES = 2**26


@dataclass(frozen=True, eq=False)
class SymmetricNetwork:
    """A network up to rotations, for a demand that is as symmetric."""

    group: Rotations
    per_rank: int  # chunks of a rank
    arcs: np.ndarray  # int64[k]: arcs of the network, but those whose rotations would meet on one link
    class_of: np.ndarray  # int32[k]: equal for arcs that are rotated to each other, 0..
    first: np.ndarray  # int64[classes]: the first arc of each class, an index into `arcs`
    rotations: np.ndarray  # int32[k, order]: an arc rotated, by element of its source
    timing: Timing  # of these arcs and the largest chunks; links that are rotated to each other are one

    @property
    def origin(self) -> np.ndarray:
        """int32[chunks]: origins of the chunks to decide for."""
        return np.repeat(self.group.rank_at[:, 0], self.per_rank).astype(np.int32)

    def rotated(self, columns: Columns) -> Columns:
        """All rotations of transfers (index into `arcs`, chunk to decide for, start)."""
        arc, chunk, start = columns
        elements = np.arange(self.group.order)
        total = self.group.add(elements[:, None], elements[None, :]).astype(np.int32)
        arcs = self.rotations[arc[:, None], total[self.group.element[self.timing.src[arc]]]]
        chunks = self.group.rank_at[chunk // self.per_rank] * self.per_rank + (chunk % self.per_rank)[:, None]
        return arcs.reshape(-1), chunks.astype(np.int32).reshape(-1), np.repeat(start, self.group.order)


def arc_labels(network: Network, timing: Timing) -> np.ndarray:
    """int64[arcs]: equal for arcs whose transfers of the largest chunks take the same course."""
    lengths = np.diff(network.hop_ptr)
    rows = np.full((network.arcs, 2 * int(lengths.max(initial=0)) + 1), -1, dtype=np.int64)
    rows[:, 0] = timing.delay[0]
    for position in range(int(lengths.max(initial=0))):
        arcs = np.flatnonzero(lengths > position)
        at = network.hop_ptr[arcs] + position
        rows[arcs, 2 * position + 1], rows[arcs, 2 * position + 2] = timing.offset[0, at], timing.hold[0, at]
    if not len(rows) or (rows == rows[0]).all():
        return np.zeros(len(rows), dtype=np.int64)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def symmetric_network(network: Network, demand: Demand) -> SymmetricNetwork | None:
    """The network up to its largest group of rotations that is of use, if the demand is as symmetric."""
    if demand.root is not None or demand.receivers is not None or len(network.occupied_start) or network.ranks < 3:
        return None
    timing = network.timing(demand.sizes)
    for group in find_rotations(network.ranks, network.src, network.dst, arc_labels(network, timing)):
        if demand.count // group.order * network.arcs <= MAX_CANDIDATES:
            found = _symmetric(network, timing, group, demand.count // network.ranks)
            if found is not None:
                return found
    return None


def _symmetric(network: Network, timing: Timing, group: Rotations, per_rank: int) -> SymmetricNetwork | None:
    if len(network.hop) > _MAX_HOPS:
        return None
    order = group.order
    a, b = network.src.astype(np.int64), network.dst.astype(np.int64)
    step = group.add(group.element[b], group.element[a], -1)
    kind = (group.class_of[a] * (network.ranks // order) + group.class_of[b]) * order + step
    first, class_of = np.unique(kind, return_index=True, return_inverse=True)[1:]
    class_of = class_of.reshape(-1)
    arc_at = np.empty((len(first), order), dtype=np.int32)
    arc_at[class_of, group.element[a]] = np.arange(network.arcs)
    lengths = np.diff(network.hop_ptr)
    longest = int(lengths.max())
    hop_class = np.repeat(class_of, lengths)
    slots = hop_class * longest + np.arange(len(network.hop)) - np.repeat(network.hop_ptr[:-1], lengths)
    _, where, repeats = np.unique(hop_class * len(network.links) + network.hop, return_inverse=True, return_counts=True)
    spoilt = np.unique(hop_class[(repeats > 1)[where.reshape(-1)]])
    arcs = np.flatnonzero(~np.isin(class_of, spoilt))
    if not len(arcs):
        return None
    ptr, hops = rows_of(network.hop_ptr, arcs)
    links, hop = np.unique(_joined(slots, network.hop, len(first) * longest)[slots[hops]], return_inverse=True)
    smaller = replace(
        network, src=network.src[arcs], dst=network.dst[arcs], hop_ptr=ptr, hop=hop.reshape(-1).astype(np.int32),
        links=links, occupied_ptr=np.zeros(len(links) + 1, dtype=np.int64),
    )  # fmt: skip
    times = timing.offset[:1, hops], timing.hold[:1, hops], timing.delay[:1, arcs]
    first, kind = np.unique(class_of[arcs], return_index=True, return_inverse=True)[1:]
    return SymmetricNetwork(
        group, per_rank, arcs, kind.reshape(-1).astype(np.int32), first, arc_at[class_of[arcs]],
        smaller.with_times(*times),
    )  # fmt: skip


def _joined(slots: np.ndarray, links: np.ndarray, count: int) -> np.ndarray:
    """int64[count] labels of slots; slots of classes that share a link have the same one."""
    label = np.arange(count)
    while True:
        least = np.full(int(links.max(initial=0)) + 1, count)
        np.minimum.at(least, links, label[slots])
        new = label.copy()
        np.minimum.at(new, slots, least[links])
        if (new == label).all():
            return label
        label = new
