"""Connections of MSCCL-style runtimes on SimPy: slots that sends wait for, and the pace at which messages enter.

The messages of a connection are numbered when it is planned (`astrasim_py.system.msccl_connections`), so a slot is one
fact: whether the slot of message k is free again. A send that finds the one it needs taken stays ready; the node that
frees it makes the send ready again. Nothing here costs an event, but a message that must wait to enter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrasim_py.engine.simpy_engine.network import Message, Model
from astrasim_py.engine.simpy_engine.splice import Block
from astrasim_py.system.plan import SEND, MscclConnections

if TYPE_CHECKING:
    from astrasim_py.engine.simpy_engine.engine import Engine
    from astrasim_py.engine.simpy_engine.link import Link


class Connections:
    """State of the connections of one collective instance.

    Attributes
    ----------
    free : bytearray
        By message: 1 once its slot has been freed.
    waiting : dict of int to (Block, int, int)
        Message whose slot is needed → the send that waits for it, and since when.
    entered : dict of int to int
        Connection → ps at which its last message is in.
    """

    __slots__ = ("entered", "free", "waiting")

    def __init__(self, fifos: MscclConnections) -> None:
        self.free = bytearray(fifos.messages)
        self.waiting: dict[int, tuple[Block, int, int]] = {}
        self.entered: dict[int, int] = {}


class FifoMixin:
    """What the block of an algorithm adds: its sends take slots, its receives free them."""

    __slots__ = ()

    def admit(self, node: int) -> bool:
        """Whether a ready node may be issued; a send that may not will be made ready again."""
        connections = self.call.connections
        template = self.template
        needed = template.needs[node]
        if needed >= 0 and not connections.free[needed]:
            connections.waiting[needed] = (self, node, self.npu.env.now)
            return False
        if self.kind[node] == SEND and template.frees[node] >= 0:
            self.release(template.frees[node], node)
        return True

    def complete(self, node: int, ended_by: int = -1) -> None:
        freed = self.template.frees[node]
        if freed >= 0 and self.kind[node] != SEND:
            self.release(freed, node)
        super().complete(node, ended_by)

    def release(self, message: int, node: int) -> None:
        """`node` frees the slot of a message: the send that waits for it is ready again."""
        connections = self.call.connections
        connections.free[message] = 1
        waiting = connections.waiting.pop(message, None)
        if waiting is None:
            return
        block, send, _ = waiting
        block.released_by([send], self.row + node)
        npu = block.npu
        npu.ready.append(block.base + send)
        if not npu.awake:
            npu.poke()


class SlowerLink:
    """A link as messages of a protocol see it that take longer on every hop."""

    __slots__ = ("hold", "hop", "index", "latency", "link", "reserve")

    def __init__(self, link: Link, longer: int) -> None:
        self.link = link
        self.index = link.index
        self.latency = link.latency + longer
        self.hold = link.hold
        self.hop = {nbytes: ps + longer for nbytes, ps in link.hop.items()}
        self.reserve = link.reserve

    @property
    def free(self) -> int:
        """ps at which the link's last reservation ends."""
        return self.link.free

    def __getattr__(self, name: str) -> object:
        return getattr(self.link, name)


class Paced(Model):
    """Messages of collectives enter the network one after the other on each connection; then `inner` carries them.

    A message that is accepted at t enters at e = max(t, entered), where entered is the end of the connection's last
    one; then entered = e + bytes/R, and it asks for its first link (bandwidth B) at e + max(0, bytes/R - bytes/B): its
    tail is in no sooner than bytes/R after e, yet it holds the link for bytes/B only, so that connections share it.

    Parameters
    ----------
    engine : Engine
    inner : Model
    """

    def __init__(self, engine: Engine, inner: Model) -> None:
        super().__init__(engine)
        self.inner = inner
        self.slower: dict[tuple[int, int], SlowerLink] = {}
        rate = engine.plan.problem.network.msccl.channel_bandwidth
        self.hold = None if rate is None else engine.serialization(rate)

    def send(self, message: Message, now: int) -> None:
        block = message.block
        fifos = None if message.asks else block.template.fifos
        if fifos is None:
            self.inner.send(message, now)
            return
        if fifos.latency_ps:
            message.route = [self.slow(link, fifos.latency_ps) for link in message.route]
        if self.hold is not None:
            entered, connection = block.call.connections.entered, block.template.connection[message.node]
            enters = max(entered.get(connection, 0), now)
            pace = self.hold[message.bytes]
            entered[connection] = enters + pace
            asks = enters + max(pace - message.route[0].hold[message.bytes], 0)
            if asks > now:
                self.schedule(message, self.enter, asks)
                return
        self.inner.send(message, now)

    def enter(self, message: Message) -> None:
        """It is the message's turn."""
        self.inner.send(message, self.env.now)

    def slow(self, link: Link, longer: int) -> SlowerLink:
        """The link with so much more latency."""
        found = self.slower.get((link.index, longer))
        if found is None:
            found = self.slower[link.index, longer] = SlowerLink(link, longer)
        return found
