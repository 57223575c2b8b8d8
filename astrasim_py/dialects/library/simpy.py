"""Programs of libraries: counters that nodes wait for, detached sends, and connections with slots, pace and costs.

The plan numbers the messages of a connection, so that a slot is one fact: whether the slot of message k is free again.
A send that finds its slot taken is refused, and released by the node that frees the slot.
"""

from dataclasses import replace
from heapq import heappop, heappush

from astrasim_py.engine.simpy.network import CutThrough, Message, Network
from astrasim_py.engine.simpy.npu import Graph
from astrasim_py.engine.simpy.simulation import Simulation, posted
from astrasim_py.system.durations import message_ps
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import SEND


class CountingGraph(Graph):
    """A graph with counters or detached sends.

    By counter: `counted`, the completions so far, and `waiting`, a heap of (count, node) of the nodes that wait for it.
    """

    def __init__(self, npu, program, index, call, done) -> None:
        super().__init__(npu, program, index, call, done)
        counters = program.counters
        self.counts, self.waits_on = counters.counts.tolist(), counters.of.tolist()
        self.k, self.detached = counters.k.tolist(), counters.detached.tolist()
        self.counted = [0] * counters.number
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in self.counted]
        #: Node → the nodes that start counting at its completion; -1: those that count from the start.
        self.count_from: dict[int, list[int]] = {}
        for node, origin in enumerate(counters.start.tolist()):
            if self.waits_on[node] >= 0:
                self.count_from.setdefault(origin, []).append(node)
        self.begin_counts(-1)

    def begin_counts(self, origin: int) -> None:
        """The counts from the completion of a node begin."""
        for node in self.count_from.get(origin, ()):
            counter = self.waits_on[node]
            heappush(self.waiting[counter], (self.counted[counter] + self.k[node], node))

    def admit(self, node):
        """A detached send leaves the graph when it is issued."""
        admitted = super().admit(node)
        if admitted and self.detached[node]:
            self.count_down(node)
        return admitted

    def complete(self, node, ended_by=-1):
        if self.detached[node]:
            self.recorder.ended(self.row + node, self.npu.env.now)
            return
        super().complete(node, ended_by)
        counter, reached = self.counts[node], []
        if counter >= 0:
            self.counted[counter] += 1
            waiting = self.waiting[counter]
            while waiting and waiting[0][0] == self.counted[counter]:
                reached.append(heappop(waiting)[1])
        self.begin_counts(node)
        for waiter in reached:
            self.need[waiter] -= 1
        self.release([waiter for waiter in reached if not self.need[waiter]], self.row + node)
        self.npu.wake_up()

    def uncounted(self) -> list[tuple]:
        """Nodes that wait for nothing but a count: node, counter, its count, and the count they wait for."""
        return [
            (posted(self, node, -1), counter, self.counted[counter], count)
            for counter, waiting in enumerate(self.waiting)
            for count, node in waiting
            if self.need[node] == 1
        ]


class Slots:
    """Slots of the connections of one call.

    `free`: messages with a freed slot. `waiting`: message → the send that waits for its slot (graph, node), and since
    when.
    """

    def __init__(self) -> None:
        self.free: set[int] = set()
        self.waiting: dict[int, tuple[Graph, int, int]] = {}


class PacedGraph(Graph):
    """A graph with sends over connections. `entered`: connection → time (ps) at which its last message has entered."""

    def __init__(self, npu, program, index, call, done) -> None:
        super().__init__(npu, program, index, call, done)
        self.connections, position = call.planned.connections, npu.simulation.plan.position(npu.rank, index)
        self.connection = self.connections.of_sends(position).tolist()
        self.posts = self.connections.posts_of(position).tolist()
        self.entered: dict[int, int] = {}

    def post(self, message: Message, now: int) -> int:
        """The time at which a message is posted: `post_ps` after the one before, at the earliest."""
        if not self.connections.post_ps:
            return now
        by, post = self.posts[message.node], max(self.entered.get(self.posts[message.node], 0), now)
        self.entered[by] = post + self.connections.post_ps
        return post


class ConnectedGraph(PacedGraph):
    """A graph with sends that take slots and receives that free them."""

    def __init__(self, npu, program, index, call, done) -> None:
        super().__init__(npu, program, index, call, done)
        self.slots: Slots = npu.simulation.slots.setdefault(index, Slots())
        position, planned = npu.simulation.plan.position(npu.rank, index), self.connections
        self.needs, self.frees = planned.needs[position].tolist(), planned.frees[position].tolist()

    def has_slot(self, node: int) -> bool:
        """Whether the slot that a node needs is free; if not, the node waits for it."""
        slot = self.needs[node]
        if slot < 0 or slot in self.slots.free:
            return True
        self.slots.waiting[slot] = self, node, self.npu.env.now
        return False

    def admit(self, node):
        if not self.has_slot(node):
            return False
        if self.program.kind[node] == SEND:
            self.free_slot(node)
        return super().admit(node)

    def complete(self, node, ended_by=-1):
        if self.program.kind[node] != SEND:
            self.free_slot(node)
        super().complete(node, ended_by)

    def free_slot(self, node: int) -> None:
        """A node frees the slot of a message: release the send that waits for it."""
        message = self.frees[node]
        if message < 0:
            return
        self.slots.free.add(message)
        if message in self.slots.waiting:
            graph, send, _ = self.slots.waiting.pop(message)
            graph.release([send], self.row + node)
            graph.npu.wake_up()


