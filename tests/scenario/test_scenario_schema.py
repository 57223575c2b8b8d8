"""The JSON Schema that ships is the one that the models make."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from astrasim_py.scenario.schema import Scenario, json_schema
from astrasim_py.system.semantics import NAMED, Semantics


def test_the_schema_that_ships_is_up_to_date(package):
    shipped = json.loads((package / "data/schema/scenario.schema.json").read_text("utf-8"))
    assert shipped == json.loads(json.dumps(json_schema())), (
        "write it anew: python -m astrasim_py list schema > astrasim_py/data/schema/scenario.schema.json"
    )


def test_every_scenario_names_the_schema_in_its_first_line(repo):
    for path in sorted((repo / "scenarios").glob("*.yaml")):
        first = path.read_text("utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=../astrasim_py/data/schema/scenario.schema.json", path.name


def test_every_reference_of_the_schema_leads_somewhere():
    schema = json_schema()

    def references(part):
        if isinstance(part, dict):
            if "$ref" in part:
                yield part["$ref"]
            for sub in part.values():
                yield from references(sub)
        elif isinstance(part, list):
            for sub in part:
                yield from references(sub)

    for reference in references(schema):
        assert reference.removeprefix("#/$defs/") in schema["$defs"]
    assert list(schema["properties"]) == [*Scenario.model_fields, "explore"]
    assert schema["additionalProperties"] is False


def test_editors_accept_every_scenario_of_the_repository(repo):
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
    texts = {path.name: path.read_text("utf-8") for path in sorted((repo / "scenarios").glob("*.yaml"))}
    for path in sorted((repo / "docs").rglob("*.md")):
        blocks = re.findall(r"^```yaml\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        texts |= {f"{path.name} {number}": block for number, block in enumerate(blocks)}
    scenarios = {name: yaml.safe_load(text) for name, text in texts.items()}
    scenarios = {
        name: content for name, content in scenarios.items() if {"workload", "jobs", "explore"} & content.keys()
    }
    wrong = [f"{name}: {error.message[:200]}" for name, c in scenarios.items() for error in validator.iter_errors(c)]
    assert wrong == []
    assert len(scenarios) > 50
    ring = {"shape": "ring", "npus": 8, "bandwidth": "50 GB/s", "latency": "500 ns"}
    assert validator.is_valid({"topology": ring, "workload": ["barrier"]})
    for part in ({"workload": ["barrier"]}, {"topology": ring}, {"topology": ring, "workload": ["barier"]}):
        assert not validator.is_valid(part)


def test_every_example_of_a_key_is_what_the_key_accepts():
    from astrasim_py.core.document import parse_document
    from astrasim_py.scenario.load import read_plain

    for key, field in Scenario.model_fields.items():
        for example in field.examples or ():
            read_plain(key, parse_document(example, "example").plain())


def test_a_scenario_may_replace_every_rule():
    for rules in NAMED.values():
        assert set(rules) == set(Semantics.model_fields) - {"name"}
