"""`trace convert`: whole results or none, a report beside them, and readers from other packages."""

import json
import os
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.core import registry
from astrasim_py.workload.trace_readers import Conversion

FOLDER = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch"
needs_golden = pytest.mark.skipif(not FOLDER.exists(), reason="needs ASTRASIM_GOLDEN")


def converted(out, *options, kineto, et=None):
    """Exit code of a conversion of files of the golden folder."""
    hosts = ["--et", str(FOLDER / et)] if et else []
    return main(["trace", "convert", "pytorch", str(out), "--kineto", str(FOLDER / kineto), *hosts, *options])


@needs_golden
def test_a_set_is_written_with_its_report_and_lints_clean(tmp_path, capsys):
    names = {"kineto": "recorded_cpu/moe_4/kineto_{rank}.json.gz", "et": "recorded_cpu/moe_4/et_{rank}.json.gz"}
    assert converted(tmp_path / "moe", "--format", "json", "--replay", **names) == 0
    report = json.loads(capsys.readouterr().out)
    files = report.pop("files")
    assert report == json.loads((tmp_path / "moe.report.json").read_text())
    assert sorted(files) == sorted(map(str, tmp_path.iterdir()))
    assert [one["rank"] for one in report["ranks"]] == [0, 1, 2, 3]
    assert all(one["join"]["rate"] == 1 and len(one["largest_gaps"]) <= 5 for one in report["ranks"])
    assert report["calls"] == {"all_reduce": 8, "all_to_all": 12}
    assert report["problems"] == []
    assert json.loads((tmp_path / "moe.groups.json").read_text()) == report["groups"]
    assert main(["trace", "lint", str(tmp_path / "moe")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["moe.groups.json", "moe.report.json", *(f"moe.{rank}.et" for rank in range(4))]
    )


@pytest.mark.slow
@needs_golden
def test_eight_ranks_replay_as_recorded(tmp_path, capsys):
    kineto, et = ("param_dlrm8/dlrm_kineto.tar.gz", "param_dlrm8/dlrm_pytorch_et.tar.gz")
    assert converted(tmp_path / "dlrm", "--replay", "--format", "json", kineto=kineto, et=et) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["backlog"] for one in report["ranks"]] == [0, 64, 0, 64, 0, 0, 0, 0]
    assert min(one["join"]["rate"] for one in report["ranks"]) > 0.994
    assert report["replay_errors"]["together"] <= 1e-4
    assert report["replay_errors"]["together_constants"] <= 5e-4
    assert all(abs(one["replay_errors"]["constants"]) <= 1e-3 for one in report["ranks"])
    trace = ap.read_workload(tmp_path / "dlrm").traces[7]
    assert (trace.meta("recorded_step"), trace.meta("recorded_span_ns")) == ("ProfilerStep#10", 12_509_000)
    assert trace.meta("joined_share") == report["ranks"][7]["join"]["rate"]


@needs_golden
def test_python_makes_the_same(tmp_path):
    folder = FOLDER / "recorded_cpu" / "ddp_4"
    made = ap.convert_pytorch(str(folder / "kineto_{rank}.json.gz"), str(folder / "et_{rank}.json.gz"))
    assert not made.problems
    assert made.workload.ranks == 4
    assert made.report["calls"] == {"all_reduce": 28}


@needs_golden
def test_what_is_not_to_be_trusted_is_written_on_request_only(tmp_path, capsys):
    one = "recorded_cpu/moe_4/kineto_0.json.gz"
    assert converted(tmp_path / "one", kineto=one) == 1
    error = capsys.readouterr().err
    assert "not to be trusted: 3 of 4 ranks have no recording: 1, 2, 3" in error
    assert "nothing was written; --allow-partial writes it anyway" in error
    assert list(tmp_path.iterdir()) == []
    assert converted(tmp_path / "one", "--allow-partial", kineto=one) == 0
    assert (tmp_path / "one.0.et").exists()
    assert converted(tmp_path / "two", kineto="hta_simple_add/kineto.json.gz", et="param_linear/linear_et.json.gz") == 1
    assert "not the same run" in capsys.readouterr().err


@needs_golden
@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--step", "99"], 2, "has no step 99; its steps: 5, 6, 7"),
        (["--without", "sink"], 2, '--without: "sink" is no kind of edge; use cpu, launch, stream'),
        (["--kineto", "no_{rank}.json"], 2, "--kineto: nothing is called no_{rank}.json"),
        (["--et", str(FOLDER / "facts.json")], 3, 'facts.json: has no "nodes"'),
    ],
)
def test_errors_are_one_line(options, code, problem, tmp_path, capsys):
    step = "hta_amd/mi250_minitoy.json.gz"
    assert converted(tmp_path / "x", *options, kineto=step) == code
    error = capsys.readouterr().err
    assert problem.replace("5, 6, 7", "1, 2") in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@needs_golden
@pytest.mark.parametrize("option", ["--host none", "--without sync", "--map-kernel x=all_reduce:0"])
def test_options_without_effect_are_refused(option, tmp_path, capsys):
    assert converted(tmp_path / "x", *option.split(), kineto="recorded_cpu/moe_4/kineto_0.json.gz") == 2
    assert "has no work of a device; drop the option" in capsys.readouterr().err


@needs_golden
def test_two_files_of_one_rank(tmp_path, capsys):
    files = [tmp_path / name for name in ("k_0.json.gz", "k_1.json.gz")]
    for file in files:
        file.write_bytes((FOLDER / "recorded_cpu/moe_4/kineto_0.json.gz").read_bytes())
    listed = ["trace", "convert", "pytorch", str(tmp_path / "x"), "--kineto"]
    assert main([*listed, *map(str, files)]) == 3
    assert "k_1.json.gz: is of rank 0, as " in capsys.readouterr().err
    assert main([*listed, str(tmp_path / "k_{rank}.json.gz")]) == 3
    assert "is of rank 0 by its header and of rank 1 by its name" in capsys.readouterr().err


def test_readers_of_other_packages(tmp_path, monkeypatch, capsys):
    def read(args, say):
        say("half way")
        trace = ExecutionTrace.from_columns(node_id=range(args.nodes), type=NodeType.COMP)
        return Conversion(ap.Workload((trace,) * 2), {"nodes": args.nodes}, ["done"])

    module = types.SimpleNamespace(arguments=lambda p: p.add_argument("--nodes", type=int, required=True), read=read)
    entry = EntryPoint("trace_reader.mine", "other:mine", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    monkeypatch.setattr(EntryPoint, "load", lambda entry: module)
    registry._table.cache_clear()
    try:
        assert main(["trace", "convert", "mine", str(tmp_path / "x"), "--nodes", "3", "--gzip"]) == 0
    finally:
        registry._table.cache_clear()
    assert capsys.readouterr().out.splitlines()[0] == "done"
    assert [len(trace) for trace in ap.read_workload(tmp_path / "x").traces] == [3, 3]
    assert json.loads((tmp_path / "x.report.json").read_text()) == {"nodes": 3}
