"""Pictures of the documentation are those of today's scenarios, and drawn as figures are drawn today.

Cheap ones are drawn again in every run of the tests, the others at night; ``python docs/refresh.py pictures`` makes
them.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import pictures  # noqa: E402

sys.path.remove(str(DOCS))
SOURCES, NOTES = pictures.sources(), pictures.notes()
REMEDY = "python docs/refresh.py pictures {}"
#: By hand, and screenshots of the page.
OTHERS = {"architecture.svg", "page.png", "page_live.png"}


def test_every_picture_has_a_source_and_is_shown():
    drawn = {f"{name}.svg" for name in SOURCES}
    there = {path.relative_to(DOCS / "figures").as_posix() for path in (DOCS / "figures").rglob("*.*g")}
    assert there - OTHERS == drawn and set(NOTES) == set(SOURCES)
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"figures/([\w/]+\.\w+)\)", page.read_text("utf-8"))}
    assert drawn <= shown and shown <= drawn | OTHERS


@pytest.mark.parametrize("name", SOURCES)
def test_no_picture_is_older_than_its_inputs(name):
    content = (pictures.FIGURES / f"{name}.svg").read_bytes()
    assert NOTES[name]["inputs"] == pictures.digest(SOURCES[name].files), REMEDY.format(name)
    assert NOTES[name]["svg"] == hashlib.sha256(content).hexdigest()[:16], REMEDY.format(name)
    assert b"<dc:date>" not in content


def drawn_as_stored(name: str, folder: Path) -> None:
    """The data of a picture is exactly as stored; so is the picture itself, under the same version of matplotlib."""
    fresh = pictures.note(SOURCES[name], SOURCES[name].draw(folder))
    assert fresh["data"] == NOTES[name]["data"], REMEDY.format(name)
    if fresh["matplotlib"] == NOTES[name]["matplotlib"]:
        assert fresh["svg"] == NOTES[name]["svg"], REMEDY.format(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in pictures.DEAR])
def test_cheap_pictures_are_those_of_today(name, tmp_path):
    drawn_as_stored(name, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(pictures.DEAR))
def test_dear_pictures_are_those_of_today(name, tmp_path):
    drawn_as_stored(name, tmp_path)
