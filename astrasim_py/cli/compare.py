"""Two results side by side: points with the same swept values, the time of each, and the ratio, largest change first.

results compare ring_vs_torus other/ring_vs_torus
results compare before@size="1 MiB" after@size="1 MiB" --format markdown
results compare ring_vs_torus@topology=ring @topology=torus_2d
"""

import argparse
from decimal import Decimal

from astrasim_py.cli.names import NAME, NAME_HELP, point_names
from astrasim_py.cli.options import add, selection_of, table_options, terminal_width
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import UsageError

#: Options may stand between names and values.
MIXED = True
#: Rows that are shown where nothing else is asked for.
_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar=NAME,
        help=f"{NAME_HELP}. Two; @… alone is of the name before it, with its other values",
    )
    add(parser, "--out")
    table_options(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.compare import compare_named, comparison_columns, comparison_text
    from astrasim_py.report.result_table import markdown_text
    from astrasim_py.results.csv_io import csv_rows

    selection = selection_of(args)
    names = point_names(args.names, args.out)
    if len(names) != 2:
        raise UsageError("results compare", f"names {len(names)} results", "name two")
    first, second = names
    comparison = compare_named(first, second, args.out)
    swept = {key: {str(row.sweep.get(key)) for row in comparison.rows} for row in comparison.rows for key in row.sweep}
    if selection:
        selection.check(swept | dict.fromkeys(("a_ns", "b_ns", "ratio"), ()))
    rows = selection.of(comparison.rows) if selection else list(comparison.rows)
    if args.format == "json":
        mean = None if comparison.mean is None else Decimal(f"{comparison.mean:.6g}")
        about = {"a": comparison.names[0], "b": comparison.names[1], "mean": mean}
        printed("json", {**about, "rows": rows, "only_a": comparison.only_a, "only_b": comparison.only_b})
    elif args.format == "csv":
        keys = list(dict.fromkeys(key for row in rows for key in row.sweep))
        columns = [*keys, "a_ns", "b_ns", "ratio", "status_a", "status_b"]
        print(csv_rows(columns, [{**row, **row.sweep} for row in rows]).decode(), end="")
    elif args.format == "markdown":
        print(markdown_text(comparison_columns(rows)))
    else:
        shown = rows if args.top or args.sort or args.where else rows[:_ROWS]
        print(comparison_text(comparison, shown, terminal_width()))
    return 0
