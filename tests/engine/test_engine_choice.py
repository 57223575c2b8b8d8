"""Which engine runs, what `both` tells, and where two runs differ."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from worlds.problems import world

from astrasim_py.api import build_topology
from astrasim_py.core import jit_notes
from astrasim_py.core.choices import ENGINES
from astrasim_py.core.errors import InternalError, SimulationError, UsageError
from astrasim_py.core.jit_notes import state_of
from astrasim_py.core.records import Outcome, Records, Table
from astrasim_py.engine import auto
from astrasim_py.engine.compare import differences, run_both
from astrasim_py.engine.compiled.build import kernel_input
from astrasim_py.engine.simpy.network import CutThrough
from astrasim_py.engine.simulation import engine_for, plan_for, predicted_hops, simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.system import routes
from astrasim_py.system.machine_models import NetworkModel


def runs(count: int, level: str = "messages"):
    """Plans of random problems and their records, of those that no error ends."""
    for seed in range(count):
        plan = plan_for(world(seed))
        with contextlib.suppress(SimulationError):
            yield plan, simulate(plan, engine="simpy", level=level)


def plan_that(ends: str):
    """The plan of the first random problem that ends so."""
    return next(plan for plan, records in runs(200, "summary") if records.outcome.status == ends)


def altered(records: Records, table: str, column: str, row: int = -1) -> Records:
    """The same records with one figure off by one."""
    columns = {name: values.copy() for name, values in getattr(records, table).items()}
    columns[column][row] += 1
    return dataclasses.replace(records, **{table: Table(columns)})


# -- differences ------------------------------------------------------------------------------------------------


def test_a_run_does_not_differ_from_itself_whoever_ran_it_and_however_long():
    records = simulate(plan_that("done"), engine="simpy", level="messages")
    assert differences(records, dataclasses.replace(records, engine="other", cpu_s=99.0)) == []


@pytest.mark.parametrize(
    ("table", "column"),
    [("node", "start"), ("node", "ended_by"), ("message", "recv_node"), ("hop", "requested"), ("link", "max_queue")],
)
def test_one_figure_is_enough_to_differ(table, column):
    records = next(records for _, records in runs(50) if getattr(records, table).height > 1)
    other = altered(records, table, column)
    height = getattr(records, table).height
    value = int(getattr(records, table)[column][-1])
    assert differences(records, other) == [f"{column} of {table} row {height - 1}: {value} and {value + 1}"]


def test_every_kind_of_figure_is_compared():
    records = simulate(plan_that("stuck"), engine="simpy", level="messages")
    shorter = Table({name: column[:-1] for name, column in records.node.items()})
    changes = {
        "makespan": records.makespan + 1,
        "finish": records.finish + 1,
        "events": records.events + 1,
        "level": "links",
        "node": shorter,
        "outcome": dataclasses.replace(records.outcome, cause="another"),
    }
    for name, value in changes.items():
        assert len(differences(records, dataclasses.replace(records, **{name: value}))) == 1, name
    waiting = dataclasses.replace(records.outcome, waiting=records.outcome.waiting[:-1])
    assert "waiting" in differences(records, dataclasses.replace(records, outcome=waiting))[0]
    everything = dataclasses.replace(records, **changes)
    assert len(differences(records, everything)) == len(changes)


# -- both -------------------------------------------------------------------------------------------------------


def test_both_gives_the_records_that_the_engines_agree_on():
    for ends in ("done", "stuck"):
        plan = plan_that(ends)
        records = simulate(plan, engine="both", level="messages")
        assert records.engine == "both"
        assert differences(records, simulate(plan, engine="simpy", level="messages")) == []


def test_engines_that_differ_are_a_defect_of_ours_told_in_one_line():
    plan = plan_that("done")
    records = simulate(plan, engine="simpy", level="messages")

    def run(name: str) -> Records:
        return records if name == "simpy" else altered(records, "node", "end", 0)

    with pytest.raises(InternalError, match="the SimPy engine and the compiled engine differ: end of node row 0"):
        run_both(run, "job0")

    def refuse(name: str) -> Records:
        if name == "simpy":
            return records
        raise SimulationError("job0", "something")

    with pytest.raises(InternalError, match="the SimPy engine ends as done, and the compiled engine says: job0: some"):
        run_both(refuse, "job0")


def test_an_error_of_both_is_that_error():
    def run(name: str) -> Records:
        raise SimulationError("job0", "something")

    with pytest.raises(SimulationError, match="something"):
        run_both(run, "job0")


# -- the choice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there, points", [("loaded", 1), ("kept", 1), ("kept", 7), ("absent", 1), ("absent", 3)])
def test_auto_picks_by_the_predicted_message_hops_and_by_what_is_compiled(monkeypatch, tmp_path, there, points):
    monkeypatch.setenv("ASTRASIM_CACHE", str(tmp_path))
    monkeypatch.setattr(auto, "state_of", lambda name, whole: there)
    plan = plan_that("done")
    hops = predicted_hops(plan)
    assert engine_for(plan) == "simpy"
    for most, chosen in ((hops * points, "compiled"), (hops * points + 1, "simpy")):
        monkeypatch.setattr(auto, "HOPS", {"loaded": 1, "kept": 10**9, "absent": 10**9} | {there: most})
        assert engine_for(plan, "auto", points) == chosen
    if points == 1:
        assert simulate(plan).engine == chosen
    assert [engine_for(plan, name) for name in ENGINES[1:]] == list(ENGINES[1:])


def test_runs_on_simpy_for_want_of_compiled_code_add_up_until_compiling_pays(monkeypatch, tmp_path):
    """Whoever runs the same problem again and again does not pay for SimPy for ever."""
    monkeypatch.setenv("ASTRASIM_CACHE", str(tmp_path))
    monkeypatch.setattr(auto, "state_of", lambda name, whole: "absent")
    plan = plan_that("done")
    hops = predicted_hops(plan)
    monkeypatch.setattr(auto, "HOPS", {"loaded": 1, "kept": 1, "absent": 3 * hops})
    assert [auto.take_engine(plan) for _ in range(3)] == ["simpy", "simpy", "compiled"]
    (tmp_path / "simpy_hops").write_text("damaged")
    assert engine_for(plan) == "simpy"


def test_a_kernel_is_known_to_be_compiled_before_it_is_loaded(monkeypatch):
    """A run of some message-hops takes the compiled engine where that only needs to be loaded or is in memory."""
    plan = plan_that("done")
    simulate(plan, engine="compiled")
    kernel = "astrasim_py.engine.compiled.kernel.advance"
    assert state_of(kernel) == "loaded"
    monkeypatch.setattr(jit_notes, "_loaded", set())
    assert state_of(kernel) == "kept"
    monkeypatch.setenv("ASTRASIM_CACHE", "")
    assert state_of(kernel) == "absent"


def test_the_parts_of_the_kernel_that_a_plan_needs_are_known_before_it_is_loaded():
    plans = [plan_for(world(seed)) for seed in range(150)]
    needed = [kernel_input(plan).whole for plan in plans]
    assert [auto._whole(plan) for plan in plans] == needed
    assert {True, False} == set(needed)


def test_prediction_is_exact_where_all_routes_are_alike():
    for plan, records in runs(60, "summary"):
        routes = np.diff(plan.route_ptr)
        if records.outcome == Outcome() and not plan.problem.semantics.rendezvous_bytes:
            assert records.messages == plan.messages
            if len(routes) and routes.min() == routes.max():
                assert predicted_hops(plan) == records.message_hops


def test_a_model_written_in_python_runs_on_simpy_only():
    problem = world(1)
    problem = dataclasses.replace(problem, network=NetworkModel(model="mine", factory=CutThrough))
    assert simulate(problem).engine == simulate(problem, engine="simpy").engine == "simpy"
    for engine in ("compiled", "both"):
        with pytest.raises(UsageError, match="network model mine, which is written in Python"):
            simulate(problem, engine=engine)


def test_the_analytical_model_without_a_table_of_routes_runs_on_simpy_only(monkeypatch):
    topology = build_topology(shape="ring", npus=6, bandwidth="50 GB/s", latency="500 ns")
    problem = collective("all_to_all", "6 KB", topology, model="analytical")
    table = simulate(problem, engine="compiled")
    monkeypatch.setattr(routes, "MAX_ROUTE_LINKS", 5)
    monkeypatch.setattr(auto, "HOPS", dict.fromkeys(auto.HOPS, 1))
    found = simulate(problem)
    assert (found.engine, found.finish.tolist()) == ("simpy", table.finish.tolist())
    for engine in ("compiled", "both"):
        with pytest.raises(UsageError, match=f'"{engine}" cannot run the analytical model with so many routes'):
            simulate(problem, engine=engine)


def test_an_unknown_engine_is_refused():
    with pytest.raises(UsageError, match="auto, simpy, compiled, both"):
        simulate(world(1), engine="fast")
