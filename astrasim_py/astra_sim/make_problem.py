"""From ASTRA-sim's inputs to a Problem of ours: as ASTRA-sim would run them, or corrected."""

from __future__ import annotations

from collections.abc import MutableMapping
from fractions import Fraction

import numpy as np

from astrasim_py.astra_sim.configs import MEMORY_GB
from astrasim_py.astra_sim.injected import Injected
from astrasim_py.astra_sim.input_set import AWARE, UNAWARE, Inputs
from astrasim_py.astra_sim.native_algorithms import DIRECT, HALVING_DOUBLING, RING, TREE, Implementation
from astrasim_py.astra_sim.planner import CompatiblePlanner
from astrasim_py.astra_sim.quirks import warning
from astrasim_py.astra_sim.workload_layer import compatible_workload, compute_model, corrected_workload
from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TraceError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.timed import with_endpoint_delay
from astrasim_py.system.dimension_planner import BASELINE, LOCAL_FIRST, DimensionPlanner
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import DATA_AND_CTRL, Semantics
from astrasim_py.topology.model import product_of

#: Bytes of the control message of ASTRA-sim's rendezvous protocol.
RENDEZVOUS_BYTES = 8192
#: Dimensions that ``involved_dim`` covers where a node does not state it.
MAX_DIMS = 4

#: Our builders for the words of ASTRA-sim; the first that serves the collective and the group is taken.
_BUILDERS = {
    RING: ("ring",),
    DIRECT: ("direct",),
    HALVING_DOUBLING: ("halving_doubling", "recursive_doubling"),
    TREE: ("double_binary_tree",),
}


def make_problem(
    inputs: Inputs,
    *,
    corrected: bool = False,
    warnings: list[str] | None = None,
    cache: MutableMapping | None = None,
    limits: Limits | None = None,
) -> Problem:
    """The Problem that ASTRA-sim's inputs describe.

    `corrected`: the physics instead of ASTRA-sim's numbers. `warnings`: quirks met are added; those of collectives
    while the problem is planned. `cache`: algorithms read before, shared between calls. Raises ScenarioError,
    TraceError, AlgorithmError: what ASTRA-sim would hang or crash on, with its place.
    """
    warnings = [] if warnings is None else warnings
    dims = inputs.network.dims
    topology = product_of(" x ".join(f"{d.kind}({d.size})" for d in dims), "product", dims, inputs.network.place)
    injected = Injected(inputs, corrected=corrected, warnings=warnings, cache=cache)
    if corrected:
        if inputs.rendezvous:
            # Our builders post a receive after the send before it: with a rendezvous all would wait for each other.
            text = "--rendezvous-protocol: left out by --corrected: algorithms that send first deadlock with it"
            warnings.append(text)
        planner: CorrectedPlanner | CompatiblePlanners = CorrectedPlanner(inputs, injected, warnings)
        workload, model = corrected_workload(inputs), "cut_through"
        bandwidth = inputs.system.local_mem_bw
        # A reduction reads two operands from memory and writes one.
        gamma = 3 / (bandwidth * MEMORY_GB) if bandwidth else Fraction(0)
        semantics = Semantics.native(dependencies=DATA_AND_CTRL, decimal_bandwidth="binary", comm_slots=1, gamma=gamma)
    else:
        _check_backend(inputs, warnings)
        workload, model = compatible_workload(inputs, warnings), "store_and_forward"
        planner = CompatiblePlanners(inputs, workload, injected, warnings)
        rendezvous = RENDEZVOUS_BYTES if inputs.rendezvous else 0
        semantics = Semantics.astra_sim(event_order="scheduled", rendezvous_bytes=rendezvous)
    job = Job(
        name=workload.name or "workload",
        workload=workload,
        placement=tuple(range(topology.npus)),
        algorithms=planner.table,
        planner=planner,
    )
    return Problem(
        topology=topology,
        jobs=(job,),
        network=NetworkModel(model="analytical" if inputs.backend == UNAWARE else model),
        semantics=semantics,
        compute=compute_model(inputs, corrected=corrected),
        memory=inputs.memory.model(),
        limits=Limits() if limits is None else limits,
    )


def _check_backend(inputs: Inputs, warnings: list[str]) -> None:
    network = inputs.network
    if inputs.backend == UNAWARE:
        return
    if len(network.sizes) > 1:
        if inputs.backend == AWARE:
            warnings.append(warning("unofficial-backend"))
    elif network.kinds == ("ring",) and network.sizes == (2,) and inputs.backend == AWARE:
        problem = "ASTRA-sim's congestion_aware backend aborts on a Ring of 2 NPUs: it makes the same link twice"
        raise ScenarioError(network.place, problem, "write FullyConnected, or use --corrected")


# -- as ASTRA-sim does ------------------------------------------------------------------------------------------


