"""ASTRA-sim's rules: its order of events, its rendezvous and its route of one dimension.

Under ``event_order: scheduled`` events of one time are taken in the order in which they were scheduled: every hop anew,
when its link begins to serve it; the timers of one rank for one time together with their first. A rank that an event
makes ready dispatches before the next event.
"""

import itertools
from collections import defaultdict
from dataclasses import replace
from operator import itemgetter

import simpy

from astrasim_py.core.hash_sets import iteration_order
from astrasim_py.engine.simpy.network import (
    Analytical,
    At,
    CutThrough,
    LinkRequest,
    Mailbox,
    Message,
    Network,
    Receive,
    StoreAndForward,
)
from astrasim_py.engine.simpy.npu import Graph, Npu
from astrasim_py.engine.simpy.simulation import Simulation, posted
from astrasim_py.system.plan import Plan
from astrasim_py.system.routes import lowest_dimension

#: Ranks dispatch before every numbered event, and after SimPy's own.
SOON = 2


class LowestDimension(Analytical):
    """Charges the lowest differing dimension of a route only."""

    def path(self, message):
        hops, rate, latency = lowest_dimension(self.simulation.plan.problem.topology, message.src, message.dst)
        return rate, latency + message.extra_latency, hops


class Scheduled(Network):
    """A message requests its first link when it is sent, not when its process begins."""

    def send(self, message):
        journey = self.deliver(message)
        self.env.process(event for event in itertools.chain([next(journey)], journey))


class ScheduledCutThrough(Scheduled, CutThrough):
    """A hop has its place among the events of one time from when its link is asked for."""

    def carry(self, message):
        message.tail = self.env.now
        for link in message.hops():
            place, request = next(self.simulation.places), link.request(message)
            if self.injected and message.at == 0 and not message.send_done:
                message.send_event = self.simulation.number()
            yield request
            message.number = self.env.now << 40 | place
            message.tail = self.occupy(request)
            if message.at + 1 < len(message.route):
                yield self.after(message, link.latency + message.extra_latency)
        yield self.after(message, message.tail - self.env.now)


class ScheduledStoreAndForward(Scheduled, StoreAndForward):
    """An event with a number frees a link; it is scheduled after the arrival. A hop is listed when it begins."""

    def carry(self, message):
        for link in message.hops():
            request = LinkRequest(link, message, listed=False)
            if not request.triggered:
                yield request
            yield self.occupy(request)

    def occupy(self, request):
        message, link, now = request.message, request.resource, self.env.now
        end, arrival = self.times(message, link, now)
        free = arrival if self.holds_latency else end
        request.row = self.simulation.recorder.hop(message.row, link.index, request.asked)
        request.count(now, free, self.fed(message, link, now, end))
        arrives = At(self.env, arrival - now, self.simulation.number_of_event())
        frees = At(self.env, free - now, self.simulation.number_of_event())
        frees.callbacks.append(lambda _: link.release(request))
        if self.injected and not message.send_done:
            message.send_event = self.simulation.number()
            self.complete_send(message, end - now)
        return arrives

    def count_waiting(self):
        """A message that waits has not begun its hop."""


class Ask(Message):
    """The control message of the rendezvous: by it a receive, its `node`, asks for its own message."""

    #: It completes no node.
    send_done = True

    def arrive(self):
        self.graph.npu.simulation.asks[self.mailbox].put(self)


class RendezvousNpu(Npu):
    """An NPU with ``rendezvous_bytes``: a send goes once its receiver has asked for it."""

    def receive(self, graph, node):
        receive = super().receive(graph, node)
        nbytes = self.simulation.plan.problem.semantics.rendezvous_bytes
        self.simulation.network.send(Ask(graph, node, nbytes, receive.resource, self.env.now))
        return receive

    def send(self, graph, node):
        mailbox = graph.call.communicator.mailbox(graph.program.match_key[node], receives=False)
        ask = Receive(self.simulation.asks[mailbox], graph, node)
        if ask.triggered:
            self.match_ask(ask)
            self.take(lambda: self.launch(ask))
        else:
            ask.callbacks += [self.match_ask, self.launch]

    def match_ask(self, ask: Receive) -> None:
        """A send has the message that asks for it."""
        del self.simulation.asks[ask.message.mailbox]
        ask.graph.recorder.note(ask.message.row, "recv_node", ask.graph.row + ask.node)

    def launch(self, ask: Receive) -> None:
        """The message that is asked for goes."""
        nbytes = ask.graph.program.nbytes[ask.node]
        self.simulation.network.send(Message(ask.graph, ask.node, nbytes, ask.message.mailbox, ask.since))


