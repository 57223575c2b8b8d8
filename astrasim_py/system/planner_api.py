"""The interface of planners: a planner cuts a collective into chunks, which wait in queues of each NPU.

A chunk runs *phases* one after the other, usually one per dimension. In a phase the members form rows, each of which
runs one algorithm: a *call*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from astrasim_py.program.algorithm import Algorithm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedPhase:
    """One visit of one dimension by one chunk."""

    queue: int  # of each NPU, in which the chunk waits for its turn
    size: int  # full buffer, bytes, for sizes in chunks; an absolute ``comm_size`` stands as written
    calls: tuple[tuple[tuple[int, ...], Algorithm], ...]  # ranks in the algorithm's order; each rank is in exactly one
    priority: int = 0  # order in this queue among chunks of equal priority: higher first, then by arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """One chunk of a collective.

    `turns`: place of each phase in the order in which its queue serves the phases of this collective, from 0: it is not
    started before those of smaller turns are, nor before all visits of that queue by collectives that the rank called
    earlier. With the same turns on all NPUs, and collectives called in the same order, NPUs that finish phases at
    different times cannot block each other. Empty: priority and arrival decide alone.
    """

    phases: tuple[PlannedPhase, ...]
    priority: int = 0  # waiting chunks of higher priority go first
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """One collective call of one group: the input of a planner."""

    type: str  # ``all_reduce`` …
    size: int  # bytes as the workload states them (of an all_gather: one shard)
    members: tuple[int, ...]  # ranks of the job, in the order of the group
    group: str
    node: int  # id of the workload's node on the first member
    priority: int = 0  # its ``comm_priority``
    dims: tuple[bool, ...] | None = None  # its ``involved_dim``; None where absent
    number: int = 0  # the call is the ``number``-th of its group in the job
    root: int = 0  # position in the group, for rooted collectives
    full: int = 0  # bytes of the full buffer (of an all_gather: all shards); 0 where unknown


class Planner(Protocol):
    """Cuts collectives into chunks."""

    capacity: tuple[int, ...]  # chunks that each queue of an NPU runs at once

    def plan(self, request: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """Chunks of a call; or one algorithm over all members, without queues; None: the job's table decides."""
        ...
