"""Jobs over time: arrival, iterations, and the table of jobs."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AstraError, TraceError
from astrasim_py.engine.simulation import simulate
from astrasim_py.inspection.explained import explain_folder
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.explain import explanation_text
from astrasim_py.results.stored_points import read_point
from astrasim_py.results.values import ns_number
from astrasim_py.runs.figures import panel
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.workload.iterations import iterate

MS = 10**9
#: Two hosts on each of two leaves, one uplink of 50 GB/s.
FABRIC = (
    "{shape: leaf_spine, leaves: 2, hosts_per_leaf: 2, spines: 1, bandwidth: 50 GB/s, latency: 0 ns, "
    "oversubscription: 2}"
)


def step(ms: int = 10) -> str:
    """So many ms of compute, then of the uplink: a ring of two sends 500 MB each way."""
    return f"[{{compute: {{time: {ms} ms}}}}, {{all_reduce: {{size: 500 MB}}}}]"


def two_jobs(folder, chunks: int = 1, shift: str = "0 ms", more: str = "", top: str = "", k: int = 6):
    """A scenario of two equal jobs, of which the second one arrives later."""
    path = folder / "jobs.yaml"
    path.write_text(
        f"name: jobs\ntopologies: {{net: {FABRIC}}}\nalgorithms: {{all_reduce: {{builder: ring, chunks: {chunks}}}}}\n"
        f"{top}\njobs:\n"
        f"  a: {{placement: [0, 2], iterations: {k}, workload: {step()}}}\n"
        f"  b: {{placement: [1, 3], iterations: {k}, arrival: {shift}, {more} workload: {step()}}}\n"
    )
    return path


def problem_of(path):
    return prepare(expand(load_scenario(path))[0]).problem


@pytest.mark.parametrize(("chunks", "makespan"), [(1, 135_000), (16, 175_312), (100, 179_250)])
def test_two_equal_jobs_on_one_uplink_by_chunks(tmp_path, chunks, makespan):
    records = simulate(problem_of(two_jobs(tmp_path, chunks)), engine="both", level="summary")
    assert records.makespan // 10**6 == makespan


@pytest.mark.parametrize(("shift", "second"), [(0, 30), (10, 20)])
def test_the_table_of_jobs(tmp_path, shift, second):
    path = two_jobs(tmp_path, 1, f"{shift} ms")
    result = ap.run(path, out=tmp_path / "out", engine="both", jobs=1)
    a, b = result.summaries[0]["jobs"]
    if shift:
        assert a["time_ns"] == b["time_ns"] == 120 * 10**6
        assert a["iterations_per_s"] == b["iterations_per_s"] == 50
    assert b["arrival_ns"] == shift * 10**6 and b["finish_ns"] == b["arrival_ns"] + b["time_ns"]
    assert a["iterations"] == b["iterations"] == 6
    assert b["iteration_p50_ns"] == 20 * 10**6 and b["iteration_p99_ns"] == second * 10**6
    assert b["iteration_mean_ns"] * 6 == b["time_ns"]
    with open(tmp_path / "out" / "jobs" / "jobs.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == ["a", "b"] and int(rows[1]["time_ns"]) == b["time_ns"]


def test_iterations_are_the_items_as_often(tmp_path):
    one = problem_of(two_jobs(tmp_path, 16, "3 ms", k=4))
    path = two_jobs(tmp_path, 16, "3 ms", k=1)
    path.write_text(path.read_text().replace(step(), "[" + ", ".join([step()[1:-1]] * 4) + "]"))
    other = simulate(problem_of(path), engine="compiled", level="messages")
    records = simulate(one, engine="compiled", level="messages")
    assert np.array_equal(records.finish, other.finish)
    for name in ("start", "end"):
        assert np.array_equal(np.sort(records.node[name]), np.sort(other.node[name]))


def test_an_iteration_begins_when_its_rank_is_done_with_the_one_before():
    # 3 and 5 wait for 2; 3 and 4 end the trace, 2 and 4 begin it.
    columns = {
        "node_id": [2, 3, 4, 5],
        "type": 4,
        "data_deps": Csr([0, 0, 1, 1, 2], [2, 2]),
    }
    columns["payload"] = [5, *[-(2**63)] * 3]
    workload = Workload((ExecutionTrace.from_columns(**columns),) * 2)
    made = iterate(workload, 3)
    assert made.traces[0] is made.traces[1]
    trace = made.traces[0]
    assert trace.node_id.tolist() == [2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17]
    assert trace.data_deps.lists()[4:8] == [(3, 4, 5), (8,), (3, 4, 5), (8,)]
    assert trace.data_deps.lists()[8] == (9, 10, 11)
    assert trace.column("payload")[[0, 4, 8]].tolist() == [5, 11, 17]
    assert iterate(workload, 1) is workload
    with pytest.raises(TraceError, match="write fewer iterations"):
        iterate(workload, 2**23)


def test_stragglers_start_after_the_arrival(tmp_path):
    problem = problem_of(two_jobs(tmp_path, 1, "5 ms", "stragglers: {start_delay: {1: 1 ms}},"))
    assert problem.jobs[1].start_delay_ps == {0: 5 * MS, 1: 6 * MS}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("iterations: 0,", r"jobs.b.iterations: 0 is less than 1; write a whole number"),
        ("iterations: [2],", r"jobs.b.iterations"),
        ("arrival: soon,", r'jobs.b.arrival: "soon" is not a time; write e.g. "500 ns"'),
        ("arrival: -1 ns,", r"jobs.b.arrival"),
        ("repetitions: 3,", r"jobs.b.repetitions: .*is not a key here"),
        ("algorithms: {all_reduce: [{when: {node: 1}, builder: ring}, ring]},", r"jobs.b.iterations: .*by node"),
    ],
)
def test_wrong_keys_of_jobs_are_refused_in_a_line(tmp_path, more, said):
    path = two_jobs(tmp_path, shift="1 ms")
    key = more.split(":")[0]
    text = path.read_text().splitlines()
    text[-1] = text[-1].replace(f"{key}: 6," if key == "iterations" else f"{key}: 1 ms,", "")
    path.write_text("\n".join([*text[:-1], text[-1].replace("{placement: [1, 3],", f"{{placement: [1, 3], {more}")]))
    with pytest.raises(AstraError, match=said) as raised:
        problem_of(path)
    assert len(raised.value.lines()) == 1


def test_slowdown_against_each_job_alone(tmp_path):
    path = two_jobs(tmp_path, 16, "$shift", top="compare: alone\nsweep: {shift: [0 ms, 10 ms]}")
    plots = "[{kind: slowdown, x: shift, series: job}, {kind: time, x: job, where: {job: a}}]"
    path.write_text(f"{path.read_text()}plots: {plots}\n")
    result = ap.run(path, out=tmp_path / "out", jobs=1)
    together, apart = (summary["jobs"] for summary in result.summaries)
    assert {row["alone_ns"] for row in (*together, *apart)} == {120 * 10**6}
    assert [row["slowdown"] for row in apart] == [1, 1]
    for row in together:
        assert float(row["slowdown"]) == pytest.approx(row["time_ns"] / row["alone_ns"], rel=1e-8)
        assert 1.4 < row["slowdown"] < 1.5
    # One run alone of a, whose arrival is not swept, and one of b for each of its arrivals.
    assert sorted(p.name[:2] for p in (tmp_path / "out" / "jobs" / "alone").iterdir()) == ["a-", "b-", "b-"]
    assert len(result.figures) == 4 and len(result.rows) == 2
    assert ap.run(path, out=tmp_path / "out", jobs=1).reused == 2


@pytest.mark.parametrize(("shift", "done"), [("0 ms", 5), ("10 ms", 5), ("1 s", 0)])
def test_a_run_does_not_wait_for_jobs_in_the_background(tmp_path, shift, done):
    path = two_jobs(tmp_path, 16, shift, "background: true,", top="compare: alone")
    result = ap.run(path, out=tmp_path / "out", engine="both", jobs=1, timeline=True)
    a, b = result.summaries[0]["jobs"]
    assert result.exit_code == 0 and result.rows[0]["time_ns"] == a["time_ns"]
    assert (b["iterations"], b["finish_ns"], b["time_ns"]) == (done, None, None)
    # The slowdown of the iterations that are done: they take 20 ms each alone.
    last = done and b["iteration_mean_ns"] * done
    assert b["slowdown"] == (pytest.approx(last / (done * 20 * 10**6)) if done else None)
    assert b["alone_ns"] == 120 * 10**6
    assert result.rows[0]["bound_ns"] is None
    (point,) = (tmp_path / "out" / "jobs" / "points").glob("*/")
    explained = explain_folder(point)
    assert sum(explained.explanation.totals.values()) == explained.explanation.makespan == a["time_ns"] * 1000
    assert [path.job for path in explained.explanation.jobs] == ["a", "b"]
    # What the foreground does is the same where the other one is waited for, too.
    waited = problem_of(two_jobs(tmp_path, 16, shift))
    assert ns_number(simulate(waited, engine="compiled", level="summary").finish[:2].max()) == a["finish_ns"]


def test_a_run_of_jobs_in_the_background_alone_is_refused(tmp_path):
    path = two_jobs(tmp_path, more="background: true,")
    path.write_text(path.read_text().replace("a: {", "a: {background: true, "))
    with pytest.raises(AstraError, match="jobs: all jobs are in the background"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ("compare: both", "compare: .*alone"),
        ("plots: [{kind: slowdown, series: job}]", "a slowdown needs a baseline; .*compare: alone"),
        ("plots: [{kind: time, y: iteration_mean}]", "y: is known of jobs alone; write series: job"),
        ("plots: [{kind: time, series: job, where: {job: c}}]", '"c" is not a value of job; write one of a, b'),
        ("plots: [{kind: slowdown, series: job, baseline: c}]", '"c" is not a value of job; write one of a, b'),
        ("plots: [{kind: time, x: jbo, series: job}]", '"jbo" is not swept'),
        ("plots: [{kind: busbw, series: job}]", "busbw is not known by job; write one of the kinds time, slowdown"),
    ],
)
def test_wrong_comparisons_of_jobs_are_refused(tmp_path, top, said):
    with pytest.raises(AstraError, match=said):
        load_scenario(two_jobs(tmp_path, top=top))


def test_a_comparison_without_jobs_is_refused(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(f"name: s\ntopologies: {{net: {FABRIC}}}\nworkload: [barrier]\ncompare: alone\n")
    with pytest.raises(AstraError, match="compare: compares jobs, and there are none; drop it, or write jobs"):
        load_scenario(path)


def stored(folder):
    """The folder of the only point of the results."""
    (point,) = (folder / "points").glob("*/")
    return point


@pytest.mark.parametrize(("model", "shared"), [("fluid", 120), ("cut_through", 0)])
def test_the_path_of_each_job_and_who_shares_its_links(tmp_path, model, shared):
    """Alone, a job computes and sends for 60 ms each; beside the other one it sends for 120 ms over shared links."""
    path = two_jobs(tmp_path, top=f"network: {{model: {model}}}", shift="0 ms" if shared else "10 ms")
    ap.run(path, out=tmp_path / "out", jobs=1, level="messages")
    explained = explain_folder(stored(tmp_path / "out" / "jobs"))
    for job, other, path in zip("ab", "ba", explained.explanation.jobs, strict=True):
        assert (path.job, path.time, path.totals["compute"]) == (job, (60 + (shared or 60)) * MS, 60 * MS)
        assert sum(path.totals.values()) == path.time
        assert path.shared == (((other, "leaf0->spine0", shared * MS),) if shared else ())
    assert explained.explanation.links[0]["jobs"] == {"a": 3 * 10**9, "b": 3 * 10**9}
    text = explanation_text(explained.explanation)
    assert ("with b on leaf0->spine0 for 120 ms" in text) == bool(shared)
    assert "0: a, all_reduce" in text and "a 50.0 %, b 50.0 %" in text


def test_timelines_and_figures_mark_jobs(tmp_path):
    plots = "[{kind: time, series: job, y: iteration_p99}, {kind: time, series: job, y: iteration_mean}, {kind: links}]"
    result = ap.run(
        two_jobs(tmp_path, top=f"plots: {plots}", shift="5 ms"), out=tmp_path / "out", jobs=1, timeline=True
    )
    assert len(result.figures) == 6
    point = read_point(stored(tmp_path / "out" / "jobs"))
    shown = panel(point, "links")
    assert {shown.npu_of[rank]: job for rank, job in shown.jobs.items()} == {0: "a", 2: "a", 1: "b", 3: "b"}
    events = json.loads((point.folder / "timeline.json").read_text())["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes[:4] == ["a: rank 0", "a: rank 1 (NPU 2)", "b: rank 2 (NPU 1)", "b: rank 3"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 4}
    calls = [(lanes[e["tid"]], e["ts"]) for e in events if e["pid"] == 4 and e["ph"] == "X"]
    assert [min(ts for job, ts in calls if job == name) for name in "ab"] == [10_000, 15_000]
    assert {e["args"]["job"] for e in events if e.get("cat") == "link"} == {"a", "b"}


def test_a_stuck_run_names_the_job(tmp_path):
    path = two_jobs(tmp_path, top="", k=1)
    send = ExecutionTrace.from_columns(node_id=[0], type=5, comm_dst=[1], comm_size=[64], comm_tag=[5])
    recv = ExecutionTrace.from_columns(node_id=[0], type=6, comm_src=[0], comm_size=[64], comm_tag=[6])
    write_prefix(tmp_path / "bad", [send, recv])
    text = path.read_text().splitlines()
    text[-1] = text[-1].replace(step(), "{trace: bad}")
    path.write_text("\n".join(text))
    for engine in ("simpy", "compiled"):
        (failure,) = ap.run(path, out=tmp_path / engine, jobs=1, engine=engine).failures
        assert failure.lines[0].endswith("messages that nobody sends; in job b")
        assert failure.lines[1].split()[:3] == ["job", "rank", "node"] and failure.lines[2].split()[:3] == [
            "b",
            "2",
            "0",
        ]


@pytest.mark.parametrize(("order", "first"), [("linear", (0, 1)), ("{random: 3}", None), ("[3, 1, 0, 2]", (3, 1))])
def test_jobs_take_the_next_npus_of_the_placement(tmp_path, order, first):
    path = two_jobs(tmp_path, top=f"placement: {order}\ncompare: alone", k=2)
    path.write_text(path.read_text().replace("placement: [0, 2]", "ranks: 2").replace("placement: [1, 3]", "ranks: 2"))
    a, b = (job.placement for job in problem_of(path).jobs)
    assert sorted((*a, *b)) == [0, 1, 2, 3] and a == (first or a)
    # Alone, a job stays where it is.
    ap.run(path, out=tmp_path / "out", jobs=1)
    for point in (tmp_path / "out" / "jobs" / "alone").iterdir():
        assert read_point(point).summary.npu_of == tuple({"a": a, "b": b}[point.name[0]])


def test_jobs_of_traces_take_as_many_npus_as_they_have_ranks(tmp_path):
    path = two_jobs(tmp_path, k=1)
    write_prefix(tmp_path / "two", [ExecutionTrace.from_columns(node_id=[0], type=[4], num_ops=[1])] * 2)
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:-1], "  b: {workload: {trace: two}}"]))
    assert problem_of(path).jobs[1].placement == (1, 3)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("workload: [barrier]", "jobs.b: has neither ranks nor placement; write e.g. ranks: 8"),
        ("ranks: 3, workload: [barrier]", "jobs.b.ranks: 3 ranks are more than the 2 NPUs that other jobs leave"),
        ("ranks: 3, placement: [1, 3], workload: [barrier]", "jobs.b.ranks: 2 NPUs are listed for 3 ranks"),
        ("ranks: 0, workload: [barrier]", "jobs.b.ranks: 0"),
        ("placement: {random: 1}, workload: [barrier]", "jobs.b.placement"),
        ("ranks: 2, workload: [barrier]}\nplacement: {random: -1", "placement.random: -1 is less than 0"),
    ],
)
def test_wrong_places_of_jobs_are_refused_in_a_line(tmp_path, job, said):
    path = two_jobs(tmp_path, k=1)
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], f"  b: {{{job}}}"]))
    with pytest.raises(AstraError, match=said) as raised:
        problem_of(path)
    assert len(raised.value.lines()) == 1
