"""Compiled functions: kept on disk, compiled once whoever asks, compiled anew when what they are made from changes."""

from __future__ import annotations

import importlib
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from limits import WAIT_S

from astrasim_py.core import compiling, jit, jit_files, jit_notes

HELPER = """
from astrasim_py.core.jit import lean

STEP = {step}

@lean
def following(value):
    return value + STEP
"""
KERNEL = """
from astrasim_py.core.jit import kernel, record_kernel
from jit_helper import following

@kernel("the test", lean=True)
def twice(values):
    return 2 * following(values[0])

@kernel("the test")
def total(values):
    out = 0
    for value in values:
        out += following(value)
    return out

@record_kernel("the test")
def advance(record):
    if record.value == 7:
        raise ValueError
    record.value = following(record.value)
"""
#: Prints the record after a step, and whether numba was imported.
STEP = """
import sys, numpy
from astrasim_py.core import compiling
compiling.announce = lambda line: print(line, file=sys.stderr)
from jit_kernel import advance
held = numpy.zeros(1, dtype=[("value", "i8")])
advance(held)
print(held["value"][0], "numba" in sys.modules)
"""


PARTS = """
from astrasim_py.core.jit import lean

STEP = {step}

@lean
def wrong(record, more):
    return record.no_such_field + more

@lean
def doubled(record, more):
    record.value *= 2
    return record.value + more * STEP
"""

OPTIONAL = """
from astrasim_py.core.jit import kernel, optional

wrong = optional("jit_helper:wrong")
doubled = optional("jit_helper:doubled")

@kernel("the test", lean=True)
def try_wrong(records):
    return wrong(records[0], 1)

@kernel("the test", lean=True)
def try_doubled(records):
    return doubled(records[0], 1)
"""


@pytest.fixture
def load(writer):
    """The kernel `total` of the modules, as a new process would import them."""
    modules = writer("jit", HELPER, KERNEL)

    def total(step: int = 1):
        return modules(step).total

    total.said, total.code, total.modules = modules.said, modules.code, modules
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


def test_compiling_and_loading_are_not_charged(load, monkeypatch):
    total = load()

    def slow(function):
        def wrapped(*args):
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
            return function(*args)

        return wrapped

    monkeypatch.setattr(jit.Kernel, "_load_or_compile", slow(jit.Kernel._load_or_compile))
    begin, charged = time.process_time(), compiling.cpu_s()
    total(VALUES)
    spent, charged = time.process_time() - begin, compiling.cpu_s() - charged
    assert 0 <= charged < spent - 0.5 and charged < 0.1


def test_no_clock_goes_on_while_anything_is_compiled(load, monkeypatch):
    """Seconds of a search are what it took with everything compiled before."""
    total = load()
    now = [0.0]
    seen = []
    monkeypatch.setattr(compiling, "_paused", (0.0, None))
    monkeypatch.setattr(compiling.time, "monotonic", lambda: now[0])

    def slow(function):
        def wrapped(*args):
            now[0] += 1000.0
            seen.append(compiling.clock())
            return function(*args)

        return wrapped

    monkeypatch.setattr(jit.Kernel, "_load_or_compile", slow(jit.Kernel._load_or_compile))
    begin = compiling.clock()
    assert total(np.arange(3)) == 6
    assert seen == [begin], "neither meanwhile"
    now[0] += 2.0
    assert compiling.clock() - begin == 2.0, "nor afterwards"
    assert total(np.arange(3)) == 6
    assert compiling.clock() - begin == 2.0


def test_constants_of_other_modules_are_sources(load):
    assert load(step=1)(VALUES) == 10
    assert load(step=20)(VALUES) == 86
    assert len(load.said) == 2
    assert load(step=1)(VALUES) == 10
    assert len(load.said) == 2


def test_it_is_compiled_for_each_type_of_argument(load, tmp_path):
    total = load()
    assert [total(VALUES.astype(kind)) for kind in ("i8", "i2", "f8")] == [10, 10, 10.0]
    assert total(np.arange(8)[::2]) == 16
    assert len(load.said) == 4
    assert [load()(VALUES.astype(kind)) for kind in ("i8", "i2", "f8")] == [10, 10, 10.0]
    assert len(load.said) == 4


def test_what_must_not_be_written_is_refused(load):
    module = load.modules()
    (load.code / "jit_kernel.py").write_text(KERNEL + "\n\n@kernel('it', lean=True)\ndef clear(v):\n    v[0] = 0\n")
    del module
    values = np.ones(3)
    values.setflags(write=False)
    with pytest.raises(Exception, match=r"readonly|immutable|Cannot modify"):
        importlib.reload(importlib.import_module("jit_kernel")).clear(values)
    assert values.tolist() == [1, 1, 1]


