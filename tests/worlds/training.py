"""Training simulated: prices by hand, a network, and the records of a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.topology.model import Topology
from astrasim_py.training.layers import Comm, Item, Op, boundary
from astrasim_py.training.software import software
from astrasim_py.training.strategy import Layout, Numbers, Training

TINY = {"layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 512}
#: One layer's times are those of its `qkv` products.
TIMED = "qkv"


class GpuAlone:
    """Times of operations alone: no host, no software between them."""

    constants = software("ideal").constants

    def delay_ps(self, layout: Layout, comm: Comm) -> int:
        return 0

    def message_delay_ps(self, layout: Layout) -> int:
        return 0

    def host_ps(self, layout: Layout, kind: str, items: Sequence[Item], passes: float) -> int:
        return 0

    def uneven_ps(self, layout: Layout, place: int, ops: Sequence[Op]) -> int:
        return 0

    def boundary(self, layout: Layout) -> Numbers:
        return boundary(layout)

    def fixed_ps(self, layout: Layout) -> int:
        return 0


@dataclass(frozen=True)
class ByHand(GpuAlone):
    """Picoseconds by (name, part) of an operation; all others take none."""

    times: Mapping[tuple[str, str], int]

    def op_ps(self, *ops: Op) -> int:
        return sum(self.times.get((op.name, op.part), 0) for op in ops)


class ByWork(GpuAlone):
    """A price for everything: FLOPs and bytes at round rates."""

    def op_ps(self, *ops: Op) -> int:
        return sum(int(op.flops) // 100 + int(op.nbytes) for op in ops)


def layout_of(ranks: int, **keys) -> Layout:
    """A layout of the keys of `training:`, of a tiny model unless they say which."""
    return Training.model_validate({"model": TINY, "seq": 64} | keys).layout(ranks)


def fast(ranks: int) -> Topology:
    """A network on which any message takes a picosecond."""
    return shapes.FullyConnected(npus=ranks, bandwidth=Fraction(10**18), latency=0).build()


def run(
    workload: Workload, topology: Topology, *, network=None, engine="compiled", level="summary", fold=False
) -> Records:
    """Simulate with the default algorithms."""
    problem = problem_of(workload, topology, network)
    records = simulate(problem, engine=engine, level=level, fold=fold)
    assert records.outcome.status == "done", records.outcome
    return records


def problem_of(workload: Workload, topology: Topology, network: NetworkModel | None = None) -> Problem:
    """A problem with the default algorithms."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

    def make(collective: str, ranks: int, root: int):
        return build(default_algorithm(collective), collective, ranks)

    table = AlgorithmTable({kind: [Case(source=FromFunction(lambda call: make(*call[:3])))] for kind in kinds})
    job = Job(workload=workload, placement=tuple(range(workload.ranks)), algorithms=table)
    return Problem(topology=topology, jobs=(job,), network=network or NetworkModel())


def whole(workload: Workload, change: Callable = lambda trace: trace) -> Workload:
    """The same workload with a trace for each rank."""
    return Workload(tuple(change(workload.trace(rank)) for rank in range(workload.ranks)), workload.groups)
