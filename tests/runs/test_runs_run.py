"""Running a scenario: same bytes for any number of jobs, finished points reused, failures told and survived."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from limits import WAIT_S

import astrasim_py as ap
from astrasim_py.core.errors import OutputError, UsageError, worst
from astrasim_py.core.exact_json import json_text
from astrasim_py.inspection.explained import explain_folder
from astrasim_py.inspection.stored_results import find, plot_folder, stored_runs
from astrasim_py.report import timeline as report_timeline
from astrasim_py.report.explain import explanation_text
from astrasim_py.report.result_table import summary_text
from astrasim_py.results import store, stored_points
from astrasim_py.results.model import ROW_KEYS
from astrasim_py.runs.chosen_points import parse_share
from astrasim_py.runs.progress import Progress, on_terminal, progress_line
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.load import load_scenario

SCENARIO = """
name: small
title: A small study
topologies:
  ring: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
  mesh: {shape: mesh, dims: [2, 2], bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - all_reduce: {size: $size}
network: {model: $model}
sweep:
  topology: [ring, mesh]
  size: [64 KiB, 1 MiB]
  model: [cut_through, store_and_forward]
"""
STUCK = """
name: stuck
topologies: {ring: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}}
workload: [{all_reduce: {size: 1 KiB, repeat: 20}}]
limits: {max_sim_time: $limit}
sweep: {limit: [1 s, 10 us]}
"""


def scenario(folder: Path, text: str = SCENARIO, *overrides: str, **options):
    path = folder / "scenario.yaml"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return load_scenario(path, overrides, **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a scenario's results but those that hold volatile facts."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != stored_points.VOLATILE]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_rows_have_stable_keys_and_exact_numbers(tmp_path):
    result = run_scenario(scenario(tmp_path), out=tmp_path)
    row = result.rows[0]
    assert tuple(row) == ROW_KEYS
    # 2 (n-1) (alpha + S / (n B)), to the picosecond
    assert str(row["time_ns"]) == "4966.08" and str(result.summaries[0]["closed_form_ns"]) == "4966.08"
    assert row["sweep"] == {"topology": "ring", "size": "64 KiB", "model": "cut_through"}
    known = {key: row[key] for key in ("scenario", "topology", "algorithm", "size_bytes", "npus", "engine", "status")}
    assert known == {
        "scenario": "small",
        "topology": "ring",
        "algorithm": "ring",
        "size_bytes": 65536,
        "npus": 4,
        "engine": "simpy",
        "status": "done",
    }
    assert row["messages"] == row["message_hops"] == 24 and row["busiest_link"] == "0->1"
    assert 0 < row["bound_ns"] <= row["time_ns"] and row["exposed_comm_ns"] == row["time_ns"]
    assert float(row["efficiency"]) == pytest.approx(float(row["bound_ns"] / row["time_ns"]))
    assert float(row["busbw_GBps"]) == pytest.approx(float(row["algbw_GBps"]) * 1.5)
    assert json.loads(json_text(list(result.rows)))[0]["time_ns"] == 4966.08
    assert "4.966 µs" in summary_text(result.rows)


def test_a_finished_point_is_used_again(tmp_path):
    first = run_scenario(scenario(tmp_path), out=tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("manifest.json")}
    again = run_scenario(scenario(tmp_path), out=tmp_path / "out", jobs=2)
    assert (again.computed, again.reused) == (0, 8)
    assert again.rows == first.rows
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("manifest.json")} == before
    assert "8 of 8 points were finished already (--fresh computes them again)" in again.notes
    fresh = run_scenario(scenario(tmp_path), out=tmp_path / "out", fresh=True)
    assert (fresh.computed, fresh.reused) == (8, 0)
    assert len(before) == 8 == len(list((tmp_path / "out").rglob("manifest.json")))


def test_a_higher_level_serves_a_lower_one_and_not_the_other_way_round(tmp_path):
    run = lambda **more: ap.run(scenario(tmp_path), out=tmp_path, **more)  # noqa: E731
    assert run(level="links").computed == 8
    assert run(level="messages").computed == 8
    assert run(level="summary").reused == 8
    assert run(level="summary", timeline=True).computed == 8
    assert run(timeline=True).reused == 8
    point = stored_points.read_points(tmp_path / "small")[0]
    assert json.loads((point.folder / "timeline.json").read_text())["traceEvents"]


def test_a_timeline_too_large_for_viewers_asks_for_ranks_and_loses_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(report_timeline, "MOST_BYTES", 5_000)
    run = lambda **more: ap.run(scenario(tmp_path), out=tmp_path, jobs=1, **more)  # noqa: E731
    asked = run(timeline=True)
    assert (asked.computed, asked.exit_code) == (8, 2)
    assert {row["status"] for row in asked.rows} == {"done"}
    assert all("name some with --ranks, e.g. --ranks 0-7" in failure.lines[0] for failure in asked.failures)
    assert len(asked.failures) == 8 and not list(tmp_path.rglob("timeline.json"))
    assert run(level="messages").reused == 8

    def ranks_of(file) -> set[int]:
        events = json.loads(file.read_text())["traceEvents"]
        return {e["pid"] for e in events if e["ph"] == "X"} - {4, 5}  # collectives and links

    for ranks in ((0,), (1, 2)):
        some = run(timeline=ranks)
        assert (some.computed, some.exit_code) == (8, 0)
        assert run(timeline=ranks).reused == 8 and run().reused == 8
        assert all(ranks_of(file) == set(ranks) for file in tmp_path.rglob("timeline.json"))
    beyond = run(timeline=(1, 4))
    assert beyond.exit_code == 2 and beyond.failures[0].lines == ("--ranks: 4 is not of 4 ranks; write 0-3",)


def test_a_changed_scenario_is_computed_and_the_old_points_are_kept(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    changed = SCENARIO.replace(
        "ring: {shape: ring, npus: 4, bandwidth: 50", "ring: {shape: ring, npus: 4, bandwidth: 60"
    )
    result = run_scenario(scenario(tmp_path, changed), out=tmp_path)
    assert (result.computed, result.reused) == (4, 4)
    with open(tmp_path / "small" / "summary.csv") as file:
        summary = list(csv.DictReader(file))
    now = {str(point.folder) for point in find(tmp_path / "small")[1]}
    assert len(summary) == len(now) == 8 and "superseded" not in summary[0]
    older = {str(p.row["time_ns"]) for p in stored_points.read_points(tmp_path / "small") if str(p.folder) not in now}
    assert older and older.isdisjoint(row["time_ns"] for row in summary)
    runs = stored_runs(tmp_path / "small")
    assert len(runs) == 12 and {run["folder"] for run in runs if run["current"]} == now


def test_folders_of_points_follow_the_sweep_and_stay_where_it_changes(tmp_path):
    folder, names = tmp_path / "small", lambda: sorted(path.name for path in (tmp_path / "small" / "points").glob("*/"))
    sizes = lambda text: scenario(tmp_path, SCENARIO.replace("[64 KiB, 1 MiB]", text))  # noqa: E731
    run_scenario(sizes("[64 KiB]"), out=tmp_path)
    first = names()
    assert first[0].startswith("001-ring-64KiB") and all(re.fullmatch(r"00\d-[\w-]+", name) for name in first)
    files = {"collectives.csv", "hint.json", "points", "study.json", "summary.csv"}
    assert {path.name for path in folder.iterdir()} == files
    more = run_scenario(sizes("[4 KiB, 64 KiB]"), out=tmp_path)
    assert (more.computed, more.reused) == (4, 4) and set(first) < set(names()) and len(names()) == 8
    assert names()[0].startswith("001-ring-4KiB")
    with open(folder / "summary.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and all((folder / row["folder"] / "link.csv").is_file() for row in rows)
    assert all(row["size"].replace(" ", "") in row["folder"] for row in rows)


def test_points_of_an_earlier_version_are_told_and_not_used(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    folder = tmp_path / "small"
    for path in (folder / "points").glob("*/"):  # as an earlier version stored them
        manifest = json.loads((path / "manifest.json").read_text()) | {"format": 1}
        (path / "manifest.json").write_text(json.dumps(manifest))
        path.rename(folder / path.name)
    for path in (folder, folder / "001-ring-64KiB-cut_through"):
        with pytest.raises(UsageError, match=r"an(other|.earlier) version.*run the scenario again"):
            find(path)
    again = run_scenario(scenario(tmp_path), out=tmp_path)
    assert again.computed == 8 and len(find(folder)[1]) == 8
    assert any("8 points in the layout of an earlier version" in note for note in again.notes)


def test_the_folder_of_points_is_not_one_of_an_earlier_version(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    assert not stored_points.earlier_layout(tmp_path / "small" / "points")


def test_figures_and_tables_are_of_the_scenario_as_it_is_now(tmp_path):
    plots = "plots: [{kind: time, x: size, name: old}, {kind: time, x: size}, {kind: time, x: model}]\n"
    jobs = "jobs: {a: {ranks: 2, workload: [{all_reduce: {size: $size}}]}}"
    first = SCENARIO.replace("workload:\n  - all_reduce: {size: $size}", jobs)
    run_scenario(scenario(tmp_path, first + plots), out=tmp_path)
    folder = tmp_path / "small"
    assert {path.name for path in (folder / "figures").iterdir()} >= {"old.svg", "time.svg", "time-2.svg"}
    assert (folder / "jobs.csv").exists()
    # Fewer points, other figures: nothing of the former remains, also where the figures have to wait for other shares.
    other = SCENARIO.replace("[64 KiB, 1 MiB]", "[1 MiB]") + "plots: [{kind: busbw, x: model}]\n"
    run_scenario(scenario(tmp_path, other), out=tmp_path, points=(1, 2))
    assert not list((folder / "figures").iterdir()) and not (folder / "jobs.csv").exists()
    run_scenario(scenario(tmp_path, other), out=tmp_path)
    assert {path.name for path in (folder / "figures").iterdir()} == {"busbw.svg", "busbw.png", "busbw.csv"}
    with open(folder / "summary.csv") as file:
        assert {row["size"] for row in csv.DictReader(file)} == {"1 MiB"}
    assert len(stored_runs(folder)) == 12


def test_a_folder_of_another_file_is_refused(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    before = contents(tmp_path / "small")
    (tmp_path / "b").mkdir()
    other = scenario(tmp_path / "b", SCENARIO.replace("64 KiB", "32 KiB"))
    with pytest.raises(UsageError, match=r"holds the results of .*scenario.yaml; give this scenario another name"):
        run_scenario(other, out=tmp_path)
    assert contents(tmp_path / "small") == before
    # A file that was moved takes its results along.
    (tmp_path / "scenario.yaml").unlink()
    assert run_scenario(other, out=tmp_path).reused == 4


def test_a_changed_input_file_is_another_point(tmp_path):
    text = SCENARIO.replace("ring: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}", "ring: {file: t.csv}")
    edges = ["src,dst,bandwidth,latency"] + [f"{i},{(i + d) % 4},50 GB/s,1 us" for i in range(4) for d in (1, 3)]
    (tmp_path / "t.csv").write_text("\n".join(edges))
    text = text.replace("{file: t.csv}", "{shape: edge_list, file: t.csv}")
    first = run_scenario(scenario(tmp_path, text), out=tmp_path)
    assert first.exit_code == 0, first.failures
    (tmp_path / "t.csv").write_text("\n".join(edges).replace("1 us", "2 us"))
    assert run_scenario(scenario(tmp_path, text), out=tmp_path).computed == 4


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_limits_are_results_too(tmp_path, jobs):
    first = run_scenario(scenario(tmp_path, STUCK), out=tmp_path, jobs=jobs)
    assert [row["status"] for row in first.rows] == ["done", "limit"]
    assert first.rows[1]["time_ns"] is None and first.exit_code == 4
    assert first.failures[0].point == "limit=10 us" and "--max-sim-time" in first.failures[0].lines[0]
    again = run_scenario(scenario(tmp_path, STUCK), out=tmp_path, jobs=jobs)
    assert again.reused == 2 and again.exit_code == 4 and again.failures == first.failures
    more = ap.run(scenario(tmp_path, STUCK), out=tmp_path, jobs=jobs, max_sim_time_ps=10**15)
    assert (more.reused, more.computed, more.exit_code) == (1, 1, 0)


def test_a_share_of_the_points(tmp_path):
    text = SCENARIO + "plots: [{kind: time, x: size, series: topology}]\n"
    parts = [run_scenario(scenario(tmp_path, text), out=tmp_path / "a", points=(i, 3)) for i in (1, 2, 3)]
    assert [len(part.rows) for part in parts] == [3, 3, 2]
    assert [bool(part.figures) for part in parts] == [False, False, True]
    assert "no figures yet: 3 of 8 points are finished" in parts[0].notes
    whole = run_scenario(scenario(tmp_path, text), out=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert {row["point"] for part in parts for row in part.rows} == {row["point"] for row in whole.rows}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_shares_in_any_order_leave_the_bytes_of_the_whole_run(tmp_path, order):
    """Each share has another point whose algorithm could be better; the folder keeps that of the whole scenario."""
    loaded = scenario(tmp_path)
    ap.run(loaded, out=tmp_path / "alone", engine="simpy")
    assert "hint.json" in {Path(name).name for name in contents(tmp_path / "alone")}
    for share in order:
        ap.run(loaded, out=tmp_path / "shares", engine="simpy", points=(share, 2))
    assert contents(tmp_path / "shares") == contents(tmp_path / "alone")
    ap.run(loaded, out=tmp_path / "shares", engine="simpy", points=(order[0], 2))
    assert contents(tmp_path / "shares") == contents(tmp_path / "alone")


@pytest.mark.slow
def test_shares_of_several_processes_at_once_make_one_whole(tmp_path):
    """Each of them writes the tables and, being perhaps the last, the figures, while others write points."""
    text = SCENARIO + "plots: [{kind: time, x: size, series: topology, name: t}, {kind: links, name: l}]\n"
    loaded = scenario(tmp_path, text)
    alone = ap.run(loaded, out=tmp_path / "alone", engine="simpy")
    command = [sys.executable, "-m", "astrasim_py", "run", str(tmp_path / "scenario.yaml"), "--engine", "simpy"]
    running = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "out"), "--jobs", "1", "--share", share],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for share in ("1/2", "2/2")
    ]
    errors = [process.communicate(timeout=WAIT_S)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert "Traceback" not in "".join(errors)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    again = ap.run(loaded, out=tmp_path / "out", engine="simpy")
    assert (again.computed, again.reused, len(again.figures)) == (0, 8, len(alone.figures))


def test_a_point_that_lands_while_tables_are_written_is_in_them(tmp_path, monkeypatch):
    loaded = scenario(tmp_path)
    real, seen = stored_points.write_tables, []

    def slow(folder, points):
        seen.append(len(points))
        if len(seen) == 1:  # meanwhile another process finishes its share
            ap.run(loaded, out=tmp_path, points=(2, 2), engine="simpy")
        return real(folder, points)

    monkeypatch.setattr(stored_points, "write_tables", slow)
    ap.run(loaded, out=tmp_path, points=(1, 2), engine="simpy")
    assert seen == [4, 8, 8]
    assert len((tmp_path / "small" / "summary.csv").read_text().splitlines()) == 9


@pytest.mark.parametrize("text", ["0/1", "2/1", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_bad_share_is_refused(text):
    with pytest.raises(UsageError, match="--share 1/4"):
        parse_share(text)


@pytest.mark.parametrize("bad", [{"level": "all"}, {"engine": "fast"}, {"jobs": 0}])
def test_bad_options_are_refused(tmp_path, bad):
    with pytest.raises(UsageError):
        ap.run(scenario(tmp_path), out=tmp_path, **bad)


MODELS = """
from astrasim_py.engine.simpy.network import CutThrough

