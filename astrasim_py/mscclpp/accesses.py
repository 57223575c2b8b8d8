"""Accesses to cells, and the races between them.

A cell keeps its last write and the reads since. A read must come after that write; a write after it and all those
reads. Between agents that is a matter of what they know (`knowledge`). Inside a thread block only a meeting of its
threads orders them: two accesses between the same meetings must be of one thread, which has the same unit and the same
position in the range in both.
"""

from typing import NamedTuple

import numpy as np

#: Races that are listed at most.
MAX_RACES = 2**16


class Access(NamedTuple):
    """An access to a cell: `own`: the number of the operation among those of its agent; `meeting`: of the threads of
    its block before it; `unit`: bytes that a thread handles at once, 0 for a proxy."""

    agent: int
    own: int
    meeting: int
    unit: int
    position: int
    step: int


class Order(NamedTuple):
    """What comes before an access to plain cells or `packets`: by agent, the operations whose writes, and reads, do."""

    writes: np.ndarray
    reads: np.ndarray
    packets: bool


class Race(NamedTuple):
    """Two accesses to a cell that nothing orders; the second came second in this execution."""

    kind: str  # "read after write", "write after read", "write after write"
    cell: int
    first: Access
    second: Access
    threads: bool  # of one thread block


class Accesses:
    """The last accesses to all cells."""

    def __init__(self, cells: int) -> None:
        self.writes: list[Access | None] = [None] * cells
        self.reads: list[list[Access]] = [[] for _ in range(cells)]
        self.races: list[Race] = []

    def read(self, cell: int, access: Access, order: Order, *, flagged: bool = False) -> None:
        """`flagged`: of a packet, whose flag is the order."""
        before = self.writes[cell]
        if before is not None and not flagged and not self._has_come(cell, access, order):
            self._check("read after write", cell, before, access, order.writes)
        self.reads[cell].append(access)

    def write(self, cell: int, access: Access, order: Order) -> None:
        before = self.writes[cell]
        if before is not None and not self._has_come(cell, access, order):
            self._check("write after write", cell, before, access, order.writes)
        for earlier in self.reads[cell]:
            self._check("write after read", cell, earlier, access, order.reads)
        self.writes[cell], self.reads[cell] = access, []

    def _has_come(self, cell: int, access: Access, order: Order) -> bool:
        """Whether a packet is known to have been read by its flag, and so to have come; proxies read without flags."""
        return order.packets and any(
            earlier.unit and (earlier.agent == access.agent or order.reads[earlier.agent] >= earlier.own)
            for earlier in self.reads[cell]
        )

    def _check(self, kind: str, cell: int, before: Access, access: Access, known: np.ndarray) -> None:
        if before.step == access.step and before.agent == access.agent:
            # One operation: each element is read before it is written.
            ordered = before.position == access.position or kind == "write after write"
        elif before.agent != access.agent:
            ordered = bool(known[before.agent] >= before.own)
        else:
            alike = (before.unit, before.position) == (access.unit, access.position)
            ordered = alike or before.meeting != access.meeting or not access.unit
        if not ordered and len(self.races) < MAX_RACES:
            self.races.append(Race(kind, cell, before, access, before.agent == access.agent))
