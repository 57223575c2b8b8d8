"""Every scenario that is shipped or shown is right."""

from __future__ import annotations

import re

import pytest

from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

BLOCK = re.compile(r"^```yaml\n((?:# [^\n]*\n)?name: .*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_scenario_in_the_docs_can_be_prepared(repo, tmp_path):
    found = 0
    for page in sorted((repo / "docs").rglob("*.md")):
        for text in BLOCK.findall(page.read_text("utf-8")):
            if "{trace: " in text:  # a file that another block of the page makes
                continue
            path = tmp_path / "s.yaml"
            path.write_text(text, "utf-8")
            for point in expand(load_scenario(path)):
                assert prepare(point).problem.jobs
            found += 1
    assert found >= 4


def test_every_shipped_scenario_says_what_to_see_and_loads(repo):
    paths = sorted((repo / "scenarios").glob("*.yaml"))
    assert paths
    for path in paths:
        scenario = load_scenario(path)
        assert scenario.name == path.stem
        assert scenario.title and scenario.points
        head = path.read_text("utf-8").split("name:", 1)[0]
        assert head.count("\n#") >= 2, f"{path.name}: no opening comment"


@pytest.mark.parametrize("key", ["topologies", "workload", "sweep", "algorithms", "jobs", "semantics", "limits"])
def test_the_reference_names_every_key(repo, key):
    from astrasim_py.scenario.schema import Scenario

    text = (repo / "docs/reference/scenario.md").read_text("utf-8")
    assert f"`{key}`" in text
    missing = [name for name in Scenario.model_fields if f"`{name}`" not in text]
    assert not missing
