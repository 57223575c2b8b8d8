"""`Draft`: how builders write algorithms, as whole columns of nodes.

A draft is filled block by block; a block is any number of nodes of one kind. What a block refers to (dependencies,
payloads) are the handles that earlier blocks returned. There are two ways:

* A program that all ranks run alike, up to peers and chunk numbers. A block has m nodes on every rank; its values are
  an int or int64[m] where they are the same on all ranks, else int64[ranks, m]. Handles are those of one rank.
* Programs that differ from rank to rank. A block has m nodes anywhere; ``rank`` is int64[m], and so are all values.

``order`` (an int or int64[m]) sorts the nodes of a rank and must agree with the dependencies; left out, blocks follow
each other. Dependencies and payloads lie on the node's own rank.

`finish` makes an algorithm of a draft of all ranks. An algorithm of a rotation (`astrasim_py.program.rotation`) is
drafted only for the ranks that are asked for, by a function of them: `finish_rotated`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.core.rows import compact, distinct, inverse
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import MAX_NODES, Rotated, Rotation
from astrasim_py.program.table import Program
from astrasim_py.program.traces import Traces

#: Handle of "nothing" among dependencies and payloads.
NONE = -1

#: Columns that a block may give; absent ones are MISSING.
_FIELDS = (
    "comm_dst", "comm_src", "comm_tag", "msg_chunk_idx", "msg_chunk_cnt", "comp_op", "src_buf", "src_off", "dst_buf",
    "dst_off", "channel", "source_line", "duration_ps", "comm_size", "detached", "counter", "count_of", "count_k",
    "count_from", "packets", "plan_role",
)  # fmt: skip

#: Most nodes of one rank in an algorithm of a rotation.
MAX_PROGRAM = 2**22
#: Most ranks that run programs of their own.
MAX_PROGRAMS = 2**16

#: A value of a block for all its nodes, or one for each, or one for each rank and node.
Numbers: TypeAlias = int | np.ndarray
#: The begin of a range of chunks: (buffer, offset in chunks); MISSING for none.
Place: TypeAlias = tuple[Numbers, Numbers]
#: Arguments of `Draft.send` and the like by name: numbers, places, and nodes that come before.
Arguments: TypeAlias = dict[str, Any]


def check_nodes(place: str, nodes: int, *, of_rank: bool = False) -> None:
    """Refuse an algorithm, or one rank's program of an algorithm of a rotation, that would not fit in memory."""
    most, where = (MAX_PROGRAM, " on a rank") if of_rank else (MAX_NODES, "")
    if nodes > most:
        problem = f"would have about {nodes} nodes, more than {most}{where}"
        raise AlgorithmError(place, problem, "use fewer ranks or chunks, or another algorithm")


def check_count(value: object, name: str, place: str) -> int:
    if type(value) is not int or value < 1:
        raise AlgorithmError(place, f"{name} is {value!r}, not a whole number from 1", f"write e.g. {name}: 4")
    return value


