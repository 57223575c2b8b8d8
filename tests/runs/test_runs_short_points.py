"""A sweep as a whole: which engine it takes, and whether it needs workers."""

from __future__ import annotations

import pytest

import astrasim_py as ap
from astrasim_py.engine import auto
from astrasim_py.runs import executors, pool

SIZES = [f"{size} KiB" for size in range(1, 17)]
SCENARIO = {
    "name": "short",
    "topology": {"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"},
    "workload": [{"all_reduce": {"size": "$size"}}],
    "sweep": {"size": SIZES},
}
HOPS = 24  # of a point: 2·3 steps of 4 messages


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 2)


@pytest.mark.parametrize(("most", "engine"), [(16 * HOPS, "compiled"), (16 * HOPS + 1, "simpy")])
def test_auto_weighs_all_points_of_a_sweep(tmp_path, monkeypatch, most, engine):
    monkeypatch.setattr(auto, "HOPS", {"loaded": 1, "kept": most, "absent": 10**9})
    monkeypatch.setattr(auto, "state_of", lambda name, whole: "kept")
    assert {row["engine"] for row in ap.run(SCENARIO, out=tmp_path, figures=False).rows} == {engine}


def test_many_short_points_need_no_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "run_tasks", None)
    assert {row["status"] for row in ap.run(SCENARIO, out=tmp_path, jobs=None).rows} == {"done"}


def test_workers_take_over_where_much_is_left(tmp_path, monkeypatch):
    handed = []

    def run_tasks(function, tasks, workers):
        handed.append((len(tasks), workers))
        yield from reversed([*enumerate(map(function, tasks))])

    monkeypatch.setattr(pool, "run_tasks", run_tasks)
    monkeypatch.setattr(executors, "_LONG_S", -1.0)
    result = ap.run(SCENARIO, out=tmp_path, jobs=None)
    assert handed == [(15, 2)]
    assert [row["sweep"]["size"] for row in result.rows] == SIZES
    assert {row["status"] for row in result.rows} == {"done"}


def test_workers_begin_where_nothing_is_compiled(tmp_path, monkeypatch):
    handed = []
    monkeypatch.setattr(executors, "is_compiled", lambda: False)
    monkeypatch.setattr(pool, "run_tasks", lambda f, tasks, n: (handed.append(len(tasks)), enumerate(map(f, tasks)))[1])
    ap.run(SCENARIO, out=tmp_path, jobs=None)
    assert handed == [16]


def test_workers_that_are_asked_for_take_every_point(tmp_path, monkeypatch):
    handed = []
    monkeypatch.setattr(pool, "run_tasks", lambda f, tasks, n: (handed.append(len(tasks)), enumerate(map(f, tasks)))[1])
    ap.run(SCENARIO, out=tmp_path, jobs=2)
    assert handed == [16]
