"""The choice that a library makes for each call: each way is simulated alone once, and the fastest is kept."""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from astrasim_py.builders.candidates import candidates_in_network
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.core.records import Records
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction, Way
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology.model import Topology
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

#: By algorithm, while it is in use: numbers of the ways that were chosen, by machine, ways, size and shape of group.
_CHOSEN: WeakKeyDictionary[Algorithm, dict[tuple, int]] = WeakKeyDictionary()
#: Algorithms that a library takes, by machine, call and shape of the group.
_TAKEN: Memo[Algorithm] = Memo(64)
#: Algorithms in the network that are taken, by machine, group, size and what they replace.
_IN_NETWORK: Memo[tuple[Algorithm, int] | None] = Memo(64)
#: Largest group with its shape taken from routes; the shape of a larger one is its NPUs.
_SMALL = 64

Simulate = Callable[..., Records]


def fastest(simulate: Simulate, problem: Problem, ways: Sequence[Way], size: int, npus: tuple[int, ...]) -> Way:
    """The way that takes the least time alone on these NPUs; the first of several.

    `ways`: by one algorithm, or by the switch. `size`: full buffer, bytes. `npus`: of the members, in their order. The
    choice is kept for (ways, size, shape of the group): groups that cross like links by like routes have one shape.
    """
    chosen = _CHOSEN.setdefault(ways[0].algorithm, {})
    key = (*_machine(problem, npus), tuple(way.protocol for way in ways), size)
    if key not in chosen:
        chosen[key] = ways.index(_fastest(simulate, problem, ways, size, npus))
    return ways[chosen[key]]


def better_in_network(
    simulate: Simulate, problem: Problem, algorithm: Algorithm, size: int, npus: tuple[int, ...]
) -> tuple[Algorithm, int] | None:
    """The fastest algorithm in the network for a call that takes another one otherwise, and its time alone, ps; None
    where none is faster than that. `problem`: the machine, without jobs."""

    def choose() -> tuple[Algorithm, int] | None:
        listed = candidates_in_network(problem.topology, npus, algorithm.collective, algorithm.root, size)
        ways = [Way(each, "") for each in (algorithm.with_verdict(True), *listed)]
        best = _fastest(simulate, problem, ways, size, npus)
        if best is ways[0]:
            return None
        return best.algorithm, simulate(_alone(problem, best, size, npus, None), level="summary").makespan

    return _IN_NETWORK.get((*_machine(problem, npus), npus, algorithm.digest(), size), choose)


def by_library(
    simulate: Simulate, problem: Problem, collective: str, npus: tuple[int, ...], size: int, root: int
) -> Algorithm:
    """The algorithm that a library takes for a call alone on NPUs, for the protocol that it takes.

    `problem`: the machine, without jobs; other parameters as for `fastest`.
    """

    def choose() -> Algorithm:
        from astrasim_py.dialects.library.lower_choice import ways_of_nccl

        return _fastest(simulate, problem, ways_of_nccl(problem, collective, npus, size, root), size, npus).algorithm

    return _TAKEN.get((*_machine(problem, npus), collective, size, root), choose)


def _machine(problem: Problem, npus: tuple[int, ...]) -> tuple:
    rules = problem.network.model_copy(update={"factory": None}), problem.semantics
    return problem.topology.digest(), digest(rules), shape_of(problem.topology, npus)


def _fastest(simulate: Simulate, problem: Problem, ways: Sequence[Way], size: int, npus: tuple[int, ...]) -> Way:
    best, least = ways[0], None
    for way in ways if len(ways) > 1 else ():
        # A way that takes longer than the best one so far need not end.
        records = simulate(_alone(problem, way, size, npus, least), level="summary")
        if records.outcome.status == "done" and (least is None or records.makespan < least):
            best, least = way, records.makespan
    return best


def shape_of(topology: Topology, npus: tuple[int, ...]) -> object:
    """A key that groups of equal times share: the links between their members, renumbered, with latency and
    bandwidth."""
    if len(npus) > _SMALL:
        return npus
    where = np.array(npus)
    src, dst = (each.ravel() for each in np.meshgrid(where, where, indexing="ij"))
    ptr, links = topology.routes(src, dst)
    used, first, number = np.unique(links, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))
    kinds = np.stack([topology.latency_ps[used], topology.bandwidth_class[used], topology.in_node[used]])
    return digest([ptr, place[number.ravel()], kinds[:, np.argsort(first)]])


def _alone(problem: Problem, way: Way, size: int, npus: tuple[int, ...], most: int | None) -> Problem:
    """The problem of one call, and nothing else, which takes `most` ps at most."""
    algorithm, network = way.algorithm, problem.network
    call = Collective(type=algorithm.collective, size=size, root=algorithm.root or 0)
    table = AlgorithmTable({algorithm.collective: [Case(source=FromFunction(lambda *_: algorithm))]})
    job = Job(workload=generate([call], len(npus)), placement=npus, algorithms=table)
    if network.profile is not None:
        network = network.model_copy(update={"protocol": way.protocol, "switch_reduction": False})
    return Problem(  # a library does not foresee link failures
        topology=problem.topology.without_events, jobs=(job,), network=network, semantics=problem.semantics,
        limits=Limits(max_sim_time_ps=most),
    )  # fmt: skip
