"""What goes beyond 63 bits is refused by both engines, with the same words and the name of the job that does."""

from __future__ import annotations

import dataclasses

import pytest

from astrasim_py.api import build_topology
from astrasim_py.core.errors import SimulationError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.system.machine_models import Limits
from astrasim_py.workload.items import Compute
from astrasim_py.workload.microbenchmarks import generate

RING = {"shape": "ring", "npus": 4, "latency": "500 ns"}
WORDS = "its times or its bytes on a link go beyond 2^63 - 1"


def refused(problem, engine: str, level: str) -> str:
    with pytest.raises(SimulationError, match=WORDS.replace("^", r"\^")) as found:
        simulate(problem, engine=engine, level=level)
    text = str(found.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical"])
@pytest.mark.parametrize("level", ["summary", "links", "messages"])
@pytest.mark.parametrize(
    ("bandwidth", "size"),
    [("1 B/s", 2**62), ("1 B/s", 8_000_000), ("1 EB/s", 2**63 - 4)],
    ids=["one message", "times in sum", "bytes in sum"],
)
def test_both_engines_refuse_alike(model, level, bandwidth, size):
    topology = build_topology(**RING, bandwidth=bandwidth)
    problem = collective("all_reduce", size, topology, algorithm="ring", model=model)
    simpy, compiled = (refused(problem, engine, level) for engine in ("simpy", "compiled"))
    assert simpy == compiled
    assert simpy.startswith("all_reduce: ")


def test_of_a_limit_and_numbers_beyond_the_engines_may_tell_either():
    topology = build_topology(**RING, bandwidth="1 B/s")
    (job,) = collective("all_reduce", 4, topology, algorithm="ring").jobs
    job = dataclasses.replace(job, workload=generate([Compute(time=10**6), Compute(time=9_223_372_036_854 * 10**6)], 4))
    limits = Limits(max_sim_time_ps=10**12)
    problem = dataclasses.replace(collective("all_reduce", 4, topology), jobs=(job,), limits=limits)
    assert simulate(problem, engine="simpy").outcome.status == "limit"
    for engine in ("compiled", "both"):
        refused(problem, engine, "links")


def test_what_just_fits_is_run_alike():
    topology = build_topology(**RING, bandwidth="1 B/s")
    problem = collective("all_reduce", 6_000_000, topology, algorithm="ring")
    ends = {simulate(problem, engine=engine).makespan for engine in ("simpy", "compiled")}
    assert ends == {6 * (1_500_000 * 10**12 + 500_000)}


@pytest.mark.parametrize("which", [0, 1])
def test_the_job_that_goes_beyond_is_named(which):
    topology = build_topology(**RING, bandwidth="1 B/s")
    two = build_topology(**{**RING, "npus": 2}, bandwidth="1 B/s")
    jobs = []
    for number in range(2):
        (job,) = collective("all_reduce", 2**62 if number == which else 4, two, algorithm="ring").jobs
        jobs.append(dataclasses.replace(job, name=f"part {number}", placement=(2 * number, 2 * number + 1)))
    problem = dataclasses.replace(collective("all_reduce", "4 B", topology), jobs=tuple(jobs))
    texts = {refused(problem, engine, "links") for engine in ("simpy", "compiled")}
    assert len(texts) == 1
    assert texts.pop().startswith(f"part {which}: ")
