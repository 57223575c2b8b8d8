"""Run scenarios: simulate every point, or use it again where it is finished, and leave tables and figures in
OUT/<scenario>/.
"""

import argparse
import os
import sys
from collections import Counter

from astrasim_py.cli import options
from astrasim_py.core.errors import UsageError, worst


def arguments(parser: argparse.ArgumentParser) -> None:
    options.scenario_options(parser)
    options.engine_option(parser, default=None)
    options.record_options(parser)
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes; one per core by default")
    parser.add_argument("--cluster", metavar="ADDRESS", help="workers of a Dask scheduler, e.g. tcp://host:8786")
    parser.add_argument("--points", metavar="I/N", help="only the I-th of N shares of the points")
    options.strict_option(parser)
    parser.add_argument("--fresh", action="store_true", help="compute finished points again")
    parser.add_argument(
        "--fold", action="store_true", default=None, help="simulate one rank for all where all are alike"
    )
    loud = parser.add_mutually_exclusive_group()
    loud.add_argument("--quiet", action="store_true", help="no progress, no notes")
    loud.add_argument("-v", "--verbose", action="store_true", help="also every collective of every point")
    options.format_option(parser)


_PASSED_ON = ("out", "jobs", "cluster", "fresh", "timeline", "engine", "fold", "strict")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.scenario.load import load_scenario

    options.check_positive(args, "jobs")
    if args.jobs is not None and args.cluster is not None:
        raise UsageError("--jobs", "counts processes of this machine, and --cluster has its own", "leave one out")
    limits = options.limits_of(args)
    codes, allowed = [0], {"allow_outside": args.allow_outside, "allow_code": args.allow_code}
    loaded = list(options.each(args.scenarios, lambda path: load_scenario(path, args.set, **allowed), codes))
    names = [scenario.name for scenario in loaded]
    twice = sorted(name for name in dict.fromkeys(names) if names.count(name) > 1)
    if twice:
        raise UsageError("run", f'two scenarios are called "{twice[0]}"', "give each a name of its own")
    from astrasim_py.report.repeats import medians
    from astrasim_py.study.progress import on_terminal
    from astrasim_py.study.sweep import parse_share, run_scenario

    share = None if args.points is None else parse_share(args.points)
    rows: list[dict] = []
    same = {name: getattr(args, name) for name in _PASSED_ON}

    def run_one(scenario):
        progress = on_terminal(scenario.name, quiet=args.quiet)
        return run_scenario(scenario, points=share, level=args.record, progress=progress, **same, **limits)

    for result in options.each(loaded, run_one, codes):
        print_failures(result)
        if not args.quiet:
            shown = result.warnings if args.format == "text" else ()
            options.complain(note for note in result.notes if note not in shown)
        rows += [{key: row[key] for key in row if key not in ("runs", "interval")} for row in medians(result.rows)]
        if args.format == "text":
            _show(result, args)
        codes.append(result.exit_code)
        if result.interrupted:
            break
    if args.format == "json":
        from astrasim_py.report.tables import json_text

        print(json_text(rows))
    return worst(codes)


def print_failures(result) -> None:
    """Print why points failed; a reason that several share, once."""
    from astrasim_py.study.sweep import and_more

    by_reason: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for failure in result.failures:
        first, *more = failure.lines or ("",)
        by_reason.setdefault((first.removeprefix(f"{failure.point}: "), *more), []).append(failure.lines)
        if failure.detail and os.environ.get("ASTRASIM_DEBUG") == "1":
            print(failure.detail, file=sys.stderr)
    for lines, points in ((lines[0], len(lines)) for lines in by_reason.values()):
        options.complain((f"{lines[0]}{and_more(points)}", *lines[1:]) if lines else ())


#: Jobs of all points, beyond which only --verbose shows them.
_MOST_JOBS = 40


def _distinct(hints: list[str]) -> list[tuple[str, int]]:
    """The first of the hints that advise the same, with how many do."""
    advice = [hint.rpartition("; write ")[2] for hint in hints]
    return [(hints[advice.index(each)], count) for each, count in Counter(advice).items()]


def _show(result, args: argparse.Namespace) -> None:
    from astrasim_py.report.jobs import jobs_text
    from astrasim_py.report.repeats import medians
    from astrasim_py.report.tables import collectives_text, summary_text
    from astrasim_py.study.sweep import and_more

    if result.title:
        print(result.title)
    print(summary_text(medians(result.rows)))
    pairs = zip(result.rows, result.summaries, strict=True)
    jobs = medians([{**row, **job} for row, summary in pairs if summary for job in summary.get("jobs", ())])
    if jobs and (args.verbose or len(jobs) <= _MOST_JOBS):
        print(f"\n{jobs_text(jobs)}")
    if args.verbose:
        for row, summary in zip(result.rows, result.summaries, strict=True):
            if summary and summary.get("collectives"):
                print(f"\n{row['point']}")
                print(collectives_text(summary["collectives"]))
    hints = [hint for summary in result.summaries if summary for hint in summary.get("hints", ())]
    for line in () if args.quiet else (*result.warnings, *(f"hint: {h}{and_more(n)}" for h, n in _distinct(hints))):
        print(line)
    print(f"\n{options.engines_text(row.get('engine') for row in result.rows)}", end="")
    print(options.fold_text(result.rows, result.summaries), end="")
    if result.folder.is_dir():
        print(f"results: {result.folder}")
    for figure in result.figures:
        print(f"figure: {figure}")
