"""NPUs with interruptions of compute at regular times: ``noise.detours``."""

from astrasim_py.engine.simpy.npu import Npu


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
