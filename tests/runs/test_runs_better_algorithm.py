"""A run whose calls have no algorithm by name says which one is faster, and by how much: exactly what it then takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import astrasim_py as ap
from astrasim_py.core.units import format_time

RINGS = """
name: rings
topology:
  shape: product
  dims: [{kind: ring, size: 4, bandwidth: 100 GB/s, latency: 500 ns}, {kind: ring, size: 4, bandwidth: 50 GB/s,
    latency: 500 ns}]
workload: [{all_reduce: {size: 64 MiB}}]
"""
SWITCH = """
name: switch
topology: {shape: switch, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [64 MiB, 4 KiB]}
"""
STEP = """
name: step
topology: {preset: dgx_a100, nodes: 2}
workload:
  - compute: {time: 100 us}
  - all_gather: {size: 64 MiB}
  - reduce_scatter: {size: 64 MiB}
"""
SUBGROUP = """
name: subgroup
topology: {preset: dgx_h100, nodes: 32}
groups: {dp: {size: 8, stride: 32}}
workload: [{all_reduce: {size: 1 GiB, group: dp}}]
"""
ALONE = """
topology: {shape: fully_connected, npus: 4, bandwidth: 50 GB/s, latency: 0 ns}
workload: [{all_to_all: {size: 1 MiB}}]
"""
FOLDED = """
topology: {shape: switch, npus: 16, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: 64 KiB}}]
fold: true
"""
HINT = re.compile(r"hint: (?:(?P<point>\S+=.*?): )?(?P<what>.*) takes (?P<time>.*?), not (?P<before>.*?) "
                  r"\((?P<gain>.*?)\)(?: with|:) (?P<advice>algorithms: \{.*\})")  # fmt: skip


def run(tmp_path: Path, text: str, out: str = "out", **keywords):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return ap.run(path, out=tmp_path / out, jobs=1, **keywords)


def hint_of(result) -> re.Match | None:
    hints = [note for note in result.notes if note.startswith("hint: ")]
    assert len(hints) <= 1, "one line a run"
    match = HINT.fullmatch(hints[0]) if hints else None
    assert not hints or match, hints
    return match


@pytest.mark.parametrize(
    ("text", "collectives"),
    [(RINGS, ["all_reduce"]), (SWITCH, ["all_reduce"]), (STEP, ["all_gather", "reduce_scatter"])],
)
def test_what_is_advised_takes_exactly_the_time_that_is_said(tmp_path, text, collectives):
    before = run(tmp_path, text)
    hint = hint_of(before)
    assert hint is not None and all(f"{name}: " in hint["advice"] for name in collectives)
    after = run(tmp_path, f"{text}{hint['advice']}\n", "after")
    times = [{row.point: row.time_ps for row in result.rows} for result in (before, after)]
    point = hint["point"] or before.rows[0].point
    assert format_time(times[1][point]) == hint["time"] and format_time(times[0][point]) == hint["before"]
    assert times[1][point] < 0.95 * times[0][point]
    assert hint_of(after) is None, "what somebody has named is not doubted"


def test_the_point_is_named_that_can_save_most(tmp_path):
    hint = hint_of(run(tmp_path, SWITCH))
    assert hint is not None and (hint["point"], hint["what"]) == ("size=4 KiB", "all_reduce 4 KiB: direct")
    assert "times faster" in hint["gain"]


def test_a_library_is_advised_where_it_is_fastest(tmp_path):
    hint = hint_of(run(tmp_path, "topology: {preset: dgx_h100, nodes: 4}\nworkload: [{all_reduce: {size: 64 MiB}}]\n"))
    assert hint is not None and hint["advice"] == "algorithms: {all_reduce: nccl}"


@pytest.mark.parametrize(
    "text",
    [
        SUBGROUP,  # each rank has one NIC to the others, whatever the algorithm
        RINGS + "algorithms: {all_reduce: ring}\n",  # somebody has chosen
        ALONE,  # nothing is faster
        RINGS.replace("[{all_reduce", "[{compute: {time: 1 s}}, {all_reduce"),  # less than a twentieth of the run
    ],
)
def test_nothing_is_said_where_nothing_saves_a_twentieth(tmp_path, text):
    assert hint_of(run(tmp_path, text)) is None


def test_code_of_the_user_is_not_run_again_for_it(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(RINGS)
    scenario = ap.load_scenario(path, allow_code=True)
    assert hint_of(ap.run(scenario, out=tmp_path / "out")) is None


def test_a_run_says_the_same_again_without_simulating_again(tmp_path, monkeypatch):
    first = hint_of(run(tmp_path, RINGS))
    from astrasim_py.runs import better_algorithm

    monkeypatch.setattr(better_algorithm, "_line", lambda kinds: pytest.fail("simulated again"))
    again = hint_of(run(tmp_path, RINGS))
    assert first is not None and again is not None and again.group() == first.group()


def test_a_large_run_says_nothing_rather_than_waits(tmp_path, monkeypatch):
    from astrasim_py.runs import better_algorithm

    monkeypatch.setattr(better_algorithm, "_LARGE", 479)
    assert hint_of(run(tmp_path, RINGS)) is None, "it has 480 messages"


def test_folded_runs_are_compared_with_folded_ones(tmp_path):
    before = run(tmp_path, FOLDED)
    hint = hint_of(before)
    assert before.rows[0].engine.endswith("+fold") and hint is not None
    after = run(tmp_path, f"{FOLDED}{hint['advice']}\n", "after")
    assert format_time(after.rows[0].time_ps) == hint["time"]
