"""Jobs whose ranks run the skeletons of their traces."""

from dataclasses import replace
from fractions import Fraction

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import ScenarioError
from astrasim_py.program.table import Program
from astrasim_py.sharing.skeleton import exact_skeleton
from astrasim_py.system.durations import workload_ps
from astrasim_py.system.machine_models import ComputeModel
from astrasim_py.system.problem import Job
from astrasim_py.system.rank_programs import slots_of
from astrasim_py.system.semantics import Semantics


def skeleton_job(job: Job, compute: ComputeModel, semantics: Semantics, place: str = "workload.skeleton") -> Job:
    """The same job on skeletons: on every network, its calls and ranks begin and end as they would without.

    Compute has the durations that `compute` and `semantics` give it. Ranks that share a trace share its skeleton.

    Raises ScenarioError, at `place`: rules under which more than the longest path decides. Raises TraceError: as
    `exact_skeleton`.
    """
    if semantics.event_order == "scheduled":
        problem = "under event_order: scheduled the order at one instant depends on all compute"
        raise ScenarioError(place, problem, "drop skeleton, or write event_order: issued")
    if any(speed != 1 for speed in job.compute_speed.values()):
        problem = "the speed of a rank is applied, and rounded, node by node"
        raise ScenarioError(place, problem, "drop skeleton, or stragglers.compute_speed")
    dependencies = job.dependencies or semantics.dependencies
    limited = [n for n in ("cpu_slots", "compute_slots", "comm_slots") if getattr(semantics, n) is not None]
    made: dict[ExecutionTrace, ExecutionTrace] = {}
    for trace in job.workload.traces:
        if trace not in made:
            table = Program.of_traces([trace], dependencies)
            duration = workload_ps(table, compute, semantics, Fraction(1))
            made[trace] = exact_skeleton(trace, duration, slots_of(table), limited, dependencies)
    workload = replace(job.workload, traces=tuple(map(made.__getitem__, job.workload.traces)))
    return replace(job, workload=workload, dependencies="data")
