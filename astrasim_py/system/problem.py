"""The Problem: everything that a simulation depends on, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.algorithm import Algorithm
from astrasim_py.collectives.protocols import PROTOCOL_SLOTS, PROTOCOLS, max_count
from astrasim_py.collectives.selection import AlgorithmTable
from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.planner_api import Planner
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Topology

MODELS = ("cut_through", "store_and_forward", "analytical")
LINK_BUSY = ("bytes", "latency+bytes")
SEND_COMPLETES = ("delivery", "injected")
MEMORY_KINDS = ("none", "per_npu", "per_node", "pool")


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ScenarioError(key, f'"{value}" is unknown', f"write one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MscclModel:
    """How connections limit the messages of collectives.

    Attributes
    ----------
    protocol : str
        ``Simple``, ``LL`` or ``LL128`` for all algorithms; empty: each algorithm's own, else ``Simple``.
    slots : int or None
        Messages that a connection holds; None: as many as the protocol's (2 under Simple, 8 under LL and LL128).
    channel_bandwidth : fractions.Fraction or None
        Bytes per second at which messages of one connection enter the network; None: only links limit them.
    latency_ps : mapping of str to int
        Protocol → ps that each hop of a message takes longer.
    """

    protocol: str = ""
    slots: int | None = None
    channel_bandwidth: Fraction | None = None
    latency_ps: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = f"write one of {', '.join(PROTOCOLS)}"
        if self.protocol and self.protocol not in PROTOCOLS:
            raise ScenarioError("network.msccl.protocol", f'"{self.protocol}" is unknown', known)
        if self.slots is not None and self.slots < 1:
            raise ScenarioError("network.msccl.slots", f"{self.slots} is less than 1", "write 1 or more")
        if self.channel_bandwidth is not None and self.channel_bandwidth <= 0:
            raise ScenarioError("network.msccl.channel_bandwidth", "is not positive", 'write e.g. "20 GB/s"')
        for protocol, latency in self.latency_ps.items():
            if protocol not in PROTOCOLS:
                raise ScenarioError("network.msccl.latency", f'"{protocol}" is unknown', known)
            if latency < 0:
                raise ScenarioError("network.msccl.latency", f"{latency} ps is negative", "write 0 or more")

    def protocol_for(self, own: str) -> str:
        """Protocol of an algorithm whose own is `own` (empty: none)."""
        return self.protocol or own or "Simple"

    def slots_for(self, own: str) -> int:
        """Slots of the connections of an algorithm whose own protocol is `own` (empty: none)."""
        return PROTOCOL_SLOTS[self.protocol_for(own)] if self.slots is None else self.slots

    def latency_for(self, own: str) -> int:
        """Ps that each hop of its messages takes longer."""
        return self.latency_ps.get(self.protocol_for(own), 0)

    def max_count_for(self, algorithm: Algorithm, size: int) -> int:
        """Chunks of an algorithm that one message holds, for a full buffer of `size` bytes."""
        return max_count(self.protocol_for(algorithm.protocol), size, algorithm.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """How a message uses links.

    Attributes
    ----------
    model : str
        ``cut_through``, ``store_and_forward``, ``analytical`` (no contention), or the name of a model of the
        user's own, then with a `factory`.
    link_busy : str
        For how long a message holds a link: its ``bytes`` or ``latency+bytes``.
    send_completes : str
        On ``delivery`` at the destination, or once ``injected`` into the network.
    factory : callable or None
        ``factory(engine) -> model`` for a user's own model; it runs on the SimPy engine.
    msccl : MscclModel or None
        Slots, bandwidth and latency of connections, for the messages of collectives; None: no such limits.
    """

    model: str = "cut_through"
    link_busy: str = "bytes"
    send_completes: str = "delivery"
    factory: Callable | None = None
    msccl: MscclModel | None = None

    def __post_init__(self) -> None:
        if self.factory is None:
            _one_of("network.model", self.model, MODELS)
        _one_of("network.link_busy", self.link_busy, LINK_BUSY)
        _one_of("network.send_completes", self.send_completes, SEND_COMPLETES)

    @property
    def contention(self) -> bool:
        """Whether links serve one message at a time."""
        return self.model in ("cut_through", "store_and_forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """How long a compute node takes: as recorded, or by the roofline where the node states its operations.

    Roofline (Williams et al., CACM 2009): time = max(operations / peak, bytes / memory bandwidth).

    Attributes
    ----------
    roofline : bool
    peak : fractions.Fraction or None
        Operations per second.
    memory_bandwidth : fractions.Fraction or None
        Bytes per second; None leaves memory out.
    """

    roofline: bool = False
    peak: Fraction | None = None
    memory_bandwidth: Fraction | None = None

    def __post_init__(self) -> None:
        if self.roofline and self.peak is None:
            raise ScenarioError("compute.peak", "the roofline needs a peak", 'write e.g. peak: "312 TFLOP/s"')


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Remote memory: what a memory load or store node costs.

    Attributes
    ----------
    kind : str
        ``none`` (a memory node is an error), ``per_npu`` (no contention), ``per_node`` (one request at a time
        per node of `npus_per_node` NPUs, in order of request), ``pool`` (one request at a time).
    latency_ps : int
    bandwidth : fractions.Fraction or None
        Bytes per second.
    npus_per_node : int
    """

    kind: str = "none"
    latency_ps: int = 0
    bandwidth: Fraction | None = None
    npus_per_node: int = 1

    def __post_init__(self) -> None:
        _one_of("memory.kind", self.kind, MEMORY_KINDS)
        if self.kind != "none" and self.bandwidth is None:
            raise ScenarioError("memory.bandwidth", "remote memory needs one", 'write e.g. bandwidth: "100 GB/s"')
        if self.npus_per_node < 1:
            raise ScenarioError("memory.npus_per_node", f"{self.npus_per_node} is less than 1", "write 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up.

    Attributes
    ----------
    max_events : int
        Timed actions of the engine, and hops of messages.
    max_sim_time_ps : int or None
        Simulated time.
    """

    max_events: int = 10**9
    max_sim_time_ps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on its own ranks; several jobs share the network.

    Attributes
    ----------
    workload : Workload
    placement : tuple of int
        rank → NPU, one per rank of the workload.
    algorithms : AlgorithmTable
    start_delay_ps : mapping of int to int
        rank → time before its first dispatch.
    compute_speed : mapping of int to fractions.Fraction
        rank → speed of its compute (1 is nominal, 1/2 takes twice as long).
    dependencies : str or None
        Overrides `Semantics.dependencies` for this workload.
    planner : Planner or None
        Cuts its collectives into streams; None: `algorithms` carries each out at once.
    """

    name: str = "job0"
    workload: Workload
    placement: tuple[int, ...]
    algorithms: AlgorithmTable
    start_delay_ps: Mapping[int, int] = field(default_factory=dict)
    compute_speed: Mapping[int, Fraction] = field(default_factory=dict)
    dependencies: str | None = None
    planner: Planner | None = None

    @property
    def ranks(self) -> int:
        return len(self.workload.traces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A topology, the jobs on it, and the rules: all that a result depends on."""

    topology: Topology
    jobs: tuple[Job, ...]
    network: NetworkModel = NetworkModel()
    semantics: Semantics = Semantics()
    compute: ComputeModel = ComputeModel()
    memory: MemoryModel = MemoryModel()
    limits: Limits = Limits()
