"""What a planner says of a collective: chunks (streams), each with its phases, and the queues they wait in.

A collective may be cut into *streams*. A stream carries out its *phases* one after the other, usually one per
dimension of the topology; in a phase the members of the collective form *calls*, and each slice runs one algorithm
among its ranks. On every NPU a stream waits for each phase in a queue, of which only so many streams run at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from astrasim_py.program.algorithm import Algorithm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedPhase:
    """One visit of one dimension by one stream.

    Attributes
    ----------
    queue : int
        Queue of each NPU in which the stream waits for its turn.
    size : int
        Full buffer in bytes, for algorithms whose sizes are in chunks; an absolute ``comm_size`` stands as written.
    calls : tuple of (tuple of int, Algorithm)
        Ranks in the order of the algorithm's ranks, and the algorithm. Each rank of the collective is in exactly one.
    priority : int
        Among waiting streams of equal priority the higher goes first in this phase's queue, before arrival.
    """

    queue: int
    size: int
    calls: tuple[tuple[tuple[int, ...], Algorithm], ...]
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """One chunk of a collective.

    Attributes
    ----------
    phases : tuple of PlannedPhase
        In order.
    priority : int
        Of waiting streams the higher goes first.
    turns : tuple of int
        Place of each phase in the order in which its queue serves the phases of this collective, from 0: it is not
        started before those of smaller turns are, nor before all visits of that queue by collectives that the rank
        called earlier. With the same turns on all NPUs, and collectives called in the same order, NPUs that finish
        phases at different times cannot block each other. Empty: priority and arrival decide alone.
    """

    phases: tuple[PlannedPhase, ...]
    priority: int = 0
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """One collective call of one group: what a planner is asked.

    Attributes
    ----------
    type : str
        ``all_reduce`` …
    size : int
        Bytes as the workload states them (of an all_gather: one shard).
    members : tuple of int
        Ranks of the job, in the order of the group.
    node : int
        Id of the workload's node on the first member.
    priority : int
        Its ``comm_priority``, 0 where absent.
    dims : tuple of bool or None
        Its ``involved_dim``; None where absent.
    number : int
        The call is the ``number``-th of its group in the job, from 0.
    root : int
        Position in the group, for rooted collectives.
    full : int
        Bytes of the full buffer (of an all_gather: all shards); 0 where unknown.
    """

    type: str
    size: int
    members: tuple[int, ...]
    group: str
    node: int
    priority: int = 0
    dims: tuple[bool, ...] | None = None
    number: int = 0
    root: int = 0
    full: int = 0


class Planner(Protocol):
    """Cuts collectives into streams.

    Attributes
    ----------
    capacity : tuple of int
        Streams that each queue of an NPU runs at once.
    """

    capacity: tuple[int, ...]

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | Algorithm | None:
        """Streams of a call; or one algorithm over all members, without queues; None: as the job's table says."""
        ...
