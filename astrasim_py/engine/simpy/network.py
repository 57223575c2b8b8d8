"""Links are resources, and a message is a process that asks for one link of its route after the other.

With head_i and tail_i the times at which the first and the last byte of a message reach link i, and free_i the time at
which the link has served all that came before:

``store_and_forward``
    start_i = max(tail_i, free_i); free_i = start_i + bytes/B_i; tail_{i+1} = free_i + latency_i.
``cut_through``
    start_i = max(head_i, free_i); end_i = max(start_i + bytes/B_i, tail_i); free_i = end_i;
    head_{i+1} = start_i + latency_i; tail_{i+1} = end_i + latency_i.
``analytical``
    delivered = posted + Σ latency + bytes / min B, whatever else is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import simpy
from simpy.resources.resource import Request
from simpy.resources.store import StoreGet

from astrasim_py.core.units import transfer_ps


class At(simpy.Event):
    """A timeout with a number: events of one time are taken in ascending order of their numbers.

    The numbers of actions start at 2. SimPy's own events (grants, releases, starts of processes) have 0 and 1: what
    follows from one action is settled before the next one is taken.
    """

    def __init__(self, env: simpy.Environment, delay: int, number: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, number, delay)


class Turn(Request):
    """A message's request for a link."""

    def __init__(self, link: Link, message: Message, listed: bool = True) -> None:
        self.message = message
        self.asked = link._env.now
        #: Whether the link has counted it already.
        self.counted = False
        #: Its row in the hop table.
        self.row = link.recorder.hop(message.row, link.index, self.asked) if listed else -1
        super().__init__(link)


class Link(simpy.Resource):
    """A directed channel that serves one message at a time, first come first served.

    Attributes
    ----------
    index : int
        Number of the link in the topology.
    latency : int
        ps.
    bandwidth : Fraction
        Bytes per second.
    free : int
        Time (ps) at which the last message it has served leaves it.
    bytes, messages, busy, queued, max_queue : int
        Totals: bytes, messages, ps in use, ps that messages waited, the longest queue.
    """

    def __init__(self, env: simpy.Environment, index: int, latency: int, bandwidth: Fraction, recorder) -> None:
        super().__init__(env, capacity=1)
        self.index, self.latency, self.bandwidth, self.recorder = index, latency, bandwidth, recorder
        self.free = self.bytes = self.messages = self.busy = self.queued = self.max_queue = 0
        self._transfer: dict[int, int] = {}
        self._starts: deque[int] = deque()

    def request(self, message: Message) -> Turn:
        """Ask for the link; the event happens when it is the message's turn."""
        return Turn(self, message)

    def transfer(self, nbytes: int) -> int:
        """Time (ps) that so many bytes take to enter the link."""
        found = self._transfer.get(nbytes)
        if found is None:
            found = self._transfer[nbytes] = transfer_ps(nbytes, self.bandwidth)
        return found

    def arrival(self, nbytes: int) -> int:
        """Time (ps) from the start of a message to its last byte at the other end."""
        return self.transfer(nbytes) + self.latency

    def hold(self, turn: Turn, duration: int) -> None:
        """A message that has its turn keeps it for so many ps from now on."""
        now = self._env.now
        self.count_turn(turn, now, now + duration)
        self._env.timeout(duration).callbacks.append(lambda _: self.release(turn))

    def count_turn(self, turn: Turn, start: int, end: int) -> None:
        """A message has the link from `start` to `end` (ps)."""
        turn.counted = True
        self.count_use(turn.asked, start, end, turn.message.bytes)
        self.recorder.hop_served(turn.row, start, end)

    def count_use(self, asked: int, start: int, end: int, nbytes: int) -> None:
        """Add to the totals."""
        self.free = end
        self.bytes += nbytes
        self.messages += 1
        self.busy += end - start
        starts = self._starts
        while starts and starts[0] <= asked:
            starts.popleft()
        if start > asked:
            self.queued += start - asked
            starts.append(start)
            self.max_queue = max(self.max_queue, len(starts))

    def _do_get(self, event) -> bool:
        turn = event.request
        if not turn.counted:
            self.count_turn(turn, turn.usage_since, self._env.now)
        return super()._do_get(event)


class Mailbox(simpy.Store):
    """Where one send meets its receive: the network puts the message in, the receiver gets it out."""

    def __init__(self, env: simpy.Environment, key: object) -> None:
        super().__init__(env)
        self.key = key


class Receive(StoreGet):
    """A receive node that waits for its message."""

    def __init__(self, mailbox: Mailbox, graph, node: int) -> None:
        self.graph, self.node, self.since = graph, node, mailbox._env.now
        super().__init__(mailbox)


