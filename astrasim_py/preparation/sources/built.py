"""Algorithms of the package's builders."""

from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any

from astrasim_py.builders.registry import IN_NETWORK, build, build_default, in_network, rooted
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.preparation.sources.source import ScenarioSource, below
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import Builder

_BUILT: Memo[Algorithm] = Memo(64)


@lru_cache(maxsize=64)
def default_built(collective: str, ranks: int, root: int) -> Algorithm:
    """The algorithm of a collective for which a scenario names none."""
    return build_default(collective, ranks, root).with_verdict(True)


class Built(ScenarioSource[Builder]):
    """A builder and its options, of which some may follow from the call.

    The algorithms of builders are verified by the tests of this package, not at every run.
    """

    def __post_init__(self) -> None:
        if self._options.get("channels") == "auto" and self.run.network.profile is None:
            problem = "auto is the number of channels that a profile says, and there is none"
            raise ScenarioError(f"{self.place}.channels", problem, "write a number, or network: {profile: NAME}")

    @property
    def name(self) -> str:
        return self.spec.builder

    @property
    def by_dimension(self) -> bool:
        return self.spec.builder not in ("hierarchical", *IN_NETWORK)

    @cached_property
    def by_placement(self) -> bool:
        options = self._options
        if self.spec.actors or self._in_network or (self.spec.builder == "hierarchical" and "dims" not in options):
            return True
        return "auto" in (options.get("nodes"), options.get("channels"))

    @cached_property
    def _in_network(self) -> bool:
        return in_network(self.spec.builder, self.spec.options)

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Options as they are written; of switches that are named and not written one above all."""
        if not self.spec.actors or self.spec.builder not in IN_NETWORK:
            return self.spec.options
        from astrasim_py.builders.switch_trees import ONE_SWITCH

        return {"switches": ONE_SWITCH} | self.spec.options

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        if not self.by_placement:
            return self.for_ranks(call.collective, call.ranks, call.root)
        options = self._options | self._of_call(call)
        if self._in_network:
            from astrasim_py.builders.switch_trees import switches_above

            try:
                options |= switches_above(
                    self.topology, call.npus, self.spec.builder, call.collective, options, call.size
                )
            except AlgorithmError as error:
                raise below(error, self.place) from None
        algorithm = self._build(call.collective, call.ranks, call.root, options)
        if call.ranks == 1:
            return algorithm
        vertices = algorithm.vertices or repeat(-1)
        unbound = {name: name for name, vertex in zip(algorithm.actors, vertices, strict=False) if vertex < 0}
        actors = self.spec.actors or {}
        return self.with_switches(algorithm, actors | unbound | actors, actors)

    def for_ranks(self, collective: str, ranks: int, root: int) -> Algorithm:
        return self._build(collective, ranks, root, self._options)

    def _of_call(self, call: AlgorithmCall) -> dict[str, Any]:
        """Options that follow from the call."""
        options: dict[str, Any] = {}
        if self.spec.builder == "hierarchical" and "dims" not in self._options:
            from astrasim_py.topology.grid import group_dims

            options["dims"] = group_dims(self.topology, call.npus)
        if self._options.get("nodes") == "auto":
            from astrasim_py.topology.grid import nodes_of

            options["nodes"] = nodes_of(self.topology, call.npus)
        profile = self.run.network.profile
        if self._options.get("channels") == "auto" and profile is not None:
            options["channels"] = profile.channels_for(call.size, call.ranks)
        return options

    def _build(self, collective: str, ranks: int, root: int, options: dict[str, Any]) -> Algorithm:
        options = {**rooted(collective, root), **options}
        key = (self.spec.builder, self.spec.protocol, collective, ranks, digest(options))

        def make() -> Algorithm:
            return self.under_protocol(build(self.spec.builder, collective, ranks, **options)).with_verdict(True)

        try:
            return _BUILT.get(key, make)
        except AlgorithmError as error:
            raise below(error, self.place) from None

    def reaches(self, npus: tuple[int, ...]) -> bool:
        if not self._in_network:
            return super().reaches(npus)
        from astrasim_py.builders.switch_trees import reached

        return reached(self.topology, npus, self.spec.builder, self.spec.options)
