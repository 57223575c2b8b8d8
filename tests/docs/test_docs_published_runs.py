"""The table of large published runs says what the closed form predicts."""

import csv
import re
from dataclasses import replace

import pytest

from astrasim_py.training.software import software
from astrasim_py.validation.training_errors import predict
from astrasim_py.validation.training_rows import read_rows


def test_the_table_of_large_runs_is_that_of_the_closed_form(repo, package):
    path = package / "data" / "validation" / "published_runs.csv"
    text = (repo / "docs" / "training_times.md").read_text("utf-8")
    section = text.partition("### Large runs that nothing was fitted to")[2]
    lines = re.findall(r"^\| .*? \| ([\d,]+) \| ([\d.]+) \| ([+-]\d+) % \| ([+-]\d+) % \|", section, re.MULTILINE)
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
