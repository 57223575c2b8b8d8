"""ASTRA-sim's inputs as a `Problem`, as ASTRA-sim would run them or corrected; and its output lines."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from astrasim_py.astra_sim.configs import MEMORY_GB, NetworkConfig
from astrasim_py.astra_sim.input_set import AWARE, UNAWARE, Inputs
from astrasim_py.astra_sim.planner import CompatiblePlanner, CorrectedPlanner
from astrasim_py.astra_sim.quirks import warn, warning
from astrasim_py.astra_sim.workload_layer import compatible_workload, compute_model, corrected_workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.records import Outcome, Records
from astrasim_py.core.units import PS_PER_NS
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import DATA_AND_CTRL, Semantics
from astrasim_py.topology.model import Topology, product_of

#: Bytes of the control message of ASTRA-sim's rendezvous protocol.
RENDEZVOUS_BYTES = 8192


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
    topology = network_topology(inputs.network)
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
        semantics = Semantics.astra_sim(event_order="scheduled", issue_order="hash_set", rendezvous_bytes=rendezvous)
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


def network_topology(network: NetworkConfig) -> Topology:
    """The network of a network YAML."""
    dims = network.dims
    return product_of(" x ".join(f"{d.kind}({d.size})" for d in dims), "product", dims, network.place)


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
        quirks = ["store-and-forward"] if int(np.diff(plan.route_ptr).max()) > 1 else []
        return [warning(quirk) for quirk in quirks + ["injected-order"] * _has_choice(plan)]
    src, dst = pairs // npus, pairs % npus
    differing = np.zeros(len(pairs), dtype=np.int64)
    for size in inputs.network.sizes:
        differing += src % size != dst % size
        src, dst = src // size, dst // size
    return [warning("lowest-dimension")] if int(differing.max()) > 1 else []


def _has_choice(plan: Plan) -> bool:
    """Whether several nodes of an injected algorithm can become ready together on a rank."""
    calls = plan.calls.values
    programs = {program for call in calls for program in call.different}
    structures = {program.structure for program in programs if program.structure.buckets}
    return any(len(s.roots) > 1 or int(np.diff(s.succ_ptr).max()) > 1 for s in structures)


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraResult:
    """The result of a run in ASTRA-sim's terms.

    `finish_ns`, `exposed_ns`: by rank; None where the rank did not finish.
    """

    finish_ns: tuple[int | None, ...]
    exposed_ns: tuple[int | None, ...]
    warnings: tuple[str, ...]  # of the files, and one for each quirk met
    outcome: Outcome  # how it ended
    plan: Plan
    records: Records

    def lines(self) -> list[str]:
        """ASTRA-sim's lines, in order of finishing."""
        finished = sorted((t, rank) for rank, t in enumerate(self.finish_ns) if t is not None)
        return [
            f"sys[{rank}] finished, {t} cycles, exposed communication {self.exposed_ns[rank]} cycles."
            for t, rank in finished
        ]


def run_inputs(
    inputs: Inputs,
    *,
    corrected: bool = False,
    engine: str = "auto",
    level: str = "summary",
    cache: MutableMapping | None = None,
    limits: Limits | None = None,
) -> AstraResult:
    """Run ASTRA-sim's inputs.

    `inputs`: from `read_inputs`. `corrected`: the physics instead of ASTRA-sim's numbers; times are cut to whole ns in
    the result. `engine`, `level`: as of `simulate`. `cache`: files read before, shared between calls; only while they
    do not change. Raises ScenarioError, TraceError, AlgorithmError, SimulationError: what ASTRA-sim would hang or crash
    on.
    """
    warnings = list(inputs.warnings)
    plan = make_plan(make_problem(inputs, warnings, corrected=corrected, cache=cache, limits=limits))
    if not corrected:
        warnings += route_warnings(plan, inputs)
    records = simulate(plan, engine=engine, level=level)
    left = set(records.outcome.unfinished_ranks)
    finish_ns, exposed_ns = (
        tuple(None if rank in left else ps // PS_PER_NS for rank, ps in enumerate(column.tolist()))
        for column in (records.finish, records.exposed_comm)
    )
    return AstraResult(
        finish_ns=finish_ns,
        exposed_ns=exposed_ns,
        warnings=tuple(dict.fromkeys(warnings)),
        outcome=records.outcome,
        plan=plan,
        records=records,
    )
