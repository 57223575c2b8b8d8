"""The Problem: the complete input of a simulation, as frozen values; and the interface of planners.

A planner cuts a collective into chunks, which wait in queues of each NPU. A chunk runs *phases* one after the other,
usually one per dimension. In a phase the members form rows, each of which runs one algorithm: a *call*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.shown import Shown
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.compatible import BACKGROUND, BOUND, ECMP, EVENTS, NIC, NOISE, exclusions
from astrasim_py.system.machine_models import NO_MEMORY, ComputeModel, Limits, MemoryModel, NetworkModel, NicModel
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Topology

if TYPE_CHECKING:
    from astrasim_py.system.noise import Noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedPhase:
    """One visit of one dimension by one chunk."""

    queue: int  # the chunk's queue on each NPU
    size: int  # full buffer, bytes, for sizes in chunks; an absolute ``comm_size`` stands as written
    calls: tuple[tuple[tuple[int, ...], Algorithm], ...]  # ranks in the algorithm's order; each rank is in exactly one
    priority: int = 0  # order in this queue among chunks of equal priority: higher first, then by arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """One chunk of a collective.

    `turns`: by phase, its place (from 0) in the order in which its queue serves the phases of this collective. A phase
    starts after those of smaller turns, and after all phases in that queue of collectives that the rank called earlier.
    With equal turns on all NPUs, and collectives called in the same order, NPUs cannot block each other. Empty:
    priority and arrival decide.
    """

    phases: tuple[PlannedPhase, ...]
    priority: int = 0  # waiting chunks of higher priority go first
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """One collective call of one group: the input of a planner."""

    type: str  # ``all_reduce`` …
    size: int  # bytes as the workload states them (of an all_gather: one shard)
    members: tuple[int, ...]  # ranks of the job, in the order of the group
    group: str
    node: int  # id of the workload's node on the first member
    priority: int = 0  # its ``comm_priority``
    dims: tuple[bool, ...] | None = None  # its ``involved_dim``; None where absent
    number: int = 0  # the call is the ``number``-th of its group in the job
    root: int = 0  # position in the group, for rooted collectives
    full: int = 0  # bytes of the full buffer (of an all_gather: all shards); 0 where unknown


class Planner(Protocol):
    """Cuts collectives into chunks. A fold needs a `PlacedPlanner`."""

    @property
    def capacity(self) -> tuple[int, ...]:
        """Chunks that each queue of an NPU runs at once."""
        ...

    def plan(self, request: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """Chunks of a call; or one algorithm over all members, without queues; None: the job's table decides."""
        ...


@runtime_checkable
class PlacedPlanner(Planner, Protocol):
    """A planner whose chunks depend only on a call's type, size, root, members and priority."""

    def placed(self, placement: tuple[int, ...]) -> Planner:
        """The planner for some of the ranks, rank r on NPU ``placement[r]``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on its own ranks; several jobs share the network.

    `compute_speed`: rank → speed of its compute (1 is nominal, 1/2 takes twice as long).
    `skeleton`: its traces hold the longest compute paths instead of all compute, so that its compute and exposed
    communication are not known.
    """

    name: str = "job0"
    workload: Workload
    placement: tuple[int, ...]  # rank → NPU, one per rank of the workload
    algorithms: AlgorithmTable
    start_delay_ps: Mapping[int, int] = field(default_factory=dict)  # rank → time before its first dispatch
    compute_speed: Mapping[int, Fraction] = field(default_factory=dict)
    dependencies: str | None = None  # overrides `Semantics.dependencies` for this workload
    skeleton: bool = False
    planner: Planner | None = None  # cuts its collectives into chunks; None: `algorithms` carries each out at once
    arrival_ps: int = 0  # which `start_delay_ps` contains: completion counts from here
    iterations: int = 1  # that `workload` consists of
    background: bool = False  # the run ends when no other job has anything left

    @property
    def ranks(self) -> int:
        return len(self.workload.traces)

    def ordered_by(self, semantics: Semantics) -> str:
        """Dependencies that order its nodes, ``"data"`` or ``"data+ctrl"``: its own, those of the semantics if chosen
        there, or those that the workload has.
        """
        return self.dependencies or semantics.said_dependencies or self.workload.dependencies


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Problem(Shown):
    """A topology, its jobs, and the rules: the complete input of a simulation.

    Attributes
    ----------
    topology : Topology
    jobs : tuple of Job
        Workload, placement and algorithms of each.
    network : NetworkModel
        How messages use links.
    semantics : Semantics
        Rules in which simulators differ: rounding, slots, order, matching.
    compute : ComputeModel
        Price of operations that a trace counts but does not time.
    memory : MemoryModel
        Remote memory: latency in ps, bandwidth in bytes per second.
    limits : Limits
        Events and simulated time (ps) at which a run ends.
    noise : Noise or None
        Random delays of compute nodes of workloads, and interruptions.
    nic : NicModel or None
        Costs of a message at sender and receiver.
    """

    topology: Topology
    jobs: tuple[Job, ...]
    network: NetworkModel = NetworkModel()
    semantics: Semantics = Semantics()
    compute: ComputeModel = ComputeModel()
    memory: MemoryModel = NO_MEMORY
    limits: Limits = Limits()
    noise: "Noise | None" = None
    nic: NicModel | None = None

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        ranks = sum(job.ranks for job in self.jobs)
        return self.topology.name, {"jobs": len(self.jobs), "ranks": ranks, "network": self.network.model}

    @property
    def background(self) -> bool:
        """Whether the run may end before all jobs do."""
        return any(job.background for job in self.jobs)

    @property
    def parts(self) -> dict[str, object]:
        """Features by which parts of the problem exclude others (`astrasim_py.system.compatible`)."""
        return {
            "network": self.network,
            "semantics": self.semantics,
            "topology": self.topology.name,
            ECMP: self.topology.routing.ecmp,
            EVENTS: bool(self.topology.events),
            NIC: self.nic,
            NOISE: self.noise,
            BACKGROUND: self.background,
        }

    @property
    def bounds_hold(self) -> bool:
        """Whether lower bounds hold."""
        return not any(exclusions(self.parts, (BOUND,)))
