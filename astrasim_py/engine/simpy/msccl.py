"""Connections of MSCCL-style runtimes: slots that sends wait for, and the pace at which messages enter the network.

The plan numbers the messages of a connection, so that a slot is one fact: whether the slot of message k is free again.
A send that finds its slot taken is refused, and released by the node that frees the slot.
"""

from __future__ import annotations

from astrasim_py.engine.simpy.astra_sim import Ask
from astrasim_py.engine.simpy.counters import CountingGraph
from astrasim_py.engine.simpy.network import Network
from astrasim_py.engine.simpy.npu import Graph
from astrasim_py.system.plan import SEND, MscclConnections


class Connections:
    """State of the connections of one call.

    `free`: by message, 1 once its slot has been freed. `waiting`: message → the send that waits for its slot, and since
    when. `entered`: connection → time (ps) at which its last message is in the network.
    """

    def __init__(self, planned: MscclConnections) -> None:
        self.planned, self.free = planned, bytearray(planned.messages)
        self.waiting: dict[int, tuple[Graph, int, int]] = {}
        self.entered: dict[int, int] = {}


class ConnectedGraph(Graph):
    """A graph whose sends take slots and whose receives free them."""

    def __init__(self, npu, lists, index, call, whole) -> None:
        super().__init__(npu, lists, index, call, whole)
        position, planned = call.positions[npu.rank], call.connections.planned
        self.connections = call.connections
        self.needs, self.frees = planned.needs[position].tolist(), planned.frees[position].tolist()
        self.connection = planned.connection[position].tolist()

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
        """A node frees the slot of a message: release the send that waits for it."""
        message = self.frees[node]
        if message < 0:
            return
        self.connections.free[message] = 1
        if message in self.connections.waiting:
            graph, send, _ = self.connections.waiting.pop(message)
            graph.release([send], self.row + node)
            graph.npu.wake_up()


class ConnectedCountingGraph(CountingGraph, ConnectedGraph):
    """The same with counters."""


class PacedNetwork(Network):
    """Messages of collectives enter the network one after the other on each connection; then `inner` carries them.

    A message that is accepted at t enters at e = max(t, entered), where entered is the end of the connection's last
    message; then entered = e + bytes/R, and it asks for its first link (bandwidth B) at e + max(0, bytes/R - bytes/B):
    its last byte is in no sooner than bytes/R after e, yet it holds the link for bytes/B only: connections share it.
    """

    def __init__(self, simulation, inner: Network) -> None:
        super().__init__(simulation)
        self.inner, self.count_waiting = inner, inner.count_waiting
        rate = simulation.plan.problem.network.msccl.channel_bandwidth
        self.channel = None if rate is None else simulation.link_class(self.env, -1, 0, rate, simulation.recorder)

    def send(self, message):
        graph = message.graph
        if isinstance(message, Ask) or not isinstance(graph, ConnectedGraph):
            self.inner.send(message)
            return
        message.extra_latency = graph.connections.planned.latency_ps
        wait = 0
        if self.channel is not None:
            now, entered, connection = self.env.now, graph.connections.entered, graph.connection[message.node]
            enters, pace = max(entered.get(connection, 0), now), self.channel.transfer(message.bytes)
            entered[connection] = enters + pace
            wait = enters + max(pace - message.route[0].transfer(message.bytes), 0) - now
        if wait:
            self.after(message, wait).callbacks.append(lambda _: self.inner.send(message))
        else:
            self.inner.send(message)
