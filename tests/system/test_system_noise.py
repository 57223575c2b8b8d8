"""Noise of compute: reproducible draws of the right distribution, and what barriers make of them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from astrasim_py.core.errors import AstraError, FoldError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.noise import Detours, Noise, logarithm

US = 10**6


def problem_of(folder, ranks: int, noise: str, *, iterations: int = 400, name: str = "a", compute: str = "0 us"):
    """Iterations of compute and a barrier over links without latency."""
    path = folder / "noise.yaml"
    path.write_text(
        f"name: noise\ntopologies: {{net: {{shape: switch, npus: {ranks}, bandwidth: 50 GB/s, latency: 0 ns}}}}\n"
        f'jobs: {{{name}: {{placement: ["0-{ranks - 1}"], iterations: {iterations}, '
        f"workload: [{{compute: {{time: {compute}}}}}, barrier]}}}}\nnoise: {noise}\n"
    )
    return prepare(expand(load_scenario(path))[0]).problem


def drawn(noise: Noise, job: str = "a", rank: int = 0, count: int = 20_000) -> np.ndarray:
    return noise.times(job, rank, np.arange(count, dtype=np.uint64), 1, count - 1)


def test_the_logarithm_is_that_of_the_library():
    values = np.concatenate([2.0 ** -np.arange(54.0), np.linspace(2.0**-53, 1, 5001), [0.5, 0.7071067811865476]])
    expected = np.array([math.log(value) for value in values])
    assert np.allclose(logarithm(values), expected, rtol=4e-16, atol=3e-16)
    assert logarithm(1.0) == 0


def test_draws_have_their_distribution_and_follow_all_that_they_are_of():
    exponential = drawn(Noise(seed=1, compute={"exponential": 10 * US}))
    assert exponential.min() >= 0
    assert abs(exponential.mean() - 10 * US) < 4 * 10 * US / math.sqrt(len(exponential))
    assert abs(np.median(exponential) - 10 * US * math.log(2)) < 0.3 * US
    uniform = drawn(Noise(seed=1, compute={"uniform": (5 * US, 20 * US)}))
    assert 5 * US <= uniform.min() < 5.01 * US and 19.99 * US < uniform.max() <= 20 * US
    assert abs(uniform.mean() - 12.5 * US) < 0.1 * US
    for other in (
        drawn(Noise(seed=2, compute={"exponential": 10 * US})),
        drawn(Noise(seed=1, compute={"exponential": 10 * US}), rank=1),
        drawn(Noise(seed=1, compute={"exponential": 10 * US}), job="b"),
    ):
        assert abs(np.corrcoef(exponential, other)[0, 1]) < 0.03
    assert exponential[:3].tolist() == [6_111_266, 29_955_931, 28_475_992]  # on every machine


@pytest.mark.parametrize("ranks", [8, 64])
def test_a_barrier_waits_for_the_slowest_of_its_ranks(tmp_path, ranks):
    """The greatest of n exponential times of mean m has the mean m H_n, the variance m^2 (1 + 1/4 + … + 1/n^2)."""
    k, mean = 300, 10 * US
    problem = problem_of(tmp_path, ranks, "{seed: 3, compute: {exponential: 10 us}}", iterations=k)
    engine = "both" if ranks == 8 else "compiled"
    records = simulate(problem, engine=engine, level="summary")
    harmonic, squares = (sum(i**-p for i in range(1, ranks + 1)) for p in (1, 2))
    assert abs(records.makespan - k * mean * harmonic) <= 3 * mean * math.sqrt(k * squares)


def test_noise_is_added_to_compute_and_stays_with_its_job(tmp_path):
    noise = "{seed: 3, compute: {uniform: [7 us, 7 us]}}"
    records = simulate(problem_of(tmp_path, 2, noise, iterations=5, compute="3 us"), engine="both", level="summary")
    assert records.makespan == 5 * 10 * US
    noise = "{seed: 3, compute: {exponential: 7 us}}"
    times = {
        name: simulate(problem_of(tmp_path, 2, noise, iterations=5, name=name), engine="both", level="summary").makespan
        for name in ("a", "b")
    }
    assert times["a"] != times["b"]


def test_under_noise_ranks_are_not_folded(tmp_path):
    problem = problem_of(tmp_path, 4, "{compute: {exponential: 1 us}}", iterations=2)
    with pytest.raises(FoldError, match="ranks compute under different noise"):
        simulate(problem, engine="compiled", level="summary", fold=True)


def test_the_closed_form_of_a_step_refuses_noise(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\ntopologies: {net: {shape: ring, npus: 2, bandwidth: 50 GB/s, latency: 1 us}}\n"
        "compute: {preset: dgx_a100}\nworkload: {training: {model: gpt3-22b, gbs: 2, tp: 2}}\n"
        "noise: {compute: {exponential: 1 us}}\n"
    )
    with pytest.raises(AstraError, match="noise: is not known to the closed form; drop it"):
        estimate(expand(load_scenario(path))[0])


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ("{seed: 1}", "noise: has neither compute nor detours"),
        ("{compute: {}}", "noise.compute: .*write exponential: 10 us, or uniform"),
        ("{compute: {exponential: 1 us, uniform: [0 us, 1 us]}}", "noise.compute: has both distributions"),
        ("{compute: {normal: 1 us}}", "noise.compute.normal"),
        ("{compute: {uniform: [2 us, 1 us]}}", "noise.compute: the second time is less than the first"),
        ("{compute: {exponential: 2000 h}}", "noise.compute"),
        ("{compute: {exponential: 90000 s}}", "noise.compute: more than a day; write less"),
        ("{seed: -1, compute: {exponential: 1 us}}", "noise.seed: -1 is less than 0"),
        ("{compute: {exponential: 1 us}, detours: {period: 1 ms}}", 'noise.detours: "length" is missing'),
        ("{detours: {period: 1 ms, length: 1 ms}}", "noise.detours.length: .*not between 0 and the period"),
        ("{detours: {period: 1 ms, length: 0 ms}}", "noise.detours.length: .*not between 0 and the period"),
        ("{detours: {period: 90000 s, length: 1 ms}}", "noise.detours.period: more than a day; write less"),
    ],
)
def test_wrong_noise_is_refused_in_a_line(tmp_path, noise, said):
    with pytest.raises(AstraError, match=said) as raised:
        problem_of(tmp_path, 2, noise)
    assert len(raised.value.lines()) == 1


def by_force(now: int, work: int, phase: int, period: int, length: int) -> int:
    """The end of work, one ps after the other."""
    while work:
        work -= (now - phase) % period >= length
        now += 1
    return now


def test_the_end_of_interrupted_work_is_that_of_counting_every_ps():
    rng = random.Random(1)
    for _ in range(4000):
        period = rng.randint(2, 12)
        length, phase = rng.randint(1, period - 1), rng.randrange(period)
        now, work = rng.randint(0, 40), rng.randint(1, 60)
        assert Detours(period=period, length=length).end(now, work, phase) == by_force(now, work, phase, period, length)


def test_detours_take_their_share_of_compute_and_differ_by_rank(tmp_path):
    noise = "{seed: 3, detours: {period: 1 ms, length: 10 us}}"
    problem = problem_of(tmp_path, 8, noise, iterations=1, compute="990 ms")
    phases = problem.noise.phases("a", 8)
    assert len(set(phases.tolist())) == 8 and (phases >= 0).all() and (phases < 10**9).all()
    records = simulate(problem, engine="both", level="nodes")
    ends = [problem.noise.detours.end(0, 990 * 10**9, int(phase)) for phase in phases]
    assert records.makespan == max(ends)
    assert all(abs(end - 10**12) <= 10 * US for end in ends)  # 990 of every 1000 us compute


def test_both_engines_interrupt_alike_and_after_random_times(tmp_path):
    noise = "{seed: 5, compute: {exponential: 3 us}, detours: {period: 7 us, length: 2 us}}"
    records = simulate(problem_of(tmp_path, 8, noise, iterations=40, compute="1 us"), engine="both", level="messages")
    plain = simulate(problem_of(tmp_path, 8, "{seed: 5, compute: {exponential: 3 us}}", iterations=40, compute="1 us"))
    assert records.makespan > plain.makespan


def test_a_time_beyond_63_bits_is_an_error_in_both_engines(tmp_path):
    problem = problem_of(tmp_path, 2, "{detours: {period: 1 s, length: 999999999999 ps}}", iterations=1, compute="1 s")
    for engine in ("simpy", "compiled"):
        with pytest.raises(AstraError, match="63"):
            simulate(problem, engine=engine)
