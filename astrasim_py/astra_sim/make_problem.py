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
from astrasim_py.astra_sim.quirks import warn, warning
from astrasim_py.astra_sim.workload_layer import compatible_workload, compute_model, corrected_workload
from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.timed import with_endpoint_delay
from astrasim_py.system.dimension_planner import PLANNED, DimensionPlanner
from astrasim_py.system.machine_models import MAX_CHUNKS, Collectives, Limits, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import DATA_AND_CTRL, Semantics
from astrasim_py.topology.model import product_of

#: Bytes of the control message of ASTRA-sim's rendezvous protocol.
RENDEZVOUS_BYTES = 8192

#: Our builders for the words of ASTRA-sim; the first that serves the collective and the group is taken.
_BUILDERS = {
    RING: ("ring",),
    DIRECT: ("direct",),
    HALVING_DOUBLING: ("halving_doubling", "recursive_doubling"),
    TREE: ("double_binary_tree",),
}


def make_problem(
    inputs: Inputs,
    warnings: list[str],
    *,
    corrected: bool = False,
    cache: MutableMapping | None = None,
    limits: Limits | None = None,
) -> Problem:
    """The Problem that ASTRA-sim's inputs describe.

    `corrected`: the physics instead of ASTRA-sim's numbers. `warnings`: quirks met are added; those of collectives
    while the problem is planned. `cache`: algorithms read before, shared between calls. Raises ScenarioError,
    TraceError, AlgorithmError: what ASTRA-sim would hang or crash on, with its place.
    """
    dims = inputs.network.dims
    topology = product_of(" x ".join(f"{d.kind}({d.size})" for d in dims), "product", dims, inputs.network.place)
    planner: CorrectedPlanner | CompatiblePlanner
    if corrected:
        if inputs.rendezvous:
            # Our builders post a receive after the send before it: with a rendezvous all would wait for each other.
            text = "--rendezvous-protocol: left out by --corrected: algorithms that send first deadlock with it"
            warnings.append(text)
        planner = CorrectedPlanner(inputs, warnings, cache)
        workload, model = corrected_workload(inputs), "cut_through"
        bandwidth = inputs.system.local_mem_bw
        # A reduction reads two operands from memory and writes one.
        gamma = 3 / (bandwidth * MEMORY_GB) if bandwidth else Fraction(0)
        semantics = Semantics.native(dependencies=DATA_AND_CTRL, decimal_bandwidth="binary", comm_slots=1, gamma=gamma)
    else:
        _check_backend(inputs, warnings)
        workload, model = compatible_workload(inputs, warnings), "store_and_forward"
        planner = CompatiblePlanner(inputs, warnings, cache)
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
        memory=inputs.memory,
        limits=limits or Limits(),
    )


def _check_backend(inputs: Inputs, warnings: list[str]) -> None:
    dims = inputs.network.dims
    if inputs.backend == AWARE and len(dims) > 1:
        warn(warnings, "unofficial-backend")
    elif inputs.backend == AWARE and (dims[0].kind, dims[0].size) == ("ring", 2):
        problem = "ASTRA-sim's congestion_aware backend aborts on a Ring of 2 NPUs: it makes the same link twice"
        raise ScenarioError(inputs.network.place, problem, "write FullyConnected, or use --corrected")


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


class CorrectedPlanner:
    """The same configuration with algorithms that move the right bytes, dimension by dimension."""

    def __init__(self, inputs: Inputs, warnings: list[str], cache: MutableMapping | None) -> None:
        self.inputs, self.warnings = inputs, warnings
        self.injected = Injected(inputs, corrected=True, warnings=warnings, cache=cache)
        system = inputs.system
        self.how = Collectives(
            chunks=system.preferred_dataset_splits or 1,
            active_chunks=min(system.active_chunks_per_dimension, MAX_CHUNKS),
            queues=inputs.queues_per_dim,
            all_reduce="baseline" if system.collective_optimization == "baseline" else None,
            endpoint_delay=inputs.endpoint_delay_ns * 1000,
        )
        self.made: dict[tuple, Algorithm] = {}
        self.by_dimension, self.whole = self._planner(whole=False), self._planner(whole=True)
        self.capacity = self.by_dimension.capacity
        self.table = AlgorithmTable({}, self.fallback)

    def _planner(self, *, whole: bool) -> DimensionPlanner:
        """A planner; `whole`: one that sees all NPUs as one dimension."""
        network = self.inputs.network
        dims = network.dims[:1] if whole else network.dims
        return DimensionPlanner(
            sizes=(network.npus,) if whole else network.sizes,
            make=self.make,
            how=self.how,
            rate=tuple(dim.bandwidth for dim in dims),
            latency_ps=tuple(dim.latency_ps for dim in dims),
        )

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """The algorithm or the chunks of a call."""
        found = self.injected.algorithm(call)
        if found is not None:
            return found
        words = self.inputs.system.implementation(call.type)
        return (self.whole if words and words[0].whole else self.by_dimension).plan(call)

    def make(self, collective: str, ranks: int, dim: int, size: int) -> Algorithm:
        """The algorithm of a dimension."""
        # The phases of an all_reduce run what its own list names.
        system = self.inputs.system
        words = system.implementation(collective) or system.implementation("all_reduce")
        return self.built(collective, ranks, words[min(dim, len(words) - 1)] if words else None)

    def fallback(self, collective: str, ranks: int, root: int) -> Algorithm:
        """The algorithm of a collective that is not planned by dimension."""
        if collective in PLANNED:
            words = self.inputs.system.implementation(collective)
            made = self.built(collective, ranks, words[0] if words else None)
            return with_endpoint_delay(made, self.how.endpoint_delay)
        rooted = {"root": root} if promise_of(collective).rooted else {}
        return build(default_algorithm(collective), collective, ranks, **rooted)

    def built(self, collective: str, ranks: int, word: Implementation | None) -> Algorithm:
        """Our builder for a word of ASTRA-sim; the collective's usual one where it has none."""
        key = (collective, ranks, word)
        if key not in self.made:
            self.made[key] = self._built(*key)
        return self.made[key]

    def _built(self, collective: str, ranks: int, word: Implementation | None) -> Algorithm:
        for name in _BUILDERS[word.kind] if word is not None else ():
            options = {"window": word.window} if word.window and name == "direct" else {}
            try:
                return build(name, collective, ranks, **options)
            except AstraError:
                continue
        name = default_algorithm(collective)
        if word is not None:
            self.warnings.append(f"{collective} over {ranks} NPUs: {word.kind} does not serve it, {name} is used")
        return build(name, collective, ranks)
