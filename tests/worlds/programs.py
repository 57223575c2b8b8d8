"""Random algorithms and planners: counters, detached sends, thread blocks with slots, streams in queues."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

from worlds import small_problems

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.machine_models import MscclModel
from astrasim_py.system.problem import PlannedChunk, PlannedPhase

GB = Fraction(10**9)
US = 1_000_000
COMP, SEND, RECV = NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV


class Planned:
    """A planner that says what it is told, call after call."""

    def __init__(self, capacity, make) -> None:
        self.capacity = capacity
        self.make = make
        self.made: dict = {}

    def plan(self, call):
        """Streams of a call, the same whenever it is asked."""
        key = call.group, call.number
        if key not in self.made:
            self.made[key] = self.make(call)
        return self.made[key]


def algorithm(per_rank, name="some") -> Algorithm:
    """An algorithm from lists of node dicts; a receive or send names its `peer`."""
    traces = []
    for rank, nodes in enumerate(per_rank):
        rows = []
        for node in nodes:
            node = dict(node)
            peer = node.pop("peer", None)
            if peer is not None:
                src, dst = (rank, peer) if node["type"] == SEND else (peer, rank)
                node |= {"comm_src": src, "comm_dst": dst, "comm_tag": node.get("comm_tag", 0)}
            rows.append(node)
        traces.append(small_problems.trace(rows))
    return Algorithm(name=name, collective="all_reduce", ranks=len(per_rank), traces=tuple(traces))


def random_algorithm(rng: random.Random, ranks: int) -> Algorithm:
    """Sends, receives and computes in an order that can be carried out, with counters and detached sends."""
    nodes: list[list[dict]] = [[] for _ in range(ranks)]
    detached: list[set[int]] = [set() for _ in range(ranks)]

    def add(rank: int, **node) -> None:
        mine = nodes[rank]
        before = [i for i in range(len(mine)) if i not in detached[rank]]
        node["deps"] = set(rng.sample(before[-3:], min(len(before[-3:]), rng.randint(0, 2))))
        counted = [i for i in before if mine[i].get("counter") == 0]
        if counted and rng.random() < 0.4:
            node |= {"count_of": 0, "count_k": rng.randint(1, len(counted))}
            if rng.random() < 0.4:
                start = rng.choice(before)
                node |= {"count_from": start, "count_k": rng.randint(1, 2)}
        if node["type"] == SEND and rng.random() < 0.3:
            node["detached"] = 1
            detached[rank].add(len(mine))
        elif rng.random() < 0.6:
            node["counter"] = rng.choice((0, 0, 1))
        mine.append(node)

    for _ in range(rng.randint(0, 7)):
        if ranks > 1 and rng.random() < 0.7:
            src, dst = rng.sample(range(ranks), 2)
            tag = rng.randint(0, 1)
            shared = {"comm_size": (src * 5 + dst * 3 + tag) % 4 * 1000, "comm_tag": tag}
            add(src, type=SEND, peer=dst, **shared)
            add(dst, type=RECV, peer=src, **shared)
        else:
            add(rng.randrange(ranks), type=COMP, duration_ps=rng.randint(0, 3) * US)
    return algorithm(nodes)


def random_planner(rng: random.Random) -> Planned:
    queues = rng.randint(1, 3)
    pool: dict[tuple[int, int], Algorithm] = {}

    def phase(members: tuple[int, ...]) -> PlannedPhase:
        left, slices = rng.sample(members, len(members)), []
        while left:
            n = rng.choice((rng.randint(1, len(left)), len(left)))
            key = n, rng.randrange(3)
            if key not in pool:
                pool[key] = random_algorithm(rng, n)
            slices.append((tuple(left[:n]), pool[key]))
            left = left[n:]
        return PlannedPhase(queue=rng.randrange(queues), size=1000, calls=tuple(slices), priority=rng.choice((0, 0, 1)))

    def make(call):
        if rng.random() < 0.2:
            return rng.choice((None, build("ring", "all_reduce", len(call.members)) if len(call.members) > 1 else None))
        phases = [phase(call.members) for _ in range(3)]
        streams = [
            PlannedChunk(
                phases=tuple(rng.choice(phases) for _ in range(rng.randint(0, 3))), priority=rng.choice((0, 0, 5))
            )
            for _ in range(rng.randint(0, 4))
        ]
        if rng.random() < 0.3:
            turn = dict.fromkeys(range(queues), 0)
            ordered = []
            for stream in streams:
                turns = []
                for each in stream.phases:
                    turns.append(turn[each.queue])
                    turn[each.queue] += 1
                ordered.append(replace(stream, turns=tuple(turns)))
            streams = ordered
        return tuple(streams)

    return Planned(tuple(rng.randint(1, 2) for _ in range(queues)), make)


class Blocks:
    """Writes thread blocks as traces: each a chain of steps, fused steps of a receive, a reduction, a send.

    Steps are named by (rank, thread block, number); a step waits for the one before it in its thread block.
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.ranks, self.chunks = ranks, chunks
        self.nodes: list[list[dict]] = [[] for _ in range(ranks)]
        self.last: dict[tuple[int, int], int] = {}
        self.sent: dict[tuple[int, int, int], int] = {}
        self.received: dict[tuple[int, int, int], int] = {}

    def step(self, rank, block, *, take=None, reduce=False, give=None, count=1, after=()):
        """One step: takes from (peer, channel), reduces, gives to (peer, channel); returns its last node."""
        mine = self.nodes[rank]
        first = len(mine)
        before = self.last.get((rank, block))
        deps = {d for d in (before, *after) if d is not None}
        kinds = [(NodeType.COMM_RECV, take)] * (take is not None) + [(NodeType.COMP, None)] * reduce
        kinds += [(NodeType.COMM_SEND, give)] * (give is not None)
        for kind, end in kinds:
            node = {"type": kind, "deps": deps, "tb_id": block}
            node |= {"msg_chunk_idx": 0, "msg_chunk_cnt": count, "total_chunk_cnt": self.chunks}
            if end is not None:
                peer, channel = end
                pair = (rank, peer) if kind == NodeType.COMM_SEND else (peer, rank)
                counters = self.sent if kind == NodeType.COMM_SEND else self.received
                k = counters.get((*pair, channel), 0)
                counters[*pair, channel] = k + 1
                node |= {"comm_src": pair[0], "comm_dst": pair[1], "comm_tag": channel * 1000 + k, "channel": channel}
            else:
                node |= {"comp_op": 1, "src_buf": 1, "src_off": 0, "dst_buf": 1, "dst_off": 0}
            if len(kinds) > 1:
                node["fused"] = first
            mine.append(node)
            deps = {len(mine) - 1}
        self.last[rank, block] = len(mine) - 1
        return len(mine) - 1

    def algorithm(self, protocol: str = "") -> Algorithm:
        """What was written so far."""
        empty = [{"type": NodeType.COMP, "tb_id": 0}]
        return Algorithm(
            name="blocks",
            collective="all_reduce",
            ranks=self.ranks,
            traces=tuple(small_problems.trace(nodes or empty) for nodes in self.nodes),
            chunks=self.chunks,
            protocol=protocol,
        )


