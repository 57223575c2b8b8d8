"""ASTRA-sim's rules: its order of events, its rendezvous, its rounding and its route of one dimension.

Under ``event_order: scheduled`` events of one time are taken in the order in which they were scheduled: every hop anew,
when its link begins to serve it; the timers of one rank for one time together with their first. A rank that an event
makes ready dispatches before the next event.
"""

from __future__ import annotations

from astrasim_py.core.units import PS_PER_NS, transfer_ps
from astrasim_py.engine.simpy.chunks import ChunkingNpu
from astrasim_py.engine.simpy.network import Analytical, At, CutThrough, Link, Message, Network, StoreAndForward, Turn
from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.system.routes import lowest_dimension

#: Ranks dispatch before every numbered event, and after SimPy's own.
SOON = 2


def scheduled_number(time: int, place: int) -> int:
    """Number of an event that is scheduled at `time` ps: events of one time have ascending places."""
    return time << 40 | place


class FlooredLink(Link):
    """A link whose delays are doubles in nanoseconds, each floored once."""

    def transfer(self, nbytes):
        return int(nbytes / (float(self.bandwidth) / 1e9)) * PS_PER_NS

    def arrival(self, nbytes):
        return int(self.latency / PS_PER_NS + nbytes / (float(self.bandwidth) / 1e9)) * PS_PER_NS


class AstraAnalytical(Analytical):
    """Floors once, and may charge the lowest differing dimension of a route only."""

    def times(self, message):
        problem = self.simulation.plan.problem
        if problem.semantics.analytical_route == "lowest_dim" and problem.topology.dims:
            hops, rate, latency = lowest_dimension(problem.topology, message.src, message.dst)
            latency += message.extra_latency
            total, in_ns = hops * latency, hops * (latency / PS_PER_NS)
        else:
            total = sum(link.latency + message.extra_latency for link in message.route)
            rate, in_ns = min(link.bandwidth for link in message.route), total / PS_PER_NS
        if problem.semantics.rounding == "floor_ns":
            transfer = message.bytes / (float(rate) / 1e9)
            return int(transfer) * PS_PER_NS, int(in_ns + transfer) * PS_PER_NS
        transfer = transfer_ps(message.bytes, rate)
        return transfer, transfer + total


class Scheduled(Network):
    """A message asks for its first link as soon as it is sent, not when its process begins."""

    def send(self, message):
        journey = self.deliver(message)
        first = next(journey)
        self.env.process(self.go_on(first, journey))

    def go_on(self, first, journey):
        """The rest of a journey."""
        yield first
        yield from journey

    def number_leaving(self, message: Message) -> None:
        """Number the end of a send, at the first link of its message."""
        if self.injected and message.at == 0 and not message.left:
            message.leaves = self.simulation.number()


class ScheduledCutThrough(Scheduled, CutThrough):
    """A hop has its place among the events of one time from when its link is asked for."""

    def carry(self, message):
        message.tail = self.env.now
        for link in message.hops():
            place, turn = next(self.simulation.places), link.request(message)
            self.number_leaving(message)
            yield turn
            message.number = scheduled_number(self.env.now, place)
            message.tail = self.occupy(turn)
            if message.at + 1 < len(message.route):
                yield self.after(message, link.latency + message.extra_latency)
        yield self.after(message, message.tail - self.env.now)


class ScheduledStoreAndForward(Scheduled, StoreAndForward):
    """An event with a number frees a link; it is scheduled after the arrival. A hop is listed when it begins."""

    def carry(self, message):
        for link in message.hops():
            turn = Turn(link, message, listed=False)
            if not turn.triggered:
                yield turn
            yield self.occupy(turn)

    def occupy(self, turn):
        message, link, now = turn.message, turn.resource, self.env.now
        end, arrival = self.times(message, link, now)
        free = arrival if self.holds_latency else end
        turn.row = self.simulation.recorder.hop(message.row, link.index, turn.asked)
        turn.use(now, free)
        arrives = At(self.env, arrival - now, scheduled_number(now, next(self.simulation.places)))
        frees = At(self.env, free - now, scheduled_number(now, next(self.simulation.places)))
        frees.callbacks.append(lambda _: link.release(turn))
        self.number_leaving(message)
        if message.at == 0:
            self.leave(message, end - now)
        return arrives

    def count_waiting(self):
        """A message that waits has not begun its hop."""


