"""The choice that a library makes for each call under a profile: each way is simulated alone, and kept."""

from collections.abc import Callable, Sequence

import numpy as np

from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.core.records import Records
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.system.library_costs import Way
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology.model import Topology
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

#: Times (ps) of calls that ran alone.
_TIMES: Memo[int] = Memo(2**14)
#: Largest group whose routes tell its shape; a larger one has its NPUs for a shape.
_SMALL = 64


def fastest(
    simulate: Callable[[Problem], Records], problem: Problem, ways: Sequence[Way], size: int, npus: tuple[int, ...]
) -> Way:
    """The way that takes the least time alone on these NPUs; the first of several.

    `size`: full buffer, bytes. `npus`: of the members, in their order. A time is kept for (way, size, shape of the
    group): groups that cross like links by like routes have one shape.
    """
    topology = problem.topology
    machine = topology.digest(), digest(problem.network.profile), shape_of(topology, npus)

    def time(way: Way) -> int:
        key = (*machine, way, size)
        return _TIMES.get(key, lambda: int(simulate(_alone(problem, way, size, npus)).makespan))

    return min(ways, key=time)


def shape_of(topology: Topology, npus: tuple[int, ...]) -> object:
    """What two groups have in common that take equally long alone: the links between their members, as numbered here,
    with latency and bandwidth."""
    if len(npus) > _SMALL:
        return npus
    where = np.array(npus)
    src, dst = (each.ravel() for each in np.meshgrid(where, where, indexing="ij"))
    ptr, links = topology.routes(src, dst)
    used, first, number = np.unique(links, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))
    kinds = np.stack([topology.latency_ps[used], topology.bandwidth_class[used], topology.in_node[used]])
    return digest([ptr, place[number.ravel()], kinds[:, np.argsort(first)]])


def _alone(problem: Problem, way: Way, size: int, npus: tuple[int, ...]) -> Problem:
    """The problem of one call, and nothing else."""
    algorithm = way.algorithm
    call = Collective(type=algorithm.collective, size=size, root=algorithm.root or 0)
    table = AlgorithmTable({algorithm.collective: [Case(make=lambda *_: algorithm)]})
    job = Job(workload=generate([call], len(npus)), placement=npus, algorithms=table)
    network = problem.network.model_copy(update={"protocol": way.protocol, "switch_reduction": False})
    return Problem(topology=problem.topology, jobs=(job,), network=network)
