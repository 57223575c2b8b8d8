"""The tour of the code names what is there, and every room of the package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import astrasim_py

PACKAGE = Path(astrasim_py.__file__).parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "figures" / "architecture.svg").read_text(encoding="utf-8")
NAMED = re.findall(r"`([^`\n]+)`", TEXT)
FILES = [name for name in NAMED if re.fullmatch(r"[\w/]+(\.py|\.yaml|/)", name)]
#: A file and the names right after it: ``report/jobs.py`` ``job_rows`` and ``Alone``.
PAIRS = [
    (file, name)
    for file, names in re.findall(r"`([\w/]+\.py)`((?:(?:, | and | )`[A-Za-z_]\w*`)+)", TEXT)
    for name in re.findall(r"\w+", names)
    if name != "and"
]
#: Names of classes and functions that stand alone.
NAMES = {name for name in NAMED if re.fullmatch(r"[A-Z][a-z]\w+|[a-z]+(_[a-z]+)+", name)}
#: Not of the package's code: a builder that is asked for by this name.
OTHERS = {"halving_doubling"}


@cache
def defined(path: Path) -> set[str]:
    """Functions, methods, classes and assigned names of a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_the_page_is_read():
    assert len(FILES) > 20 and len(PAIRS) > 15 and len(NAMES) > 15


@pytest.mark.parametrize("name", sorted(set(FILES)))
def test_a_file_is_there(name):
    assert (PACKAGE / name).exists() or (ROOT / name).exists()


@pytest.mark.parametrize(("file", "name"), PAIRS)
def test_a_file_defines_what_stands_after_it(file, name):
    assert name in defined(PACKAGE / file)


def test_every_name_is_defined_somewhere():
    everything = set().union(*map(defined, PACKAGE.rglob("*.py")))
    assert sorted(NAMES - OTHERS - everything - {room.name for room in PACKAGE.iterdir()}) == []


def test_every_room_is_on_the_page():
    rows = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\* (`.*?):", TEXT, re.MULTILINE))))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= rows | {"page"}


def test_every_room_of_the_picture_is_there():
    named = re.findall(r'monospace"[^>]*>([^<]*)<', PICTURE)
    rooms = {room.strip() for line in named for room in re.split(r" · |: [^:]*?(?=\s{2,}|$)", line) if room.strip()}
    assert len(rooms) > 20
    assert [room for room in sorted(rooms) if not list(PACKAGE.glob(room))] == [], rooms
