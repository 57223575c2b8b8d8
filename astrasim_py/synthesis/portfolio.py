"""From a topology and a collective to a checked schedule and its distance from the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.bounds.lower_bounds import Bound, lower_bounds
from astrasim_py.synthesis.extras.exact import LIMIT, admit, prove
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import CostModel, Network, Occupied
from astrasim_py.synthesis.model.schedule import Schedule, Search
from astrasim_py.synthesis.model.transfers import Transfers, as_schedule, chained, copied, mirrored
from astrasim_py.synthesis.search.greedy_search import LARGE, Found, Progress, search
from astrasim_py.synthesis.search.multi_start import Watch
from astrasim_py.synthesis.search.patterns import Patterns, applies, best_pattern, in_queues
from astrasim_py.synthesis.search.routed import route
from astrasim_py.synthesis.search.tree_packing_search import improved
from astrasim_py.topology.model import Topology

#: Collectives whose chunks everybody needs, or that are such a one reversed, or both.
SPREADING = ("all_gather", "broadcast", "reduce_scatter", "reduce", "all_reduce")
#: Collectives whose chunks are needed by one rank each.
ROUTED = ("scatter", "gather", "all_to_all")
#: Chunks × arcs beyond which, where everybody reaches everybody, what needs no search comes first; of all runs of the
#: greedy core together there; and of what a run gets through in a second, about.
MANY, EFFORT, SPEED = 2**23, 2**26, 2**21


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


def _named(options: dict, search: str, best: int = 0) -> dict:
    """Options whose progress says which search it is of, and what was found before it."""
    progress = options["progress"]
    if progress is None:
        return options

    def tell(state: Progress) -> None:
        progress(replace(state, search=search, best=min(state.best or best, best or state.best)))

    return options | {"progress": tell}


def _spread(network: Network, demand: Demand, watch: Watch, record: bool, options: dict) -> Schedule:
    """A schedule, not checked yet; of its seconds only those of the searches are told."""
    kind, seed, progress = demand.collective, options["seed"], options["progress"]
    if network.ranks < 2:
        nothing = np.empty(0, dtype=np.int64)
        return as_schedule(network, demand, copied((nothing, nothing, nothing)), Search(seed=seed, policy="", rounds=0))
    if demand.receivers is not None and not record:
        raise AlgorithmError(kind, "is not counted without its transfers", "let them be recorded")
    made = Patterns(network, demand) if record and applies(network, demand) else None
    candidates = network.arcs * demand.count
    dense = network.arcs == network.ranks * (network.ranks - 1) and candidates > MANY
    quick = dense and record and demand.receivers is None
    if quick:
        straight = _straight(network, demand, seed)
        bound = lower_bounds(network, demand, cuts=False)[0]
        if straight.time <= bound.time:
            return replace(straight, bound=bound.time, bound_kind=bound.kind)
        if progress is not None:
            progress(Progress(straight.time, bound.time, 1, options["rounds"]))
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
        share = watch.left(0.25)
        told = _named(options, "known ones")["progress"]
        known = best_pattern(made, bound, enough, seed, budget=share, jobs=options["jobs"], progress=told)
        if known is not None and known.time <= enough:
            return known
    if quick:
        straight = replace(straight, bound=bound.time, bound_kind=bound.kind)
        if known is None or straight.time < known.time:
            known = straight
        # Behind switches that is hard to beat; where all links are direct one run is made, however long it takes.
        left, rounds = watch.left(), min(options["rounds"], max(EFFORT // candidates, int(made is None)))
        late = left is not None and candidates > SPEED * left
        if late or not rounds or known.time <= enough:
            return replace(known, search=replace(known.search, cut=late and known.time > enough))
        options = options | {"rounds": rounds}
    elif made is not None and demand.root is not None and candidates > MANY // 2**6:
        # The same for few chunks from one rank: every run looks at all arcs several times.
        options = options | {"rounds": min(options["rounds"], max(EFFORT // 2**6 // candidates, 1))}
    if kind == "all_reduce":
        # Half of the time is for the schedule without a barrier, which needs the transfers of the one with it.
        # Backwards in time nobody knows when others hold links, nor when the second half begins.
        ways = (("half with sums", network.turned(), 0.25), ("half with copies", network.alone, 1 / 3))
        for (name, net, share), least in zip(ways, halves, strict=True):
            found.append(search(net, demand, least, budget=watch.left(share), **_named(options, name)))
        transfers = _both(network, demand, *found)
    elif demand.receivers is not None:
        routed, transfers = route(network, demand, enough, budget=watch.left(), **options)
        found = [routed]
    else:
        net, compose = (network.turned(), partial(mirrored, network, demand)) if demand.reduces else (network, copied)
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
    # Packing so many trees takes longest of all, and known ones are no worse.
    if not (quick and made) and (kind == "all_reduce" or shared or (demand.reduces and len(network.occupied_start))):
        least = min(schedule.time, known.time) if known else schedule.time
        schedule = improved(schedule, enough, budget=watch.left(), **_named(options, "trees", least))
    if made is not None and schedule.time > enough:
        schedule = in_queues(made, schedule)
    if known is None:
        return schedule
    how = replace(schedule.search, seconds=schedule.search.seconds + known.search.seconds)
    if known.time <= schedule.time:
        return replace(known, search=replace(how, policy=known.search.policy))
    return replace(schedule, search=how)


def _both(network: Network, demand: Demand, sums: Found, copies: Found) -> Transfers:
    """The barrier construction of an all_reduce."""
    return chained(mirrored(network, demand, sums.columns), copied(copies.columns), sums.time)


def _straight(network: Network, demand: Demand, seed: int) -> Schedule:
    """Everything straight from where it is to where it is needed, by turns: found without a search."""
    how = Search(seed=seed, policy="direct, by turns", rounds=1)
    if demand.collective == "all_reduce":
        sums, copies = (_direct(net, demand, seed) for net in (network.turned(), network.alone))
        transfers = _both(network, demand, sums, copies)
    elif demand.reduces:
        transfers = mirrored(network, demand, _direct(network.turned(), demand, seed).columns)
    else:
        transfers = copied(_direct(network, demand, seed).columns)
    return as_schedule(network, demand, transfers, how)


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
