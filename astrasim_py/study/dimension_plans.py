"""Collectives of a scenario by dimension: which planner each call gets, from its algorithms and its topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from astrasim_py.builders.registry import ALGORITHMS, build, default_algorithm
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.scenario.job_models import AlgorithmByDimension, Builder
from astrasim_py.study.injected import Choice, maker
from astrasim_py.study.preparation import Preparation
from astrasim_py.system.dimension_planner import PLANNED, DimensionPlanner
from astrasim_py.system.machine_models import Collectives
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import Dim


@dataclass(frozen=True)
class PlannedByDimension:
    """A planner for every case of a job's algorithms, all with the same queues.

    A case without a planner is carried out at once: files, own Python, and builders that go over dimensions themselves
    (``hierarchical``). `default` is the planner of collectives without cases.
    """

    table: AlgorithmTable
    planners: Mapping[Case, DimensionPlanner | None]
    default: DimensionPlanner
    place: str
    warnings: list[str]

    @property
    def capacity(self) -> tuple[int, ...]:
        """Chunks that each queue of an NPU runs at once."""
        return self.default.capacity

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Chunks of a call; None where it is carried out at once."""
        if call.type not in PLANNED or len(call.members) < 2:
            return None
        case = self.table.case(call.type, call.full, len(call.members), call.group, call.node)
        planner = self.planners.get(case, self.default)
        chunks = None if planner is None else planner.plan(call)
        if planner is not None and chunks is None:
            warning = (
                f"{self.place}: the {len(call.members)} ranks of group {call.group} do not fill a grid of the "
                f"topology's dimensions: their {call.type} is carried out at once"
            )
            if warning not in self.warnings:
                self.warnings.append(warning)
        return chunks


def plan_by_dimension(
    run: Preparation,
    choices: Mapping[str, Sequence[Choice]],
    table: AlgorithmTable,
    topology: Topology,
    placement: tuple[int, ...],
) -> PlannedByDimension | None:
    """The planner of a job; None where nothing is cut by dimension.

    Raises ScenarioError: the topology has no dimensions, or not as many as a list of algorithms.
    """
    listed = [choice for cases in choices.values() for choice in cases]
    if run.spec.collectives is None and not any(isinstance(each.said, AlgorithmByDimension) for each in listed):
        return None
    spec, place = run.spec.collectives or Collectives(), run.at("collectives")
    dims = () if spec.flat else topology.dims
    sizes = (topology.npus,) if spec.flat else tuple(dim.size for dim in dims)
    if not sizes:
        problem = f"topology {topology.name} ({topology.shape}) has no dimensions"
        raise ScenarioError(place, problem, "write flat: true, which takes all NPUs for one dimension")

    def planner(builders: Sequence[Builder | None], where: str) -> DimensionPlanner:
        @cache
        def algorithm(collective: str, ranks: int, dim: int) -> Algorithm:
            return _algorithm(run, builders[dim], collective, ranks, dim, where)

        return DimensionPlanner(
            sizes=sizes,
            make=lambda collective, ranks, dim, size: algorithm(collective, ranks, dim),
            how=spec,
            rate=tuple(map(_rate, dims, builders)) if dims else (Fraction(1),),
            latency_ps=tuple(map(_latency, dims)) or (0,),
            placement=placement,
        )

    planners: dict[Case, DimensionPlanner | None] = {}
    for case, said, where in listed:
        planners[case] = None
        if isinstance(said, AlgorithmByDimension):
            if len(said.dims) != len(sizes):
                shown = "one dimension (flat)" if spec.flat else f"{len(sizes)} ({' x '.join(map(str, sizes))})"
                problem = f"algorithms for {len(said.dims)} dimensions, and topology {topology.name} has {shown}"
                raise ScenarioError(where, problem, "write one for each, the innermost first")
            planners[case] = planner(said.dims, where)
        elif isinstance(said, Builder) and not (said.builder in ALGORITHMS and "dims" in said.options):
            planners[case] = planner((said,) * len(sizes), where)
    return PlannedByDimension(table, planners, planner((None,) * len(sizes), place), place, run.warnings)


def _algorithm(
    run: Preparation, builder: Builder | None, collective: str, ranks: int, dim: int, where: str
) -> Algorithm:
    if builder is None:
        return build(default_algorithm(collective), collective, ranks).with_verdict(True)
    try:
        return maker(run, builder, where)(collective, ranks, 0)
    except AlgorithmError as error:
        problem = f"{error.problem} (a phase of dimension {dim}, over {ranks} NPUs)"
        raise AlgorithmError(error.place, problem, error.remedy) from None


def _latency(dim: Dim) -> int:
    """Latency of a message within a dimension, ps."""
    return dim.latency_ps * (2 if dim.kind == "switch" else 1)


def _rate(dim: Dim, builder: Builder | None) -> Fraction:
    """Bytes per second that an NPU sends in a dimension, as far as its algorithm uses the links."""
    name = builder.builder if builder is not None else ""
    if dim.kind == "fully_connected" and name in ("direct", "linear"):
        return dim.bandwidth * max(dim.size - 1, 1)
    if dim.kind == "ring" and dim.bidirectional and builder is not None and builder.options.get("bidirectional"):
        return dim.bandwidth * 2
    return dim.bandwidth
