"""Messages of an algorithm as stores: which blocks send them, and what orders each one with what it overwrites.

A receive of an algorithm writes its cells when its rank comes to it. A store of another rank may come at any time after
it is sent: into the same cells only if the send is sure to come after all that uses them, else into unused scratch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from astrasim_py.msccl.operations import JOIN, RECEIVE, RECEIVES, SEND, Operation, children_of
from astrasim_py.msccl.thread_blocks import Assignment, OrderedBlock, conflict, waits_between


class BlockName(NamedTuple):
    """A thread block of a rank."""

    rank: int
    number: int


def set_places(ops: list[Operation]) -> None:
    """Number operations in the order in which they begin where a chunk takes the same time between any two ranks.

    Blocks that execute theirs in this order wait for nothing that comes later.
    """
    children = children_of(ops)
    waiting = [len(op.parents) + (op.kind in RECEIVES) for op in ops]
    ready = [0] * len(ops)
    begins: list[tuple[int, bool, int]] = []  # a block is busy while it stores: the last thing to begin at a time
    free: dict[tuple[int, int], int] = defaultdict(int)  # when two ranks can send the next message
    queue = [(0, op.number) for op in ops if not waiting[op.number]]
    heapify(queue)
    while queue:
        time, number = heappop(queue)
        op, end, following = ops[number], time, children[number]
        if op.kind == SEND:
            pair = op.rank, op.peer.rank
            time = max(time, free[pair])
            end = free[pair] = time + op.count
            following = [*following, op.peer]
        begins.append((time, op.kind == SEND, number))
        for child in following:
            ready[child.number] = max(ready[child.number], end)
            waiting[child.number] -= 1
            if not waiting[child.number]:
                heappush(queue, (ready[child.number], child.number))
    for place, (_, _, number) in enumerate(sorted(begins)):
        ops[number].place = place


class Orders:
    """What comes before what in every execution: operations in order, by what they wait for and by messages."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops = ops
        #: By operation, the operations before it, as bits.
        self.before: list[int] = []
        for op in ops:
            earlier = [*op.parents, op.peer] if op.kind in RECEIVES else op.parents
            bits = 0
            for other in earlier:
                bits |= self.before[other.number] | 1 << other.number
            self.before.append(bits)

    def follows(self, op: Operation, before: Operation) -> bool:
        return bool(self.before[op.number] >> before.number & 1)

    def stores_directly(self, receive: Operation) -> bool:
        """True if the cells of a receive are free when its message is sent."""
        send = receive.peer
        return receive.kind == RECEIVE and all(
            self.follows(send, parent) or not conflict(parent, receive) for parent in receive.parents
        )

    def drop_implied(self) -> None:
        """Let receives wait for nothing that is known to be done from the arrival of their message."""
        for op in self.ops:
            if op.kind in RECEIVES:
                op.parents = [parent for parent in op.parents if not self.follows(op.peer, parent)]

    def overwritten_unread(self, sends: Iterable[Operation]) -> set[int]:
        """Numbers of those of some sends that a proxy may still read when their cells are overwritten."""
        proxied = {send.number for send in sends}
        unread = set()
        for op in self.ops:
            last = op.peer if op.kind in RECEIVES else op
            for parent in op.parents:
                if parent.number in proxied and conflict(parent, op) and not self.follows(last, parent.peer):
                    unread.add(parent.number)
        return unread

    def answered(self) -> Callable[[Operation], bool]:
        """Tells of a send whether its rank is sure, at the end, that it has arrived."""
        certain: dict[int, int] = defaultdict(int)  # by rank, all that is before its end
        for op in self.ops:
            certain[op.rank] |= self.before[op.number]
        return lambda send: bool(certain[send.rank] >> send.peer.number & 1)


class StoreBlocks:
    """The thread blocks of all ranks. `most`: messages that a block sends to a peer, and its copies and sums. `merged`:
    how many of such blocks are one.

    `blocks`: by rank. `where`: block and position of operations, by number. `waits`: what each operation of a block
    waits for, as (other block, position in it). `releases`: by block and position, the blocks of its rank that wait for
    it. Only `blocks` is there before `connect`.
    """

    def __init__(self, ops: list[Operation], ranks: int, most: int, merged: int = 1) -> None:
        sent: dict[tuple[int, int, int], int] = defaultdict(int)
        carriers: dict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)
        set_places(ops)
        for op in sorted(ops, key=lambda op: op.place):
            if op.kind == SEND:
                pair = op.rank, op.peer.rank
                # Messages that the algorithm puts on channels of their own stay in blocks of their own.
                of_pair, part = carriers[pair], sent[*pair, op.channel] // most
                op.carrier = op.peer.carrier = of_pair.setdefault((op.channel, part), len(of_pair))
                sent[*pair, op.channel] += 1
        # As many blocks for work on the rank itself as there are for a peer.
        alone = Counter(op.rank for op in ops if op.kind not in (SEND, JOIN, *RECEIVES))
        side_by_side = max(map(len, carriers.values()), default=1)
        local = min(most, -(-max(alone.values(), default=1) // side_by_side))
        assigned = Assignment(ops, ranks, stores=True, local=local).blocks
        self.blocks = [_merged(blocks, merged) for blocks in assigned]
        self._ops = ops

    def connect(self) -> None:
        """Decide what operations wait for."""
        joining: list[list[Operation]] = [[] for _ in self.blocks]
        for op in self._ops:
            if op.kind == JOIN:
                joining[op.rank].append(op)
        self.waits = [waits_between(*pair, {}) for pair in zip(self.blocks, joining, strict=True)]
        self.where: dict[int, tuple[BlockName, int]] = {}
        self.releases: dict[tuple[BlockName, int], list[int]] = defaultdict(list)
        for rank, (blocks, waits) in enumerate(zip(self.blocks, self.waits, strict=True)):
            for number, (block, of_block) in enumerate(zip(blocks, waits, strict=True)):
                for index, (op, awaited) in enumerate(zip(block.operations, of_block, strict=True)):
                    self.where[op.number] = BlockName(rank, number), index
                    for other, position in awaited:
                        self.releases[BlockName(rank, other), position].append(number)

    def peer_block(self, message: Operation) -> BlockName:
        return self.where[message.peer.number][0]

    def share_signal(self, send: Operation, following: Operation) -> bool:
        """True if one signal may tell of a send and of the next operation of its block: nothing could use the first
        message before the second."""
        if following.kind != SEND or self.peer_block(send) != self.peer_block(following):
            return False
        (block, index), (_, next_index) = (self.where[op.peer.number] for op in (send, following))
        number = self.where[following.number][0]
        return (
            next_index == index + 1
            and not self.waits[number.rank][number.number][self.where[following.number][1]]
            and not self.waits[block.rank][block.number][next_index]
            and not self.releases.get((block, index))
        )


def _merged(blocks: list[OrderedBlock], many: int) -> list[OrderedBlock]:
    """Blocks of a rank, so many of them in one, whose operations begin in the same order."""
    if many == 1:
        return blocks
    out = []
    for begin in range(0, len(blocks), many):
        first, *others = blocks[begin : begin + many]
        first.operations += [op for block in others for op in block.operations]
        first.operations.sort(key=lambda op: op.place)
        first.local += sum(block.local for block in others)
        out.append(first)
    return out
