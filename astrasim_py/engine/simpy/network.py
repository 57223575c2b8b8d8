"""Links are resources, and a message is a process that asks for one link of its route after the other."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import simpy
from simpy.resources.resource import Request
from simpy.resources.store import StoreGet

from astrasim_py.system.durations import message_ps


class Environment(simpy.Environment):
    """SimPy's, with times that are integers (ps)."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int: ...


class Signal(simpy.Event):
    """An event with a number: events of one time are taken in ascending order of their numbers.

    Actions are numbered from 2 on. SimPy's own events (grants, releases, starts of processes) have 0 and 1: everything
    that follows from one action is settled before the next action is taken.
    """

    def give(self, number: int, delay: int = 0) -> None:
        """It happens `delay` ps from now."""
        self._ok, self._value = True, None
        self.env.schedule(self, number, delay)  # type: ignore[arg-type]  # SimPy takes any number as a priority


class At(Signal):
    """A timeout with a number."""

    def __init__(self, env: simpy.Environment, delay: int, number: int) -> None:
        super().__init__(env)
        self.give(number, delay)


class Link(simpy.Resource):
    """A directed channel of a `latency` (ps) and a `bandwidth` (a fraction, bytes/s), first come first served.

    `index` is its number in the topology, and `simulation` the run. `free` is the time (ps) at which the last served
    message leaves it. It has counted so far: `bytes`, `messages`, `busy` time and waiting (`queued`, both in ps), the
    longest queue (`max_queue`), and messages that waited while a slower link fed it (`held_up`). Times are rounded by
    `rounding`, the rule of the semantics.
    """

    _env: Environment

    def __init__(self, simulation, index: int) -> None:
        super().__init__(simulation.env, capacity=1)
        topology = simulation.plan.problem.topology
        self.simulation, self.index, self.latency = simulation, index, int(topology.latency_ps[index])
        self.bandwidth = topology.bandwidths[topology.bandwidth_class[index]]
        self.rounding = simulation.plan.problem.semantics.rounding
        self.free = self.bytes = self.messages = self.busy = self.queued = self.max_queue = self.held_up = 0
        self._fed = False
        #: Time (ps) for a number of bytes to enter the link (`transfer`); and until their last byte is at the other end
        #: (`crossing`).
        self.transfer, self.crossing = cache(self._transfer), cache(self._crossing)
        self._starts: deque[int] = deque()

    def request(self, message: Message) -> LinkRequest:  # type: ignore[override]  # a link is asked for a message
        """Ask for the link; the event happens when the message has it."""
        return LinkRequest(self, message)

    def _transfer(self, nbytes: int) -> int:
        return message_ps(nbytes, self.bandwidth, self.rounding)

    def _crossing(self, nbytes: int) -> int:
        return message_ps(nbytes, self.bandwidth, self.rounding, self.latency)

    def count_use(self, asked: int, start: int, end: int, nbytes: int, fed: bool = False) -> None:
        """A message that asked at `asked` has the link from `start` to `end` (ps); `fed`: a slower link feeds it."""
        held_up = start > asked and self._fed
        self.held_up += held_up
        self._fed = fed or held_up
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

    def _do_get(self, event) -> None:
        request = event.request
        if not request.counted:
            request.count(request.usage_since, self._env.now)
        super()._do_get(event)


class LinkRequest(Request):
    """The request of a message for a link; `row` is its row in the hop table."""

    resource: Link
    counted = False

    def __init__(self, link: Link, message: Message, asked: int | None = None, listed: bool = True) -> None:
        self.message, self.asked = message, link._env.now if asked is None else asked
        self.row = link.simulation.recorder.hop(message.row, link.index, self.asked) if listed else -1
        super().__init__(link)

    def count(self, start: int, end: int, fed: bool = False) -> None:
        """The message has the link from `start` to `end` (ps); `fed`: a slower link feeds it."""
        self.counted = True
        self.resource.count_use(self.asked, start, end, self.message.bytes, fed)
        self.resource.simulation.recorder.hop_served(self.row, start, end)


class Mailbox(simpy.Store):
    """A place where one send meets its receive."""

    _env: Environment

    def __init__(self, env: Environment, key: object) -> None:
        super().__init__(env)
        self.key = key


