"""The reader of execution plans: one line with its place for what cannot be meant, whatever reads the file."""

from __future__ import annotations

import copy
import json
import re
from random import Random

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import AlgorithmError, AstraError
from astrasim_py.mscclpp import reader
from astrasim_py.mscclpp.reader import parse_plan, plan_of, read_plan
from astrasim_py.mscclpp.to_traces import algorithm_of
from astrasim_py.mscclpp.verify import PlanVerdict, verify_plan

BLOCK = "gpus[0].threadblocks[0]"


def exchange() -> dict:
    """Two ranks put their chunk into each other's output; in place of a semaphore, a pipeline and a switch one each."""
    memory = {"channel_type": "memory"}
    gpus = []
    for rank in range(2):
        mine = [{"type": "i", "index": 0, "size": 1}]
        ops = [
            {"name": "signal", "channel_ids": [0], **memory},
            {"name": "wait", "channel_ids": [0], **memory},
            {"name": "nop"},
            {
                "name": "put",
                "src_buff": mine,
                "dst_buff": [{"buffer_id": 0, "index": rank, "size": 1}],
                **memory,
                "tbg_info": {"tb_id": 0, "tbg_size": 1},
            },
            {"name": "copy", "src_buff": mine, "dst_buff": [{"type": "o", "index": rank, "size": 1}]},
            {"name": "nop"},
            {"name": "signal", "channel_ids": [0], **memory},
            {"name": "wait", "channel_ids": [0], **memory},
        ]
        waits = [
            {"name": "sem_acquire", "semaphore_ids": [0]},
            {"name": "barrier", "barrier_id": 0, "num_threadblocks": 1},
            {"name": "pipeline", "iter_context": {"unit_size": 16, "num_chunks": 1}, "ops": [{"name": "nop"}]},
            {"name": "sem_release", "semaphore_ids": [0]},
        ]
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": 2,
                "scratch_chunks": 1,
                "threadblocks": [
                    {
                        "id": 0,
                        "ops": ops,
                        "channels": [{**memory, "channel_ids": [0]}],
                        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
                    },
                    {"id": 1, "ops": waits, "channels": [{"channel_type": "switch", "channel_ids": [0]}]},
                ],
                "channels": [
                    {**memory, "connected_to": [1 - rank]},
                    {
                        "channel_type": "switch",
                        "buffer_type": "s",
                        "rank_groups": [{"size": 2, "ranks": [0, 1]}],
                    },
                ],
                "remote_buffers": [{"rank": 1 - rank, "type": "o", "access_channel_types": ["memory"]}],
                "semaphores": [{"init_value": 1}],
            }
        )
    return {"name": "pair", "collective": "allgather", "protocol": "Simple", "inplace": False, "gpus": gpus}


def edited(path: str, value: object) -> dict:
    """The plan with another value at a path; `...`: without the key."""
    plan: dict = exchange()
    *keys, last = (int(key) if key.isdigit() else key for key in re.findall(r"\w+", path))
    at = plan
    for key in keys:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return plan


def refused(data: bytes) -> str:
    with pytest.raises(AlgorithmError) as caught:
        parse_plan(data, "p.json")
    (line,) = caught.value.lines()
    assert caught.value.exit_code == 3 and len(line) < 400 and line.isprintable()
    assert re.match(r"p\.json(:\d+(:\d+)?)?: ", line)
    return line


def test_the_plan_that_is_edited_is_right():
    verdict = verify_plan(plan_of(exchange()))
    assert (verdict.passes, verdict.correct, verdict.warnings) == (True, True, ())


