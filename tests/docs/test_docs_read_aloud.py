"""The page that reads the engine aloud shows the source as it is."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

#: A block names the file and the class or function that it shows.
BLOCK = re.compile(r"^```py (\S+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def source_of(text: str, name: str) -> str:
    """Source of a class or function by its dotted name."""
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == part)
    return textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))


@pytest.fixture
def blocks(repo):
    """(file, name, text) of every block of the page."""
    return BLOCK.findall((repo / "docs" / "engine_read_aloud.md").read_text("utf-8"))


def test_blocks_are_the_source(blocks, package):
    for file, name, shown in blocks:
        text = (package / file).read_text("utf-8")
        assert shown.strip() == source_of(text, name).strip(), f"{file} {name}"


def test_the_page_shows_every_noun(blocks):
    shown = {name.split(".")[0] for _, name, _ in blocks}
    assert {"At", "Npu", "Graph", "StoreAndForward", "CutThrough", "Communicator", "Simulation"} <= shown
    assert len(blocks) >= 15
