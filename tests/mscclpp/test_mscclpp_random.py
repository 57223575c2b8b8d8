"""Random plans: the verifier flags those in which an independent run finds accesses that nothing orders."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from oracle.mscclpp_cells import shape_of
from oracle.mscclpp_events import Execution
from oracle.mscclpp_oracle import unordered
from oracle.mscclpp_random import RandomPlan

from astrasim_py.mscclpp.reader import parse_plan
from astrasim_py.mscclpp.verify import verify_plan


def judge(seed):
    """Whether threads race, or never end, in one call or in two; whether the verifier says so, and as a fault."""
    plan = RandomPlan(Random(seed)).document()
    runs = [Execution(plan, shape_of(plan), calls) for calls in (1, 2)]
    verdict = verify_plan(parse_plan(json.dumps(plan).encode()))
    warned = verdict.facts.weak_exits or any("proxy" in warning for warning in verdict.warnings)
    return any(run.stuck or unordered(run) for run in runs), warned or not verdict.passes, not verdict.passes


def check(seeds):
    counts = Counter()
    for seed in seeds:
        races, said, flagged = judge(seed)
        assert said or not races, seed
        counts.update(races=races, alarms=flagged and not races, fine=not races and not flagged)
    # Where one thread waits and then signals itself, the verifier wants a nop all the same.
    assert counts["alarms"] * 50 < len(seeds)
    assert min(counts["races"], counts["fine"]) * 4 > len(seeds)


def test_flags_random_plans_whose_threads_race():
    check(range(200))


@pytest.mark.nightly
def test_flags_many_random_plans_whose_threads_race():
    check(range(200, 10_000))
