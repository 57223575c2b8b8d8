"""Imports go down the floors, never up or sideways between rooms that do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FLOORS = {
    "core": 0,
    "chakra": 1,
    "topology": 1,
    "collectives": 2,
    "workload": 2,
    "program": 3,
    "verification": 4,
    "builders": 5,
    "msccl": 6,
    "synthesis": 6,
    "system": 7,
    "engine": 8,
    "scenario": 9,
    "astra_sim": 9,
    "report": 10,
    "study": 11,
    "cli": 12,
}
STRANGERS = {("chakra", "topology"), ("topology", "chakra"), ("scenario", "astra_sim"), ("astra_sim", "scenario")}
PACKAGE = Path(__file__).resolve().parents[1] / "astrasim_py"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if len(p.relative_to(PACKAGE).parts) > 1)
HEAVY = {"matplotlib", "networkx", "numba", "pandas"}


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "astrasim_py":
                names += [f"astrasim_py.{alias.name}" for alias in node.names]
        rooms |= {n.split(".")[1] for n in names if n.startswith("astrasim_py.")}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = path.relative_to(PACKAGE).parts[0]
    assert room in FLOORS, f"{room} has no floor"
    for other in imported_rooms(path) & set(FLOORS):
        assert FLOORS[other] <= FLOORS[room], f"{room} imports {other} from above"
        assert (room, other) not in STRANGERS, f"{room} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_used_only(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not HEAVY & {n.split(".")[0] for n in names}, f"{path} imports a heavy library at its top"
