"""The simulation under any rules: which subclass follows which rule."""

import itertools
from collections import defaultdict
from functools import cache

import simpy

from astrasim_py.dialects.astra_sim import simpy as astra_sim
from astrasim_py.dialects.chunks.simpy import ChunkingNpu
from astrasim_py.dialects.detours.simpy import InterruptedNpu
from astrasim_py.dialects.library.simpy import (
    ConnectedGraph,
    CountingGraph,
    LibraryCutThrough,
    PacedGraph,
    PacedNetwork,
)
from astrasim_py.dialects.nic.simpy import Nic, NicNetwork, NicNpu, NoNic
from astrasim_py.dialects.thread_blocks.simpy import BlockGraph, BlockMessages, awaiting
from astrasim_py.engine.simpy.network import Mailbox
from astrasim_py.engine.simpy.simulation import Simulation, posted
from astrasim_py.system.plan import Plan


@cache
def following(*rules: type) -> type:
    """A class that follows several rules, the first of them first."""
    return type(rules[0].__name__, rules, {})


class DialectSimulation(Simulation):
    """A run under any rules."""

    def __init__(self, plan: Plan, level: str) -> None:
        semantics, rules = plan.problem.semantics, [ChunkingNpu]
        if semantics.event_order == "scheduled":
            self.number, self.places = self.number_of_action, itertools.count(astra_sim.SOON + 1)
            self.models = self.models | astra_sim.SCHEDULED
            rules = [astra_sim.ScheduledNpu, *rules]
        if semantics.rendezvous_bytes:
            rules = [astra_sim.RendezvousNpu, *rules]
        if semantics.analytical_route == "lowest_dim" and plan.problem.topology.dims:
            self.models = self.models | {"analytical": astra_sim.LowestDimension}
        if plan.problem.network.profile is not None:
            self.models = self.models | {"cut_through": LibraryCutThrough}
        if plan.detours is not None:
            rules = [InterruptedNpu, *rules]
        if plan.problem.nic is not None:
            rules = [NicNpu, *rules]
            #: By NPU, or switch.
            self.nics = {
                v: (Nic if rank < plan.npu_ranks else NoNic)(plan.problem.nic) for rank, v in enumerate(plan.npu_of)
            }
        self.npu_class = following(*rules)
        super().__init__(plan, level)
        #: Under the rendezvous, by mailbox: where a send waits for the message that asks for it.
        self.asks: dict[Mailbox, simpy.Store] = defaultdict(lambda: simpy.Store(self.env))
        if plan.problem.network.msccl is not None or plan.problem.network.profile is not None:
            self.network = PacedNetwork(self, self.network)

    def network_class(self, model):
        return model if self.plan.problem.nic is None else following(NicNetwork, model)

    def number_of_event(self) -> int:
        """Number of an event that is scheduled now, after those that are scheduled before it."""
        return self.env.now << 40 | next(self.places)

    def number_of_action(self) -> int:
        """The number of an action, in the order of scheduling."""
        self.issued += 1
        return self.number_of_event()

    def graph_class(self, program, index):
        if program.blocks is not None:
            return BlockGraph
        connections = self.plan.calls[index].connections if index >= 0 else None
        if connections is None:
            kind = super().graph_class(program, index)
        else:
            kind = ConnectedGraph if connections.slots else PacedGraph
        if program.buckets:
            kind = following(astra_sim.HashSetGraph, kind)
        return kind if program.counters is None else following(CountingGraph, kind)

    def waits(self):
        graphs = [graph for npu in self.npus for graph in npu.graphs.values()]
        slots = [call.slots for call in self.open_calls.values() if call.slots]
        waits = super().waits()
        expected = [each.expected for each in slots if isinstance(each, BlockMessages)]
        waits["posted"] += sorted(awaiting(*step) for steps in expected for step in steps.values())
        return waits | {
            "held": sorted(posted(*send) for each in slots for send in each.waiting.values()),
            "unasked": sorted(posted(r.graph, r.node, r.since) for asks in self.asks.values() for r in asks.get_queue),
            "uncounted": sorted(each for g in graphs if isinstance(g, CountingGraph) for each in g.uncounted()),
            "queued": [entry for npu in self.npus for entry in npu.waiting()],
        }
