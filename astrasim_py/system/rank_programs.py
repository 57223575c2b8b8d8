"""Programs: one rank's trace with everything bound, of workloads and of algorithms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import AlgorithmError, TraceError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system import durations
from astrasim_py.system.msccl_connections import cut_steps
from astrasim_py.system.plan import (
    COLLECTIVE,
    COMM_SLOT,
    COMPUTE,
    COMPUTE_SLOT,
    CPU_SLOT,
    INSTANT,
    KIND_NAMES,
    MEMORY,
    NO_SLOT,
    RECV,
    SEND,
    Counters,
    RankProgram,
    Structure,
)
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.rotated import RotatedPrograms

_KIND = np.full(256, -1, dtype=np.int8)
_KIND[[NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL]] = [
    COMPUTE,
    SEND,
    RECV,
    COLLECTIVE,
]
_KIND[[NodeType.MEM_LOAD, NodeType.MEM_STORE]] = MEMORY
_KIND[[NodeType.METADATA, NodeType.INVALID]] = INSTANT


def node_place(trace: ExecutionTrace, row: int, default: str = "trace") -> str:
    """``file: node 7``, for messages."""
    return f"{trace.place or default}: node {int(trace.node_id[row])}"


class RankPrograms:
    """Programs of one problem, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.semantics = problem.semantics
        self._structures: dict[bytes, Structure] = {}
        self._skeletons: dict[tuple, tuple] = {}
        self._algorithms: dict[tuple, RankProgram] = {}
        self._sets: dict[tuple, Sequence[RankProgram]] = {}

    def skeleton(
        self, trace: ExecutionTrace, dependencies: str
    ) -> tuple[np.ndarray, np.ndarray, Structure, Counters | None]:
        """Rows in ascending node id, the ids, the structure and the counters; cached per trace."""
        key = trace, dependencies
        if key in self._skeletons:
            return self._skeletons[key]
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
        counters = counters_of(trace, rows, kind, need, parents)
        if counters is not None:
            need = need + (counters.of >= 0)
        self._skeletons[key] = (rows, ids[rows], self.structure(kind, need, child, parents), counters)
        return self._skeletons[key]

    def structure(self, kind: np.ndarray, need: np.ndarray, child: np.ndarray, parents: np.ndarray) -> Structure:
        """The structure of nodes of some kinds with `need` parents each; edges ascend by child."""
        state = hashlib.blake2b(digest_size=16)
        for array in (kind, need.astype(np.int32), parents.astype(np.int32)):
            state.update(np.ascontiguousarray(array).tobytes())
        digest = state.digest()
        structure = self._structures.get(digest)
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
            self._structures[digest] = structure
        return structure

    def of_job(self, job: Job, kind_of: np.ndarray, instances: Sequence[np.ndarray]) -> list[RankProgram]:
        """Programs of all ranks of a job.

        Ranks of one kind share a trace and the instances that its nodes start, and one program if it names no peer.
        """
        keys: list = kind_of.tolist()
        if job.compute_speed:
            keys = [(kind, job.compute_speed.get(rank, 1)) for rank, kind in enumerate(keys)]
        programs = []
        shared: dict[object, RankProgram] = {}
        for rank, key in enumerate(keys):
            program = shared.get(key)
            if program is None:
                program = self.of_workload(job, rank, instances[kind_of[rank]])
                if not (program.peer >= 0).any():
                    shared[key] = program
            programs.append(program)
        return programs

    def of_workload(self, job: Job, rank: int, instance: np.ndarray) -> RankProgram:
        trace = job.workload.traces[rank]
        rows, ids, structure, counters = self.skeleton(trace, job.dependencies or self.semantics.dependencies)
        kind = structure.kind
        if counters is not None and counters.detached.any():
            row = int(rows[np.flatnonzero(counters.detached)[0]])
            problem = "is detached, and not part of an algorithm"
            raise TraceError(node_place(trace, row, f"rank {rank}"), problem, "let nodes depend on it or not")
        speed = Fraction(job.compute_speed.get(rank, 1))
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
        return RankProgram(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes[rows],
            duration=duration[rows],
            peer=peer[rows],
            tag=tag[rows],
            slot=slot,
            instance=instance[rows],
            counters=counters,
        )

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

    def of_algorithm(
        self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool, *, rotated: bool
    ) -> Sequence[RankProgram]:
        """Programs of all ranks of an algorithm for a full buffer of `size` bytes; no speeds: all are 1.

        With `rotated` one program stands for all where it can (`RotatedPrograms`).
        """
        key = algorithm, size, speeds, planned, rotated
        if key not in self._sets:
            one = self.rotated(algorithm, size, speeds, planned) if rotated else None
            self._sets[key] = one or tuple(
                self.algorithm_program(algorithm, p, trace, size, speeds[p] if speeds else Fraction(1), planned)
                for p, trace in enumerate(algorithm.traces)
            )
        return self._sets[key]

    def rotated(
        self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool
    ) -> RotatedPrograms | None:
        """One program for all ranks, where they differ in nothing but peers and bytes."""
        turned = algorithm.rotated
        if turned is None:
            return None
        trace = turned.traces[0]
        speed = speeds[0] if speeds else Fraction(1)
        base = self.algorithm_program(algorithm, 0, trace, size, speed, planned)
        if len(set(speeds)) > 1 and base.duration.any():
            return None
        if self.semantics.gamma and not algorithm.same_bytes(size):
            return None
        made = RotatedPrograms(turned, base, size, self.verbatim(trace, planned))
        # Sizes in chunks of an algorithm that does not say how many there are may be any.
        return made if turned.chunks or made.uniform_bytes else None

    def verbatim(self, trace: ExecutionTrace, planned: bool) -> bool:
        """Whether its sizes are taken as written: only where they are; in chunks alone they follow the collective."""
        return (planned or self.semantics.injected_sizes == "verbatim") and trace.has_column("comm_size")

    def algorithm_program(
        self, algorithm: Algorithm, position: int, trace: ExecutionTrace, size: int, speed: Fraction, planned: bool
    ) -> RankProgram:
        verbatim = self.verbatim(trace, planned)
        key = algorithm, position, size, speed, planned
        if key in self._algorithms:
            return self._algorithms[key]
        rows, ids, structure, counters = self.skeleton(trace, "data+ctrl")
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
        program = RankProgram(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes[rows],
            duration=duration[rows],
            peer=peer[rows],
            tag=tag[rows],
            slot=np.full(len(ids), NO_SLOT, dtype=np.int8),
            instance=np.full(len(ids), -1, dtype=np.int32),
            counters=counters,
        )
        if self.problem.network.msccl is not None and not verbatim:
            most = self.problem.network.msccl.max_count_for(algorithm, size)
            program = cut_steps(program, size, most, place, self.structure)
        self._algorithms[key] = program
        return program


