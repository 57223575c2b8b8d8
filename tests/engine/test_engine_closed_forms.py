"""Closed forms, exactly, in picoseconds: what a lecturer writes on the board is what the engine says."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from worlds.bounds import lower_bound_ps

from astrasim_py.builders.registry import build
from astrasim_py.core.units import transfer_ps
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.verification.bounds import closed_form_ps
from astrasim_py.workload.items import Collective, Send
from astrasim_py.workload.microbenchmarks import generate

RATE = Fraction(50 * 10**9)
ALPHA = 500_000
CHUNK = 1 << 16
SIZES = (2, 3, 4, 7, 8, 16, 64)
MODELS = ("cut_through", "store_and_forward", "analytical")


class One:
    def __init__(self, algorithm):
        self.algorithm = algorithm

    def select(self, *_, **__):
        return self.algorithm


def time_of(topology, algorithm, collective, size, model="cut_through", gamma=Fraction(0)) -> int:
    n = topology.npus
    made = dataclasses.replace(build(algorithm, collective, n), verdict=True)
    problem = Problem(
        topology=topology,
        jobs=(
            Job(
                workload=generate([Collective(type=collective, size=size)], n),
                placement=tuple(range(n)),
                algorithms=One(made),
            ),
        ),
        network=NetworkModel(model=model),
        semantics=Semantics.native(gamma=gamma),
    )
    records = simulate(problem, engine="both", level="summary")
    assert records.outcome.status == "done"
    if model != "analytical":
        assert records.makespan >= lower_bound_ps(collective, size, topology, range(n))
    return records.makespan


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ring_on_a_ring(collective, n, model):
    size = n * CHUNK
    expected = closed_form_ps("ring", collective, n, size, ALPHA, RATE)
    assert (
        time_of(shapes.Ring(npus=n, bandwidth=RATE, latency=ALPHA).build(), "ring", collective, size, model) == expected
    )
    steps = 2 * (n - 1) if collective == "all_reduce" else n - 1
    assert expected == steps * (ALPHA + transfer_ps(CHUNK, RATE))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "reduce_scatter"])
def test_direct_when_everyone_is_linked_to_everyone(collective, n, model):
    size = n * CHUNK
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=ALPHA).build()
    assert time_of(topology, "direct", collective, size, model) == ALPHA + transfer_ps(CHUNK, RATE)


@pytest.mark.parametrize("n", SIZES)
def test_direct_all_reduce_is_two_exchanges(n):
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=ALPHA).build()
    expected = 2 * (ALPHA + transfer_ps(CHUNK, RATE))
    assert time_of(topology, "direct", "all_reduce", n * CHUNK) == expected


@pytest.mark.parametrize("n", SIZES)
def test_binomial_reduce_then_broadcast(n):
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=ALPHA).build()
    expected = closed_form_ps("binomial_tree", "all_reduce", n, CHUNK, ALPHA, RATE)
    assert time_of(topology, "binomial_tree", "all_reduce", CHUNK) == expected
    assert expected == 2 * (n - 1).bit_length() * (ALPHA + transfer_ps(CHUNK, RATE))


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_halving_doubling_on_powers_of_two(collective, n):
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=ALPHA).build()
    size = n * CHUNK
    expected = closed_form_ps("halving_doubling", collective, n, size, ALPHA, RATE)
    assert time_of(topology, "halving_doubling", collective, size) == expected


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_recursive_doubling_on_powers_of_two(n):
    topology = shapes.FullyConnected(npus=n, bandwidth=RATE, latency=ALPHA).build()
    expected = closed_form_ps("recursive_doubling", "all_reduce", n, CHUNK, ALPHA, RATE)
    assert time_of(topology, "recursive_doubling", "all_reduce", CHUNK) == expected


@pytest.mark.parametrize("n", SIZES)
def test_reductions_cost_gamma(n):
    gamma = Fraction(1, 10**11)
    size = n * CHUNK
    expected = closed_form_ps("ring", "all_reduce", n, size, ALPHA, RATE, gamma)
    topology = shapes.Ring(npus=n, bandwidth=RATE, latency=ALPHA).build()
    reduce_ps = -(-CHUNK * gamma.numerator * 10**12 // gamma.denominator)
    assert time_of(topology, "ring", "all_reduce", size, gamma=gamma) == (
        2 * (n - 1) * (ALPHA + transfer_ps(CHUNK, RATE)) + (n - 1) * reduce_ps
    )
    assert expected <= time_of(topology, "ring", "all_reduce", size, gamma=gamma) < expected + n


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 12345])
def test_one_message_over_many_links(nbytes):
    topology = shapes.Mesh(dims=[5], bandwidth=Fraction(3 * 10**9), latency=700).build()
    times = {}
    for model in MODELS:
        problem = Problem(
            topology=topology,
            jobs=(
                Job(
                    workload=generate([Send(source=0, to=4, size=nbytes)], 5),
                    placement=tuple(range(5)),
                    algorithms=One(None),
                ),
            ),
            network=NetworkModel(model=model),
        )
        times[model] = simulate(problem, engine="both").makespan
    length = transfer_ps(nbytes, Fraction(3 * 10**9))
    assert times["analytical"] == times["cut_through"] == 4 * 700 + length
    assert times["store_and_forward"] == 4 * (700 + length)


def test_chunks_that_do_not_divide_cost_the_larger_one():
    topology = shapes.Ring(npus=3, bandwidth=Fraction(10**9), latency=0).build()
    # 10 bytes in 3 chunks: 3, 3 and 4 bytes; every step waits for the 4-byte chunk somewhere on the ring.
    slow = time_of(topology, "ring", "all_gather", 10)
    assert 2 * 3 * 1000 < slow <= 2 * 4 * 1000
