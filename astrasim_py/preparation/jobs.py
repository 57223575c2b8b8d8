"""From a job of a scenario to a job of a Problem: its workload, placement and algorithms."""

from collections.abc import Sequence
from typing import Any

from astrasim_py.chakra.unplanned import unplanned
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.by_need import load
from astrasim_py.core.errors import ScenarioError
from astrasim_py.preparation.algorithms import algorithms_of
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.preparation.workloads.section import JobSection, refuse_beyond
from astrasim_py.scenario.algorithm_models import AlgorithmByDimension
from astrasim_py.scenario.workload_models import (
    OF_FILES,
    InferenceWorkload,
    OpenLoopWorkload,
    ReaderWorkload,
    RecommendationWorkload,
    RecordedWorkload,
    TraceWorkload,
    TrainingWorkload,
)
from astrasim_py.system.compatible import NOISE, SKELETON, refuse
from astrasim_py.system.problem import Job, Planner
from astrasim_py.system.semantics import DATA
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import RandomPlacement, placement

_MODELS = "astrasim_py.preparation.training:model_of_job"
_WORKLOADS: dict[type, str] = {
    tuple: "astrasim_py.preparation.workloads.items:generated",
    TraceWorkload: "astrasim_py.preparation.workloads.traced:traced",
    RecordedWorkload: "astrasim_py.preparation.workloads.converted:recorded",
    ReaderWorkload: "astrasim_py.preparation.workloads.converted:read_by_name",
    TrainingWorkload: _MODELS,
    OpenLoopWorkload: "astrasim_py.preparation.workloads.open_loop:generated",
    InferenceWorkload: _MODELS,
    RecommendationWorkload: _MODELS,
}


def job_of(run: Preparation, topology: Topology, name: str, key: str, spec: Any, free: list[int] | None = None) -> Job:
    """A job of several, or the point itself as the only one. `free`: NPUs for jobs that list none."""
    free_npus = free if spec.placement is None else None
    kind: str | RandomPlacement | Sequence[int] = spec.placement or run.spec.topology.placement or "linear"
    skeleton = getattr(spec.workload, "skeleton", False)
    if skeleton:
        refuse(SKELETON, {NOISE: run.spec.noise}, place=run.at("noise"))
    section = JobSection(run=run, topology=topology, spec=spec, key=key, placement=kind if free_npus is None else None)
    workload: Workload = load(_WORKLOADS[type(spec.workload)])(section)
    count = len(workload.traces)
    delays, speeds = spec.stragglers.start_delay, spec.stragglers.compute_speed
    refuse_beyond((*speeds, *delays), count, section.at("stragglers"))
    place = section.at("placement") if spec.placement is not None else run.at("topology.placement")
    if not isinstance(section.placement, tuple) and (
        section.ranks is not None or not isinstance(spec.workload, OF_FILES)
    ):
        place = section.at("ranks")
    if free_npus is not None:
        if count > len(free_npus):
            problem = f"{count} ranks are more than the {len(free_npus)} NPUs that other jobs leave"
            raise ScenarioError(section.at("ranks"), problem, "write fewer ranks or a larger topology")
        kind = free_npus[:count]
    npus = placement(topology, kind, count, place)
    table, sources = algorithms_of(run, section, workload)
    arrival, iterations = getattr(spec, "arrival", 0), getattr(spec, "iterations", 1)
    if iterations > 1 and table.nodes:
        problem = "algorithms are chosen by node, and every iteration numbers nodes anew"
        raise ScenarioError(section.at("iterations"), problem, "drop the node from when, or write iterations: 1")
    planner: Planner | None = None
    if run.spec.collectives is not None or any(
        isinstance(source.spec, AlgorithmByDimension) for source in sources.values()
    ):
        from astrasim_py.preparation.by_dimension import plan_by_dimension

        planner = plan_by_dimension(run, table, sources, topology, npus)
    if planner is None or iterations > 1:  # repeated traces have no bytes
        section.warn(unplanned(workload.traces, dims_only=planner is not None))
    if iterations > 1:
        from astrasim_py.workload.iterations import iterate

        workload = iterate(workload, iterations)
    return Job(
        name=name,
        workload=workload,
        placement=npus,
        algorithms=table,
        planner=planner,
        start_delay_ps={rank: arrival + delays.get(rank, 0) for rank in range(count)} if arrival else delays,
        compute_speed=speeds,
        dependencies=DATA if isinstance(spec.workload, TraceWorkload) else None,
        skeleton=skeleton,
        arrival_ps=arrival,
        iterations=iterations,
        background=getattr(spec, "background", False),
    )
