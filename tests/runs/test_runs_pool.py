"""A worker that dies takes only its own task with it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import time

import pytest
from limits import WAIT_S

from astrasim_py.core import compiling
from astrasim_py.runs.pool import Killed, cores, run_tasks

KILL = "__import__('os').kill(__import__('os').getpid(), 9)"
SLOW = "[__import__('time').sleep(0.05), 'slow'][1]"


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_task_has_its_result():
    assert dict(run_tasks(eval, [f"{i} * {i}" for i in range(9)], 2)) == {i: i * i for i in range(9)}
    assert list(run_tasks(eval, [], 2)) == []
    assert cores() >= 1


@pytest.mark.slow
def test_a_killed_worker_loses_its_own_task_only():
    tasks = ["1", KILL, SLOW, "4", "5"]
    results = dict(run_tasks(eval, tasks, 2))
    assert results[1] == Killed()
    assert {k: v for k, v in results.items() if k != 1} == {0: 1, 2: "slow", 3: 4, 4: 5}


def test_workers_announce_compiling_once_between_them(monkeypatch, capfd):
    monkeypatch.setattr(compiling, "announce", compiling.Once(print))
    announce = "__import__('astrasim_py.core.compiling').core.compiling.announce('compiling it')"
    say = f"[{announce}, __import__('time').sleep(0.3)][0]"
    assert dict(run_tasks(eval, [say] * 4, 2)) == dict.fromkeys(range(4))
    out, err = capfd.readouterr()
    assert (out, err.count("compiling it")) == ("", 1)


def test_an_abandoned_pool_leaves_no_process():
    stream = run_tasks(eval, ["1", *[f"__import__('time').sleep({WAIT_S})"] * 2], 2)
    assert next(stream) == (0, 1)
    workers = [p.pid for p in multiprocessing.active_children()]
    assert workers
    stream.close()
    assert not [pid for pid in workers if alive(pid)]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_workers_end_with_a_parent_that_is_killed():
    code = """
        import multiprocessing, os, signal
        from astrasim_py.runs.pool import run_tasks
        if __name__ == "__main__":
            for _ in run_tasks(eval, ["1", "__import__('time').sleep(9000)"], 2):
                print(*(p.pid for p in multiprocessing.active_children()), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in done.stdout.split()]
    assert workers
    give_up = time.monotonic() + WAIT_S
    while any(map(alive, workers)) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]
