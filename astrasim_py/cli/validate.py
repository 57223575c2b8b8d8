"""Validate: run measured cases and closed forms, and show how far off the results are.

CASES.csv names measured runs of ASTRA-sim, one a row, with files relative to it. Without it the packaged set runs:
closed forms of our own algorithms, and figures of ASTRA-sim. Exits with 1 if a figure differs, be it by 1 ns.
"""

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict

from astrasim_py.cli.options import check_positive, engine_option, engines_text, format_option
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK

#: Rows that are off which text shows; JSON has them all.
SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", metavar="CASES.csv", nargs="?", help="by default the packaged set")
    engine_option(parser)
    parser.add_argument("--set", action="append", default=[], metavar="NAME", help="only this set (repeatable)")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes; one per core by default")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases; 1 if one that counts is off."""
    from astrasim_py.study.cases import read_cases
    from astrasim_py.study.progress import on_terminal
    from astrasim_py.study.validation import packaged_items, validate

    check_positive(args, "jobs")
    progress = on_terminal("validate", quiet=args.quiet)
    with packaged_items(args.set) if args.cases is None else nullcontext(read_cases(args.cases, args.set)) as items:
        report = validate(items, engine=args.engine, jobs=args.jobs, progress=progress)
    print(_json(report) if args.format == "json" else _text(report))
    return EXIT_OK if report.passes else EXIT_CHECK_FAILED


def _json(report) -> str:
    total = asdict(report.judged)
    del total["group"], total["judged"]
    rows = {"groups": [asdict(group) for group in report.groups], "off": [asdict(one) for one in report.off]}
    return json.dumps(total | {"engines": report.engines} | rows, indent=2, ensure_ascii=False)


def _text(report) -> str:
    from astrasim_py.report.tables import text_table

    headings = ("set", "cases", "exact", "median error", "worst error", "")
    groups = [*report.groups, report.judged] if len(report.groups) > 1 else report.groups
    rows = [
        (
            group.group,
            str(group.cases),
            str(group.exact),
            _percent(group.median_rel_error),
            _percent(group.worst_rel_error),
            "" if group.judged else "informative",
        )
        for group in groups
    ]
    lines = [text_table(headings, rows, (False, True, True, True, True, False))]
    for one in report.off[:SHOWN]:
        lines.append(f"{one.place}: {one.set}: {one.label}: {one.note}{'' if one.judged else ' (informative)'}")
    if len(report.off) > SHOWN:
        lines.append(f"… and {len(report.off) - SHOWN} more (--format json shows all)")
    lines.append(engines_text(report.engines).rstrip("\n"))
    return "\n".join(line for line in lines if line)


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    return "0" if error == 0 else f"{100 * error:.3g} %"
