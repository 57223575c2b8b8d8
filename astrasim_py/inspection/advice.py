"""What would make a run faster: changes of the machine, each simulated."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.report.explain import Explanation
from astrasim_py.system.problem import Problem
from astrasim_py.topology.model import Topology

#: Message-hops and nodes of a run up to which changes are simulated.
_MOST = 500_000
#: Least share of the critical path that a change must shorten to be tried, and least gain that is shown.
_LEAST = 0.01
#: A change of one link or rank is shown instead of one of all if it has this fraction of its gain.
_NEARLY = 0.9
#: Kinds of links, by bandwidth and latency, of which more bandwidth is tried.
_KINDS = 3
#: What takes less time where links have more bandwidth.
_ON_LINKS = ("serialization", "queueing", "sharing", "transfer")


class Change(NamedTuple):
    """A change of the machine. `kind`: of several of one kind only one is shown. `gain`: part of the makespan saved."""

    kind: str
    what: str
    problem: Problem
    gain: float = 0.0


def advice(problem: Problem, explanation: Explanation, cost: int) -> str:
    """One sentence on what would make a run faster. `cost`: its message-hops and nodes. Empty where nothing is known.

    Twice the bandwidth of a link or of all like it, half the latency, compute twice as fast: each is simulated, the
    algorithms and all else being as they are.
    """
    if not explanation.makespan:
        return ""
    if cost > _MOST:
        return _of_path(explanation)
    tried: dict[str, Change] = {}
    for change in changes(problem, explanation):
        gain = gain_of(change.problem, explanation.makespan)
        before = tried.get(change.kind)
        if before is None or gain > before.gain / _NEARLY:
            tried[change.kind] = change._replace(gain=gain)
    if not tried:
        return ""
    best, *rest = sorted(tried.values(), key=lambda change: -change.gain)
    if best.gain < _LEAST:
        return f"{' or '.join(c.what for c in tried.values())} would save less than 1 % (simulated)"
    gains = [f"{change.what} {_percent(change.gain)}" for change in rest if change.gain >= _LEAST]
    return f"{best.what} would save {_percent(best.gain)}{', ' if gains else ''}{', '.join(gains)} (simulated)"


def _percent(gain: float) -> str:
    return f"{100 * gain:.0f} %" if gain >= 0.095 else f"{100 * gain:.1f} %"


def gain_of(problem: Problem, before: int) -> float:
    """The part of a makespan (ps) that a changed problem saves; below 0 where it takes longer or does not end."""
    try:
        records = simulate(problem, level="summary")
    except AstraError:
        return -1.0
    return 1 - records.makespan / before if records.outcome.status == "done" else -1.0


def changes(problem: Problem, explanation: Explanation) -> Iterator[Change]:
    """Changes that shorten what the critical path consists of, those of one link or rank before those of all."""
    topology, worth = problem.topology, _LEAST * explanation.makespan
    on_link: dict[int, int] = {}
    on_rank: dict[int, int] = {}
    for piece in explanation.path:
        took = piece.end - piece.start
        if piece.link >= 0 and piece.category in _ON_LINKS:
            on_link[piece.link] = on_link.get(piece.link, 0) + took
        elif piece.category == "compute":
            on_rank[piece.rank] = on_rank.get(piece.rank, 0) + took
    if sum(on_link.values()) > worth:
        for link, alike in _slowest(topology, on_link):
            name = f"{topology.vertex_name(int(topology.src[link]))}->{topology.vertex_name(int(topology.dst[link]))}"
            count = int(alike.sum())
            yield _bandwidth(problem, f"twice the bandwidth of {name}", np.arange(topology.links) == link)
            if 1 < count < topology.links:
                yield _bandwidth(problem, f"twice the bandwidth of {name} and the {count - 1} links like it", alike)
        yield _bandwidth(problem, "twice the bandwidth of all links", np.ones(topology.links, dtype=bool))
    if explanation.totals["latency"] > worth:
        shorter = replace(topology, latency_ps=topology.latency_ps // 2)
        yield Change("latency", "half the latency of all links", replace(problem, topology=shorter))
    if sum(on_rank.values()) > worth:
        rank = max(on_rank, key=lambda number: (on_rank[number], -number))
        yield _compute(problem, f"compute twice as fast on rank {rank}", {rank})
        yield _compute(problem, "compute twice as fast on all ranks", set(range(sum(j.ranks for j in problem.jobs))))


def _slowest(topology: Topology, on_link: dict[int, int]) -> Iterator[tuple[int, np.ndarray]]:
    """Of the links on which a path spends time (ps) the first of each kind, and which links are of its kind."""
    kinds = np.zeros(topology.links, dtype=bool)
    listed = 0
    for link in sorted(on_link, key=lambda number: (-on_link[number], number)):
        if not kinds[link] and listed < _KINDS:
            same_rate = topology.bandwidth_class == topology.bandwidth_class[link]
            alike = same_rate & (topology.latency_ps == topology.latency_ps[link])
            kinds, listed = kinds | alike, listed + 1
            yield link, alike


def _bandwidth(problem: Problem, text: str, links: np.ndarray) -> Change:
    return Change("bandwidth", text, replace(problem, topology=with_twice_the_bandwidth(problem.topology, links)))


def with_twice_the_bandwidth(topology: Topology, links: np.ndarray) -> Topology:
    """A topology with twice the bandwidth of some links (bool[links])."""
    rates = [topology.bandwidths[code] for code in topology.bandwidth_class.tolist()]
    rates = [2 * rate if twice else rate for rate, twice in zip(rates, links.tolist(), strict=True)]
    distinct = sorted(set(rates))
    codes = {rate: code for code, rate in enumerate(distinct)}
    classes = np.array([codes[rate] for rate in rates], dtype=np.int32)
    return replace(topology, bandwidths=tuple(distinct), bandwidth_class=classes)


def _compute(problem: Problem, text: str, ranks: set[int]) -> Change:
    jobs, first = [], 0
    for job in problem.jobs:
        speeds = {
            rank: 2 * Fraction(job.compute_speed.get(rank, 1)) for rank in range(job.ranks) if first + rank in ranks
        }
        jobs.append(replace(job, compute_speed={**job.compute_speed, **speeds}))
        first += job.ranks
    return Change("compute", text, replace(problem, jobs=tuple(jobs)))


def _of_path(explanation: Explanation) -> str:
    """The largest part of the critical path, where changes would take too long to simulate."""
    category = max(explanation.totals, key=lambda name: explanation.totals[name])
    spent = explanation.waits(category)
    detail = f", most of it on {spent[0][0]}" if spent and category in (*_ON_LINKS, "latency") else ""
    share = 100 * explanation.totals[category] / explanation.makespan
    return f"shorten {category}: {share:.0f} % of the critical path{detail} (too large to simulate changes of it)"
