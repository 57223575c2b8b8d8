"""Thread blocks and channels of operations, such that no program can deadlock with two slots.

Second half of lowering. `schedule` executes the operations in rounds: sends begin a round, receives and local work end
it, and a connection (source, destination, channel) carries one message at a time: a message opens another channel if
all channels to its destination are taken. Thread blocks list their operations in the order of that execution, so
program
order, dependencies, matches and the back edges of one slot all agree with it, whichever sides of connections share a
thread block. Fusing a receive with a later send moves it to the place of the send, which takes a second slot.

A range of several chunks may need many slots in large buffers: its send is done only when its receive begins, so it
never shares a thread block with the receiving side and is never fused.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.operations import JOIN, RECEIVES, SEND, Cells, Operation, children_of


class Blocked(Exception):
    """Receives that deadlock: the cells that they write stay in use until they complete."""

    def __init__(self, receives: list[Operation]) -> None:
        super().__init__(receives)
        self.receives = receives


#: Most operations on a rank's own cells in a thread block with receives.
_MAX_LOCAL = 64


@dataclass(slots=True, eq=False)
class OrderedBlock:
    """One thread block: its peers (-1 for none), its channel, and its operations in order.

    A receive that is fused with a send is not listed: the send stands for both.
    """

    send: int
    recv: int
    channel: int
    operations: list[Operation]
    #: Operations on the rank's own cells beside its receives.
    local: int = 0


class _FreeChannels:
    """The channels from one rank to another, and the messages that wait for one."""

    def __init__(self, channels: int, cap: int) -> None:
        self.channels, self.cap = channels, cap
        self.carried: list[int] = []
        self.idle: set[int] = set()
        #: (step, number) of messages that take any channel, of those that prefer one, and of those that must have one.
        self.queue: list[tuple[int, int]] = []
        self.wishes: dict[int, list[tuple[int, int]]] = {}
        self.waiting: dict[int, Operation] = {}

    def want(self, send: Operation, wish: int, *, must: bool) -> None:
        """Let a message wait for a channel."""
        self.waiting[send.number] = send
        entry = send.step, send.number
        if not 0 <= wish < self.channels or (wish < len(self.carried) and self.carried[wish] >= self.cap):
            wish = -1
        if wish >= 0:
            heappush(self.wishes.setdefault(wish, []), entry)
        if wish < 0 or not must:
            heappush(self.queue, entry)

    def serve(self) -> list[Operation]:
        """Sends that begin now, on their channels; those that get their preferred channel come first."""
        served: list[Operation] = []

        def begin(number: int, channel: int) -> None:
            send = self.waiting.pop(number)
            send.carrier = send.peer.carrier = channel
            self.idle.remove(channel)
            self.carried[channel] += 1
            served.append(send)

        for channel, wishing in self.wishes.items():
            while wishing and wishing[0][1] not in self.waiting:
                heappop(wishing)
            while len(self.carried) <= channel and wishing:
                self._open()
            if wishing and channel in self.idle:
                begin(heappop(wishing)[1], channel)
        while self.queue and (self.idle or len(self.carried) < self.channels):
            _, number = heappop(self.queue)
            if number in self.waiting:
                if not self.idle:
                    self._open()
                begin(number, min(self.idle))
        return served

    def _open(self) -> None:
        self.idle.add(len(self.carried))
        self.carried.append(0)

    def release(self, channel: int) -> bool:
        """Free the channel of a received message; True if another message waits."""
        if self.carried[channel] < self.cap:
            self.idle.add(channel)
        else:
            self.queue += self.wishes.pop(channel, ())
            heapify(self.queue)
        return bool(self.waiting)


def schedule(ops: list[Operation], place: str, *, channels: int, cap: int) -> None:
    """Execute operations in rounds: sets `round` and `place` of each, and `carrier` of messages.

    `place`: for messages. `channels`: most channels between two ranks. A message that finds all of them taken waits for
    another round. `cap`: most messages of a connection. Raises Blocked: some receives need a place in scratch. Raises
    AlgorithmError: more messages between two ranks than all channels may carry.

    A receive may wait for sends of the same round (a ring that paces itself does so). Where these are done only when
    they are received, and all wait for each other, its order is given up unless its cells demand it.
    """
    children = children_of(ops)
    waiting = [len(op.parents) for op in ops]
    #: By number: messages under way, and operations that are done.
    under_way, finished = bytearray(len(ops)), bytearray(len(ops))
    held: dict[int, Operation] = {}  # receives whose message is under way, but which wait for something else
    pairs: dict[tuple[int, int], _FreeChannels] = {}
    touched: dict[tuple[int, int], _FreeChannels] = {}  # pairs with new messages or channels
    work: list[Operation] = []
    clock, now = 0, -1

    def activate(op: Operation) -> None:
        if op.kind == SEND:
            key = op.rank, op.peer.rank
            pair = touched[key] = pairs.get(key) or pairs.setdefault(key, _FreeChannels(channels, cap))
            wish = op.channel
            if wish < 0 and op.feeder and op.feeder.kind in RECEIVES:
                # Forward data on the channel of its receive, so that both may fuse into one step.
                wish = op.feeder.carrier
            pair.want(op, wish, must=op.channel >= 0)
        elif op.kind not in RECEIVES or under_way[op.number]:
            work.append(op)

    def done(op: Operation) -> None:
        finished[op.number] = 1
        for child in children[op.number]:
            waiting[child.number] -= 1
            if not waiting[child.number]:
                activate(child)

    def execute(op: Operation) -> None:
        nonlocal clock
        op.place, op.round = clock, now
        clock += 1

    for op in ops:
        op.carrier = -1
        if not waiting[op.number]:
            activate(op)
    while clock < len(ops):
        serving = list(touched.values()) if now >= 0 else []
        if serving:
            touched.clear()
        started = sorted((op for pair in serving for op in pair.serve()), key=lambda op: op.step)
        for op in started:
            execute(op)
        for op in started:
            under_way[op.peer.number] = 1
            if not waiting[op.peer.number]:
                work.append(op.peer)
            else:
                held[op.peer.number] = op.peer
            if op.count == 1:
                done(op)
        for op in work:
            execute(op)
            if op.kind in RECEIVES:
                held.pop(op.number, None)
                key = op.peer.rank, op.rank
                if pairs[key].release(op.carrier):
                    touched[key] = pairs[key]
                if op.count > 1:
                    done(op.peer)
            done(op)
        stuck = now >= 0 and clock < len(ops) and not started and not work
        work.clear()
        if stuck:
            if not held:
                _raise_full(pairs, place)
            for op in _let_go([held[number] for number in sorted(held)], finished):
                op.parents = [parent for parent in op.parents if finished[parent.number]]
                waiting[op.number] = -1  # and below, when those it no longer waits for are done
                work.append(op)
        now += 1


def _let_go(held: list[Operation], finished: bytearray) -> list[Operation]:
    """Receives that wait for the order of the traces only, not for cells."""
    free = [op for op in held if not any(not finished[p.number] and conflict(p, op) for p in op.parents)]
    if not free:
        raise Blocked(held)
    return free


def conflict(before: Operation, op: Operation) -> bool:
    """True if a receive touches cells that an earlier operation writes, or writes cells that it reads."""

    def meet(a: Cells | None, b: Cells | None) -> bool:
        return a is not None and b is not None and a[2] < b[2] + op.count and b[2] < a[2] + before.count

    read = before.source, None if before.payload is None else before.payload.target
    return meet(before.target, op.source) or any(meet(cells, op.target) for cells in (*read, before.target))


def _raise_full(pairs: dict[tuple[int, int], _FreeChannels], place: str) -> None:
    (source, target), pair = next((key, pair) for key, pair in pairs.items() if pair.waiting)
    problem = f"rank {source} sends more than {sum(pair.carried)} messages to rank {target}, too many steps for "
    remedy = "use fewer chunks, another algorithm, or another dialect"
    raise AlgorithmError(place, f"{problem}{len(pair.carried)} channels", remedy)


#: A side of a connection: rank, channel, peer. A thread block: rank, channel, peers that it receives from and sends to.
_Side = tuple[int, int, int]
_Block = tuple[int, int, int, int]


def _feeds(send: Operation, receive: Operation) -> bool:
    """True if an operation that feeds a send is a receive on the same channel."""
    return receive.kind in RECEIVES and receive.carrier == send.carrier


class Assignment:
    """Thread blocks of all ranks for scheduled operations.

    `stores`: whether sends store at once, so that they wait for no receive, and no two operations are one step.
    `local`: operations on the rank's own cells in a thread block, beside messages. `blocks`: by rank, in the order in
    which they begin. `fused`: by the number of a send, the receive that it is one step with.
    """

    def __init__(self, ops: list[Operation], ranks: int, *, stores: bool = False, local: int = _MAX_LOCAL) -> None:
        self._local = local
        self._order = sorted(ops, key=lambda op: op.place)
        self._sends: dict[_Side, list[Operation]] = {}
        for op in self._order:
            if op.kind == SEND:
                self._sends.setdefault((op.rank, op.carrier, op.peer.rank), []).append(op)
        self._receives: dict[_Side, list[Operation]] = {
            (peer, channel, rank): [op.peer for op in sends] for (rank, channel, peer), sends in self._sends.items()
        }
        #: Of a receive by number: its position in its connection.
        self._position = {op.number: index for receives in self._receives.values() for index, op in enumerate(receives)}
        self._children = children_of(ops)
        fed = [(send, send.feeder) for send in ops if send.kind == SEND and send.feeder is not None]
        test = _feeds if stores else self._fusable
        pairs = [(send, feeder) for send, feeder in fed if test(send, feeder)]
        self._pair(pairs, any_count=stores)
        home = self._home
        fused = () if stores else pairs
        self.fused = {send.number: recv for send, recv in fused if home[recv.number] == home[send.number]}
        self._fill(ranks)

    def _fusable(self, send: Operation, receive: Operation) -> bool:
        """True if a send may be one step with the receive that feeds it."""
        if send.count != 1 or not _feeds(send, receive):
            return False
        if send.payload is not receive and (receive.target is None or send.reads[2] != receive.target[2]):
            return False
        # Other operations that wait for the receive must begin after the send is delivered.
        for child in self._children[receive.number]:
            if child is not send and child.round < send.round + (child.kind == SEND):
                return False
        # The receive keeps its slot until the send: one more message may come meanwhile, but not two, and not first.
        receives = self._receives[receive.rank, receive.carrier, receive.peer.rank]
        following = receives[self._position[receive.number] + 1 :][:2]
        begins = [op.place for op in following[:1]] + [op.peer.place for op in following[1:]]
        return all(begin >= send.place for begin in begins)

    def _pair(self, fed: list[tuple[Operation, Operation]], *, any_count: bool) -> None:
        """Join sides of connections in thread blocks: first those of most sends with the receives that feed them, of
        equal ones those with one peer; then the rest of these. `any_count`: also where a message has several chunks."""
        links: Counter[_Block] = Counter(
            (send.rank, send.carrier, recv.peer.rank, send.peer.rank) for send, recv in fed
        )
        several = {
            (kind, side)
            for kind, sides in (("send", self._sends), ("receive", self._receives))
            for side, members in sides.items()
            if not any_count and any(op.count > 1 for op in members)
        }
        receiving: dict[_Side, int] = {}  # receiving side -> peer sent to
        sending: dict[_Side, int] = {}
        same_peer = [(*side, side[2]) for side in self._receives if side in self._sends]
        ranked = sorted(links, key=lambda key: (-links[key], key[2] != key[3], key))
        for rank, channel, source, target in (*ranked, *same_peer):
            receive, send = (rank, channel, source), (rank, channel, target)
            if receive in receiving or send in sending:
                continue
            if ("receive", receive) not in several and ("send", send) not in several:
                receiving[receive], sending[send] = target, source
        #: Thread blocks of messages, by the numbers of their operations.
        self._home: dict[int, _Block] = {
            op.number: (*side, receiving.get(side, -1)) for side, members in self._receives.items() for op in members
        }
        for (rank, channel, target), members in self._sends.items():
            block = rank, channel, sending.get((rank, channel, target), -1), target
            self._home.update((op.number, block) for op in members)

    def _fill(self, ranks: int) -> None:
        """List the operations of every thread block in the order of their execution."""
        self.blocks: list[list[OrderedBlock]] = [[] for _ in range(ranks)]
        block_of: dict[_Block, OrderedBlock] = {}
        home: dict[int, OrderedBlock] = {}  # of local operations and their inputs
        alone: dict[int, OrderedBlock] = {}  # by rank: the thread block without peers that takes more
        fused = {receive.number for receive in self.fused.values()}

        def new(rank: int, send: int, recv: int, channel: int) -> OrderedBlock:
            self.blocks[rank].append(OrderedBlock(send, recv, channel, []))
            return self.blocks[rank][-1]

        for op in self._order:
            if op.kind == JOIN:
                continue
            if op.kind == SEND or op.kind in RECEIVES:
                rank, channel, source, target = key = self._home[op.number]
                if key not in block_of:
                    block_of[key] = new(rank, target, source, channel)
                block = block_of[key]
            else:
                # Local work is done where its data arrived.
                local = home.get(op.feeder.number) if op.feeder else None
                if local is None or local.local >= self._local:
                    local = alone.get(op.rank)
                    if local is None or len(local.operations) >= self._local:
                        local = alone[op.rank] = new(op.rank, -1, -1, 0)
                block = local
                block.local += 1
            if op.kind != SEND:
                home[op.number] = block
            if op.number not in fused:
                block.operations.append(op)


def waits_between(
    blocks: list[OrderedBlock], joining: list[Operation], fused: Mapping[int, Operation]
) -> list[list[list[tuple[int, int]]]]:
    """Dependencies of the operations of each thread block on others, as (thread block, position in it).

    Only the last of every thread block is named, and none that is implied by an earlier wait of the same thread block
    or by a wait of another awaited operation. `joining`: operations of the rank that no block lists. `fused`: of
    `Assignment`.
    """
    where: dict[int, tuple[int, int]] = {}
    for b, block in enumerate(blocks):
        for index, op in enumerate(block.operations):
            where[op.number] = b, index
            if op.number in fused:
                where[fused[op.number].number] = b, index
    joins: dict[int, dict[int, int]] = {}

    def needs(op: Operation, into: dict[int, int]) -> dict[int, int]:
        """The last position of each thread block that an operation names."""
        for parent in op.parents:
            named = [where[parent.number]] if parent.number in where else joins[parent.number].items()
            for b, index in named:
                into[b] = max(into.get(b, -1), index)
        return into

    for op in joining:
        joins[op.number] = needs(op, {})
    out: list[list[list[tuple[int, int]]]] = [[[] for _ in block.operations] for block in blocks]
    #: Progress of every other thread block that each operation implies; -1: not begun.
    reach: list[list[list[int]]] = [[[]] * len(block.operations) for block in blocks]
    nothing = [-1] * len(blocks)
    for op in sorted((op for block in blocks for op in block.operations), key=lambda op: op.place):
        b, index = where[op.number]
        past = reach[b][index - 1] if index else nothing
        ends = needs(op, {})
        if op.number in fused:
            needs(fused[op.number], ends)
        ends.pop(b, None)
        # The latest first: it implies all that it waited for.
        for other, last in sorted(ends.items(), key=lambda end: -blocks[end[0]].operations[end[1]].place):
            if past[other] < last:
                out[b][index].append((other, last))
                past = list(map(max, past, reach[other][last]))
                past[other] = last
        out[b][index].reverse()
        reach[b][index] = past
    return out
