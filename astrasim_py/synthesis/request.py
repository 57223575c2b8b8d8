"""A request for a schedule, and the search that answers it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from astrasim_py.core.digest import digest
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """A topology, a group, a collective, and how to search."""

    topology: Topology
    npus: tuple[int, ...]  # rank → NPU
    collective: str
    size: int  # bytes of the full buffer
    chunks: int | None = 1  # per shard (of broadcast and reduce: of the buffer); None: as many as suit the size
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

    def key(self) -> str:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "topology"}
        return digest({**plain, "topology": self.topology.digest()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisResult:
    """The answer to a request."""

    schedule: Schedule
    chunks: int  # per shard
    reused: bool = False  # whether it was found before


def solve(
    request: Request, *, record: bool = True, jobs: int | None = None, progress: Callable | None = None
) -> SynthesisResult:
    """Search for the schedule of a request. Raises TopologyError, AlgorithmError."""
    from astrasim_py.synthesis.portfolio import best_chunks, find_schedule
    from astrasim_py.synthesis.search.multi_start import Effort

    network = request.network()
    if request.exact is not None:
        from astrasim_py.synthesis.extras.exact import admit, prove

        admit(network.ranks, request.exact)

    def run(chunks: int, rounds: int, budget: float | None) -> Schedule:
        effort = Effort(seed=request.seed, rounds=rounds, budget=budget, jobs=jobs, progress=progress)
        return find_schedule(network, request.demand(chunks), effort, record=record)

    if request.chunks is None:
        schedule, chunks = best_chunks(run, request.rounds, request.budget)
    else:
        schedule, chunks = run(request.chunks, request.rounds, request.budget), request.chunks
    if request.exact is not None:
        schedule = prove(schedule, seed=request.seed, limit=request.exact)
    return SynthesisResult(schedule=schedule, chunks=chunks)
