"""Explorations: every configuration is priced as alone or has its reason, and simulations hold the best to account."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from astrasim_py.core.errors import AstraError
from astrasim_py.core.point_names import parse_values
from astrasim_py.exploration.figures import measured_points
from astrasim_py.exploration.grid import AXES, grid_of
from astrasim_py.exploration.models import load_exploration
from astrasim_py.exploration.search import REASONS, best_of, price, simulate, why_not
from astrasim_py.exploration.what_if import scaling, what_if
from astrasim_py.report.explore import best_text, notes_text
from astrasim_py.report.training import room_text
from astrasim_py.results.model import Row
from astrasim_py.runs.progress import Progress
from astrasim_py.scenario.expand import expand
from astrasim_py.topology.hardware import preset_names
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.memory import peak_memory, require_memory
from astrasim_py.training.models import model, published
from astrasim_py.training.strategy import Training

SMALL = """explore:
  model: {base: llama3-8b, layers: 4}
  topology: {preset: dgx_h100, nodes: 2, npus: 4}
  gbs: [32, 48]
  seq: 1024
  tp: [1, 2, 3, 4]
  pp: auto
  cp: [1, 2]
  vp: [1, 2]
  zero: [0, 1, 3]
  mbs: auto
  recompute: [none, full, 0.5]
  sp: [true, false]
"""


#: Simulations hold the network to account: host and software pass beside it.
IDEAL = "  software: ideal\n"


SMALL_OVERLAP = """explore: {{ software: ideal,
  model: {{base: llama3-8b, layers: 4}}, topology: {}, gbs: 32, seq: 1024, zero: [0, 1], overlap: {{dp: true}}, {} }}
"""


DATA_PARALLEL = """explore:
  model: {{base: llama3-8b, layers: 4}}
  topology: {{preset: dgx_h100, nodes: 2, npus: 4}}
  gbs: 64
  seq: 1024
  tp: [1, 2]
  pp: 1
  zero: {zero}
  mbs: {mbs}
  recompute: {recompute}
  software: ideal
