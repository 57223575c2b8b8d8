"""Errors in code of the user's own are told with file and line, and never as a defect of this package."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core import registry

TEXT = """
topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [1 MiB, 2 MiB]}
"""
OWN = """
import sys

from astrasim_py.builders.dsl import algorithm
from astrasim_py.builders.registry import build
from astrasim_py.engine.simpy.network import CutThrough, Network


class Wrong(CutThrough):
    def carry(self, message):
        for link in message.hops():
            yield link.request(message)
            message.colour  # line 13


class InAHelper(CutThrough):
    def carry(self, message):
        yield from self.helper(message)

    def helper(self, message):
        yield self.env.timeout(-1)  # line 21


class Quits(CutThrough):
    def carry(self, message):
        sys.exit(3)  # line 26
        yield


class NoProcess(Network):
    def carry(self, message):
        return 5


class NoEvent(Network):
    def carry(self, message):
        yield 5


class InSend(CutThrough):
    def send(self, message):
        {}["send"]  # line 42


class InInit(CutThrough):
    def __init__(self, simulation):
        raise OSError("no file")  # line 47


class Handles(CutThrough):
    def carry(self, message):
        event = self.env.event()
        event.fail(ValueError("mine"))
        try:
            yield event
        except ValueError:
            yield from super().carry(message)


def tree(collective, ranks, **options):
    return build("ring", collective, ranks) / 2  # line 61


def nothing(collective, ranks):
    return None


def star(**keys):
    return [][0]  # line 69


@algorithm("all_reduce")
def program(a):
    a[0][0] += a[1][0].colour  # line 74


from fractions import Fraction

import numpy as np

from astrasim_py.builders.draft import Draft, finish
from astrasim_py.topology.model import Topology


class OwnBase(BaseException):
    pass


class LeavesAll(CutThrough):
    def carry(self, message):
        raise OwnBase("all of it")  # line 91
        yield


class NoMessage(CutThrough):
    def carry(self):
        yield self.env.timeout(1)


class NoSimulation(CutThrough):
    def __init__(self):
        pass


class NoBeginning(CutThrough):
    def __init__(self, simulation):
        pass


class NoTime(CutThrough):
    def carry(self, message):
        yield self.env.timeout(float("nan"))


class NoMailbox(CutThrough):
    def carry(self, message):
        message.mailbox = None
        yield self.env.timeout(1)


class NoCount(CutThrough):
    def carry(self, message):
        message.route[0].bytes = "many"
        yield self.env.timeout(1)


class Starts(CutThrough):
    def carry(self, message):
        self.env.process(self.other())
        yield self.env.timeout(1)

    def other(self):
        yield 5


class Turns(CutThrough):
    def carry(self, message):
        while True:
            yield self.env.timeout(0)


class Loses(CutThrough):
    def carry(self, message):
        yield self.env.event() if message.src == 2 else self.env.timeout(1)


def leaves_all(collective, ranks):
    raise OwnBase("all of it")  # line 148


def halves(collective, ranks):
    return finish(Draft(ranks, 1.5), "halves", collective)  # line 152


def links(latency_ps=1, bandwidth=Fraction(1), end=0, more=0, **keys):
    return Topology.create(
        npus=4, vertices=4, src=np.arange(4), dst=(np.arange(4) + 1) % 4 + end, latency_ps=np.full(4, latency_ps),
        bandwidth_class=np.zeros(4 + more, dtype=np.int64), bandwidths=[bandwidth],
    )  # fmt: skip


def back_in_time(**keys):
    return links(latency_ps=-1)


def part_of_a_time(**keys):
    return links(latency_ps=1.5)


def stands_still(**keys):
    return links(bandwidth=Fraction(0))


def floats(**keys):
    return links(bandwidth=5e10)


def beyond(**keys):
    return links(end=9)


def too_many(**keys):
    return links(more=1)
