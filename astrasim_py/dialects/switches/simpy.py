"""Switches that compute: a switch is an NPU that reduces one after the other, and prolongs what it sends."""

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.engine.simpy.simulation import Simulation, served
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import COMPUTE


class SwitchNpu(Npu):
    """An NPU or a switch."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        if self.is_switch:
            self.first_latency = simulation.plan.problem.topology.computing.latency_ps

    def compute(self, graph, node):
        if self.is_switch and graph.program.kind[node] == COMPUTE:
            duration = served(self.simulation.reduced, self.vertex, self.env.now, graph.program.duration[node])
            self.complete_after(duration, graph, node)
        else:
            super().compute(graph, node)


class SwitchSimulation(Simulation):
    """A run with switches; `reduced`: by switch, time (ps) at which it has done all issued reductions."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.reduced: dict[int, int] = {}
        super().__init__(plan, level)

    def npu_rules(self):
        return [SwitchNpu, *super().npu_rules()]
