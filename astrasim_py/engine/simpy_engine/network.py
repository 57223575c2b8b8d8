"""Network models: when a message reaches each link and its destination.

With head_i and tail_i the times at which a message's head and tail reach link i, links FIFO and input buffers
unbounded:

``store_and_forward``
    start_i = max(tail_i, free_i); free_i = start_i + bytes/B_i; tail_{i+1} = free_i + latency_i.
``cut_through``
    start_i = max(head_i, free_i); end_i = max(start_i + bytes/B_i, tail_i); free_i = end_i;
    head_{i+1} = start_i + latency_i; tail_{i+1} = end_i + latency_i.
``analytical``
    delivered = posted + Σ latency + bytes / min B, whatever else is under way.

A model of one's own is a class with `send`; it is given the engine, schedules each message and hands it to
``engine.deliver``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from simpy import Environment
from simpy.events import Event

from astrasim_py.core.units import PS_PER_NS, transfer_ps
from astrasim_py.system.routes import lowest_dimension

#: Priority of wake-ups under ``event_order: scheduled``: before every numbered event, and after SimPy's own, so that
#: the failure of a process ends the run before anybody else dispatches.
SOON = 2

if TYPE_CHECKING:
    from astrasim_py.engine.simpy_engine.engine import Engine
    from astrasim_py.engine.simpy_engine.link import Link
    from astrasim_py.engine.simpy_engine.splice import Block


class Message(Event):
    """One send on its way: a SimPy event that is scheduled again for every hop.

    Attributes
    ----------
    block, node : Block, int
        The send node.
    meet : int
        Where in the space of `block` it meets its receive.
    bytes : int
    route : list of Link
    at : int
        Next link of the route.
    tail : int
        ps at which the tail reaches that link.
    op : int
        Its number in the order of issue.
    since : int
        ps at which its send was issued.
    row : int
        Its row in the message table, -1 if messages are not recorded.
    """

    #: Whether it is the control message by which a receive asks for its own.
    asks = False

    def __init__(self, env, block: Block, node: int, meet: int, nbytes: int, route: list, op: int, since: int) -> None:
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        self.block = block
        self.node = node
        self.meet = meet
        self.bytes = nbytes
        self.route = route
        self.op = op
        self.since = since
        self.at = 0
        self.tail = 0
        self.row = -1


class Request(Message):
    """The control message of the rendezvous: `block` and `node` are the receive that sends it."""

    asks = True


class Clock(Environment):
    """SimPy's environment, which also knows the number of the event that it took last."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def step(self) -> None:
        if self._queue:
            number = self._queue[0][1]
            if number > SOON:  # the others are SimPy's own events and the dispatch that follows an event
                self.taken = number
        super().step()


class Freed(Event):
    """A link gets free."""

    def __init__(self, env, link: Link, callback) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = None
        self._ok = True
        self.link = link


class Model:
    """What every model shares: the engine's clock, and the choice of when a send completes."""

    #: Whether links serve one message at a time.
    contention = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.env = engine.env
        network = engine.plan.problem.network
        self.hold_latency = network.link_busy == "latency+bytes"
        self.injected = network.send_completes == "injected"
        self.record = engine.record_messages
        self.scheduled_first = engine.scheduled_first

    def send(self, message: Message, now: int) -> None:
        """Put a message on its way: its head and its tail are at the first link now."""
        raise NotImplementedError

    def schedule(self, message: Message, callback, at: int) -> None:
        """Call ``callback(message)`` at `at` ps, in the order of issue among equals."""
        message.callbacks = [callback]
        self.env.schedule(message, message.op, at - self.env.now)

    def deliver_at(self, message: Message, at: int) -> None:
        """The tail reaches the destination at `at` ps."""
        self.schedule(message, self.engine.deliver, at)

    def note(self, message: Message, link, requested: int, start: int, free: int) -> None:
        """Record one hop."""
        if message.at == 0:
            self.engine.recorder.message_started(message.row, start)
        self.engine.recorder.hop(message.row, link.index, requested, start, free)


class CutThrough(Model):
    """A message's head moves on while its tail is still coming."""

    def send(self, message: Message, now: int) -> None:
        message.tail = now
        self.advance(message, now)

    def hop(self, message: Message) -> None:
        """The head is at the next link now."""
        self.advance(message, self.env.now)

    def advance(self, message: Message, now: int) -> None:
        """Take the link that the head is at."""
        route = message.route
        link = route[message.at]
        nbytes = message.bytes
        start = link.free
        if start < now:
            start = now
        end = start + link.hold[nbytes]
        if end < message.tail:
            end = message.tail
        tail = end + link.latency
        free = tail if self.hold_latency else end
        link.reserve(now, start, free, nbytes)
        if self.record:
            self.note(message, link, now, start, free)
        if self.scheduled_first:
            message.op = self.engine.number_at(start)
        message.at += 1
        message.tail = tail
        if message.at < len(route):
            message.callbacks = [self.hop]
            self.env.schedule(message, message.op, start + link.latency - now)
        else:
            message.callbacks = [self.engine.deliver]
            self.env.schedule(message, message.op, tail - now)
        if self.injected and message.at == 1:
            self.engine.inject_at(message, end)


