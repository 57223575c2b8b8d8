"""The algorithms of a job: built, read from files, made by the user's own code, or synthesized; then verified."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

from astrasim_py.builders.registry import BUILDERS, build, default_algorithm
from astrasim_py.builders.switch_trees import IN_NETWORK, ONE_SWITCH, in_network, reached, switches_above
from astrasim_py.collectives.collective import promise_of
from astrasim_py.collectives.contract import read_contract
from astrasim_py.core.cache import Memo
from astrasim_py.core.choices import LIBRARIES
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TopologyError
from astrasim_py.core.fields import did_you_mean, shown
from astrasim_py.core.registry import made_by, provided
from astrasim_py.core.units import PS_PER_S
from astrasim_py.dialects.library.lower_choice import nodes_of
from astrasim_py.engine.choose import better_in_network, by_library
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case, When
from astrasim_py.scenario.job_models import (
    AlgorithmByDimension,
    AlgorithmCode,
    AlgorithmFile,
    AlgorithmSynthesis,
    Builder,
)
from astrasim_py.system.problem import Problem
from astrasim_py.topology.grid import group_dims
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import may_reduce

_ALGORITHMS: Memo[Algorithm] = Memo(32)
_BUILT: Memo[Algorithm] = Memo(64)


class Choice(NamedTuple):
    """A case of an algorithm table, what the scenario says of it, and where."""

    case: Case
    said: Any
    place: str


def algorithms_of(run: Preparation, job: Any, key: str, topology: Topology) -> tuple[AlgorithmTable, list[Choice]]:
    """The algorithm table of a job, and its cases; those of the scenario where the job has none."""
    cases: dict[str, list[Case]] = {}
    choices: list[Choice] = []
    for collective, listed in {**run.spec.algorithms, **job.algorithms}.items():
        below = key if collective in job.algorithms else ""
        for i, said in enumerate(listed):
            place = run.at(below, f"algorithms.{collective}{f'[{i}]' if len(listed) > 1 else ''}")
            _check_protocol(run, said, f"{place}.protocol")
            fit = _fit(run, said, topology, place)
            reach = partial(reached, topology, getattr(said, "builder", ""), getattr(said, "options", {}))
            told = place if said.when is not None else ""  # a last case is often there in case of need
            case = Case(make=maker(run, said, place), when=said.when or When(), fit=fit, reached=reach, place=told)
            cases.setdefault(collective, []).append(case)
            choices.append(Choice(case, said, place))
    return AlgorithmTable(cases, default=default), choices


def _check_protocol(run: Preparation, said: Any, place: str) -> None:
    """Raise ScenarioError: a protocol that the network of the point does not have; warn where none plays a role."""
    network, own = run.network, said.protocol
    if own is None:
        return
    others = {"network.protocol": network.protocol, "network.msccl.protocol": network.msccl and network.msccl.protocol}
    for key, other in others.items():
        if other not in (None, "fastest"):
            raise ScenarioError(place, f"{own}, beside {key}: {other}, which holds for all", "drop one of them")
    profile = network.profile
    if profile is not None:
        known = dict.fromkeys((*profile.protocols, *(profile.programs or ())))
        if own not in known:
            raise ScenarioError(place, f"the profile has no {own}", did_you_mean(own, known))
    elif network.msccl is None:
        run.warnings.append(f"{place}: makes no difference without network.profile or network.msccl")


def _under(algorithm: Algorithm, said: Any) -> Algorithm:
    """The algorithm under the protocol that a case says."""
    return algorithm if said.protocol is None else replace(algorithm, protocol=said.protocol)


def _fit(
    run: Preparation, said: Any, topology: Topology, place: str
) -> Callable[[str, tuple[int, ...], int, int], Algorithm] | None:
    """The function that makes an algorithm for the NPUs of a call; None where their number is enough."""
    if isinstance(said, AlgorithmSynthesis):
        return _synthesizer(run, said, topology, place)
    if isinstance(said, AlgorithmFile) and said.actors:
        make = maker(run, said, place)
        return lambda collective, npus, size, root: _named(
            make(collective, len(npus), root), said.actors, topology, place, said.actors
        )
    if not isinstance(said, Builder):
        return None
    if said.builder in LIBRARIES:
        network, own = run.network, {"protocol": said.protocol}
        if said.protocol is not None and network.profile is not None:
            network = network.model_copy(update=own)
        elif said.protocol is not None and network.msccl is not None:
            network = network.model_copy(update={"msccl": network.msccl.model_copy(update=own)})
        machine = Problem(topology=topology, jobs=(), network=network, semantics=run.spec.semantics)
        return lambda *call: _under(by_library(simulate, machine, *call), said)
    more: dict[str, Callable[[tuple[int, ...], int], Any]] = {}
    if said.builder == "hierarchical" and "dims" not in said.options:
        more["dims"] = lambda npus, size: group_dims(topology, npus)
    if said.options.get("nodes") == "auto":
        more["nodes"] = lambda npus, size: nodes_of(topology, npus)
    if said.options.get("channels") == "auto":
        profile = run.network.profile
        if profile is None:
            problem = "auto is the number of channels that a profile says, and there is none"
            raise ScenarioError(f"{place}.channels", problem, "write a number, or network: {profile: NAME}")
        more["channels"] = lambda npus, size: profile.channels_for(size, len(npus))

    networked = in_network(said.builder, said.options)
    if said.actors and said.builder in IN_NETWORK and "switches" not in said.options:
        said = said.model_copy(update={"switches": ONE_SWITCH})

    def fit(collective: str, npus: tuple[int, ...], size: int, root: int) -> Algorithm:
        fitted = said.model_copy(update={key: of(npus, size) for key, of in more.items()})
        if networked:
            try:
                own = switches_above(topology, npus, said.builder, collective, fitted.options, size)
            except AlgorithmError as error:
                raise _below(error, place) from None
            fitted = fitted.model_copy(update=own)
        made = maker(run, fitted, place)(collective, len(npus), root)
        unbound = {name: name for name, at in zip(made.actors, made.vertices or repeat(-1), strict=False) if at < 0}
        named = said.actors or {}
        return _named(made, {**named, **unbound, **named}, topology, place, named) if len(npus) > 1 else made

    return fit if more or networked or said.actors else None


def _named(
    algorithm: Algorithm, actors: Mapping[str, str], topology: Topology, place: str, said: Mapping[str, str]
) -> Algorithm:
    """The algorithm with some of its switches being those of the topology that `actors` names; `said`: those of them
    that the key ``actors`` of the case names."""
    vertices = {name: topology.npus + i for i, name in enumerate(topology.switch_names)}
    for actor, switch in actors.items():
        where = f"{place}.actors.{actor}" if actor in said else f"{place}.switches"
        if actor not in algorithm.actors:
            problem = f"{algorithm.name} has no switch {shown(actor)}"
            raise ScenarioError(where, problem, did_you_mean(actor, algorithm.actors))
        if switch not in vertices:
            problem = f"{topology.name} has no switch {shown(switch)}"
            raise ScenarioError(where, problem, did_you_mean(switch, vertices) if vertices else "drop it")
    if not actors:
        return algorithm
    own = algorithm.vertices or (-1,) * len(algorithm.actors)
    bound = (vertices[actors[a]] if a in actors else at for a, at in zip(algorithm.actors, own, strict=True))
    return replace(algorithm, vertices=tuple(bound))


def maker(run: Preparation, said: Any, place: str) -> Callable[[str, int, int], Algorithm]:
    def make(collective: str, ranks: int, root: int) -> Algorithm:
        rooted = _rooted(collective, root)
        if isinstance(said, AlgorithmByDimension):
            problem = f"goes by dimension, and the {ranks} ranks of a group do not fill a grid of them"
            raise AlgorithmError(place, problem, "put a case for that group before it: {when: …, builder: ring}")
        if isinstance(said, AlgorithmFile):
            algorithm = _under(_from_files(run, said, collective, place), said)
            told = (
                f"{place}.made_for: its sizes are in chunks and follow every call, so that it changes nothing; drop it"
            )
            if said.made_for is not None and algorithm.symbolic and told not in run.warnings:
                run.warnings.append(told)
            _check_fit(algorithm, ranks, rooted.get("root"), place)
            return _verified(run, algorithm, place)
        if isinstance(said, AlgorithmCode):
            return _made(run, run.code(said.python, place), said.python, said, collective, ranks, rooted, place)
        if said.builder in BUILDERS:
            options = {**rooted, **said.options}
            key = (said.builder, said.protocol, collective, ranks, digest(options))
            try:  # the builders' own algorithms are verified by the tests of this package, not at every run
                make = partial(build, said.builder, collective, ranks, **options)
                return _BUILT.get(key, lambda: _under(make(), said).with_verdict(True))
            except AlgorithmError as error:
                raise _below(error, place) from None
        return _made(run, provided("algorithm", said.builder), said.builder, said, collective, ranks, rooted, place)

    return make


def _rooted(collective: str, root: int) -> dict[str, int]:
    return {"root": root} if promise_of(collective).rooted else {}


@lru_cache(maxsize=64)
def default(collective: str, ranks: int, root: int) -> Algorithm:
    """The verified algorithm of a collective without cases."""
    return build(default_algorithm(collective), collective, ranks, **_rooted(collective, root)).with_verdict(True)


def _below(error: AstraError, place: str) -> AstraError:
    """The same error with the scenario's place before its own."""
    return type(error)(f"{place}: {error.place}" if error.place else place, error.problem, error.remedy)


