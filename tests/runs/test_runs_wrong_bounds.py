"""A lower bound above the time is a defect of ours: said in one line, and printed nowhere as a bound."""

from __future__ import annotations

import csv

import pytest

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core.errors import EXIT_INTERNAL, InternalError
from astrasim_py.results import stored_points
from astrasim_py.runs import summary
from astrasim_py.synthesis.model.schedule import share_of_bound
from astrasim_py.verification.bounds import CallBounds

SCENARIO = """
name: s
topologies: {t: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_gather: {size: 1 MiB}}, {all_gather: {size: 2 MiB}}]
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """A scenario, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_wrong_bound_of_a_run_is_a_defect(scenario, monkeypatch, capsys) -> None:
    right = ap.run(scenario, out="right", jobs=1)
    assert right.exit_code == 0 and 0 < right.rows[0]["efficiency"] <= 1
    monkeypatch.setattr(summary, "proven_bound", lambda plan: (10**9, ""))
    assert main(["run", str(scenario), "--out", "wrong", "--jobs", "1"]) == EXIT_INTERNAL
    said = capsys.readouterr()
    line = "s: this is a defect of astrasim_py, please report it: the lower bound of the run is 1 ms, above its time of"
    assert line in said.err and said.err.count("defect") == 1
    assert "%" not in said.out.split("\n\n")[0].replace("bound/time", "")
    # The point is kept with its time, and says the same when it is used again.
    again = ap.run(scenario, out="wrong", jobs=1)
    assert again.reused == 1 and again.exit_code == EXIT_INTERNAL and line in again.failures[0].lines[0]
    row = again.rows[0]
    assert row["bound_ns"] is row["efficiency"] is None and row["time_ns"] == right.rows[0]["time_ns"]
    with open(again.folder / "summary.csv", encoding="utf-8") as file:
        (cells,) = csv.DictReader(file)
    assert cells["efficiency"] == cells["bound_ns"] == "" != cells["time_ns"]


def test_a_wrong_bound_of_a_collective_is_a_defect(scenario, monkeypatch) -> None:
    monkeypatch.setattr(CallBounds, "of", lambda *_, **__: (10**9, ""))
    result = ap.run(scenario, out="wrong", jobs=1)
    assert result.exit_code == EXIT_INTERNAL
    assert result.failures[0].lines[0].endswith("such bounds are left out (and 2 more)")
    (point,) = stored_points.read_points(result.folder)
    assert [call.efficiency for call in point.summary.collectives] == [None, None]
    with open(result.folder / "collectives.csv", encoding="utf-8") as file:
        assert [(call["bound_ns"], call["efficiency"]) for call in csv.DictReader(file)] == [("", "")] * 2


def test_a_wrong_bound_of_a_schedule_is_a_defect() -> None:
    assert share_of_bound(3, 4) == 0.75
    with pytest.raises(InternalError, match="below its bound of 5 ps"):
        share_of_bound(5, 4)
