"""Match keys: the pairing of sends and receives in a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import pointers
from astrasim_py.system.programs import RECV, SEND, Programs


class Matching:
    """How the sends and receives of a communicator meet; by index: match keys of a member, int64[n] by node.

    A match key is that of exactly one message; or, negative, ``~channel``: the k-th send posted on a channel meets the
    k-th receive posted there.

    Attributes
    ----------
    programs : Programs
    begin, end : ndarray
        int64[members]: the part of the arrays below that is of each; in a rotation all of them are of every member.
    at : ndarray
        int64[m]: node of a send or receive.
    partner : ndarray
        int64[m]: node of its receive or send in the peer's program, if their message is the only one of its tag
        between the two; else ``~channel``. Channels of a rotation are numbered for each sender.
    received : ndarray
        bool[m]: whether it is a receive.
    """

    def __init__(
        self,
        programs: Programs,
        begin: np.ndarray,
        end: np.ndarray,
        at: np.ndarray,
        partner: np.ndarray,
        received: np.ndarray,
    ) -> None:
        self.programs, self.begin, self.end = programs, begin, end
        self.at, self.partner, self.received = at, partner, received

    def __len__(self) -> int:
        return len(self.programs)

    @cached_property
    def channels(self) -> int:
        """Number of channels; in a rotation of each sender."""
        return -int(self.partner.min(initial=0))

    @property
    def channel_count(self) -> int:
        """Number of channels of all senders."""
        return self.channels if self.programs.rotation is None else self.channels * len(self)

    @cached_property
    def _first(self) -> np.ndarray:
        return pointers(self.programs.lengths)

    def _sender(self, position: int) -> np.ndarray:
        """int64[m]: sender of each message that a member sends or receives."""
        part = slice(self.begin[position], self.end[position])
        peer = self.programs.shared[position].peer[self.at[part]]
        return np.where(self.received[part], self.programs.peers(position, peer), position)

    def partners(self, position: int) -> np.ndarray:
        """int64[m]: `partner` of the sends and receives of a member, with channels numbered over all senders."""
        partner = self.partner[self.begin[position] : self.end[position]]
        if self.programs.rotation is None or not self.channels:
            return partner
        return np.where(partner < 0, ~(self._sender(position) * self.channels + ~partner), partner)

    def __getitem__(self, position: int) -> np.ndarray:
        part, keys = slice(self.begin[position], self.end[position]), self.partners(position).copy()
        rows, single = self.at[part], keys >= 0
        sends = np.where(self.received[part], keys, rows)
        keys[single] = self._first[self._sender(position)[single]] + sends[single]
        by_row = np.zeros(len(self.programs.shared[position]), dtype=np.int64)
        by_row[rows] = keys
        return by_row


class Matchings:
    """Matchings of one problem, each made once."""

    def __init__(self) -> None:
        self._matchings: dict[object, Matching] = {}
        #: Matchings whose channels are to be numbered, and the source, destination, tag and bytes of their messages.
        self._unnumbered: list[tuple[Matching, np.ndarray]] = []

    def of_communicator(
        self, key: object, programs: Programs, what: str, name: Callable[[int], str] = "rank {}".format
    ) -> Matching:
        """How the sends and receives of `programs` (by position) meet; `key` names the communicator, `name` a position.

        Raises AlgorithmError: a send without receive, or the reverse, in the algorithm `what` (empty: a workload).
        """
        make = _matching if programs.rotation is None else _rotated_matching
        if (key, make) not in self._matchings:
            self._matchings[key, make] = make(programs, what, name)
        return self._matchings[key, make]

    def by_bytes(self, programs: Programs, members: Sequence[int]) -> Matching:
        """Under ``message_match: bytes``: channels (src, dst, tag, bytes), to be numbered once all are known."""
        key = programs, tuple(members)
        if key not in self._matchings:
            self._matchings[key], columns = _messages(programs, np.asarray(members, dtype=np.int64))
            self._unnumbered.append((self._matchings[key], columns))
        return self._matchings[key]

    def number(self) -> None:
        """Number the channels of `by_bytes`."""
        if self._unnumbered:
            channel = _numbers(np.concatenate([columns[:4] for _, columns in self._unnumbered], axis=1))
            ends = np.cumsum([len(matching.at) for matching, _ in self._unnumbered])
            for (matching, _), own in zip(self._unnumbered, np.split(~channel, ends), strict=False):
                matching.partner[:] = own
            self._unnumbered = []


def _matching(programs: Programs, what: str, name: Callable[[int], str]) -> Matching:
    matching, columns = _messages(programs, np.arange(len(programs)))
    ends_at, side = matching.at, matching.received.astype(np.int64)
    if not len(ends_at):
        return matching
    channel = _numbers(columns[2::-1])
    count = int(channel.max()) + 1
    received, sent = (np.bincount(channel[side == end], minlength=count) for end in (1, 0))
    odd = np.flatnonzero(received != sent)
    if what and len(odd):
        src, dst, tag, _ = columns[:, np.argmax(channel == odd[0])].tolist()
        raise _unmatched(what, name(src), name(dst), int(sent[odd[0]]), int(received[odd[0]]), tag)
    several = (received != 1) | (sent != 1)
    number, ends = np.cumsum(several) - 1, np.zeros((2, count), dtype=np.int64)
    ends[side, channel] = ends_at
    matching.partner[:] = np.where(several[channel], ~number[channel], ends[1 - side, channel])
    return matching


def _messages(programs: Programs, members: np.ndarray) -> tuple[Matching, np.ndarray]:
    """A matching with room for partners, and its messages, int64[4, m]: source, destination, tag and bytes."""
    table = programs.different
    peer = table.column("peer")
    rows = np.flatnonzero(peer >= 0)
    position, place = programs.at_all(rows)
    row = rows[place]
    other, me, received = members[programs.peers(position, peer[row])], members[position], table.kind[row] == RECV
    src, dst = np.where(received, other, me), np.where(received, me, other)
    messages = np.stack([src, dst, table.column("tag")[row], table.column("nbytes")[row]])
    ptr = pointers(np.bincount(position, minlength=len(programs)))
    local = rows - np.repeat(table.bounds[:-1], np.diff(np.searchsorted(rows, table.bounds)))
    return Matching(programs, ptr[:-1], ptr[1:], local[place], np.zeros(len(row), dtype=np.int64), received), messages


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


class _RotatedChannels:
    """Channels (distance, tag) of the first member of a rotation, and the sends and receives on each."""

    def __init__(self, programs: Programs) -> None:
        base, rotation = programs.different[0], programs.rotation
        assert rotation is not None, "only programs of a rotation have channels by distance"
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


def _rotated_matching(programs: Programs, what: str, name: Callable[[int], str]) -> Matching:
    base = programs.different[0]
    channels = _RotatedChannels(programs)
    sent, received = channels.sent, channels.received
    odd = np.flatnonzero(sent != received)
    if len(odd):
        delta, tag = divmod(int(channels.known[odd[0]]), len(channels.tags))
        raise _unmatched(what, name(0), name(delta), int(sent[odd[0]]), int(received[odd[0]]), int(channels.tags[tag]))
    several = sent > 1
    number = np.cumsum(several) - 1
    partner = np.zeros(len(base), dtype=np.int64)
    for nodes, of, others, of_other in (
        (channels.sends, channels.of_send, channels.receives, channels.of_receive),
        (channels.receives, channels.of_receive, channels.sends, channels.of_send),
    ):
        only = np.full(len(sent), -1, dtype=np.int64)
        only[of_other] = others
        partner[nodes] = np.where(several, ~number, only)[of]
    rows, n = np.flatnonzero(base.peer >= 0), len(programs)
    begin, end = (np.broadcast_to(np.int64(bound), n) for bound in (0, len(rows)))
    return Matching(programs, begin, end, rows, partner[rows], base.structure.kind[rows] == RECV)


def sizes_are_told_by_tags(programs: Programs) -> bool:
    """Whether every channel (distance, tag) carries messages of one size and equally many sends and receives."""
    if programs.member_bytes is not None:
        return False
    channels = _RotatedChannels(programs)
    nbytes = programs.different[0].nbytes[channels.nodes]
    size = np.zeros(len(channels.known), dtype=np.int64)
    size[channels.of] = nbytes
    return bool((channels.sent == channels.received).all() and (size[channels.of] == nbytes).all())