def _from_files(run: Preparation, said: AlgorithmFile, collective: str, place: str) -> Algorithm:
    if said.file in run.given:
        return run.given[said.file]
    path = run.path(said.file, place)
    files = [path] if path.suffix in (".npz", ".xml") else run.trace_files(path, None, place)
    contract = None if said.contract is None else run.path(said.contract, place)
    files += [contract] if contract else []

    def read() -> Algorithm:
        if str(path).endswith(".xml"):
            from astrasim_py.msccl.to_traces import read_algorithm
        else:
            from astrasim_py.program.files import read_algorithm
        algorithm = read_algorithm(str(path), collective, made_for=said.made_for, root=said.root)
        return algorithm if contract is None else replace(algorithm, contract=read_contract(contract))

    options = ("algorithm", str(path), str(contract), collective, said.made_for, said.root)
    return run.read_once(_ALGORITHMS, files, options, read)


def _made(run: Preparation, factory, text, said, collective, ranks, rooted, place) -> Algorithm:
    """An algorithm from the user's own function or another package; everything about it is checked."""
    given = (collective, ranks)
    algorithm = made_by(factory, text, Algorithm, AlgorithmError, place, *given, **rooted, **said.options)
    if algorithm.collective != collective:
        raise AlgorithmError(place, f"{text} gave a {algorithm.collective}, not a {collective}", "fix it")
    _check_fit(algorithm, ranks, rooted.get("root"), place)
    return _verified(run, _under(algorithm, said), place)


