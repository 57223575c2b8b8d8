"""`trace` and `convert` on the command line: what they print, what they keep, how they exit."""

from __future__ import annotations

import gzip
import json

import pytest

from astrasim_py.chakra.et_io import write_trace
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main


@pytest.fixture
def ring(tmp_path, capsys):
    """A ring algorithm of four ranks on disk."""
    prefix = tmp_path / "ring"
    assert main(["convert", "builder:ring:all_reduce:4", str(prefix)]) == 0
    capsys.readouterr()
    return prefix


def test_convert_there_and_back_is_the_same_bytes(ring, tmp_path, capsys):
    for middle in ("r.npz", "r.jsonl"):
        assert main(["convert", str(ring), str(tmp_path / middle)]) == 0
        assert "dropped: nothing" in capsys.readouterr().out
        back = tmp_path / f"back_{middle.split('.')[1]}"
        assert main(["convert", str(tmp_path / middle), str(back)]) == 0
        for rank in range(4):
            assert (tmp_path / f"{back.name}.{rank}.et").read_bytes() == (tmp_path / f"ring.{rank}.et").read_bytes()


def test_gzip_is_only_a_wrapper_and_has_no_date(ring, tmp_path):
    for name in ("a", "b"):
        assert main(["convert", str(ring), str(tmp_path / name), "--gzip"]) == 0
    packed = (tmp_path / "a.0.et.gz").read_bytes()
    assert packed == (tmp_path / "b.0.et.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "ring.0.et").read_bytes()


def test_convert_says_what_it_drops(ring, tmp_path, capsys):
    lines = [main(["convert", str(ring), str(tmp_path / "x.jsonl")]), capsys.readouterr().out]
    assert lines[0] == 0
    path = tmp_path / "x.0.jsonl"
    rows = path.read_text().splitlines()
    node = json.loads(rows[1])
    node["name"] = "first"
    rows[1] = json.dumps(node)
    path.write_text("\n".join(rows) + "\n")
    assert main(["convert", str(tmp_path / "x.jsonl"), str(tmp_path / "y.npz")]) == 0
    assert "dropped: names of nodes" in capsys.readouterr().out


def test_absolute_sizes_are_of_the_size_asked_for(ring, tmp_path, capsys):
    assert main(["convert", str(ring), str(tmp_path / "abs"), "--size", "1 MiB"]) == 0
    capsys.readouterr()
    assert main(["trace", "show", str(tmp_path / "abs"), "--node", "0"]) == 0
    assert "comm_size (int64_val) = 262144" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["convert", "builder:ring:all_reduce:x", "out"], 2),
        (["convert", "builder:no:all_reduce:4", "out"], 3),
        (["convert", "nowhere/at_all", "out"], 3),
        (["convert", "a.xml", "out"], 3),
        (["convert"], 2),
        (["trace", "lint"], 2),
        (["trace", "show", "nowhere"], 3),
        (["frobnicate"], 2),
    ],
)
def test_bad_usage_is_one_line_and_its_exit_code(argv, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("astrasim-py: ")
    assert len(shown.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_lint_of_a_good_set_is_quiet_and_of_a_damaged_one_is_not(ring, tmp_path, capsys):
    assert main(["trace", "lint", str(ring)]) == 0
    assert capsys.readouterr().out.startswith("0 errors, 0 warnings")
    whole = (tmp_path / "ring.2.et").read_bytes()
    (tmp_path / "ring.2.et").write_bytes(whole[:-3])
    assert main(["trace", "lint", str(ring), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert any(f["severity"] == "error" and "ring.2.et" in f["place"] for f in found)


def test_stats_count_what_is_there(ring, capsys):
    assert main(["trace", "stats", str(ring), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["traces"] == 4
    assert found["by_type"]["COMM_SEND"] == found["by_type"]["COMM_RECV"] == 4 * 6


def test_diff_finds_one_changed_value(ring, tmp_path, capsys):
    assert main(["trace", "diff", str(ring), str(ring)]) == 0
    assert main(["convert", "builder:ring:all_gather:4", str(tmp_path / "other")]) == 0
    capsys.readouterr()
    assert main(["trace", "diff", str(ring), str(tmp_path / "other")]) == 1
    assert "rank 0" in capsys.readouterr().out


def test_sample_sets_of_other_producers_lint(golden, capsys):
    samples = golden / "chakra_samples"
    for first in sorted(samples.glob("*/*.0.et")) + sorted(samples.glob("stg/*/w.0.et")):
        prefix = str(first)[: -len(".0.et")]
        groups = first.with_name("w.json")
        argv = ["trace", "lint", prefix] + (["--groups", str(groups)] if groups.exists() else [])
        expected = 1 if "one_comm_" in first.name else 0
        assert main(argv) == expected, capsys.readouterr().out
        shown = capsys.readouterr().out
        if expected:
            for attribute in ("comm_size", "comm_tag"):
                assert f"lacks {attribute}" in shown


def test_absolute_sizes_say_what_other_tools_do_not_read(tmp_path, capsys):
    trace = ExecutionTrace.from_columns(
        node_id=[0, 1], type=NodeType.COMP, duration_ps=[1_500, 2_000_000], duration_micros=[0, 2]
    )
    write_trace(tmp_path / "a.et", trace)
    assert main(["convert", str(tmp_path / "a.et"), str(tmp_path / "b.et"), "--dialect", "absolute"]) == 0
    assert "dropped: the clock: 1 wait is in duration_ps, which other tools do not read" in capsys.readouterr().out


def test_equal_lines_of_statistics_are_one(ring, capsys):
    assert main(["trace", "stats", str(ring)]) == 0
    assert "  0 … 3 (4, each)              6  0 B" in capsys.readouterr().out


def test_lists_in_the_name_of_a_builder_are_explained(tmp_path, capsys):
    name = "builder:hierarchical:all_reduce:16"
    assert main(["convert", f"{name}:dims=4+4", str(tmp_path / "h")]) == 0
    for wrong, code, said in ((f"{name}:dims=4,4", 2, "write dims=4+4 for a list"), (name, 3, "dims=8+8")):
        assert main(["convert", wrong, str(tmp_path / "h")]) == code
        assert said in capsys.readouterr().err
