"""Recordings that are none: one line each, and no more memory than a true one takes."""

import gzip
import io
import json
import resource
import subprocess
import sys
import tarfile
from bisect import bisect_left

import pytest

from astrasim_py.core.errors import EXIT_TRACE, TraceError, UsageError
from astrasim_py.pytorch.convert import convert_pytorch
from astrasim_py.pytorch.host_trace import read_host_trace
from astrasim_py.pytorch.kineto import read_recording

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"correlation": 1}}


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def trace(*events, **header):
    return json.dumps({"schemaVersion": 1, "traceEvents": [KERNEL, *events], **header})


def kernel(**changes):
    return trace(KERNEL | changes)


def with_time(text):
    return kernel(ts=12345.5).replace("12345.5", text)


CASES = {
    "empty": ("", "is empty"),
    "spaces": (" \n", "is empty"),
    "cut in an event": (trace()[:60], "is cut short"),
    "cut between events": (trace(KERNEL)[: trace(KERNEL).index("}}, {") + 3], "is cut short"),
    "cut in the header": (trace(x=[1, 2, 3])[:-4], "is cut short"),
    "cut gzip": (gzip.compress(trace().encode())[:-20], "its gzip stream is cut short"),
    "damaged gzip": (b"\x1f\x8b" + b"\0" * 50, "is damaged"),
    "no JSON": ("<html>", 'character 0: is not JSON: "<" in place of { or ['),
    "bytes": (bytes(range(128, 200)), "is not JSON"),
    "number": ("17", 'is not JSON: "1" in place of { or ['),
    "no comma": (trace().replace('"X", ', '"X" '), "is not JSON: Expecting ',' delimiter"),
    "two documents": (trace() + "{}", "has text after its end"),
    "deep": ('{"traceEvents": ' + "[" * 200_000, "is nested too deeply"),
    "deep header": ('{"a": ' + '{"a":' * 200_000, "is nested too deeply"),
    "digits": (with_time("1" * 5000), "has a malformed number"),
    "NaN": (with_time("NaN"), "event 2: its ts is NaN; write microseconds"),
    "infinite": (with_time("-Infinity"), "event 2: its ts is -Infinity"),
    "beyond all time": (with_time("1e999999999"), "event 2: its ts is 1e999999999"),
    "list": (kernel(ts=[1]), "event 2: its ts is [1]"),
    "negative": (kernel(dur=-3), "event 2: its dur is -3; a duration cannot be negative"),
    "no time": (kernel(ts=None), "event 2: its ts is None"),
    "no list": ('{"a": 1}', 'has no "traceEvents"'),
    "object for list": ('{"traceEvents": {}}', 'in place of ['),
    "no events": ('{"traceEvents": []}', "has neither work of a device nor collectives of the host"),
    "host only": (json.dumps([KERNEL | {"cat": "python_function"}]), "its categories: python_function"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_line_for_each(case, tmp_path):
    content, expected = CASES[case]
    with pytest.raises(TraceError) as error:
        read_recording(written(tmp_path / "trace.json", content), None)
    assert expected in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "trace.json"))
    assert len(error.value.lines()) == 1
    assert error.value.exit_code == EXIT_TRACE


def test_args_nested_about_as_deeply_as_python_reads_are_read_or_refused(tmp_path):
    def reads(depth: int) -> bool:
        try:
            json.loads("[" * depth + "]" * depth)
        except RecursionError:
            return False
        return True

    refused = 0
    deepest = bisect_left(range(10**6), True, key=lambda depth: not reads(depth))
    depths = [*range(deepest - 60, deepest + 60), 2 * deepest]  # how deep it reads depends on the stack
    for depth in depths:
        text = trace(KERNEL | {"args": {"Collective name": 7}}).replace(": 7}", f": {'[' * depth}{']' * depth}}}")
        try:
            read_recording(written(tmp_path / "trace.json", text), None)
        except TraceError as error:
            refused += 1
            assert "nested too deeply" in str(error)
    assert 1 <= refused < len(depths)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1712195495519689.047", 1712195495519689047),  # no double
        ("-0.5", -500),
        ("3", 3000),
        ("1.5e3", 1_500_000),
        ("0.12345", 123),
        ('"7.25"', 7250),
    ],
)
def test_times_are_exact(text, ns, tmp_path):
    recording = read_recording(written(tmp_path / "t.json", with_time(text).replace('"ts": 1,', '"ts": 2e15,')), None)
    assert recording.base_ns + int(recording.events.start[0]) == ns or ns > 2 * 10**18
    assert ns in {recording.base_ns + int(start) for start in recording.events.start}


