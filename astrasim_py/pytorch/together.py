"""Replay of all ranks together: a call is a barrier of its members, and then moves its data."""

from collections import defaultdict, deque
from collections.abc import Mapping

import numpy as np

from astrasim_py.chakra import graph as csr
from astrasim_py.pytorch.graph import NodeKind
from astrasim_py.pytorch.ranks import Meeting
from astrasim_py.pytorch.replay import constants, latencies
from astrasim_py.pytorch.workload import RankGraph


def replay_together(
    ranks: Mapping[int, RankGraph],
    met: Meeting,
    *,
    with_constants: bool = False,
    waiting: bool = False,
    skew: bool = True,
) -> dict[int, tuple[int, int]]:
    """End of each rank, in the replay and as recorded, ns after the begin of the first rank.

    Parameters
    ----------
    ranks : mapping of int to RankGraph
        By global rank, as `meet` saw them.
    met : Meeting
    with_constants : bool
        Three constants of each rank take the place of all its gaps; see `astrasim_py.pytorch.replay.constants`.
    waiting : bool
        Leave waiting in: calls last as long as recorded after all members came.
    skew : bool
        Begin each rank when it began.
    """
    begin = {rank: one.graph.recording.base_ns + met.shifts[rank] for rank, one in ranks.items()}
    zero = min(begin.values())
    offset = {rank: at - zero if skew else 0 for rank, at in begin.items()}
    replays = {rank: _Replay(one, offset[rank], with_constants) for rank, one in ranks.items()}
    posts: dict[int, dict[int, int]] = defaultdict(dict)
    meets = {
        (rank, replays[rank].node_of[ranks[rank].calls[at].row]): number
        for number, instance in enumerate(met.instances)
        if not instance.lacks
        for rank, at in instance.calls.items()
    }
    ready = deque((rank, node) for rank, one in replays.items() for node in np.flatnonzero(one.waits_for == 0).tolist())
    while ready:
        rank, node = ready.popleft()
        one = replays[rank]
        number = meets.get((rank, node))
        if number is None:
            ready.extend((rank, other) for other in one.finish(node, one.start[node] + one.length[node]))
            continue
        instance = met.instances[number]
        posts[number][rank] = one.start[node]
        if len(posts[number]) == len(instance.calls):
            last = max(posts[number].values())
            for member, at in instance.calls.items():
                of_member = replays[member]
                call = of_member.node_of[ranks[member].calls[at].row]
                moving = of_member.length[call] if waiting else instance.moving_ns
                ready.extend((member, other) for other in of_member.finish(call, last + moving))
    return {rank: (one.last, begin[rank] - zero + ranks[rank].graph.makespan) for rank, one in replays.items()}


class _Replay:
    """One rank: `start` is the latest end of what a node needs, so far, with the gaps after it."""

    def __init__(self, one: RankGraph, offset: int, with_constants: bool) -> None:
        graph = one.graph
        latency = latencies(graph, constants(graph) if with_constants else None)
        order = np.argsort(graph.source, kind="stable")
        self.latency, self.target = latency[order].tolist(), graph.target[order].tolist()
        self.pointers = csr.pointers(graph.source[order], len(graph)).tolist()
        self.waits_for = np.diff(graph.pointers)
        self.left = self.waits_for.tolist()
        self.start = (offset + np.where(graph.binding < 0, graph.gap, 0)).tolist()
        self.length = graph.duration.tolist()
        self.node_of = {int(graph.row[node]): node for node in np.flatnonzero(graph.kind != NodeKind.PIECE).tolist()}
        self.last = 0

    def finish(self, node: int, end: int) -> list[int]:
        """Let a node end; returns the nodes that need nothing else."""
        self.last = max(self.last, end)
        free = []
        for edge in range(self.pointers[node], self.pointers[node + 1]):
            target = self.target[edge]
            self.start[target] = max(self.start[target], end + self.latency[edge])
            self.left[target] -= 1
            if not self.left[target]:
                free.append(target)
        return free
