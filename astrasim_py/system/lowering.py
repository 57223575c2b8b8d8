"""Lowering: from a Problem to its Plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.system import msccl_connections
from astrasim_py.system.instances import Instances
from astrasim_py.system.matching import Matchings
from astrasim_py.system.plan import (
    RECV,
    SEND,
    Chunk,
    CollectiveCall,
    Instance,
    Matching,
    MscclConnections,
    Phase,
    Plan,
    RankProgram,
)
from astrasim_py.system.planner_api import CollectiveRequest, PlannedPhase
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.rank_programs import RankPrograms
from astrasim_py.system.rotated import RotatedPrograms, bytes_tell_nothing
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import lower_bound_ps

#: Links in a table of routes; where it would have more, routes are computed when they are asked for.
MAX_ROUTE_LINKS = 2**26
#: Pairs of NPUs that are gone through at once.
_PAIRS_AT_ONCE = 2**20


class Lowering:
    """Working state of `make_plan`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.semantics = problem.semantics
        self.programs = RankPrograms(problem)
        self.matchings = Matchings()
        self.by_bytes = problem.semantics.message_match == "bytes"
        #: By rank, how many collectives it is in, and one more if its workload has messages; None: not known.
        self.busy: np.ndarray | None = None
        self.calls: list[CollectiveCall] = []
        self.connections: dict[tuple, MscclConnections] = {}
        self.known_calls: dict[tuple, CollectiveCall] = {}
        self.known_phases: dict[tuple, tuple[tuple[CollectiveCall, ...], dict[int, int]]] = {}
        self.bounds: dict[tuple, int] = {}
        self.placed: dict[tuple[int, int], tuple[int, ...]] = {}
        self.keep: list[object] = []  # keeps objects alive whose id() is a key

    # -- calls ---------------------------------------------------------------------------------------------

    def collective_call(
        self, job: Job, first: int, algorithm: Algorithm, local: tuple[int, ...], size: int, planned: bool
    ) -> CollectiveCall:
        """One algorithm for `size` bytes among ranks of a job (`local`, the job's own numbers)."""
        speeds = tuple(Fraction(job.compute_speed.get(r, 1)) for r in local) if job.compute_speed else ()
        key = (id(algorithm), local, first, size, planned)
        if key in self.known_calls:
            return self.known_calls[key]
        msccl = self.problem.network.msccl
        by_bytes = self.by_bytes and not planned
        members = _later(local, first)
        rotated = msccl is None and (not by_bytes or self.alone(members))
        programs = self.programs.of_algorithm(algorithm, size, speeds, planned, rotated=rotated)
        if by_bytes and isinstance(programs, RotatedPrograms):
            if bytes_tell_nothing(programs):
                by_bytes = False
            else:
                programs = self.programs.of_algorithm(algorithm, size, speeds, planned, rotated=False)
        # How a step is cut into messages depends on the size, and with it which messages there are.
        most = msccl.max_count_for(algorithm, size) if msccl else 0
        if by_bytes:
            matching = self.matchings.by_bytes(programs, members)
        else:
            place = algorithm.source or algorithm.name
            matching = self.matchings.of_communicator(("algorithm", id(algorithm), most), programs, place)
        connections = None
        if msccl is not None:
            if (id(algorithm), most) not in self.connections:
                self.connections[id(algorithm), most] = msccl_connections.connections_of(algorithm, programs, msccl)
            connections = self.connections[id(algorithm), most]
        self.keep.append(algorithm)
        made = CollectiveCall(
            members=members, algorithm=algorithm, programs=programs, matching=matching, connections=connections
        )
        self.known_calls[key] = made
        return made

    def alone(self, members: Sequence[int]) -> bool:
        """Whether nothing else sends messages among some ranks, so that matching by bytes has no more to match."""
        return self.busy is not None and bool((self.busy[np.asarray(members, dtype=np.int64)] == 1).all())

    def phase(
        self, job: Job, first: int, phase: PlannedPhase, request: CollectiveRequest
    ) -> tuple[tuple[CollectiveCall, ...], dict[int, int]]:
        """Slices of a planner's phase, and the slice of each rank."""
        key = (id(phase), first, request.members)
        if key in self.known_phases:
            return self.known_phases[key]
        calls, call_of = [], {}
        for local, algorithm in phase.calls:
            if algorithm.ranks != len(local):
                raise AlgorithmError(
                    algorithm.source or algorithm.name,
                    f"is made for {algorithm.ranks} ranks, and a phase of {request.type} runs it on {len(local)}",
                    "give each slice an algorithm for its ranks",
                )
            for rank in local:
                if call_of.setdefault(first + rank, len(calls)) != len(calls):
                    raise _ill_planned(request, f"rank {rank} is in two slices of one phase")
            if len(set(local)) != len(local):
                raise _ill_planned(request, "a rank is twice in one slice")
            calls.append(self.collective_call(job, first, algorithm, tuple(local), phase.size, planned=True))
        if call_of.keys() != {first + rank for rank in request.members}:
            raise _ill_planned(request, "a phase does not have each member of the group in one slice")
        if not 0 <= phase.queue < len(job.planner.capacity):
            raise _ill_planned(request, f"a phase is in queue {phase.queue} of {len(job.planner.capacity)}")
        self.keep.append(phase)
        self.known_phases[key] = (tuple(calls), call_of)
        return self.known_phases[key]

    # -- instances ------------------------------------------------------------------------------------------

    def instance(self, index: int, number: int, job: Job, first: int, entry: dict) -> Instance:
        """One collective request, its members given as ranks of the job."""
        local = tuple(entry["members"])
        request = entry.pop("request")
        place = entry.pop("place")
        begin = len(self.calls)
        whole, chunks = None, ()
        planned = job.planner.plan(request) if job.planner is not None else None
        algorithms: tuple[Algorithm, ...]
        if planned is None or isinstance(planned, Algorithm):
            whole = self.whole(job, first, entry, place, local, planned)
            self.calls.append(whole)
            algorithms = (whole.algorithm,) if whole.algorithm is not None else ()
        else:
            made = []
            seen: dict[int, Algorithm] = {}
            for chunk in planned:
                phases = []
                for phase in chunk.phases:
                    calls, call_of = self.phase(job, first, phase, request)
                    phases.append(
                        Phase(
                            queue=phase.queue,
                            priority=phase.priority,
                            first=len(self.calls),
                            calls=calls,
                            call_of=call_of,
                        )
                    )
                    self.calls += calls
                    seen |= {id(part.algorithm): part.algorithm for part in calls}
                if chunk.turns and len(chunk.turns) != len(phases):
                    raise _ill_planned(request, f"a stream has {len(chunk.turns)} turns and {len(phases)} phases")
                made.append(Chunk(priority=chunk.priority, phases=tuple(phases), turns=chunk.turns))
            chunks, algorithms = tuple(made), tuple(seen.values())
        return Instance(
            index=index,
            job=number,
            group=entry["group"],
            type=entry["type"],
            size=entry["size"],
            root=entry["root"],
            members=_later(local, first),
            bound=self.bound(entry, algorithms, self.npus(job, local), planned=whole is None),
            first=begin,
            whole=whole,
            chunks=chunks,
            algorithms=algorithms,
        )

    def whole(
        self, job: Job, first: int, entry: dict, place: str, local: tuple[int, ...], algorithm: Algorithm | None
    ) -> CollectiveCall:
        """The one slice of a collective that no planner cuts; no algorithm: the job's table selects it."""
        n = len(local)
        if n == 1:
            return CollectiveCall(members=(first + local[0],), algorithm=None, programs=(), matching=None)
        if algorithm is None:
            algorithm = job.algorithms.select(
                entry["type"],
                entry["size"],
                n,
                entry["group"],
                root=entry["root"],
                node=entry["node"],
                npus=self.npus(job, local),
            )
        if algorithm.ranks != n:
            raise AlgorithmError(
                algorithm.source or algorithm.name,
                f"is made for {algorithm.ranks} ranks, and {place} calls {entry['type']} on {n}",
                "inject one made for that many",
            )
        if algorithm.root is not None and algorithm.root != entry["root"]:
            raise AlgorithmError(
                algorithm.source or algorithm.name,
                f"has root {algorithm.root}, and {place} calls with root {entry['root']}",
                "inject one with that root",
            )
        return self.collective_call(job, first, algorithm, local, entry["size"], planned=False)

    def npus(self, job: Job, local: tuple[int, ...]) -> tuple[int, ...]:
        """NPUs of ranks of a job."""
        key = (id(job), id(local))
        if key not in self.placed:
            whole = len(local) == job.ranks and local == tuple(range(job.ranks))
            self.placed[key] = job.placement if whole else tuple(job.placement[r] for r in local)
            self.keep.append(local)
        return self.placed[key]

    def bound(self, entry: dict, algorithms: Sequence[Algorithm], npus: tuple[int, ...], *, planned: bool) -> int:
        """Lower bound of a collective call, ps; -1 where none applies."""
        if not self.problem.bounds_hold:
            return -1
        if entry["type"] == CUSTOM:
            return -1
        if not algorithms:
            return 0
        # With a contract of its own it was not held to what the bound is made for.
        # Absolute sizes may be those of another call, but for those of a planner, which gives them for this one.
        if any(not (a.scales or planned) or a.verdict is not True or a.contract is not None for a in algorithms):
            return -1
        key = (entry["type"], entry["size"], entry["root"], npus)
        if key not in self.bounds:
            self.bounds[key] = lower_bound_ps(entry["type"], entry["size"], self.problem.topology, npus, entry["root"])
        return self.bounds[key]


