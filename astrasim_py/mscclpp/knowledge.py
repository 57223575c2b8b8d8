"""What agents of a plan know to have happened: clocks of release and acquire.

Agents are thread blocks, and the proxies of port channels. Each counts its own operations on data. A vector says, of
every agent, how many of them come before (its clock); how many came before the last call (its base); and of every
rank, whether its part of this call has begun. Knowledge is joined by the maximum.
"""

import numpy as np


class Knowledge:
    """Vectors of `agents` and `ranks`: int32[2 · agents + ranks]."""

    def __init__(self, agents: int, ranks: int) -> None:
        self.agents, self.ranks = agents, ranks

    def nothing(self) -> np.ndarray:
        return np.zeros(2 * self.agents + self.ranks, dtype=np.int32)

    def begun(self, vector: np.ndarray, rank: int) -> bool:
        """Whether a rank is known to have begun this call."""
        return bool(vector[2 * self.agents + rank])

    def begin(self, vector: np.ndarray, rank: int) -> np.ndarray:
        """The vector of an agent of a rank that begins a call, from what came before on the rank."""
        fresh = vector.copy()
        fresh[self.agents : 2 * self.agents] = vector[: self.agents]
        fresh[2 * self.agents :] = 0
        fresh[2 * self.agents + rank] = 1
        return fresh

    def published(self, vector: np.ndarray, agent: int, own: int) -> np.ndarray:
        """What a release tells: all that its agent knows, and its own operations up to a number."""
        told = vector.copy()
        told[agent] = max(told[agent], own)
        return told

    def relaxed(self, vector: np.ndarray) -> np.ndarray:
        """What is known without a release, or without an acquire: which ranks have begun, and what came before."""
        told = vector.copy()
        told[: self.agents] = vector[self.agents : 2 * self.agents]
        return told
