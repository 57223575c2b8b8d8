"""An option means the same in every verb: one metavar and one help, but for what a verb adds in parentheses."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from astrasim_py.cli import options, shared_options
from astrasim_py.cli.parsers import every_command

#: Options whose values are not the same everywhere, and why.
EXCEPTIONS = {
    "--all": "of explore the file of all configurations; of new all lessons, which need no file",
    "--tolerance": "of measured check percent of a time, of trace diff a part of a duration",
    "--output": "one file, or the prefix of a set of files where one is written: train",
}


def meanings() -> dict[str, dict[tuple[str | None, str], list[str]]]:
    """Option → metavar and help, without what stands in parentheses at its end → the commands."""
    found: dict[str, dict[tuple[str | None, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in every_command():
        for action in command.arguments:
            metavar = action.metavar if isinstance(action.metavar, str) else None
            text = re.sub(r" \([^()]*\)$", "", action.help or "")
            for option in action.option_strings:
                found[option][metavar, text].append(command.name)
    return found


def test_an_option_means_the_same_in_every_verb():
    several = {name: dict(texts) for name, texts in meanings().items() if len(texts) > 1}
    assert several.keys() - {"-o"} == EXCEPTIONS.keys(), several


def test_every_option_says_what_it_is():
    assert [name for name, texts in meanings().items() for _, text in texts if not text] == []


@pytest.mark.parametrize("name", [*options.SHARED, *shared_options.OTHERS])
def test_shared_options_are_shared(name):
    ((_, commands_of),) = meanings()[name].items() if name != "--output" else [("", [1, 2])]
    assert len(commands_of) > 1 and (name in options.SHARED) + (name in shared_options.OTHERS) == 1


def test_out_is_a_folder_and_o_a_file():
    texts = meanings()
    assert {metavar for metavar, _ in texts["--out"]} == {"FOLDER"}
    assert {metavar for metavar, _ in texts["--output"]} == {"FILE", "PREFIX"} and "-o" in texts


def test_every_argument_says_what_it_is():
    silent = [
        f"{command.name} {action.metavar or action.dest}"
        for command in every_command()
        for action in command.arguments
        if not action.help
    ]
    assert silent == []
