"""Rotations: algorithms in which every rank runs the program of rank 0, seen from its own place.

Ranks are numbers in a mixed radix, and a rank's peers are those of rank 0 with its own number added digit by digit.
The program of rank 0 and the rotation then describe all ranks, in the memory of one rank's program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import AlgorithmError

#: Most nodes of an algorithm, all ranks together, whose traces are made.
MAX_NODES = 2**27
#: Most nodes, all ranks together, of traces that are cached.
_KEPT_NODES = 2**17
#: Nodes of the ranks that are drafted at once.
_BLOCK_NODES = 2**20

#: Columns in which the traces of ranks may differ.
VARYING = ("comm_dst", "comm_src", "msg_chunk_idx", "msg_chunk_cnt", "src_off", "dst_off")
#: Columns of peers, with the type of node that has them.
PEERS = {"comm_dst": NodeType.COMM_SEND, "comm_src": NodeType.COMM_RECV}

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
        """Sum of ranks.

        `position`, `delta`: ranks; arrays broadcast. Returns int64 where one of them is an array.
        """
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


class RotatedTraces(Sequence[ExecutionTrace]):
    """One trace per rank of a rotation, made when asked for.

    `base`: of rank 0. `columns`: ``columns(ranks, names)`` gives those of the columns `names` (of `VARYING`) in which
    ranks differ, int64[k, n] for the ranks int64[k]. `given`: all traces, where they exist, with names and places of
    their own.

    Traces of large algorithms are new objects whenever they are asked for.
    """

    __slots__ = ("_columns", "_kept", "base", "given", "rotation")

    def __init__(
        self, rotation: Rotation, base: ExecutionTrace, columns: Columns, given: Sequence[ExecutionTrace] | None = None
    ) -> None:
        self.rotation, self.base, self._columns = rotation, base, columns
        self.given = given is not None
        self._kept = given

    @classmethod
    def with_peers(cls, rotation: Rotation, base: ExecutionTrace) -> RotatedTraces:
        """Traces that differ in their peers only."""
        return cls(rotation, base, _Peers(rotation, base))

    def __len__(self) -> int:
        return self.rotation.ranks

    @property
    def nodes(self) -> int:
        """Nodes of all ranks."""
        return len(self) * len(self.base)

    def may_differ(self, name: str) -> bool:
        """True if a column of `VARYING` may differ between ranks."""
        return name in self._columns(np.zeros(1, dtype=np.int64), (name,))

    def columns(self, ranks: Sequence[int] | np.ndarray, names: Sequence[str] = VARYING) -> dict[str, np.ndarray]:
        """Columns of some ranks' traces: int64[k, n] for k ranks, read-only where all ranks share it."""
        ranks = np.asarray(ranks, dtype=np.int64)
        found, shape = self._columns(ranks, names), (len(ranks), len(self.base))
        return {
            name: found[name] if name in found else np.broadcast_to(self.base.column(name), shape) for name in names
        }

    def some(self, ranks: Sequence[int] | np.ndarray) -> list[ExecutionTrace]:
        """Traces of some ranks."""
        ranks = np.asarray(ranks, dtype=np.int64)
        if self._kept is not None:
            return [self._kept[rank] for rank in ranks.tolist()]
        found = self._columns(ranks, VARYING)
        return [
            self.base if not rank else self.base.with_columns({name: column[i] for name, column in found.items()})
            for i, rank in enumerate(ranks.tolist())
        ]

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self._through(range(len(self))[index]))
        rank = range(len(self))[index]
        if rank and self.nodes <= _KEPT_NODES:
            return self._all()[rank]
        return self.some([rank])[0]

    def __iter__(self) -> Iterator[ExecutionTrace]:
        return iter(self._all()) if self.nodes <= _KEPT_NODES else self._through(range(len(self)))

    def _all(self) -> Sequence[ExecutionTrace]:
        if self._kept is None:
            self._kept = tuple(self._through(range(len(self))))
        return self._kept

    def check_size(self, ranks: int) -> None:
        """Refuse to write out so many ranks where they would not fit in memory."""
        if ranks * len(self.base) > MAX_NODES:
            raise AlgorithmError(
                self.base.place,
                f"has {self.nodes} nodes over all {len(self)} ranks, more than {MAX_NODES}, and cannot be written out",
                "use fewer ranks or chunks, or another algorithm",
            )

    def _through(self, ranks: range) -> Iterator[ExecutionTrace]:
        self.check_size(len(ranks))
        block = max(_BLOCK_NODES // max(len(self.base), 1), 1)
        for start in range(0, len(ranks), block):
            yield from self.some(ranks[start : start + block])

    def __reduce__(self):
        return type(self), (self.rotation, self.base, self._columns, self._kept if self.given else None)

    def __repr__(self) -> str:
        return f"RotatedTraces({len(self)} ranks of {len(self.base)} nodes)"

    def rows(self, base: ExecutionTrace, origin: np.ndarray) -> RotatedTraces:
        """Traces whose row i is row ``origin[i]`` of these, or does not vary where that is negative."""
        return RotatedTraces(self.rotation, base, _Rows(self._columns, origin))

    def on(self, base: ExecutionTrace) -> RotatedTraces:
        """The same traces with the columns that all ranks share taken from `base`."""
        return RotatedTraces(self.rotation, base, self._columns)


class _Peers:
    """Columns of traces that differ in their peers only."""

    def __init__(self, rotation: Rotation, base: ExecutionTrace) -> None:
        self.rotation, self.base = rotation, base

    def __call__(self, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        out = {}
        for name in names:
            if name in PEERS:
                peer = self.rotation.shift(ranks[:, None], self.base.column(name)[None, :])
                out[name] = np.where(self.base.type == PEERS[name], peer, MISSING)
        return out


class _Rows:
    """Columns of traces made of some rows of others."""

    def __init__(self, columns: Columns, origin: np.ndarray) -> None:
        self.columns, self.origin = columns, origin

    def __call__(self, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        given = self.origin >= 0
        return {
            name: np.where(given, column[:, np.maximum(self.origin, 0)], MISSING)
            for name, column in self.columns(ranks, names).items()
        }
