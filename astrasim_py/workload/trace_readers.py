"""Readers of traces by name: what other programs wrote becomes a workload of Chakra ETs.

A reader is a module, or another object, with two functions:

* ``arguments(parser)`` adds its options to an `argparse.ArgumentParser`; those that name files have type `FileText`,
* ``read(arguments, say) -> Conversion`` reads what they name; ``say(text)`` tells a person how far it is.

``trace convert NAME`` has these options, and so has ``workload: {reader: NAME, …}``. Other packages provide theirs as
entry points ``trace_reader.<name>``; see `astrasim_py.core.registry`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from astrasim_py.core.by_need import load
from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import FileText, did_you_mean, shown, wrong
from astrasim_py.core.registry import names, provided

if TYPE_CHECKING:
    from astrasim_py.chakra.workload import Workload

#: Our readers: module by name of the format; they stand above, and are found by name as those of other packages are.
READERS = {"astra_sim_text": "astrasim_py.astra_sim.text_reader", "pytorch": "astrasim_py.pytorch.reader"}


class TraceReader(Protocol):
    """A reader of traces."""

    def arguments(self, parser: argparse.ArgumentParser) -> object: ...

    def read(self, arguments: argparse.Namespace, say: Callable[[str], None]) -> Conversion: ...


@dataclass(frozen=True)
class Conversion:
    """The result of a reader.

    Attributes
    ----------
    workload : Workload
    report : mapping
        Details of the conversion, as JSON.
    lines : sequence of str
        The same as text.
    problems : sequence of str
        Reasons not to trust the result; empty if there are none.
    warnings : sequence of str
        What was given and not used, or assumed; a run prints it and fails with ``--strict``.
    """

    workload: Workload
    report: Mapping[str, Any]
    lines: Sequence[str]
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()


def reader_names() -> tuple[str, ...]:
    """Names of all readers, ours first."""
    return (*READERS, *(name for name in names("trace_reader") if name not in READERS))


def trace_reader(name: str) -> TraceReader:
    """The reader of a format, imported now. Raises ScenarioError: another package's cannot be imported."""
    return load(READERS[name]) if name in READERS else provided("trace_reader", name)


def convert(name: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> Conversion:
    """What a reader makes of the files that its options name. Raises AstraError."""
    conversion = trace_reader(name).read(arguments, say)
    if not isinstance(conversion, Conversion):
        problem = f"its read gave a {type(conversion).__name__}"
        raise UsageError(f"trace_reader.{name}", problem, "return a Conversion")
    return conversion


class _Parser(argparse.ArgumentParser):
    """The options of a reader as a scenario writes them: `keys` in place of words that begin with dashes."""

    def __init__(self, name: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.name = name
        trace_reader(name).arguments(self)
        self.keys = {
            max(action.option_strings, key=len, default=action.dest).lstrip("-").replace("-", "_"): action
            for action in self._actions
        }

    def error(self, message: str) -> NoReturn:
        """Tell of an error of `argparse` at its key."""
        remedy = f"trace convert {self.name} --help lists the options"
        option, colon, problem = message.removeprefix("argument ").partition(": ")
        for key, action in self.keys.items():
            if colon and option in ("/".join(action.option_strings), action.dest, action.metavar):
                raise wrong(problem, remedy, (key,))
        raise wrong(re.sub(r"--([a-z])", r"\1", message), remedy)

    def words(self, key: str, value: object) -> list[str]:
        """A key and its value as words of a command line."""
        action, values = self.keys[key], value if isinstance(value, list | tuple) else [value]
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise wrong(f"{shown(value)} is not true or false", "write true or false", (key,))
            return [*action.option_strings[:1]] if value else []
        for item in values:
            if isinstance(item, bool) or not isinstance(item, str | int | float):
                raise wrong(f"{shown(item)} is not a value here", "write a text or a number", (key,))
        texts = [str(item) for item in values]
        if action.nargs is not None:
            return [*action.option_strings[:1], *texts]
        if len(texts) != 1 and not isinstance(action, argparse._AppendAction):
            raise wrong("takes one value", "write it alone", (key,))
        return [f"{action.option_strings[0]}={text}" for text in texts] if action.option_strings else texts


def file_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """The keys that a scenario writes for a reader, with the names of files as `FileText`.

    Raises ScenarioError: the reader cannot be imported; PydanticCustomError at a key: unknown, missing, or with a value
    that the option does not take.
    """
    if name not in reader_names():
        raise wrong(f'there is no reader "{name}"', did_you_mean(name, reader_names()), ("reader",))
    parser = _Parser(name)
    if unknown := [key for key in options if key not in parser.keys]:
        remedy = did_you_mean(unknown[0], ("reader", "partial", *parser.keys))
        raise wrong("is not a key here", remedy, (unknown[0], "@key"))
    parsed_options(name, options)
    files = {key: value for key, value in options.items() if parser.keys[key].type is FileText}
    return {**options} | {
        key: tuple(map(FileText, value)) if isinstance(value, list | tuple) else FileText(value)
        for key, value in files.items()
    }


def parsed_options(name: str, options: Mapping[str, object]) -> argparse.Namespace:
    """What a reader takes as its arguments. Raises as `file_options`."""
    parser = _Parser(name)
    positional = [key for key, action in parser.keys.items() if key in options and not action.option_strings]
    words = [word for key in options if key not in positional for word in parser.words(key, options[key])]
    words += ["--", *(word for key in positional for word in parser.words(key, options[key]))] if positional else []
    return parser.parse_args(words)