"""


@pytest.fixture
def explored(tmp_path):
    """A function that prices the exploration of a text."""

    def explore(text: str = SMALL):
        path = tmp_path / "small.yaml"
        path.write_text(text)
        exploration = load_exploration(str(path))
        return price(exploration, grid_of(exploration))

    return explore


def test_every_configuration_is_possible_or_has_its_reason(explored):
    priced = explored()
    count = priced.grid.count
    assert count == np.prod([len(values) for values in priced.grid.axes.values()])
    assert len(priced.possible) + sum(priced.refused.values()) == count
    assert len(set(priced.possible.tolist())) == len(priced.possible)
    assert {"heads", "ranks", "batch", "chunks", "repeated"} <= set(priced.refused)
    for number in range(0, count, 211):
        reason = priced.reason(number)
        assert (reason is None) == (priced.reasons[number] < 0)
        assert reason is None or all(reason)


def test_sequences_that_only_many_ranks_can_hold_are_explored(explored):
    text = SMALL.replace("llama3-8b, layers: 4", "llama3-70b, layers: 80").replace("seq: 1024", "seq: 1048576")
    priced = explored(text.replace("gbs: [32, 48]", "gbs: 4").replace("cp: [1, 2]", "cp: 4\n  memory: ignore"))
    assert len(priced.possible) and np.isfinite(priced.seconds[priced.possible]).all()


def test_rows_are_those_of_the_configuration_alone(explored):
    priced = explored()
    order = priced.possible
    chosen = order[:: max(len(order) // 40, 1)]
    prices = priced.exploration.prices
    for row, number in zip(priced.rows(chosen), chosen.tolist(), strict=True):
        keys = priced.grid.keys(number)
        layout = Training(**(keys | {"model": priced.exploration.keys.model})).layout(8)
        alone = step(terms(layout, prices), prices.constants)
        assert row["step_s"] == pytest.approx(float(alone.seconds), rel=1e-12) == priced.seconds[number]
        assert row["step_s"] == pytest.approx(sum(row["parts_s"].values()))
        assert row["memory_bytes"] == peak_memory(layout)
        assert row["memory_total_bytes"] <= row["capacity_bytes"] - row["reserve_bytes"]
        assert (row["capacity_bytes"], row["reserve_bytes"]) == (80 * 2**30, 2**33)
        assert row["tokens_per_s_per_gpu"] == pytest.approx(layout.gbs * 1024 / row["step_s"] / 8)


def test_what_is_refused_is_refused_alone_for_the_same_reason(explored):
    priced = explored()
    rules = np.flatnonzero((priced.reasons >= 0) & (priced.reasons < len(REASONS) - 1))
    for number in rules[:: max(len(rules) // 40, 1)].tolist():
        keys = priced.grid.keys(number) | {"model": priced.exploration.keys.model}
        with pytest.raises(AstraError) as error:
            require_memory(peak_memory(Training(**keys).layout(8)), 80 * 2**30)
        assert (error.value.problem, error.value.remedy) == priced.reason(number)


def test_order_is_by_the_objective_and_ties_by_memory(explored):
    for objective, key in (("time", "step_s"), ("memory", "memory_total_bytes"), ("tokens", "tokens_per_s_per_gpu")):
        priced = explored(SMALL + f"  objective: {objective}\n")
        found = [row[key] * (-1 if objective == "tokens" else 1) for row in priced.rows(priced.possible[:200])]
        assert found == sorted(found)
    assert found[0] < found[-1]


def test_a_text_names_the_configuration_that_it_was_made_of(explored):
    priced = explored()
    for number in priced.possible[::97].tolist():
        text = priced.grid.text(number)
        assert best_of(priced, parse_values(text), "")["configuration"] == text
        assert why_not(priced, parse_values(text))["possible"] == 1


def test_why_not_says_the_broken_rule_beyond_the_grid_too(explored):
    priced = explored()
    assert why_not(priced, {"tp": ["5"]})["problem"] == "tp 5 does not divide 32 heads"
    found = why_not(priced, {"tp": ["2"], "pp": ["1"]})
    assert 0 < found["possible"] < found["matching"]
    assert found["place"] == 1 + int((priced.cost[priced.reasons < 0] < found["best"]["step_s"]).sum())


def test_memory_that_is_short_is_a_reason_unless_ignored(explored):
    text = SMALL.replace("{base: llama3-8b, layers: 4}", "llama3-70b")
    fit, ignored = explored(text), explored(text + "  memory: ignore\n")
    assert fit.refused["memory"] > 0 and "memory" not in ignored.refused
    kept = {name: count for name, count in fit.refused.items() if name not in ("memory", "repeated")}
    assert kept == {name: count for name, count in ignored.refused.items() if name != "repeated"}
    assert len(ignored.possible) > len(fit.possible)
    number = int(np.flatnonzero(fit.reasons == REASONS.index("memory"))[0])
    assert "GB more than 77.3 GB (85.9 GB less a reserve of 8.6 GB)" in fit.reason(number)[0]
    assert explored(text + "  reserve: 0\n").reason(number)[0].count("GB more than 85.9 GB;") == 1


@pytest.mark.parametrize("reserve", [0, 0.1, 0.5, "50 %", "4 GiB"])
def test_a_fit_leaves_the_reserve(explored, reserve):
    """The boundary is met exactly: the configuration that needs most still fits, and any byte more would not."""
    text = SMALL.replace("layers: 4", "layers: 24")
    priced = explored(f"{text}  memory_reserve: {reserve}\n")
    limit = 80 * 2**30 - ({"4 GiB": 4 * 2**30, "50 %": 40 * 2**30}.get(reserve) or int(80 * 2**30 * reserve))
    everything = explored(text + "  memory: ignore\n")
    needs = everything.memory[everything.reasons < 0]
    assert len(priced.possible) == np.count_nonzero(needs <= limit) < len(needs)
    assert priced.refused["memory"] >= np.count_nonzero(needs > limit)


@pytest.mark.parametrize(
    ("reserve", "problem"),
    [
        ("4 GB/s", '"4 GB/s" is not a reserve of memory'),
        ("120 %", '"120 %" is not a part of the memory'),
        ("-0.1", "-0.1 is not a part"),
        ("100 GiB", "a reserve of 107.4 GB leaves nothing of 85.9 GB"),
    ],
)
def test_a_reserve_that_is_none_is_refused_with_its_place(explored, reserve, problem):
    with pytest.raises(AstraError, match=re.escape(problem)) as caught:
        explored(f"{SMALL}  memory_reserve: {reserve}\n")
    assert "memory_reserve" in str(caught.value) and "4 GiB" in str(caught.value)


@pytest.mark.parametrize(("objective", "best"), [("time", 2), ("tokens", 1), ("memory", 0)])
def test_the_best_is_that_of_the_simulation(explored, monkeypatch, objective, best):
    """The closed form's first is the slowest; the second has more tokens a second, the third the shortest step."""
    from astrasim_py.exploration import search as explore

    priced = explored(SMALL.replace("llama3-8b, layers: 4", "llama3-8b, layers: 2") + f"  objective: {objective}\n")
    pool = priced.rows(priced.possible)
    chosen = [next(i for i, row in enumerate(pool) if row["gbs"] == gbs) for gbs in (32, 48, 32)]
    rows, numbers = [pool[i] for i in chosen], priced.possible[chosen]
    times = [
        Row(scenario="s", point="p", sweep={}, status="done", time_ns=Decimal(ns))
        for ns in (40_000_000, 33_000_000, 30_000_000)
    ]
    result = SimpleNamespace(rows=times, summaries=(None, None, None))
    monkeypatch.setattr(explore, "run_scenario", lambda *_, **__: result)
    found = simulate(priced, rows, numbers, progress=Progress())
    assert (found.best, found.fastest) == (best, 2)
    rows = [row | more for row, more in zip(rows, found.rows, strict=True)]
    said = best_text(rows, found.best)
    assert said.startswith(f"best: {rows[best]['configuration']} (in simulation, of 3 simulated)")
    assert ("best by the closed form: " in said) == (best > 0)


