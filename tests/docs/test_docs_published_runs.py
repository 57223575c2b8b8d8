"""The table of large published runs says what the closed form predicts."""

import csv
import re
from collections import defaultdict
from dataclasses import replace

import pytest

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.training.software import software
from astrasim_py.validation.training_errors import predict
from astrasim_py.validation.training_rows import read_rows


def test_the_table_of_large_runs_is_that_of_the_closed_form(repo, package):
    path = package / "data" / "validation" / "published_runs.csv"
    text = (repo / "docs" / "training_times.md").read_text("utf-8")
    section = text.partition("### Large runs that nothing was fitted to")[2]
    cells = re.findall(r"^\| .*? \| ([\d,/]+) \| ([\d./]+) \| ([-+\d/]+) % \| ([-+\d/]+) % \|", section, re.MULTILINE)
    lines = [line for runs in cells for line in zip(*(cell.split("/") for cell in runs), strict=True)]
    rows = read_rows(path)
    assert len(lines) == len(rows) and not any(row.problem for row in rows)
    for row, (gpus, seconds, *shown) in zip(rows, lines, strict=True):
        assert row.layout is not None
        assert (int(gpus.replace(",", "")), float(seconds)) == (row.layout.ranks, pytest.approx(row.measured))
        for name, percent in zip(("megatron", "pytorch"), shown, strict=True):
            (error,) = predict([replace(row, constants=software(name).constants)]).errors()
            assert round(100 * float(error)) == int(percent), (row.id, name)


def test_every_large_run_says_where_it_is_published_and_what_is_left_out(package):
    with (package / "data" / "validation" / "published_runs.csv").open(newline="") as file:
        assert all(row["where"] and row["left_out"] for row in csv.DictReader(file))


@pytest.mark.parametrize("gpus", [8192, 16384])
def test_llama_405b_takes_what_was_published_with_default_constants(package, gpus):
    rows = read_rows(package / "data" / "validation" / "published_runs.csv", ["llama-3"])
    (row,) = (row for row in rows if row.layout is not None and row.layout.ranks == gpus)
    (error,) = predict([replace(row, constants=software("pytorch").constants)]).errors()
    assert abs(float(error)) <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize(("column", "gpus", "published"), [(0, 8192, 430), (2, 16384, 400)])
def test_parts_of_llama_405b_are_those_of_its_table(tmp_path, repo, column, gpus, published):
    """Closed form and simulation, which is folded and exact: 32 ranks stand for all."""
    path = tmp_path / "x.yaml"
    path.write_text(
        f"name: x\ntopologies: {{dgx: {{preset: dgx_h100, nodes: {gpus // 8}}}}}\ncompute: {{preset: dgx_h100}}\n"
        "workload: {training: {model: llama3.1-405b, seq: 8192, gbs: 2048, tp: 8, pp: 16, vp: 8, zero: 1, "
        "grad_dtype: fp32, recompute: light, overlap: {dp: true}}}\n"
    )
    (point,) = expand(load_scenario(str(path)))
    closed = estimate(point)
    parts = closed["parts_s"]
    computing = parts["forward"] + parts["backward"] + parts["optimizer"]
    beside, last = parts["tp"], parts["reduction"]
    predicted = [computing, beside, closed["step_s"] - computing - beside - last, last, closed["step_s"]]

    records = simulate(prepare(point).problem, level="summary", fold=True)
    assert records.fold is not None and records.fold.exact
    calls: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # tensor parallel group -> time in calls, end of the last
    for group, start, end in zip(*(records.collective[name] for name in ("group", "start", "end")), strict=True):
        if str(group).startswith("tp."):
            calls[str(group)] = [calls[str(group)][0] + int(end) - int(start), max(calls[str(group)][1], int(end))]
    seconds, computing = records.makespan / 1e12, max(records.compute) / 1e12
    beside = max(time for time, _ in calls.values()) / 1e12
    last = seconds - max(end for _, end in calls.values()) / 1e12 - parts["optimizer"]
    simulated = [computing, beside, seconds - computing - beside - last, last, seconds]

    rates = [closed["tflops_per_gpu"]["full"] * closed["step_s"] / step for step in (closed["step_s"], seconds)]
    table = (repo / "docs" / "training_times.md").read_text("utf-8").partition("Llama 3.1 405B, closed form beside")[2]
    lines = [line.replace(" s |", " |").split(" | ")[1:] for line in table.splitlines() if line.startswith("| ")][1:7]
    shown = [[float(line[column + side].strip(" |")) for line in lines] for side in (0, 1)]
    assert shown[0] == [round(part, 2) for part in predicted] + [round(rates[0])]
    assert shown[1] == [round(part, 2) for part in simulated] + [round(rates[1])]
    assert seconds == pytest.approx(closed["step_s"], rel=0.03)
    assert rates == pytest.approx([published, published], rel=0.07)
