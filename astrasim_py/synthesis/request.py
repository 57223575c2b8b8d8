"""A request for a schedule, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from astrasim_py.core.digest import digest
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.topology.model import Topology

if TYPE_CHECKING:
    from astrasim_py.cuts.certificate import Certificate

#: Transfers of a schedule whose number of chunks is chosen.
MAX_TRANSFERS = 2**20


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """A topology, a group, a collective, and how to search."""

    topology: Topology
    npus: tuple[int, ...]  # rank → NPU
    collective: str
    size: int  # bytes of the full buffer
    chunks: int | None = None  # per shard (of broadcast and reduce: of the buffer); None: as many as suit the size
    transfers: int = MAX_TRANSFERS  # at most, of a schedule whose number of chunks is chosen
    root: int | None = None
    cost: CostModel = CostModel()
    relays: bool = False
    occupied: tuple[Occupied, ...] = ()
    seed: int = 1
    rounds: int = 200
    budget: float | None = None  # seconds
    memory: int | None = None  # bytes
    exact: float | None = None  # seconds in which the result is to be proven the fastest; None: it is not tried
    #: Bytes from a to b at [a][b], instead of `size`: an all_to_all of unequal blocks.
    blocks: tuple[tuple[int, ...], ...] | None = None

    def network(self) -> Network:
        """Arcs of the group."""
        return Network.of(self.topology, self.npus, cost=self.cost, relays=self.relays, occupied=self.occupied)

    def demand(self, chunks: int) -> Demand:
        """The demand with a number of chunks per shard."""
        if self.blocks is None:
            return Demand.of(self.collective, len(self.npus), chunks, self.size, self.root)
        whole = gcd(*(size for a, row in enumerate(self.blocks) for b, size in enumerate(row) if a != b))
        return Demand.blocks(self.blocks, chunks, unit=max(whole // chunks if whole % chunks == 0 else whole, 1))

    def proof(self, solver_s: float) -> Certificate | None:
        """What bounds every schedule of the collective, whatever its chunks; None: nothing is known.

        `solver_s`: seconds for a linear program.
        """
        if self.blocks is not None:
            return None
        from astrasim_py.cuts.certificate import certificate

        return certificate(
            self.collective, self.size, self.topology, self.npus, self.root or 0, relays=self.relays, solver_s=solver_s
        )

    def key(self) -> str:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "topology"}
        return digest({**plain, "topology": self.topology.digest()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisResult:
    """The answer to a request. `proof`: what bounds every schedule of the collective, whatever its chunks, in words."""

    schedule: Schedule
    chunks: int  # per shard
    proof: str = ""
    reused: bool = False  # whether it was found before
    interrupted: bool = False  # whether it is the best of a search that an interrupt ended
