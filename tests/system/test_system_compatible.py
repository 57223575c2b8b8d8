"""The table of what excludes what: it knows every key, its rows apply, and the documentation prints it."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.system import compatible
from astrasim_py.system.compatible import FOLD, TABLE, exclusions, refuse
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.semantics import Semantics

MODELS = {"network": NetworkModel, "semantics": Semantics}
NAMES = {value for key, value in vars(compatible).items() if key.isupper() and isinstance(value, str)}


def key_of(name: str) -> str:
    return name.removeprefix("no ").partition(": ")[0]


@pytest.mark.parametrize("part", MODELS)
def test_every_key_has_a_row(part):
    """Else no formula knows it, and a fold refuses it."""
    keys = {key_of(name) for row in TABLE for name in row.features}
    assert {f"{part}.{field}" for field in MODELS[part].model_fields} - keys <= {"network.factory"}


def test_rows_name_keys_and_features_that_there_are():
    fields = {f"{part}.{field}" for part, model in MODELS.items() for field in model.model_fields}
    names = {name for row in TABLE for name in (*row.features, *row.uses)}
    assert {name for name in names if key_of(name) not in fields and name.removeprefix("no ") not in NAMES} == {
        "network.*",
        "semantics.*",
    }


def parts_with(name: str) -> dict[str, object]:
    """Parts of a problem with a feature, and what texts name."""
    parts: dict[str, object] = {"topology": "net", "algorithm": "ring", "npus": 4, "network": NetworkModel()}
    key, _, value = name.partition(": ")
    part, _, field = key.partition(".")
    if name.startswith("no "):
        return parts | {"semantics": Semantics(), "topology.ecmp": False}
    if part not in MODELS:
        return parts | {name: 5}
    if field == "*":
        model = type("Newer", (MODELS[part],), {"__annotations__": {"newer": int}, "newer": 0})
        return parts | {part: model(newer=5)}
    usual = getattr(MODELS[part](), field)
    return parts | {part: MODELS[part]().model_copy(update={field: value or f"not {usual}"})}


@pytest.mark.parametrize(
    ("name", "use", "row"), [(name, use, row) for row in TABLE for name in row.features for use in row.uses]
)
def test_every_row_applies_where_its_feature_is(name, use, row):
    plain = set() if name.startswith("no ") else set(exclusions(parts_with("jobs"), (use,)))
    rows = set(exclusions(parts_with(name), (use,))) - plain
    assert rows and all(row.place and row.problem and row.remedy for row in rows)


def test_rows_on_unknown_parts_do_not_apply():
    assert not list(exclusions({"nic": True}))
    assert [e.feature for e in exclusions({"nic": True, "network": NetworkModel(profile="dgx_h100")})] == [
        "network.profile"
    ]


def test_an_own_model_is_none_of_ours():
    own = NetworkModel(model="fluid", factory=SimpleNamespace)
    assert [row.problem for row in exclusions({"network": own}, (FOLD,))] == [
        "network model fluid has unknown symmetry"
    ]


def test_an_error_names_the_use_or_the_place_that_is_given():
    with pytest.raises(ScenarioError, match=r"^noise: is of compute nodes"):
        refuse("a skeleton", {"noise": True}, place="noise")
    refuse("a skeleton", {"noise": None})


def test_the_documentation_prints_the_table(repo):
    expanded = runpy.run_path(str(repo / "docs" / "expanded.py"))
    page = (repo / "docs" / "compatible.md").read_text("utf-8")
    assert expanded["exclusions"]() in page, "python docs/refresh.py compatible"