"""
MODEL, ALGORITHM, SHAPE = "network.model={}", "algorithms.all_reduce={{python: {}}}", "topology={{shape: {}, npus: 4}}"
KINDS = {
    "a field that is not there": (MODEL, "own.py:Wrong", r"own\.py:13: failed: AttributeError: .*'colour'"),
    "in a helper": (MODEL, "own.py:InAHelper", r"own\.py:21: failed: ValueError"),
    "sys.exit": (MODEL, "own.py:Quits", r"own\.py:26: failed: SystemExit: 3"),
    "no process": (MODEL, "own.py:NoProcess", r"network\.model: own\.py:NoProcess: carry\(message\) gave a int"),
    "no event": (MODEL, "own.py:NoEvent", r"network\.model: own\.py:NoEvent: carry\(message\) yields 5"),
    "in another method": (MODEL, "own.py:InSend", r"own\.py:42: failed: KeyError: 'send'"),
    "in its beginning": (MODEL, "own.py:InInit", r"own\.py:47: failed: OSError: no file"),
    "an algorithm": (ALGORITHM, "own.py:tree", r"own\.py:tree failed: TypeError: .*at .*own\.py:61"),
    "no algorithm": (ALGORITHM, "own.py:nothing", r"own\.py:nothing gave a NoneType"),
    "the language of algorithms": (
        ALGORITHM,
        "own.py:program",
        r"own\.py:74: AttributeError: .*'colour'",
    ),
    "a shape": (SHAPE, "own.py:star", r"shape own\.py:star failed: IndexError: .*at .*own\.py:69"),
    "a file that cannot be read": (MODEL, "syntax.py:Model", r"syntax\.py failed: SyntaxError: .*at .*syntax\.py:3"),
    "a file that fails": (MODEL, "fails.py:Model", r"fails\.py failed: ZeroDivisionError: .*at .*fails\.py:2"),
    "an error beside all others": (MODEL, "own.py:LeavesAll", r"own\.py:91: failed: OwnBase: all of it"),
    "an algorithm with such an error": (
        ALGORITHM,
        "own.py:leaves_all",
        r"own\.py:leaves_all failed: OwnBase: .*own\.py:148",
    ),
    "an algorithm of half chunks": (ALGORITHM, "own.py:halves", r"own\.py:halves: chunks is 1\.5 \(at .*own\.py:152"),
    **{
        f"{name} that the engine meets": (
            MODEL,
            f"own.py:{name}",
            rf"network\.model: own\.py:{name}: a run under it failed: {said} \(at (engine|dialects)/.*\.py:\d+\)",
        )
        for name, said in {
            "NoMessage": r"TypeError: .*carry\(\).*",
            "NoSimulation": r"TypeError: .*__init__\(\).*",
            "NoBeginning": "AttributeError: .*",
            "NoTime": "ValueError: .* NaN .*",
            "NoMailbox": "AttributeError: .*'put'",
            "NoCount": "ValueError: .*",
            "Starts": "RuntimeError: .*yield 5.*",
        }.items()
    },
    **{
        f"links of {name}": (
            SHAPE,
            f"own.py:{name}",
            rf"topology.*: shape own\.py:{name}: {said}.* \(at .*own\.py:\d+\)",
        )
        for name, said in {
            "back_in_time": "latency_ps holds -1",
            "part_of_a_time": "latency_ps holds float64 values",
            "stands_still": r"bandwidths holds Fraction\(0, 1\)",
            "floats": r"bandwidths holds 50000000000\.0",
            "beyond": "dst holds 12",
            "too_many": r"bandwidth_class has the shape \(5,\)",
        }.items()
    },
    "an added model": (MODEL, "added", r"other\.py:5: failed: AttributeError: .*'colour'"),
    "an added algorithm": ("algorithms.all_reduce={}", "plan", r"plan failed: ZeroDivisionError: .*at .*other\.py:9"),
    "an added shape": (SHAPE, "globe", r"shape globe failed: ZeroDivisionError: .*at .*other\.py:13"),
}
OTHER = """
from astrasim_py.engine.simpy.network import CutThrough
class Added(CutThrough):
    def carry(self, message):
        yield message.colour


def plan(collective, ranks):
    return 1 / 0


def globe(npus):
    return 1 / 0


def arguments(parser):
    parser.add_argument("--fails", action="store_true")


