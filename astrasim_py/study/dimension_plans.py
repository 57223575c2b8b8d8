"""Collectives of a scenario by dimension: which planner each call gets, from its algorithms and its topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from astrasim_py.builders.registry import ALGORITHMS, build, default_algorithm
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.scenario.algorithm_models import AlgorithmByDimension, Builder
from astrasim_py.system.dimension_planner import LOCAL_FIRST, PLANNED, DimensionPlanner
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import Dim

#: ``make(case, collective, ranks, place) -> Algorithm``
Make = Callable[[Builder, str, int, str], Algorithm]


class PlannedByDimension:
    """A planner for every case of a job's algorithms, all with the same queues.

    Files, own Python and builders that go over dimensions themselves (``hierarchical``) are carried out at once.

    `table`: of the job: which case a call takes. `planners`: none: carried out at once. `default`: of collectives
    without cases. `warnings`: what a person should know of is added.
    """

    def __init__(
        self,
        table: AlgorithmTable,
        planners: Mapping[Case, DimensionPlanner | None],
        default: DimensionPlanner,
        place: str,
        warnings: list[str],
    ) -> None:
        self.table, self.planners, self.default = table, planners, default
        self.place, self.warnings = place, warnings
        self.capacity = default.capacity

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Streams of a call; None where it is carried out at once."""
        if call.type not in PLANNED or len(call.members) < 2:
            return None
        case = self.table.case(call.type, call.full, len(call.members), call.group, call.node)
        planner = self.planners.get(case, self.default)
        if planner is None:
            return None
        streams = planner.plan(call)
        if streams is None:
            warning = (
                f"{self.place}: the {len(call.members)} ranks of group {call.group} do not fill a grid of the "
                f"topology's dimensions: their {call.type} is carried out at once"
            )
            if warning not in self.warnings:
                self.warnings.append(warning)
        return streams


def plan_by_dimension(
    spec: Any,
    cases: Mapping[str, Sequence[tuple[Case, Any, str]]],
    table: AlgorithmTable,
    topology: Topology,
    placement: tuple[int, ...],
    make: Make,
    place: str,
    warnings: list[str],
) -> PlannedByDimension:
    """The planner of a job.

    `spec`: of the scenario. `cases`: collective → its cases, each with what the scenario says and its place. `table`,
    `topology`, `placement`, `make`, `place`, `warnings`: as above; `place` of the scenario's key. Raises ScenarioError:
    the topology has no dimensions, or not as many as a list of algorithms.
    """
    if spec.flat:
        dims: tuple[Dim, ...] = ()
        sizes: tuple[int, ...] = (topology.npus,)
    else:
        dims = topology.dims
        sizes = tuple(dim.size for dim in dims)
    if not sizes:
        problem = f"topology {topology.name} ({topology.shape}) has no dimensions"
        raise ScenarioError(place, problem, "write flat: true, which takes all NPUs for one dimension")
    options = {
        "sizes": sizes,
        "chunks": spec.chunks,
        "active": spec.active_chunks,
        "queues": spec.queues,
        "all_reduce": spec.all_reduce or LOCAL_FIRST,
        "order": spec.order,
        "latency_ps": tuple(_latency(dim) for dim in dims) or (0,),
        "endpoint_delay_ps": spec.endpoint_delay,
        "rounding": spec.rounding,
        "placement": placement,
    }

    def planner(builders: Sequence[Builder | None], where: str) -> DimensionPlanner:
        made: dict[tuple[str, int, int], Algorithm] = {}

        def algorithm(collective: str, ranks: int, dim: int, size: int) -> Algorithm:
            key = (collective, ranks, dim)
            if key not in made:
                made[key] = _made(builders[dim], collective, ranks, dim, where)
            return made[key]

        rate = tuple(_rate(dim, builder) for dim, builder in zip(dims, builders, strict=True)) if dims else (1,)
        return DimensionPlanner(make=algorithm, rate=tuple(map(Fraction, rate)), **options)

    def _made(builder: Builder | None, collective: str, ranks: int, dim: int, where: str) -> Algorithm:
        if builder is None:
            return build(default_algorithm(collective), collective, ranks).with_verdict(True)
        try:
            return make(builder, collective, ranks, where)
        except AlgorithmError as error:
            problem = f"{error.problem} (a phase of dimension {dim}, over {ranks} NPUs)"
            raise AlgorithmError(error.place, problem, error.remedy) from None

    planners: dict[Case, DimensionPlanner | None] = {}
    for listed in cases.values():
        for case, said, where in listed:
            if isinstance(said, AlgorithmByDimension):
                if len(said.dims) != len(sizes):
                    shown = "one dimension (flat)" if spec.flat else f"{len(sizes)} ({' x '.join(map(str, sizes))})"
                    problem = f"algorithms for {len(said.dims)} dimensions, and topology {topology.name} has {shown}"
                    raise ScenarioError(where, problem, "write one for each, the innermost first")
                planners[case] = planner(said.dims, where)
            elif isinstance(said, Builder) and not _spans(said):
                planners[case] = planner((said,) * len(sizes), where)
            else:
                planners[case] = None
    return PlannedByDimension(table, planners, planner((None,) * len(sizes), place), place, warnings)


def _spans(builder: Builder) -> bool:
    """Whether a builder goes over dimensions itself."""
    return builder.builder in ALGORITHMS and "dims" in builder.options


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
