"""The Plan: a Problem lowered once to flat integer arrays, for every engine.

A *program* is one rank's trace, its nodes in ascending id, with bytes and durations bound. A *structure* is the
dependency graph of a program; programs of equal shape share one. An *instance* is one collective call of one
group. It consists of *slices*, each one algorithm among some of its ranks, whose programs are spliced into the
ranks' live graphs when their turn comes: one over all members at dispatch, or those of a planner's streams, phase by
phase. A *space* is where sends and receives match: one per slice, one per job for point-to-point (under
``message_match: bytes`` one for all but the slices of streams).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.algorithm import Algorithm
from astrasim_py.core.units import transfer_ps
from astrasim_py.system import channels
from astrasim_py.system.problem import Problem

COMPUTE, SEND, RECV, COLLECTIVE, MEMORY, INSTANT = range(6)
KIND_NAMES = ("compute", "send", "recv", "collective", "memory", "metadata")
NO_SLOT, CPU_SLOT, COMPUTE_SLOT, COMM_SLOT = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A dependency graph over nodes 0..n-1 in ascending node id."""

    key: bytes
    kind: np.ndarray  # int8[n]
    need: np.ndarray  # int32[n]: parents not yet done
    succ_ptr: np.ndarray  # int64[n+1]
    succ: np.ndarray  # int32[m], ascending within a node
    roots: np.ndarray  # int32: nodes without parents


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Counters of one rank's program, and its detached sends. Arrays are by node.

    A node that waits for a count has one more in `Structure.need`; it is taken when the count is reached.
    """

    number: int  # of counters
    counts: np.ndarray  # int32[n]: counter in which its completion counts, -1: in none
    of: np.ndarray  # int32[n]: counter that it waits for, -1: for none
    k: np.ndarray  # int64[n]: for its k-th completion …
    start: np.ndarray  # int32[n]: … counted from after the completion of this node; -1: from the start
    detached: np.ndarray  # bool[n]: a send that the block does not wait for


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One rank's trace with everything bound. Arrays are by node, in ascending node id."""

    trace: ExecutionTrace
    rows: np.ndarray  # int64[n]: row of the trace
    node_id: np.ndarray  # uint64[n]
    structure: Structure
    nbytes: np.ndarray  # int64[n]: of sends, receives and memory requests
    duration: np.ndarray  # int64[n], ps: of compute and memory nodes
    peer: np.ndarray  # int32[n]: position in the group (algorithm) or rank in the job (workload); -1 elsewhere
    tag: np.ndarray  # int64[n]
    slot: np.ndarray  # int8[n]: resource that a node holds while in flight
    call: np.ndarray  # int32[n]: instance that a collective node starts; -1 elsewhere
    counters: Counters | None = None  # None where no node counts, waits for a count or is detached

    def __len__(self) -> int:
        return len(self.node_id)


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Where each send and receive of a program meets its partner.

    ``meet[i]`` ≥ 0 is a meeting point used by exactly one message of the space; ``~meet[i]`` is a channel whose
    k-th posted send meets its k-th posted receive.
    """

    meet: tuple[np.ndarray, ...]  # int64[n] per member
    points: int  # meeting points and channels are numbered below this


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One algorithm among some ranks: what is spliced. Equal slices of several streams are one object."""

    members: tuple[int, ...]  # ranks, in the order of the algorithm's
    algorithm: Algorithm | None  # None where a group of one has nothing to do
    programs: tuple[Program, ...]
    matching: Matching | None
    fifos: channels.Fifos | None = None  # under the MSCCL link model


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One phase of one stream."""

    queue: int  # of the NPU
    priority: int
    first: int  # index of its first slice; the others follow
    slices: tuple[Slice, ...]
    slice_of: Mapping[int, int]  # rank → its slice, from 0


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStream:
    """One chunk of a collective."""

    priority: int
    visits: tuple[Visit, ...]
    turns: tuple[int, ...]  # of its visits, empty where priority and arrival decide alone


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One collective call of one group: one slice over all its members, or streams of several."""

    index: int
    job: int
    group: str
    type: str
    size: int  # full buffer, bytes
    root: int
    members: tuple[int, ...]  # ranks, in the order of the group
    bound: int  # ps, -1 where none applies
    first: int  # index of its first slice
    whole: Slice | None  # None where a planner has cut it into streams
    streams: tuple[PlannedStream, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()  # that carry it out, in order of appearance

    @property
    def algorithm_name(self) -> str:
        return "+".join(dict.fromkeys(algorithm.name for algorithm in self.algorithms))

    @property
    def algorithm(self) -> Algorithm | None:
        """The one algorithm over all its members; None where there is none."""
        return self.whole.algorithm if self.whole else None

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of the one algorithm, by member; empty where it has streams."""
        return self.whole.programs if self.whole else ()

    @property
    def fifos(self) -> channels.Fifos | None:
        """Connections under the MSCCL link model."""
        return self.whole.fifos if self.whole else None


@dataclass(frozen=True, eq=False)
class Plan:
    """What an engine runs. Ranks of all jobs are numbered through, job after job."""

    problem: Problem
    npu_of: tuple[int, ...]  # rank → NPU
    job_of: tuple[int, ...]
    first_rank: tuple[int, ...]  # of each job
    workload: tuple[Program, ...]  # by rank
    p2p: tuple[Matching | None, ...]  # by job: point-to-point of the workload
    instances: tuple[Instance, ...]
    slices: tuple[Slice, ...]  # by index: ascending (instance, stream, phase, slice), the order of dispatch
    start_delay: tuple[int, ...]  # ps, by rank
    route_pairs: np.ndarray  # int64[k], ascending: src NPU × NPUs + dst NPU
    route_ptr: np.ndarray  # int64[k+1]
    route_links: np.ndarray  # int32
    sizes: tuple[int, ...]  # every message size, ascending
    warnings: tuple[str, ...] = ()
    _cache: dict = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> int:
        return len(self.npu_of)

    @cached_property
    def routes(self) -> dict[int, tuple[int, ...]]:
        """src NPU × NPUs + dst NPU → links, for every pair that a message can use."""
        links, ptr = self.route_links.tolist(), self.route_ptr.tolist()
        return {p: tuple(links[ptr[i] : ptr[i + 1]]) for i, p in enumerate(self.route_pairs.tolist())}

    @cached_property
    def instance_of(self) -> list[int]:
        """Instance of each slice."""
        counts = [
            sum(len(v.slices) for s in i.streams for v in s.visits) if i.whole is None else 1 for i in self.instances
        ]
        return [i.index for i, count in zip(self.instances, counts, strict=True) for _ in range(count)]

    def instance_at(self, index: int) -> int:
        """Instance of a slice; -1 of the workload (-1)."""
        return self.instance_of[index] if index >= 0 else -1

    @cached_property
    def place_of(self) -> dict[int, tuple[int, int]]:
        """Slice of a planned collective → its stream and phase."""
        return {
            visit.first + k: (number, phase)
            for instance in self.instances
            for number, stream in enumerate(instance.streams)
            for phase, visit in enumerate(stream.visits)
            for k in range(len(visit.slices))
        }

    @cached_property
    def node_offset(self) -> dict[int, int]:
        """Slice of a planned collective → what is added to its node ids in records, so that they are unique."""
        offsets: dict[int, int] = {}
        most: dict[int, int] = {}
        for instance in self.instances:
            offset = 0
            for stream in instance.streams:
                for visit in stream.visits:
                    longest = 0
                    for k, part in enumerate(visit.slices):
                        offsets[visit.first + k] = offset
                        if id(part) not in most:
                            most[id(part)] = max((int(p.node_id[-1]) + 1 for p in part.programs if len(p)), default=0)
                        longest = max(longest, most[id(part)])
                    offset += longest
        return offsets

    @cached_property
    def node_rows(self) -> tuple[dict[tuple[int, int], int], int]:
        """First row of each (rank, slice) in the node table (workload: slice -1), and the row count."""
        of_rank: list[list[tuple[int, int]]] = [[(-1, len(p))] for p in self.workload]
        for index, part in enumerate(self.slices):
            for member, program in zip(part.members, part.programs, strict=False):
                of_rank[member].append((index, len(program)))
        first: dict[tuple[int, int], int] = {}
        total = 0
        for rank, blocks in enumerate(of_rank):
            for index, count in blocks:
                first[rank, index] = total
                total += count
        return first, total

    @cached_property
    def messages(self) -> int:
        """Messages that a complete run sends, control messages of the rendezvous excluded."""
        total = sum(int((p.structure.kind == SEND).sum()) for p in self.workload)
        known: dict[int, int] = {}
        for part in self.slices:
            if id(part) not in known:
                known[id(part)] = sum(int((p.structure.kind == SEND).sum()) for p in part.programs)
            total += known[id(part)]
        return total

    def program(self, rank: int, index: int) -> Program:
        """What a rank runs in a slice (-1: its workload)."""
        if index < 0:
            return self.workload[rank]
        part = self.slices[index]
        return part.programs[part.members.index(rank)]

    def serialization(self) -> list[dict[int, int]]:
        """Per bandwidth class of the topology: bytes → ps on a link, for every message size, rounded up."""
        return [{b: transfer_ps(b, rate) for b in self.sizes} for rate in self.problem.topology.bandwidths]


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
    from astrasim_py.system.lowering import lower

    return lower(problem)
