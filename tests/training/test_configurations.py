"""Many layouts at once: each as alone, with its reason where it is not possible."""

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.topology.hardware import ExpandedMemory
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.configurations import BATCH, MEMORY, evaluate
from astrasim_py.training.memory import peak_memory, require_memory
from astrasim_py.training.models import model
from astrasim_py.training.prices import Prices
from astrasim_py.training.rules import RULES
from astrasim_py.training.strategy import Layout, Overlap, Training
from astrasim_py.training.system import system
from astrasim_py.training.terms import StepTime

PRICES = Prices(system("dgx_h100"))
SLOW = ExpandedMemory(size=10**12, bandwidth=Fraction(50 * 10**9))


def configurations(name: str, ranks: int = 256, gbs: int = 512) -> Layout:
    """Every combination of some sizes, possible or not."""
    axes = {
        "tp": [1, 2, 4, 8, 16],
        "pp": [1, 2, 4, 5, 8, 10],
        "cp": [1, 2],
        "vp": [1, 2, 5],
        "mbs": [1, 2, 4, 8],
        "zero": [0, 1, 2, 3],
        "recompute": [0, 1, 3, 4],
        "sp": [False, True],
        "ep": [1, 8],
    }
    columns = dict(zip(axes, (part.ravel() for part in np.meshgrid(*axes.values(), indexing="ij")), strict=True))
    dp = np.maximum(ranks // (columns["tp"] * columns["pp"] * columns["cp"]), 1)
    one = Training(model=model(name), seq=4096, gbs=gbs, schedule="interleaved", overlap=Overlap(dp=True))
    more = {"dp": dp, "zero_group": dp * columns["cp"], "microbatches": np.maximum(gbs // (dp * columns["mbs"]), 1)}
    return replace(one.unchecked(ranks), **columns, **more)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_every_configuration_is_as_alone(name):
    found = evaluate(configurations(name), PRICES)
    assert len(found.broken) > BATCH  # more than one batch
    assert {-1, MEMORY} < set(found.broken.tolist()) and len(set(found.broken.tolist())) > 4
    for index in range(0, len(found.broken), 521):
        layout, reason = found.layout.at(index), found.reason(index)
        broken = [place for place, rule in enumerate(RULES) if rule.broken(layout)]
        if broken:
            assert found.broken[index] == broken[0] and np.isnan(found.step.seconds[index])
            assert reason == (RULES[broken[0]].problem(layout), RULES[broken[0]].remedy(layout, layout.after))
            continue
        alone = step(terms(layout, PRICES), PRICES.constants)
        for field in fields(StepTime):
            assert getattr(found.step, field.name)[index] == pytest.approx(getattr(alone, field.name), abs=1e-12)
        assert {kind: nbytes[index] for kind, nbytes in found.memory.items()} == peak_memory(layout)
        if reason is None:
            require_memory(peak_memory(layout), found.capacity)
            assert sum(peak_memory(layout).values()) <= found.capacity
        else:
            with pytest.raises(ScenarioError) as error:
                require_memory(peak_memory(layout), found.capacity, layout, layout.after)
            assert reason == (error.value.problem, error.value.remedy)


def test_throughput_is_that_of_the_step():
    found = evaluate(configurations("llama3-8b"), PRICES)
    index = int(np.nanargmin(np.where(found.broken < 0, found.step.seconds, np.nan)))
    tokens = 512 * 4096 / found.step.seconds[index] / 256
    assert found.tokens_per_second[index] == pytest.approx(tokens)
    assert 300e12 < tokens * model("llama3-8b").flops_per_token(4096, "causal") < 800e12


def test_expanded_memory_makes_more_possible_and_nothing_faster():
    layout = configurations("llama3-8b")
    alone, more = evaluate(layout, PRICES), evaluate(layout, PRICES, SLOW)
    assert (more.broken < 0).sum() > (alone.broken < 0).sum()
    priced = np.isfinite(alone.step.seconds)
    fits = alone.broken < 0
    assert (more.step.seconds[fits] == alone.step.seconds[fits]).all()
    assert (more.step.seconds[priced & ~fits] > alone.step.seconds[priced & ~fits]).all()
    placed = evaluate(layout, PRICES, SLOW.model_copy(update={"policy": "placement"}))
    assert (placed.step.memory[priced & ~fits] > 0).all() and (placed.step.memory[fits] == 0).all()
