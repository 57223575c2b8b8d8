"""Links of a training run at the shares that its software reaches."""

import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.training.software import software

HEAD = "name: x\ntopologies: {dgx: {preset: dgx_h100, nodes: 2}}\ncompute: {preset: dgx_h100}\n"
TRAINING = "training: {model: {base: llama3-8b, layers: 2}, seq: 2048, gbs: 16, tp: 8"


def rates(tmp_path, text: str) -> list[float]:
    path = tmp_path / "x.yaml"
    path.write_text(HEAD + text)
    problem = prepare(expand(load_scenario(str(path)))[0]).problem
    return [float(rate) / 1e9 for rate in problem.topology.bandwidths]


@pytest.mark.parametrize("name", ["pytorch", "nanotron", "ideal"])
def test_links_reach_the_shares_of_the_software(tmp_path, name):
    constants = software(name).constants
    found = rates(tmp_path, f"workload: {{{TRAINING}}}, software: {name}}}\n")
    assert found == pytest.approx([50 * constants.nic, 450 * constants.nvlink])


@pytest.mark.parametrize(
    "text",
    [
        f"workload: {{{TRAINING}}}, times: roofline}}\n",
        f"workload: {{{TRAINING}}}}}\nnetwork: {{profile: dgx_h100}}\n",
        "workload: [{all_reduce: {size: 1 MiB}}]\n",
    ],
)
def test_links_keep_their_rates_by_roofline_with_a_profile_and_in_other_workloads(tmp_path, text):
    assert rates(tmp_path, text) == [50, 450]


def test_jobs_that_reach_different_shares_are_refused(tmp_path):
    job = f"{{workload: {{{TRAINING}}}, software: %s}}, ranks: 8}}"
    with pytest.raises(ScenarioError, match="software pytorch and ideal reach different shares of the links"):
        rates(tmp_path, f"jobs: {{a: {job % 'pytorch'}, b: {job % 'ideal'}}}\n")


@pytest.mark.parametrize(
    ("npus", "name"),
    [
        (range(8), "ring"),  # in a node
        (range(0, 16, 8), "ring"),  # one in each node
        (range(16), "rail_ring_x8"),
        ((0, 1, 8, 9), "rail_ring_x2"),
        ((0, 1, 8), "ring"),  # unequal
    ],
)
def test_groups_of_trainings_go_through_nodes_on_all_their_nics(tmp_path, npus, name):
    path = tmp_path / "x.yaml"
    path.write_text(HEAD + f"workload: {{{TRAINING}}}}}\n")
    table = prepare(expand(load_scenario(str(path)))[0]).problem.jobs[0].algorithms
    members = tuple(npus)
    for collective in ("all_gather", "reduce_scatter", "all_reduce"):
        assert table.select(collective, 2**20, len(members), "tp.0", npus=members).name == name


def test_default_rings_take_no_longer_than_flat_ones(tmp_path):
    flat = "algorithms: {all_gather: &a ring, reduce_scatter: *a, all_reduce: *a}\n"
    training = TRAINING.replace("tp: 8", "tp: 4, zero: 1, overlap: {dp: true}")
    steps = []
    for algorithms in ("", flat):
        path = tmp_path / "x.yaml"
        path.write_text(f"{HEAD}workload: {{{training}}}, software: ideal}}\n{algorithms}")
        steps.append(simulate(prepare(expand(load_scenario(str(path)))[0]).problem, level="summary").makespan)
    assert 1.2 * steps[0] < steps[1]