def thread_blocks(rng: random.Random) -> Algorithm:
    """Random thread blocks that end with unbounded slots: chunks travel over several ranks, fused or not."""
    ranks = rng.randint(2, 4)
    channels, per_rank = rng.randint(1, 2), rng.randint(1, 2)
    blocks = Blocks(ranks, rng.choice((4, 64)))
    owner: dict[tuple, int] = {}

    def of(*connection) -> int:
        if connection not in owner:
            owner[connection] = rng.randint(0, per_rank - 1)
        return owner[connection]

    waiting: list[tuple] = []  # receives that are written later than the send, so that thread blocks cross

    def receive(src, dst, channel, count) -> None:
        blocks.step(dst, of("recv", src, dst, channel), take=(src, channel), count=count)

    def flush(how_many: int) -> None:
        while len(waiting) > how_many:
            receive(*waiting.pop(0))

    if rng.random() < 0.5:
        # Round the ranks: everybody sends, passes on, receives; fused, it blocks where there is one slot.
        count = rng.choice((1, 2, 3))
        for rank in range(ranks):
            owner["send", rank, (rank + 1) % ranks, 0] = owner["recv", (rank - 1) % ranks, rank, 0] = 0
            blocks.step(rank, 0, give=((rank + 1) % ranks, 0), count=count)
        for rank in range(ranks):
            blocks.step(rank, 0, take=((rank - 1) % ranks, 0), give=((rank + 1) % ranks, 0), count=count)
        waiting += [((rank - 1) % ranks, rank, 0, count) for rank in range(ranks)]
    for _ in range(rng.randint(0, 12)):
        src, channel = rng.randint(0, ranks - 1), rng.randint(0, channels - 1)
        dst = (src + rng.randint(1, ranks - 1)) % ranks
        count = rng.choice((1, 1, 2, 3))
        blocks.step(src, of("send", src, dst, channel), give=(dst, channel), count=count)
        onward = (dst + rng.randint(1, ranks - 1)) % ranks
        block = of("recv", src, dst, channel)
        if rng.random() < 0.5 and block == of("send", dst, onward, channel):
            flush(0)
            reduce = rng.random() < 0.5
            blocks.step(dst, block, take=(src, channel), reduce=reduce, give=(onward, channel), count=count)
            waiting.append((dst, onward, channel, count))
        elif rng.random() < 0.5:
            flush(0)
            blocks.step(dst, block, take=(src, channel), reduce=True, count=count)
        else:
            waiting.append((src, dst, channel, count))
        flush(rng.randint(0, 3))
    flush(0)
    return blocks.algorithm(rng.choice(("", "Simple", "LL")))


def slots_model(rng: random.Random) -> MscclModel:
    """Few slots, often a slow channel, sometimes latency."""
    return MscclModel(
        protocol=rng.choice((None, None, "LL128")),
        slots=rng.choice((None, 1, 2, 3)),
        channel_bandwidth=rng.choice((None, GB / 2, GB, 3 * GB)),
        latency_ps={"Simple": rng.choice((0, 1000)), "LL": 500},
    )
