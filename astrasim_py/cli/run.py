"""Run scenarios: simulate every point, or use it again where it is finished, and leave tables and figures in
OUT/<scenario>/.

  run ring_vs_torus.yaml
  run ring_vs_torus.yaml@size="1 MiB",topology=ring @topology=torus_2d
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.cli import options
from astrasim_py.cli.options import TABLES
from astrasim_py.core.choices import NO_TITLE
from astrasim_py.core.errors import UsageError, worst
from astrasim_py.core.exact_json import json_text
from astrasim_py.core.units import number_of

if TYPE_CHECKING:
    from astrasim_py.results.model import Row
    from astrasim_py.runs.sweep import RunResult
    from astrasim_py.scenario.load import LoadedScenario
    from astrasim_py.scenario.plot_spec import PlotSpec


def arguments(parser: argparse.ArgumentParser) -> None:
    options.scenario_options(parser)
    options.engine_option(parser, default=None)
    options.record_options(parser)
    options.add(parser, "--jobs", "--cluster")
    parser.add_argument("--share", metavar="I/N", help="only the I-th of N shares of the points")
    options.add(parser, "--strict", "--fresh", "--fold")
    loud = parser.add_mutually_exclusive_group()
    options.add(loud, "--quiet")
    verbose_help = "also every collective of every point, and all that is known of points that are not done"
    loud.add_argument("-v", "--verbose", action="store_true", help=verbose_help)
    options.table_options(parser)


_PASSED_ON = ("out", "jobs", "cluster", "fresh", "strict")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.scenario.load import load_scenario

    options.check_positive(args, "jobs")
    if args.jobs is not None and args.cluster is not None:
        raise UsageError("--jobs", "counts processes of this machine, and --cluster has its own", "leave one out")
    limits, selection, timeline = options.limits_of(args), options.selection_of(args), options.timeline_of(args)
    codes, allowed = [0], {"allow_outside": args.allow_outside, "allow_code": args.allow_code}
    files = options.scenario_files(args.scenarios, args.out, codes)
    loaded = list(options.each(files, lambda path: load_scenario(path, args.set, **allowed), codes))
    chosen = {Path(path): points for path, points in files.items()}
    names = [scenario.name for scenario in loaded]
    twice = sorted(name for name in dict.fromkeys(names) if names.count(name) > 1)
    if twice:
        raise UsageError("run", f'two scenarios are called "{twice[0]}"', "give each a name of its own")
    from astrasim_py.results.repeats import medians
    from astrasim_py.runs.plan import options_for
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.runs.sweep import run_scenario

    if selection:
        from astrasim_py.scenario.variables import swept_values

        for scenario in loaded:
            selection.check(swept_values(scenario.axes))
    share = None
    if args.share is not None:
        from astrasim_py.runs.chosen_points import parse_share

        share = parse_share(args.share)
    rows: list[Row] = []
    keywords = {name: getattr(args, name) for name in _PASSED_ON}
    point_keys = {"level": args.record, "engine": args.engine, "fold": args.fold, "timeline": timeline, **limits}

    def run_one(scenario: "LoadedScenario") -> "RunResult":
        progress = on_terminal(scenario.name, quiet=args.quiet)
        run_options, points = options_for(scenario, **point_keys), chosen[scenario.path]
        return run_scenario(scenario, run_options, points=share, names=points, progress=progress, **keywords)

    for result in options.each(loaded, run_one, codes):
        print_failures(result, whole=args.verbose or len(result.rows) == 1)
        tables = args.format in TABLES
        if not args.quiet:
            options.complain(note for note in result.notes if not tables or note not in result.footer)
        matches = medians(result.rows)
        matches = selection.of(matches) if selection else matches
        rows += matches
        if tables and not (args.quiet and args.format is None):
            plots = next(scenario.plots for scenario in loaded if scenario.name == result.scenario)
            _show(result, matches, plots, args)
        codes.append(result.exit_code)
        if result.interrupted:
            break
    if args.format not in TABLES:
        print(_for_programs(rows, args.format))
    return worst(codes)


def _for_programs(rows: "Sequence[Row]", form: str) -> str:
    from astrasim_py.report.result_table import columns_of, csv_text, markdown_text
    from astrasim_py.report.tables import Column

    if form == "json":
        return json_text(rows)
    if form == "csv":
        return csv_text(rows)
    scenarios = [row.scenario for row in rows]
    of_several = [Column("scenario", scenarios, False)] if len(set(scenarios)) > 1 else []
    return markdown_text([*of_several, *columns_of(rows)])


def print_failures(result: "RunResult", *, whole: bool = True) -> None:
    """Print why points failed; a reason that several share, once. `whole`: all that is known of it, not one line."""
    from astrasim_py.runs.sweep import and_more

    by_reason: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for failure in result.failures:
        first, *more_lines = failure.lines or ("",)
        by_reason.setdefault((first.removeprefix(f"{failure.point}: "), *more_lines), []).append(failure.lines)
        if failure.detail and os.environ.get("ASTRASIM_DEBUG") == "1":
            print(failure.detail, file=sys.stderr)
    for lines, points in ((group[0], len(group)) for group in by_reason.values()):
        hint = "" if whole or len(lines) < 2 else " (-v says more)"
        options.complain((f"{lines[0]}{and_more(points)}{hint}", *(lines[1:] if whole else ())) if lines else ())


#: Jobs of all points, beyond which only --verbose shows them.
_MOST_JOBS = 40


def _rows_text(
    rows: "Sequence[Row]", plots: "Sequence[PlotSpec]", width: int | None, args: argparse.Namespace, has_flows: bool
) -> str:
    """A comparison of the rows where a sweep makes one, and all of them where they are few or asked for."""
    from astrasim_py.report.comparison import MOST_ROWS, comparison_text, multiples
    from astrasim_py.report.result_table import all_rows_text, summary_text

    if args.sort is not None or args.top is not None:
        limit = MOST_ROWS if args.top is None else None
        return summary_text(rows, width, limit, ordered=True)
    # Open-loop traffic sends for a time of its own, so that times of its points are no alternatives.
    comparison = "" if has_flows else comparison_text(rows, plots, width)
    if comparison and len(rows) > MOST_ROWS:
        return f"{comparison}\n{all_rows_text(rows)}"
    table = summary_text(rows, width, MOST_ROWS, multiples=None if comparison or has_flows else multiples(rows, plots))
    return f"{comparison}\n\n{table}" if comparison else table


def _show(result: "RunResult", rows: "Sequence[Row]", plots: "Sequence[PlotSpec]", args: argparse.Namespace) -> None:
    from astrasim_py.report.jobs import jobs_text
    from astrasim_py.report.tables import collectives_text
    from astrasim_py.results.repeats import medians

    if result.title.lower() not in NO_TITLE:
        print(result.title)
    width = options.terminal_width()
    has_flows = os.path.exists(os.path.join(result.folder, "flows.csv"))
    print(_rows_text(rows, plots, width, args, has_flows) if rows else "no row meets --where")
    if len(rows) == 1 and "GB/s" in (rows[0].bound_by or ""):
        print(f"bound by {rows[0].bound_by}")
    if 0 < len(rows) < len(medians(result.rows)):
        print(f"{len(rows)} of {number_of(len(medians(result.rows)), 'row')}")
    if result.left_out:
        points = number_of(len(result.rows) + result.left_out, "point")
        print(f"{len(result.rows)} of {points}; the others are left out here, and kept in the tables of the folder")
    pairs = zip(result.rows, result.summaries, strict=True)
    jobs = medians([row.of_job(job) for row, summary in pairs if summary for job in summary.jobs])
    if jobs and (args.verbose or len(jobs) <= _MOST_JOBS):
        print(f"\n{jobs_text(jobs, width)}")
    if has_flows:
        from astrasim_py.report.flows import flows_text

        print(flows_text(result.folder, rows, width), end="")
    if args.verbose:
        for row, summary in zip(result.rows, result.summaries, strict=True):
            if summary and summary.collectives:
                print(f"\n{row.point}")
                print(collectives_text(summary.collectives, width))
                proofs = dict.fromkeys(call.bound_by for call in summary.collectives if call.bound_by)
                print("".join(f"bound by {proof}\n" for proof in proofs), end="")
    for line in () if args.quiet else result.footer:
        print(line)
    print(f"\n{options.engines_text(row.engine for row in result.rows)}", end="")
    print(options.fold_text(result.rows, result.summaries), end="")
    print(options.trainings_text(rows), end="")
    if os.path.isdir(result.folder):
        print(f"results: {result.folder}")
    for figure in result.figures:
        print(f"figure: {figure}")
    if not args.quiet:
        print(options.look_text(result.folder, args.out, result.rows, result.left_out), end="")
