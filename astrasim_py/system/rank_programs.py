"""Programs of ranks: traces of workloads and algorithms with bytes, peers and durations bound."""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError, AstraError, TraceError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system import durations
from astrasim_py.system.durations import node_place
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
    RotatedPrograms,
    Structure,
)
from astrasim_py.system.problem import Job, Problem

_KIND = np.full(256, INSTANT, dtype=np.int8)
_KIND[[NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV]] = COMPUTE, SEND, RECV
_KIND[[NodeType.COMM_COLL, NodeType.MEM_LOAD, NodeType.MEM_STORE]] = COLLECTIVE, MEMORY, MEMORY
_COUNTING = ("counter", "count_of", "count_k", "count_from", "detached")


class _Checks:
    """Checks of some rows of a trace."""

    def __init__(self, error: type[AstraError], trace: ExecutionTrace, rows: np.ndarray, place: str = "trace") -> None:
        self.error, self.trace, self.rows, self.place = error, trace, rows, place

    def refuse(self, bad: np.ndarray, problem: str, remedy: str = "", values: np.ndarray | None = None) -> None:
        """Raise where any node is bad; ``{}`` in the problem is the value of the first one."""
        if bad.any():
            i = int(np.argmax(bad))
            text = problem if values is None else problem.format(int(values[i]))
            raise self.error(node_place(self.trace, int(self.rows[i]), self.place), text, remedy)


