"""NPUs with interruptions of compute at regular times: ``noise.detours``."""

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.engine.simpy.simulation import Simulation


class InterruptedNpu(Npu):
    """An NPU that computes for a part of each period only."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        self.detours, self.phase = simulation.plan.detours, int(simulation.plan.detour_phase[rank])

    def compute(self, graph, node):
        duration, now = graph.program.duration[node], self.env.now
        if duration and not self.is_switch:
            self.complete_after(self.detours.end(now, duration, self.phase) - now, graph, node)
        else:
            super().compute(graph, node)


class InterruptedSimulation(Simulation):
    """A run with interruptions of compute."""

    def npu_rules(self):
        return [InterruptedNpu, *super().npu_rules()]
