"""Scenarios whose workload was recorded."""

import shutil

import numpy as np
import pytest

from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario


def test_recorded_steps_on_three_networks_show_what_they_say(repo):
    points = expand(load_scenario(repo / "scenarios/from_pytorch.yaml"))
    found = {}
    for point in points:
        found[tuple(point.values.values())] = simulate(prepare(point).problem, level="summary").makespan / 1e9
        assert len(input_digests(point)) == 4
    names = ("ddp", "fsdp", "pipeline")
    fast = np.array([found[name, "10 Gb/s"] for name in names])
    assert fast == pytest.approx([532, 1516, 912], abs=0.5)
    slower = np.array([[found[name, rate] for name in names] for rate in ("1 Gb/s", "100 Mb/s")]) / fast
    assert slower[0] == pytest.approx([1.04, 1.09, 1.001], abs=0.005)
    assert slower[1] == pytest.approx([3.6, 2, 1.009], abs=0.05)
    recorded = [
        simulate(prepare(point).problem, level="summary").makespan / 1e9
        for point in expand(load_scenario(repo / "scenarios/from_pytorch.yaml", ("sweep.bandwidth=[1000000 GB/s]",)))
    ]
    assert all(np.array(recorded) < [655, 2225, 1014])


def scenario(repo, folder, workload):
    shutil.copytree(repo / "scenarios/recordings/ddp", folder / "rec")
    text = "name: s\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}}\n"
    (folder / "s.yaml").write_text(f"{text}workload: {workload}\n", "utf-8")
    return expand(load_scenario(folder / "s.yaml"))[0]


def test_a_recording_that_is_not_whole_must_be_asked_for(repo, tmp_path):
    point = scenario(repo, tmp_path, "{pytorch: {kineto: 'rec/kineto_{rank}.json.gz'}}")
    (tmp_path / "rec/kineto_3.json.gz").unlink()
    with pytest.raises(AstraError, match=r"s.yaml:3:\d+: workload.pytorch: 1 of 4 ranks have no recording: 3"):
        prepare(point)
    shutil.rmtree(tmp_path / "rec")
    point = scenario(repo, tmp_path, "{pytorch: {kineto: 'rec/kineto_[01].json.gz'}}")
    with pytest.raises(AstraError, match="nothing is called"):
        prepare(point)
    shutil.rmtree(tmp_path / "rec")
    point = scenario(repo, tmp_path, "{pytorch: {kineto: rec/kineto_2.json.gz, replicate: 4, collectives: recorded}}")
    assert len(prepare(point).problem.jobs[0].workload.traces) == 4


def test_recordings_lie_below_the_scenario(repo, tmp_path):
    with pytest.raises(AstraError, match="leads out of the folder"):
        scenario(repo, tmp_path, "{pytorch: {kineto: '../kineto_{rank}.json.gz'}}")
