"""Links are shared: a message moves over all links of its route at once, at a rate that it shares with others.

The messages of a queue pair from one NPU to another leave one after the other: they are a flow. Rates are max-min fair
and are set once per instant, after all its events: all flows grow together, and a flow stops growing when one of its
links is full.

All is counted in integers: rates in units of 2^-16 bytes per second, work in such units times picoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Generic, TypeVar

from astrasim_py.core.units import INT64_MAX, PS_PER_S
from astrasim_py.engine.simpy.network import At, Link, Message, Network, Signal
from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.durations import rate_units

#: Rates are set after the dispatches of all ranks.
SETTLE = 1 << 61
#: Work of one byte.
BYTE = PS_PER_S << 16


class SharedLink:
    """A link, and the `flows` that share its `capacity`, by pair.

    `demand` is the sum of their rates if each were alone, in whole bytes per second. A link with a higher capacity is
    not `tight`: it limits no flow.
    """

    def __init__(self, link: Link) -> None:
        self.link, self.capacity = link, rate_units(link.bandwidth)
        self.flows: dict[int, Flow] = {}
        self.demand = 0

    @property
    def tight(self) -> bool:
        return self.demand > self.capacity >> 16

    def time(self, nbytes: int) -> int:
        """Time (ps) of a number of bytes alone."""
        return self.link.transfer(nbytes)

    def change(self, pair: int, flow: Flow, cap: int) -> None:
        """A flow has another cap from now on; 0: it sends nothing."""
        self.demand += whole(cap) - whole(flow.cap)
        if self.demand > INT64_MAX:
            raise OverflowError
        if cap:
            self.flows[pair] = flow
        else:
            del self.flows[pair]


class Flow:
    """The messages from one NPU to another: `message` is under way at `rate`, and those in `queue` wait for it.

    `route_cap` is the least capacity of its `links`, `cap` the most that it could get when rates were set last (0: it
    was idle). `left` is the work left at the time `since` (ps). `version` counts the changes of its end. `asked` and
    `begun` say when (ps) the message came to its links and when it was its turn.
    """

    def __init__(self, links: list[SharedLink]) -> None:
        self.take(links)
        self.message: Message | None = None
        self.queue: list[tuple[int, int, Message]] = []
        self.rate = self.cap = self.left = self.since = self.version = self.asked = self.begun = 0

    @property
    def current(self) -> Message:
        """The message under way, where there is one."""
        assert self.message is not None
        return self.message

    def take(self, links: list[SharedLink]) -> None:
        """Its messages take these links."""
        self.links, self.route_cap = links, min((shared.capacity for shared in links), default=0)

    def cap_of(self, message: Message | None) -> int:
        """The most that a message gets: its route's capacity, or its connection's pace."""
        if message is None:
            return 0
        pace = message.connections.pace if message.connections else None
        return self.route_cap if pace is None else min(self.route_cap, rate_units(pace))

    def alone(self) -> int:
        """Time (ps) that its message takes if it is alone."""
        return divided_up(self.current.bytes * BYTE, self.cap_of(self.message))

    def latency(self, message: Message) -> int:
        """Time (ps) that the last byte of a message is under way."""
        return sum(shared.link.latency + message.hop_latency for shared in self.links) + message.first_latency

    def wants_change(self) -> bool:
        """Whether its cap has changed since rates were last set."""
        return self.cap != self.cap_of(self.message)

    def held_up(self) -> bool:
        """Whether one of its links could limit it."""
        return any(shared.tight for shared in self.links)


F = TypeVar("F", bound=Flow)


class FluidNetwork(Network, Generic[F]):
    """A network of shared links; `flow_class`: of its flows."""

    keeps_pace = True
    link_class: type[SharedLink] = SharedLink
    flow_class: type[F]

    def __init__(self, simulation) -> None:
        super().__init__(simulation)
        self.links: dict[int, SharedLink] = {}
        self.flows: dict[int, F] = {}
        #: Flows with another message than when rates were set last, or with none, by pair.
        self.touched: dict[int, F] = {}
        #: Links that have another capacity than when rates were set last, or that flows have lost.
        self.altered: list[SharedLink] = []
        #: A heap: when (ps) messages end, their numbers, the version of that, and the pair.
        self.ends: list[tuple[int, int, int, int]] = []
        #: Time and number of the end for which there is an event.
        self.awaited: tuple[int, int] | None = None

    def send(self, message):
        pair = message.pair
        if pair not in self.flows:
            self.flows[pair] = self.flow_class([self.shared(link) for link in message.route])
        flow = self.flows[pair]
        heappush(flow.queue, (message.number, self.env.now, message))
        if flow.message is None:
            self.begin(pair, flow)

    def shared(self, link: Link) -> SharedLink:
        """Shared capacity of a link."""
        if link.index not in self.links:
            self.links[link.index] = self.link_class(link)
        return self.links[link.index]

    def begin(self, pair: int, flow: F) -> None:
        """It is the turn of the next message of a pair."""
        _, flow.asked, flow.message = heappop(flow.queue)
        flow.left = flow.message.bytes * BYTE
        self.simulation.recorder.note(flow.message.row, "start", self.env.now)
        self.enter(pair, flow, flow.message.bytes)

    def enter(self, pair: int, flow: F, nbytes: int) -> None:
        """Begin to move a number of a message's bytes over its links."""
        flow.begun = flow.since = self.env.now
        for shared in flow.links:
            shared.link.bytes += nbytes
            shared.link.messages += 1
            shared.link.busy += shared.time(nbytes)
        if nbytes:
            self.touch(pair, flow)
        else:
            self.after(flow.current, 0).callbacks.append(lambda _: self.leave(pair, flow))

    def leave(self, pair: int, flow: F) -> None:
        """The last byte of a message leaves its sender."""
        message = flow.current
        self.record(flow)
        flow.message = None
        if self.injected and not message.send_done:
            message.send_done = True
            message.graph.complete(message.node)
        self.after(message, flow.latency(message)).callbacks.append(lambda _: self.hand_over(message))
        if flow.queue:
            self.begin(pair, flow)
        else:
            self.touch(pair, flow)

    def record(self, flow: F) -> None:
        """Record how the last byte of a message left."""
        message, now, recorder = flow.current, self.env.now, self.simulation.recorder
        for shared in flow.links:
            recorder.hop_served(recorder.hop(message.row, shared.link.index, flow.asked), flow.begun, now)
        recorder.note(message.row, "queued", now - flow.asked - flow.alone())

    def touch(self, pair: int, flow: F) -> None:
        """Set rates before this instant is over, as a flow has another message, or none."""
        self.settle_later()
        self.touched[pair] = flow

    def settle_later(self) -> None:
        """Set rates before this instant is over."""
        if not self.touched and not self.altered:
            settle = Signal(self.env)
            settle.callbacks.append(lambda _: self.settle())
            settle.give(SETTLE)

    def settle(self) -> None:
        """Set the rates from this instant on: of flows that begin, and of those for which something changes."""
        touched, self.touched = self.touched, {}
        changed = {pair: flow for pair, flow in touched.items() if flow.wants_change()}
        # Flows slower than `lowest` keep their rates: their links fill up before any changed link does.
        loosened = [link for flow in changed.values() for link in flow.links if link.tight] + self.altered
        least = [flow.rate for flow in changed.values() if flow.rate and flow.held_up()]
        for pair, flow in changed.items():
            cap = flow.cap_of(flow.message)
            for link in flow.links:
                link.change(pair, flow, cap)
            flow.cap = cap
            if not cap:
                flow.rate = 0
        started = {pair: flow for pair, flow in changed.items() if flow.cap}
        links = [link for flow in started.values() for link in flow.links]
        for link in links:
            link.link.max_queue = max(link.link.max_queue, len(link.flows) - 1)
        least += [divided_up(link.capacity, len(link.flows)) for link in links if link.tight] + [0] * len(self.altered)
        self.altered = []
        lowest = min(least, default=0)
        rates = self.filled(started, loosened + links, lowest - (lowest >> 20))
        for pair, flow in {**touched, **started, **{pair: self.flows[pair] for pair in rates}}.items():
            rate = rates.get(pair, flow.rate)
            if flow.message is not None and (rate != flow.rate or pair in touched):
                self.set_rate(pair, flow, rate)
        self.await_next()

    def filled(self, begun: Mapping[int, Flow], links: list[SharedLink], kept: int) -> dict[int, int]:
        """Max-min fair rates, by pair, of the flows that begin and of all flows that can affect some links.

        Flows slower than `lowest` keep their rates.
        """
        flows, tight, seen = dict(begun), {}, set()
        for link in links:  # it grows
            number = link.link.index
            if number in seen:
                continue
            seen.add(number)
            if link.tight:
                tight[number] = link
            for pair, flow in link.flows.items():
                if pair not in flows and flow.rate >= kept:
                    flows[pair] = flow
                    links += [shared for shared in flow.links if shared.tight]
        return fill(flows, tight)

    def set_rate(self, pair: int, flow: F, rate: int) -> None:
        """A flow has a rate from now on, which says when its message ends."""
        now = self.env.now
        flow.left -= flow.rate * (now - flow.since)
        flow.rate, flow.since = rate, now
        flow.version += 1
        heappush(self.ends, (now + divided_up(flow.left, rate), flow.current.number, flow.version, pair))

    def await_next(self) -> None:
        """Have an event for the first message that ends."""
        ends = self.ends
        while ends and ends[0][2] != self.flows[ends[0][3]].version:
            heappop(ends)
        first = ends[0][:2] if ends else None
        if first == self.awaited:
            return
        if self.awaited is not None:
            self.simulation.idle_events += 1
        self.awaited = first
        if first is not None:
            At(self.env, first[0] - self.env.now, first[1]).callbacks.append(lambda _: self.end(first))

    def end(self, at: tuple[int, int]) -> None:
        """The first message ends, unless its rate has changed since the event was made."""
        if at != self.awaited:
            self.simulation.idle_events -= 1
            return
        self.awaited, pair = None, heappop(self.ends)[3]
        self.flows[pair].version += 1
        self.leave(pair, self.flows[pair])
        self.await_next()


