"""``--engine``, the same for every verb that simulates."""

from __future__ import annotations

import argparse

from astrasim_py.core.engines import AUTO, ENGINES


def engine_argument(parser: argparse.ArgumentParser, default: str | None = AUTO) -> None:
    """Declare it; no default: the scenario's."""
    usual = "the scenario's, else auto" if default is None else default
    text = f"auto picks by size; both runs both engines and compares every record ({usual})"
    parser.add_argument("--engine", choices=ENGINES, default=default, help=text)
