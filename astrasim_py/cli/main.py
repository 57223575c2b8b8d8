"""From argv to an exit code. stdout carries the result, stderr progress and errors."""

import argparse
import codecs
import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from astrasim_py.cli.options import complain
from astrasim_py.core import errors

#: Verbs without actions and without former spellings that the present grammar takes: neither table is loaded for them.
_PLAIN = ("run", "check")
_WORD = re.compile(r"[a-z-]+")
_RAW = argparse.RawDescriptionHelpFormatter

EPILOG = """exit codes: 0 ok, 1 a check failed, 2 bad usage or scenario, 3 bad trace or algorithm,
4 stuck or limit reached, 5 output not writable, 70 a defect of this program, 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose exit code is ours. Options are written out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    @property
    def nested(self) -> "argparse._SubParsersAction[Parser] | None":
        """What holds the parsers of its own actions, if it has any."""
        return next((action for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)

    def complete(self) -> None:
        """Add what is added only once this parser is wanted."""

    def error(self, message: str) -> NoReturn:
        remedy = "see --help"
        if unknown := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            from astrasim_py.core.fields import did_you_mean

            near = did_you_mean(unknown[1], self._option_string_actions)
            remedy = near if near.startswith("did") else remedy
        raise errors.UsageError(self._place, message, remedy)

    @property
    def _place(self) -> str:
        """The verb and its actions."""
        return self.prog.partition(" ")[2] or self.prog

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of an option's choices, with the nearest one."""
        if action.choices is not None and value not in action.choices:
            from astrasim_py.core.fields import did_you_mean

            place = "/".join(action.option_strings) or str(action.metavar or action.dest)
            hint = did_you_mean(str(value), map(str, action.choices))
            raise errors.UsageError(f"{self._place}: {place}", f'"{value}" is none of its values', hint)


def parser_of(path: Sequence[str], module: str, about: str = "", prog: str = "astrasim-py") -> Parser:
    """The parser of a verb or an action, which a module of `astrasim_py.cli` does, or none. `about`: what stands in its
    help besides what the module says.
    """
    does = importlib.import_module(f"astrasim_py.cli.{module}") if module else None
    name = " ".join((prog, *path))
    parser = Parser(
        prog=name,
        usage=None if does else f"{name} ACTION …",
        description="\n\n".join(filter(None, ((does.__doc__ or "").strip() if does else "", about))),
        epilog=EPILOG,
        formatter_class=_RAW,
    )
    if does:
        does.arguments(parser)
    return parser


def parse(argv: Sequence[str], prog: str = "astrasim-py") -> tuple[ModuleType, argparse.Namespace] | None:
    """The verb's module and its arguments; None when there is nothing left to do. Raises UsageError."""
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        from astrasim_py.cli.verbs import summary

        parser = Parser(
            prog=prog, usage=f"{prog} [VERB] …", description=summary(prog), epilog=EPILOG, formatter_class=_RAW
        )
        parser.add_argument("--version", action="store_true", help="print the version")
        parser.print_help()
        return None
    if words[0] == "--version":
        from importlib.metadata import version

        print(version("astrasim-py"))
        return None
    if words[0] in _PLAIN or not _WORD.fullmatch(words[0]):
        try:
            return _parsed(words, prog)
        except errors.UsageError:
            renewed = _renewed(words)
            if renewed == words:
                raise
            return _parsed(renewed, prog)
    return _parsed(_renewed(words), prog)


def _parsed(words: list[str], prog: str) -> tuple[ModuleType, argparse.Namespace] | None:
    path: tuple[str, ...]
    if words[0] in _PLAIN:
        path, module, about, rest = (words[0],), words[0], "", words[1:]
    elif not _WORD.fullmatch(words[0]):
        path, module, about, rest = ("run",), "run", "", words
    else:
        from astrasim_py.cli.verbs import command

        path, verb, rest = command(words)
        module, about = verb.module, verb.about
    parser, given = parser_of(path, module, about, prog), argparse.Namespace()
    while (nested := parser.nested) is not None and rest and rest[0] in nested.choices:
        setattr(given, nested.dest, rest[0])
        parser = nested.choices[rest.pop(0)]
    if not module or (not rest and nested is not None):
        parser.print_help()
        return None
    does = importlib.import_module(f"astrasim_py.cli.{module}")
    mixed = getattr(does, "MIXED", False)  # options may stand between positional arguments
    return does, parser.parse_intermixed_args(rest) if mixed else parser.parse_args(rest, given)


def _renewed(words: list[str]) -> list[str]:
    """Words in the present spelling; a line on stderr says so where they were in a former one."""
    from astrasim_py.cli.former import note, renewed

    present = renewed(words)
    if present != words:
        complain([note(words, present)])
    return present


def main(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code. Nothing escapes as a traceback unless ASTRASIM_DEBUG=1."""
    _usable_streams()
    try:
        try:
            parsed = parse(argv)
        except SystemExit as stop:  # of --help
            return stop.code if isinstance(stop.code, int) else errors.EXIT_OK
        code = errors.EXIT_OK
        if parsed is not None:
            module, arguments = parsed
            from astrasim_py.core import compiling
            from astrasim_py.core.interrupts import interruptible

            # The first use of compiled code takes a while: say so, for all of it at once.
            quiet = getattr(arguments, "quiet", False)
            compiling.announce = None if quiet else compiling.Once(lambda line: complain([line]))
            with interruptible():
                code = module.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone: whatever is still buffered has nowhere to go.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return errors.EXIT_OK
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            complain([f"stdout cannot be written: {error.strerror}; free some space, or send it elsewhere"])
            return errors.EXIT_OUTPUT
        from astrasim_py.cli.endings import ends, told

        if os.environ.get("ASTRASIM_DEBUG") == "1" or ends(error):
            raise
        code, lines = told(error)
        complain(lines)
        return code


#: Characters of our texts that a stream may be unable to encode, and the ASCII for them, of the same width.
_ASCII = dict(zip("µμ–—…·×→“”", 'uu--.*x>""', strict=True))


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _usable_streams() -> None:
    """Closed streams swallow what is written to them; the others show ``us`` for ``µs`` where their encoding lacks it,
    and ``?`` for what has no ASCII.
    """
    codecs.register_error("astrasim_py", _in_ascii)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="astrasim_py")
