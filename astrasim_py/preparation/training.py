"""Models that a scenario describes: their layouts on a machine, their traces, and what the closed form says of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import ScenarioError, TopologyError
from astrasim_py.preparation.network_costs import network_costs, select_of
from astrasim_py.preparation.training_costs import IDEAL_COSTS, TrainingCosts, training_costs
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.scenario.workload_models import (
    InferenceWorkload,
    ModelWorkload,
    RecommendationWorkload,
    TrainingWorkload,
)
from astrasim_py.system.compatible import ROOFLINE, TRAINING_FORM, refuse
from astrasim_py.system.machine_models import NpuModel
from astrasim_py.topology.hardware import Compute, preset
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.inference import inference_memory, inference_workload
from astrasim_py.training.memory import RESERVE, Expansion, doubt, expand, peak_memory, require_memory
from astrasim_py.training.models import FLOPS_CONVENTIONS
from astrasim_py.training.network import NetworkCosts
from astrasim_py.training.prices import Prices
from astrasim_py.training.recommendation import recommendation_memory, recommendation_workload
from astrasim_py.training.software import missing_keys
from astrasim_py.training.strategy import Layout, Numbers, Training
from astrasim_py.training.system import system_of
from astrasim_py.training.traces import training_workload

_MODELS: Memo[Workload] = Memo(8)
#: Most nodes of the distinct traces of a model that are kept for the next point.
_MOST_KEPT = 2**18


@dataclass(frozen=True, kw_only=True)
class ModelMachine:
    """What a model runs on: the NPUs of a job and the network between them; `costs` of its software, of trainings;
    `network`: what their collectives take with the job's algorithms. `place` is for errors.
    """

    topology: Topology
    compute: NpuModel
    ranks: int
    place: str
    costs: TrainingCosts = IDEAL_COSTS
    network: NetworkCosts | None = None

    @property
    def capacity(self) -> int | None:
        """Bytes of memory of an NPU, expanded memory included; None where it is not known."""
        compute = self.compute
        if compute.memory is None:
            return None
        return compute.memory + (compute.expanded_memory.size if compute.expanded_memory else 0)

    @property
    def reserve(self) -> int:
        """Bytes of an NPU's own memory that no model gets."""
        return int((self.compute.memory or 0) * RESERVE)

    def doubt(self, peak: Mapping[str, Numbers]) -> str:
        """What is said of a peak that may run out of memory; empty where it fits, does not, or memory is not known."""
        return "" if self.capacity is None else doubt(int(sum(peak.values())), self.capacity - self.reserve)

    def prices(
        self, spec: ModelWorkload, peaks: Sequence[Mapping[str, Numbers]], layout: Layout | None = None, **keys
    ) -> Prices | None:
        """Times of operations; None where the roofline gives them.

        `peaks`: memory by kind of each kind of rank, of which the largest decides; `layout`: of a training; `keys`: of
        `Prices`. Raises ScenarioError, at `place`: the memory does not suffice, or the NPU is not known.
        """
        peak = max(
            ({kind: int(size) for kind, size in part.items()} for part in peaks), key=lambda part: sum(part.values())
        )
        if spec.memory == "fit" and self.capacity is not None:
            after = spec.training.after(self.ranks) if isinstance(spec, TrainingWorkload) else None
            require_memory(peak, self.capacity, layout, after, self.reserve)
        cost = self._expansion(peak, layout)
        if spec.times == "roofline":
            if not self.compute.roofline:
                raise ScenarioError(self.place, "the roofline needs a peak", "write e.g. compute: {preset: dgx_h100}")
            if cost is not None:
                problem = "what does not fit local memory has no time by the roofline"
                raise ScenarioError(self.place, problem, "write times: model, or drop expanded_memory")
            return None
        npu = npu_of(self.compute, keys["dtype"])
        if npu is None:
            remedy = "write e.g. compute: {preset: dgx_h100}, or times: roofline"
            raise ScenarioError(self.place, "times of kernels need an NPU that is known", remedy)
        costs = self.costs
        system = replace(system_of(self.topology, npu), state=costs.state, gather_gb_s=costs.gather_gb_s)
        prices = Prices(system, constants=costs.software.constants, network=self.network, **keys)
        return prices if cost is None else prices.expanded(cost)

    def _expansion(self, peak: Mapping[str, int], layout: Layout | None) -> Expansion | None:
        """What expanded memory costs; None where local memory holds everything."""
        local, expanded = self.compute.memory, self.compute.expanded_memory
        if expanded is None or local is None or sum(peak.values()) <= local:
            return None
        if expanded.policy == "placement" and layout is None:
            problem = "placement by kind is for training: workload"
            raise ScenarioError("compute.expanded_memory.policy", problem, "write policy: uniform")
        bandwidth = self.compute.memory_bandwidth
        if bandwidth is None:
            problem = "expanded memory needs the bandwidth of the local memory"
            raise ScenarioError("compute", problem, "write e.g. memory_bandwidth: 3 TB/s, or name a preset")
        return expand(layout, peak, local, bandwidth, expanded)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model on the ranks of a job. `prices` is None where computation has the times of the roofline."""

    layout: Layout
    machine: ModelMachine
    prices: Prices | None

    def estimate(self) -> dict[str, Any]:
        """Step time of what is simulated and its parts in seconds, memory by kind in bytes, and rates; ``software``,
        ``state`` and ``state_source`` as `TrainingCosts.keys`. Raises ScenarioError: times are those of the roofline.
        """
        layout, prices = self.layout, self.prices
        refuse(TRAINING_FORM, {ROOFLINE: prices is None}, place=self.machine.place)
        assert prices is not None
        step_time = step(terms(layout, prices), prices.constants)
        memory = peak_memory(layout)
        tokens = float(layout.gbs * layout.seq / float(step_time.seconds) / layout.ranks)
        return {
            "ranks": layout.ranks,
            **{key: getattr(layout, key) for key in ("gbs", "mbs", "seq", "tp", "pp", "cp", "vp", "ep", "dp", "zero")},
            "microbatches": layout.microbatches,
            "schedule": layout.schedule,
            "routing": layout.routing.kind,
            **self.machine.costs.keys(),
            "step_s": float(step_time.seconds),
            "parts_s": {name: float(value) for name, value in asdict(step_time).items()},
            "memory_bytes": {name: int(value) for name, value in memory.items()},
            "memory_total_bytes": int(sum(memory.values())),
            "capacity_bytes": self.machine.capacity,
            "reserve_bytes": self.machine.reserve,
            "tokens_per_s_per_gpu": tokens,
            "tflops_per_gpu": tflops_of(layout, tokens),
        }


def tflops_of(layout: Layout, tokens: float) -> dict[str, float]:
    """TFLOP/s of an NPU that trains so many tokens per second, by how FLOPs are counted."""
    return {name: tokens * layout.model.flops_per_token(int(layout.seq), name) / 1e12 for name in FLOPS_CONVENTIONS}


def trained(spec: TrainingWorkload, machine: ModelMachine) -> Trained:
    """The training of a scenario on a machine.

    Raises ScenarioError, at the machine's place: the ranks do not fit, the memory does not suffice, or the NPU is not
    known.
    """
    try:
        layout = spec.training.layout(machine.ranks)
        keys = {"dtype": layout.dtype, "attention": layout.attention}
        return Trained(
            layout=layout, machine=machine, prices=machine.prices(spec, [peak_memory(layout)], layout, **keys)
        )
    except ScenarioError as error:
        raise _at(machine, error) from None


def model_workload(spec: ModelWorkload, machine: ModelMachine, name: str) -> Workload:
    """Traces of all ranks; raises ScenarioError as `trained` does."""
    try:
        return _MAKERS[type(spec)](spec, machine, name)
    except ScenarioError as error:
        raise _at(machine, error) from None


def _training(spec: TrainingWorkload, machine: ModelMachine, name: str) -> Workload:
    model = trained(spec, machine)
    return training_workload(model.layout, model.prices, name=name)


def _machine_of(job: JobSection) -> ModelMachine:
    place, compute = job.at(f"workload.{job.spec.workload.kind}"), job.run.spec.compute
    machine = ModelMachine(
        topology=job.topology, compute=compute, ranks=job.made_ranks, place=place, costs=_costs_of(job)
    )
    if not isinstance(job.spec.workload, TrainingWorkload) or job.spec.workload.times == "roofline":
        return machine
    return replace(machine, network=network_costs(job.topology, select_of(job), machine.costs, _npus(job)))


def _npus(job: JobSection) -> Sequence[int] | None:
    """NPUs of a job by rank; None where nothing tells them."""
    if job.key and job.spec.placement is None:  # it takes those that other jobs leave
        return job.topology.alive[: job.made_ranks]
    kind = job.spec.placement or job.run.spec.topology.placement or "linear"
    try:
        return placement(job.topology, kind, job.made_ranks)
    except TopologyError:  # the run says so, at its key
        return None


def _costs_of(job: JobSection) -> TrainingCosts:
    """Software and state of the machine of a job; other models than trainings have ideal ones.

    Raises ScenarioError, at their keys.
    """
    spec = job.spec.workload
    if not isinstance(spec, TrainingWorkload) or spec.times == "roofline":
        return IDEAL_COSTS
    machine = job.run.spec.compute.preset
    try:
        costs = training_costs(
            spec.software,
            spec.state,
            machine,
            job.made_ranks,
            lambda name: job.run.path(name, job.at("workload.state")),
        )
    except ScenarioError as error:
        raise ScenarioError(job.at("workload", error.place), error.problem, error.remedy) from None
    if job.run.spec.network.profile is not None and costs.state is not None:
        doubts = () if spec.state is None else ("state changes nothing beside network.profile, which was measured",)
        costs = replace(costs, state=None, gather_gb_s=None, source="", doubts=costs.doubts + doubts)
    job.warn(f"workload.{text}" for text in costs.doubts)
    job.run.notes.trainings.append({"job": job.key.removeprefix("jobs."), **costs.keys()})
    return costs


def _warn_of_memory(spec: TrainingWorkload, job: JobSection, machine: ModelMachine) -> None:
    """Say that a training may run out of memory."""
    if spec.memory != "fit":
        return
    try:
        text = machine.doubt(peak_memory(spec.training.layout(machine.ranks)))
    except ScenarioError:  # the workload says so
        return
    job.warn([f"memory: {text}"] if text else [])


def _completed(spec: TrainingWorkload, job: JobSection, costs: TrainingCosts) -> TrainingWorkload:
    """The training with what its software does where the user does not say, and the path of the file of its routing."""
    training = spec.training
    missing = missing_keys(costs.software, training.model_fields_set)
    if missing.get("stage_cut") == "cost" and (training.model.experts or (training.vp or 1) > 1):
        del missing["stage_cut"]  # which cuts dense models into one chunk
    if missing:
        written = {key: getattr(training, key) for key in training.model_fields_set}
        spec = spec.model_copy(update={"training": Training(**(missing | written))})
    routing = spec.training.routing
    if routing.file is None:
        return spec
    routing = routing.model_copy(update={"file": str(job.run.path(routing.file, job.at(f"workload.{spec.kind}")))})
    return spec.model_copy(update={"training": spec.training.model_copy(update={"routing": routing})})


def estimated(job: JobSection) -> dict[str, Any]:
    """What the closed form says of a job that trains a model; see `Trained.estimate`."""
    spec = job.spec.workload
    if not isinstance(spec, TrainingWorkload):
        raise ScenarioError(job.at("workload"), "trains no model, and no other closed form is known", "write training")
    machine = _machine_of(job)
    return trained(_completed(spec, job, machine.costs), machine).estimate()


def _hides(spec: ModelWorkload, machine: ModelMachine) -> bool:
    """Whether a model pays for gradients and weights that go beside its computation."""
    if not isinstance(spec, TrainingWorkload) or not machine.costs.software.constants.interference:
        return False
    return bool(spec.training.overlap.dp) or spec.training.zero == 3


def model_of_job(job: JobSection) -> Workload:
    """The workload of a job that names a model, kept for further points if it is small and reads no file."""
    spec, machine, name = job.spec.workload, _machine_of(job), job.name
    if isinstance(spec, TrainingWorkload):
        spec = _completed(spec, job, machine.costs)
        _warn_of_memory(spec, job, machine)
        if spec.training.routing.file is not None:
            return model_workload(spec, machine, name)
    config = job.run.point.config if _hides(spec, machine) else {}  # what overlap costs hangs on routes
    routes = [config.get(part) for part in ("algorithms", "placement", "jobs")]
    key = digest([spec, machine.topology.digest(), machine.compute, machine.ranks, name, machine.costs, routes])

    def fits(workload: Workload) -> bool:
        return sum(map(len, dict.fromkeys(workload.traces))) <= _MOST_KEPT

    return _MODELS.get(key, lambda: model_workload(spec, machine, name), fits=fits)


def _inference(spec: InferenceWorkload, machine: ModelMachine, name: str) -> Workload:
    job = spec.inference
    prefill, decode = job.layouts(machine.ranks)
    peaks = [
        inference_memory(prefill, job.mbs, job.prompt),
        inference_memory(decode, int(decode.mbs) * job.waves, job.prompt + job.steps),
    ]
    prices = machine.prices(spec, peaks, dtype=job.dtype, attention=job.attention)
    return inference_workload(prefill, decode, job.steps, prices, name=name)


def _recommendation(spec: RecommendationWorkload, machine: ModelMachine, name: str) -> Workload:
    job, ranks = spec.recommendation, machine.ranks
    batch = job.batch(ranks)
    prices = machine.prices(spec, [recommendation_memory(job.model, ranks, batch, **job.sizes)], dtype=job.dtype)
    return recommendation_workload(job.model, ranks, batch, prices, iterations=job.iterations, name=name, **job.sizes)


_MAKERS: dict[type[ModelWorkload], Callable[[Any, ModelMachine, str], Workload]] = {
    TrainingWorkload: _training,
    InferenceWorkload: _inference,
    RecommendationWorkload: _recommendation,
}


def _at(machine: ModelMachine, error: ScenarioError) -> ScenarioError:
    """The error at its key, if it names one beside the workload, else at the workload."""
    place = error.place if error.place.startswith("compute") else machine.place
    return ScenarioError(place, error.problem, error.remedy)


def npu_of(compute: NpuModel, dtype: str) -> Compute | None:
    """The NPU of a compute preset, with the figures that are written instead of its own; None where none is named.

    Raises ScenarioError: the precision is not that of the model, or the NPU has no rate for it.
    """
    npu = None if compute.preset is None else preset(compute.preset).compute
    if npu is None:
        return None
    if compute.precision not in (None, dtype) and not {compute.precision, dtype} <= {"bf16", "fp16"}:
        problem = f"compute has precision {compute.precision}, and the model computes in {dtype}"
        raise ScenarioError("compute.precision", problem, "drop precision, or write the same dtype")
    rates = {"peak": {**npu.peak, dtype: compute.peak}} if "peak" in compute.model_fields_set else {}
    if not rates and dtype not in npu.peak and dtype not in ("bf16", "fp16"):
        problem = f"{compute.preset} has no rate for {dtype}, only for {', '.join(npu.peak)}"
        raise ScenarioError("compute", problem, f"write dtype: {next(iter(npu.peak))}, or compute: {{peak: …}}")
    figures = {key: getattr(compute, key) for key in ("memory_bandwidth", "memory", "expanded_memory")}
    return npu.model_copy(update={**rates, **figures})
