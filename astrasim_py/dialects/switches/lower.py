"""Switches that take part in collectives: the switch of each actor of an algorithm, and its part in a plan.

In a plan a switch is a rank after those of all jobs. Its workload is one collective node per call, without
dependencies and without slots.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm, place_of
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.table import Program
from astrasim_py.system.compatible import BY_DIMENSION, SWITCHES, refuse
from astrasim_py.system.matching import Matchings
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import NO_SLOT, Programs
from astrasim_py.system.rank_programs import RankPrograms
from astrasim_py.system.repeated import Repeated
from astrasim_py.topology.model import Computing, Topology


def bind(algorithm: Algorithm, npus: Sequence[int], topology: Topology) -> tuple[int, ...]:
    """The switch that each actor of an algorithm among some NPUs is.

    Its own `vertices`; else the switch of its name; for others, one after the other, the lowest capable switch that is
    linked to all its peers, and that no other actor is. Actors without peers among the ranks come last. Raises
    AlgorithmError: there is none, or one for two actors.
    """
    named = {name: topology.npus + i for i, name in enumerate(topology.switch_names)}
    vertices = algorithm.vertices or (-1,) * len(algorithm.actors)
    computing, source = topology.computing, place_of(algorithm)
    vertex_of = {
        actor: vertex if vertex >= 0 else named.get(name, -1)
        for actor, (name, vertex) in enumerate(zip(algorithm.actors, vertices, strict=True))
    }
    if computing is None:
        problem = f"switch {algorithm.actors[0]} takes part, but no switch of {topology.name} computes"
        raise AlgorithmError(source, problem, "write switches: {capable: all} in the topology")
    for actor, vertex in vertex_of.items():
        if vertex >= 0:
            _check(algorithm, actor, vertex, vertex_of, computing, topology)
    peers = [_peers(algorithm, algorithm.ranks + actor) for actor in range(len(algorithm.actors))]
    unbound = [actor for actor, vertex in vertex_of.items() if vertex < 0]
    for actor in sorted(unbound, key=lambda actor: (not any(p < algorithm.ranks for p in peers[actor]), actor)):
        ends = [npus[p] if p < algorithm.ranks else vertex_of[p - algorithm.ranks] for p in peers[actor]]
        ends = [end for end in ends if end >= 0]
        free = (v for v in computing.vertices if v not in vertex_of.values() and _adjacent(topology, v, ends))
        vertex_of[actor] = next(free, -1)
        if vertex_of[actor] < 0:
            name = algorithm.actors[actor]
            problem = f"no capable switch of {topology.name} is free and linked to all peers of switch {name}"
            raise AlgorithmError(source, problem, f"name one: {{file: …, actors: {{{name}: NAME}}}}")
    return tuple(vertex_of.values())


def _check(
    algorithm: Algorithm, actor: int, vertex: int, vertex_of: dict[int, int], computing: Computing, topology: Topology
) -> None:
    source, name, where = place_of(algorithm), algorithm.actors[actor], topology.vertex_name(vertex)
    if vertex not in computing.vertices:
        capable = ", ".join(topology.vertex_name(v) for v in computing.vertices[:8])
        raise AlgorithmError(source, f"switch {name} is {where}, which does not compute", f"take one of {capable}")
    others = [other for other, place in vertex_of.items() if place == vertex and other != actor]
    if others:
        problem = f"switches {name} and {algorithm.actors[others[0]]} are both {where}"
        raise AlgorithmError(source, problem, "give each a switch of its own")


def _peers(algorithm: Algorithm, position: int) -> list[int]:
    trace = algorithm.traces[position]
    ends = [trace.column(name) for name in ("comm_dst", "comm_src")]
    return sorted({int(p) for column in ends for p in column.tolist() if p >= 0})


def _adjacent(topology: Topology, vertex: int, ends: Sequence[int]) -> bool:
    """Whether a vertex has links to and from all others."""
    _, keys = topology.by_ends
    others = np.asarray(ends, dtype=np.int64)
    pair_keys = np.concatenate([vertex * topology.vertices + others, others * topology.vertices + vertex])
    place = np.searchsorted(keys, pair_keys)
    return bool((keys[np.minimum(place, len(keys) - 1)] == pair_keys).all())


class SwitchRanks:
    """The ranks of switches of one problem, by vertex; `first`: the first of them."""

    def __init__(self, problem: Problem, first: int) -> None:
        self.problem, self.first = problem, first
        self.rank_of: dict[int, int] = {}

    def of_call(self, algorithm: Algorithm, npus: Sequence[int], *, planned: bool) -> tuple[int, ...]:
        """Ranks of the actors of a call. Raises ScenarioError, AlgorithmError: rules that do not support them, or an
        actor that is not a switch of the topology, or needs more slots than the switch has."""
        parts = self.problem.parts | {"algorithm": algorithm.name, BY_DIMENSION: planned}
        refuse(SWITCHES, parts)
        topology, vertices = self.problem.topology, bind(algorithm, npus, self.problem.topology)
        slots = None if topology.computing is None else topology.computing.slots
        for actor, vertex in enumerate(vertices):
            if slots is not None and algorithm.slots_of(actor) > slots:
                problem = f"switch {algorithm.actors[actor]} holds {algorithm.slots_of(actor)} chunks at once"
                problem += f", and {topology.vertex_name(vertex)} has {slots} slots"
                remedy = f"take a builder with slots: {slots}, or fewer chunks"
                raise AlgorithmError(place_of(algorithm), problem, remedy)
        return tuple(self.rank_of.setdefault(vertex, self.first + len(self.rank_of)) for vertex in vertices)

    def extend(self, plan: Plan, programs: RankPrograms) -> Plan:
        """The plan with the workloads of the switches."""
        calls: dict[int, list[int]] = defaultdict(list)
        for index, call in enumerate(plan.calls):
            for rank in call.switches:
                calls[rank].append(index)
        traces, bound = [], []
        for rank in self.rank_of.values():
            instances = [plan.instance_at(index) for index in calls[rank]]
            traces.append(_trace([plan.instances[number].type for number in instances]))
            bound.append(_bound(traces[-1], instances, programs))
        workload = Programs.joined(bound)
        name = ", ".join(map(self.problem.topology.vertex_name, self.rank_of))
        job = Job(
            name=f"switches {name}",
            workload=Workload(traces=tuple(traces)),
            placement=tuple(self.rank_of),
            algorithms=AlgorithmTable({}),
            background=self.problem.background,
        )
        return replace(
            plan,
            problem=replace(self.problem, jobs=(*self.problem.jobs, job)),
            npu_of=(*plan.npu_of, *self.rank_of),
            job_of=(*plan.job_of, *[len(self.problem.jobs)] * len(self.rank_of)),
            first_rank=(*plan.first_rank, self.first),
            workload=Programs.joined([plan.workload, workload]),
            p2p=(*plan.p2p, Matchings().of_communicator(None, workload, "")),
            start_delay=(*plan.start_delay, *[0] * len(self.rank_of)),
        )


def _trace(types: Sequence[str]) -> ExecutionTrace:
    """A trace of collectives that do not depend on each other."""
    n = len(types)
    none = Csr(np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.uint64))
    return ExecutionTrace.from_columns(
        node_id=np.arange(n, dtype=np.uint64),
        type=np.full(n, NodeType.COMM_COLL, dtype=np.int64),
        names=tuple(types),
        data_deps=none,
        ctrl_deps=none,
    )


def _bound(trace: ExecutionTrace, instances: Sequence[int], programs: RankPrograms) -> Programs:
    n, nothing = len(trace), np.zeros(len(trace), dtype=np.int64)
    table = Program.of_traces([trace])
    peer, slot = np.full(n, -1, dtype=np.int32), np.full(n, NO_SLOT, dtype=np.int8)
    program = programs.bound("", table, nothing, nothing, peer, nothing, slot, np.arange(n, dtype=np.int32))
    return Programs(program, instances=Repeated([np.array(instances, dtype=np.int32)], np.zeros(1, dtype=np.int64)))
