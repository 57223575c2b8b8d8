"""Every verb that takes a result names it alike: ``NAME[@key=value,…]``."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

import astrasim_py as ap
from astrasim_py.cli.main import main

SCENARIO = """
name: rings
topologies:
  ring: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}
  fast: {shape: ring, npus: 4, bandwidth: 4 GB/s, latency: 1 us}
workload: [{all_reduce: {size: $size}}]
sweep:
  topology: [ring, fast]
  size: [64 KiB, 1 MiB]
  placement: {in a row: [0, 1, 2, 3], "2:1, mixed": [0, 2, 1, 3]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points")
    (folder / "rings.yaml").write_text(SCENARIO)
    assert main(["run", str(folder / "rings.yaml"), "--out", str(folder / "results"), "--quiet", "--jobs", "1"]) == 0
    shutil.copytree(folder / "results" / "rings", folder / "copied@home" / "rings")
    return folder


@pytest.fixture
def told(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(list(argv))
        return code, *capsys.readouterr()

    return run


def rows_of(told, *argv: str) -> list[dict]:
    code, out, _ = told(*argv, "--format", "json")
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize("name", ["rings.yaml", "rings", "results/rings"])
def test_a_run_shows_the_points_that_are_named(told, name):
    rows = rows_of(told, "run", f"{name}@size=1 MiB,topology=fast", "--jobs", "1")
    assert [row["sweep"]["placement"] for row in rows] == ["in a row", "2:1, mixed"]
    rows = rows_of(told, "run", f"{name}@size=1 MiB,placement=in a row,topology=fast", "@topology=ring", "--jobs", "1")
    assert [row["sweep"]["topology"] for row in rows] == ["ring", "fast"]
    assert {row["sweep"]["size"] for row in rows} == {"1 MiB"}


def test_a_run_says_what_it_leaves_out_and_keeps_the_tables_whole(told, folder):
    table = folder / "results" / "rings" / "summary.csv"
    before = table.read_bytes()
    code, out, _ = told("run", "rings.yaml@placement=2:1, mixed", "--jobs", "1")
    assert code == 0 and "4 of 8 points; the others are left out" in out
    assert table.read_bytes() == before and len(list(csv.reader(before.decode().splitlines()))) == 9
    code, out, _ = told("run", "rings.yaml@size=64 KiB", "--jobs", "1", "--out", "fresh")
    assert code == 0 and len((folder / "fresh" / "rings" / "summary.csv").read_text().splitlines()) == 5


def test_a_check_is_of_the_points_that_are_named(told):
    (row,) = rows_of(told, "check", "rings.yaml@size=1 MiB", "@size=64 KiB,topology=fast")
    assert (row["points"], row["left_out"]) == (6, 2)
    assert (
        "6 of 8 points, the others are left out"
        in told("check", "rings.yaml@size=1 MiB", "@size=64 KiB,topology=fast")[1]
    )


@pytest.mark.parametrize("name", ["rings", "rings.yaml", "results/rings", "copied@home/rings"])
def test_points_are_listed(told, name):
    assert len(rows_of(told, "results", "list", f"{name}@size=1 MiB")) == 4
    assert len(rows_of(told, "results", "list", name)) == 8
    assert len(rows_of(told, "results", "list", "--where", "size=1 MiB")) == 4
    (row,) = rows_of(told, "runs", f'{name}@size=1 MiB,topology=ring,placement="2:1, mixed"')
    (again,) = rows_of(told, "results", "list", row["folder"])
    assert again == row


@pytest.mark.parametrize("name", ["rings", "copied@home/rings"])
def test_a_listed_point_is_a_name_to_go_on_with(told, name):
    lines = told("results", "list", name)[1].splitlines()
    width = lines[1].index("  ")
    points = [line[:width].strip() for line in lines[2:]]
    assert len(set(points)) == 8 and all(point.startswith(f"{name}@") for point in points)
    row, *others = rows_of(told, "results", "list", points[3])
    assert not others and told("results", "list", row["folder"])[1].splitlines()[2].startswith(points[3])


def test_rows_of_several_scenarios_say_of_which_they_are(told, folder):
    (folder / "other.yaml").write_text(SCENARIO.replace("rings", "other", 1))
    several = told("run", "rings.yaml@size=1 MiB", "other.yaml@size=1 MiB", "--format", "markdown")[1].splitlines()
    assert [line.split(" | ")[0] for line in several[2:]] == ["| rings"] * 4 + ["| other"] * 4
    assert "scenario" not in told("run", "rings.yaml@size=1 MiB", "--format", "markdown")[1]


def test_figures_and_pages_of_a_point(told, folder):
    point = "@size=1 MiB,topology=ring,placement=in a row"
    code, out, _ = told("results", "plot", f"rings{point}")
    assert code == 0 and all(line.startswith("results/rings/figures/") for line in out.splitlines())
    code, out, _ = told("view", f"copied@home/rings{point}", "@topology=fast", "-o", "two.html")
    assert (code, out) == (0, "two.html\n") and (folder / "two.html").is_file()


def test_points_of_a_scenario_are_verified_and_inlined(told, folder):
    point = "rings.yaml@size=1 MiB,topology=ring"
    code, out, _ = told("verify", point, "--format", "json")
    assert code == 0 and len(json.loads(out)) == 2
    assert "means 2 points, not one point; they differ in placement" in told("convert", "--inline", point, "in/x")[2]
    assert told("convert", "--inline", f"{point},placement=in a row", "in/x")[0] == 0
    stored = point.replace("rings.yaml", "rings")
    assert told("verify", stored)[:2] == told("verify", point)[:2]
    assert told("convert", "--inline", f"{stored},placement=in a row", "in/y")[0] == 0
    assert "no name in results" in told("verify", "rongs@size=1 MiB")[2]
    assert (folder / "in" / "x.3.et").is_file()


def test_python_takes_the_same_names(folder, monkeypatch):
    monkeypatch.chdir(folder)
    result = ap.run("rings.yaml@size=1 MiB,topology=ring")
    assert len(result.rows) == 2 and result.left_out == 6
    ratios = [row.ratio for row in ap.compare("rings@topology=ring", "rings@topology=fast").rows]
    assert len(ratios) == 4 and all(ratio < 1 for ratio in ratios)
    axes = ap.plot("rings@placement=in a row,topology=ring", x="size")
    (times,) = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() != "None"]
    assert times[1] == pytest.approx(float(result.rows[0].time_ns) / 1000)
    assert ap.explain("rings@size=1 MiB,topology=ring,placement=in a row").makespan == result.rows[0].time_ps


def test_former_spellings_are_accepted_and_name_the_new_one(told, folder):
    words = "size=1 MiB", "placement=in a row", "topology=ring", "topology=fast"
    code, out, err = told("explain", "rings", *words)
    name = "'rings@size=1 MiB,placement=in a row,topology=ring' @topology=fast"
    assert code == 0 and f'is now "explain {name}"; the former spelling goes in 0.4.0' in err
    assert told("explain", "rings@size=1 MiB,placement=in a row,topology=ring", "@topology=fast")[1] == out
    code, _, err = told("view", "rings", "--point", "size=1 MiB,placement=in a row,topology=ring", "-o", "one.html")
    assert code == 0 and "is now \"view 'rings@size=1 MiB,placement=in a row,topology=ring'" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "rigns.yaml@size=1 MiB"], 'did you mean "rings.yaml"?'),
        (["run", "rings.yaml@placement=a@b=c"], "quote a value that holds @ or ="),
        (["explain", "rings@placement=a@b"], "quote a value that holds @ or ="),
        (["run", "rings.yaml@size"], "write key=value behind @"),
        (["run", "."], ".: is a folder that no scenario has filled; name the scenario's file"),
        (["run", "rings.yaml@sizes=1 MiB"], 'rings.yaml@sizes: is not swept; did you mean "size"? swept are topology'),
        (["check", "rings.yaml@size=2 MiB"], 'rings.yaml@size: no point has "2 MiB"; write one of 64 KiB, 1 MiB'),
        (["results", "list", "rings@size=1 GiB"], 'no point has "1 GiB"'),
        (["results", "plot", "rigns"], 'did you mean "rings"?'),
        (["view", "rings", "-o", "rings.png"], "rings.png: a page is HTML; write a name that ends in .html"),
        (["view", "rings@size=1 MiB"], "means 4 points, not one point; they differ in topology, placement"),
        (["optimize", "rings@size=1 MiB"], "means 4 points, not one point; they differ in topology, placement"),
    ],
)
def test_a_wrong_name_is_one_line(told, words, said):
    code, out, err = told(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1) and said in err
