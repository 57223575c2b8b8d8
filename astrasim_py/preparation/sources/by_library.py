"""Algorithms that a library would choose."""

from functools import cached_property

from astrasim_py.engine.choose import by_library
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import Builder
from astrasim_py.system.problem import Problem


class ByLibrary(ScenarioSource[Builder]):
    """For each call the fastest of the ways that a library has, each simulated alone."""

    @property
    def name(self) -> str:
        return self.spec.builder

    @property
    def by_placement(self) -> bool:
        return True

    @cached_property
    def _machine(self) -> Problem:
        network, protocol = self.run.network, {"protocol": self.spec.protocol}
        if self.spec.protocol is not None and network.profile is not None:
            network = network.model_copy(update=protocol)
        elif self.spec.protocol is not None and network.msccl is not None:
            network = network.model_copy(update={"msccl": network.msccl.model_copy(update=protocol)})
        return Problem(topology=self.topology, jobs=(), network=network, semantics=self.run.spec.semantics)

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        return self.under_protocol(
            by_library(simulate, self._machine, call.collective, call.npus, call.size, call.root)
        )
