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

#: Verb → (module of `astrasim_py.cli`, one line of help). A first argument that is no verb means ``run``.
VERBS = {
    "run": ("run", "run scenarios"),
    "check": ("check", "load and expand scenarios without simulating"),
    "verify": ("verify", "verify algorithms: correct, terminating, free of races"),
    "validate": ("validate", "compare with closed forms and with measured runs of ASTRA-sim"),
    "calibrate": ("calibrate", "find a profile's numbers from measured times of collectives"),
    "synthesize": ("synthesize", "find an algorithm for a topology, with its distance from the bound"),
    "convert": ("convert", "turn an algorithm or a workload into another format"),
    "train": ("train", "training of a model on a cluster: step time, memory, traces"),
    "explore": ("explore", "price every way to train a model, and simulate the best"),
    "optimize": ("optimize", "choose algorithms, pieces, buckets, order and placement for a whole step"),
    "list": ("list", "list presets, shapes, builders, models, plots, lessons"),
    "topology": ("topology", "say what a topology has, and draw it"),
    "astra-sim": ("astra_sim", "run ASTRA-sim's own inputs: same flags, same numbers"),
    "trace": ("trace", "lint, summarise, show, compare, shrink or share Chakra traces"),
    "runs": ("runs", "list stored points, also those of older versions of a scenario"),
    "explain": ("explain", "say where the time of a finished point went"),
    "compare": ("compare", "put two results side by side"),
    "plot": ("plot", "draw the figures of a finished scenario again"),
    "view": ("view", "write a page that plays a finished point"),
    "new": ("new", "copy a packaged lesson to start from"),
    "lesson": ("lesson", "exercises for a class: questions, and a check of your answers"),
    "schema": ("schema", "print the JSON Schema of scenarios"),
}

EPILOG = """exit codes: 0 ok, 1 a check failed, 2 bad usage or scenario, 3 bad trace or algorithm,
4 stuck or limit reached, 5 output not writable, 70 a defect of this program, 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose exit code is ours. Options are written out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(self.prog, message, "see --help")


def _top(prog: str) -> Parser:
    verbs = "\n".join(f"  {verb:<10} {text}" for verb, (_, text) in VERBS.items())
    parser = Parser(
        prog=prog,
        usage=f"{prog} [VERB] …   ({prog} SCENARIO.yaml … is short for {prog} run SCENARIO.yaml …)",
        description=f"Simulate distributed-ML communication.\n\nverbs:\n{verbs}\n\n{prog} VERB --help says more.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def parse(argv: Sequence[str], prog: str = "astrasim-py") -> tuple[ModuleType, argparse.Namespace] | None:
    """The verb's module and its arguments; None when there is nothing left to do. Raises UsageError."""
    argv = list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        _top(prog).print_help()
        return None
    if argv[0] == "--version":
        from importlib.metadata import version

        print(version("astrasim-py"))
        return None
    if re.fullmatch(r"[a-z-]+", argv[0]) and argv[0] not in VERBS and not os.path.exists(argv[0]):
        from astrasim_py.core.fields import did_you_mean

        raise errors.UsageError(argv[0], "is no verb, and no file of that name is here", did_you_mean(argv[0], VERBS))
    verb = argv.pop(0) if argv[0] in VERBS else "run"
    module = importlib.import_module(f"astrasim_py.cli.{VERBS[verb][0]}")
    parser = Parser(
        prog=f"{prog} {verb}",
        description=module.__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    mixed = getattr(module, "MIXED", False)  # options may stand between positional arguments
    return module, parser.parse_intermixed_args(argv) if mixed else parser.parse_args(argv)


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
        if os.environ.get("ASTRASIM_DEBUG") == "1" or _ends(error):
            raise
        code, lines = _told(error)
        complain(lines)
        return code


def _ends(error: BaseException) -> bool:
    """Whether an error is of those that are not for us to tell."""
    if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
        return False
    from astrasim_py.core.registry import stops

    return stops(error)


def _told(error: BaseException) -> tuple[int, list[str]]:
    """The exit code of an error, and the lines to print."""
    if isinstance(error, errors.AstraError):
        return error.exit_code, error.lines()
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_INTERRUPTED, ["interrupted"]
    if isinstance(error, MemoryError):
        return errors.EXIT_INTERNAL, ["out of memory; use fewer NPUs, a lower --record level or --jobs 1"]
    from astrasim_py.core.registry import own_failure

    if reason := own_failure(error):
        return errors.EXIT_USAGE, [reason]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    problem = "this is a defect of astrasim_py, please report it (ASTRASIM_DEBUG=1 shows where)"
    return errors.EXIT_INTERNAL, [f"{problem}: {text}"]


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