OPS = f"{BLOCK}.ops"
PUT = f"{OPS}[3]"
CONTEXT = "gpus[0].threadblocks[1].ops[2]"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("name", ..., 'lacks "name"; write "name"'),
        ("name", "\x1b[31m", 'name: is "\\u001b[31m"; write a short text'),
        ("name", "\ud800", "half a character"),
        ("spare", {"\ud800": 1}, "half a character"),
        ("collective", "a\nb", 'collective: is "a\\nb"; write'),
        ("protocol", "LL128", 'protocol: is "LL128"; write one of Simple, LL'),
        ("inplace", 1, "inplace: is 1; write true or false"),
        ("gpus", ..., 'lacks "gpus"'),
        ("gpus", {}, "gpus: is {}, not a list; write […]"),
        ("gpus", [], "gpus: is empty; write one object for every rank"),
        ("gpus", [[]], "gpus[0]: is [], not an object; write {…} with id"),
        ("max_message_size", 2**64, "is 18446744073709551616; write a whole number from 0 to 18446744073709551615"),
        ("min_message_size", float("inf"), "min_message_size: is Infinity; write a whole number"),
        ("buffer_alignment", 0, "buffer_alignment: is 0; write a whole number from 1"),
        ("num_threads_per_block", 2000, "is 2000; write a whole number from 1 to 1024"),
        ("gpus[1].id", 0, "gpus[1].id: is 0 at place 1 of gpus; write 1"),
        ("gpus[0].input_chunks", -1, "gpus[0].input_chunks: is -1; write a whole number from 0"),
        ("gpus[0].scratch_chunks", 10**30, "write a whole number from 0 to 16777216"),
        ("gpus[0].channels[0].connected_to[0]", 0, "is 0, its own rank; write another rank of 0..1"),
        ("gpus[0].channels[0].connected_to[0]", 2, "is 2, not one of 2 ranks; write another rank of 0..1"),
        ("gpus[0].channels[0].channel_type", "nvlink", "write one of memory, port, switch"),
        ("gpus[0].channels[1].rank_groups[0].ranks", [1], "is 2, for ranks [1]; write each rank once"),
        ("gpus[0].channels[1].rank_groups[0]", {"ranks": [1]}, "lacks rank 0, which the channel is of; add it"),
        ("gpus[0].channels[1].buffer_type", ..., 'gpus[0].channels[1]: lacks "buffer_type"'),
        ("gpus[0].remote_buffers[0].rank", 0, "is 0, its own rank"),
        ("gpus[0].remote_buffers[0].type", "x", 'is "x"; write one of i, o, s'),
        ("gpus[0].semaphores", ..., "is 0, and there are 0 semaphores; list one there first"),
        ("gpus[0].semaphores[0].init_value", -1, "is -1; write a whole number from 0"),
        (f"{BLOCK}.id", 1, f"{BLOCK}.id: is 1 at place 0 of threadblocks; write 0"),
        (f"{BLOCK}.channels[0].channel_ids", [9], "is 9, and there are 1 memory channels; write 0 to 0"),
        (f"{BLOCK}.remote_buffer_refs[0].remote_buffer_ids", [3], "is 3, and there are 1 remote buffers"),
        (f"{OPS}[0].name", None, f"{OPS}[0].name: is null; write a short text"),
        (f"{OPS}[0].channel_ids", [1], "is 1, and there are 1 memory channels of the block; write 0 to 0"),
        (f"{OPS}[0].channel_ids", [], 'signal names no channel_ids; write "channel_ids"'),
        (f"{PUT}.channel_type", "switch", "is switch for put; write memory or port"),
        (f"{PUT}.channel_type", ..., 'put lacks "channel_type"; write one of memory, port'),
        (f"{PUT}.dst_buff", ..., 'put lacks "dst_buff"; write it: a remote buffer'),
        (f"{PUT}.dst_buff", [{"type": "o", "index": 0, "size": 1}], "a buffer of the rank, and put takes a remote"),
        (f"{PUT}.dst_buff[0].buffer_id", 1, "is 1, and there are 1 remote buffers of the block for memory channels"),
        (f"{PUT}.src_buff", "i", 'is "i", not a list'),
        (f"{PUT}.src_buff[0].index", 1.0, "src_buff[0].index: is 1.0; write a whole number"),
        (f"{PUT}.src_buff[0].index", True, "src_buff[0].index: is true; write a whole number"),
        (f"{PUT}.src_buff[0].type", ..., 'names no buffer; write "type", "buffer_id" or "switch_channel_id"'),
        (f"{PUT}.src_buff[0].size", 2, "put moves 2 chunks into 1; give both the same size"),
        (f"{PUT}.tbg_info.tb_id", 1, "tb_id: is 1; write a whole number from 0 to 0"),
        (f"{PUT}.tbg_info.tbg_size", 0, "tbg_size: is 0; write a whole number from 1"),
        (f"{CONTEXT}.iter_context.unit_size", 0, "unit_size: is 0; write a whole number from 1"),
        (f"{CONTEXT}.iter_context", ..., 'lacks "iter_context"'),
        (f"{CONTEXT}.ops[0]", exchange()["gpus"][0]["threadblocks"][1]["ops"][2], "is a pipeline in a pipeline"),
        ("gpus[0].threadblocks[1].ops[1].num_threadblocks", 0, "is 0; write a whole number from 1"),
        ("gpus[0].threadblocks[1].ops[1].barrier_id", -1, "is -1; write a whole number from 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_one_line_with_its_place(path, value, says):
    text = json.dumps(edited(path, value), indent=1)
    line = refused(text.encode())
    assert says in line
    place = re.match(r"p\.json:(\d+):(\d+): ", line)
    # A place in the text: of the value, or of the object that lacks a key.
    row = text.splitlines()[int(place[1]) - 1][int(place[2]) - 1 :]
    assert row and not row[0].isspace()


WHOLE = json.dumps(exchange(), indent=1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "p.json: is empty; name an execution plan"),
        (b" \n ", "p.json: is empty"),
        (b"null", "p.json:1:1: is null, not an object"),
        (b"[]", "p.json:1:1: is [], not an object"),
        (WHOLE[:1000].encode(), "is not JSON: "),
        (WHOLE.encode() * 2, "is not JSON: Extra data"),
        (WHOLE.encode("utf-16"), "p.json:1: is not UTF-8; save it as UTF-8"),
        (WHOLE.encode("utf-16-le"), "p.json:1:2: has a zero byte, as in UTF-16; save it as UTF-8"),
        (WHOLE.replace("pair", "pär").encode("latin-1"), "p.json:2: is not UTF-8"),
        (WHOLE.replace('"inplace"', '"name": "",\n "inplace"').encode(), 'p.json:5:2: has the key "name" twice'),
        (WHOLE.replace('"id": 0', '"id": 0,\n"id": 1', 1).encode(), 'p.json:9:1: has the key "id" twice'),
        (WHOLE.replace('"size": 1', f'"size": {"9" * 5000}', 1).encode(), "has a number of 5000 digits"),
        (WHOLE.replace('"pair"', "[" * 10**5 + "]" * 10**5).encode(), "p.json: is too deeply nested"),
        (WHOLE.replace('"pair"', '"a\tb"').encode(), "p.json:2:12: is not JSON: Invalid control character"),
    ],
)  # fmt: skip
def test_what_is_no_plan_has_one_line(data, says):
    assert says in refused(data)


