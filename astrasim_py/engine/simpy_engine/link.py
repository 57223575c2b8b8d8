"""Links: one directed channel each, a FIFO server."""

from __future__ import annotations

from collections import deque

from simpy import Environment, Resource


class Link(Resource):
    """A directed channel of capacity one that serves messages in the order of their requests.

    Because it is first come first served and a message's length is known when it asks, the whole reservation is
    made at the request: the grant costs no event. `free` is the time at which the last reservation ends.

    Parameters
    ----------
    env : simpy.Environment
    index : int
        Number of the link in the topology.
    latency : int
        ps.
    hold : dict of int to int
        bytes → ps for which a message occupies the link.
    hop : dict of int to int
        bytes → ps from the start of a whole message on this link to its tail at the next (store and forward).
    counting : bool
        Whether to keep `busy`, `queued` and `max_queue`.
    """

    def __init__(
        self, env: Environment, index: int, latency: int, hold: dict[int, int], hop: dict[int, int], counting: bool
    ) -> None:
        super().__init__(env, capacity=1)
        self.index = index
        self.latency = latency
        self.hold = hold
        self.hop = hop
        self.free = 0
        self.bytes = 0
        self.messages = 0
        self.busy = 0
        self.queued = 0
        self.max_queue = 0
        self._counting = counting
        self._starts: deque[int] = deque()

    @property
    def count(self) -> int:
        """1 while a message is on the link, else 0."""
        return int(self.free > self._env.now)

    @property
    def waiting(self) -> int:
        """Messages that have asked and not yet begun (kept while counting)."""
        now = self._env.now
        return sum(start > now for start in self._starts)

    def reserve(self, requested: int, start: int, free: int, nbytes: int) -> None:
        """Book the link from `start` to `free` for a message that asked at `requested` (all ps)."""
        self.free = free
        self.bytes += nbytes
        if self._counting:
            self.messages += 1
            self.busy += free - start
            starts = self._starts
            while starts and starts[0] <= requested:
                starts.popleft()
            if start > requested:
                self.queued += start - requested
                starts.append(start)
                if len(starts) > self.max_queue:
                    self.max_queue = len(starts)