class RankPrograms:
    """Programs of one problem, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.semantics = problem.semantics
        self._structures: dict[bytes, Structure] = {}
        self.skeleton, self.of_algorithm = cache(self.skeleton), cache(self.of_algorithm)

    def skeleton(
        self, trace: ExecutionTrace, dependencies: str
    ) -> tuple[np.ndarray, np.ndarray, Structure, Counters | None]:
        """Rows in ascending node id, the ids, the structure and the counters."""
        ptr, parents = trace.parents(dependencies)
        rows = np.argsort(trace.node_id, kind="stable").astype(np.int64)
        place = _inverse(rows)
        child, parents, need = place[np.repeat(np.arange(len(trace)), np.diff(ptr))], place[parents], np.diff(ptr)[rows]
        by_child = np.argsort(child, kind="stable")
        child, parents = child[by_child], parents[by_child]
        kind = _KIND[trace.type.astype(np.uint8)][rows]
        counters = _counters(trace, rows, kind, parents)
        if counters is not None:
            need = need + (counters.of >= 0)
        return rows, trace.node_id[rows], self.structure(kind, need, child, parents), counters

    def structure(self, kind: np.ndarray, need: np.ndarray, child: np.ndarray, parents: np.ndarray) -> Structure:
        """The structure of nodes with kinds `kind` and `need` parents each; edges ascend by child."""
        state = hashlib.blake2b(digest_size=16)
        for array in (kind, need.astype(np.int32), parents.astype(np.int32)):
            state.update(np.ascontiguousarray(array).tobytes())
        digest = state.digest()
        if digest not in self._structures:
            self._structures[digest] = Structure(
                key=digest,
                kind=kind,
                need=need.astype(np.int32),
                succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=len(kind)))]),
                succ=child[np.argsort(parents, kind="stable")].astype(np.int32),
                roots=np.flatnonzero(need == 0).astype(np.int32),
            )
        return self._structures[digest]

    def of_job(self, job: Job, kind_of: np.ndarray, instances: Sequence[np.ndarray]) -> list[RankProgram]:
        """Programs of all ranks of a job; ranks of one kind share a trace, and one program if it has no peers."""
        programs, shared = [], {}
        for rank, kind in enumerate(kind_of.tolist()):
            key = kind, job.compute_speed.get(rank, 1)
            program = shared[key] if key in shared else self._of_rank(job, rank, instances[kind])
            if key not in shared and not (program.peer >= 0).any():
                shared[key] = program
            programs.append(program)
        return programs

    def _of_rank(self, job: Job, rank: int, instance: np.ndarray) -> RankProgram:
        trace = job.workload.traces[rank]
        rows, ids, structure, counters = self.skeleton(trace, job.dependencies or self.semantics.dependencies)
        kind = structure.kind
        if counters is not None:
            _Checks(TraceError, trace, rows, f"rank {rank}").refuse(
                counters.detached, "is detached, and not part of an algorithm", "let nodes depend on it or not"
            )
        speed = Fraction(job.compute_speed.get(rank, 1))
        duration = durations.workload_ps(trace, self.problem.compute, self.semantics, speed)
        duration += durations.memory_ps(trace, self.problem.memory, self.semantics)
        nbytes, peer, tag = _workload_messages(trace, rank, job.ranks)
        stated = trace.column("slot_kind")[rows]
        slot = np.array([COMPUTE_SLOT, COMM_SLOT, NO_SLOT, COMM_SLOT, COMM_SLOT, NO_SLOT], dtype=np.int8)[kind]
        slot[(kind == COMPUTE) & (trace.column("is_cpu_op")[rows] > 0)] = CPU_SLOT
        return RankProgram(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes[rows],
            duration=duration[rows],
            peer=peer[rows],
            tag=tag[rows],
            slot=np.where((stated >= NO_SLOT) & (stated <= COMM_SLOT), stated, slot).astype(np.int8),
            instance=instance[rows],
            counters=counters,
        )

    def of_algorithm(
        self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool, *, rotated: bool
    ) -> Sequence[RankProgram]:
        """Programs of all ranks of an algorithm for a full buffer of `size` bytes; no speeds: all are 1.

        With `rotated` only rank 0's program is made if the others follow from it (`RotatedPrograms`).
        """
        one = self._rotated(algorithm, size, speeds, planned) if rotated else None
        return one or tuple(
            self._of_position(algorithm, p, trace, size, speeds[p] if speeds else Fraction(1), planned)
            for p, trace in enumerate(algorithm.traces)
        )

    def _rotated(
        self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool
    ) -> RotatedPrograms | None:
        """One program for all ranks if they differ only in peers and bytes, else None."""
        symmetric = algorithm.rotated
        if symmetric is None or (self.semantics.gamma and not algorithm.same_bytes(size)):
            return None
        trace = symmetric.traces[0]
        base = self._of_position(algorithm, 0, trace, size, speeds[0] if speeds else Fraction(1), planned)
        if len(set(speeds)) > 1 and base.duration.any():
            return None
        made = RotatedPrograms(symmetric, base, size, self._verbatim(trace, planned))
        # Without a stated chunk count, sizes in chunks are arbitrary.
        return made if symmetric.chunks or made.uniform_bytes else None

    def _verbatim(self, trace: ExecutionTrace, planned: bool) -> bool:
        """Whether written sizes are used as they are; sizes in chunks alone follow the collective."""
        return (planned or self.semantics.injected_sizes == "verbatim") and trace.has_column("comm_size")

    def _of_position(
        self, algorithm: Algorithm, position: int, trace: ExecutionTrace, size: int, speed: Fraction, planned: bool
    ) -> RankProgram:
        rows, ids, structure, counters = self.skeleton(trace, "data+ctrl")
        kind, place = structure.kind, f"{algorithm.name} rank {position}"
        for foreign in (COLLECTIVE, MEMORY, INSTANT):
            what = f"a {KIND_NAMES[foreign]} node cannot be part of an algorithm"
            remedy = "use send, receive and compute nodes only"
            _Checks(AlgorithmError, trace, rows, place).refuse(kind == foreign, what, remedy)
        verbatim = self._verbatim(trace, planned)
        nbytes = algorithm.message_bytes(position, size, verbatim=verbatim)
        tag = trace.column("comm_tag")[rows]
        program = RankProgram(
            trace=trace,
            rows=rows,
            node_id=ids,
            structure=structure,
            nbytes=nbytes[rows],
            duration=self._algorithm_durations(trace, nbytes, speed, place)[rows],
            peer=_algorithm_peers(algorithm, position, trace, place)[rows],
            tag=np.where(tag == MISSING, 0, tag),
            slot=np.full(len(ids), NO_SLOT, dtype=np.int8),
            instance=np.full(len(ids), -1, dtype=np.int32),
            counters=counters,
        )
        msccl = self.problem.network.msccl
        if msccl is None or verbatim:
            return program
        return cut_steps(program, size, msccl.max_count_for(algorithm, size), place, self.structure)

    def _algorithm_durations(
        self, trace: ExecutionTrace, nbytes: np.ndarray, speed: Fraction, place: str
    ) -> np.ndarray:
        is_compute = trace.type == NodeType.COMP
        duration = np.where(is_compute, durations.recorded_ps(trace, self.semantics), 0)
        reducing = is_compute & (trace.column("comp_op") == CompOp.REDUCE)
        if self.semantics.gamma and reducing.any():
            duration[reducing] += durations.reduction_ps(nbytes[reducing], self.semantics.gamma)
            _Checks(AlgorithmError, trace, np.arange(len(trace)), place).refuse(
                duration < 0,
                "its recorded duration and its reduction take longer than 2^63 - 1 ps (106 days)",
                "check the unit of its duration",
            )
        return durations.scale_by_speed(duration, speed, trace)


def _inverse(order: np.ndarray) -> np.ndarray:
    """int64[n]: the place of each element in an order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def _algorithm_peers(algorithm: Algorithm, position: int, trace: ExecutionTrace, place: str) -> np.ndarray:
    """int32[n]: peers of an algorithm's sends and receives, in the order of the trace."""
    peer = np.full(len(trace), -1, dtype=np.int32)
    for node_type, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        rows = np.flatnonzero(trace.type == node_type)
        peer[rows] = partner = trace.column(name)[rows]
        refuse = _Checks(AlgorithmError, trace, rows, place).refuse
        refuse(partner == MISSING, f"lacks {name}")
        refuse(partner == position, f"{name} {position} is its own rank")
        outside = f"{name} {{}} is not a rank of the algorithm (0..{algorithm.ranks - 1})"
        refuse((partner < 0) | (partner >= algorithm.ranks), outside, values=partner)
    return peer


