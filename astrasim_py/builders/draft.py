"""Drafts: how builders write algorithms as whole columns, and how these become one trace per rank.

`Uniform` is for algorithms in which every rank runs the same program up to peers and chunk numbers: its structure
is held once and shared by all ranks. `Flat` is for the others (trees, rooted collectives): nodes of all ranks in
one table. Both are filled block by block; a block is any number of nodes of one kind, and what it refers to
(dependencies, payloads) are the handles that earlier blocks returned.

An algorithm of a rotation (`astrasim_py.program.rotation`) is drafted for the ranks that are asked for, by a
function that takes them: `finish_rotated`. All others are drafted once, for all ranks: `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import MAX_NODES, VARYING, RotatedTraces, Rotation

#: Handle of "nothing" among dependencies and payloads.
NONE = -1

#: Columns a block may give; absent ones are MISSING.
_FIELDS = (
    "comm_dst",
    "comm_src",
    "comm_tag",
    "msg_chunk_idx",
    "msg_chunk_cnt",
    "comp_op",
    "src_buf",
    "src_off",
    "dst_buf",
    "dst_off",
)

#: Most nodes of one rank, where its program stands for all.
MAX_PROGRAM = 2**22
#: Most ranks that run programs of their own.
MAX_PROGRAMS = 2**16

#: Where a range of cells begins: (buffer, offset in chunks), each an int or an array; MISSING for no cells.
Cells = tuple[object, object]


def check_nodes(place: str, nodes: int) -> None:
    """Refuse an algorithm that would not fit in memory.

    Raises
    ------
    AlgorithmError
        More than `MAX_NODES` nodes.
    """
    _check(place, nodes, MAX_NODES, "")


def check_program(place: str, nodes: int) -> None:
    """Refuse an algorithm of a rotation that would not fit in memory: that is, one rank's program.

    Raises
    ------
    AlgorithmError
        More than `MAX_PROGRAM` nodes.
    """
    _check(place, nodes, MAX_PROGRAM, " on a rank")


def _check(place: str, nodes: int, most: int, where: str) -> None:
    if nodes > most:
        raise AlgorithmError(
            place,
            f"would have about {nodes} nodes, more than {most}{where}",
            "use fewer ranks or chunks, or another algorithm",
        )


def _fields(
    kind: NodeType,
    peer: object,
    tag: object,
    idx: object,
    cnt: object,
    src: Cells | None,
    dst: Cells | None,
    op: CompOp | None,
) -> dict[str, object]:
    fields = {"msg_chunk_idx": idx, "msg_chunk_cnt": cnt}
    if kind == NodeType.COMM_SEND:
        fields |= {"comm_dst": peer, "comm_tag": tag}
    elif kind == NodeType.COMM_RECV:
        fields |= {"comm_src": peer, "comm_tag": tag}
    if op is not None:
        fields["comp_op"] = int(op)
    if src is not None:
        fields |= {"src_buf": np.asarray(src[0], dtype=np.int64), "src_off": src[1]}
    if dst is not None:
        fields |= {"dst_buf": np.asarray(dst[0], dtype=np.int64), "dst_off": dst[1]}
    return fields


def _edges(child: np.ndarray, after: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (child, parent) of handles; `after` holds arrays that broadcast against `child`."""
    children, parents = [], []
    for given in after:
        parent = np.broadcast_to(np.asarray(given, dtype=np.int64), child.shape)
        real = parent != NONE
        children.append(child[real])
        parents.append(parent[real])
    if not children:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate(children), np.concatenate(parents)


def _csr(child: np.ndarray, parent: np.ndarray, size: int) -> Csr:
    """CSR of parents; each parent once, ascending."""
    keys = child * size + parent
    if len(keys) > 1 and not bool((keys[1:] > keys[:-1]).all()):
        keys = np.unique(keys)
        child, parent = np.divmod(keys, size)
    if bool((parent >= child).any()):
        raise InternalError("a builder wrote a node before one that it depends on")
    ptr = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(child, minlength=size), out=ptr[1:])
    return Csr(ptr, parent.astype(np.uint64))


