"""Exact schedules of small groups: proven fastest by CP-SAT of OR-Tools (see `exact_model`).

The time proven is the least of all schedules that move whole chunks over these arcs. An all_reduce is bounded by its
halves; its schedules sum every chunk at its home before they copy it.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from astrasim_py.core.errors import AlgorithmError, InternalError
from astrasim_py.synthesis.extras.exact_model import Model, Problem, solver
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.simulate_schedule import as_schedule
from astrasim_py.synthesis.model.transfers import Columns, Transfers, chained, copied, mirrored
from astrasim_py.synthesis.search.symmetric_network import symmetric_network

#: Most ranks of a group for which a fastest schedule is searched.
MAX_RANKS = 16
#: Most pairs of an arc and a chunk in one model.
MAX_PAIRS = 50_000
#: Wall-clock seconds by default.
LIMIT = 60.0
#: Work (deterministic seconds of the solver) that is spent on schedules as symmetric as the network.
_SYMMETRIC_WORK = 8.0


def admit(ranks: int, limit: float = LIMIT) -> None:
    """Refuse a problem that `prove` cannot solve, before anything is searched."""
    if ranks > MAX_RANKS:
        problem = f"{ranks} ranks are more than the {MAX_RANKS} for which the fastest schedule is searched"
        raise AlgorithmError("exact", problem, "leave the exact mode out, or choose a smaller group")
    if not np.isfinite(limit) or limit <= 0:
        raise AlgorithmError("exact", f"a limit of {limit} s is not above 0", "write e.g. 60")
    solver()


def prove(schedule: Schedule, *, seed: int = 1, limit: float = LIMIT) -> Schedule:
    """The fastest schedule of a demand, or the best one found and a bound on the fastest.

    Begins at a recorded schedule and searches for `limit` wall-clock seconds; ``search.cut``: they ended the search.
    The model does not know an all_reduce that sums chunks elsewhere than at their homes: it is returned as it is.
    Raises AlgorithmError: too many ranks, a model that is too large, transfers that take no time, or no solver.
    """
    network, demand = schedule.network, schedule.demand
    admit(network.ranks, limit)
    if not schedule.recorded:
        raise AlgorithmError("exact", "transfers were counted only", "let them be recorded")
    # The model knows no transfer that waits in a switch: its proofs do not hold for those.
    queues = not network.direct and not len(network.occupied_start)
    waitless = schedule.start + schedule.timing.delay[demand.size_class[schedule.chunk], schedule.arc]
    if queues and (schedule.arrival != waitless).any():
        return schedule
    away = schedule.reduces & (schedule.src == demand.origin[schedule.chunk])
    if schedule.optimal or away.any():
        return schedule
    if network.arcs * demand.count > MAX_PAIRS:
        problem = f"{network.arcs} arcs and {demand.count} chunks are more than {MAX_PAIRS} pairs of them"
        raise AlgorithmError("exact", problem, "use fewer chunks")
    if int(schedule.timing.delay.min(initial=1)) == 0:
        raise AlgorithmError("exact", "there are transfers that take no time", "give links a latency")
    begin = time.monotonic()
    best, bound, cut = schedule, schedule.bound, False

    def left(share: float = 1.0) -> float:
        return share * limit - (time.monotonic() - begin)

    def consider(transfers: Transfers) -> None:
        nonlocal best
        found = as_schedule(network, demand, transfers, schedule.search)
        problems = check(found)
        if problems:
            raise InternalError(f"a schedule of the exact mode is wrong: {problems[0]}")
        best = min(best, found, key=lambda s: s.time)

    if demand.collective == "all_reduce":
        parts = []
        for index, (reduces, net) in enumerate(((True, network.reversed), (False, network))):
            columns, least, stopped = _fastest(net, demand, _half(schedule, reduces), 0, seed, left((index + 1) / 3))
            bound, cut = max(bound, least), cut or stopped
            parts.append(columns)
        summed = mirrored(network, demand, parts[0])
        barrier = _last(network.reversed, demand, parts[0])
        consider(chained(summed, copied(parts[1]), barrier))
        if best.time > bound and left() > 0:
            outcome = Model(Problem.of(network, demand, sums=True), bound, best.time - 1).solve(seed, left(), None)
            cut = cut or outcome.cut
            if outcome.columns is not None:
                consider(outcome.columns)
    else:
        net = network.reversed if demand.reduces else network
        columns, least, cut = _fastest(net, demand, _half(schedule, demand.reduces), bound, seed, left())
        bound = max(bound, least)
        consider(mirrored(network, demand, columns) if demand.reduces else copied(columns))
    if queues:
        bound = schedule.bound
    if bound > best.time:
        raise InternalError(f"the exact mode proves {bound} ps of what takes {best.time} ps")
    how = schedule.search
    how = replace(
        how, policy=how.policy + "; then exact" * (best is not schedule), cut=how.cut or (cut and best.time > bound),
        seconds=how.seconds + time.monotonic() - begin,
    )  # fmt: skip
    kind = "exact" if bound > schedule.bound else schedule.bound_kind
    return replace(best, bound=bound, bound_kind=kind, search=how)


def _half(schedule: Schedule, reduces: bool) -> Columns:
    """The copies of a schedule; or its sums, as copies on the reversed network."""
    rows = np.flatnonzero(schedule.reduces == reduces)
    arc, chunk, start, arrival = (c[rows] for c in (schedule.arc, schedule.chunk, schedule.start, schedule.arrival))
    if not reduces:
        return arc, chunk, start - int(start.min(initial=2**62))
    place = np.argsort(schedule.network.reversed.base_arc)
    begin = int(arrival.max()) - arrival
    order = np.argsort(begin, kind="stable")
    return place[arc][order], chunk[order], begin[order]


def _last(network: Network, demand: Demand, columns: Columns) -> int:
    """When the last of these transfers arrives, ps."""
    arc, chunk, start = columns
    delay = network.timing(demand.sizes).delay
    return int((start + delay[demand.size_class[chunk], arc]).max(initial=0))


def _fastest(
    network: Network, demand: Demand, known: Columns, floor: int, seed: int, seconds: float
) -> tuple[Columns, int, bool]:
    """(columns, bound, cut) of the fastest copying schedule: first one as symmetric as the network, then any."""
    begin = time.monotonic()
    best, most, cut = known, _last(network, demand, known), False
    symmetric = symmetric_network(network, demand) if len(demand.sizes) == 1 else None
    if symmetric is not None and most > floor:
        problem = Problem.up_to(symmetric)
        model = Model(problem, floor, most - problem.unit)
        outcome = model.solve(seed, (seconds - (time.monotonic() - begin)) / 2, _SYMMETRIC_WORK)
        cut = outcome.cut
        if outcome.columns is not None:
            rotated = symmetric.rotated(outcome.columns[:3])
            order = np.argsort(rotated[2], kind="stable")
            best = tuple(column[order] for column in rotated)
            most = _last(network, demand, best)
    if most <= floor:
        return best, floor, False
    outcome = Model(Problem.of(network, demand), floor, most - 1).solve(
        seed, seconds - (time.monotonic() - begin), None
    )
    if outcome.columns is not None:
        best = outcome.columns[:3]
    return best, max(floor, outcome.bound), cut or outcome.cut
