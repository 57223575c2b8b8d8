"""Algorithms that code of others makes: the user's own functions, and other packages."""

from collections.abc import Callable

from astrasim_py.builders.registry import rooted
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.registry import made_by, provided
from astrasim_py.preparation.sources.source import ScenarioSource, Spec
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.algorithm_models import AlgorithmCode, Builder


class _ByOthers(ScenarioSource[Spec]):
    """A function ``factory(collective, ranks, **options) -> Algorithm``; everything about its algorithms is checked."""

    @property
    def factory(self) -> Callable[..., Algorithm]:
        raise NotImplementedError

    def for_ranks(self, collective: str, ranks: int, root: int) -> Algorithm:
        options = rooted(collective, root) | self.spec.options
        algorithm = made_by(
            self.factory, self.name, Algorithm, AlgorithmError, self.place, collective, ranks, **options
        )
        if algorithm.collective != collective:
            problem = f"{self.name} gave a {algorithm.collective}, not a {collective}"
            raise AlgorithmError(self.place, problem, "fix it")
        return self.checked(algorithm, collective, ranks, root)


class FromCode(_ByOthers[AlgorithmCode]):
    """A function of the user's own."""

    @property
    def name(self) -> str:
        return self.spec.python

    @property
    def factory(self) -> Callable[..., Algorithm]:
        return self.run.code(self.spec.python, self.place)


class FromPackage(_ByOthers[Builder]):
    """A builder of another package."""

    @property
    def name(self) -> str:
        return self.spec.builder

    @property
    def by_dimension(self) -> bool:
        return True

    @property
    def factory(self) -> Callable[..., Algorithm]:
        return provided("algorithm", self.spec.builder)
