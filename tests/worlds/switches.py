"""`in_network`: a random problem in which switches take part in collectives, of any problem on a network with some."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
from worlds import small_problems

from astrasim_py.builders.registry import IN_NETWORK, build
from astrasim_py.builders.switch_trees import SwitchTree, capable_tree
from astrasim_py.collectives.collective import promise_of
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Computing, Topology


class SomeInNetwork:
    """An algorithm table: of some calls an algorithm with switches, of others what another table says."""

    def __init__(self, rng: random.Random, other: AlgorithmTable, topology: Topology) -> None:
        self.rng, self.other, self.topology = rng, other, topology
        self.made: dict[tuple, Algorithm | None] = {}

    def select(self, collective, size, ranks, group, root=0, *, npus=(), **more):
        """What carries out a call."""
        key = collective, ranks, root, npus
        if key not in self.made:
            self.made[key] = self.make(collective, ranks, root, npus) if self.rng.random() < 0.9 else None
        made = self.made[key]
        return self.other.select(collective, size, ranks, group, root, npus=npus, **more) if made is None else made

    def make(self, collective: str, ranks: int, root: int, npus: tuple[int, ...]) -> Algorithm | None:
        rng = self.rng
        able = [name for name, (served, _) in IN_NETWORK.items() if collective in served]
        if not able or ranks < 2:
            return None
        name = rng.choice(able)
        rooted = promise_of(collective).rooted
        tree = capable_tree(self.topology, npus) if rooted or rng.random() < 0.6 else self.any_tree(ranks)
        if tree is None or (name == "nvls" and len(tree.names) > 1):
            return None
        options = {"root": root} if rooted else {}
        if collective != "barrier":
            options["chunks"] = rng.randint(1, 4)
            options["slots" if name == "switch_tree" else "window"] = rng.randint(1, 3)
        return replace(build(name, collective, ranks, switches=tree, **options), verdict=True)

    def any_tree(self, ranks: int) -> SwitchTree:
        """Any switches, wherever they are."""
        capable = list(self.topology.computing.vertices)
        chosen = self.rng.sample(capable, self.rng.randint(1, min(3, len(capable))))
        above = [ranks + self.rng.randrange(len(chosen)) for _ in range(ranks)]
        above += [-1, *(ranks + self.rng.randrange(at) for at in range(1, len(chosen)))]
        used = {ranks}
        for each in above[:ranks]:
            while each not in used:
                used.add(each)
                each = above[each]
        kept = sorted(used)
        place = {position: ranks + at for at, position in enumerate(kept)} | {-1: -1}
        vertices = tuple(chosen[position - ranks] for position in kept)
        above = tuple(place[above[position]] for position in (*range(ranks), *kept))
        return SwitchTree(above, tuple(map(self.topology.vertex_name, vertices)), vertices)


def in_network(problem: Problem, seed: int) -> Problem:
    """The problem with switches that take part in some collectives; as it is where there are no switches."""
    rng, topology = random.Random(seed ^ 0x5717C4), problem.topology
    there = np.unique(topology.src[topology.src >= topology.npus]).tolist()
    if not there:
        return problem
    topology = replace(
        topology,
        computing=Computing(
            vertices=tuple(sorted(rng.sample(there, rng.randint(1, len(there))))),
            reduce_bandwidth=rng.choice((None, small_problems.GB, 3 * small_problems.GB)),
            latency_ps=rng.choice((0, 1, 1_000_000)),
            overhead=rng.choice((Fraction(1), Fraction(6, 5), Fraction(71, 50))),
        ),
    )
    kept = ("gamma", "cpu_slots", "compute_slots", "comm_slots", "zero_duration_ps", "dependencies")
    network = NetworkModel(model=problem.network.model, send_completes=problem.network.send_completes)
    jobs = (replace(j, planner=None, algorithms=SomeInNetwork(rng, j.algorithms, topology)) for j in problem.jobs)
    return replace(
        problem,
        topology=topology,
        jobs=tuple(jobs),
        network=network,
        semantics=Semantics.native(**{key: getattr(problem.semantics, key) for key in kept}),
    )
