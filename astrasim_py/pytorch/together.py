"""Replay of all ranks together: a call is a barrier of its members, and then moves its data."""

from collections.abc import Mapping

import numpy as np

from astrasim_py.chakra import graph as csr
from astrasim_py.pytorch.graph import NodeKind
from astrasim_py.pytorch.ranks import Meeting
from astrasim_py.pytorch.replay import constants, latencies, node_ends
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

    `ranks`: by global rank, as `meet` saw them. `with_constants`: three constants of each rank take the place of all
    its gaps; see `astrasim_py.pytorch.replay.constants`. `waiting`: leave waiting in: calls last as long as recorded
    after all members came. `skew`: begin each rank when it began.
    """
    begin = {rank: record.graph.recording.base_ns + met.shifts[rank] for rank, record in ranks.items()}
    zero, graphs = min(begin.values()), {rank: record.graph for rank, record in ranks.items()}
    *places, size = np.cumsum([0, *map(len, graphs.values())]).tolist()
    place, meetings = dict(zip(ranks, places, strict=True)), [i for i in met.instances if not i.lacks]
    parts = [(graph.source + place[rank], graph.target + place[rank]) for rank, graph in graphs.items()]
    source, target = map(np.concatenate, zip(*parts, strict=True))
    gaps = [latencies(graph, constants(graph) if with_constants else None) for graph in graphs.values()]
    start = [(begin[rank] - zero) * skew + np.where(graph.binding < 0, graph.gap, 0) for rank, graph in graphs.items()]
    length = np.concatenate([*(graph.duration for graph in graphs.values()), np.zeros(len(meetings), np.int64)])
    # Matched calls get a common node that needs all of them, and that the successors of each need.
    members = []
    for rank, graph in graphs.items():
        node_of = {int(graph.row[node]): node for node in np.flatnonzero(graph.kind != NodeKind.PIECE).tolist()}
        for number, instance in enumerate(meetings, size):
            if rank in instance.calls:
                node = place[rank] + node_of[ranks[rank].calls[instance.calls[rank]].row]
                members.append((node, number, length[node] if waiting else instance.moving_ns))
    calls, meeting, moving = np.array(members, dtype=np.int64).reshape(-1, 3).T
    instead, takes = np.arange(len(length)), np.zeros_like(length)
    instead[calls], takes[calls], length[calls] = meeting, moving, 0
    latency = np.concatenate([np.concatenate(gaps) + takes[source], np.zeros_like(calls)])
    source, target = np.concatenate([instead[source], calls]), np.concatenate([target, meeting])
    by_target = np.argsort(target, kind="stable")
    source, latency, pointers = source[by_target], latency[by_target], csr.pointers(target[by_target], len(length))
    order = csr.topological_order(pointers, source, np.arange(len(length)))
    ends = np.array(node_ends(order, pointers, source, latency, np.concatenate([*start, 0 * length[size:]]), length))
    ends[calls] = ends[meeting] + moving
    return {
        rank: (int(ends[place[rank] :][: len(graph)].max(initial=0)), begin[rank] - zero + graph.makespan)
        for rank, graph in graphs.items()
    }
