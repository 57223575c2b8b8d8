"""Rings as a library lays them: through nodes, where a group has several members in each of several."""

from dataclasses import dataclass

from astrasim_py.builders.registry import build
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.preparation.sources.built import default_built
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.topology.grid import nodes_of
from astrasim_py.topology.model import Topology

#: Collectives that go on rings through nodes.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_RINGS: Memo[Algorithm] = Memo(64)


@dataclass(frozen=True)
class LibraryRings:
    """The default algorithms of trainings, by the NPUs of a call.

    A group of which r members are in each of several nodes takes r rings, each of which leaves a node by another NIC;
    others take the algorithm for which no scenario names one.
    """

    topology: Topology
    by_placement: bool = True

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        """The algorithm of a call."""
        nodes = self._nodes(call)
        if not nodes:
            return default_built(*call[:3])

        def make() -> Algorithm:
            return build("ring", call.collective, call.ranks, nodes=nodes).with_verdict(True)

        return _RINGS.get((call.collective, call.ranks, digest(nodes)), make)

    def reaches(self, npus: tuple[int, ...]) -> bool:
        """Rings need no switches that compute."""
        return False

    def _nodes(self, call: AlgorithmCall) -> list[list[int]]:
        """Members of the group by node; empty where they are in one, or each in its own, or of different numbers."""
        if call.collective not in COLLECTIVES or not call.npus or len(self.topology.dims) < 2:
            return []
        nodes = nodes_of(self.topology, call.npus)
        sizes = {len(members) for members in nodes}
        return nodes if 1 < len(nodes) < call.ranks and len(sizes) == 1 else []
