"""A scenario's files are found by the type of their fields, and a change of any of them makes another point."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import astrasim_py
from astrasim_py.core.errors import InternalError, TopologyError
from astrasim_py.core.fields import CodeText, FileText, code_or_name
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.task import make_task
from astrasim_py.scenario.check import confined
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.machine_models import profile_or_file
from astrasim_py.topology import build

PACKAGE = Path(astrasim_py.__file__).parent
RING = "{shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}"
CALL = "[{all_reduce: {size: 1 MiB}}]"
#: ASTRA-sim's files describe the network, too.
ASTRA_SIM = {
    "topologies": "",
    "workload": "{astra_sim: {workload: work, system: s.json, network: n.yml, comm_group: g.json}}",
}
#: (model, field) → keys of a scenario that name a file there, and the file.
NAMED = {
    ("EdgeList", "file"): ({"topologies": "{r: {shape: edge_list, file: links.csv}}"}, "links.csv"),
    ("TraceWorkload", "trace"): ({"workload": "{trace: run}"}, "run.3.et"),
    ("TraceWorkload", "groups"): ({"workload": "{trace: run, groups: groups.json}"}, "groups.json"),
    ("PytorchRecording", "kineto"): ({"workload": "{pytorch: {kineto: 'k_{rank}.json'}}"}, "k_3.json"),
    ("PytorchRecording", "et"): ({"workload": "{pytorch: {kineto: k.json, et: 'e_{rank}.json'}}"}, "e_1.json"),
    ("AlgorithmFile", "file"): ({"algorithms": "{all_reduce: {file: ring.xml}}"}, "ring.xml"),
    ("AlgorithmFile", "contract"): ({"algorithms": "{all_reduce: {file: ring.xml, contract: c.yaml}}"}, "c.yaml"),
    ("AlgorithmCode", "python"): ({"algorithms": "{all_reduce: {python: 'mine.py:make'}}"}, "mine.py"),
    ("Synthesis", "occupied"): ({"algorithms": "{all_reduce: {synthesize: {occupied: [a.csv]}}}"}, "a.csv"),
    ("ForeignShape", "shape"): ({"topologies": "{r: {shape: 'mine.py:star', npus: 4}}"}, "mine.py"),
    ("Routing", "file"): (
        {"workload": "{training: {model: mixtral-8x7b, gbs: 8, routing: {kind: file, file: shares.json}}}"},
        "shares.json",
    ),
    ("NcclTests", "nccl_tests"): (
        {"workload": "{training: {model: llama3-8b, gbs: 8}, state: {nccl_tests: [gather.txt]}}"},
        "gather.txt",
    ),
    ("AstraSimInputs", "workload"): (ASTRA_SIM, "work.5.et"),
    ("AstraSimInputs", "comm_group"): (ASTRA_SIM, "g.json"),
    ("AstraSimFile", "file"): (ASTRA_SIM, "n.yml"),
    ("NetworkModel", "model"): ({"network": "{model: 'mine.py:Model'}"}, "mine.py"),
    ("NetworkModel", "profile"): ({"network": "{profile: mine.json}"}, "mine.json"),
}


def models(model: type = StrictModel) -> Iterator[type]:
    for below in model.__subclasses__():
        yield below
        yield from models(below)


def is_file(part: object) -> bool:
    """Whether a type names a file, anywhere inside it."""
    if getattr(part, "func", None) in (FileText, CodeText, code_or_name, profile_or_file):
        return True
    return any(map(is_file, (*get_args(part), *getattr(part, "__metadata__", ()))))


def test_every_field_that_names_a_file_is_tried_here():
    for path in sorted(PACKAGE.rglob("*.py")):
        if "StrictModel)" in path.read_text("utf-8"):  # models are imported by need
            import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    found = {
        (model.__name__, name)
        for model in models()
        if model.__module__.startswith("astrasim_py.")
        for name, field in model.model_fields.items()
        if is_file(field.annotation) or any(map(is_file, field.metadata))
    }
    assert found == NAMED.keys()


def identity(folder: Path, keys: dict) -> str:
    keys = {"name": "demo", "topologies": f"{{r: {RING}}}", "workload": CALL} | keys
    path = folder / "s.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items() if value), "utf-8")
    (point,) = expand(load_scenario(path, allow_code=True))
    return make_task(point, folder / "results", RunOptions(level="links")).identity


@pytest.mark.parametrize("named", NAMED, ids=".".join)
def test_a_changed_file_makes_another_point(tmp_path, named):
    keys, file = NAMED[named]
    (tmp_path / file).write_bytes(b"one")
    before = identity(tmp_path, keys)
    assert identity(tmp_path, keys) == before
    (tmp_path / file).write_bytes(b"two")
    after = identity(tmp_path, keys)
    (tmp_path / file).unlink()
    assert len({before, after, identity(tmp_path, keys)}) == 3


def test_files_of_jobs_count_too(tmp_path):
    job = "{workload: {trace: run}, placement: ['0-3'], algorithms: {all_reduce: {file: ring.xml}}}"
    seen = set()
    for file in ("run.0.et", "ring.xml"):
        (tmp_path / file).write_bytes(b"one")
        path = tmp_path / "s.yaml"
        path.write_text(f"name: demo\ntopologies: {{r: {RING}}}\njobs: {{a: {job}}}\n", "utf-8")
        (point,) = expand(load_scenario(path))
        seen.add(make_task(point, tmp_path / "results", RunOptions(level="links")).identity)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("build({'shape': 'ring', 'npus': npus, 'bandwidth': '1 GB/s', 'latency': '1 us'})", None),
        ("npus", "topologies.r: shape mine.py:star gave a int; return a Topology"),
        ("1 // 0", "topologies.r: shape mine.py:star failed: ZeroDivisionError"),
        ("build({'shape': 'rung'})", '"rung" is not a shape'),
    ],
)
def test_a_shape_may_be_a_function_of_a_file(tmp_path, made, said):
    text = f"from astrasim_py.topology import build\n\n\ndef star(npus):\n    return {made}\n"
    (tmp_path / "mine.py").write_text(text, "utf-8")
    path = tmp_path / "s.yaml"
    topology = "{shape: 'mine.py:star', npus: 4, failed: {links: [[0, 1]]}}"
    path.write_text(f"name: demo\ntopologies: {{r: {topology}}}\nworkload: {CALL}\n", "utf-8")
    (point,) = expand(load_scenario(path, allow_code=True))
    if said is None:
        topology = prepare(point).problem.topology
        assert (topology.name, topology.npus, topology.links) == ("r", 4, 6)
    else:
        with pytest.raises(TopologyError, match=re.escape(said)):
            prepare(point)


def test_only_scenarios_run_the_code_of_a_shape():
    with pytest.raises(TopologyError, match=r"shape: mine\.py:star is code"):
        build({"shape": "mine.py:star", "npus": 4})


def test_what_is_not_declared_as_a_file_cannot_be_opened(tmp_path):
    with pytest.raises(InternalError, match="not declared as a file"):
        confined("run.0.et", tmp_path, "workload.trace", True)