class Draft:
    """An algorithm in the making, see the module: of T `chunks`, and of all ranks of a group or some."""

    def __init__(self, ranks: int, chunks: int) -> None:
        self.ranks, self.chunks = ranks, chunks
        self._blocks: list[tuple[int, Mapping[str, Numbers]]] = []
        self._edges: list[np.ndarray] = []  # [child and parent, edges]
        self._size = 0

    def next_handles(self, m: int) -> np.ndarray:
        """The handles that the next m nodes will get, for blocks whose nodes refer to each other."""
        return np.arange(self._size, self._size + m, dtype=np.int64)

    def send(self, *, peer, tag, idx=MISSING, cnt=1, src: Place | None = None, payload=NONE, **more) -> np.ndarray:
        """Sends of chunks [idx, idx + cnt) to `peer`, from `src` or from the data of node `payload`."""
        fields = {"comm_dst": peer, "comm_tag": tag, "payload": payload, **_cells("src", src)}
        return self._add(NodeType.COMM_SEND, idx, cnt, fields, **more)

    def recv(self, *, peer, tag, idx=MISSING, cnt=1, dst: Place | None = None, **more) -> np.ndarray:
        """Receives from `peer` into `dst`, or for the nodes that name them as payload."""
        fields = {"comm_src": peer, "comm_tag": tag, **_cells("dst", dst)}
        return self._add(NodeType.COMM_RECV, idx, cnt, fields, **more)

    def reduce(self, *, payload, idx, cnt=1, src: Place | None, dst: Place | None, after=(), **more) -> np.ndarray:
        """Reductions of received data with what lies at `src`; the sum goes to `dst`."""
        fields = {"comp_op": CompOp.REDUCE, "payload": payload, **_cells("src", src), **_cells("dst", dst)}
        return self._add(NodeType.COMP, idx, cnt, fields, after=(payload, *after), **more)

    def copy(self, *, idx, cnt=1, src: Place, dst: Place, **more) -> np.ndarray:
        fields = {"comp_op": CompOp.COPY, **_cells("src", src), **_cells("dst", dst)}
        return self._add(NodeType.COMP, idx, cnt, fields, **more)

    def join(self, rank: np.ndarray | None = None, **more) -> np.ndarray:
        """Nodes that only wait, or take `duration_ps`: one set of dependencies in place of many (edges by `depend`)."""
        return self._add(NodeType.COMP, MISSING, MISSING, {}, rank=rank, **more)

    def depend(self, child: np.ndarray, parent: np.ndarray) -> None:
        self._edges.append(np.array([child, parent], dtype=np.int64))

    def extend(self, m: int, values: Mapping[str, Numbers]) -> np.ndarray:
        """Append m nodes given as columns: ``type``, ``order``, ``payload``, maybe ``rank``, and those of messages.
        Raises AlgorithmError: a column that drafts do not have, or too many programs."""
        unknown = sorted(values.keys() - {"type", "order", "payload", "rank", *_FIELDS})
        if unknown:
            fields = ", ".join(_FIELDS)
            raise AlgorithmError("algorithms", f"a draft has no column {unknown[0]}", f"write one of {fields}")
        if "rank" in values and self.ranks > MAX_PROGRAMS:
            raise AlgorithmError(
                "algorithms",
                f"{self.ranks} ranks would run programs of their own, and at most {MAX_PROGRAMS} can",
                "use fewer ranks, or an algorithm that all ranks run alike, e.g. ring",
            )
        handles = self.next_handles(m)
        self._blocks.append((m, {"order": len(self._blocks), **values}))
        self._size += m
        return handles

    def _add(self, kind, idx, cnt, fields, *, rank=None, order=None, after=(), **more) -> np.ndarray:
        cnt = MISSING if idx is MISSING else cnt
        values = {"type": int(kind), "msg_chunk_idx": idx, "msg_chunk_cnt": cnt, **fields, **more}
        if order is not None:
            values["order"] = order
        if rank is not None:
            values["rank"] = np.asarray(rank, dtype=np.int64)
            handles = self.extend(len(values["rank"]), values)
        else:
            widths = [np.shape(v)[-1] for v in (*values.values(), *after) if np.ndim(v)]
            handles = self.extend(max((w for w in widths if w > 1), default=widths[0] if widths else 1), values)
        for handle in after:
            parent = np.broadcast_to(np.asarray(handle, dtype=np.int64), handles.shape)
            real = parent != NONE
            self.depend(handles[real], parent[real])
        return handles

    # -- the table

    def _same_on_all(self) -> bool:
        return all("rank" not in values for _, values in self._blocks)

    def _column(self, name: str, missing: int = MISSING) -> np.ndarray:
        """int64[size] by handle; int64[ranks, size] where the ranks of a program for all differ."""
        blocks = [values.get(name, missing) for _, values in self._blocks]
        wide = any(np.ndim(block) == 2 for block in blocks)
        column = np.empty((self.ranks, self._size) if wide else self._size, dtype=np.int64)
        begin = 0
        for (m, _), block in zip(self._blocks, blocks, strict=True):
            column[..., begin : begin + m] = block
            begin += m
        return column

    def varying(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The columns in which ranks may differ, int64[ranks, n], of ranks that all have n nodes."""
        if self._same_on_all():
            by_order = np.argsort(self._column("order"), kind="stable")
            columns = {name: self._column(name) for name in names}
            return {name: column[:, by_order] for name, column in columns.items() if column.ndim == 2}
        by_rank = np.lexsort((self._column("order"), self._column("rank")))
        return {name: self._column(name)[by_rank].reshape(self.ranks, -1) for name in names}

    def program(self, actors: tuple[str, ...] = ()) -> Program:
        """The table of all ranks, of which the last are `actors`."""
        if not self._same_on_all():
            return replace(self._table(self.ranks, self._column("rank")), actors=actors)
        table = self._table(1, np.zeros(self._size, dtype=np.int64)).some(np.zeros(self.ranks, dtype=np.int64))
        return table.with_columns({name: column.ravel() for name, column in self.varying(_FIELDS).items()})

    def _table(self, ranks: int, rank: np.ndarray) -> Program:
        """The table of nodes of given ranks; where all run alike, of the first."""
        size, by_row = self._size, np.lexsort((self._column("order"), rank))
        row, rank = inverse(by_row), rank[by_row]
        bounds = np.searchsorted(rank, np.arange(ranks + 1))
        names = [name for name in _FIELDS if any(name in values for _, values in self._blocks)]
        columns = {name: np.atleast_2d(self._column(name))[0, by_row] for name in names}
        if "msg_chunk_cnt" in columns:
            columns["total_chunk_cnt"] = np.where(columns["msg_chunk_cnt"] == MISSING, MISSING, self.chunks)
        payload = self._column("payload", NONE)[by_row]
        columns["payload"] = np.where(payload == NONE, MISSING, row[payload] - bounds[rank])
        child, parent = row[np.concatenate([np.empty((2, 0), dtype=np.int64), *self._edges], axis=1)]
        if bool((rank[child] != rank[parent]).any()):
            raise InternalError("a builder made a node depend on another rank's")
        if bool((parent >= child).any()):
            raise InternalError("a builder wrote a node before one that it depends on")
        child, parent = np.divmod(distinct(child * size + parent), max(size, 1))
        return Program(
            bounds=bounds, type=self._column("type")[by_row].astype(np.int8),
            node_id=(np.arange(size) - bounds[rank]).astype(np.uint64),
            columns={name: compact(column) for name, column in columns.items() if bool((column != MISSING).any())},
            ptr=np.searchsorted(child, np.arange(size + 1)), parents=parent,
        )  # fmt: skip


def previous(handles: np.ndarray, first: int | np.integer | np.ndarray = NONE) -> np.ndarray:
    """The handle before each handle; `first` for the first."""
    return np.append(first, handles[:-1])


def _cells(side: str, place: Place | None) -> dict[str, object]:
    if place is None:
        return {}
    return {f"{side}_buf": np.asarray(place[0], dtype=np.int64), f"{side}_off": place[1]}


def finish(
    draft: Draft, name: str, collective: str, *, source: str = "builder", actors: tuple[str, ...] = (), **stated
) -> Algorithm:
    """The `Algorithm` of a draft of all ranks, of which the last are `actors`; `stated`: more of its fields."""
    traces = Traces(draft.ranks, draft=partial(draft.program, actors))
    ranks, chunks = draft.ranks - len(actors), draft.chunks
    return Algorithm(
        name=name, collective=collective, ranks=ranks, traces=traces, chunks=chunks, source=source, actors=actors,
        **stated,
    )  # fmt: skip


def finish_rotated(lay: Callable[[np.ndarray], Draft], rotation: Rotation, name: str, collective: str) -> Algorithm:
    """The `Algorithm` of a rotation, for which each rank's program is rank 0's with all peers shifted. `lay`:
    ``lay(which)`` drafts the ranks int64[k]. It must be picklable: algorithms are sent to other processes."""
    first = lay(np.zeros(1, dtype=np.int64))
    traces = Traces.of_rotation(Rotated(rotation, first.program().traces()[0], partial(_varying, lay)))
    return Algorithm(
        name=name, collective=collective, ranks=len(traces), traces=traces, chunks=first.chunks,
        in_place=collective != "all_to_all", source="builder",
    )  # fmt: skip


def _varying(lay: Callable[[np.ndarray], Draft], ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    return lay(ranks).varying(names)