class Communicator:
    """Mailboxes of one collective call, or of the workload: the k-th send meets the k-th receive of a match key.

    A match key ≥ 0 of the plan stands for one message; ``~key`` for a (source, destination, tag) of several.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.mailboxes: dict[object, Mailbox] = {}
        self._posted: tuple[dict[int, int], dict[int, int]] = {}, {}

    def mailbox(self, match_key: int, receives: bool) -> Mailbox:
        """The mailbox of the next send, or receive, posted for a match key."""
        key: object = match_key
        if match_key < 0:
            posted = self._posted[receives]
            posted[match_key] = k = posted.get(match_key, -1) + 1
            key = match_key, k
        found = self.mailboxes.get(key)
        if found is None:
            found = self.mailboxes[key] = Mailbox(self.env, key)
        return found


class Message:
    """One send on its way.

    Attributes
    ----------
    graph, node : Graph, int
        The send node.
    src, dst : int
        NPUs.
    bytes : int
    route : list of Link
    mailbox : Mailbox
        Where its receive waits.
    number : int
        Its place in the order of issue.
    since : int
        Time (ps) at which it was issued.
    """

    #: ps by which every hop takes longer than its link alone.
    extra_latency = 0
    #: Whether its send is done, or will be by an event; and the number of that event.
    left, leaves = False, 0
    #: Time (ps) at which its last byte reaches the next link.
    tail = 0
    #: Number of the link that it asks for or is on, on its route.
    at = 0
    #: Its row in the message table.
    row = -1

    def __init__(
        self, graph, node: int, dst: int, route: list[Link], mailbox: Mailbox, number: int, since: int
    ) -> None:
        self.graph, self.node, self.mailbox, self.number, self.since = graph, node, mailbox, number, since
        self.src, self.dst, self.bytes, self.route = graph.npu.npu, dst, graph.lists.nbytes[node], route

    def hops(self) -> Iterator[Link]:
        """The links of its route, one after the other."""
        for at, link in enumerate(self.route):
            self.at = at
            yield link

    def sent(self) -> None:
        """The send is done."""
        self.graph.complete(self.node)

    def arrive(self) -> None:
        """It is at its destination."""
        self.mailbox.put(self)


class Network:
    """Carries messages. A network model is a subclass with `carry`.

    Attributes
    ----------
    env : simpy.Environment
        Its clock counts ps.
    simulation : Simulation
    holds_latency : bool
        ``link_busy: latency+bytes``: a message holds a link until it has arrived at the other end.
    injected : bool
        ``send_completes: injected``: a send is done when its last byte is in the network.
    """

    def __init__(self, simulation) -> None:
        self.simulation, self.env = simulation, simulation.env
        network = simulation.plan.problem.network
        self.holds_latency = network.link_busy == "latency+bytes"
        self.injected = network.send_completes == "injected"

    def carry(self, message: Message) -> Iterator[simpy.Event]:
        """The journey of a message, as a SimPy process: at its end the message is at its destination."""
        raise NotImplementedError

    def after(self, message: Message, delay: int) -> At:
        """A timeout of `delay` ps, in the order of issue among the messages of that time."""
        return At(self.env, delay, message.number)

    def send(self, message: Message) -> None:
        """Put a message on its way."""
        if self.injected and not message.left:
            message.leaves = self.simulation.number()
        self.env.process(self.deliver(message))

    def count_waiting(self) -> None:
        """The run is cut short: count the messages that wait for links as these would serve them."""

    def leave(self, message: Message, delay: int) -> None:
        """The last byte of a message is in the network `delay` ps from now."""
        if self.injected and not message.left:
            message.left = True
            At(self.env, delay, message.leaves).callbacks.append(lambda _: message.sent())

    def deliver(self, message: Message) -> Iterator[simpy.Event]:
        """Carry a message to its receiver."""
        yield from self.carry(message)
        self.simulation.recorder.delivered(message.row, self.env.now)
        if not message.left:
            message.sent()
        message.arrive()


class LinkByLink(Network):
    """Models in which messages ask for the links of their route."""

    def times(self, message: Message, link: Link, start: int) -> tuple[int, int]:
        """When (ps) the last byte of a message leaves a link that it has from `start` on, and is at the other end."""
        raise NotImplementedError

    def occupy(self, turn: Turn) -> int:
        """A message has its turn: it holds the link from now on. Returns when its last byte is at the other end, ps."""
        message, link, now = turn.message, turn.resource, self.env.now
        end, arrival = self.times(message, link, now)
        link.hold(turn, (arrival if self.holds_latency else end) - now)
        if message.at == 0:
            self.leave(message, end - now)
        return arrival

    def count_waiting(self) -> None:
        for link in self.simulation.links.values():
            for turn in (*link.users, *link.queue):
                if not turn.counted:
                    start = max(link.free, turn.asked)
                    link.count_turn(turn, start, self.times(turn.message, link, start)[self.holds_latency])


class StoreAndForward(LinkByLink):
    """A message is received whole before it moves on."""

    def times(self, message, link, start):
        return start + link.transfer(message.bytes), start + link.arrival(message.bytes) + message.extra_latency

    def carry(self, message):
        for link in message.hops():
            turn = link.request(message)
            yield turn
            arrival = self.occupy(turn)
            yield self.after(message, arrival - self.env.now)


class CutThrough(LinkByLink):
    """A message moves on as soon as its head has arrived; its tail follows."""

    def times(self, message, link, start):
        end = max(start + link.transfer(message.bytes), message.tail)
        return end, end + link.latency + message.extra_latency

    def carry(self, message):
        message.tail = self.env.now
        for link in message.hops():
            turn = link.request(message)
            yield turn
            message.tail = self.occupy(turn)
            if message.at + 1 < len(message.route):
                yield self.after(message, link.latency + message.extra_latency)
        yield self.after(message, message.tail - self.env.now)


class Analytical(Network):
    """Every message has the network to itself."""

    def times(self, message: Message) -> tuple[int, int]:
        """Time (ps) until the last byte of a message is in the network, and until it is at its destination."""
        transfer = max(link.transfer(message.bytes) for link in message.route)
        return transfer, transfer + sum(link.latency + message.extra_latency for link in message.route)

    def carry(self, message):
        now = self.env.now
        for link in message.route:
            link.count_use(now, now, now + link.transfer(message.bytes), message.bytes)
        self.simulation.recorder.message_started(message.row, now)
        transfer, total = self.times(message)
        self.leave(message, transfer)
        yield self.after(message, total)


MODELS = {"cut_through": CutThrough, "store_and_forward": StoreAndForward, "analytical": Analytical}
