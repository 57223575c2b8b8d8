"""Given programs, thread block by thread block: as a step begins, all is known of its end and of the message it sends.

The head of a message lets the step that receives it begin; its tail holds up the end of that step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import simpy

from astrasim_py.core.units import transfer_ps
from astrasim_py.dialects.library.simpy import ConnectedGraph, ConnectedSimulation, Slots
from astrasim_py.engine.simpy.network import At, Environment, Link, LinkByLink, LinkRequest, Mailbox, Message
from astrasim_py.engine.simpy.npu import Graph
from astrasim_py.engine.simpy.simulation import following
from astrasim_py.engine.stuck import Posted
from astrasim_py.system.programs import COMPUTE


class Booking(LinkRequest):
    """The request of a message of a thread block, which has its link from `start` to `end` (ps)."""

    def __init__(self, link: Link, message: Message, asked: int, start: int, end: int) -> None:
        self.start, self.end = start, end
        super().__init__(link, message, asked)


class BookedLinks(LinkByLink):
    """A network whose links thread blocks reserve."""

    def __init__(self, simulation) -> None:
        super().__init__(simulation)
        simulation.booked_links = self

    def book(self, message: Message, link: Link, begin: int, took: int) -> int:
        """Reserve a link for `took` ps; returns when (ps) the message is served.

        Service begins at `begin` (ps) or later, after all earlier requests for the link.
        """
        free = max([link.free, *(end for _, _, end, _ in self.uncounted(link))])
        start = max(begin, free)
        booking = Booking(link, message, begin, start, start + took)
        if link is message.route[0]:
            self.simulation.recorder.note(message.row, "start", start)
        self.env.process(self.serve(booking))
        return booking.end

    def serve(self, booking: Booking) -> Iterator[simpy.Event]:
        """Hold a link that is booked, as a SimPy process."""
        yield booking
        booking.count(booking.start, booking.end)
        yield self.env.timeout(booking.end - self.env.now)
        booking.resource.release(booking)

    def service(self, request, free):
        if isinstance(request, Booking):
            return request.start, request.end, False
        return super().service(request, free)


class BlockMessages(Slots):
    """The messages between the thread blocks of a call, and the slots of their connections.

    `expected`: message → the step that waits for its head (graph, node), and since when. `arrived`: numbers
    of the messages with an arrived head that no step has begun to receive. No message is put into the `mailbox`.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.mailbox = Mailbox(env, None)
        self.expected: dict[int, tuple[BlockGraph, int, int]] = {}
        self.arrived: dict[int, Message] = {}


class BlockGraph(ConnectedGraph):
    """A graph of the steps of thread blocks: each waits for its message and for a slot of the next."""

    slots: BlockMessages

    def __init__(self, npu, program, index, call, done) -> None:
        Graph.__init__(self, npu, program, index, call, done)
        self.slots = npu.simulation.slots.setdefault(index, BlockMessages(npu.env))
        blocks = program.blocks
        self.costs, self.takes, self.gives = blocks.costs, blocks.takes.tolist(), blocks.gives.tolist()
        self.needs, self.frees = blocks.needs.tolist(), self.takes

    def admit(self, node):
        """A step waits for the head of its message, then for a slot."""
        messages, taken = self.slots, self.takes[node]
        if taken >= 0 and taken not in messages.arrived:
            messages.expected[taken] = self, node, self.npu.env.now
            return False
        return self.has_slot(node)

    def issue(self, node):
        """Begin a step; the numbers of its message and of its end follow each other."""
        if self.program.kind[node] == COMPUTE:
            super().issue(node)
            return
        env, number = self.npu.env, self.npu.simulation.number
        message = None
        if self.gives[node] >= 0:
            message = Message(self, node, self.program.nbytes[node], self.slots.mailbox, env.now)
        env.process(self.carry_out(node, message, number()))

    def carry_out(self, node: int, message: Message | None, number: int) -> Iterator[simpy.Event]:
        """A step, as a SimPy process; it ends with the event of that number."""
        npu, costs, messages, nbytes = self.npu, self.costs, self.slots, self.program.nbytes[node]
        begin = npu.env.now + costs.step
        end = begin + transfer_ps(nbytes, costs.rate)
        if self.takes[node] >= 0:
            received = messages.arrived.pop(self.takes[node])
            end = max(end, received.tail)
            self.recorder.note(received.row, "recv_node", self.row + node)
        if message is not None:
            rates, latency = costs.links, sum(int(costs.links.latency_ps[link.index]) for link in message.route)
            for link in message.route:
                took = transfer_ps(nbytes, rates.rates[rates.rate_class[link.index]])
                end = max(end, npu.simulation.booked_links.book(message, link, begin, took))
            message.tail = end + latency
            self.recorder.note(message.row, "delivered", message.tail)
            head = begin + latency + ((end - begin + 1) // 2 if costs.waits_half else 0)
            At(npu.env, head - npu.env.now, message.number).callbacks.append(lambda _: self.arrives(message))
        yield At(npu.env, end - npu.env.now, number)
        self.complete(node)

    def arrives(self, message: Message) -> None:
        """The head of a message is at its receiver: release the step that waits for it."""
        messages, number = self.slots, self.gives[message.node]
        messages.arrived[number] = message
        if number in messages.expected:
            graph, node, _ = messages.expected.pop(number)
            graph.release([node], self.row + message.node)
            graph.npu.wake_up()

    def complete(self, node, ended_by=-1):
        self.free_slot(node)
        Graph.complete(self, node, ended_by)


def awaiting(graph: BlockGraph, node: int, since: int) -> Posted:
    """A step that waits for the head of its message, for the stuck report."""
    return Posted.awaiting(graph.npu.simulation.plan, graph.npu.rank, graph.index, node, since)


class BlockSimulation(ConnectedSimulation):
    """A run with programs that thread blocks execute; `booked_links`: the network whose links they reserve."""

    booked_links: BookedLinks

    def network_model(self):
        return following(BookedLinks, super().network_model())

    def graph_rules(self, program, index):
        return [BlockGraph] if program.blocks is not None else super().graph_rules(program, index)

    def waits(self):
        waits = super().waits()
        steps = [slots.expected for slots in self.slots.values() if isinstance(slots, BlockMessages)]
        awaited = sorted(awaiting(*step) for expected in steps for step in expected.values())
        return replace(waits, posted=[*waits.posted, *awaited])
