"""What all sources of a scenario's algorithms have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError
from astrasim_py.core.fields import did_you_mean, shown
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import AlgorithmBase
from astrasim_py.topology.model import Topology

Spec = TypeVar("Spec", bound=AlgorithmBase)


@dataclass(frozen=True, eq=False)
class ScenarioSource(Generic[Spec]):
    """A source as a scenario writes it; see `astrasim_py.program.selection.AlgorithmSource`.

    `run`: the files and the rules of the point. `spec`: what is written, at `place`. `notes`: of the job's algorithms,
    which a call may add to.
    """

    run: Preparation
    spec: Spec
    topology: Topology
    place: str
    notes: Notes

    def __post_init__(self) -> None:
        """Refuse what is known to be wrong before any call asks. Raises ScenarioError."""

    @property
    def by_placement(self) -> bool:
        return False

    @property
    def by_dimension(self) -> bool:
        """Whether its algorithms can carry out the phases of the dimensions of a topology."""
        return False

    @property
    def name(self) -> str:
        """What it is called in messages."""
        raise NotImplementedError

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        return self.for_ranks(call.collective, call.ranks, call.root)

    def for_ranks(self, collective: str, ranks: int, root: int) -> Algorithm:
        """The algorithm for a group of so many ranks, wherever they are."""
        raise NotImplementedError

    def reaches(self, npus: tuple[int, ...]) -> bool:
        from astrasim_py.builders.switch_trees import reached

        return reached(self.topology, npus)

    def under_protocol(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm under the protocol that the case says."""
        return algorithm if self.spec.protocol is None else replace(algorithm, protocol=self.spec.protocol)

    def checked(self, algorithm: Algorithm, collective: str, ranks: int, root: int) -> Algorithm:
        """The algorithm with its verdict, if it fits the group and the policy lets it pass."""
        if algorithm.ranks != ranks:
            problem = f"{algorithm.name} is made for {algorithm.ranks} ranks, and the group has {ranks}"
            raise AlgorithmError(self.place, problem, "give one made for this group, or choose by when: {ranks: …}")
        if promise_of(collective).rooted and algorithm.root != root:
            problem = f"{algorithm.name} has root {algorithm.root}, and the workload asks for {root}"
            remedy = f"write root: {algorithm.root} in the workload, or give another file"
            raise AlgorithmError(self.place, problem, remedy)
        algorithm = self.under_protocol(algorithm)
        if self.run.spec.verify is False:
            return algorithm.with_verdict(None)
        from astrasim_py.preparation.verdicts import enforce, kept_verdict, verify

        verdict = kept_verdict((algorithm.digest(),), lambda: verify(algorithm))
        enforce(self.run.spec, algorithm, verdict, self.place, self.notes.warnings.append)
        return algorithm.with_verdict(verdict.ok)

    def with_switches(self, algorithm: Algorithm, actors: Mapping[str, str], written: Mapping[str, str]) -> Algorithm:
        """The algorithm with some of its switches being those of the topology that `actors` names; `written`: those of
        them that the key ``actors`` of the case names.
        """
        vertices = {name: self.topology.npus + i for i, name in enumerate(self.topology.switch_names)}
        for actor, switch in actors.items():
            place = f"{self.place}.actors.{actor}" if actor in written else f"{self.place}.switches"
            if actor not in algorithm.actors:
                problem = f"{algorithm.name} has no switch {shown(actor)}"
                raise ScenarioError(place, problem, did_you_mean(actor, algorithm.actors))
            if switch not in vertices:
                problem = f"{self.topology.name} has no switch {shown(switch)}"
                raise ScenarioError(place, problem, did_you_mean(switch, vertices) if vertices else "drop it")
        if not actors:
            return algorithm
        before = algorithm.vertices or (-1,) * len(algorithm.actors)
        pairs = zip(algorithm.actors, before, strict=True)
        return replace(algorithm, vertices=tuple(vertices[actors[a]] if a in actors else v for a, v in pairs))


def below(error: AstraError, place: str) -> AstraError:
    """The same error with the scenario's place before its own."""
    return type(error)(f"{place}: {error.place}" if error.place else place, error.problem, error.remedy)