SCHEDULED = {"cut_through": ScheduledCutThrough, "store_and_forward": ScheduledStoreAndForward}


class Ask(Message):
    """The control message of the rendezvous: by it a receive, its `node`, asks for its own message."""

    #: It completes no node.
    left = True

    def __init__(self, graph, *args) -> None:
        super().__init__(graph, *args)
        self.bytes = graph.npu.rendezvous

    def arrive(self):
        simulation = self.graph.npu.simulation
        send = simulation.asked.pop(self.mailbox, None)
        if send is None:
            simulation.asked[self.mailbox] = self
            return
        graph, node, since = send
        simulation.recorder.note(self.row, "recv_node", graph.row + node)
        graph.npu.launch(graph, node, self.mailbox, since)


class AstraNpu(ChunkingNpu):
    """An NPU under ``event_order: scheduled``, with ``rendezvous_bytes``, or both."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        semantics = simulation.plan.problem.semantics
        self.rendezvous, self.scheduled = semantics.rendezvous_bytes, semantics.event_order == "scheduled"
        if self.scheduled:
            self.dispatches_at = SOON
        #: Time → number of the timers of this rank that end then.
        self.due: dict[int, int] = {}

    def complete_after(self, delay, graph, node):
        if not self.scheduled:
            super().complete_after(delay, graph, node)
            return
        at = self.env.now + delay
        self.simulation.next_number += 1
        if at not in self.due:
            self.due[at] = scheduled_number(self.env.now, next(self.simulation.places))

        def end(_) -> None:
            self.due.pop(at, None)
            graph.complete(node)

        At(self.env, delay, self.due[at]).callbacks.append(end)

    def access_memory(self, graph, node):
        memory, now = self.simulation.memory(self.npu), self.env.now
        if memory is None or not self.scheduled:
            super().access_memory(graph, node)
            return
        # The end of an access is scheduled when it is issued.
        free = self.simulation.memory_free
        free[memory] = end = max(free.get(memory, 0), now) + graph.lists.duration[node]
        if end > now:
            self.complete_after(end - now, graph, node)
        else:
            graph.complete(node)

    def end_receive(self, graph, node):
        if self.scheduled:  # the receive of a message that is there takes an event
            Npu.complete_after(self, 0, graph, node)
        else:
            graph.complete(node)

    def receive(self, graph, node):
        receive = super().receive(graph, node)
        if self.rendezvous:
            self.simulation.network.send(self.message(Ask, graph, node, receive.resource, self.env.now))
        return receive

    def send(self, graph, node):
        """Under the rendezvous a send goes once its receiver has asked for it."""
        if not self.rendezvous:
            super().send(graph, node)
            return
        mailbox = graph.communicator.mailbox(graph.lists.match_key[node], receives=False)
        asked, now = self.simulation.asked, self.env.now
        ask = asked.pop(mailbox, None)
        if ask is None:
            asked[mailbox] = graph, node, now
            return
        self.simulation.recorder.note(ask.row, "recv_node", graph.row + node)
        if self.scheduled:  # the sender receives the message that asks, which takes an event
            event = At(self.env, 0, self.simulation.number())
            event.callbacks.append(lambda _: self.launch(graph, node, mailbox, now))
        else:
            self.launch(graph, node, mailbox, now)

    def launch(self, graph, node: int, mailbox, since: int) -> None:
        """The message of a send that was issued at `since` ps goes."""
        self.simulation.network.send(self.message(Message, graph, node, mailbox, since))
