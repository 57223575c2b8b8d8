"""Rotations: algorithms in which every rank runs the program of rank 0, seen from its own place.

Ranks are numbers in a mixed radix, and a rank's peers are those of rank 0 with its own number added digit by digit.
The program of rank 0 and the rotation then describe all ranks, in the memory of one rank's program.
Files name none: it is found by comparing, column by column, all that a plan and an engine read of the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError

#: Most nodes of an algorithm, all ranks together, whose traces are made.
MAX_NODES = 2**27
#: Nodes of the ranks that are drafted at once, and peers that are compared at once.
_BLOCK_NODES = 2**20
_BLOCK_PEERS = 2**18

#: Columns in which the traces of ranks may differ.
VARYING = ("comm_dst", "comm_src", "msg_chunk_idx", "msg_chunk_cnt", "src_off", "dst_off")
#: Columns of peers, with the type of node that has them.
PEERS = {"comm_dst": NodeType.COMM_SEND, "comm_src": NodeType.COMM_RECV}
#: Columns that no engine and no plan reads, where the data of a node lie; and those that are compared by themselves.
_FREE = frozenset(VARYING) | {"src_buf", "dst_buf"}

Columns = Callable[[np.ndarray, Sequence[str]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Rotation:
    """Addition of ranks, digit by digit.

    `dims`: radix of each digit, the least significant first: rank = a0 + n0·(a1 + n1·(…)). One digit is a ring; digits
    of 2 are the bits of a hypercube, whose addition is XOR; others are tori.

    >>> Rotation((4, 2)).shift(3, 1), Rotation((2, 2)).shift(3, 1)
    (0, 2)
    """

    dims: tuple[int, ...]

    @cached_property
    def ranks(self) -> int:
        return prod(self.dims)

    def shift(self, position, delta):
        """Sum of ranks; arrays broadcast."""
        return self._combine(position, delta, 1)

    def unshift(self, position, delta):
        """Difference of ranks: what `shift` by `delta` turns into `position`."""
        return self._combine(position, delta, -1)

    def _combine(self, position, delta, sign: int):
        dims = self.dims
        if len(dims) == 1:
            return (position + sign * delta) % dims[0]
        if all(size == 2 for size in dims):
            return position ^ delta
        total, stride = 0, 1
        for size in dims:
            digit = (position // stride + sign * (delta // stride)) % size
            total, stride = total + digit * stride, stride * size
        return total


class Rotated:
    """The trace of rank 0, and the rotation by which those of all other ranks follow.

    Parameters
    ----------
    rotation : Rotation
    base : ExecutionTrace
        Of rank 0.
    columns : callable, optional
        ``columns(ranks, names)`` gives those of the columns `names` (of `VARYING`) in which ranks differ, int64[k, n]
        for k ranks; by default the peers.
    """

    def __init__(self, rotation: Rotation, base: ExecutionTrace, columns: Columns | None = None) -> None:
        self.rotation, self.base = rotation, base
        self._columns = columns or partial(peers, rotation, base)

    @property
    def nodes(self) -> int:
        """Nodes of all ranks."""
        return self.rotation.ranks * len(self.base)

    def may_differ(self, name: str) -> bool:
        """True if a column of `VARYING` may differ between ranks."""
        return name in self._columns(np.zeros(1, dtype=np.int64), (name,))

    def columns(self, ranks: Sequence[int] | np.ndarray, names: Sequence[str] = VARYING) -> dict[str, np.ndarray]:
        """Columns of some ranks' traces: int64[k, n] for k ranks, read-only where all ranks share it."""
        ranks = np.asarray(ranks, dtype=np.int64)
        varying, shape = self._columns(ranks, names), (len(ranks), len(self.base))
        return {
            name: varying[name] if name in varying else np.broadcast_to(self.base.column(name), shape) for name in names
        }

    def traces(self, ranks: Sequence[int] | np.ndarray) -> list[ExecutionTrace]:
        """Traces of some ranks."""
        ranks = np.asarray(ranks, dtype=np.int64)
        varying = self._columns(ranks, VARYING)
        return [
            self.base if not rank else self.base.with_columns({name: column[i] for name, column in varying.items()})
            for i, rank in enumerate(ranks.tolist())
        ]

    def check_size(self, ranks: int) -> None:
        """Refuse to write out so many ranks where they would not fit in memory."""
        if ranks * len(self.base) > MAX_NODES:
            count = self.rotation.ranks
            raise AlgorithmError(
                self.base.place,
                f"has {self.nodes} nodes over all {count} ranks, more than {MAX_NODES}, and cannot be written out",
                "use fewer ranks or chunks, or another algorithm",
            )

    def in_blocks(self, ranks: range) -> Iterator[ExecutionTrace]:
        """Traces of some ranks, made so many at once that their columns stay small."""
        self.check_size(len(ranks))
        block = max(_BLOCK_NODES // max(len(self.base), 1), 1)
        for start in range(0, len(ranks), block):
            yield from self.traces(ranks[start : start + block])

    def on(self, base: ExecutionTrace, origin: np.ndarray | None = None) -> Rotated:
        """The same with the columns that all ranks share taken from `base`, whose row i is row ``origin[i]`` of this
        one's, by default i, or does not vary where that is negative."""
        columns = self._columns if origin is None else partial(_picked, self._columns, origin)
        return Rotated(self.rotation, base, columns)


def peers(rotation: Rotation, base: ExecutionTrace, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    return {
        name: np.where(base.type == PEERS[name], rotation.shift(ranks[:, None], base.column(name)[None, :]), MISSING)
        for name in names
        if name in PEERS
    }


def _picked(columns: Columns, origin: np.ndarray, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of traces made of some rows of others."""
    picked = columns(ranks, names).items()
    return {name: np.where(origin >= 0, column[:, np.maximum(origin, 0)], MISSING) for name, column in picked}


def rotated_of(traces: Sequence[ExecutionTrace]) -> Rotated | None:
    """Traces as those of a rotation; None where they are none's."""
    rotation = rotation_of(traces)
    return None if rotation is None else Rotated(rotation, traces[0], partial(_given_columns, traces))


def _given_columns(traces: Sequence[ExecutionTrace], ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    columns = {name: np.empty((len(ranks), len(traces[0])), dtype=np.int64) for name in names}
    for name, column in columns.items():
        for row, rank in zip(column, ranks.tolist(), strict=True):
            row[:] = traces[rank].column(name)
    return columns


def rotation_of(traces: Sequence[ExecutionTrace]) -> Rotation | None:
    """The rotation under which all ranks run the program of rank 0; None where there is none. Peers of rank p must be
    those of rank 0 turned by p, and all else that a plan or an engine reads must be equal. Which chunks a node covers,
    how many a local copy moves, where they lie, names and metadata are each rank's own."""
    ranks, base = len(traces), traces[0]
    if ranks < 2 or any(len(trace) != len(base) for trace in traces):
        return None
    send, receive = (np.flatnonzero(base.type == kind) for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV))
    peers = _all_peers(base, send, receive)
    if not len(peers) or int(peers.min()) < 0 or int(peers.max()) >= ranks:
        return None
    dims = _dims(peers, lambda rank: _all_peers(traces[rank], send, receive), ranks)
    if dims is None:
        return None
    rotation = Rotation(dims)
    step = max(_BLOCK_PEERS // len(peers), 1)
    for start in range(1, ranks, step):
        block = np.arange(start, min(start + step, ranks))
        block_peers = np.stack([_all_peers(traces[rank], send, receive) for rank in block.tolist()])
        if not np.array_equal(block_peers, rotation.shift(peers[None, :], block[:, None])):
            return None
    # No other rank depends on the bytes of a local copy. Other sizes must be equal; without chunks, a size is stated
    # otherwise.
    rows = np.flatnonzero((base.type != NodeType.COMP) | (base.column("comp_op") == CompOp.REDUCE))
    index, count = base.column("msg_chunk_idx")[rows] >= 0, base.column("msg_chunk_cnt")[rows]
    for trace in traces[1:]:
        if not (
            trace.runs_like(base, _FREE)
            and np.array_equal(trace.column("msg_chunk_cnt")[rows], count)
            and np.array_equal(trace.column("msg_chunk_idx")[rows] >= 0, index)
        ):
            return None
    return rotation


def _all_peers(trace: ExecutionTrace, send: np.ndarray, receive: np.ndarray) -> np.ndarray:
    return np.concatenate([trace.column("comm_dst")[send], trace.column("comm_src")[receive]])


def _dims(peers: np.ndarray, peers_of, ranks: int) -> tuple[int, ...] | None:
    """Radices, the least significant first, that the peers of some ranks suggest; None where they suggest none.
    Rank s, the first of a digit that s numbers precede, adds 1 to that digit of every peer: s, or, from the last value
    of the digit to the first, s less its radix times s."""
    dims, stride = [], 1
    while stride < ranks:
        back = peers - peers_of(stride)
        wrapped = back[back != -stride]
        size = ranks // stride
        if len(wrapped):
            size, rest = divmod(int(wrapped[0]), stride)
            size += 1
            if rest or size < 2 or ranks % (stride * size):
                return None
        dims.append(size)
        stride *= size
    return tuple(dims)