def broken(simulation):
    raise RuntimeError("a defect")

def nothing(simulation):
    return None

class Late(CutThrough):
    def send(self, message):
        self.env.timeout(5).callbacks.append(lambda _: 1 // 0)

def memory(simulation):
    raise MemoryError
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "jobs", "code", "why"),
    [
        ("memory", 1, 1, "out of memory"),
        ("broken", 1, 2, "models.py:5: failed: RuntimeError: a defect; fix it"),
        ("broken", 2, 2, "models.py:5: failed: RuntimeError: a defect; fix it"),
        ("nothing", 1, 2, "models.py:nothing gave a NoneType, which is no Network with carry(message)"),
        ("Late", 1, 2, "models.py:12: failed: ZeroDivisionError"),
        ("missing", 1, 2, "missing"),
    ],
)
def test_a_failed_point_is_recorded_and_the_others_go_on(tmp_path, name, jobs, code, why):
    (tmp_path / "models.py").write_text(MODELS)
    models = f'["models.py:{name}", cut_through, store_and_forward]'
    text = SCENARIO.replace("[cut_through, store_and_forward]", models).replace("[ring, mesh]", "[ring]")
    text = text.replace("[64 KiB, 1 MiB]", "[1 MiB]")
    result = run_scenario(scenario(tmp_path, text, allow_code=True), out=tmp_path, jobs=jobs)
    assert [row["status"] for row in result.rows] == ["failed", "done", "done"]
    assert result.exit_code == code
    (failure,) = result.failures
    assert why in failure.lines[0] and failure.exit_code == code
    assert bool(failure.detail) == ("failed: " in failure.lines[0])
    assert len(stored_points.read_points(tmp_path / "small")) == 2
    again = run_scenario(scenario(tmp_path, text, allow_code=True), out=tmp_path) if jobs == 1 else result
    assert again.exit_code == code and again.reused == (2 if jobs == 1 else 0)


