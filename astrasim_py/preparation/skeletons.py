"""Workloads whose ranks run the skeletons of their traces."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.program.table import Program
from astrasim_py.sharing.skeleton import exact_skeleton
from astrasim_py.system.durations import workload_ps
from astrasim_py.system.machine_models import ComputeModel
from astrasim_py.system.rank_programs import slots_of
from astrasim_py.system.semantics import Semantics

_LIMITS = ("cpu_slots", "compute_slots", "comm_slots")


def skeleton_workload(
    workload: Workload,
    compute: ComputeModel,
    semantics: Semantics,
    *,
    dependencies: str | None = None,
    speeds: Mapping[int, Fraction] | None = None,
    place: str = "workload.skeleton",
) -> Workload:
    """The skeletons of a workload: on every network, calls and ranks begin and end as they would without.

    Compute has the durations that `compute` and `semantics` give it. `dependencies`: before those of the semantics, or
    of the workload. `speeds`: of ranks. Ranks that share a trace share its skeleton, which has data dependencies only.

    Raises ScenarioError, at `place`: rules under which more than the longest path decides. Raises TraceError: as
    `exact_skeleton`.
    """
    if semantics.event_order == "scheduled":
        problem = "under event_order: scheduled the order at one instant depends on all compute"
        raise ScenarioError(place, problem, "drop skeleton, or write event_order: issued")
    if any(speed != 1 for speed in (speeds or {}).values()):
        problem = "the speed of a rank is applied, and rounded, node by node"
        raise ScenarioError(place, problem, "drop skeleton, or stragglers.compute_speed")
    dependencies = dependencies or semantics.said_dependencies or workload.dependencies
    limited = [name for name in _LIMITS if getattr(semantics, name) is not None]
    skeletons: dict[ExecutionTrace, ExecutionTrace] = {}
    for trace in workload.traces:
        if trace not in skeletons:
            table = Program.of_traces([trace], dependencies)
            duration = workload_ps(table, compute, semantics, Fraction(1))
            skeletons[trace] = exact_skeleton(trace, duration, slots_of(table), limited, dependencies)
    return replace(workload, traces=tuple(map(skeletons.__getitem__, workload.traces)))