class CompatiblePlanners:
    """Injected algorithms first, then ASTRA-sim's native ones, after a look at what they cannot do."""

    def __init__(self, inputs: Inputs, workload: Workload, injected: Injected, warnings: list[str]) -> None:
        self.inputs = inputs
        self.workload = workload
        self.injected = injected
        self.native = CompatiblePlanner(
            inputs.system,
            inputs.network.dims,
            queues_per_dim=inputs.queues_per_dim,
            endpoint_delay_ns=inputs.endpoint_delay_ns,
            warnings=warnings,
        )
        self.capacity = self.native.capacity
        self.table = AlgorithmTable({})

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """The algorithm or the chunks of a call."""
        system = self.inputs.system
        if not system.preferred_dataset_splits:
            stated = "is missing" if system.preferred_dataset_splits is None else "is 0"
            problem = f"{stated}: ASTRA-sim divides by it for every collective"
            raise ScenarioError(system.at("preferred_dataset_splits"), problem, 'write "preferred-dataset-splits": 1')
        found = self.injected.algorithm(call)
        if found is not None:
            return found
        rank, sizes = call.members[0], self.inputs.network.sizes
        place = f"{self.workload.traces[rank].place or f'rank {rank}'}: node {call.node}"
        if len(sizes) > MAX_DIMS and call.dims is None:
            problem = (
                f"a collective over {len(sizes)} dimensions: ASTRA-sim reads beyond the {MAX_DIMS} of involved_dim"
            )
            raise TraceError(place, problem, "state involved_dim, or use --corrected")
        try:
            streams = self.native.plan(call)
        except AlgorithmError as error:
            at = place if error.place == self.inputs.system.place else f"{place}: {error.place}"
            raise AlgorithmError(at, error.problem, f"{error.remedy}, or use --corrected") from None
        if self.inputs.backend == UNAWARE and max(self.capacity) > 1 and streams is not None and len(streams) > 1:
            self.native.warn("free-concurrency")
        return streams


def route_warnings(plan: Plan, inputs: Inputs) -> list[str]:
    """Quirks of the network that the messages of a plan meet."""
    pairs, npus = plan.route_pairs, inputs.npus
    if not len(pairs):
        return []
    if inputs.backend != UNAWARE:
        return [warning("store-and-forward")] if int(np.diff(plan.route_ptr).max()) > 1 else []
    src, dst = pairs // npus, pairs % npus
    differing = np.zeros(len(pairs), dtype=np.int64)
    for size in inputs.network.sizes:
        differing += src % size != dst % size
        src, dst = src // size, dst // size
    return [warning("lowest-dimension")] if int(differing.max()) > 1 else []


# -- corrected --------------------------------------------------------------------------------------------------


class CorrectedPlanner:
    """The same configuration with algorithms that move the right bytes, dimension by dimension."""

    def __init__(self, inputs: Inputs, injected: Injected, warnings: list[str]) -> None:
        self.inputs = inputs
        self.injected = injected
        self.warnings = warnings
        self.made: dict[tuple, Algorithm] = {}
        self.planners: dict[tuple, DimensionPlanner] = {}
        self.capacity = self.planner("all_reduce", whole=False).capacity
        self.table = AlgorithmTable({}, self.fallback)

    def planner(self, collective: str, *, whole: bool) -> DimensionPlanner:
        """The planner of a collective; ``whole`` sees all NPUs as one dimension."""
        key = (collective, whole)
        if key not in self.planners:
            system, network = self.inputs.system, self.inputs.network
            self.planners[key] = DimensionPlanner(
                sizes=(network.npus,) if whole else network.sizes,
                make=self.make,
                chunks=system.preferred_dataset_splits or 1,
                active=system.active_chunks_per_dimension,
                queues=self.inputs.queues_per_dim,
                all_reduce=BASELINE if system.collective_optimization == "baseline" else LOCAL_FIRST,
                rate=tuple(dim.bandwidth for dim in network.dims[: 1 if whole else None]),
                latency_ps=tuple(dim.latency_ps for dim in network.dims[: 1 if whole else None]),
                endpoint_delay_ps=self.inputs.endpoint_delay_ns * 1000,
            )
        return self.planners[key]

    def words(self, collective: str) -> tuple[Implementation, ...]:
        return tuple(Implementation.parse(word) for word in self.inputs.system.implementation(collective) or ())

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """The algorithm or the chunks of a call."""
        found = self.injected.algorithm(call)
        if found is not None:
            return found
        words = self.words(call.type)
        return self.planner(call.type, whole=bool(words) and words[0].whole).plan(call)

    def make(self, collective: str, ranks: int, dim: int, size: int) -> Algorithm:
        """The algorithm of a dimension."""
        words = self.words(collective)
        # The phases of an all_reduce run what its own list names.
        if self.inputs.system.implementation("all_reduce") and not words:
            words = self.words("all_reduce")
        word = words[min(dim, len(words) - 1)] if words else None
        return self.built(collective, ranks, word)

    def fallback(self, collective: str, ranks: int, root: int) -> Algorithm:
        """The algorithm of a collective that is not planned by dimension."""
        words = self.words(collective)
        if collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            made = self.built(collective, ranks, words[0] if words else None)
            return with_endpoint_delay(made, self.inputs.endpoint_delay_ns * 1000)
        rooted = {"root": root} if promise_of(collective).rooted else {}
        return build(default_algorithm(collective), collective, ranks, **rooted)

    def built(self, collective: str, ranks: int, word: Implementation | None) -> Algorithm:
        """Our builder for a word of ASTRA-sim; the collective's usual one where it has none."""
        key = (collective, ranks, word)
        if key in self.made:
            return self.made[key]
        for name in _BUILDERS[word.kind] if word is not None else ():
            options = {"window": word.window} if word.window and name == "direct" else {}
            try:
                self.made[key] = build(name, collective, ranks, **options)
                return self.made[key]
            except AstraError:
                continue
        name = default_algorithm(collective)
        if word is not None:
            self.warnings.append(f"{collective} over {ranks} NPUs: {word.kind} does not serve it, {name} is used")
        self.made[key] = build(name, collective, ranks)
        return self.made[key]
