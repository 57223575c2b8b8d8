"""The scenarios after COMET (comet_break_even, comet_clusters, comet_transformer_1t) in closed form, and memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.topology.hardware import ExpandedMemory, preset
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.memory import expand as expand_memory
from astrasim_py.training.memory import peak_memory
from astrasim_py.training.prices import Prices
from astrasim_py.training.recommendation import recommendation_memory
from astrasim_py.training.software import software
from astrasim_py.training.strategy import Layout, Training
from astrasim_py.training.system import System, system

MPS = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES = ("uniform", "placement")
_DEVICE = system("dgx_a100", latency=3e-7, far_latency=1.35e-6)
A100 = replace(_DEVICE, compute=_DEVICE.compute.model_copy(update={"memory": 80 * 10**9}))  # as the study has it


def layout(mp: int, zero: int = 2) -> Layout:
    """A plan of the scenario."""
    keys = {"model": "transformer-1t", "seq": 2048, "gbs": 1024, "recompute": "full", "overlap": {"dp": True}}
    return Training(**keys, tp=mp, mbs=mp, zero=zero).layout(1024)


def seconds(o: Layout, on: System = A100, rails: bool = True, beside: float = 0, policy: str = "uniform") -> float:
    """A step in closed form, with expanded memory of `beside` bytes a second."""
    prices = Prices(on, constants=replace(software("ideal").constants, rails=rails))
    if beside:
        more = ExpandedMemory(size=3 * 10**12, bandwidth=Fraction(beside), latency=0, policy=policy)
        local, rate = on.compute.memory, on.compute.memory_bandwidth
        prices = prices.expanded(expand_memory(o, peak_memory(o), local, rate, more))
    return float(step(terms(o, prices), prices.constants).seconds)


def fits(o: Layout, on: System = A100) -> bool:
    return sum(peak_memory(o).values()) <= on.compute.memory


def test_footprints_of_1t_parameters_are_those_of_the_study():
    for mp, gigabytes in ((8, 280), (64, 59)):
        found = peak_memory(layout(mp))
        state = sum(found[kind] for kind in ("weights", "gradients", "optimizer", "activations"))
        assert state / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert [mp for mp in MPS if fits(layout(mp))] == [64, 128]
    assert fits(layout(1, zero=3))


@pytest.mark.parametrize(("rails", "best"), [(False, 8), (True, 1)])
def test_the_best_layout_depends_on_rings_alone(rails, best):
    assert min((1, 8, 64), key=lambda mp: seconds(layout(mp), rails=rails)) == best


def test_expanded_memory_breaks_even_at_64_gb_per_second():
    enough = seconds(layout(64))
    assert enough == pytest.approx(135.6, abs=0.05)
    assert seconds(layout(8), beside=64e9) == pytest.approx(enough, rel=0.002)


@pytest.mark.parametrize(("beside", "gain"), [(500e9, 1.8), (1e12, 1.9)])
def test_expanded_memory_gains_more_than_the_study_says(beside, gain):
    best = min(seconds(layout(mp), beside=beside) for mp in MPS)
    assert seconds(layout(64)) / best == pytest.approx(gain, abs=0.05)


def test_zero_3_beats_expanded_memory_of_1_tb_per_second():
    larger = [mp for mp in MPS if not fits(layout(mp))]
    best = {policy: min(seconds(layout(mp), beside=1e12, policy=policy) for mp in larger) for policy in POLICIES}
    assert seconds(layout(1, zero=3)) < best["uniform"]
    # Placed by kind it is as good as MP 1, and MP 2 is ahead.
    assert best["placement"] == pytest.approx(seconds(layout(1, zero=3)), rel=0.002)
    assert fits(layout(2, zero=3)) and seconds(layout(2, zero=3)) < best["placement"]


def fastest(name: str, stages: tuple[int, ...]) -> float | None:
    on = system(name)
    found = [seconds(layout(mp, zero), on) for mp in MPS for zero in stages if fits(layout(mp, zero), on)]
    return min(found, default=None)


def test_clusters_differ_in_closed_form():
    base = fastest("dgx_a100", (2, 3))
    gains = {"gb200_nvl72": 6.4, "dgx_h100": 2.6, "dgx_h200": 2.7, "dgx_b200": 4.4, "tpu_v5p": 1.5}
    for name, gain in gains.items():
        assert base / fastest(name, (2, 3)) == pytest.approx(gain, abs=0.06)
    assert fastest("dgx_a100", (2,)) / fastest("gb200_nvl72", (2,)) == pytest.approx(10.2, abs=0.06)
    assert fastest("tpu_v4", (2, 3)) is None and fastest("tpu_v5e", (2, 3)) is None
    assert seconds(layout(4, 3), system("tpu_v5p")) == pytest.approx(44, abs=0.5)


@pytest.mark.slow
def test_a_step_in_enough_memory_simulated(repo):
    points = expand(load_scenario(repo / "scenarios/comet_break_even.yaml"))
    (enough,) = (point for point in points if point.values["memory"] == "80 GB are enough")
    assert simulate(prepare(enough).problem, level="summary", fold=True).makespan / 1e12 == pytest.approx(
        164.1, abs=0.06
    )


def test_a_part_of_the_memory_of_mp_8_is_outside():
    peak = sum(peak_memory(layout(8)).values())
    assert peak / 1e9 == pytest.approx(284, abs=0.6) and 1 - 80e9 / peak == pytest.approx(0.72, abs=0.01)


def test_all_clusters_hold_zero_3():
    for npu in ("dgx_a100", "dgx_h100", "dgx_h200", "mi300x", "dgx_b200", "gb200_nvl72", "tpu_v5p"):
        assert all(sum(peak_memory(layout(mp, 3)).values()) <= preset(npu).compute.memory for mp in (2, 8)), npu


def test_recommendation_on_fewer_npus_with_expanded_memory(repo):
    points = expand(load_scenario(repo / "scenarios/comet_dlrm.yaml"))
    found = {
        tuple(p.values.values()): simulate(prepare(p).problem, level="summary")
        for p in points
        if p.values["nodes"] != "2"
    }
    spans = {key: records.makespan / 1e9 for key, records in found.items()}
    assert [spans["8", rate] for rate in ("250 GB/s", "500 GB/s", "1 TB/s")] == pytest.approx([31.7] * 3, abs=0.05)
    assert float(found["8", "1 TB/s"].exposed_comm.max()) / 1e9 == pytest.approx(18, abs=0.5)
    assert [spans["4", rate] for rate in ("250 GB/s", "500 GB/s", "1 TB/s")] == pytest.approx([66, 58, 53], abs=0.5)
    assert [spans["1", rate] for rate in ("250 GB/s", "500 GB/s", "1 TB/s")] == pytest.approx([630, 335, 187], abs=0.5)
    assert 8 * spans["8", "1 TB/s"] / spans["1", "1 TB/s"] == pytest.approx(1.35, abs=0.005)
    assert spans["1", "500 GB/s"] > 8 * spans["8", "500 GB/s"] > 4 * spans["4", "500 GB/s"]
    spec = points[0].spec.workload.recommendation
    assert spec.model.params_total == pytest.approx(1.2e12, rel=0.01)
    for npus, gigabytes in ((8, 337), (32, 88), (64, 46)):
        held = recommendation_memory(spec.model, npus, spec.batch(npus), **spec.sizes)
        assert sum(held.values()) / 1e9 == pytest.approx(gigabytes, abs=0.5)