@pytest.mark.parametrize("depth", [100, 900, 950, 970, 980, 990, 1000])
def test_deep_values_are_refused_or_ignored(depth):
    deep = "[" * depth + "]" * depth
    refused(WHOLE.replace('"pair"', deep).encode())
    try:
        plan = parse_plan(WHOLE.replace('"name": "pair"', f'"spare": {deep}, "name": "pair"').encode(), "p.json")
    except AlgorithmError as error:
        assert "too deeply nested" in str(error)
    else:
        assert verify_plan(plan).passes


def test_large_files_end_soon(monkeypatch):
    monkeypatch.setattr(reader, "MAX_ITEMS", 1000)
    many = edited("gpus[0].channels[0].connected_to", [1] * 1000)
    assert "connected_to: is one of the lists of more than 1000 items" in refused(json.dumps(many).encode())
    monkeypatch.undo()
    unknown = edited(OPS, [{"name": f"x{number}"} for number in range(1000)])
    problems = verify_plan(plan_of(unknown)).problems
    assert len(problems) == 21 and problems[-1].endswith("and more")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (f"{PUT}.tbg_info.tbg_size", 2**24, "parts of chunks are more than"),
        ("gpus[0].scratch_chunks", 2**24, "parts of chunks are more than"),
        ("gpus[0].threadblocks", [{"id": k, "ops": [{"name": "nop"}]} for k in range(10000)], "are too many"),
        ("gpus[0].output_chunks", 3, "its ranks have different numbers of chunks"),
        ("collective", "sendrecv", '"sendrecv" promises nothing'),
    ],
)
def test_what_cannot_be_verified_is_unknown(path, value, says):
    verdict = verify_plan(plan_of(edited(path, value)))
    assert verdict.correct is None and says in verdict.unknown


