"""What traces leave open is said with every result, and is an error where that is asked for."""

from __future__ import annotations

import json
import re

import pytest

import astrasim_py as ap
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.core.errors import EXIT_CHECK_FAILED, AstraError

TEXT = """
name: doubts
topologies: {ring: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}}
workload: {trace: run}
"""
SIZES = "workload={trace: run, size_unit: elements, dtype_bytes: 2, macs: true}"
PEAK = "compute={peak: 1 TFLOP/s}"
ELEMENTS = "its producer counts elements, not bytes"
UNPRICED = "run.0.et: node 3: the compute of 2 nodes takes no time: num_ops without a duration; write e.g. compute: {"


def scenario(folder, **metadata):
    """Two matrix products without durations, then an all_reduce, on two ranks."""
    columns = {"node_id": [3, 4, 5], "type": [4, 4, 7], "num_ops": [1000, 500, -(2**63)]}
    trace = ExecutionTrace.from_columns(
        **columns, comm_type=[-(2**63), -(2**63), 0], comm_size=[-(2**63), -(2**63), 4000], metadata=metadata
    )
    write_prefix(folder / "run", [trace] * 2)
    path = folder / "doubts.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("metadata", "overrides", "said"),
    [
        ({}, [PEAK], []),
        ({}, [], [UNPRICED]),
        ({"schema": "symbolic_tensor_network"}, [PEAK, SIZES], []),
        ({"schema": "symbolic_tensor_network"}, [SIZES], [UNPRICED]),
        ({"schema": "symbolic_tensor_network"}, [], [f"{ELEMENTS}.*write size_unit: elements", UNPRICED]),
        ({"schema": "symbolic_tensor_network"}, [PEAK], [f"{ELEMENTS}.*write size_unit: .*, macs: true beside trace"]),
    ],
)
def test_a_run_says_what_its_traces_leave_open(tmp_path, capsys, metadata, overrides, said):
    path = scenario(tmp_path, **metadata)
    result = ap.run(path, out=tmp_path / "out", overrides=overrides, jobs=1)
    assert len(result.warnings) == len(result.summaries[0]["warnings"]) == len(said)
    # A pattern, or the text itself where a brace ends it.
    for text, warning in zip(said, result.warnings, strict=True):
        assert re.search(text if ".*" in text else re.escape(text), warning)
    # Under --strict each is an error, of a run and of a check; a point that is there already is none the better for it.
    options = ["--jobs", "1", "--out", str(tmp_path / "out"), *(f"--set={text}" for text in overrides)]
    assert main(["run", str(path), *options]) == 0
    footer = capsys.readouterr().out.split("engine:")[0]
    assert footer.count("warning: ") == len(said)
    code = EXIT_CHECK_FAILED if said else 0
    assert main(["run", str(path), "--strict", *options, "--format=json"]) == code
    out, err = capsys.readouterr()
    assert [row["status"] for row in json.loads(out)] == ["failed" if said else "done"]
    assert main(["check", str(path), "--strict", *options[4:]]) == code
    checked = capsys.readouterr().err
    assert all(text.split(".*")[0] in printed for text in said for printed in (footer, err, checked))


SHORT = """
topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - compute: {time: 1 us}
    name: warm_up
  - all_reduce: {size: 1 MiB}
    after: [warm_up]
"""
LONG = """
name: short
topologies: {topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
topology: topology
workload:
  - compute: {time: 1 us, name: warm_up}
  - all_reduce: {size: 1 MiB, after: [warm_up]}
"""


def test_what_stands_beside_an_item_is_of_it_and_a_file_names_its_scenario(tmp_path):
    rows = []
    for folder, text in (("a", SHORT), ("b", LONG)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "short.yaml").write_text(text)
        result = ap.run(tmp_path / folder / "short.yaml", out=tmp_path / folder, jobs=1)
        rows.append({key: value for key, value in result.rows[0].items() if key != "cpu_s"})
    assert rows[0] == rows[1] and rows[0]["scenario"] == "short"


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("{time: 1 us}", "{time: 1 us, name: b}", "workload.0.: name is written beside compute and in it; keep one"),
        ("after: [warm_up]", "after: [warmup]", 'workload.1..*no item is called "warmup"; did you mean "warm_up"'),
        ("name: warm_up", "send: {from: 0, to: 1, size: 1 B}", "one item says compute and send"),
        ("npus: 4", "npus: four", 'topology.npus: "four" is not a whole number'),
    ],
)
def test_wrong_keys_beside_items_are_refused_in_a_line(tmp_path, was, now, said):
    path = tmp_path / "short.yaml"
    path.write_text(SHORT.replace(was, now).replace("[warm_up]" if was == "name: warm_up" else "", ""))
    with pytest.raises(AstraError, match=said):
        ap.run(path, out=tmp_path)


def test_a_verb_with_a_typing_error_is_told(capsys):
    assert main(["runn", "x.yaml"]) == 2
    assert 'runn: is no verb, and no file of that name is here; did you mean "run"?' in capsys.readouterr().err


def test_wrappers_without_a_type_are_cpu_work_where_that_is_asked_for(tmp_path, capsys):
    missing = -(2**63)
    trace = ExecutionTrace.from_columns(
        node_id=[1, 2], type=[7, 7], names=["nccl:all_reduce", "all_reduce"], duration_micros=[3, 0],
        comm_type=[missing, 0], comm_size=[missing, 4000],
    )  # fmt: skip
    write_prefix(tmp_path / "run", [trace] * 2)
    path = tmp_path / "doubts.yaml"
    path.write_text(TEXT)
    assert main(["check", str(path)]) == 3
    assert re.search("node 1: lacks comm_type.*untyped: compute beside trace", capsys.readouterr().err)
    result = ap.run(path, out=tmp_path / "out", overrides=["workload={trace: run, untyped: compute}"], jobs=1)
    assert result.exit_code == 0 and result.summaries[0]["makespan_ps"] == 6_000_000
    with pytest.raises(AstraError, match='"computed" is not one of error, compute'):
        ap.run(path, overrides=["workload={trace: run, untyped: computed}"])


def test_compute_without_any_duration_is_said(tmp_path):
    write_prefix(tmp_path / "run", [ExecutionTrace.from_columns(node_id=[1, 2], type=[4, 4])] * 2)
    path = tmp_path / "doubts.yaml"
    path.write_text(TEXT)
    (said,) = ap.run(path, out=tmp_path / "out", jobs=1).warnings
    assert said.endswith("run.0.et: no compute node has a duration: all compute takes no time")