def _ill_planned(request: CollectiveRequest, problem: str) -> AlgorithmError:
    return AlgorithmError(f"planner of {request.type} on group {request.group}", problem, "correct the planner")


def _later(local: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Ranks of a job as ranks of all jobs."""
    return tuple(first + rank for rank in local) if first else local


def _busy(workload: Sequence[RankProgram], calls: Sequence[tuple[int, Sequence[int]]]) -> np.ndarray:
    """int64[ranks]: collectives (first rank of the job, members) that a rank is in, and 1 if its workload sends."""
    distinct = {id(program): program for program in workload}
    speaks = {each: int((program.peer >= 0).any()) for each, program in distinct.items()}
    busy = np.array([speaks[id(program)] for program in workload], dtype=np.int64)
    for first, members in calls:
        busy[np.asarray(members, dtype=np.int64) + first] += 1
    return busy


def check_placement(problem: Problem) -> None:
    """Raise unless every rank has an NPU of its own."""
    used = [npu for job in problem.jobs for npu in job.placement]
    fits = 0 <= min(used, default=0) <= max(used, default=0) < problem.topology.npus and len(set(used)) == len(used)
    if not fits or any(len(job.placement) != job.ranks for job in problem.jobs):
        _refuse_placement(problem)


def _refuse_placement(problem: Problem) -> None:
    """Raise, naming the first rank that is not placed well."""
    used: dict[int, tuple[int, int]] = {}
    for j, job in enumerate(problem.jobs):
        if len(job.placement) != job.ranks:
            raise ScenarioError(
                f"job {job.name}",
                f"places {len(job.placement)} ranks, and its workload has {job.ranks}",
                "give every rank one NPU",
            )
        for rank, npu in enumerate(job.placement):
            if not 0 <= npu < problem.topology.npus:
                raise ScenarioError(
                    f"job {job.name}",
                    f"rank {rank} is placed on NPU {npu}, and {problem.topology.name} has {problem.topology.npus}",
                    f"write 0..{problem.topology.npus - 1}",
                )
            if npu in used:
                raise ScenarioError(
                    f"job {job.name}",
                    f"rank {rank} and rank {used[npu][1]} of job {problem.jobs[used[npu][0]].name} share NPU {npu}",
                    "give every rank an NPU of its own",
                )
            used[npu] = (j, rank)


class Traffic:
    """Which pairs of NPUs exchange messages, and of which sizes."""

    def __init__(self, npu_of: Sequence[int], npus: int, rendezvous: int) -> None:
        self.placed = np.array(npu_of, dtype=np.int64)
        self.npus = npus
        self.rendezvous = rendezvous
        self.pairs: list[np.ndarray] = []
        self.rotated: list[tuple[np.ndarray, Rotation, np.ndarray]] = []
        self.sizes: list[np.ndarray] = []
        self.seen: set[tuple] = set()
        self.spans: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.keep: list[object] = []  # keeps objects alive whose id() is a key

    def span(self, program: RankProgram) -> tuple[np.ndarray, np.ndarray]:
        """Distinct peers to which a program sends anything at all, and distinct bytes."""
        found = self.spans.get(id(program))
        if found is None:
            kind = program.structure.kind
            sends = kind == SEND
            # Under the rendezvous a receiver asks for its message.
            speaking = sends | (kind == RECV) if self.rendezvous else sends
            found = self.spans[id(program)] = (_distinct(program.peer[speaking]), _distinct(program.nbytes[sends]))
            self.keep.append(program)
        return found

    def add(self, programs: Sequence[RankProgram], members: Sequence[int]) -> None:
        """Count the messages of programs among `members`."""
        where = self.placed[np.asarray(members, dtype=np.int64)]
        if not any(len(self.span(program)[0]) for program in {id(each): each for each in programs}.values()):
            return
        for position, program in enumerate(programs):
            peers, sizes = self.span(program)
            if len(peers):
                self.pairs.append(where[position] * self.npus + where[peers])
                self.sizes.append(sizes)

    def add_slice(self, part: CollectiveCall) -> None:
        """Count those of a slice, each only once."""
        if id(part) in self.seen:
            return
        self.seen.add(id(part))
        if isinstance(part.programs, RotatedPrograms):
            deltas, _ = self.span(part.base)
            key = ("sizes", id(part.programs))
            if key not in self.seen:
                self.seen.add(key)
                self.sizes.append(part.programs.sizes())
            where = self.placed[np.asarray(part.members, dtype=np.int64)]
            self.rotated.append((where, part.rotation, deltas.astype(np.int64)))
        else:
            self.add(part.programs, part.members)

    def all_pairs(self) -> Iterator[np.ndarray]:
        """Pairs of NPUs, some of them several times."""
        yield from self.pairs
        for where, rotation, deltas in self.rotated:
            position = np.arange(len(where))
            step = max(_PAIRS_AT_ONCE // max(len(where), 1), 1)
            for start in range(0, len(deltas), step):
                peer = rotation.shift(position[:, None], deltas[None, start : start + step])
                yield (where[:, None] * self.npus + where[peer]).ravel()

    def too_many(self, topology: Topology) -> bool:
        """Whether a table of routes would be too large, and can be done without."""
        most = sum(map(len, self.pairs)) + sum(len(where) * len(deltas) for where, _, deltas in self.rotated)
        if most * max(topology.npus, 1) <= MAX_ROUTE_LINKS:  # no route visits an NPU twice
            return False
        total = 0
        for pairs in self.all_pairs():
            lengths = topology.route_lengths(pairs // self.npus, pairs % self.npus)
            if lengths is None:
                return False
            total += int(lengths.sum())
            if total > MAX_ROUTE_LINKS:
                return True
        return False

    def routes(self, topology: Topology) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Pairs of NPUs, ascending, and their routes as CSR; nothing where the table would be too large."""
        if self.too_many(topology):
            return np.zeros(0, np.int64), np.zeros(1, np.int64), None
        pairs = _distinct(np.concatenate([np.zeros(0, np.int64), *self.all_pairs()]))
        ptr, links = topology.routes(pairs // self.npus, pairs % self.npus)
        return pairs, ptr, links

    def all_sizes(self) -> tuple[int, ...]:
        """Every size of a message, ascending."""
        sizes = [*self.sizes, np.array([self.rendezvous] * bool(self.rendezvous), dtype=np.int64)]
        return tuple(np.unique(np.concatenate(sizes)).tolist())


def _distinct(values: np.ndarray) -> np.ndarray:
    """Distinct values, ascending: by sorting, where `numpy.unique` hashes, which is slow for many."""
    values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def make_plan(problem: Problem) -> Plan:
    """Lower a problem for the engines, checking everything that can be checked without running.

    Raises
    ------
    TraceError
        Cycles, dangling dependencies, missing attributes, collectives that differ between members of a group.
    AlgorithmError
        No algorithm for a collective, one for another number of ranks, sends without receives.
    ScenarioError
        A placement that does not fit.
    """
    check_placement(problem)
    work = Lowering(problem)
    calls = Instances(problem.semantics)
    npu_of: list[int] = []
    job_of: list[int] = []
    firsts: list[int] = []
    delays: list[int] = []
    workload: list[RankProgram] = []
    of_job: list[list[RankProgram]] = []
    described: list[tuple[int, Job, int, dict]] = []
    for j, job in enumerate(problem.jobs):
        first = len(npu_of)
        firsts.append(first)
        npu_of += job.placement
        job_of += [j] * job.ranks
        delays += [job.start_delay_ps.get(r, 0) for r in range(job.ranks)] if job.start_delay_ps else [0] * job.ranks
        kind_of, call, entries = calls.of_job(job)
        base = len(described)
        described += [(j, job, first, entry) for entry in entries]
        call = [np.where(each >= 0, each + base, -1).astype(np.int32) for each in call]
        programs = work.programs.of_job(job, kind_of, call)
        workload += programs
        of_job.append(programs)
    # Channels by bytes are numbered over everything that shares the communicator, workloads first.
    p2p: list[Matching | None] = [
        work.matchings.by_bytes(programs, range(firsts[j], firsts[j] + len(programs)))
        if work.by_bytes
        else work.matchings.of_communicator(("p2p", j), programs, "")
        for j, programs in enumerate(of_job)
    ]
    if work.by_bytes:
        work.busy = _busy(workload, [(first, entry["members"]) for _, _, first, entry in described])
    instances = tuple(work.instance(index, *entry) for index, entry in enumerate(described))
    work.matchings.number()
    traffic = Traffic(npu_of, problem.topology.npus, problem.semantics.rendezvous_bytes)
    for j, programs in enumerate(of_job):
        traffic.add(programs, range(firsts[j], firsts[j] + len(programs)))
    for part in work.calls:
        traffic.add_slice(part)
    pairs, ptr, links = traffic.routes(problem.topology)
    return Plan(
        problem=problem,
        npu_of=tuple(npu_of),
        job_of=tuple(job_of),
        first_rank=tuple(firsts),
        workload=tuple(workload),
        p2p=tuple(p2p),
        instances=instances,
        calls=tuple(work.calls),
        start_delay=tuple(delays),
        route_pairs=pairs,
        route_ptr=ptr,
        route_links=links,
        sizes=traffic.all_sizes(),
    )
