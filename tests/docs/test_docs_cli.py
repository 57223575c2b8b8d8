"""The page of the command line holds what the parsers say, and is short."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def page(repo, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(repo / "docs"), *sys.path])
    return (repo / "docs" / "cli.md").read_text("utf-8")


def test_tables_of_options_are_those_of_the_parsers(page):
    from cli_tables import filled

    assert filled(page) == page, "run: python docs/refresh.py cli"


def test_a_command_without_a_table_is_named(page):
    from cli_tables import filled

    with pytest.raises(SystemExit, match=r"table: NAME.*check"):
        filled(page.replace("<!-- table: check -->", "<!-- table: chekc -->"))
