"""The words of the compiled engine: their twins in the SimPy engine, and the fields of its events."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from astrasim_py.engine import compiled
from astrasim_py.engine.compiled import records

#: SimPy engine, compiled engine.
ROWS = re.findall(r"^(``.*?)  +(.*)$", compiled.__doc__ or "", re.MULTILINE)


def test_every_kind_of_event_says_what_its_fields_hold():
    numbers = {name: getattr(records, name) for name in records.KINDS}
    assert list(numbers.values()) == list(range(len(records.KINDS)))
    every = {field for names in records.OF_ALL for field in names.split()}
    for kind, fields in records.KINDS.items():
        named = [field for names in fields for field in names.split()]
        assert len(named) == len(set(named)) and not every & set(named), kind
        every_field = every | set(named)
        assert every_field <= set(records.EVENT.names), kind
    of_any = every | {field for fields in records.KINDS.values() for names in fields for field in names.split()}
    assert of_any == set(records.EVENT.names)


@pytest.mark.parametrize(("reference", "kernel"), ROWS, ids=[reference for reference, _ in ROWS])
def test_the_words_of_the_twins_are_those_of_the_sources(reference, kernel, package):
    sources = [*(package / "engine" / "simpy").glob("*.py"), *(package / "dialects").glob("*/simpy.py")]
    text = "\n".join(path.read_text("utf-8") for path in sources)
    for word in re.findall(r"``([\w.]+)``", reference):
        for name in word.split("."):
            assert re.search(rf"^ *(class|def) {name}\b", text, re.MULTILINE), word
    for module, name in re.findall(r"(?<!`)`(\w+)\.(\w+)`", kernel):
        assert hasattr(import_module(f"astrasim_py.engine.compiled.{module}"), name), name
    for name in re.findall(r"``([\w]+)``", kernel):
        assert hasattr(records, name) or name.lower() in (*records.ADDRESSES, *records.VARIABLES), name