def test_an_operation_takes_what_is_its_own():
    """Semaphores of a wait, and shares of a nop, are keys that executors do not look at."""
    plan = exchange()
    waiting, nop = plan["gpus"][0]["threadblocks"][0]["ops"][1:3]
    waiting["semaphore_ids"], nop["tbg_info"], plan["spare"] = [0], {"tb_id": 7}, None
    read = plan_of(plan, "p.json")
    assert read.warnings == (f"p.json: keys that executors ignore: spare, {OPS}[1].semaphore_ids, {OPS}[2].tbg_info",)
    assert verify_plan(read).passes
    plan["gpus"][0]["threadblocks"][0]["ops"][4] = {
        "name": "re",
        "reduce_op": "max",
        "src_buff": [{"type": "i", "index": 0, "size": 1}],
        "dst_buff": [{"type": "o", "index": 0, "size": 1}],
    }
    assert any('reduce_op is "max", and executors add all the same' in line for line in plan_of(plan).warnings)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (f"{PUT}.src_buff[0].index", 1, "put reaches input chunk 1 of rank 0, which has 1"),
        (f"{OPS}[2].name", "glre", "executors do not know glre, and refuse the plan"),
        (OPS, [{"name": "nop"}] * 65, "has 65 operations, and executors refuse more than 64"),
    ],
)
def test_what_executors_refuse_has_its_line(tmp_path, capsys, path, value, place):
    file = tmp_path / "p.json"
    file.write_text(json.dumps(edited(path, value), indent=1))
    assert main(["verify", str(file)]) == 1
    out = capsys.readouterr().out
    assert re.search(rf"problem: {re.escape(str(file))}:\d+:\d+: {re.escape(OPS)}.*{re.escape(place)}", out)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line and "see verify" in line


@pytest.mark.parametrize("command", ["verify", "convert", "run"])
def test_all_commands_say_it_alike(tmp_path, capsys, command):
    file = tmp_path / "p.json"
    (tmp_path / "s.yaml").write_text(
        "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
        "workload: [{all_gather: {size: 1 MiB}}]\nalgorithms: {all_gather: {file: p.json}}\n"
    )
    words = {
        "verify": ["verify", str(file)],
        "convert": ["convert", str(file), str(tmp_path / "out")],
        "run": ["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "results")],
    }[command]
    file.write_text(json.dumps(edited("protocol", "LL128"), indent=1))
    assert main(words) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f'{file}:4:14: protocol: is "LL128"; write one of Simple, LL')


def test_no_regular_file_is_not_read(tmp_path):
    for name, says in (("", "is not a regular file"), ("none.json", "cannot be read")):
        with pytest.raises(AlgorithmError, match=says):
            read_plan(tmp_path / name)


# -- random edits -----------------------------------------------------------------------------------------------

VALUES = [
    0, 1, 2, -1, 63, 2**24, 2**64, 1.5, float("nan"), True, None, "", "o", "s", "memory", "port", "switch", "signal",
    "wait", "get", "pwsf", "rppkt", "glres", "flush", "barrier", "pipeline", [], {}, [0], [0, 0], {"name": "nop"},
]  # fmt: skip


def places(value: object, path: tuple = ()):
    """Paths of all values below."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


def mutant(plan: dict, random: Random) -> dict:
    """The plan with one to three edits, most of them in its operations."""
    plan = copy.deepcopy(plan)
    for _ in range(random.choice([1, 1, 2, 3])):
        paths = list(places(plan))
        operations = [path for path in paths if path[-2:-1] == ("ops",)]
        *path, last = random.choice(operations if operations and random.random() < 0.7 else paths)
        at = plan
        for key in path:
            at = at[key]
        kind = random.randrange(6)
        if kind == 0:
            del at[last]
        elif kind <= 3 and isinstance(at, list):
            at.insert(random.randrange(len(at) + 1), copy.deepcopy(at[last]) if kind == 1 else at.pop(last))
        elif isinstance(at[last], int):
            at[last] += random.choice([-1, 1])
        else:
            at[last] = copy.deepcopy(random.choice(VALUES))
    return plan


def judge(plan: dict) -> str:
    """What is said of a plan: a refusal, or a verdict; traces of what is not refused."""
    try:
        read = parse_plan(json.dumps(plan).encode(), "p.json")
    except AstraError as error:
        assert len(error.lines()) == 1
        return "refused"
    verdict = verify_plan(read)
    assert type(verdict) is PlanVerdict
    try:
        algorithm_of(read)
    except AstraError:
        assert verdict.well_formed is False or verdict.terminates is not True
    return str(verdict.passes)


def fuzz(plans: list[dict], seeds: range) -> None:
    said = [judge(mutant(plans[seed % len(plans)], Random(seed))) for seed in seeds]
    assert min(map(said.count, ("refused", "True", "False"))) * 20 > len(seeds)


def test_random_edits_are_refused_or_judged():
    fuzz([exchange()], range(200))


@pytest.mark.slow
def test_random_edits_of_public_plans_are_refused_or_judged(golden):
    files = sorted((golden / "mscclpp" / "plans").glob("*.json"))
    fuzz([json.loads(file.read_text()) for file in files if file.stat().st_size < 20_000], range(600))
