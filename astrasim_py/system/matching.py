"""Match keys: the pairing of sends and receives in a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.programs import RECV, SEND, Matching, RankProgram, RotatedPrograms
from astrasim_py.system.repeated import SharedPrograms


class Matchings:
    """Matchings of one problem, each made once."""

    def __init__(self) -> None:
        self._made: dict[object, Matching | RotatedMatching] = {}
        #: Match keys to be numbered, and the source, destination, tag and bytes of their messages.
        self._unnumbered: list[tuple[np.ndarray, np.ndarray]] = []

    def of_communicator(
        self, key: object, programs: Sequence[RankProgram], what: str, name: Callable[[int], str] = "rank {}".format
    ) -> Matching | RotatedMatching:
        """Match keys of the sends and receives of `programs` (by position); `key` names the communicator, `name` a
        position.

        Raises AlgorithmError: a send without receive, or the reverse, in the algorithm `what` (empty: a workload).
        """
        rotated = isinstance(programs, RotatedPrograms)
        if (key, rotated) not in self._made:
            make = _rotated_matching if rotated else _matching
            self._made[key, rotated] = make(programs, what, name)
        return self._made[key, rotated]

    def by_bytes(self, programs: Sequence[RankProgram], members: Sequence[int]) -> Matching:
        """Under ``message_match: bytes``: channels (src, dst, tag, bytes), to be numbered once all are known."""
        key = programs, tuple(members)
        if key not in self._made:
            self._made[key], keys, columns = _messages(programs, np.asarray(members, dtype=np.int64))
            self._unnumbered.append((keys, columns))
        return self._made[key]

    def number(self) -> None:
        """Number the channels of `by_bytes`."""
        if self._unnumbered:
            channel = _numbers(np.concatenate([columns[:4] for _, columns in self._unnumbered], axis=1))
            ends = np.cumsum([len(keys) for keys, _ in self._unnumbered])
            for (keys, _), own in zip(self._unnumbered, np.split(~channel, ends), strict=False):
                keys[:] = own
            self._unnumbered = []


def _matching(programs: Sequence[RankProgram], what: str, name: Callable[[int], str]) -> Matching:
    matching, keys, columns = _messages(programs, np.arange(len(programs)))
    if not len(keys):
        return matching
    *ends, _, receive = columns
    channel, receive = _numbers(np.stack(ends[::-1])), receive > 0
    received, sent = (np.bincount(channel[which], minlength=int(channel.max()) + 1) for which in (receive, ~receive))
    keys[:] = np.where(((received == 1) & (sent == 1))[channel], channel, ~channel)
    odd = np.flatnonzero(received != sent)
    if what and len(odd):
        src, dst, tag, *_ = columns[:, np.argmax(channel == odd[0])].tolist()
        raise _unmatched(what, name(src), name(dst), int(sent[odd[0]]), int(received[odd[0]]), tag)
    return matching


def _messages(programs: Sequence[RankProgram], members: np.ndarray) -> tuple[Matching, np.ndarray, np.ndarray]:
    """A matching with room for keys (int64[m]), and its messages, int64[5, m]: source, destination, tag, bytes,
    whether received."""
    shared = SharedPrograms(programs)
    peer = shared.column("peer")
    at = np.flatnonzero(peer >= 0)
    owner, taken = shared.everywhere(at)
    position, row = shared.positions[owner], at[taken]
    other, me = members[peer[row] + shared.shifts[owner]], members[position]
    received = shared.kind[row] == RECV
    src, dst = np.where(received, other, me), np.where(received, me, other)
    messages = np.stack([src, dst, shared.column("tag")[row], shared.column("nbytes")[row], received])
    keys = np.zeros(len(row), dtype=np.int64)
    first = np.searchsorted(at, shared.bounds)
    local = at - np.repeat(shared.bounds[:-1], np.diff(first))
    nodes, begin, end = np.zeros((3, len(programs)), dtype=np.int64)
    nodes[shared.positions] = np.diff(shared.bounds)[shared.which]
    end[shared.positions] = np.cumsum(np.diff(first)[shared.which])
    begin[shared.positions] = end[shared.positions] - np.diff(first)[shared.which]
    return Matching(nodes, begin, end, local[taken], keys, received), keys, messages


def _numbers(columns: np.ndarray) -> np.ndarray:
    """int64[m]: a number per distinct column, in their order; the last row decides first."""
    order = np.lexsort(columns)
    new = (np.diff(columns[:, order], prepend=columns[:, order[:1]]) != 0).any(axis=0)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(new)
    return number


def _unmatched(what: str, src: str, dst: str, sent: int, received: int, tag: int) -> AlgorithmError:
    problem = f"{src} sends {sent} messages to {dst} with tag {tag}, and {dst} receives {received} of them"
    return AlgorithmError(what, problem, "give every send its receive")


class RotatedMatching(Sequence[np.ndarray]):
    """Match keys of a rotation, stored for the first member; used like a `Matching`.

    `partner`: int32[n]: node of the matching receive or send in the peer's program, if the message is the only one of
    its tag between the two. Else ``~channel``: the k-th send posted on a channel of the sender matches the k-th receive
    posted there. 0 for other nodes. `channels`: number of channels per sender.
    """

    def __init__(self, rotation: Rotation, base: RankProgram, partner: np.ndarray, channels: int) -> None:
        self.rotation, self.base, self.partner, self.channels = rotation, base, partner, channels

    def __len__(self) -> int:
        return self.rotation.ranks

    def __getitem__(self, position):
        base, partner = self.base, self.partner.astype(np.int64)
        peer, received = base.peer.astype(np.int64), base.structure.kind == RECV
        sender = np.where(received, self.rotation.shift(position, peer), position)
        single = sender * len(base) + np.where(received, partner, np.arange(len(base)))
        keys = np.where(partner >= 0, single, ~(sender * self.channels + ~partner))
        return np.where((peer >= 0) & (received | (base.structure.kind == SEND)), keys, 0)

    def flat(self) -> Matching:
        """The same, stored for all members."""
        at, n = np.flatnonzero(self.base.peer >= 0), len(self)
        ends = np.arange(n + 1) * len(at)
        keys = np.concatenate([self[position][at] for position in range(n)])
        received = np.tile(self.base.structure.kind[at] == RECV, n)
        return Matching(np.full(n, len(self.base)), ends[:-1], ends[1:], np.tile(at, n), keys, received)


class _Channels:
    """Channels (distance, tag) of the first member of a rotation, and the sends and receives on each."""

    def __init__(self, rotation: Rotation, base: RankProgram) -> None:
        kind, peer = base.structure.kind, base.peer.astype(np.int64)
        self.sends, self.receives = (np.flatnonzero((kind == each) & (peer >= 0)) for each in (SEND, RECV))
        self.nodes = np.concatenate([self.sends, self.receives])
        self.tags, tag = np.unique(base.tag[self.nodes], return_inverse=True)
        # A receive from the member at distance -d matches a send to distance d.
        far = np.concatenate([peer[self.sends], rotation.unshift(0, peer[self.receives])])
        self.known, self.of = np.unique(far * max(len(self.tags), 1) + tag, return_inverse=True)
        self.of_send, self.of_receive = np.split(self.of, [len(self.sends)])
        count = len(self.known)
        self.sent, self.received = (np.bincount(of, minlength=count) for of in (self.of_send, self.of_receive))


def _rotated_matching(programs: RotatedPrograms, what: str, name: Callable[[int], str]) -> RotatedMatching:
    rotation, base = programs.rotation, programs.base
    channels = _Channels(rotation, base)
    sent, received = channels.sent, channels.received
    odd = np.flatnonzero(sent != received)
    if len(odd):
        delta, tag = divmod(int(channels.known[odd[0]]), len(channels.tags))
        raise _unmatched(what, name(0), name(delta), int(sent[odd[0]]), int(received[odd[0]]), int(channels.tags[tag]))
    several = sent > 1
    number = np.cumsum(several) - 1
    partner = np.zeros(len(base), dtype=np.int32)
    for nodes, of, others, of_other in (
        (channels.sends, channels.of_send, channels.receives, channels.of_receive),
        (channels.receives, channels.of_receive, channels.sends, channels.of_send),
    ):
        only = np.full(len(sent), -1, dtype=np.int64)
        only[of_other] = others
        partner[nodes] = np.where(several, ~number, only)[of]
    return RotatedMatching(rotation, base, partner, int(several.sum()))


def sizes_are_told_by_tags(programs: RotatedPrograms) -> bool:
    """Whether every channel (distance, tag) carries messages of one size and equally many sends and receives."""
    if not programs.uniform_bytes:
        return False
    channels = _Channels(programs.rotation, programs.base)
    nbytes = programs.base.nbytes[channels.nodes]
    size = np.zeros(len(channels.known), dtype=np.int64)
    size[channels.of] = nbytes
    return bool((channels.sent == channels.received).all() and (size[channels.of] == nbytes).all())
