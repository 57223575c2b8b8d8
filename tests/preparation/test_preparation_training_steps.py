"""Steps of trainings that scenarios describe: simulated, they take what the closed form says."""

import pytest

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

#: Two models of nanotron's measured rows: 1.34 and 3.57 G parameters.
SHAPE = "ffn: 8192, heads: 32, kv_heads: 32, vocab: 131072, gated: true, tied: true"
SMALL, LARGE = f"layers: 16, hidden: 2048, {SHAPE}", f"layers: 28, hidden: 3072, {SHAPE}"
SCENARIO = """
topologies: {{m: {{preset: dgx_h100, nodes: {nodes}}}}}
compute: {{preset: dgx_h100}}
workload:
  training: {{model: {{{model}}}, seq: 4096, attention: fa2, grad_dtype: fp32, {keys}}}
  software: nanotron
  state: {state}
"""
#: Nodes, model and layout; of most iterations fewer sequences than the rows' 256.
LAYOUTS = {
    "tp 8": (1, SMALL, "gbs: 16, tp: 8"),
    "tp 8 pp 4": (4, LARGE, "gbs: 32, tp: 8, pp: 4, stage_cut: cost"),
    "tp 16": (2, SMALL, "gbs: 8, tp: 16"),
    "dp 64 zero 1": (8, SMALL, "gbs: 256, zero: 1"),
    "mbs 1": (2, SMALL, "gbs: 64, tp: 4, zero: 1, mbs: 1"),
    "mbs 16": (2, SMALL, "gbs: 256, tp: 4, mbs: 16"),
}


def point_of(folder, name: str, state: str):
    nodes, model, keys = LAYOUTS[name]
    (folder / "s.yaml").write_text(SCENARIO.format(nodes=nodes, model=model, keys=keys, state=state))
    return expand(load_scenario(folder / "s.yaml"))[0]


@pytest.mark.parametrize("state", ["sound", "degraded"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_simulated_and_folded_steps_equal_the_closed_form(tmp_path, name, state):
    point = point_of(tmp_path, name, state)
    problem = prepare(point).problem
    whole, folded = (simulate(problem, level="summary", fold=fold).makespan for fold in (False, True))
    assert whole == folded
    assert estimate(point)["step_s"] == pytest.approx(whole / 1e12, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp 8", "mbs 16"])
def test_both_engines_agree_on_them(tmp_path, name):
    problem = prepare(point_of(tmp_path, name, "degraded")).problem
    one, other = (simulate(problem, engine=engine, level="summary").makespan for engine in ("compiled", "simpy"))
    assert one == other
