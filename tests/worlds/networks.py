"""Random networks and groups for the synthesizer: several speeds, asymmetric, with switches, failures and groups."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
from worlds.topologies import topology as any_topology

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.portfolio import find_schedule
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.topology import Topology

#: The cost models of transfers: latency pipelined, serialised with the transfer (TACOS), whole messages at every hop.
COSTS = (CostModel(), CostModel(link_busy="latency+bytes"), CostModel(model="store_and_forward"))

#: Collectives whose chunks everybody needs, or that are such a one reversed, or both.
SPREADING = ("all_gather", "broadcast", "reduce_scatter", "reduce", "all_reduce")
#: Collectives whose chunks are needed by one rank each.
ROUTED = ("scatter", "gather", "all_to_all")


def synthesize(
    topology, collective, size, *, npus=None, chunks=1, root=None, cost=None, relays=False, occupied=(), record=True,
    **effort,
) -> Schedule:  # fmt: skip
    """The best schedule found of a collective of so many bytes on a topology; `effort`: fields of `Effort`."""
    network = Network.of(topology, npus, cost=cost, relays=relays, occupied=occupied)
    demand = Demand.of(collective, network.ranks, chunks, size, root)
    return find_schedule(network, demand, Effort(**effort), record=record)


def measured(schedule: Schedule, algorithm: Algorithm, engine: str = "simpy") -> int:
    """Time in ps of an algorithm, simulated in the model of its schedule."""
    demand, network = schedule.demand, schedule.network
    problem = collective(
        demand.collective, demand.size, network.topology, algorithm=algorithm, root=demand.root or 0,
        npus=network.npus, model=network.cost.model, link_busy=network.cost.link_busy,
    )  # fmt: skip
    records = simulate(problem, engine=engine, level="summary")
    assert records.outcome.status == "done"
    return records.makespan


def edge_list(seed: int, *, most: int = 11, switch: bool = False) -> Topology:
    """A random strongly connected edge list of several speeds; no link need have one back."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, most + 1))
    order = rng.permutation(n)
    pairs = {(int(order[i]), int(order[i - 1])) for i in range(n)}
    pairs |= {(int(a), int(b)) for a, b in rng.integers(0, n, (int(rng.integers(0, 3 * n)), 2)) if a != b}
    if switch:
        pairs |= {pair for v in range(0, n, 2) for pair in ((v, n), (n, v))}
    links = sorted(pairs)
    return Topology.create(
        name="random",
        shape="edge_list",
        npus=n,
        vertices=n + switch,
        src=np.array([a for a, _ in links]),
        dst=np.array([b for _, b in links]),
        latency_ps=rng.integers(0, 3, len(links)) * 400_000,
        bandwidth_class=rng.integers(0, 2, len(links)),
        bandwidths=[Fraction(10**9 * 25), Fraction(10**9 * 75)],
    )


def case(seed: int) -> tuple[Topology, list[int], CostModel]:
    """(topology, group, cost): an edge list or any shape, with failures at times, and a part of its NPUs at times.

    What a group lacks to be connected are relays.
    """
    rng = random.Random(seed)
    if seed % 2:
        topology = edge_list(seed, most=9, switch=seed % 3 == 0)
    else:
        topology = any_topology(rng, rng.randint(2, 8))
    members = [int(npu) for npu in topology.alive]
    if rng.random() < 0.4:
        members = rng.sample(members, rng.randint(min(2, len(members)), len(members)))
    return topology, members, COSTS[rng.randrange(3)]
