"""Type checkers and editors see the public names, with true types."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import astrasim_py as ap
from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.builders.registry import BUILDERS, options_of
from astrasim_py.inspection.look import PlotKeys
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.plan import PointKeys
from astrasim_py.scenario.plot_spec import PlotSpec
from astrasim_py.system.machine_models import Limits, NetworkKeys, NetworkModel
from astrasim_py.workload.build import ComputeKeys, ItemKeys
from astrasim_py.workload.items import Compute, Item

PACKAGE = Path(ap.__file__).parent
USER = """
import astrasim_py as ap

topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
ring = ap.build_algorithm("ring", "all_reduce", 4)
problem = ap.collective("all_reduce", "1 MiB", topology, algorithm=ring)
records = ap.simulate(problem)
result = ap.run("scenarios/first_steps.yaml", out="results")
step = ap.workload(4, name="step").compute("100 us").all_gather("1 MiB")
reveal_type(topology)
reveal_type(ring)
reveal_type(problem)
reveal_type(records)
reveal_type(records.makespan)
reveal_type(records.link["bytes"])
reveal_type(result)
reveal_type(step)
"""
REVEALED = [
    "astrasim_py.topology.model.Topology",
    "astrasim_py.program.algorithm.Algorithm",
    "astrasim_py.system.problem.Problem",
    "astrasim_py.core.records.Records",
    "int",
    "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]",
    "astrasim_py.runs.sweep.RunResult",
    "astrasim_py.workload.build.WorkloadBuilder",
]
MISTAKES = {
    'ap.simulate("ring")': "[arg-type]",
    "ap.simulate_all": "[attr-defined]",
    'ap.workload("4")': "[arg-type]",
}


def test_every_public_name_is_re_exported_under_its_own_name():
    """A stub exports `x` of ``import x as x`` only; the same file says from where a name is imported at run time."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text("utf-8"))
    names = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.name == alias.asname for alias in names)
    assert [alias.name for alias in names] == [name for name in ap.__all__ if name != "__version__"]


#: Its shapes may be of another package, and have keys of their own.
OPEN = "build_topology"


def public_functions():
    for name in ap.__all__:
        value = getattr(ap, name)
        if inspect.isclass(value):
            members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
            for key, member in members.items():
                function = getattr(member, "fget", None) or getattr(member, "func", None)
                function = function or getattr(member, "__func__", member)
                if inspect.isfunction(function):
                    yield f"{name}.{key}", function
        elif inspect.isfunction(value):
            yield name, value


def test_public_functions_say_all_types():
    """Not `Any`, and no options without names."""
    wrong = []
    for name, function in public_functions():
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            said = str(parameter.annotation)
            if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls"):
                wrong.append(f"{name}: {parameter.name} has no type")
            elif "Any" in said:
                wrong.append(f"{name}: {parameter.name} is {said}")
            elif parameter.kind is parameter.VAR_KEYWORD and not re.match(r"\*|.*Unpack", said) and name != OPEN:
                wrong.append(f"{name}: the options {parameter.name} have no names")
        if signature.return_annotation is signature.empty or "Any" in str(signature.return_annotation):
            wrong.append(f"{name} does not say what it returns")
    assert wrong == []


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        (NetworkKeys, NetworkModel.model_fields.keys()),
        (PlotKeys, PlotSpec.model_fields.keys() - {"kind"}),
        (BuilderKeys, {option for builder in BUILDERS for option in options_of(builder)}),
        (PointKeys, {f.name for f in fields(RunOptions)} - {"limits"} | Limits.model_fields.keys()),
        (ItemKeys, Item.model_fields.keys()),
        (ComputeKeys, Compute.model_fields.keys() - {"time", "operations", "bytes", "ranks"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_keys_are_those_that_are_known(keys, known):
    assert keys.__annotations__.keys() | getattr(keys, "__optional_keys__", set()) == set(known)


def test_importing_the_package_imports_nothing_of_it():
    program = "import sys, astrasim_py; print(*(name for name in sys.modules if name.startswith('astrasim_py')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["astrasim_py"]


def test_an_exception_from_a_rule_of_types_has_its_reason():
    lines = [(path.name, line) for path in PACKAGE.rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    unsaid = [f"{name}: {line}" for name, line in lines if "# type: ignore" in line and line.count("  # ") < 2]
    assert unsaid == []


@pytest.mark.slow
def test_a_users_program_is_checked(tmp_path):
    """As where the package is installed: its own errors are not shown, but its annotations count."""
    (tmp_path / "right.py").write_text(USER, "utf-8")
    (tmp_path / "wrong.py").write_text("\n".join(["import astrasim_py as ap", *MISTAKES, ""]), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "right.py", "wrong.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), "MYPY_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.stderr == ""
    right = [line for line in done.stdout.splitlines() if line.startswith("right.py")]
    assert [line.partition(": note: Revealed type is ")[2].strip('"') for line in right] == REVEALED
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong.py")]
    places = [f"wrong.py:{number}: error: " for number in range(2, 2 + len(MISTAKES))]
    assert all(line.startswith(place) for line, place in zip(wrong, places, strict=True)), wrong
    assert [line.split()[-1] for line in wrong] == list(MISTAKES.values())
