"""Workloads to be given away: a level of sharing, and what it costs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from astrasim_py.builders.registry import build_default
from astrasim_py.chakra.graph import owners, pointers
from astrasim_py.chakra.schema import INT_COLUMNS
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import AUTO, COMPILED
from astrasim_py.core.errors import SimulationError, TraceError
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.table import Program
from astrasim_py.sharing import levels, synthesize
from astrasim_py.sharing.levels import Original, Times
from astrasim_py.sharing.secrets import Scales
from astrasim_py.sharing.skeleton import check_chain, is_call
from astrasim_py.system.durations import workload_ps
from astrasim_py.system.machine_models import ComputeModel, MemoryModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import COMPUTE_SLOT, CPU_SLOT
from astrasim_py.system.rank_programs import slots_of
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Topology
from astrasim_py.topology.shapes import FullyConnected, Mesh, Ring, Switch

#: What is left, by name; each takes an original and a generator.
LEVELS: Mapping[str, Callable[[Original, np.random.Generator], Workload]] = {
    "strip": levels.strip,
    "hash": levels.hashed,
    "skeleton": levels.skeleton,
    "synthetic": synthesize.synthetic,
}
NO_SCALES = Scales()
_GBPS, _NS = 10**9, 1000


def networks(ranks: int) -> dict[str, Topology]:
    """The networks on which the price of a level is measured; of one rank, only those that have one."""
    shapes = {
        "switch 400 GB/s": (Switch, 400, 500),
        "switch 25 GB/s": (Switch, 25, 2000),
        "ring 100 GB/s": (Ring, 100, 500),
        "ring 10 GB/s": (Ring, 10, 1000),
        "mesh 50 GB/s": (Mesh, 50, 1000),
        "fully connected 5 GB/s": (FullyConnected, 5, 1000),
    }
    return {
        name: shape(**({"dims": [ranks]} if shape is Mesh else {"npus": ranks}), bandwidth=Fraction(rate * _GBPS),
                    latency=latency * _NS).build()
        for name, (shape, rate, latency) in shapes.items()
        if ranks > 1 or shape is Switch
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rules:
    """By what rules a workload runs: the price of operations, and the semantics."""

    compute: ComputeModel = ComputeModel()
    semantics: Semantics = Semantics.native()

    def run(
        self,
        workload: Workload,
        topology: Topology,
        level: str = "summary",
        *,
        engine: str = AUTO,
        scales: Scales = NO_SCALES,
    ) -> Records:
        """Simulate a workload with the default algorithms, and a remote memory scaled as it is.

        Raises SimulationError: it does not end.
        """
        table = AlgorithmTable({}, default=build_default)
        job = Job(workload=workload, placement=tuple(range(workload.ranks)), algorithms=table)
        rate, latency = round(100 * _GBPS * scales.size / scales.time), round(1000 * _NS * scales.time)
        memory = MemoryModel(kind="per_npu", latency_ps=latency, bandwidth=Fraction(rate))
        problem = Problem(topology=topology, jobs=(job,), semantics=self.semantics, compute=self.compute, memory=memory)
        records = simulate(problem, level=level, engine=engine)
        if records.outcome.status != "done":
            raise SimulationError(workload.name or "workload", f"does not end: {records.outcome.cause}", "lint it")
        return records

    def makespan(self, workload: Workload, free: bool = False) -> int:
        """Time in ps of a workload on an ordinary network, or on one that takes no time."""
        return self.run(workload, _network(workload.ranks, free)).makespan

    def times(self, workload: Workload) -> Times:
        """When each node of each rank begins and ends on an ordinary network."""
        node = self.run(workload, _network(workload.ranks), "nodes", engine=COMPILED).node
        of_node = node["instance"] < 0
        rank, ids, start, end = (node[name][of_node] for name in ("rank", "node", "start", "end"))
        by_rank = np.lexsort((ids, rank))
        bounds = np.searchsorted(rank[by_rank], np.arange(workload.ranks + 1)).tolist()
        spans = []
        for number, trace in enumerate(workload.traces):
            rows = by_rank[bounds[number] : bounds[number + 1]]
            place = np.searchsorted(ids[rows], trace.node_id.astype(ids.dtype))
            spans.append((start[rows][place], end[rows][place]))
        return spans


def _network(ranks: int, free: bool = False) -> Topology:
    """An ordinary one, or one that takes no time."""
    rate, latency = (10**9 * _GBPS, 0) if free else (100 * _GBPS, 1000 * _NS)
    return Switch(shape="switch", npus=ranks, bandwidth=Fraction(rate), latency=latency).build()


def original_of(workload: Workload, rules: Rules | None = None) -> Original:
    """A workload to be given away.

    Where compute nodes of a rank wait for a slot, `chained` has them in the order in which they run on an ordinary
    network; on others it may be another one. Raises TraceError: a trace that cannot be run.
    """
    rules = rules or Rules()
    traced = Workload(tuple(workload.trace(rank) for rank in range(workload.ranks)), workload.groups, workload.name)
    dependencies = rules.semantics.said_dependencies or workload.dependencies
    duration, slot, waits = {}, {}, {}
    for trace in dict.fromkeys(traced.traces):
        table = Program.of_traces([trace], dependencies)
        duration[trace] = workload_ps(table, rules.compute, rules.semantics, Fraction(1))
        slot[trace] = slots_of(table)
        waits[trace] = [holds for holds in _holders(trace, slot[trace], rules) if _waits(trace, holds, dependencies)]
    starts = {}
    if any(waits.values()):
        starts = dict(zip(traced.traces, (start for start, _ in rules.times(traced)), strict=True))
    chained = {
        trace: _chained(trace, starts[trace], held, dependencies) if held else trace for trace, held in waits.items()
    }
    return Original(
        workload=traced, chained=chained, duration=duration, slot=slot, dependencies=dependencies, simulate=rules.times
    )


def _holders(trace: ExecutionTrace, slot: np.ndarray, rules: Rules) -> list[np.ndarray]:
    """bool[n] each: the compute nodes that hold a slot of a kind of which there are few."""
    limits = ((CPU_SLOT, rules.semantics.cpu_slots), (COMPUTE_SLOT, rules.semantics.compute_slots))
    return [(slot == kind) & ~is_call(trace) for kind, number in limits if number is not None]


def _waits(trace: ExecutionTrace, holds: np.ndarray, dependencies: str) -> bool:
    try:
        check_chain(trace, holds, "", dependencies)
    except TraceError:
        return True
    return False


def _chained(trace: ExecutionTrace, start: np.ndarray, held: Sequence[np.ndarray], dependencies: str) -> ExecutionTrace:
    """The trace with dependencies between nodes that hold a slot, in the order of their starts."""
    ptr, parents = trace.parents(dependencies)
    child, place = owners(ptr), np.argsort(trace.order(dependencies))
    for holds in held:
        rows = np.flatnonzero(holds)
        rows = rows[np.lexsort((place[rows], start[rows]))]
        child, parents = np.append(child, rows[1:]), np.append(parents, rows[:-1])
    owner, rows = np.divmod(np.unique(child * len(trace) + parents), len(trace))
    return trace.replace(data_deps=Csr(pointers(owner, len(trace)), trace.node_id[rows]), ctrl_deps=None)


def share(original: Original, level: str, *, seed: int = 0, scales: Scales = NO_SCALES) -> Workload:
    """What a level leaves of a workload, scaled; the same seed gives the same."""
    level_workload = LEVELS[level](original, np.random.default_rng([seed, *level.encode()]))
    return level_workload if scales == NO_SCALES else scales.workload(level_workload)


@dataclass(frozen=True)
class Price:
    """What sharing costs: the error of the time of a step on each network, and whether networks keep their order.

    `error`: by network, of the scaled workload on the network scaled alike, as a fraction. `spearman`: rank correlation
    of the times over networks; networks that differ by less than a percent are as good as each other.
    """

    error: Mapping[str, float]
    spearman: float

    @property
    def mean(self) -> float:
        return float(np.mean([abs(error) for error in self.error.values()]))

    @property
    def largest(self) -> float:
        return max(abs(error) for error in self.error.values())


def price(original: Original, shared: Workload, rules: Rules, scales: Scales = NO_SCALES) -> Price:
    """Compare a workload with what is shared of it."""
    before, after = {}, {}
    for name, topology in networks(shared.ranks).items():
        before[name] = rules.run(original.workload, topology, engine=COMPILED).makespan
        scaled = scales.topology(topology)
        after[name] = rules.run(shared, scaled, scales=scales, engine=COMPILED).makespan / scales.time
    error = {name: (after[name] - before[name]) / max(before[name], 1) for name in before}
    return Price(error, rank_correlation(*(np.array([*times.values()]) for times in (before, after))))


def rank_correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Rank correlation; times about as many percent above the least have one rank, and all of one rank any order."""
    logs = [np.round(np.log((times + 1) / (times.min() + 1)), 2) for times in (before, after)]
    ranks = [((times[:, None] > times).astype(int) + (times[:, None] >= times)).sum(axis=1) for times in logs]
    if not all(map(np.ptp, ranks)):
        return float(not np.ptp(ranks[0]))
    return round(float(np.corrcoef(*ranks)[0, 1]), 9)


def removed(before: Workload, after: Workload, attributes: Collection[str]) -> dict[str, object]:
    """What a level has taken away: nodes before and after; how many names, groups and metadata; which `attributes`."""
    old, new = ({name for trace in dict.fromkeys(w.traces) for name in trace.names} for w in (before, after))
    kept = {name for name in INT_COLUMNS if any(trace.has_column(name) for trace in dict.fromkeys(after.traces))}
    return {
        "nodes": [sum(map(len, workload.traces)) for workload in (before, after)],
        "names": len(old - new),
        "groups": len(set(before.groups) - set(after.groups)),
        "metadata": len({entry.name for trace in dict.fromkeys(before.traces) for entry in trace.metadata}),
        "attributes": sorted(set(attributes) - kept - {"pg_name"}),
    }
