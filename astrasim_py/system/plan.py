"""The Plan: a Problem lowered once to flat integer arrays, for every engine.

A *program* is one rank's trace, its nodes in ascending id, with bytes and durations bound. A *structure* is the
dependency graph of a program; programs of equal shape share one. An *instance* is one collective call of one
group; its programs are spliced into the ranks' live graphs at dispatch. A *space* is where sends and receives
match: one per instance, one per job for point-to-point (one for all under ``message_match: bytes``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from astrasim_py.chakra.trace import COLLECTIVE_NAMES, MISSING, ExecutionTrace, NodeType
from astrasim_py.collectives.algorithm import CUSTOM, Algorithm
from astrasim_py.core.errors import AlgorithmError, ScenarioError, TraceError
from astrasim_py.core.units import transfer_ps
from astrasim_py.system import channels
from astrasim_py.system import compute as durations
from astrasim_py.system.problem import Job, Problem

COMPUTE, SEND, RECV, COLLECTIVE, MEMORY, INSTANT = range(6)
KIND_NAMES = ("compute", "send", "recv", "collective", "memory", "metadata")
NO_SLOT, CPU_SLOT, COMPUTE_SLOT, COMM_SLOT = range(4)

#: Rooted collectives, whose root is the position of a member in its group.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
WORLD = "world"

_KIND = np.full(256, -1, dtype=np.int8)
_KIND[[NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL]] = [
    COMPUTE,
    SEND,
    RECV,
    COLLECTIVE,
]
_KIND[[NodeType.MEM_LOAD, NodeType.MEM_STORE]] = MEMORY
_KIND[[NodeType.METADATA, NodeType.INVALID]] = INSTANT


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
class Instance:
    """One collective call of one group."""

    index: int
    job: int
    group: str
    type: str
    size: int  # full buffer, bytes
    root: int
    members: tuple[int, ...]  # ranks, in the order of the group
    algorithm: Algorithm | None  # None where a group of one has nothing to do
    programs: tuple[Program, ...]
    matching: Matching | None
    bound: int  # ps, -1 where none applies
    fifos: channels.Fifos | None = None  # under the MSCCL link model

    @property
    def algorithm_name(self) -> str:
        return self.algorithm.name if self.algorithm else ""


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
    def node_rows(self) -> tuple[dict[tuple[int, int], int], int]:
        """First row of each (rank, instance) in the node table (workload: instance -1), and the row count."""
        of_rank: list[list[tuple[int, int]]] = [[(-1, len(p))] for p in self.workload]
        for instance in self.instances:
            for member, program in zip(instance.members, instance.programs, strict=False):
                of_rank[member].append((instance.index, len(program)))
        first: dict[tuple[int, int], int] = {}
        total = 0
        for rank, blocks in enumerate(of_rank):
            for index, count in blocks:
                first[rank, index] = total
                total += count
        return first, total

    @cached_property
    def messages(self) -> int:
        """Messages that a complete run sends."""
        total = sum(int((p.structure.kind == SEND).sum()) for p in self.workload)
        known: dict[int, int] = {}
        for instance in self.instances:
            for program in instance.programs:
                key = id(program.structure)
                if key not in known:
                    known[key] = int((program.structure.kind == SEND).sum())
                total += known[key]
        return total

    def serialization(self) -> list[dict[int, int]]:
        """Per bandwidth class of the topology: bytes → ps on a link, for every message size, rounded up."""
        return [{b: transfer_ps(b, rate) for b in self.sizes} for rate in self.problem.topology.bandwidths]


def node_place(trace: ExecutionTrace, row: int, default: str = "trace") -> str:
    """``file: node 7``, for messages."""
    return f"{trace.place or default}: node {int(trace.node_id[row])}"


class _Builder:
    """Working state of `make_plan`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.semantics = problem.semantics
        self.structures: dict[bytes, Structure] = {}
        self.skeletons: dict[tuple, tuple] = {}
        self.programs: dict[tuple, Program] = {}
        self.matchings: dict[object, Matching] = {}
        self.bounds: dict[tuple, int] = {}
        self.call_columns: dict[int, tuple] = {}
        self.program_sets: dict[tuple, tuple[Program, ...]] = {}
        self.keep: list[object] = []  # keeps objects alive whose id() is a key

    # -- programs -------------------------------------------------------------------------------------------

    def skeleton(self, trace: ExecutionTrace, dependencies: str) -> tuple[np.ndarray, np.ndarray, Structure]:
        """Rows in ascending node id, the ids, and the structure; cached per trace."""
        key = (id(trace), dependencies)
        if key in self.skeletons:
            return self.skeletons[key]
        ids = trace.node_id
        n = len(ids)
        ptr, parents = trace.parents(dependencies)
        kind = _KIND[trace.type.astype(np.uint8)]
        rows = np.arange(n, dtype=np.int64)
        if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
            rows = np.argsort(ids, kind="stable").astype(np.int64)
            place = np.empty(n, dtype=np.int64)
            place[rows] = np.arange(n)
            counts = np.diff(ptr)[rows]
            child = np.repeat(np.arange(n), counts)
            starts = ptr[:-1][rows]
            offsets = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
            parents = place[parents[np.repeat(starts, counts) + offsets]]
            kind = kind[rows]
            need = counts
        else:
            need = np.diff(ptr)
            child = np.repeat(np.arange(n), need)
        self.keep.append(trace)
        self.skeletons[key] = (rows, ids if rows is None else ids[rows], self.structure(kind, need, child, parents))
        return self.skeletons[key]

    def structure(self, kind: np.ndarray, need: np.ndarray, child: np.ndarray, parents: np.ndarray) -> Structure:
        """The structure of nodes of some kinds with `need` parents each; edges ascend by child."""
        state = hashlib.blake2b(digest_size=16)
        for array in (kind, need.astype(np.int32), parents.astype(np.int32)):
            state.update(np.ascontiguousarray(array).tobytes())
        digest = state.digest()
        structure = self.structures.get(digest)
        if structure is None:
            by_parent = np.argsort(parents, kind="stable")
            succ_ptr = np.zeros(len(kind) + 1, dtype=np.int64)
            np.cumsum(np.bincount(parents, minlength=len(kind)), out=succ_ptr[1:])
            structure = Structure(
                key=digest,
                kind=kind,
                need=need.astype(np.int32),
                succ_ptr=succ_ptr,
                succ=child[by_parent].astype(np.int32),
                roots=np.flatnonzero(need == 0).astype(np.int32),
            )
            self.structures[digest] = structure
        return structure

    def workload_program(self, job: Job, rank: int, call: np.ndarray) -> Program:
        trace = job.workload.traces[rank]
        rows, ids, structure = self.skeleton(trace, job.dependencies or self.semantics.dependencies)
        kind = structure.kind
        speed = Fraction(job.compute_speed.get(rank, 1))
        # Ranks that share a trace and name no peer in it share its program.
        shared = None
        if not ((kind == SEND) | (kind == RECV)).any():
            shared = (id(trace), job.dependencies, speed, call.tobytes())
            if shared in self.programs:
                return self.programs[shared]
        duration = durations.workload_ps(trace, self.problem.compute, self.semantics, speed)
        duration += durations.memory_ps(trace, self.problem.memory, self.semantics)
        nbytes, peer, tag = self.message_columns(trace, rank, job.ranks)
        slot = np.full(len(ids), NO_SLOT, dtype=np.int8)
        is_cpu = trace.column("is_cpu_op")[rows] > 0
        slot[kind == COMPUTE] = COMPUTE_SLOT
        slot[is_cpu & (kind == COMPUTE)] = CPU_SLOT
        slot[(kind == SEND) | (kind == COLLECTIVE) | (kind == MEMORY)] = COMM_SLOT
        stated = trace.column("slot_kind")[rows]
        slot = np.where((stated >= NO_SLOT) & (stated <= COMM_SLOT), stated, slot).astype(np.int8)
        program = Program(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes[rows],
            duration=duration[rows],
            peer=peer[rows],
            tag=tag[rows],
            slot=slot,
            call=call[rows],
        )
        if shared is not None:
            self.programs[shared] = program
        return program

    def message_columns(self, trace: ExecutionTrace, rank: int, ranks: int) -> tuple[np.ndarray, ...]:
        """Bytes, peer and tag of a workload's sends and receives, in the order of the trace."""
        n = len(trace)
        peer = np.full(n, -1, dtype=np.int32)
        nbytes = np.zeros(n, dtype=np.int64)
        tag = np.zeros(n, dtype=np.int64)
        for kind, own, other in (
            (NodeType.COMM_SEND, "comm_src", "comm_dst"),
            (NodeType.COMM_RECV, "comm_dst", "comm_src"),
        ):
            rows = np.flatnonzero(trace.type == kind)
            if not len(rows):
                continue
            for name, low in ((other, 0), ("comm_size", 0), ("comm_tag", MISSING + 1)):
                values = trace.column(name)[rows]
                bad = np.flatnonzero(values < low)
                if len(bad):
                    row = int(rows[bad[0]])
                    value = int(values[bad[0]])
                    what = f"lacks {name}" if value == MISSING else f"has {name} {value}"
                    remedy = f"give it {other}, comm_size and comm_tag"
                    if name == "comm_size" and int(trace.column("total_chunk_cnt")[row]) > 0:
                        remedy = "its size is in chunks: these files are an algorithm, inject them under algorithms"
                    kind_name = "send" if kind == NodeType.COMM_SEND else "receive"
                    raise TraceError(node_place(trace, row, f"rank {rank}"), f"a {kind_name} node {what}", remedy)
            partner = trace.column(other)[rows]
            wrong = np.flatnonzero((partner >= ranks) | (partner == rank))
            if len(wrong):
                row, value = int(rows[wrong[0]]), int(partner[wrong[0]])
                why = "is its own rank" if value == rank else f"is not a rank of this workload (0..{ranks - 1})"
                raise TraceError(node_place(trace, row, f"rank {rank}"), f"{other} {value} {why}")
            mine = trace.column(own)[rows]
            wrong = np.flatnonzero((mine != MISSING) & (mine != rank))
            if len(wrong):
                row = int(rows[wrong[0]])
                raise TraceError(
                    node_place(trace, row, f"rank {rank}"),
                    f"{own} {int(mine[wrong[0]])} is not its own rank {rank}",
                    "check that the files are named by rank",
                )
            peer[rows] = partner
            nbytes[rows] = trace.column("comm_size")[rows]
            tag[rows] = trace.column("comm_tag")[rows]
        return nbytes, peer, tag

    def algorithm_program(self, algorithm: Algorithm, position: int, size: int, speed: Fraction) -> Program:
        trace = algorithm.traces[position]
        # Sizes can be taken as written only where they are written; in chunks alone they follow the collective.
        verbatim = self.semantics.injected_sizes == "verbatim" and trace.has_column("comm_size")
        key = (id(algorithm), position, size, speed)
        if key in self.programs:
            return self.programs[key]
        rows, ids, structure = self.skeleton(trace, "data+ctrl")
        kind = structure.kind
        place = f"{algorithm.name} rank {position}"
        foreign = np.flatnonzero((kind != COMPUTE) & (kind != SEND) & (kind != RECV))
        if len(foreign):
            row = int(rows[foreign[0]])
            raise AlgorithmError(
                node_place(trace, row, place),
                f"a {KIND_NAMES[kind[foreign[0]]]} node cannot be part of an algorithm",
                "use send, receive and compute nodes only",
            )
        nbytes = algorithm.message_bytes(position, size, verbatim=verbatim)
        peer = np.full(len(ids), -1, dtype=np.int32)
        for node_type, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
            at = np.flatnonzero(trace.type == node_type)
            partner = trace.column(name)[at]
            wrong = np.flatnonzero((partner < 0) | (partner >= algorithm.ranks) | (partner == position))
            if len(wrong):
                row, value = int(at[wrong[0]]), int(partner[wrong[0]])
                what = f"lacks {name}" if value == MISSING else f"{name} {value} is its own rank"
                if value not in (MISSING, position):
                    what = f"{name} {value} is not a rank of the algorithm (0..{algorithm.ranks - 1})"
                raise AlgorithmError(node_place(trace, row, place), what)
            peer[at] = partner
        is_compute = trace.type == NodeType.COMP
        duration = durations.recorded_ps(trace, self.semantics)
        duration[~is_compute] = 0
        reducing = is_compute & (trace.column("comp_op") == 1)
        if self.semantics.gamma and reducing.any():
            duration[reducing] += durations.reduction_ps(nbytes[reducing], self.semantics.gamma)
            over = np.flatnonzero(duration < 0)
            if len(over):
                problem = "its recorded duration and its reduction take longer than 2^63 - 1 ps (106 days)"
                raise AlgorithmError(node_place(trace, int(over[0]), place), problem, "check the unit of its duration")
        duration = durations.scale_by_speed(duration, speed, trace)
        tag = trace.column("comm_tag").copy()
        tag[tag == MISSING] = 0
        nbytes, duration = nbytes[rows], duration[rows]
        if self.problem.network.msccl is not None and not verbatim:
            most = self.problem.network.msccl.max_count_for(algorithm, size)
            parts = channels.parts_of(trace, most)[rows]
            if int(parts.max(initial=1)) > 1:
                rows, structure = self.pieces(trace, rows, structure, parts, place)
                origin = np.repeat(np.arange(len(parts)), parts)
                ids = ids[origin]
                nbytes = channels.piece_bytes(trace, rows, nbytes[origin], size, most)
                duration = channels.piece_duration(rows, duration[origin])
        program = Program(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes,
            duration=duration,
            peer=peer[rows],
            tag=tag[rows],
            slot=np.full(len(ids), NO_SLOT, dtype=np.int8),
            call=np.full(len(ids), -1, dtype=np.int32),
        )
        self.programs[key] = program
        self.keep.append(algorithm)
        return program

    def pieces(
        self, trace: ExecutionTrace, rows: np.ndarray, structure: Structure, parts: np.ndarray, place: str
    ) -> tuple[np.ndarray, Structure]:
        """Rows and structure of a program whose steps are cut into messages."""
        if int(parts.sum()) > channels.MAX_PIECES:
            raise AlgorithmError(
                trace.place or place,
                f"makes {int(parts.sum()):,} messages and operations of one rank, more than {channels.MAX_PIECES:,}",
                "use a smaller size or fewer chunks per step",
            )
        at = np.empty(len(rows), dtype=np.int64)
        at[rows] = np.arange(len(rows))
        made = channels.cut(structure, at[channels.step_of(trace)[rows]], parts)
        need = np.bincount(made.child, minlength=len(made.origin))
        return rows[made.origin], self.structure(structure.kind[made.origin], need, made.child, made.parent)

    # -- collectives ----------------------------------------------------------------------------------------

    def calls(self, job: Job) -> tuple[list[np.ndarray], list[dict]]:
        """Instances of one job: for every rank the instance of each node, and what each instance is."""
        ranks = job.ranks
        groups = {WORLD: tuple(range(ranks)), **job.workload.groups}
        call = [np.full(len(t), -1, dtype=np.int32) for t in job.workload.traces]
        sequences: dict[str, dict[int, list[int]]] = {}
        appearance: list[tuple[int, int, str]] = []
        for rank, trace in enumerate(job.workload.traces):
            rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
            if not len(rows):
                # Cycles are an error in every trace, with or without collectives.
                trace.order(job.dependencies or self.semantics.dependencies)
                continue
            order = trace.order(job.dependencies or self.semantics.dependencies)
            place = np.empty(len(trace), dtype=np.int64)
            place[order] = np.arange(len(trace))
            rows = rows[np.argsort(place[rows], kind="stable")]
            codes, names = trace.group_of()
            for row in rows.tolist():
                code = int(codes[row])
                name = names[code] if code >= 0 else ""
                name = WORLD if name in ("", "0", WORLD) else name
                if name not in groups:
                    raise TraceError(
                        node_place(trace, row, f"rank {rank}"),
                        f'its group "{name}" is not defined',
                        "give the workload's groups (a JSON file of id: [ranks])",
                    )
                if rank not in groups[name]:
                    raise TraceError(
                        node_place(trace, row, f"rank {rank}"),
                        f'rank {rank} is not a member of its group "{name}" {list(groups[name])[:16]}',
                    )
                sequences.setdefault(name, {}).setdefault(rank, []).append(row)
                appearance.append((rank, row, name))
        described: dict[tuple[str, int], dict] = {}
        for name in sequences:
            members = groups[name]
            if not self.same_calls(job, name, members, sequences[name]):
                by_id = {
                    rank: sorted(rows, key=lambda r, t=job.workload.traces[rank]: int(t.node_id[r]))
                    for rank, rows in sequences[name].items()
                }
                if self.same_calls(job, name, members, by_id):
                    sequences[name] = by_id
                else:
                    self.diverging(job, name, members, sequences[name])
        position: dict[tuple[int, int], tuple[str, int]] = {}
        for name, by_rank in sequences.items():
            for rank, rows in by_rank.items():
                for k, row in enumerate(rows):
                    position[rank, row] = (name, k)
        instances: list[dict] = []
        for rank, row, _ in appearance:
            key = position[rank, row]
            if key not in described:
                trace = job.workload.traces[rank]
                kind, size, root = self.signature(trace, row, rank, len(groups[key[0]]))
                described[key] = {
                    "local": len(instances),
                    "group": key[0],
                    "type": kind,
                    "size": size,
                    "root": root,
                    "members": groups[key[0]],
                    "place": node_place(trace, row, f"rank {rank}"),
                }
                instances.append(described[key])
            call[rank][row] = described[key]["local"]
        return call, instances

    def signature(self, trace: ExecutionTrace, row: int, rank: int, n: int) -> tuple[str, int, int]:
        """Type, full-buffer bytes and root of a collective node."""
        columns = self.call_columns.get(id(trace))
        if columns is None:
            names = ("comm_type", "coll_size", "comm_size", "comm_root")
            columns = self.call_columns[id(trace)] = tuple(trace.column(name) for name in names)
            self.keep.append(trace)
        code, size, comm_size, root = (int(column[row]) for column in columns)
        if code not in COLLECTIVE_NAMES:
            what = "lacks comm_type" if code == MISSING else f"comm_type {code} is unknown"
            raise TraceError(node_place(trace, row, f"rank {rank}"), what, "write one of 0..9 (ALL_REDUCE is 0)")
        kind = COLLECTIVE_NAMES[code]
        if size == MISSING:
            size = comm_size
            if size == MISSING and kind == "barrier":
                size = 0
            elif kind == "all_gather" and size > 0:
                size *= n
        if size < 0:
            what = "lacks comm_size" if size == MISSING else f"comm_size {size} is negative"
            raise TraceError(node_place(trace, row, f"rank {rank}"), what, "write its bytes, 0 or more")
        root = 0 if root == MISSING or kind not in ROOTED else root
        if not 0 <= root < n:
            raise TraceError(node_place(trace, row, f"rank {rank}"), f"root {root} is not a position in a group of {n}")
        return kind, size, root

    def same_calls(self, job: Job, name: str, members: Sequence[int], rows: dict[int, list[int]]) -> bool:
        def column(rank: int) -> list:
            trace = job.workload.traces[rank]
            return [self.signature(trace, row, rank, len(members)) for row in rows.get(rank, [])]

        first = column(members[0])
        return all(column(rank) == first for rank in members[1:])

    def diverging(self, job: Job, name: str, members: Sequence[int], rows: dict[int, list[int]]) -> None:
        """Raise, naming the first call in which two members of a group differ."""
        traces = job.workload.traces
        best: tuple[int, int, int] | None = None
        for rank in members[1:]:
            mine, theirs = rows.get(members[0], []), rows.get(rank, [])
            for k in range(max(len(mine), len(theirs))):
                a = self.signature(traces[members[0]], mine[k], members[0], len(members)) if k < len(mine) else None
                b = self.signature(traces[rank], theirs[k], rank, len(members)) if k < len(theirs) else None
                if a != b:
                    if best is None or k < best[0]:
                        best = (k, members[0], rank)
                    break
        if best is None:
            return
        k, first, other = best

        def said(rank: int) -> str:
            calls = rows.get(rank, [])
            if k >= len(calls):
                return f"rank {rank} makes no such call"
            kind, size, root = self.signature(traces[rank], calls[k], rank, len(members))
            at = f", root {root}" if kind in ROOTED else ""
            return f"rank {rank} calls {kind} of {size} B{at} (node {int(traces[rank].node_id[calls[k]])})"

        holder = first if k < len(rows.get(first, [])) else other
        raise TraceError(
            node_place(traces[holder], rows[holder][k], f"rank {holder}"),
            f'members of group "{name}" differ at their collective number {k + 1}: {said(first)}, {said(other)}',
            "let every member call the same collectives in the same order",
        )

    def matching(self, key: object, programs: Sequence[Program], what: str) -> Matching:
        """Meeting points of the sends and receives of `programs` (by position)."""
        if key in self.matchings:
            return self.matchings[key]
        n = len(programs)
        tags = np.concatenate([p.tag[p.peer >= 0] for p in programs] or [np.zeros(0, np.int64)])
        unique_tags = np.unique(tags)
        keys, receives = [], []
        for position, program in enumerate(programs):
            at = np.flatnonzero(program.peer >= 0)
            peer = program.peer[at].astype(np.int64)
            receive = program.structure.kind[at] == RECV
            pair = np.where(receive, peer * n + position, position * n + peer)
            keys.append(pair * len(unique_tags) + np.searchsorted(unique_tags, program.tag[at]))
            receives.append(receive)
        all_keys = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        receive = np.concatenate(receives) if receives else np.zeros(0, bool)
        channels, inverse = np.unique(all_keys, return_inverse=True)
        received = np.bincount(inverse[receive], minlength=len(channels))
        sent = np.bincount(inverse[~receive], minlength=len(channels))
        single = (received == 1) & (sent == 1)
        meet = np.where(single[inverse], inverse, ~inverse)
        pieces, start = [], 0
        for program in programs:
            piece = np.zeros(len(program), dtype=np.int64)
            at = np.flatnonzero(program.peer >= 0)
            piece[at] = meet[start : start + len(at)]
            start += len(at)
            pieces.append(piece)
        if what:
            odd = np.flatnonzero(received != sent)
            if len(odd):
                channel = int(channels[odd[0]])
                pair, tag = divmod(channel, len(unique_tags))
                src, dst = divmod(pair, n)
                raise AlgorithmError(
                    what,
                    f"rank {src} sends {int(sent[odd[0]])} messages to rank {dst} with tag {int(unique_tags[tag])}, "
                    f"and rank {dst} receives {int(received[odd[0]])} of them",
                    "give every send its receive",
                )
        self.matchings[key] = Matching(meet=tuple(pieces), points=len(channels))
        return self.matchings[key]

    def byte_matchings(self, instances: list[dict], p2p: list[list[Program]], firsts: list[int]) -> None:
        """Under ``message_match: bytes`` one channel per (src, dst, tag, bytes) over everything that is sent."""
        numbering: dict[tuple[int, int, int, int], int] = {}

        def number(programs: Sequence[Program], members: Sequence[int]) -> Matching:
            pieces = []
            for position, program in enumerate(programs):
                piece = np.zeros(len(program), dtype=np.int64)
                for at in np.flatnonzero(program.peer >= 0).tolist():
                    me, other = members[position], members[int(program.peer[at])]
                    pair = (other, me) if program.structure.kind[at] == RECV else (me, other)
                    key = (*pair, int(program.tag[at]), int(program.nbytes[at]))
                    piece[at] = ~numbering.setdefault(key, len(numbering))
                pieces.append(piece)
            return Matching(meet=tuple(pieces), points=0)

        self.p2p_matchings = [
            number(programs, range(firsts[j], firsts[j] + len(programs))) for j, programs in enumerate(p2p)
        ]
        known: dict[tuple, Matching] = {}
        for entry in instances:
            key = (tuple(id(p) for p in entry["programs"]), tuple(entry["members"]))
            if key not in known:
                known[key] = number(entry["programs"], entry["members"])
            entry["matching"] = known[key] if entry["programs"] else None

    def bound(self, entry: dict, npu_of: Sequence[int]) -> int:
        problem, algorithm = self.problem, entry["algorithm"]
        if not problem.network.contention or self.semantics.name != "native":
            return -1
        if entry["type"] == CUSTOM:
            return -1
        if algorithm is None:
            return 0
        # With a contract of its own it was not held to what the bound is made for.
        if not algorithm.scales or algorithm.verdict is not True or algorithm.contract is not None:
            return -1
        from astrasim_py.collectives.bounds import lower_bound_ps

        npus = tuple(npu_of[r] for r in entry["members"])
        key = (entry["type"], entry["size"], entry["root"], npus)
        if key not in self.bounds:
            self.bounds[key] = lower_bound_ps(entry["type"], entry["size"], problem.topology, npus, entry["root"])
        return self.bounds[key]


