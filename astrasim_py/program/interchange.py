"""Algorithms as Chakra ETs: the metadata of the traces hold the fields of an algorithm and its contract."""

import os
from collections.abc import Sequence
from dataclasses import replace as dataclass_replace
from typing import Any, TypedDict, Unpack

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import PROTOCOL_SLOTS
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import counted, named
from astrasim_py.program.traces import Traces

#: Metadata with the fields and the contract of an algorithm.
STATED = (
    "collective", "algorithm", "ranks", "root", "chunks", "in_place", "made_for", "protocol", "contract", "actors",
    "actor",
)  # fmt: skip


def _metadata(algorithm: Algorithm, rank: int) -> list[tuple[str, object]]:
    values = {"collective": algorithm.collective, "algorithm": algorithm.name, **algorithm.stated()}
    if rank:
        # A contract covers all ranks, so one file holds it: n copies would make files grow as n^2.
        values["contract"] = None
    if algorithm.actors:
        # A file names its own actor only, and a topology's vertices belong to no file.
        actor = algorithm.actors[rank - algorithm.ranks] if rank >= algorithm.ranks else None
        values |= {"actors": len(algorithm.actors), "actor": actor, "vertices": None}
    return [(name, value) for name, value in values.items() if value not in (None, "")]


def algorithm_traces(algorithm: Algorithm, size: int | None = None) -> tuple[ExecutionTrace, ...]:
    """Traces of an algorithm as they are written to ``.et`` files, with what it is in the metadata of each. `size`:
    full buffer, bytes: state absolute sizes for it (``comm_size`` on messages, ``tensor_size`` on COMP nodes) beside
    those in chunks, for readers that know only the older dialect."""
    if size is not None:
        algorithm = dataclass_replace(algorithm, made_for=size)
    out = []
    for rank, trace in enumerate(algorithm.traces):
        others = [attribute for attribute in trace.metadata if attribute.name not in STATED]
        trace = trace.without_raw().replace(metadata=[*_metadata(algorithm, rank), *others])
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


_CHUNKS = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
#: True for types of nodes that an algorithm may hold.
_IN_ALGORITHM = np.zeros(128, dtype=bool)
_IN_ALGORITHM[[NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMP, NodeType.METADATA, NodeType.INVALID]] = True


def check_well_formed(
    traces: Sequence[ExecutionTrace], name: str, ranks: int | None = None, actors: Sequence[str] = ()
) -> int:
    """Check peers and chunk ranges of traces, the first of `ranks` (default: all there are) or the last, of `actors`.
    Returns the common number of chunks, 0 where no node states its size in chunks."""
    ranks, chunks = len(traces) - len(actors) if ranks is None else ranks, 0
    for rank, trace in enumerate(traces):
        fault = _fault(trace, rank, ranks, actors)
        index, count, total = (trace.column(column) for column in _CHUNKS)
        total = np.where((index >= 0) & (count >= 0), total, 0)
        chunks = chunks or int(total.max(initial=0))
        other = np.flatnonzero((total > 0) & (total != chunks))
        if fault is None and len(other):
            problem = f"total_chunk_cnt is {int(total[other[0]])}, but {chunks} elsewhere"
            fault = other[0], problem, "cut the full buffer into one number of chunks"
        if fault is not None:
            place = f"{trace.place or f'{name}: {named(rank, ranks, actors)}'}: node {int(trace.node_id[fault[0]])}"
            raise AlgorithmError(place, *fault[1:])
    return chunks


