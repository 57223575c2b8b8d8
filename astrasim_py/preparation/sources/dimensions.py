"""Algorithms dimension by dimension, which `astrasim_py.preparation.by_dimension` plans."""

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.algorithm_models import AlgorithmByDimension


class Dimensions(ScenarioSource[AlgorithmByDimension]):
    """A builder for each dimension; only groups that fill no grid of them ask for an algorithm as a whole."""

    @property
    def name(self) -> str:
        return "dims"

    def for_ranks(self, collective: str, ranks: int, root: int) -> Algorithm:
        problem = f"goes by dimension, and the {ranks} ranks of a group do not fill a grid of them"
        raise AlgorithmError(self.place, problem, "put a case for that group before it: {when: …, builder: ring}")
