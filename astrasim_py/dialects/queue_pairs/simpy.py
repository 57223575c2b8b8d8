"""Queue pairs: messages between two NPUs take them in turn."""

from collections import Counter

from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.plan import Plan


class QueuePairSimulation(Simulation):
    """A run with several queue pairs; `sent`: messages so far from one end to another."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.qps, self.sent = plan.problem.network.qps, Counter[int]()
        super().__init__(plan, level)

    def pair(self, src, dst):
        ends = super().pair(src, dst)
        self.sent[ends] += 1
        return ends * self.qps + (self.sent[ends] - 1) % self.qps
