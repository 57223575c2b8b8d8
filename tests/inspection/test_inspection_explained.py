"""`explain`: which points are meant, what differs between two, and advice that holds."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds.problems import world

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.inspection.advice import advice, changes, with_twice_the_bandwidth
from astrasim_py.inspection.stored_results import find
from astrasim_py.report.explain import explain
from astrasim_py.runs.figures import panel

SCENARIO = """
name: demo
topologies:
  ring: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
  mesh: {shape: mesh, dims: [4], bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - compute: {time: $time}
  - all_reduce: {size: $size}
sweep:
  topology: [ring, mesh]
  size: [64 KiB, 1 MiB]
  time: [1 us, 2 us]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    (folder / "demo.yaml").write_text(SCENARIO)
    ap.run(folder / "demo.yaml", out=folder / "results", level="messages")
    return folder


@pytest.fixture
def told(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["explain", *argv])
        return code, *capsys.readouterr()

    return run


def test_python_writes_the_page_that_the_command_writes(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    result = ap.run("demo.yaml", out="results", level="messages")
    point = {"size": "1 MiB", "topology": "mesh", "time": "1 us"}
    one, two = ap.view(result, point, file="py/one.html"), ap.view("demo@size=1 MiB,time=1 us,topology=ring", "", point)
    assert main(["view", "demo@size=1 MiB,topology=mesh,time=1 us", "-o", "one.html"]) == 0
    assert main(["view", "demo@size=1 MiB,time=1 us,topology=ring", "@topology=mesh", "-o", "two.html"]) == 0
    assert one.read_bytes() == (folder / "one.html").read_bytes() and str(two) == "page.html"
    assert two.read_bytes() == (folder / "two.html").read_bytes()
    assert main(["view", "demo", "-o", "worst.html"]) == 0
    assert (folder / "worst.html").read_bytes() == ap.view(result).read_bytes() != one.read_bytes()
    with pytest.raises(AstraError, match="means 4 points"):
        ap.view("demo", "size=1 MiB")


def test_a_figure_of_a_point_says_once_which_it_is(folder, tmp_path):
    """Its panel has the swept values; a point without any is all of its scenario, which the figure is called by."""
    assert panel(find(folder / "results" / "demo")[1][0], "gantt").title == (
        "topology = ring, message size = 64 KiB, time = 1 us"
    )
    (tmp_path / "alone.yaml").write_text(
        re.sub(r"(?s)sweep:.*", "", SCENARIO.replace("$time", "1 us"))
        .replace("$size", "1 KiB")
        .replace("  mesh:", "  #")
    )
    ap.run(tmp_path / "alone.yaml", out=tmp_path, level="nodes")
    assert panel(find(tmp_path / "demo")[1][0], "gantt").title == ""


@pytest.mark.parametrize("name", ["demo", "demo.yaml", "results/demo"])
@pytest.mark.parametrize("size", ["1 MiB", "1MiB", "1048576", "1024 KiB"])
def test_a_point_is_named_by_swept_values_as_in_yaml(told, name, size):
    code, out, err = told(f"{name}@size={size},topology=mesh,time=1000 ns")
    assert (code, err) == (0, "")
    assert out.startswith("demo: topology=mesh,size=1 MiB,time=1 us\n")


def test_one_line_says_what_tells_points_apart(told):
    code, out, err = told("demo@size=1 MiB,topology=ring")
    assert (code, out) == (0, out) and "B takes 1 µs longer" in out, "two points: what differs"
    code, out, err = told("demo@size=1 MiB")
    (line,) = err.splitlines()
    assert (code, out) == (2, "") and "means 4 points" in line and "they differ in topology, time" in line
    example = line.partition("write e.g. ")[2]
    assert example == '"demo@size=1 MiB,topology=ring,time=1 us"'
    assert told(*shlex.split(example))[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo@sise=1 MiB"], 'demo@sise: is not swept; did you mean "size"? swept are topology, size, time'),
        (["demo@size=3 MiB"], 'no point has "3 MiB"; write one of 64 KiB, 1 MiB'),
        (["demo@size=1 MiB,topology=tours"], 'no point with the values before it has "tours"; write one of mesh, ring'),
        (["demo@topology=rign"], 'no point has "rign"; did you mean "ring"?'),
        (["demo@size>=1 MiB"], 'write --where "size>=1 MiB"'),
        (["demo@size"], "write key=value behind @"),
        (["dmeo@size=1 MiB"], 'did you mean "demo"?'),
        (["@size=1 MiB"], "write the name before it"),
        (["dmeo"], 'did you mean "demo"?'),
        (["size=1 MiB"], "write the name before it: NAME@size=1 MiB"),
        (["demo", "demo", "--worst", "--lines", "0"], "--lines"),
    ],
)
def test_a_wrong_choice_is_one_line(told, words, said):
    code, out, err = told(*words)
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) == 1