def _synthesizer(
    run: Preparation, said: AlgorithmSynthesis, topology: Topology, place: str
) -> Callable[[str, tuple[int, ...], int, int], Algorithm]:
    """The function that synthesizes the algorithm of a case for the NPUs and the size of a call."""
    from astrasim_py.preparation.link_occupancy import read_occupancy
    from astrasim_py.preparation.synthesized import algorithm_of, facts_in_network, planned_cost
    from astrasim_py.synthesis.request import Request

    how, network = said.synthesize, run.spec.network
    cost, left_out = planned_cost(network, run.spec.nic)
    where = f"{place}.synthesize.occupied"
    occupied = tuple(read_occupancy(run.path(name, where), topology, where) for name in how.occupied)
    clock = bool(occupied) if how.clock is None else how.clock

    def fit(collective: str, npus: tuple[int, ...], size: int, root: int) -> Algorithm:
        request = Request(
            topology=topology.without_events,  # what will fail is not known when it is made
            npus=npus,
            collective=collective,
            size=size,
            chunks=None if how.chunks == "auto" else how.chunks,
            root=_rooted(collective, root).get("root"),
            cost=cost,
            relays=how.relays,
            occupied=occupied,
            seed=how.seed,
            rounds=how.rounds,
            budget=None if how.budget is None else how.budget / PS_PER_S,
            exact=how.exact_limit / PS_PER_S if how.exact else None,
        )
        try:
            made = algorithm_of(request, clock=clock, folder=run.kept)
        except (AlgorithmError, TopologyError) as error:
            raise _below(error, place) from None
        algorithm, facts = made.algorithm, made.facts
        if may_reduce(topology) and not occupied and network.profile is None and network.msccl is None:
            machine = Problem(topology=topology, jobs=(), network=network, semantics=run.spec.semantics)
            better = better_in_network(simulate, machine, algorithm, size, npus)
            algorithm, facts = algorithm if better is None else better[0], facts_in_network(facts, request, better)
        _check_fit(algorithm, len(npus), request.root, place)
        if facts not in run.synthesized:
            run.synthesized.append(facts)
            if left_out and (line := f"{place}: {left_out}") not in run.hints:
                run.hints.append(line)
            if made.facts.get("cut"):
                run.warnings.append(
                    f"{place}: the search for {collective} was cut by its budget: another machine may find "
                    "another schedule, and this one is kept with the results"
                )
        return _verified(run, _under(algorithm, said), place)

    return fit


def _check_fit(algorithm: Algorithm, ranks: int, root: int | None, place: str) -> None:
    if algorithm.ranks != ranks:
        problem = f"{algorithm.name} is made for {algorithm.ranks} ranks, and the group has {ranks}"
        raise AlgorithmError(place, problem, "give one made for this group, or choose by when: {ranks: …}")
    if root is not None and algorithm.root != root:
        problem = f"{algorithm.name} has root {algorithm.root}, and the workload asks for {root}"
        raise AlgorithmError(place, problem, f"write root: {algorithm.root} in the workload, or give another file")


def _verified(run: Preparation, algorithm: Algorithm, place: str) -> Algorithm:
    """The algorithm with its verdict, if the policy lets it pass."""
    if run.spec.verify is False:
        return algorithm.with_verdict(None)
    from astrasim_py.preparation.verdicts import enforce, kept_verdict, verify

    verdict = kept_verdict((algorithm.digest(),), lambda: verify(algorithm))
    enforce(run.spec, algorithm, verdict, place, run.warnings.append)
    return algorithm.with_verdict(verdict.ok)
