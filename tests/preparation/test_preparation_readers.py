"""``workload: {reader: NAME, …}``: readers of traces, ours and those of other packages, named from a scenario."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.core import registry
from astrasim_py.core.errors import AstraError
from astrasim_py.core.fields import FileText
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.task import make_task
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.workload.trace_readers import Conversion

SCENARIO = """\
name: logs
topology: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}
workload: WORKLOAD
"""
TEXT = "DATA\n1\nlayer -1 100 NONE 0 100 NONE 0 100 ALLREDUCE 4096 10\n"


def arguments(parser):
    parser.add_argument("files", nargs="+", type=FileText)
    parser.add_argument("--us-per-line", type=int, required=True)
    parser.add_argument("--order", choices=("up", "down"), default="up")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--name", action="append", default=[])
    parser.add_argument("--doubtful", action="store_true")


def read(args, say):
    say("reading")
    lines = sum(len(Path(file).read_text().splitlines()) for file in args.files) * (2 if args.twice else 1)
    durations = [args.us_per_line * (line + 1) for line in range(lines)]
    trace = ExecutionTrace.from_columns(
        node_id=range(lines),
        type=NodeType.COMP,
        duration_micros=durations if args.order == "up" else durations[::-1],
        names=[*args.name, *map(str, range(lines))][:lines],
    )
    problems = ["a clock jumps", "it is short"] if args.doubtful else []
    return Conversion(ap.Workload((trace,) * 2), {}, [], problems, ["one line is odd"])


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a scenario beside two logs; another package provides their reader."""
    module = ModuleType("logs")
    module.arguments, module.read = arguments, read
    monkeypatch.setitem(sys.modules, "logs", module)
    entry = EntryPoint("trace_reader.log", "logs", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._table.cache_clear()
    (tmp_path / "a.log").write_text("1\n2\n")
    (tmp_path / "b.log").write_text("3\n")
    (tmp_path / "mlp.txt").write_text(TEXT)

    def scenario(workload: str):
        path = tmp_path / "s.yaml"
        path.write_text(SCENARIO.replace("WORKLOAD", workload))
        return path

    yield scenario
    registry._table.cache_clear()


def prepared(path, notes=None):
    (point,) = expand(load_scenario(path))
    preparation = prepare(point)
    (notes if notes is not None else []).extend(preparation.notes.warnings)
    return preparation.problem


def test_options_are_keys(write):
    notes: list[str] = []
    workload = "{reader: log, files: [a.log, b.log], us_per_line: 7, order: down, twice: true, name: [first, second]}"
    (job,) = prepared(write(workload), notes).jobs
    assert job.workload.traces[0].duration_micros.tolist() == [42, 35, 28, 21, 14, 7]
    assert list(job.workload.traces[0].names)[:3] == ["first", "second", "0"]
    assert "logs: a.log: one line is odd" in notes
    (job,) = prepared(write("{reader: log, files: b.log, us_per_line: 7, twice: false}")).jobs
    assert job.workload.traces[0].duration_micros.tolist() == [7]


def test_our_readers_make_what_trace_convert_writes(write, tmp_path):
    text = tmp_path / "mlp.txt"
    assert main(["trace", "convert", "astra_sim_text", str(tmp_path / "mlp"), "--input", str(text), "--dims", "2"]) == 0
    by_file = ap.simulate(prepared(write("{trace: mlp, groups: mlp.groups.json}"))).makespan
    by_reader = prepared(write('{reader: astra_sim_text, input: mlp.txt, dims: "2"}'))
    assert ap.simulate(by_reader).makespan == by_file > 0


def test_a_change_of_a_file_makes_another_point(write, tmp_path):
    (point,) = expand(load_scenario(write("{reader: log, files: [a.log, b.log], us_per_line: 7}")))
    before = make_task(point, tmp_path, RunOptions()).identity
    assert make_task(point, tmp_path, RunOptions()).identity == before
    (tmp_path / "b.log").write_text("3\n4\n")
    assert make_task(point, tmp_path, RunOptions()).identity != before


def test_what_is_not_to_be_trusted_runs_only_if_it_is_asked_for(write):
    doubtful = "{reader: log, files: a.log, us_per_line: 7, doubtful: true%s}"
    with pytest.raises(AstraError, match=r"s.yaml:3:\d+: workload: a clock jumps, and 1 more; .*partial: true"):
        prepared(write(doubtful % ""))
    notes: list[str] = []
    prepared(write(doubtful % ", partial: true"), notes)
    assert [note for note in notes if "a.log: a clock jumps" in note]


@pytest.mark.parametrize(
    ("workload", "place", "problem"),
    [
        ("{reader: lok, files: a.log}", "workload.reader", 'there is no reader "lok"; did you mean "log"?'),
        ("{reader: log, fils: a.log, us_per_line: 7}", "workload.fils", 'is not a key here; did you mean "files"?'),
        ("{reader: log, files: a.log}", "workload", "the following arguments are required: us-per-line"),
        ("{reader: log, files: a.log, us_per_line: x}", "workload.us_per_line", "invalid int value: 'x'"),
        ("{reader: log, files: a.log, us_per_line: 7, order: no}", "workload.order", "invalid choice: 'no'"),
        ("{reader: log, files: a.log, us_per_line: 7, twice: 1}", "workload.twice", "1 is not true or false"),
        ("{reader: log, files: ../x.log, us_per_line: 7}", "workload.files", "leads out of the folder"),
        ("{reader: log, files: a.log, us_per_line: [7, 8]}", "workload.us_per_line", "takes one value"),
        ("{reader: log, files: a.log, us_per_line: {a: 1}}", "workload.us_per_line", "is not a value here"),
        ("{reader: log, files: a.log, us_per_line: }", "workload.us_per_line", "is not a value here"),
        ("{reader: 3}", "workload.reader", "3 is not text"),
    ],
)
def test_mistakes_are_told_at_their_place(write, capsys, workload, place, problem):
    assert main(["check", str(write(workload))]) == 2
    error = capsys.readouterr().err
    assert f": {place}: " in error and problem in error and len(error.splitlines()) == 1


def test_errors_of_a_reader_name_its_option(write):
    with pytest.raises(AstraError, match=r"s.yaml:3:\d+: workload: dims: \"2y\" is not NPUs of each dimension"):
        prepared(write('{reader: astra_sim_text, input: mlp.txt, dims: "2y"}'))
    path = write("{reader: log, files: a.log, us_per_line: 7}\nranks: 3")
    with pytest.raises(AstraError, match="is of 2 ranks, not 3; drop `ranks`"):
        prepared(path)
