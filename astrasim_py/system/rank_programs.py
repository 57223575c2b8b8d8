"""Programs of ranks: traces of workloads and algorithms with bytes, peers and durations bound."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from operator import attrgetter

import numpy as np

from astrasim_py.chakra.schema import MISSING, SOFTWARE_TIME, NodeType
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError, AstraError, TraceError
from astrasim_py.core.rows import compact, inverse, joined
from astrasim_py.core.units import INT64_MAX
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import Program, Unusable
from astrasim_py.system import compatible, durations
from astrasim_py.system.durations import node_place
from astrasim_py.system.instances import JobInstances
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import (
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
    SOFTWARE,
    BlockCosts,
    Counters,
    MemberBytes,
    Programs,
    ProgramTable,
    RankProgram,
    Structure,
    TileUses,
)
from astrasim_py.system.repeated import Repeated

_KIND = np.full(256, INSTANT, dtype=np.int8)
_KIND[[NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV]] = COMPUTE, SEND, RECV
_KIND[[NodeType.COMM_COLL, NodeType.MEM_LOAD, NodeType.MEM_STORE]] = COLLECTIVE, MEMORY, MEMORY
_COLUMNS = ("rows", "node_id", "nbytes", "duration", "peer", "tag", "slot", "instance")
_COUNTING = ("counter", "count_of", "count_k", "count_from", "detached")


def _refusal(error: type[AstraError], table: Program, place: Callable[[int], str]) -> Callable[..., None]:
    """Checks of nodes of a table; `place` names a rank of it that has no file."""

    def refuse(rows: np.ndarray, bad: np.ndarray, problem: str, remedy: str = "", values: np.ndarray | None = None):
        """Raise where any of some rows is bad; ``{}`` in the problem is the value of the first one."""
        if bad.any():
            i = int(np.argmax(bad))
            row, text = int(rows[i]), problem if values is None else problem.format(int(values[i]))
            raise error(node_place(table, row, place(int(table.rank[row]))), text, remedy)

    return refuse


class RankPrograms:
    """Programs of one problem, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.semantics = problem.semantics
        #: Parts of every message.
        self.parts = problem.network.qps if problem.network.split else 1
        self._structures: dict[bytes, Structure] = {}
        self.skeletons, self.of_algorithm, self.uses = (
            cache(self._skeletons),
            cache(self._of_algorithm),
            cache(self._uses),
        )
        self._of_trace = cache(lambda trace, dependencies: Program.of_traces([trace], dependencies))
        self._of_all = cache(attrgetter("program"))

    def _uses(self, table: Program) -> TileUses | None:
        """The uses of collectives in tiles by the nodes of a rank's workload; None where there are none."""
        if not (table.has("consumes") or table.has("produces")):
            return None
        from astrasim_py.dialects.tiles.lower import tile_uses

        return tile_uses(table, _refusal(TraceError, table, lambda rank: f"rank {rank}"))

    def _skeletons(self, table: Program) -> tuple[Repeated[Structure], list[Counters] | None]:
        """By rank the structure, of nodes in ascending id; and by rank the counters, None where there are none."""
        rows = table.by_id
        place = inverse(rows)
        child, parents, need = place[table.child], place[table.parents], np.diff(table.ptr)[rows]
        uses = self.uses(table)
        if uses is not None:
            from astrasim_py.dialects.tiles.lower import without_whole

            child, parents, need = without_whole(uses, child, parents, need)
        by_child = np.argsort(child, kind="stable")
        child, parents = child[by_child], parents[by_child]
        kind = kinds_of(table)[rows]
        counters = _counters(table, rows, kind, parents)
        if counters is not None:
            need = need + (joined([own.of for own in counters], np.int32) >= 0)
        bounds = np.stack([table.bounds, np.searchsorted(child, table.bounds)], axis=1)
        first = np.repeat(table.bounds[:-1], np.diff(bounds[:, 1]))
        child, parents = child - first, parents - first
        # Ranks with equal nodes and edges share a structure.
        nodes, edges = (np.stack(pair, axis=1).astype(np.int32).tobytes() for pair in ((kind, need), (child, parents)))
        number: dict[tuple[bytes, bytes], int] = {}
        which = np.array(
            [
                number.setdefault((nodes[low:high], edges[begin:end]), len(number))
                for (low, begin), (high, end) in pairwise((8 * bounds).tolist())
            ]
        )
        structures = []
        for rank in np.unique(which, return_index=True)[1].tolist():
            (low, begin), (high, end) = bounds[rank : rank + 2].tolist()
            structures.append(self.structure(kind[low:high], need[low:high], child[begin:end], parents[begin:end]))
        return Repeated(structures, which), counters

    def structure(self, kind: np.ndarray, need: np.ndarray, child: np.ndarray, parents: np.ndarray) -> Structure:
        """The structure of nodes with kinds `kind` and `need` parents each; edges ascend by child."""
        state = hashlib.blake2b(digest_size=16)
        for array in (kind, *(part.astype(np.int32) for part in (need, child, parents))):
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

    def of_job(self, job: Job, calls: JobInstances, first: int) -> Programs:
        """Programs of all ranks of a job; those of equal trace and speed share one. `first`: its first instance."""
        number: dict[tuple, int] = {}
        different: list[tuple[RankProgram, int, int, int]] = []
        program_of, by_rank = np.zeros((2, job.ranks), dtype=np.int64)
        shifts = job.workload.shifts
        for rank, kind in enumerate(calls.kind_of.tolist()):
            # Under noise all ranks differ.
            key = kind, job.compute_speed.get(rank, 1), rank if self.problem.noise else 0
            if key not in number:
                program = self._of_rank(job, rank, calls.calls[kind])
                last = int(program.peer.max(initial=-1))
                number[key] = len(different)
                different.append((program, rank, int(program.peer.min(initial=last, where=program.peer >= 0)), last))
            program_of[rank] = number[key]
            _, sharer, least, last = different[number[key]]
            by_rank[rank] = shift = shifts[rank] - shifts[sharer] if last >= 0 else 0
            if last >= 0 and (rank - sharer != shift or least + shift < 0 or last + shift >= job.ranks):
                table = self._of_trace(job.workload.traces[rank], job.ordered_by(self.semantics))
                _workload_messages(table, rank, job.ranks, shifts[rank])
        instances = Repeated([bound + np.int32(first) for bound in calls.bound], calls.binding_of)
        return Programs(ProgramTable.of(program for program, *_ in different), program_of, by_rank, instances=instances)

    def _of_rank(self, job: Job, rank: int, instance: np.ndarray) -> RankProgram:
        table = self._of_trace(job.workload.traces[rank], job.ordered_by(self.semantics))
        self.skeletons(table)
        refuse = _refusal(TraceError, table, lambda _: f"rank {rank}")
        detached, text = table.column("detached") > 0, "is detached, and not part of an algorithm"
        refuse(np.arange(len(table)), detached, text, "let nodes depend on it or not")
        if self.uses(table) is not None and self.semantics.issue_order == "hash_set":
            compatible.refuse(compatible.HASH_SET, {compatible.TILES: True})
        speed = Fraction(job.compute_speed.get(rank, 1))
        duration = durations.workload_ps(table, self.problem.compute, self.semantics, speed)
        if self.problem.noise is not None and self.problem.noise.compute is not None:
            # Steps of algorithms have none, whether inlined or not.
            rows = np.flatnonzero((table.type == NodeType.COMP) & (table.column("inlined_call") == MISSING))
            ids = job.workload.traces[rank].node_id
            last = int(ids.max(initial=0))
            added = self.problem.noise.times(job.name, rank, table.node_id[rows], job.iterations, last)
            text = "takes, with its noise, longer than 2^63 - 1 ps (106 days)"
            refuse(rows, duration[rows] > INT64_MAX - added, text, "check the unit of its duration")
            duration[rows] += added
        duration += durations.memory_ps(table, self.problem.memory, self.semantics)
        nbytes, peer, tag = _workload_messages(table, rank, job.ranks, job.workload.shifts[rank])
        columns = nbytes, duration, peer, tag, slots_of(table), instance
        program = self.bound(f"{job.name} rank {rank}", table, *columns)[0]
        uses = self.uses(table)
        if uses is None:
            return program
        from astrasim_py.dialects.tiles.lower import in_program

        return replace(program, tiles=in_program(uses, table, program))

    def bound(self, place: str, table: Program, *columns: np.ndarray) -> ProgramTable:
        """Programs of the ranks of a table; `columns`: bytes, durations, peers, tags, slots and instances of its rows.

        `place`: names the table in errors.
        """
        (structures, counters), rows = self.skeletons(table), table.by_id
        columns = table.node_id, *columns
        if bool((np.diff(rows) < 0).any()):
            columns = tuple(column[rows] for column in columns)
        if table.ranks > 1:
            columns = tuple(map(compact, columns))
        local = rows - np.repeat(table.bounds[:-1], np.diff(table.bounds))
        programs = ProgramTable(table.bounds, structures, dict(zip(_COLUMNS, (local, *columns), strict=True)))
        if counters is not None:
            counted = zip(programs, counters, strict=True)
            programs = ProgramTable.of(replace(program, counters=counting) for program, counting in counted)
        if self.parts > 1:
            from astrasim_py.dialects.queue_pairs.lower import split_messages

            programs = ProgramTable.of(split_messages(p, self.parts, self.structure, place) for p in programs)
        return programs

    def _of_algorithm(
        self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool, *, rotated: bool
    ) -> Programs:
        """Programs of all ranks of an algorithm for a full buffer of `size` bytes; no speeds: all are 1.

        With `rotated` only rank 0's program is made if the others follow from it.
        """
        by_rotation = self._rotated(algorithm, size, speeds, planned) if rotated else None
        return by_rotation or Programs(self._bound(algorithm, self._of_all(algorithm), size, speeds, planned))

    def _rotated(self, algorithm: Algorithm, size: int, speeds: tuple[Fraction, ...], planned: bool) -> Programs | None:
        """One program for all ranks if they differ only in peers and bytes, else None."""
        symmetric = algorithm.rotated
        if symmetric is None or (self.semantics.gamma and not algorithm.same_bytes(size)):
            return None
        table = symmetric.first
        (base,) = self._bound(algorithm, table, size, speeds[:1], planned)
        if len(set(speeds)) > 1 and base.duration.any():
            return None
        uniform = self._verbatim(table, planned) or symmetric.same_bytes(size)
        if not symmetric.chunks and not uniform:
            # Without a stated chunk count, sizes in chunks are arbitrary.
            return None
        member_bytes = None if uniform else MemberBytes(symmetric, size, self.parts)
        return Programs.everywhere(base, symmetric.ranks, rotation=symmetric.rotation, member_bytes=member_bytes)

    def _verbatim(self, table: Program, planned: bool) -> bool:
        """Whether written sizes are used; sizes given in chunks only follow the collective."""
        return (planned or self.semantics.injected_sizes == "verbatim") and table.has("comm_size")

    def _bound(
        self, algorithm: Algorithm, table: Program, size: int, speeds: tuple[Fraction, ...], planned: bool
    ) -> ProgramTable:
        """Programs of the ranks of a table, which are the first ones of the algorithm."""
        refuse = _refusal(AlgorithmError, table, lambda rank: f"{algorithm.name} {algorithm.position_name(rank)}")
        verbatim = self._verbatim(table, planned)
        nbytes, peer, tag = self._messages(algorithm, table, size, verbatim, refuse)
        speeds = (*speeds, *(Fraction(1) for _ in algorithm.actors if speeds))
        duration = self._algorithm_durations(algorithm, table, nbytes, speeds, refuse)
        if algorithm.actors:
            nbytes = self._on_the_wire(algorithm, table, nbytes, peer)
        slot, instance = np.full(len(table), NO_SLOT, dtype=np.int8), np.full(len(table), -1, dtype=np.int32)
        columns = nbytes, duration, peer, tag, slot, instance
        programs = self.bound(algorithm.source or algorithm.name, table, *columns)
        if self.semantics.issue_order == "hash_set" and not planned:
            from astrasim_py.dialects.astra_sim.lower import by_hash_set

            ordered = zip(programs, algorithm.traces, strict=False)
            programs = ProgramTable.of(by_hash_set(program, trace) for program, trace in ordered)
        msccl = self.problem.network.msccl
        if msccl is None or verbatim:
            return programs
        from astrasim_py.dialects.library.lower_connections import cut_steps

        most = msccl.max_count_for(algorithm, size)
        try:
            return ProgramTable.of(cut_steps(programs, table, size, most, algorithm.name, self.structure))
        except Unusable as error:
            raise AlgorithmError(algorithm.source or algorithm.name, error.problem) from None

    def by_blocks(self, algorithm: Algorithm, size: int, costs: BlockCosts) -> Programs:
        """Programs of all ranks of a given program, thread block by thread block, for a full buffer of `size` bytes."""
        table = self._of_all(algorithm)
        self.skeletons(table)
        refuse = _refusal(AlgorithmError, table, lambda rank: f"{algorithm.name} rank {rank}")
        nbytes, peer, tag = self._messages(algorithm, table, size, self._verbatim(table, False), refuse)
        kind = _KIND[table.type.astype(np.uint8)]
        from astrasim_py.dialects.thread_blocks.lower import by_thread_blocks

        try:
            return Programs.of(by_thread_blocks(algorithm, table, costs, kind, nbytes, peer, tag, self.structure))
        except Unusable as error:
            raise AlgorithmError(algorithm.source or algorithm.name, error.problem) from None

    def _messages(
        self, algorithm: Algorithm, table: Program, size: int, verbatim: bool, refuse: Callable[..., None]
    ) -> tuple[np.ndarray, ...]:
        """Bytes, peers and tags of the nodes of an algorithm."""
        rows = np.arange(len(table))
        kind = _KIND[table.type.astype(np.uint8)]
        for foreign in (COLLECTIVE, MEMORY, INSTANT):
            text = f"a {KIND_NAMES[foreign]} node cannot be part of an algorithm"
            refuse(rows, kind == foreign, text, "use send, receive and compute nodes only")
        nbytes = algorithm.bytes_of(table, size, verbatim=verbatim)
        peer = _algorithm_peers(algorithm, table, refuse)
        tag = table.column("comm_tag")
        return nbytes, peer, np.where(tag == MISSING, 0, tag)

    def _algorithm_durations(
        self,
        algorithm: Algorithm,
        table: Program,
        nbytes: np.ndarray,
        speeds: tuple[Fraction, ...],
        refuse: Callable[..., None],
    ) -> np.ndarray:
        is_compute = table.type == NodeType.COMP
        duration = np.where(is_compute, durations.recorded_ps(table, self.semantics), 0)
        reducing, on_switch = is_compute & (table.column("comp_op") == CompOp.REDUCE), table.rank >= algorithm.ranks
        # In a profile, reductions hide behind the links.
        costs = [(~on_switch, self.semantics.gamma if self.problem.network.profile is None else Fraction(0))]
        computing = self.problem.topology.computing
        if algorithm.actors and computing is not None and computing.reduce_bandwidth:
            costs.append((on_switch, 1 / computing.reduce_bandwidth))
        for where, cost in costs:
            rows = reducing & where
            if not cost or not rows.any():
                continue
            duration[rows] += durations.reduction_ps(nbytes[rows], cost)
            text = "its recorded duration and its reduction take longer than 2^63 - 1 ps (106 days)"
            refuse(np.arange(len(table)), duration < 0, text, "check the unit of its duration")
        return durations.scale_by_speed(duration, speeds, table)

    def _on_the_wire(self, algorithm: Algorithm, table: Program, nbytes: np.ndarray, peer: np.ndarray) -> np.ndarray:
        """int64[rows]: bytes, of which messages from and to switches have their overhead."""
        computing = self.problem.topology.computing
        assert computing is not None, "only its switches are actors"
        overhead = computing.overhead
        sizes, code = np.unique(nbytes, return_inverse=True)
        more = np.array([-(-size * overhead.numerator // overhead.denominator) for size in sizes.tolist()], np.int64)
        return np.where((peer >= 0) & (np.maximum(peer, table.rank) >= algorithm.ranks), more[code], nbytes)


def kinds_of(table: Program) -> np.ndarray:
    """int8[n]: kinds of nodes; time of software is that of compute nodes that say so."""
    kind = _KIND[table.type.astype(np.uint8)]
    kind[(kind == COMPUTE) & (table.column("slot_kind") == SOFTWARE_TIME)] = SOFTWARE
    return kind


def slots_of(table: Program) -> np.ndarray:
    """int8[n]: the kind of slot that each node of a workload holds while it is in flight."""
    kind, stated = kinds_of(table), table.column("slot_kind")
    slot = np.array([COMPUTE_SLOT, COMM_SLOT, NO_SLOT, COMM_SLOT, COMM_SLOT, NO_SLOT, NO_SLOT], dtype=np.int8)[kind]
    slot[(kind == COMPUTE) & (table.column("is_cpu_op") > 0)] = CPU_SLOT
    return np.where((stated >= NO_SLOT) & (stated <= COMM_SLOT), stated, slot).astype(np.int8)


def _algorithm_peers(algorithm: Algorithm, table: Program, refuse: Callable[..., None]) -> np.ndarray:
    """int32[rows]: peers of an algorithm's sends and receives."""
    peer = np.full(len(table), -1, dtype=np.int32)
    for node_type, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        rows = np.flatnonzero(table.type == node_type)
        peer[rows] = partner = table.column(name)[rows]
        refuse(rows, partner == MISSING, f"lacks {name}")
        refuse(rows, partner == table.rank[rows], f"{name} {{}} is its own rank", values=partner)
        outside = f"{name} {{}} is not a rank of the algorithm (0..{algorithm.positions - 1})"
        refuse(rows, (partner < 0) | (partner >= algorithm.positions), outside, values=partner)
    return peer


def _workload_messages(table: Program, rank: int, ranks: int, shift: int) -> tuple[np.ndarray, ...]:
    """Bytes, peer and tag of a workload's sends and receives; `shift`: what is added to its peers."""
    refuse = _refusal(TraceError, table, lambda _: f"rank {rank}")
    nbytes, tag = np.zeros((2, len(table)), dtype=np.int64)
    peer = np.full(len(table), -1, dtype=np.int32)
    for kind, word, own, other in (
        (NodeType.COMM_SEND, "send", "comm_src", "comm_dst"),
        (NodeType.COMM_RECV, "receive", "comm_dst", "comm_src"),
    ):
        rows = np.flatnonzero(table.type == kind)
        if not len(rows):
            continue
        partner, size, tags, here = (table.column(name)[rows] for name in (other, "comm_size", "comm_tag", own))
        partner, here = (np.where(ends == MISSING, MISSING, ends + shift) for ends in (partner, here))
        remedy = f"give it {other}, comm_size and comm_tag"
        in_chunks = "its size is in chunks: these files are an algorithm, inject them under algorithms"
        for name, values in ((other, partner), ("comm_size", size), ("comm_tag", tags)):
            lacks = values == MISSING
            if name == "comm_size":
                refuse(
                    rows, lacks & (table.column("total_chunk_cnt")[rows] > 0), f"a {word} node lacks {name}", in_chunks
                )
            refuse(rows, lacks, f"a {word} node lacks {name}", remedy)
            if name != "comm_tag":
                refuse(rows, values < 0, f"a {word} node has {name} {{}}", remedy, values)
        refuse(rows, partner == rank, f"{other} {rank} is its own rank")
        refuse(rows, partner >= ranks, f"{other} {{}} is not a rank of this workload (0..{ranks - 1})", values=partner)
        strange = (here != MISSING) & (here != rank)
        refuse(rows, strange, f"{own} {{}} is not its own rank {rank}", "check that the files are named by rank", here)
        peer[rows], nbytes[rows], tag[rows] = partner, size, tags
    return nbytes, peer, tag


def _counters(table: Program, rows: np.ndarray, kind: np.ndarray, parents: np.ndarray) -> list[Counters] | None:
    """By rank: counters and detached sends of the nodes in `rows`; None where there are neither."""
    if not any(map(table.has, _COUNTING)):
        return None
    counts, of, k, start, detached = (table.column(name)[rows] for name in _COUNTING)
    is_detached, waits = detached > 0, of != MISSING
    leads = np.zeros(len(rows), dtype=bool)
    leads[parents] = True
    refuse = partial(_refusal(AlgorithmError, table, lambda _: "trace"), rows)
    for column, name in ((counts, "counter"), (of, "count_of")):
        refuse((column != MISSING) & (column < 0), f"has a negative {name}", "number counters from 0")
        refuse(column >= 2**20, f"has a {name} of 2^20 or more", "number counters from 0")
    refuse(~waits & ((k != MISSING) | (start != MISSING)), "has count_k or count_from without count_of", "write all")
    refuse(waits & (k < 1), "waits for a count, but its count_k is not 1 or more", "write count_k")
    refuse(is_detached & (kind != SEND), "is detached, and not a send", "only sends can be detached")
    refuse(is_detached & (counts != MISSING), "is detached, and counts in a counter", "count another node")
    refuse(is_detached & leads, "is detached, and other nodes depend on it", "let nothing depend on a detached send")
    stated = waits & (start != MISSING)
    row = table.rows_named("count_from")[rows]
    refuse(stated & (row < 0), "has a count_from that is the id of no node", "write the id of a node of this trace")
    origin = np.where(stated, inverse(rows)[row], -1)
    refuse(stated & is_detached[origin], "counts from a detached send", "count from another node")
    counters = []
    for low, high in pairwise(table.bounds.tolist()):
        part = slice(low, high)
        counters.append(
            Counters(
                number=int(max(counts[part].max(initial=-1), of[part].max(initial=-1), -1)) + 1,
                counts=np.where(counts == MISSING, -1, counts)[part].astype(np.int32),
                of=np.where(waits, of, -1)[part].astype(np.int32),
                k=np.where(waits, k, 0)[part],
                start=np.where(origin < 0, -1, origin - low)[part].astype(np.int32),
                detached=is_detached[part],
            )
        )
    return counters
