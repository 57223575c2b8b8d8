"""Options that mean the same in several verbs, beside those of a run (`cli.options`): one help text each."""

import argparse

from astrasim_py.core.errors import UsageError


def only_option(parser: argparse.ArgumentParser) -> None:
    """``--only``, of verbs that read sets of measured times."""
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this set or source; repeatable"
    )


def gone_option(parser: argparse.ArgumentParser, name: str, problem: str, remedy: str) -> None:
    """An option that was removed: it is refused, with what to use instead."""

    def refuse(text: str) -> str:
        raise UsageError(name, problem, remedy)

    parser.add_argument(name, type=refuse, help=argparse.SUPPRESS)
