"""What is stored goes stale when the sources that decided it change, and not when others do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core import edition as editions
from astrasim_py.core.edition import edition
from astrasim_py.core.errors import UsageError
from astrasim_py.optimizer import state
from astrasim_py.preparation import schedules, verdicts
from astrasim_py.results import store, stored_points
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.synthesis import solve as synthesis_solve
from astrasim_py.verification.verifier import Verdict

SCENARIO = """
name: small
topology: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}
workload: [{all_reduce: {size: $size}}]
algorithms: {all_reduce: ring}
sweep: {size: [1 KiB, 2 KiB]}
"""
SYNTHESIZED = """
name: made
topology: {shape: ring, npus: 3, bandwidth: 1 GB/s, latency: 1 us}
workload: [{all_gather: {size: 3 KiB}}]
algorithms: {all_gather: {synthesize: {rounds: 1}}}
"""


@pytest.fixture
def copy(package, tmp_path, monkeypatch):
    """A copy of the package, whose editions are asked for."""
    target = tmp_path / "code" / "astrasim_py"
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(editions, "_PACKAGE", target)
    edition.cache_clear()
    yield target
    edition.cache_clear()


def change(file):
    file.write_bytes(file.read_bytes() + (b" " if file.suffix in (".json", ".csv") else b"#\n"))
    edition.cache_clear()


@pytest.mark.slow
def test_a_changed_source_of_results_and_no_other_makes_stored_points_stale(copy, tmp_path):
    (tmp_path / "small.yaml").write_text(SCENARIO)

    def run() -> tuple[str, dict]:
        command = [sys.executable, "-m", "astrasim_py", "run", "small.yaml", "--engine", "simpy", "--jobs", "1"]
        environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        points = sorted((tmp_path / "results/small/points").glob("0*"))
        return done.stderr, {p.name: json.loads((p / "manifest.json").read_bytes())["digest"] for p in points}

    _, first = run()
    assert len(first) == 2
    change(copy / "report" / "plots.py")
    said, second = run()
    assert second == first and "2 of 2 points were finished already" in said
    change(copy / "engine" / "simpy" / "npu.py")
    said, third = run()
    assert "2 stored points of another state of astrasim_py: computed again" in said and "finished already" not in said
    assert third.keys() == first.keys() and all(third[name] != first[name] for name in first), "in their places"
    assert run() == (run()[0], third)


def test_points_in_another_format_are_named_and_computed_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    command = ["small.yaml", "--engine", "simpy", "--jobs", "1"]
    assert main(command) == 0
    for path in (tmp_path / "results/small/points").glob("0*/manifest.json"):
        path.write_text(path.read_text().replace(f'"format": {stored_points.FORMAT}', '"format": 2'))
    capsys.readouterr()
    assert main(["results", "list"]) == 2
    first = os.path.join("results", "small", "points", "001-1KiB")
    assert f"{first}: is of another version of astrasim_py; run the scenario again" in capsys.readouterr().err
    assert main(command) == 0
    assert "2 stored points of another state of astrasim_py: computed again" in capsys.readouterr().err
    assert main(["results", "list"]) == 0


DECIDE = (
    *("engine/compiled/kernel.py", "system/bound.py", "topology/shapes.py", "training/layers.py"),
    *("preparation/prepare.py", "results/values.py", "report/timeline.py", "data/hardware/dgx_h100.json"),
)
SHOW = (
    *("report/page.py", "report/tables.py", "report/explain.py", "cli/main.py", "page/main.js", "optimizer/state.py"),
    *("engine/__pycache__/kernel.py", "engine/notes.txt"),
)


def test_parts_that_decide_a_result(copy):
    for file in (*DECIDE, *SHOW):
        before, path = store.result_edition(), copy / file
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.touch()
        change(path)
        assert (store.result_edition() != before) == (file in DECIDE), file


def test_a_file_that_moves_or_passes_bytes_to_its_neighbour_is_a_change(copy):
    first = edition("core")
    os.rename(copy / "core" / "wide.py", copy / "core" / "wider.py")
    edition.cache_clear()
    second = edition("core")
    text = (copy / "core" / "wider.py").read_bytes()
    (copy / "core" / "wider.py").write_bytes(text[:-9])
    (copy / "core" / "widest.py").write_bytes(text[-9:])
    edition.cache_clear()
    assert len({first, second, edition("core")}) == 3


def test_a_stale_point_that_fails_now_is_in_no_table(tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    scenario = load_scenario(tmp_path / "small.yaml")
    assert ap.run(scenario, out=tmp_path / "out", engine="simpy").exit_code == 0
    monkeypatch.setattr(store, "result_edition", lambda: "0" * 16)
    cut = ap.run(scenario, out=tmp_path / "out", points=(1, 2), engine="simpy")
    assert (cut.computed, cut.reused) == (1, 0)
    rows = (tmp_path / "out" / "small" / "summary.csv").read_text().splitlines()
    assert len(rows) == 2 and "1024" in rows[1]
    assert len(stored_points.read_points(tmp_path / "out" / "small")) == 2


def test_a_verdict_holds_for_the_sources_that_gave_it(monkeypatch):
    made = []

    def verify() -> Verdict:
        made.append(1)
        return verdict

    verdict = Verdict(**{field: () if field in ("problems", "warnings") else None for field in Verdict.__annotations__})
    for before, after in (("0", 1), ("0", 1), ("1", 2)):
        monkeypatch.setattr(verdicts, "result_edition", lambda digit=before: digit * 16)
        verdicts._VERDICTS.clear()
        verdicts.kept_verdict(("an algorithm",), verify)
        assert len(made) == after


def test_a_synthesized_algorithm_holds_for_the_sources_that_made_it(tmp_path, monkeypatch):
    (tmp_path / "made.yaml").write_text(SYNTHESIZED)
    scenario, searches, solve = load_scenario(tmp_path / "made.yaml"), [], synthesis_solve.solve

    def counted(*args, **options):
        searches.append(1)
        return solve(*args, **options)

    monkeypatch.setattr(synthesis_solve, "solve", counted)
    for sources, after in (("0", 1), ("0", 1), ("1", 2), ("1", 2)):
        monkeypatch.setattr(schedules, "edition", lambda *_, digit=sources: digit * 16)
        result = ap.run(scenario, out=tmp_path / "out", engine="simpy", fresh=True)
        assert result.exit_code == 0 and len(searches) == after
    names = [path.name for path in (tmp_path / "out" / "made" / "algorithms").iterdir()]
    assert len(names) == 2, "the old one is replaced"


def test_a_search_does_not_go_on_under_other_sources(tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    point = expand(load_scenario(tmp_path / "small.yaml"))[0]
    asked = state.asked_of(point, ("rings",), 0, "auto")
    state.save_state(tmp_path / "search", asked, {"a": 1})
    assert state.load_state(tmp_path / "search", asked) == {"a": 1}
    monkeypatch.setattr(state, "edition", lambda *_: "0" * 16)
    with pytest.raises(UsageError, match="holds a search with another version"):
        state.load_state(tmp_path / "search", state.asked_of(point, ("rings",), 0, "auto"))
