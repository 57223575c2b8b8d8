"""Keys that software sets where a training does not write them."""

import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.training.strategy import Training

HEAD = "name: x\ntopologies: {dgx: {preset: dgx_h100}}\ncompute: {preset: dgx_h100}\n"
SHAPE = "model: {base: llama3-8b, layers: 6}, seq: 2048, gbs: 16, tp: 2, pp: 2"


def point(tmp_path, keys: str, software: str):
    path = tmp_path / "x.yaml"
    path.write_text(f"{HEAD}workload: {{training: {{{SHAPE}{keys}}}, software: {software}}}\n")
    (only,) = expand(load_scenario(str(path)))
    return only


@pytest.mark.parametrize("software", ["nanotron", "{base: nanotron, host: 1.2}"])
def test_what_a_training_does_not_say_its_software_does(tmp_path, software):
    """Nanotron adds gradients up in fp32, keeps both, and cuts stages by cost."""
    written = ", grad_dtype: bf16+fp32, fused_norms: false, stage_cut: cost, attention: fa2"
    silent, said, other = (
        estimate(point(tmp_path, keys, software)) for keys in ("", written, ", grad_dtype: bf16, stage_cut: layers")
    )
    assert silent == said
    assert other["memory_bytes"]["gradients"] < silent["memory_bytes"]["gradients"]


def test_software_that_says_nothing_changes_nothing(tmp_path):
    default, ideal = (prepare(point(tmp_path, "", name)).problem.jobs[0].workload for name in ("pytorch", "ideal"))
    names = [{name for trace in workload.traces for name in trace.names} for workload in (default, ideal)]
    assert names[1] < names[0]


def test_stages_of_experts_are_not_cut_by_cost(tmp_path):
    path = tmp_path / "x.yaml"
    training = "training: {model: {base: mixtral-8x7b, layers: 4}, seq: 1024, gbs: 8, pp: 2}"
    path.write_text(f"{HEAD}workload: {{{training}, software: nanotron}}\n")
    assert estimate(expand(load_scenario(str(path)))[0])["step_s"] > 0
    with pytest.raises(ScenarioError, match="cost cuts dense models"):
        Training(model={"base": "mixtral-8x7b"}, gbs=8, pp=2, stage_cut="cost")


def test_a_profile_has_the_latencies_of_collectives(tmp_path):
    """Beside it the state adds none, and a state that is written is said to have no effect."""
    names, warnings = [], []
    for more in ("", "network: {profile: dgx_h100}\n"):
        path = tmp_path / "x.yaml"
        training = f"training: {{{SHAPE}, zero: 1}}, software: nanotron, state: degraded"
        path.write_text(f"{HEAD}workload: {{{training}}}\n{more}")
        prepared = prepare(expand(load_scenario(str(path)))[0])
        traces = prepared.problem.jobs[0].workload.traces
        names.append({name for trace in traces for name in trace.names if "host" in name or "delay" in name})
        warnings.append([text for text in prepared.notes.warnings if "state" in text])
    assert names[1] < names[0] and not warnings[0]
    assert "state changes nothing beside network.profile" in warnings[1][0]