class Receive(StoreGet):
    """A node that gets a message from a mailbox, since `since` (ps)."""

    def __init__(self, mailbox: Mailbox, graph, node: int) -> None:
        self.graph, self.node, self.since = graph, node, mailbox._env.now
        super().__init__(mailbox)

    @property
    def message(self) -> Message:
        """The message that it has got."""
        return self._value


class Communicator:
    """The mailboxes of one collective call, or of the workload.

    A match key ≥ 0 stands for one message. A negative one stands for several of a (source, destination, tag): the k-th
    send meets the k-th receive.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.mailboxes: dict[object, Mailbox] = {}
        self._posted: Counter[tuple[int, bool]] = Counter()

    def mailbox(self, match_key: int, receives: bool) -> Mailbox:
        """The mailbox of the next send, or receive, of a match key."""
        key: object = match_key
        if match_key < 0:
            self._posted[match_key, receives] += 1
            key = match_key, self._posted[match_key, receives]
        if key not in self.mailboxes:
            self.mailboxes[key] = Mailbox(self.env, key)
        return self.mailboxes[key]


class Message:
    """A message from NPU `src` to NPU `dst`: `bytes` over the links of a `route`, into the `mailbox` of its receive.

    A switch that computes is its vertex. `pair` is its queue pair, equal for messages of equal ends and queue pair.
    `graph` and `node` are its send, issued at `since` (ps); `number` is its place in the order of issue. `row` is its
    row in the message table. `hop_latency` (ps) prolongs every hop, `first_latency` the first; `connections` are those
    of its call, if any, on which its pace ends at `paced` (ps). `at` and `tail` belong to the model: the link of the
    route that it is at, and the time (ps) at which its last byte is there.
    """

    at = tail = hop_latency = paced = 0
    connections = None
    #: Whether its send is done (`send_done`), or will be by the event of number `send_event`.
    send_done, send_event = False, 0

    def __init__(self, graph, node: int, nbytes: int, mailbox: Mailbox, since: int) -> None:
        simulation, receiver = graph.npu.simulation, graph.call.members[graph.program.peer[node]]
        self.graph, self.node, self.bytes, self.mailbox, self.since = graph, node, nbytes, mailbox, since
        self.src, self.dst = graph.npu.vertex, simulation.plan.npu_of[receiver]
        self.pair = simulation.pair(self.src, self.dst)
        self.route = simulation.route(self.pair)
        self.first_latency = graph.npu.first_latency
        self.number = simulation.number()
        self.row = simulation.recorder.message(self, receiver, simulation.env.now)

    @property
    def extra_latency(self) -> int:
        """Time (ps) that it takes longer on the link that it is at."""
        return self.hop_latency if self.at else self.hop_latency + self.first_latency

    @property
    def latency(self) -> int:
        """Time (ps) that its head is under way where no link holds it up."""
        return sum(link.latency + self.hop_latency for link in self.route) + self.first_latency

    def hops(self) -> Iterator[Link]:
        """The links of its route, one after the other."""
        for at, link in enumerate(self.route):
            self.at = at
            yield link

    def arrive(self) -> None:
        """The message is at its destination."""
        self.mailbox.put(self)


class Network:
    """Carries messages. A network model is a subclass with `carry`; `env` is SimPy's environment, its time in ps.

    `keeps_pace`: whether a message of a connection moves no faster than that.
    """

    keeps_pace = False

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
        """Put a message on its way, as a process."""
        if self.injected and not message.send_done:
            message.send_event = self.simulation.number()
        self.env.process(self.deliver(message))

    def complete_send(self, message: Message, delay: int) -> None:
        """The last byte of a message is in the network `delay` ps from now: ``send_completes: injected``."""
        if self.injected and not message.send_done:
            message.send_done = True
            At(self.env, delay, message.send_event).callbacks.append(lambda _: message.graph.complete(message.node))

    def deliver(self, message: Message) -> Iterator[simpy.Event]:
        """Carry a message to its receiver."""
        yield from self.carry(message)
        self.hand_over(message)

    def hand_over(self, message: Message) -> None:
        """A message is at its destination: its receive gets it, and its send is done if it is not yet."""
        self.simulation.recorder.note(message.row, "delivered", self.env.now)
        if not message.send_done:
            message.graph.complete(message.node)
        message.arrive()

    def without_path(self) -> list[tuple[int, int]]:
        """Pairs of NPUs with a message that waits for a path."""
        return []

    def count_waiting(self) -> None:
        """The run is cut short: count the messages that wait for links as these would serve them."""


class LinkByLink(Network):
    """Models in which a message requests the links of its route."""

    def times(self, message: Message, link: Link, start: int) -> tuple[int, int]:
        """When (ps) the last byte of a message leaves a link that it has from `start` on, and is at the other end."""
        raise NotImplementedError

    def fed(self, message: Message, link: Link, start: int, end: int) -> bool:
        """Whether a slower link feeds, or has fed, a message that has a link from `start` to `end` (ps)."""
        former = message.route[message.at - 1] if message.at else link
        return former.transfer(message.bytes) > link.transfer(message.bytes)

    def occupy(self, request: LinkRequest) -> int:
        """A message has the link and holds it; returns when (ps) its last byte is at the other end."""
        message, link, now = request.message, request.resource, self.env.now
        end, arrival = self.times(message, link, now)
        free = arrival if self.holds_latency else end
        request.count(now, free, self.fed(message, link, now, end))
        self.env.timeout(free - now).callbacks.append(lambda _: link.release(request))
        self.complete_send(message, end - now)
        return arrival

    def service(self, request: LinkRequest, free: int) -> tuple[int, int, bool]:
        """When (ps) a link that is `free` from then on begins and ends to serve a request, and whether a slower link
        feeds it.
        """
        message, link, start = request.message, request.resource, max(free, request.asked)
        times = self.times(message, link, start)
        return start, times[self.holds_latency], self.fed(message, link, start, times[0])

    def uncounted(self, link: Link) -> Iterator[tuple[LinkRequest, int, int, bool]]:
        """Requests for a link that are not counted yet, each with its `service`."""
        free = link.free
        for request in (*link.users, *link.queue):
            if not request.counted:
                start, free, fed = self.service(request, free)
                yield request, start, free, fed

    def count_waiting(self):
        for link in self.simulation.links.values():
            for request, start, end, fed in list(self.uncounted(link)):
                request.count(start, end, fed)


class StoreAndForward(LinkByLink):
    """A message is received whole before it moves on."""

    def times(self, message, link, start):
        return start + link.transfer(message.bytes), start + link.crossing(message.bytes) + message.extra_latency

    def carry(self, message):
        for link in message.hops():
            request = link.request(message)
            yield request
            arrival = self.occupy(request)
            yield self.after(message, arrival - self.env.now)


class CutThrough(LinkByLink):
    """A message moves on as soon as its head has arrived; its tail follows."""

    def times(self, message, link, start):
        end = max(start + link.transfer(message.bytes), message.tail)
        return end, end + link.latency + message.extra_latency

    def fed(self, message, link, start, end):
        return end > start + link.transfer(message.bytes)

    def carry(self, message):
        message.tail = self.env.now
        for link in message.hops():
            request = link.request(message)
            yield request
            message.tail = self.occupy(request)
            if message.at + 1 < len(message.route):
                yield self.after(message, link.latency + message.extra_latency)
        yield self.after(message, message.tail - self.env.now)


class Analytical(Network):
    """Every message has the network to itself."""

    def path(self, message: Message) -> tuple[Fraction, int, int]:
        """Bandwidth of a route, its latency (ps), and how many times the latency counts."""
        return min(link.bandwidth for link in message.route), message.latency, 1

    def carry(self, message):
        now = self.env.now
        for link in message.route:
            link.count_use(now, now, now + link.transfer(message.bytes), message.bytes)
        self.simulation.recorder.note(message.row, "start", now)
        (rate, latency, hops), rounding = self.path(message), message.route[0].rounding
        self.complete_send(message, message_ps(message.bytes, rate, rounding))
        yield self.after(message, message_ps(message.bytes, rate, rounding, latency, hops))