def test_a_missing_file_fails_its_points_only(tmp_path):
    text = SCENARIO.replace("mesh: {shape: mesh, dims: [2, 2], bandwidth: 50 GB/s, latency: 500 ns}", "mesh: {MESH}")
    text = text.replace("{MESH}", "{shape: edge_list, file: none.csv}")
    result = run_scenario(scenario(tmp_path, text), out=tmp_path)
    assert [row["status"] for row in result.rows] == ["done"] * 4 + ["failed"] * 4
    assert "none.csv" in result.failures[0].lines[0] and result.exit_code in (2, 3)


def test_results_that_cannot_be_written_stop_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        run_scenario(scenario(tmp_path), out=tmp_path / "file" / "x")


def test_a_disk_that_fills_up_stops_the_run(tmp_path, monkeypatch):
    real, count = store.write_point, []

    def full(*args, **kwargs):
        count.append(1)
        if len(count) == 3:
            raise OutputError("out", "cannot be written: No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(store, "write_point", full)
    result = run_scenario(scenario(tmp_path), out=tmp_path)
    assert [row["status"] for row in result.rows] == ["done"] * 2 + ["failed"] + ["not run"] * 5
    assert result.exit_code == 5 and "stopped: the results cannot be written" in result.notes


class Interrupting(Progress):
    """Presses Ctrl-C after some points."""

    def __init__(self, after: int) -> None:
        self.after = after

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        self.after -= 1
        if not self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_run_keeps_finished_points_and_goes_on(tmp_path, jobs):
    stopped = run_scenario(scenario(tmp_path), out=tmp_path / "a", jobs=jobs, progress=Interrupting(3))
    assert stopped.exit_code == 130 and stopped.interrupted and not stopped.figures
    assert [row["status"] for row in stopped.rows].count("done") == 3
    assert "interrupted: 3 of 8 points kept; run it again to go on" in stopped.notes
    kept = len(stored_points.read_points(tmp_path / "a" / "small"))
    assert 3 <= kept < 8 and not list((tmp_path / "a").rglob(".*"))
    went_on = run_scenario(scenario(tmp_path), out=tmp_path / "a")
    assert (went_on.reused, went_on.computed) == (kept, 8 - kept)
    run_scenario(scenario(tmp_path), out=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert worst([stopped.exit_code, went_on.exit_code]) == 130


@pytest.mark.parametrize("key", ["record", "max_sim_time", "foo"])
def test_an_option_that_there_is_not_is_refused(tmp_path, key):
    with pytest.raises(TypeError, match=f"a run has no option {key}; write one of level, engine, fold, "):
        ap.run(scenario(tmp_path), out=tmp_path, **{key: "nodes"})


def test_an_interrupt_while_a_run_is_planned_tells_its_points(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("astrasim_py.runs.plan.make_task", interrupted)
    stopped = run_scenario(scenario(tmp_path), out=tmp_path)
    assert [row.status for row in stopped.rows] == ["not run"] * 8 and stopped.exit_code == 130
    assert "interrupted: 0 of 8 points kept; run it again to go on" in stopped.notes


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_real_run_at_once(tmp_path, number):
    sizes = ", ".join(f"{i} MiB" for i in range(1, 200))
    scenario(tmp_path, SCENARIO.replace("64 KiB, 1 MiB", sizes).replace("npus: 4", "npus: 16"))
    code = f"""
        from astrasim_py.scenario.load import load_scenario
        from astrasim_py.runs.sweep import run_scenario
        if __name__ == "__main__":
            result = run_scenario(load_scenario({str(tmp_path / "scenario.yaml")!r}), out={str(tmp_path)!r}, jobs=2)
            print(result.exit_code, result.notes)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(script)], stdout=pipe, stderr=pipe, text=True, process_group=0)
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up and len(list((tmp_path / "small").glob("points/[!.]*/manifest.json"))) < 3:
        time.sleep(0.02)
    os.killpg(process.pid, number)  # as a terminal and a batch system do: to the workers too
    out, errors = process.communicate(timeout=WAIT_S)
    assert errors == ""
    assert out.startswith("130 ") and "run it again" in out
    folder = tmp_path / "small"
    points = stored_points.read_points(folder)
    assert 3 <= len(points) < 700
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
    assert len((folder / "summary.csv").read_text().splitlines()) == len(points) + 1


def test_it_runs_in_a_thread_as_well(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run_scenario(scenario(tmp_path), out=tmp_path)))
    thread.start()
    thread.join()
    assert results[0].exit_code == 0


def test_progress_is_silent_unless_somebody_watches(tmp_path):
    class Stream:
        def __init__(self, terminal: bool) -> None:
            self.terminal, self.text = terminal, ""

        def isatty(self) -> bool:
            return self.terminal

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None:
            """Nothing to do."""

    for terminal, quiet in ((False, False), (True, True)):
        unseen = Stream(terminal)
        run_scenario(scenario(tmp_path), out=tmp_path, progress=on_terminal("x", stream=unseen, quiet=quiet))
        assert not unseen.text
    watched = Stream(True)
    run_scenario(scenario(tmp_path), out=tmp_path, progress=on_terminal("[red]x", stream=watched), fresh=True)
    assert "[red]x: 0 of 8 points (0 s)" in watched.text
    assert "[red]x: 8 of 8 points (" in watched.text
    read = Stream(False)
    with progress_line(stream=read, every=0.01) as line:
        line.show("a long search")
        deadline = time.monotonic() + WAIT_S
        while read.text.count("astrasim-py: a long search (0 s)\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    said = read.text
    assert said.startswith("astrasim-py: a long search (0 s)\nastrasim-py: a long search")
    time.sleep(0.05)
    assert read.text == said


# -- looking at results again -----------------------------------------------------------------------------------


def test_explain_runs_a_point_again_and_says_so(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    point = stored_points.read_points(tmp_path / "small")[0]
    first = explain_folder(point.folder)
    assert first.notes == (f"{point.manifest.point}: ran it again to record messages",)
    assert sum(first.explanation.totals.values()) == first.explanation.makespan
    assert explain_folder(point.folder).notes == ()
    assert "critical path" in explanation_text(first.explanation)
    assert len(stored_points.read_points(tmp_path / "small")) == 8


def test_explain_refuses_a_point_that_has_changed_since(tmp_path):
    text = SCENARIO.replace("ring: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}", "ring: {RING}")
    edges = ["src,dst,bandwidth,latency"] + [f"{i},{(i + d) % 4},50 GB/s,1 us" for i in range(4) for d in (1, 3)]
    (tmp_path / "t.csv").write_text("\n".join(edges))
    result = run_scenario(scenario(tmp_path, text.replace("{RING}", "{shape: edge_list, file: t.csv}")), out=tmp_path)
    folder = next(p.folder for p in stored_points.read_points(tmp_path / "small") if p.manifest.inputs)
    assert result.exit_code == 0
    (tmp_path / "t.csv").unlink()
    with pytest.raises(UsageError, match="changed since; run the scenario again with --record messages"):
        explain_folder(folder)


def test_folders_without_a_point_say_so(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    for path, why in (
        (tmp_path / "small", "means 8 points, not one point; they differ in topology, size, model: "),
        (tmp_path, "holds no finished point; name one of small in it"),
        (tmp_path / "nowhere", "is no folder of results"),
    ):
        with pytest.raises(UsageError, match=why):
            explain_folder(path)
    point = stored_points.read_points(tmp_path / "small")[0].folder
    (point / "rank.csv").write_text("damaged")
    with pytest.raises(UsageError, match="is damaged"):
        explain_folder(point)
    with pytest.raises(UsageError, match="no figures"):
        plot_folder(tmp_path / "small")


@pytest.mark.slow
def test_figures_of_links_and_gantt_record_what_they_need(tmp_path):
    text = SCENARIO + (
        "plots:\n  - {kind: links, where: {topology: mesh, size: 1 MiB}}\n"
        "  - {kind: gantt, where: {topology: ring, size: 1 MiB}}\n"
    )
    result = ap.run(scenario(tmp_path, text), out=tmp_path, level="summary")
    assert len(result.figures) == 4
    levels = [p.manifest.level for p in stored_points.read_points(tmp_path / "small")]
    assert sorted(levels) == ["links"] * 2 + ["nodes"] * 2 + ["summary"] * 4
    before = contents(tmp_path / "small" / "figures")
    for figure in result.figures:
        figure.unlink()
    drawn = plot_folder(tmp_path / "small")
    assert sorted(drawn.figures) == sorted(result.figures) and drawn.notes == ()
    assert contents(tmp_path / "small" / "figures") == before


@pytest.mark.parametrize("count", [9, 10])
def test_points_without_a_panel_are_counted(tmp_path, count):
    text = f"""
name: many
topology: {{shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}}
workload: [{{compute: {{time: $time}}}}]
sweep: {{time: [{", ".join(f"{i} us" for i in range(1, count + 1))}]}}
plots: [{{kind: gantt, format: [svg]}}]
"""
    notes = run_scenario(scenario(tmp_path, text), out=tmp_path, jobs=1).notes
    said = f"figure gantt: the first 9 of {count} points have a panel; choose with where:"
    assert (said in notes) == (count > 9)


def test_figures_of_one_point(tmp_path):
    run_scenario(scenario(tmp_path), out=tmp_path)
    point = stored_points.read_points(tmp_path / "small")[0]
    drawn = plot_folder(point.folder)
    assert [p.name.rsplit("-", 1)[1] for p in drawn.figures if p.suffix == ".png"] == [
        "links.png",
        "gantt.png",
        "breakdown.png",
    ]
    assert drawn.notes == (f"{point.manifest.point}: ran it again to record nodes",)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stuck_point_is_kept_and_told_again(tmp_path, jobs):
    from astrasim_py.chakra.et_io import write_prefix
    from astrasim_py.chakra.schema import NodeType
    from astrasim_py.chakra.trace import ExecutionTrace

    for name, sends in (("good", True), ("bad", False)):
        kinds = [[NodeType.COMM_SEND] if sends else [], [NodeType.COMM_RECV]]
        traces = [
            ExecutionTrace.from_columns(
                node_id=list(range(len(kind))),
                type=[int(k) for k in kind],
                comm_dst=[1] * len(kind),
                comm_src=[0] * len(kind),
                comm_size=[64] * len(kind),
                comm_tag=[5] * len(kind),
            )
            for kind in kinds
        ]
        write_prefix(tmp_path / name, traces)
    text = """
name: waits
topologies: {ring: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}}
workload: {trace: $trace}
sweep: {trace: [good, bad]}
"""
    first = run_scenario(scenario(tmp_path, text), out=tmp_path, jobs=jobs)
    assert [row["status"] for row in first.rows] == ["done", "stuck"], first.failures
    assert first.exit_code == 4
    (failure,) = first.failures
    assert failure.lines[0].startswith("trace=bad: stuck") and "from rank 0, tag 5, 64 B" in " ".join(failure.lines)
    waiting = first.summaries[1]["waiting"]
    assert (waiting[0]["rank"], waiting[0]["src"], waiting[0]["tag"], waiting[0]["bytes"]) == (1, 0, 5, 64)
    again = run_scenario(scenario(tmp_path, text), out=tmp_path, jobs=jobs)
    assert again.reused == 2 and again.failures == first.failures and again.exit_code == 4
    stuck = next(p for p in stored_points.read_points(tmp_path / "waits") if p.manifest.status == "stuck")
    assert "this point is stuck" in explain_folder(stuck.folder).notes[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_turns_into_an_error_stops_the_run(tmp_path, monkeypatch, number):
    def simulate(*args, **options):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise TypeError("cannot compare")  # as numpy does

    monkeypatch.setattr("astrasim_py.runs.task.simulate", simulate)
    study = run_scenario(scenario(tmp_path), out=tmp_path, jobs=1)
    assert study.interrupted and study.exit_code == 130 and not study.failures
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)

    monkeypatch.setattr("astrasim_py.runs.task.simulate", simulate)
    study = run_scenario(scenario(tmp_path), out=tmp_path, jobs=1)
    assert study.interrupted
