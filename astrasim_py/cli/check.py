"""Load and expand scenarios, build and read what they name, and say how many points and messages they have.

Nothing is simulated. Every error is printed with its place.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astrasim_py.cli.options import add, each, format_option, scenario_files, scenario_options
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import AstraError, CheckFailed, ErrorList, worst
from astrasim_py.core.units import number_of

if TYPE_CHECKING:
    from astrasim_py.core.point_names import PointName


def arguments(parser: argparse.ArgumentParser) -> None:
    scenario_options(parser)
    add(parser, "--strict")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    codes = [0]
    files = scenario_files(args.scenarios, "results", codes)
    rows = list(each(files.items(), lambda item: _check(*item, args), codes))
    if not printed(args.format, rows):
        for row in rows:
            messages = number_of(row["messages"], "message") if row["points"] else "nothing"
            points = number_of(row["points"], "point")
            if row["left_out"]:
                points = f"{row['points']} of {row['points'] + row['left_out']} points, the others are left out"
            print(f"{row['file']}: {row['scenario']}: {points}, {messages}")
            for warning in row["warnings"]:
                print(f"  warning: {warning}")
            for hint in row["hints"]:
                print(f"  hint: {hint}")
    return worst(codes)


def _check(path: str, names: "Sequence[PointName]", args: argparse.Namespace) -> dict[str, Any]:
    from astrasim_py.scenario.expand import expand
    from astrasim_py.scenario.load import load_scenario

    scenario = load_scenario(path, args.set, allow_outside=args.allow_outside, allow_code=args.allow_code)
    from astrasim_py.core.digest import digest
    from astrasim_py.dialects.tiles.check import check_tiles
    from astrasim_py.engine.simulation import plan_for
    from astrasim_py.preparation.prepare import prepare
    from astrasim_py.runs.chosen_points import chosen_numbers
    from astrasim_py.runs.unused import Use, unused, unused_by_all
    from astrasim_py.system.plan_notes import plan_notes

    expanded = expand(scenario)
    points = [expanded[number] for number in chosen_numbers(expanded, names)]
    warnings: list[str] = []
    hints: list[str] = []
    errors: dict[str, AstraError] = {}
    uses: dict[str, Use | None] = {}
    total = 0
    listed: list[list[str]] = []
    for point in points:
        # Points that differ only in how the network behaves are built alike.
        fitted = ".py:" in point.spec.network.model or _synthesizes(point.spec)
        spared = ("limits",) if fitted else ("limits", "network")
        alike = digest({key: value for key, value in point.config.items() if key not in spared})
        if alike not in uses:
            uses[alike] = None
            try:
                prepared = prepare(point)
                plan = plan_for(prepared.problem, fold=True)
                notes = prepared.notes_with(plan)
                check_tiles(plan, point, notes.warnings.append)
                warnings += [*notes.warnings, *plan_notes(plan)]
                hints += notes.hints
                uses[alike] = Use.of(plan)
            except AstraError as error:
                errors.setdefault(str(error), error)
        use = uses[alike]
        total += 0 if use is None else use.messages
        listed += [] if use is None else [unused(point, use)]
    warnings += unused_by_all(listed) if len(points) == len(expanded) else []
    if args.strict:
        errors |= {text: CheckFailed("", text) for text in warnings}
    if errors:
        raise ErrorList(list(errors.values()))
    return {
        "file": str(path),
        "scenario": scenario.name,
        "points": len(points),
        "left_out": len(expanded) - len(points),
        "messages": total,
        "warnings": list(dict.fromkeys(warnings)),
        "hints": list(dict.fromkeys(hints)),
    }


def _synthesizes(spec) -> bool:
    """True if an algorithm depends on the network and the placement of a point."""
    tables = [spec.algorithms, *(job.algorithms for job in spec.jobs.values())]
    return any(hasattr(case, "synthesize") for table in tables for cases in table.values() for case in cases)
