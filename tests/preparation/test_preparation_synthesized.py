"""Scenarios that synthesize their algorithms: made for each call, kept with the results, the same when run again."""

from __future__ import annotations

import json
import shutil

import pytest

from astrasim_py.core import cache
from astrasim_py.preparation import schedules
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.load import load_scenario

TEXT = """
name: made
topologies:
  mesh:  {shape: mesh, dims: [3, 3], bandwidth: 50 GB/s, latency: 500 ns, placement: PLACEMENT}
  switch: {shape: switch, npus: 9, bandwidth: 50 GB/s, latency: 500 ns}
groups: {rows: {size: 3}}
workload:
  - all_reduce: {size: 1 MiB}
  - all_gather: {size: 300 KiB, group: rows}
algorithms:
  all_reduce: {synthesize: {chunks: 2, rounds: 3, seed: 1OPTIONS}}
  all_gather: {synthesize: {}}
sweep: {topology: [mesh, switch]}
"""


@pytest.fixture(autouse=True)
def own_schedules(monkeypatch, tmp_path):
    """Schedules of this test alone; compiled code is that of all."""
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "cache")


def run(tmp_path, placement="linear", options="", bandwidth="50 GB/s", **more):
    path = tmp_path / "made.yaml"
    path.write_text(TEXT.replace("PLACEMENT", placement).replace("OPTIONS", options).replace("50 GB/s", bandwidth, 1))
    result = run_scenario(load_scenario(path), out=tmp_path / "results", jobs=1, **more)
    assert result.exit_code == 0, result.failures
    return result


def manifests(result) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(result.folder.glob("points/*/manifest.json"))]


def test_calls_get_algorithms_of_their_own_and_the_claimed_time(tmp_path):
    result = run(tmp_path)
    for manifest in manifests(result):
        facts = manifest["synthesized"]
        # One all_reduce of all, and an all_gather for each of three groups of NPUs.
        assert sorted(fact["collective"] for fact in facts) == ["all_gather"] * 3 + ["all_reduce"]
        assert all((result.folder / "algorithms" / fact["file"]).is_file() for fact in facts)
        assert all(fact["bound_ns"] <= fact["time_ns"] and not fact["cut"] for fact in facts)
        if "mesh" in manifest["point"]:
            (whole,) = (fact for fact in facts if fact["collective"] == "all_reduce")
            rows = result.summaries[[row["topology"] for row in result.rows].index("mesh")]["collectives"]
            (first,) = (row for row in rows if row["type"] == "all_reduce")
            assert float(first["time_ns"]) == whole["time_ns"]


def test_what_was_kept_is_used_again(tmp_path, monkeypatch):
    first = run(tmp_path)
    files = {path.name: path.read_bytes() for path in (first.folder / "algorithms").iterdir()}
    assert len(files) == 16
    shutil.rmtree(tmp_path / "cache")

    def never(*_, **__):
        raise AssertionError("searched again")

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "find", never)
        again = run(tmp_path, fresh=True)
    assert [row["time_ns"] for row in again.rows] == [row["time_ns"] for row in first.rows]
    assert [m["synthesized"] for m in manifests(again)] == [m["synthesized"] for m in manifests(first)]
    shutil.rmtree(first.folder)
    anew = run(tmp_path)
    assert {
        path.name: path.read_bytes() for path in (anew.folder / "algorithms").iterdir() if path.suffix == ".npz"
    } == {name: data for name, data in files.items() if name.endswith(".npz")}


def test_the_placement_is_part_of_the_question(tmp_path):
    linear = {fact["file"] for m in manifests(run(tmp_path)) for fact in m["synthesized"]}
    snake = {fact["file"] for m in manifests(run(tmp_path, placement="snake")) for fact in m["synthesized"]}
    assert snake - linear


def test_a_budget_that_cut_the_search_is_recorded(tmp_path):
    result = run(tmp_path, options=", budget: 1 ns", bandwidth="[20 GB/s, 70 GB/s]")
    cut = [fact for m in manifests(result) for fact in m["synthesized"] if fact["cut"]]
    assert cut
    assert any("cut by its budget" in line for summary in result.summaries for line in summary["warnings"])


def test_proofs_and_unwound_switches_are_for_scenarios_too(tmp_path):
    pytest.importorskip("ortools")
    path = tmp_path / "proven.yaml"
    path.write_text(
        """
name: proven
topologies:
  switch: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns, unwind: 2}
workload: [{all_gather: {size: 1 MiB}}]
algorithms: {all_gather: {synthesize: {exact: true, exact_limit: 20 s, rounds: 2}}}
"""
    )
    result = run_scenario(load_scenario(path), out=tmp_path / "results", jobs=1)
    assert result.exit_code == 0, result.failures
    (fact,) = json.loads(next(result.folder.glob("points/*/manifest.json")).read_text())["synthesized"]
    assert fact["optimal"] and float(result.rows[0]["time_ns"]) == fact["time_ns"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("all_reduce: {synthesize: {chunks: 0}}", "chunks"),
        ("all_reduce: {synthesize: {chunk: 4}}", "chunks"),
        ("all_reduce: {synthesize: {budget: 3}}", "budget"),
        ("all_reduce: {synthesize: {exact: 1}}", "exact"),
        ("all_reduce: {synthesize: {occupied: a.csv}}", "list"),
        ("all_reduce: {synthesize: {occupied: [../a.csv]}}", r"bad.yaml:\d+:\d+: .*occupied\[0\]"),
        ("all_reduce: {synthesize: {}, builder: ring}", "keep one"),
        ("barrier: {synthesize: {}}", "cannot be synthesized"),
    ],
)
def test_what_is_wrong_is_found_when_loading(tmp_path, said, words):
    path = tmp_path / "bad.yaml"
    text = TEXT.replace("PLACEMENT", "linear").replace("OPTIONS", "")
    path.write_text(text.replace("  all_reduce: {synthesize: {chunks: 2, rounds: 3, seed: 1}}", f"  {said}"))
    with pytest.raises(Exception, match=words):
        load_scenario(path)


ROUNDED = """
name: rounded
topologies: {net: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns, switches: {capable: all}}}
semantics: {rounding: floor_ns}
workload: [{all_reduce: {size: 1 MiB}}]
algorithms: {all_reduce: {synthesize: {chunks: 4, rounds: 1}}}
"""


def test_switches_are_left_out_under_rules_that_they_do_not_support(tmp_path):
    (tmp_path / "rounded.yaml").write_text(ROUNDED)
    result = run_scenario(load_scenario(tmp_path / "rounded.yaml"), out=tmp_path / "results", jobs=1)
    assert result.exit_code == 0, result.failures