def test_a_file_means_points_of_the_file_as_it_is_now(told, folder):
    words = "size=1 MiB,time=1 us"
    assert told(f"demo.yaml@topology=ring,{words}")[0] == 0
    file = folder / "demo.yaml"
    try:
        file.write_text(SCENARIO.replace("dims: [4], bandwidth: 50", "dims: [4], bandwidth: 25"))
        assert told(f"demo.yaml@topology=ring,{words}")[0] == 0
        code, _, err = told(f"demo.yaml@topology=mesh,{words}")
        assert code == 2 and 'demo.yaml@topology: no point has "mesh"; write one of ring' in err
        file.write_text(SCENARIO.replace("500 ns", "400 ns"))
        code, _, err = told(f"demo.yaml@topology=ring,{words}")
        assert code == 2 and err.count("\n") == 1 and "demo.yaml: is not as it was run" in err
        assert told(f"demo@topology=ring,{words}")[0] == 0
    finally:
        file.write_text(SCENARIO)


def test_the_worst_point_is_the_one_farthest_from_its_bound(told, folder):
    rows = [row for row in ap.run(folder / "demo.yaml", out=folder / "results").rows if row["topology"] == "ring"]
    least = min(rows, key=lambda row: row["efficiency"])
    assert told("demo@topology=ring", "--worst")[1].startswith(f"demo: {least['point']}\n")


def test_two_points_are_told_apart_by_category_collective_and_link(told, folder):
    code, out, err = told("demo@time=1 us,size=1 MiB,topology=ring", "@topology=mesh")
    assert (code, err) == (0, "")
    gap = ap.explain("demo", "topology=ring,size=1 MiB,time=1 us", {"topology": "mesh", "size": "1MiB", "time": "1us"})
    assert str(gap) in out
    assert gap.runs[1].makespan == ap.explain("demo", "topology=mesh,size=1 MiB,time=1 us").makespan
    assert re.search(r"^B takes .* longer, \d\.\d\d times as long: ", out, re.M)
    assert "latency" in out and "all_reduce 1 MiB" in out and "busiest link: A 0->1 and 3 equal" in out
    assert "compute" not in out.partition("times as long")[2].split("busiest")[0], "what is equal is left out"


def test_equal_links_messages_and_collectives_are_one_line(folder):
    text = str(ap.explain(folder / "results/demo", "topology=ring,size=1 MiB,time=1 us"))
    assert "0->1 and 3 equal" in text and "1->2" not in text
    assert "6 messages of 256 KiB one after the other, each" in text
    twice = ap.workload(4).all_reduce("1 MiB").all_gather("4 MiB").all_gather("4 MiB").all_gather("4 MiB")
    text = str(
        ap.explain(ap.problem(twice, ap.build_topology(shape="ring", npus=4, bandwidth="1 GB/s", latency="1 us")))
    )
    assert re.search(r"\d: all_gather 4 MiB \(\w+\) and 2 equal", text)
    pairs = ap.workload(8)
    for first in range(0, 8, 2):
        pairs.all_reduce("1 MiB", group=[first, first + 1], after=[])
    switch = ap.build_topology(shape="switch", npus=8, bandwidth="1 GB/s", latency="1 us")
    lines = [line for line in str(ap.explain(ap.problem(pairs, switch))).splitlines() if ": all_reduce" in line]
    # One of the four is on the critical path; the others are equal, at other ranks.
    assert len([line for line in lines if line.split()[0].rstrip(":").isdigit()]) == 2
    assert any(re.search(r" and 2 equal .* \d … \d ", line) for line in lines), lines


