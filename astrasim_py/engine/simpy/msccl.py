"""Connections of MSCCL-style runtimes: slots that sends wait for, and the pace at which messages enter the network.

The messages of a connection are numbered when it is planned, so a slot is one fact: whether the slot of message k is
free again. A send that finds the slot it needs taken is refused, and released by the node that frees the slot.
"""

from __future__ import annotations

from collections.abc import Iterator

import simpy

from astrasim_py.engine.simpy.astra_sim import Ask
from astrasim_py.engine.simpy.counters import CountingGraph
from astrasim_py.engine.simpy.network import LinkByLink, Message, Network
from astrasim_py.engine.simpy.npu import Graph
from astrasim_py.system.plan import SEND


class Connections:
    """State of the connections of one call.

    Attributes
    ----------
    free : bytearray
        By message: 1 once its slot has been freed.
    waiting : dict of int to (Graph, int, int)
        Message whose slot is needed → the send that waits for it, and since when.
    entered : dict of int to int
        Connection → time (ps) at which its last message is in the network.
    """

    def __init__(self, messages: int) -> None:
        self.free = bytearray(messages)
        self.waiting: dict[int, tuple[Graph, int, int]] = {}
        self.entered: dict[int, int] = {}


class ConnectedGraph(Graph):
    """A graph whose sends take slots and whose receives free them."""

    def connect(self, made, position: int, connections: Connections) -> None:
        """Tell it which slots its nodes need and free."""
        self.extra_latency, self.connections = made.latency_ps, connections
        self.needs, self.frees = made.needs[position].tolist(), made.frees[position].tolist()
        self.connection = made.connection[position].tolist()

    def admit(self, node):
        needed = self.needs[node]
        if needed >= 0 and not self.connections.free[needed]:
            self.connections.waiting[needed] = self, node, self.npu.env.now
            return False
        if self.lists.kind[node] == SEND:
            self.free_slot(node)
        return super().admit(node)

    def complete(self, node, ended_by=-1):
        if self.lists.kind[node] != SEND:
            self.free_slot(node)
        super().complete(node, ended_by)

    def free_slot(self, node: int) -> None:
        """A node frees the slot of a message: the send that waits for it is ready again."""
        message = self.frees[node]
        if message < 0:
            return
        self.connections.free[message] = 1
        graph, send, _ = self.connections.waiting.pop(message, (None, -1, -1))
        if graph is not None:
            graph.release([send], self.row + node)
            graph.npu.wake_up()


class ConnectedCountingGraph(CountingGraph, ConnectedGraph):
    """The same with counters."""


def connected_graph(simulation, part, npu, index: int, call, whole) -> ConnectedGraph | None:
    """The graph of one member of a call with connections; None if it has nothing to do."""
    position = call.positions[npu.rank]
    program = part.programs[position]
    if not len(program):
        return None
    if call.connections is None:
        call.connections = Connections(part.connections.messages)
    make = ConnectedGraph if program.counters is None else ConnectedCountingGraph
    lists = simulation.lists(program, part.matching, position)
    graph = make(npu, lists, index, call.members, call.communicator, whole)
    graph.connect(part.connections, position, call.connections)
    return graph


def held(calls) -> list[tuple[Graph, int, int]]:
    """Sends that wait for a free slot: graph, node and since when."""
    connections = [call.connections for call in calls if call.connections is not None]
    return [waiting for each in connections for waiting in each.waiting.values()]


class PacedNetwork(Network):
    """Messages of collectives enter the network one after the other on each connection; then `inner` carries them.

    A message that is accepted at t enters at e = max(t, entered), where entered is the end of the connection's last
    one; then entered = e + bytes/R, and it asks for its first link (bandwidth B) at e + max(0, bytes/R - bytes/B): its
    last byte is in no sooner than bytes/R after e, yet it holds the link for bytes/B only: connections share it.
    """

    def __init__(self, simulation, inner: Network) -> None:
        super().__init__(simulation)
        self.inner = inner
        rate = simulation.plan.problem.network.msccl.channel_bandwidth
        self.channel = None if rate is None else simulation.link_class(self.env, -1, 0, rate, simulation.recorder)

    def send(self, message: Message) -> None:
        graph = message.graph
        if isinstance(message, Ask) or not isinstance(graph, ConnectedGraph):
            self.inner.send(message)
            return
        message.extra_latency = graph.extra_latency
        wait = 0
        if self.channel is not None:
            now, entered, connection = self.env.now, graph.connections.entered, graph.connection[message.node]
            enters, pace = max(entered.get(connection, 0), now), self.channel.transfer(message.bytes)
            entered[connection] = enters + pace
            wait = enters + max(pace - message.route[0].transfer(message.bytes), 0) - now
        if wait:
            self.env.process(self.enter(message, wait))
        else:
            self.inner.send(message)

    def enter(self, message: Message, wait: int) -> Iterator[simpy.Event]:
        """A message enters the network when it is its turn."""
        yield self.after(message, wait)
        self.inner.send(message)

    def count_waiting(self) -> None:
        if isinstance(self.inner, LinkByLink):
            self.inner.count_waiting()
