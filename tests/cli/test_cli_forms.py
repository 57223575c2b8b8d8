"""Every verb and action prints text, JSON, CSV and Markdown: one document, whose keys are words in snake case."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from astrasim_py.cli.main import main
from astrasim_py.cli.parsers import every_command

RING = """\
name: x
topologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{compute: {time: 1 us}}, {all_reduce: {size: $size}}]
record: messages
sweep: {size: [1 KiB, 1 MiB]}
plots: [{kind: time, x: size}]
"""
EXPLORE = """explore:
  model: {base: llama3-8b, layers: 2}
  topology: {preset: dgx_h100, nodes: 1, npus: 4}
  gbs: 16
  seq: 512
  tp: [1, 2]
  simulate: {top: 0}
"""
MEASURED = "platform,library,version,collective,dtype,ranks,nodes,bytes,time_us\n" + "".join(
    f"H100-SXM,NCCL,2.29.2,{kind},half,{ranks},1,{size},{9 + size * 1e-5 + ranks}\n"
    for kind in ("all_reduce", "all_gather")
    for ranks in (2, 4, 8)
    for size in (2**10, 2**16, 2**20, 2**24, 2**27)
)
TRAINING = (
    "id,source,model,layers,hidden,ffn,heads,kv_heads,head_dim,vocab,seq,gpus,gpu,nic_gb_s_per_gpu,dtype,tp,pp,cp,ep,vp,"
    "sharding,recompute,mbs,gbs,step_s\nr0,me,llama3-8b,32,4096,14336,32,8,128,128256,8192,64,h100,50,bf16,2,1,1,1,1,"
    "zero1,none,1,128,4.0\nr1,me,llama3-8b,32,4096,14336,32,8,128,128256,8192,64,h100,50,bf16,1,1,1,1,1,zero1,full,1,"
    "128,5.0\n"
)
TORUS = '"torus:2x2,bandwidth=50 GB/s,latency=500 ns"'
TEXT = "MODEL\n1\nfc -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1024 1\n"
#: A command line of each command that prints a result; those of {n} write to another name each time.
COMMANDS = {
    "run": "run x.yaml --jobs 1",
    "check": "check x.yaml",
    "results list": "results list x",
    "results explain": 'results explain x@size="1 MiB"',
    "results compare": "results compare x x",
    "results plot": "results plot x@size=1KiB",
    "results view": "results view x@size=1KiB -o page.html",
    "verify": "verify builder:ring:all_reduce:4",
    "convert": "convert builder:ring:all_reduce:4 ring{n}.npz",
    "trace lint": "trace lint set",
    "trace stats": "trace stats set",
    "trace show": "trace show set",
    "trace diff": "trace diff set set",
    "trace skeleton": "trace skeleton set skeleton{n}",
    "trace share": "trace share set share{n} --level skeleton --seed 1 --price none",
    "trace learn": "trace learn set learnt.json",
    "trace synthesize": "trace synthesize like{n} --from set",
    "trace slice": "trace slice set slice{n} --ranks 0-1",
    "trace merge": "trace merge merged{n} --from set set",
    "trace graph": "trace graph set graph.dot",
    "trace timeline": "trace timeline set line.json",
    "trace compare": f"trace compare set set --simulate {TORUS}",
    "trace convert astra_sim_text": "trace convert astra_sim_text text{n} --input text.txt --dims 4",
    "trace convert pytorch": None,
    "synthesize": f"synthesize --topology {TORUS} --collective all_gather --size 1MiB --rounds 2 --quiet",
    "train": "train llama3-8b --gpus 8 --tp 2 --gbs 16 --seq 4096 --zero 1 --explain",
    "explore": "explore explore.yaml --quiet",
    "optimize": "optimize x.yaml@size=1KiB --out optimized --evaluations 2 --quiet",
    "measured check": "measured check rows.csv --where ranks=8 --quiet",
    "measured validate collectives": "measured validate collectives rows.csv",
    "measured validate training": "measured validate training training.csv",
    "measured validate cases": "measured validate cases --only shipped_examples --quiet --jobs 1",
    "measured calibrate collectives": "measured calibrate collectives rows.csv -o my.json --channels 16",
    "measured calibrate training": "measured calibrate training training.csv",
    "astra-sim": "astra-sim --help",
    "list": "list plots",
    "list topology": "list topology torus:2x2",
    "list schema": "list schema",
    "new": "new first_steps lesson{n}",
    "new lesson": "new lesson 1",
}
#: Commands that print something else than a result, and why.
OTHERS = {"list completion": "a script", "astra-sim": "files of ASTRA-sim: tests/astra_sim"}
SLOW = (
    "results plot", "measured calibrate collectives", "measured validate collectives", "measured calibrate training",
    "optimize",
)  # fmt: skip
#: Commands with keys that other pages explain: parts of a step, of a grid, attributes of nodes.
ELSEWHERE = ("train", "explore", "trace show", "trace convert astra_sim_text", "list schema")
#: Keys of former versions, which stay beside those with units and in snake case.
FORMER = ("NPUs", "failed NPUs", "GBS", "MBS", "SeqLen", "TP", "PP", "CP", "VP", "EP")
#: Objects whose keys are names of what they count, from the input.
BY_NAME = ("sweep", "by_type", "by_collective", "by_group", "sent", "received", "seeds", "engines", "refused", "$defs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    for name, text in (
        ("x.yaml", RING), ("explore.yaml", EXPLORE), ("rows.csv", MEASURED), ("training.csv", TRAINING),
        ("text.txt", TEXT),
    ):  # fmt: skip
        (path / name).write_text(text)
    assert main(["run", str(path / "x.yaml"), "--out", str(path / "results"), "--quiet", "--jobs", "1"]) == 0
    assert main(["convert", "--inline", str(path / "x.yaml"), str(path / "set"), "--set", "sweep.size=[1 KiB]"]) == 0
    return path


def test_every_command_that_prints_a_result_has_a_form():
    commands = {command.name: command for command in every_command() if not command.actions or command.name in COMMANDS}
    assert {*commands} == {*COMMANDS, *OTHERS}
    formless = [
        name
        for name, command in commands.items()
        if not {"--format", "--json"} <= {option for a in command.arguments for option in a.option_strings}
    ]
    assert formless == ["list completion"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name, words in COMMANDS.items()
        if words and name not in OTHERS
    ],
)
def test_every_form_can_be_read(folder, repo, monkeypatch, capsys, name):
    monkeypatch.chdir(folder)

    def out(number: int, *form: str) -> str:
        words = shlex.split(COMMANDS[name].format(n=number))
        assert main([*words, *form]) in (0, 1)
        return capsys.readouterr().out

    document = json.loads(out(1, "--json"))
    assert isinstance(document, dict | list)
    words = [] if name == "list schema" else keys_of(document)
    assert not [key for key in words if not re.fullmatch(r"[a-z][a-z0-9_]*(_[A-Za-z]+)?", key) and key not in FORMER]
    said = "".join((repo / "docs" / page).read_text("utf-8") for page in ("results.md", "verify.md", "explore.md"))
    assert not [key for key in words if not re.search(rf"\b{re.escape(key)}\b", said)] or name in ELSEWHERE
    if isinstance(document, list):
        assert all(row.keys() == document[0].keys() for row in document), "keys are always there"
    rows = [*csv.reader(io.StringIO(out(2, "--format", "csv")))]
    assert len(rows) > (document != []) and all(len(row) == len(rows[0]) for row in rows)
    lines = out(3, "--format", "markdown").splitlines()
    assert len(lines) == len(rows) + 1 and all(line.startswith("| ") and line.endswith(" |") for line in lines)
    text = out(4)
    assert text.strip() and text != json.dumps(document)


def keys_of(value: object) -> list[str]:
    if isinstance(value, list):
        return [key for item in value for key in keys_of(item)]
    if not isinstance(value, dict):
        return []
    return [*value, *(key for name, part in value.items() if name not in BY_NAME for key in keys_of(part))]
