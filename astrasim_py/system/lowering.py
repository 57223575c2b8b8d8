"""Lowering: from a Problem to its Plan."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.by_need import load
from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.core.rows import pointers
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import Way
from astrasim_py.system.bound import MAX_PATH_NODES, at_best
from astrasim_py.system.compatible import BY_DIMENSION, CALL_BOUND, PROFILE, exclusions, refuse
from astrasim_py.system.durations import node_place
from astrasim_py.system.instances import JobInstances
from astrasim_py.system.matching import Matchings, sizes_are_told_by_tags
from astrasim_py.system.plan import Chunk, CollectiveCall, Instance, Instances, Phase, Plan
from astrasim_py.system.problem import CollectiveRequest, PlannedChunk, PlannedPhase, Problem
from astrasim_py.system.programs import Connections, Programs, TileGates
from astrasim_py.system.rank_programs import RankPrograms
from astrasim_py.system.repeated import Repeated
from astrasim_py.system.routes import Traffic
from astrasim_py.verification.bounds import CallBounds, may_reduce

if TYPE_CHECKING:
    from astrasim_py.dialects.library.lower_costs import LibraryCosts
    from astrasim_py.dialects.switches.lower import SwitchRanks
    from astrasim_py.verification.routed_bounds import RoutedRates

#: ``choose(problem, ways, size, npus) -> the fastest way`` for a full buffer of `size` bytes on NPUs in their order.
Chooser = Callable[[Problem, Sequence[Way], int, tuple[int, ...]], Way]


def make_plan(problem: Problem, *, folded: bool = False, choose: Chooser | None = None, bounds: bool = True) -> Plan:
    """Lower a problem for the engines, checking everything that can be checked without running.

    `folded`: for a folded run, which needs no table of routes: routes are computed. `choose`: chooses between several
    ways to carry out a call, which a profile can have. Without `bounds` the lower bounds of collectives are left out,
    which take longer than all else. Raises TraceError: cycles, dangling dependencies, missing attributes, collectives
    that differ between members of a group. Raises AlgorithmError: no algorithm for a collective, one for another number
    of ranks, sends without receives. Raises ScenarioError: a placement that does not fit.
    """
    check_placement(problem)
    for exclusion in exclusions(problem.parts):
        raise ScenarioError(exclusion.place, exclusion.problem, exclusion.remedy)
    work = _Lowering(problem, choose, bounds)
    of_job = [JobInstances(job, problem.semantics) for job in problem.jobs]
    first_instance = pointers([len(part.like) for part in of_job]).tolist()
    programs_of = [
        work.programs.of_job(job, part, first)
        for job, part, first in zip(problem.jobs, of_job, first_instance, strict=False)
    ]
    workload = Programs.joined(programs_of)
    ranks = [range(first, first + job.ranks) for first, job in zip(work.first_rank, problem.jobs, strict=True)]
    # Match keys by bytes are numbered over all programs in the communicator, workloads first. Of a folded workload with
    # roles a part is run, which has a plan of its own; only a bound by its longest path needs them.
    in_parts = folded and any(job.workload.roles for job in problem.jobs)
    in_parts = in_parts and sum(map(len, workload.shared)) > MAX_PATH_NODES
    p2p = tuple(
        work.matchings.by_bytes(programs, ranks[number])
        if work.by_bytes
        else work.matchings.of_communicator(("p2p", number), programs, "")
        for number, programs in enumerate(() if in_parts else programs_of)
    )
    if work.by_bytes:
        work.communicators_of_rank = _communicators(workload, of_job, work.first_rank)
    for number, part in enumerate(of_job):
        work.add_instances(number, part, folded=folded)
    instances, calls = Instances(work.values, np.concatenate(work.which)), Repeated.of(work.calls)
    work.matchings.number()
    npu_of = tuple(chain.from_iterable(job.placement for job in problem.jobs))
    traffic = Traffic(
        (*npu_of, *(() if work.switches is None else work.switches.rank_of)),
        problem.topology,
        problem.semantics.rendezvous_bytes,
        problem.network.qps,
    )
    for programs, members in zip(programs_of, ranks, strict=True):
        traffic.add(programs, members)
    for call in dict.fromkeys(calls.values):
        traffic.add(call.programs, call.members)
    pairs, ptr, links = (np.zeros(0, np.int64), np.zeros(1, np.int64), None) if folded else traffic.routes()
    sizes = traffic.sizes()
    if problem.network.model == FLUID and not folded:
        from astrasim_py.dialects.fluid.rules import check_fluid

        check_fluid(problem, sizes, links)
    plan = Plan(
        problem=problem,
        npu_ranks=len(npu_of),
        npu_of=npu_of,
        job_of=tuple(np.repeat(np.arange(len(ranks)), [len(part) for part in ranks]).tolist()),
        first_rank=work.first_rank,
        workload=workload,
        p2p=p2p,
        instances=instances,
        calls=calls,
        start_delay=tuple(job.start_delay_ps.get(rank, 0) for job in problem.jobs for rank in range(job.ranks)),
        route_pairs=pairs,
        route_ptr=ptr,
        route_links=links,
        states=traffic.states(pairs),
        sizes=sizes,
        tiles=_tiles(problem, work.first_rank, workload, instances),
        folded=folded,
    )
    return plan if work.switches is None else work.switches.extend(plan, work.programs)


class _Lowering:
    """Builder of the instances and collective calls of a plan."""

    def __init__(self, problem: Problem, choose: Chooser | None, bounds: bool) -> None:
        self.problem, self.choose = problem, choose
        self.bounds = bounds and not any(exclusions(problem.parts, (CALL_BOUND,)))
        self.semantics = problem.semantics
        ranks = [job.ranks for job in problem.jobs]
        self.first_rank = tuple(sum(ranks[:number]) for number in range(len(ranks)))
        self.programs = RankPrograms(problem)
        #: Ranks of switches, once one takes part.
        self.switches: SwitchRanks | None = None
        self.matchings = Matchings()
        self.by_bytes = problem.semantics.message_match == "bytes"
        #: int64[ranks]: number of a rank's communicators that match by bytes; None: not known.
        self.communicators_of_rank: np.ndarray | None = None
        self.calls: list[CollectiveCall] = []
        #: Different instances, and by job which of them each instance is.
        self.values: list[Instance] = []
        self.which: list[np.ndarray] = []
        self.call, self.lower_bound = cache(self._call), cache(self._lower_bound)
        self.routed_rates = cache(self._routed_rates)
        self.charged, self.by_blocks = cache(self._charged), cache(self.programs.by_blocks)
        #: By shape the first group of it.
        self._alike: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        self._phases: dict[tuple, tuple[tuple[CollectiveCall, ...], Mapping[int, int]]] = {}
        self._connections: dict[tuple[Algorithm, int], Connections] = {}

    def add_instances(self, number: int, found: JobInstances, *, folded: bool) -> None:
        """Add the instances of a job; without a planner those of equal group, type, size and root share their calls.

        In a `folded` workload with roles, which is not run as it is, they do so with a planner, too.
        """
        job = self.problem.jobs[number]
        planned = job.planner is not None and not (folded and job.workload.roles)
        distinct, which = np.unique(np.arange(len(found.like)) if planned else found.like, return_inverse=True)
        first = len(self.calls)
        self.which.append(which + len(self.values))
        self.values += [self.instance(number, found.request(at), found.place(at)) for at in distinct.tolist()]
        if not planned:
            self.calls[first:] = map(self.calls[first:].__getitem__, which.tolist())

    def instance(self, number: int, request: CollectiveRequest, place: str) -> Instance:
        """Make an instance, a collective call of a group of a job, and add its calls; `place`: of the first node."""
        job, first, begin = self.problem.jobs[number], self.first_rank[number], len(self.calls)
        npus = job.placement
        if len(request.members) != job.ranks or request.members != tuple(range(job.ranks)):
            npus = tuple(npus[rank] for rank in request.members)
        planned = job.planner.plan(request) if job.planner is not None else None
        only_call, chunks = None, tuple[Chunk, ...]()
        if planned is None or isinstance(planned, Algorithm):
            only_call = self.only_call(number, request, place, npus, planned)
            self.calls.append(only_call)
        else:
            if self.library is not None:
                refuse(PROFILE, {BY_DIMENSION: True})
            chunks = tuple(self.chunk(number, phases, request) for phases in planned)
        algorithms = tuple(dict.fromkeys(c.algorithm for c in self.calls[begin:] if c.algorithm is not None))
        bound, bound_by = self.bound(request, algorithms, npus, planned=only_call is None)
        return Instance(
            job=number,
            group=request.group,
            type=request.type,
            size=request.full,
            root=request.root,
            members=_in_all_jobs(request.members, first),
            bound=bound,
            bound_by=bound_by,
            only_call=only_call,
            chunks=chunks,
            algorithms=algorithms,
        )

    def only_call(
        self, number: int, request: CollectiveRequest, place: str, npus: tuple[int, ...], algorithm: Algorithm | None
    ) -> CollectiveCall:
        """Add the call of an unplanned collective; without `algorithm`, the job's table selects it."""
        n = len(request.members)
        if n == 1:
            return CollectiveCall(_in_all_jobs(request.members, self.first_rank[number]), None, Programs.of(()), None)
        if algorithm is None:
            algorithm = self.problem.jobs[number].algorithms.select(
                request.type, request.full, n, request.group, root=request.root, node=request.node, npus=npus
            )
        source = algorithm.source or algorithm.name
        if algorithm.ranks != n:
            wrong = f"is made for {algorithm.ranks} ranks, and {place} calls {request.type} on {n}"
            raise AlgorithmError(source, wrong, "inject one made for that many")
        if algorithm.root not in (None, request.root):
            wrong = f"has root {algorithm.root}, and {place} calls with root {request.root}"
            raise AlgorithmError(source, wrong, "inject one with that root")
        if self.library is not None and not algorithm.actors:
            return self.library_call(self.library, number, algorithm, request, npus)
        return self.call(number, algorithm, request.members, request.full, False)

    @cached_property
    def library(self) -> "LibraryCosts | None":
        """Costs under a profile."""
        if self.problem.network.profile is None:
            return None
        from astrasim_py.dialects.library.lower_costs import LibraryCosts

        return LibraryCosts(self.problem)

    def switch_ranks(self) -> "SwitchRanks":
        """The ranks of switches, which follow all others."""
        if self.switches is None:
            from astrasim_py.dialects.switches.lower import SwitchRanks

            self.switches = SwitchRanks(self.problem, sum(job.ranks for job in self.problem.jobs))
        return self.switches

    def library_call(
        self,
        library: "LibraryCosts",
        number: int,
        algorithm: Algorithm,
        request: CollectiveRequest,
        npus: tuple[int, ...],
    ) -> CollectiveCall:
        """Make the call of a collective under a profile, in the way that is chosen for it."""
        members, one_node = _in_all_jobs(request.members, self.first_rank[number]), self.problem.topology.one_node(npus)
        costs = library.by_blocks(algorithm, one_node=one_node)
        if costs is not None:
            return CollectiveCall(members, algorithm, self.by_blocks(algorithm, request.full, costs), None)
        ways = library.ways(algorithm, request.full, npus)
        way = ways[0]
        if len(ways) > 1:
            if self.choose is None:
                raise ScenarioError("network.protocol", "fastest is chosen by simulation", "plan it with plan_for")
            way = self.choose(self.problem, ways, request.full, npus)
        speeds = self.speeds(number, request.members)
        programs, connections = self.charged(library, way.algorithm, way.protocol, request.full, speeds, one_node)
        place, key = algorithm.source or algorithm.name, (way.algorithm, int(programs.different.bounds[-1]))
        matching = self.matchings.of_communicator(key, programs, place)
        return CollectiveCall(members, way.algorithm, programs, matching, connections)

    def _charged(
        self,
        library: "LibraryCosts",
        algorithm: Algorithm,
        protocol: str,
        size: int,
        speeds: tuple[Fraction, ...],
        one_node: bool,
    ) -> tuple[Programs, Connections]:
        """Programs and connections of a call under a profile."""
        programs = self.programs.of_algorithm(algorithm, size, speeds, False, rotated=True)
        costs = library.of_call(algorithm, protocol, programs, size, one_node=one_node)
        return library.charged(algorithm, programs, costs, self.programs.structure)

    def speeds(self, number: int, local: tuple[int, ...]) -> tuple[Fraction, ...]:
        """Speeds of ranks of a job; none if all are 1."""
        job = self.problem.jobs[number]
        return tuple(Fraction(job.compute_speed.get(r, 1)) for r in local) if job.compute_speed else ()

    def chunk(self, number: int, planned: PlannedChunk, request: CollectiveRequest) -> Chunk:
        """Add one chunk of a planned collective and its calls."""
        phases = []
        for phase in planned.phases:
            key = phase, number, request.group
            if key not in self._phases:
                self._phases[key] = self.phase(number, phase, request)
            calls, call_of = self._phases[key]
            phases.append(Phase(phase.queue, phase.priority, len(self.calls), calls, call_of))
            self.calls += calls
        if planned.turns and len(planned.turns) != len(phases):
            raise _ill_planned(request, f"a chunk has {len(planned.turns)} turns and {len(phases)} phases")
        return Chunk(priority=planned.priority, phases=tuple(phases), turns=planned.turns)

    def phase(
        self, number: int, phase: PlannedPhase, request: CollectiveRequest
    ) -> tuple[tuple[CollectiveCall, ...], Mapping[int, int]]:
        """Make the calls of a planner's phase, and the map from rank to call."""
        first, planner = self.first_rank[number], self.problem.jobs[number].planner
        queues = 0 if planner is None else len(planner.capacity)
        calls: list[CollectiveCall] = []
        call_of: dict[int, int] = {}
        for local, algorithm in phase.calls:
            if algorithm.ranks != len(local):
                wrong = f"is made for {algorithm.ranks} ranks, and a phase of {request.type} runs it on {len(local)}"
                source = algorithm.source or algorithm.name
                raise AlgorithmError(source, wrong, "give each call an algorithm for its ranks")
            for rank in local:
                if call_of.setdefault(first + rank, len(calls)) != len(calls):
                    raise _ill_planned(request, f"rank {rank} is in two calls of one phase")
            if len(set(local)) != len(local):
                raise _ill_planned(request, "a rank is twice in one call")
            calls.append(self.call(number, algorithm, tuple(local), phase.size, True))
        if call_of.keys() != {first + rank for rank in request.members}:
            raise _ill_planned(request, "a phase does not have each member of the group in one call")
        if not 0 <= phase.queue < queues:
            raise _ill_planned(request, f"a phase is in queue {phase.queue} of {queues}")
        return tuple(calls), call_of

    def _call(
        self, number: int, algorithm: Algorithm, local: tuple[int, ...], size: int, planned: bool
    ) -> CollectiveCall:
        """Make a call: one algorithm for `size` bytes among ranks of a job (`local`: numbers in the job)."""
        msccl, speeds = self.problem.network.msccl, self.speeds(number, local)
        placement = self.problem.jobs[number].placement
        members = _in_all_jobs(local, self.first_rank[number])
        if algorithm.actors:
            members += self.switch_ranks().of_call(algorithm, [placement[rank] for rank in local], planned=planned)
        by_bytes = self.by_bytes and not planned
        rotated = msccl is None and (not by_bytes or self.alone(members))
        programs = self.programs.of_algorithm(algorithm, size, speeds, planned, rotated=rotated)
        if by_bytes and programs.rotation is not None:
            by_bytes = not sizes_are_told_by_tags(programs)
            if by_bytes:
                programs = self.programs.of_algorithm(algorithm, size, speeds, planned, rotated=False)
        # The cut of steps into messages, and so the set of messages, depends on the size.
        most = msccl.max_count_for(algorithm, size) if msccl else 0
        if by_bytes:
            matching = self.matchings.by_bytes(programs, members)
        else:
            place = algorithm.source or algorithm.name
            matching = self.matchings.of_communicator((algorithm, most), programs, place, algorithm.position_name)
        connections = None
        if msccl is not None:
            from astrasim_py.dialects.library.lower_connections import connections_of

            if (algorithm, most) not in self._connections:
                self._connections[algorithm, most] = connections_of(algorithm, programs, msccl)
            connections = self._connections[algorithm, most]
        return CollectiveCall(members, algorithm, programs, matching, connections)

    def alone(self, members: Sequence[int]) -> bool:
        """Whether each of some ranks is in only one communicator that matches by bytes."""
        counts = self.communicators_of_rank
        return counts is not None and bool((counts[np.asarray(members, dtype=np.int64)] == 1).all())

    def bound(
        self, request: CollectiveRequest, algorithms: Sequence[Algorithm], npus: tuple[int, ...], *, planned: bool
    ) -> tuple[int, str]:
        """Lower bound of a collective call, ps, and what proves it; -1 where none applies, or none is wanted."""
        if not self.bounds:
            return -1, ""
        if request.type == CUSTOM:
            if len(algorithms) != 1 or algorithms[0].contract is None:
                return -1, ""
            contract_bound = load("astrasim_py.verification.contract_bounds:contract_bound_ps")
            return int(contract_bound(algorithms[0], request.full, self.call_bounds.topology, npus)), "its contract"
        if not algorithms:
            return (0 if len(npus) < 2 else -1), ""  # a planner that lets its members do nothing
        # The bound holds for the standard contract only. Absolute sizes may belong to another call, unless a planner
        # gives them for this one.
        if any(not (a.scales or planned) or a.verdict is not True or a.contract is not None for a in algorithms):
            return -1, ""
        switches = may_reduce(self.problem.topology, algorithms)
        like = self.alike(npus)
        least, by = self.lower_bound(request.type, request.full, request.root, like, switches)
        return least, by if like == npus or "NPU" not in by else f"{by}; so named of an alike group"

    def alike(self, npus: tuple[int, ...]) -> tuple[int, ...]:
        """The first group that a renaming of alike nodes, and of alike NPUs in each of them, makes of a group."""
        if not self.nodes_alike:
            return npus
        node = self.problem.topology.dims[0].size
        nodes: dict[int, int] = {}
        places: dict[int, int] = {}
        shape = tuple(
            (nodes.setdefault(npu // node, len(nodes)), places.setdefault(npu % node, len(places))) for npu in npus
        )
        return self._alike.setdefault(shape, npus)

    @cached_property
    def nodes_alike(self) -> bool:
        """Whether all nodes of a machine are alike, and all NPUs of a node: links inside, and links outside, are."""
        topology = self.problem.topology
        if topology.shape != "dgx" or topology.failed or topology.cut or topology.events:
            return False
        kinds = np.stack([topology.in_node, topology.bandwidth_class, topology.latency_ps])
        return np.unique(kinds, axis=1).shape[1] == len(np.unique(topology.in_node)) and not topology.routing.ecmp

    def _lower_bound(self, kind: str, size: int, root: int, npus: tuple[int, ...], switches: bool) -> tuple[int, str]:
        profile, rates = self.problem.network.profile, None
        if not switches and profile is None and 1 < len(npus) < self.problem.topology.npus:
            rates = self.routed_rates(npus)
        links = None if rates is None else rates.links
        least = self.call_bounds.of(kind, size, npus, root, switches=switches, links=links)
        if rates is None:
            return least
        routed = load("astrasim_py.verification.routed_bounds:routed_bound_ps")(kind, size, rates, root)
        return least if least[0] >= routed else (routed, "links of the routes between members")

    def _routed_rates(self, npus: tuple[int, ...]) -> "RoutedRates | None":
        from astrasim_py.verification.routed_bounds import routed_rates

        return routed_rates(self.problem.topology, npus)

    @cached_property
    def call_bounds(self) -> CallBounds:
        return CallBounds(at_best(self.problem))


def _ill_planned(request: CollectiveRequest, problem: str) -> AlgorithmError:
    return AlgorithmError(f"planner of {request.type} on group {request.group}", problem, "correct the planner")


def _in_all_jobs(local: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Ranks of a job as ranks of all jobs."""
    return tuple(first + rank for rank in local) if first else local


def _tiles(
    problem: Problem, first_rank: Sequence[int], workload: Programs, instances: Instances
) -> dict[int, TileGates]:
    """The gates of the ranks that use collectives in tiles."""
    uses = [rank for rank, program in enumerate(workload.shared) if program.tiles is not None]
    if not uses:
        return {}
    from astrasim_py.dialects.tiles.lower import tile_gates

    def place(rank: int, node: int) -> str:
        job = bisect_right(first_rank, rank) - 1
        local = rank - first_rank[job]
        return node_place(problem.jobs[job].workload.traces[local], int(workload[rank].rows[node]), f"rank {local}")

    def instance_of(index: int) -> Instance:
        return instances.values[instances.which[index]]

    return tile_gates({rank: workload[rank] for rank in uses}, instance_of, place)


def _communicators(workload: Programs, found: Sequence[JobInstances], first_rank: Sequence[int]) -> np.ndarray:
    """int64[ranks]: number of collectives of each rank, plus 1 if its workload sends."""
    sends = np.array([bool((program.peer >= 0).any()) for program in workload.different], dtype=np.int64)
    count = sends[workload.which]
    for job, first in zip(found, first_rank, strict=True):
        for name, calls in job.of_group.items():
            count[np.asarray(job.groups[name], dtype=np.int64) + first] += len(calls.table)
    return count


def check_placement(problem: Problem) -> None:
    """Raise unless every rank has its own NPU."""
    npus, name = problem.topology.npus, problem.topology.name
    used: dict[int, tuple[int, int]] = {}
    for number, job in enumerate(problem.jobs):
        place = f"job {job.name}"
        if len(job.placement) != job.ranks:
            wrong = f"places {len(job.placement)} ranks, and its workload has {job.ranks}"
            raise ScenarioError(place, wrong, "give every rank one NPU")
        for rank, npu in enumerate(job.placement):
            if not 0 <= npu < npus:
                wrong = f"rank {rank} is placed on NPU {npu}, and {name} has {npus}"
                raise ScenarioError(place, wrong, f"write 0..{npus - 1}")
            if npu in used:
                owner, other = used[npu]
                wrong = f"rank {rank} and rank {other} of job {problem.jobs[owner].name} share NPU {npu}"
                raise ScenarioError(place, wrong, "give every rank an NPU of its own")
            used[npu] = number, rank
