"""Run cases whose time is known, and show how far off the results are.

CASES.csv names measured runs of ASTRA-sim, one a row, with files relative to it. Without it the packaged set runs:
closed forms of our own algorithms, and figures of ASTRA-sim. Exits with 1 if a figure differs, be it by 1 ns.
"""

import argparse
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from astrasim_py.cli import shared_options, validate_measured
from astrasim_py.cli.options import add, check_positive, engine_option, engines_text, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.validate_training import error_text
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK

#: Rows that are off which text shows; JSON has them all.
SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", metavar="CASES.csv", nargs="?", help="by default the packaged set")
    shared_options.add(parser, "--only")
    engine_option(parser)
    add(parser, "--jobs", "--quiet")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases; 1 if one that counts is off."""
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.validation.cases import read_cases
    from astrasim_py.validation.measured import compare, packaged_rows
    from astrasim_py.validation.validate import MEASURED, packaged_items, validate

    check_positive(args, "jobs")
    progress = on_terminal("measured validate cases", quiet=args.quiet)
    with packaged_items(args.only) if args.cases is None else nullcontext(read_cases(args.cases, args.only)) as items:
        report = validate(items, engine=args.engine, jobs=args.jobs, progress=progress)
    measured = None
    if args.cases is None and (not args.only or MEASURED in args.only):
        measured = compare(packaged_rows(), engine=args.engine)
    document = _document(report, measured)
    if not printed(args.format, document, document["groups"]):
        print(_text(report, measured))
    return EXIT_OK if report.passes else EXIT_CHECK_FAILED


def _document(report, measured) -> dict[str, Any]:
    total = asdict(report.judged)
    del total["group"], total["judged"]
    rows: dict[str, object] = {"groups": [asdict(group) for group in report.groups]}
    rows["off"] = [asdict(case) for case in report.off]
    rows["measured"] = None if measured is None else validate_measured.measured_json(measured, "platform")
    return total | {"engines": report.engines} | rows


def _text(report, measured) -> str:
    from astrasim_py.report.tables import text_table

    headings = ("set", "cases", "exact", "median error", "worst error", "")
    groups = [*report.groups, report.judged] if len(report.groups) > 1 else report.groups
    rows = [
        (
            group.group,
            str(group.cases),
            str(group.exact),
            error_text(group.median_rel_error),
            error_text(group.worst_rel_error),
            "" if group.judged else "informative",
        )
        for group in groups
    ]
    lines = [text_table(headings, rows, (False, True, True, True, True, False))] if rows else []
    for one in report.off[:SHOWN]:
        lines.append(f"{one.place}: {one.set}: {one.label}: {one.note}{'' if one.judged else ' (informative)'}")
    if len(report.off) > SHOWN:
        lines.append(f"… and {len(report.off) - SHOWN} more (--format json shows all)")
    lines.append(engines_text(report.engines).rstrip("\n"))
    if measured is not None:
        lines.append(
            "measured: simulated against public times that the profiles are fitted to, median / 90th percentile"
        )
        lines.append(validate_measured.measured_text(measured))
    return "\n".join(line for line in lines if line)