class Fluid(FluidNetwork[Flow]):
    """The network model ``fluid``."""

    flow_class = Flow


def fill(flows: dict[int, Flow], links: dict[int, SharedLink]) -> dict[int, int]:
    """Max-min fair rates of flows, by pair: the level rises, and flows stop at their caps and on links that are full.

    Other flows on the links keep their rates. Rates are rounded up.
    """
    # Remaining capacity of each link, and the number of flows that share it.
    rest, growing = {}, {}
    for number, link in links.items():
        rest[number] = link.capacity - sum(flow.rate for pair, flow in link.flows.items() if pair not in flows)
        growing[number] = sum(pair in flows for pair in link.flows)
    rates: dict[int, int] = {}
    level, by_cap = 1, sorted(flows, key=lambda pair: -flows[pair].cap)
    while len(rates) < len(flows):
        while by_cap[-1] in rates:
            by_cap.pop()
        shares = {number: divided_up(rest[number], n) for number, n in growing.items() if n}
        level = max(level, min([*shares.values(), flows[by_cap[-1]].cap]))
        stopped = [pair for number, share in shares.items() if share <= level for pair in links[number].flows]
        while by_cap and flows[by_cap[-1]].cap <= level:
            stopped.append(by_cap.pop())
        for pair in stopped:
            if pair in flows and pair not in rates:
                rates[pair] = min(level, flows[pair].cap)
                for number in [link.link.index for link in flows[pair].links if link.link.index in links]:
                    rest[number] -= rates[pair]
                    growing[number] -= 1
    return rates


def divided_up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def whole(cap: int) -> int:
    """A rate in whole bytes per second, rounded up."""
    return divided_up(cap, 1 << 16)


class FluidSimulation(Simulation):
    """A run under the network model ``fluid``."""

    def network_model(self):
        return Fluid
