"""The Plan: a Problem lowered once to flat integer arrays, for every engine.

A *program* is one rank's trace with bytes and durations bound, a *structure* its dependency graph, which programs of
equal shape share. An *instance* is one collective of one group. It consists of *calls*, each one algorithm among some
of its ranks: one over all members, or those of a planner's chunks, phase by phase. Sends and receives match in a
*communicator*: one per call, one per job for point-to-point (under ``message_match: bytes`` one for all of both but the
calls of chunks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.matching import Matching
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import BlockCosts, Connections, Programs, ProgramTable, RankProgram, TileGates
from astrasim_py.system.repeated import Repeated
from astrasim_py.topology.model import Topology

if TYPE_CHECKING:
    from astrasim_py.system.noise import Detours
    from astrasim_py.topology.link_states import LinkState


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCall:
    """One algorithm among some ranks: what is spliced. Equal calls of several chunks are one object.

    A *rotated* call stores one program, that of its first member. The programs of the others have the same arrays
    except `peer`, which is shifted, and `nbytes`, which may differ if chunks are of unequal size.
    """

    members: Sequence[int]  # ranks, in the order of the algorithm's
    algorithm: Algorithm | None  # None where a group of one has nothing to do
    programs: Programs  # none where a group of one has nothing to do
    matching: Matching | None
    connections: Connections | None = None  # under the MSCCL link model, or a profile

    @property
    def by_blocks(self) -> BlockCosts | None:
        """Costs of the steps of its thread blocks; None if it does not run by them."""
        steps = self.programs.blocks
        return None if steps is None else steps.costs

    @property
    def switches(self) -> tuple[int, ...]:
        """Its last members, which are switches."""
        actors = 0 if self.algorithm is None else len(self.algorithm.actors)
        return tuple(self.members[len(self.members) - actors :])

    @property
    def rotation(self) -> Rotation | None:
        """The rotation that maps the first member's program to the others; None if each has its own."""
        return self.programs.rotation

    @property
    def base(self) -> RankProgram:
        """Program of the first member."""
        return self.programs.different[0]

    @property
    def uniform_bytes(self) -> bool:
        """Whether all members of a rotated call send and receive the first one's bytes, node by node."""
        return self.programs.member_bytes is None

    @property
    def different(self) -> ProgramTable:
        """Programs that differ in more than peers and bytes: for a rotation only the first one."""
        return self.programs.different


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One phase of one chunk."""

    queue: int  # of the NPU
    priority: int
    first: int  # index of its first call; the others follow
    calls: tuple[CollectiveCall, ...]
    call_of: Mapping[int, int]  # rank → its call, from 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One chunk of a collective."""

    priority: int
    phases: tuple[Phase, ...]
    turns: tuple[int, ...]  # of its phases, empty where priority and arrival decide alone


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A collective call of a group: one call over all its members, or chunks of several.

    Calls of one group that differ in nothing share it: `Plan.instances` has them by number.
    """

    job: int
    group: str
    type: str
    size: int  # full buffer, bytes
    root: int
    members: tuple[int, ...]  # ranks, in the order of the group
    bound: int  # ps, -1 where none applies
    bound_by: str  # what proves it
    only_call: CollectiveCall | None  # None where a planner has cut it into chunks
    chunks: tuple[Chunk, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()  # that carry it out, in order of appearance

    @property
    def calls(self) -> tuple[CollectiveCall, ...]:
        """Its calls, in the order of phases."""
        if self.only_call is not None:
            return (self.only_call,)
        return tuple(call for chunk in self.chunks for phase in chunk.phases for call in phase.calls)

    @property
    def algorithm_name(self) -> str:
        names, connections = [algorithm.name for algorithm in self.algorithms], self.connections
        protocol = [connections.protocol] if connections is not None and connections.links is not None else []
        return " ".join(dict.fromkeys(["+".join(dict.fromkeys(names)), *protocol]))

    @property
    def algorithm(self) -> Algorithm | None:
        """The one algorithm over all its members; None where there is none."""
        return self.only_call.algorithm if self.only_call else None

    @property
    def connections(self) -> Connections | None:
        """Connections under the MSCCL link model, or a profile."""
        return self.only_call.connections if self.only_call else None

    @property
    def costs(self) -> Connections | BlockCosts | None:
        """Further rules for the messages of its one call: connections, or steps of thread blocks."""
        return None if self.only_call is None else self.only_call.connections or self.only_call.by_blocks


class Instances(Repeated[Instance]):
    """Instances of a plan, by number."""

    @cached_property
    def call_counts(self) -> np.ndarray:
        """int64[n]: calls of each."""
        return self.column(lambda instance: len(instance.calls))

    @cached_property
    def first(self) -> np.ndarray:
        """int64[n]: index of the first call of each."""
        return np.cumsum(self.call_counts) - self.call_counts

    def phases(self, number: int) -> tuple[Phase, ...]:
        """Phases of all chunks of an instance, in order; for an unplanned collective its one call."""
        instance = self[number]
        if instance.only_call is None:
            return tuple(phase for chunk in instance.chunks for phase in chunk.phases)
        first = int(self.first[number])
        return (Phase(queue=0, priority=0, first=first, calls=instance.calls, call_of=defaultdict(int)),)


@dataclass(frozen=True, eq=False)
class RoutedState:
    """The network between two events, and the route of each pair of a plan; none for a pair without a path."""

    links: LinkState
    pairs: np.ndarray  # int64[k]: `Plan.route_pairs`
    ptr: np.ndarray  # int64[k+1]
    path: np.ndarray  # int32

    @cached_property
    def routes(self) -> Mapping[int, tuple[int, ...]]:
        """As `Plan.routes`."""
        return by_pair(self.pairs, self.ptr, self.path)


def by_pair(pairs: np.ndarray, ptr: np.ndarray, path: np.ndarray) -> dict[int, tuple[int, ...]]:
    """The links of each pair."""
    links, ptrs = path.tolist(), ptr.tolist()
    return {pair: tuple(links[ptrs[i] : ptrs[i + 1]]) for i, pair in enumerate(pairs.tolist())}


@dataclass(frozen=True, eq=False)
class Plan:
    """The input of an engine. Ranks are numbered consecutively over all jobs."""

    problem: Problem
    npu_ranks: int  # ranks of jobs; behind them are those of switches
    npu_of: tuple[int, ...]  # rank → NPU, or switch
    job_of: tuple[int, ...]
    first_rank: tuple[int, ...]  # of each job
    workload: Programs  # by rank
    p2p: tuple[Matching, ...]  # by job: point-to-point of the workload
    instances: Instances
    calls: Repeated[CollectiveCall]  # ascending (instance, chunk, phase, call), the order of dispatch
    start_delay: tuple[int, ...]  # ps, by rank
    route_pairs: np.ndarray  # int64[k], ascending: (src × vertices + dst) × qps + queue pair
    route_ptr: np.ndarray  # int64[k+1]
    route_links: np.ndarray | None  # int32; None where a table would be too large: then there are no pairs either
    sizes: tuple[int, ...]  # every message size, and perhaps some that no message has; ascending
    states: tuple[tuple[int, RoutedState], ...] = ()  # of a topology with events: from 0 ps, and from each event on
    tiles: Mapping[int, TileGates] = field(default_factory=dict)  # by rank that uses collectives in tiles
    folded: bool = False  # made for a folded run, without a table of routes

    @property
    def ranks(self) -> int:
        return len(self.workload)

    @property
    def programs(self) -> Iterator[Programs]:
        """Programs of the workload and of the different calls."""
        return chain([self.workload], (call.programs for call in self.calls.values))

    @property
    def detours(self) -> Detours | None:
        """Interruptions of compute."""
        return None if self.problem.noise is None else self.problem.noise.detours

    @cached_property
    def detour_phase(self) -> np.ndarray:
        """int64[ranks], ps: phases of `detours`; switches have none."""
        noise = self.problem.noise
        assert noise is not None, "asked for with detours only"
        phases = np.concatenate([noise.phases(job.name, job.ranks) for job in self.problem.jobs])
        phases[self.npu_ranks :] = 0
        return phases

    @property
    def computed_routes(self) -> bool:
        """Whether routes are computed on demand, without a table."""
        return self.route_links is None

    @cached_property
    def routes(self) -> Mapping[int, tuple[int, ...]]:
        """(src × vertices + dst) × qps + queue pair → links, for every pair that a message can use."""
        if self.route_links is None:
            return _RouteTable(self.problem.topology)
        return by_pair(self.route_pairs, self.route_ptr, self.route_links)

    def rank_name(self, rank: int) -> str:
        """``rank 3``, or ``switch leaf0``."""
        is_switch = rank >= self.npu_ranks
        return f"switch {self.problem.topology.vertex_name(self.npu_of[rank])}" if is_switch else f"rank {rank}"

    def job_name(self, rank: int) -> str:
        """The job of a rank, of several jobs; empty where there is one, and of switches."""
        several = len(self.problem.jobs) - (self.npu_ranks < self.ranks) > 1
        return self.problem.jobs[self.job_of[rank]].name if several and rank < self.npu_ranks else ""

    @property
    def switches(self) -> list[str]:
        """Names of the switches that take part; their ranks follow those of jobs."""
        return [self.problem.topology.vertex_name(vertex) for vertex in self.npu_of[self.npu_ranks :]]

    @cached_property
    def instance_of(self) -> np.ndarray:
        """int64: instance of each call."""
        return np.repeat(np.arange(len(self.instances)), self.instances.call_counts)

    def instance_at(self, index: int) -> int:
        """Instance of a call; -1 for the workload (-1)."""
        return int(self.instance_of[index]) if index >= 0 else -1

    @cached_property
    def place_of(self) -> dict[int, tuple[int, int]]:
        """Call of a planned collective → its chunk and phase."""
        return {
            phase.first + k: (number, place)
            for instance in self.instances.values
            for number, chunk in enumerate(instance.chunks)
            for place, phase in enumerate(chunk.phases)
            for k in range(len(phase.calls))
        }

    @cached_property
    def node_offset(self) -> dict[int, int]:
        """Call of a planned collective → offset of its node ids in records, which makes them unique."""
        distinct = self.calls.values
        longest = {c: max((int(p.node_id[-1]) + 1 for p in c.different if len(p)), default=0) for c in distinct}
        offsets: dict[int, int] = {}
        for instance in self.instances.values:
            offset = 0
            for phase in (phase for chunk in instance.chunks for phase in chunk.phases):
                offsets |= dict.fromkeys(range(phase.first, phase.first + len(phase.calls)), offset)
                offset += max((longest[call] for call in phase.calls), default=0)
        return offsets

    @cached_property
    def _rows(self) -> tuple[list[np.ndarray], int]:
        """First rows of the workload and of every call, and the row count; rows are ordered by rank."""
        counts, members = [self.workload.lengths], [np.arange(self.ranks)]
        for call in self.calls:
            counts.append(call.programs.lengths)
            members.append(np.asarray(call.members, dtype=np.int64)[: len(call.programs)])
        before = np.zeros(self.ranks, dtype=np.int64)
        first = []
        for ranks, lengths in zip(members, counts, strict=True):
            first.append(before[ranks])
            before[ranks] += lengths
        start = np.cumsum(before) - before
        return [start[ranks] + rows for ranks, rows in zip(members, first, strict=True)], int(before.sum())

    def first_rows(self, index: int) -> np.ndarray:
        """int64: first row in the node table of each member of a call with anything to do; of each workload (-1)."""
        return self._rows[0][index + 1]

    @property
    def row_count(self) -> int:
        """Rows of the node table."""
        return self._rows[1]

    def first_row(self, rank: int, index: int) -> int:
        """First row in the node table of a rank in a call (-1: its workload)."""
        return int(self.first_rows(index)[rank if index < 0 else self.position(rank, index)])

    @cached_property
    def messages(self) -> int:
        """Messages that a complete run sends, control messages of the rendezvous excluded."""
        counted = zip(self.calls.values, np.bincount(self.calls.which).tolist(), strict=True)
        return self.workload.messages + sum(number * call.programs.messages for call, number in counted)

    @cached_property
    def positions(self) -> dict[CollectiveCall, dict[int, int]]:
        """Places of ranks among the members of calls, for `position`."""
        return {}

    def position(self, rank: int, index: int) -> int:
        """Place of a rank among the members of a call (-1: among the ranks of its job)."""
        if index < 0:
            return rank - self.first_rank[self.job_of[rank]]
        call = self.calls[index]
        if call not in self.positions:
            self.positions[call] = {member: position for position, member in enumerate(call.members)}
        return self.positions[call][rank]

    def program(self, rank: int, index: int) -> RankProgram:
        """Program of a rank in a call (-1: its workload)."""
        return self.workload[rank] if index < 0 else self.calls[index].programs[self.position(rank, index)]

    def trace(self, rank: int, index: int) -> ExecutionTrace:
        """Trace of a rank in a call (-1: its workload), for names and files; in a built rotation rank 0's."""
        if index < 0:
            return self.problem.jobs[self.job_of[rank]].workload.traces[self.position(rank, index)]
        algorithm = self.calls[index].algorithm
        assert algorithm is not None, "a call without one has no nodes"
        per_rank = algorithm.rotation is None or algorithm.given
        return algorithm.traces[self.position(rank, index) if per_rank else 0]


class _RouteTable(dict):
    """Routes by pair, computed on demand."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology

    def __missing__(self, pair: int) -> tuple[int, ...]:
        route = self[pair] = self.topology.route(*divmod(pair, self.topology.vertices))
        return route
