"""Pipeline schedules: complete, executable in their own order, with the bubbles and activations of their forms."""

from fractions import Fraction
from itertools import product

import pytest

from astrasim_py.training.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    SPLIT_BACKWARD,
    WEIGHT,
    bubble,
    programs,
    virtual_stage,
)

CHUNKS = {"interleaved": (2, 4), "zbv": (2,)}
CASES = [(schedule, v) for schedule in SCHEDULES for v in CHUNKS.get(schedule, (1,))]


def makespan(schedule: str, p: int, m: int, v: int, times: tuple[int, int, int]) -> Fraction:
    """Time of the programs by the recurrence: a block starts after the one before it and after its input."""
    forward, grad, weight = times
    lasts = {FORWARD: forward, BACKWARD: grad if schedule in SPLIT_BACKWARD else grad + weight, WEIGHT: weight}
    left = [rows.tolist() for rows in programs(schedule, p, m, v, times)]
    done, free, stages = {}, [0] * p, p * v
    while any(left):
        moved = False
        for rank in range(p):
            while left[rank]:
                kind, k, chunk = left[rank][0]
                stage = virtual_stage(schedule, p, rank, chunk)
                needs = {
                    FORWARD: [(FORWARD, stage - 1, k)] if stage else [],
                    BACKWARD: [(FORWARD, stage, k)] + ([(BACKWARD, stage + 1, k)] if stage + 1 < stages else []),
                    WEIGHT: [(BACKWARD, stage, k)],
                }[kind]
                if any(need not in done for need in needs):
                    break
                free[rank] = max(free[rank], *(done[need] for need in needs), 0) + lasts[kind]
                done[kind, stage, k] = free[rank]
                left[rank].pop(0)
                moved = True
        assert moved, "the programs wait for each other"
    return Fraction(max(free), v)


@pytest.mark.parametrize("schedule, v", CASES)
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 2, 1), (2, 6, 4), (2, 2, 4), (2, 5, 0), (4, 3, 1)])
def test_bubbles_equal_their_forms(schedule, v, times):
    for p, m in product((2, 4, 8), (1, 2, 3, 5, 7, 8, 9, 15, 16, 24)):
        if schedule == "zbv" and (times != (1, 1, 1) or m < 2 * p):
            continue  # the form holds for equal times only: see the test below
        if schedule == "interleaved" and m % p:
            continue
        if schedule == "zb_h2" and times[1] < times[0]:
            continue  # its order is that of equal times
        assert makespan(schedule, p, m, v, times) - m * sum(times) == bubble(schedule, p, v, times, m), (p, m)


@pytest.mark.parametrize("schedule", [each for each in SCHEDULES if each != "interleaved"])
def test_shorter_blocks_make_no_step_longer(schedule):
    for p, m in product((1, 2, 4, 8), (1, 2, 5, 8, 16, 64)):
        for times in product((0, 1, 2, 5), repeat=3):
            took = m * sum(times) + bubble(schedule, p, 1, times, m)
            for longer in (0, 1, 2):
                more = [time + (at == longer) for at, time in enumerate(times)]
                assert m * sum(more) + bubble(schedule, p, 1, tuple(more), m) >= took, (p, m, times, more)


@pytest.mark.parametrize(
    "schedule, v, wanted",
    [("gpipe", 1, 21), ("1f1b", 1, 21), ("interleaved", 2, 10.5), ("interleaved", 4, 5.25)]
    + [("zb_h1", 1, 7), ("zb_h2", 1, 7), ("zbv", 2, 3.5)],
)
def test_published_bubbles_of_eight_stages(schedule, v, wanted):
    assert bubble(schedule, 8, v, (1, 1, 1), 64) == wanted


@pytest.mark.parametrize("p, m, wanted", [(4, 8, 5.5), (4, 64, 5.5), (8, 16, 19.5), (8, 64, 19.5)])
def test_v_loses_a_constant_with_unequal_times(p, m, wanted):
    assert makespan("zbv", p, m, 2, (1, 2, 1)) - 4 * m == wanted


@pytest.mark.parametrize("schedule, v", CASES)
@pytest.mark.parametrize("p, m", [(1, 3), (2, 2), (3, 6), (4, 4), (5, 40)])
def test_programs_hold_every_block_once(schedule, v, p, m):
    passes = (FORWARD, BACKWARD, WEIGHT) if schedule in SPLIT_BACKWARD else (FORWARD, BACKWARD)
    for rows in programs(schedule, p, m, v):
        assert sorted(map(tuple, rows.tolist())) == sorted(product(passes, range(m), range(v)))
    makespan(schedule, p, m, v, (1, 1, 1))


@pytest.mark.parametrize(
    "schedule, v, wanted",
    [
        ("gpipe", 1, lambda p, m, rank: m),
        ("1f1b", 1, lambda p, m, rank: min(m, p - rank)),
        ("interleaved", 2, lambda p, m, rank: p * (1 + Fraction(p - 1, p * 2)) - rank),
        ("zb_h1", 1, lambda p, m, rank: p),
        ("zb_h2", 1, lambda p, m, rank: 2 * p - 1),
        ("zbv", 2, lambda p, m, rank: p),
    ],
)
def test_activations_in_flight(schedule, v, wanted):
    for p, m in ((4, 16), (8, 32)):
        for rank, rows in enumerate(programs(schedule, p, m, v)):
            frees = WEIGHT if schedule in SPLIT_BACKWARD else BACKWARD
            live = [0]
            for kind in rows[:, 0].tolist():
                live.append(live[-1] + (kind == FORWARD) - (kind == frees))
            assert Fraction(max(live), v) == wanted(p, m, rank)


@pytest.mark.parametrize(
    "given, text",
    [
        (("dualpipe", 4, 8), "is not one of gpipe"),
        (("1f1b", 4, 8, 2), "1f1b has 1 chunks a rank, not 2"),
        (("zbv", 4, 8, 1), "zbv has 2 chunks"),
        (("interleaved", 4, 6, 2), "multiple of 4 stages, not 6"),
    ],
)
def test_impossible_schedules_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        programs(*given)
