"""Every page begins with what it is for, and soon shows what runs; links lead somewhere; all pages are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {page.relative_to(DOCS).as_posix(): page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))}
#: Pages that are made of docstrings alone.
WITHOUT_COMMANDS = {"reference/api.md"}
#: Words that all pages may have together, README.md among them.
MOST_WORDS = 45_000
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_what_it_is_for(name):
    title, first, *_ = PAGES[name].split("\n\n")
    assert re.fullmatch(r"# [^\n]+", title)
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "", first).rstrip("*")
    is_sentence = first[:3] != "```" and plain[-1] in ".:" and not re.search(r"[.!?]\s", plain)
    assert is_sentence, f"{name} begins with more than a sentence: {first}"


@pytest.mark.parametrize("name", sorted({*PAGES} - WITHOUT_COMMANDS))
def test_a_page_soon_shows_something_that_runs(name):
    lines = PAGES[name].splitlines()
    kinds = [(number, line) for number, line in enumerate(lines) if line.startswith("```")]
    number, fence = kinds[0]
    assert number < 15 and re.match(r"```(sh|python|yaml|console)", fence), f"{name}: {fence} in line {number + 1}"


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#{1,6} (.+)$", BLOCK.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", PAGES)
def test_anchors_are_headings(name):
    folder = (DOCS / name).parent
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", BLOCK.sub("", PAGES[name])):
        page = (folder / target).resolve() if target else DOCS / name
        if "://" not in target and (page.suffix != ".md" or anchor not in anchors(page.read_text("utf-8"))):
            broken.append(f"{target}#{anchor}")
    assert not broken


def test_all_pages_together_are_short():
    texts = [*PAGES.values(), (DOCS.parent / "README.md").read_text("utf-8")]
    assert sum(len(text.split()) for text in texts) <= MOST_WORDS
