"""What lower floors call of upper ones."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def above(name: str) -> Callable[..., Any]:
    """A function of the public interface; its module is imported now, by the package that lists all of them."""
    return getattr(import_module("astrasim_py"), name)
