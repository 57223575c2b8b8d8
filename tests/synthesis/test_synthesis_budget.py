"""What a synthesis may take: its budget is for everything but compiling, and it says where it stands meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from limits import WAIT_S
from worlds.networks import synthesize

from astrasim_py.cli.main import main
from astrasim_py.core import compiling, jit
from astrasim_py.preparation.schedules import find
from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.request import Request
from astrasim_py.synthesis.search import multi_start as rounds
from astrasim_py.synthesis.search.multi_start import Progress, Watch
from astrasim_py.synthesis.solve import solve
from astrasim_py.topology import build
from astrasim_py.topology.edge_list import read_csv

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all")
ROOTED = ("broadcast", "reduce", "scatter", "gather")


def mesh(shape="mesh", dims=(3, 3)):
    size = {"npus": dims[0]} if shape == "switch" else {"dims": list(dims)}
    return build({"shape": shape, **size, "bandwidth": "50 GB/s", "latency": "500 ns"})


def wanted(kind: str, **more) -> dict:
    return {"collective": kind, "size": 36 * 2**15, "root": 1 if kind in ROOTED else None, "seed": 1, "jobs": 1} | more


def request(topology, kind: str, **more) -> Request:
    root = 1 if kind in ROOTED else None
    return Request(
        topology=topology, npus=tuple(range(topology.npus)), collective=kind, size=36 * 2**15, root=root, rounds=6,
        **more,
    )  # fmt: skip


def kernels() -> list[jit.Kernel]:
    named = [(name, module) for name, module in sys.modules.items() if name.startswith("astrasim_py.synthesis.")]
    found = {id(v): v for _, module in named for v in vars(module).values() if isinstance(v, jit.Kernel)}
    return list(found.values())


@pytest.fixture
def forgotten():
    """As in a process that has compiled nothing yet."""
    for kernel in kernels():
        vars(kernel).pop("_outside", None)


@pytest.mark.slow
def test_compiling_is_charged_neither_to_the_seconds_nor_to_the_budget(forgotten, monkeypatch):
    late, real = [0.0], time.monotonic

    def slow(function):
        def wrapped(*args):
            late[0] += 10_000.0
            return function(*args)

        return wrapped

    monkeypatch.setattr(
        compiling, "time", SimpleNamespace(monotonic=lambda: real() + late[0], process_time=time.process_time)
    )
    monkeypatch.setattr(jit.Kernel, "_load_or_compile", slow(jit.Kernel._load_or_compile))
    began = compiling.clock()
    for kind in KINDS:
        schedule = synthesize(mesh(), **wanted(kind, rounds=50, budget=5_000.0))
        assert schedule.search.seconds < 5_000.0 and not schedule.search.cut
    assert late[0] >= 60_000.0, "greedy, pack, listed, toward, earliest, distances, at least"
    assert compiling.clock() - began < 5_000.0
    versions = {kernel.__name__: len(kernel._outside.overloads) for kernel in kernels()}
    assert max(versions.values()) == 1, f"compiled for several types of arguments: {versions}"


@pytest.mark.parametrize("shape, dims", [("mesh", (3, 4)), ("torus", (3, 3)), ("switch", (6,))])
@pytest.mark.parametrize("kind", KINDS)
def test_no_time_at_all_still_makes_a_schedule(kind, shape, dims):
    stages = []
    options = wanted(kind, rounds=10**6, budget=0.0, progress=lambda state: stages.append(state.stage))
    schedule = synthesize(mesh(shape, dims), **options)
    assert not check(schedule)
    assert schedule.optimal or (schedule.search.cut and schedule.search.rounds < 100)
    assert stages[-1] == "check"


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"])
def test_where_even_one_run_takes_long_all_is_sent_straight(kind, monkeypatch):
    monkeypatch.setattr("astrasim_py.synthesis.portfolio.MANY", 0)
    for shape in ("switch", "fully_connected"):
        topology = build({"shape": shape, "npus": 6, "bandwidth": "50 GB/s", "latency": "500 ns"})
        schedule = synthesize(topology, **wanted(kind, budget=0.0))
        assert not check(schedule) and schedule.bound <= schedule.time
        assert schedule.optimal or schedule.search.cut
    if kind == "all_gather":
        assert schedule.optimal and "direct" in schedule.search.policy


@pytest.mark.parametrize("kind", KINDS)
def test_no_time_gives_a_schedule_of_some_number_of_chunks(kind):
    found = solve(request(mesh(), kind, budget=0.0), jobs=1)
    assert not check(found.schedule) and found.schedule.bound <= found.schedule.time
    assert found.schedule.optimal or found.schedule.search.cut


@pytest.mark.parametrize("kind", KINDS)
def test_few_numbers_of_chunks_are_tried(kind, monkeypatch):
    asked = []
    demand = Request.demand
    monkeypatch.setattr(Request, "demand", lambda self, chunks: asked.append(chunks) or demand(self, chunks))
    found = solve(request(mesh(), kind), jobs=1)
    # Three of forests, or of other searches, beside the one chunk of which all are multiples.
    assert len({*asked} - {1}) <= 4 and found.chunks in asked


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_that_time_cuts_short_are_bounds(kind):
    # A narrow bridge between two halves: only a cut knows of it.
    edges = "# npus 6\nsrc,dst,bw_GiBps,lat_us\n" + "".join(
        f"{a},{b},{1 if {a, b} == {2, 3} else 50},0.5\n"
        for a in range(6)
        for b in range(6)
        if a != b and ((a < 3) == (b < 3) or {a, b} == {2, 3})
    )
    network = Network.of(read_csv(edges))
    demand = Demand.of(kind, 6, 2, 2**20, 1 if kind in ROOTED else None)
    least = lower_bounds(network, demand, stop=np.ones(1, dtype=np.int64))[0].time
    assert 0 < least <= lower_bounds(network, demand)[0].time


def test_a_watch_ends_a_search_and_says_that_it_goes_on(monkeypatch):
    monkeypatch.setattr(rounds, "_TOLD", 0.01)
    stop, told = np.zeros(3, dtype=np.int64), Event()
    watch = Watch(stop, None, told.set)
    assert told.wait(WAIT_S) and not stop[0] and not watch.over and watch.left() is None
    watch.end()
    watch = Watch(stop, 0.0)
    for _ in range(100 * WAIT_S):
        if stop[0]:
            break
        time.sleep(0.01)
    assert stop.tolist() == [1, 0, 0] and watch.over and watch.left() == 0
    watch.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_beside_others_a_search_is_never_worse_than_to_wait(kind):
    random = np.random.Generator(np.random.PCG64(KINDS.index(kind)))
    options = wanted(kind, rounds=2)
    policies = []
    for topology in (mesh("mesh", (2, 3)), mesh("torus", (3, 4))):
        alone = synthesize(topology, **options)
        for longest in (alone.time // 40, 1000):
            link = random.integers(0, topology.links, 12).astype(np.int32)
            start = random.integers(0, longest, 12)
            others = Occupied(link, start, start + random.integers(1, longest, 12))
            beside = synthesize(topology, **options, occupied=(others,))
            assert not check(beside)
            assert alone.bound <= beside.time <= int(others.end.max()) + alone.time
            policies.append(beside.search.policy)
    if kind == "all_gather":
        assert any(policy.startswith("put off") for policy in policies), "the symmetry is lost beside others"


def test_no_gap_is_negative():
    assert (Progress(99, 100, 1, 2).gap, Progress(3, 2, 1, 2).gap) == (0.0, 0.5)


def test_progress_of_an_all_reduce_names_its_halves():
    told: list[Progress] = []
    found = synthesize(mesh(dims=(4, 4)), **wanted("all_reduce", chunks=2, rounds=4, progress=told.append))
    halves = [state for state in told if state.search.endswith(" half") and state.best]
    assert {state.search for state in halves} == {"reduce_scatter half", "all_gather half"}
    assert all(state.best < found.time for state in halves), "of one half only"
    whole = [state.best for state in told if state.search == "trees"]
    assert whole == sorted(whole, reverse=True), "what was found before is not forgotten"
    assert whole[-1] == found.time


#: Where searches go on until they are stopped.
TORUS = "torus:5x5,bandwidth=50 GB/s,latency=500 ns"


def ctrl_c_where(fits):
    """A report of progress that sends Ctrl-C to this process the first time that it fits."""
    states: list[Progress] = []

    def progress(state: Progress) -> None:
        if fits(state) and not states:
            states.append(state)
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.mark.parametrize("chunks", [4, None])
def test_an_interrupt_ends_the_search_with_the_best_so_far_which_is_not_kept(chunks, tmp_path, monkeypatch):
    monkeypatch.setenv("ASTRASIM_CACHE", str(tmp_path))
    torus = build({"shape": "torus", "dims": [5, 5], "bandwidth": "50 GB/s", "latency": "500 ns"})
    ring = Request(
        topology=torus, npus=tuple(range(25)), collective="all_reduce", size=10**6, chunks=chunks, rounds=10**6
    )  # fmt: skip
    for _ in range(2):
        # After the halves of an all_reduce there is a schedule, which the search for trees would make better.
        report = ctrl_c_where(lambda state: state.best and "half" not in state.search and not state.stage)
        result = find(ring, jobs=1, progress=report, best_so_far=True)
        assert result.interrupted and result.schedule.search.cut and not result.reused
        assert check(result.schedule) == []


def test_an_interrupt_before_there_is_a_schedule_ends_as_elsewhere():
    with pytest.raises(KeyboardInterrupt):
        solve(
            request(mesh("torus", (5, 5)), "all_reduce", chunks=4), jobs=1, best_so_far=True,
            progress=ctrl_c_where(lambda state: state.stage == "bound"),
        )  # fmt: skip


def test_the_best_so_far_is_written_and_said(capsys, monkeypatch, tmp_path):
    report, file = ctrl_c_where(lambda state: state.search == "trees"), tmp_path / "best.npz"
    monkeypatch.setattr("astrasim_py.cli.synthesize_run._standing", lambda state: str(report(state)))
    words = ["--collective", "all_reduce", "--size", "1 MB", "--chunks", "4", "--rounds", "1000000", "--fresh"]
    assert main(["synthesize", "--topology", TORUS, *words, "--threads", "1", "-o", str(file)]) == 0
    printed = capsys.readouterr()
    assert "stopped by Ctrl-C: the best so far" in printed.err and "stopped by Ctrl-C" in printed.out
    assert file.exists()
