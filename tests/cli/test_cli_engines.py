"""``--engine``: which engine runs, what the output says of it, and when a stored point is used again."""

from __future__ import annotations

import json

import pytest

from astrasim_py.cli.main import main, parse
from astrasim_py.core import compiling
from astrasim_py.results.model import Row
from astrasim_py.runs.sweep import Failure, RunResult

SCENARIO = """
name: small
topologies: {ring: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [4 KB, 8 KB]}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the scenario; exit code, rows, stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)

    def go(*options: str):
        code = main(["run", "small.yaml", "--jobs", "1", "--format", "json", *options])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return go


@pytest.mark.parametrize("engine", ["simpy", "compiled", "both"])
def test_rows_and_manifests_say_which_engine_ran(run, engine, tmp_path):
    code, rows, _ = run("--engine", engine)
    assert code == 0
    assert [row["engine"] for row in rows] == [engine] * 2
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("results/small/points/*/manifest.json")]
    assert [manifest["engine"] for manifest in manifests] == [engine] * 2


def test_all_engines_give_one_result(run, tmp_path):
    def point_files():
        run_again = {path.parent.name: path.read_bytes() for path in tmp_path.glob("results/small/points/*/link.csv")}
        return {name: content for name, content in run_again.items() if content}

    seen = []
    for engine in ("simpy", "compiled", "both", "auto"):
        _, rows, err = run("--engine", engine)
        seen.append(([{**row, "engine": None, "cpu_s": None} for row in rows], point_files()))
        # Another engine computes the point anew, in its place; `auto` takes what is there.
        assert ("2 of 2 points were finished already" in err) == (engine == "auto")
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert len(seen[0][1]) == 2


def test_a_scenario_names_its_engine_and_the_command_line_another(run, tmp_path):
    (tmp_path / "small.yaml").write_text(SCENARIO + "engine: compiled\n")
    assert {row["engine"] for row in run()[1]} == {"compiled"}
    assert {row["engine"] for row in run("--engine", "simpy")[1]} == {"simpy"}


def test_the_engine_stands_below_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    assert main(["run", "small.yaml", "--jobs", "1", "--engine", "compiled"]) == 0
    assert "engine: compiled\nresults: results/small\n" in capsys.readouterr().out


def test_explain_says_which_engine_ran(run, tmp_path, capsys):
    run("--engine", "compiled")
    folder = min(tmp_path.glob("results/small/points/*-*"))
    assert main(["explain", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "engine: compiled"


def test_what_several_points_have_in_common_is_told_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    failed = ("first line", "  second line")
    lines = {"a": failed, "b": failed, "c": ("alone",), "d": failed}

    def results(*_, **__):
        row = Row(scenario="s", point="p", sweep={}, status="failed")
        failures = [Failure(point=name, exit_code=4, lines=given) for name, given in lines.items()]
        return RunResult(
            scenario="s", title="", folder=tmp_path / "none", rows=(row,), exit_code=4, failures=tuple(failures)
        )

    monkeypatch.setattr("astrasim_py.runs.sweep.run_scenario", results)
    assert main(["run", "small.yaml", "--format", "json"]) == 4
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "astrasim-py: first line (and 2 more points)",
        "astrasim-py:   second line",
        "astrasim-py: alone",
    ]


def test_points_that_reach_a_limit_alike_are_told_once(run):
    code, rows, err = run("--max-events", "3")
    assert code == 4 and [row["status"] for row in rows] == ["limit"] * 2
    assert (
        err.splitlines()[0]
        == "astrasim-py: size=4 KB: more than 3 events (--max-events) (and 1 more point) (-v says more)"
    )
    assert len(err.splitlines()) == 1
    assert run("--max-events", "3", "-v")[2].count("never completed") == 1


def test_compiling_is_told_on_stderr_but_for_quiet_runs(run, capsys, monkeypatch):
    monkeypatch.setattr(compiling, "announce", None)
    run("--quiet")
    assert compiling.announce is None
    run()
    compiling.announce("compiling the engine, once")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "astrasim-py: compiling the engine, once\n")


def test_options_may_stand_between_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()  # else view takes it for a page, as it was spelled formerly
    for action in ("explain", "compare", "plot", "view"):
        _, args = parse(["results", action, "before", "--out", "elsewhere", "@size=1 MiB"])
        assert (args.names, args.out) == (["before", "@size=1 MiB"], "elsewhere")
