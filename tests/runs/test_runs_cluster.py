"""Points on a real Dask cluster: a scheduler and worker processes, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from limits import WAIT_S

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.results import store, stored_points
from astrasim_py.results.store import RunOptions
from astrasim_py.runs import cluster
from astrasim_py.runs.task import make_task
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

# Every point takes a while, so that a worker can be killed while it computes one.
SCENARIO = """
name: farm
topologies: {ring: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_reduce: {size: $size, repeat: 12}}]
algorithms: {all_reduce: {file: ring.npz}}
sweep: {size: [1 KiB, 2 KiB, 4 KiB, 8 KiB, 16 KiB, 32 KiB]}
"""


class Cluster:
    """A scheduler and its workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.folder = folder
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", self.file)
        self.workers: list[subprocess.Popen] = []
        self.address = ""

    def start(self, *words: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "dask", *map(str, words), "--no-dashboard"]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def work(self, count: int) -> None:
        for _ in range(count):
            options = ("--no-nanny", "--nthreads", "1", "--scheduler-file", self.file)
            self.workers.append(self.start("worker", *options))
        give_up = time.monotonic() + WAIT_S
        while not self.address and time.monotonic() < give_up:
            try:
                self.address = json.loads(self.file.read_text())["address"]
            except (OSError, ValueError):
                time.sleep(0.05)

    def end(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    pytest.importorskip("distributed")
    made = Cluster(tmp_path_factory.mktemp("farm"))
    try:
        made.work(2)
        yield made
    finally:
        made.end()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine answers late."""
    monkeypatch.setattr(cluster, "CONNECT_S", float(WAIT_S))
    monkeypatch.setattr(cluster, "PATIENCE_S", float(WAIT_S))


@pytest.fixture
def scenario(tmp_path):
    assert main(["convert", "builder:ring:all_reduce:8", str(tmp_path / "ring.npz")]) == 0
    (tmp_path / "farm.yaml").write_text(SCENARIO)
    return load_scenario(tmp_path / "farm.yaml")


def contents(folder: Path) -> dict[str, bytes]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != stored_points.VOLATILE]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


class KillAt:
    """Progress that kills some processes when the first point has ended, and others are under way."""

    def __init__(self, processes) -> None:
        self.processes, self.points = processes, 0

    def begin(self, points: int, reused: int) -> None:
        assert (points, reused) == (6, 0)

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        self.points += 1
        if self.points == 1:
            for process in self.processes:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def end(self) -> None:
        pass


@pytest.mark.slow
def test_a_killed_worker_costs_no_point_and_then_none_is_left(farm, scenario, tmp_path, monkeypatch):
    alone = ap.run(scenario, out=tmp_path / "alone", engine="simpy")
    assert alone.exit_code == 0

    # One of two is killed in mid-run: the other computes what it was at.
    result = ap.run(
        scenario, out=tmp_path / "killed", engine="simpy", cluster=farm.address, progress=KillAt(farm.workers[:1])
    )
    assert result.exit_code == 0 and result.computed == 6 and not result.failures
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")

    # The other, too: the run ends within its patience, whole points are kept, and the next run finishes the rest.
    monkeypatch.setattr(cluster, "PATIENCE_S", 1.0)
    monkeypatch.chdir(tmp_path)
    result = ap.run(scenario, out="lost", engine="simpy", cluster=farm.address, progress=KillAt(farm.workers[1:]))
    assert result.exit_code == 1
    (line,) = [line for failure in result.failures for line in failure.lines]
    assert "has had no worker" in line and "were not computed" in line
    kept = sum(row["status"] == "done" for row in result.rows)
    assert 1 <= kept < 6 and [row["status"] for row in result.rows].count("not run") == 6 - kept
    again = ap.run(scenario, out="lost", engine="simpy")
    # A point may have landed without word of it.
    assert again.exit_code == 0 and kept <= again.reused < 6 and again.reused + again.computed == 6
    assert contents(tmp_path / "lost") == contents(tmp_path / "alone")


@pytest.mark.slow
def test_a_lost_scheduler_ends_the_run_in_a_line_and_the_next_finishes_it(farm, scenario, tmp_path, monkeypatch, capfd):
    # So long the client looks for the scheduler that it has lost.
    monkeypatch.setattr(cluster, "CONNECT_S", 10.0)
    farm.work(1)
    result = ap.run(
        scenario, out=tmp_path / "lost", engine="simpy", cluster=farm.address, progress=KillAt([farm.scheduler])
    )
    kept = sum(row["status"] == "done" for row in result.rows)
    assert 1 <= kept < 6 and [row["status"] for row in result.rows].count("not run") == 6 - kept
    (line,) = [line for failure in result.failures for line in failure.lines]
    left = f"{6 - kept} of 6 points were not computed"
    assert line == f"--cluster: the scheduler at {farm.address} is lost: {left}; run it again to go on"
    assert result.exit_code == 1 and "Traceback" not in capfd.readouterr().err
    again = ap.run(scenario, out=tmp_path / "lost", engine="simpy")
    assert again.exit_code == 0 and kept <= again.reused < 6 and again.reused + again.computed == 6


def task_of(scenario, folder: Path):
    return make_task(expand(scenario)[0], folder, RunOptions(level="links", engine="simpy"))


def test_a_worker_refuses_what_it_does_not_see_as_the_client_does(scenario, tmp_path):
    task = task_of(scenario, tmp_path / "out")
    (tmp_path / "probe").touch()
    probe, edition = str(tmp_path / "probe"), store.result_edition()
    for arguments, code, said in (
        ((probe, "0" * 16), 2, "has another version or state of astrasim_py than the client; install the same"),
        ((str(tmp_path / "absent"), edition), 5, "does not see the folder of results"),
    ):
        result = cluster.work(task, *arguments)
        assert result.exit_code == code and said in result.lines[0] and result.row["status"] == "failed"
    assert cluster.work(task, probe, edition).stored
    os.unlink(tmp_path / "ring.npz")
    result = cluster.work(task, probe, edition)
    assert result.exit_code == 3 and "does not see the same ring.npz" in result.lines[0]


@pytest.mark.parametrize("address", ["farm", "tcp://", "localhost:8786", "file:///etc/passwd", "tcp://a b:1"])
def test_what_is_no_address_is_refused(scenario, tmp_path, address):
    with pytest.raises(UsageError, match="is no address of a scheduler"):
        ap.run(scenario, out=tmp_path / "out", cluster=address)
    assert not (tmp_path / "out").exists()


def test_a_missing_dask_is_told_in_a_line(scenario, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["run", str(tmp_path / "farm.yaml"), "--cluster", "tcp://localhost:8786"]) == 2
    line = "--cluster: needs distributed, which is not installed; pip install 'astrasim-py[cluster]'\n"
    assert capsys.readouterr().err == f"astrasim-py: {line}"


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_told_in_time(scenario, tmp_path, monkeypatch, capfd):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:  # it takes the call and never speaks
        arguments = ["run", str(tmp_path / "farm.yaml"), "--out", str(tmp_path / "out")]
        assert main([*arguments, "--cluster", f"tcp://127.0.0.1:{other.getsockname()[1]}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "finds no scheduler at tcp://127.0.0.1:" in line
    assert main([*arguments, "--cluster", "tcp://127.0.0.1:1", "--jobs", "2"]) == 2


def test_a_worker_process_computes_one_point_at_a_time(scenario, tmp_path):
    (tmp_path / "probe").touch()
    task, done = task_of(scenario, tmp_path / "out"), []
    arguments = task, str(tmp_path / "probe"), store.result_edition()
    thread = threading.Thread(target=lambda: done.append(cluster.work(*arguments)))
    with cluster._one_at_a_time:
        thread.start()
        thread.join(0.3)
        assert not done
    thread.join(WAIT_S)
    assert done[0].stored
