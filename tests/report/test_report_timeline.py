"""The timeline is valid Chrome trace JSON, exact, and no lane holds two things at once."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import small_problems

from astrasim_py.chakra.workload import Workload
from astrasim_py.engine.simulation import simulate
from astrasim_py.report import timeline as module
from astrasim_py.report.intervals import lanes
from astrasim_py.report.timeline import timeline
from astrasim_py.runs.summary import edge_table
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.workload.items import Collective, Compute
from astrasim_py.workload.microbenchmarks import generate


def load(path: Path):
    """A helper module beside the tests, under a name of its own."""
    name = f"tests_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return sys.modules[name]


@st.composite
def records(draw, level="messages"):
    problem = draw(small_problems.problems())
    return problem, simulate(problem, level=level)


def events_of(found, edges=None, npus=()) -> list[dict]:
    data = b"".join(timeline(found, edges, npus))
    document = json.loads(data, parse_float=Decimal, parse_int=Decimal)
    assert document["displayTimeUnit"] == "ns"
    assert document["otherData"] == {"engine": found.engine}
    return document["traceEvents"]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=30)
@given(records())
def test_events_follow_the_format(found):
    problem, run = found
    edges = edge_table(problem.topology, run.link["link"])
    events = events_of(run, edges, problem.jobs[0].placement)
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    lanes_used: dict[tuple, list] = {}
    flows: dict[tuple, dict] = {}
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f")
        if event["ph"] == "X":
            assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
            assert event["dur"] >= 0 and event["ts"] >= 0
            assert (event["pid"], event["tid"]) in named
            lanes_used.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"], event["ph"]] = event
            assert event["ph"] == "s" or event["bp"] == "e"
    for spans in lanes_used.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "two things at once in one lane"
    starts = {number for number, phase in flows if phase == "s"}
    assert starts == {number for number, phase in flows if phase == "f"}
    for number in starts:
        begin, end = flows[number, "s"], flows[number, "f"]
        assert begin["ts"] <= end["ts"]
        for flow in (begin, end):
            around = lanes_used[flow["pid"], flow["tid"]]
            assert any(a <= flow["ts"] <= b for a, b in around)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=20)
@given(records())
def test_times_are_those_of_the_records(found):
    _, run = found
    events = [e for e in events_of(run) if e["ph"] == "X"]
    ranks = len(run.finish)
    drawn = sorted((int(e["pid"]), int(e["ts"] * 10**6), int((e["ts"] + e["dur"]) * 10**6)) for e in events)
    node = run.node
    kept = (node["end"] >= 0) & (node["kind"] != "metadata")
    expected = list(
        zip(node["rank"][kept].tolist(), node["start"][kept].tolist(), node["end"][kept].tolist(), strict=True)
    )
    c, hop = run.collective, run.hop
    expected += [(ranks, s, e) for s, e in zip(c["start"].tolist(), c["end"].tolist(), strict=True) if min(s, e) >= 0]
    expected += [(ranks + 1, s, e) for s, e in zip(hop["start"].tolist(), hop["end"].tolist(), strict=True)]
    assert drawn == sorted(expected)


@pytest.mark.parametrize(
    ("ps", "text"), [(0, "0"), (1, "0.000001"), (10**6, "1"), (1_500_000, "1.5"), (2**63 - 1, "9223372036854.775807")]
)
def test_microseconds_are_exact(ps, text):
    assert module._us(ps) == text
    assert Decimal(text) * 10**6 == ps


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_lanes_are_as_few_as_can_be(spans):
    start, end = [a for a, _ in spans], [a + d for a, d in spans]
    nothing = np.zeros(len(spans), dtype=np.int64)
    where = lanes(nothing, np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)).tolist()
    for lane in set(where):
        mine = sorted((start[i], end[i]) for i in range(len(spans)) if where[i] == lane)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))
    deepest = max((sum(s <= t < e for s, e in zip(start, end, strict=True)) for t in range(30)), default=0)
    empty = sum(s == e for s, e in zip(start, end, strict=True))
    assert len(set(where)) <= max(deepest + (empty > 0), 1 if spans else 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 6)), max_size=24))
def test_lanes_of_a_group_are_those_that_it_has_alone(spans):
    group, start, length = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    where = lanes(group, start, start + length)
    for one in set(group.tolist()):
        mine = group == one
        assert (where[mine] == lanes(group[mine] - one, start[mine], (start + length)[mine])).all()


def test_it_is_written_piece_by_piece(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 3)
    topology = shapes.Ring(npus=3, bandwidth=small_problems.GB, latency=10).build()
    job = Job(
        workload=generate([Collective(type="all_reduce", size=300)], 3),
        placement=(0, 1, 2),
        algorithms=small_problems.Table("ring"),
    )
    problem = Problem(topology=topology, jobs=(job,))
    run = simulate(problem, level="messages")
    pieces = list(timeline(run, None, (0, 2, 1)))
    assert len(pieces) > 20
    names = [e["args"]["name"] for e in json.loads(b"".join(pieces))["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1 (NPU 2)", "rank 2 (NPU 1)", "collectives", "links"]
    nodes = events_of(simulate(problem, level="nodes"))
    assert {e["ph"] for e in nodes} == {"M", "X"}


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=30)
@given(records(), st.integers(0, 2**8 - 1))
def test_of_some_ranks_it_has_what_they_do_and_their_messages(found, mask):
    _, run = found
    ranks = len(run.finish)
    only = [rank for rank in range(ranks) if mask >> rank & 1] or [0]

    def spans(*more) -> list[tuple]:
        data = json.loads(b"".join(timeline(run, None, (), (), (), 1, (), *more)), parse_float=Decimal)
        return sorted(
            (e["pid"], e["name"], e["ts"], e["dur"], str(e["args"])) for e in data["traceEvents"] if e["ph"] == "X"
        )

    def concerns(pid: int, name: str, *_) -> bool:
        ends = [int(end) for end in name.split(" → ")] if pid == ranks + 1 else [pid]
        return pid == ranks or not set(ends).isdisjoint(only)

    assert spans(only) == [span for span in spans() if concerns(*span)]
    assert spans(range(ranks)) == spans()


def test_names_of_the_user_are_encoded():
    names = ['"\n</script>', "→" * 5, "long " * 20_000]
    workload = generate([Compute(time=5)] * len(names), 2)
    workload = Workload(traces=tuple(trace.replace(names=names) for trace in workload.traces))
    job = Job(workload=workload, placement=(0, 1), algorithms=small_problems.Table("ring"))
    run = simulate(
        Problem(topology=shapes.Ring(npus=2, bandwidth=small_problems.GB, latency=10).build(), jobs=(job,)),
        level="nodes",
    )
    assert [e["name"] for e in events_of(run) if e["ph"] == "X"] == names * 2


def test_events_of_links_are_marks():
    job = Job(workload=generate([Compute(time=5)], 2), placement=(0, 1), algorithms=small_problems.Table("ring"))
    topology = shapes.Ring(npus=2, bandwidth=small_problems.GB, latency=10).build()
    run = simulate(Problem(topology=topology, jobs=(job,)), level="nodes")
    data = json.loads(b"".join(timeline(run, marks=[(1_500_000, "0->1 fails")])), parse_float=Decimal)
    (mark,) = (event for event in data["traceEvents"] if event["ph"] == "i")
    assert (mark["name"], mark["ts"], mark["s"]) == ("0->1 fails", Decimal("1.5"), "g")