def _workload_messages(trace: ExecutionTrace, rank: int, ranks: int) -> tuple[np.ndarray, ...]:
    """Bytes, peer and tag of a workload's sends and receives, in the order of the trace."""
    nbytes, tag = np.zeros((2, len(trace)), dtype=np.int64)
    peer = np.full(len(trace), -1, dtype=np.int32)
    for kind, word, own, other in (
        (NodeType.COMM_SEND, "send", "comm_src", "comm_dst"),
        (NodeType.COMM_RECV, "receive", "comm_dst", "comm_src"),
    ):
        rows = np.flatnonzero(trace.type == kind)
        if not len(rows):
            continue
        partner, size, tags, mine = (trace.column(name)[rows] for name in (other, "comm_size", "comm_tag", own))
        refuse = _Checks(TraceError, trace, rows, f"rank {rank}").refuse
        remedy = f"give it {other}, comm_size and comm_tag"
        in_chunks = "its size is in chunks: these files are an algorithm, inject them under algorithms"
        for name, values in ((other, partner), ("comm_size", size), ("comm_tag", tags)):
            lacks = values == MISSING
            if name == "comm_size":
                refuse(lacks & (trace.column("total_chunk_cnt")[rows] > 0), f"a {word} node lacks {name}", in_chunks)
            refuse(lacks, f"a {word} node lacks {name}", remedy)
            if name != "comm_tag":
                refuse(values < 0, f"a {word} node has {name} {{}}", remedy, values)
        refuse(partner == rank, f"{other} {rank} is its own rank")
        refuse(partner >= ranks, f"{other} {{}} is not a rank of this workload (0..{ranks - 1})", values=partner)
        strange = (mine != MISSING) & (mine != rank)
        refuse(strange, f"{own} {{}} is not its own rank {rank}", "check that the files are named by rank", mine)
        peer[rows], nbytes[rows], tag[rows] = partner, size, tags
    return nbytes, peer, tag


def _counters(trace: ExecutionTrace, rows: np.ndarray, kind: np.ndarray, parents: np.ndarray) -> Counters | None:
    """Counters and detached sends of the nodes in `rows` of a trace; None if it has neither."""
    if not any(map(trace.has_column, _COUNTING)):
        return None
    counts, of, k, start, detached = (trace.column(name)[rows] for name in _COUNTING)
    is_detached, waits = detached > 0, of != MISSING
    leads = np.zeros(len(rows), dtype=bool)
    leads[parents] = True
    refuse = _Checks(AlgorithmError, trace, rows).refuse
    for column, name in ((counts, "counter"), (of, "count_of")):
        refuse((column != MISSING) & (column < 0), f"has a negative {name}", "number counters from 0")
        refuse(column >= 2**20, f"has a {name} of 2^20 or more", "number counters from 0")
    refuse(~waits & ((k != MISSING) | (start != MISSING)), "has count_k or count_from without count_of", "write all")
    refuse(waits & (k < 1), "waits for a count, but its count_k is not 1 or more", "write count_k")
    refuse(is_detached & (kind != SEND), "is detached, and not a send", "only sends can be detached")
    refuse(is_detached & (counts != MISSING), "is detached, and counts in a counter", "count another node")
    refuse(is_detached & leads, "is detached, and other nodes depend on it", "let nothing depend on a detached send")
    given = waits & (start != MISSING)
    row = trace.rows_of(np.where(start < 0, np.uint64(2**63), start.astype(np.uint64)))
    refuse(given & (row < 0), "has a count_from that is the id of no node", "write the id of a node of this trace")
    origin = np.where(given, _inverse(rows)[row], -1)
    refuse(given & is_detached[origin], "counts from a detached send", "count from another node")
    return Counters(
        number=int(max(counts.max(initial=-1), of.max(initial=-1), -1)) + 1,
        counts=np.where(counts == MISSING, -1, counts).astype(np.int32),
        of=np.where(waits, of, -1).astype(np.int32),
        k=np.where(waits, k, 0),
        start=origin.astype(np.int32),
        detached=is_detached,
    )
