"""Slices of an algorithm of a rotation: one program for all members, and where its messages meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.plan import RECV, SEND, RankProgram

#: Bytes of all members' nodes that are bound at once when one is asked for.
_BOUND_NODES = 2**20


class RotatedPrograms(Sequence[RankProgram]):
    """One program per member, made from the first one's when asked for, and kept.

    Parameters
    ----------
    algorithm : Algorithm
        Of a rotation.
    base : RankProgram
        Of its rank 0.
    size : int
        Full buffer, bytes.
    verbatim : bool
        Sizes are taken as written (`Algorithm.message_bytes`).

    Attributes
    ----------
    uniform_bytes : bool
        Whether all members send, receive and reduce what the first one does, node by node.
    """

    def __init__(self, algorithm: Algorithm, base: RankProgram, size: int, verbatim: bool) -> None:
        self.algorithm, self.base, self.size, self.verbatim = algorithm, base, size, verbatim
        self.uniform_bytes = verbatim or algorithm.same_bytes(size)
        self._kept: dict[int, RankProgram] = {0: base}
        self._bytes: np.ndarray | None = None

    @property
    def rotation(self) -> Rotation:
        return self.algorithm.rotation

    @property
    def own_traces(self) -> bool:
        """Whether the members' nodes have names, and their traces files, that are not the first one's."""
        return self.algorithm.traces.given

    def __len__(self) -> int:
        return self.algorithm.ranks

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[p] for p in range(len(self))[index])
        position = range(len(self))[index]
        found = self._kept.get(position)
        if found is None:
            found = self._kept[position] = replace(
                self.base,
                trace=self.algorithm.traces[position] if self.own_traces else self.base.trace,
                peer=self.peers_of(position),
                nbytes=self.nbytes_of(position),
            )
        return found

    def peers_of(self, position: int) -> np.ndarray:
        """int32[n]: peers of the member at `position`, -1 where a node has none."""
        peer = self.base.peer
        return np.where(peer >= 0, self.rotation.shift(position, peer.astype(np.int64)), -1).astype(np.int32)

    def nbytes_of(self, position: int) -> np.ndarray:
        """int64[n]: bytes of its nodes."""
        if self.uniform_bytes:
            return self.base.nbytes
        if self._bytes is None and len(self) * len(self.base) <= _BOUND_NODES:
            self._bytes = self.nbytes_matrix(range(len(self)))
        return self.nbytes_matrix([position])[0] if self._bytes is None else self._bytes[position]

    def nbytes_matrix(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64[k, n]: bytes of the nodes of several members."""
        if self.uniform_bytes:
            return np.broadcast_to(self.base.nbytes, (len(positions), len(self.base)))
        found = self.algorithm.bytes_of_ranks(positions, self.size, verbatim=self.verbatim)
        return found[:, self.base.rows]

    def sizes(self) -> np.ndarray:
        """int64: every size of a message, and perhaps some more."""
        sends = self.base.structure.kind == SEND
        sizes = np.unique(self.base.nbytes[sends])
        if self.uniform_bytes:
            return sizes
        # Chunks [i, i + c) of a buffer of S bytes in T are ⌊cS/T⌋ bytes or one more, whatever i is.
        counts = np.unique(self.base.trace.column("msg_chunk_cnt")[self.base.rows[sends]])
        whole = [int(c) * self.size // self.algorithm.chunks for c in counts.tolist() if c >= 0]
        return np.unique(np.concatenate([sizes, np.array(whole, dtype=np.int64), np.array(whole, dtype=np.int64) + 1]))


class RotatedMatching:
    """Where the messages of a rotation meet, told for the first member.

    Attributes
    ----------
    partner : numpy.ndarray
        int32[n]: of a send the node of the receive in its peer's program, of a receive the node of the send in its
        peer's program, where it is the only message of its tag between the two. Else ``~channel``: the k-th send
        posted on a channel of the sender meets the k-th receive posted there. 0 of other nodes.
    channels : int
        Channels of each sender are numbered below this.
    match_key : sequence of numpy.ndarray
        By member, int64[n]: as `astrasim_py.system.plan.Matching.match_key`, made when asked for.
    keys : int
    """

    def __init__(self, rotation: Rotation, base: RankProgram, what: str) -> None:
        self.rotation, self.base = rotation, base
        sends, receives, tags, known, inverse = _channels(rotation, base)
        sent, received = _counts(sends, known, inverse)
        odd = np.flatnonzero(sent != received)
        if len(odd):
            delta, number = divmod(int(known[odd[0]]), len(tags))
            raise AlgorithmError(
                what, *unmatched(0, delta, int(sent[odd[0]]), int(received[odd[0]]), int(tags[number]))
            )
        partner = np.zeros(len(base), dtype=np.int32)
        of_send, of_receive = np.full(len(known), -1, dtype=np.int64), np.full(len(known), -1, dtype=np.int64)
        of_send[inverse[: len(sends)]] = sends
        of_receive[inverse[len(sends) :]] = receives
        several = sent > 1
        channel = np.cumsum(several) - 1
        partner[sends] = np.where(several, ~channel, of_receive)[inverse[: len(sends)]]
        partner[receives] = np.where(several, ~channel, of_send)[inverse[len(sends) :]]
        self.partner = partner
        self.channels = int(several.sum())

    @property
    def match_key(self) -> Sequence[np.ndarray]:
        return _MatchKeys(self)

    @property
    def keys(self) -> int:
        return self.rotation.ranks * max(len(self.base), self.channels)

    def match_key_of(self, position: int) -> np.ndarray:
        """int64[n]: match keys of one member."""
        base, partner = self.base, self.partner.astype(np.int64)
        kind, peer = base.structure.kind, base.peer.astype(np.int64)
        node = np.arange(len(base), dtype=np.int64)
        received = kind == RECV
        sender = np.where(received, self.rotation.shift(position, peer), position)
        single = sender * len(base) + np.where(received, partner, node)
        meet = np.where(partner >= 0, single, ~(sender * self.channels + ~partner))
        return np.where((peer >= 0) & (received | (kind == SEND)), meet, 0)


class _MatchKeys(Sequence[np.ndarray]):
    """Match keys by member."""

    def __init__(self, matching: RotatedMatching) -> None:
        self.matching = matching

    def __len__(self) -> int:
        return self.matching.rotation.ranks

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self.matching.match_key_of(p) for p in range(len(self))[index])
        return self.matching.match_key_of(range(len(self))[index])


