"""A training that a scenario describes: its layout on a machine, its traces, and what the closed form says of it."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.scenario.job_models import TrainingWorkload
from astrasim_py.system.machine_models import ComputeModel
from astrasim_py.topology.hardware import Compute, preset
from astrasim_py.topology.model import Topology
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.memory import peak_memory, require_memory
from astrasim_py.training.models import FLOPS_CONVENTIONS
from astrasim_py.training.prices import SIMULATED, Prices
from astrasim_py.training.strategy import Layout
from astrasim_py.training.system import MEASURED_LATENCY, System, system_of
from astrasim_py.training.traces import training_workload


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model on the ranks of a job. `system` is None where computation has the times of the roofline."""

    layout: Layout
    system: System | None

    def workload(self, name: str) -> Workload:
        """Traces of all ranks."""
        prices = None if self.system is None else Prices(self.system, self.layout.dtype, self.layout.attention)
        return training_workload(self.layout, prices, name=name)

    def estimate(self) -> dict[str, Any]:
        """Step time and its parts in seconds, memory by kind in bytes, and rates, on a machine as it is measured;
        ``ideal_step_s`` is for links at their nominal rates and no host, as they are simulated.
        """
        layout, system = self.layout, self.system
        real = replace(system, latency=MEASURED_LATENCY[0], far_latency=MEASURED_LATENCY[1])
        prices = Prices(real, layout.dtype, layout.attention)
        found = step(terms(layout, prices), prices.constants)
        ideal = replace(prices, system=system, constants=SIMULATED)
        memory = peak_memory(layout)
        tokens = layout.gbs * layout.seq / float(found.seconds) / layout.ranks
        flops = {name: layout.model.flops_per_token(layout.seq, name) for name in FLOPS_CONVENTIONS}
        return {
            "ranks": layout.ranks,
            **{key: getattr(layout, key) for key in ("gbs", "mbs", "seq", "tp", "pp", "cp", "vp", "ep", "dp", "zero")},
            "microbatches": layout.microbatches,
            "schedule": layout.schedule,
            "step_s": float(found.seconds),
            "ideal_step_s": float(step(terms(layout, ideal), SIMULATED).seconds),
            "parts_s": {name: float(value) for name, value in asdict(found).items()},
            "memory_bytes": {name: int(value) for name, value in memory.items()},
            "memory_total_bytes": int(sum(memory.values())),
            "capacity_bytes": system.compute.memory,
            "tokens_per_s_per_gpu": tokens,
            "tflops_per_gpu": {name: tokens * each / 1e12 for name, each in flops.items()},
        }


def trained(spec: TrainingWorkload, topology: Topology, compute: ComputeModel, ranks: int, place: str) -> Trained:
    """The training of a scenario on the NPUs of its topology.

    Raises ScenarioError, at `place`: the ranks do not fit, the memory does not suffice, or the NPU is not known.
    """
    npu = npu_of(compute, spec.training.dtype)
    try:
        layout = spec.training.layout(ranks)
        if spec.memory == "fit" and npu is not None:
            require_memory(layout, npu.memory)
    except ScenarioError as error:
        raise ScenarioError(place, error.problem, error.remedy) from None
    if spec.times == "roofline":
        if not compute.roofline:
            raise ScenarioError(place, "the roofline needs a peak", "write e.g. compute: {preset: dgx_h100}")
        return Trained(layout=layout, system=None)
    if npu is None:
        remedy = "write e.g. compute: {preset: dgx_h100}, or times: roofline"
        raise ScenarioError(place, "times of kernels need an NPU that is known", remedy)
    return Trained(layout=layout, system=system_of(topology, npu))


def npu_of(compute: ComputeModel, dtype: str) -> Compute | None:
    """The NPU of a compute preset, with the rates that are written instead of its own; None where none is named."""
    if compute.preset is None:
        return None
    npu = preset(compute.preset).compute
    own = {} if compute.peak in npu.peak.values() else {"peak": {**npu.peak, dtype: compute.peak}}
    return npu.model_copy(update={**own, "memory_bandwidth": compute.memory_bandwidth})
