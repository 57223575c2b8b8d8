"""Skeletons in scenarios and on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import read_prefix, write_prefix
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main

SCENARIO = """
name: small
topologies:
  fast: {shape: switch, npus: 8, bandwidth: 400 GB/s, latency: 500 ns}
  slow: {shape: ring, npus: 8, bandwidth: 20 GB/s, latency: 2 us}
workload: {trace: llama, groups: llama.groups.json, skeleton: true}
sweep: {topology: [fast, slow]}
"""


def traces(folder) -> None:
    """Traces of a small training in a folder."""
    keys = ["--gpus", "8", "--tp", "2", "--pp", "2", "--gbs", "8", "--detail", "fine", "--software", "ideal", "--quiet"]
    assert main(["train", "{base: llama3-8b, layers: 4}", *keys, "-o", str(folder / "llama")]) == 0


def test_a_scenario_on_skeletons_has_the_same_times(tmp_path):
    traces(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    times = []
    for skeleton in ("true", "false"):
        done = ap.run(tmp_path / "small.yaml", overrides=[f"workload.skeleton={skeleton}"], out=tmp_path, jobs=1)
        rows = [dict(row) for row in done.rows]
        times.append([row["time_ns"] for row in rows])
        assert all((row["exposed_comm_ns"] is None) == (skeleton == "true") for row in rows)
    assert times[0] == times[1]
    assert times[0][0] != times[0][1]


def test_compute_speeds_are_refused(tmp_path, capsys):
    traces(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO + "stragglers: {compute_speed: {0: 0.5}}\n")
    assert main(["check", str(tmp_path / "small.yaml")]) == 2
    assert "workload.skeleton: the speed of a rank" in capsys.readouterr().err


def test_trace_skeleton_writes_a_set_that_lints_clean(tmp_path, capsys):
    traces(tmp_path)
    source, target = str(tmp_path / "llama"), str(tmp_path / "small")
    capsys.readouterr()
    assert main(["trace", "skeleton", source, target, "--groups", f"{source}.groups.json", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ranks"] == 8
    assert said["kept"] < 0.6 * said["nodes"]
    assert main(["trace", "lint", target, "--groups", f"{target}.groups.json"]) == 0


def test_a_skeleton_that_saves_nothing_says_so(tmp_path, capsys):
    """Two calls, and two compute nodes, of which three paths are made."""
    send = {"comm_dst": [0] * 4, "comm_src": [0] * 4, "comm_size": [8] * 4, "comm_tag": [0] * 4}
    deps = Csr(np.array([0, 0, 0, 2, 3]), np.array([0, 1, 1]))
    keys = {"type": [5, 4, 4, 6], "node_id": np.arange(4), "duration_micros": [0, 2, 5, 0], "data_deps": deps}
    write_prefix(tmp_path / "few", [ExecutionTrace.from_columns(**keys, **send)])
    assert main(["trace", "skeleton", str(tmp_path / "few"), str(tmp_path / "small"), "--unlimited-slots"]) == 0
    said = capsys.readouterr()
    assert said.out == "1 ranks, 4 nodes -> 5\n"
    assert "larger than the full set" in said.err


@pytest.mark.parametrize("involved", [[True, True], [True, False]])
def test_dimensions_that_are_left_out_are_not_lost_in_silence(involved, tmp_path, capsys):
    node = pb.Node(id=0, type=7, name="call")
    node.attr.add(name="comm_size").int64_val = 8
    node.attr.add(name="involved_dim").bool_list.values.extend(involved)
    body = node.SerializeToString()
    (tmp_path / "dims.0.et").write_bytes(bytes([0, len(body)]) + body)
    for action in (["skeleton"], ["share", "--level", "strip", "--price", "none"]):
        code = main(["trace", *action, str(tmp_path / "dims"), str(tmp_path / "out")])
        assert code == (0 if all(involved) else 3)
        assert all(involved) or "node 0 leaves out dimensions (involved_dim)" in capsys.readouterr().err


def test_operations_without_a_price_are_refused(tmp_path, capsys):
    keys = {"type": [NodeType.COMP], "num_ops": [1000], "node_id": np.arange(1)}
    write_prefix(tmp_path / "ops", [ExecutionTrace.from_columns(**keys)])
    command = ["trace", "skeleton", str(tmp_path / "ops"), str(tmp_path / "small")]
    assert main(command) == 3
    assert 'price them: --peak "312 TFLOP/s"' in capsys.readouterr().err
    assert main([*command, "--peak", "1 TFLOP/s"]) == 0
    assert read_prefix(tmp_path / "small")[0].column("duration_ps").tolist() == [1000]
