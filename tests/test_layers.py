"""Imports go down the floors, never up, sideways between rooms that do not know each other, or in circles."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import astrasim_py
from astrasim_py.preparation import schedules
from astrasim_py.results import store

FLOORS = {
    "core": 0,
    "chakra": 1,
    "topology": 1,
    "collectives": 2,
    "workload": 2,
    "program": 3,
    "training": 3,
    "pytorch": 3,
    "measured": 3,
    "cuts": 3,
    "verification": 4,
    "builders": 5,
    "msccl": 6,
    "mscclpp": 6,
    "synthesis": 6,
    "system": 7,
    "dialects": 7,
    "dialects/rules": 7,
    "dialects/lower": 7,
    "engine": 8,
    "dialects/simpy": 8,
    "dialects/kernel": 8,
    "sharing": 9,
    "scenario": 9,
    "astra_sim": 9,
    "results": 10,
    "report": 11,
    "preparation": 12,
    "runs": 13,
    "dialects/check": 13,
    "api": 14,
    "inspection": 14,
    "validation": 14,
    "live": 15,
    "exploration": 15,
    "optimizer": 15,
    "cli": 16,
    "__init__": 17,
    "__main__": 17,
}
STRANGERS = {("chakra", "topology"), ("topology", "chakra"), ("scenario", "astra_sim"), ("astra_sim", "scenario")}
#: By name, when it is asked for: `+` and `split` of an algorithm are functions of builders; readers of traces are found
#: as those of other packages are.
UPWARD = {
    ("astrasim_py.core.above", "astrasim_py"),
    ("astrasim_py.workload.trace_readers", "astrasim_py.astra_sim.text_reader"),
    ("astrasim_py.workload.trace_readers", "astrasim_py.pytorch.reader"),
}
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(astrasim_py.__file__).parent
#: Slow to import: never at the top of a module, but of those that are themselves imported where used only.
HEAVY = {"matplotlib", "networkx", "numba", "pandas", "scipy", "ortools", "distributed"}
#: Ours that are as slow to import.
SLOW = {"astrasim_py.core.jit", "astrasim_py.synthesis.request", "astrasim_py.synthesis.solve"}
#: Rooms that only some scenarios need: a run of the others imports nothing of them.
BY_NEED = {"training", "pytorch", "sharing", "measured", "msccl", "synthesis", "astra_sim", "optimizer"}
#: Modules by which only some runs are done.
OPTIONAL = {
    "astrasim_py.builders.bruck",
    "astrasim_py.builders.rails",
    "astrasim_py.builders.split",
    "astrasim_py.builders.switch_trees",
    "astrasim_py.chakra.attributes",
    "astrasim_py.chakra.decode",
    "astrasim_py.chakra.et_def_pb2",
    "astrasim_py.chakra.et_io",
    "astrasim_py.chakra.lint",
    "astrasim_py.chakra.messages",
    "astrasim_py.dialects.chunks.lower",
    "astrasim_py.engine.choose",
    "astrasim_py.engine.compare",
    "astrasim_py.engine.compiled.waiting",
    "astrasim_py.engine.fold",
    "astrasim_py.engine.fold_roles",
    "astrasim_py.engine.stuck",
    "astrasim_py.preparation.by_dimension",
    "astrasim_py.preparation.workloads.blocks",
    "astrasim_py.report.arranged_rows",
    "astrasim_py.report.chosen_rows",
    "astrasim_py.report.critical_path",
    "astrasim_py.report.flows",
    "astrasim_py.report.plots",
    "astrasim_py.report.record_plots",
    "astrasim_py.report.row_selection",
    "astrasim_py.report.timeline",
    "astrasim_py.runs.better_algorithm",
    "astrasim_py.runs.chosen_points",
    "astrasim_py.runs.cluster",
    "astrasim_py.runs.jobs",
    "astrasim_py.runs.pool",
    "astrasim_py.scenario.overrides",
    "astrasim_py.system.noise",
    "astrasim_py.topology.drawing",
    "astrasim_py.topology.edge_list",
    "astrasim_py.topology.export",
    "astrasim_py.topology.fabrics",
    "astrasim_py.topology.graphml",
    "astrasim_py.topology.grid",
    "astrasim_py.topology.irregular",
    "astrasim_py.topology.link_defaults",
    "astrasim_py.topology.link_states",
    "astrasim_py.topology.node_link",
    "astrasim_py.topology.plain_list",
    "astrasim_py.topology.profile",
    "astrasim_py.topology.topology_files",
    "astrasim_py.topology.unwind",
    "astrasim_py.verification.contract_bounds",
    "astrasim_py.verification.routed_bounds",
    "astrasim_py.verification.verifier",
}
#: Rooms whose every command must start at once: they import what they run inside functions.
LAZY = {"cli", "api"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py")) if "lessons" not in p.parts}
ROOMS = {name: path for name, path in MODULES.items() if len(path.relative_to(PACKAGE).parts) > 1}


def names_of(node: ast.AST) -> list[str]:
    """Modules that an import statement names, ours as far as they are files; or a text ``module:name`` (`by_need`)."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name, colon, _ = node.value.partition(":")
        return [name] if colon and name in MODULES else []
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else node.module for name in inner]
    return []


