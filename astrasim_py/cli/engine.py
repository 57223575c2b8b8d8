"""``--engine``, the same for every verb that simulates."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping

from astrasim_py.core.choices import AUTO, ENGINES


def engine_argument(parser: argparse.ArgumentParser, default: str | None = AUTO) -> None:
    """Declare it; no default: the scenario's."""
    usual = "the scenario's, else auto" if default is None else default
    text = f"auto picks by size; both runs both engines and compares every record ({usual})"
    parser.add_argument("--engine", choices=ENGINES, default=default, help=text)


def engines_text(ran: Iterable[str | None] | Mapping[str, int]) -> str:
    """A line that says which engine ran how often; empty where none was run.

    Examples
    --------
    >>> engines_text(["simpy", "compiled", "compiled", None])
    'engines: compiled 2, simpy 1\\n'
    """
    ran = Counter(ran)
    ran.pop(None, None)
    if not ran:
        return ""
    if len(ran) == 1:
        return f"engine: {next(iter(ran))}\n"
    return f"engines: {', '.join(f'{name} {ran[name]}' for name in sorted(ran))}\n"