def _fault(trace: ExecutionTrace, rank: int, ranks: int, actors: Sequence[str]) -> tuple[int, str, str] | None:
    """A row of a trace that an algorithm may not hold, what is wrong with it, and what to write instead."""
    for kind, column, word in ((NodeType.COMM_SEND, "comm_dst", "sends"), (NodeType.COMM_RECV, "comm_src", "receives")):
        rows = np.flatnonzero(trace.type == kind)
        peer, positions = trace.column(column)[rows], ranks + len(actors)
        for bad, problem, remedy in (
            (peer == MISSING, f"{word} without {column}", f"write {column}"),
            (
                (peer < 0) | (peer >= positions),
                f"{column} {{}} is not one of {counted(ranks, actors)}",
                f"write a rank in 0..{ranks - 1}, as counted in the group"
                + (f", or a switch in {ranks}..{positions - 1}" if actors else ""),
            ),
            (peer == rank, f"{word} to itself", "name another rank"),
        ):
            if bad.any():
                first = int(np.argmax(bad))
                return int(rows[first]), problem.format(int(peer[first])), remedy
    foreign = np.flatnonzero(~_IN_ALGORITHM[trace.type])
    if len(foreign):
        problem = "is neither COMM_SEND, COMM_RECV nor COMP"
        return int(foreign[0]), problem, "an algorithm is made of sends, receives and local operations"
    index, count, total = (trace.column(column) for column in _CHUNKS)
    beyond = np.flatnonzero((total > 0) & (index >= 0) & (count >= 0) & (index + count > total))
    if len(beyond):
        # A step of MSCCL-IR may move more scratch chunks than the full buffer has.
        beyond = beyond[~((index[beyond] == 0) & (trace.column("tb_id")[beyond] >= 0))]
    if not len(beyond):
        return None
    i, c, t = (int(column[beyond[0]]) for column in (index, count, total))
    problem = f"covers chunks {i}..{i + c - 1} of {t}"
    return int(beyond[0]), problem, "keep msg_chunk_idx + msg_chunk_cnt within total_chunk_cnt"


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
    """Make an `Algorithm` of one trace per rank. What the caller leaves open is taken from the metadata of the first
    trace, where our own files state it."""
    traces = Traces.of(tuple(traces), searched=True)
    place = source or name or "algorithm"
    if not traces:
        raise AlgorithmError(place, "has no traces", "give one trace per rank")
    stated = {key: traces[0].meta(key) for key in STATED}
    asked_kind = collective_name(collective, place) if collective is not None else None
    named = None
    if isinstance(stated["collective"], str):
        try:
            named = collective_name(stated["collective"], place)
        except AlgorithmError:
            # A name of the producer's own: then the name that the caller states counts.
            if asked_kind is None:
                raise
    if asked_kind and named not in (None, CUSTOM, asked_kind):
        raise AlgorithmError(
            place, f"is made for {named}, not for {asked_kind}", f"use it for {named}, or name another file"
        )
    kind = asked_kind or named
    if kind is None:
        raise AlgorithmError(place, "does not say which collective it is", "name the collective")

    def whole(key: str, given: int | None) -> int | None:
        value = stated[key]
        return given if given is not None or type(value) is not int else value

    actors = _actors(traces, place)
    ranks = len(traces) - len(actors)
    chunks = check_well_formed(traces, place, ranks, actors)
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
    text = contract if isinstance(contract, str) and named == kind else None
    return Algorithm(
        name=name or "algorithm", collective=kind, ranks=ranks, traces=traces, actors=actors,
        root=root if promise_of(kind).rooted else None, chunks=chunks, in_place=in_place,
        made_for=whole("made_for", made_for), source=source,
        contract=None if text is None else Contract.from_text(text, place),
        protocol=protocol if protocol in PROTOCOL_SLOTS else "",
    )  # fmt: skip


def _actors(traces: Sequence[ExecutionTrace], place: str) -> tuple[str, ...]:
    """Names of the switches that run the last traces. Raises AlgorithmError: they do not fit the metadata."""
    stated = [trace.meta("actor") for trace in traces]
    many = next((position for position, name in enumerate(stated) if name is not None), len(traces))
    actors, declared = stated[many:], [(trace.meta("actors"), trace.meta("ranks")) for trace in traces[:1]]
    if not actors and declared[0][0] in (None, 0):
        return ()
    names = tuple(name for name in actors if isinstance(name, str) and name)
    if declared[0] != (len(actors), many) or len(names) < len(actors):
        problem = f"has {len(actors)} traces of switches behind {many} ranks; the first states actors: "
        problem += f"{declared[0][0]}, ranks: {declared[0][1]}"
        raise AlgorithmError(place, problem, "give one trace per rank, then one per switch with its name as actor")
    return names


class Promises(TypedDict, total=False):
    """What a caller states of an algorithm, in place of what its file states; None and "": nothing."""

    made_for: int | None  # full buffer, bytes, for which absolute sizes were computed
    root: int | None
    in_place: bool | None
    name: str


def promised(found: Algorithm, collective: str | None = None, **stated: Unpack[Promises]) -> Algorithm:
    """An algorithm whose file says what it is, with what the caller states of it; see `read_algorithm`."""
    kind = found.collective if collective is None else collective_name(collective, found.source)
    if found.collective not in (kind, CUSTOM):
        raise AlgorithmError(found.source, f"is made for {found.collective}, not for {kind}", "name another file")
    changes: dict[str, Any] = {key: value for key, value in stated.items() if value not in (None, "")}
    contract = found.contract if kind == found.collective else None
    return dataclass_replace(found, collective=kind, contract=contract, **changes)
