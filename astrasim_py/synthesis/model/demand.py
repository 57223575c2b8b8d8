"""The chunks that a collective moves, with their origins and receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astrasim_py.collectives.chunks import chunk_bytes
from astrasim_py.collectives.collective import COLLECTIVES, promise_of
from astrasim_py.core.errors import AlgorithmError, InternalError

#: Most chunks of a demand.
MAX_CHUNKS = 2**24


@dataclass(frozen=True, eq=False)
class Demand:
    """Chunks with their origins and receivers (none: everybody).

    A collective that reduces is the reverse of one that copies: `origin` is then the *home* of a chunk, where its sum
    belongs, and everyone (or `receivers`) contributes.
    """

    collective: str
    ranks: int
    chunks: int  # T of the algorithm: chunks of the full buffer
    root: int | None
    size: int  # full buffer, bytes
    origin: np.ndarray = field(repr=False)
    sizes: np.ndarray = field(repr=False)  # int64[classes]: distinct sizes of chunks in bytes, descending
    size_class: np.ndarray = field(repr=False)  # int32[C]: index into `sizes`
    receivers: np.ndarray | None = field(default=None, repr=False)
    stated: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, collective: str, ranks: int, per_rank: int, size: int, root: int | None = None) -> Demand:
        """The demand of a collective whose shards (of broadcast, reduce: whose buffer) are cut into `per_rank` chunks.

        Chunk ``r * per_rank + k`` is the k-th of rank r; of an all_to_all ``(a * ranks + b) * per_rank + k`` is that
        from a to b, a == b included. Raises AlgorithmError: not such a collective, or too many chunks.
        """
        if collective not in COLLECTIVES or collective == "barrier":
            raise AlgorithmError(collective, "cannot be synthesized", "name a collective that moves data")
        whole = collective in ("broadcast", "reduce")
        total = per_rank if whole else ranks * per_rank
        count = total * ranks if collective == "all_to_all" else total
        if count > MAX_CHUNKS:
            raise AlgorithmError(collective, f"{count} chunks are more than {MAX_CHUNKS}", "use fewer chunks or ranks")
        number = np.arange(count, dtype=np.int64)
        owner = number // per_rank
        receivers = None
        if whole:
            origin = np.full(count, root)
        elif collective == "all_to_all":
            origin, receivers = owner // ranks, owner % ranks
        elif collective in ("gather", "scatter"):
            ends = owner, np.full(count, root)
            origin, receivers = ends if collective == "gather" else ends[::-1]
        else:
            origin = owner
        nbytes = chunk_bytes(number % total, np.ones(count, dtype=np.int64), size, total)
        root = root if promise_of(collective).rooted else None
        return cls._sized(nbytes, collective, ranks, total, root, size, origin, receivers)

    @classmethod
    def _sized(cls, nbytes, collective, ranks, chunks, root, size, origin, receivers, stated=None) -> Demand:
        sizes, kind = np.unique(-nbytes, return_inverse=True)
        size_class = kind.astype(np.int32).reshape(-1)
        receivers = None if receivers is None else receivers.astype(np.int32)
        return cls(
            collective, ranks, chunks, root, size, origin.astype(np.int32), -sizes, size_class, receivers, stated
        )

    @classmethod
    def blocks(cls, nbytes: Sequence[Sequence[int]], per_block: int = 1, unit: int = 1) -> Demand:
        """The demand of an all_to_all(v): bytes from a to b at [a][b], each block in `per_block` chunks at most.

        `unit` divides all sizes and is not cut. Raises AlgorithmError: not a square of sizes, or too many chunks.
        """
        n = len(nbytes)
        for a, row in enumerate(nbytes):
            if len(row) != n:
                problem = f"row {a} has {len(row)} sizes, and there are {n} ranks"
                raise AlgorithmError("all_to_all", problem, "give one row per rank, with one size per rank")
            for b, size in enumerate(row):
                if not 0 <= size < 2**53:
                    raise AlgorithmError("all_to_all", f"{size} B from rank {a} to rank {b}", "write 0..2^53")
        if n * n * per_block > MAX_CHUNKS:
            raise AlgorithmError("all_to_all", f"more than {MAX_CHUNKS} chunks", "use fewer chunks or ranks")
        whole = np.array(nbytes, dtype=np.int64).reshape(n, n)
        np.fill_diagonal(whole, 0)
        if unit < 1 or (whole % unit).any():
            raise AlgorithmError("all_to_all", f"{unit} B do not divide all blocks", "use a smaller unit")
        part = np.arange(per_block)
        units = whole[:, :, None] // unit
        # The first units % per_block chunks have one more.
        each = (units // per_block + (part < units % per_block)) * unit
        origin, receivers, _ = np.nonzero(each)
        stated = each[each > 0]
        size = int(max(whole.sum(axis=0).max(initial=0), whole.sum(axis=1).max(initial=0)))
        return cls._sized(stated, "all_to_all", n, max(len(stated), 1), None, size, origin, receivers, stated)

    @property
    def targets(self) -> np.ndarray:
        """int32[C]: `receivers`, of chunks that one rank each needs."""
        if self.receivers is None:
            raise InternalError(f"every rank needs every chunk of {self.collective}")
        return self.receivers

    @property
    def count(self) -> int:
        """Number of chunks of the demand, C."""
        return len(self.origin)

    @property
    def reduces(self) -> bool:
        """Whether transfers towards the home of a chunk carry partial sums."""
        return self.collective in ("reduce_scatter", "reduce")