def test_the_best_is_unsure_where_folding_may_be_off_by_more():
    steps = ((1.0, 0.0), (1.02, 0.0), (1.02, 0.05), (1.3, 0.1), (1.3, 0.4))
    rows = [{"configuration": "a", "gap": 0.0, "simulated_s": step, "simulated_off_s": off} for step, off in steps]
    assert best_text(rows[:2], 0) == "best: a (in simulation, of 2 simulated)"
    assert "of 5 simulated; folding cannot tell it from 2 others)" in best_text(rows, 0)


def test_memory_near_the_limit_is_marked():
    row = {"capacity_bytes": 80 * 2**30, "reserve_bytes": 8 * 2**30}
    said = {gib: room_text(row | {"memory_total_bytes": gib * 2**30}) for gib in (67, 68, 72, 73)}
    assert said[67] == "" and said[73] == "too much: 72.0 GiB are usable"
    assert [said[68], said[72]] == [f"{gib}.0 of 72.0 GiB usable: may run out" for gib in (68, 72)]


def test_simulations_are_near_and_used_again(explored, tmp_path):
    text = SMALL.replace("zero: [0, 1, 3]", "zero: [0, 1]").replace("gbs: [32, 48]", "gbs: 32")
    priced = explored(text + "  simulate: {top: 5}\n" + IDEAL)
    order = priced.possible[:5]
    rows = priced.rows(order)
    options = {"progress": Progress(), "out": tmp_path}
    first, again = (simulate(priced, rows, order, **options) for _ in range(2))
    assert first.result.computed == 5 and again.result.reused == 5
    assert first.rows == again.rows
    assert sorted(map(abs, first.gaps))[2] <= 0.015 and max(map(abs, first.gaps)) <= 0.05
    for row, found in zip(rows, first.rows, strict=True):
        assert found["gap"] == pytest.approx(row["step_s"] / found["simulated_s"] - 1)


@pytest.mark.parametrize(("schedule", "chunks"), [("zbv", {2}), ("[1f1b, zbv]", {1, 2}), ("1f1b", {1})])
def test_schedules_of_two_chunks_have_them_unless_vp_is_written(explored, schedule, chunks):
    priced = explored(SMALL + f"  schedule: {schedule}\n")
    assert {priced.grid.values(number)["vp"] for number in priced.possible.tolist()} == chunks


