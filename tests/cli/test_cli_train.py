"""`train` and `list`: what they print, write and refuse."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from astrasim_py.builders.registry import BUILDERS
from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.cli.main import main
from astrasim_py.cli.verbs import VERBS
from astrasim_py.core import registry
from astrasim_py.core.units import format_time
from astrasim_py.topology.hardware import machine

SMALL = ["train", "{base: llama3-8b, layers: 4}", "--gpus", "8", "--tp", "2", "--pp", "2", "--seq", "1024"]


def out(capsys, *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_models_are_listed_with_their_parameters(capsys):
    found = {row["model"]: row for row in json.loads(out(capsys, "list", "models", "--format", "json"))}
    assert found["llama3-70b"]["parameters"] == pytest.approx(70.55e9, rel=1e-3)
    assert {"megatron-1t", "deepseek-v3", "dlrm-v2"} <= found.keys()


def test_every_list_has_a_line_for_each_item(capsys, monkeypatch):
    kinds = ("presets", "shapes", "builders", "models", "software", "states", "plots", "lessons")
    assert [line.split()[0] for line in out(capsys, "list").splitlines()[2:]] == [*kinds, *VERBS["list"].actions]
    for kind in kinds:
        rows = json.loads(out(capsys, "list", kind, "--format", "json"))
        monkeypatch.setenv("COLUMNS", "80")
        lines = out(capsys, "list", kind).splitlines()
        assert len(lines) == len(rows) + 2 > 4 and max(map(len, lines)) <= 80
        assert all(row["about"] and next(iter(row.values())) in line for row, line in zip(rows, lines[2:], strict=True))
    assert main(["list", "machine"]) == 2 and "none of its values" in capsys.readouterr().err


def test_lists_hold_what_others_have_added(capsys, monkeypatch):
    """A line in the table of builders, and entry points: also those that cannot be imported or say nothing."""

    def mine(collective, ranks):
        """Ring of mine. With more words.

        And a paragraph."""

    added = {"mine": mine, "bare": lambda collective, ranks: None, "part": partial(mine)}
    monkeypatch.setitem(sys.modules, "builders_of_mine", SimpleNamespace(**added))
    for name in added:
        monkeypatch.setitem(BUILDERS, name, (("all_reduce",), f"builders_of_mine:{name}"))
    entries = [
        EntryPoint("algorithm.theirs", "json:loads", registry.GROUP),
        EntryPoint("algorithm.gone", "no_such_module:loads", registry.GROUP),
        EntryPoint("shape.theirs", "json:loads", registry.GROUP),
        EntryPoint("network.theirs", "json:loads", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry._table.cache_clear()
    try:
        builders = {row["builder"]: row for row in json.loads(out(capsys, "list", "builders", "--format", "json"))}
        about = {name: builders[name]["about"] for name in (*added, "theirs", "gone")}
        assert about["mine"] == about["part"] == "Ring of mine" and about["bare"] == "says nothing of itself"
        assert about["theirs"].startswith("Deserialize ``s``") and about["gone"].startswith("cannot be imported: ")
        assert "Ring of mine" in out(capsys, "list", "builders")
        shapes = {row["shape"]: row for row in json.loads(out(capsys, "list", "shapes", "--format", "json"))}
        assert shapes["theirs"]["about"].startswith("Deserialize")
    finally:
        registry._table.cache_clear()


def test_a_topology_is_described_and_drawn(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert out(capsys, "list", "topology", "torus:4x4").splitlines() == [
        "torus 4x4",
        "NPUs        16",
        "switches    0",
        "links       64",
    ]
    assert "50 GB/s" in out(capsys, "list", "topology", "ring:4,bandwidth=50 GB/s,latency=1 us")
    Path("plain.txt").write_text("0 1\n1 2\n")
    drawn = out(capsys, "list", "topology", "plain.txt", "--draw").splitlines()
    assert drawn[-1] == "plain.png" and not any("bandwidth" in line for line in drawn)
    assert main(["list", "topology", "plain.txt,bandwidth=50 GB/s"]) == 2
    assert 'or write "plain.txt,bandwidth=50 GB/s,latency=500 ns"\n' in capsys.readouterr().err
    broken = "failed={links: [[0, 1], [4, 5]]},bandwidth=50 GB/s"
    assert "links       60" in out(capsys, "list", "topology", f"torus,dims=[4, 4],{broken},latency=1 us")
    assert out(capsys, "list", "topology", "dgx_h100", "--draw").splitlines()[-1] == "dgx_1x8.png"
    assert (tmp_path / "dgx_1x8.png").read_bytes()[:4] == b"\x89PNG"
    out(capsys, "list", "topology", "leaf_spine,leaves=2,hosts_per_leaf=2,spines=2", "--draw", "a/b.svg")
    assert "<svg" in (tmp_path / "a" / "b.svg").read_text()
    for bad in (["toruss:4x4"], ["torus:4x4", "--draw", "a.gif"], ["fully_connected:1000", "--draw"], ["missing.csv"]):
        assert main(["list", "topology", *bad]) in (2, 3)
        said = capsys.readouterr()
        assert len(said.err.splitlines()) == 1 and not said.out


def test_parts_of_the_closed_form_add_up_to_the_step(capsys):
    found = json.loads(out(capsys, *SMALL, "--gbs", "16", "--explain", "--format", "json"))
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert sum(found["memory_bytes"].values()) == found["memory_total_bytes"]


def test_times_of_a_step_have_the_units_of_all_tables(capsys):
    found = json.loads(out(capsys, *SMALL, "--gbs", "16", "--explain", "--format", "json"))
    lines = out(capsys, *SMALL, "--gbs", "16", "--explain").splitlines()
    for name, seconds in {"step": found["step_s"], "optimizer": found["parts_s"]["optimizer"]}.items():
        assert format_time(round(seconds * 1e12)) in next(line for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize(
    "more",
    [
        ["--software", "ideal"],
        [],
        ["--software", "nanotron", "--state", "degraded"],
        ["--algorithm", "all_reduce=ring"],
    ],
    ids=["ideal", "pytorch", "degraded", "flat"],
)
def test_simulation_and_closed_form_of_the_same_machine_agree(capsys, tmp_path, more):
    model = ["train", "llama2-7b", "--gpus", "8", "--tp", "2", "--pp", "2", "--seq", "2048", "--gbs", "32"]
    model += more
    row = json.loads(out(capsys, *model, "--out", str(tmp_path), "--quiet", "--format", "json"))[0]
    assert row["estimate"]["step_s"] == pytest.approx(float(row["time_ns"]) / 1e9, rel=0.005)


def test_a_closed_form_says_that_its_routing_is_balanced(capsys, tmp_path):
    model = ["train", "{base: mixtral-8x7b, layers: 2}", "--gpus", "8", "--ep", "8", "--seq", "1024", "--gbs", "8"]
    model += ["--zero", "1", "--out", str(tmp_path), "--quiet"]
    assert "\nclosed form, as above " in out(capsys, *model)
    assert "\nclosed form, balanced routing " in out(capsys, *model, "--set", "training.routing={kind: random}")


def test_the_roofline_is_simulated_and_has_no_closed_form(capsys, tmp_path):
    roofline = [*SMALL, "--gbs", "16", "--set", "workload.times=roofline"]
    row = json.loads(out(capsys, *roofline, "--out", str(tmp_path), "--quiet", "--format", "json"))[0]
    assert row["status"] == "done" and row["estimate"] is None
    assert main([*roofline, "--explain"]) == 2
    assert "roofline" in (text := capsys.readouterr().err) and len(text.splitlines()) == 1


def test_a_written_peak_counts_whatever_it_equals(capsys):
    def forward(*more: str) -> float:
        found = json.loads(out(capsys, *SMALL, "--gbs", "16", "--explain", "--format", "json", *more))
        return found["parts_s"]["forward"]

    assert forward("--set", "compute.peak=1978.9 TFLOP/s") < forward()


def test_recommendation_models_train_with_options_of_their_own(capsys, tmp_path):
    small = ["train", "dlrm-mlperf", "--gbs", "4096", "--out", str(tmp_path), "--quiet"]
    row = json.loads(out(capsys, *small, "--format", "json"))[0]
    assert row["status"] == "done" and row["estimate"] is None
    twice = json.loads(out(capsys, *small, "--set", "recommendation.iterations=2", "--format", "json"))[0]
    assert float(twice["time_ns"]) > 1.5 * float(row["time_ns"])
    own = ["train", "{base: dlrm-v2, tables: 8, rows: 1000000}", *small[2:], "--gpus", "16", "--dtype", "fp16"]
    assert json.loads(out(capsys, *own, "--format", "json"))[0]["status"] == "done"
    for more, said in ((["--tp", "2"], "--tp: is not a key here"), (["--explain"], "has no closed form here")):
        assert main([*small, *more]) == 2
        assert said in (text := capsys.readouterr().err) and len(text.splitlines()) == 1


def test_written_traces_are_the_same_twice_and_lint_clean(capsys, tmp_path):
    for name in ("a", "b"):
        out(capsys, *SMALL, "--gbs", "16", "-o", str(tmp_path / name))
    files = sorted(tmp_path.glob("a.*"))
    assert len(files) == 9
    for file in files:
        assert file.read_bytes() == (tmp_path / file.name.replace("a.", "b.", 1)).read_bytes()
    workload = read_workload(tmp_path / "a", groups=tmp_path / "a.groups.json")
    assert workload.members("tp.0") == (0, 1)
    said = out(capsys, "trace", "lint", str(tmp_path / "a"))
    assert said == out(capsys, "trace", "lint", str(tmp_path / "a"), "--groups", str(tmp_path / "a.groups.json"))
    assert "groups-unknown" not in said
    (tmp_path / "a.groups.json").unlink()
    assert "groups-unknown" in out(capsys, "trace", "lint", str(tmp_path / "a"))


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--tp", "3"], "tp 3 does not divide"),
        (["--tp", "x"], "--tp"),
        (["--overlap", "dp,xx"], "xx"),
        (["--on", "nope"], "nope"),
        (["--algorithm", "ring"], "all_reduce=ring"),
        (["--set", "training.tensor_parallel_degree=4"], "tp"),
        (["--gpus", "13", "--tp", "1"], "equal nodes"),
        (["--gpus", "-8"], "--gpus: -8 is less than 1"),
        (["--gpus", "0"], "--gpus: 0 is less than 1"),
        (["--ignore-memory", "--set", "compute.precision=fp8"], "precision fp8"),
        (["--ignore-memory", "--dtype", "fp4"], "has no rate for fp4"),
        (["-o", "traces"], "--explain: is not for traces"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys, argv, said):
    assert main(["train", "llama3-8b", "--tp", "2", "--gpus", "8", "--gbs", "8", *argv, "--explain"]) == 2
    text = capsys.readouterr().err
    assert said in text and len(text.splitlines()) == 1


def test_too_little_memory_says_how_much_and_of_which_kind(capsys):
    assert main(["train", "llama3-70b", "--tp", "8", "--gpus", "8", "--gbs", "8", "--explain"]) == 2
    assert "more than 77.3 GB (85.9 GB less a reserve" in (text := capsys.readouterr().err) and "optimizer" in text


@pytest.mark.parametrize(
    "name, npus, keys",
    [
        ("dgx_h100", 4, {"nodes": 1, "npus": 4}),
        ("dgx_h100", 256, {"nodes": 32, "npus": 8}),
        ("gb200_nvl72", 256, {"nodes": 4, "npus": 64}),
        ("tpu_v5p", 512, {"dims": [8, 8, 8]}),
        ("tpu_v5e", 32, {"dims": [8, 4]}),
    ],
)
def test_a_machine_of_any_size_has_whole_nodes(name, npus, keys):
    assert machine(name, npus) == {"preset": name, **keys}


def test_a_fold_says_that_it_is_exact_or_by_how_much_it_is_off(capsys, tmp_path, monkeypatch):
    from astrasim_py.engine import fold_roles

    folded = [*SMALL, "--gpus", "32", "--gbs", "64", "--overlap", "dp", "--zero", "1", "--out", str(tmp_path), "--fold"]
    assert "\nfold: exact; " in out(capsys, *folded, "--quiet")
    monkeypatch.setattr(fold_roles.run_folded_roles, "__defaults__", (0,))
    said = next(line for line in out(capsys, *folded, "--quiet", "--fresh").splitlines() if line.startswith("fold:"))
    assert said.startswith("fold: an estimate, with an error of at most ") and "; 2 of 32 ranks were simulated" in said


@pytest.mark.parametrize(
    ("more", "same"),
    [
        (["--set", "training.zero_optimization.stage=3"], ["--zero", "3"]),
        (["--set", "training.overlap.dp=true"], ["--overlap", "dp"]),
        (["--set", "training.activation_checkpoint.mode=full"], ["--recompute", "full"]),
        (["--set", "training.model.layers=8"], ["--set", "training.model={base: llama2-7b, layers: 8}"]),
    ],
)
def test_dotted_keys_are_taken_on_the_command_line(capsys, more, same):
    argv = ["train", "llama2-7b", "--gpus", "8", "--gbs", "64", "--seq", "2048", "--explain", "--ignore-memory"]
    assert out(capsys, *argv, *more) == out(capsys, *argv, *same) != out(capsys, *argv)


@pytest.mark.slow
def test_an_algorithm_that_is_advised_is_an_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "mpt-125m", "--gpus", "16", "--gbs", "16", "--seq", "128", "--software", "ideal"]
    assert main(words) == 0
    (hint,) = (line for line in capsys.readouterr().err.splitlines() if "hint: the run takes" in line)
    time, _, option = hint.partition(", not ")
    assert main([*words, *shlex.split(option.partition(" with ")[2]), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert format_time(round(row["time_ns"] * 1000)) == time.partition("takes ")[2]
