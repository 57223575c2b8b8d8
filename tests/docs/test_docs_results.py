"""The fields of stored results are documented by their own texts."""

from __future__ import annotations

from dataclasses import fields

import pytest

from astrasim_py.results import model
from astrasim_py.results.model import Record

MODELS = [each for each in vars(model).values() if isinstance(each, type) and issubclass(each, Record)]
STORED = [each for each in MODELS if each not in (Record, model.SweptRecord, model.RunRow)]


def fields_list(model: type[Record]) -> str:
    """The columns of a model as a list in Markdown."""
    return "\n".join(_item(name, *about) for name, about in model.columns().items())


def _item(name: str, text: str, unit: str, *_: object) -> str:
    """The unit stands behind the text where the key does not end in it."""
    said = not unit or name.endswith(f"_{unit.replace('/', 'p')}")
    return f"* `{name}`: {text}" if said else f"* `{name}`: {text}, {unit}"


@pytest.mark.parametrize("each", STORED, ids=lambda each: each.__name__)
def test_every_field_of_results_is_in_the_documentation_as_it_is_described(repo, each):
    page = (repo / "docs" / "results.md").read_text("utf-8")
    text = fields_list(each)
    assert text in page, f"put this list into the page:\n{text}"


@pytest.mark.parametrize("each", STORED, ids=lambda each: each.__name__)
def test_every_number_with_a_unit_says_it_in_its_name_and_its_text(each):
    assert [field.name for field in fields(each)] == list(each.columns("always", "set", "never"))
    for name, about in each.columns().items():
        assert about.text, name
        for ending in ("ns", "ps", "GBps", "s"):
            if name.endswith(f"_{ending}") and name != "iterations_per_s":
                assert about.unit == ending.replace("GBps", "GB/s"), name
