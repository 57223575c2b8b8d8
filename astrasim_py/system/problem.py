"""The Problem: the complete input of a simulation, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from astrasim_py.chakra.workload import Workload
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.machine_models import NO_MEMORY, ComputeModel, Limits, MemoryModel, NetworkModel
from astrasim_py.system.planner_api import Planner
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Topology

#: Rules that lower bounds account for, or that only make a run longer.
_RULES_OF_BOUNDS = (
    "dependencies",
    "decimal_bandwidth",
    "zero_duration_ps",
    "gamma",
    "cpu_slots",
    "compute_slots",
    "comm_slots",
    "analytical_route",
    "message_match",
    "rendezvous_bytes",
    "event_order",
    "exposed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on its own ranks; several jobs share the network.

    `compute_speed`: rank → speed of its compute (1 is nominal, 1/2 takes twice as long).
    """

    name: str = "job0"
    workload: Workload
    placement: tuple[int, ...]  # rank → NPU, one per rank of the workload
    algorithms: AlgorithmTable
    start_delay_ps: Mapping[int, int] = field(default_factory=dict)  # rank → time before its first dispatch
    compute_speed: Mapping[int, Fraction] = field(default_factory=dict)
    dependencies: str | None = None  # overrides `Semantics.dependencies` for this workload
    planner: Planner | None = None  # cuts its collectives into chunks; None: `algorithms` carries each out at once

    @property
    def ranks(self) -> int:
        return len(self.workload.traces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
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
    """

    topology: Topology
    jobs: tuple[Job, ...]
    network: NetworkModel = NetworkModel()
    semantics: Semantics = Semantics()
    compute: ComputeModel = ComputeModel()
    memory: MemoryModel = NO_MEMORY
    limits: Limits = Limits()

    @property
    def bounds_hold(self) -> bool:
        """Whether lower bounds hold; a rule unknown here makes it False, so that no new rule is silently ignored."""
        if not self.network.contention or self.network.differs("model", "link_busy", "send_completes", "msccl"):
            return False
        return not self.semantics.differs(*_RULES_OF_BOUNDS)
