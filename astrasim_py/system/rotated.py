"""Programs of a rotation-symmetric algorithm: all follow from the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.plan import SEND, RankProgram


def rotate(rotation: Rotation, peers: np.ndarray, by: int) -> np.ndarray:
    """int64[n]: peers rotated by a rank; -1 stays."""
    return np.where(peers >= 0, rotation.shift(np.maximum(peers, 0).astype(np.int64), by), -1)


class RotatedPrograms(Sequence[RankProgram]):
    """One program per member, made from the first one on demand, then cached.

    `algorithm`: a rotation-symmetric one. `base`: program of its rank 0. `size`: full buffer, bytes. `verbatim`: sizes
    are used as written (`Algorithm.message_bytes`). `uniform_bytes`: whether all members send, receive and reduce the
    first one's bytes, node by node.
    """

    def __init__(self, algorithm: Algorithm, base: RankProgram, size: int, verbatim: bool) -> None:
        self.algorithm, self.base, self.size, self.verbatim = algorithm, base, size, verbatim
        self.uniform_bytes = verbatim or algorithm.same_bytes(size)
        self._made: dict[int, RankProgram] = {0: base}

    @property
    def rotation(self) -> Rotation:
        return self.algorithm.rotation

    @property
    def own_traces(self) -> bool:
        """Whether each member has its own trace, with names and files."""
        return self.algorithm.traces.given

    def __len__(self) -> int:
        return self.algorithm.ranks

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[p] for p in range(len(self))[index])
        position = range(len(self))[index]
        if position not in self._made:
            self._made[position] = replace(
                self.base,
                trace=self.algorithm.traces[position] if self.own_traces else self.base.trace,
                peer=rotate(self.rotation, self.base.peer, position).astype(np.int32),
                nbytes=self.nbytes_of(position),
            )
        return self._made[position]

    def nbytes_of(self, position: int) -> np.ndarray:
        """int64[n]: bytes of the nodes of one member."""
        return self.base.nbytes if self.uniform_bytes else self.nbytes_matrix([position])[0]

    def nbytes_matrix(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64[k, n]: bytes of the nodes of several members."""
        if self.uniform_bytes:
            return np.broadcast_to(self.base.nbytes, (len(positions), len(self.base)))
        return self.algorithm.bytes_of_ranks(positions, self.size, verbatim=self.verbatim)[:, self.base.rows]

    def sizes(self) -> np.ndarray:
        """int64: a superset of the message sizes."""
        sends = self.base.structure.kind == SEND
        sizes = np.unique(self.base.nbytes[sends])
        if self.uniform_bytes:
            return sizes
        # Chunks [i, i + c) of a buffer of S bytes in T chunks are ⌊cS/T⌋ bytes or one more, for any i.
        counts = np.unique(self.base.trace.column("msg_chunk_cnt")[self.base.rows[sends]])
        least = [int(c) * self.size // self.algorithm.chunks for c in counts.tolist() if c >= 0]
        return np.unique(np.concatenate([sizes, np.array([b + more for b in least for more in (0, 1)], np.int64)]))
