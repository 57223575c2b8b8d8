"""The page for users of ASTRA-sim names every quirk, flag, key and word that the front end knows."""

from __future__ import annotations

import argparse
import re

import pytest

from astrasim_py.astra_sim import configs, quirks
from astrasim_py.cli import astra_sim
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario


@pytest.fixture(scope="module")
def text(repo):
    assert repo.joinpath(quirks.PAGE).is_file()
    return repo.joinpath(quirks.PAGE).read_text("utf-8")


@pytest.fixture(scope="module")
def page(repo):
    return repo.joinpath("benchmarks", "README.md").read_text("utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_page_and_tables_have_the_same_quirks(text):
    names = re.findall(r"`([a-z-]+)`", section(text, "Quirks").replace("--corrected", ""))
    assert len(names) == len(set(names))
    assert set(names) == set(quirks.QUIRKS) == set(quirks.CORRECTED)


def test_every_flag_is_described(text):
    parser = argparse.ArgumentParser(add_help=False)
    astra_sim.arguments(parser)
    flags = {max(action.option_strings, key=lambda name: ("_" not in name, len(name))) for action in parser._actions}
    assert len(flags) > 15
    assert sorted(flag for flag in flags if f"`{flag}" not in section(text, "Flag by flag")) == []


def test_every_key_of_every_file_is_described(text):
    files = section(text, "File by file")
    keys = {*configs._SYSTEM_KEYS, *configs.DEAD_KEYS, *configs.OUTPUT_KEYS, *configs._MEMORY_KINDS}
    keys |= {"topology", "npus_count", "bandwidth", "latency"}
    keys |= {"memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node"}
    assert sorted(key for key in keys if f"`{key}`" not in files) == []
    assert sorted(kind for kind in configs.KINDS if kind not in files) == []


def tutorial(page: str, tmp_path) -> tuple:
    """The points of the scenario of ASTRA-sim 1.0's tutorial: fixed order, Themis."""
    (written,) = re.findall(r"```yaml\n(# themis_512\.yaml\n.*?)```", page, re.DOTALL)
    path = tmp_path / "themis_512.yaml"
    path.write_text(written, "utf-8")
    return expand(load_scenario(path))


def figures(text: str) -> dict[str, list[float]]:
    rows = re.findall(r"^\| (fixed|Themis) \| ([\d,.]+) µs \| ([\d,.]+) µs \| [−\d.]+ % \|$", text, re.MULTILINE)
    return {name.lower(): [float(figure.replace(",", "")) for figure in row] for name, *row in rows}


def test_the_tutorials_setting_is_the_one_that_is_stated(page, tmp_path):
    known = figures(page)
    assert known["fixed"][0] == 35_008.129 and known["themis"][0] == 13_635.871
    assert all(abs(ours / theirs - 1) < 0.02 for theirs, ours in known.values())
    for point in tutorial(page, tmp_path):
        problem = prepare(point).problem
        planner = problem.jobs[0].planner.default
        assert [(dim.kind, dim.size, dim.bandwidth, dim.latency_ps) for dim in problem.topology.dims] == [
            ("switch", 8, 50 * 2**30, 1000)
        ] * 3
        assert (planner.how.chunks, planner.how.active_chunks, planner.how.endpoint_delay) == (64, 1, 10_000)
        assert problem.network.model == "analytical" and problem.semantics.gamma == 0


@pytest.mark.nightly
def test_the_tutorials_figures_are_met(page, tmp_path):
    for point in tutorial(page, tmp_path):
        time_us = simulate(prepare(point).problem, level="summary").makespan / 1e6
        theirs, ours = figures(page)[point.values["order"]]
        assert time_us == pytest.approx(ours, abs=0.0005)
        assert time_us == pytest.approx(theirs, rel=0.02)