@cache
def imports(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Modules imported at the top of a module, and anywhere else in it, by need included."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    top = {x for node in tree.body for x in names_of(node)}
    return frozenset(top), frozenset(x for node in ast.walk(tree) for x in names_of(node)) - top


@cache
def by_need(name: str) -> frozenset[str]:
    """Modules that the texts of a module name, which `core.by_need` imports."""
    texts = [node for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))) if isinstance(node, ast.Constant)]
    return frozenset(x for node in texts for x in names_of(node))


@cache
def loads_heavy(name: str) -> bool:
    """Whether importing a module imports a heavy library, compiled code or the synthesizer, sooner or later."""
    if name not in MODULES:
        return name.split(".")[0] in HEAVY
    return name in SLOW or any(loads_heavy(other) for other in imports(name)[0])


def room(name: str) -> str:
    """The folder of a module; a part of a dialect, say ``dialects/tiles/lower.py``, has a floor of its own."""
    path = MODULES[name].relative_to(PACKAGE)
    part = path.stem.partition("_")[0] if len(path.parts) == 3 and path.parts[0] == "dialects" else ""
    return f"dialects/{part}" if part else path.parts[0].removesuffix(".py")


@cache
def loads_feature(name: str) -> bool:
    """Whether importing a module imports what few scenarios need, sooner or later."""
    return (
        room(name) in BY_NEED
        or name in OPTIONAL
        or room(name).startswith("dialects/")
        or any(loads_feature(other) for other in imports(name)[0] & ROOMS.keys())
    )


@cache
def named(name: str) -> frozenset[str]:
    """Modules that are texts of a module; the package itself, if `import_module` gets its name."""
    nodes = list(ast.walk(ast.parse(MODULES[name].read_text("utf-8"))))
    calls = [node for node in nodes if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and "." in str(node.value)}
    texts |= {part.value for call in calls for part in call.args if isinstance(part, ast.Constant)}
    return frozenset(texts & MODULES.keys())


def test_imports_go_down():
    wrong = []
    for name in MODULES:
        here = room(name)
        assert here in FLOORS, f"{here} has no floor"
        for other in set().union(*imports(name), named(name)) & MODULES.keys():
            there = room(other)
            if (FLOORS[there] > FLOORS[here] or (here, there) in STRANGERS) and (name, other) not in UPWARD:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_no_imports_in_circles():
    """Imports inside functions count, too: they do not open a circle, they hide it."""
    order: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in order:
            top, inner = imports(name)
            for other in sorted((top | inner) & MODULES.keys() - {name}):
                visit(other, (*path, name))
            order[name] = len(order)

    for name in MODULES:
        visit(name, ())


def test_imports_inside_functions_have_a_reason():
    """The reason is the time that a heavy library, or a verb or feature that is not asked for, takes to load; a package
    itself is imported with each of its modules.
    """
    wrong = [
        f"{name} imports {other} inside a function"
        for name in ROOMS
        if room(name) not in LAZY and MODULES[name].name != "__init__.py"
        for other in imports(name)[1] & MODULES.keys() - by_need(name)
        if room(other) == room(name) and not loads_heavy(other) and not loads_feature(other)
    ]
    assert wrong == []


def test_heavy_libraries_are_imported_where_used_only():
    wrong = [f"{name}: {x}" for name in ROOMS for x in imports(name)[0] if x.split(".")[0] in HEAVY]
    assert wrong == []


def modules_of(*arguments: str) -> set[str]:
    """Modules of ours that a process with these arguments of the command line imports."""
    code = "import sys; from astrasim_py.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return {name for name in done.stderr.splitlines()[-1].split() if name in ROOMS}


