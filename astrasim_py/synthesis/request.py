"""A request for a schedule, and the search that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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


#: Seconds for the linear program that bounds an all_to_all, if a budget does not say less, and its share of a budget.
_SOLVER_S, _SHARE = 20.0, 0.25


def solve(
    request: Request, *, record: bool = True, jobs: int | None = None, progress: Callable | None = None
) -> SynthesisResult:
    """Search for the schedule of a request. Raises TopologyError, AlgorithmError."""
    from astrasim_py.synthesis.chunk_choice import ChunkChoice
    from astrasim_py.synthesis.portfolio import find_schedule
    from astrasim_py.synthesis.search.multi_start import Effort

    network = request.network()
    if request.exact is not None:
        from astrasim_py.synthesis.extras.exact import admit, prove

        admit(network.ranks, request.exact)
    effort = Effort(seed=request.seed, rounds=request.rounds, budget=request.budget, jobs=jobs, progress=progress)
    proof = request.proof(0.0)
    if request.chunks is None:
        schedule, chunks = ChunkChoice(request, network, proof, effort, record=record).schedule()
    else:
        schedule, chunks = find_schedule(network, request.demand(request.chunks), effort, record=record), request.chunks
    if request.exact is not None:
        schedule = prove(schedule, seed=request.seed, limit=request.exact)
    if request.collective == "all_to_all" and not schedule.optimal:
        # The linear program takes longer than some searches: it is solved where it can tell more.
        left = _SOLVER_S if request.budget is None else min(_SHARE * request.budget, _SOLVER_S)
        other = request.proof(left)
        proof = other if proof is None or (other is not None and other.time_ps > proof.time_ps) else proof
    if proof is not None and proof.time_ps > schedule.bound:
        schedule = replace(schedule, bound=proof.time_ps, bound_kind=proof.kind)
    return SynthesisResult(schedule=schedule, chunks=chunks, proof="" if proof is None else str(proof))
