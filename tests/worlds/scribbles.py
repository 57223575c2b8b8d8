"""Random algorithms of any shape, with the contract that they keep."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from worlds.small_problems import trace

from astrasim_py.chakra.schema import NodeType
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.collectives.contract import Contract
from astrasim_py.program.algorithm import Algorithm


class Scribble:
    """Algorithms of any shape: nodes are added in an order in which they can be executed, cells say what they wait for.

    A message may be received long after it was sent, and data may be handed on after its cells were overwritten.
    """

    def __init__(self, ranks: int, chunks: int, in_place: bool) -> None:
        self.ranks, self.chunks, self.in_place = ranks, chunks, in_place
        self.nodes: list[list[dict]] = [[] for _ in range(ranks)]
        self.deps: list[list[set[int]]] = [[] for _ in range(ranks)]
        self.held: list[list[list[Counter] | None]] = [[] for _ in range(ranks)]
        self.memory = {
            (r, self.cell(Buffer.INPUT, k)): Counter({(r, k): 1}) for r in range(ranks) for k in range(chunks)
        }
        self.writer: dict = {}
        self.readers: dict = {}
        self.under_way: list[tuple] = []
        self.tag = 0

    def cell(self, buffer: int, k: int) -> tuple[int, int]:
        return (int(Buffer.INPUT) if self.in_place and buffer == Buffer.OUTPUT else int(buffer), k)

    def ranges(self, rank: int, count: int) -> list[tuple[int, int]]:
        """Where `count` cells that hold something begin."""
        return [
            (int(buffer), k)
            for buffer in Buffer
            for k in range(self.chunks - count + 1)
            if all((rank, self.cell(buffer, k + i)) in self.memory for i in range(count))
        ]

    def add(
        self, rank, kind, count, *, reads=None, writes=None, add_to=None, payload=None, data=None, after=(), **more
    ):
        """A node; `data` is what it takes beside what it reads."""
        node, deps = len(self.nodes[rank]), set(after)
        names = {"msg_chunk_idx": 0, "msg_chunk_cnt": count, "total_chunk_cnt": self.chunks, **more}
        for side, place in (("src", reads), ("dst", writes)):
            if place:
                names |= {f"{side}_buf": place[0], f"{side}_off": place[1]}
        if payload is not None:
            names["payload"] = payload
            deps.add(payload)
        values = data
        for place in (reads, add_to):
            if place:
                at = [(rank, self.cell(place[0], place[1] + i)) for i in range(count)]
                own = [self.memory[cell] for cell in at]
                values = own if values is None else [a + b for a, b in zip(values, own, strict=True)]
                for cell in at:
                    if cell in self.writer:
                        deps.add(self.writer[cell])
                    self.readers.setdefault(cell, []).append(node)
        if writes:
            for i in range(count):
                cell = (rank, self.cell(writes[0], writes[1] + i))
                deps |= {self.writer.get(cell, node), *self.readers.pop(cell, ())}
                self.writer[cell] = node
                self.memory[cell] = values[i]
        self.nodes[rank].append({"type": int(kind), **names})
        self.deps[rank].append(deps - {node})
        self.held[rank].append(values)
        return node

    def algorithm(self) -> Algorithm:
        traces = tuple(
            trace([node | {"deps": each} for node, each in zip(nodes, deps, strict=True)])
            for nodes, deps in zip(self.nodes, self.deps, strict=True)
        )
        return Algorithm(
            name="scribble", collective="custom", ranks=self.ranks, traces=traces, chunks=self.chunks,
            in_place=self.in_place, contract=self.contract(),
        )  # fmt: skip

    def contract(self) -> Contract:
        outputs = {
            (r, k): dict(self.memory[r, self.cell(Buffer.OUTPUT, k)])
            for r in range(self.ranks)
            for k in range(self.chunks)
            if (r, self.cell(Buffer.OUTPUT, k)) in self.memory
        }
        return Contract(ranks=self.ranks, chunks=self.chunks, outputs=outputs)


def scribbled(draw, ranks: int, chunks: int, size: int) -> Algorithm:
    out = Scribble(ranks, chunks, draw(st.booleans()))
    pick = lambda items: draw(st.sampled_from(items))  # noqa: E731
    counts = [c for c in (1, 1, 2, 3, chunks) if c <= chunks]

    def anywhere(count):
        return int(pick(list(Buffer))), draw(st.integers(0, chunks - count))

    def order(rank):
        """Nothing but order: a node that is there already."""
        there = len(out.nodes[rank])
        return [draw(st.integers(0, there - 1))] if there and draw(st.integers(0, 3)) == 0 else []

    def givers(rank):
        return [i for i, v in enumerate(out.held[rank]) if v is not None and out.nodes[rank][i]["type"] != 5]

    def receive(message):
        source, target, tag, count, data = message
        common = {"comm_src": source, "comm_tag": tag}
        kind = pick(["store", "hold", "add", "add"])
        if kind == "store":
            out.add(target, NodeType.COMM_RECV, count, writes=anywhere(count), data=data, after=order(target), **common)
            return
        got = out.add(target, NodeType.COMM_RECV, count, data=data, after=order(target), **common)
        places = out.ranges(target, count)
        if kind == "add" and places:
            writes = pick([None, anywhere(count), anywhere(count)])
            out.add(
                target, NodeType.COMP, count, reads=pick(places), writes=writes, payload=got, data=data,
                after=order(target), comp_op=int(CompOp.REDUCE),
            )  # fmt: skip

    for _ in range(size):
        rank, count = draw(st.integers(0, ranks - 1)), pick(counts)
        places, holding = out.ranges(rank, count), givers(rank)
        action = pick(["send", "send", "receive", "receive", "copy", "reduce", "forward"])
        if action == "receive" and out.under_way:
            receive(out.under_way.pop(draw(st.integers(0, len(out.under_way) - 1))))
        elif action in ("send", "forward"):
            target = pick([r for r in range(ranks) if r != rank])
            common = {"comm_dst": target, "comm_tag": out.tag}
            if action == "forward" and holding:
                giver = pick(holding)
                data = out.held[rank][giver]
                out.add(rank, NodeType.COMM_SEND, len(data), payload=giver, data=data, after=order(rank), **common)
            elif places:
                node = out.add(rank, NodeType.COMM_SEND, count, reads=pick(places), after=order(rank), **common)
                data = out.held[rank][node]
            else:
                continue
            out.under_way.append((rank, target, out.tag, len(data), data))
            out.tag += 1
        elif action == "copy" and places:
            out.add(
                rank, NodeType.COMP, count, reads=pick(places), writes=anywhere(count), after=order(rank),
                comp_op=int(CompOp.COPY),
            )  # fmt: skip
        elif action == "reduce" and places:
            target = pick(places)
            out.add(
                rank, NodeType.COMP, count, reads=pick(places), add_to=target, writes=target, after=order(rank),
                comp_op=int(CompOp.REDUCE),
            )  # fmt: skip
    while out.under_way:
        receive(out.under_way.pop(draw(st.integers(0, len(out.under_way) - 1))))
    return out.algorithm()