def _check_placement(problem: Problem) -> None:
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


def _routes(problem: Problem, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pairs = np.unique(pairs)
    n = problem.topology.npus
    ptr, links = problem.topology.routes(pairs // n, pairs % n)
    return pairs, ptr, links


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
    _check_placement(problem)
    build = _Builder(problem)
    by_bytes = problem.semantics.message_match == "bytes"
    npu_of: list[int] = []
    job_of: list[int] = []
    firsts: list[int] = []
    delays: list[int] = []
    workload: list[Program] = []
    p2p_programs: list[list[Program]] = []
    entries: list[dict] = []
    for j, job in enumerate(problem.jobs):
        first = len(npu_of)
        firsts.append(first)
        npu_of += job.placement
        job_of += [j] * job.ranks
        delays += [job.start_delay_ps.get(r, 0) for r in range(job.ranks)]
        call, described = build.calls(job)
        base = len(entries)
        for entry in described:
            n = len(entry["members"])
            entry["job"] = j
            local = entry["members"]
            entry["members"] = tuple(first + r for r in local)
            entry["algorithm"], entry["programs"] = None, ()
            if n > 1:
                algorithm = job.algorithms.select(entry["type"], entry["size"], n, entry["group"], root=entry["root"])
                if algorithm.ranks != n:
                    raise AlgorithmError(
                        algorithm.source or algorithm.name,
                        f"is made for {algorithm.ranks} ranks, and {entry['place']} calls {entry['type']} on {n}",
                        "inject one made for that many",
                    )
                if algorithm.root is not None and algorithm.root != entry["root"]:
                    raise AlgorithmError(
                        algorithm.source or algorithm.name,
                        f"has root {algorithm.root}, and {entry['place']} calls with root {entry['root']}",
                        "inject one with that root",
                    )
                entry["algorithm"] = algorithm
                speeds = tuple(Fraction(job.compute_speed.get(r, 1)) for r in local) if job.compute_speed else ()
                key = (id(algorithm), entry["size"], speeds)
                if key not in build.program_sets:
                    build.program_sets[key] = tuple(
                        build.algorithm_program(algorithm, p, entry["size"], speeds[p] if speeds else Fraction(1))
                        for p in range(n)
                    )
                entry["programs"] = build.program_sets[key]
            entries.append(entry)
        programs = []
        for rank in range(job.ranks):
            calls = np.where(call[rank] >= 0, call[rank] + base, -1).astype(np.int32)
            programs.append(build.workload_program(job, rank, calls))
        workload += programs
        p2p_programs.append(programs)

    msccl = problem.network.msccl
    fifos: dict[tuple, channels.Fifos] = {}
    if by_bytes:
        build.byte_matchings(entries, p2p_programs, firsts)
        p2p: list[Matching | None] = list(build.p2p_matchings)
    else:
        p2p = [build.matching(("p2p", j), programs, "") for j, programs in enumerate(p2p_programs)]
        for entry in entries:
            algorithm = entry["algorithm"]
            # How a step is cut into messages depends on the size, and with it which messages there are.
            most = msccl.max_count_for(algorithm, entry["size"]) if msccl and algorithm else 0
            entry["matching"] = (
                build.matching(
                    ("algorithm", id(algorithm), most), entry["programs"], algorithm.source or algorithm.name
                )
                if algorithm
                else None
            )
    for entry in entries if msccl else ():
        algorithm = entry["algorithm"]
        if algorithm is not None:
            key = (id(algorithm), msccl.max_count_for(algorithm, entry["size"]))
            if key not in fifos:
                fifos[key] = channels.fifos_of(algorithm, entry["programs"], msccl)
            entry["fifos"] = fifos[key]

    npus = problem.topology.npus
    placed = np.array(npu_of, dtype=np.int64)
    pair_sets: list[np.ndarray] = []
    size_sets: list[np.ndarray] = []
    seen: set[tuple] = set()

    def collect(programs: Sequence[Program], members: Sequence[int]) -> None:
        where = placed[np.asarray(members, dtype=np.int64)]
        for position, program in enumerate(programs):
            at = program.structure.kind == SEND
            pair_sets.append(np.unique(where[position] * npus + where[program.peer[at]]))
            size_sets.append(np.unique(program.nbytes[at]))

    for j, programs in enumerate(p2p_programs):
        collect(programs, range(firsts[j], firsts[j] + len(programs)))
    for entry in entries:
        key = (id(entry["algorithm"]), entry["size"], entry["members"])
        if entry["programs"] and key not in seen:
            seen.add(key)
            collect(entry["programs"], entry["members"])
    pairs, ptr, links = _routes(problem, np.concatenate(pair_sets) if pair_sets else np.zeros(0, np.int64))
    sizes = np.unique(np.concatenate(size_sets)) if size_sets else np.zeros(0, np.int64)

    instances = tuple(
        Instance(
            index=i,
            job=entry["job"],
            group=entry["group"],
            type=entry["type"],
            size=entry["size"],
            root=entry["root"],
            members=entry["members"],
            algorithm=entry["algorithm"],
            programs=entry["programs"],
            matching=entry["matching"],
            bound=build.bound(entry, npu_of),
            fifos=entry.get("fifos"),
        )
        for i, entry in enumerate(entries)
    )
    return Plan(
        problem=problem,
        npu_of=tuple(npu_of),
        job_of=tuple(job_of),
        first_rank=tuple(firsts),
        workload=tuple(workload),
        p2p=tuple(p2p),
        instances=instances,
        start_delay=tuple(delays),
        route_pairs=pairs,
        route_ptr=ptr,
        route_links=links,
        sizes=tuple(int(s) for s in sizes),
    )
