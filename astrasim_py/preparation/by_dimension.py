"""The planner of a job whose calls are cut by dimension."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from astrasim_py.builders.registry import IN_NETWORK
from astrasim_py.core.choices import BY_DIMENSION
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.dialects.chunks.lower import DimensionPlanner
from astrasim_py.preparation.algorithms import source_of
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.preparation.sources.built import default_built
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall, AlgorithmTable, Case
from astrasim_py.scenario.algorithm_models import AlgorithmByDimension
from astrasim_py.system import compatible
from astrasim_py.system.machine_models import Collectives
from astrasim_py.system.problem import CollectiveRequest, PlannedChunk
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import Dim


@dataclass(frozen=True)
class PlannedByDimension:
    """Planners for the cases of a job's algorithms, all with the same queues. A case without a planner is carried out
    at once: files, own Python, and builders that go over dimensions themselves (``hierarchical``). `default` is the
    planner of collectives without cases. `keys`: of the scenario's `collectives`, those that differ from what is usual.
    """

    table: AlgorithmTable
    sources: Mapping[Case, ScenarioSource]
    planners: Mapping[Case, DimensionPlanner]
    default: DimensionPlanner
    place: str
    keys: tuple[str, ...] = ()

    @property
    def capacity(self) -> tuple[int, ...]:
        """Chunks that each queue of an NPU runs at once."""
        return self.default.capacity

    def placed(self, placement: tuple[int, ...]) -> "PlannedByDimension":
        """The planner of other ranks, of which the r-th is on NPU `placement[r]`."""
        planners = {case: planner.placed(placement) for case, planner in self.planners.items()}
        return replace(self, planners=planners, default=self.default.placed(placement))

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Chunks of a call; None where it is carried out at once."""
        if call.type not in BY_DIMENSION or len(call.members) < 2:
            return None
        placement = self.default.placement
        npus = tuple(call.members if placement is None else (placement[rank] for rank in call.members))
        full = AlgorithmCall(call.type, len(call.members), call.root, call.full, npus)
        case = self.table.case(full, call.group, call.node)
        source = self.sources.get(case)
        if source is not None and case not in self.planners:
            if self.keys:
                remedy = "choose a builder such as ring, which takes dimension after dimension"
                if source.name == "hierarchical" and "chunks" in self.keys:
                    remedy = "write {builder: hierarchical, chunks: …}"
                problem = f"not used where {call.type} by {source.name} is carried out at once"
                self._warn(f"{', '.join(self.keys)}: {problem}; drop them, or {remedy}")
            return None
        chunks = self.planners.get(case, self.default).plan(call)
        if chunks is None:
            self._warn(
                f"the {len(call.members)} ranks of group {call.group} do not fill a grid of the "
                f"topology's dimensions: their {call.type} is carried out at once"
            )
        return chunks

    def _warn(self, text: str) -> None:
        self.table.notes.warn_once(f"{self.place}: {text}")


def plan_by_dimension(
    run: Preparation,
    table: AlgorithmTable,
    sources: Mapping[Case, ScenarioSource],
    topology: Topology,
    placement: tuple[int, ...],
) -> PlannedByDimension:
    """The planner of a job.

    Raises ScenarioError: the topology has no dimensions, or not as many as a list of algorithms.
    """
    spec, place = run.spec.collectives or Collectives(), run.at("collectives")
    dims = () if spec.flat else topology.dims
    sizes = (topology.npus,) if spec.flat else tuple(dim.size for dim in dims)
    if not sizes:
        problem = f"topology {topology.name} ({topology.shape}) has no dimensions"
        raise ScenarioError(place, problem, "write flat: true, which takes all NPUs for one dimension")

    def planner(listed: Sequence[ScenarioSource | None]) -> DimensionPlanner:
        @cache
        def algorithm(collective: str, ranks: int, dim: int) -> Algorithm:
            return _phase(listed[dim], collective, ranks, dim)

        return DimensionPlanner(
            sizes=sizes,
            make=lambda collective, ranks, dim, size: algorithm(collective, ranks, dim),
            how=spec,
            rate=tuple(map(_rate, dims, listed)) if dims else (Fraction(1),),
            latency_ps=tuple(dim.latency_ps * (2 if dim.kind == "switch" else 1) for dim in dims) or (0,),
            placement=placement,
        )

    planners: dict[Case, DimensionPlanner] = {}
    for case, source in sources.items():
        if isinstance(source.spec, AlgorithmByDimension):
            if len(source.spec.dims) != len(sizes):
                shown = "one dimension (flat)" if spec.flat else f"{len(sizes)} ({' x '.join(map(str, sizes))})"
                problem = f"algorithms for {len(source.spec.dims)} dimensions, and topology {topology.name} has {shown}"
                raise ScenarioError(source.place, problem, "write one for each, the innermost first")
            planners[case] = planner(
                [source_of(run, builder, topology, source.place, table.notes) for builder in source.spec.dims]
            )
        elif source.by_dimension:
            planners[case] = planner([source] * len(sizes))
    keys = () if run.spec.collectives is None else tuple(spec.differs())
    return PlannedByDimension(table, sources, planners, planner([None] * len(sizes)), place, keys)


def _phase(source: ScenarioSource | None, collective: str, ranks: int, dim: int) -> Algorithm:
    if source is None:
        return default_built(collective, ranks, 0)
    if source.name in IN_NETWORK:
        remedy = "write {builder: hierarchical, algorithms: […]}"
        parts = {compatible.BY_DIMENSION: True, "algorithm": source.name}
        compatible.refuse(compatible.SWITCHES, parts, error=AlgorithmError, place=source.place, remedy=remedy)
    try:
        return source.for_ranks(collective, ranks, 0)
    except AlgorithmError as error:
        problem = f"{error.problem} (a phase of dimension {dim}, over {ranks} NPUs)"
        raise AlgorithmError(error.place, problem, error.remedy) from None


def _rate(dim: Dim, source: ScenarioSource | None) -> Fraction:
    """Bytes per second that an NPU sends in a dimension, as far as its algorithm uses the links."""
    if source is not None and dim.kind == "fully_connected" and source.name in ("direct", "linear"):
        return dim.bandwidth * max(dim.size - 1, 1)
    if source is not None and dim.kind == "ring" and dim.bidirectional and source.spec.options.get("bidirectional"):
        return dim.bandwidth * 2
    return dim.bandwidth
