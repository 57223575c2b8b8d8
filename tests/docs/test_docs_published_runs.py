"""The table of large published runs says what the closed form predicts."""

import csv
import re
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
@pytest.mark.parametrize(("gpus", "published"), [(8192, 430), (16384, 400)])
def test_llama_405b_simulated_is_near_its_closed_form_and_what_was_published(tmp_path, gpus, published):
    """Folded and exact: 32 ranks stand for all."""
    path = tmp_path / "x.yaml"
    path.write_text(
        f"name: x\ntopologies: {{dgx: {{preset: dgx_h100, nodes: {gpus // 8}}}}}\ncompute: {{preset: dgx_h100}}\n"
        "workload: {training: {model: llama3.1-405b, seq: 8192, gbs: 2048, tp: 8, pp: 16, vp: 8, zero: 1, "
        "grad_dtype: fp32, recompute: light, overlap: {dp: true}}}\n"
    )
    (point,) = expand(load_scenario(str(path)))
    closed = estimate(point)
    records = simulate(prepare(point).problem, level="summary", fold=True)
    assert records.fold is not None and records.fold.exact
    seconds = records.makespan / 1e12
    assert seconds == pytest.approx(closed["step_s"], rel=0.03)
    rate = closed["tflops_per_gpu"]["full"] * closed["step_s"] / seconds
    assert rate == pytest.approx(published, rel=0.07)
    assert closed["tflops_per_gpu"]["full"] == pytest.approx(published, rel=0.07)
