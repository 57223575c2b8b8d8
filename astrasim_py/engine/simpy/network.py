"""Links are resources, and a message is a process that asks for one link of its route after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import simpy
from simpy.resources.resource import Request
from simpy.resources.store import StoreGet

from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.units import transfer_ps


class At(simpy.Event):
    """A timeout with a number: events of one time are taken in ascending order of their numbers.

    Actions are numbered from 2 on. SimPy's own events (grants, releases, starts of processes) have 0 and 1: everything
    that follows from one action is settled before the next action is taken.
    """

    def __init__(self, env: simpy.Environment, delay: int, number: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, number, delay)


class Signal(simpy.Event):
    """An event that somebody gives, with a number."""

    def give(self, number: int) -> None:
        """It happens now."""
        self._ok, self._value = True, None
        self.env.schedule(self, number)


class Link(simpy.Resource):
    """A directed channel of a `latency` (ps) and a `bandwidth` (bytes/s), first come first served.

    It counts what it carries; `free` is the time (ps) at which the last message that it has served leaves it.
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

    def count_use(self, asked: int, start: int, end: int, nbytes: int) -> None:
        """A message that asked at `asked` has the link from `start` to `end` (ps)."""
        self.free = end
        self.bytes += nbytes
        self.messages += 1
        self.busy += end - start
        while self._starts and self._starts[0] <= asked:
            self._starts.popleft()
        if start > asked:
            self.queued += start - asked
            self._starts.append(start)
            self.max_queue = max(self.max_queue, len(self._starts))

    def _do_get(self, event) -> bool:
        turn = event.request
        if not turn.counted:
            turn.use(turn.usage_since, self._env.now)
        return super()._do_get(event)


class Turn(Request):
    """The request of a message for a link; `row` is its row in the hop table."""

    counted = False

    def __init__(self, link: Link, message: Message, listed: bool = True) -> None:
        self.message, self.asked = message, link._env.now
        self.row = link.recorder.hop(message.row, link.index, self.asked) if listed else -1
        super().__init__(link)

    def use(self, start: int, end: int) -> None:
        """The message has the link from `start` to `end` (ps)."""
        self.counted = True
        self.resource.count_use(self.asked, start, end, self.message.bytes)
        self.resource.recorder.hop_served(self.row, start, end)


class Mailbox(simpy.Store):
    """A place where one send meets its receive."""

    def __init__(self, env: simpy.Environment, key: object) -> None:
        super().__init__(env)
        self.key = key


class Receive(StoreGet):
    """A receive node that gets its message from the mailbox."""

    def __init__(self, mailbox: Mailbox, graph, node: int) -> None:
        self.graph, self.node, self.since = graph, node, mailbox._env.now
        super().__init__(mailbox)


class Communicator:
    """The mailboxes of one collective call, or of the workload.

    A match key ≥ 0 stands for one message. A negative one stands for several of a (source, destination, tag): the k-th
    send meets the k-th receive.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.mailboxes: dict[object, Mailbox] = {}
        self._posted: tuple[dict[int, int], dict[int, int]] = {}, {}

    def mailbox(self, match_key: int, receives: bool) -> Mailbox:
        """The mailbox of the next send, or receive, of a match key."""
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
    """A message from NPU `src` to NPU `dst`: `bytes` over the links of a `route`, into the mailbox of its receive.

    `graph` and `node` are its send, issued at `since` (ps); `number` is its place in the order of issue. `row` is its
    row in the message table. `extra_latency` (ps) prolongs every hop. `at` and `tail` belong to the model: the link of
    the route that it is at, and the time (ps) at which its last byte is there.
    """

    at = tail = extra_latency = 0
    #: Whether its send is done, or will be by the event of number `leaves`.
    left, leaves = False, 0

    def __init__(self, graph, node: int, dst: int, route: list[Link], mailbox, number: int, since: int) -> None:
        self.graph, self.node, self.mailbox, self.number, self.since = graph, node, mailbox, number, since
        self.src, self.dst, self.bytes, self.route = graph.npu.npu, dst, graph.lists.nbytes[node], route

    def hops(self) -> Iterator[Link]:
        """The links of its route, one after the other."""
        for at, link in enumerate(self.route):
            self.at = at
            yield link

    def arrive(self) -> None:
        """The message is at its destination."""
        self.mailbox.put(self)


class Network:
    """Carries messages. A network model is a subclass with `carry`; `env` is SimPy's environment, its time in ps."""

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

    def leave(self, message: Message, delay: int) -> None:
        """The last byte of a message is in the network `delay` ps from now: ``send_completes: injected``."""
        if self.injected and not message.left:
            message.left = True
            At(self.env, delay, message.leaves).callbacks.append(lambda _: message.graph.complete(message.node))

    def deliver(self, message: Message) -> Iterator[simpy.Event]:
        """Carry a message to its receiver."""
        yield from self.carry(message)
        self.simulation.recorder.note(message.row, "delivered", self.env.now)
        if not message.left:
            message.graph.complete(message.node)
        message.arrive()

    def count_waiting(self) -> None:
        """The run is cut short: count the messages that wait for links as these would serve them."""


class LinkByLink(Network):
    """Models in which a message asks for the links of its route.

    ``times(message, link, start)`` says when (ps) the last byte of a message leaves a link that it has from `start` on,
    and when it is at the other end.
    """

    def occupy(self, turn: Turn) -> int:
        """A message has its turn and keeps it; returns when (ps) its last byte is at the other end."""
        message, link, now = turn.message, turn.resource, self.env.now
        end, arrival = self.times(message, link, now)
        free = arrival if self.holds_latency else end
        turn.use(now, free)
        self.env.timeout(free - now).callbacks.append(lambda _: link.release(turn))
        if message.at == 0:
            self.leave(message, end - now)
        return arrival

    def count_waiting(self):
        for link in self.simulation.links.values():
            for turn in (*link.users, *link.queue):
                if not turn.counted:
                    start = max(link.free, turn.asked)
                    turn.use(start, self.times(turn.message, link, start)[self.holds_latency])


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
        self.simulation.recorder.note(message.row, "start", now)
        transfer, total = self.times(message)
        self.leave(message, transfer)
        yield self.after(message, total)


MODELS = dict(zip(NETWORK_MODELS, (CutThrough, StoreAndForward, Analytical), strict=True))