def test_a_kernel_of_one_record_is_kept_without_numba(load, tmp_path):
    """A new process runs its machine code; damaged, it is compiled anew; without a cache, in memory."""
    load()

    def run(**environment: str) -> tuple[str, str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(load.code), *sys.path]), **environment}
        ended = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout, ended.stderr.partition(",")[0]

    compiled, loaded = ("1 False\n", "compiling the test"), ("1 False\n", "")
    assert [run(), run()] == [compiled, loaded]
    (code,) = (tmp_path / "cache").rglob("*.o")
    code.write_bytes(turned(code.read_bytes()))
    assert [run(), run()] == [compiled, loaded]
    assert run(ASTRASIM_CACHE="") == compiled


def test_an_exception_in_a_kernel_of_one_record_is_not_lost(load):
    held = np.full(1, 7, dtype=[("value", "i8")])
    with pytest.raises(RuntimeError, match="exception"):
        load.modules().advance(held)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def turned(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize(
    "harm, suffix",
    [(cut, ".nbc"), (turned, ".nbc"), (lambda data: data + b"\0", ".nbc"), (lambda _: b"", ".nbi"), (cut, ".json")],
)
def test_damaged_code_is_compiled_anew(load, tmp_path, harm, suffix):
    load()(VALUES)
    for path in (tmp_path / "cache").rglob(f"*{suffix}"):
        path.write_bytes(harm(path.read_bytes()))
    assert load()(VALUES) == 10
    assert len(load.said) == 2
    assert load()(VALUES) == 10
    assert len(load.said) == 2


def test_code_of_another_function_is_not_taken_for_it(load, tmp_path):
    module = load.modules()
    assert (module.total(VALUES), module.twice(VALUES)) == (10, 2)
    folders = {
        path.name.partition("-")[0]: path.parent / path.name
        for path in (tmp_path / "cache" / "kernels").glob("*-*")
        if path.is_dir()
    }
    shutil.rmtree(folders["total"])
    shutil.copytree(folders["twice"], folders["total"])
    assert load()(VALUES) == 10
    assert len(load.said) == 3


class Planted:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (pathlib.Path.touch, (self.path,))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_code_that_others_could_write_is_not_even_read(load, tmp_path, what):
    """Numba unpickles its cache: a pickle of somebody else's could do anything."""
    load()(VALUES)
    (index,) = (path for path in files(tmp_path / "cache") if path.suffix == ".nbi")
    index.write_bytes(pickle.dumps(Planted(tmp_path / "planted")))
    jit_files.seal(index.parent)
    assert load()(VALUES) == 10
    assert (tmp_path / "planted").exists(), "the test plants what would be executed"
    (tmp_path / "planted").unlink()
    (index,) = (path for path in files(tmp_path / "cache") if path.suffix == ".nbi")
    index.write_bytes(pickle.dumps(Planted(tmp_path / "planted")))
    jit_files.seal(index.parent)
    if what == "link":
        index.rename(tmp_path / "elsewhere")
        index.symlink_to(tmp_path / "elsewhere")
    else:
        (index.parent if what == "folder" else index).chmod(0o777)
    assert load()(VALUES) == 10
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("where", ["off", "a file"])
def test_without_a_folder_to_write_it_runs_all_the_same(load, where, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTRASIM_CACHE", "" if where == "off" else str(tmp_path / "file" / "cache"))
    assert load()(VALUES) == 10
    assert load()(VALUES) == 10
    # Where a folder is wanted and cannot be had, the source's is used.
    assert len(load.said) == (2 if where == "off" else 1)


@pytest.mark.parametrize("lean", [False, True])
def test_read_only_installation_compiles_in_memory(load, tmp_path, lean):
    load()
    if lean:
        for name in ("jit_helper", "jit_kernel"):
            path = load.code / f"{name}.py"
            path.write_text(path.read_text().replace('@kernel("the test")', '@kernel("the test", lean=True)'))
    # A file where a folder should be is in the way of the superuser, too.
    (load.code / "__pycache__").write_text("")
    (tmp_path / "file").write_text("")
    load.code.chmod(0o555)
    nowhere = str(tmp_path / "file" / "below")
    script = (
        "import sys; from astrasim_py.core import compiling\n"
        "compiling.announce = lambda line: print(line, file=sys.stderr)\n"
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
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
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
        "import sys; from astrasim_py.core import compiling\n"
        "compiling.announce = lambda line: print(line, file=sys.stderr)\n"
        "import numpy, jit_kernel; print(jit_kernel.total(numpy.arange(4)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(load.code), *sys.path])}
    command = [sys.executable, "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for _ in range(3)]
    told = [process.communicate(timeout=WAIT_S) for process in running]
    assert [out for out, _ in told] == ["10\n"] * 3
    assert sum(err.count("compiling the test, once") for _, err in told) == 1, told


def test_who_waits_for_another_to_compile_says_so(load, tmp_path):
    numba = pytest.importorskip("numba")
    fcntl = pytest.importorskip("fcntl")
    total = load()
    (folder, _) = total._folders((numba.typeof(VALUES),))
    folder.parent.mkdir(parents=True)
    with open(folder.with_suffix(".lock"), "w") as held, ThreadPoolExecutor() as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(total, VALUES)
        while not load.said and not waiting.done():
            time.sleep(0.01)
        assert load.said == ["another process compiles the test; waiting for it"]
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result() == 10
    assert load.said[1].startswith("compiling the test, once")


def test_optional_functions_are_compiled_for_whole_records_only(writer):
    """A kernel does without them, whatever they hold, unless the type of its record has the field ``whole``."""
    load = writer("jit", PARTS, OPTIONAL)
    module = load(1)
    plain = np.ones(1, dtype=[("value", "i8")])
    assert (module.try_wrong(plain), module.try_doubled(plain), plain["value"][0]) == (0, 0, 1)
    assert "jit_helper" not in sys.modules
    whole = np.ones(1, dtype=[("value", "i8"), ("whole", "i8")])
    assert (module.try_doubled(whole), whole["value"][0]) == (3, 2)
    assert "jit_helper" in sys.modules
    with pytest.raises(Exception, match="no_such_field"):
        module.try_wrong(whole)


def test_a_change_of_an_optional_part_compiles_whole_kernels_again_and_no_others(writer):
    load = writer("jit", PARTS, OPTIONAL)
    plain, whole = np.ones(1, dtype=[("value", "i8")]), np.ones(1, dtype=[("value", "i8"), ("whole", "i8")])
    assert (load(1).try_doubled(plain), load(1).try_doubled(whole), len(load.said)) == (0, 3, 2)
    assert (load(5).try_doubled(plain), len(load.said)) == (0, 2)
    assert (load(5).try_doubled(whole), len(load.said)) == (9, 3)


TEN_MORE = """
from astrasim_py.core.jit import lean

@lean
def ten_more(record):
    record.value += 10
"""
#: In the process that compiles it each record has the same number, which numba makes symbols of.
RECORDS = """
from astrasim_py.core.jit import lean, optional, record_kernel

ten_more = optional("jit_helper:ten_more")

@lean
def steps(record, left):
    # It calls itself twice, so that it stays a function of its own.
    if left == 0:
        record.value += 1
        ten_more(record)
        return
    steps(record, left - 1)
    record.value *= 2
    steps(record, left - 1)

@record_kernel("the test")
def advance(record):
    steps(record, 3 + record.value)
"""
ADVANCE = """
import sys, numpy
from jit_kernel import advance
for name in sys.argv[1:]:
    held = numpy.zeros(1, dtype=[(each, "i8") for each in ("value", "whole")[: 1 + (name == "whole")]])
    advance(held)
    print(held["value"][0])
"""


@pytest.mark.parametrize("order", [("plain", "whole"), ("whole", "plain")])
def test_code_that_two_processes_compiled_goes_together(writer, order):
    module = writer("jit", TEN_MORE, RECORDS)
    module(1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(module.code), *sys.path])}

    def run(*names: str) -> list[str]:
        command = [sys.executable, "-c", ADVANCE, *names]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    right = {"plain": "255", "whole": "2805"}
    assert [run(name) for name in order] == [[right[name]] for name in order]
    assert run(*order) == [right[name] for name in order]


@pytest.mark.parametrize(
    "name", ["NUM_THREADS", "THREADING_LAYER", "DISABLE_PERFORMANCE_WARNINGS", "DUMP_CFG", "OTHER"]
)
def test_settings_that_do_not_change_the_code_do_not_compile_it_anew(load, monkeypatch, name):
    assert load()(VALUES) == 10
    monkeypatch.setenv(f"NUMBA_{name}", "1")
    assert load()(VALUES) == 10
    assert len(load.said) == 1


def test_settings_that_change_the_code_compile_it_anew(load, monkeypatch):
    assert load()(VALUES) == 10
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert load()(VALUES) == 10
    assert len(load.said) == 2


def test_what_is_compiled_is_known_without_loading_it(load, monkeypatch):
    """Until a source changes, or the cache is gone."""
    monkeypatch.setattr(jit_notes, "_loaded", set())
    total, name = load(), "jit_kernel.total"
    assert jit_notes.state_of(name) == "absent"
    total(VALUES)
    assert jit_notes.state_of(name) == "loaded"
    monkeypatch.setattr(jit_notes, "_loaded", set())
    assert jit_notes.state_of(name) == "kept"
    (load.code / "jit_helper.py").write_text(HELPER.format(step=20))
    assert jit_notes.state_of(name) == "absent"
    for note in (pathlib.Path(os.environ["ASTRASIM_CACHE"]) / "kernels").glob("*.json"):
        note.write_text("[1]")
    assert jit_notes.state_of(name) == "absent"


def test_compiling_is_said_once_for_all_kernels_and_processes():
    said = []
    first = compiling.Once(said.append)
    other = compiling.Once(said.append, first.said)
    for announce in (first, other, first):
        announce(f"compiling {len(said)}")
    assert said == ["compiling 0"]


#: A process interrupted while it compiles or loads, again and again, a little later each time, as by Ctrl-C or by the
#: time limit of a test.
INTERRUPTED = """
import signal, sys
import numpy
import jit_kernel
from astrasim_py.core import jit_notes

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
name, wait, times = sys.argv[1], float(sys.argv[2]), 0
values = numpy.arange(4)
held = numpy.zeros(1, dtype=[("value", "i8")])
argument = held if name == "advance" else values
while True:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, wait)
            result = getattr(jit_kernel, name)(argument)
            break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        times, wait = times + 1, wait * 1.5
print(result if name == "total" else held["value"][0], jit_kernel.twice(values), times > 2)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals here")
@pytest.mark.parametrize("name, wait", [("total", 0.07), ("advance", 0.1)])
def test_an_interrupted_compilation_is_begun_again(load, name, wait):
    """In the same process, with right results: of it, and of those that load what it kept."""
    load()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(load.code), *sys.path])}
    right = "10" if name == "total" else "1"
    for wanted in (f"{right} 2 True\n", f"{right} 2"):
        command = [sys.executable, "-c", INTERRUPTED, name, str(wait if wanted.endswith("\n") else 60)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout[: len(wanted)]) == (0, wanted), ended.stderr


#: The same with the engine itself, which is run at the end.
ENGINE = """
import os, signal, sys
import astrasim_py as ap

def compiled_s():
    # CPU time of the processes that compiled: a busy machine reacts late.
    return os.times().children_user + os.times().children_system

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
network = ap.build_topology(shape="switch", npus=4, bandwidth="50 GB/s", latency="500 ns")
given = ap.collective("all_reduce", "1 MiB", network)
for wait in (0.5, 2, 5, 9):
    begin = compiled_s()
    signal.setitimer(signal.ITIMER_REAL, wait)
    try:
        ap.simulate(given, engine="compiled")
    except Stop:
        assert compiled_s() - begin < wait + 3
    signal.setitimer(signal.ITIMER_REAL, 0)
print(ap.simulate(given, engine="both").makespan, "numba" in sys.modules)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals here")
def test_the_interrupted_engine_runs_in_the_same_process(tmp_path):
    environment = {**os.environ, "ASTRASIM_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", ENGINE]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    # A switch: 2 (n - 1) steps of two links of 500 ns and a quarter of the buffer at 50 GB/s, 5,242,880 ps.
    assert (ended.returncode, ended.stdout) == (0, f"{6 * (2 * 500_000 + 5_242_880)} False\n"), ended.stderr


@pytest.mark.parametrize("name, value", [("executable", "/nowhere/python"), ("executable", ""), ("frozen", True)])
def test_where_no_other_process_can_compile_this_one_does(load, monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value, raising=False)
    assert load()(VALUES) == 10
    assert load()(VALUES) == 10
    assert len(load.said) == 1


def test_constants_that_another_process_does_not_have_are_kept_apart(load, monkeypatch):
    """It finds that it would compile something else, and leaves it to this process."""
    total = load()
    monkeypatch.setattr(sys.modules["jit_helper"], "STEP", 20)
    assert total(VALUES) == 86
    assert load()(VALUES) == 10