def test_a_plain_run_imports_no_feature_that_it_does_not_name(tmp_path):
    """Four NPUs in a ring, without figures: no model, recording, measured row, XML file, synthesis or other input."""
    scenario = tmp_path / "ring.yaml"
    scenario.write_text((ROOT / "scenarios" / "first_steps.yaml").read_text("utf-8").partition("\nplots:")[0], "utf-8")
    loaded = modules_of("run", str(scenario), "--out", str(tmp_path), "--quiet", "--jobs", "1")
    assert sorted(name for name in loaded if room(name) in BY_NEED or name in OPTIONAL) == []
    assert sorted(name for name in loaded if room(name).startswith("dialects")) == []
    assert {name for name in loaded if room(name) == "builders"} < {name for name in ROOMS if room(name) == "builders"}


def test_the_compiled_engine_imports_no_dialect():
    """`core.jit.optional` does, for a run that needs one."""
    assert not loads_feature("astrasim_py.engine.compiled.engine")
    assert not loads_feature("astrasim_py.engine.compiled.kernel")


@pytest.mark.parametrize(
    ("name", "options", "most_modules", "most_lines"),
    [("first_steps", (), 150, 24_000), ("ring_vs_torus", ("--share", "1/140"), 182, 30_200)],
)
def test_a_run_imports_no_more_than_it_did(tmp_path, name, options, most_modules, most_lines):
    """`benchmarks/loaded.py --list` says what imports each module first."""
    scenario = str(ROOT / "scenarios" / f"{name}.yaml")
    loaded = modules_of("run", scenario, "--out", str(tmp_path), "--quiet", "--jobs", "1", *options)
    lines = sum(len(MODULES[module].read_text("utf-8").splitlines()) for module in loaded)
    assert (len(loaded) <= most_modules, lines <= most_lines) == (True, True), f"{len(loaded)} modules, {lines} lines"


def test_algorithms_in_traces_import_no_reader_of_xml():
    loaded = modules_of("check", str(ROOT / "scenarios" / "ring_vs_torus.yaml"))
    assert [name for name in sorted(loaded) if room(name) in BY_NEED] == []


def test_results_on_stdout_have_one_layout():
    """`core.exact_json` writes them; beside it verbs print the schema, and labels of Graphviz."""
    others = {"astrasim_py.cli.schema", "astrasim_py.cli.trace_edit"}
    verbs = {name for name in ROOMS if room(name) == "cli"} - others
    assert [name for name in sorted(verbs) if "json.dumps" in MODULES[name].read_text("utf-8")] == []


def test_contributing_lists_the_floors():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    listed = {name: int(floor) for floor, names in rows for name in re.findall(r"`([\w/]+)`", names)}
    assert listed == FLOORS


@pytest.mark.parametrize(
    ("roots", "parts"),
    [
        (("astrasim_py.runs.task", "astrasim_py.runs.astra_sim_point"), store.DECIDING),
        ([name for name in ROOMS if room(name) == "synthesis"], schedules.DECIDING),
    ],
    ids=["points", "schedules"],
)
def test_an_edition_covers_all_that_decides(roots, parts):
    """`core.edition`: else a stored result would outlive a change of what it was computed by."""
    reached, waiting = set(), list(roots)
    while waiting:
        name = waiting.pop()
        if name in ROOMS and name not in reached:
            reached.add(name)
            waiting += imports(name)[0] | imports(name)[1]
    names = {path.relative_to(PACKAGE).as_posix() for path in map(ROOMS.get, reached) if path.name != "__init__.py"}
    assert {name for name in names if name not in parts and name.split("/")[0] not in parts} == set()
    assert all((PACKAGE / part).exists() for part in parts)


def test_the_list_of_dialects_names_all_their_parts_and_where_these_are_called_from():
    """The docstring of ``dialects``: what to delete with a dialect."""
    text = ast.get_docstring(ast.parse((PACKAGE / "dialects" / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"^\* (\w+): ([^;\n]+); called from (.+?)(?=^\* |\Z)", text, re.MULTILINE | re.DOTALL)
    listed = {name: [cell.replace(",", " ").split() for cell in cells] for name, *cells in rows}
    folders = {path.name for path in (PACKAGE / "dialects").iterdir() if (path / "__init__.py").exists()}
    assert set(listed) == folders
    for name, (parts, callers) in listed.items():
        home = f"{PACKAGE.name}.dialects.{name}"
        within = {module for module in ROOMS if module.startswith(f"{home}.")}
        users = [module for module in ROOMS if module not in within and set().union(*imports(module)) & within]
        assert parts == sorted(module.removeprefix(f"{home}.") for module in within)
        assert callers == sorted(module.removeprefix(f"{PACKAGE.name}.").replace(".", "/") for module in users), name
