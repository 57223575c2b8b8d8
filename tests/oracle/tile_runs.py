"""Runs of inlined workloads, node after node in one of many orders: what tiles read, and what is there at the end.

An oracle for the verifier of workloads. It knows nothing of happens-before: it runs a set in an order that its
dependencies and messages permit, and compares what it finds with what the collectives promise.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from math import lcm

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.collective import COLLECTIVES

INPUT, OUTPUT, SCRATCH = 1, 2, 3
#: The content of a cell that nothing has been written to.
NOTHING = ((-1, -1),)


class Node:
    """A node, as a dict of what its columns hold."""

    def __init__(self, trace, row: int, rank: int) -> None:
        names = (
            "inlined_call", "inlined_node", "inlined_rank", "src_buf", "src_off", "dst_buf", "dst_off",
            "msg_chunk_cnt", "comp_op", "payload", "comm_src", "comm_dst", "comm_tag", "consumes", "consumes_tile",
            "consumes_tiles", "produces", "produces_tile", "produces_tiles",
        )  # fmt: skip
        for name in names:
            value = int(trace.column(name)[row])
            setattr(self, name, None if value == MISSING else value)
        self.rank, self.id, self.type = rank, int(trace.node_id[row]), int(trace.type[row])
        self.parents = {int(i) for i in trace.data_deps.of(row)}
        self.begins = self.inlined_call is not None and self.inlined_node is None


class Workload:
    """The nodes of all ranks, with what each reads and writes."""

    def __init__(self, traces) -> None:
        self.nodes = {
            (rank, node.id): node
            for rank, trace in enumerate(traces)
            for node in (Node(trace, row, rank) for row in range(len(trace)))
        }
        self.said = {
            node.inlined_call: {
                name: traces[node.rank].attribute(traces[node.rank].row(node.id), name)
                for name in ("collective", "chunks", "in_place", "root")
            }
            for node in self.nodes.values()
            if node.begins
        }
        self.ranks: dict[int, dict[int, int]] = defaultdict(dict)
        self.fine = dict.fromkeys(self.said, 1)
        for node in self.nodes.values():
            if node.begins:
                self.ranks[node.inlined_call][node.rank] = node.inlined_rank
        for node in self.nodes.values():
            for side in ("consumes", "produces"):
                call = self.call_of(node, side)
                if call is not None:
                    many, tiles = self.many(call, side == "produces"), getattr(node, f"{side}_tiles")
                    self.fine[call] = lcm(self.fine[call], max(1, tiles // many))
        self.children = defaultdict(list)
        for key, node in self.nodes.items():
            for parent in node.parents:
                self.children[node.rank, parent].append(key)

    def call_of(self, node: Node, side: str) -> int | None:
        target = getattr(node, side)
        return None if target is None else self.nodes[node.rank, target].inlined_call

    def many(self, call: int, inputs: bool) -> int:
        said, n = self.said[call], len(self.ranks[call])
        promise = COLLECTIVES[said["collective"]]
        return (promise.input_chunks if inputs else promise.output_chunks)(n, said["chunks"])

    def cells(self, call: int, rank: int, buffer: int, first: int, count: int) -> list[tuple]:
        """Names of cells; those that two buffers share have one name."""
        said, position = self.said[call], self.ranks[call][rank]
        promise = COLLECTIVES[said["collective"]]
        if said["in_place"] and buffer != SCRATCH:
            shift = position * promise.shard(len(self.ranks[call]), said["chunks"]) * self.fine[call]
            first += shift * ((buffer == INPUT and promise.gathers) or (buffer == OUTPUT and promise.scatters))
            buffer = INPUT
        return [(call, rank, buffer, first + k) for k in range(count)]

    def tile(self, node: Node, side: str) -> tuple[int, list[tuple], int]:
        """Call, cells and first chunk, in fine ones, of a tile."""
        call, inputs = self.call_of(node, side), side == "produces"
        count = self.many(call, inputs) * self.fine[call] // getattr(node, f"{side}_tiles")
        first = getattr(node, f"{side}_tile") * count
        return call, self.cells(call, node.rank, INPUT if inputs else OUTPUT, first, count), first

    def expected(self, call: int, rank: int) -> list[tuple]:
        """By fine chunk of the output: the contributions that it must hold."""
        said, position, fine = self.said[call], self.ranks[call][rank], self.fine[call]
        promise = COLLECTIVES[said["collective"]]
        after = promise.after(position, len(self.ranks[call]), said["chunks"] * fine, said["root"])
        return [tuple((q, k) for q in ranks) for ranks, k in after]

    def run(self, rng: random.Random, soon: set = frozenset(), late: set = frozenset()) -> list[str] | None:
        """What is wrong after a run that prefers nodes of `soon` and leaves those of `late` to the end; None: stuck."""
        memory: dict[tuple, tuple] = {}
        for call, ranks in self.ranks.items():
            promise, said = COLLECTIVES[self.said[call]["collective"]], self.said[call]
            for rank, position in ranks.items():
                before = promise.before(position, len(ranks), said["chunks"] * self.fine[call], said["root"])
                for k, cell in enumerate(self.cells(call, rank, INPUT, 0, len(before))):
                    memory[cell] = ((position, k),)
        # What a node makes is not there before.
        makers = [node for node in self.nodes.values() if node.produces is not None]
        for node in makers:
            for cell in self.tile(node, "produces")[1]:
                memory[cell] = NOTHING
        need = {key: len(node.parents) for key, node in self.nodes.items()}
        ready, held, wrong = [key for key, n in need.items() if not n], {}, []
        queues: dict[tuple, deque] = defaultdict(deque)
        done = 0
        while ready:
            able = [key for key in ready if self.arrived(self.nodes[key], queues)]
            if not able:
                return None
            best = min((key in late) - (key in soon) for key in able)
            key = rng.choice([key for key in able if (key in late) - (key in soon) == best])
            ready.remove(key)
            self.step(self.nodes[key], memory, held, queues, wrong)
            done += 1
            for child in self.children[key]:
                need[child] -= 1
                if not need[child]:
                    ready.append(child)
        if done < len(self.nodes):
            return None
        for call, ranks in self.ranks.items():
            for rank in ranks:
                expected = self.expected(call, rank)
                for k, cell in enumerate(self.cells(call, rank, OUTPUT, 0, len(expected))):
                    if sorted(memory.get(cell, ())) != sorted(expected[k]):
                        wrong.append(f"{cell} holds {memory.get(cell)}")
        return wrong

    def arrived(self, node: Node, queues) -> bool:
        return node.type != NodeType.COMM_RECV or bool(queues[node.comm_src, node.rank, node.comm_tag])

    def step(self, node: Node, memory, held, queues, wrong) -> None:
        if node.consumes is not None:
            call, cells, first = self.tile(node, "consumes")
            expected = self.expected(call, node.rank)
            for k, cell in enumerate(cells):
                if expected and sorted(memory.get(cell, ())) != sorted(expected[first + k]):
                    wrong.append(f"rank {node.rank} node {node.id} reads {memory.get(cell)}")
        if node.produces is not None:
            call, cells, first = self.tile(node, "produces")
            for k, cell in enumerate(cells):
                memory[cell] = ((self.ranks[call][node.rank], first + k),)
        if node.inlined_node is None:
            if node.type == NodeType.COMM_SEND:
                queues[node.rank, node.comm_dst, node.comm_tag].append(())
            elif node.type == NodeType.COMM_RECV:
                queues[node.comm_src, node.rank, node.comm_tag].popleft()
            return
        call, fine = node.inlined_call, self.fine[node.inlined_call]
        count = (node.msg_chunk_cnt or 0) * fine

        def at(buffer, offset):
            return None if buffer is None else self.cells(call, node.rank, buffer, offset * fine, count)

        source, target = at(node.src_buf, node.src_off), at(node.dst_buf, node.dst_off)
        if node.type == NodeType.COMM_RECV:
            data = queues[node.comm_src, node.rank, node.comm_tag].popleft()
        elif node.payload is not None:
            data = held[node.rank, node.payload]
        else:
            data = [memory.get(cell, NOTHING) for cell in source or ()]
        if node.comp_op == 1:
            added = source if node.payload is not None else target
            data = [a + memory.get(cell, NOTHING) for a, cell in zip(data, added, strict=True)]
        held[node.rank, node.id] = data
        if node.type == NodeType.COMM_SEND:
            queues[node.rank, node.comm_dst, node.comm_tag].append(data)
        elif target is not None:
            for cell, value in zip(target, data, strict=True):
                memory[cell] = value

    def before(self, key: tuple) -> set:
        """All nodes that must be done before a node on its rank, and itself."""
        found, stack = {key}, [key]
        while stack:
            node = self.nodes[stack.pop()]
            for parent in node.parents:
                if (node.rank, parent) not in found:
                    found.add((node.rank, parent))
                    stack.append((node.rank, parent))
        return found

    def after(self, key: tuple) -> set:
        """All nodes of its rank that wait for a node, and itself."""
        found, stack = {key}, [key]
        while stack:
            for child in self.children[stack.pop()]:
                if child not in found:
                    found.add(child)
                    stack.append(child)
        return found


def outcomes(traces, rng: random.Random, touched: list[tuple], times: int = 4) -> list[list[str] | None]:
    """Runs in several orders: at random, and with each of some nodes as early and as late as can be."""
    workload = Workload(traces)
    orders = [(set(), set())] * times
    for key in touched:
        orders += [(workload.before(key), set()), (set(), workload.after(key))] * 2
    for key in touched:
        orders += [(workload.before(key), workload.after(other)) for other in touched if other != key] * 2
    return [workload.run(rng, soon, late) for soon, late in orders]
