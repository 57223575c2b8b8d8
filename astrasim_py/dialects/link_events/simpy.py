"""Links that fail, change and return during a run, under the network model ``fluid``.

An event comes before all else at its time. A message on a failing link waits for the topology's `reroute_ps`, then
sends its remaining bytes over the new route. A pair of NPUs that is idle at an event uses the new route from its next
message on; others keep theirs. Without a path, a message waits for the next event.
"""

from __future__ import annotations

from astrasim_py.dialects.fluid.simpy import BYTE, Flow, FluidNetwork, SharedLink, divided_up
from astrasim_py.engine.simpy.network import At, Link
from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.durations import rate_units

#: Number of events of the topology: before all others of the instant.
FIRST = -1


class ChangingLink(SharedLink):
    """A link with a `capacity` that can change."""

    def time(self, nbytes):
        return divided_up(nbytes * BYTE, self.capacity)


class ChangingFlow(Flow):
    """A flow with a route that can change.

    `stale`: an event found it idle. `whole`: work left when its cap last changed. `queued`: time (ps) that its message
    had waited by then.
    """

    stale, whole, queued = False, 0, 0

    def alone(self):
        return divided_up(self.whole, self.cap_of(self.message)) - self.queued

    def divide(self, now: int) -> None:
        """Split the work of a message at a change of its cap."""
        cap = self.cap_of(self.message)
        self.left = max(self.left - self.rate * (now - self.since), 0)
        self.queued -= divided_up(self.whole, cap) - divided_up(self.left, cap)
        self.since, self.whole = now, self.left

    def bytes_left(self) -> int:
        return divided_up(self.left, BYTE)


class FluidWithEvents(FluidNetwork[ChangingFlow]):
    """The network model ``fluid`` on a topology with events."""

    link_class, flow_class = ChangingLink, ChangingFlow

    def __init__(self, simulation) -> None:
        super().__init__(simulation)
        topology = simulation.plan.problem.topology
        self.delay = topology.reroute_ps
        (_, self.state), *self.events = simulation.plan.states
        #: Flows without a path for their next message, or the rest of one.
        self.cut: dict[int, ChangingFlow] = {}
        #: Whether nothing waits for the next event.
        self.unawaited = False
        for link in simulation.links.values():
            self.set_link(link)
        self.await_event()

    def set_link(self, link: Link) -> SharedLink:
        """Give a link its latency and capacity of now."""
        shared, index = self.shared(link), link.index
        link.latency = int(self.state.links.latency_ps[index])
        shared.capacity = rate_units(self.state.links.rates[index])
        return shared

    def await_event(self) -> None:
        """Have the next event of the topology happen."""
        if self.events:
            self.unawaited = not self.cut
            self.simulation.idle_events += self.unawaited
            At(self.env, self.events[0][0] - self.env.now, FIRST).callbacks.append(lambda _: self.happen())

    def route(self, pair: int) -> list[SharedLink]:
        """The links from one NPU to another now; none without a path."""
        return [self.links[index] for index in self.state.routes[pair]]

    def send(self, message):
        if message.pair not in self.flows:
            self.flows[message.pair] = self.flow_class(self.route(message.pair))
        super().send(message)

    def begin(self, pair, flow):
        if flow.stale:
            flow.take(self.route(pair))
            flow.stale = False
        if not flow.links:
            self.wait_for_path(pair, flow)
            return
        message = flow.queue[0][2]
        flow.whole, flow.queued = message.bytes * BYTE, 0
        self.simulation.recorder.more_hops(message.row, len(flow.links) - len(message.route))
        super().begin(pair, flow)

    # -- events ---------------------------------------------------------------------------------------------------

    def happen(self) -> None:
        """An event of the topology: links are lost, change and return."""
        self.simulation.idle_events -= self.unawaited
        self.unawaited = False
        _, self.state = self.events.pop(0)
        lost = set(self.state.links.lost)
        self.settle_later()
        busy = {pair: flow for pair, flow in sorted(self.flows.items()) if flow.cap}
        for flow in self.flows.values():
            flow.stale = flow.message is None
        for flow in busy.values():
            flow.divide(self.env.now)
            self.count_rest(flow, -1)
        for link in self.simulation.links.values():
            self.altered.append(self.set_link(link))
        for pair, flow in busy.items():
            if any(shared.link.index in lost for shared in flow.links):
                self.lose(pair, flow)
                continue
            flow.take(flow.links)
            self.count_rest(flow, 1)
            if flow.wants_change():
                self.touched[pair] = flow
        self.await_next()
        cut, self.cut = self.cut, {}
        for pair, flow in sorted(cut.items()):
            self.resume(pair, flow)
        self.await_event()

    def count_rest(self, flow: ChangingFlow, sign: int) -> None:
        """Count what is left of a message on its links, or take it off."""
        nbytes = sign * flow.bytes_left()
        for shared in flow.links:
            shared.link.bytes += nbytes
            shared.link.busy += sign * shared.time(abs(nbytes))

    def lose(self, pair: int, flow: ChangingFlow) -> None:
        """Remove a flow from its links, one of which failed; it is rerouted after the delay."""
        now = self.env.now
        for shared in flow.links:
            shared.change(pair, flow, 0)
        self.record(flow)
        flow.queued += now - flow.asked
        self.simulation.recorder.note(flow.current.row, "queued", flow.queued)
        flow.asked, flow.cap, flow.rate = now, 0, 0
        flow.version += 1
        flow.take([])
        self.after(flow.current, self.delay).callbacks.append(lambda _: self.resume(pair, flow))

    def resume(self, pair: int, flow: ChangingFlow) -> None:
        """Go on with the message of a flow over the route of now, or begin its next one."""
        if flow.message is None:
            self.begin(pair, flow)
            return
        flow.take(self.route(pair))
        if flow.links:
            self.simulation.recorder.more_hops(flow.message.row, len(flow.links))
            self.enter(pair, flow, flow.bytes_left())
        else:
            self.wait_for_path(pair, flow)

    def wait_for_path(self, pair: int, flow: ChangingFlow) -> None:
        """There is no path for a flow until the next event."""
        self.cut[pair] = flow
        self.simulation.idle_events -= self.unawaited
        self.unawaited = False

    def without_path(self):
        vertices, qps = self.simulation.plan.problem.topology.vertices, self.simulation.plan.problem.network.qps
        return list(dict.fromkeys(divmod(pair // qps, vertices) for pair in sorted(self.cut)))


class EventSimulation(Simulation):
    """A run on a topology with events."""

    def network_model(self):
        return FluidWithEvents
