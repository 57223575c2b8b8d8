"""What proves a bound is named alike by run, explain and optimize."""

from __future__ import annotations

import json

import pytest

from astrasim_py.cli.main import main

TOPOLOGIES = {
    "nodes": "{shape: product, dims: [{kind: switch, size: 4, bandwidth: 100 GB/s, latency: 1 us},"
    " {kind: switch, size: 4, bandwidth: 10 GB/s, latency: 1 us}]}",
    "ring": "{shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 1 us}",
}
#: 2 · 3 crossings of a byte over 4 nodes with 40 GB/s each.
NODES = "all_reduce of 1 MiB in group world: partition: 4 parts (4 NPUs each), 16 links of 160 GB/s in sum into them: "
NODES += "at most 26.6667 GB/s, exact"
#: Named where it is asked for alone: the run has taken the quick bound.
RING = "; partition: 4 parts (1 NPU each), 8 links of 400 GB/s in sum into them: at most 66.6667 GB/s, exact"


@pytest.fixture(params=TOPOLOGIES)
def scenario(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"name: s\ntopologies: {{t: {TOPOLOGIES[request.param]}}}\nworkload: [{{all_reduce: {{size: 1 MiB}}}}]\n"
    (tmp_path / "s.yaml").write_text(text + "algorithms: {all_reduce: direct}\n", "utf-8")
    return request.param


def test_the_proof_of_a_bound_is_one_text(scenario, capsys):
    def said(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    assert (f"\nbound by {NODES}\n" in said("run", "s.yaml")) == (scenario == "nodes")
    (row,) = json.loads(said("run", "s.yaml", "--json"))
    document = json.loads(said("explain", "s", "--json"))
    assert document["bound_by"] == (NODES if scenario == "nodes" else row["bound_by"] + RING)
    assert document["bound_ns"] == row["bound_ns"] < row["time_ns"]
    text = said("explain", "s")
    assert f" by {document['bound_by']}\nmakespan " in text and text.count("\nbound ") == 1
    optimized = json.loads(said("optimize", "s.yaml", "--evaluations", "1", "--json"))
    assert optimized["bound_by"] == row["bound_by"] and optimized["bound_ps"] == round(row["bound_ns"] * 1000)
    assert optimized["bound_by"] in said("optimize", "s.yaml", "--evaluations", "1")
