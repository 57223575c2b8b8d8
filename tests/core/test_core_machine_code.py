"""Machine code that is kept: the same results as through numba, without numba, and never run when it is not sound."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from astrasim_py.core import machine_code

HELPER = """
from astrasim_py.core.jit import inlined, lean

STEP = {step}

@inlined
def following(value):
    return value + STEP

@lean
def following_row(table, row, column):
    table[row, column] = following(table[row, column])
"""
KERNEL = """
from typing import NamedTuple
import numpy as np
from astrasim_py.core.jit import kernel
from lean_helper import following, following_row

class Pair(NamedTuple):
    table: np.ndarray
    bits: np.ndarray

@kernel("the test", lean=True)
def total(values, pair, factor, start):
    out = start
    for i in range(len(values)):
        out += following(values[i])
    for row in range(pair.table.shape[0]):
        for column in range(pair.table.shape[1]):
            following_row(pair.table, row, column)
    for i in range(len(pair.bits)):
        pair.bits[i] = not pair.bits[i]
    return out + np.int64(factor * 8)

@kernel("the test", lean=True, threads=True)
def fill(values):
    for i in range(len(values)):
        values[i] = i
"""
SCRIPT = """
import sys
import numpy as np
from astrasim_py.core import jit
jit.announce = lambda line: print(line, file=sys.stderr)
import lean_kernel
table = np.zeros((2, 3), dtype=np.int32)
bits = np.array([True, False])
print(lean_kernel.total(np.arange(4), lean_kernel.Pair(table, bits), 0.5, 7))
print(table.tolist(), bits.tolist(), "numba" in sys.modules)
"""
TOLD = "21\n[[1, 1, 1], [1, 1, 1]] [False, True] {}\n"


@pytest.fixture
def load(writer):
    return writer("lean", HELPER, KERNEL)


def objects(tmp_path) -> list:
    return sorted((tmp_path / "cache").rglob("*.object"))


def run(module) -> tuple:
    table, bits = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([True, False, False])
    out = module.total(np.arange(4), module.Pair(table, bits), 2.5, 7)
    return out, table.tolist(), bits.tolist()


STEP_1 = (37, [[1, 2, 3], [4, 5, 6]], [False, True, True])
STEP_20 = (113, [[20, 21, 22], [23, 24, 25]], [False, True, True])


def processes(load, count: int, **more: str) -> list[tuple[str, str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(load.code), *sys.path]), **more}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, **pipes) for _ in range(count)]
    return [process.communicate(timeout=100) for process in started]


def test_it_is_compiled_once_and_means_the_same(load, tmp_path):
    module = load()
    assert run(module) == STEP_1
    assert len(load.said) == 1
    assert load.said[0].startswith("compiling the test, once")
    assert len(objects(tmp_path)) == 1
    assert run(load()) == STEP_1
    assert len(load.said) == 1
    # What numba makes of the same function, and Python.
    by_numba = module.total._alone
    assert by_numba(np.arange(4), module.Pair(np.zeros((1, 1), np.int32), np.zeros(1, bool)), 2.5, 7) == STEP_1[0]
    assert not by_numba.stats.cache_hits


@pytest.mark.slow
def test_a_process_that_finds_it_does_not_import_numba_and_of_several_one_compiles(load):
    load()
    told = processes(load, 3)
    assert sum(err.count("compiling the test, once") for _, err in told) == 1, told
    assert all(out in (TOLD.format(True), TOLD.format(False)) for out, _ in told), told
    assert processes(load, 1) == [(TOLD.format(False), "")]


def test_it_is_made_for_the_types_that_it_is_called_with(load, tmp_path):
    module = load()
    for dtype in (np.int64, np.int16, np.float64):
        values = np.full(5, -1, dtype=dtype)
        assert module.fill(values) is None
        assert values.tolist() == [0, 1, 2, 3, 4]
    spread = np.full(10, -1)
    module.fill(spread[::2])
    assert spread.tolist() == [0, -1, 1, -1, 2, -1, 3, -1, 4, -1]
    assert len(objects(tmp_path)) == 4


def test_it_refuses_what_must_not_be_written(load):
    module = load()
    values = np.zeros(3)
    values.setflags(write=False)
    with pytest.raises(Exception, match=r"readonly|immutable|Cannot modify"):
        module.fill(values)
    assert values.tolist() == [0, 0, 0]


def test_arguments_that_only_numba_knows_are_left_to_it(load, tmp_path):
    values = np.zeros(3, dtype=np.complex128)
    load().fill(values)
    assert values.tolist() == [0, 1, 2]
    assert not objects(tmp_path)


def test_a_constant_of_another_module_counts_among_its_sources(load):
    assert run(load(step=1)) == STEP_1
    assert run(load(step=20)) == STEP_20
    assert len(load.said) == 2
    assert run(load(step=1)) == STEP_1
    assert len(load.said) == 2


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def turned(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize("harm", [cut, turned, lambda _: b"", lambda data: data + b"\0", lambda _: b"\n" * 1000])
def test_what_is_damaged_is_compiled_anew(load, tmp_path, harm):
    assert run(load()) == STEP_1
    (path,) = objects(tmp_path)
    path.write_bytes(harm(path.read_bytes()))
    assert run(load()) == STEP_1
    assert len(load.said) == 2
    assert run(load()) == STEP_1
    assert len(load.said) == 2


def test_code_of_another_function_is_not_taken_for_it(load, tmp_path):
    module = load()
    run(module)
    (path,) = objects(tmp_path)
    module.fill(np.zeros(3))
    (other,) = set(objects(tmp_path)) - {path}
    path.write_bytes(other.read_bytes())
    assert run(load()) == STEP_1
    assert len(load.said) == 3


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_what_others_can_write_is_not_run(load, tmp_path):
    run(load())
    (path,) = objects(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o666)
    assert machine_code.read(path) is None
    assert run(load()) == STEP_1
    assert len(load.said) == 2


def test_where_it_cannot_be_loaded_numba_runs_it(load, monkeypatch):
    def failing(made):
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(machine_code, "_address", failing)
        assert run(load()) == STEP_1
    assert run(load()) == STEP_1


def test_what_needs_more_than_the_c_library_is_left_to_numba(load, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(machine_code, "_undefined", lambda parsed: ["NRT_Allocate"])
        assert run(load()) == STEP_1
    (path,) = objects(tmp_path)
    assert machine_code.read(path) == machine_code.Made("", "", b"")
    # That is kept, too.
    said = len(load.said)
    assert run(load()) == STEP_1
    assert len(load.said) == said


@pytest.mark.parametrize("where", ["off", "a file"])
def test_without_a_folder_to_write_it_runs_all_the_same(load, where, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTRASIM_CACHE", "" if where == "off" else str(tmp_path / "file" / "cache"))
    assert run(load()) == STEP_1
    assert run(load()) == STEP_1
    # Where a folder is wanted and cannot be had, the source's is used.
    assert len(load.said) == (2 if where == "off" else 1)


class Two(NamedTuple):
    left: np.ndarray
    right: int


def test_types_are_told_apart_as_numba_does():
    numba = pytest.importorskip("numba")
    array = np.zeros((2, 3))
    readonly = np.zeros((2, 3))
    readonly.setflags(write=False)
    unaligned = np.zeros(33, dtype=np.uint8)[1:].view(np.float64)
    kinds = [
        1, 1.0, np.int64(1), np.float64(1), array, array.T, array[:, ::2], array[0], readonly, array.astype(np.int32),
        unaligned, (1, 2.0), (1.0, 2), Two(array, 1), Two(array.T, 1), (array, 1),
    ]  # fmt: skip
    for one in kinds:
        for other in kinds:
            ours = machine_code.types_of((one,)) == machine_code.types_of((other,))
            assert ours == (numba.typeof(one) == numba.typeof(other)), (one, other)
            texts = [machine_code.text_of(machine_code.types_of((x,))) for x in (one, other)]
            assert ours == (texts[0] == texts[1])
    for strange in (2**63, True, None, "a", array.astype(np.complex64), array.astype(">f8"), np.int32(1)):
        assert machine_code.types_of((strange,)) is None


def test_what_an_object_needs_is_found_in_it():
    numba = pytest.importorskip("numba")
    llvm = importlib.import_module("llvmlite.binding")

    @numba.njit
    def taking(n):
        return np.empty(n)

    @numba.njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
    def power(x):
        return x**2.5

    names = []
    for function, kind in ((taking, numba.int64), (power, numba.float64)):
        function.compile((kind,))
        library = function.overloads[(kind,)].library
        names.append(machine_code._undefined(llvm.ObjectFileRef.from_data(library._get_compiled_object())))
    if sys.platform == "linux":
        assert any(name.startswith("NRT_") for name in names[0])
        assert not all(map(machine_code._in_c_library, names[0]))
        assert names[1] == ["pow"]
    assert all(map(machine_code._in_c_library, names[1]))