class _Draft:
    """What both drafts share: the four kinds of nodes."""

    _size = 0

    def next_handles(self, m: int) -> np.ndarray:
        """The handles that the next m nodes will get, for blocks whose nodes refer to each other."""
        return np.arange(self._size, self._size + m, dtype=np.int64)

    def send(self, *, peer, tag, idx, cnt=1, src: Cells | None = None, payload=NONE, after=(), **where) -> np.ndarray:
        """Sends of chunks [idx, idx + cnt) to `peer`, from cells `src` or from the data of node `payload`."""
        fields = _fields(NodeType.COMM_SEND, peer, tag, idx, cnt, src, None, None)
        return self._add(NodeType.COMM_SEND, fields, payload, after, **where)

    def recv(self, *, peer, tag, idx, cnt=1, dst: Cells | None = None, after=(), **where) -> np.ndarray:
        """Receives from `peer` into cells `dst`, or for whoever names them as payload."""
        fields = _fields(NodeType.COMM_RECV, peer, tag, idx, cnt, None, dst, None)
        return self._add(NodeType.COMM_RECV, fields, NONE, after, **where)

    def reduce(self, *, payload, idx, cnt=1, src: Cells, dst: Cells | None, after=(), **where) -> np.ndarray:
        """Reductions of received data with cells `src`; the sum goes to cells `dst`."""
        fields = _fields(NodeType.COMP, None, None, idx, cnt, src, dst, CompOp.REDUCE)
        return self._add(NodeType.COMP, fields, payload, (payload, *after), **where)

    def copy(self, *, idx, cnt=1, src: Cells, dst: Cells, after=(), **where) -> np.ndarray:
        """Local copies of cells."""
        fields = _fields(NodeType.COMP, None, None, idx, cnt, src, dst, CompOp.COPY)
        return self._add(NodeType.COMP, fields, NONE, after, **where)