def counters_of(
    trace: ExecutionTrace, rows: np.ndarray, kind: np.ndarray, need: np.ndarray, parents: np.ndarray
) -> Counters | None:
    """Counters and detached sends of a trace whose nodes stand in `rows`; None where it has neither."""
    if not any(trace.has_column(name) for name in ("counter", "count_of", "count_k", "count_from", "detached")):
        return None
    counts, of, k, start, detached = (
        trace.column(name)[rows] for name in ("counter", "count_of", "count_k", "count_from", "detached")
    )
    is_detached = detached > 0

    def refuse(bad: np.ndarray, problem: str, remedy: str) -> None:
        at = np.flatnonzero(bad)
        if len(at):
            raise AlgorithmError(node_place(trace, int(rows[at[0]])), problem, remedy)

    for column, name in ((counts, "counter"), (of, "count_of")):
        refuse((column != MISSING) & (column < 0), f"has a negative {name}", "number counters from 0")
        refuse(column >= 2**20, f"has a {name} of 2^20 or more", "number counters from 0")
    waits = of != MISSING
    refuse(~waits & ((k != MISSING) | (start != MISSING)), "has count_k or count_from without count_of", "write all")
    refuse(waits & (k < 1), "waits for a count, but its count_k is not 1 or more", "write count_k")
    refuse(is_detached & (kind != SEND), "is detached, and not a send", "only sends can be detached")
    refuse(is_detached & (counts != MISSING), "is detached, and counts in a counter", "count another node")
    leads = np.zeros(len(rows), dtype=bool)
    leads[parents] = True
    refuse(is_detached & leads, "is detached, and other nodes depend on it", "let nothing depend on a detached send")
    place = np.empty(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    origin = np.full(len(rows), -1, dtype=np.int32)
    given = waits & (start != MISSING)
    if given.any():
        found = trace.rows_of(np.where(start[given] < 0, 2**63, start[given]).astype(np.uint64))
        lost = np.zeros(len(rows), dtype=bool)
        lost[np.flatnonzero(given)] = found < 0
        refuse(lost, "has a count_from that is the id of no node", "write the id of a node of this trace")
        origin[given] = place[found]
        lost[:] = False
        lost[given] = is_detached[origin[given]]
        refuse(lost, "counts from a detached send", "count from another node")
    return Counters(
        number=int(max(counts.max(initial=-1), of.max(initial=-1), -1)) + 1,
        counts=np.where(counts == MISSING, -1, counts).astype(np.int32),
        of=np.where(waits, of, -1).astype(np.int32),
        k=np.where(waits, k, 0),
        start=origin,
        detached=is_detached,
    )
