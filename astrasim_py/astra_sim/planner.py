"""ASTRA-sim's plan of a collective: chunks, phases and queues by its rules, quirks included.

`astrasim_py.system.dimension_planner` has the planner for those who want the collective done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from astrasim_py.astra_sim.configs import SystemConfig
from astrasim_py.astra_sim.native_algorithms import (
    DIRECT,
    HALVING_DOUBLING,
    LOCAL_DELAY_NS,
    MAX,
    MIN,
    RING,
    TREE,
    Charges,
    Implementation,
    SharedBus,
    native_algorithm,
    size_after,
)
from astrasim_py.astra_sim.quirks import warning
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.system.dimension_planner import (
    BASELINE,
    LOCAL_FIRST,
    MAX_CHUNKS,
    DimensionVisit,
    QueueTurns,
    cut_rounded_up,
    dimension_visits,
    rows_along,
)
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk, PlannedPhase

#: Name of the group of all ranks.
WORLD = ("", "0", "world")


@dataclass(frozen=True, slots=True)
class _Dim:
    """A logical dimension of a collective: its NPUs, in rows, and what runs in it."""

    n: int
    rows: tuple[tuple[int, ...], ...]
    implementation: Implementation


class CompatiblePlanner:
    """ASTRA-sim's planning of native collectives; equal calls get the same plan.

    Counters that go on from call to call (queues in turn, the trees of doubleBinaryTree) count every call once.
    `dims`: sizes of dimensions, the innermost first, or anything with a ``size``. `endpoint_delay_ns`: with injection
    scale.
    """

    def __init__(
        self,
        system: SystemConfig,
        dims: Sequence,
        *,
        queues_per_dim: int = 1,
        endpoint_delay_ns: int | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        if not 1 <= queues_per_dim <= MAX_CHUNKS:
            bound = "less than 1" if queues_per_dim < 1 else f"more than {MAX_CHUNKS}"
            raise ScenarioError("--num-queues-per-dim", f"{queues_per_dim} is {bound}", f"write 1..{MAX_CHUNKS}")
        self.system = system
        self.sizes = tuple(int(getattr(dim, "size", dim)) for dim in dims)
        self.npus = math.prod(self.sizes)
        self.queues = queues_per_dim
        self.capacity = (-(-system.active_chunks_per_dimension // queues_per_dim),) * (len(self.sizes) * queues_per_dim)
        latency, overhead, per_byte = float(int(system.L)), float(int(system.o)), float(system.G)
        reduction = system.local_reduction_delay
        bus = SharedBus(latency=latency, overhead=overhead, per_byte=per_byte, reduction=reduction)
        self.charges = Charges(
            endpoint_ns=system.endpoint_delay if endpoint_delay_ns is None else endpoint_delay_ns,
            memory_bandwidth=float(system.local_mem_bw or 0),
            bus=bus if system.model_shared_bus else None,
        )
        self.warnings = [] if warnings is None else warnings
        self._plans: dict[CollectiveRequest, tuple[PlannedChunk, ...]] = {}
        self._dims: dict[object, tuple[_Dim, ...]] = {}
        self._phases: dict[tuple, PlannedPhase] = {}
        self._trees: dict[tuple[str, int], int] = {}
        # Every NPU takes its queues in turn; those of one group count alike.
        self._turns: dict[int, tuple[QueueTurns, ...]] = {}

    def warn(self, quirk: str) -> None:
        """Note that a plan met a quirk."""
        if warning(quirk) not in self.warnings:
            self.warnings.append(warning(quirk))

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Streams of a call; None for collectives that ASTRA-sim does not run.

        Raises AlgorithmError: what makes ASTRA-sim hang, crash or lose the collective.
        """
        if call.type not in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
            return None
        if call not in self._plans:
            self._plans[call] = self._planned(call)
        return self._plans[call]

    def _planned(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...]:
        place = f"{call.type} of {call.size} B (node {call.node})"
        local = len(call.members) != self.npus
        if not local and self.charges.endpoint_ns < 1:
            problem = f"endpoint-delay is {self.charges.endpoint_ns}, and with less than 1 ns ASTRA-sim aborts"
            raise AlgorithmError(self.system.place or place, f"{problem} in its native collectives", "write 1 or more")
        dims = self.dimensions(call, local, place)
        order = [
            dim
            for dim, each in enumerate(dims)
            if each.n > 1 and (call.dims is None or call.group not in WORLD or dim >= len(call.dims) or call.dims[dim])
        ]
        if not order:
            problem = "no dimension is involved that has more than one NPU (ASTRA-sim waits for it for ever)"
            raise AlgorithmError(place, problem, "involve one")
        way = {"localBWAware": LOCAL_FIRST, "baseline": BASELINE}.get(self.system.collective_optimization or "")
        if way is None:
            if call.type == "all_reduce" and len(order) > 1:
                problem = "is missing (ASTRA-sim leaves it to chance, and its NPUs then disagree)"
                remedy = 'write "collective-optimization": "localBWAware" or "baseline"'
                raise AlgorithmError(place, f"collective-optimization {problem}", remedy)
            if call.type == "all_reduce":
                self.warn("no-optimization")
            way = LOCAL_FIRST
        phases_of = dimension_visits(call.type, order, way)
        if call.type == "all_reduce" and way == LOCAL_FIRST and self.queues > 1:
            self.warn("half-queues")
        turns = self.turns(call.members)
        priority = {"LIFO": call.number, "FIFO": -call.number}.get(self.system.scheduling_policy, call.priority)
        chunks = []
        for size in self.chunks(call, place):
            phases = []
            for visit in phases_of:
                phase, size = self.phase(call, visit, dims[visit.dim], size, turns[visit.dim], local)
                phases.append(phase)
            chunks.append(PlannedChunk(phases=tuple(phases), priority=priority))
        return tuple(chunks)

    def turns(self, members: Sequence[int]) -> tuple[QueueTurns, ...]:
        """The queue counters of the first member, from here on shared by all."""
        turns = self._turns.get(members[0])
        if turns is None or any(self._turns.get(member) is not turns for member in members):
            old = turns or tuple(QueueTurns(self.queues) for _ in self.sizes)
            turns = tuple(each.copy() for each in old)
            for member in members:
                self._turns[member] = turns
        return turns

    def chunks(self, call: CollectiveRequest, place: str) -> tuple[int, ...]:
        """Sizes of the chunks of a call."""
        splits = self.system.preferred_dataset_splits
        if not splits or splits < 0:
            problem = "preferred-dataset-splits is missing or 0 (ASTRA-sim divides by it)"
            raise AlgorithmError(self.system.place or place, problem, 'write "preferred-dataset-splits": 1')
        if splits > MAX_CHUNKS:
            raise AlgorithmError(
                self.system.place or place,
                f"preferred-dataset-splits is {splits}, more than {MAX_CHUNKS}",
                "use fewer splits: every chunk costs each of its messages their latency",
            )
        gather = call.type == "all_gather"
        cuts = cut_rounded_up(call.size, splits, 0 if gather else self.npus)
        if not cuts:
            problem = f"{splits} splits leave chunks of 0 B (ASTRA-sim loops for ever)"
            raise AlgorithmError(place, problem, "use fewer splits or a larger all_gather")
        if not gather and call.size // splits < self.npus:
            self.warn("least-chunk")
        elif call.size % splits:
            self.warn("rounded-up")
        return cuts

    def dimensions(self, call: CollectiveRequest, local: bool, place: str) -> tuple[_Dim, ...]:
        """Logical dimensions of a call."""
        key = (call.type, call.members if local else None)
        if key not in self._dims:
            words, name = self.system.implementation(call.type), f"{call.type.replace('_', '-')}-implementation"
            if not words:
                problem, remedy = (
                    f"{name} is missing, and the workload calls it",
                    "list one implementation per dimension",
                )
                raise AlgorithmError(self.system.place or place, problem, f"{remedy} of the network")
            if len(words) > len(self.sizes):
                problem = f"{name} lists {len(words)} implementations for {len(self.sizes)} dimensions"
                problem = f"{problem} (ASTRA-sim aborts)"
                raise AlgorithmError(self.system.place or place, problem, "list one per dimension")
            given = [Implementation.parse(word, self.system.place) for word in words]
            self._dims[key] = self._local(call, given, place) if local else self._world(given, place)
        return self._dims[key]

    def _local(self, call: CollectiveRequest, given: list[Implementation], place: str) -> tuple[_Dim, ...]:
        if len(given) > 1:
            self.warn("local-ring")
            given = [Implementation(RING)]
        if given[0].kind == TREE:
            problem = "doubleBinaryTree on a group smaller than the world crashes ASTRA-sim"
            raise AlgorithmError(place, problem, "use ring, direct or halvingDoubling")
        if self.charges.endpoint_ns != LOCAL_DELAY_NS:
            self.warn("local-delay")
        # Rings go through the members in the order in which the group lists them.
        return (_Dim(len(call.members), (call.members,), given[0]),)

    def _world(self, given: list[Implementation], place: str) -> tuple[_Dim, ...]:
        dims = []
        everyone = tuple(range(self.npus))
        for dim, implementation in enumerate(given):
            if implementation.whole:
                dims.append(_Dim(self.npus, (everyone,), implementation))
                if len(self.sizes) > 1:
                    self.warn("whole")
                if dim + 1 < len(given):
                    self.warn("ignored-words")
                return tuple(dims)
            dims.append(_Dim(self.sizes[dim], rows_along(everyone, dim, self.sizes), implementation))
        if len(given) < len(self.sizes):
            if given[-1].kind == TREE:
                raise AlgorithmError(
                    place,
                    "a doubleBinaryTree that is listed last must be in the last dimension of the network (ASTRA-sim "
                    "builds it over the wrong NPUs and crashes)",
                    "list one implementation per dimension",
                )
            self.warn("short-list")
        return tuple(dims)

    def phase(
        self, call: CollectiveRequest, visit: DimensionVisit, dim: _Dim, size: int, turns: QueueTurns, local: bool
    ) -> tuple[PlannedPhase, int]:
        """One phase, and the bytes with which the next one begins."""
        queue, direction = turns.take(visit.way)
        queue += visit.dim * self.queues
        kind, n = dim.implementation.kind, dim.n
        options: dict[str, object] = {}
        if kind == TREE:
            built = self._trees.get((call.type, visit.dim), 0)
            self._trees[call.type, visit.dim] = built + 1
            options["tree"] = MIN if built % 2 else MAX
        elif kind in (RING, DIRECT):
            options["direction"] = direction
        if kind == DIRECT:
            options |= {"window": dim.implementation.window, "local": local}
        charges = replace(self.charges, endpoint_ns=LOCAL_DELAY_NS, bus=None) if local else self.charges
        self.note(visit.collective, kind, size, n, dim.implementation.window, local)
        algorithm = native_algorithm(kind, visit.collective, size, n, charges, **options)
        key = (queue, algorithm, dim.rows)
        if key not in self._phases:
            self._phases[key] = PlannedPhase(queue=queue, size=size, calls=tuple((row, algorithm) for row in dim.rows))
        return self._phases[key], size_after(kind, visit.collective, size, n)

    def note(self, collective: str, kind: str, size: int, n: int, window: int | None, local: bool) -> None:
        """Warn of the quirks of one phase."""
        reducing = collective in ("all_reduce", "reduce_scatter")
        if kind == TREE:
            self.warn("tree-end")
            self.warn("tree-down")
            if collective != "all_reduce":
                self.warn("tree-only-reduces")
        elif kind == HALVING_DOUBLING and reducing:
            if n > 2:
                self.warn("halving-reduction")
            if size % n:
                self.warn("halving-odd")
        elif collective != "all_gather" and size % n:
            self.warn("lost-remainder")
        if kind == DIRECT and reducing and n > 2:
            self.warn("direct-overlap")
            if window is not None and window < n - 1:
                self.warn("direct-window")
            if local and collective == "all_reduce":
                self.warn("local-window")
        if (reducing or kind == TREE) and not self.charges.memory_bandwidth:
            self.warn("no-memory-bandwidth")
        if self.charges.bus is not None and not local:
            self.warn("shared-bus")