def read(args, say):
    return 1 / 0 if args.fails else None  # line 21
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Another package, which adds a model, an algorithm, a shape and a reader."""
    (tmp_path / "other.py").write_text(OTHER)
    module = ModuleType("other")
    exec(compile(OTHER, str(tmp_path / "other.py"), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "other", module)
    made = {"network.added": "Added", "algorithm.plan": "plan", "shape.globe": "globe"}
    entries = [EntryPoint(name, f"other:{there}", registry.GROUP) for name, there in made.items()]
    entries.append(EntryPoint("trace_reader.log", "other", registry.GROUP))
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry._table.cache_clear()
    yield
    registry._table.cache_clear()


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "syntax.py").write_text("\n\ndef Model(\n")
    (tmp_path / "fails.py").write_text("\nx = 1 / 0\n")
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    return path


def run(scenario, setting, *more):
    out = str(scenario.parent / "out")
    return main(["run", str(scenario), "--allow-code", "--out", out, "--set", setting, "--quiet", *more])


@pytest.mark.parametrize("kind", KINDS)
def test_the_place_of_every_kind_of_error_is_told(scenario, other, capsys, kind):
    setting, name, said = KINDS[kind]
    code = run(scenario, setting.format(name), "--jobs", "1")
    err = capsys.readouterr().err
    assert code in (2, 3), err
    assert re.search(said, err) and "defect" not in err and "Traceback" not in err, err


def test_workers_tell_it_as_well(scenario, capsys):
    for kind in ("a field that is not there", "an algorithm"):
        setting, name, said = KINDS[kind]
        assert run(scenario, setting.format(name), "--jobs", "2") in (2, 3)
        err = capsys.readouterr().err
        assert re.search(said, err) and "defect" not in err, err


def test_other_verbs_tell_it_too(scenario, capsys):
    for name in ("tree", "star"):
        setting = (ALGORITHM if name == "tree" else SHAPE).format(f"own.py:{name}")
        assert main(["check", str(scenario), "--allow-code", "--set", setting]) in (2, 3)
        err = capsys.readouterr().err
        assert re.search(r"at .*own\.py:\d+", err) and "defect" not in err


def test_verbs_that_read_a_scenario_may_be_allowed_to_run_code(scenario, capsys):
    """What tells to write --allow-code takes it."""
    given = [str(scenario), "--set", "network.model=own.py:Handles", "--set", "sweep.size=[1 MiB]"]
    inlined = ["convert", "--inline", given[0], str(scenario.parent / "out/t"), *given[1:]]
    ran = ["run", "--jobs", "1", "--out", str(scenario.parent / "out"), *given]
    for words in (["check", *given], ran, ["verify", *given], inlined):
        assert main(words) == 2 and "--allow-code" in capsys.readouterr().err, words
        assert main([*words, "--allow-code"]) == 0, capsys.readouterr().err


def test_a_model_that_loses_messages_is_named(scenario, capsys):
    """The others wait for messages that were sent."""
    assert run(scenario, "network.model=own.py:Loses", "--jobs", "1") == 4
    err = capsys.readouterr().err
    assert "stuck: own.py:Loses never delivers 1 message" in err and "nobody sends" not in err


def test_what_ends_a_process_is_not_taken_for_an_error(scenario, monkeypatch):
    """Such as the limit of a test: neither code of the user's own raised it, nor is it a defect."""

    def ends(*_, **__):
        raise GeneratorExit

    for place in ("astrasim_py.runs.task.prepare", "astrasim_py.cli.run.run"):
        monkeypatch.setattr(place, ends)
        with pytest.raises(GeneratorExit):
            run(scenario, "network.model=own.py:Handles", "--jobs", "1")


def test_the_limit_of_events_holds_for_a_model_in_a_loop(scenario, capsys):
    assert run(scenario, "network.model=own.py:Turns", "--jobs", "1", "--max-events", "5000") == 4
    assert "more than 5000 events (--max-events)" in capsys.readouterr().err


def test_a_model_may_handle_an_event_that_failed(scenario, capsys):
    assert run(scenario, "network.model=own.py:Handles", "--jobs", "1") == 0, capsys.readouterr().err


@pytest.mark.parametrize("text", ["import sys; sys.exit(3)", "raise BaseException", "1 / 0", "import not_there", "x ="])
def test_a_package_that_cannot_be_imported_hides_no_other(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "broken_package.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint(f"{kind}.broken", "broken_package:x", registry.GROUP) for kind in ("algorithm", "shape")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry._table.cache_clear()
    try:
        for what in ("builders", "shapes"):
            assert main(["list", what]) == 0
            assert re.search(r"broken +cannot be imported: ", capsys.readouterr().out)
    finally:
        registry._table.cache_clear()


def test_a_reader_of_another_package(tmp_path, other, capsys):
    assert main(["trace", "convert", "log", str(tmp_path / "out"), "--fails"]) == 2
    assert re.search(r"other\.py:21: failed: ZeroDivisionError", capsys.readouterr().err)
    assert main(["trace", "convert", "log", str(tmp_path / "out")]) == 2
    assert "trace_reader.log: its read gave a NoneType; return a Conversion" in capsys.readouterr().err


def test_reported_model(golden, tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(TEXT)
    code = (golden / "reports/20-new-users/lossy.py").read_text()
    (tmp_path / "lossy.py").write_text(code)
    assert run(tmp_path / "s.yaml", "network.model=lossy.py:Lossy", "--jobs", "1") == 2
    line = 1 + code[: code.index("message.tag")].count("\n")
    assert (
        f"lossy.py:{line}: failed: AttributeError: 'Message' object has no attribute 'tag'" in capsys.readouterr().err
    )
