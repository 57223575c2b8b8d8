"""Compiled functions: kept on disk, compiled once whoever asks, compiled anew when what they are made from changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from astrasim_py.core import jit

HELPER = """
from astrasim_py.core.jit import helper

STEP = {step}

@helper
def following(value):
    return value + STEP
"""
KERNEL = """
from astrasim_py.core.jit import kernel
from jit_helper import following

@kernel("the test")
def total(values):
    out = 0
    for value in values:
        out += following(value)
    return out
"""


@pytest.fixture
def load(writer):
    """The kernel `total` of the modules, as a new process would import them."""
    modules = writer("jit", HELPER, KERNEL)

    def total(step: int = 1):
        return modules(step).total

    total.said, total.code = modules.said, modules.code
    return total


def files(folder) -> list:
    return [path for path in folder.rglob("*.nb?") if path.is_file()]


VALUES = np.arange(4)


def test_it_is_compiled_once_and_that_is_said(load, tmp_path):
    assert load()(VALUES) == 10
    assert len(load.said) == 1
    assert load.said[0].startswith("compiling the test, once")
    again = load()
    assert (again(VALUES), again(VALUES)) == (10, 10)
    assert len(load.said) == 1
    assert files(tmp_path / "cache")
    assert not files(load.code)


def test_compiling_and_loading_are_not_charged(load):
    total = load()
    begin, charged = time.process_time(), jit.cpu_s()
    total(VALUES)
    spent, charged = time.process_time() - begin, jit.cpu_s() - charged
    assert 0 <= charged < spent / 4


def test_no_clock_goes_on_while_anything_is_compiled(load, monkeypatch):
    """Seconds of a search are what it took with everything compiled before."""
    total = load()
    now = [0.0]
    seen = []
    monkeypatch.setattr(jit.time, "monotonic", lambda: now[0])

    def slow(function):
        def wrapped(*args):
            now[0] += 1000.0
            seen.append(jit.clock())
            return function(*args)

        return wrapped

    monkeypatch.setattr(jit.Kernel, "_compile", slow(jit.Kernel._compile))
    begin = jit.clock()
    assert total(np.arange(3)) == 6
    assert seen == [begin], "neither meanwhile"
    now[0] += 2.0
    assert jit.clock() - begin == 2.0, "nor afterwards"
    assert total(np.arange(3)) == 6
    assert jit.clock() - begin == 2.0


def test_it_can_be_made_ready_without_being_run(load):
    total = load()
    total.prepare(VALUES)
    assert len(load.said) == 1
    assert total(VALUES) == 10
    assert len(load.said) == 1


def test_a_constant_of_another_module_counts_among_its_sources(load):
    assert load(step=1)(VALUES) == 10
    assert load(step=20)(VALUES) == 86
    assert len(load.said) == 2
    assert load(step=1)(VALUES) == 10
    assert len(load.said) == 2


def test_what_was_kept_and_is_damaged_is_compiled_anew(load, tmp_path):
    load()(VALUES)
    for path in files(tmp_path / "cache"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert load()(VALUES) == 10
    assert len(load.said) == 2
    assert load()(VALUES) == 10
    assert len(load.said) == 2


@pytest.mark.parametrize("where", ["off", "a file"])
def test_without_a_folder_to_write_it_runs_all_the_same(load, where, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTRASIM_CACHE", "" if where == "off" else str(tmp_path / "file" / "cache"))
    # A package that was installed read-only, in a home that is, too.
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert load()(VALUES) == 10
    assert len(load.said) == 1


@pytest.mark.parametrize("lean", [False, True])
def test_a_read_only_installation_compiles_in_memory_and_says_so_once(load, tmp_path, lean):
    load()
    if lean:
        for name in ("jit_helper", "jit_kernel"):
            path = load.code / f"{name}.py"
            text = path.read_text().replace("import helper", "import lean as helper")
            path.write_text(text.replace('"the test"', '"the test", lean=True'))
    # A file where a folder should be is in the way of the superuser, too.
    (load.code / "__pycache__").write_text("")
    (tmp_path / "file").write_text("")
    load.code.chmod(0o555)
    nowhere = str(tmp_path / "file" / "below")
    script = (
        "import sys; from astrasim_py.core import jit; jit.announce = lambda line: print(line, file=sys.stderr)\n"
        "import numpy, jit_kernel; print(jit_kernel.total(numpy.arange(4)), jit_kernel.total(numpy.arange(5)))"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("ASTRASIM_CACHE", "NUMBA_CACHE_DIR")
    }
    environment |= {"PYTHONPATH": os.pathsep.join([str(load.code), *sys.path])}
    environment |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"), nowhere)
    before = sorted(tmp_path.rglob("*"))
    try:
        command = [sys.executable, "-c", script]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    finally:
        load.code.chmod(0o755)
    assert (ended.returncode, ended.stdout) == (0, "10 15\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("compiling the test, once")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_of_processes_that_start_together_one_compiles(load):
    load()
    script = (
        "import sys; from astrasim_py.core import jit; jit.announce = lambda line: print(line, file=sys.stderr)\n"
        "import numpy, jit_kernel; print(jit_kernel.total(numpy.arange(4)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(load.code), *sys.path])}
    command = [sys.executable, "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for _ in range(3)]
    told = [process.communicate(timeout=100) for process in running]
    assert [out for out, _ in told] == ["10\n"] * 3
    assert sum(err.count("compiling the test, once") for _, err in told) == 1, told


def test_who_waits_for_another_to_compile_says_so(load, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    total = load()
    folder = tmp_path / "cache" / "kernels" / jit.sources_digest(total.dispatcher)
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as held, ThreadPoolExecutor() as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(total, VALUES)
        while not load.said and not waiting.done():
            time.sleep(0.01)
        assert load.said == ["another process compiles the test; waiting for it"]
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result() == 10
    assert load.said[1].startswith("compiling the test, once")
