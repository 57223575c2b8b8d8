"""Optimize a step: algorithms of all calls, pieces, overlap, buckets, order and placement together, by simulation.

Goes on where it was stopped if the same arguments are given again; --budget and --evaluations may differ. Ctrl-C writes
the best so far (exit code 130). Results: OUT/scenario.yaml with every choice, OUT/report.md, OUT/before_after.svg.
"""

import argparse
import os

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import SCENARIO, add, check_positive, complain, engine_option, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.spelling import quantity
from astrasim_py.core.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from astrasim_py.core.units import PS_PER_S, number_of, parse_time

#: Options may stand between the scenario and values.
MIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenario",
        metavar=SCENARIO,
        help="a scenario file, or a scenario that was run; behind @ as many swept values as mean one point",
    )
    add(parser, "--out", default=None, note="of this search alone; results/NAME-optimized")
    parser.add_argument("--over", metavar="KINDS", help="of algorithms,chunks,tiles,buckets,order,priority,placement")
    shared_options.add(parser, "--budget", note='"60 s"; none with --evaluations')
    parser.add_argument("--evaluations", type=int, metavar="N", help="end after so many candidates: always the same")
    shared_options.add(parser, "--seed", default=1, note="1")
    add(parser, "--set", "--allow-outside", "--allow-code")
    engine_option(parser, default=None)
    add(parser, "--quiet")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Search, write the best, and say what it is."""
    from pathlib import Path

    from astrasim_py.cli.names import one_scenario
    from astrasim_py.optimizer.optimize import optimize
    from astrasim_py.optimizer.point import point_of
    from astrasim_py.optimizer.write import check_files, write_optimized
    from astrasim_py.runs.progress import progress_line
    from astrasim_py.scenario.load import load_scenario

    check_positive(args, "evaluations")
    seconds = _seconds(args)
    allowed = {"allow_outside": args.allow_outside, "allow_code": args.allow_code}
    name = one_scenario(args.scenario)
    scenario = load_scenario(name.name, args.set, **allowed)
    args.out = args.out or f"results/{scenario.name}-optimized"
    check_files(point_of(scenario, name.values))
    with progress_line(quiet=args.quiet) as line:
        result = optimize(
            scenario,
            args.out,
            wanted=name.values,
            over=args.over,
            seconds=seconds,
            evaluations=args.evaluations,
            seed=args.seed,
            engine=args.engine,
            tell=line.show,
        )
    files = write_optimized(result, Path(args.out))
    _show(args, result, files)
    return EXIT_INTERRUPTED if result.found.interrupted else EXIT_OK


def _seconds(args: argparse.Namespace) -> float | None:
    """Seconds of the budget. Raises UsageError: none."""
    if args.budget is None:
        return None if args.evaluations is not None else 60.0
    seconds = quantity(parse_time, args.budget, "--budget", "60 s") / PS_PER_S
    if not seconds:
        raise UsageError("--budget", "0 leaves no time to search", 'write e.g. --budget "60 s"')
    return seconds


def _show(args: argparse.Namespace, result, files: list[str]) -> None:
    from astrasim_py.optimizer import text

    listed = list(text.changes(result))
    if args.format != "text":
        changes = [dict(zip(("what", "before", "after", "without"), row, strict=True)) for row in listed]
        document = {
            "baseline_ps": result.baseline_ps,
            "makespan_ps": result.makespan_ps,
            "bound_ps": result.bound.ps,
            "bound_of": result.bound.of,
            "bound_by": result.bound.of,
            "evaluations": result.evaluations,
            "combinations": result.space.count,
            "all_tried": result.found.whole,
            "warnings": list(result.space.warnings),
            "changes": changes,
            "files": [os.path.join(args.out, name) for name in files],
        }
        printed(args.format, document, changes, columns=("what", "before", "after", "without"))
        return
    print(text.headline(result))
    for choice, before, after, lost in listed:
        print(f"  {choice}: {before} -> {after} ({lost} without)")
    print(text.tried(result))
    for warning in result.space.warnings:
        print(f"warning: {warning}")
    print(f"results: {args.out}")
    if not args.quiet and result.simulated:
        simulated = number_of(result.simulated, "simulation")
        complain([f"{simulated} in {result.seconds:.1f} s, {result.rate:.1f} a second"])
