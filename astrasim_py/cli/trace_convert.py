"""Turn what other programs recorded into a set of Chakra traces: OUT.0.et …, OUT.groups.json and OUT.report.json."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from astrasim_py.cli import shared_options
from astrasim_py.cli.main import Parser
from astrasim_py.cli.options import add, complain, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.values import make_parent
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.workload.trace_readers import Conversion, convert, reader_names, trace_reader

if TYPE_CHECKING:
    from astrasim_py.chakra.trace import ExecutionTrace


class _Reader(Parser):
    """A parser that asks the reader of a format for its options once that format is wanted."""

    reader = ""

    def complete(self) -> None:
        if self.reader:
            trace_reader(self.reader).arguments(self)
            self.reader = ""

    def parse_known_args(self, args=None, namespace=None):
        self.complete()
        return super().parse_known_args(args, namespace)


def arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_subparsers(dest="reader", metavar="FORMAT", required=True, parser_class=_Reader)
    for name in reader_names():
        reader = formats.add_parser(name, help=f"see trace convert {name} --help")
        reader.reader = name
        reader.add_argument("target", metavar="OUT", help="prefix of the files to write")
        shared_options.add(reader, "--gzip")
        reader.add_argument("--allow-partial", action="store_true", help="write what is not to be trusted, too")
        add(reader, "--strict", "--quiet")
        format_option(reader)


def run(args: argparse.Namespace) -> int:
    """Convert; exits with 1, and writes nothing, where the result is not to be trusted."""
    from astrasim_py.runs.progress import progress_line

    files: list[str] = []
    with progress_line(quiet=args.quiet) as line:
        conversion = convert(args.reader, args, line.show)
        trusted = (args.allow_partial or not conversion.problems) and not (args.strict and conversion.warnings)
        if trusted:
            files = _write(args, conversion, line.show)
    for_programs = printed(args.format, {**conversion.report, "files": files})
    if not for_programs:
        print("\n".join(conversion.lines))
    complain(f"not to be trusted: {problem}" for problem in conversion.problems)
    if not trusted:
        strict = "there are warnings, and --strict is given"
        complain([f"nothing was written; {'--allow-partial writes it anyway' if conversion.problems else strict}"])
    elif not for_programs:
        first, last = files[0], files[conversion.workload.ranks - 1]
        print(f"written: {' … '.join(dict.fromkeys((first, last)))}")
    return EXIT_OK if trusted else EXIT_CHECK_FAILED


def _write(args: argparse.Namespace, conversion: Conversion, say: Callable[[str], None]) -> list[str]:
    """Write the set; returns the files."""
    from astrasim_py.chakra.et_io import write_prefix
    from astrasim_py.chakra.groups import groups_json

    workload = conversion.workload

    def traces() -> Iterator[ExecutionTrace]:
        for rank in range(workload.ranks):
            say(f"writing {args.target}: rank {rank + 1} of {workload.ranks}")
            yield workload.trace(rank)

    make_parent(args.target)
    beside = {".groups.json": groups_json(workload.groups), ".report.json": json_bytes(conversion.report)}
    paths = write_prefix(args.target, traces(), ranks=workload.ranks, gzip=args.gzip, beside=beside)
    return [*map(str, paths), *(f"{args.target}{end}" for end in beside)]
