"""`Algorithm`: a trace per rank of a group, with its contract; how big its messages are; its files.

An algorithm is an ordinary set of Chakra ETs, made by a builder or read from a file. COMM_SEND and COMM_RECV
nodes name ranks 0..n-1 of the group. Sizes are symbolic: a node covers chunks [i, i + cnt) of T, which are bound
to bytes when the size S of the full buffer is known. The older dialect states bytes in ``comm_size`` only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.contract import Contract
from astrasim_py.collectives.protocols import PROTOCOL_SLOTS
from astrasim_py.collectives.recognise import GivenTraces
from astrasim_py.collectives.rotation import RotatedTraces, Rotation
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AlgorithmError

#: Collectives by the name they have everywhere in the package.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
#: A collective of the producer's own, which only its contract describes.
CUSTOM = "custom"
#: Collectives with a root.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Collectives whose full buffer consists of one shard per rank.
SHARDED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

#: Nodes, all ranks together, up to which the digest of an algorithm of a rotation reads every rank's trace.
_DIGESTED_NODES = 2**20


class Buffer(IntEnum):
    """Buffers that cells lie in, as columns `src_buf` and `dst_buf` number them."""

    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


class CompOp(IntEnum):
    """What a COMP node of an algorithm does, as column `comp_op` numbers it."""

    REDUCE = 1
    COPY = 2


def collective_name(text: str, place: str = "") -> str:
    """Name of a collective as the package writes it, from other spellings (``allreduce``, ``AllGather``); or `CUSTOM`.

    Raises
    ------
    AlgorithmError
        Not a collective.
    """
    squeezed = text.replace("_", "").replace("-", "").lower()
    for name in (*COLLECTIVES, CUSTOM):
        if squeezed == name.replace("_", ""):
            return name
    raise AlgorithmError(place, f'"{text}" is not a collective', f"write one of {', '.join(COLLECTIVES)}")


def chunk_bytes(index: np.ndarray, count: np.ndarray, size: int, total: int) -> np.ndarray:
    """Bytes of chunks [index, index + count) of a buffer of `size` bytes that is cut into `total` chunks.

    They are ⌊(i + cnt)·S/T⌋ - ⌊i·S/T⌋, so the chunks of a buffer sum to exactly `size` also where `total` does
    not divide it.

    Parameters
    ----------
    index, count : numpy.ndarray
        int64[k], not negative.
    size : int
        Bytes, 0 ≤ size < 2**63.
    total : int
        At least 1.

    Returns
    -------
    numpy.ndarray
        int64[k] bytes.
    """
    index, count = np.asarray(index, dtype=np.int64), np.asarray(count, dtype=np.int64)
    whole, rest = divmod(size, total)
    last = int((index + count).max(initial=0))
    if last * max(whole, rest, 1) >= 2**62:  # beyond int64: exact, but slow
        end = (index.astype(object) + count) * size // total
        return (end - index.astype(object) * size // total).astype(np.int64)
    return count * whole + ((index + count) * rest // total - index * rest // total)


def _scaled(values: np.ndarray, size: int, made_for: int) -> np.ndarray:
    distinct, which = np.unique(values, return_inverse=True)
    # Rounded up: a rescaled algorithm must not move less than its collective needs.
    return np.array([-(-v * size // made_for) for v in distinct.tolist()], dtype=np.int64)[which]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A collective algorithm of a group: one trace per rank, and what it promises.

    Attributes
    ----------
    name : str
    collective : str
        One of `COLLECTIVES`, or `CUSTOM`.
    ranks : int
        Size of the group, n.
    traces : sequence of ExecutionTrace
        One per rank: a tuple, in which ranks may share one object (`GivenTraces` of files), or `RotatedTraces`, which
        makes them when asked for.
    root : int or None
        Root of a rooted collective.
    chunks : int
        T, the number of chunks of the full buffer; 0 where only absolute sizes are given.
    in_place : bool
        Whether input and output buffer alias (see `astrasim_py.collectives.verify`).
    made_for : int or None
        Full buffer, bytes, for which absolute sizes were computed; with it they are rescaled.
    source : str
        File it came from, or ``"builder"``.
    verdict : bool or None
        Outcome of verification; None is unknown.
    contract : Contract or None
        What a custom collective promises, where that is known.
    protocol : str
        ``Simple``, ``LL`` or ``LL128``: the protocol it is made for, which decides how many messages a connection
        holds; empty where it is made for none.

    Raises
    ------
    AlgorithmError
        A contract that contradicts itself.
    """

    name: str
    collective: str
    ranks: int
    traces: Sequence[ExecutionTrace]
    root: int | None = None
    chunks: int = 0
    in_place: bool = True
    made_for: int | None = None
    source: str = ""
    verdict: bool | None = None
    contract: Contract | None = None
    protocol: str = ""

    def __post_init__(self) -> None:
        place = self.source or self.name
        if self.collective not in COLLECTIVES and self.collective != CUSTOM:
            raise AlgorithmError(
                place,
                f'"{self.collective}" is not a collective',
                f"write one of {', '.join(COLLECTIVES)}",
            )
        if self.protocol and self.protocol not in PROTOCOL_SLOTS:
            raise AlgorithmError(
                place, f'"{self.protocol}" is not a protocol', f"write one of {', '.join(PROTOCOL_SLOTS)}"
            )
        if self.ranks < 1 or len(self.traces) != self.ranks:
            raise AlgorithmError(
                place, f"has {len(self.traces)} traces for {self.ranks} ranks", "give one trace per rank"
            )
        if self.collective in ROOTED:
            if self.root is None:
                raise AlgorithmError(place, f"{self.collective} has no root", "give root: RANK")
            if not 0 <= self.root < self.ranks:
                raise AlgorithmError(
                    place,
                    f"root {self.root} is not one of {self.ranks} ranks",
                    f"give a root in 0..{self.ranks - 1}",
                )
        elif self.root is not None:
            raise AlgorithmError(place, f"{self.collective} takes no root", "drop the root")
        if self.contract is not None:
            for word, ours, theirs in (
                ("ranks", self.ranks, self.contract.ranks),
                ("chunks", self.chunks, self.contract.chunks),
            ):
                if ours and ours != theirs:
                    problem = f"has {ours} {word}, and its contract {theirs}"
                    raise AlgorithmError(place, problem, "give the contract of this algorithm")
        if self.made_for is not None and self.made_for < 1:
            raise AlgorithmError(place, f"made_for is {self.made_for} B", "give the size it was made for")

    @property
    def rotation(self) -> Rotation | None:
        """How the program of rank 0 is turned into every other rank's; None where that is not known."""
        return self.traces.rotation if isinstance(self.traces, RotatedTraces) else None

    @property
    def turned(self) -> Algorithm | None:
        """The same with traces of a rotation: itself, or where those that it was given are found to be turned.

        None where there is no rotation. What is found stays with the traces, for algorithms made of this one.
        """
        return self._recognised if self.rotation is None else self

    @cached_property
    def _recognised(self) -> Algorithm | None:
        found = self.traces.turned if isinstance(self.traces, GivenTraces) else None
        if found is None or (self.chunks and not set(_totals(found.base)) <= {self.chunks}):
            return None
        return dataclass_replace(self, traces=found)

    @property
    def _different(self) -> Sequence[ExecutionTrace]:
        """Traces that stand for all where it is only asked which columns nodes have."""
        return [self.traces[0]] if self.rotation else _distinct(self.traces)

    @cached_property
    def symbolic(self) -> bool:
        """Whether every message states its size in chunks."""
        return self.chunks > 0 and all(bool(_in_chunks(trace).all()) for trace in self._different)

    @property
    def scales(self) -> bool:
        """Whether its messages grow with the collective: sizes are symbolic, or `made_for` is known."""
        return self.made_for is not None or self.symbolic

    @cached_property
    def has_cells(self) -> bool:
        """Whether all data movement is stated as cells, so that it can be executed symbolically."""
        return self.symbolic and all(_has_cells(trace) for trace in self._different)

    @cached_property
    def messages(self) -> int:
        """Number of messages, all ranks together."""
        return self._over_ranks(lambda trace: int(np.count_nonzero(trace.type == NodeType.COMM_SEND)))

    @cached_property
    def nodes(self) -> int:
        """Number of nodes, all ranks together."""
        return self._over_ranks(len)

    def _over_ranks(self, count: Callable[[ExecutionTrace], int]) -> int:
        if self.rotation:
            return self.ranks * count(self.traces[0])
        return sum(map(count, self.traces))

    def message_bytes(self, rank: int, size: int, *, verbatim: bool = False) -> np.ndarray:
        """Bytes that each node of a rank moves.

        Parameters
        ----------
        rank : int
        size : int
            Full buffer of the collective, bytes.
        verbatim : bool
            Take ``comm_size`` as it is written, whatever `size` is.

        Returns
        -------
        numpy.ndarray
            int64[n]: bytes of SEND, RECV and COMP (reduce, copy) nodes, 0 elsewhere.

        Raises
        ------
        AlgorithmError
            A message without a size.
        """
        trace = self.traces[rank]
        kinds = trace.type
        message = (kinds == NodeType.COMM_SEND) | (kinds == NodeType.COMM_RECV)
        moving = message | ((kinds == NodeType.COMP) & (trace.column("comp_op") != MISSING))
        index, count = trace.column("msg_chunk_idx"), trace.column("msg_chunk_cnt")
        total = trace.column("total_chunk_cnt")
        symbolic = moving & (index >= 0) & (count >= 0) & (total > 0)
        out = np.zeros(len(trace), dtype=np.int64)
        stated = trace.column("comm_size")
        absolute = np.where(stated != MISSING, stated, np.where(message, MISSING, trace.column("tensor_size")))
        if verbatim:
            # A size in chunks is the only one of a reduction in most files: only a message must state bytes.
            symbolic = symbolic & (absolute < 0) & ~message
        used = total[symbolic]
        alike = len(used) > 0 and int(used.min()) == int(used.max())
        totals = [int(used[0])] if alike else np.unique(used).tolist()
        for each in totals:
            rows = symbolic if len(totals) == 1 else symbolic & (total == each)
            out[rows] = chunk_bytes(index[rows], count[rows], size, each)
        rest = moving & ~symbolic
        if rest.any():
            lost = np.flatnonzero(rest & message & (absolute < 0))
            if len(lost):
                node = int(trace.node_id[lost[0]])
                raise AlgorithmError(
                    f"{trace.place or self.source or self.name}: rank {rank} node {node}",
                    "has no comm_size" if verbatim else "has neither msg_chunk_idx/cnt/total nor comm_size",
                    "write comm_size, or sizes in chunks under native semantics",
                )
            rest &= absolute > 0
            given = absolute[rest]
            out[rest] = given if verbatim or self.made_for is None else _scaled(given, size, self.made_for)
        return out

    def same_bytes(self, size: int) -> bool:
        """Whether every rank of a rotation sends, receives and reduces the bytes of rank 0, node by node.

        That is so where they do not depend on which chunks a node covers: where T divides `size`, or where sizes are
        stated in bytes. What local copies count does not matter.
        """
        trace = self.traces[0]
        count, total = trace.column("msg_chunk_cnt"), trace.column("total_chunk_cnt")
        # A node of 0 chunks, or of all, is the same wherever it begins.
        part = np.flatnonzero((count > 0) & (count < total))
        if not (size % total[part]).any():
            return True
        copy = (trace.type == NodeType.COMP) & (trace.column("comp_op") != CompOp.REDUCE)
        return not bool((size % total[part] != 0)[~copy[part]].any())

    def bytes_of_ranks(self, ranks: Sequence[int] | np.ndarray, size: int, *, verbatim: bool = False) -> np.ndarray:
        """`message_bytes` of several ranks of a rotation at once.

        Parameters
        ----------
        ranks : sequence of int
            k ranks.
        size : int
        verbatim : bool

        Returns
        -------
        numpy.ndarray
            int64[k, n].
        """
        base = self.message_bytes(0, size, verbatim=verbatim)
        if self.chunks == 0 or not len(ranks):
            return np.broadcast_to(base, (len(ranks), len(base)))
        if verbatim:
            return np.stack([self.message_bytes(int(rank), size, verbatim=True) for rank in ranks])
        trace = self.traces[0]
        columns = self.traces.columns(ranks, ("msg_chunk_idx", "msg_chunk_cnt"))
        index, count = columns["msg_chunk_idx"], columns["msg_chunk_cnt"]
        kinds = trace.type
        moving = (kinds == NodeType.COMM_SEND) | (kinds == NodeType.COMM_RECV)
        moving |= (kinds == NodeType.COMP) & (trace.column("comp_op") != MISSING)
        symbolic = moving & (trace.column("total_chunk_cnt") > 0) & (index >= 0) & (count >= 0)
        found = chunk_bytes(np.where(symbolic, index, 0), np.where(symbolic, count, 0), size, self.chunks)
        return np.where(symbolic, found, base)

    @cached_property
    def _digest(self) -> str:
        return digest(
            {
                "collective": self.collective,
                "ranks": self.ranks,
                "root": self.root,
                "chunks": self.chunks,
                "in_place": self.in_place,
                "made_for": self.made_for,
                "protocol": self.protocol,
                "contract": None if self.contract is None else self.contract.to_text(),
                **self._content(),
            }
        )

    def _content(self) -> dict[str, object]:
        if isinstance(self.traces, RotatedTraces) and self.traces.nodes > _DIGESTED_NODES:
            # What other ranks do follows from the builder's rule: a few of them tell rules apart.
            some = self.traces.some(sorted({0, 1, self.ranks // 2, self.ranks - 1}))
            return {"rotation": self.rotation.dims, "traces": [trace.digest() for trace in some]}
        return {"traces": [trace.digest() for trace in self.traces]}

    def digest(self) -> str:
        """SHA-256 over traces and contract; name, source and verdict do not count."""
        return self._digest

    def with_verdict(self, verdict: bool | None) -> Algorithm:
        """The same algorithm with the outcome of its verification."""
        return dataclass_replace(self, verdict=verdict)

    def split(self, k: int, *, verify: bool = True) -> Algorithm:
        """k instances side by side on channels of their own: `astrasim_py.collectives.split.split`."""
        from astrasim_py.collectives.split import split

        return split(self, k, verify=verify)

    def __add__(self, other: object) -> Algorithm:
        """This algorithm, then another: `astrasim_py.collectives.compose.compose`."""
        if not isinstance(other, Algorithm):
            return NotImplemented
        from astrasim_py.collectives.compose import compose

        return compose(self, other)

    def __repr__(self) -> str:
        return f"Algorithm({self.name}: {self.collective}, {self.ranks} ranks, {self.chunks} chunks)"


def _totals(trace: ExecutionTrace) -> list[int]:
    """Numbers of chunks that a trace cuts the full buffer into."""
    total = trace.column("total_chunk_cnt")
    return np.unique(total[total > 0]).tolist()


def _distinct(traces: Sequence[ExecutionTrace]) -> list[ExecutionTrace]:
    return list({id(trace): trace for trace in traces}.values())


def _in_chunks(trace: ExecutionTrace) -> np.ndarray:
    """bool[n]: False for a SEND or RECV that does not state its size in chunks."""
    message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    stated = (trace.column("msg_chunk_idx") >= 0) & (trace.column("msg_chunk_cnt") >= 0)
    return stated & (trace.column("total_chunk_cnt") > 0) | ~message


def _has_cells(trace: ExecutionTrace) -> bool:
    def present(side: str) -> np.ndarray:
        return (trace.column(f"{side}_buf") >= 0) & (trace.column(f"{side}_off") >= 0)

    kinds, op, payload = trace.type, trace.column("comp_op"), trace.column("payload")
    source, target, handed = present("src"), present("dst"), payload != MISSING
    send, comp = kinds == NodeType.COMM_SEND, kinds == NodeType.COMP
    known = send | comp | (kinds == NodeType.COMM_RECV) | (kinds == NodeType.METADATA)
    # What a receive neither stores nor hands on is lost, which is a statement too; a COMP node without an operation
    # (a join of dependencies) moves nothing.
    lacks = send & ~(source | handed)
    lacks |= comp & (op == CompOp.COPY) & ~((source | handed) & target)
    lacks |= comp & (op == CompOp.REDUCE) & ~(source & (target | handed))
    lacks &= trace.column("msg_chunk_cnt") != 0
    return bool(known.all()) and not lacks.any()


# ---------------------------------------------------------------------------------------------- files

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
    algorithm : Algorithm
    size : int, optional
        Full buffer, bytes: state absolute sizes for it (``comm_size`` on messages, ``tensor_size`` on COMP nodes)
        beside those in chunks, for readers that know only the older dialect.

    Returns
    -------
    tuple of ExecutionTrace
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
    if root is None and kind in ROOTED:
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
        root=root if kind in ROOTED else None,
        chunks=chunks,
        in_place=in_place,
        made_for=whole("made_for", made_for),
        source=source,
        contract=Contract.from_text(contract, place) if own else None,
        protocol=protocol if protocol in PROTOCOL_SLOTS else "",
    )


def read_algorithm(
    prefix: str | os.PathLike,
    collective: str | None = None,
    *,
    made_for: int | None = None,
    root: int | None = None,
    in_place: bool | None = None,
    name: str = "",
) -> Algorithm:
    """Read an algorithm: ``PREFIX.<rank>.et`` for every rank (gzip'd or not), or one ``.npz`` file.

    Parameters
    ----------
    prefix : path
    collective : str, optional
        May be left out where the file states it.
    made_for : int, optional
        Full buffer, bytes, for which absolute sizes were computed.
    root : int, optional
    in_place : bool, optional
    name : str, optional

    Raises
    ------
    TraceError
        Files that are missing or cannot be decoded.
    AlgorithmError
        An ill-formed algorithm, or one of another collective.
    """
    source = os.fspath(prefix)
    if source.endswith(".npz"):
        from astrasim_py.collectives.npz import read_npz

        return promised(read_npz(source), collective, made_for=made_for, root=root, in_place=in_place, name=name)
    from astrasim_py.chakra.et_io import read_prefix

    traces = read_prefix(source)
    return algorithm_from_traces(
        traces, collective, name=name, source=source, made_for=made_for, root=root, in_place=in_place
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
