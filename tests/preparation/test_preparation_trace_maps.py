"""What the worker processes of a run share: read by one of them, mapped by the others."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.preparation import inputs as preparation
from astrasim_py.preparation import inputs as sharing
from astrasim_py.preparation import prepare
from astrasim_py.preparation.inputs import map_shared
from astrasim_py.preparation.sources import from_file
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

fcntl = pytest.importorskip("fcntl")


def made() -> dict:
    columns = [np.arange(n, dtype=kind) for n, kind in ((0, "i8"), (5, "i4"), (1000, "u8"), (2, "?"))]
    return {"columns": columns, "strided": np.arange(20)[::2], "text": "word", "same": columns[2]}


def test_a_value_is_made_once_and_mapped_from_then_on(tmp_path):
    calls = []

    def make() -> dict:
        calls.append(1)
        return made()

    first, second = (map_shared(tmp_path, "k", make) for _ in range(2))
    assert len(calls) == 1
    for value in (first, second):
        for there, wanted in zip(value["columns"], made()["columns"], strict=True):
            assert there.dtype == wanted.dtype and (there == wanted).all()
            assert there.flags.aligned and (there.ctypes.data % 64 == 0 or not len(there))
        assert (value["strided"] == np.arange(0, 20, 2)).all()
        assert value["same"] is value["columns"][2] and not value["same"].flags.writeable
    assert map_shared(tmp_path, "other", lambda: 7) == 7


def test_errors_are_those_of_who_makes_it_and_the_next_tries_again(tmp_path):
    with pytest.raises(ZeroDivisionError):
        map_shared(tmp_path, "k", lambda: 1 // 0)
    assert map_shared(tmp_path, "k", lambda: 5) == 5


def test_where_nothing_can_be_written_everybody_makes_their_own(tmp_path, monkeypatch):
    assert map_shared(None, "k", lambda: 1) == 1
    assert map_shared(tmp_path / "gone", "k", lambda: 2) == 2

    def full(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(sharing, "_write", full)
    assert map_shared(tmp_path, "k", lambda: 3) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["k.lock"]


def _die(folder, key):
    map_shared(folder, key, lambda: os._exit(9))


def test_a_process_that_dies_at_it_holds_up_nobody(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_die, args=(tmp_path, "k"))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert map_shared(tmp_path, "k", lambda: 4) == 4


def test_traces_and_algorithms_come_back_as_they_were_read(tmp_path):
    write_prefix(tmp_path / "r", build("ring", "all_reduce", 6).traces)
    read = read_workload(tmp_path / "r", keep_raw=False)
    assert map_shared(tmp_path, "k", lambda: read).digest() == read.digest()


SCENARIO = """
name: small
topologies: {ring: {shape: ring, npus: 6, bandwidth: $bw, latency: 1 us}}
workload: [{all_reduce: {size: 1 MiB}}]
algorithms: {all_reduce: {file: r}}
sweep: {bw: [1 GB/s, 2 GB/s, 3 GB/s]}
"""


@pytest.mark.slow
def test_workers_share_and_leave_nothing_behind(tmp_path):
    write_prefix(tmp_path / "r", build("ring", "all_reduce", 6).traces)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    rows = {}
    for jobs in (1, 2):
        result = run_scenario(load_scenario(tmp_path / "small.yaml"), out=tmp_path / str(jobs), jobs=jobs)
        assert result.exit_code == 0 and result.computed == 3
        rows[jobs] = [{**row, "cpu_s": None} for row in result.rows]
        assert not [path for path in (tmp_path / str(jobs) / "small").iterdir() if path.name.startswith(".")]
    assert rows[1] == rows[2]


def test_points_share_where_files_are_large(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(preparation, "map_shared", lambda folder, key, make: (seen.append(folder), make())[1])
    write_prefix(tmp_path / "r", build("ring", "all_reduce", 6).traces)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    point = expand(load_scenario(tmp_path / "small.yaml"))[0]
    for worth in (1, 2**30):
        monkeypatch.setattr(preparation, "WORTH", worth)
        from_file._ALGORITHMS.clear()
        jobs = prepare.prepare(point, beside=tmp_path).problem.jobs
        jobs[0].algorithms.select("all_reduce", 2**20, 6, "world", 0, npus=tuple(range(6)))
    assert seen == [tmp_path, None]
