"""Rooms of the synthesizer import in one direction: model, bounds, search; emit beside them; extras last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import astrasim_py.synthesis

FOLDER = Path(astrasim_py.synthesis.__file__).parent
MAY_IMPORT = {
    "model": {"model"},
    "bounds": {"model", "bounds"},
    "search": {"model", "bounds", "search"},
    "emit": {"model", "emit"},
    "extras": {"model", "search", "extras"},
}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_in_one_direction(room):
    for path in sorted((FOLDER / room).glob("*.py")):
        others = set(re.findall(r"from astrasim_py\.synthesis\.(\w+)", path.read_text(encoding="utf-8")))
        assert others <= MAY_IMPORT[room], f"{path.name} imports {others - MAY_IMPORT[room]}"


def test_no_search_imports_extras_at_its_top():
    for path in sorted(FOLDER.glob("*.py")):
        assert not re.search(r"^from astrasim_py\.synthesis\.extras", path.read_text(encoding="utf-8"), re.MULTILINE)