#: Schedules that split the backward pass; a torus; experts beside gradients; weights gathered over the links of others.
NEAR = {
    "split": SMALL_OVERLAP.format(
        "{preset: dgx_h100, nodes: 2, npus: 4}", "pp: 2, schedule: [zb_h1, zb_h2], mbs: 1"
    ).replace("layers: 4", "layers: 12"),
    "torus": SMALL_OVERLAP.format("{preset: tpu_v4, dims: [4, 2]}", "pp: [1, 2], tp: [1, 2, 4]"),
    "experts": SMALL_OVERLAP.format("{preset: dgx_h100, nodes: 2, npus: 4}", "ep: [2, 4], pp: 1, tp: [1, 2]").replace(
        "llama3-8b", "mixtral-8x7b"
    ),
    "shared": SMALL_OVERLAP.format("{preset: dgx_h100, nodes: 1}", "pp: [1, 2], tp: [2, 4], mbs: 1").replace(
        "zero: [0, 1]", "zero: 3"
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_the_best_are_near_their_simulations(explored, tmp_path, name):
    priced = explored(NEAR[name])
    order = priced.possible[:6]
    rows = priced.rows(order)
    found = simulate(priced, rows, order, progress=Progress(), out=tmp_path)
    gaps = sorted(map(abs, found.gaps))
    said = notes_text([row | more for row, more in zip(rows, found.rows, strict=True)])
    if name == "shared":
        assert any(row["shares_links"] for row in rows) and said.startswith("~ ")
        assert gaps[-1] < 0.15
        return
    assert (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2 <= 0.015 and gaps[-1] <= 0.05, gaps
    assert ("expose their reduction" in said) == (name == "split")


@pytest.mark.slow
@pytest.mark.parametrize(("software", "state"), [("pytorch", "sound"), ("nanotron", "degraded"), ("megatron", "sound")])
def test_what_is_priced_is_simulated_with_host_and_software_too(explored, tmp_path, software, state):
    """As with ideal software: layouts whose closed form is sure."""
    keys = f"pp: [1, 2, 4], tp: [2, 4], mbs: [1, 2], software: {software}, state: {state}"
    priced = explored(SMALL_OVERLAP.replace("software: ideal,", "").format("{preset: dgx_h100, nodes: 1}", keys))
    order = priced.possible
    found = simulate(priced, priced.rows(order), order, progress=Progress(), out=tmp_path)
    assert len(found.gaps) >= 8 and max(map(abs, found.gaps)) <= 0.03, found.gaps


def test_gathers_a_layer_ahead_are_priced_as_simulated(explored, tmp_path):
    """ZeRO 3 where the gathers of embedding and logits take longer than what they run beside."""
    text = DATA_PARALLEL.format(zero=3, mbs="[2, 4]", recompute="[none, full]")
    priced = explored(text + "  algorithms: {reduce_scatter: &a ring, all_gather: *a}\n")
    order = priced.possible
    rows = priced.rows(order)
    found = simulate(priced, rows, order, progress=Progress(), out=tmp_path)
    assert len(rows) == 8 and all(row["parts_s"]["dp"] > 0 for row in rows)
    assert max(map(abs, found.gaps)) < 0.03  # links inside the node also carry tensor parallel messages


@pytest.mark.parametrize("zero", [0, 1])
def test_algorithms_of_a_group_are_priced_as_simulated(explored, tmp_path, zero):
    text = DATA_PARALLEL.format(zero=zero, mbs="[1, 2]", recompute="none")
    priced = explored(text + "  algorithms: {all_reduce: &a hierarchical, reduce_scatter: *a, all_gather: *a}\n")
    assert priced.exploration.network.cost("all_reduce", "dp", 8, 1).steps == 2 * (3 + 1)
    order = priced.possible
    found = simulate(priced, priced.rows(order), order, progress=Progress(), out=tmp_path)
    assert len(found.gaps) == 4 and max(map(abs, found.gaps)) < 0.002  # latencies of the last steps


def test_software_and_state_change_the_step(explored):
    texts = ("", "  state: degraded\n", IDEAL)
    plain, degraded, ideal = (explored(SMALL + text) for text in texts)
    number = next(int(n) for n in plain.possible if plain.grid.values(int(n))["tp"] == 4)
    steps = [float(priced.seconds[number]) for priced in (ideal, plain, degraded)]
    assert steps == sorted(steps) and len(set(steps)) == 3
    rows = [priced.rows([number])[0] for priced in (plain, degraded, ideal)]
    assert [(row["software"], row["state"], row["state_source"]) for row in rows] == [
        ("pytorch", "sound", "default"),
        ("pytorch", "degraded", "as written"),
        ("ideal", None, None),
    ]


@pytest.mark.parametrize(("rates", "software"), [("nominal", "ideal"), ("measured", "pytorch")])
def test_rates_is_the_former_key_of_software(explored, rates, software):
    former, present = (explored(f"{SMALL}  {text}\n") for text in (f"rates: {rates}", f"software: {software}"))
    assert former.exploration.former == ((f"rates: {rates}", f"software: {software}"),)
    assert present.exploration.former == ()
    assert np.array_equal(former.seconds, present.seconds, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("software: pytoch", 'explore.software: "pytoch" is no software that is known; did you mean "pytorch"?'),
        ("software: {gemm: 0}", "explore.software.gemm: 0 is too little"),
        ("software: {base: ideal, gemm: 1.1}", "explore.software.base: ideal has no constants to change"),
        ("software: {base: megatron}", "explore.software: changes no constant; write software: megatron"),
        ("state: bad", 'explore.state: "bad" is no state of a machine'),
        ("state: {nccl_tests: gone.txt}", "explore.state: gone.txt"),
        ("rates: fast", 'explore.rates: "fast" is not one of nominal, measured; write software: ideal'),
        ("software: ideal\n  rates: nominal", "explore.rates: rates is the former key of software"),
    ],
)
def test_wrong_software_and_states_are_refused_at_their_keys(explored, text, problem):
    with pytest.raises(AstraError) as caught:
        explored(f"{SMALL}  {text}\n")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_calibrated_is_simulated_too(explored):
    exploration = explored().exploration
    slower = exploration.calibrated({"gemm": 1.5, "host": 0.0})
    nanotron = explored(SMALL + "  software: nanotron\n").exploration
    doubled = nanotron.calibrated({"host": 2.0}).prices.constants
    assert doubled.host == 2 * nanotron.prices.constants.host > 0 and doubled.gemm == nanotron.prices.constants.gemm
    assert slower.prices.constants.gemm == 1.5 and slower.costs.keys()["software"] == "pytorch with host 0, gemm 1.5"
    point = expand(slower.simulation({"a": {"model": "llama3-8b", "seq": 1024, "gbs": 32, "tp": 4}}))[0]
    assert point.spec.workload.software.software() == slower.costs.software


def test_no_change_that_adds_something_makes_the_best_slower(explored):
    priced = explored()
    first, *others = what_if(priced)
    assert first["speedup"] == 1.0 and first["same_step_s"] == first["step_s"]
    for row in others:
        assert row["step_s"] <= min(row["same_step_s"], first["step_s"]) * (1 + 1e-12)
        assert row["speedup"] == pytest.approx(first["step_s"] / row["step_s"])
    faster = {row["change"] for row in others if row["speedup"] > 1.001}
    assert "2 x FLOPs" in faster


def test_larger_clusters_train_no_slower(explored):
    points = scaling(explored())
    assert [point["ranks"] for point in points] == [4, 8, 16, 32]
    assert all(a["step_s"] > b["step_s"] for a, b in pairwise(points[:3]))


def test_all_axes_are_keys_of_a_training():
    assert set(AXES) <= set(Training.model_fields)


def test_published_points_are_of_the_same_model_gpu_and_format(explored):
    text = SMALL.replace("{base: llama3-8b, layers: 4}", "llama3-8b").replace("dgx_h100", "hgx_h100_500w")
    points = measured_points(explored(text + "  dtype: bf16\n"))
    assert list(points) == ["torchtitan, seq 8192"]
    assert all(4_000 < rate / gpus < 7_000 for pairs in points.values() for gpus, rate in pairs)
    assert measured_points(explored(text + "  dtype: fp8\n")) != points
    assert not measured_points(explored(text.replace("hgx_h100_500w", "dgx_a100")))
    assert not measured_points(explored())
    for row in published():
        assert row["licence"] in ("Apache-2.0", "BSD-3-Clause") and row["machine"] in preset_names("compute")
        assert model(row["model"]).layers and float(row["tokens_s_gpu"]) > 0 and int(row["gpus"]) % int(row["tp"]) == 0
