"""`compare`: two results point by point."""

from __future__ import annotations

import json
import math
import re

import pytest

import astrasim_py as ap
from astrasim_py.cli.main import main

SCENARIO = """
topology: {shape: $shape, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: $size}}]
sweep: {shape: [ring, switch], size: [64 KiB, 1 MiB, 16 MiB]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    (folder / "s.yaml").write_text(SCENARIO)
    changes = {"sweep.size": ["1024KiB", "16 MiB", "64 MiB"], "topology.bandwidth": "100 GB/s"}
    ap.run(folder / "s.yaml", out=folder / "a")
    ap.run(folder / "s.yaml", out=folder / "b", overrides=changes)
    return folder


@pytest.fixture
def told(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["results", "compare", *argv])
        return code, *capsys.readouterr()

    return run


def test_points_are_matched_by_what_their_values_are_worth(folder):
    found = ap.compare(folder / "a/s", folder / "b/s")
    assert len(found.rows) == 4, "1 MiB is 1024KiB"
    of_a = {tuple(row["sweep"].values()): row["time_ns"] for row in ap.run(folder / "s.yaml", out=folder / "a").rows}
    for row in found.rows:
        assert row["a_ns"] == of_a[tuple(row["sweep"].values())]
        assert float(row["ratio"]) == pytest.approx(float(row["b_ns"] / row["a_ns"]), rel=1e-5)
    changes = [abs(math.log(row["ratio"])) for row in found.rows]
    assert changes == sorted(changes, reverse=True)
    assert found.mean == pytest.approx(math.prod(float(row["ratio"]) for row in found.rows) ** (1 / 4))
    assert found.only_a == ("shape=ring,size=64 KiB", "shape=switch,size=64 KiB")
    assert found.only_b == ("shape=ring,size=64 MiB", "shape=switch,size=64 MiB")


def test_a_result_compared_with_itself_is_all_ones(folder):
    result = ap.run(folder / "s.yaml", out=folder / "a")
    found = ap.compare(result, folder / "a/s")
    assert (found.mean, {row["ratio"] for row in found.rows}, found.only_a) == (1, {1}, ())


def test_every_form_has_the_same_points(told, folder):
    _, text, _ = told("a/s", "b/s")
    assert "geometric mean of B/A: 0.5" in text and "only in A: shape=ring,size=64 KiB; " in text
    rows = json.loads(told("a/s", "b/s", "--format", "json")[1])["rows"]
    csv = told("a/s", "b/s", "--format", "csv")[1].splitlines()
    markdown = told("a/s", "b/s", "--format", "markdown")[1].splitlines()
    assert csv[0] == "shape,size,a_ns,b_ns,ratio,status_a,status_b"
    assert len(rows) == len(csv) - 1 == len(markdown) - 2 == 4
    assert told("a/s", "b/s", "--sort=-ratio", "--top", "1", "--format", "csv")[1].count("\n") == 2
    assert told("a/s@shape=ring,size=1 MiB", "b/s@shape=ring,size=1 MiB", "--format", "csv")[1].count("\n") == 2


def test_two_points_are_compared_whatever_their_values(told, folder):
    wanted = (("a", "ring-1MiB"), ("b", "switch-16MiB"))
    points = [next((folder / name / "s/points").glob(f"*-{label}")) for name, label in wanted]
    assert "over 1 point" in told(*map(str, points))[1]


def test_values_of_one_result_are_compared(told):
    rows = json.loads(told("a/s@shape=ring", "@shape=switch", "--format", "json")[1])["rows"]
    assert sorted(row["sweep"]["size"] for row in rows) == ["1 MiB", "16 MiB", "64 KiB"]
    assert all(row["sweep"].keys() == {"size"} for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a/s"], "names 1 results; name two"),
        (["a/s", "b/x"], "no folder of results"),
        (["a/s@sise=1 MiB", "b/s"], 'did you mean "size"?'),
        (["a/s", "b/s", "--sort", "tiem"], '"tiem"'),
        (["a/s", "b/s@size=3 MiB"], "no point has"),
    ],
)
def test_what_cannot_be_compared_is_one_line(told, words, said):
    code, out, err = told(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1) and said in err


def test_results_that_share_no_point_are_refused(folder):
    (folder / "t.yaml").write_text(SCENARIO.replace("size: [64 KiB, 1 MiB, 16 MiB]", "size: [2 MiB, 3 MiB]"))
    ap.run(folder / "t.yaml", out=folder / "a")
    with pytest.raises(ap.AstraError, match="no point in common"):
        ap.compare(folder / "a/s", folder / "a/t")
    (folder / "u.yaml").write_text(SCENARIO.replace("$shape", "ring").replace("shape: [ring, switch], ", ""))
    ap.run(folder / "u.yaml", out=folder / "a")
    with pytest.raises(ap.AstraError, match=re.escape("choose some by @shape=…")):
        ap.compare(folder / "a/s", folder / "a/u")
