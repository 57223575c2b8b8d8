"""Runs that are interrupted, killed, crowded or out of space: what is there is whole, and the others go on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from limits import WAIT_S

from astrasim_py.results.stored_points import MANIFEST, VOLATILE, read_manifest

SWEEP = """\
name: base
topologies:
  ring: {shape: ring, npus: 16, bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - all_reduce: {size: $size, repeat: 20}
record: summary
sweep: {size: [1 KiB, 2 KiB, 4 KiB, 8 KiB, 16 KiB, 32 KiB]}
"""


def wait_for_a_point(cli, process) -> None:
    end = time.monotonic() + WAIT_S
    while not cli.points() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


# -- 27, 28 -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_row_27_28_a_signal_keeps_what_is_finished(cli, number, jobs):
    path = cli.write("s.yaml", SWEEP)
    process = cli.spawn("run", path, "--jobs", jobs)
    wait_for_a_point(cli, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S)
    if process.returncode == 0:
        pytest.skip("it was quicker than the signal")
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"run it again to go on" in err
    kept = cli.points()
    assert kept
    assert all(read_manifest(folder, contents=True) for folder in kept)
    assert not list(cli.results.rglob(".tmp-*"))
    assert cli("run", path, "--jobs", 1, "--quiet").code == 0
    assert len(cli.points()) == 6
    assert set(kept) <= set(cli.points())


@pytest.mark.slow
def test_row_27_ctrl_c_twice_ends_at_once(cli):
    path = cli.write("s.yaml", SWEEP.replace("npus: 16", "npus: 64").replace("repeat: 20", "repeat: 200"))
    process = cli.spawn("run", path, "--jobs", 2, start_new_session=True)
    while not cli.results.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        time.sleep(0.05)
    process.communicate(timeout=WAIT_S)
    assert process.returncode in (130, -signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        # The group is gone, workers included.
        for _ in range(20 * WAIT_S):
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    assert not cli.points(), "each takes long"
    assert not [p for p in cli.results.glob("*/points/*/") if p.name[0] != "." and not (p / "manifest.json").exists()]


# -- 29 ---------------------------------------------------------------------------------------------------------


def test_row_29_folders_that_cannot_be_written(cli, base):
    path = cli.write("s.yaml", base)
    cli.write("file", "x")
    for out in ("file", "file/below", "/dev/null/x", "x" * 300, "/proc/here"):
        ended = cli("run", path, "--jobs", 1, "--quiet", "--out", out)
        cli.refused(ended, 5, "cannot be written", "--out")
    assert sorted(p.name for p in cli.folder.iterdir()) == ["file", "s.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["write", "fsync", "close", "rename"])
def test_row_29_a_disk_that_fills_up(cli, monkeypatch, call):
    path = cli.write("s.yaml", SWEEP)
    real, left = getattr(os, call), [14]

    def full(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            if call == "close":
                real(*args)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    if call == "rename":
        left[0] = 2
    monkeypatch.setattr(os, call, full)
    ended = cli("run", path, "--jobs", 1, "--quiet")
    monkeypatch.undo()
    assert ended.code == 5, ended.err
    assert "No space left on device" in ended.err
    assert "Traceback" not in ended.err
    assert all(read_manifest(folder, contents=True) for folder in cli.points()), "earlier points are intact"
    assert not list(cli.folder.rglob("results/**/.tmp-*"))
    os.chdir(cli.folder)
    assert cli("run", path, "--jobs", 1, "--quiet").code == 0
    assert len(cli.points()) == 6


# -- 30, 31 -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_30_two_runs_into_one_folder(cli):
    path = cli.write("s.yaml", SWEEP)
    both = [cli.spawn("run", path, "--jobs", 1, "--format", "json") for _ in range(2)]
    rows = []
    for process in both:
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        rows.append([{k: v for k, v in row.items() if k != "cpu_s"} for row in json.loads(out)])
    assert rows[0] == rows[1]
    assert len(rows[0]) == len(cli.points()) == 6
    assert len((cli.results / "base" / "summary.csv").read_text().splitlines()) == 7
    assert not list(cli.results.rglob(".tmp-*"))


def test_row_31_what_has_changed_is_computed_again(cli, et, traces, monkeypatch):
    files = [et.file(et.node(1, 4, micros=3))] * 2
    assert traces.run(*files).code == 0
    first = cli.points()
    assert traces.run(*files).code == 0
    assert cli.points() == first
    assert traces.run(files[0], et.file(et.node(1, 4, micros=4))).code == 0
    second = set(cli.points())
    assert len(second) == 2
    assert set(first) < second, "the old one is kept"
    monkeypatch.setattr("astrasim_py.results.store.result_edition", lambda: "9" * 16)
    assert traces.run(*files).code == 0
    assert set(cli.points()) == second, "the old one is replaced"
    assert traces.run(*files).code == 0


# -- 32 ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_32_line_ends_locale_and_terminal_change_nothing(cli, base):
    text = base + "title: 'Größe → α'\n"

    def run(name, content, env):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "s.yaml").write_bytes(content.encode())
        command = [sys.executable, "-m", "astrasim_py", "run", "s.yaml", "--jobs", "1"]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        files = [p for p in sorted((folder / "results").rglob("*")) if p.is_file() and p.name != VOLATILE]
        return {str(p.relative_to(folder)): p.read_bytes() for p in files}

    plain = run("plain", text, {})
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "TZ": "Pacific/Apia", "TERM": "dumb"}
    assert run("ödd folder", text.replace("\n", "\r\n"), odd) == plain


# -- 34 ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_34_a_worker_that_is_killed_takes_its_own_point_only(cli):
    cli.write(
        "mine.py",
        "import os, signal\n"
        "from astrasim_py.builders.registry import build\n"
        "def f(collective, ranks):\n"
        "    if ranks == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return build('ring', collective, ranks)\n",
    )
    path = cli.write(
        "s.yaml",
        "name: base\ntopologies: {ring: {shape: ring, npus: $npus, bandwidth: 50 GB/s, latency: 500 ns}}\n"
        'workload: [{all_reduce: {size: 1 KiB}}]\nalgorithms: {all_reduce: {python: "mine.py:f"}}\n'
        "sweep: {npus: [2, 3, 4]}\n",
    )
    ended = cli.process("run", path, "--allow-code", "--jobs", 2, "--format", "json")
    assert ended.code == 1, ended.err
    assert [row["status"] for row in json.loads(ended.out)] == ["done", "failed", "done"]
    assert "npus=3: its process was killed" in ended.err
    assert "Traceback" not in ended.err
    assert len(cli.points()) == 2


def test_what_was_edited_in_a_stored_point_is_no_defect(cli, base):
    path = cli.write("base.yaml", base.replace("workload:", "plots: [{kind: time}]\nworkload:"))
    assert cli("run", path, "--quiet", "--jobs", 1).code == 0
    manifest = cli.points()[0] / MANIFEST
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(said | {"resolved": said["resolved"] | {"topology": [1]}}))
    (cli.results / "base" / "study.json").write_text(json.dumps({"plots": [{"kind": 7}], "points": []}))
    ended = cli("explain", "results/base")
    assert ended.code == 2 and "is damaged: it is not what its manifest says; run with --fresh" in ended.err
    assert cli("results", "plot", "results/base").code == 2
    assert cli("run", path, "--quiet", "--jobs", 1).code == 0


@pytest.mark.parametrize("points", [[["a"]], 7, {"a": 1}, [None], "ab"])
def test_wrong_types_in_files_that_no_manifest_vouches_for(cli, base, points):
    path = cli.write("base.yaml", base)
    assert cli("run", path, "--quiet", "--jobs", 1).code == 0
    study = cli.results / "base" / "study.json"
    study.write_text(json.dumps(json.loads(study.read_text()) | {"points": points}))
    (cli.points()[0] / VOLATILE).write_text(json.dumps({"cpu_s": "x", "finished": [1]}))
    for argv in (["results", "list", "results/base"], ["explain", "results/base"], ["run", path, "--jobs", 1]):
        ended = cli(*argv)
        assert ended.code == 0, ended.err
