"""From a topology and a collective to a checked schedule and its distance from the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.bounds import Bound, lower_bounds
from astrasim_py.synthesis.check import check
from astrasim_py.synthesis.compose import as_schedule, chained, copied, mirrored
from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.exact import LIMIT, admit, prove
from astrasim_py.synthesis.joint import improved
from astrasim_py.synthesis.network import CostModel, Network, Occupied
from astrasim_py.synthesis.patterns import Patterns, applies, best_pattern, in_queues
from astrasim_py.synthesis.rounds import Watch
from astrasim_py.synthesis.routed import route
from astrasim_py.synthesis.runs import MAX_CANDIDATES
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
        Of the `search`. The budget is for bounds, searches and whatever else `spread` does, what is compiled excepted,
        and a schedule is finished in any case. All_reduce divides it among its halves and the schedule without a
        barrier between them, and is recorded always.
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
    watch = Watch(np.zeros(1, dtype=np.int64), budget)
    options = {"seed": seed, "rounds": rounds, "jobs": jobs, "progress": progress}
    try:
        schedule = _spread(network, demand, watch, record, options)
        end = int(network.occupied_end.max(initial=0))
        if end and record and schedule.time > end + lower_bounds(network.alone, demand, cuts=False)[0].time:
            # What one finds beside others may be worse than to wait for their end.
            alone = _spread(network.alone, demand, watch, record, options)
            how = replace(
                schedule.search,
                rounds=schedule.search.rounds + alone.search.rounds,
                cut=schedule.search.cut or alone.search.cut,
            )
            late = replace(how, policy=f"put off: {alone.search.policy}")
            other = as_schedule(network, demand, (alone.arc, alone.chunk, alone.start, alone.reduces), late)
            if other.time < schedule.time:
                schedule = replace(other, bound=schedule.bound, bound_kind=schedule.bound_kind)
            else:
                schedule = replace(schedule, search=how)
        if record:
            _tell(progress, "check", schedule)
            problems = check(schedule)
            if problems:
                raise InternalError(f"a synthesized schedule is wrong: {problems[0]}")
    finally:
        watch.end()
    return replace(schedule, search=replace(schedule.search, seconds=watch.seconds))


def _tell(progress: Callable[[Progress], None] | None, stage: str, schedule: Schedule | None = None) -> None:
    """What is done now besides searching."""
    if progress is not None:
        best, bound, made = (schedule.time, schedule.bound, schedule.search.rounds) if schedule else (0, 0, 0)
        progress(Progress(best, bound, made, made, stage=stage))


def _spread(network: Network, demand: Demand, watch: Watch, record: bool, options: dict) -> Schedule:
    """A schedule, not checked yet; of its seconds only those of the searches are told."""
    kind, seed, progress = demand.collective, options["seed"], options["progress"]
    if network.ranks < 2:
        nothing = np.empty(0, dtype=np.int64)
        return as_schedule(network, demand, copied((nothing, nothing, nothing)), Search(seed=seed, policy="", rounds=0))
    if demand.receivers is not None and not record:
        raise AlgorithmError(kind, "is not counted without its transfers", "let them be recorded")
    made = Patterns(network, demand) if record and applies(network, demand) else None
    # Of so many candidates the first run of the greedy core takes minutes.
    dense = network.arcs == network.ranks * (network.ranks - 1) and network.arcs * demand.count > MAX_CANDIDATES
    quick = dense and record and demand.receivers is None and watch.left() is not None
    first = None if quick else _at_once(network, demand, options | {"record": record})
    found: list[Found] = []
    short = False
    if first is not None and first[1].time <= first[0].time:
        bound, found = first[0], [first[1]]
        enough = bound.time
    else:
        _tell(progress, "bound")
        # What bounds cost is taken from the search.
        stop, left = np.zeros(1, dtype=np.int64), watch.left(0.25)
        limit, known = Watch(stop, left), {}
        bound = lower_bounds(network, demand, stop=stop, known=known)[0]
        # Runs treat chunks alike: where they differ by a byte, this is what they can reach.
        freely = network.alone if demand.reduces else network
        enough = lower_bounds(freely, demand, largest=True, stop=stop, known=known)[0].time
        halves = []
        for turned in (True, False) * (kind == "all_reduce"):
            more = lower_bounds(network.alone, demand, halves=turned, largest=True, stop=stop, known=known)
            halves.append(more[0].time)
        limit.end()
        short = bool(stop[0])
        if first is not None and watch.over:
            found = [replace(first[1], cut=True)]
    known = None
    if made is not None and not found:
        known = best_pattern(made, bound, enough, seed, budget=watch.left(0.25), jobs=options["jobs"])
        if known is not None and known.time <= enough:
            return known
    if kind == "all_reduce":
        # Half of the time is for the schedule without a barrier, which needs the transfers of the one with it.
        # Backwards in time nobody knows when others hold links, nor when the second half begins.
        for net, least, share in zip((network.turned(), network.alone), halves, (0.25, 1 / 3), strict=True):
            if quick:
                found.append(_direct(net, demand, seed))
            else:
                found.append(search(net, demand, least, budget=watch.left(share), **options))
        reduced = mirrored(network, demand, found[0].columns)
        transfers = chained(reduced, copied(found[1].columns), found[0].time)
    elif demand.receivers is not None:
        routed, transfers = route(network, demand, enough, budget=watch.left(), **options)
        found = [routed]
    else:
        net, compose = (network.turned(), partial(mirrored, network, demand)) if demand.reduces else (network, copied)
        if quick:
            found = [_direct(net, demand, seed)]
        found = found or [search(net, demand, enough, budget=watch.left(), record=record, **options)]
        transfers = compose(found[0].columns) if record else None
    how = Search(
        seed=seed,
        policy="barrier: " * (kind == "all_reduce") + "; then ".join(f.policy for f in found),
        rounds=sum(f.rounds for f in found),
        cut=any(f.cut for f in found) or short,
        seconds=sum(f.seconds for f in found),
    )
    if transfers is None:
        none = np.empty(0, dtype=np.int32)
        return Schedule(
            network=network, demand=demand, arc=none, chunk=none, start=none.astype(np.int64), reduces=none > 0,
            time=found[0].time, transfers=found[0].transfers, bound=bound.time, bound_kind=bound.kind, search=how,
        )  # fmt: skip
    schedule = as_schedule(network, demand, transfers, how, bound)
    shared = made is not None and demand.root is not None and demand.receivers is None
    if kind == "all_reduce" or shared or (demand.reduces and len(network.occupied_start)):
        schedule = improved(schedule, enough, budget=watch.left(), **options)
    if made is not None and schedule.time > enough:
        schedule = in_queues(made, schedule)
    if known is None:
        return schedule
    how = replace(schedule.search, seconds=schedule.search.seconds + known.search.seconds)
    if known.time <= schedule.time:
        return replace(known, search=replace(how, policy=known.search.policy))
    return replace(schedule, search=how)


def _direct(network: Network, demand: Demand, seed: int) -> Found:
    """Everything straight from its origin, each rank to the one after it first: where all ranks have arcs to all."""
    n = network.ranks
    shift, chunk = (
        column.reshape(-1) for column in np.meshgrid(np.arange(1, n), np.arange(demand.count), indexing="ij")
    )
    source = demand.origin[chunk].astype(np.int64)
    target = (source + shift) % n
    # Arcs are sorted by their ends, and there is none from a rank to itself.
    arc = target * (n - 1) + source - (source > target)
    delay = network.timing(demand.sizes.tolist()).delay[demand.size_class[chunk], arc]
    start = (shift - 1) * int(delay.max())
    columns = arc.astype(np.int32), chunk.astype(np.int32), start
    return Found(int((start + delay).max()), columns, len(arc), "direct, by turns", seed, 1, True, 0.0)


def _at_once(network: Network, demand: Demand, options: dict) -> tuple[Bound, Found] | None:
    """The bounds that need no flows, which take longer than a run, and the first run; None where that is not all."""
    alike = demand.receivers is None and demand.sizes[0] == demand.sizes[-1] and not len(network.occupied_start)
    if demand.collective == "all_reduce" or not alike or (network.ranks - 1) * demand.count > LARGE:
        return None
    bound = lower_bounds(network, demand, cuts=False)[0]
    net = network.turned() if demand.reduces else network
    return bound, search(net, demand, bound.time, **(options | {"rounds": 1, "progress": None}))
