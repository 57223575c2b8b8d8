"""``repeat``: points run with other seeds, their medians and intervals."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from decimal import Decimal

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import ErrorList
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.arranged_rows import FigureRow
from astrasim_py.report.plots import draw
from astrasim_py.results.model import Row
from astrasim_py.results.repeats import HIGH, LOW, medians, nearest_rank
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

US = 10**6
NET = "{shape: leaf_spine, leaves: 2, hosts_per_leaf: 2, spines: 2, bandwidth: 50 GB/s, latency: 1 us"


def scenario(folder, text: str = "", *, name: str = "rep", topologies: str | None = None):
    path = folder / f"{name}.yaml"
    topologies = topologies or f"{{plain: {NET}}}, spread: {NET}, routing: {{ecmp: true, seed: 5}}}}}}"
    path.write_text(
        f"name: {name}\ntopologies: {topologies}\n"
        "workload: [{compute: {time: 10 us}}, {all_reduce: {size: 1 MiB}}]\n" + text
    )
    return path


def rows_of(path) -> list[dict]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


SWEPT = "sweep: {topology: [plain, spread]}\n"


def test_only_points_with_something_random_are_repeated(tmp_path):
    points = expand(load_scenario(scenario(tmp_path, SWEPT + "repeat: 4\n")))
    assert [point.name for point in points] == ["topology=plain", *(f"topology=spread,seed={k}" for k in range(4))]
    assert [point.repeat for point in points] == [1, 4, 4, 4, 4]
    assert [prepare(point).problem.topology.routing.seed for point in points[1:]] == [5, 6, 7, 8]


def test_every_seed_moves_on(tmp_path):
    text = "placement: {random: 7}\nnoise: {compute: {exponential: 1 us}}\nrepeat: 3\ntopology: spread\n"
    points = expand(load_scenario(scenario(tmp_path, text)))
    problems = [prepare(point).problem for point in points]
    assert [problem.noise.seed for problem in problems] == [0, 1, 2]
    assert [point.config["placement"] for point in points] == [{"random": 7}, {"random": 8}, {"random": 9}]
    assert len({problem.jobs[0].placement for problem in problems}) > 1
    (alone,) = expand(load_scenario(scenario(tmp_path, text.replace("repeat: 3\n", ""))))
    assert alone.config == points[0].config  # the first seed is the one that is written


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeat")
    path = scenario(folder, SWEPT + "noise: {compute: {exponential: 5 us}}\nrepeat: 20\n")
    return path, run_scenario(load_scenario(path), out=folder / "results"), folder / "results"


def test_tables_have_the_median_and_the_10th_to_the_90th_percentile(repeated):
    _, result, folder = repeated
    every = rows_of(folder / "rep" / "seeds.csv")
    assert len(every) == len(result.rows) == 40
    for row in rows_of(folder / "rep" / "summary.csv"):
        times = sorted(Decimal(one["time_ns"]) for one in every if one["sweep.topology"] == row["sweep.topology"])
        assert [Decimal(row[key]) for key in ("time_low_ns", "time_ns", "time_high_ns")] == [
            times[1],
            times[9],
            times[17],
        ]
        assert row["seeds"] == "20" and row["point"] == f"topology={row['topology']}"
        (median,) = (one for one in every if one["folder"] == row["folder"])  # the row is that of a run
        assert (median["time_ns"], median["seed"]) == (row["time_ns"], row["seed"])


def test_finished_seeds_are_taken_from_the_store(repeated):
    path, _, folder = repeated
    path.write_text(path.read_text().replace("repeat: 20", "repeat: 22"))
    again = run_scenario(load_scenario(path), out=folder)
    assert (again.reused, again.computed) == (40, 4)
    assert {row["seeds"] for row in rows_of(folder / "rep" / "summary.csv")} == {"22"}


def test_explain_names_the_seeds(repeated, capsys):
    _, _, folder = repeated
    (point,) = (folder / "rep").glob("points/*-spread-seed7")
    assert main(["explain", str(point)]) == 0
    said = capsys.readouterr().out
    assert "topology=spread,seed=7" in said and "seeds: noise.seed 7, topology.routing.seed 12" in said
    assert {row["seeds"] for row in rows_of(folder / "rep" / "summary.csv")} == {"22"}  # also of the run at that level


def test_records_of_any_named_seed_are_drawn(repeated, capsys):
    _, _, folder = repeated
    assert main(["results", "plot", "rep@topology=plain,seed=1", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "-seed1-links.svg" in out and "no finished points" not in err


def test_jobs_are_repeated_each_with_itself_alone(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "name: jobs\ntopologies: {net: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 1 us}}\n"
        "jobs:\n  a: {placement: [0, 1], iterations: 3, workload: [{compute: {time: 5 us}}, barrier]}\n"
        "  b: {placement: [2, 3], iterations: 3, workload: [{compute: {time: 5 us}}, barrier]}\n"
        "noise: {compute: {exponential: 5 us}}\nrepeat: 5\ncompare: alone\n"
        "plots: [{kind: time, x: job}, {kind: slowdown, series: job}]\n"
    )
    result = run_scenario(load_scenario(path), out=tmp_path)
    assert result.exit_code == 0 and len(result.figures) == 4
    every, (a, b) = rows_of(tmp_path / "jobs" / "jobs_by_seed.csv"), rows_of(tmp_path / "jobs" / "jobs.csv")
    assert len(every) == 10 and (a["job"], b["job"], a["seeds"]) == ("a", "b", "5")
    for row in every:
        assert row["alone_ns"] == row["time_ns"] and row["slowdown"] == "1"  # of the same seed: they share no link
    assert a["time_ns"] == str(sorted(Decimal(row["time_ns"]) for row in every if row["job"] == "a")[2])


def test_a_figure_has_the_interval(repeated):
    rows = [FigureRow(**vars(row) | {"sweep": {**row.sweep, "x": "1"}}) for row in repeated[1].rows]
    single = [row for row in rows if row.sweep["seed"] == "0"]
    spec = {"kind": "time", "x": "topology"}
    drawn, plain = (draw(spec, some).data["svg"][0] for some in (rows, [replace(row, seeds=None) for row in single]))
    assert len(drawn) > len(plain)


def test_percentiles_are_nearest_ranks():
    for count in range(1, 30):
        values = list(range(1, count + 1))
        for percent in (LOW, 50, HIGH):
            assert nearest_rank(values, percent) == math.ceil(count * percent / 100)


def test_a_run_that_is_not_done_stands_for_its_point():
    rows = [
        Row(scenario="s", sweep={"seed": str(k)}, seeds=3, time_ns=time, status=status, point="p")
        for k, (time, status) in enumerate([(Decimal(5), "done"), (None, "stuck"), (Decimal(4), "done")])
    ]
    (row,) = medians(rows)
    assert (row.status, row.seed, row.point, row.interval) == ("stuck", "1", "s", "") and "time_low_ns" not in row


def test_the_median_of_a_barrier_under_noise_is_near_its_mean(tmp_path):
    """k iterations wait for the slowest of n: k mu H_n, give or take its deviation."""
    ranks, k, mean = 8, 40, 10 * US
    path = tmp_path / "barrier.yaml"
    path.write_text(
        f"name: barrier\ntopologies: {{net: {{shape: switch, npus: {ranks}, bandwidth: 50 GB/s, latency: 0 ns}}}}\n"
        f'jobs: {{a: {{placement: ["0-{ranks - 1}"], iterations: {k}, '
        "workload: [{compute: {time: 0 us}}, barrier]}}\n"
        "noise: {compute: {exponential: 10 us}}\nrepeat: 20\nrecord: summary\n"
    )
    result = run_scenario(load_scenario(path), out=tmp_path)
    (row,) = medians(result.rows)
    expected = k * mean * sum(1 / i for i in range(1, ranks + 1)) / 1000
    deviation = mean * math.sqrt(k * sum(i**-2 for i in range(1, ranks + 1))) / 1000
    assert abs(float(row["time_ns"]) - expected) < deviation  # of the median of 20: 0.28 of one run's
    assert expected - 2 * deviation < row["time_low_ns"] < expected < row["time_high_ns"] < expected + 2 * deviation


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topology: plain\nrepeat: 2\n", "repeat: nothing here is random; write noise"),
        ("topology: spread\nrepeat: 0\n", "repeat: 0 is less than 1"),
        ("topology: spread\nrepeat: 20000\n", "repeat: 20000 is more than the cap of 10,000"),
        (SWEPT + "repeat: 5001\n", "repeat: 10,002 runs are more than the cap of 10,000"),
        ("repeat: 2\nnoise: {seed: $seed, compute: {exponential: 1 us}}\nsweep: {seed: [1, 2]}\n", "is swept"),
        ("topology: spread\nrepeat: $k\nsweep: {k: [1, 2]}\n", "repeat"),
    ],
)  # fmt: skip
def test_wrong_repetitions_are_refused_in_a_line(tmp_path, text, said):
    with pytest.raises(ErrorList) as raised:
        load_scenario(scenario(tmp_path, text))
    assert any(said in line and "rep.yaml:" in line for line in raised.value.lines())