def test_header_is_read_before_and_after_the_events(tmp_path):
    info = {"rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "pg_desc": None, "pg_size": 8, "ranks": [0, 3]}]}
    after = json.loads(trace(baseTimeNanoseconds=10**18, distributedInfo=info))
    before = dict(reversed(after.items()))
    for name, content in {"after": after, "before": before}.items():
        recording = read_recording(written(tmp_path / name, json.dumps(content)), None)
        assert (recording.rank, recording.world_size, recording.base_ns) == (3, 8, 10**18 + 1000)
        assert recording.groups == (("0", "", 8, (0, 3)),)


def test_bare_lists_byte_order_marks_and_indents(tmp_path):
    for name, text in {
        "list": json.dumps([KERNEL]),
        "bom": "\ufeff" + trace(),
        "i": json.dumps([KERNEL], indent=99),
    }.items():
        assert len(read_recording(written(tmp_path / name, text), None).events) == 1


def test_old_names_of_categories(tmp_path):
    old = [
        KERNEL | {"cat": "Kernel", "args": {"correlation": 5, "external id": 9, "stream": "7", "device": "0"}},
        KERNEL | {"cat": "Runtime", "tid": "7", "ts": 0, "dur": 1, "args": {"correlation": 5}},
        KERNEL | {"cat": "Operator", "ts": 0, "dur": 2, "args": {"External id": 9}},
    ]
    recording = read_recording(written(tmp_path / "old.json", json.dumps(old)), None)
    assert recording.threads == ((0, 7),)
    assert recording.counts == {"CALL": 1, "KERNEL": 1, "OP": 1}
    events = recording.events
    assert (events.external_id[2], events.stream[2], events.device[2], events.launch[2]) == (9, 7, 0, 1)


def test_a_step_of_years_does_not_fit_picoseconds(tmp_path):
    with pytest.raises(TraceError, match="its step lasts longer than 104 days"):
        convert_pytorch(written(tmp_path / "t.json", kernel(ts=2 * 10**15)))


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#\ud800", "ts": 0, "dur": 9}
    recording = read_recording(written(tmp_path / "t.json", trace(KERNEL | {"name": "\ud83d \u00e9"}, step)))
    assert "? \u00e9" in recording.names
    assert recording.step.name == "ProfilerStep#?"


def test_member_of_an_archive_must_be_named_once(tmp_path):
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("a.json", "b.json.gz"):
            data = trace().encode() if name == "a.json" else gzip.compress(trace().encode())
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    assert len(read_recording(f"{path}!a.json", None).events) == 1
    assert len(read_recording(f"{path}!b.json.gz", None).events) == 1
    with pytest.raises(TraceError, match="has 2 members; name one"):
        read_recording(str(path), None)
    with pytest.raises(TraceError, match="has 0 members of this name"):
        read_recording(f"{path}!c.json", None)


def test_work_that_ended_before_all_else_is_not_left_over(tmp_path):
    call = {"ph": "X", "cat": "cuda_runtime", "name": "c", "pid": 1, "tid": 1, "ts": 50, "args": {"correlation": 9}}
    late, early = (
        KERNEL | {"ts": 60, "args": {"correlation": 9}},
        KERNEL | {"ts": 49, "dur": 3, "args": {"correlation": 2}},
    )
    recording = read_recording(written(tmp_path / "t.json", trace(call, late, early)), None)
    assert recording.events.start.tolist() == [-49_000, -1000, 0, 10_000]
    assert (recording.backlog.tolist(), recording.work.tolist()) == ([1], [3])


def test_a_step_that_several_threads_mark_is_one(tmp_path):
    mark = {"ph": "X", "cat": "user_annotation", "pid": 0}
    times = [(number, thread, 1000 * number + 3 * thread) for number in range(4) for thread in (1, 2)]
    marks = [mark | {"name": f"ProfilerStep#{n}", "tid": thread, "ts": at, "dur": 900} for n, thread, at in times]
    again = mark | {"name": "ProfilerStep#0", "tid": 1, "ts": 9000, "dur": 900}  # another loop counts from 0 again
    steps = read_recording(written(tmp_path / "trace.json", trace(*marks, again)), "2").steps
    assert [step.name[-1] for step in steps] == ["0", "1", "2", "3", "0"]
    assert steps[2] == ("ProfilerStep#2", 0, 900_000)


def test_step_that_is_not_there(tmp_path):
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 0, "dur": 9}
    with pytest.raises(UsageError, match="has no step 7; its steps: 4"):
        read_recording(written(tmp_path / "t.json", trace(step)), 7)


