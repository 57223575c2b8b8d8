"""What lower floors call of upper ones: `astrasim_py/__init__.py` says where each function is."""

from collections.abc import Callable
from importlib import import_module

#: Name of a function → the module that has it.
HOMES: dict[str, str] = {}


def above(name: str) -> Callable:
    """A function of an upper floor; its module is imported now."""
    return getattr(import_module(HOMES[name]), name)