class PacedNetwork(Network):
    """Messages of collectives enter the network one after the other on each connection; then `inner` carries them.

    Under a profile, a rank posts the messages of a channel one after the other (`PacedGraph.post`).
    A message that is posted at t enters at e = max(t, entered), where entered is the end of the connection's last
    message; then entered = e + bytes/R, and it asks for its first link (bandwidth B) at e + max(0, bytes/R - bytes/B):
    its last byte is in no sooner than bytes/R after e, yet it holds the link for bytes/B only: connections share it.
    An interleaved one asks at e, and its last byte is in no sooner than bytes/R after e either; so does one of a model
    that keeps the pace itself.
    """

    def __init__(self, simulation, inner: Network) -> None:
        super().__init__(simulation)
        self.inner = inner

    def count_waiting(self):
        self.inner.count_waiting()

    def without_path(self):
        return self.inner.without_path()

    def send(self, message):
        graph, wait = message.graph, 0
        if isinstance(graph, PacedGraph) and not message.send_done:
            message.connections = connections = graph.connections
            message.hop_latency = connections.latency_ps
            now, entered, connection = self.env.now, graph.entered, graph.connection[message.node]
            posted = graph.post(message, now)
            wait = posted - now
            if connections.pace is not None and connection >= 0:
                enters, link = max(entered.get(connection, 0), posted), message.route[0]
                pace = message_ps(message.bytes, connections.pace, link.rounding)
                entered[connection] = enters + pace
                wait = enters - now
                if connections.interleaved:
                    message.paced = enters + pace
                elif not self.inner.keeps_pace:
                    wait += max(pace - link.transfer(message.bytes), 0)
        if wait:
            self.after(message, wait).callbacks.append(lambda _: self.inner.send(message))
        else:
            self.inner.send(message)


class LibraryCutThrough(CutThrough):
    """Cut-through under a profile: links have the latency and the rate of the protocol of a message.

    An interleaved message holds a link for bytes/B, and leaves it no sooner than its pace is over. One of 0 bytes that
    has no connection, such as a signal, waits for no other one.
    """

    def carry(self, message):
        connections = message.connections
        passes = connections is not None and connections.interleaved and not message.bytes
        if not passes or message.graph.connection[message.node] >= 0:
            yield from super().carry(message)
            return
        for link in message.hops():
            now = self.env.now
            self.simulation.recorder.hop_served(self.simulation.recorder.hop(message.row, link.index, now), now, now)
            link.messages += 1
            message.tail = 0
            end, arrival = self.times(message, link, now)
            self.complete_send(message, end - now)
            yield self.after(message, arrival - now)

    def times(self, message, link, start):
        if message.connections is None:
            return super().times(message, link, start)
        costs = message.connections.links
        message.hop_latency = int(costs.latency_ps[link.index]) - link.latency
        served = start + self.transfer(message, link)
        end = max(served, message.tail, message.paced)
        return served if message.connections.interleaved else end, end + link.latency + message.extra_latency

    def transfer(self, message, link) -> int:
        """Time (ps) for the bytes of a message of a connection to enter a link."""
        costs = message.connections.links
        return message_ps(message.bytes, costs.rates[costs.rate_class[link.index]], link.rounding)

    def fed(self, message, link, start, end):
        if message.connections is None:
            return super().fed(message, link, start, end)
        return end > start + self.transfer(message, link)

    def complete_send(self, message, delay):
        super().complete_send(message, max(delay, message.paced - self.env.now))


class CountingSimulation(Simulation):
    """A run with programs that count or detach sends."""

    def graph_rules(self, program, index):
        rules = super().graph_rules(program, index)
        return [CountingGraph, *rules] if program.counters is not None else rules

    def waits(self):
        graphs = [graph for npu in self.npus for graph in npu.graphs.values() if isinstance(graph, CountingGraph)]
        return replace(super().waits(), uncounted=sorted(wait for graph in graphs for wait in graph.uncounted()))


class ConnectedSimulation(Simulation):
    """A run with calls over connections; `slots`: by call under way."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.slots: dict[int, Slots] = {}
        super().__init__(plan, level)
        self.network = PacedNetwork(self, self.network)

    def network_model(self):
        model = super().network_model()
        return LibraryCutThrough if model is CutThrough and self.plan.problem.network.profile is not None else model

    def graph_rules(self, program, index):
        connections = self.plan.calls[index].connections if index >= 0 else None
        if connections is None:
            return super().graph_rules(program, index)
        return [ConnectedGraph] if connections.slots else [PacedGraph]

    def waits(self):
        held = sorted(posted(*send) for slots in self.slots.values() for send in slots.waiting.values())
        return replace(super().waits(), held=held)

    def end_call(self, index):
        super().end_call(index)
        if index not in self.open_calls:
            self.slots.pop(index, None)
