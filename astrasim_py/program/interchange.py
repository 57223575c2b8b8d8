"""Algorithms as Chakra ETs: what an algorithm is and promises stands in the metadata of its traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace as dataclass_replace

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.protocols import PROTOCOL_SLOTS
from astrasim_py.program.recognise import GivenTraces

#: Metadata that states what an algorithm is and promises.
STATED = (
    "collective", "algorithm", "ranks", "root", "chunks", "in_place", "made_for", "protocol", "contract",
)  # fmt: skip


def _stated(algorithm: Algorithm, rank: int) -> list[tuple[str, object]]:
    # A contract speaks of all ranks, so one file holds it: n copies would make files grow as n^2.
    contract = algorithm.contract if rank == 0 else None
    values = {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        "ranks": algorithm.ranks,
        "root": algorithm.root,
        "chunks": algorithm.chunks,
        "in_place": algorithm.in_place,
        "made_for": algorithm.made_for,
        "protocol": algorithm.protocol or None,
        "contract": None if contract is None else contract.to_text(),
    }
    return [(name, value) for name, value in values.items() if value is not None]


def algorithm_traces(algorithm: Algorithm, size: int | None = None) -> tuple[ExecutionTrace, ...]:
    """Traces of an algorithm as they are written to ``.et`` files.

    What the algorithm is goes into the metadata of every file, so that `read_algorithm` needs no further word; the
    metadata that its traces have stays.

    Parameters
    ----------
    size : int, optional
        Full buffer, bytes: state absolute sizes for it (``comm_size`` on messages, ``tensor_size`` on COMP nodes)
        beside those in chunks, for readers that know only the older dialect.
    """
    if size is not None:
        algorithm = dataclass_replace(algorithm, made_for=size)
    out = []
    for rank, trace in enumerate(algorithm.traces):
        others = [attribute for attribute in trace.metadata if attribute.name not in STATED]
        trace = trace.without_raw().replace(metadata=[*_stated(algorithm, rank), *others])
        if size is not None:
            nbytes = algorithm.message_bytes(rank, size)
            message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
            moved = ~message & (trace.column("comp_op") != MISSING)
            tensor = trace.column("tensor_size")
            trace = trace.replace(
                comm_size=np.where(message, nbytes, MISSING), tensor_size=np.where(moved, nbytes, tensor)
            )
        out.append(trace)
    return tuple(out)


#: By node type, whether an algorithm may hold it.
_IN_ALGORITHM = np.zeros(128, dtype=bool)
_IN_ALGORITHM[[NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMP, NodeType.METADATA, NodeType.INVALID]] = True


def _plain_chunks(trace: ExecutionTrace, rank: int, ranks: int) -> int | None:
    """The number of chunks of a trace (0: none) that is seen at a glance to be well-formed; else None."""
    kinds = trace.type
    if not _IN_ALGORITHM[kinds].all():
        return None
    for kind, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        peer = trace.picked(name, np.flatnonzero(kinds == kind))
        if len(peer) and (peer.min() < 0 or peer.max() >= ranks or (peer == rank).any()):
            return None
    index, count, total = (trace.picked(name) for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    symbolic = (total > 0) & (index >= 0) & (count >= 0)
    most = int(total.max(where=symbolic, initial=0))
    if (symbolic & ((total != most) | (index + count > total))).any():
        return None
    return most


def check_well_formed(traces: Sequence[ExecutionTrace], name: str, ranks: int | None = None) -> int:
    """Check peers and chunk ranges of traces, the first of `ranks` (default: all there are).

    Returns the common number of chunks, 0 where no node states its size in chunks.
    """
    ranks = len(traces) if ranks is None else ranks
    chunks = 0
    for rank, trace in enumerate(traces):
        usual = _plain_chunks(trace, rank, ranks)
        if usual is not None and usual in (0, chunks or usual):
            chunks = usual or chunks
            continue
        place = trace.place or f"{name}: rank {rank}"

        def refuse(rows: np.ndarray, problem: str, remedy: str, trace=trace, place=place) -> None:
            if len(rows):
                row = int(rows[0])
                raise AlgorithmError(f"{place}: node {int(trace.node_id[row])}", problem.format(row=row), remedy)

        kinds = trace.type
        for kind, column, word in (
            (NodeType.COMM_SEND, "comm_dst", "sends"),
            (NodeType.COMM_RECV, "comm_src", "receives"),
        ):
            mine, peer = kinds == kind, trace.column(column)
            refuse(np.flatnonzero(mine & (peer == MISSING)), f"{word} without {column}", f"write {column}")
            wrong = np.flatnonzero(mine & ((peer < 0) | (peer >= ranks)))
            if len(wrong):
                refuse(
                    wrong,
                    f"{column} {int(peer[wrong[0]])} is not one of {ranks} ranks",
                    f"write a rank in 0..{ranks - 1}, as counted in the group",
                )
            refuse(np.flatnonzero(mine & (peer == rank)), f"{word} to itself", "name another rank")
        refuse(
            np.flatnonzero(~_IN_ALGORITHM[kinds]),
            "is neither COMM_SEND, COMM_RECV nor COMP",
            "an algorithm is made of sends, receives and local operations",
        )
        index, count = trace.column("msg_chunk_idx"), trace.column("msg_chunk_cnt")
        total = trace.column("total_chunk_cnt")
        symbolic = (total > 0) & (index >= 0) & (count >= 0)
        # A step of MSCCL-IR may move more scratch cells than the full buffer has chunks.
        beyond = np.flatnonzero(symbolic & (index + count > total) & ~((index == 0) & (trace.column("tb_id") >= 0)))
        if len(beyond):
            row = beyond[0]
            refuse(
                beyond,
                f"covers chunks {int(index[row])}..{int(index[row] + count[row] - 1)} of {int(total[row])}",
                "keep msg_chunk_idx + msg_chunk_cnt within total_chunk_cnt",
            )
        for each in np.unique(total[symbolic]).tolist():
            if chunks and each != chunks:
                refuse(
                    np.flatnonzero(symbolic & (total == each)),
                    f"total_chunk_cnt is {each}, but {chunks} elsewhere",
                    "cut the full buffer into one number of chunks",
                )
            chunks = each
    return chunks


def algorithm_from_traces(
    traces: Sequence[ExecutionTrace],
    collective: str | None = None,
    *,
    name: str = "",
    source: str = "",
    made_for: int | None = None,
    root: int | None = None,
    in_place: bool | None = None,
) -> Algorithm:
    """Make an `Algorithm` of one trace per rank.

    What the caller leaves open is taken from the metadata of the first trace, where our own files state it.

    Raises
    ------
    AlgorithmError
        Ill-formed traces, no collective, or one that contradicts the file.
    """
    traces = GivenTraces(traces)
    place = source or name or "algorithm"
    if not traces:
        raise AlgorithmError(place, "has no traces", "give one trace per rank")
    stated = {key: traces[0].meta(key) for key in STATED}
    wanted = collective_name(collective, place) if collective is not None else None
    told = stated["collective"] if isinstance(stated["collective"], str) else None
    if told is not None:
        try:
            told = collective_name(told, place)
        except AlgorithmError:
            # A name of the producer's own, such as "custom": then the caller's word counts.
            if wanted is None:
                raise
            told = None
    claimed = told
    if told == CUSTOM and wanted is not None:
        told = None
    if wanted and told and wanted != told:
        raise AlgorithmError(place, f"is made for {told}, not for {wanted}", f"use it for {told}, or name another file")
    kind = wanted or told
    if kind is None:
        raise AlgorithmError(place, "does not say which collective it is", "name the collective")

    def whole(key: str, given: int | None) -> int | None:
        value = stated[key]
        return given if given is not None or type(value) is not int else value

    chunks = check_well_formed(traces, place)
    if not chunks and (kind == "barrier" or not any(map(len, traces))):
        chunks = max(whole("chunks", None) or 0, kind == "barrier")
    if root is None and promise_of(kind).rooted:
        root = whole("root", None)
    if in_place is None:
        in_place = bool(stated["in_place"]) if stated["in_place"] is not None else kind != "all_to_all"
    if not name:
        name = stated["algorithm"] if isinstance(stated["algorithm"], str) else os.path.basename(source)
    contract, protocol = stated["contract"], stated["protocol"]
    # A contract in the files is that of the collective that they name.
    own = isinstance(contract, str) and claimed == kind
    return Algorithm(
        name=name or "algorithm",
        collective=kind,
        ranks=len(traces),
        traces=traces,
        root=root if promise_of(kind).rooted else None,
        chunks=chunks,
        in_place=in_place,
        made_for=whole("made_for", made_for),
        source=source,
        contract=Contract.from_text(contract, place) if own else None,
        protocol=protocol if protocol in PROTOCOL_SLOTS else "",
    )


def promised(
    found: Algorithm,
    collective: str | None = None,
    *,
    made_for: int | None = None,
    root: int | None = None,
    in_place: bool | None = None,
    name: str = "",
) -> Algorithm:
    """An algorithm whose file says what it is, under what the caller says of it; see `read_algorithm`.

    Raises
    ------
    AlgorithmError
        It is made for another collective; a custom one may be used for any.
    """
    wanted = found.collective if collective is None else collective_name(collective, found.source)
    if found.collective not in (wanted, CUSTOM):
        raise AlgorithmError(found.source, f"is made for {found.collective}, not for {wanted}", "name another file")
    return dataclass_replace(
        found,
        collective=wanted,
        contract=found.contract if wanted == found.collective else None,
        made_for=found.made_for if made_for is None else made_for,
        root=found.root if root is None else root,
        in_place=found.in_place if in_place is None else in_place,
        name=name or found.name,
    )