def test_bombs_and_lists_of_a_million_take_no_more(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(200):
            file.write(b" " * 2**20)
    with pytest.raises(TraceError, match="unzips to more than 500 times its size"):
        read_recording(str(path), None)
    written(path, '{"a": "' + "x" * 2**25)
    with pytest.raises(TraceError, match="a value of more than 8388608 characters"):
        read_recording(str(path), None)
    million = {"pg_config": [{"pg_name": "0", "pg_size": 10**6, "ranks": list(range(10**6))}]}
    assert len(read_recording(written(path, trace(distributedInfo=million)), None).groups[0].ranks) == 10**6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


def test_archives_that_state_absurd_lengths(tmp_path):
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.XHDTYPE, 2**30
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(2**24))
    with pytest.raises(TraceError, match="is damaged"):
        read_recording(str(path), None)


@pytest.mark.slow
def test_memory_is_that_of_one_step(tmp_path):
    steps, size, filler = 200, 1000, "x" * 180
    path = tmp_path / "long.json"
    with open(path, "w") as file:
        file.write('{"traceEvents": [')
        for step in range(steps):
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": 1000 * step, "dur": 999}
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "tid": 1, "dur": 1}
            file.write(json.dumps(mark) + ",")
            for i in range(size // 2):
                at = {"ts": 1000 * step + i, "args": {"correlation": step * size + i, "filler": filler}}
                file.write(f"{json.dumps(launch | at)},{json.dumps(KERNEL | at)},")
        file.write(json.dumps(KERNEL) + "]}")
    code = (
        "import resource, sys; from astrasim_py.pytorch.kineto import read_recording\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "recording = read_recording(sys.argv[1], 100)\n"
        "print(len(recording.work), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    work, grown = map(int, ran.stdout.split())
    assert work == size // 2
    assert path.stat().st_size > 50_000_000
    assert grown < 40_000  # kB


HOSTS = {
    "two of one id": ([{"id": 3, "name": "a"}, {"id": 3, "name": "b"}], "has two nodes of id 3"),
    "no id": ([{"name": "a"}], "node 0: has no id"),
    "a large id": ([{"id": 2**70, "name": "a"}], "node 0: has no id"),
    "no nodes": (None, 'has no "nodes"'),
}


@pytest.mark.parametrize("case", HOSTS)
def test_one_line_for_each_host_trace(case, tmp_path):
    nodes, expected = HOSTS[case]
    content = {"schema": "9.9.9"} | ({} if nodes is None else {"nodes": nodes})
    with pytest.raises(TraceError) as error:
        read_host_trace(written(tmp_path / "et.json", json.dumps(content)))
    assert expected in str(error.value)


def test_callers_in_a_circle_are_cut(tmp_path):
    nodes = [{"id": 1, "name": "a", "ctrl_deps": 2}, {"id": 2, "name": "b", "ctrl_deps": 1}, {"id": 5, "ctrl_deps": 4}]
    host = read_host_trace(written(tmp_path / "et.json", json.dumps({"schema": "9.9.9", "nodes": nodes})))
    assert host.parents.tolist() == [-1, 0, -1]


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ({"rank": 2**62}, "says that it is rank 4611686018427387904 of None"),
        ({"world_size": 2**20}, "rank None of 1048576"),
    ],
)
def test_ranks_beyond_reason(info, problem, tmp_path):
    with pytest.raises(TraceError, match=problem):
        read_recording(written(tmp_path / "t.json", trace(distributedInfo=info)), None)


def test_numbers_and_lists_that_are_none_count_as_missing(tmp_path):
    odd = KERNEL | {"tid": 2**80, "args": {"device": 2**40, "stream": "x", "correlation": [1], "External id": 2**70}}
    call = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "c10d::send",
        "ts": 1,
        "args": {"Concrete Inputs": 3, "Input Dims": [1]},
    }
    recording = read_recording(written(tmp_path / "t.json", json.dumps([odd, call])), None)
    events = recording.events
    row = int((events.category == 3).argmax())
    assert [int(column[row]) for column in (events.device, events.stream, events.correlation)] == [-1, -1, -1]
    assert (0, str(2**80)) in recording.threads
    assert events.args == {1 - row: {"Input Dims": [1]}}


def test_reading_tells_how_far_it_is(tmp_path):
    shares = []
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(trace(*[KERNEL | {"args": {"filler": f"{i:300}"}} for i in range(9000)]).encode()))
    read_recording(str(path), None, shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 4
    assert shares[-1] == 1
