"""The promises of the README, one test each."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from limits import WAIT_S

from astrasim_py.cli.main import main
from astrasim_py.core.units import transfer_ps
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.stored_points import VOLATILE, read_manifest
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

SCENARIO = """\
name: promise
title: Every part of the model at once
topologies:
  ring: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}
  tree: {shape: leaf_spine, leaves: 2, hosts_per_leaf: 4, spines: 2, bandwidth: 25 GB/s, latency: 1 us,
         routing: {ecmp: true, seed: 7}}
groups: {half: {size: 4}, even: [0, 2, 4, 6]}
workload:
  - compute: {time: 3 us, name: forward}
  - all_reduce: {size: 1 MB, group: half, name: one}
  - all_to_all: {size: 64 KiB, after: forward}
  - send: {from: 1, to: 6, size: 10 kB}
  - all_gather: {size: 999 B, group: even}
  - barrier
stragglers: {compute_speed: {3: 0.5}, start_delay: {"5-6": 1 us}}
algorithms:
  all_reduce: {file: algorithms/ring}
network: {model: $model}
record: messages
sweep: {topology: [ring, tree], model: [cut_through, store_and_forward]}
plots: [{kind: time, x: model, series: topology}]
"""


def in_folder(folder: Path) -> Path:
    """The scenario with its algorithm files, in a folder."""
    folder.mkdir()
    assert main(["convert", "builder:ring:all_reduce:4", str(folder / "ring"), "--gzip"]) == 0
    (folder / "algorithms").mkdir()
    for path in folder.glob("ring.*"):
        path.rename(folder / "algorithms" / path.name)
    (folder / "s.yaml").write_text(SCENARIO)
    return folder


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "astrasim_py", "run", *map(str, argv)]


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file but those that hold host, versions and times."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != VOLATILE]
    assert files
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_same_inputs_same_bytes(tmp_path):
    base = in_folder(tmp_path / "one")
    other = in_folder(tmp_path / "päth with spaces")
    runs = [
        (base, 1, {"PYTHONHASHSEED": "0"}),
        (other, 2, {"PYTHONHASHSEED": "1", "PYTHONOPTIMIZE": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "COLUMNS": "40"}),
    ]
    started = [
        subprocess.Popen(
            command("s.yaml", "--jobs", jobs, "--out", tmp_path / f"out{number}", "--format", "json", "--timeline"),
            cwd=folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number, (folder, jobs, env) in enumerate(runs)
    ]
    outputs = []
    for process in started:
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err.decode()
        outputs.append([{key: value for key, value in row.items() if key != "cpu_s"} for row in json.loads(out)])
    first = contents(tmp_path / "out0")
    assert any(name.endswith(".svg") for name in first)
    assert any("hop" in name for name in first)
    for number in range(1, len(runs)):
        assert contents(tmp_path / f"out{number}") == first
        assert outputs[number] == outputs[0]


#: Workloads that finish, that cannot, and that would not in time → how they end.
ENDS = {
    "done": ("[{all_reduce: {size: 1 KiB}}]", {}, 0, "done"),
    "zero bytes": ("[{all_reduce: {size: 0 B}}, barrier]", {}, 0, "done"),
    "too many events": ("[{all_reduce: {size: 1 KiB, repeat: 100}}]", {"max_events": 100}, 4, "limit"),
    "too long": ("[{compute: {time: 10 min}}]", {"max_sim_time": "1 min"}, 4, "limit"),
    "nobody receives": ("{trace: lost}", {}, 4, "stuck"),
    "a ring of receives": ("{trace: ring}", {}, 4, "stuck"),
}


def write_traces(folder: Path) -> None:
    """Workloads of three ranks that cannot finish."""
    for rank in range(3):
        attr = {"comm_size": 8, "comm_tag": 0}

        def node(number, kind, src, dst, deps=(), attr=attr):
            values = {**attr, "comm_src": src, "comm_dst": dst}
            fields = [{"name": name, "int64_val": value} for name, value in values.items()]
            return json.dumps({"id": number, "type": kind, "data_deps": list(deps), "attr": fields})

        after, before = (rank + 1) % 3, (rank - 1) % 3
        first = json.dumps({"chakra_jsonl": 1, "version": "0.0.4"})
        ring = [node(0, "COMM_RECV", before, rank), node(1, "COMM_SEND", rank, after, [0])]
        lost = [node(0, "COMM_SEND", rank, after)]
        for name, nodes in (("ring", ring), ("lost", lost)):
            (folder / f"{name}.{rank}.jsonl").write_text("\n".join([first, *nodes]) + "\n")
    for name in ("ring", "lost"):
        assert main(["convert", str(folder / f"{name}.jsonl"), str(folder / name)]) == 0


@pytest.mark.parametrize("name", ENDS)
def test_every_run_ends(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    write_traces(tmp_path)
    workload, limits, code, status = ENDS[name]
    topology = "{shape: ring, npus: 3, bandwidth: 1 GB/s, latency: 1 us}"
    Path("s.yaml").write_text(
        f"name: ends\ntopologies: {{ring: {topology}}}\nworkload: {workload}\nlimits: {json.dumps(limits)}\n"
    )
    capsys.readouterr()
    for again in (False, True):
        assert main(["run", "s.yaml", "--jobs", "1", "--format", "json", *["--quiet"] * (not again)]) == code
        shown = capsys.readouterr()
        assert json.loads(shown.out)[0]["status"] == status
        cause = {"done": "", "limit": "--max-", "stuck": "wait|never received"}[status]
        assert any(part in shown.err for part in cause.split("|")), "the cause is told, and told again"


@pytest.mark.slow
def test_what_is_written_is_whole(tmp_path):
    """Kill runs at any time: whoever looks finds whole points, and the next run goes on from there."""
    folder = in_folder(tmp_path / "here")
    out = tmp_path / "out" / "promise"
    dice = random.Random(1)
    argv = command("s.yaml", "--jobs", 1, "--out", tmp_path / "out", "--quiet")
    found = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin, before = time.monotonic(), len(list(out.glob("points/[!.]*/manifest.json")))
        while process.poll() is None and time.monotonic() - begin < WAIT_S:
            if len(list(out.glob("points/[!.]*/manifest.json"))) > before:
                time.sleep(dice.random() * 0.05)
                break
            time.sleep(0.002)
        process.send_signal(number)
        process.wait(timeout=WAIT_S)
        if number != signal.SIGKILL and process.returncode != 0:
            assert process.returncode == 130
            assert not list(out.rglob(".tmp-*"))
        points = list((out / "points").glob("[!.]*/"))
        assert all(read_manifest(path, contents=True) for path in points)
        found.append(len(points))
    assert found == sorted(found), "finished points stay"
    assert subprocess.run(argv, cwd=folder, check=False, timeout=WAIT_S).returncode == 0
    assert len(list(out.glob("points/[!.]*/manifest.json"))) == 4
    assert not list(out.rglob(".tmp-*"))
    rows = (out / "summary.csv").read_text().splitlines()
    assert len(rows) == 5


HOSTILE = {
    "a bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n" + "".join(f"d{i}: *b\n" for i in range(200)),
    "deep": "a: " + "[" * 50_000,
    "a device": None,
    "a shell": "name: !!python/object/apply:os.system ['touch evil']\n",
    "a way out": SCENARIO.replace("algorithms/ring", "../../../../etc/passwd"),
    "a name out": SCENARIO.replace("name: promise", "name: ../promise"),
    "a sweep": SCENARIO + "".join(f"# {i}\n" for i in range(9)) + "ranks: 1000000000000000000000\n",
    "a torus": "name: x\ntopologies: {t: {shape: torus, dims: [9999, 9999, 9999], bandwidth: 1 B/s, latency: 1 s}}\n"
    "workload: [barrier]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_a_file_says_can_crash_hang_or_escape(tmp_path, monkeypatch, capsys, name):
    folder = in_folder(tmp_path / "here")
    monkeypatch.chdir(folder)
    if HOSTILE[name] is None:
        (folder / "s.yaml").unlink()
        (folder / "s.yaml").symlink_to("/dev/zero")
    else:
        (folder / "s.yaml").write_text(HOSTILE[name])
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    begin = time.process_time()
    code = main(["run", "s.yaml", "--jobs", "1"])
    assert time.process_time() - begin < 20
    shown = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in shown.err
    assert "defect" not in shown.err
    for line in shown.err.splitlines():
        assert line.startswith("astrasim-py: s.yaml"), "one line with its place"
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize("number", range(4))
def test_the_numbers_obey_the_laws(tmp_path, number):
    """Bytes are conserved, and nothing is faster than its bound or than the speed of a link."""
    from worlds.bounds import problem_bound

    from astrasim_py.engine.simulation import simulate
    from astrasim_py.system.lowering import make_plan
    from astrasim_py.system.programs import SEND

    folder = in_folder(tmp_path / "here")
    problem = prepare(expand(load_scenario(folder / "s.yaml"))[number]).problem
    plan = make_plan(problem)
    records = simulate(plan, level="messages")
    message, hop, link = records.message, records.hop, records.link
    assert records.outcome.status == "done"

    programs = [*plan.workload, *(program for call in plan.calls for program in call.programs)]
    sent = sum(int(p.nbytes[p.structure.kind == SEND].sum()) for p in programs)
    assert int(message["bytes"].sum()) == sent, "what is sent is what the workload says"
    assert (message["delivered"] >= 0).all()
    assert (message["recv_node"] >= 0).all(), "and all of it is received"
    over = np.zeros(problem.topology.links, dtype=np.int64)
    np.add.at(over, hop["link"], message["bytes"][hop["message"]])
    assert (over[link["link"]] == link["bytes"]).all(), "byte for byte on every link"
    assert over.sum() == (message["bytes"] * message["hops"]).sum() == link["bytes"].sum()

    assert 0 < problem_bound(plan) <= records.makespan
    for bound, start, end in zip(*(records.collective[key] for key in ("bound", "start", "end")), strict=True):
        assert bound <= end - start
    for row in range(message.height):
        src, dst, size = (int(message[key][row]) for key in ("src", "dst", "bytes"))
        route = problem.topology.route(plan.npu_of[src], plan.npu_of[dst])
        slowest = min(problem.topology.bandwidths[problem.topology.bandwidth_class[i]] for i in route)
        least = sum(int(problem.topology.latency_ps[i]) for i in route) + transfer_ps(size, Fraction(slowest))
        assert message["delivered"][row] - message["start"][row] >= least
    for index in np.unique(hop["link"]).tolist():
        rows = np.flatnonzero(hop["link"] == index)
        assert (hop["start"][rows][1:] >= hop["end"][rows][:-1]).all(), "one message at a time on a link"
