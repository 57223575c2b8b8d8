"""Every parser of the command line, for what is made from all of them: tables of options, completion, tests."""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from astrasim_py.cli.main import Parser, parser_of
from astrasim_py.cli.verbs import commands


class Command(NamedTuple):
    """A verb, an action, or a format of `trace convert`: its words, a line of help, and its parser."""

    path: tuple[str, ...]
    text: str
    parser: Parser

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def arguments(self) -> list[argparse.Action]:
        """What it takes besides --help, in the order of its help."""
        return [
            action
            for action in self.parser._actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
            and action.help != argparse.SUPPRESS
        ]

    @property
    def actions(self) -> list[str]:
        """Words of which one may follow, as they are in the table of verbs or in its parser."""
        nested = self.parser.nested
        return [*(path[-1] for path, _ in commands() if path[:-1] == self.path), *(nested.choices if nested else ())]


def every_command() -> Iterator[Command]:
    """All of them, each before its actions."""
    for path, verb in commands():
        yield from _with_actions(Command(path, verb.text, parser_of(path, verb.module, verb.about)))


def _with_actions(command: Command) -> Iterator[Command]:
    yield command
    nested = command.parser.nested
    for name, parser in nested.choices.items() if nested else ():
        parser.complete()
        yield from _with_actions(Command((*command.path, name), parser.description or "", parser))
