"""List the stored points of scenarios, the newest last: those of a scenario as it is now, and older ones."""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.cli.names import NAME, NAME_HELP, point_names
from astrasim_py.cli.options import add, complain, name_of_results, selection_of, table_options, terminal_width
from astrasim_py.cli.output import printed

if TYPE_CHECKING:
    from astrasim_py.results.model import RunRow


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar=NAME, help=f"{NAME_HELP}; all scenarios in --out by default")
    add(parser, "--out")
    table_options(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.listed_runs import runs_named
    from astrasim_py.report.result_table import csv_text, markdown_text
    from astrasim_py.report.tables import Column, fitted_table, time_text

    wanted = selection_of(args)
    notes: list[str] = []
    stored = runs_named(point_names(args.names or [args.out], args.out), args.out, notes)
    complain(notes)
    swept: dict[str, set[str]] = {}
    for row in stored:
        for key, value in row.sweep.items():
            swept.setdefault(key, set()).add(str(value))
    if wanted:
        wanted.check(swept)
    rows = wanted.of(stored) if wanted else stored
    if args.format == "csv":
        print(csv_text(rows, ("level", "finished", "current", "folder")))
        return 0
    if args.format == "json":
        printed("json", [{**row, "finished_s": row.finished} for row in rows])
        return 0
    finished = [datetime.fromtimestamp(float(row.finished), UTC).isoformat(" ", "seconds")[:-6] for row in rows]
    columns = [
        Column("point", [_name(row, args.out) for row in rows], False),
        Column("time", [time_text(row.time_ns) for row in rows], True),
        Column("status", [row.status for row in rows], False, 1),
        Column("engine", [row.engine or "" for row in rows], False, 4),
        Column("level", [row.level for row in rows], False, 5),
        Column("finished (UTC)", finished, False, 3),
        Column("current", ["yes" if row.current else "no" for row in rows], False, 2),
        Column("folder", [row.folder for row in rows], False, 6),
    ]
    if args.format == "markdown":
        print(markdown_text(columns))
    else:
        print(fitted_table(columns, terminal_width()) if rows else "no point meets --where")
    return 0


def _name(row: "RunRow", out: str) -> str:
    """The name of a stored point, to go on with."""
    from astrasim_py.core.point_names import PointName

    name = name_of_results(Path(row.folder).parents[1], out)
    return str(PointName(name, {key: (str(value),) for key, value in row.sweep.items()}))
