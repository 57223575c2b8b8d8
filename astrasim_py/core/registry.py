"""Producers by name: algorithms, shapes, network models and readers of traces from outside the package.

Other packages add to it through entry points of the group ``astrasim_py.producers``, named ``<kind>.<name>``:

* ``algorithm.<name>``: ``factory(collective, ranks, **options) -> Algorithm``
* ``shape.<name>``: ``factory(**parameters) -> Topology``, with the parameters as the scenario writes them
* ``network.<name>``: ``factory(engine) -> model``, a network model for the SimPy engine
* ``trace_reader.<name>``: a module as `astrasim_py.workload.trace_readers` describes it

Nothing is imported before it is used.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import AstraError, ScenarioError

GROUP = "astrasim_py.producers"
KINDS = ("algorithm", "shape", "network", "trace_reader")
#: Prefix of the module names of the user's own files.
_OWN = "astrasim_py_own_"


@cache
def _table() -> dict[str, dict[str, EntryPoint]]:
    table: dict[str, dict[str, EntryPoint]] = {kind: {} for kind in KINDS}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        kind, dot, name = entry.name.partition(".")
        if not dot or kind not in table:
            raise ScenarioError(f"entry point {entry.name}", f'its kind "{kind}" is unknown', f"use {', '.join(KINDS)}")
        if name in table[kind]:
            raise ScenarioError(f"entry point {entry.name}", "two packages provide it", "uninstall one of them")
        table[kind][name] = entry
    return table


def names(kind: str) -> tuple[str, ...]:
    """Names that other packages provide, sorted."""
    return tuple(_table()[kind])


def provided(kind: str, name: str) -> Any:
    """The producer of another package by name; imported now.

    Raises ScenarioError: it cannot be imported.
    """
    entry = _table()[kind][name]
    try:
        return entry.load()
    except BaseException as error:
        if stops(error):
            raise
        problem = f"cannot be imported: {_description(error)}"
        raise ScenarioError(f"entry point {entry.name}", problem, "fix or uninstall it") from None


def own_code(path: Path, name: str, place: str) -> Callable:
    """A function or class of the user's own Python file, which is run once for each content it has.

    Raises ScenarioError: the file cannot be run, or has no such name.
    """
    try:
        if not os.path.isfile(path):
            raise ScenarioError(place, f"{path} is not a file", "check the name")
        content = os.fsencode(path) + path.read_bytes()
        module_name = f"{_OWN}{sha256(content).hexdigest()[:16]}"
    except OSError as error:
        raise ScenarioError(place, f"{path} cannot be read: {error.strerror}", "check the name") from None
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ScenarioError(place, f"{path} is not a Python file", "name a .py file")
        sys.modules[module_name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[module_name])
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, AstraError) or stops(error):
                raise
            raise ScenarioError(place, f"{path} failed: {_description(error)}", "fix it") from None
    producer = getattr(sys.modules[module_name], name, None)
    if not callable(producer):
        raise ScenarioError(place, f'{path} has no function or class "{name}"', "check the name after the colon")
    return producer


def made_by(factory: Callable, text: str, kind: type, error: type[AstraError], place: str, *given, **options):
    """The product of an external producer; raises `error` if it fails or has another type."""
    try:
        product = factory(*given, **options)
    except AstraError as cause:
        line = own_line(cause)
        if not line or re.search(r":\d", cause.place):
            raise
        raise error(place, f"{text}: {cause.problem} (at {line})", cause.remedy) from cause
    except BaseException as cause:
        if stops(cause):
            raise
        raise error(place, f"{text} failed: {_description(cause)}", "fix it") from cause
    if not isinstance(product, kind):
        raise error(place, f"{text} gave a {type(product).__name__}", f"return a {kind.__name__}")
    return product


def _description(error: BaseException) -> str:
    """An error in words, with its place in the user's own code where that is known."""
    line = own_line(error)
    if not line and isinstance(error, SyntaxError) and error.filename:
        line = f"{error.filename}:{error.lineno}"
    return f"{type(error).__name__}: {error}{line and f' (at {line})'}"


def own_failure(error: BaseException) -> str:
    """The line that tells of an error in code of the user's own, with its place; empty for other errors."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    line = own_line(error)
    return f"{line}: failed: {text}; fix it" if line else ""


def stops(error: BaseException) -> bool:
    """Whether an error is to end the process: an interruption, or one beside `Exception` that no code of the user's own
    raised.
    """
    if isinstance(error, (Exception, SystemExit)):
        return False
    return isinstance(error, KeyboardInterrupt) or not own_line(error)


def own_line(error: BaseException) -> str:
    """``file:line`` of the last frame of an error in the user's own code, or that of a package that adds producers;
    empty if there is none.
    """
    return _last_line(error, _is_own)


def package_line(error: BaseException) -> str:
    """``file:line`` of the last frame of an error in this package, the file below its folder."""
    line = _last_line(error, lambda module: module.startswith("astrasim_py."))
    return line.replace(os.sep, "/").rpartition("/astrasim_py/")[2]


def _last_line(error: BaseException | None, matches: Callable[[str], bool]) -> str:
    """``file:line`` of the last frame of an error in wanted modules. SimPy raises errors of processes again, with the
    first one as their cause.
    """
    line, seen = "", []
    while error is not None and error not in seen:
        seen.append(error)
        traceback = error.__traceback__
        while traceback is not None:
            if matches(str(traceback.tb_frame.f_globals.get("__name__", ""))):
                line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__
    return line


def _is_own(module: str) -> bool:
    if module.startswith(_OWN):
        return True
    try:
        entries = [entry for table in _table().values() for entry in table.values()]
    except ScenarioError:
        return False
    roots = [entry.module.partition(".")[0] for entry in entries]
    return module.partition(".")[0] in roots and not module.startswith("astrasim_py.")