class HashSetGraph(Graph):
    """The graph of an injected algorithm under ``issue_order: hash_set``."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.buckets = self.program.buckets

    def in_order(self, nodes: list[int]) -> list[int]:
        """Nodes that are ready together in the order of their set; roots are in it already."""
        if self.left == len(self.need):
            return nodes
        order, self.buckets = iteration_order(self.program.node_id[nodes], self.buckets)
        return [nodes[i] for i in order]


class ScheduledNpu(Npu):
    """An NPU under ``event_order: scheduled``; `due` holds the numbers of its timers, by the time at which they end."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        self.dispatch_number = SOON
        self.due: dict[int, int] = {}

    def in_order(self, ready):
        wave = []
        for order, group in itertools.groupby(sorted(ready, key=itemgetter(0)), key=itemgetter(0)):
            entries = list(group)
            graph = entries[0][2]
            if isinstance(graph, HashSetGraph):
                wave += [(order, node, graph) for node in graph.in_order([node for _, node, _ in entries])]
            else:
                wave += sorted(entries)
        return wave

    def complete_after(self, delay, graph, node):
        if not delay:
            graph.complete(node)
            return
        ends = self.env.now + delay
        self.simulation.issued += 1
        if ends not in self.due:
            self.due[ends] = self.simulation.number_of_event()

        def end(_: simpy.Event) -> None:
            self.due.pop(ends, None)
            graph.complete(node)

        At(self.env, delay, self.due[ends]).callbacks.append(end)

    def take(self, then):
        """Receiving an arrived message takes an event."""
        At(self.env, 0, self.simulation.number()).callbacks.append(lambda _: then())


class ScheduledSimulation(Simulation):
    """A run under ``event_order: scheduled``. `places` numbers the events of one time in the order of scheduling."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.places = itertools.count(SOON + 1)
        super().__init__(plan, level)

    def network_model(self):
        model = super().network_model()
        scheduled: dict[type[Network], type[Network]]
        scheduled = {CutThrough: ScheduledCutThrough, StoreAndForward: ScheduledStoreAndForward}
        return scheduled.get(model, model)

    def npu_rules(self):
        return [ScheduledNpu, *super().npu_rules()]

    def number_of_event(self) -> int:
        """Number of an event that is scheduled now, after those that are scheduled before it."""
        return self.env.now << 40 | next(self.places)

    def number(self):
        self.issued += 1
        return self.number_of_event()


class RendezvousSimulation(Simulation):
    """A run with ``rendezvous_bytes``; `asks`: by mailbox, where a send waits for the message that asks for it."""

    def __init__(self, plan: Plan, level: str) -> None:
        super().__init__(plan, level)
        self.asks: dict[Mailbox, simpy.Store] = defaultdict(lambda: simpy.Store(self.env))

    def npu_rules(self):
        return [RendezvousNpu, *super().npu_rules()]

    def waits(self):
        unasked = sorted(posted(r.graph, r.node, r.since) for asks in self.asks.values() for r in asks.get_queue)
        return replace(super().waits(), unasked=unasked)


class LowestDimensionSimulation(Simulation):
    """A run under ``analytical_route: lowest_dim``."""

    def network_model(self):
        model = super().network_model()
        return LowestDimension if model is Analytical and self.plan.problem.topology.dims else model


class HashSetSimulation(Simulation):
    """A run under ``issue_order: hash_set``."""

    def graph_rules(self, program, index):
        rules = super().graph_rules(program, index)
        return [HashSetGraph, *rules] if program.buckets else rules
