"""The page of the command line holds what the parsers say, and is short."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from astrasim_py.cli.former import renewed


@pytest.fixture
def page(repo, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(repo / "docs"), *sys.path])
    return (repo / "docs" / "cli.md").read_text("utf-8")


def test_tables_of_options_are_those_of_the_parsers(page):
    from cli_tables import filled

    assert filled(page) == page, "run: python docs/refresh.py cli"


def test_a_command_without_a_table_is_named(page):
    from cli_tables import filled

    with pytest.raises(SystemExit, match=r"table:NAME.*check"):
        filled(page.replace("<!--table:check-->", "<!--table:chekc-->"))


def test_no_page_spells_a_command_in_a_former_way(repo):
    pages = [repo / "README.md", *sorted((repo / "docs").rglob("*.md"))]
    former = []
    for path in pages:
        text = path.read_text("utf-8").replace("\\\n", " ")
        for match in re.finditer(r"(?:python -m astrasim_py|astrasim-py) ([^\n`#>|;)\\]*)", text):
            try:
                words = shlex.split(match[1])
            except ValueError:  # a quotation mark of the text around
                continue
            if words and renewed(words) != words:
                former.append(f"{path.name}: {match[1]}")
    assert former == []
