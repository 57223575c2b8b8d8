"""Plans of ASTRA-sim's collectives: chunks, phases and queues by its rules, quirks included; and corrected."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from astrasim_py.astra_sim import native_algorithms as native
from astrasim_py.astra_sim.injected import Injected
from astrasim_py.astra_sim.input_set import UNAWARE, Inputs
from astrasim_py.astra_sim.quirks import warn
from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.builders.registry import build, build_default, default_algorithm
from astrasim_py.core.choices import BY_DIMENSION
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TraceError
from astrasim_py.dialects.chunks.lower import (
    BASELINE,
    LOCAL_FIRST,
    DimensionPlanner,
    DimensionVisit,
    QueueTurns,
    cut_rounded_up,
    dimension_visits,
)
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.timed import with_endpoint_delay
from astrasim_py.system.machine_models import MAX_CHUNKS, Collectives
from astrasim_py.system.problem import CollectiveRequest, PlannedChunk, PlannedPhase
from astrasim_py.topology.grid import rows_along

#: Name of the group of all ranks.
WORLD = ("", "0", "world")
#: Most chunks of a collective.
_MOST_CHUNKS = 2**17
#: Dimensions that ``involved_dim`` covers where a node does not state it.
MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class _Dim:
    """A logical dimension of a collective: its NPUs, in rows, and what runs in it."""

    rows: tuple[tuple[int, ...], ...]
    implementation: native.Implementation

    @property
    def n(self) -> int:
        return len(self.rows[0])


class CompatiblePlanner:
    """ASTRA-sim's planning of collectives: injected algorithms first, then native ones; equal calls get the same plan.

    Counters that continue from call to call (queues in turn, the trees of doubleBinaryTree) count every call once.
    """

    def __init__(self, inputs: Inputs, warnings: list[str], known: MutableMapping | None = None) -> None:
        self.inputs, self.warnings = inputs, warnings
        self.injected = Injected(inputs, corrected=False, warnings=warnings, cache=known)
        self.table = AlgorithmTable({})
        self.system = system = inputs.system
        self.sizes, self.npus, self.queues = inputs.network.sizes, inputs.npus, inputs.queues_per_dim
        self.capacity = (-(-system.active_chunks_per_dimension // self.queues),) * (len(self.sizes) * self.queues)
        bus = native.SharedBus(
            latency=float(int(system.L)),
            overhead=float(int(system.o)),
            per_byte=float(system.G),
            reduction=system.local_reduction_delay,
        )
        self.charges = native.Charges(
            endpoint_ns=inputs.endpoint_delay_ns,
            memory_bandwidth=float(system.local_mem_bw or 0),
            bus=bus if system.model_shared_bus else None,
        )
        self._plans: dict[CollectiveRequest, tuple[PlannedChunk, ...]] = {}
        self._dims: dict[object, tuple[_Dim, ...]] = {}
        self._phases: dict[tuple, PlannedPhase] = {}
        self._trees: dict[tuple[str, int], int] = {}
        # Every NPU takes its queues in turn; those of one group count alike.
        self._turns: dict[int, tuple[QueueTurns, ...]] = {}

    def warn(self, quirk: str) -> None:
        """Note that a plan met a quirk."""
        warn(self.warnings, quirk)

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """The injected algorithm of a call, or its chunks; None for collectives that ASTRA-sim does not run.

        Raises ScenarioError, TraceError, AlgorithmError: what makes ASTRA-sim hang, crash or lose the collective.
        """
        splits = self.system.preferred_dataset_splits
        if not splits:
            problem = f"{'is missing' if splits is None else 'is 0'}: ASTRA-sim divides by it for every collective"
            error_place = self.system.at("preferred_dataset_splits")
            raise ScenarioError(error_place, problem, 'write "preferred-dataset-splits": 1')
        injected = self.injected.algorithm(call)
        if injected is not None:
            return injected
        rank = call.members[0]
        place = f"{self.inputs.workload.traces[rank].place or f'rank {rank}'}: node {call.node}"
        if len(self.sizes) > MAX_DIMS and call.dims is None:
            problem = f"a collective over {len(self.sizes)} dimensions: ASTRA-sim reads beyond the {MAX_DIMS}"
            raise TraceError(place, f"{problem} of involved_dim", "state involved_dim, or use --corrected")
        if call.type not in BY_DIMENSION:
            return None
        if call not in self._plans:
            try:
                self._plans[call] = self._planned(call, splits)
            except AlgorithmError as error:
                error_place = f"{place}: {error.place}" if error.place else place
                raise AlgorithmError(error_place, error.problem, f"{error.remedy}, or use --corrected") from None
        if self.inputs.backend == UNAWARE and max(self.capacity) > 1 and len(self._plans[call]) > 1:
            self.warn("free-concurrency")
        return self._plans[call]

    def _planned(self, call: CollectiveRequest, splits: int) -> tuple[PlannedChunk, ...]:
        place = f"{call.type} of {call.size} B (node {call.node})"
        local = len(call.members) != self.npus
        if not local and self.charges.endpoint_ns < 1:
            problem = f"endpoint-delay is {self.charges.endpoint_ns}, and with less than 1 ns ASTRA-sim aborts"
            raise AlgorithmError("", f"{problem} in its native collectives", "write 1 or more")
        dims = self.dimensions(call, local, place)
        order = [
            dim
            for dim, rows in enumerate(dims)
            if rows.n > 1 and (call.dims is None or call.group not in WORLD or dim >= len(call.dims) or call.dims[dim])
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
        for size in self._chunks(call, splits, place):
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
            turns = tuple(counters.copy() for counters in old)
            for member in members:
                self._turns[member] = turns
        return turns

    def _chunks(self, call: CollectiveRequest, splits: int, place: str) -> tuple[int, ...]:
        if splits > _MOST_CHUNKS:
            problem = f"preferred-dataset-splits is {splits}, more than {_MOST_CHUNKS}"
            raise AlgorithmError("", problem, "use fewer splits: every chunk costs each of its messages their latency")
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
        key = (call.type, call.members if local else None)
        if key not in self._dims:
            words, name = self.system.implementation(call.type), f"{call.type.replace('_', '-')}-implementation"
            if not words:
                problem, remedy = "is missing, and the workload calls it", "list one implementation per dimension"
                raise AlgorithmError("", f"{name} {problem}", f"{remedy} of the network")
            if len(words) > len(self.sizes):
                problem = f"{name} lists {len(words)} implementations for {len(self.sizes)} dimensions"
                raise AlgorithmError("", f"{problem} (ASTRA-sim aborts)", "list one per dimension")
            self._dims[key] = self._local(call, words, place) if local else self._world(words, place)
        return self._dims[key]

    def _local(self, call: CollectiveRequest, words: Sequence[native.Implementation], place: str) -> tuple[_Dim, ...]:
        if len(words) > 1:
            self.warn("local-ring")
            words = (native.Implementation(native.RING),)
        if words[0].kind == native.TREE:
            problem = "doubleBinaryTree on a group smaller than the world crashes ASTRA-sim"
            raise AlgorithmError(place, problem, "use ring, direct or halvingDoubling")
        if self.charges.endpoint_ns != native.LOCAL_DELAY_NS:
            self.warn("local-delay")
        # Rings go through the members in the order in which the group lists them.
        return (_Dim((call.members,), words[0]),)

    def _world(self, words: Sequence[native.Implementation], place: str) -> tuple[_Dim, ...]:
        dims: list[_Dim] = []
        everyone = tuple(range(self.npus))
        for dim, implementation in enumerate(words):
            if implementation.whole:
                if len(self.sizes) > 1:
                    self.warn("whole")
                if dim + 1 < len(words):
                    self.warn("ignored-words")
                return (*dims, _Dim((everyone,), implementation))
            dims.append(_Dim(rows_along(everyone, dim, self.sizes), implementation))
        if len(words) < len(self.sizes):
            if words[-1].kind == native.TREE:
                problem = "a doubleBinaryTree that is listed last must be in the last dimension of the network"
                problem = f"{problem} (ASTRA-sim builds it over the wrong NPUs and crashes)"
                raise AlgorithmError(place, problem, "list one implementation per dimension")
            self.warn("short-list")
        return tuple(dims)

    def phase(
        self, call: CollectiveRequest, visit: DimensionVisit, dim: _Dim, size: int, turns: QueueTurns, local: bool
    ) -> tuple[PlannedPhase, int]:
        """One phase, and the bytes with which the next one begins."""
        queue, direction = turns.take(visit.way)
        queue += visit.dim * self.queues
        kind, n, window = dim.implementation.kind, dim.n, dim.implementation.window
        options: dict[str, object] = {"direction": direction} if kind in (native.RING, native.DIRECT) else {}
        if kind == native.TREE:
            trees = self._trees.get((call.type, visit.dim), 0)
            self._trees[call.type, visit.dim] = trees + 1
            options["tree"] = native.MIN if trees % 2 else native.MAX
        elif kind == native.DIRECT:
            options |= {"window": window, "local": local}
        charges = replace(self.charges, endpoint_ns=native.LOCAL_DELAY_NS, bus=None) if local else self.charges
        self.note(visit.collective, kind, size, n, window, local)
        algorithm = native.native_algorithm(kind, visit.collective, size, n, charges, **options)
        key = (queue, algorithm, dim.rows)
        if key not in self._phases:
            self._phases[key] = PlannedPhase(queue=queue, size=size, calls=tuple((row, algorithm) for row in dim.rows))
        return self._phases[key], native.size_after(kind, visit.collective, size, n)

    def note(self, collective: str, kind: str, size: int, n: int, window: int | None, local: bool) -> None:
        reducing = collective in ("all_reduce", "reduce_scatter")
        if kind == native.TREE:
            self.warn("tree-end")
            self.warn("tree-down")
            if collective != "all_reduce":
                self.warn("tree-only-reduces")
        elif kind == native.HALVING_DOUBLING and reducing:
            if n > 2:
                self.warn("halving-reduction")
            if size % n:
                self.warn("halving-odd")
        elif collective != "all_gather" and size % n:
            self.warn("lost-remainder")
        if kind == native.DIRECT and reducing and n > 2:
            self.warn("direct-overlap")
            if window is not None and window < n - 1:
                self.warn("direct-window")
            if local and collective == "all_reduce":
                self.warn("local-window")
        if (reducing or kind == native.TREE) and not self.charges.memory_bandwidth:
            self.warn("no-memory-bandwidth")
        if self.charges.bus is not None and not local:
            self.warn("shared-bus")


#: Our builders for the words of ASTRA-sim; the first that serves the collective and the group is taken.
_BUILDERS = {
    native.RING: ("ring",),
    native.DIRECT: ("direct",),
    native.HALVING_DOUBLING: ("halving_doubling", "recursive_doubling"),
    native.TREE: ("double_binary_tree",),
}


class CorrectedPlanner:
    """The same configuration with algorithms that move the right bytes, dimension by dimension."""

    def __init__(self, inputs: Inputs, warnings: list[str], known: MutableMapping | None) -> None:
        self.inputs, self.warnings = inputs, warnings
        self.injected = Injected(inputs, corrected=True, warnings=warnings, cache=known)
        system = inputs.system
        self.how = Collectives(
            chunks=system.preferred_dataset_splits or 1,
            active_chunks=min(system.active_chunks_per_dimension, MAX_CHUNKS),
            queues=inputs.queues_per_dim,
            all_reduce="baseline" if system.collective_optimization == "baseline" else None,
            endpoint_delay=inputs.endpoint_delay_ns * 1000,
        )
        self.built = cache(self._built)
        self.by_dimension, self.whole = self._planner(flat=False), self._planner(flat=True)
        self.capacity = self.by_dimension.capacity
        self.table = AlgorithmTable({}, self.fallback)

    def _planner(self, *, flat: bool) -> DimensionPlanner:
        """A planner; `flat`: one that sees all NPUs as one dimension."""
        network = self.inputs.network
        dims = network.dims[:1] if flat else network.dims
        return DimensionPlanner(
            sizes=(network.npus,) if flat else network.sizes,
            make=self.make,
            how=self.how,
            rate=tuple(dim.bandwidth for dim in dims),
            latency_ps=tuple(dim.latency_ps for dim in dims),
        )

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        injected = self.injected.algorithm(call)
        if injected is not None:
            return injected
        words = self.inputs.system.implementation(call.type)
        return (self.whole if words and words[0].whole else self.by_dimension).plan(call)

    def make(self, collective: str, ranks: int, dim: int, size: int) -> Algorithm:
        # The phases of an all_reduce run what its own list names.
        system = self.inputs.system
        words = system.implementation(collective) or system.implementation("all_reduce")
        return self.built(collective, ranks, words[min(dim, len(words) - 1)] if words else None)

    def fallback(self, collective: str, ranks: int, root: int) -> Algorithm:
        """The algorithm of a collective that is not planned by dimension."""
        if collective in BY_DIMENSION:
            words = self.inputs.system.implementation(collective)
            algorithm = self.built(collective, ranks, words[0] if words else None)
            return with_endpoint_delay(algorithm, self.how.endpoint_delay)
        return build_default(collective, ranks, root)

    def _built(self, collective: str, ranks: int, word: native.Implementation | None) -> Algorithm:
        """Our builder for a word of ASTRA-sim; the collective's usual one where it has none."""
        default = default_algorithm(collective)
        if word is None:
            return build(default, collective, ranks)
        for name in _BUILDERS[word.kind]:
            options: BuilderKeys = {"window": word.window} if word.window and name == "direct" else {}
            try:
                return build(name, collective, ranks, **options)
            except AstraError:
                continue
        self.warnings.append(f"{collective} over {ranks} NPUs: {word.kind} does not serve it, {default} is used")
        return build(default, collective, ranks)