def test_advice_is_what_the_changed_scenario_gains(folder):
    """The gains that are told, against the same scenario with these keys changed."""
    found = ap.explain(folder / "results/demo", "topology=ring,size=1 MiB,time=2 us")
    kinds = "twice the bandwidth of all links|half the latency of all links|compute twice as fast on all ranks"
    said = dict(re.findall(rf"({kinds})(?: would save)? ([\d.]+) %", found.advice))
    assert len(said) == 3 and found.advice.endswith("(simulated)") and str(found).endswith(found.advice)
    keys = {
        "twice the bandwidth of all links": {"topologies.ring.bandwidth": "100 GB/s"},
        "half the latency of all links": {"topologies.ring.latency": "250 ns"},
        "compute twice as fast on all ranks": {"sweep.time": ["1 us"]},
    }
    for change, overrides in keys.items():
        only = {"sweep.topology": ["ring"], "sweep.size": ["1 MiB"], "sweep.time": ["2 us"]}
        result = ap.run(folder / "demo.yaml", out=folder / "other", overrides=only | overrides)
        gain = 1 - result.rows[0]["time_ns"] * 1000 / found.makespan
        assert float(said[change]) == pytest.approx(100 * float(gain), abs=0.5), change


def test_one_slow_link_is_named_rather_than_all(folder):
    slow = [{"from": 1, "to": 2, "bandwidth": "5 GB/s"}]
    topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns", links=slow)
    found = ap.explain(ap.collective("all_reduce", "64 MiB", topology, algorithm="ring"))
    assert re.match(r"twice the bandwidth of 1->2 would save (49|50) %", found.advice)


def test_advice_on_random_problems_is_never_false():
    """Whatever is told to save time does, by simulating it; what is said to save nothing does not."""
    tried = 0
    for seed in range(30):
        problem = world(seed)
        try:
            records = simulate(problem, level="messages", engine="simpy")
        except AstraError:
            continue
        if records.outcome.status != "done" or not records.makespan:
            continue
        found = explain(records)
        text = advice(problem, found, 0)
        gains = {}
        for change in changes(problem, found):
            try:
                again = simulate(change.problem, level="summary", engine="simpy")
            except AstraError:
                continue
            gains[change.what] = 1 - again.makespan / records.makespan if again.outcome.status == "done" else -1
        for what, gain in gains.items():
            share = re.search(rf"{re.escape(what)}(?: would save)? ([\d.]+) %", text)
            if share:
                tried += 1
                assert float(share[1]) == pytest.approx(100 * gain, abs=0.6), (seed, what)
        if "less than 1 %" in text:
            assert all(gain < 0.012 for gain in gains.values()), seed
    assert tried > 5


def test_a_topology_with_more_bandwidth_keeps_everything_else():
    topology = world(3).topology
    links = np.arange(topology.links) % 2 == 0
    faster = with_twice_the_bandwidth(topology, links)
    rates = [[t.bandwidths[code] for code in t.bandwidth_class.tolist()] for t in (topology, faster)]
    assert [b / a for a, b in zip(*rates, strict=True)] == [Fraction(2 if twice else 1) for twice in links]
    back = replace(faster, bandwidths=topology.bandwidths, bandwidth_class=topology.bandwidth_class)
    assert back.digest() == topology.digest()


def test_the_kind_of_link_that_is_short_is_named_wherever_the_path_is_longest():
    """Hosts' links carry every byte of the path, but the oversubscribed uplinks decide."""
    keys = {"leaves": 2, "hosts_per_leaf": 4, "spines": 2, "oversubscription": 4}
    topology = ap.build_topology(shape="leaf_spine", bandwidth="50 GB/s", latency="500 ns", **keys)
    found = ap.explain(ap.collective("all_to_all", "64 MiB", topology))
    assert re.match(r"twice the bandwidth of (leaf\d->spine\d|spine\d->leaf\d) and the 7 links like it", found.advice)