class Uniform(_Draft):
    """A program that every rank runs alike, up to peers and chunk numbers.

    Parameters
    ----------
    ranks : int
        Ranks that are laid: all of the group, or some.
    chunks : int
        T of the algorithm.

    Notes
    -----
    A block has m nodes per rank. Its values are an int or int64[m] where they are the same on all ranks, else
    int64[ranks, m]. `order` (int or int64[m]) sorts the nodes of a rank and must agree with the dependencies;
    left out, blocks follow each other. Handles are int64[m].
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.ranks, self.chunks = ranks, chunks
        self._kinds: list[tuple[int, int]] = []
        self._orders: list[np.ndarray] = []
        self._values: list[dict[str, object]] = []
        self._payloads: list[np.ndarray] = []
        self._deps: list[tuple[np.ndarray, np.ndarray]] = []

    def _add(self, kind, fields, payload, after, order=None) -> np.ndarray:
        widths = [
            np.shape(v)[-1]
            for v in (*fields.values(), payload, order if order is not None else 0, *after)
            if np.ndim(v)
        ]
        m = max((w for w in widths if w > 1), default=widths[0] if widths else 1)
        handles = np.arange(self._size, self._size + m, dtype=np.int64)
        self._size += m
        order = len(self._orders) if order is None else order
        self._kinds.append((int(kind), m))
        self._orders.append(np.broadcast_to(np.asarray(order, dtype=np.int64), (m,)))
        self._values.append(fields)
        self._payloads.append(np.broadcast_to(np.asarray(payload, dtype=np.int64), (m,)))
        self._deps.append(_edges(handles, after))
        return handles

    def _by_order(self) -> np.ndarray:
        return np.argsort(np.concatenate(self._orders), kind="stable")

    def _column(self, name: str, by_order: np.ndarray) -> np.ndarray:
        """int64[n], or int64[ranks, n] where ranks differ."""
        blocks = [values.get(name, MISSING) for values in self._values]
        wide = any(np.ndim(block) == 2 for block in blocks)
        column = np.empty((self.ranks, self._size) if wide else self._size, dtype=np.int64)
        at = 0
        for (_, m), block in zip(self._kinds, blocks, strict=True):
            column[..., at : at + m] = block
            at += m
        return column[..., by_order]

    def varying(self) -> dict[str, np.ndarray]:
        """Columns of `VARYING` in which ranks differ, int64[ranks, n]."""
        if not self._size:
            return {}
        by_order = self._by_order()
        columns = {name: self._column(name, by_order) for name in VARYING}
        return {name: column for name, column in columns.items() if column.ndim == 2}

    def traces(self) -> tuple[ExecutionTrace, ...]:
        """One trace per rank; all share their structure and every column that does not vary."""
        size = self._size
        if not size:
            empty = ExecutionTrace.from_columns(node_id=np.empty(0, np.uint64), type=0)
            return (empty,) * self.ranks
        by_order = self._by_order()
        place = np.empty(size, dtype=np.int64)
        place[by_order] = np.arange(size)
        child = place[np.concatenate([c for c, _ in self._deps])]
        parent = place[np.concatenate([p for _, p in self._deps])]
        kinds = np.repeat(*(np.array(part, dtype=np.int64) for part in zip(*self._kinds, strict=True)))
        shared = {
            "node_id": np.arange(size, dtype=np.uint64),
            "type": kinds[by_order].astype(np.int8),
            "data_deps": _csr(child, parent, size),
            "total_chunk_cnt": self.chunks,
        }
        payload = np.concatenate(self._payloads)
        shared["payload"] = np.where(payload == NONE, MISSING, place[payload])[by_order]
        columns = {name: self._column(name, by_order) for name in _FIELDS}
        shared |= {name: column for name, column in columns.items() if column.ndim == 1}
        varying = {name: column for name, column in columns.items() if column.ndim == 2}
        return tuple(
            ExecutionTrace.from_columns(**shared, **{name: column[r] for name, column in varying.items()})
            for r in range(self.ranks)
        )


class Flat(_Draft):
    """Nodes of all ranks in one table, for programs that differ from rank to rank.

    Notes
    -----
    A block has m nodes anywhere: `rank` is int64[m] and counts the ranks that are laid, from 0; all other values are
    an int or int64[m]. `order` sorts the nodes of a rank and must agree with the dependencies; left out, blocks
    follow each other. Handles are int64[m]. Dependencies and payloads must lie on the node's own rank.
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        if ranks > MAX_PROGRAMS:
            raise AlgorithmError(
                "algorithms",
                f"{ranks} ranks would run programs of their own, and at most {MAX_PROGRAMS} can",
                "use fewer ranks, or an algorithm that all ranks run alike, e.g. ring",
            )
        self.ranks, self.chunks = ranks, chunks
        self._columns: dict[str, list[np.ndarray]] = {
            name: [] for name in (*_FIELDS, "channel", "source_line", "type", "rank", "order", "payload")
        }
        self._deps: list[tuple[np.ndarray, np.ndarray]] = []
        self._blocks = 0

    def _add(self, kind, fields, payload, after, *, rank, order=None) -> np.ndarray:
        rank = np.asarray(rank, dtype=np.int64)
        order = self._blocks if order is None else order
        values: Mapping[str, object] = {
            **fields,
            "type": int(kind),
            "rank": rank,
            "order": order,
            "payload": payload,
        }
        handles = self.extend(len(rank), values)
        self._deps.append(_edges(handles, after))
        return handles

    def extend(self, m: int, values: Mapping[str, object]) -> np.ndarray:
        """Append m nodes given as columns (``type``, ``rank``, ``order``, ``payload`` and any of the fields)."""
        for name, parts in self._columns.items():
            value = values.get(name, NONE if name == "payload" else MISSING)
            parts.append(np.broadcast_to(np.asarray(value, dtype=np.int64), (m,)))
        handles = np.arange(self._size, self._size + m, dtype=np.int64)
        self._size += m
        self._blocks += 1
        return handles

    def join(self, rank: np.ndarray, *, order=None) -> np.ndarray:
        """Nodes that do nothing but wait: one dependency set in place of many (give the edges by `depend`)."""
        fields = _fields(NodeType.COMP, None, None, MISSING, MISSING, None, None, None)
        return self._add(NodeType.COMP, fields, NONE, (), rank=rank, order=order)

    def depend(self, child: np.ndarray, parent: np.ndarray) -> None:
        """More dependencies, as pairs of handles."""
        self._deps.append((np.asarray(child, dtype=np.int64), np.asarray(parent, dtype=np.int64)))

    def _table(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Columns of all nodes, rank after rank, each in its order; and the handle of each row."""
        table = {
            name: np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
            for name, parts in self._columns.items()
        }
        by_place = np.lexsort((table.pop("order"), table["rank"]))
        return {name: column[by_place] for name, column in table.items()}, by_place

    def varying(self) -> dict[str, np.ndarray]:
        """Columns of `VARYING`, int64[ranks, n], of ranks that all have n nodes."""
        table, _ = self._table()
        return {name: table[name].reshape(self.ranks, -1) for name in VARYING}

    def traces(self) -> tuple[ExecutionTrace, ...]:
        """One trace per rank; ranks of equal structure share it."""
        n, size = self.ranks, self._size
        table, by_place = self._table()
        rank = table.pop("rank")
        bounds = np.searchsorted(rank, np.arange(n + 1))
        place = np.empty(size, dtype=np.int64)
        place[by_place] = np.arange(size) - bounds[rank]
        position = np.empty(size, dtype=np.int64)
        position[by_place] = np.arange(size)
        child = np.concatenate([c for c, _ in self._deps]) if self._deps else np.empty(0, dtype=np.int64)
        parent = np.concatenate([p for _, p in self._deps]) if self._deps else np.empty(0, dtype=np.int64)
        child, parent = position[child], position[parent]
        if bool((rank[child] != rank[parent]).any()):
            raise InternalError("a builder made a node depend on another rank's")
        by_child = np.argsort(child, kind="stable")
        child, parent = child[by_child], parent[by_child]
        edge_bounds = np.searchsorted(child, bounds)
        payload = table["payload"]
        table["payload"] = np.where(payload == NONE, MISSING, place[payload])
        kinds = table.pop("type").astype(np.int8)
        columns = {name: column for name, column in table.items() if bool((column != MISSING).any())}
        moving = columns["msg_chunk_cnt"] != MISSING if "msg_chunk_cnt" in columns else np.zeros(size, bool)
        columns["total_chunk_cnt"] = np.where(moving, self.chunks, MISSING)
        structures: dict[bytes, tuple[np.ndarray, Csr, np.ndarray]] = {}
        traces = []
        for r in range(n):
            low, high = int(bounds[r]), int(bounds[r + 1])
            edges = slice(int(edge_bounds[r]), int(edge_bounds[r + 1]))
            own_child, own_parent, own_kinds = child[edges] - low, parent[edges] - low, kinds[low:high]
            key = own_kinds.tobytes() + b"|" + own_child.tobytes() + b"|" + own_parent.tobytes()
            if key not in structures:
                ids = np.arange(high - low, dtype=np.uint64)
                structures[key] = own_kinds, _csr(own_child, own_parent, high - low), ids
            own_kinds, deps, ids = structures[key]
            traces.append(
                ExecutionTrace.from_columns(
                    node_id=ids,
                    type=own_kinds,
                    data_deps=deps,
                    **{name: column[low:high] for name, column in columns.items()},
                )
            )
        return tuple(traces)


def finish(
    draft: Uniform | Flat, name: str, collective: str, *, root: int | None = None, in_place: bool = True
) -> Algorithm:
    """Turn a draft of all ranks into an `Algorithm`."""
    return _algorithm(draft.traces(), draft.chunks, name, collective, root, in_place)


def finish_rotated(
    lay: Callable[[np.ndarray], Uniform | Flat],
    rotation: Rotation,
    name: str,
    collective: str,
    *,
    in_place: bool = True,
) -> Algorithm:
    """The `Algorithm` of a rotation.

    Parameters
    ----------
    lay : callable
        ``lay(which)`` drafts the ranks int64[k]. It must be of a kind that `pickle` takes: algorithms are sent to
        other processes.
    rotation : Rotation
        For which it holds that each rank's program is rank 0's with all peers shifted.
    name, collective : str
    in_place : bool
    """
    first = lay(np.zeros(1, dtype=np.int64))
    traces = RotatedTraces(rotation, first.traces()[0], _Varying(lay))
    return _algorithm(traces, first.chunks, name, collective, None, in_place)


class _Varying:
    """Columns in which the ranks of a draft differ."""

    def __init__(self, lay: Callable[[np.ndarray], Uniform | Flat]) -> None:
        self.lay = lay

    def __call__(self, ranks: np.ndarray) -> dict[str, np.ndarray]:
        return self.lay(ranks).varying()


def _algorithm(
    traces: Sequence[ExecutionTrace], chunks: int, name: str, collective: str, root: int | None, in_place: bool
) -> Algorithm:
    return Algorithm(
        name=name,
        collective=collective,
        ranks=len(traces),
        traces=traces,
        root=root,
        chunks=chunks,
        in_place=in_place,
        source="builder",
    )