def _channels(rotation: Rotation, base: RankProgram) -> tuple[np.ndarray, ...]:
    """Sends and receives, their distinct tags, the keys (distance, tag) of the first member's channels, and of each
    send and then of each receive which of these it is on.
    """
    kind, peer = base.structure.kind, base.peer.astype(np.int64)
    sends, receives = np.flatnonzero((kind == SEND) & (peer >= 0)), np.flatnonzero((kind == RECV) & (peer >= 0))
    tags, tag = np.unique(base.tag[np.concatenate([sends, receives])], return_inverse=True)
    # What a member receives from the one at its distance -d was sent to the one at distance d.
    far = np.concatenate([peer[sends], rotation.unshift(0, peer[receives])])
    known, inverse = np.unique(far * max(len(tags), 1) + tag, return_inverse=True)
    return sends, receives, tags, known, inverse


def _counts(sends: np.ndarray, known: np.ndarray, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sends and receives of each channel."""
    parts = inverse[: len(sends)], inverse[len(sends) :]
    return tuple(np.bincount(part, minlength=len(known)) for part in parts)


def bytes_tell_nothing(programs: RotatedPrograms) -> bool:
    """Whether messages meet alike with and without regard to their bytes.

    They do where every channel (distance, tag) carries messages of one size, as many as are received.
    """
    if not programs.uniform_bytes:
        return False
    base = programs.base
    sends, receives, _, known, inverse = _channels(programs.rotation, base)
    sent, received = _counts(sends, known, inverse)
    nbytes = base.nbytes[np.concatenate([sends, receives])]
    size = np.zeros(len(known), dtype=np.int64)
    size[inverse] = nbytes
    return bool((sent == received).all() and (size[inverse] == nbytes).all())


def unmatched(src: int, dst: int, sent: int, received: int, tag: int) -> tuple[str, str]:
    """Problem and remedy where sends lack receives, or the other way round."""
    problem = (
        f"rank {src} sends {sent} messages to rank {dst} with tag {tag}, and rank {dst} receives {received} of them"
    )
    return problem, "give every send its receive"
