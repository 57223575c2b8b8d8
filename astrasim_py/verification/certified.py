"""Bounds by cuts of the calls of a run, as far as they are found in little time."""

from collections.abc import Sequence

import numpy as np

from astrasim_py.collectives.collective import promise_of
from astrasim_py.cuts.capacities import CapacityGraph
from astrasim_py.cuts.certificate import Certificate, GroupCuts, certificate_of, of_partition
from astrasim_py.cuts.partitions import Partition
from astrasim_py.topology.model import Topology

#: Links of the largest group whose cuts are searched.
_MOST_LINKS = 2**14
#: Links of the largest machine of which nodes are taken as parts.
_MOST_NODES_LINKS = 2**17
#: Links of all groups together, each of which costs as much as `_FIXED` links: one second.
_ALL_LINKS, _FIXED = 2**15, 2**9


class CertifiedBounds:
    """Bounds of calls by cuts of what carries them; the cuts of a group are searched once for all sizes."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._groups: dict[tuple[int, ...], GroupCuts | None] = {}
        self._nodes: dict[tuple[int, ...], Partition] = {}
        self._links = 0

    def certificate(
        self, collective: str, size: int, npus: Sequence[int], root: int = 0, links: np.ndarray | None = None
    ) -> Certificate | None:
        """The certificate of a call; None: nothing moves, or it takes too long to find one.

        `links`: which the members' messages take, all by default; the same for all calls of a group.
        """
        group = tuple(npus)
        if group not in self._groups:
            self._groups[group] = self._cuts(group, links)
        cuts, promise = self._groups[group], promise_of(collective)
        if cuts is None and collective == "all_reduce" and links is None and size:
            return self._between_nodes(size, group)
        if cuts is None:
            return None
        if collective != "all_reduce" and (promise.gathers or promise.scatters):
            size -= size % len(group)  # who gets the bytes that are left over is no matter of the bound
        return certificate_of(cuts, collective, size, root)

    def _between_nodes(self, size: int, group: tuple[int, ...]) -> Certificate | None:
        """What links between the innermost blocks of a large machine prove of an all_reduce."""
        topology = self.topology
        nodes = np.unique(np.array(group) // (topology.dims[0].size if topology.dims else 1), return_inverse=True)[1]
        if not 0 < nodes.max() < len(group) - 1 or topology.links > _MOST_NODES_LINKS:
            return None
        if group not in self._nodes:
            self._nodes[group] = Partition(CapacityGraph.of(topology, group), nodes.reshape(-1))
        return of_partition(self._nodes[group], size)

    def _cuts(self, group: tuple[int, ...], links: np.ndarray | None) -> GroupCuts | None:
        topology = self.topology
        kinds = topology.bandwidth_class if links is None else topology.bandwidth_class[links]
        star = links is not None and len(links) == 2 * len(group) and len(np.unique(kinds)) == 1
        if star or len(kinds) > _MOST_LINKS or self._links > _ALL_LINKS:
            return None
        self._links += len(kinds) + _FIXED
        return GroupCuts(CapacityGraph.of(topology, group, links=links))
