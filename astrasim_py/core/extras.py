"""Packages that only some tasks need; the extras of ``pyproject.toml`` install them."""

import importlib
from types import ModuleType

from astrasim_py.core.errors import UsageError


def optional_module(name: str, extra: str, what: str) -> ModuleType:
    """Import a module of an extra. `what`: the task that needs it. Raises UsageError: it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        problem, remedy = f"needs {package}, which is not installed", f"pip install 'astrasim-py[{extra}]'"
        raise UsageError(what, problem, remedy) from None
