"""Options that mean the same in several verbs, beside those of a run (`cli.options`): one help text each."""

import argparse
from typing import Any

from astrasim_py.cli import options
from astrasim_py.core.errors import UsageError

OTHERS: options.Options = {
    "--output": {"metavar": "FILE", "help": "file to write, or prefix of files"},
    "--only": {"action": "append", "default": [], "metavar": "NAME", "help": "only this set or source; repeatable"},
    "--seed": {"type": int, "metavar": "N", "help": "equal seeds give equal results"},
    "--budget": {"metavar": "T", "help": 'wall-clock time of the search at most, e.g. "30 s"'},
    "--collective": {"metavar": "COLLECTIVE", "help": "all_gather, all_reduce, …"},
    "--root": {"type": int, "metavar": "RANK", "help": "of a rooted collective"},
    "--contract": {"metavar": "FILE", "help": "what a custom collective must do, in YAML"},
    "--groups": {"metavar": "FILE", "help": "JSON of group: [ranks]; that beside the traces by default"},
    "--dependencies": {"choices": ("data", "data+ctrl"), "help": "which of them count (what the traces say)"},
    "--rank": {"type": int, "default": 0, "metavar": "N", "help": "which rank (0)"},
    "--size": {"metavar": "S", "help": 'size of the full buffer, e.g. "64 MiB"'},
    "--gzip": {"action": "store_true", "help": "compress .et files"},
    "--programs": {"metavar": "FOLDER", "help": "MSCCL-IR files of the given programs that were timed"},
    "--preset": {"metavar": "NAME", "help": "machine: a preset, or a file of one"},
    "--profile": {"metavar": "NAME", "help": "what a library costs: a preset, or a file of one"},
    "--figures": {"action": "store_true", "help": "draw figures, in --out"},
    "--explain": {"action": "store_true", "help": "terms of the closed form and the memory; no simulation"},
    "--algorithm": {
        "action": "append",
        "default": [],
        "metavar": "COLLECTIVE=NAME",
        "help": "what carries out a collective, as under algorithms: of a scenario; repeatable",
    },
    "--from": {"dest": "sources", "nargs": "+", "required": True, "metavar": "IN", "help": "sets of traces"},
    "--dialect": {"metavar": "DIALECT", "help": "of .xml: classic, azure or rccl, the runtime that it is for"},
}


def add(parser: argparse._ActionsContainer, *names: str, note: str = "", **changes: Any) -> None:
    """Add options of `OTHERS`; see `cli.options.add`."""
    options.add(parser, *names, note=note, table=OTHERS, **changes)


def gone_option(parser: argparse.ArgumentParser, name: str, problem: str, remedy: str) -> None:
    """An option that was removed: it is refused, with what to use instead."""

    def refuse(text: str) -> str:
        raise UsageError(name, problem, remedy)

    parser.add_argument(name, type=refuse, help=argparse.SUPPRESS)
