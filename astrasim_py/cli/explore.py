"""Explore how to train a model: price every configuration by closed forms, simulate the best ones.

FILE is YAML with the key `explore`, alone or in a scenario without a workload. FILE@tp=8,pp=4 means the configurations
with these values, also beyond those of the file; keys that are left out take their best values. Results:
OUT/NAME-explored/ (table.csv, table.json, refused.csv; not of FILE@…), and the simulated points in
OUT/NAME-simulated/, which are used again.

  explore plan.yaml
  explore plan.yaml@tp=8,pp=4 --explain
  explore plan.yaml@tp=8,pp=4 @tp=4,pp=8 --diff
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import add, check_positive, complain, engine_option, fold_text, format_option, look_text
from astrasim_py.cli.output import printed
from astrasim_py.cli.run import print_failures
from astrasim_py.core.errors import UsageError

if TYPE_CHECKING:
    from astrasim_py.core.point_names import PointName

_FLOPS = ("full", "causal", "hardware")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="FILE[@key=value,…]",
        help="behind @ values of the configurations that are meant; @… alone is of the name before it",
    )
    add(parser, "--set", note="e.g. explore.simulate.top=5")
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="rows on stdout (20)")
    parser.add_argument("--flops", choices=_FLOPS, default="full", help="how FLOPs are counted (full)")
    question = parser.add_mutually_exclusive_group()
    shared_options.add(question, "--explain")
    question.add_argument("--why-not", action="store_true", help="what is against the configurations of FILE@…")
    question.add_argument("--diff", action="store_true", help="from one configuration's step to another's")
    parser.add_argument("--what-if", action="store_true", help="faster links, memory, FLOPs; more memory; other rings")
    shared_options.add(parser, "--figures", note="of --diff, too")
    parser.add_argument("--calibrate", metavar="ROWS.csv", help="fit constants to measured step times, and use them")
    parser.add_argument("--all", metavar="FILE", help="write every configuration as CSV, refused ones with the reason")
    parser.add_argument("--parquet", metavar="FILE", help="write the table as Parquet, too; needs pyarrow")
    engine_option(parser)
    add(parser, "--out", "--jobs", "--cluster", "--fresh", "--quiet")
    format_option(parser)


#: Options may stand between names.
MIXED = True


def run(args: argparse.Namespace) -> int:
    """Explore, or answer a question about configurations."""
    from astrasim_py.cli.former import note
    from astrasim_py.exploration.grid import grid_of
    from astrasim_py.exploration.models import load_exploration
    from astrasim_py.exploration.search import price
    from astrasim_py.runs.progress import progress_line

    check_positive(args, "jobs", "rows")
    names = _names(args)
    exploration = load_exploration(names[0].name, args.set)
    complain(note(former.split(), present.split()) for former, present in exploration.former)
    if args.calibrate:
        from astrasim_py.exploration.calibrate import calibrated

        constants, sentence = calibrated(args.calibrate)
        exploration = exploration.calibrated(constants)
        complain(() if args.quiet else [sentence])
    complain(() if args.quiet else exploration.costs.doubts)
    question = args.explain or args.why_not or args.diff
    values = names[0].values
    if not question:
        from astrasim_py.exploration.results import require_parquet, results_folder

        if args.parquet:
            require_parquet(args.parquet)
        args.folder = None if values else results_folder(args.out, exploration.name)
    begin = time.monotonic()
    with progress_line(quiet=args.quiet) as line:
        grid = grid_of(exploration)
        if values and not question:
            grid = grid.restricted(values, str(names[0]))
        priced = price(exploration, grid, tell=line.show)
    rate = priced.grid.count / max(time.monotonic() - begin, 1e-9)
    complain(() if args.quiet else [f"{priced.grid.count:,} configurations priced, {rate:,.0f} a second"])
    return _answer(args, priced, names) if question else _table(args, priced)


def _names(args: argparse.Namespace) -> list["PointName"]:
    """The file, and the values of one configuration; of two with --diff. Raises UsageError: other numbers of them."""
    from astrasim_py.inspection.point_choice import point_names

    names = point_names(args.names)
    wanted = 2 if args.diff else 1
    if len(names) != wanted or len({name.name for name in names}) > 1:
        example = "FILE@tp=8,pp=4 @tp=4,pp=8 --diff" if args.diff else "FILE@tp=8,pp=4"
        problem = f"{'--diff is of two configurations' if args.diff else 'takes one name'} of one file"
        raise UsageError("explore", f"{problem}, and {len(names)} are named", f"write {example}")
    return names


def _answer(args: argparse.Namespace, priced, names: Sequence["PointName"]) -> int:
    from astrasim_py.exploration.search import best_of, why_not
    from astrasim_py.report import explore as text
    from astrasim_py.report.training import explain_text

    answer: object
    if args.explain:
        answer = best = best_of(priced, names[0].values, str(names[0]))
        lines = f"{best['configuration']}\n{explain_text(best)}"
    elif args.why_not:
        answer = reasons = why_not(priced, names[0].values, str(names[0]))
        lines = text.why_not_text(reasons)
    else:
        answer = first, second = [best_of(priced, name.values, str(name)) for name in names]
        lines = text.difference_text(first, second)
        if args.figures:
            from astrasim_py.exploration.figures import write_waterfall

            figure = write_waterfall(args.out, priced.exploration.name, first, second)
            lines += f"\n\nfigure: {figure}"
            complain([f"figure: {figure}"] if args.format != "text" else ())
    if not printed(args.format, answer):
        print(lines)
    return 0


def _table(args: argparse.Namespace, priced) -> int:
    from astrasim_py.exploration.results import table_parquet, write_all, write_results
    from astrasim_py.exploration.search import baseline_of, simulate
    from astrasim_py.exploration.what_if import what_if
    from astrasim_py.report import explore as text
    from astrasim_py.report.training import costs_text
    from astrasim_py.results.csv_io import csv_rows
    from astrasim_py.runs.progress import on_terminal

    if args.all:
        write_all(priced, args.all)
    priced.best()
    exploration = priced.exploration
    if exploration.keys.baseline:
        baseline_of(priced)
    order = priced.possible[: exploration.keys.rows]
    rows = priced.rows(order)
    top = min(exploration.keys.simulate.top, len(rows))
    options = {key: getattr(args, key) for key in ("out", "jobs", "cluster", "fresh", "engine")}
    progress = on_terminal(f"{top} simulations", quiet=args.quiet)
    simulated = simulate(priced, rows[:top], order[:top], progress=progress, **options)
    rows = [row | fields for row, fields in zip(rows, (*simulated.rows, *({},) * (len(rows) - top)), strict=True)]
    code = simulated.result.exit_code if simulated.result else 0
    if simulated.result:
        print_failures(simulated.result)
        complain(() if args.quiet else simulated.result.notes)
        if simulated.result.interrupted:
            return code
    changes = what_if(priced) if args.what_if else []
    files = {"what_if.csv": csv_rows(tuple(changes[0]), changes)} if changes else {}
    if args.figures:
        from astrasim_py.exploration.figures import figures

        files |= figures(priced, rows, changes)
    best = {"best": rows[simulated.best]["configuration"], "best_by_closed_form": rows[0]["configuration"]}
    if args.folder:
        write_results(args.folder, priced, rows, args.flops, best, files)
    if args.parquet:
        table_parquet(rows, args.flops, args.parquet)
    shown = [text.table_row(row, args.flops) for row in rows[: args.rows]]
    keyed = [{key: row[key] for key in text.LAYOUT.values()} | cells for row, cells in zip(rows, shown, strict=False)]
    document = exploration.costs.keys() | {
        "configurations": priced.grid.count,
        "refused": priced.refused,
        "rows": keyed,
        "what_if": changes,
    }
    document |= {"results": args.folder and str(args.folder), "files": [*filter(None, (args.all, args.parquet))]}
    if printed(args.format, document | best, shown):
        return code
    print(text.refused_text(priced.refused, priced.grid.count))
    if exploration.keys.memory == "fit":
        print(text.fit_text(rows[0]))
    print(costs_text(exploration.costs.keys()))
    print(f"\n{text.table_text(rows[: args.rows], args.flops)}\n")
    if simulated.gaps and simulated.result:
        print(text.order_text(rows[:top], simulated.gaps, simulated.wrong_pairs, simulated.pairs, simulated.fastest))
        print(fold_text(simulated.result.rows, simulated.result.summaries), end="")
    if notes := text.notes_text(rows[: max(args.rows, top)]):
        print(notes)
    if changes:
        print(f"{text.what_if_text(changes)}\n")
    print(text.best_text(rows, simulated.best))
    if args.folder:
        print(f"results: {args.folder}")
        for name in files:
            if name.endswith(".svg"):
                print(f"figure: {Path(args.folder) / name}")
    if simulated.result and not args.quiet:
        print(look_text(simulated.result.folder, args.out, simulated.result.rows), end="")
    return code
