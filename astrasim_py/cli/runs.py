"""List the stored points of scenarios, the newest last: those of a scenario as it is now, and older ones."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from astrasim_py.cli.options import format_option
from astrasim_py.core.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="results", metavar="DIR", help="results/SCENARIO, or results")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.units import format_time
    from astrasim_py.report.tables import json_text, ps_of, text_table
    from astrasim_py.study.explain_and_plot import stored_runs

    top = Path(args.folder)
    inside = sorted(path for path in top.iterdir() if path.is_dir()) if top.is_dir() else []
    found = [row for folder in (top, *inside) if folder.is_dir() for row in stored_runs(folder)]
    if not found:
        raise UsageError(args.folder, "holds no finished point", "name a folder of results, e.g. results/ring_vs_torus")
    if args.format == "json":
        print(json_text(found))
        return 0
    rows = [
        [
            row["point"],
            "" if row["time_ns"] is None else format_time(ps_of(row["time_ns"])),
            row["status"],
            row["engine"],
            row["level"],
            datetime.fromtimestamp(float(row["finished"]), UTC).isoformat(" ", "seconds")[:-6],
            "now" if row["current"] else "older",
            row["folder"],
        ]
        for row in found
    ]
    headings = ["point", "time", "status", "engine", "level", "finished (UTC)", "scenario", "folder"]
    print(text_table(headings, rows, [False, True, False, False, False, False, False, False]))
    return 0
