"""Algorithms that are synthesized for the NPUs and the size of a call."""

from functools import cached_property

from astrasim_py.builders.registry import rooted
from astrasim_py.core.errors import AlgorithmError, TopologyError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.engine.choose import better_in_network
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.link_occupancy import read_occupancy
from astrasim_py.preparation.schedules import algorithm_of, facts_in_network, planned_cost
from astrasim_py.preparation.sources.source import ScenarioSource, below
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import AlgorithmSynthesis
from astrasim_py.synthesis.model.network import Occupied
from astrasim_py.synthesis.request import Request
from astrasim_py.system.compatible import SWITCHES, exclusions
from astrasim_py.system.problem import Problem
from astrasim_py.verification.bounds import may_reduce
from astrasim_py.workload.blocks import BlockSizes


class Synthesized(ScenarioSource[AlgorithmSynthesis]):
    """A search, or what it found before; in its place an algorithm in the network where that is faster."""

    def __post_init__(self) -> None:
        _ = self._occupied

    @property
    def name(self) -> str:
        return "a synthesized algorithm"

    @property
    def by_placement(self) -> bool:
        return True

    @cached_property
    def _occupied(self) -> tuple[Occupied, ...]:
        place = f"{self.place}.synthesize.occupied"
        names = self.spec.synthesize.occupied
        return tuple(read_occupancy(self.run.path(name, place), self.topology, place) for name in names)

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        return self.for_blocks(call, None)

    def for_blocks(self, call: AlgorithmCall, blocks: BlockSizes | None) -> Algorithm:
        """The algorithm of a call; with `blocks` of an all_to_all of unequal ones, as a custom collective."""
        options, network, rules = self.spec.synthesize, self.run.spec.network, self.run.spec.semantics
        cost, left_out = planned_cost(network, self.run.spec.nic)
        request = Request(
            topology=self.topology.without_events,  # what will fail is not known when it is made
            npus=call.npus,
            collective=call.collective if blocks is None else "all_to_all",
            size=call.size if blocks is None else 0,
            blocks=blocks,
            chunks=options.chunks if isinstance(options.chunks, int) else None,
            root=rooted(call.collective, call.root).get("root"),
            cost=cost,
            relays=options.relays,
            occupied=self._occupied,
            seed=options.seed,
            rounds=options.rounds,
            budget=None if options.budget is None else options.budget / PS_PER_S,
            memory=options.memory,
            exact=options.exact_limit / PS_PER_S if options.exact else None,
        )
        clock = bool(self._occupied) if options.clock is None else options.clock
        try:
            synthesis = algorithm_of(request, clock=clock, folder=self.run.kept)
        except (AlgorithmError, TopologyError) as error:
            raise below(error, self.place) from None
        algorithm, facts = synthesis.algorithm, synthesis.facts
        machine = Problem(topology=self.topology, jobs=(), network=network, semantics=rules)
        excluded = any(exclusions(machine.parts | {"algorithm": algorithm.name}, (SWITCHES,)))
        if may_reduce(self.topology) and not self._occupied and not excluded and blocks is None:
            better = better_in_network(simulate, machine, algorithm, call.size, call.npus)
            algorithm, facts = algorithm if better is None else better[0], facts_in_network(facts, request, better)
        algorithm = self.checked(algorithm, call.collective, call.ranks, call.root)
        if facts not in self.notes.synthesized:
            self.notes.synthesized.append(facts)
            if left_out:
                self.notes.hints.append(f"{self.place}: {left_out}")
            if synthesis.facts.get("cut"):
                self.notes.warnings.append(
                    f"{self.place}: the search for {call.collective} was cut by its budget: another machine may find "
                    "another schedule, and this one is kept with the results"
                )
        return algorithm
