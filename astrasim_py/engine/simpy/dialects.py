"""The simulation under any rules: which subclass follows which rule."""

from __future__ import annotations

import gc
import itertools
import time

from astrasim_py.core.records import Records
from astrasim_py.engine.simpy.astra_sim import (
    SCHEDULED,
    SOON,
    Ask,
    AstraAnalytical,
    AstraNpu,
    FlooredLink,
    scheduled_number,
)
from astrasim_py.engine.simpy.chunks import ChunkingNpu
from astrasim_py.engine.simpy.counters import CountingGraph, CountingWorkload
from astrasim_py.engine.simpy.msccl import ConnectedCountingGraph, ConnectedGraph, Connections, PacedNetwork
from astrasim_py.engine.simpy.npu import Graph
from astrasim_py.engine.simpy.simulation import Simulation, posted
from astrasim_py.system.plan import Plan

_COUNTING = {Graph: CountingGraph, ConnectedGraph: ConnectedCountingGraph}


class DialectSimulation(Simulation):
    """A run under any rules."""

    def __init__(self, plan: Plan, level: str) -> None:
        semantics = plan.problem.semantics
        self.npu_class = ChunkingNpu
        if semantics.event_order == "scheduled":
            self.number, self.places = self.number_scheduled, itertools.count(SOON + 1)
            self.models = self.models | SCHEDULED
        if semantics.event_order == "scheduled" or semantics.rendezvous_bytes:
            self.npu_class = AstraNpu
        if semantics.rounding == "floor_ns":
            self.link_class = FlooredLink
        if semantics.rounding == "floor_ns" or semantics.analytical_route == "lowest_dim":
            self.models = self.models | {"analytical": AstraAnalytical}
        #: Remote memory → time (ps) at which it has served all that is issued.
        self.memory_free: dict = {}
        #: Under the rendezvous, by mailbox: the send that waits to be asked for, or the message that asks for it.
        self.asked: dict = {}
        super().__init__(plan, level)
        if plan.problem.network.msccl is not None:
            self.network = PacedNetwork(self, self.network)

    def number_scheduled(self) -> int:
        """The next number in the order of scheduling."""
        self.next_number += 1
        return scheduled_number(self.env.now, next(self.places))

    def graph_class(self, program, kind):
        return kind if program.counters is None else _COUNTING.get(kind, CountingWorkload)

    def graph(self, npu, index, call, whole, kind=Graph):
        connections = self.plan.calls[index].connections
        if connections is None:
            return super().graph(npu, index, call, whole)
        if call.connections is None:
            call.connections = Connections(connections)
        return super().graph(npu, index, call, whole, ConnectedGraph)

    def other_waits(self):
        graphs = [graph for npu in self.npus for graph in npu.graphs.values()]
        held = [
            send for call in self.open_calls.values() if call.connections for send in call.connections.waiting.values()
        ]
        counting = [(g, node, count) for g in graphs if isinstance(g, CountingGraph) for node, *count in g.uncounted()]
        return {
            "held": sorted(posted(*send) for send in held),
            "unasked": sorted(posted(*send) for send in self.asked.values() if not isinstance(send, Ask)),
            "uncounted": sorted((posted(graph, node, -1), *count) for graph, node, count in counting),
            "queued": [entry for npu in self.npus for entry in npu.waiting()],
        }


def run(plan: Plan, level: str) -> Records:
    """Run a plan and record at `level`. Raises SimulationError for a matched send and receive of unequal bytes."""
    begin, collects = time.process_time(), gc.isenabled()
    gc.disable()  # reference counts free the events of a run; the search for cycles would take a quarter of its time
    try:
        simulation = DialectSimulation(plan, level)
        outcome = simulation.run()
        return simulation.records(outcome, time.process_time() - begin)
    finally:
        if collects:
            gc.enable()
