"""Custom collectives: only an algorithm, and a contract where one is given, says what they do."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from worlds.bounds import problem_bound

import astrasim_py as ap
from astrasim_py.builders.draft import NONE, Draft, finish
from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import CommType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError
from astrasim_py.core.notes import Notes
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan

SIZE = 2**20
TEXT = (
    "name: demo\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
    "workload: [{custom: {size: 1 MiB, name: shift}}, {custom: {size: 1 MiB, after: shift}}]\n"
)
INJECTED = TEXT + "algorithms: {custom: {file: shift}}\n"
PROMISED = TEXT + "algorithms: {custom: {file: shift, contract: shift.yaml}}\n"
CONTRACT = 'ranks: 4\nchunks: 2\noutputs:\n  1: {0: "0:0", 1: "0:1"}\n  2: {0: "1:0", 1: "1:1"}\n  3: {0: "2:0"}\n'


def shift(collective="custom", wrong=False):
    """Every rank but the last hands its input to the next one; where it is wrong, rank 1 what it has received."""
    draft = Draft(4, 2)
    for rank in range(4):
        got = NONE
        if rank:
            got = draft.recv(rank=[rank], peer=rank - 1, tag=0, idx=0, cnt=2, dst=(Buffer.OUTPUT, 0))
        if rank < 3:
            cells, after = ((Buffer.OUTPUT, 0), got) if wrong and rank == 1 else ((Buffer.INPUT, 0), NONE)
            draft.send(rank=[rank], peer=rank + 1, tag=0, idx=0, cnt=2, src=cells, after=(after,))
    return finish(draft, "shift", collective, in_place=False)


def points(folder, text, algorithm=None):
    write_prefix(folder / "shift", algorithm_traces(algorithm or shift()))
    (folder / "shift.yaml").write_text(CONTRACT, "utf-8")
    (folder / "s.yaml").write_text(text, "utf-8")
    return expand(load_scenario(folder / "s.yaml"))


def test_a_custom_collective_runs_as_its_algorithm_says(tmp_path):
    plan = make_plan(prepare(points(tmp_path, INJECTED)[0]).problem)
    records = simulate(plan.problem)
    assert [(i.type, i.size) for i in plan.instances] == [("custom", SIZE)] * 2
    assert records.messages == 6
    # The shifts of all ranks overlap: each takes one message.
    assert records.makespan == 2 * (500_000 + SIZE * 20)
    assert {int(t.column("comm_type")[0]) for t in plan.problem.jobs[0].workload.traces} == {CommType.CUSTOM}


def test_its_number_lies_outside_the_range_of_chakra():
    from astrasim_py.chakra import et_def_pb2

    assert int(CommType.CUSTOM) not in et_def_pb2.CollectiveCommType.values()


def test_without_a_contract_nothing_can_be_promised(tmp_path):
    prepared = prepare(points(tmp_path, INJECTED)[0])
    problem = prepared.problem
    warnings = prepared.notes_with(make_plan(problem)).warnings
    assert problem.jobs[0].algorithms.select("custom", SIZE, 4, "world").verdict is None
    assert len(warnings) == 1 and "custom" in warnings[0]


def test_what_only_a_call_finds_out_is_said_when_it_is_simulated(tmp_path):
    point = points(tmp_path, INJECTED)[0]
    assert prepare(point).notes == Notes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = ap.prepare(point)
    with pytest.warns(UserWarning, match="custom, 4 ranks.* could not be verified"):
        ap.simulate(problem)


def test_a_contract_decides_what_is_right(tmp_path):
    problem = prepare(points(tmp_path, PROMISED)[0]).problem
    make_plan(problem)
    assert problem.jobs[0].algorithms.select("custom", SIZE, 4, "world").verdict is True
    with pytest.raises(AlgorithmError) as caught:
        make_plan(prepare(points(tmp_path, PROMISED, shift(wrong=True))[0]).problem)
    assert caught.value.exit_code == 3
    assert "s.yaml:4:22: algorithms.custom" in str(caught.value)
    assert "rank 2 chunk 0 lacks contribution of rank 1" in str(caught.value)


def test_a_contract_is_an_input_of_the_point(tmp_path):
    point = points(tmp_path, PROMISED)[0]
    before = input_digests(point)
    assert "shift.yaml" in before
    (tmp_path / "shift.yaml").write_text(CONTRACT + "# \n", "utf-8")
    assert input_digests(point) != before


def test_a_bound_follows_from_the_contract_and_no_bus_bandwidth_is_claimed(tmp_path):
    text = PROMISED.replace(", {custom: {size: 1 MiB, after: shift}}", "")
    points(tmp_path, text)
    row = run_scenario(load_scenario(tmp_path / "s.yaml"), out=tmp_path / "out", jobs=1).rows[0]
    assert row["status"] == "done" and row["algbw_GBps"] is not None and row["busbw_GBps"] is None
    assert 0 < row["bound_ns"] <= row["time_ns"]
    # An algorithm that nobody has verified may do less.
    (unknown,) = expand(load_scenario(tmp_path / "s.yaml", ["verify=false"]))
    assert problem_bound(make_plan(prepare(unknown).problem)) is None
    (table,) = (tmp_path / "out" / "demo").glob("collectives.csv")
    assert "custom" in table.read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, "s.yaml:3:21: workload[0].custom: a custom collective needs an algorithm"),
        (TEXT + "algorithms: {custom: ring}\n", "ring has no custom; write file: FILE, or python: FILE.py:FUNCTION"),
        (TEXT + "algorithms: {custom: rign}\n", '"rign" is not a builder; did you mean "ring"?'),
        (PROMISED.replace("shift.yaml", "../c.yaml"), "leads out of the folder of the scenario"),
        (
            "name: d\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 0 ns}}\n"
            "jobs: {a: {workload: [{custom: {size: 1 MiB}}], placement: [0, 1]}}\n",
            "a custom collective needs an algorithm",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(tmp_path, text, expected):
    with pytest.raises(AstraError) as caught:
        points(tmp_path, text)
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_trace_with_a_custom_collective_needs_an_algorithm_too(tmp_path):
    point = points(tmp_path, INJECTED)[0]
    write_prefix(tmp_path / "wl", prepare(point).problem.jobs[0].workload.traces)
    text = TEXT[: TEXT.index("workload")] + "workload: {trace: wl}\n"
    with pytest.raises(AlgorithmError, match=r"algorithms\.custom: a custom collective needs an algorithm"):
        make_plan(prepare(points(tmp_path, text)[0]).problem)
    made = make_plan(prepare(points(tmp_path, text + "algorithms: {custom: {file: shift}}\n")[0]).problem)
    assert made.messages == 6


def test_a_custom_file_serves_the_collective_that_the_caller_names(tmp_path):
    tree = build("binomial_tree", "broadcast", 4)
    nameless = replace(tree, collective="custom", root=None)
    text = TEXT[: TEXT.index("workload")] + (
        "workload: [{broadcast: {size: 1 MiB, root: ROOT}}]\n"
        "algorithms: {broadcast: {file: shift, root: ROOT}}\n"
    )  # fmt: skip
    problem = prepare(points(tmp_path, text.replace("ROOT", "0"), nameless)[0]).problem
    make_plan(problem)
    found = problem.jobs[0].algorithms.select("broadcast", SIZE, 4, "world", 0)
    assert (found.collective, found.root, found.verdict) == ("broadcast", 0, True)
    with pytest.raises(AlgorithmError, match="is wrong"):
        make_plan(prepare(points(tmp_path, text.replace("ROOT", "1"), nameless)[0]).problem)


def test_a_file_of_another_collective_is_refused(tmp_path):
    with pytest.raises(AlgorithmError, match="is made for all_reduce, not for custom"):
        make_plan(prepare(points(tmp_path, INJECTED, build("ring", "all_reduce", 4))[0]).problem)


def test_from_python(tmp_path):
    ring = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    records = ap.simulate(ap.collective("custom", SIZE, ring, algorithm=shift()))
    assert records.makespan == 500_000 + SIZE * 20
    assert records.collective["type"].tolist() == ["custom"]
    with pytest.raises(AlgorithmError, match="a custom collective needs an algorithm"):
        ap.simulate(ap.collective("custom", SIZE, ring))
    with pytest.raises(AstraError, match="has no custom"):
        ap.simulate(ap.collective("custom", SIZE, ring, algorithm="ring"))


def test_a_contract_that_is_not_there_is_an_error_with_its_place(tmp_path):
    point = points(tmp_path, PROMISED.replace("shift.yaml", "none.yaml"))[0]
    with pytest.raises((AlgorithmError, ScenarioError, AstraError), match=r"none\.yaml"):
        make_plan(prepare(point).problem)


def xml(folder, algorithm, name="shift.xml"):
    ap.write_algorithm(folder / name, algorithm)
    return (folder / name).read_text("utf-8")


def test_xml_that_calls_itself_custom_is_held_to_the_contract(tmp_path):
    assert 'coll="custom"' in xml(tmp_path, shift())
    text = PROMISED.replace("file: shift,", "file: shift.xml,")
    problem = prepare(points(tmp_path, text)[0]).problem
    plan = make_plan(problem)
    assert problem.jobs[0].algorithms.select("custom", SIZE, 4, "world").verdict is True
    assert simulate(plan.problem).makespan == 2 * (500_000 + SIZE * 20)
    xml(tmp_path, shift(wrong=True))
    with pytest.raises(AlgorithmError, match="rank 2 chunk 0 lacks contribution of rank 1"):
        make_plan(prepare(points(tmp_path, text)[0]).problem)


def test_xml_of_a_rooted_collective_serves_what_the_caller_names(tmp_path):
    tree = build("binomial_tree", "broadcast", 4, root=2)
    written = xml(tmp_path, replace(tree, collective="custom", root=None, name="tree"), "tree.xml")
    assert 'coll="custom"' in written and "root" not in written
    text = TEXT[: TEXT.index("workload")] + (
        "workload: [{broadcast: {size: 1 MiB, root: 2}}]\n"
        "algorithms: {broadcast: {file: tree.xml, root: ROOT}}\n"
    )  # fmt: skip
    problem = prepare(points(tmp_path, text.replace("ROOT", "2"))[0]).problem
    make_plan(problem)
    found = problem.jobs[0].algorithms.select("broadcast", SIZE, 4, "world", 2)
    assert (found.collective, found.root, found.verdict) == ("broadcast", 2, True)
    with pytest.raises(AlgorithmError, match="has root 1, and the workload asks for 2"):
        make_plan(prepare(points(tmp_path, text.replace("ROOT", "1"))[0]).problem)