class StoreAndForward(Model):
    """A message is received whole before it moves on.

    Under ``event_order: scheduled`` a link that gets free is an event of its own, with a number like all others: what
    it lets begin comes among the events of that time where ASTRA-sim has it. It is scheduled only if a message waits.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: Of each link the messages that wait for it, with the time of their request.
        self.lines: dict[int, deque[tuple[Message, int]]] = {}
        #: Of each link the number of the event by which it gets free.
        self.free_op: dict[int, int] = {}

    def send(self, message: Message, now: int) -> None:
        self.advance(message, now)

    def hop(self, message: Message) -> None:
        """The tail is at the next link now."""
        self.advance(message, self.env.now)

    def advance(self, message: Message, now: int) -> None:
        """Take the link that the whole message is at."""
        route = message.route
        link = route[message.at]
        if self.scheduled_first:
            line = self.lines.get(link.index)
            if line is not None:
                line.append((message, now))
            elif link.free < now or (link.free == now and self.free_op.get(link.index, 0) <= self.env.taken):
                self.serve(message, link, now, now)
            else:
                self.lines[link.index] = deque([(message, now)])
                self.free_later(link, now)
            return
        nbytes = message.bytes
        start = link.free
        if start < now:
            start = now
        end = start + link.hold[nbytes]
        arrival = start + link.hop[nbytes]
        free = arrival if self.hold_latency else end
        link.reserve(now, start, free, nbytes)
        if self.record:
            self.note(message, link, now, start, free)
        message.at += 1
        message.callbacks = [self.hop if message.at < len(route) else self.engine.deliver]
        self.env.schedule(message, message.op, arrival - now)
        if self.injected and message.at == 1:
            self.engine.inject_at(message, end)

    def serve(self, message: Message, link: Link, now: int, requested: int) -> None:
        """A link begins with a message: its arrival is scheduled first, then that the link gets free."""
        route, nbytes = message.route, message.bytes
        arrival, end = now + link.hop[nbytes], now + link.hold[nbytes]
        free = arrival if self.hold_latency else end
        link.reserve(requested, now, free, nbytes)
        if self.record:
            self.note(message, link, requested, now, free)
        message.op = self.engine.number_at(now)
        message.at += 1
        message.callbacks = [self.hop if message.at < len(route) else self.engine.deliver]
        self.env.schedule(message, message.op, arrival - now)
        self.free_op[link.index] = self.engine.number_at(now)
        if self.injected and message.at == 1:
            self.engine.inject_at(message, end)

    def freed(self, event: Freed) -> None:
        """A link is free: its next message begins."""
        line = self.lines[event.link.index]
        now = self.env.now
        message, requested = line.popleft()
        # As this message sees it: those of different protocols wait in one line.
        link = message.route[message.at]
        self.serve(message, link, now, requested)
        if line:
            self.free_later(link, now)
        else:
            del self.lines[link.index]

    def free_later(self, link: Link, now: int) -> None:
        """Schedule that a busy link gets free."""
        self.env.schedule(Freed(self.env, link, self.freed), self.free_op[link.index], link.free - now)


class Analytical(Model):
    """Latency and serialization of the route, no contention."""

    contention = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.semantics = engine.plan.problem.semantics
        self.topology = engine.plan.problem.topology
        self.known: dict[tuple[int, int, int], tuple[int, int]] = {}

    def delay(self, message: Message) -> tuple[int, int]:
        """(delivery, injection) of a message, ps after it is sent."""
        pair = message.block.npu.npu, self.engine.plan.npu_of[self.engine.destination(message)]
        topology, nbytes = self.topology, message.bytes
        if self.semantics.analytical_route == "lowest_dim" and topology.dims:
            hops, rate, latency = lowest_dimension(topology, *pair)
            # A message's protocol may make every hop longer than the link alone does.
            first = message.route[0]
            each = latency + first.latency - int(topology.latency_ps[first.index])
            latency, in_ns = hops * each, hops * (each / PS_PER_NS)
        else:
            latency = sum(link.latency for link in message.route)
            rate = min(topology.bandwidths[int(topology.bandwidth_class[link.index])] for link in message.route)
            in_ns = latency / PS_PER_NS
        if self.semantics.rounding == "floor_ns":
            # Doubles in nanoseconds, floored once, as ASTRA-sim computes it.
            serialization = nbytes / (float(rate) / 1e9)
            return int(in_ns + serialization) * PS_PER_NS, int(serialization) * PS_PER_NS
        serialization = transfer_ps(nbytes, rate)
        return latency + serialization, serialization

    def send(self, message: Message, now: int) -> None:
        pair = message.block.npu.npu * self.topology.npus + self.engine.plan.npu_of[self.engine.destination(message)]
        key = pair, message.bytes, message.route[0].latency
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self.delay(message)
        for link in message.route:
            link.reserve(now, now, now + link.hold[message.bytes], message.bytes)
        if self.record:
            self.engine.recorder.message_started(message.row, now)
        self.deliver_at(message, now + known[0])
        if self.injected:
            self.engine.inject_at(message, now + known[1])


MODELS = {"cut_through": CutThrough, "store_and_forward": StoreAndForward, "analytical": Analytical}
