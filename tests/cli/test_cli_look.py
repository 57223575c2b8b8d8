"""The last line of a run: commands that show it and say where its time went, and that work when they are pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from astrasim_py.cli import options
from astrasim_py.cli.main import main

SWEEP = """name: demo
topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [1 KiB, 1 MiB]}
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch) -> Path:
    """A sweep of two points; the current folder is its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(SWEEP)
    return path


def last_line(capsys, *argv: object, code: int = 0) -> str:
    assert main([str(word) for word in argv]) == code
    return capsys.readouterr().out.splitlines()[-1]


def paste(capsys, line: str) -> str:
    """What the commands of a line print, on stdout and stderr."""
    label, _, text = line.partition(": ")
    assert label == "look"
    look, _, why = text.partition(" · why: ")
    for command in (look, why):
        assert main(shlex.split(command)) == 0
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("out", "name"), [("results", "demo"), ("else where", '"else where/demo"'), ("results/", "results/demo")]
)
def test_both_commands_work_when_they_are_pasted(scenario, capsys, out, name):
    line = last_line(capsys, scenario, "--jobs", 1, "--out", out)
    assert line == f"look: view {name} · why: explain {name} --worst"
    text = paste(capsys, line)
    assert Path("page.html").is_file() and "demo: size=1 KiB" in text
    assert "2 points; the one farthest from its bound is shown: size=1 KiB" in text


def test_of_some_points_the_worst_of_these_is_named(scenario, capsys):
    assert main([str(scenario), "--jobs", "1", "--quiet"]) == 0
    line = last_line(capsys, f"{scenario}@size=1 MiB", "--jobs", 1)
    assert line == 'look: view "demo@size=1 MiB" · why: explain "demo@size=1 MiB"'
    assert "demo: size=1 MiB" in paste(capsys, line)


def test_a_name_that_is_a_file_here_is_written_as_a_folder(scenario, capsys):
    Path("demo").write_text("something else")
    line = last_line(capsys, scenario, "--jobs", 1)
    assert line == "look: view results/demo · why: explain results/demo --worst"
    paste(capsys, line)


def test_points_that_are_not_done_are_looked_at_too(scenario, capsys):
    line = last_line(capsys, scenario, "--jobs", 1, "--max-events", 10, code=4)
    assert line == "look: view demo · why: explain demo --worst"
    assert "this point is limit: more than 10 events" in paste(capsys, line)


def test_points_that_take_minutes_to_replay_are_not_named(scenario, capsys, monkeypatch):
    text = SWEEP.replace("[1 KiB, 1 MiB]", '{"a small, slow one": 1 KiB, large: 1 MiB}')
    text = text.replace("npus: 4", "npus: $n").replace("sweep: {", "sweep: {n: [8, 4], ")
    scenario.write_text(text)
    assert options._MOST_REPLAYED > 112, "hops of a ring of 8"
    monkeypatch.setattr(options, "_MOST_REPLAYED", 50)
    line = last_line(capsys, scenario, "--jobs", 1)
    assert line == 'look: view "demo@n=4,size=a small, slow one" · why: explain "demo@n=4,size=a small, slow one"'
    assert "demo: n=4,size=a small, slow one" in paste(capsys, line)
    monkeypatch.setattr(options, "_MOST_REPLAYED", 5)
    line = last_line(capsys, scenario, "--jobs", 1)
    assert line == "look: results list demo"
    assert main(line.split()[1:]) == 0 and capsys.readouterr().out.count("done") == 4


def test_a_training_step_ends_with_it_and_quiet_runs_do_not(scenario, capsys):
    line = last_line(capsys, "train", "mpt-125m", "--gpus", 8, "--gbs", 8, "--seq", 256)
    assert line.startswith("look: view ")
    assert main(["demo.yaml", "--quiet", "--format", "text", "--jobs", "1"]) == 0
    assert "look:" not in capsys.readouterr().out
    assert main(["demo.yaml", "--format", "csv", "--jobs", "1"]) == 0
    assert "look:" not in capsys.readouterr().out


def test_nothing_is_said_of_what_is_not_stored(scenario, capsys):
    assert main(
        ["demo.yaml", "--jobs", "1", "--set", "algorithms={all_reduce: {builder: halving_doubling, dims: [3]}}"]
    )
    assert "look:" not in capsys.readouterr().out
