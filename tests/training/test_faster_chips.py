"""A faster chip makes no step longer, and a higher stage of ZeRO needs no more memory: over models and layouts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.memory import peak_memory
from astrasim_py.training.prices import Constants, Prices
from astrasim_py.training.schedules import SCHEDULES
from astrasim_py.training.software import software
from astrasim_py.training.strategy import Layout, Training
from astrasim_py.training.system import System, system

#: Of flat rings, which the problems here have.
SIMULATED = replace(software("ideal").constants, rails=False)

MODELS = ("gpt3-20b", "llama3-8b", "mixtral-8x7b", "llama3-70b")
#: Ranks, tp, pp, cp, ep.
LAYOUTS = [(64, 4, 8, 1, 1), (64, 8, 2, 2, 1), (64, 1, 8, 1, 1), (64, 4, 4, 1, 4), (8, 8, 1, 1, 1), (32, 1, 1, 1, 8)]
OVERLAPS = ({}, {"dp": True}, {"tp": True, "dp": True, "ep": True, "pp": True})
#: Factors on the peak and on the memory bandwidth.
FASTER = [(1.3, 1), (2, 1), (1, 2), (8, 4)]


def layouts(model: str, schedules=SCHEDULES) -> list[Layout]:
    """All that the rules allow."""
    found = []
    for (ranks, tp, pp, cp, ep), schedule, zero in product(LAYOUTS, schedules, range(4)):
        for (mbs, seq), overlap, m in product(((1, 512), (2, 4096)), OVERLAPS, (2, 16)):
            keys = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "schedule": schedule, "zero": zero, "overlap": overlap}
            keys["vp"] = {"interleaved": 2, "zbv": 2}.get(schedule, 1)
            gbs = ranks // (tp * pp * cp) * mbs * m
            try:
                found.append(Training(model=model, seq=seq, mbs=mbs, gbs=gbs, **keys).layout(ranks))
            except ScenarioError:  # e.g. experts of a model without any
                continue
    return found


def faster(chip: System, peak: float, memory: float) -> System:
    rates = {kind: rate * peak for kind, rate in chip.compute.peak.items()}
    more = {"peak": rates, "memory_bandwidth": chip.compute.memory_bandwidth * memory}
    return replace(chip, compute=chip.compute.model_copy(update=more))


def no_faster_chip_is_slower(found: list[Layout]) -> None:
    chip = system("dgx_h100")
    for layout, constants in product(found, (Constants(), SIMULATED)):

        def took(chip: System, layout=layout, constants=constants) -> float:
            return float(step(terms(layout, Prices(chip, constants=constants)), constants).seconds)

        before = took(chip)
        for factors in FASTER:
            assert took(faster(chip, *factors)) <= before * (1 + 1e-9), (layout, factors)


@pytest.mark.parametrize("model", MODELS)
def test_no_step_is_longer_on_a_faster_chip(model) -> None:
    no_faster_chip_is_slower(layouts(model)[MODELS.index(model) :: 97])


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_step_of_many_is_longer_on_a_faster_chip(model, schedule) -> None:
    no_faster_chip_is_slower(layouts(model, [schedule]))


def test_a_chip_faster_by_twice_gains_under_zero_bubble() -> None:
    """Host and memory limit these small micro-batches: weight gradients alone got shorter, which lengthened bubbles."""
    keys = {"model": "gpt3-20b", "seq": 1024, "tp": 4, "pp": 8, "mbs": 2, "zero": 1, "gbs": 128}
    chip = system("dgx_h100")
    for schedule in ("zb_h1", "zb_h2"):
        layout = Training(schedule=schedule, **keys).layout(64)
        times = [
            float(step(terms(layout, Prices(each, constants=Constants())), Constants()).seconds)
            for each in (chip, faster(chip, 2, 1), faster(chip, 4, 1))
        ]
        assert times[0] >= times[1] >= times[2]


@pytest.mark.parametrize("model", MODELS)
def test_a_higher_stage_of_zero_needs_no_more_memory(model) -> None:
    found: dict = {}
    for layout in layouts(model, ("1f1b", "zb_h1", "zbv")):
        key = replace(layout, zero=0)
        found.setdefault(repr(key), {})[int(layout.zero)] = sum(peak_memory(layout).values())
    for by_stage in found.values():
        stages = sorted(by_stage)
        assert [by_stage[z] for z in stages] == sorted((by_stage[z] for z in stages), reverse=True)
