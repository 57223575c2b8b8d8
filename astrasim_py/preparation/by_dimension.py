"""The planner of a job whose calls are cut by dimension."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache

from astrasim_py.builders.switch_trees import IN_NETWORK
from astrasim_py.core.choices import BY_DIMENSION, LIBRARIES
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.dialects.chunks.lower import DimensionPlanner
from astrasim_py.preparation.injected import Choice, default, maker
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.scenario.job_models import AlgorithmByDimension, Builder
from astrasim_py.system.machine_models import Collectives
from astrasim_py.system.problem import CollectiveRequest, PlannedChunk
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import Dim


@dataclass(frozen=True)
class PlannedByDimension:
    """A planner for every case of a job's algorithms, all with the same queues. A case without a planner is carried out
    at once: files, own Python, and builders that go over dimensions themselves (``hierarchical``). `default` is the
    planner of collectives without cases.
    """

    table: AlgorithmTable
    planners: Mapping[Case, DimensionPlanner | None]
    default: DimensionPlanner
    place: str
    warnings: list[str]
    #: Keys of the scenario's `collectives` that differ from what is usual, and names of the cases.
    said: tuple[str, ...] = ()
    names: Mapping[Case, str] = field(default_factory=dict)

    @property
    def capacity(self) -> tuple[int, ...]:
        """Chunks that each queue of an NPU runs at once."""
        return self.default.capacity

    def placed(self, placement: tuple[int, ...]) -> "PlannedByDimension":
        """The planner of other ranks, of which the r-th is on NPU `placement[r]`."""
        planners = {case: each and each.placed(placement) for case, each in self.planners.items()}
        return replace(self, planners=planners, default=self.default.placed(placement))

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Chunks of a call; None where it is carried out at once."""
        if call.type not in BY_DIMENSION or len(call.members) < 2:
            return None
        placement = self.default.placement
        npus = tuple(call.members if placement is None else (placement[rank] for rank in call.members))
        case = self.table.case(call.type, call.full, len(call.members), call.group, call.node, npus)
        planner = self.planners.get(case, self.default)
        chunks = None if planner is None else planner.plan(call)
        if planner is not None and chunks is None:
            self._warn(
                f"the {len(call.members)} ranks of group {call.group} do not fill a grid of the "
                f"topology's dimensions: their {call.type} is carried out at once"
            )
        if planner is None:
            name = self.names.get(case, "")
            remedy = "choose a builder such as ring, which takes dimension after dimension"
            if name == "hierarchical" and "chunks" in self.said:
                remedy = "write {builder: hierarchical, chunks: …}"
            if self.said:
                what = f"not used where {call.type} by {name} is carried out at once"
                self._warn(f"{', '.join(self.said)}: {what}; drop them, or {remedy}")
        return chunks

    def _warn(self, text: str) -> None:
        if (warning := f"{self.place}: {text}") not in self.warnings:
            self.warnings.append(warning)


def plan_by_dimension(
    run: Preparation,
    choices: Sequence[Choice],
    table: AlgorithmTable,
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

    def planner(builders: Sequence[Builder | None], where: str) -> DimensionPlanner:
        @cache
        def algorithm(collective: str, ranks: int, dim: int) -> Algorithm:
            return _algorithm(run, builders[dim], collective, ranks, dim, where)

        return DimensionPlanner(
            sizes=sizes,
            make=lambda collective, ranks, dim, size: algorithm(collective, ranks, dim),
            how=spec,
            rate=tuple(map(_rate, dims, builders)) if dims else (Fraction(1),),
            latency_ps=tuple(dim.latency_ps * (2 if dim.kind == "switch" else 1) for dim in dims) or (0,),
            placement=placement,
        )

    planners: dict[Case, DimensionPlanner | None] = {}
    for case, said, where in choices:
        planners[case] = None
        if isinstance(said, AlgorithmByDimension):
            if len(said.dims) != len(sizes):
                shown = "one dimension (flat)" if spec.flat else f"{len(sizes)} ({' x '.join(map(str, sizes))})"
                problem = f"algorithms for {len(said.dims)} dimensions, and topology {topology.name} has {shown}"
                raise ScenarioError(where, problem, "write one for each, the innermost first")
            planners[case] = planner(said.dims, where)
        elif isinstance(said, Builder) and said.builder not in ("hierarchical", *LIBRARIES, *IN_NETWORK):
            planners[case] = planner((said,) * len(sizes), where)
    said = {"dims": "", "builder": "", "file": "", "python": "", "synthesize": "a synthesized algorithm"}
    names = {
        case: next(text or str(getattr(how, key)) for key, text in said.items() if hasattr(how, key))
        for case, how, _ in choices
    }
    keys = () if run.spec.collectives is None else spec.differs()
    return PlannedByDimension(
        table, planners, planner((None,) * len(sizes), place), place, run.warnings, said=keys, names=names
    )


def _algorithm(
    run: Preparation, builder: Builder | None, collective: str, ranks: int, dim: int, where: str
) -> Algorithm:
    if builder is None:
        return default(collective, ranks, 0)
    if builder.builder in IN_NETWORK:
        problem = f"{builder.builder} lets switches work, which go with whole collectives"
        raise AlgorithmError(where, problem, "write {builder: hierarchical, algorithms: […]}")
    try:
        return maker(run, builder, where)(collective, ranks, 0)
    except AlgorithmError as error:
        problem = f"{error.problem} (a phase of dimension {dim}, over {ranks} NPUs)"
        raise AlgorithmError(error.place, problem, error.remedy) from None


def _rate(dim: Dim, builder: Builder | None) -> Fraction:
    """Bytes per second that an NPU sends in a dimension, as far as its algorithm uses the links."""
    name = builder.builder if builder is not None else ""
    if dim.kind == "fully_connected" and name in ("direct", "linear"):
        return dim.bandwidth * max(dim.size - 1, 1)
    if dim.kind == "ring" and dim.bidirectional and builder is not None and builder.options.get("bidirectional"):
        return dim.bandwidth * 2
    return dim.bandwidth
