"""Thread blocks and channels of operations, such that no program can deadlock with two slots.

Second half of lowering. `schedule` executes the operations in rounds: sends begin a round, receives and local work end
it, and a connection (source, destination, channel) carries one message at a time: a message that finds all channels to
its destination taken opens another one. Thread blocks list their operations in the order of that execution, so program
order, dependencies, matches and the back edges of one slot all agree with it, whichever sides of connections share a
thread block. Fusing a receive with a later send moves it to the place of the send, which takes a second slot.

A range of several chunks may need many slots in large buffers: its send is done only when its receive begins, so it
never shares a thread block with the receiving side and is never fused.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.operations import JOIN, NONE, RECEIVE, RECEIVE_REDUCE, SEND, Operations, children_of

_RECEIVES = (RECEIVE, RECEIVE_REDUCE)


class Blocked(Exception):
    """Receives that deadlock: the cells that they write stay in use until they complete."""

    def __init__(self, receives: list[int]) -> None:
        super().__init__(receives)
        self.receives = receives


#: Most operations on a rank's own cells in a thread block with receives.
_MAX_LOCAL = 64


@dataclass(slots=True)
class Execution:
    """Operations as they were executed.

    `round`, `place`: round of each operation, and its place in the execution.
    """

    round: list[int]
    place: list[int]
    channel: list[int]  # of sends and receives


@dataclass(slots=True)
class OrderedBlock:
    """One thread block: its peers (-1 for none), its channel, and its operations in order.

    A receive that is fused with a send is not listed: the send stands for both.
    """

    send: int
    recv: int
    channel: int
    operations: list[int]
    #: Operations on the rank's own cells beside its receives.
    local: int = 0


class _Channels:
    """The channels from one rank to another, and the messages that want one."""

    def __init__(self, channels: int, cap: int) -> None:
        self.channels, self.cap = channels, cap
        self.carried: list[int] = []
        self.idle: set[int] = set()
        #: (step, operation) of those that take any channel, of those that would rather have one, or must have it.
        self.queue: list[tuple[int, int]] = []
        self.wishes: dict[int, list[tuple[int, int]]] = {}
        self.waiting: set[int] = set()

    def want(self, step: int, op: int, wish: int, *, must: bool) -> None:
        """Let a message wait for a channel."""
        self.waiting.add(op)
        if not 0 <= wish < self.channels or (wish < len(self.carried) and self.carried[wish] >= self.cap):
            wish = NONE
        if wish >= 0:
            heappush(self.wishes.setdefault(wish, []), (step, op))
        if wish < 0 or not must:
            heappush(self.queue, (step, op))

    def serve(self) -> list[tuple[int, int]]:
        """Messages to send now, with their channels; messages that get their preferred channel come first."""
        served = []
        for channel, wishing in self.wishes.items():
            while wishing and wishing[0][1] not in self.waiting:
                heappop(wishing)
            while len(self.carried) <= channel and wishing:
                self.idle.add(len(self.carried))
                self.carried.append(0)
            if wishing and channel in self.idle:
                served.append((self._send(heappop(wishing)[1], channel), channel))
        while self.queue and (self.idle or len(self.carried) < self.channels):
            op = heappop(self.queue)[1]
            if op in self.waiting:
                channel = min(self.idle, default=len(self.carried))
                if channel == len(self.carried):
                    self.idle.add(channel)
                    self.carried.append(0)
                served.append((self._send(op, channel), channel))
        return served

    def _send(self, op: int, channel: int) -> int:
        self.idle.remove(channel)
        self.carried[channel] += 1
        self.waiting.remove(op)
        return op

    def release(self, channel: int) -> bool:
        """Free the channel of a received message; True if another message waits."""
        if self.carried[channel] < self.cap:
            self.idle.add(channel)
        else:
            self.queue += self.wishes.pop(channel, ())
            heapify(self.queue)
        return bool(self.waiting)


def schedule(ops: Operations, ranks: int, place: str, *, channels: int, cap: int) -> Execution:
    """Execute operations in rounds.

    `place`: for messages. `channels`: most channels between two ranks. A message that finds all of them taken waits for
    another round. `cap`: most messages of a connection. Raises Blocked: some receives need a place in scratch. Raises
    AlgorithmError: more messages between two ranks than all channels may carry.

    A receive may wait for sends of the same round (a ring that paces itself does so). Where these are done only when
    they are received, and all wait for each other, its order is given up unless its cells demand it.
    """
    size = len(ops)
    kinds, counts, partner = ops.kind, ops.count, ops.partner
    children = children_of(ops.parents)
    waiting = [len(parents) for parents in ops.parents]
    out = Execution([0] * size, [0] * size, [NONE] * size)
    rounds, places, channel = out.round, out.place, out.channel
    under_way, finished = bytearray(size), bytearray(size)
    held: dict[int, None] = {}  # receives whose message is under way, but which wait for something else
    pairs: dict[int, _Channels] = {}
    touched: dict[int, _Channels] = {}  # pairs with new messages or channels
    work: list[int] = []
    clock, now, left = 0, -1, size

    def activate(op: int) -> None:
        kind = kinds[op]
        if kind == SEND:
            key = ops.rank[op] * ranks + ops.rank[partner[op]]
            pair = touched[key] = pairs.get(key) or pairs.setdefault(key, _Channels(channels, cap))
            wish, fed = ops.channel[op], ops.feeder[op]
            if wish < 0 and fed >= 0 and kinds[fed] in _RECEIVES:
                # Forward data on the channel of its receive, so that both may fuse into one step.
                wish = channel[fed]
            pair.want(ops.step[op], op, wish, must=ops.channel[op] >= 0)
        elif kind not in _RECEIVES or under_way[op]:
            work.append(op)

    def done(op: int) -> None:
        finished[op] = 1
        for child in children[op]:
            waiting[child] -= 1
            if not waiting[child]:
                activate(child)

    for op in range(size):
        if not waiting[op]:
            activate(op)
    while left:
        begun: list[int] = []
        if now >= 0:
            serving = list(touched.values())
            touched.clear()
            for pair in serving:
                for op, chan in pair.serve():
                    channel[op] = channel[partner[op]] = chan
                    begun.append(op)
            begun.sort(key=ops.step.__getitem__)
            for op in begun:
                places[op], rounds[op] = clock, now
                clock += 1
            left -= len(begun)
            for op in begun:
                got = partner[op]
                under_way[got] = 1
                if not waiting[got]:
                    work.append(got)
                else:
                    held[got] = None
                if counts[op] == 1:
                    done(op)
        for op in work:
            places[op], rounds[op] = clock, now
            clock += 1
            left -= 1
            if kinds[op] in _RECEIVES:
                held.pop(op, None)
                sender = partner[op]
                key = ops.rank[sender] * ranks + ops.rank[op]
                if pairs[key].release(channel[op]):
                    touched[key] = pairs[key]
                if counts[op] > 1:
                    done(sender)
            done(op)
        stuck = now >= 0 and left and not begun and not work
        work.clear()
        if stuck:
            if not held:
                _raise_full(pairs, ranks, place)
            for op in _let_go(ops, sorted(held), finished):
                ops.parents[op] = [parent for parent in ops.parents[op] if finished[parent]]
                waiting[op] = NONE  # and below, when those it no longer waits for are done
                work.append(op)
        now += 1
    return out


def _let_go(ops: Operations, held: list[int], finished: bytearray) -> list[int]:
    """Receives that wait for the order of the traces only, not for cells."""
    free = [op for op in held if not any(not finished[p] and _conflict(ops, p, op) for p in ops.parents[op])]
    if not free:
        raise Blocked(held)
    return free


def _conflict(ops: Operations, before: int, op: int) -> bool:
    """True if a receive touches cells that an earlier operation writes, or writes cells that it reads."""

    def meet(a: tuple[int, int, int] | None, b: tuple[int, int, int] | None) -> bool:
        return bool(a and b) and a[2] < b[2] + ops.count[op] and b[2] < a[2] + ops.count[before]

    given = ops.payload[before]
    read = [ops.source[before], ops.target[given] if given >= 0 else None]
    written = ops.target[before]
    return meet(written, ops.source[op]) or any(meet(cells, ops.target[op]) for cells in (*read, written))


def _raise_full(pairs: dict[int, _Channels], ranks: int, place: str) -> None:
    """Say that no connection may carry another message."""
    key, pair = next((key, pair) for key, pair in pairs.items() if pair.waiting)
    raise AlgorithmError(
        place,
        f"rank {key // ranks} sends more than {sum(pair.carried)} messages to rank {key % ranks}, too many steps for "
        f"{len(pair.carried)} channels",
        "use fewer chunks, another algorithm, or another dialect",
    )


# ------------------------------------------------------------------------------------------- thread blocks


class Assignment:
    """Thread blocks of all ranks.

    `blocks`: by rank, in the order in which they begin. `fused`: receive -> the send that it is one step with.
    """

    def __init__(self, ops: Operations, plan: Execution, ranks: int) -> None:
        self.ops, self.plan = ops, plan
        size = len(ops)
        self._sends: dict[tuple[int, int, int], list[int]] = {}  # by (rank, channel, peer)
        self._receives: dict[tuple[int, int, int], list[int]] = {}
        self._position = [0] * size  # of a receive in its connection
        self._order = sorted(range(size), key=plan.place.__getitem__)
        for op in self._order:
            if ops.kind[op] == SEND:
                key = (ops.rank[op], plan.channel[op], ops.rank[ops.partner[op]])
                self._sends.setdefault(key, []).append(op)
        for (rank, channel, peer), sends in self._sends.items():
            receives = [ops.partner[op] for op in sends]
            self._receives[peer, channel, rank] = receives
            for at, op in enumerate(receives):
                self._position[op] = at
        self._children = children_of(ops.parents)
        fusable = {op: send for send in range(size) if (op := self._fusable(send)) >= 0}
        self._pair(fusable)
        self.fused = {
            op: send for op, send in fusable.items() if self._block_of_receive[op] == self._block_of_send[send]
        }
        self._fill(ranks)

    def _fusable(self, send: int) -> int:
        """The receive that may be one step with a send; -1 for none."""
        ops, plan = self.ops, self.plan
        if ops.kind[send] != SEND or ops.count[send] != 1:
            return NONE
        got = ops.feeder[send]
        if got < 0 or ops.kind[got] not in _RECEIVES or plan.channel[got] != plan.channel[send]:
            return NONE
        if ops.payload[send] != got and ops.source[send][2] != (ops.target[got] or (0, 0, NONE))[2]:
            return NONE
        # Other operations that wait for the receive must begin after the send is delivered.
        end = plan.round[send]
        for child in self._children[got]:
            if child != send and plan.round[child] < end + (ops.kind[child] == SEND):
                return NONE
        # The receive keeps its slot until the send: one more message may come meanwhile, but not two, and not first.
        receives = self._receives[ops.rank[got], plan.channel[got], ops.rank[ops.partner[got]]]
        at, place = self._position[got], plan.place[send]
        if at + 1 < len(receives) and plan.place[receives[at + 1]] < place:
            return NONE
        if at + 2 < len(receives) and plan.place[ops.partner[receives[at + 2]]] < place:
            return NONE
        return got

    def _pair(self, fusable: dict[int, int]) -> None:
        """Join sides of connections in thread blocks: first those with most to fuse, then those with one peer."""
        ops, plan = self.ops, self.plan
        links: dict[tuple[int, int, int, int], int] = {}  # (rank, channel, peer received from, peer sent to)
        for got, send in fusable.items():
            key = (ops.rank[got], plan.channel[got], ops.rank[ops.partner[got]], ops.rank[ops.partner[send]])
            links[key] = links.get(key, 0) + 1
        single = {
            side: {key for key, members in connections.items() if all(ops.count[op] == 1 for op in members)}
            for side, connections in (("send", self._sends), ("receive", self._receives))
        }
        partner_of: dict[tuple[int, int, int], int] = {}  # receiving side -> peer sent to
        taken: set[tuple[int, int, int]] = set()
        same_peer = [(*key[:2], key[2], key[2]) for key in self._receives if key in self._sends]
        ranked = sorted(links, key=lambda key: (-links[key], key))
        for rank, channel, source, target in (*ranked, *same_peer):
            receive, send = (rank, channel, source), (rank, channel, target)
            if receive in partner_of or send in taken:
                continue
            if receive in single["receive"] and send in single["send"]:
                partner_of[receive] = target
                taken.add(send)
        self._block_of_send: dict[int, tuple[int, int, int, int]] = {}
        self._block_of_receive: dict[int, tuple[int, int, int, int]] = {}
        for key, members in self._receives.items():
            block = (*key[:2], key[2], partner_of.get(key, NONE))
            for op in members:
                self._block_of_receive[op] = block
            if block[3] >= 0:
                for op in self._sends[*key[:2], block[3]]:
                    self._block_of_send[op] = block
        for key, members in self._sends.items():
            if key not in taken:
                for op in members:
                    self._block_of_send[op] = (*key[:2], NONE, key[2])

    def _fill(self, ranks: int) -> None:
        """List the operations of every thread block in the order of their execution."""
        ops = self.ops
        self.blocks: list[list[OrderedBlock]] = [[] for _ in range(ranks)]
        known: dict[tuple[int, int, int, int], OrderedBlock] = {}
        home: dict[int, OrderedBlock] = {}  # of local operations and their inputs
        alone: dict[int, OrderedBlock] = {}  # by rank: the thread block without peers that takes more

        def block(key: tuple[int, int, int, int]) -> OrderedBlock:
            if key not in known:
                known[key] = OrderedBlock(key[3], key[2], key[1], [])
                self.blocks[key[0]].append(known[key])
            return known[key]

        for op in self._order:
            kind = ops.kind[op]
            if kind == JOIN:
                continue
            if kind == SEND:
                block(self._block_of_send[op]).operations.append(op)
                continue
            if kind in _RECEIVES:
                home[op] = block(self._block_of_receive[op])
                if op in self.fused:
                    continue
            else:
                # Local work is done where its data arrived.
                mine = home.get(ops.feeder[op])
                if mine is None or mine.local >= _MAX_LOCAL:
                    mine = alone.get(ops.rank[op])
                    if mine is None or len(mine.operations) >= _MAX_LOCAL:
                        mine = alone[ops.rank[op]] = OrderedBlock(NONE, NONE, 0, [])
                        self.blocks[ops.rank[op]].append(mine)
                mine.local += 1
                home[op] = mine
            home[op].operations.append(op)
