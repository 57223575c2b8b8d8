"""`convert` to MSCCL++ execution plans: options, what it says it drops, how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrasim_py.cli.main import main
from astrasim_py.mscclpp.reader import read_plan

RIGHT = Path(__file__).parents[2] / "scenarios" / "algorithms" / "find_the_bug" / "right.xml"


def convert(capsys, *argv) -> tuple[int, str, str]:
    code = main(["convert", *map(str, argv)])
    return code, *capsys.readouterr()


def test_writes_a_plan_for_a_range_of_sizes(tmp_path, capsys):
    target = tmp_path / "ring.json"
    options = "--protocol", "LL", "--min-bytes", "1 KiB", "--max-bytes", "64 KiB", "--npus-per-node", 2
    code, out, _ = convert(capsys, "builder:ring:all_reduce:4", target, *options)
    assert code == 0
    assert out.splitlines()[0] == f"builder:ring:all_reduce:4 -> {target}"
    assert out.splitlines()[-1] == "dropped: nothing"
    plan = read_plan(target)
    assert (plan.protocol, plan.least, plan.most) == ("LL", 1024, 65536)
    assert plan.gpus[0].peers == {"memory": (1,), "port": (3,)}


def test_says_that_thread_blocks_are_made_anew(tmp_path, capsys):
    code, out, _ = convert(capsys, RIGHT, tmp_path / "right.json", "--format", "json")
    assert code == 0
    assert json.loads(out)["dropped"] == ["comments", "thread blocks and channels, which plans have of their own"]


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("x.xml", ["--npus-per-node", "2"], "--npus-per-node is for execution plans"),
        ("x.npz", ["--max-bytes", "1 MiB"], "a range of sizes is for MSCCL-IR and execution plans"),
        ("x.json", ["--dialect", "azure"], "--dialect azure is for MSCCL-IR"),
        ("x.json", ["--size", "1 MiB"], "a plan states sizes in chunks"),
        ("x.json", ["--protocol", "LL128"], "plans have no LL128"),
    ],
)
def test_refuses_what_a_target_has_no_word_for(tmp_path, capsys, target, options, problem):
    code, out, err = convert(capsys, "builder:ring:all_reduce:4", tmp_path / target, *options)
    assert (code, out) == (2, "")
    assert problem in err
    assert not (tmp_path / target).exists()


def test_synthesize_writes_plans(tmp_path, capsys):
    from astrasim_py.cli.main import main

    file = tmp_path / "plan.json"
    words = ["synthesize", "--topology", "ring:4,bandwidth=50 GB/s,latency=500 ns", "--size", "1 MiB", "--threads", "1"]
    assert main([*words, "--collective", "all_gather", "-o", str(file)]) == 0
    assert "plan" in capsys.readouterr().err
    assert main(["verify", str(file)]) == 0
    assert "race-free    yes" in capsys.readouterr().out
    assert main([*words, "--collective", "broadcast", "-o", str(tmp_path / "other.json")]) == 2
    assert "MSCCL++ plans have no broadcast" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()
