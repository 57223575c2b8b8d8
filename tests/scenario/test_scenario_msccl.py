"""What a scenario says of the connections of MSCCL-style runtimes, and what becomes of it."""

from __future__ import annotations

import json
import os
from fractions import Fraction

import pytest

from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import plan_for
from astrasim_py.inspection.explained import explain_folder
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.task import make_task, run_task
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import MscclModel

HEAD = "name: demo\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
RING = HEAD + "workload: [{all_reduce: {size: 1 MiB}}]\n"


def points(tmp_path, network, *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(RING + f"network: {network}\n", "utf-8")
    return expand(load_scenario(path, overrides))


def network(tmp_path, text, *overrides):
    return prepare(points(tmp_path, text, *overrides)[0]).problem.network


def test_it_is_off_unless_it_is_written(tmp_path):
    for text in ("{}", "{msccl: false}"):
        made = network(tmp_path, text)
        assert (made.msccl, made.send_completes) == (None, "delivery")


def test_every_key_reaches_the_problem(tmp_path):
    made = network(
        tmp_path,
        "{msccl: {protocol: LL, slots: 3, channel_bandwidth: 20 GB/s, latency: {LL: 1 us, LL128: 2 us}}}",
    )
    assert made.msccl == MscclModel(
        protocol="LL",
        slots=3,
        channel_bandwidth=Fraction(20 * 10**9),
        latency_ps={"Simple": 0, "LL": 10**6, "LL128": 2 * 10**6},
    )


@pytest.mark.parametrize("text", ["{msccl: true}", "{msccl: {}}"])
def test_the_protocol_says_what_is_not_written(tmp_path, text):
    made = network(tmp_path, text).msccl
    assert made.channel_bandwidth is None
    assert (made.slots_for(""), made.slots_for("LL128"), made.latency_for("LL")) == (2, 8, 0)


def test_a_plain_latency_is_that_of_every_protocol(tmp_path):
    made = network(tmp_path, "{msccl: {latency: 5 ns}}").msccl
    assert {made.latency_for(p) for p in ("Simple", "LL", "LL128")} == {5000}


def test_sends_complete_once_injected_unless_it_says_otherwise(tmp_path):
    assert network(tmp_path, "{msccl: {}}").send_completes == "injected"
    assert network(tmp_path, "{msccl: {}, send_completes: delivery}").send_completes == "delivery"
    assert network(tmp_path, "{}", "network.msccl={}").send_completes == "injected"


def test_it_can_be_swept(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(RING + "network: {msccl: {slots: $s}}\nsweep: {s: [1, 2, 4]}\n", "utf-8")
    made = [prepare(point).problem.network.msccl.slots for point in expand(load_scenario(path))]
    assert made == [1, 2, 4]
    path.write_text(RING + "sweep: {network.msccl: [false, true]}\n", "utf-8")
    assert [prepare(point).problem.network.msccl is None for point in expand(load_scenario(path))] == [True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{mscl: {}}", 'network.mscl: is not a key here; did you mean "msccl"?'),
        ("{msccl: {slot: 2}}", 'network.msccl.slot: is not a key here; did you mean "slots"?'),
        ("{msccl: {slots: 0}}", "network.msccl.slots: 0 is less than 1; write a whole number from 1 to 1,048,576"),
        ("{msccl: {protocol: simple}}", 'network.msccl.protocol: "simple" is not one of Simple, LL, LL128; did you'),
        ("{msccl: {channel_bandwidth: 20}}", "network.msccl.channel_bandwidth: 20 is not a bandwidth: it has no unit"),
        ("{msccl: {latency: {Ll: 1 ns}}}", 'network.msccl.latency.Ll: is not a key here; did you mean "LL"?'),
        ("{msccl: {latency: 5 lightyears}}", 'network.msccl.latency: "5 lightyears" is not a time'),
        ("{msccl: {latency: 5}}", "network.msccl.latency: 5 is not a time"),
        ("{msccl: 2}", "network.msccl: 2 is not a mapping"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, text, expected):
    with pytest.raises(AstraError) as caught:
        points(tmp_path, text)
    (line,) = caught.value.lines()
    assert expected in line
    assert line.removeprefix(f"{tmp_path}{os.sep}").startswith("s.yaml:4:")


def test_messages_are_counted_as_they_are_sent(tmp_path):
    made = prepare(
        points(tmp_path, "{msccl: {protocol: LL}}", "algorithms.all_reduce={builder: halving_doubling}")[0]
    ).problem
    plan = make_plan(made)
    assert plan_for(made, fold=True).messages == plan.messages > plan.instances[0].algorithm.messages


def test_a_point_says_what_held_its_messages_up(tmp_path):
    text = "{msccl: {protocol: LL, latency: {LL: 1 us}, channel_bandwidth: 10 GB/s}}"
    task = make_task(points(tmp_path, text)[0], tmp_path / "results", RunOptions(level="messages"))
    result = run_task(task)
    assert not result.lines
    summary = json.loads((task.folder / "summary.json").read_text("utf-8"))
    manifest = json.loads((task.folder / "manifest.json").read_text("utf-8"))
    assert manifest["resolved"]["network"]["msccl"]["latency"] == {"LL": "1 us"}
    assert [(a["protocol"], a["slots"]) for a in summary["algorithms"]] == [("LL", 8)]
    assert summary["closed_form_ns"] is None
    totals = explain_folder(task.folder).explanation.totals
    # A ring of four: six messages of 256 KiB one after the other, of one hop each.
    assert totals["latency"] == 6 * (500_000 + 1_000_000)
    assert totals["serialization"] == 6 * -(-(2**18) * 10**12 // (10 * 10**9))
    assert sum(totals.values()) == summary["makespan_ps"]


def test_without_it_a_point_says_nothing_of_it(tmp_path):
    task = make_task(points(tmp_path, "{}")[0], tmp_path / "results", RunOptions(level="links"))
    run_task(task)
    summary = json.loads((task.folder / "summary.json").read_text("utf-8"))
    assert set(summary["algorithms"][0]) == {"collective", "name", "ranks", "correct"}
    assert "hop_latency_ps" not in summary
    assert summary["closed_form_ns"] is not None
