"""The documentation names everything there is: verbs, options, builders, presets, rules, columns, lessons."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import runpy
from dataclasses import fields

import pytest
from simpy import Environment, Resource

import astrasim_py as ap
from astrasim_py.builders import dsl
from astrasim_py.builders.dsl_machine import Machine, Rank
from astrasim_py.builders.registry import ALGORITHMS, options_of
from astrasim_py.chakra import lint, lint_rules
from astrasim_py.chakra.schema import INT_COLUMNS
from astrasim_py.cli.main import main
from astrasim_py.collectives.chunks import PROTOCOL_SLOTS
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM
from astrasim_py.core import choices, records
from astrasim_py.engine.simpy.network import CutThrough, Link, Message
from astrasim_py.msccl.ir import STEP_TYPES, Gpu, MscclProgram, MscclStep, ThreadBlock
from astrasim_py.msccl.well_formed import RUNTIMES
from astrasim_py.mscclpp import reader
from astrasim_py.mscclpp.findings import PlanFacts
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.results.model import ROW_KEYS
from astrasim_py.scenario.schema import json_schema
from astrasim_py.system.machine_models import MscclModel, NetworkModel
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.hardware import preset_names
from astrasim_py.topology.shapes import SHAPES
from astrasim_py.training.aliases import FOREIGN_KEYS
from astrasim_py.verification.bounds import CLOSED_FORMS


def missing(page: str, words) -> list[str]:
    return sorted(word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", page))


@pytest.fixture(scope="module")
def page(repo):
    return lambda name: (repo / "docs" / name).read_text("utf-8")


def test_every_key_of_a_verdict_is_described(page, capsys):
    main(["verify", "builder:ring:all_reduce:2", "--format", "json"])
    keys = json.loads(capsys.readouterr().out)
    assert {"well_formed", "terminates", "correct", "race_free", "min_slots", "counterexample"} <= keys.keys()
    assert not missing(page("verify.md"), keys)


def test_every_collective_has_its_promise(page):
    assert not missing(page("verify.md"), (*COLLECTIVES, CUSTOM))
    assert not missing(page("reference/scenario.md"), (*COLLECTIVES, CUSTOM))


def test_msccl_ir_is_described(page):
    text = page("msccl.md")
    assert not missing(text, {*STEP_TYPES, *PROTOCOL_SLOTS, *RUNTIMES})
    for element, names in (("algo", MscclProgram), ("gpu", Gpu), ("tb", ThreadBlock), ("step", MscclStep)):
        written = {"min_bytes": "minBytes", "max_bytes": "maxBytes"}
        own = set(names._fields) - {"gpus", "tbs", "steps", "line", "source", "layout"}
        assert f"`<{element}>`" in text
        assert not missing(text, {written.get(name, name) for name in own})


def test_plans_of_mscclpp_are_described(page):
    text = page("mscclpp.md")
    assert not missing(text, KINDS)
    assert not missing(text, {name for what in ("plan", "gpu", "block") for name in reader._KEYS[what].split()})
    assert not missing(text, {field.name for field in fields(PlanFacts)})


def test_shapes_and_the_network_are_described(page):
    text = page("reference/scenario.md")
    assert not missing(text, SHAPES)
    assert not missing(text, NetworkModel.model_fields.keys() - {"factory"})


def test_every_key_of_a_scenario_is_described(page):
    schema = json_schema()
    keys = {key for model in (schema, *schema["$defs"].values()) for key in model.get("properties", {})}
    text = page("reference/scenario.md") + page("training.md")
    assert not missing(text, keys - {*FOREIGN_KEYS})
    assert "`data/training/aliases.csv`" in text  # has those of other programs


def test_connections_are_described(page):
    keys = {field.alias or name for name, field in MscclModel.model_fields.items()}
    assert not missing(page("dialects.md"), keys | {"msccl"})
    assert not missing(page("reference/scenario.md"), keys | {"msccl"})


def test_the_language_of_algorithms_is_described(page):
    text = page("dsl.md")
    parameters = set(inspect.signature(dsl.algorithm).parameters) - {"collective", "name"}
    assert not missing(text, parameters)
    assert not missing(text, {name for name in (*vars(Machine), *vars(Rank)) if not name.startswith("_")})


def test_every_name_of_the_python_interface_is_described(repo):
    text = (repo / "docs" / "python.md").read_text("utf-8")
    assert not missing(text, {f"ap.{name}" for name in ap.__all__ if name != "__version__"})


def test_every_name_of_the_python_interface_has_its_place_among_docstrings(page):
    listed = re.findall(r"^\* `(\w+)`$", page("reference/api.md"), re.MULTILINE)
    assert sorted(listed) == sorted(name for name in ap.__all__ if name != "__version__")


def test_every_column_of_records_and_key_of_rows_is_described(page):
    columns = (
        *records.COLLECTIVE_COLUMNS,
        *records.LINK_COLUMNS,
        *records.NODE_COLUMNS,
        *records.MESSAGE_COLUMNS,
        *records.HOP_COLUMNS,
        *choices.LEVELS,
        *ROW_KEYS,
    )
    assert not missing(page("results.md"), columns)


def test_every_builder_with_its_options_is_described(page):
    text = page("algorithms.md")
    assert not missing(text, ALGORITHMS)
    assert not missing(text, {option for name in ALGORITHMS for option in options_of(name)} - {"root"})
    for name, collective in CLOSED_FORMS:
        assert name in text and collective in text


def test_every_rule_of_semantics_is_described(page):
    keys = {field.alias or name for name, field in Semantics.model_fields.items()}
    assert not missing(page("semantics.md") + page("dialects.md"), keys)


def test_the_tables_of_presets_are_those_of_their_files(page, repo):
    refresh = runpy.run_path(str(repo / "docs" / "refresh.py"))
    text = page("reference/presets.md")
    for table in ("machines", "links"):
        assert refresh[table]() in text, "python docs/refresh.py presets"
    assert not missing(text, preset_names())


def test_the_site_lists_every_key_and_every_source(repo):
    expanded = runpy.run_path(str(repo / "docs" / "expanded.py"))
    keys, sources = expanded["keys"](), expanded["sources"]()
    schema = json_schema()
    models = [{"properties": schema["properties"]}, *schema["$defs"].values()]
    named = {key for model in models for key in model.get("properties", {})} - {*FOREIGN_KEYS}
    assert sorted(key for key in named if f"| `{key}` |" not in keys) == []
    assert all(f"`{name}`" in sources for name in preset_names())


def test_every_attribute_of_traces_is_described(page):
    assert not missing(page("traces.md"), set(INT_COLUMNS) - {"comm_priority", "tensor_loc"})


def test_every_lint_rule_is_described(page, repo):
    source = "".join((repo / module.__file__).read_text("utf-8") for module in (lint, lint_rules))
    rules = set(re.findall(r'"((?:[a-z]+-)+[a-z]+|damaged)"', source)) | {"dangling-data-dep", "dangling-ctrl-dep"}
    assert len(rules) > 20
    assert not missing(page("traces.md"), rules)


def test_every_lesson_is_listed_and_shown(page, repo):
    text = page("lessons.md")
    assert not missing(text, (path.stem for path in (repo / "scenarios").glob("*.yaml")))
    pictures = re.findall(r"!\[(\w+)\]\(figures/lessons/\1\.svg\)", text)
    assert len(pictures) == text.count("\n### ")
    drawn = [(repo / "docs/figures/lessons" / f"{name}.svg").read_bytes() for name in pictures]
    assert all(len(gzip.compress(content)) < 40_000 for content in drawn)


def test_every_page_is_listed(page, repo):
    pages = {path.relative_to(repo / "docs").as_posix() for path in (repo / "docs").rglob("*.md")} - {"index.md"}
    text = page("index.md")
    assert sorted(name for name in pages if f"({name})" not in text) == []


def test_all_that_a_network_model_may_use_is_described(page):
    """The public names of messages and links, but for those that a link has of SimPy's resource."""
    met: dict[str, dict] = {}

    class Looks(CutThrough):
        def carry(self, message):
            met["message"], met["link"] = vars(message), vars(message.route[0])
            yield from super().carry(message)

    ring = ap.build_topology(shape="ring", npus=2, bandwidth="1 GB/s", latency="1 us")
    ap.simulate(ap.collective("all_gather", "1 KiB", ring, model="mine", factory=Looks))
    simpy = {*dir(Resource), *vars(Resource(Environment()))} - {"request"}
    for kind, instance in ((Message, met["message"]), (Link, met["link"])):
        names = {name for name in (*vars(kind), *instance) if not name.startswith("_")}
        names -= simpy if kind is Link else set()
        methods = {name for name, value in vars(kind).items() if callable(value) or isinstance(value, property)}
        assert all(inspect.getdoc(vars(kind)[name]) for name in names & methods)
        texts = [kind.__doc__, *re.findall(r"#: (.*)", inspect.getsource(kind))]
        assert names - methods - set(re.findall(r"`(\w+)`", " ".join(texts))) == set(), kind
    assert "docstrings of `Message` and `Link`" in " ".join(page("extend.md").split())
