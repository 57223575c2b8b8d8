"""What agents of a plan know to have happened: clocks of release and acquire.

Agents are thread blocks, and the proxies of port channels. Each counts its own operations on data. A vector says, of
every agent, up to which of them its writes, and its reads, come before; how many of them came before the last call (its
base); and of every rank, whether its part of this call has begun. Knowledge is joined by the maximum. A packet orders
no writes but its own: who reads it knows only what its writer had read.
"""

import numpy as np


class Knowledge:
    """Vectors of `agents` and `ranks`: int32[3 · agents + ranks]."""

    def __init__(self, agents: int, ranks: int) -> None:
        self.ranks = ranks
        self.writes, self.reads, self.base = (slice(k * agents, (k + 1) * agents) for k in range(3))
        self.first_rank = 3 * agents

    def nothing(self) -> np.ndarray:
        return np.zeros(self.first_rank + self.ranks, dtype=np.int32)

    def begun(self, vector: np.ndarray, rank: int) -> bool:
        """Whether a rank is known to have begun this call."""
        return bool(vector[self.first_rank + rank])

    def begin(self, vector: np.ndarray, rank: int) -> np.ndarray:
        """The vector of an agent of a rank that begins a call, from what came before on the rank."""
        fresh = vector.copy()
        fresh[self.base] = vector[self.writes]
        fresh[self.first_rank :] = 0
        fresh[self.first_rank + rank] = 1
        return fresh

    def add(self, vector: np.ndarray, agent: int, own: int) -> None:
        """Let a vector know the operations of an agent up to a number."""
        for section in (self.writes, self.reads):
            vector[section.start + agent] = max(vector[section.start + agent], own)

    def published(self, vector: np.ndarray, agent: int, own: int) -> np.ndarray:
        """What a release tells: all that its agent knows, and its own operations up to a number."""
        told = vector.copy()
        self.add(told, agent, own)
        return told

    def relaxed(self, vector: np.ndarray) -> np.ndarray:
        """What is known without a release, or without an acquire: which ranks have begun, and what came before."""
        told = vector.copy()
        told[self.writes] = told[self.reads] = vector[self.base]
        return told

    def packet(self, vector: np.ndarray, agent: int, own: int) -> np.ndarray:
        """What a packet tells beside its data: what its writer has read."""
        told = self.published(vector, agent, own)
        told[self.writes] = vector[self.base]
        return told
