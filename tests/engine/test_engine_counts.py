"""Every builder's collectives on numbers of ranks and chunks around powers of two: compiled as with SimPy.

Where SimPy would take more than about a second, the compiled run must end, and meet the closed form or keep the bound.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction

import pytest
from worlds.bounds import lower_bound_ps

from astrasim_py.builders.registry import BUILDERS, IN_NETWORK, build, options_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.compare import differences
from astrasim_py.engine.compiled.state import State
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import build as topology_of
from astrasim_py.verification.bounds import CLOSED_FORMS, closed_form_ps
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

COUNTS = sorted({2**k + more for k in range(1, 11) for more in (-1, 0, 1)} - {1})
CASES = [(name, collective) for name, (collectives, _) in BUILDERS.items() for collective in collectives]
CHUNKED = [case for case in CASES if "chunks" in options_of(case[0]) and case[1] != "barrier"]
#: Messages that SimPy carries in a fraction of a second, and that any run here has.
FEW, MOST = 4_000, 2_200_000
RATE, ALPHA = Fraction(50 * 10**9), 500_000


@pytest.fixture
def tight(monkeypatch):
    """Tables that begin small grow at many more counts."""
    monkeypatch.setattr(State, "rows", 1)
    monkeypatch.setattr(State, "spare", 1)


def dims_of(ranks: int) -> list[int] | None:
    """Two dimensions of so many ranks; None for a prime number."""
    first = next((d for d in range(2, int(ranks**0.5) + 1) if ranks % d == 0), None)
    return None if first is None else [first, ranks // first]


def made(name: str, collective: str, ranks: int, **options) -> Algorithm | None:
    """An algorithm; None where it is not defined for so many ranks."""
    if name == "hierarchical":
        options["dims"] = dims_of(ranks)
        if options["dims"] is None:
            return None
    try:
        return dataclasses.replace(build(name, collective, ranks, **options), verdict=True)
    except AlgorithmError as error:
        assert "ranks" in str(error)
        return None


class Only:
    def __init__(self, algorithm):
        self.algorithm = algorithm

    def select(self, *_, **__):
        return self.algorithm


def check(name: str, algorithm: Algorithm, size: int) -> str:
    """Compare a run with what it must be; returns with what."""
    n, collective = algorithm.ranks, algorithm.collective
    switches = {"switches": {"reduce_bandwidth": "400 GB/s"}} if name in IN_NETWORK else {}
    keys = {"shape": "switch", "npus": n, "bandwidth": "50 GB/s", "latency": "500 ns"} | switches
    topology = topology_of(keys, written=True)
    job = Job(
        workload=generate([Collective(type=collective, size=size)], n),
        placement=tuple(range(n)),
        algorithms=Only(algorithm),
    )
    plan = plan_for(Problem(topology=topology, jobs=(job,)), bounds=False)
    level = "messages" if plan.messages <= FEW // 4 else "summary"
    compiled = simulate(plan, engine="compiled", level=level)
    assert compiled.outcome.status == "done"
    if plan.messages <= FEW:
        assert differences(simulate(plan, engine="simpy", level=level), compiled) == []
        return "SimPy"
    assert compiled.makespan >= lower_bound_ps(collective, size, topology, range(n))
    # That of `direct` is for links of each pair's own.
    if (name, collective) in CLOSED_FORMS and name != "direct" and algorithm.chunks <= n:
        try:
            # Two links a message.
            wanted = closed_form_ps(name, collective, n, size, 2 * ALPHA, RATE)
        except AlgorithmError:
            return "bound"
        assert compiled.makespan == wanted
        return "closed form"
    return "bound"


def sweep(name: str, algorithms) -> None:
    """Check algorithms of a builder; some of them with SimPy."""
    held: Counter[str] = Counter()
    for algorithm in algorithms:
        if algorithm is not None and algorithm.messages <= MOST:
            held[check(name, algorithm, algorithm.ranks * 1000)] += 1
    assert held["SimPy"]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "collective"), CASES)
def test_ranks(name, collective):
    sweep(name, (made(name, collective, ranks) for ranks in COUNTS))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "collective"), CASES)
def test_ranks_in_tables_that_begin_small(tight, name, collective):
    sweep(name, (made(name, collective, ranks) for ranks in COUNTS if ranks <= 65))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("name", "collective"), CHUNKED)
def test_chunks(name, collective, ranks):
    sweep(name, (made(name, collective, ranks, chunks=chunks) for chunks in COUNTS))


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_few_ranks(name, collective):
    sweep(name, (made(name, collective, ranks) for ranks in (2, 4, 9)))
