"""The simulation with everything that is not native: which subclass stands for which rule."""

from __future__ import annotations

import time

from astrasim_py.core.records import Records
from astrasim_py.engine.simpy.astra_sim import (
    SCHEDULED,
    AstraAnalytical,
    AstraNpu,
    FlooredLink,
    ScheduledNumbers,
    unasked,
)
from astrasim_py.engine.simpy.chunks import ChunkingNpu
from astrasim_py.engine.simpy.counters import CountingGraph, CountingWorkload
from astrasim_py.engine.simpy.msccl import PacedNetwork, connected_graph, held
from astrasim_py.engine.simpy.simulation import Simulation, posted
from astrasim_py.system.plan import Plan


class DialectSimulation(Simulation):
    """A run under any rules."""

    def __init__(self, plan: Plan, level: str) -> None:
        semantics = plan.problem.semantics
        if semantics.event_order == "scheduled":
            self.scheduled = ScheduledNumbers()
            self.number = self.scheduled_number
            self.models = self.models | SCHEDULED
        if semantics.rounding == "floor_ns":
            self.link_class = FlooredLink
        if semantics.rounding == "floor_ns" or semantics.analytical_route == "lowest_dim":
            self.models = self.models | {"analytical": AstraAnalytical}
        astra = semantics.event_order == "scheduled" or semantics.rendezvous_bytes
        self.npu_class = AstraNpu if astra else ChunkingNpu
        #: Remote memory → time (ps) at which it has served all that is issued.
        self.memory_free: dict = {}
        #: Under the rendezvous, by mailbox: the send that waits to be asked for, or what asks for it.
        self.asked: dict = {}
        super().__init__(plan, level)
        if plan.problem.network.msccl is not None:
            self.network = PacedNetwork(self, self.network)

    def scheduled_number(self) -> int:
        """The next number in the order of scheduling."""
        self.next_number += 1
        return self.scheduled.number(self.env.now)

    def make_graph(self, program, *args):
        return super().make_graph(program, *args) if program.counters is None else CountingGraph(*args)

    def make_workload(self, program, *args):
        return super().make_workload(program, *args) if program.counters is None else CountingWorkload(*args)

    def graph(self, npu, index, call, whole):
        part = self.plan.calls[index]
        if part.connections is None or not part.programs:
            return super().graph(npu, index, call, whole)
        return connected_graph(self, part, npu, index, call, whole)

    def waits(self):
        """What else a stuck run waits for."""
        return {
            "held": sorted(posted(*each) for each in held(self.open_calls.values())),
            "unasked": sorted(posted(*each) for each in unasked(self.asked)),
            "uncounted": sorted(
                (posted(graph, node, -1), *count)
                for graph in self.graphs()
                if isinstance(graph, CountingGraph)
                for node, *count in graph.uncounted()
            ),
            "queued": [
                entry for npu in self.npus if npu.chunk_queues is not None for entry in npu.chunk_queues.waiting()
            ],
        }


def run(plan: Plan, level: str) -> Records:
    """Run a plan and record at `level`.

    Raises
    ------
    SimulationError
        A matched send and receive of unequal bytes.
    """
    begin = time.process_time()
    simulation = DialectSimulation(plan, level)
    outcome = simulation.run()
    return simulation.records(outcome, time.process_time() - begin)
