"""Drafts of plans by hand, in the columns that MSCCL++ plans become: thread blocks of ranks as chains of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from astrasim_py.builders.draft import Draft, finish
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.plan_roles import PlanRole
from astrasim_py.program.algorithm import Algorithm

#: A node: its rank, and its handle.
Node = tuple[int, int]


class PlanDraft:
    """A plan in the making, of T `chunks`; a block, (rank, number), runs its operations one after the other."""

    def __init__(self, ranks: int, chunks: int) -> None:
        self.draft, self.ends = Draft(ranks, chunks), dict[tuple[int, int], list[Node]]()
        self.ports: dict[tuple[int, int], Node] = {}
        self._tags = 0

    def work(self, rank: int, block: int, cnt: int = 1, *, after: Sequence[Node] = ()) -> Node:
        """Work of a block on its own chunks."""
        cells = {"src": (Buffer.INPUT, 0), "dst": (Buffer.SCRATCH, 0)}
        return self._step(rank, block, PlanRole.LOCAL, after, draw=self.draft.copy, idx=0, cnt=cnt, **cells)

    def meet(self, rank: int, blocks: Iterable[int]) -> Node:
        """A nop of one block, or a barrier of several."""
        blocks = list(blocks)
        before = [node for block in blocks for node in self.ends.get((rank, block), ())]
        node = self._add(self.draft.join, rank, PlanRole.MEETING, before)
        self.ends.update({(rank, block): [node] for block in blocks})
        return node

    def put(self, rank: int, block: int, peer: int, cnt: int = 1, *, packets: bool = False, after=()) -> Node:
        """Stores into a peer's memory; returns their arrival."""
        role = PlanRole.PACKETS if packets else PlanRole.PUT
        columns = {"packets": 1} if packets else {}
        tag = self._tag()
        self._step(
            rank, block, role, after, draw=self.draft.send, peer=np.array([peer]), tag=tag, idx=0, cnt=cnt,
            src=(Buffer.INPUT, 0), channel=block, **columns,
        )  # fmt: skip
        return self._arrival(rank, peer, role, tag, cnt, (), channel=block, **columns)

    def signal(
        self, rank: int, block: int, peer: int, puts: Sequence[Node] = (), *, counter: int | None = None
    ) -> Node:
        """A signal to a peer; returns its arrival, which follows that of some puts and counts in a counter."""
        tag, columns = self._tag(), {} if counter is None else {"counter": counter}
        self._step(rank, block, PlanRole.SIGNAL, (), draw=self.draft.send, peer=np.array([peer]), tag=tag, idx=0, cnt=0)
        return self._arrival(rank, peer, PlanRole.SIGNAL, tag, 0, puts, **columns)

    def wait(self, rank: int, block: int, *signals: Node, count: tuple[int, int] | None = None) -> Node:
        """A wait of a block for signals that arrive, or for the k-th that counts in a counter: `count`."""
        columns = {} if count is None else {"count_of": count[0], "count_k": count[1]}
        return self._step(rank, block, PlanRole.WAIT, signals, draw=self.draft.join, **columns)

    def port(
        self, rank: int, block: int, peer: int, cnt: int = 1, *, flush: bool = False, packets: bool = False
    ) -> Node:
        """A put through a port channel; returns its arrival. With `flush` the block waits until it is delivered."""
        tag, request = self._tag(), self._step(rank, block, PlanRole.REQUEST, (), draw=self.draft.join)
        before = [request, *([self.ports[rank, peer]] if (rank, peer) in self.ports else [])]
        self.ports[rank, peer] = proxy = self._add(self.draft.join, rank, PlanRole.PROXY, before)
        columns = {"packets": 1} if packets else {}
        message = self._add(
            self.draft.send, rank, PlanRole.PORT, [proxy], peer=np.array([peer]), tag=tag, idx=0, cnt=cnt,
            src=(Buffer.INPUT, 0), **columns, **({} if flush else {"detached": 1}),
        )  # fmt: skip
        if flush:
            self.ends[rank, block] = [message]
        return self._arrival(rank, peer, PlanRole.PORT, tag, cnt, (), **columns)

    def load(self, rank: int, block: int, peers: Iterable[int], cnt: int = 1, *, after=()) -> list[Node]:
        """Loads from peers at once; the block goes on when all are there."""
        before, arrivals = [*self.ends.get((rank, block), ()), *after], []
        for peer in peers:
            asked, tag = self._request(rank, peer, before), self._tag()
            self._add(
                self.draft.send, peer, PlanRole.ANSWER, [asked], peer=np.array([rank]), tag=tag, idx=0, cnt=cnt,
                src=(Buffer.INPUT, 0), channel=block, detached=1,
            )  # fmt: skip
            arrivals.append(self._arrival(peer, rank, PlanRole.ANSWER, tag, cnt, before, channel=block))
        self.ends[rank, block] = arrivals
        return arrivals

    def multimem(self, rank: int, block: int, cnt: int = 1, *, reduce: bool) -> None:
        """A block stores chunks to all ranks through a switch; with `reduce` it loads their sum from all before."""
        peers = [peer for peer in range(self.draft.ranks) if peer != rank]
        before = self.ends.get((rank, block), [])
        first = list(before)
        for peer in peers if reduce else ():
            asked, tag = self._request(rank, peer, first), self._tag()
            self._add(
                self.draft.send, peer, PlanRole.MULTIMEM, [asked], peer=np.array([rank]), tag=tag, idx=0, cnt=cnt,
                src=(Buffer.INPUT, 0),
            )  # fmt: skip
            load = self._arrival(peer, rank, PlanRole.MULTIMEM, tag, cnt, ())
            columns = {"idx": 0, "cnt": cnt, "src": (Buffer.INPUT, 0), "dst": (Buffer.INPUT, 0)}
            before = [self._add(self.draft.reduce, rank, PlanRole.LOCAL, before, payload=load[1], **columns)]
        self.ends[rank, block] = []
        for peer in peers:
            tag = self._tag()
            columns = {"peer": np.array([peer]), "tag": tag, "idx": 0, "cnt": cnt, "src": (Buffer.INPUT, 0)}
            self.ends[rank, block].append(self._add(self.draft.send, rank, PlanRole.MULTIMEM, before, **columns))
            self._arrival(rank, peer, PlanRole.MULTIMEM, tag, cnt, ())

    def algorithm(self, collective: str = "all_reduce", **stated) -> Algorithm:
        """The plan."""
        return finish(self.draft, "plan", collective, **stated)

    def _tag(self) -> int:
        self._tags += 1
        return self._tags

    def _step(self, rank: int, block: int, role: PlanRole, after: Sequence[Node], *, draw, **columns) -> Node:
        node = self._add(draw, rank, role, [*self.ends.get((rank, block), ()), *after], **columns)
        self.ends[rank, block] = [node]
        return node

    def _request(self, rank: int, peer: int, before: Iterable[Node]) -> Node:
        """A request of a load; returns its arrival."""
        tag = self._tag()
        self._add(self.draft.send, rank, PlanRole.LOAD, before, peer=np.array([peer]), tag=tag, idx=0, cnt=0)
        return self._arrival(rank, peer, PlanRole.LOAD, tag, 0, ())

    def _arrival(self, sender: int, rank: int, role: PlanRole, tag: int, cnt: int, after, **columns) -> Node:
        place = {"dst": (Buffer.SCRATCH, 0)} if cnt else {}
        peer = np.array([sender])
        return self._add(self.draft.recv, rank, role, after, peer=peer, tag=tag, idx=0, cnt=cnt, **place, **columns)

    def _add(self, draw, rank: int, role: PlanRole, after: Iterable[Node], **columns) -> Node:
        before = [np.array([handle]) for of, handle in after]
        return rank, int(draw(rank=np.array([rank]), plan_role=int(role), after=before, **columns)[0])
