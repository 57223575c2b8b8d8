"""`Algorithm`: a trace per rank of a group, with its contract; how big its messages are; its files.

An algorithm is an ordinary set of Chakra ETs, made by a builder or read from a file. COMM_SEND and COMM_RECV
nodes name ranks 0..n-1 of the group. Switches that take part are actors: their traces are n..n+m-1, and nodes name them
by these numbers. An actor has no input and no output, only scratch. Sizes are symbolic: a node covers chunks
[i, i + cnt) of T, which are bound to bytes when the size S of the full buffer is known. The older dialect states bytes
in ``comm_size`` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import PROTOCOL_SLOTS, Buffer, CompOp, chunk_bytes
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, promise_of
from astrasim_py.core.above import above
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.shown import Shown
from astrasim_py.program.rotation import Rotation
from astrasim_py.program.table import Program, counted, file_of, named
from astrasim_py.program.traces import Traces

if TYPE_CHECKING:
    from astrasim_py.collectives.contract import Contract

#: Nodes, all ranks together, up to which the digest of an algorithm of a rotation reads every rank's trace.
_DIGESTED_NODES = 2**20


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Algorithm(Shown):
    """A collective algorithm of a group: one trace per rank and actor, and what it promises.

    Attributes
    ----------
    collective : str
        One of `COLLECTIVES`, or `CUSTOM`.
    ranks : int
        Size of the group, n.
    traces : Traces
        One per rank, then one per actor, in which several may share one object; given as any sequence.
    root : int or None
        Root of a rooted collective.
    chunks : int
        T, the number of chunks of the full buffer; 0 where only absolute sizes are given.
    in_place : bool
        True if input and output buffer alias (see `astrasim_py.verification.verifier`).
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
    actors : tuple of str
        Names of the switches that run the traces behind those of the ranks, in their order.
    vertices : tuple of int
        The vertex of the topology that each actor is, -1 where it is to be found; empty where all are.

    Raises
    ------
    AlgorithmError
        A contract that contradicts itself.
    """

    name: str
    collective: str
    ranks: int
    traces: Traces
    root: int | None = None
    chunks: int = 0
    in_place: bool = True
    made_for: int | None = None
    source: str = ""
    verdict: bool | None = None
    contract: Contract | None = None
    protocol: str = ""
    actors: tuple[str, ...] = ()
    vertices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "traces", Traces.of(self.traces))
        promise, contract = promise_of(self.collective), self.contract
        for word in ("ranks", "chunks"):
            if not isinstance(getattr(self, word), (int, np.integer, type(None))):
                raise self._error(f"{word} is {getattr(self, word)!r}", "give a whole number")
        if self.collective not in (*COLLECTIVES, CUSTOM):
            raise self._error(f'"{self.collective}" is not a collective', f"write one of {', '.join(COLLECTIVES)}")
        if self.protocol and self.protocol not in PROTOCOL_SLOTS:
            raise self._error(f'"{self.protocol}" is not a protocol', f"write one of {', '.join(PROTOCOL_SLOTS)}")
        if self.ranks < 1 or len(self.traces) != self.positions:
            problem = f"has {len(self.traces)} traces for {counted(self.ranks, self.actors)}"
            raise self._error(problem, "give one trace per rank" + (" and switch" if self.actors else ""))
        if "" in self.actors or len(set(self.actors)) < len(self.actors):
            raise self._error(f"names its switches {', '.join(self.actors)}", "give each a name of its own")
        if self.vertices and len(self.vertices) != len(self.actors):
            raise self._error(f"has {len(self.vertices)} vertices for {len(self.actors)} switches", "give one for each")
        if promise.rooted and self.root is None:
            raise self._error(f"{self.collective} has no root", "give root: RANK")
        if promise.rooted and self.root not in range(self.ranks):
            problem = f"root {self.root} is not one of {self.ranks} ranks"
            raise self._error(problem, f"give a root in 0..{self.ranks - 1}")
        if not promise.rooted and self.root is not None:
            raise self._error(f"{self.collective} takes no root", "drop the root")
        for word in ("ranks", "chunks") if contract is not None else ():
            ours, promised = getattr(self, word), getattr(contract, word)
            if ours and ours != promised:
                problem = f"has {ours} {word}, and its contract {promised}"
                raise self._error(problem, "give the contract of this algorithm")
        if self.made_for is not None and self.made_for < 1:
            raise self._error(f"made_for is {self.made_for} B", "give the size it was made for")

    def _error(self, problem: str, remedy: str) -> AlgorithmError:
        return AlgorithmError(self.source or self.name, problem, remedy)

    @property
    def positions(self) -> int:
        """Number of traces, n + m."""
        return self.ranks + len(self.actors)

    def position_name(self, position: int) -> str:
        """``rank 3``, or ``switch leaf0``."""
        return named(position, self.ranks, self.actors)

    @property
    def rotation(self) -> Rotation | None:
        """The rotation that makes every rank's program of rank 0's; None where there is none."""
        return None if self.traces.rotated is None else self.traces.rotated.rotation

    @property
    def given(self) -> Sequence[ExecutionTrace]:
        """The traces that were given one by one, which may have names; none where a builder makes them."""
        return self.traces.given

    @cached_property
    def named(self) -> bool:
        """Whether any node of the given traces has a name."""
        return any(trace.has_names for trace in self.given)

    @cached_property
    def first(self) -> Program:
        """The table of rank 0."""
        return self.traces.first

    @property
    def program(self) -> Program:
        """The nodes of all ranks as one table, which is made anew unless a builder made it."""
        return self.traces.drafted or dataclass_replace(self.program_of(range(self.positions)), actors=self.actors)

    def program_of(self, ranks: Sequence[int] | np.ndarray) -> Program:
        """The table of some ranks or actors, which become its ranks 0, 1, …"""
        return self.traces.program_of(ranks)

    @property
    def rotated(self) -> Algorithm | None:
        """The algorithm with traces of a rotation, searched for among traces of files; None without one."""
        return self._recognised if self.rotation is None else self

    @cached_property
    def _recognised(self) -> Algorithm | None:
        traces = None if self.actors else self.traces.recognised
        if traces is None:
            return None
        total = traces[0].column("total_chunk_cnt")
        # Chunks of another buffer would be of another size.
        if self.chunks and ((total > 0) & (total != self.chunks)).any():
            return None
        return dataclass_replace(self, traces=traces)

    @cached_property
    def symbolic(self) -> bool:
        """True if every message states its size in chunks."""
        return self.chunks > 0 and all(bool(_in_chunks(table).all()) for table in self.traces.tables)

    @property
    def scales(self) -> bool:
        """True if its messages grow with the collective, as sizes are symbolic or `made_for` is known."""
        return self.made_for is not None or self.symbolic

    @cached_property
    def has_cells(self) -> bool:
        """True if all data movement is stated as cells, so that it can be executed symbolically."""
        return self.symbolic and not any(without_cells(table).any() for table in self.traces.tables)

    @cached_property
    def messages(self) -> int:
        sends = {table: int(np.count_nonzero(table.type == NodeType.COMM_SEND)) for table in self.traces.tables}
        return sum(times * sends[table] for table, times in self.traces.tables.items())

    @property
    def nodes(self) -> int:
        return sum(times * len(table) for table, times in self.traces.tables.items())

    def slots_of(self, actor: int) -> int:
        """Cells of scratch that the actor of a number from 0 needs: one beyond the last that it reads or writes."""
        trace, end = self.traces[self.ranks + actor], 0
        for side in ("src", "dst"):
            used = trace.column(f"{side}_buf") == Buffer.SCRATCH
            ends = trace.column(f"{side}_off") + trace.column("msg_chunk_cnt")
            end = max(end, int(ends.max(where=used, initial=0)))
        return end

    def message_bytes(self, rank: int, size: int, *, verbatim: bool = False) -> np.ndarray:
        """int64[n]: bytes that each SEND, RECV and COMP (reduce, copy) node of a rank moves; 0 elsewhere. `size`: full
        buffer, bytes. `verbatim`: take ``comm_size`` as it is written, whatever `size` is. Raises AlgorithmError: a
        message without a size."""
        return self.bytes_of(self.traces[rank], size, verbatim=verbatim, rank=rank)

    def bytes_of(
        self, trace: ExecutionTrace | Program, size: int, *, verbatim: bool = False, rank: int | None = None
    ) -> np.ndarray:
        """`message_bytes` of the trace of a rank, or of a table: int64[rows]."""
        kinds = trace.type
        message = (kinds == NodeType.COMM_SEND) | (kinds == NodeType.COMM_RECV)
        moving = message | ((kinds == NodeType.COMP) & (trace.column("comp_op") != MISSING))
        names = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt", "comm_size", "tensor_size", "packets")
        columns = np.broadcast_arrays(message, moving, *map(trace.column, names))
        message, moving, index, count, total, stated, tensor, packets = columns
        symbolic = moving & (index >= 0) & (count >= 0) & (total > 0)
        out = np.zeros(index.shape, dtype=np.int64)
        absolute = np.where(stated != MISSING, stated, np.where(message, MISSING, tensor))
        if verbatim:
            # A size in chunks is the only one of a reduction in most files: only a message must state bytes.
            symbolic = symbolic & (absolute < 0) & ~message
        for parts in np.unique(total[symbolic]).tolist():
            rows = symbolic & (total == parts)
            out[rows] = chunk_bytes(index[rows], count[rows], size, parts) * np.where(packets[rows] > 0, 2, 1)
        rest = moving & ~symbolic
        if rest.any():
            lost = np.flatnonzero(rest & message & (absolute < 0))
            if len(lost):
                row = int(lost[0]) % len(trace)
                rank = int(trace.rank[row]) if isinstance(trace, Program) else rank or 0
                place = file_of(trace, row) or self.source or self.name
                raise AlgorithmError(
                    f"{place}: {self.position_name(rank)} node {int(trace.node_id[row])}",
                    "has no comm_size" if verbatim else "has neither msg_chunk_idx/cnt/total nor comm_size",
                    "write comm_size, or sizes in chunks under native semantics",
                )
            rest &= absolute > 0
            out[rest] = values = absolute[rest]
            if not verbatim and self.made_for is not None:
                # Rounded up: a rescaled algorithm must not move less than its collective needs.
                distinct, code = np.unique(values, return_inverse=True)
                out[rest] = np.array([-(-v * size // self.made_for) for v in distinct.tolist()], dtype=np.int64)[code]
        return out

    def same_bytes(self, size: int) -> bool:
        """True if every rank of a rotation sends, receives and reduces the bytes of rank 0, node by node. That is so
        where they do not depend on which chunks a node covers: where T divides `size`, or where sizes are stated in
        bytes. Sizes of local copies do not matter."""
        trace = self.traces[0]
        count, total = trace.column("msg_chunk_cnt"), trace.column("total_chunk_cnt")
        copy = (trace.type == NodeType.COMP) & (trace.column("comp_op") != CompOp.REDUCE)
        # A node of 0 chunks, or of all, is the same wherever it begins.
        part = np.flatnonzero(~copy & (count > 0) & (count < total))
        return not bool((size % total[part]).any())

    def bytes_of_ranks(self, ranks: Sequence[int] | np.ndarray, size: int, *, verbatim: bool = False) -> np.ndarray:
        """`message_bytes` of several ranks of a rotation at once: int64[k, n]."""
        rotated = self.traces.rotated
        if rotated is None or self.chunks == 0 or not len(ranks):
            base = self.message_bytes(0, size, verbatim=verbatim)
            return np.broadcast_to(base, (len(ranks), len(base)))
        columns = rotated.columns(ranks, ("msg_chunk_idx", "msg_chunk_cnt"))
        return self.bytes_of(self.first.with_columns(columns), size, verbatim=verbatim)

    def stated(self) -> dict[str, object]:
        """Collective, sizes and contract, without name and source."""
        names = ["collective", "ranks", "root", "chunks", "in_place", "made_for", "protocol"]
        contract = None if self.contract is None else self.contract.to_text()
        names += ["actors", "vertices"] if self.actors else []
        return {**{name: getattr(self, name) for name in names}, "contract": contract}

    def digest(self) -> str:
        """SHA-256 over traces and contract; name, source and verdict do not count."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        content: dict[str, object] = {}
        traces: Iterable[ExecutionTrace] = self.traces
        rotated = self.traces.rotated
        if rotated is not None and rotated.nodes > _DIGESTED_NODES:
            # The builder's rule makes all ranks' programs: a few ranks suffice to distinguish two rules.
            content["rotation"] = rotated.rotation.dims
            traces = [self.traces[rank] for rank in sorted({0, 1, self.ranks // 2, self.ranks - 1})]
        return digest({**self.stated(), **content, "traces": [trace.digest() for trace in traces]})

    def with_verdict(self, verdict: bool | None) -> Algorithm:
        """The same algorithm with the outcome of its verification."""
        if verdict not in self._judged:
            self._judged[verdict] = dataclass_replace(self, verdict=verdict)
        return self._judged[verdict]

    @cached_property
    def _judged(self) -> dict[bool | None, Algorithm]:
        """Copies by verdict: each finds out once what it is like."""
        return {}

    def split(self, k: int, *, verify: bool = True) -> Algorithm:
        """k instances side by side on channels of their own: `astrasim_py.split`."""
        return above("split")(self, k, verify=verify)

    def __add__(self, other: object) -> Algorithm:
        """This algorithm, then another: `astrasim_py.compose`."""
        if not isinstance(other, Algorithm):
            return NotImplemented
        return above("compose")(self, other)

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.name, {
            "collective": self.collective,
            "ranks": self.ranks,
            "switches": len(self.actors),
            "chunks": self.chunks,
        }


def place_of(algorithm: Algorithm) -> str:
    """The file or name of an algorithm, for messages."""
    return algorithm.name if algorithm.source in ("", "builder") else algorithm.source


def _in_chunks(trace: ExecutionTrace | Program) -> np.ndarray:
    """bool[n]: False for a SEND or RECV that does not state its size in chunks."""
    message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    stated = (trace.column("msg_chunk_idx") >= 0) & (trace.column("msg_chunk_cnt") >= 0)
    return stated & (trace.column("total_chunk_cnt") > 0) | ~message


def without_cells(trace: ExecutionTrace | Program) -> np.ndarray:
    """bool[n]: True for a node that moves data, and does not state the cells; or that no algorithm may hold."""

    def present(side: str) -> np.ndarray:
        return (trace.column(f"{side}_buf") >= 0) & (trace.column(f"{side}_off") >= 0)

    kinds, op, payload = trace.type, trace.column("comp_op"), trace.column("payload")
    source, target, handed = present("src"), present("dst"), payload != MISSING
    send, comp = kinds == NodeType.COMM_SEND, kinds == NodeType.COMP
    supported = send | comp | (kinds == NodeType.COMM_RECV) | (kinds == NodeType.METADATA)
    # A receive may drop its data. A COMP node without an operation joins dependencies.
    lacks = send & ~(source | handed)
    lacks |= comp & (op == CompOp.COPY) & ~((source | handed) & target)
    lacks |= comp & (op == CompOp.REDUCE) & ~(source & (target | handed))
    return ~supported | (lacks & (trace.column("msg_chunk_cnt") != 0))
