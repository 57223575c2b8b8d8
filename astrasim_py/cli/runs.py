"""List the stored points of scenarios, the newest last: those of a scenario as it is now, and older ones."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from astrasim_py.cli.options import complain, selection_of, table_options, terminal_width
from astrasim_py.core.errors import UsageError
from astrasim_py.core.exact_json import json_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="results", metavar="DIR", help="results/SCENARIO, or results")
    table_options(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.stored_results import stored_runs
    from astrasim_py.report.result_table import csv_text, markdown_text
    from astrasim_py.report.tables import Column, fitted_table, time_text
    from astrasim_py.results.stored_points import POINTS, earlier_layout, names_in, point_names, why_no_point

    wanted = selection_of(args)
    top = Path(args.folder)
    inside = [top / name for name in names_in(top) if os.path.isdir(top / name)]
    found = [row for folder in (top, *inside) for row in stored_runs(folder)]
    for folder in (top, *inside):
        if earlier := earlier_layout(folder):
            complain([f"{folder} holds {earlier}; run the scenario again"])
    if not found:
        for folder in (top, *inside):
            for place in (folder / POINTS / name for name in point_names(folder)):
                raise UsageError(str(place), *why_no_point(place))
        raise UsageError(args.folder, "holds no finished point", "name a folder of results, e.g. results/ring_vs_torus")
    swept: dict[str, set[str]] = {}
    for row in found:
        for key, value in row.sweep.items():
            swept.setdefault(key, set()).add(str(value))
    wanted.check(swept)
    rows = wanted.of(found)
    if args.format in ("json", "csv"):
        print(json_text(rows) if args.format == "json" else csv_text(rows, ("level", "finished", "current", "folder")))
        return 0
    finished = [datetime.fromtimestamp(float(row.finished), UTC).isoformat(" ", "seconds")[:-6] for row in rows]
    columns = [
        Column("point", [row.point for row in rows], False, 6),
        Column("time", [time_text(row.time_ns) for row in rows], True),
        Column("status", [row.status for row in rows], False, 1),
        Column("engine", [row.engine or "" for row in rows], False, 4),
        Column("level", [row.level for row in rows], False, 5),
        Column("finished (UTC)", finished, False, 3),
        Column("scenario", ["now" if row.current else "older" for row in rows], False, 2),
        Column("folder", [row.folder for row in rows], False),
    ]
    if args.format == "markdown":
        print(markdown_text(columns))
    else:
        print(fitted_table(columns, terminal_width()) if rows else "no point meets --where")
    return 0
