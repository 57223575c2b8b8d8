"""From a topology and a collective to a checked schedule and its distance from the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.bounds import Bound, best_bound, lower_bounds
from astrasim_py.synthesis.check import check
from astrasim_py.synthesis.compose import as_schedule, chained, copied, mirrored
from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.exact import LIMIT, admit, prove
from astrasim_py.synthesis.joint import improved
from astrasim_py.synthesis.network import CostModel, Network, Occupied
from astrasim_py.synthesis.routed import route
from astrasim_py.synthesis.schedule import Schedule, Search
from astrasim_py.synthesis.search import LARGE, Found, Progress, search
from astrasim_py.topology.model import Topology

#: Collectives whose chunks everybody needs, or that are such a one reversed, or both.
SPREADING = ("all_gather", "broadcast", "reduce_scatter", "reduce", "all_reduce")
#: Collectives whose chunks are needed by one rank each.
ROUTED = ("scatter", "gather", "all_to_all")


def synthesize(
    topology: Topology,
    collective: str,
    size: int,
    *,
    npus: Sequence[int] | None = None,
    chunks: int = 1,
    root: int | None = None,
    cost: CostModel | None = None,
    relays: bool = False,
    occupied: Iterable[Occupied] = (),
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    record: bool = True,
    progress: Callable[[Progress], None] | None = None,
    exact: bool = False,
    exact_limit: float = LIMIT,
) -> Schedule:
    """The best schedule found of a collective on a topology, checked.

    Parameters
    ----------
    topology : Topology
    collective : str
        One of `SPREADING` or `ROUTED`.
    size : int
        Full buffer, bytes.
    npus : sequence of int, optional
        rank → NPU; all that are alive by default.
    chunks : int
        Per shard (of broadcast and reduce: of the buffer).
    root : int, optional
        Rank.
    cost, relays, occupied
        Of the `Network`.
    seed, rounds, budget, jobs, record, progress
        Of the `search`; all_reduce divides the budget among its halves and the schedule without a barrier between
        them, and is recorded always.

    exact : bool
        Prove the result to be the fastest, or find a faster one and a bound on the fastest (see `exact.prove`).
    exact_limit : float
        Wall-clock seconds for that.

    Raises
    ------
    TopologyError, AlgorithmError
    """
    network = Network.of(topology, npus, cost=cost, relays=relays, occupied=occupied)
    demand = Demand.of(collective, network.ranks, chunks, size, root)
    if exact:
        admit(network, exact_limit)
    schedule = spread(
        network, demand, seed=seed, rounds=rounds, budget=budget, jobs=jobs, record=record, progress=progress
    )
    return prove(schedule, seed=seed, limit=exact_limit) if exact else schedule


def spread(
    network: Network,
    demand: Demand,
    *,
    seed: int = 1,
    rounds: int = 200,
    budget: float | None = None,
    jobs: int | None = None,
    record: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Schedule:
    """As `synthesize`, for a network and a demand made before."""
    options = {"seed": seed, "rounds": rounds, "jobs": jobs, "record": record, "progress": progress}
    if network.ranks < 2:
        nothing = np.empty(0, dtype=np.int64)
        return as_schedule(network, demand, copied((nothing, nothing, nothing)), Search(seed=seed, policy="", rounds=0))
    kind = demand.collective
    first = _at_once(network, demand, options)
    if first is not None:
        bound, found = first[0], [first[1]]
        enough = bound.time
    else:
        bound, found = best_bound(network, demand), []
        # Runs treat chunks alike: where they differ by a byte, this is what they can reach.
        enough = lower_bounds(network.alone if demand.reduces else network, demand, largest=True)[0].time
    if kind == "all_reduce":
        # Half of the time is for the schedule without a barrier, which needs the transfers of the one with it.
        share, options["record"] = None if budget is None else budget / 4, True
        halves = []
        # Backwards in time nobody knows when others hold links, nor when the second half begins.
        for net, turned in ((network.turned(), True), (network.alone, False)):
            limit = lower_bounds(network.alone, demand, halves=turned, largest=True)[0].time
            halves.append(search(net, demand, limit, budget=share, **options))
        reduced = mirrored(network, demand, halves[0].columns)
        transfers = chained(reduced, copied(halves[1].columns), halves[0].time)
        found = halves
    elif demand.receivers is not None:
        if not record:
            raise AlgorithmError(kind, "is not counted without its transfers", "let them be recorded")
        options.pop("record")
        routed, transfers = route(network, demand, enough, budget=budget, **options)
        found = [routed]
    elif demand.reduces:
        found = found or [search(network.turned(), demand, enough, budget=budget, **options)]
        transfers = mirrored(network, demand, found[0].columns) if record else None
    else:
        found = found or [search(network, demand, enough, budget=budget, **options)]
        transfers = copied(found[0].columns) if record else None
    how = Search(
        seed=seed,
        policy="barrier: " * (kind == "all_reduce") + "; then ".join(f.policy for f in found),
        rounds=sum(f.rounds for f in found),
        cut=any(f.cut for f in found),
        seconds=sum(f.seconds for f in found),
    )
    if transfers is None:
        none = np.empty(0, dtype=np.int32)
        return Schedule(
            network=network, demand=demand, arc=none, chunk=none, start=none.astype(np.int64), reduces=none > 0,
            time=found[0].time, transfers=found[0].transfers, bound=bound.time, bound_kind=bound.kind, search=how,
        )  # fmt: skip
    schedule = as_schedule(network, demand, transfers, how, bound)
    if kind == "all_reduce" or (demand.reduces and len(network.occupied_start)):
        options.pop("record")
        schedule = improved(schedule, enough, budget=None if budget is None else budget - how.seconds, **options)
    problems = check(schedule)
    if problems:
        raise InternalError(f"a synthesized schedule is wrong: {problems[0]}")
    return schedule


def _at_once(network: Network, demand: Demand, options: dict) -> tuple[Bound, Found] | None:
    """The first run of the search, if it meets a bound that needs no flows: they take longer than the run."""
    alike = demand.receivers is None and demand.sizes[0] == demand.sizes[-1] and not len(network.occupied_start)
    if demand.collective == "all_reduce" or not alike or (network.ranks - 1) * demand.count > LARGE:
        return None
    bound = lower_bounds(network, demand, cuts=False)[0]
    net = network.turned() if demand.reduces else network
    found = search(net, demand, bound.time, **(options | {"rounds": 1, "progress": None}))
    return (bound, found) if found.time <= bound.time else None
