"""`explore`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter

import pytest

from astrasim_py.cli.main import main

SMALL = """explore:
  model: {base: llama3-8b, layers: 2}
  topology: {preset: dgx_h100, nodes: 1, npus: 4}
  gbs: 16
  seq: 512
  tp: [1, 2, 4]
  pp: [1, 2]
  zero: [0, 1]
  simulate: {top: 2}
"""
COLUMNS = ["GBS", "MBS", "SeqLen", "TP", "PP", "CP", "VP", "EP", "tokens_per_s_per_gpu"]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def out(capsys, *argv) -> str:
    assert main(["explore", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_table_reasons_and_results(capsys, small, tmp_path):
    said = out(capsys, small, "--out", tmp_path / "r", "--quiet")
    assert "possible" in said and "repeated" in said and "gap" in said and "median" in said
    folder = tmp_path / "r" / "small-explored"
    with open(folder / "table.csv", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0][: len(COLUMNS)] == COLUMNS
    table = json.loads((folder / "table.json").read_text())
    assert main(["results", "list", "--out", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().err == "", "a table of configurations is no stored point"
    assert table["possible"] == len(table["rows"]) == len(rows) - 1
    assert table["configurations"] == table["possible"] + sum(table["refused"].values())
    assert sum(float(row["step_s"]) > 0 for row in table["rows"]) == len(rows) - 1


def test_tables_say_which_software_and_state_they_hold_for(capsys, small, tmp_path):
    """`rates` is the former key of software."""
    text = small.read_text()
    for more, line, names in (
        ("", "software pytorch, state sound (default)", ("pytorch", "sound", "default")),
        ("  rates: nominal\n", "software ideal", ("ideal", None, None)),
    ):
        small.write_text(text + more)
        assert main(["explore", str(small), "--out", str(tmp_path)]) == 0
        printed = capsys.readouterr()
        assert line in printed.out.splitlines()
        former = '"rates: nominal" is now "software: ideal"; the former spelling goes in 0.4.0'
        assert (f"astrasim-py: {former}" in printed.err.splitlines()) == bool(more)
        table = json.loads((tmp_path / "small-explored" / "table.json").read_text())
        assert (table["software"], table["state"], table["state_source"]) == names
        assert all(row["software"] == names[0] for row in table["rows"])


def test_all_configurations_are_listed_with_their_reasons(capsys, small, tmp_path):
    path = tmp_path / "all.csv"
    out(capsys, small, "--out", tmp_path / "r", "--quiet", "--set", "explore.simulate.top=0", "--all", path)
    with open(path, newline="") as stream:
        rows = list(csv.DictReader(stream))
    table = json.loads((tmp_path / "r" / "small-explored" / "table.json").read_text())
    counts = Counter(row["refused"] for row in rows)
    assert len(rows) == table["configurations"] and counts.pop("") == table["possible"] and counts == table["refused"]
    steps = sorted(float(row["step_s"]) for row in rows if not row["refused"])
    assert steps == [row["step_s"] for row in table["rows"]]


def test_parquet_holds_the_table(capsys, small, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out(capsys, small, "--out", tmp_path, "--quiet", "--parquet", tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").num_rows == 32


def test_parquet_without_pyarrow_is_one_line(capsys, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["explore", str(small), "--out", str(tmp_path), "--quiet", "--parquet", str(tmp_path / "t")]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "needs pyarrow" in lines[0]
    assert not list(tmp_path.glob("small-*")), "nothing is computed before"


def test_simulated_points_keep_no_table_of_collectives(capsys, small, tmp_path):
    out(capsys, small, "--out", tmp_path / "r", "--quiet")
    folders = [path for path in (tmp_path / "r" / "small-simulated" / "points").iterdir() if path.is_dir()]
    assert len(folders) == 2 and not list((tmp_path / "r").rglob("collective.csv"))
    assert main(["explain", str(folders[0])]) == 0


def test_a_second_run_gives_the_same_bytes(capsys, small, tmp_path):
    found = []
    for _ in range(2):
        said = out(capsys, small, "--out", tmp_path / "r", "--quiet")
        folder = tmp_path / "r" / "small-explored"
        found.append((said, {file.name: file.read_bytes() for file in sorted(folder.iterdir())}))
    assert found[0] == found[1]
    assert not [path for path in (tmp_path / "r").iterdir() if path.name.startswith(".")]


def test_interrupted_simulations_go_on(capsys, small, tmp_path, monkeypatch):
    from astrasim_py.runs import executors

    whole, calls = executors.run_task, []

    def interrupted(task):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(task)

    monkeypatch.setattr(executors, "run_task", interrupted)
    assert main(["explore", str(small), "--out", str(tmp_path / "r"), "--quiet", "--jobs", "1"]) == 130
    assert not (tmp_path / "r" / "small-explored").exists()
    monkeypatch.setattr(executors, "run_task", whole)
    capsys.readouterr()
    again = out(capsys, small, "--out", tmp_path / "r", "--quiet")
    assert again.replace("/r/", "/other/") == out(capsys, small, "--out", tmp_path / "other", "--quiet")


def test_what_cannot_be_folded_is_simulated_in_full(capsys, small, tmp_path):
    small.write_text(SMALL.replace("{top: 2}", "{top: 2, fold: true}"))
    folded = out(capsys, small, "--out", tmp_path / "f", "--quiet")
    assert "fold: 2 of 2 points are exact" in folded or "fold: exact" in folded
    argv = ["explore", str(small), "--out", str(tmp_path / "r"), "--set", "explore.semantics={comm_slots: 1}"]
    assert main(argv) == 0
    said, notes = capsys.readouterr()
    assert "gap" in said and "fold:" not in said
    assert "simulated in full; fold: collectives wait for each other's slots" in notes and "and 1 more point)" in notes


def test_some_configurations_are_priced_alone_and_the_table_of_all_stays(capsys, small, tmp_path):
    results = tmp_path / "r"
    out(capsys, small, "--out", results, "--quiet")
    files = {path.name: path.read_bytes() for path in (results / "small-explored").iterdir()}
    found = json.loads(out(capsys, f"{small}@tp=2,tp=4", "--out", results, "--quiet", "--json"))
    assert {row["TP"] for row in found["rows"]} <= {2, 4}
    assert {path.name: path.read_bytes() for path in (results / "small-explored").iterdir()} == files


def test_parts_of_explain_and_of_diff_add_up(capsys, small):
    found = json.loads(out(capsys, f"{small}@tp=2", "--explain", "--quiet", "--format", "json"))
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert found["tp"] == 2
    said = out(capsys, f"{small}@tp=1,pp=1", "@tp=4", "--diff", "--quiet")
    assert "tensor parallel" in said and "tp=4" in said


@pytest.mark.slow
def test_what_if_and_figures_are_beside_the_table(capsys, small, tmp_path):
    argv = [small, "--out", tmp_path / "r", "--quiet", "--set", "explore.simulate.top=0", "--what-if", "--figures"]
    said = out(capsys, *argv, "--set", "explore.baseline=tp=1,pp=1")
    assert "2 x NIC" in said and "bottleneck" in said
    folder = tmp_path / "r" / "small-explored"
    names = {"time", "memory", "pareto", "tp_pp", "roofline", "scaling", "what_if"}
    assert names <= {file.stem for file in folder.glob("*.png")} and names <= {f.stem for f in folder.glob("*.svg")}
    assert {line for line in said.splitlines() if line.startswith("figure: ")} == {
        f"figure: {folder / name}.svg" for name in names
    }
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    out(capsys, *argv, "--set", "explore.baseline=tp=1,pp=1")
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_baseline_that_is_not_possible_is_refused_without_figures_too(capsys, small):
    assert main(["explore", str(small), "--quiet", "--set", "explore.baseline=tp=3"]) == 2
    assert "tp=3 is not possible" in capsys.readouterr().err


def test_a_profile_which_closed_forms_do_not_know_is_refused(capsys, small):
    assert main(["explore", str(small), "--quiet", "--set", "explore.network={profile: dgx_h100}"]) == 2
    assert "network.profile: closed forms do not know profiles; drop it" in capsys.readouterr().err


def test_why_not_names_the_constraint(capsys, small):
    assert "tp 3 does not divide 32 heads" in out(capsys, f"{small}@tp=3", "--why-not", "--quiet")
    assert "possible" in out(capsys, f"{small}@tp=2", "--why-not", "--quiet")


def test_a_scenario_gives_network_and_algorithms(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ntopologies: {pod: {preset: dgx_h100, nodes: 2, npus: 2}}\ncompute: {preset: dgx_h100}\n"
        "algorithms: {reduce_scatter: &two [{builder: hierarchical, dims: [2, 2]}], all_gather: *two}\n"
        "explore: {model: {base: llama3-8b, layers: 2}, gbs: 16, seq: 512, zero: 1, tp: 1, pp: 1, mbs: [1, 2]}\n"
    )
    question = f"{path}@mbs=1", "--explain", "--quiet", "--json"
    flat = json.loads(out(capsys, *question, "--set", "algorithms={}"))
    rails = json.loads(out(capsys, *question))
    assert rails["parts_s"]["dp"] < flat["parts_s"]["dp"]


@pytest.mark.parametrize(
    "written, said",
    [
        (("llama3-8b, layers: 2", "llama3-8c, layers: 2"), "there is no model"),
        (("dgx_h100", "dgx_h1000"), "there is no preset"),
        (("tp: [1, 2, 4]", "tp: []"), "an empty list"),
        (("tp: [1, 2, 4]", "tp: [1, 1]"), "1 appears twice"),
        (("tp: [1, 2, 4]", "tq: [1]"), "is not a key here"),
        (("  gbs: 16\n", ""), '"gbs" is missing'),
        (("zero: [0, 1]", "zero: 4"), "more than the cap of 3"),
        (("zero: [0, 1]", "recompute: some"), "is not a recomputation"),
        (("tp: [1, 2, 4]", "tp: 3"), "none of"),
        (("{base: llama3-8b, layers: 2}", "megatron-1t"), "GB more than"),
        (("gbs: 16", f"gbs: {list(range(1, 3000))}\n  mbs: {list(range(1, 3000))}"), "more than the cap of 10,000,000"),
    ],
)
def test_refusals_are_one_line_with_a_place(capsys, small, tmp_path, written, said):
    small.write_text(SMALL.replace(*written))
    assert main(["explore", str(small), "--out", str(tmp_path / "r"), "--quiet"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0] and "small.yaml" in lines[0]
    assert not (tmp_path / "r" / "small-explored").exists()


@pytest.mark.parametrize(
    "argv, said",
    [
        (["@zeros=1", "--why-not"], 'did you mean "zero"?'),
        (["@tp=3", "--explain"], "@tp=3: tp=3 is not possible: tp 3 does not divide 32 heads"),
        (["@tp=x", "--why-not"], "is not a whole number"),
        (["@tp=2", "--diff"], "--diff is of two configurations of one file, and 1 are named; write FILE@tp=8,pp=4 @"),
        (["@tp=2", "--diff", "--explain"], "not allowed with"),
        (["--rows", "0"], "less than 1"),
        (["--calibrate", "nothing.csv"], "nothing.csv"),
    ],
)
def test_wrong_options_are_one_line(capsys, small, argv, said):
    values = argv[0] if argv[0][0] == "@" else ""
    assert main(["explore", f"{small}{values}", "--quiet", *argv[len(values) > 0 :]]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


def test_unwritable_output_is_said_before_anything_is_priced(capsys, small, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["explore", str(small), "--out", str(tmp_path / "file" / "r")]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "cannot be written" in lines[0]
    (tmp_path / "r" / "small-explored").mkdir(parents=True)
    (tmp_path / "r" / "small-explored" / "mine.txt").write_text("keep")
    assert main(["explore", str(small), "--out", str(tmp_path / "r"), "--quiet"]) == 5
    assert (tmp_path / "r" / "small-explored" / "mine.txt").read_text() == "keep"
