"""A network up to its rotations: one arc stands for all arcs that rotations map to each other.

A decision for the chunks of one rank holds, rotated, for those of all others (see `topology.symmetry`), so the problem
shrinks to the chunks of one rank and one resource per class of links. Digits in which the network is not symmetric
leave several ranks to decide for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astrasim_py.synthesis.model.arrays import rows_of
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import Timing
from astrasim_py.topology.symmetry import Rotations, find_rotations

#: Most hops of networks whose arcs share links.
_MAX_SHARED_HOPS = 2**20


@dataclass(frozen=True, eq=False)
class SymmetricNetwork:
    """A network up to rotations; resources are classes of links, times those of the largest chunks."""

    group: Rotations
    class_of: np.ndarray  # int32[arcs]: class of an arc; -1 for arcs whose rotations would meet on one link
    arc_at: np.ndarray  # int32[classes, order]: arc by class and element of its source
    resource_ptr: np.ndarray
    resource: np.ndarray
    offset: np.ndarray
    hold: np.ndarray
    delay: np.ndarray  # int64[classes]


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


def symmetric_networks(network: Network, timing: Timing) -> Iterator[SymmetricNetwork]:
    """The network up to each group of its rotations, the largest first, where some arcs can be used at once."""
    for group in find_rotations(network.ranks, network.src, network.dst, arc_labels(network, timing)):
        found = _symmetric(network, timing, group)
        if found is not None:
            yield found


def _symmetric(network: Network, timing: Timing, group: Rotations) -> SymmetricNetwork | None:
    order = group.order
    a, b = network.src.astype(np.int64), network.dst.astype(np.int64)
    step = group.add(group.element[b], group.element[a], -1)
    kind = (group.class_of[a] * (network.ranks // order) + group.class_of[b]) * order + step
    first, class_of = np.unique(kind, return_index=True, return_inverse=True)[1:]
    class_of = class_of.reshape(-1)
    arc_at = np.empty((len(first), order), dtype=np.int32)
    arc_at[class_of, group.element[a]] = np.arange(network.arcs)
    resource_ptr, hops = rows_of(network.hop_ptr, first)
    resource = np.arange(len(first))
    if not network.direct:
        if len(network.hop) > _MAX_SHARED_HOPS:
            return None
        lengths = np.diff(network.hop_ptr)
        hop_class = np.repeat(class_of, lengths)
        _, where, repeats = np.unique(
            hop_class * len(network.links) + network.hop, return_inverse=True, return_counts=True
        )
        spoilt = np.unique(hop_class[(repeats > 1)[where.reshape(-1)]])
        position = np.arange(len(network.hop)) - np.repeat(network.hop_ptr[:-1], lengths)
        resource = _joined(resource_ptr[hop_class] + position, network.hop, int(resource_ptr[-1]))
        class_of = np.where(np.isin(class_of, spoilt), -1, class_of)
        if (class_of < 0).all():
            return None
    return SymmetricNetwork(
        group=group, class_of=class_of.astype(np.int32), arc_at=arc_at, resource_ptr=resource_ptr,
        resource=resource.astype(np.int32), offset=timing.offset[0, hops], hold=timing.hold[0, hops],
        delay=timing.delay[0, first],
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
            return np.unique(label, return_inverse=True)[1].reshape(-1)
        label = new
